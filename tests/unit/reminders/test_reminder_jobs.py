"""Firing, on virtual time: late, missed, quiet, paused; clocks that jump, and cancelled while it fires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.memory.jobs.job_runner import LONGEST_SLEEP, Handler, JobKind, JobRunner
from agent.reminders.recurrence import parse_slot, to_utc
from agent.reminders.reminder import DO, SAY, Reminder, job_prefix, reminders_in
from agent.reminders.reminder_jobs import FAILED, REMINDER_JOBS, ReminderJobs, settle_job
from gateway.events import InboundMessage, Role, SessionKey, turn_id
from gateway.store.engine import StoreLimits
from gateway.store.records import SqlPreferences
from gateway.store.sql_store import SqlStore
from tests.fakes.clock import VirtualClock
from tests.fakes.locales import FixedLocales
from tests.fakes.meter import FakeMeter
from tests.fakes.store import open_inline_store

BERLIN = "Europe/Berlin"
KEY = SessionKey("telegram", "42")
SCOPE = "people/telegram%3a42"
NINE = to_utc(parse_slot("2026-11-23T09:00"), BERLIN)


def reminder(**fields: Any) -> Reminder:
    """Return Ann's reminder of Monday at nine."""
    usual: dict[str, Any] = {
        "id": "r7k2m4qa",
        "key": KEY,
        "by": "42",
        "person": "telegram%3a42",
        "kind": SAY,
        "text": "stand-up",
        "at": "2026-11-23T09:00",
        "zone": BERLIN,
        "set_at": datetime(2026, 11, 22, 10, 0, tzinfo=UTC),
        "source": "tturn.1",
    }
    return Reminder(**(usual | fields))


def _handlers(jobs: ReminderJobs) -> dict[JobKind, Handler]:
    return {REMINDER_JOBS: jobs.run}


@dataclass
class ReminderScene:
    """A store, and the jobs of reminders over it; the clock is the test's."""

    store: SqlStore
    clock: Callable[[], datetime]
    quiet: dict[str, str] = field(default_factory=dict)
    blocked: str = ""  # sender id
    deleted: set[SessionKey] = field(default_factory=set)

    async def open_chat(self, key: SessionKey) -> SessionKey:
        """Return the chat of a deleted conversation."""
        return key.parent if key in self.deleted else key

    def jobs(self, journal: Any = None, queue: Any = None) -> ReminderJobs:
        """Return the handlers, over ports that may die."""
        return ReminderJobs(
            jobs=queue or self.store.jobs,
            journal=journal or self.store.journal,
            outbox=self.store.outbox,
            records=self.store.records,
            preferences=_Choices(self.quiet),
            locales=FixedLocales(BERLIN),
            has_lost_access=lambda message: message.sender.id == self.blocked,
            scope_of=lambda _: SCOPE,
            open_chat=self.open_chat,
            now=self.clock,
            meter=FakeMeter(),
        )

    @asynccontextmanager
    async def at_work(
        self, jobs: ReminderJobs | None = None, longest_sleep: timedelta = timedelta(hours=1)
    ) -> AsyncIterator[None]:
        """Run what is due, for the block; the runner's own *longest_sleep* matters where the wall clock is moved."""
        runner = JobRunner(self.store.jobs, _handlers(jobs or self.jobs()), now=self.clock, longest_sleep=longest_sleep)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(runner.run())
            yield
            running.cancel()

    async def set(self, *reminders: Reminder) -> None:
        """Set reminders."""
        for each in reminders:
            await self.store.jobs.put(each.to_job(SCOPE))

    async def accepted(self) -> list[InboundMessage]:
        """Return what fired, in order, not yet answered."""
        return [row.message for row in await self.store.journal.waiting_rows(KEY)]

    async def texts(self) -> list[str]:
        """Return the texts of what fired."""
        return [each.text for each in await self.accepted()]

    async def set_now(self) -> list[Reminder]:
        """Return the reminders that are set."""
        return reminders_in(await self.store.jobs.pending_of("remind"))


