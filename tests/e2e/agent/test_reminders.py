"""Reminders in the whole gateway: set by the model, fired, snoozed, changed and cancelled, in words and by button."""

from __future__ import annotations

import json
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from agent.memory.jobs.job_runner import RetryJobLater
from agent.reminders.reminder import Reminder, reminders_in
from agent.reminders.reminder_jobs import ReminderJobs
from gateway.admission import AdmissionPolicy, AllowEntry
from gateway.errors import ModelFailed
from gateway.events import InboundKind, Role
from gateway.ports.journal import Job
from tests.fakes.account_linking import link, unlink
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.staged_changes import erase

MEMBERS = AdmissionPolicy(
    channel="pocket", entries=frozenset(map(AllowEntry.parse, ("ann", "bob"))), owners=frozenset({"boss"})
)
BERLIN = {"PARLOUR_TIMEZONE": "Europe/Berlin"}
NOW = datetime(2026, 11, 22, 10, 20, tzinfo=UTC)
AT_NIGHT = "2026-11-30T03:00"
UNTYPED = "not allowed here: no message of a person started this turn"


class ToldModel(FakeChatModel):
    """Says or calls what stands in `queue`; a failure there is raised."""

    def __init__(self) -> None:
        self.name = "told"
        self.queue: list[Any] = []
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Say the next entry."""
        self.requests.append(request)
        entry = self.queue.pop(0) if self.queue else "ok"
        if isinstance(entry, Exception):
            raise entry
        calls: tuple[ToolCall, ...] = ()
        if isinstance(entry, tuple):
            calls, entry = (ToolCall(f"c{len(self.requests)}", entry[0], json.dumps(entry[1])),), ""
        elif sink is not None:
            sink(entry)
        return ChatReply(text=entry, tool_calls=calls, model=self.name, tokens=TokenUsage(1, 1, 0), cost=0.0)

    @property
    def result(self) -> str:
        """The last result of a tool that it was shown."""
        return str([each["content"] for each in self.requests[-1].messages if each["role"] == "tool"][-1])


@dataclass
class MovableClock:
    """The gateway's clock: runs as the machine's, from NOW on, and can be moved."""

    offset: timedelta = field(default_factory=lambda: NOW - datetime.now(UTC))

    def __call__(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC) + self.offset


@pytest.fixture
def clock() -> MovableClock:
    """A clock for the gateway of `talk`."""
    return MovableClock()


@dataclass
class ReminderTalk:
    """A gateway with a model that sets reminders."""

    inside: InProcessGateway
    model: ToldModel
    clock: MovableClock

    async def call(self, name: str, text: str = "please", chat: str = "c", **arguments: Any) -> str:
        """Have the model call a tool in a turn of Ann, or of another; return the result."""
        facts: dict[str, Any] = {
            key: arguments.pop(key) for key in ("sender", "group", "is_admin", "quoted") if key in arguments
        }
        self.model.queue = [(name, arguments), "done"]
        if facts.get("group"):
            facts["is_addressed"] = True
        await self.inside.channel.ask(chat, text, **facts)
        return self.model.result

    async def reminders(self) -> list[Reminder]:
        """Return what is set."""
        return reminders_in(await self.inside.app.store.jobs.pending_of("remind"))

    async def move(self, **span: float) -> None:
        """Move the clock on, and return when everything that is due then has ended."""
        self.clock.offset += timedelta(**span)
        due = self.clock()
        store = self.inside.app.store
        await store.jobs.put(Job(id=f"wake:{due.isoformat()}", kind="wake", scope="", payload={}, due_at=due))
        await self.settle()

    async def settle(self) -> None:
        """Return when nothing is due and every turn has ended."""
        store = self.inside.app.store
        for _ in range(3):
            await self.inside.idle()
            while any(each.waiting for each in await store.jobs.count() if each.kind != "wake"):
                await self.inside.idle()
            await store.jobs.put(Job(id=f"wake:{self.clock()}", kind="wake", scope="", payload={}, due_at=self.clock()))

    async def press(self, command: str, chat: str = "c", **facts: Any) -> str:
        """Press a button; return the text that answers it."""
        before = len(self.inside.channel.posts.get(chat, ()))
        await self.inside.channel.say(chat, command, kind=InboundKind.BUTTON, **facts)
        return (await self.inside.channel.posted(chat, before + 1))[before].text

    def texts(self, chat: str = "c") -> list[str]:
        """Return what stands in a chat, without the commands below it."""
        return [post.text.partition("\n\n- 10 min")[0] for post in self.inside.channel.posts.get(chat, ())]


@asynccontextmanager
async def talk(clock: MovableClock, **options: Any) -> AsyncIterator[ReminderTalk]:
    """Run a gateway."""
    model = ToldModel()
    async with gateway(
        model=model, environment=BERLIN | options.pop("environment", {}), now=clock, **options
    ) as inside:
        yield ReminderTalk(inside, model, clock)


async def test_set_fired_snoozed_and_cancelled(clock: MovableClock) -> None:
    """The whole life of one: the answer names the time in words; the line is the bot's own, so "snooze that" works."""
    async with talk(clock) as ann:
        result = await ann.call("remind", what="stand-up", at="2026-11-23T09:00")
        (set_,) = await ann.reminders()
        assert result == (
            f"reminder {set_.id} is set once this answer is sent: Mon 23 Nov 2026, 09:00 Europe/Berlin, in 22 hours"
        )
        await ann.move(hours=21, minutes=41)
        assert ann.texts()[-1] == "⏰ stand-up"
        assert await ann.press(f"/reminders snooze {set_.id} 10") == (
            "I'll remind you again: `stand-up`, 2026-11-23 09:11 Europe/Berlin."
        )
        await ann.press(f"/reminders snooze {set_.id} 10")  # a second press moves it
        assert sum(not each.is_fired for each in await ann.reminders()) == 1
        await ann.move(minutes=11)
        assert ann.texts().count("⏰ stand-up") == 2
        result = await ann.call("reminder_change", "snooze that", id=set_.id, snooze_minutes=30)
        assert "09:42" in result or "09:41" in result
        said = [(each["role"], each["content"]) for each in ann.model.requests[-1].messages]
        assert ("assistant", "⏰ stand-up") in said
        assert (await ann.call("reminder_change", "no, drop it", id=set_.id, cancel=True)).startswith("reminder ")
        assert await ann.reminders() == []
        await ann.move(days=2)
        assert ann.texts().count("⏰ stand-up") == 2
        assert await ann.press(f"/reminders tomorrow {set_.id}") == "This reminder no longer exists."


