"""The three platforms as one: people in two places of a group and in a direct chat, before the whole gateway."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage
from tests.fakes import discord_records, slack_server
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.discord_rest import DiscordRest
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.slack_server import SlackServer
from tests.fakes.telegram_gateway import TEAM, mention
from tests.fakes.telegram_server import TelegramFault, TelegramServer, open_telegram

T = TypeVar("T")
QUICK = timedelta(milliseconds=5)  # between two edits of a preview
_PATIENCE = 0.05  # seconds that a slow platform holds one call back for the next


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of ours with every text it had, the present one last."""

    texts: tuple[str, ...]

    @property
    def text(self) -> str:
        """What people see now."""
        return self.texts[-1]


class ReorderedCalls:
    """A platform that answers slowly and out of order: every other call is done after the one that came later."""

    def __init__(self) -> None:
        self._waiting: asyncio.Event | None = None
        self.overtaken = 0

    async def through(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make *call* when it is its turn."""
        if self._waiting is None:
            mine = self._waiting = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await mine.wait()
                    self.overtaken += 1
            if self._waiting is mine:
                self._waiting = None
            return await call()
        earlier, self._waiting = self._waiting, None
        try:
            return await call()
        finally:
            earlier.set()


class PlatformScene(ABC):
    """One platform. Places are `left` and `right`, two topics, threads or channels, and `direct`."""

    name: ClassVar[str]

    def __init__(self, turnstile: ReorderedCalls | None = None) -> None:
        self.turnstile = turnstile

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve the platform."""

    @property
    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return the channel's block; Ann is let in, and nobody else."""

    @abstractmethod
    def say(self, place: str, text: str) -> str:
        """Let Ann write there, naming us where that is needed; return the message's id."""

    @abstractmethod
    def stand(self, place: str) -> list[StoredMessage]:
        """Return our messages there."""

    @abstractmethod
    def fail_edit(self, *, is_done: bool) -> None:
        """Let the next edit fail: its reply is lost, or it never arrives."""

    @property
    @abstractmethod
    def failures(self) -> int:
        """How many of these are still to come."""

    @abstractmethod
    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when *holds* holds."""

    @asynccontextmanager
    async def open_gateway(self, model: Any, home: Path | None = None) -> AsyncIterator[InProcessGateway]:
        """Run the whole gateway, with previews as fast as they can be."""
        async with gateway(home=home, model=model, environment=self.environment) as parlour:
            channel: Any = parlour.app.channels[self.name]
            channel.capabilities = replace(channel.capabilities, preview_every=QUICK)
            while not self.is_up(channel):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.005)
            yield parlour

    def is_up(self, channel: Any) -> bool:
        """Say whether the channel hears."""
        return bool(channel.is_ready())

    def texts(self, place: str) -> list[str]:
        """Return what people see there of us."""
        return [each.text for each in self.stand(place)]


class _SlowTelegram(TelegramServer):
    turnstile: ReorderedCalls | None = None

    async def _handle(self, request: Any) -> Any:
        if self.turnstile is None or request.match_info["method"] not in ("sendMessage", "editMessageText"):
            return await super()._handle(request)
        return await self.turnstile.through(lambda: TelegramServer._handle(self, request))


class TelegramGroupScene(PlatformScene):
    """Two topics of a group."""

    name = "telegram"
    _TOPICS: ClassVar[Mapping[str, int | None]] = {"left": 7, "right": 8, "direct": None}

    def __init__(self, turnstile: ReorderedCalls | None = None) -> None:
        super().__init__(turnstile)
        self.server = _SlowTelegram()
        self.server.turnstile = turnstile
        self.server.now = lambda: int(time.time())
        self.server.per_minute = 1_000
        self.server.chat(TEAM).topics = {7, 8}

    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve the Bot API."""
        return open_telegram(self.server)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the block."""
        block = "PARLOUR_CHANNELS__TELEGRAM__"
        addresses = {f"{block}BASE_URL": f"{self.server.base}/bot", f"{block}FILE_URL": f"{self.server.base}/file/bot"}
        return {f"{block}TOKEN": self.server.token, f"{block}ALLOW_FROM": "42", **addresses}

    def is_up(self, channel: Any) -> bool:
        """Say whether it polls: the first poll is answered when somebody writes."""
        return any(name == "getUpdates" for name, _ in self.server.calls)

    def say(self, place: str, text: str) -> str:
        """Write in a topic, or in private."""
        topic = self._TOPICS[place]
        if topic is None:
            return str(self.server.say(text)["message_id"])
        text = f"@parlour_bot {text}"
        where = {"is_topic_message": True, "message_thread_id": topic, **mention(text)}
        return str(self.server.say(text, chat=TEAM, sender=42, **where)["message_id"])

    def stand(self, place: str) -> list[StoredMessage]:
        """Return what stands in a topic, or in private."""
        chat, topic = (42 if place == "direct" else TEAM), self._TOPICS[place]
        return [StoredMessage(tuple(p.versions)) for p in self.server.posts if (p.chat, p.thread) == (chat, topic)]

    def fail_edit(self, *, is_done: bool) -> None:
        """Break the next editMessageText."""
        self.server.fail("editMessageText", TelegramFault("lost" if is_done else "drop"))

    @property
    def failures(self) -> int:
        """How many are left."""
        return len(self.server.faults.get("editMessageText", ()))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the server."""
        await self.server.until(holds)


class _SlowSlack(SlackServer):
    turnstile: ReorderedCalls | None = None

    async def _api(self, request: Any) -> Any:
        if self.turnstile is None or request.match_info["method"] not in ("chat.postMessage", "chat.update"):
            return await super()._api(request)
        return await self.turnstile.through(lambda: SlackServer._api(self, request))


class SlackGroupScene(PlatformScene):
    """Two threads of a channel."""

    name = "slack"
    _ROOTS: ClassVar[Mapping[str, str]] = {"left": "1700000000.000100", "right": "1700000000.000200", "direct": ""}

    def __init__(self, turnstile: ReorderedCalls | None = None) -> None:
        super().__init__(turnstile)
        self.server = _SlowSlack()
        self.server.turnstile = turnstile
        for place in ("left", "right"):
            self.server.say(slack_server.ROOM, slack_server.BOB, place, ts=self._ROOTS[place], quiet=True)

    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve the workspace."""
        return slack_server.slack_server(self.server)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the block."""
        block = "PARLOUR_CHANNELS__SLACK__"
        tokens = {f"{block}BOT_TOKEN": slack_server.BOT_TOKEN, f"{block}APP_TOKEN": slack_server.APP_TOKEN}
        return {**tokens, f"{block}BASE_URL": f"{self.server.base}/api/", f"{block}ALLOW_FROM": slack_server.ANN}

    def say(self, place: str, text: str) -> str:
        """Write in a thread, or directly."""
        if place == "direct":
            return self.server.say(slack_server.DM, slack_server.ANN, text)
        text = f"<@{slack_server.BOT_USER}> {text}"
        return self.server.say(slack_server.ROOM, slack_server.ANN, text, thread=self._ROOTS[place])

    def stand(self, place: str) -> list[StoredMessage]:
        """Return what stands in a thread, or directly."""
        where = slack_server.DM if place == "direct" else slack_server.ROOM
        ours = [m for m in self.server.places[where].messages if m["user"] == slack_server.BOT_USER]
        mine = [m for m in ours if m.get("thread_ts", "") == self._ROOTS[place]]
        return [StoredMessage((*m.get("was", ()), m["text"])) for m in mine]

    def fail_edit(self, *, is_done: bool) -> None:
        """Break the next chat.update."""
        self.server.faults.setdefault("chat.update", []).append(slack_server.SlackFault(does=is_done, drops=True))

    @property
    def failures(self) -> int:
        """How many are left."""
        return len(self.server.faults.get("chat.update", ()))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the server."""
        await self.server.until(holds)


class _SlowRest(DiscordRest):
    def __init__(self, discord: DiscordServer, turnstile: ReorderedCalls) -> None:
        super().__init__(discord)
        self._turnstile = turnstile

    async def handle(self, request: Any) -> Any:
        """Answer, when it is its turn."""
        if request.method not in ("POST", "PATCH") or "/messages" not in request.path:
            return await super().handle(request)
        return await self._turnstile.through(lambda: DiscordRest.handle(self, request))


class DiscordGroupScene(PlatformScene):
    """Two channels of a server."""

    name = "discord"

    def __init__(self, turnstile: ReorderedCalls | None = None) -> None:
        super().__init__(turnstile)
        self.server = DiscordServer()
        if turnstile is not None:
            self.server.rest = _SlowRest(self.server, turnstile)
        direct = self.server.direct(discord_records.ANN)
        self._channels = {"left": discord_records.GENERAL, "right": discord_records.RANDOM, "direct": direct}

    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve REST and gateway."""
        return open_discord(self.server)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the block."""
        block = "PARLOUR_CHANNELS__DISCORD__"
        return {
            f"{block}TOKEN": discord_records.TOKEN,
            f"{block}API_URL": f"http://{self.server.base}/api/v10",
            f"{block}GATEWAY_URL": f"ws://{self.server.base}/gateway",
            f"{block}ALLOW_FROM": discord_records.ANN,
        }

    def say(self, place: str, text: str) -> str:
        """Write in a channel, or directly."""
        text = text if place == "direct" else f"<@{discord_records.BOT}> {text}"
        return self.server.say(self._channels[place], discord_records.ANN, text)

    def stand(self, place: str) -> list[StoredMessage]:
        """Return what stands in a channel, or directly; Discord's first text is in no list."""
        ours = [m for m in self.server.messages[self._channels[place]] if m["author"]["id"] == discord_records.BOT]
        return [StoredMessage((*m.get("was", ()), m["content"])) for m in ours]

    def fail_edit(self, *, is_done: bool) -> None:
        """Break the next edit."""
        self.server.fail("PATCH", "messages", "lost" if is_done else "drop")

    @property
    def failures(self) -> int:
        """How many are left."""
        return sum(fault.method == "PATCH" for fault in self.server.faults)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the server."""
        await self.server.until(holds)


WORLDS: tuple[type[PlatformScene], ...] = (TelegramGroupScene, SlackGroupScene, DiscordGroupScene)


class SteppedModel(FakeChatModel):
    """A model whose answers grow as a test lets them: `tell` is given the question, and yields the text so far."""

    name = "storyteller"

    def __init__(self, tell: Callable[[str], AsyncIterator[str]]) -> None:
        self.asked: list[list[str]] = []  # what people said, of each request
        self._tell = tell

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Tell the story of the last question."""
        said = [str(each["content"]) for each in request.messages if each["role"] == "user"]
        if request.purpose == "answer":
            self.asked.append(said)
        text = ""
        async for text in self._tell(said[-1]):
            if sink is not None:
                sink(text)
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(10, 10, 0), cost=0.0)
