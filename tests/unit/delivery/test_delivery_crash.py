"""The crash story: the process dies at every call of the journal and of the platform, and is started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.errors import SendFailed, StoreUnavailable
from gateway.events import DeliveryReceipt, InboundMessage, MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChannelCapabilities
from gateway.ports.journal import OutboxPart, PendingDelivery, TurnLease
from gateway.store.outbox import SqlOutbox
from tests.fakes.memory_channel import KEYED, PLAIN, RINGING, ChannelFault, FakeChannel, MemoryPlatform
from tests.fakes.turns import ANN, accept, said
from tests.unit.delivery.conftest import DeliveryGateway, OpensGateway

MARK = translate("delivery.may_repeat")
POINTS = 40  # more than the calls any of these stories makes; a story that ends before its point is whole


class CrashPoint:
    """Counts calls; at the chosen one the process stops for good, before the call or after it."""

    def __init__(self, at: int, *, is_after: bool) -> None:
        self.at = at
        self.is_after = is_after
        self.calls = 0
        self.happened = asyncio.Event()

    async def around(self, call: Callable[[], Any]) -> Any:
        """Do *call*, or die at it; a dead process changes nothing any more."""
        if self.happened.is_set():
            raise StoreUnavailable("this process is dead")
        self.calls += 1
        if self.calls != self.at:
            return await call()
        if self.is_after:
            with suppress(SendFailed):
                await call()
        self.happened.set()
        return await asyncio.Event().wait()


def deaths(points: int = POINTS) -> Iterator[CrashPoint]:
    """Yield a death before the first call, then one after each: that leaves what a death before the next call does."""
    yield CrashPoint(1, is_after=False)
    yield from (CrashPoint(at, is_after=True) for at in range(1, points))


class CrashingOutbox:
    """An outbox in a process that may die at any of its calls."""

    def __init__(self, outbox: SqlOutbox, death: CrashPoint) -> None:
        self._outbox = outbox
        self._death = death

    def chats(self) -> AsyncIterator[SessionKey]:
        """Yield chats as the store does."""
        return self._outbox.chats()

    async def next(self, key: SessionKey) -> PendingDelivery | None:
        """Reading changes nothing, so that nobody dies of it."""
        return await self._outbox.next(key)

    async def freeze(self, message: OutboundMessage, parts: Sequence[MessagePart]) -> tuple[OutboxPart, ...]:
        """Freeze or die."""
        rows: tuple[OutboxPart, ...] = await self._death.around(lambda: self._outbox.freeze(message, parts))
        return rows

    async def sending(self, part: MessagePart) -> MessagePart | None:
        """Mark or die."""
        stored: MessagePart | None = await self._death.around(lambda: self._outbox.sending(part))
        return stored

    async def mark_sent(self, receipt: DeliveryReceipt, *, then: MessagePart | None = None) -> bool:
        """Store or die."""
        has_more: bool = await self._death.around(lambda: self._outbox.mark_sent(receipt, then=then))
        return has_more

    async def mark_placed(self, part: MessagePart, message_id: str) -> None:
        """Store or die."""
        await self._death.around(lambda: self._outbox.mark_placed(part, message_id))

    async def mark_uncertain(self, part: MessagePart, reason: str) -> None:
        """Mark or die."""
        await self._death.around(lambda: self._outbox.mark_uncertain(part, reason))

    async def mark_unsent(self, part: MessagePart, reason: str) -> None:
        """Mark or die."""
        await self._death.around(lambda: self._outbox.mark_unsent(part, reason))

    async def dead_letter(self, part: MessagePart, reason: str) -> None:
        """Bury or die."""
        await self._death.around(lambda: self._outbox.dead_letter(part, reason))

    async def question(self, turn: str) -> InboundMessage | None:
        """Reading changes nothing."""
        return await self._outbox.question(turn)

    async def move(
        self, message: OutboundMessage, part: MessagePart, parts: Sequence[MessagePart], question: InboundMessage
    ) -> bool:
        """Move or die."""
        is_moved: bool = await self._death.around(lambda: self._outbox.move(message, part, parts, question))
        return is_moved

    async def preview(self, lease: TurnLease, part: MessagePart) -> OutboxPart:
        """Write or die."""
        row: OutboxPart = await self._death.around(lambda: self._outbox.preview(lease, part))
        return row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)


def crashing(outbox: SqlOutbox, death: CrashPoint) -> SqlOutbox:
    """Return *outbox* in a process that may die at any of its calls."""
    return cast("SqlOutbox", CrashingOutbox(outbox, death))


def mortal(platform: MemoryPlatform, death: CrashPoint) -> None:
    """Let the process die at the platform's calls as well."""
    healthy = platform.call

    async def call(what: str, part: MessagePart, act: Callable[[], DeliveryReceipt | None]) -> Any:
        return await death.around(lambda: healthy(what, part, act))

    platform.call = call  # type: ignore[method-assign]


async def tell(gateway: DeliveryGateway, text: str, pause: float) -> None:
    """Run the turn that waits, with a preview, if it is not committed yet; return when its answer is delivered."""
    lease = await gateway.store.journal.claim(ANN)
    if lease is not None:
        preview = gateway.preview(lease)
        preview.show("The first words of the answer, which go on")
        await asyncio.sleep(3)
        await preview.close()
        await asyncio.sleep(pause)
        await gateway.commit(lease, text)
    await gateway.settled(every=1)