class _Choices(SqlPreferences):
    """The choices of every scope."""

    def __init__(self, choices: dict[str, str]) -> None:
        self._choices = choices

    def preferences(self, subject: str) -> dict[str, str]:
        """Return them."""
        return self._choices

    async def prefer(self, subject: str, name: str, value: str) -> None:
        """Set one."""
        self._choices[name] = value

    def choosers(self) -> dict[SessionKey, str]:
        """Return none."""
        return {}


@dataclass
class WallTime:
    """A clock that runs with the loop's, and can be moved."""

    loop_now: Callable[[], datetime]
    offset: timedelta = timedelta(0)

    def __call__(self) -> datetime:
        """Return the time."""
        return self.loop_now() + self.offset

    def move_to(self, at: datetime) -> None:
        """Make it *at* now."""
        self.offset = at - self.loop_now()


@pytest.fixture
def wall(clock: VirtualClock) -> WallTime:
    """The day before the reminder, at noon."""
    found = WallTime(clock.now)
    found.move_to(NINE - timedelta(hours=21))
    return found


@pytest.fixture
async def scene(tmp_path: Path, wall: WallTime) -> AsyncIterator[ReminderScene]:
    """A store on a fresh file."""
    store = await open_inline_store(tmp_path / "journal.db", StoreLimits(), clock=wall)
    yield ReminderScene(store, wall)
    await store.close(has_served=True)


async def test_it_fires_on_time_and_once(scene: ReminderScene, wall: WallTime) -> None:
    """Within the second it is due, as its person's own message; afterwards it is kept only to be snoozed."""
    await scene.set(reminder())
    async with scene.at_work():
        await asyncio.sleep(21 * 3600 - 1)
        assert await scene.accepted() == []
        await asyncio.sleep(1.5)
        (message,) = await scene.accepted()
        assert (message.message_id, message.text) == ("job:remind/r7k2m4qa/2026-11-23T09:00", "⏰ stand-up")
        assert (message.sender.id, message.command, message.is_forwarded) == ("42", SAY, False)
        assert message.sent_at - NINE < timedelta(seconds=1)
        (left,) = await scene.set_now()
        assert left.is_fired
        await asyncio.sleep(31 * 86_400)
        assert await scene.set_now() == []
        assert len(await scene.accepted()) == 1


async def test_a_request_names_itself_and_untrusted_text_taints(scene: ReminderScene, wall: WallTime) -> None:
    """The model reads which reminder it is and when it was set; what a page wrote is no word of the person."""
    await scene.set(reminder(kind=DO, text="what is new?", origin="untrusted"))
    wall.move_to(NINE)
    async with scene.at_work():
        await asyncio.sleep(1)
    (message,) = await scene.accepted()
    assert message.text == "[reminder r7k2m4qa, set 22 Nov 2026] what is new?"
    assert message.is_forwarded


@pytest.mark.parametrize(
    ("down", "text"),
    [
        (timedelta(minutes=5), "⏰ stand-up"),
        (timedelta(minutes=10, seconds=1), "⏰ stand-up (was due 09:00)"),
        (timedelta(hours=1), "⏰ stand-up (was due 09:00)"),
        (timedelta(hours=20), "⏰ stand-up (was due 2026-11-23 09:00)"),
        (timedelta(days=3, hours=1), "⏰ stand-up (was due 09:00) (3 earlier times were missed)"),
    ],
)
async def test_missed_while_the_gateway_was_down(
    scene: ReminderScene, wall: WallTime, down: timedelta, text: str
) -> None:
    """Of a repeating reminder the last slot fires alone, with the number of the others; the next one is on time."""
    await scene.set(reminder(repeat="FREQ=DAILY"))
    wall.move_to(NINE + down)
    async with scene.at_work():
        await asyncio.sleep(1)
        assert await scene.texts() == [text]
        (left,) = await scene.set_now()
        assert (left.due > wall(), left.at[11:], left.missed) == (True, "09:00", 0)
        await asyncio.sleep((left.due - wall()).total_seconds() + 1)
        assert (await scene.texts())[1:] == ["⏰ stand-up"]


