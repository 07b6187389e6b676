"""What a channel gives to the windows of other workers, and what it makes of what they give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from channels.web import plugin as web_kind
from channels.web.adapter import WebChannel, WebVisitor
from channels.web.windows import ClientConnection
from gateway.errors import OutcomeUnknown, StoreUnavailable
from gateway.events import Attachment, MessagePart, OutboundKind, SessionKey
from gateway.ports.channel import ChatActivity
from gateway.store.shared_windows import WorkerWindows
from tests.fakes.connection_claims import GrantedClaims
from tests.fakes.web_services import FakePageServices

ANN = SessionKey("web", "ann")
GARDEN = SessionKey("web", "ann/garden2345678901")


class FakeSharedWindows(WorkerWindows):
    """Carries frames between channels in one process."""

    def __init__(self) -> None:
        self.peers: list[FakeSharedWindows] = []
        self.watching: set[SessionKey] = set()
        self.is_down = False
        self.sent: list[str] = []

    async def watch(self, chat: SessionKey) -> None:
        """Watch, and have the others repeat."""
        self.watching.add(chat)
        for peer in self.peers:
            peer.repeat(chat)

    def unwatch(self, chat: SessionKey) -> None:
        """Watch no more."""
        self.watching.discard(chat)

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if another one watches."""
        return any(key.parent in peer.watching for peer in self.peers)

    async def send(self, key: SessionKey, frame: str) -> None:
        """Give a frame."""
        if self.is_down:
            raise StoreUnavailable("it is down")
        self.post(key, frame)

    def post(self, key: SessionKey, frame: str, *, slot: str = "") -> None:
        """Give a frame."""
        self.sent.append(frame)
        for peer in self.peers:
            if key.parent in peer.watching:
                peer.receive(key, frame)

    def subscribe(
        self,
        channel: str,
        receive: Callable[[SessionKey, str], None],
        repeat: Callable[[SessionKey], None],
        refresh: Callable[[], None],
    ) -> None:
        """Keep whom to call."""
        self.receive, self.repeat, self.refresh = receive, repeat, refresh


@pytest.fixture
def pair() -> tuple[WebChannel, WebChannel]:
    """Return the channels of two workers; the second one watches Ann's chat."""
    found = []
    windows = FakeSharedWindows(), FakeSharedWindows()
    for own in windows:
        channel = web_kind.open(replace(FakePageServices().context("web"), windows=own, connections=GrantedClaims()))
        assert isinstance(channel, WebChannel)
        found.append(channel)
    windows[0].peers, windows[1].peers = [windows[1]], [windows[0]]
    return found[0], found[1]


def part(kind: OutboundKind = OutboundKind.ANSWER, **more: object) -> MessagePart:
    """Return a part of an answer."""
    payload = json.dumps({"text": "hello", "last": True})
    fields = {"id": "m.1", "key": GARDEN, "payload": payload, "plain": "hello", "kind": kind, **more}
    return MessagePart(**fields)  # type: ignore[arg-type]


@asynccontextmanager
async def window(channel: WebChannel, key: SessionKey, sender: str = "ann") -> AsyncIterator[asyncio.Queue[Any]]:
    """Open a window; give what it is sent, of which the history is read already."""
    frames: asyncio.Queue[Any] = asyncio.Queue()

    async def receive() -> object:
        return await asyncio.get_running_loop().create_future()

    connection = ClientConnection(key, sender)
    channel._people.setdefault(sender, set()).add(connection)
    task = asyncio.create_task(channel.attend(connection, receive, frames.put), name="window")
    assert (await frames.get())["type"] == "history"
    try:
        yield frames
    finally:
        channel._people[sender].discard(connection)
        task.cancel()
        await asyncio.wait({task})


async def test_a_file_has_an_address_at_each_gateway(pair: tuple[WebChannel, WebChannel]) -> None:
    """The reference, which names the scope, is in no frame of a window; the address is the window's own gateway's."""
    first, second = pair
    file = Attachment(kind="document", name="a.txt", size=5, caption="look")
    async with window(first, GARDEN) as here, window(second, GARDEN) as there:
        await first.send(part(file=file, plain="12345"))
        shown = [await frames.get() for frames in (here, there)]
    assert [frame["text"] for frame in shown] == ["look", "look"]
    for channel, frame in zip(pair, shown, strict=True):
        assert "blob" not in frame["file"]
        found = await channel.download(WebVisitor("ann"), frame["file"]["href"].removeprefix("files/"))
        assert found is not None
        assert found.text == b"12345"


async def test_a_window_that_opens_during_a_turn_is_shown_its_state(pair: tuple[WebChannel, WebChannel]) -> None:
    """Typing and the text so far, from the other gateway; what a gateway was told is gone with its last window."""
    first, second = pair
    await first.show(ChatActivity(key=GARDEN, on=True))
    await first.send(part(OutboundKind.PREVIEW))
    assert not first.is_watched(GARDEN)
    for _ in range(2):
        async with window(second, GARDEN) as frames:
            assert first.is_watched(GARDEN)
            assert [(await frames.get())["type"] for _ in range(2)] == ["activity", "preview"]
            assert frames.empty()
    await first.send(part())
    async with window(second, GARDEN) as frames:
        assert (await frames.get())["type"] == "activity"
        assert frames.empty()


async def test_only_the_person_and_the_conversation_see_a_frame(pair: tuple[WebChannel, WebChannel]) -> None:
    """Another conversation of the person is told that there is news; another person's window shows nothing."""
    first, second = pair
    async with window(second, ANN) as main, window(second, SessionKey("web", "ben"), "ben") as foreign:
        await first.send(part())
        assert await main.get() == {"type": "news", "conversation": GARDEN.thread}
        first.tell_list_changed("ann")
        assert (await main.get())["type"] == "conversations"
        assert main.empty()
        assert foreign.empty()


async def test_a_part_that_cannot_be_stored_is_not_sent(pair: tuple[WebChannel, WebChannel]) -> None:
    """Its outcome is unknown, and no window shows it; sent again, it is shown."""
    first, _ = pair
    shared = first._shared
    assert isinstance(shared, FakeSharedWindows)
    async with window(first, GARDEN) as frames:
        shared.is_down = True
        with pytest.raises(OutcomeUnknown):
            await first.send(part())
        assert frames.empty()
        shared.is_down = False
        await first.send(part())
        assert (await frames.get())["part"] == "m.1"


async def test_lost_frames_are_made_good_by_the_history(pair: tuple[WebChannel, WebChannel]) -> None:
    """Each window reads its newest page again."""
    _, second = pair
    shared = second._shared
    assert isinstance(shared, FakeSharedWindows)
    async with window(second, GARDEN) as frames:
        shared.refresh()
        assert (await frames.get())["type"] == "history"