async def test_every_second_tuesday(clock: MovableClock) -> None:
    """Twice in four weeks, and the list and its button."""
    async with talk(clock) as ann:
        result = await ann.call("remind", what="bins", at="2026-11-24T09:00", repeat="FREQ=WEEKLY;INTERVAL=2;BYDAY=TU")
        assert result.endswith(
            "Tue 24 Nov 2026, 09:00 Europe/Berlin, in 46 hours; then Tue 8 Dec 2026, 09:00 Europe/Berlin"
        )
        await ann.move(hours=45, minutes=41)
        for _ in range(3):
            await ann.move(days=7)
        assert [text for text in ann.texts() if "bins" in text] == ["⏰ bins"] * 2
        (set_,) = await ann.reminders()
        shown = await ann.inside.channel.ask("c", "/reminders", sent_at=clock())
        assert f"`bins` (`FREQ=WEEKLY;INTERVAL=2;BYDAY=TU`) `{set_.id}`" in shown
        assert await ann.press(f"/reminders stop {set_.id}") == "The reminder `bins` is stopped."
        assert await ann.inside.channel.ask("c", "/reminders", sent_at=clock()) == (
            "No reminders are set here. Ask me to remind you of something."
        )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"at": "2026-11-22T09:00"}, "that is in the past: it is now Sun 22 Nov 2026, 11:20"),
        ({"at": "tomorrow"}, "at is a local time such as 2026-11-23T09:00: it is now Sun 22 Nov 2026, 11:20"),
        ({"at": "2026-11-23"}, "at is a local time"),
        ({"at": "2036-11-23T09:00"}, "more than five years ahead"),
        ({}, "give either at (local time) or in_minutes"),
        ({"at": "2026-11-23T09:00", "in_minutes": 5}, "give either"),
        ({"in_minutes": -5}, "at least 1"),
        ({"in_minutes": 10_000_000}, "at most five years"),
        ({"at": "2026-11-23T09:00", "repeat": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "no date matches this rule"),
        ({"at": "2026-11-23T09:00", "repeat": "FREQ=HOURLY;INTERVAL=0"}, "INTERVAL is from 1 to 366"),
        ({"at": "2026-11-23T09:00", "repeat": "FREQ=MINUTELY;INTERVAL=30", "kind": "do"}, "60 minutes"),
        ({"at": "2026-11-23T09:00", "what": " "}, "say what to remind of"),
        ({"at": "2026-11-23T09:00", "what": "x" * 2_001}, "at most 2000 characters"),
    ],
)
async def test_wrong_times_and_rules_are_errors_that_name_the_time(
    clock: MovableClock, arguments: dict[str, Any], error: str
) -> None:
    """Nothing is set, and the model can correct itself."""
    async with talk(clock) as ann:
        assert error in await ann.call("remind", **({"what": "tea"} | arguments))
        assert await ann.reminders() == []


