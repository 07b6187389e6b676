"""Acknowledging reactions on virtual time: none stays, whatever fails and whenever the process dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from channels.kit.reactions import AckReaction, AckReactions
from gateway.errors import OutcomeUnknown, RetryLater, SendFailed, SendRefused, StoreUnavailable
from gateway.events import SessionKey
from gateway.ports.channel import AcceptedMessage, IntakeResult, IntakeVerdict
from tests.fakes.clock import VirtualClock
from tests.fakes.web_services import FakePageServices

ANN, BOB = SessionKey("discord", "1"), SessionKey("discord", "2")


class ReactionBoard:
    """A platform on which reactions stand."""

    def __init__(self) -> None:
        self.standing: set[str] = set()
        self.calls: list[tuple[str, bool]] = []
        self.failures: list[SendFailed] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(self, reaction: AckReaction, is_on: bool) -> None:
        """Put or take away."""
        self.calls.append((reaction.message_id, is_on))
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        (self.standing.add if is_on else self.standing.discard)(reaction.message_id)


def page_services(unanswered: set[str]) -> FakePageServices:
    """Return a gateway in which these messages have not ended."""
    services = FakePageServices()
    services.state.unanswered = unanswered
    return services


def add(
    services: FakePageServices, run: AckReactions, key: SessionKey, message_id: str, *, is_repeated: bool = False
) -> None:
    """Accept a message and have its reaction added."""
    row = services.state.accept(key, message_id)
    run.add(key, key.chat, message_id, IntakeResult(verdict=IntakeVerdict.ACCEPTED, row=row, is_repeated=is_repeated))


@asynccontextmanager
async def reactions(services: FakePageServices, wall: ReactionBoard) -> AsyncIterator[AckReactions]:
    """Run a channel's reactions until the block ends, as a kill would end them."""
    run = AckReactions(services.context("discord"), wall.call)
    run.start()
    await asyncio.sleep(0)
    yield run
    await run.tasks.close()
    services.state.kill()


async def test_a_reaction_goes_when_its_message_has_ended(clock: VirtualClock) -> None:
    """Put once, gone with the answer from it and from what was merged into its turn; what waits keeps its own."""
    services, wall = page_services({"1", "2", "3"}), ReactionBoard()
    async with reactions(services, wall) as run:
        for message in ("1", "1", "2", "3"):
            add(services, run, ANN, message)
        add(services, run, BOB, "9")
        await asyncio.sleep(1)
        assert wall.standing == {"1", "2", "3", "9"}
        services.state.unanswered = {"3", "9"}
        run.settle(ANN)
        await asyncio.sleep(1)
        assert wall.standing == {"3", "9"}
    assert wall.calls.count(("1", True)) == 1
    assert services.state.notes == {}


async def test_a_message_that_comes_again_has_a_reaction_only_while_it_is_open(clock: VirtualClock) -> None:
    """A platform delivers again what it is not sure of, as after a kill, also when the answer is there."""
    services, wall = page_services({"2"}), ReactionBoard()
    async with reactions(services, wall) as run:
        add(services, run, ANN, "1", is_repeated=True)
        add(services, run, ANN, "2", is_repeated=True)
        await asyncio.sleep(1)
        assert wall.calls == [("2", True)]


async def test_what_ends_without_an_answer_goes_within_a_minute(clock: VirtualClock) -> None:
    """Stopped, expired or set aside: nobody says so to the channel."""
    services, wall = page_services({"1"}), ReactionBoard()
    async with reactions(services, wall) as run:
        add(services, run, ANN, "1")
        await asyncio.sleep(1)
        services.state.unanswered = set()
        await asyncio.sleep(60)
        assert wall.standing == set()


@pytest.mark.parametrize("step", range(5))
async def test_a_kill_leaves_no_reaction_behind(clock: VirtualClock, step: int) -> None:
    """Killed after each step between hearing and taking away: the next run takes away what stands, once it ended."""
    services, wall = page_services({"1"}), ReactionBoard()
    async with reactions(services, wall) as run:
        if step >= 1:
            wall.gate.clear()
            add(services, run, ANN, "1")
            await asyncio.sleep(1)  # noted, and on its way
        if step >= 2:
            wall.gate.set()
            await asyncio.sleep(1)  # it stands
        if step >= 3:
            services.state.unanswered = set()  # the turn was committed
        if step >= 4:
            wall.gate.clear()
            run.settle(ANN)
            await asyncio.sleep(1)  # on its way to be taken away
    if step == 1:
        wall.standing.add("1")  # the call arrived, and nobody heard
    wall.gate.set()
    async with reactions(services, wall) as run:
        await asyncio.sleep(1)
        assert wall.standing == ({"1"} if step in (1, 2) else set())
        services.state.unanswered = set()
        run.settle(ANN)
        await asyncio.sleep(1)
    assert wall.standing == set()


FAILURES: list[tuple[SendFailed, float]] = [
    (OutcomeUnknown("lost"), 60),
    (RetryLater(timedelta(minutes=5)), 300),
]