@pytest.mark.parametrize("hours", [0, 30], ids=["on-time", "listed"])
async def test_a_deleted_conversation_gives_its_reminders_to_the_main_one(
    scene: ReminderScene, wall: WallTime, hours: int
) -> None:
    """It fires where its person can see it, and so do the slots to come."""
    gone = SessionKey("telegram", "42/old")
    scene.deleted.add(gone)
    await scene.set(reminder(key=gone, repeat="FREQ=WEEKLY;BYDAY=MO"))
    wall.move_to(NINE + timedelta(hours=hours))
    async with scene.at_work(longest_sleep=timedelta(seconds=30)):
        await asyncio.sleep(60)
    (message,) = await scene.accepted()
    assert (message.key, message.message_id.startswith("job:remind/r7k2m4qa")) == (KEY, True)
    assert {each.key for each in await scene.set_now()} == {KEY}


async def test_over_a_day_late_it_is_listed(scene: ReminderScene, wall: WallTime) -> None:
    """One that is over a day late is accepted for the list of its chat, and is not advanced before the list is sent."""
    await scene.set(reminder())
    wall.move_to(NINE + timedelta(days=3))
    async with scene.at_work():
        await asyncio.sleep(60)
        (message,) = await scene.accepted()
        assert message.command == "late"
        (left,) = await scene.set_now()
        assert not left.is_fired
        await asyncio.sleep(3600)
        assert len(await scene.accepted()) == 1
        assert [each.is_fired for each in await scene.set_now()] == [True]  # its turn never came


@pytest.mark.parametrize("every", ["FREQ=MINUTELY;INTERVAL=15", "FREQ=HOURLY;BYHOUR=9,10,11"])
async def test_a_long_absence_is_caught_up_in_bounded_steps(scene: ReminderScene, wall: WallTime, every: str) -> None:
    """A clock that is months ahead costs no long step, and one message."""
    await scene.set(reminder(repeat=every))
    wall.move_to(NINE + timedelta(days=100))
    async with scene.at_work():
        await asyncio.sleep(1)
    (message,) = await scene.accepted()
    assert "were missed)" in message.text
    (left,) = await scene.set_now()
    assert left.due > wall()


async def test_a_clock_that_jumps_a_day_and_back_fires_no_slot_again(scene: ReminderScene, wall: WallTime) -> None:
    """Forward, it fires; back, what has fired stays fired; then it goes on with the next day it has not fired on."""
    await scene.set(reminder(repeat="FREQ=DAILY"))
    async with scene.at_work(longest_sleep=LONGEST_SLEEP):
        wall.offset += timedelta(days=1)
        await asyncio.sleep(31)
        assert len(await scene.accepted()) == 1
        wall.offset -= timedelta(days=1)
        await asyncio.sleep(3 * 86_400)
    ids = [each.message_id for each in await scene.accepted()]
    assert len(ids) == len(set(ids)) == 3  # Monday, early; Tuesday; Wednesday


async def test_a_clock_that_is_set_back_a_day_fires_no_slot_again(scene: ReminderScene, wall: WallTime) -> None:
    """What fired at nine is not due at the next nine, which is the same one; the days after it come on time."""
    await scene.set(reminder(repeat="FREQ=DAILY"), reminder(id="rsame", text="once"))
    wall.move_to(NINE)
    async with scene.at_work(longest_sleep=LONGEST_SLEEP):
        await asyncio.sleep(1)
        assert len(await scene.accepted()) == 2
        wall.offset -= timedelta(days=1)
        await asyncio.sleep(86_400 + 3600)
        assert len(await scene.accepted()) == 2
        await asyncio.sleep(2 * 86_400)
    assert [each.message_id for each in (await scene.accepted())[2:]] == [
        f"job:remind/r7k2m4qa/2026-11-{day}T09:00" for day in (24, 25)
    ]


