"""A gateway behind the page and the terminal: an intake, a history and notes that behave, all in memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from channels.web import plugin as web_kind
from channels.web.adapter import WebChannel
from gateway.channel import Channel, ChannelContext
from gateway.errors import FileUnavailable, StoreUnavailable, UnreadableEvent
from gateway.events import InboundMessage, OutboundKind, OutboundMessage, SessionKey, turn_id
from gateway.intake import Intake
from gateway.ports.channel import (
    CACHED_NOTES,
    AcceptedMessage,
    ChatActivity,
    DisplayedMessage,
    DisplayedPage,
    IntakeResult,
    IntakeVerdict,
    MembershipChange,
    PlatformEvent,
    SessionInfo,
)
from gateway.store.attachment_store import AttachmentStore
from gateway.store.records import SqlChannelState
from gateway.web.connections import ConnectionLimits
from gateway.web.server import WebServer

Answer = Callable[[str], str]


class FakeState(SqlChannelState):
    """A channel's notes."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self.accepted: list[AcceptedMessage] = []
        self.unanswered: set[str] = set()  # ids of messages whose turns have not ended
        self.first_row: int | None = None  # of this run
        self.killed: list[int] = []  # those of runs that were killed

    def accept(self, key: SessionKey, message_id: str) -> int:
        """Return the number of a message's row."""
        at = datetime.now(UTC)
        self.accepted.append(AcceptedMessage(len(self.accepted) + 1, key, message_id, at))
        return next(each.row for each in self.accepted if each.message_id == message_id)

    def kill(self) -> None:
        """Have the next run take over."""
        self.killed += [] if self.first_row is None else [self.first_row]
        self.first_row = None

    def just_ended(self, rows: Collection[int]) -> frozenset[int]:
        """Return none: the test ends rows."""
        return frozenset()

    async def find_ended(self, key: SessionKey, rows: Collection[int]) -> frozenset[int]:
        """Return those that are answered, as the test says."""
        return frozenset(rows) - {each.row for each in self.accepted if each.message_id in self.unanswered}

    async def save_first_row(self, row: int | None, *, within: float = 0.0) -> None:
        """Note it."""
        self.first_row = row

    async def take_over_rows(self, limit: int) -> Sequence[AcceptedMessage]:
        """Return what killed runs have left."""
        if not self.killed:
            return ()
        first = min(self.killed)
        self.killed.clear()
        self.first_row = first if self.first_row is None else min(first, self.first_row)
        return [each for each in self.accepted if each.row >= first][-limit:]

    async def load(self, name: str) -> str | None:
        """Return a note."""
        return self.notes.get(name)

    async def all(self, prefix: str) -> dict[str, str]:
        """Return notes by name."""
        return {name: value for name, value in self.notes.items() if name.startswith(prefix)}

    async def save(self, name: str, value: str | None, *, within: float = 0.0) -> None:
        """Store a note."""
        if value is None:
            self.notes.pop(name, None)
        else:
            self.notes[name] = value

    async def replace(self, name: str, before: str | None, value: str | None) -> bool:
        """Store a note if it is still *before*."""
        if self.notes.get(name) != before:
            return False
        await self.save(name, value)
        return True

    def save_soon(self, name: str, value: str) -> None:
        """Store a note."""
        self.notes[name] = value

    async def take(self, name: str) -> str | None:
        """Remove a note and return it."""
        return self.notes.pop(name, None)

    def forget(self, name: str) -> None:
        """Remove a note."""
        self.notes.pop(name, None)

    def cached(self) -> dict[str, str]:
        """Return the notes that are served from memory."""
        return {name: value for name, value in self.notes.items() if name.startswith(CACHED_NOTES)}

    def when_cached_changed(self, call: Callable[[], None]) -> None:
        """Do nothing: no other worker has these notes."""


_PIECE = 1 << 18  # bytes