async def test_limits_of_a_person_and_a_chat(clock: MovableClock) -> None:
    """50 and 200; those that are over do not count."""
    async with talk(clock, policy=MEMBERS) as ann:
        await ann.call("remind", what="tea", at="2026-11-23T09:00", chat="-hall", group=True, sender="ann")
        (set_,) = await ann.reminders()
        jobs = ann.inside.app.store.jobs
        (job,) = await jobs.pending_of("remind")
        for n in range(49):
            await jobs.put(replace(set_, id=f"r{n}").to_job(job.scope))
            await jobs.put(replace(set_, id=f"s{n}", is_fired=True).to_job(job.scope))
        hall: dict[str, Any] = {"chat": "-hall", "group": True}
        assert "limit reached: 50 reminders" in await ann.call("remind", what="tea", in_minutes=5, sender="ann", **hall)
        for n in range(150):
            await jobs.put(replace(set_, id=f"t{n}", person=f"pocket%3a{n}").to_job(job.scope))
        result = await ann.call("remind", what="tea", in_minutes=5, sender="bob", **hall)
        assert "limit reached: 200 reminders in this chat" in result


async def test_the_reminders_of_one_turn_count(clock: MovableClock) -> None:
    """Of three set in one turn by a person who has 48, two are set; one that the turn moves is not counted twice."""
    async with talk(clock) as ann:
        await ann.call("remind", what="tea", at="2026-11-23T09:00")
        (set_,) = await ann.reminders()
        jobs = ann.inside.app.store.jobs
        (job,) = await jobs.pending_of("remind")
        for n in range(47):
            await jobs.put(replace(set_, id=f"r{n}").to_job(job.scope))
        ann.model.queue = [
            ("reminder_change", {"id": set_.id, "at": "2026-11-24T09:00"}),
            *[("remind", {"what": f"cup {n}", "in_minutes": 5 + n}) for n in range(3)],
            "done",
        ]
        await ann.inside.channel.ask("c", "remind me of three cups")
        assert "limit reached: 50 reminders" in ann.model.result
        found = await ann.reminders()
        assert len(found) == 50
        assert {each.text for each in found if "cup" in each.text} == {"cup 0", "cup 1"}


async def test_linked_accounts_share_reminders_and_take_their_own_along(clock: MovableClock) -> None:
    """Either chat lists both; each fires where it was set; apart again, each account has its own."""

    async def listed(account: str) -> str:
        return str(await ann.inside.channel.ask(account, "/reminders", sender=account))

    async with talk(clock) as ann:
        for account, text in (("ann", "stand-up"), ("bob", "laundry")):
            await ann.call("remind", what=text, in_minutes=60, chat=account, sender=account, repeat="FREQ=DAILY")
        await link(ann.inside, "bob", "ann")
        for account in ("ann", "bob"):
            assert ("stand-up" in await listed(account), "laundry" in await listed(account)) == (True, True)
        await ann.move(minutes=61)
        assert [text for text in ann.texts("ann") if "⏰" in text] == ["⏰ stand-up"]
        assert [text for text in ann.texts("bob") if "⏰" in text] == ["⏰ laundry"]
        await unlink(ann.inside, "ann")
        for account, own, other in (("ann", "stand-up", "laundry"), ("bob", "laundry", "stand-up")):
            found = await listed(account)
            assert (own in found, other in found) == (True, False)
        await ann.move(days=1)
        assert [text for text in ann.texts("ann") if "⏰" in text] == ["⏰ stand-up"] * 2
        assert [text for text in ann.texts("bob") if "⏰" in text] == ["⏰ laundry"] * 2


async def test_in_a_group_only_its_person_or_an_admin_changes_it(clock: MovableClock) -> None:
    """It names its person; another member can neither cancel nor snooze it, in words or by button."""
    async with talk(clock, policy=MEMBERS) as group:
        hall: dict[str, Any] = {"chat": "-hall", "group": True}
        await group.call("remind", what="stand-up", in_minutes=5, sender="ann", **hall)
        (set_,) = await group.reminders()
        refused = await group.call("reminder_change", id=set_.id, cancel=True, sender="bob", **hall)
        assert "only the person who set this reminder or an admin" in refused
        await group.move(minutes=6)
        assert group.texts("-hall")[-1] == "Ann: ⏰ stand-up"
        answer = await group.press(f"/reminders stop {set_.id}", "-hall", group=True, sender="bob")
        assert answer.startswith("Only the person who set this reminder")
        answer = await group.press(f"/reminders stop {set_.id}", "-hall", group=True, sender="bob", is_admin=True)
        assert answer == "The reminder `stand-up` is stopped."


