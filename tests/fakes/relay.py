"""A small chat platform over real HTTP, and the channel that speaks to it.

The platform behaves as real ones do where it matters: it hands an event out again until a later poll confirms it, it
shows what was posted whatever becomes of the reply, and it may or may not recognise a repeated send by its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import BaseModel

from gateway.channel import Channel, ChannelContext
from gateway.errors import OutcomeUnknown, RetryLater, SendRefused, StoreUnavailable
from gateway.events import DeliveryReceipt, InboundMessage, MessagePart, OutboundMessage, Sender, SessionKey
from gateway.intake import Intake
from gateway.ports.channel import ChannelCapabilities, ChatActivity
from gateway.text import find_command, split
from tests.fakes.loopback import serve_app

TEXT_LIMIT = 160  # characters; small, so that an answer of a few sentences makes two parts
_POLL_SECONDS = 20.0
_PAUSE = 0.05  # before a poll that follows a failure


# -- the platform -----------------------------------------------------------------------------------


@dataclass(slots=True)
class RelayMessage:
    """A message as people see it. `versions` holds every text it had, the present one last."""

    id: str
    chat: str
    text: str
    key: str
    is_marked: bool  # it says of itself that it may repeat another
    versions: list[str]


@dataclass(slots=True)
class RelayServer:
    """The platform's state: what people wrote, and what every chat shows."""

    base: str = ""
    knows_keys: bool = True  # a repeated key is the same message
    forgets_acks: bool = False  # a client that starts anew is handed everything again
    lose_replies: int = 0  # so many posts are shown but never confirmed
    updates: list[dict[str, Any]] = field(default_factory=list)
    confirmed: int = 0  # every update up to this number
    shown: list[RelayMessage] = field(default_factory=list)
    posts: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, chat: str, text: str, *, sender: str = "ann") -> None:
        """Let somebody write *text*."""
        number = len(self.updates) + 1
        at = datetime.now(UTC).isoformat()
        self.updates.append({"update": number, "chat": chat, "sender": sender, "text": text, "at": at})
        self._change()

    def chat(self, name: str) -> list[RelayMessage]:
        """Return what the chat shows, oldest first."""
        return [message for message in self.shown if message.chat == name]

    async def wait_changed(self) -> None:
        """Return at the next thing written, posted, edited or confirmed."""
        await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def app(self) -> web.Application:
        """Return the platform's routes."""
        app = web.Application()
        app.router.add_get("/updates", self._updates)
        app.router.add_post("/messages", self._post)
        app.router.add_put("/messages/{id}", self._edit)
        app.router.add_get("/keys/{key}", self._find)
        return app

    async def _updates(self, request: web.Request) -> web.Response:
        """Answer ``?after=N`` with what comes after N, which confirms all up to N; wait a while for it."""
        after = int(request.query["after"])
        if after > self.confirmed:
            self.confirmed = after
            self._change()
        floor = after if self.forgets_acks else self.confirmed
        with suppress(TimeoutError):
            async with asyncio.timeout(float(request.query.get("wait", _POLL_SECONDS))):
                while len(self.updates) <= floor:
                    await self._changed.wait()
        return web.json_response(self.updates[floor:])

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.posts += 1
        known = next((each for each in self.shown if self.knows_keys and each.key == body["key"]), None)
        if known is None:
            known = RelayMessage(
                id=f"m{len(self.shown) + 1}",
                chat=body["chat"],
                text=body["text"],
                key=body["key"],
                is_marked=body["marked"],
                versions=[body["text"]],
            )
            self.shown.append(known)
            self._change()
        if self.lose_replies and request.transport is not None:
            self.lose_replies -= 1
            request.transport.abort()
        return web.json_response({"id": known.id})

    async def _edit(self, request: web.Request) -> web.Response:
        known = next((each for each in self.shown if each.id == request.match_info["id"]), None)
        if known is None:
            raise web.HTTPNotFound
        known.text = (await request.json())["text"]
        known.versions.append(known.text)
        self._change()
        return web.json_response({"id": known.id})

    async def _find(self, request: web.Request) -> web.Response:
        known = next((each for each in self.shown if each.key == request.match_info["key"]), None)
        return web.json_response({"id": known.id if known else None})


