"""The pool: order in a key, parallel across keys, fairness, /stop, lone turns, and a store that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from string import ascii_letters

import pytest

from agent.base.locks import WorkerSlots
from agent.turns.turn import RunningTurns, Turn
from agent.workers.turn_runner import TurnRunner
from agent.workers.worker_pool import WorkerPool
from gateway.errors import ParlourError, ScopeMoved, StoreUnavailable
from gateway.events import InboundMessage, OutboundMessage, Role, Sender, SessionKey
from gateway.ports.journal import InboxRow, MessageOutcome, TurnCommit, TurnLease, TurnRecord
from gateway.store.engine import StoreLimits
from gateway.store.sql_store import SqlStore
from tests.fakes.clock import VirtualClock
from tests.fakes.meter import FakeMeter
from tests.fakes.store import InlineWriter, kill, open_inline_store


class TimedWorker(TurnRunner):
    """Does the pool's work by taking *seconds* of virtual time for each turn, and keeps a diary."""

    def __init__(self, store: SqlStore, clock: VirtualClock, *, seconds: float = 1.0) -> None:
        self.store = store
        self.clock = clock
        self.seconds = seconds
        self.diary: list[tuple[str, str, float]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.controls: list[str] = []
        self.control_seconds = 0.0
        self.buried: list[str] = []
        self.fail: set[str] = set()
        self.ending = 0.0  # seconds that ending as stopped takes
        self.is_hopeless = False  # not even a turn's burial works
        self.errors: list[ParlourError] = []  # of the next turns, before they do anything
        self.model_seconds = 0.0  # that a turn waits for its model, before it works
        self.poison = ""  # the text of the turn that ends the process when it works
        self.crashed = asyncio.Event()

    async def handle_turn(self, turn: Turn) -> MessageOutcome:
        lease = turn.lease
        text = lease.rows[0].message.text
        if self.errors:
            self.diary.append(("refused", text, self.clock.seconds))
            raise self.errors.pop(0)
        self.diary.append(("begin", text, self.clock.seconds))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.model_seconds:
                assert turn.phases is not None
                await turn.phases.end()
                await asyncio.sleep(self.model_seconds)
                await turn.phases.begin()
            if text == self.poison:
                self.crashed.set()
                await asyncio.Event().wait()
            await asyncio.sleep(self.seconds)
            if text in self.fail:
                raise RuntimeError("a bug in a tool")
            await self.commit(lease, MessageOutcome.ANSWERED, text)
        finally:
            self.at_once -= 1
        self.diary.append(("end", text, self.clock.seconds))
        return MessageOutcome.ANSWERED

    async def handle_stop(self, turn: Turn) -> MessageOutcome:
        await asyncio.sleep(self.ending)
        await self.commit(turn.lease, MessageOutcome.STOPPED, "stopped")
        return MessageOutcome.STOPPED

    async def dead_letter(self, turn: Turn) -> None:
        self.buried.append(turn.message.text)
        if self.is_hopeless:
            raise RuntimeError("a bug in the burial")
        await self.commit(turn.lease, MessageOutcome.DEAD, "set aside")

    async def control(self, row: InboxRow) -> None:
        self.controls.append(row.message.text)
        await asyncio.sleep(self.control_seconds)
        if row.message.text in self.fail:
            raise RuntimeError("a bug in a command")

    async def dead_letter_control(self, row: InboxRow) -> None:
        self.buried.append(row.message.text)

    async def commit(self, lease: TurnLease, outcome: MessageOutcome, text: str) -> None:
        record = TurnRecord(
            turn=lease.turn,
            key=lease.key,
            transcript=lease.session.transcript,
            outcome=outcome,
            lines=(),
            from_index=lease.session.next_index,
            to_index=lease.session.next_index,
            inbox=tuple(row.seq for row in lease.rows),
            at=self.clock.now(),
        )
        answer = OutboundMessage(id=f"{lease.turn}.1", key=lease.key, text=text)
        await self.store.journal.commit(lease, TurnCommit(record=record, outbound=(answer,)))

    def times(self, what: str) -> dict[str, float]:
        return {text: at for kind, text, at in self.diary if kind == what}


async def accept_text(
    store: SqlStore, clock: VirtualClock, chat: str, text: str, *, sender: str = "", is_control: bool = False
) -> None:
    """Accept *text* in *chat*."""
    message = InboundMessage(
        key=SessionKey("web", chat),
        message_id=f"{chat}-{text}",
        sender=Sender(id=sender or chat),
        text=text,
        sent_at=clock.now(),
    )
    await store.journal.accept(message, role=Role.MEMBER, is_control=is_control)


async def leave_suspects(folder: Path, clock: VirtualClock, chats: str, controls: str = "") -> Path:
    """Let what each of these chats said be in flight at two crashes; return the journal that they left."""
    path = folder / "journal.db"
    store = await open_inline_store(path, clock=clock.now)
    for chat in chats:
        await accept_text(store, clock, chat, f"{chat}0")
    for chat in controls:
        await accept_text(store, clock, chat, f"/{chat}", is_control=True)
    for life in range(2):
        for chat in chats:
            assert await store.journal.claim(SessionKey("web", chat)) is not None
        path = kill(path, folder / f"life-{life}")
        store = await open_inline_store(path, clock=clock.now)
    return kill(path, folder / "last")


class PoolScene:
    """A pool at work over a real (inline) journal."""

    def __init__(
        self, store: SqlStore, clerk: TimedWorker, pool: WorkerPool, clock: VirtualClock, slots: WorkerSlots
    ) -> None:
        self.store, self.clerk, self.pool, self.clock, self.slots = store, clerk, pool, clock, slots
        self.running = asyncio.create_task(pool.run())

    async def say(self, chat: str, text: str, *, sender: str = "", is_control: bool = False) -> None:
        await accept_text(self.store, self.clock, chat, text, sender=sender, is_control=is_control)

    async def idle(self) -> None:
        """Let virtual time pass until everything is done that any of these tests asks for."""
        await asyncio.sleep(300)


@asynccontextmanager
async def service(
    clock: VirtualClock,
    *,
    workers: int = 4,
    seconds: float = 1.0,
    limits: StoreLimits | None = None,
    path: Path | None = None,
) -> AsyncIterator[PoolScene]:
    """Run a pool for the block."""
    store = await open_inline_store(path, limits=limits, clock=clock.now)
    clerk = TimedWorker(store, clock, seconds=seconds)
    slots = WorkerSlots(workers)
    pool = WorkerPool(
        store.journal,
        clerk,
        turns=RunningTurns(store.journal),
        slots=slots,
        meter=FakeMeter(),
        clock=lambda: clock.seconds,
    )
    scene = PoolScene(store, clerk, pool, clock, slots)
    try:
        yield scene
    finally:
        await pool.drain(timedelta(0))
        scene.running.cancel()
        await asyncio.wait([scene.running])
        await store.close()


async def test_a_turn_that_cannot_have_its_memory_is_tried_every_half_second(clock: VirtualClock) -> None:
    """As while an object store is away."""
    async with service(clock) as at:
        at.clerk.errors += [StoreUnavailable("the bucket is away") for _ in range(3)]
        await at.say("a", "hello")
        await at.idle()
    refused = [seconds for kind, _, seconds in at.clerk.diary if kind == "refused"]
    assert [seconds - refused[0] for seconds in refused] == [0.0, 0.5, 1.0]
    assert at.clerk.times("begin")["hello"] - refused[0] == 1.5


async def test_a_chat_is_answered_in_order_and_chats_in_parallel(clock: VirtualClock) -> None:
    """Ten messages in each of four chats take ten turns' time on four workers, each chat in its order."""
    async with service(clock, workers=4) as at:
        for n in range(10):
            for chat in "abcd":
                await at.say(chat, f"{chat}{n}")
        await at.idle()
        for chat in "abcd":
            said = [text for kind, text, _ in at.clerk.diary if kind == "begin" and text[0] == chat]
            assert said == [f"{chat}{n}" for n in range(10)]
        assert at.clerk.most_at_once == 4
        assert max(at.clerk.times("end").values()) == pytest.approx(10, abs=0.5)


async def test_a_flooded_chat_delays_nobody(clock: VirtualClock) -> None:
    """With one worker and a hundred messages waiting in one chat, another chat is next but one in line."""
    async with service(clock, workers=1) as at:
        for n in range(100):
            await at.say("flood", f"f{n}")
        await asyncio.sleep(0.5)
        await at.say("quiet", "hello")
        await at.idle()
        assert at.clerk.times("begin")["hello"] <= 2.1


async def test_lock_before_slot(clock: VirtualClock) -> None:
    """Ten messages queued in one chat occupy one worker, not ten."""
    async with service(clock, workers=2) as at:
        for n in range(10):
            await at.say("busy", f"b{n}")
        await at.say("other", "o")
        await at.idle()
        assert at.clerk.times("begin")["o"] < 0.5


async def test_a_member_stops_only_their_own(clock: VirtualClock) -> None:
    """/stop for one sender leaves another sender's running turn alone."""
    async with service(clock) as at:
        await at.say("a", "anns", sender="ann")
        await at.say("a", "bobs", sender="bob")
        await asyncio.sleep(0.5)
        assert await at.pool.turns.stop(SessionKey("web", "a"), sender="bob") == (False, 1)
        await at.idle()
        assert set(at.clerk.times("end")) == {"anns"}


async def test_a_stop_that_comes_late_ends_only_what_was_said_before_it(clock: VirtualClock) -> None:
    """A kill repeats a /stop: what people have written since, running or waiting, is answered."""
    async with service(clock) as at:
        for n in range(3):
            await at.say("a", f"a{n}")
        await asyncio.sleep(0.5)
        running = at.pool.turns.get(SessionKey("web", "a"))
        assert running is not None
        [first] = running.lease.rows
        assert await at.pool.turns.stop(SessionKey("web", "a"), before=first.seq) == (False, 0)
        assert await at.pool.turns.stop(SessionKey("web", "a"), before=first.seq + 2) == (True, 1)
        await at.idle()
        assert set(at.clerk.times("end")) == {"a2"}


async def test_a_turn_that_is_being_stored_cannot_be_stopped(clock: VirtualClock) -> None:
    """Once its commit has begun, /stop is "already answered"."""
    async with service(clock) as at:
        await at.say("a", "a0")
        await asyncio.sleep(0.5)
        running = at.pool.turns.get(SessionKey("web", "a"))
        assert running is not None
        running.is_committing = True
        assert await at.pool.turns.stop(SessionKey("web", "a")) == (False, 0)
        await at.idle()
        assert "a0" in at.clerk.times("end")


async def test_control_passes_the_queue(clock: VirtualClock) -> None:
    """A control row runs at once although its lane is busy."""
    async with service(clock) as at:
        await at.say("a", "a0")
        await asyncio.sleep(0.1)
        await at.say("a", "/stop", is_control=True)
        await asyncio.sleep(0.1)
        assert at.clerk.controls == ["/stop"]
        assert not at.clerk.times("end")


async def test_a_flood_of_commands_runs_a_few_at_a_time(clock: VirtualClock) -> None:
    """Of one chat's commands four run at once; another chat's begins with them, and so does a turn."""
    async with service(clock) as at:
        at.clerk.control_seconds = 1.0
        for n in range(10):
            await at.say("flood", f"/{n}", is_control=True)
        await at.say("quiet", "/help", is_control=True)
        await at.say("ann", "a0")
        await asyncio.sleep(0.5)
        assert at.clerk.controls == ["/0", "/1", "/2", "/3", "/help"]
        assert at.clerk.times("begin") == {"a0": 0.0}
        await asyncio.sleep(2)
        assert at.clerk.controls[5:] == [f"/{n}" for n in range(4, 10)]


async def test_a_bug_in_one_turn_is_told_and_harms_no_other(clock: VirtualClock) -> None:
    """A turn that raises is dead-lettered; its lane and the others go on."""
    async with service(clock) as at:
        at.clerk.fail.add("bad")
        await at.say("a", "bad")
        await at.say("a", "good")
        await at.say("b", "fine")
        await at.idle()
        assert at.clerk.buried == ["bad"]
        assert set(at.clerk.times("end")) == {"good", "fine"}


async def test_stopping_twice_does_not_break_the_first_stop(clock: VirtualClock) -> None:
    """A second /stop while the first is being stored changes nothing; the lane goes on."""
    async with service(clock) as at:
        at.clerk.ending = 1.0
        await at.say("a", "a0")
        await asyncio.sleep(0.5)
        first = asyncio.create_task(at.pool.turns.stop(SessionKey("web", "a")))  # returns when the turn has ended
        await asyncio.sleep(0.5)
        assert await at.pool.turns.stop(SessionKey("web", "a")) == (True, 0)
        assert await first == (True, 0)
        await at.idle()
        await at.say("a", "later")
        await at.idle()
        assert set(at.clerk.times("end")) == {"later"}


async def test_a_bug_in_a_command_is_told_once(clock: VirtualClock) -> None:
    """A command that raises is buried; one that was there at too many crashes is not even tried."""
    async with service(clock) as at:
        at.clerk.fail.add("/bad")
        await at.say("a", "/bad", is_control=True)
        await asyncio.sleep(0.1)
        assert (at.clerk.controls, at.clerk.buried) == (["/bad"], ["/bad"])
        await at.say("a", "/good", is_control=True)
        await asyncio.sleep(0.1)
        assert at.clerk.controls == ["/bad", "/good"]


async def test_a_turn_that_cannot_even_be_buried_harms_no_other(clock: VirtualClock) -> None:
    """Bugs all the way down cost that chat alone: the others are answered."""
    async with service(clock) as at:
        at.clerk.fail.add("bad")
        at.clerk.is_hopeless = True
        await at.say("a", "bad")
        await at.say("b", "fine")
        await asyncio.sleep(5)
        assert at.clerk.buried == ["bad"]
        assert set(at.clerk.times("end")) == {"fine"}


async def test_suspects_work_one_by_one_after_everybody_else(clock: VirtualClock, tmp_path: Path) -> None:
    """What may kill the process starts when nobody else wants to, works with nothing beside it, and is answered."""
    path = await leave_suspects(tmp_path, clock, "abc")
    async with service(clock, path=path) as at:
        for chat in "xyz":
            await at.say(chat, f"{chat}0")
        await at.say("a", "a1")  # behind a suspect
        await at.idle()
        begun = [text for kind, text, _ in sorted(at.clerk.diary, key=lambda each: each[2]) if kind == "begin"]
        assert (set(begun[:3]), begun[3], set(begun[4:])) == ({"x0", "y0", "z0"}, "a0", {"a1", "b0", "c0"})
        ended = at.clerk.times("end")
        for text in ("a0", "b0", "c0"):
            start, end = at.clerk.times("begin")[text], ended[text]
            beside = [other for other, at_ in at.clerk.times("begin").items() if at_ < end and ended[other] > start]
            assert beside == [text]
        assert not at.clerk.buried


async def test_a_load_that_never_ends_keeps_no_suspect_waiting(clock: VirtualClock, tmp_path: Path) -> None:
    """After half a minute a suspect takes its place in the line."""
    path = await leave_suspects(tmp_path, clock, "a")
    async with service(clock, path=path, workers=1, seconds=10) as at:
        for n in range(20):
            await at.say("x", f"x{n}")
        await at.idle()
        assert 30 <= at.clerk.times("begin")["a0"] <= 60


async def test_no_job_begins_beside_a_suspect(clock: VirtualClock, tmp_path: Path) -> None:
    """A suspect waits for the jobs that run, and new ones wait for it."""
    path = await leave_suspects(tmp_path, clock, "a")
    async with service(clock, path=path, seconds=1) as at:
        with at.slots.job():
            await asyncio.sleep(5)
            assert not at.clerk.times("begin")
        await asyncio.sleep(0.5)
        waiting = asyncio.create_task(at.slots.wait_for_jobs())
        await asyncio.sleep(0.4)
        assert not waiting.done()
        await waiting
        assert at.clerk.times("end")["a0"] <= clock.seconds


async def test_a_job_that_never_ends_costs_a_suspect_no_attempt(clock: VirtualClock, tmp_path: Path) -> None:
    """The suspect waits half a minute for it; then it runs, but does not have the process to itself."""
    path = await leave_suspects(tmp_path, clock, "a")
    async with service(clock, path=path, seconds=10) as at:
        with at.slots.job():
            await asyncio.sleep(35)
            assert at.pool.turns.get(SessionKey("web", "a")) is not None
            path = kill(path, tmp_path / "beside-a-job")
    async with service(clock, path=path) as at:
        await asyncio.sleep(0.5)
        running = at.pool.turns.get(SessionKey("web", "a"))
        assert running is not None
        assert running.lease.attempts == 0


@pytest.mark.parametrize(("model", "own"), [(240, 0.01), (0, 40)], ids=["silent-model", "long-work"])
async def test_a_suspect_delays_no_other_chat(clock: VirtualClock, tmp_path: Path, model: float, own: float) -> None:
    """Others do not wait while it waits for its model, and three seconds at most while it works."""
    path = await leave_suspects(tmp_path, clock, "a")
    async with service(clock, path=path, seconds=own) as at:
        at.clerk.model_seconds = model
        await asyncio.sleep(1)
        assert set(at.clerk.times("begin")) == {"a0"}
        for chat in "xyz":
            await at.say(chat, f"{chat}0")
        await asyncio.sleep(3.1)
        assert set(at.clerk.times("begin")) == {"a0", "x0", "y0", "z0"}


async def test_suspects_wait_for_their_models_side_by_side(clock: VirtualClock, tmp_path: Path) -> None:
    """Fifty turns that were in flight at two crashes take the time of one model call."""
    path = await leave_suspects(tmp_path, clock, ascii_letters[:50])
    async with service(clock, path=path, workers=64, seconds=0.01) as at:
        at.clerk.model_seconds = 10
        await asyncio.sleep(15)  # three seconds in all for answers that nobody delivers here
        assert len(at.clerk.times("end")) == 50


@pytest.mark.parametrize("count", [10, 50])
async def test_the_poison_alone_is_set_aside(clock: VirtualClock, tmp_path: Path, count: int) -> None:
    """All others that were in flight with it, and those who write meanwhile, are answered once."""
    poison, *others = list(ascii_letters[:count])
    path = await leave_suspects(tmp_path, clock, ascii_letters[:count])
    answered: list[str] = []
    for life in range(10):
        async with service(clock, path=path, workers=64, seconds=0.01) as at:
            at.clerk.poison, at.clerk.model_seconds = f"{poison}0", 1
            await at.say("new", f"new{life}")
            with suppress(TimeoutError):
                await asyncio.wait_for(at.clerk.crashed.wait(), 60)
            answered += at.clerk.times("end")
            if not at.clerk.crashed.is_set():
                break
            path = kill(path, tmp_path / f"poisoned-{life}")
    assert at.clerk.buried == [f"{poison}0"]
    assert sorted(answered) == sorted([*(f"{chat}0" for chat in others), *(f"new{n}" for n in range(life + 1))])
    assert life == 3


async def test_a_suspect_that_waits_holds_up_no_stop(clock: VirtualClock, tmp_path: Path) -> None:
    """It has claimed nothing, so there is nothing that a deliberate stop would wait for."""
    path = await leave_suspects(tmp_path, clock, "a")
    async with service(clock, path=path) as at:
        with at.slots.job():
            await asyncio.sleep(1)
            begun = clock.seconds
            await at.pool.drain(timedelta(seconds=25))
            assert clock.seconds - begun < 1
        assert not at.clerk.times("begin")


async def test_a_suspect_can_be_stopped(clock: VirtualClock, tmp_path: Path) -> None:
    """/stop ends it like any turn, and the next suspect runs."""
    path = await leave_suspects(tmp_path, clock, "ab")
    async with service(clock, path=path) as at:
        await asyncio.sleep(0.5)
        assert await at.pool.turns.stop(SessionKey("web", "a")) == (True, 0)
        await at.idle()
        assert set(at.clerk.times("end")) == {"b0"}


async def test_a_command_may_be_a_suspect(clock: VirtualClock, tmp_path: Path) -> None:
    """One that was open at two crashes runs alone, and what comes after it as usual."""
    path = await leave_suspects(tmp_path, clock, "a", controls="s")
    async with service(clock, path=path) as at:
        await at.say("b", "/other", is_control=True)
        await at.idle()
        assert at.clerk.controls == ["/other", "/s"]
        assert set(at.clerk.times("end")) == {"a0"}


async def test_drain_gives_unfinished_turns_back(clock: VirtualClock) -> None:
    """At shutdown turns get their grace; what is not done then waits for the next start, its attempt not counted."""
    async with service(clock, seconds=60) as at:
        await at.say("a", "long")
        await asyncio.sleep(0.5)
        assert await at.pool.drain(timedelta(seconds=5)) == 1
        waiting = await at.store.journal.waiting_rows(SessionKey("web", "a"))
        assert [row.message.text for row in waiting] == ["long"]
        assert waiting[0].attempts == 0
        assert not at.clerk.times("end")


async def test_a_pool_that_is_cancelled_starts_no_turn_for_what_waits(clock: VirtualClock) -> None:
    """A gateway whose work others have taken over ends as it was told to, whatever came behind its turns."""
    async with service(clock) as at:
        for text in ("a0", "a1", "b0", "b1"):
            await at.say(text[0], text)
        await asyncio.sleep(0.5)
        at.running.cancel()
        await asyncio.wait({at.running})
        assert at.running.cancelled()


async def test_a_turn_whose_scope_was_moved_since_its_claim_is_claimed_again(clock: VirtualClock) -> None:
    """What the claim has read of the memory is not used; the message is answered once."""
    async with service(clock) as at:
        at.clerk.errors.append(ScopeMoved("another gateway has linked the accounts"))
        await at.say("a", "a0")
        await at.idle()
        assert [(kind, text) for kind, text, _ in at.clerk.diary] == [("refused", "a0"), ("begin", "a0"), ("end", "a0")]


async def test_a_store_that_is_down_loses_nothing(clock: VirtualClock) -> None:
    """While the journal cannot write nothing is claimed; when it can again, everything is answered once."""
    async with service(clock) as at:
        await at.say("a", "a0")
        writer = at.store._engine.writer
        assert isinstance(writer, InlineWriter)
        writer.fault = OSError(28, "no space left")
        await asyncio.sleep(5)
        assert not at.clerk.times("end")
        writer.fault = None
        await at.idle()
        ends = [text for kind, text, _ in at.clerk.diary if kind == "end"]
        assert ends == ["a0"]


async def test_the_tables_are_empty_when_all_is_done(clock: VirtualClock) -> None:
    """After two hundred chats nothing is kept for any of them."""
    async with service(clock, workers=64, seconds=0.01) as at:
        for n in range(200):
            await at.say(f"c{n}", "x")
        await at.idle()
        await asyncio.sleep(1)
        assert not at.pool.turns.active
        assert not at.pool._again
        assert not at.pool.turns