async def test_a_person_who_is_blocked_is_reminded_again_once_admitted(clock: MovableClock) -> None:
    """Blocked by the owner, their reminder pauses without a word in the group; admitted again, a button resumes it."""
    async with talk(clock, policy=MEMBERS) as group:
        ask = group.inside.channel.ask
        hall: dict[str, Any] = {"chat": "-hall", "group": True, "sender": "bob"}
        await ask("boss", "hello", sender="boss")
        await group.call("remind", what="a", in_minutes=5, repeat="FREQ=DAILY", **hall)
        (set_,) = await group.reminders()
        await ask("boss", "/block bob", sender="boss")
        before = group.texts("-hall")
        await group.move(minutes=6)
        await group.move(days=2)
        assert group.texts("-hall") == before
        assert [each.paused for each in await group.reminders()] == ["access"]
        assert sum("no longer has access" in text for text in group.texts("boss")) == 1
        await ask("boss", "/allow bob", sender="boss", sent_at=clock())
        assert "continues" in await group.press(f"/reminders resume {set_.id}", **hall, sent_at=clock())
        await group.move(days=1)
        assert [text for text in group.texts("-hall") if "⏰" in text] == ["Ann: ⏰ a"]


async def test_a_request_is_a_turn_and_nothing_sends_nothing(clock: MovableClock) -> None:
    """The daily digest: the model reads the request with its tools; NOTHING is not shown, not even as a preview."""
    async with talk(clock) as ann:
        await ann.call("remind", what="what is new?", at="2026-11-23T08:00", repeat="FREQ=DAILY", kind="do")
        (set_,) = await ann.reminders()
        before = len(ann.texts())
        ann.model.queue = ["NOTHING"]
        await ann.move(hours=21)
        assert len(ann.texts()) == before
        request = str(ann.model.requests[-1].messages[-1]["content"])
        assert f"[reminder {set_.id}, set 22 Nov 2026] what is new?" in request
        ann.model.queue = ["I checked the tracker.\n\n**Nothing** to report."]
        await ann.move(days=1)
        assert len(ann.texts()) == before
        ann.model.queue = [("remind", {"what": "again", "in_minutes": 5}), "two files are new"]
        await ann.move(days=1)
        assert ann.texts()[-1] == "two files are new"
        assert "I checked the tracker." in str(ann.model.requests[-1].messages)  # the record has the rest
        assert len(await ann.reminders()) == 1  # no reminder from a reminder


async def test_the_turn_of_a_reminder_keeps_files_alone(clock: MovableClock) -> None:
    """Nobody wrote in it: what it read must not become memory. A file may be written, and the next message may keep."""
    async with talk(clock) as ann:
        await ann.call("remind", what="what is new?", at="2026-11-23T08:00", kind="do")
        edit = {"operations": [{"op": "add", "text": "the door is open"}], "erase": "door"}
        calls = [("remember", {"fact": "the door is open"}), ("memory_edit", edit)]
        ann.model.queue = [*calls, ("file_write", {"name": "news.md", "text": "none"}), "looked"]
        await ann.move(hours=21)
        told = [str(each["content"]) for each in ann.model.requests[-1].messages if each["role"] == "tool"]
        assert told[-3:-1] == [UNTYPED, UNTYPED]
        assert told[-1].startswith("news.md is stored")
        assert "door is open" not in await ann.inside.remembered()
        await ann.call("remember", fact="the door is shut")
        ann.model.queue = ["done"]
        await ann.inside.channel.ask("c", "thanks")  # what was remembered before is stored when a turn begins
        assert "door is shut" in await ann.inside.remembered()


async def test_a_reminder_starts_nothing_again(clock: MovableClock) -> None:
    """A hijacked model sets, snoozes and moves reminders in the turn of one: none is added. It may cancel itself."""
    async with talk(clock) as ann:
        await ann.call("remind", what="look", at="2026-11-23T08:00", repeat="FREQ=DAILY", kind="do")
        (set_,) = await ann.reminders()
        attempts: list[tuple[str, dict[str, Any]]] = [("remind", {"what": "x", "in_minutes": 1})]
        attempts += [("reminder_change", {"id": set_.id, **more}) for more in ({"snooze_minutes": 1}, {"at": AT_NIGHT})]
        await ann.move(hours=12)
        for attempt in attempts:
            ann.model.queue = [attempt, "looked"]
            await ann.move(hours=10)
            assert "error: not allowed here: a reminder moves no" in ann.model.result or UNTYPED in ann.model.result
            asked = len(ann.model.requests)
            await ann.move(hours=14)
            assert len(ann.model.requests) == asked
        ann.model.queue = [("reminder_change", {"id": set_.id, "cancel": True}), "done"]
        await ann.move(hours=10)
        assert "is cancelled" in ann.model.result
        assert await ann.reminders() == []