async def test_count_ends_it(scene: ReminderScene) -> None:
    """COUNT slots, whatever was missed."""
    await scene.set(reminder(repeat="FREQ=DAILY", left=2))
    async with scene.at_work():
        await asyncio.sleep(5 * 86_400)
    assert len(await scene.accepted()) == 2
    assert [each.is_fired for each in await scene.set_now()] == [True]


async def test_quiet_hours_hold_back_requests_and_no_text(scene: ReminderScene, wall: WallTime) -> None:
    """A request waits for the morning, and runs once for all its slots of the night; a text comes at its time."""
    scene.quiet["quiet"] = "22:00-07:00"
    await scene.set(
        reminder(at="2026-11-22T23:00"),
        reminder(id="rdo", kind=DO, text="news", at="2026-11-22T23:00", repeat="FREQ=HOURLY"),
    )
    async with scene.at_work():
        wall.move_to(to_utc(parse_slot("2026-11-22T22:30"), BERLIN))
        await asyncio.sleep(3600)
        assert await scene.texts() == ["⏰ stand-up"]
        await asyncio.sleep(7.4 * 3600)
        assert len(await scene.accepted()) == 1
        await asyncio.sleep(0.2 * 3600)
        (_, news) = await scene.accepted()
        assert news.text == "[reminder rdo, set 22 Nov 2026] news"
        assert news.message_id == "job:remind/rdo/2026-11-23T07:00"


async def test_three_failures_in_a_row_pause_it(scene: ReminderScene, wall: WallTime) -> None:
    """A failure, a success and two failures do not; the notice has a button that resumes it at its next slot."""
    await scene.set(reminder(kind=DO, repeat="FREQ=DAILY"))

    async def fail(slot: str) -> None:
        job = settle_job("r7k2m4qa", slot, why=FAILED, scope=SCOPE, at=wall())
        for _ in range(2):  # the handler of one job may run twice
            await scene.store.jobs.put(job)
        await asyncio.sleep(5)

    async with scene.at_work():
        await asyncio.sleep(21 * 3600 + 1)
        for day, fails in (("23", True), ("24", False), ("25", True), ("26", True)):
            if fails:
                await fail(f"2026-11-{day}T09:00")
            (left,) = await scene.set_now()
            assert not left.paused
            await asyncio.sleep(86_400 - 5 * fails)
        await fail("2026-11-27T09:00")
        (left,) = await scene.set_now()
        assert left.paused == "failed"
        count = len(await scene.accepted())
        await asyncio.sleep(9 * 86_400)
        assert len(await scene.accepted()) == count
    (notice,) = [each.message for each in await scene.store.outbox.undelivered(KEY)]
    assert notice.text == "The reminder `stand-up` is paused: its last three answers failed."
    assert [each.command for each in notice.choices] == ["/reminders resume r7k2m4qa", "/reminders stop r7k2m4qa"]
    resumed = left.resume(wall())
    assert resumed is not None
    assert (resumed.due > wall(), resumed.paused, resumed.failed) == (True, "", ())


async def test_thirty_days_of_silence_pause_a_request_and_no_text(scene: ReminderScene, wall: WallTime) -> None:
    """A chat that nobody reads any more costs no model call; a text costs none anyway."""
    await scene.set(reminder(kind=DO, repeat="FREQ=DAILY"), reminder(id="rsay", repeat="FREQ=DAILY"))
    async with scene.at_work():
        await asyncio.sleep(40 * 86_400)
    paused = {each.id: each.paused for each in await scene.set_now()}
    assert paused == {"r7k2m4qa": "silent", "rsay": ""}
    fired = [each.command for each in await scene.accepted()]
    assert fired.count(DO) in (29, 30, 31)


