"""A person in their direct chat with the bot, on each platform through its real library, and on the page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from playwright.async_api import Page, expect

from tests.e2e.browser import send_text
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import BOT
from tests.fakes.discord_records import buttons as discord_buttons
from tests.fakes.discord_server import DiscordServer
from tests.fakes.slack_buttons import buttons as slack_buttons
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import BOT_USER, DM, SlackServer
from tests.fakes.telegram_server import TelegramServer


class PlatformTalk(ABC):
    """A person in their direct chat with the bot."""

    @abstractmethod
    async def say(self, text: str) -> None:
        """Write."""

    @abstractmethod
    async def wait_shown(self, words: str) -> str:
        """Return the bot's message with these words."""

    @abstractmethod
    async def wait_buttons(self, words: str) -> Sequence[str]:
        """Return the labels below the bot's message with these words."""

    @abstractmethod
    async def press(self, words: str, label: str, command: str) -> None:
        """Press a button below it, by the label or by what it sends."""


class TelegramTalk(PlatformTalk):
    """python-telegram-bot before our server."""

    def __init__(self, server: TelegramServer) -> None:
        self._server = server

    async def say(self, text: str) -> None:
        """Write in the direct chat."""
        self._server.say(text)

    async def wait_shown(self, words: str) -> str:
        """Return the text of the post."""
        return str((await self._wait(words)).text)

    async def wait_buttons(self, words: str) -> Sequence[str]:
        """Return the labels of the keyboard."""
        return [label for row in (await self._wait(words)).buttons for label in row]

    async def press(self, words: str, label: str, command: str) -> None:
        """Press; the keyboard goes."""
        post = await self._wait(words)
        self._server.buttons.press(post, command)
        await self._server.until(lambda: not post.buttons)

    async def _wait(self, words: str) -> Any:
        await self._server.until(lambda: any(words in post.text for post in self._server.posts))
        return next(post for post in self._server.posts if words in post.text)


class SlackTalk(PlatformTalk):
    """slack_bolt before our server."""

    def __init__(self, server: SlackServer) -> None:
        self._server = server

    async def say(self, text: str) -> None:
        """Write in the direct chat."""
        self._server.say(DM, SLACK_ANN, text)

    async def wait_shown(self, words: str) -> str:
        """Return the text of the message."""
        return str((await self._wait(words))["text"])

    async def wait_buttons(self, words: str) -> Sequence[str]:
        """Return the labels of the blocks."""
        return [label for row in slack_buttons(await self._wait(words)) for label in row]

    async def press(self, words: str, label: str, command: str) -> None:
        """Press."""
        self._server.press(DM, SLACK_ANN, await self._wait(words), label)

    def _find(self, words: str) -> list[dict[str, Any]]:
        return [each for each in self._server.places[DM].messages if each["user"] == BOT_USER and words in each["text"]]

    async def _wait(self, words: str) -> dict[str, Any]:
        await self._server.until(lambda: bool(self._find(words)))
        return self._find(words)[0]


class DiscordTalk(PlatformTalk):
    """discord.py before our server."""

    def __init__(self, server: DiscordServer) -> None:
        self._server = server
        self._chat = server.direct(DISCORD_ANN)

    async def say(self, text: str) -> None:
        """Write in the direct chat."""
        self._server.say(self._chat, DISCORD_ANN, text)

    async def wait_shown(self, words: str) -> str:
        """Return the content of the message."""
        return str((await self._wait(words))["content"])

    async def wait_buttons(self, words: str) -> Sequence[str]:
        """Return the labels of the components."""
        return [label for row in discord_buttons(await self._wait(words)) for label in row]

    async def press(self, words: str, label: str, command: str) -> None:
        """Press."""
        self._server.interactions.press((await self._wait(words))["id"], DISCORD_ANN, command)

    def _find(self, words: str) -> list[dict[str, Any]]:
        messages = self._server.messages[self._chat]
        return [each for each in messages if each["author"]["id"] == BOT and words in each["content"]]

    async def _wait(self, words: str) -> dict[str, Any]:
        await self._server.until(lambda: bool(self._find(words)))
        return self._find(words)[0]


class PageTalk(PlatformTalk):
    """The page in a real browser."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def say(self, text: str) -> None:
        """Write and send."""
        await send_text(self._page, text)

    async def wait_shown(self, words: str) -> str:
        """Return the text of the line."""
        line = self._page.locator(".line:not(.user)").filter(has_text=words)
        await expect(line).to_have_count(1)
        return str(await line.text_content())

    async def wait_buttons(self, words: str) -> Sequence[str]:
        """Return the labels of the buttons."""
        await self.wait_shown(words)
        return await self._page.locator(".buttons button").all_inner_texts()

    async def press(self, words: str, label: str, command: str) -> None:
        """Click; the buttons go."""
        await self._page.get_by_role("button", name=label).click()
        await expect(self._page.locator(".buttons")).to_have_count(0)