async def test_the_daily_digest_of_the_page_for_people(clock: MovableClock) -> None:
    """docs/using.md: on weekdays at eight, the file and the day's reminders; not on the weekend."""
    page = " ".join((Path(__file__).parents[3] / "docs/using.md").read_text("utf-8").split())
    sentence = "every weekday at 8: what is new in the tracker file, and my reminders for today"
    assert f"> {sentence} " in page
    async with talk(clock) as ann:
        ann.model.queue = [("file_write", {"name": "tracker.md", "text": "- the builder comes on Monday"}), "kept"]
        await ann.inside.channel.ask("c", "note that the builder comes on Monday")
        await ann.call("remind", what="call Bob", at="2026-11-23T15:00")
        await ann.move(hours=9, minutes=30)
        what, rule = sentence.partition(": ")[2], "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR"
        result = await ann.call("remind", text=sentence, what=what, at="2026-11-23T08:00", repeat=rule, kind="do")
        said = result.partition(" is sent: ")[2]
        assert said.startswith("Mon 23 Nov 2026, 08:00")
        assert f"`{said}`" in page
        digest = "New: the builder comes today. Reminders: 15:00 call Bob."
        ann.model.queue = [("file_read", {"name": "tracker.md"}), ("reminders", {}), digest]
        await ann.move(hours=11, minutes=11)
        assert ann.texts()[-1] == digest
        read, listed = [str(each["content"]) for each in ann.model.requests[-1].messages if each["role"] == "tool"][-2:]
        assert "the builder comes on Monday" in read
        assert "call Bob" in listed
        for _ in range(6):  # to Sunday
            ann.model.queue = [digest]
            await ann.move(days=1)
        assert ann.texts().count(digest) == 5


async def test_three_failures_pause_a_request_and_its_button_resumes_it(clock: MovableClock) -> None:
    """Each failure is a line of its own; behind the third there is one with a button."""
    async with talk(clock) as ann:
        await ann.call("remind", what="news", at="2026-11-23T08:00", repeat="FREQ=DAILY", kind="do")
        (set_,) = await ann.reminders()
        for _ in range(3):
            ann.model.queue = [ModelFailed("down")] * 5
            await ann.move(days=1)
        assert any("its last three answers failed" in text for text in ann.texts())
        calls = len(ann.model.requests)
        await ann.move(days=3)
        assert len(ann.model.requests) == calls
        ann.model.queue = []
        assert "continues" in await ann.press(f"/reminders resume {set_.id}")
        await ann.move(days=1)
        assert len(ann.model.requests) == calls + 1


async def test_late_ones_are_listed_once_in_one_message(clock: MovableClock) -> None:
    """Down for three days: of five reminders one message, and the repeating one goes on."""
    async with talk(clock) as ann:
        await ann.call("remind", what="daily", at="2026-11-23T08:00", repeat="FREQ=WEEKLY")
        (job,) = await ann.inside.app.store.jobs.pending_of("remind")
        (weekly,) = await ann.reminders()
        for n in range(4):
            await ann.inside.app.store.jobs.put(
                replace(weekly, id=f"r{n}", text=f"one {n}", repeat="").to_job(job.scope)
            )
        before = len(ann.texts())
        await ann.move(days=4)
        (late,) = ann.texts()[before:]
        assert late.startswith("⏰ These reminders were due while I was not running:\n- ")
        assert all(f"`{each}`" in late for each in ("daily", "one 0", "one 3"))
        assert [each.at for each in await ann.reminders() if not each.is_fired] == ["2026-11-30T08:00"]


async def test_a_reminder_that_was_cancelled_while_it_waited_is_not_sent(clock: MovableClock) -> None:
    """It is due behind the very turn that cancels it."""
    async with talk(clock) as ann:
        await ann.call("remind", what="tea", in_minutes=5)
        (set_,) = await ann.reminders()
        (job,) = await ann.inside.app.store.jobs.pending_of("remind")
        message = set_.message("⏰ tea", ann.clock(), "say")
        await ann.inside.app.store.jobs.advance(job, None)
        await ann.inside.app.store.journal.accept(message, role=Role.MEMBER, is_control=False)
        await ann.inside.idle()
        assert "⏰ tea" not in ann.texts()


async def test_a_new_time_zone_asks_once_and_moves_what_named_a_time(clock: MovableClock) -> None:
    """Nine stays nine in the new zone; "in 90 minutes" is not asked about."""
    async with talk(clock) as ann:
        await ann.call("remind", what="stand-up", at="2026-11-23T09:00")
        await ann.call("remind", what="laundry", in_minutes=90)
        answer = await ann.inside.channel.ask("c", "/timezone America/New_York")
        assert "One reminder is set in another time zone. Keep the local time and move it" in answer
        assert "`/reminders move`" in answer
        assert "`/reminders leave`" in answer
        assert await ann.press("/reminders leave") == "The reminders stay as they are."
        assert {each.zone for each in await ann.reminders()} == {"Europe/Berlin"}
        assert await ann.press("/reminders move") == "One reminder now follows America/New_York."
        assert {each.text: (each.at, each.zone) for each in await ann.reminders()}["stand-up"] == (
            "2026-11-23T09:00",
            "America/New_York",
        )
        assert "time zone." not in await ann.inside.channel.ask("c", "/timezone America/New_York")


