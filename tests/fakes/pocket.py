"""The real gateway in this process, with a channel inside the process: a platform that a test speaks for."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from agent.llm.port import ChatReply, ChatRequest, Sink, Tokens
from gateway.admission import Policy
from gateway.app import App, ExtraChannel, Plugins, open_app, serve
from gateway.events import InboundKind, InboundMessage, OutboundMessage, Part, Receipt, Sender, SessionKey
from gateway.ports import Accepted, Activity, Capabilities, Channel, ChannelContext
from gateway.settings import load_settings


class InstantModel:
    """Answers after *seconds*; keeps nothing, so that a long run measures the gateway."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.name = "instant"
        self.seconds = seconds
        self.calls = 0

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Repeat the last message."""
        self.calls += 1
        if self.seconds:
            await asyncio.sleep(self.seconds)
        text = f"answer to: {str(request.messages[-1]['content'])[-80:]}"
        if sink is not None:
            sink(text)
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=Tokens(10, 10, 0), cost=0.0)

    async def warm(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to close."""


class PocketChannel:
    """A platform inside the process: what is sent is noted, and wakes whoever waits for that answer."""

    capabilities = Capabilities(text_limit=4_000)

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self._intake = context.intake
        self._numbers = count(time.time_ns())  # a restarted platform does not begin at 1 again
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self.sent = 0
        self.order: dict[str, list[str]] = {}
        self.texts: dict[str, list[str]] = {}

    async def run(self) -> None:
        """Hear nothing by itself; `say` is how messages come."""
        await asyncio.Event().wait()

    async def say(
        self,
        chat: str,
        text: str,
        *,
        sender: str = "ann",
        name: str = "Ann",
        number: str = "",
        revision: str = "",
        kind: InboundKind = InboundKind.MESSAGE,
    ) -> tuple[Accepted, asyncio.Future[float]]:
        """Hand a message over; the future is done when it is answered, with the time of the clock then."""
        number = number or f"{next(self._numbers):020d}"
        message = InboundMessage(
            key=SessionKey(self.name, chat),
            message_id=number,
            sender=Sender(id=sender, name=name),
            text=text,
            sent_at=datetime.now(UTC),
            revision=revision,
            kind=kind,
        )
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return await self._intake.receive(message), future

    async def ask(self, chat: str, text: str, **facts: Any) -> str:
        """Hand a message over and return the answer's text."""
        _, answer = await self.say(chat, text, **facts)
        await answer
        return self.texts[chat][-1]

    def is_ready(self) -> bool:
        """Always."""
        return True

    def is_watched(self, key: SessionKey) -> bool:
        """Nobody looks on."""
        return False

    def render(self, message: OutboundMessage) -> Sequence[Part]:
        """One part, as it stands."""
        return [
            Part(
                id=f"{message.id}.1",
                key=message.key,
                payload=message.text,
                plain=message.text,
                reply_to=message.reply_to,
            )
        ]

    async def send(self, part: Part, *, marked: bool = False) -> Receipt:
        """Note the time."""
        self.sent += 1
        self.order.setdefault(part.key.chat, []).append(part.reply_to)
        self.texts.setdefault(part.key.chat, []).append(part.plain)
        future = self._waiting.pop(part.reply_to, None)
        if future is not None and not future.done():
            future.set_result(time.perf_counter())
        return Receipt(part=part.id, message_id=str(self.sent), at=datetime.now(UTC))

    async def edit(self, message_id: str, part: Part) -> Receipt:
        """The same as sending."""
        return await self.send(part)

    async def find(self, part: Part) -> Receipt | None:
        """Say that it never arrived."""
        return None

    async def show(self, activity: Activity) -> None:
        """Show nothing."""

    async def close(self) -> None:
        """Nothing to close."""


class PocketKind:
    """The kind `pocket`; keeps the channel it opened."""

    name = "pocket"
    settings: type[Any] = dict

    def __init__(self) -> None:
        self.channel: PocketChannel | None = None

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = PocketChannel(context)
        return self.channel

    def routes(self, channel: Channel) -> Sequence[Any]:
        """No pages."""
        return ()

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:
        """Nothing can be wrong."""
        return ()


@dataclass(slots=True)
class Pocket:
    """A gateway at work."""

    app: App
    channel: PocketChannel
    home: Path

    async def idle(self) -> None:
        """Return when everything accepted is answered, delivered and in its file."""
        while True:
            depth = await self.app.store.journal.depth()
            if not self.app.pool.busy and not any(depth[name] for name in ("queued", "undelivered")):
                await self.app.projector.flush()
                if not (await self.app.store.journal.depth())["unprojected"]:
                    return
            await asyncio.sleep(0.005)


@asynccontextmanager
async def gateway(
    *,
    home: Path | None = None,
    model: Any = None,
    tools: Sequence[Any] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Pocket]:
    """Run the whole gateway, web server included, on a fresh home (or *home*)."""
    with tempfile.TemporaryDirectory(prefix="parlour-pocket-") as folder:
        place = home or Path(folder) / "home"
        settings = load_settings(
            {"PARLOUR_HOME": str(place), "PARLOUR_WEB__PORT": "0", "PARLOUR_LOG__LEVEL": "error", **(environment or {})}
        )
        kind = PocketKind()
        extra = ExtraChannel(name="pocket", kind=kind, settings=None, policy=Policy(channel="pocket", is_local=True))
        plugins = Plugins(channels=(extra,), tools=tools, models=() if model is None else (model,))
        stop, ready = asyncio.Event(), asyncio.Event()
        async with open_app(settings, plugins=plugins) as app:
            serving = asyncio.create_task(serve(app, stop, ready=lambda _: ready.set()))
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
            assert kind.channel is not None
            try:
                yield Pocket(app, kind.channel, place)
            finally:
                stop.set()
                await serving