class FakeBlobs(AttachmentStore):
    """Files in memory, under the references that real ones have."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def put(self, scope: str, data: bytes, *, is_medium: bool = False) -> str:
        """Keep *data*."""
        reference = f"{scope}/{hashlib.sha256(data).hexdigest()}"
        self.kept[reference] = data
        return reference

    async def get(self, reference: str) -> bytes | None:
        """Return the bytes."""
        return self.kept.get(reference)

    async def measure(self, reference: str) -> int | None:
        """Return how many bytes there are."""
        return len(self.kept[reference]) if reference in self.kept else None

    async def stream(self, reference: str) -> AsyncIterator[bytes]:
        """Yield the bytes in pieces."""
        if reference not in self.kept:
            raise FileUnavailable("it is lost")
        data = self.kept[reference]
        for start in range(0, len(data), _PIECE):
            yield data[start : start + _PIECE]


@dataclass
class FakePageServices(Intake):
    """Intake and Sessions over one list. What it accepted it never forgets, and answers once.

    With *answer* it answers by itself: typing, a preview, and when `go_on` is set, the answer.
    """

    answer: Answer | None = None
    deliveries: list[InboundMessage] = field(default_factory=list)  # everything handed in, repeats included
    accepted: list[InboundMessage] = field(default_factory=list)
    places: list[MembershipChange] = field(default_factory=list)  # where we were added, or are gone from
    lines: list[DisplayedMessage] = field(default_factory=list)
    is_down: bool = False
    is_broken: bool = False
    verdict: IntakeResult | None = None  # given instead of accepting
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    channel: Channel | None = None
    state: FakeState = field(default_factory=FakeState)
    blobs: FakeBlobs = field(default_factory=FakeBlobs)
    folder: Path | None = None
    proxy: str = ""
    language: str = "en"  # of every chat
    is_cautious: bool = False
    quarantined: dict[str, str] = field(default_factory=dict)  # events that could not be read, and why
    _answers: set[asyncio.Task[None]] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.go_on.set()

    def context(self, name: str, settings: Any = None) -> ChannelContext:
        """Return what a channel of this house is built from."""
        return ChannelContext(
            name=name,
            settings=settings,
            intake=self,
            state=self.state,
            blobs=self.blobs,
            sessions=self,
            language=lambda _: self.language,
            folder=self.folder,
            proxy=self.proxy,
        )

    # Intake

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*; what cannot be read is set aside, and bugs come through."""
        try:
            await work()
        except UnreadableEvent as error:
            self.quarantined[event.id] = str(error)

    async def receive(self, message: InboundMessage, **options: Any) -> IntakeResult:
        """Take *message* in as the gateway would."""
        self.deliveries.append(message)
        self._news.set()
        if self.is_down:
            raise StoreUnavailable("the disk is full")
        if self.is_broken:
            raise RuntimeError("a bug")
        if self.verdict is not None:
            return self.verdict
        if message.logical_key not in {known.logical_key for known in self.accepted}:
            self.accepted.append(message)
            self.lines.append(_line(message))
            if self.answer is not None:
                task = asyncio.create_task(self.think(message, self.answer(message.text)), name="fake answer")
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
        return IntakeResult(verdict=IntakeVerdict.ACCEPTED, row=self.state.accept(message.key, message.message_id))

    async def membership_changed(self, place: MembershipChange) -> None:
        """Note that we were added to *place*, or are gone from it."""
        if self.is_down:
            raise StoreUnavailable("the disk is full")
        self.places.append(place)
        self._news.set()

    async def wait_places(self, number: int) -> list[MembershipChange]:
        """Return when *number* places were told."""
        while len(self.places) < number:
            self._news.clear()
            await self._news.wait()
        return self.places

    async def wait_deliveries(self, number: int) -> list[InboundMessage]:
        """Return when *number* messages were handed in."""
        while len(self.deliveries) < number:
            self._news.clear()
            await self._news.wait()
        return self.deliveries

    # Sessions

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Return what people saw."""
        assert key.chat
        return tuple(self.lines[-limit:])

    async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
        """Return what people saw, in one page."""
        return None if before else DisplayedPage(await self.displayed_messages(key, limit=len(self.lines) or 1))

    async def all(self) -> tuple[SessionInfo, ...]:
        """Return no overview; no channel asks for it."""
        return ()

    # What stands behind the journal

    async def think(self, message: InboundMessage, text: str) -> None:
        """Answer as pool and delivery would: typing, a preview, the commit, the answer in its place."""
        assert self.channel is not None
        turn = turn_id(message)
        await self.channel.show(ChatActivity(key=message.key, on=True))
        preview = OutboundMessage(
            id=f"{turn}.0", key=message.key, text=text[: len(text) // 2], kind=OutboundKind.PREVIEW
        )
        parts = self.channel.render(preview)
        receipt = await self.channel.send(parts[0]) if parts else None
        await self.go_on.wait()
        self.lines = [
            replace(line, state="done") if line.message_id == message.message_id else line for line in self.lines
        ]
        self.lines.append(DisplayedMessage(id=f"{turn}/1", turn=turn, role="assistant", text=text, at=message.sent_at))
        await self.channel.show(ChatActivity(key=message.key, on=False))
        answer = OutboundMessage(id=f"{turn}.1", key=message.key, text=text, reply_to=message.message_id)
        for part in self.channel.render(answer):
            if receipt is not None:
                await self.channel.edit(receipt.message_id, part)
                receipt = None
            else:
                await self.channel.send(part)


def _line(message: InboundMessage) -> DisplayedMessage:
    return DisplayedMessage(
        id=f"{turn_id(message)}/0",
        turn=turn_id(message),
        role="user",
        text=message.text,
        at=message.sent_at,
        message_id=message.message_id,
        state="waiting",
    )


@dataclass
class ServedPage:
    """A page that is up."""

    server: WebServer
    channel: WebChannel
    services: FakePageServices

    @property
    def url(self) -> str:
        """Where the page is."""
        return self.server.url

    @property
    def key(self) -> SessionKey:
        """The owner's chat."""
        return SessionKey("web", "owner")


@asynccontextmanager
async def serve_page(
    services: FakePageServices,
    *,
    port: int = 0,
    login: str = "auto",
    host: str = "127.0.0.1",
    public_url: str | None = None,
    trusted_proxies: Sequence[str] = (),
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[ServedPage]:
    """Run the real channel on the real server in front of *house*; leaving it is a shutdown."""
    channel = web_kind.open(services.context("web"))
    assert isinstance(channel, WebChannel)
    services.channel = channel
    routes = web_kind.routes(channel)
    server = WebServer(
        host, port, routes, login=login, public_url=public_url, trusted_proxies=trusted_proxies, limits=limits
    )
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(server.serve(), name="web server"),
            group.create_task(channel.run(), name="web channel"),
        ]
        await server.wait_started()
        try:
            yield ServedPage(server, channel, services)
        finally:
            for service in running:
                service.cancel()