async def test_quiet_hours_by_command(clock: MovableClock) -> None:
    """Shown, set, refused and removed."""
    async with talk(clock) as ann:
        ask = ann.inside.channel.ask
        assert (await ask("c", "/quiet")).startswith("No quiet hours")
        assert (await ask("c", "/quiet 22:00-07:00")).startswith("Quiet hours: 22:00-07:00 (Europe/Berlin)")
        assert (await ask("c", "/quiet late")).startswith("Quiet hours are two times")
        assert (await ask("c", "/quiet")).startswith("Quiet hours: 22:00-07:00")
        assert (await ask("c", "/quiet off")).startswith("No quiet hours")


async def test_forgetting_and_exporting_include_reminders(clock: MovableClock, tmp_path: Path) -> None:
    """/forget of a word removes the reminder with it; /forget everything all; the export has them."""
    async with talk(clock) as ann:
        await ann.call("remind", what="call the clinic", at="2026-11-23T09:00")
        await ann.call("remind", what="buy bread", at="2026-11-23T09:00")
        exports = ann.inside.app.commands.privacy.exports
        await exports.write("people/pocket%3aann", "pocket%3aann", tmp_path / "e.zip")
        with zipfile.ZipFile(tmp_path / "e.zip") as archive:
            assert b"call the clinic" in archive.read("reminders.jsonl")
        await erase(ann.inside.channel.ask, "c", "/forget clinic")
        assert [each.text for each in await ann.reminders()] == ["buy bread"]
        await ann.inside.channel.ask("c", "/forget everything yes")
        while await ann.reminders():  # a job erases them after the answer
            await ann.settle()


async def test_a_stopped_turn_sets_nothing(clock: MovableClock) -> None:
    """A promise that was not sent is none: the model fails behind the call."""
    async with talk(clock) as ann:
        ann.model.queue = [("remind", {"what": "tea", "in_minutes": 5}), *[ModelFailed("down")] * 5]
        await ann.inside.channel.ask("c", "remind me")
        assert await ann.reminders() == []


async def test_set_and_cancelled_in_one_turn(clock: MovableClock) -> None:
    """The later call wins."""
    async with talk(clock) as ann:
        await ann.call("remind", what="first", in_minutes=50)
        (set_,) = await ann.reminders()
        ann.model.queue = [
            ("reminder_change", {"id": set_.id, "at": "2026-11-24T09:00"}),
            ("reminder_change", {"id": set_.id, "cancel": True}),
            "done",
        ]
        await ann.inside.channel.ask("c", "move it; no, drop it")
        assert await ann.reminders() == []


async def test_run_now_beside_the_next_time(clock: MovableClock) -> None:
    """A request runs once more, by its person or an admin alone; its rule goes on as it was."""
    async with talk(clock, policy=MEMBERS) as ann:
        hall: dict[str, Any] = {"chat": "-hall", "group": True, "sender": "ann"}
        await ann.call("remind", what="what is new?", at="2026-11-23T08:00", repeat="FREQ=DAILY", kind="do", **hall)
        (set_,) = await ann.reminders()
        assert "Only the person" in await ann.press(f"/reminders run {set_.id}", **{**hall, "sender": "bob"})
        ann.model.queue = ["Nothing but rain."]
        assert (await ann.press(f"/reminders run {set_.id}", **hall)).endswith("runs now.")
        await ann.settle()
        assert [text for text in ann.texts("-hall") if "rain" in text] == ["Ann: Nothing but rain."]
        assert [each.at for each in await ann.reminders()] == [set_.at]


async def test_runs_say_how_each_ended(clock: MovableClock, tmp_path: Path) -> None:
    """Answered, with nothing to say, and failed; with tokens and cost, for its person alone, and in the export."""
    async with talk(clock, policy=MEMBERS) as ann:
        await ann.call("remind", what="what is new?", at="2026-11-23T08:00", repeat="FREQ=DAILY", kind="do")
        (set_,) = await ann.reminders()
        for said in ("Rain.", "NOTHING", ModelFailed("down")):
            ann.model.queue = [said] * 5 if isinstance(said, ModelFailed) else [said]
            await ann.move(days=1)
        ann.model.queue = []
        (now,) = await ann.reminders()
        runs = await ann.inside.app.reminders.runs(now, limit=10)
        assert [each.state for each in runs] == ["failed", "silent", "answered"]
        assert (runs[2].tokens, runs[2].known_cost, runs[2].unpriced_calls) == (2, 0.0, 0)
        assert [each.state for each in await ann.inside.app.reminders.runs(now, limit=1)] == ["failed"]
        assert [each async for each in ann.inside.app.operations["tasks runs"]({"id": set_.id})][2][
            "state"
        ] == "answered"
        (line,) = [each async for each in ann.inside.app.operations["tasks list"]({})]
        assert (line["who"], line["text"], line["kind"], line["repeat"]) == (
            "pocket:ann",
            "what is new?",
            "request",
            "FREQ=DAILY",
        )
        exports = ann.inside.app.commands.privacy.exports
        await exports.write("people/pocket%3aann", "pocket%3aann", tmp_path / "e.zip")
        with zipfile.ZipFile(tmp_path / "e.zip") as archive:
            lines = [json.loads(each) for each in archive.read("runs.jsonl").splitlines()]
        assert [each["state"] for each in lines] == ["failed", "silent", "answered"]
        assert {each["r"] for each in lines} == {set_.id}