async def test_a_request_of_a_person_without_access_is_left_to_its_turn(scene: ReminderScene, wall: WallTime) -> None:
    """The turn refuses it and tells the owner; the person reads nothing, however long the chat has been silent."""
    scene.blocked = "42"
    await scene.set(reminder(kind=DO, at="2027-01-11T09:00"))
    async with scene.at_work():
        await asyncio.sleep(60 * 86_400)
    assert [each.command for each in await scene.accepted()] == [DO]
    assert await scene.store.outbox.undelivered(KEY) == ()


async def test_an_erased_or_unreadable_reminder_is_dropped(scene: ReminderScene, wall: WallTime) -> None:
    """Nothing is said, and nothing is tried for ever."""
    job = reminder().to_job(SCOPE)
    await scene.set(reminder(id="ra", text="[forgotten]"))
    await scene.store.jobs.put(replace(job, id="remind:rb:x", payload={"v": 9}))
    wall.move_to(NINE)
    async with scene.at_work():
        await asyncio.sleep(2)
    assert await scene.accepted() == []
    assert await scene.store.jobs.pending_of("remind") == ()


async def test_a_thousand_in_one_minute_each_once(tmp_path: Path, wall: WallTime) -> None:
    """In a hundred chats, with turns that end; none is left out, none comes twice, and the queue stays short."""
    store = await open_inline_store(tmp_path / "many.db", StoreLimits(), clock=wall)
    scene = ReminderScene(store, wall)
    ids: list[str] = []
    ended: list[str] = []

    class EndingJournal:
        """Accepts, and notes; the turn is over at once."""

        async def accept(self, message: InboundMessage, **_: object) -> Any:
            """Note the message."""
            ids.append(message.message_id)
            ended.append(turn_id(message))
            return await store.journal.accept(message, role=Role.MEMBER, is_control=False)

    for n in range(1_000):
        key = SessionKey("telegram", str(n % 100))
        at = f"2026-11-23T09:00:{n % 60:02d}"
        await store.jobs.put(reminder(id=f"r{n}", key=key, at=at).to_job(f"people/{n % 100}"))
    jobs = scene.jobs(EndingJournal())
    wall.move_to(NINE)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(JobRunner(store.jobs, {REMINDER_JOBS: _ending(jobs, ended)}, now=wall).run())
        await asyncio.sleep(70)
        running.cancel()
    assert len(ids) == len(set(ids)) == 1_000
    assert all(each.is_fired for each in reminders_in(await store.jobs.pending_of("remind")))
    await store.close(has_served=True)


def _ending(jobs: ReminderJobs, turns: list[str]) -> Any:
    async def fire(job: Any) -> Any:
        later = await jobs.fire(job)
        while turns:
            jobs.note_end(turns.pop())
        return later

    return fire


async def test_cancelled_while_it_fires_it_does_not_return(scene: ReminderScene, wall: WallTime) -> None:
    """Between the two steps of a firing: the slot fires, and no other follows."""
    await scene.set(reminder(repeat="FREQ=DAILY"))
    wall.move_to(NINE)

    class CancellingJournal:
        """Has the reminder cancelled as soon as it was accepted."""

        async def accept(self, message: InboundMessage, **options: Any) -> Any:
            """Accept it, then let the cancellation come."""
            accepted = await scene.store.journal.accept(message, **options)
            for job in await scene.store.jobs.pending_of("remind"):
                assert job.id.startswith(job_prefix("r7k2m4qa"))
                await scene.store.jobs.finish(job)
            return accepted

    async with scene.at_work(scene.jobs(CancellingJournal())):
        await asyncio.sleep(3 * 86_400)
    assert len(await scene.accepted()) == 1
    assert await scene.set_now() == []