async def tell_until(death: CrashPoint, gateway: DeliveryGateway, text: str, pause: float) -> None:
    """Tell the story to its end or to the process's."""
    telling = asyncio.create_task(tell(gateway, text, pause))
    dying = asyncio.create_task(death.happened.wait())
    await asyncio.wait({telling, dying}, return_when=asyncio.FIRST_COMPLETED)
    # A dead process's own clean-up must find its store gone, so that the kill comes first.
    await gateway.kill()
    telling.cancel()
    dying.cancel()
    await asyncio.wait({telling, dying})


ONE = "A short answer"
MANY = " ".join(f"w{n:03}" for n in range(50))
TROUBLES = {
    "calm": [],
    "later": [(ChannelFault.LATER, "send"), (ChannelFault.LATER, "edit"), (ChannelFault.LATER, "send")],
    "lost": [(ChannelFault.LOST, "send"), (ChannelFault.LOST, "edit"), (ChannelFault.LOST, "send")],
}
# The trouble of the platform, the answer, and the seconds between preview and answer.
DEATHS = [
    ("calm", ONE, 0),
    ("calm", ONE, 60),
    ("calm", MANY, 0),
    ("later", MANY, 0),
    ("lost", ONE, 60),
    ("lost", MANY, 0),
]
DEATH_IDS = ["calm-one", "calm-late", "calm-many", "later-many", "lost-late", "lost-many"]


@pytest.mark.parametrize(
    ("capabilities", "finds"),
    [(KEYED, False), (RINGING, True), (RINGING, False), (PLAIN, False)],
    ids=["key", "history", "blind", "no-edits"],
)
@pytest.mark.parametrize(("trouble", "text", "pause"), DEATHS, ids=DEATH_IDS)
async def test_no_death_doubles_or_loses_an_answer(
    opens: OpensGateway,
    capabilities: ChannelCapabilities,
    finds: bool,
    text: str,
    pause: float,
    trouble: str,
) -> None:
    """Whichever call the process dies at, every part arrives, in order, and at most one copy is unmarked.

    Where the platform can be asked, by key or by history, there is exactly one.
    """
    for death in deaths():
        gateway = await opens(capabilities, MemoryPlatform(finds=finds), starts=False)
        for fault, what in TROUBLES[trouble]:
            gateway.platform.fail(fault, what=what, seconds=5)
        await die(gateway, death, text, pause, said())
        await gateway.start()
        await tell(gateway, text, pause)
        check(gateway.platform, capabilities, text, is_known=finds or capabilities.send_key)
        if not death.happened.is_set():
            assert death.at > 2  # every call was died at, and there were some
            return
    pytest.fail("the story has more calls than points")


async def die(gateway: DeliveryGateway, death: CrashPoint, text: str, pause: float, *arrive: InboundMessage) -> None:
    """Start a process in which messages *arrive* and which dies where *death* says; leave none running."""
    healthy, platform = gateway.platform.call, gateway.platform
    gateway.wrap = lambda outbox: crashing(outbox, death)
    mortal(platform, death)
    await gateway.start()
    for message in arrive:
        await accept(gateway.store, message)
    await tell_until(death, gateway, text, pause)
    platform.call = healthy  # type: ignore[method-assign]
    gateway.wrap = lambda outbox: outbox


def check(platform: MemoryPlatform, capabilities: ChannelCapabilities, text: str, *, is_known: bool) -> None:
    """Look at the chat as a person does."""
    standing = [posted for posted in platform.chats[ANN.chat] if not posted.part.rpartition(".")[0].endswith(".0")]
    standing = [posted for posted in standing if posted.text != translate("delivery.next_message")]
    expected = FakeChannel(MemoryPlatform(), capabilities=capabilities).render(
        OutboundMessage(id="t.1", key=ANN, text=text)
    )
    texts = [posted.text.removeprefix(f"{MARK}\n") for posted in standing]
    # In order, each there, a repeat right behind what it repeats.
    assert list(dict.fromkeys(texts)) == [part.payload for part in expected]
    unmarked = [posted.text for posted in standing if not posted.is_marked]
    assert len(unmarked) == len(set(unmarked))
    if is_known:
        assert texts == [part.payload for part in expected]
        assert not any(posted.is_marked for posted in standing)
        assert len(platform.chats[ANN.chat]) - len(standing) <= 1  # no orphan but the pointer


async def test_the_second_death_is_no_worse(opens: OpensGateway) -> None:
    """Dying twice, with the doubt of the first time already stored, still sends no unmarked double."""
    for at in range(1, 8):
        for then in range(1, 8):
            gateway = await opens(replace(RINGING, preview_every=None), MemoryPlatform(finds=False), starts=False)
            await die(gateway, CrashPoint(at, is_after=True), ONE, 0, said())
            await die(gateway, CrashPoint(then, is_after=True), ONE, 0)
            await gateway.start()
            await tell(gateway, ONE, 0)
            check(gateway.platform, gateway.capabilities, ONE, is_known=False)