async def test_another_direct_chat_of_the_person_is_the_target(clock: MovableClock) -> None:
    """Chosen by button, of all accounts of the person; a text and a request come there, and not where they were set."""
    async with talk(clock, policy=MEMBERS) as ann:
        for chat, account in (("ann", "ann"), ("bob", "bob"), ("other", "boss")):
            await ann.inside.channel.ask(chat, "hello", sender=account)
        await link(ann.inside, "bob", "ann")
        for kind, text in (("say", "stand-up"), ("do", "what is new?")):
            await ann.call("remind", what=text, at="2026-11-23T09:00", kind=kind, chat="ann", sender="ann")
        for each in await ann.reminders():
            menu = await ann.inside.channel.ask("ann", f"/reminders to {each.id}", sender="ann")
            assert f"/reminders to {each.id} pocket:bob" in menu
            assert "pocket:other" not in menu
            moved = await ann.press(f"/reminders to {each.id} pocket:bob", chat="ann", sender="ann")
            assert "now comes in `Pocket (bob)`" in moved
            for wrong in ("pocket:other", "pocket:nowhere", "x"):
                refused = await ann.inside.channel.ask("ann", f"/reminders to {each.id} {wrong}", sender="ann")
                assert "no such direct chat" in refused
        assert "`Pocket (bob)`" in await ann.inside.channel.ask("ann", "/reminders", sender="ann")
        before = len(ann.texts("ann"))
        ann.model.queue = ["Nothing but rain."]
        await ann.move(hours=21, minutes=42)
        assert {"⏰ stand-up", "Nothing but rain."} <= set(ann.texts("bob"))
        assert len(ann.texts("ann")) == before
        again = next(each for each in await ann.reminders() if each.kind == "say")
        assert [each.state for each in await ann.inside.app.reminders.runs(again, limit=5)] == ["answered"]
        # Buttons of what came there work there, and it comes there again.
        await ann.press(f"/reminders snooze {again.id} 10", chat="bob", sender="bob")
        await ann.move(minutes=11)
        assert ann.texts("bob").count("⏰ stand-up") == 2


async def test_another_chat_takes_what_was_put_off_along(clock: MovableClock) -> None:
    """A repeated reminder and its extra slot both come there; neither is lost."""
    async with talk(clock, policy=MEMBERS) as ann:
        for chat in ("ann", "bob"):
            await ann.inside.channel.ask(chat, "hello", sender=chat)
        await link(ann.inside, "bob", "ann")
        await ann.call("remind", what="bins", at="2026-11-23T09:00", repeat="FREQ=DAILY", chat="ann", sender="ann")
        (set_,) = await ann.reminders()
        await ann.inside.channel.ask("ann", f"/reminders snooze {set_.id} 10", sender="ann")
        await ann.press(f"/reminders to {set_.id} pocket:bob", chat="ann", sender="ann")
        await ann.move(minutes=11)
        assert ann.texts("bob").count("⏰ bins") == 1
        await ann.move(hours=21, minutes=32)
        assert ann.texts("bob").count("⏰ bins") == 2
        assert "⏰ bins" not in ann.texts("ann")


async def test_a_target_that_is_no_longer_theirs_gets_nothing(clock: MovableClock) -> None:
    """Unlinked: the chat in which it was set is told, and has it from then on. Without access nothing comes at all."""
    for is_unlinked in (True, False):
        async with talk(clock, policy=MEMBERS) as ann:
            for chat in ("ann", "bob"):
                await ann.inside.channel.ask(chat, "hello", sender=chat)
            await link(ann.inside, "bob", "ann")
            await ann.call("remind", what="the secret", in_minutes=60, chat="ann", sender="ann")
            (set_,) = await ann.reminders()
            await ann.press(f"/reminders to {set_.id} pocket:bob", chat="ann", sender="ann")
            if is_unlinked:
                await unlink(ann.inside, "bob")
            else:
                _ = [line async for line in ann.inside.app.operations["people block"]({"who": "pocket:bob"})]
            before = {chat: len(ann.texts(chat)) for chat in ("ann", "bob")}
            await ann.move(minutes=61)
            while is_unlinked and "⏰ the secret" not in ann.texts("ann"):
                await ann.settle()
            assert not [text for text in ann.texts("bob")[before["bob"] :] if "secret" in text]
            said = [text for text in ann.texts("ann")[before["ann"] :] if "secret" in text]
            assert [text.split()[0] for text in said] == (["`the", "⏰"] if is_unlinked else [])


