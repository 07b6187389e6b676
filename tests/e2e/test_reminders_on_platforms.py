"""Every second Tuesday at nine, on each platform through its real library: promised, fired, snoozed and cancelled."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from agent.reminders.recurrence import slot_of
from agent.reminders.reminder import Reminder, reminders_in
from tests.e2e.browser import open_chat, send_text
from tests.e2e.discord.test_gateway_discord import open_gateway as discord_gateway
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import BOT
from tests.fakes.discord_records import buttons as discord_buttons
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.slack_buttons import buttons as slack_buttons
from tests.fakes.slack_gateway import open_gateway as slack_gateway
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import BOT_USER, DM, SlackServer, slack_server
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import TelegramServer, open_telegram

BUTTONS = ["10 min", "1 h", "Tomorrow", "Stop"]
TUESDAYS = "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU"


class SecretaryModel(InstantModel):
    """Calls the tool that the person's words ask for, and repeats the time that its result names."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Call, or answer."""
        last = request.messages[-1]
        if last["role"] == "tool":
            text = f"Done: {str(last['content']).partition(': ')[2]}."
            return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(), cost=0.0)
        id_ = next(iter(re.findall(r"reminder (r[a-z2-7]{8})", json.dumps(request.messages))), "")
        name, arguments = self._call(str(last["content"]), id_)
        call = ToolCall(f"c{len(request.messages)}", name, json.dumps(arguments))
        return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(), cost=0.0)

    def _call(self, said: str, id_: str) -> tuple[str, dict[str, Any]]:
        if "every second Tuesday" in said:
            return "remind", {"what": "bins", "at": f"{next_tuesday():%Y-%m-%d}T09:00", "repeat": TUESDAYS}
        if "snooze" in said:
            return "reminder_change", {"id": id_, "snooze_minutes": 30}
        return "reminder_change", {"id": id_, "cancel": True}


def next_tuesday() -> datetime:
    """Return the next Tuesday after today."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    return tomorrow + timedelta(days=(1 - tomorrow.weekday()) % 7)


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


async def live(talk: PlatformTalk, parlour: InProcessGateway) -> None:
    """The whole life of one reminder."""
    jobs = parlour.app.store.jobs

    async def read() -> list[Reminder]:
        return reminders_in(await jobs.pending_of("remind"))

    await talk.say("remind me every second Tuesday at 9 to put out the bins")
    first, second = next_tuesday(), next_tuesday() + timedelta(days=14)
    promise = await talk.wait_shown("Done: ")
    assert f"Tue {first.day} {first:%b %Y}, 09:00" in promise
    assert f"then Tue {second.day} {second:%b %Y}, 09:00" in promise
    (job,) = await jobs.pending_of("remind")
    (reminder,) = await read()
    now = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
    await jobs.advance(job, replace(reminder, at=slot_of(now, reminder.zone)).to_job(job.scope))
    assert list(await talk.wait_buttons("⏰ bins")) == BUTTONS
    await talk.press("⏰ bins", "10 min", f"/reminders snooze {reminder.id} 10")
    await talk.wait_shown("I'll remind you again")
    by_button = [each for each in await read() if each.is_snoozed]
    assert [round((each.due - datetime.now(UTC)) / timedelta(minutes=1)) for each in by_button] == [10]
    assert [datetime.fromisoformat(each.at).weekday() for each in await read() if not each.is_snoozed] == [1]
    await talk.say("snooze that for half an hour")
    assert "in 30 minutes" in await talk.wait_shown("in 30 minutes")
    assert sum(each.is_snoozed for each in await read()) == 1
    await talk.say("no, drop it")
    await talk.wait_shown("Done: bins")
    assert await read() == []


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


async def test_on_telegram() -> None:
    """An inline keyboard."""
    async with (
        open_telegram() as server,
        gateway(model=SecretaryModel(), environment=settings_for(server)) as parlour,
    ):
        server.now = lambda: int(time.time())
        await live(TelegramTalk(server), parlour)


async def test_in_slack() -> None:
    """Blocks."""
    async with slack_server() as server, slack_gateway(server, model=SecretaryModel()) as parlour:
        await live(SlackTalk(server), parlour)


async def test_on_discord() -> None:
    """Components."""
    async with open_discord() as server, discord_gateway(server, model=SecretaryModel()) as parlour:
        await live(DiscordTalk(server), parlour)


@pytest.mark.asyncio(loop_scope="session")
async def test_on_the_page(chromium: Browser) -> None:
    """Buttons that are clicked."""
    async with gateway(model=SecretaryModel()) as parlour:
        page = await open_chat(chromium, parlour.app.web.url)
        await live(PageTalk(page), parlour)