@asynccontextmanager
async def open_relay(relay: RelayServer | None = None) -> AsyncIterator[RelayServer]:
    """Serve the platform on loopback until the block ends; polls that hang are cut off then."""
    relay = relay or RelayServer()
    async with serve_app(relay.app(), handler_cancellation=True) as place:
        relay.base = f"http://{place}"
        yield relay


# -- the channel ------------------------------------------------------------------------------------


class RelaySettings(BaseModel):
    """The block of a relay channel."""

    base_url: str
    send_key: bool = True
    preview_seconds: float = 0.01


class RelayChannel:
    """Implements `gateway.ports.Channel` over the platform's HTTP."""

    def __init__(self, name: str, settings: RelaySettings, intake: Intake) -> None:
        self.name = name
        self.capabilities = ChannelCapabilities(
            text_limit=TEXT_LIMIT,
            edits=True,
            send_key=settings.send_key,
            preview_every=timedelta(seconds=settings.preview_seconds),
        )
        self._settings = settings
        self._intake = intake
        self._session: aiohttp.ClientSession | None = None
        self._accepted = 0  # every update up to this number is durable with us
        self._is_ready = False

    async def run(self) -> None:
        """Poll until cancelled. An update is confirmed by the poll after the one that found it durable."""
        while True:
            try:
                news = await self._call("GET", f"/updates?after={self._accepted}")
                self._is_ready = True
                for update in news:
                    await self._intake.receive(self._parse(update))
                    self._accepted = update["update"]
            except (RetryLater, OutcomeUnknown, StoreUnavailable):
                self._is_ready = False
                await asyncio.sleep(_PAUSE)

    def is_ready(self) -> bool:
        """Say whether the last poll was answered."""
        return self._is_ready

    def is_watched(self, key: SessionKey) -> bool:
        """Every chat here is looked at."""
        return True

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut at the platform's length."""
        pieces = split(message.text, limit=TEXT_LIMIT)
        return [message.part(n, piece, piece) for n, piece in enumerate(pieces, 1)]

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Post; the platform shows the mark itself."""
        body = {"chat": part.key.chat, "text": part.payload or part.plain, "key": part.id, "marked": may_be_duplicate}
        return _receipt(part, await self._call("POST", "/messages", body))

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace a message's text."""
        return _receipt(part, await self._call("PUT", f"/messages/{message_id}", {"text": part.payload or part.plain}))

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Ask by key, where the platform has keys."""
        if not self.capabilities.send_key:
            raise OutcomeUnknown("this platform knows no keys")
        found = await self._call("GET", f"/keys/{part.id}")
        return _receipt(part, found) if found["id"] else None

    async def show(self, activity: ChatActivity) -> None:
        """Nothing to show: the platform has no typing."""

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _parse(self, update: Mapping[str, Any]) -> InboundMessage:
        return InboundMessage(
            key=SessionKey(self.name, update["chat"]),
            message_id=str(update["update"]),
            sender=Sender(id=update["sender"], name=update["sender"].title()),
            text=update["text"],
            command=find_command(update["text"]),
            sent_at=datetime.fromisoformat(update["at"]),
        )

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with self._session.request(method, self._settings.base_url + path, json=body) as response:
                if response.status >= 400:
                    raise SendRefused(f"{method} {response.status}")
                return await response.json()
        except aiohttp.ClientConnectorError as error:  # never reached the platform
            raise RetryLater(timedelta(seconds=_PAUSE), str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise OutcomeUnknown(type(error).__name__) from error


def _receipt(part: MessagePart, reply: Mapping[str, Any]) -> DeliveryReceipt:
    return DeliveryReceipt(part=part.id, message_id=reply["id"], at=datetime.now(UTC))


class RelayKind:
    """What the entry point of a real channel would name."""

    name = "relay"
    settings: type[Any] = RelaySettings

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; it connects when it runs."""
        return RelayChannel(context.name, context.settings, context.intake)

    def routes(self, channel: Channel) -> Sequence[Any]:
        """The relay is polled; nothing is mounted."""
        return ()

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:
        """Nothing can be wrong with it."""
        return ()