@pytest.mark.parametrize("repeat", ["", "FREQ=DAILY"])
async def test_a_target_that_blocked_the_bot_is_given_up(clock: MovableClock, repeat: str) -> None:
    """The chat in which it was set is told once, with buttons, and has it from then on."""
    async with talk(clock, policy=MEMBERS) as ann:
        for chat in ("ann", "bob"):
            await ann.inside.channel.ask(chat, "hello", sender=chat)
        await link(ann.inside, "bob", "ann")
        await ann.call("remind", what="bins", at="2026-11-23T09:00", repeat=repeat, chat="ann", sender="ann")
        (set_,) = await ann.reminders()
        await ann.press(f"/reminders to {set_.id} pocket:bob", chat="ann", sender="ann")
        ann.inside.channel.blocking.add("bob")
        before = len(ann.texts("ann"))
        await ann.move(hours=21, minutes=41)
        while len(ann.texts("ann")) == before:
            await ann.move(seconds=10)
        await ann.move(minutes=30)
        (told,) = ann.texts("ann")[before:]
        assert told == "`bins` could not be delivered in `Pocket (bob)`. It comes here from now on."
        assert [each.target for each in await ann.reminders()] == [None]
        assert not await ann.inside.app.store.jobs.pending_of("remind-settle")
        await ann.press(f"/reminders snooze {set_.id} 10", chat="ann", sender="ann")
        await ann.move(minutes=11)
        assert ann.texts("ann").count("⏰ bins") == 1
        await ann.move(days=1)
        assert sum(text.startswith("⏰ bins") for text in ann.texts("ann")) == (2 if repeat else 1)


async def test_a_target_that_was_changed_before_the_watch_is_kept(
    clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not delivered in the target before does not move it, and nothing says that it does."""
    async with talk(clock, policy=MEMBERS) as ann:
        for chat in ("ann", "bob", "boss"):
            await ann.inside.channel.ask(chat, "hello", sender=chat)
        for account in ("bob", "boss"):
            await link(ann.inside, account, "ann")
        daily = {"at": "2026-11-23T09:00", "repeat": "FREQ=DAILY"}
        await ann.call("remind", what="bins", **daily, chat="ann", sender="ann")
        (set_,) = await ann.reminders()
        await ann.press(f"/reminders to {set_.id} pocket:bob", chat="ann", sender="ann")
        ann.inside.channel.blocking.add("bob")
        look = ReminderJobs._check_delivery
        answers: list[str] = []

        async def look_later(self: ReminderJobs, job: Job) -> RetryJobLater | None:
            if not answers:  # the watch has begun, and the change does not end it any more
                answers.append(await ann.press(f"/reminders to {set_.id} pocket:boss", chat="ann", sender="ann"))
            return await look(self, job)

        monkeypatch.setattr(ReminderJobs, "_check_delivery", look_later)
        before = len(ann.texts("ann"))
        await ann.move(hours=21, minutes=41)
        while not answers or await ann.inside.app.store.jobs.pending_of("remind-settle"):
            await ann.move(seconds=10)
        assert ann.texts("ann")[before:] == answers
        (kept,) = await ann.reminders()
        assert kept.target is not None
        assert kept.target.key.channel == "pocket"
        assert kept.target.key.chat == "boss"


async def test_a_delivered_target_is_watched_no_longer(clock: MovableClock) -> None:
    """Once it was sent, or ended without a message, no job is left."""
    async with talk(clock, policy=MEMBERS) as ann:
        for chat in ("ann", "bob"):
            await ann.inside.channel.ask(chat, "hello", sender=chat)
        await link(ann.inside, "bob", "ann")
        for kind in ("say", "do"):
            await ann.call("remind", what="bins", at="2026-11-23T09:00", kind=kind, chat="ann", sender="ann")
        for each in await ann.reminders():
            await ann.press(f"/reminders to {each.id} pocket:bob", chat="ann", sender="ann")
        ann.model.queue = ["NOTHING"]
        await ann.move(hours=21, minutes=41)
        await ann.move(minutes=1)
        assert "⏰ bins" in ann.texts("bob")
        assert not await ann.inside.app.store.jobs.pending_of("remind-settle")
        assert [each.target is not None for each in await ann.reminders()] == [True, True]


async def test_what_was_set_in_a_group_stays_there(clock: MovableClock) -> None:
    """Its members have seen it set; and a direct chat's is changed by its person alone."""
    async with talk(clock, policy=MEMBERS) as ann:
        hall: dict[str, Any] = {"group": True, "sender": "ann"}
        await ann.inside.channel.ask("ann", "hello", sender="ann")
        await ann.call("remind", what="stand-up", in_minutes=60, chat="-hall", **hall)
        (set_,) = await ann.reminders()
        assert "set in a direct chat" in await ann.press(f"/reminders to {set_.id} pocket:ann", chat="-hall", **hall)
        assert (await ann.reminders())[0].target is None