@pytest.mark.parametrize(("failure", "seconds"), FAILURES)
async def test_what_cannot_be_taken_away_now_is_tried_again(
    clock: VirtualClock, failure: SendFailed, seconds: float
) -> None:
    """Within the next minute, or when the platform lets us; another chat does not wait for it."""
    services, wall = FakePageServices(), ReactionBoard()
    async with reactions(services, wall) as run:
        add(services, run, ANN, "1")
        add(services, run, BOB, "2")
        await asyncio.sleep(1)
        wall.failures = [failure]
        run.settle(ANN)
        await asyncio.sleep(1)
        run.settle(BOB)
        await asyncio.sleep(1)
        assert wall.standing == {"1"}
        asked = len(wall.calls)
        if isinstance(failure, RetryLater):
            await asyncio.sleep(seconds - 60)
            run.settle(ANN)
            await asyncio.sleep(1)
            assert len(wall.calls) == asked, "asked again before the platform allows it"
        await asyncio.sleep(120)
        assert wall.standing == set()


async def test_what_is_refused_for_good_is_forgotten(clock: VirtualClock) -> None:
    """A deleted message, a chat that is closed to us: one call."""
    services, wall = FakePageServices(), ReactionBoard()
    async with reactions(services, wall) as run:
        for is_on in (True, False):
            if not is_on:
                add(services, run, ANN, "1")
                await asyncio.sleep(1)
            wall.failures = [SendRefused("gone")]
            (run.settle(ANN) if not is_on else add(services, run, ANN, "1"))
            await asyncio.sleep(1)
        await asyncio.sleep(120)
    assert wall.calls == [("1", True), ("1", True), ("1", False)]


async def test_a_full_disk_costs_the_reaction_and_nothing_else(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a durable first row none is put; what stands is taken away when there is room."""
    services, wall = FakePageServices(), ReactionBoard()

    async def full(*_: object) -> None:
        raise StoreUnavailable("disk full")

    async with reactions(services, wall) as run:
        services.state.accept(ANN, "1")
        add(services, run, ANN, "2")
        await asyncio.sleep(1)
        save = services.state.save_first_row
        monkeypatch.setattr(services.state, "save_first_row", full)
        add(services, run, ANN, "1", is_repeated=True)
        await asyncio.sleep(1)
        services.state.unanswered = set()
        run.settle(ANN)
        await asyncio.sleep(1)
        assert ("1", True) not in wall.calls
        monkeypatch.setattr(services.state, "save_first_row", save)
        await asyncio.sleep(60)
        assert wall.standing == set()


async def test_what_is_older_than_a_week_is_left_alone(clock: VirtualClock) -> None:
    """What could not be taken away for so long stays."""
    services, wall = FakePageServices(), ReactionBoard()
    services.state.accepted = [AcceptedMessage(1, ANN, "1", datetime(2020, 1, 1, tzinfo=UTC))]
    services.state.killed = [1]
    async with reactions(services, wall):
        await asyncio.sleep(1)
    assert wall.calls == []


async def test_the_first_row_rises_and_is_stored_once_a_minute(clock: VirtualClock) -> None:
    """A hundred messages cost a store call or two; a kill then has the next run look at those of the last minutes."""
    services, wall = page_services({"1"}), ReactionBoard()
    stored: list[int | None] = []
    save = services.state.save_first_row

    async def count(row: int | None, *, within: float = 0.0) -> None:
        stored.append(row)
        await save(row)

    services.state.save_first_row = count  # type: ignore[method-assign]
    async with reactions(services, wall) as run:
        for n in range(1, 101):
            add(services, run, ANN if n == 1 else BOB, str(n))
            run.settle(BOB)
            await asyncio.sleep(1)
        assert (wall.standing, set(stored)) == ({"1"}, {1})
        services.state.unanswered = set()
        run.settle(ANN)
        await asyncio.sleep(180)
        assert (wall.standing, stored[-1]) == (set(), 101)
        assert len(stored) <= 4
        await run.close()
        assert stored[-1] is None
        services.state.killed.clear()
    async with reactions(services, wall):
        wall.calls.clear()
        await asyncio.sleep(1)
        assert wall.calls == []  # a clean stop has left nothing to look at


async def test_a_stop_keeps_what_stands_for_the_next_run(clock: VirtualClock) -> None:
    """A message that waits over a restart keeps its reaction until it is answered."""
    services, wall = page_services({"2"}), ReactionBoard()
    async with reactions(services, wall) as run:
        for each in ("1", "2"):
            add(services, run, ANN, each)
        await asyncio.sleep(1)
        run.settle(ANN)
        await asyncio.sleep(1)
        await run.close()
        assert (wall.standing, services.state.first_row) == ({"2"}, 2)
    async with reactions(services, wall) as run:
        await asyncio.sleep(1)
        services.state.unanswered = set()
        run.settle(ANN)
        await asyncio.sleep(1)
    assert wall.standing == set()
