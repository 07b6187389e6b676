"""/promises: what is due to a person and how the last of it ended, the operator's list, and the alert."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.alerts.alert_sources import LATE_AFTER, LatePromiseSource
from gateway.events import SessionKey
from gateway.health.gateway_checks import read_status, status_findings
from gateway.operations.turns import promise_rows
from gateway.store.inspection import LatePromises
from tests.e2e.agent.test_tool_questions import ARGUMENTS, OutsideWorld, decide
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.unit.ops.test_doctor_tools import reminder_of

NOTHING = "Nothing is due to you."


class WallClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC)

    def now(self) -> datetime:
        """Return its time."""
        return self.at


def states(text: str) -> list[str]:
    """Return what a list says of each promise, without its time."""
    return [line.partition(": ")[2] for line in text.splitlines() if line.startswith("- ")]


async def test_answers_are_due_until_they_end(tmp_path: Path) -> None:
    """Running and waiting ones, and after it how each ended: answered, stopped, failed; no command is among them."""
    model = HeldScriptModel("first", held=(1,))
    async with gateway(home=tmp_path, model=model) as parlour:
        ask, say = parlour.channel.ask, parlour.channel.say
        assert await ask("c", "/promises") == NOTHING
        await say("c", "one")
        await model.called(1)
        await say("c", "two")
        await say("c", "/files")
        listed = await ask("c", "/promises")
        assert states(listed)[:2] == ["answer to a message, running", "answer to a message, waiting"]
        await ask("c", "/stop")
        model.go(1)
        await parlour.idle()
        assert await ask("c", "three") == "answer 2"
        ended = await ask("c", "/promises")
    assert ended.startswith(f"{NOTHING}\n\nThe last ones in this chat:")
    assert states(ended) == ["answer to a message, done", "answer to a message, stopped"]


async def test_reminders_are_due_at_their_time(tmp_path: Path) -> None:
    """With their words, since they are the person's own; paused ones say so."""
    async with gateway(home=tmp_path, model=HeldScriptModel()) as parlour:
        await parlour.channel.ask("c", "hello", sender="c")
        session = await parlour.app.store.journal.session(SessionKey("pocket", "c"))
        for reminder in (reminder_of("c", "r1"), reminder_of("c", "r2", paused="failed")):
            await parlour.app.store.jobs.put(reminder.to_job(session.scope))
        listed = states(await parlour.channel.ask("c", "/promises", sender="c"))
    assert sorted(each.rpartition(": ")[2] for each in listed)[1:] == [
        "reminder, `a secret`",
        "reminder, `a secret` (paused)",
    ]


async def test_an_allowed_call_is_due_until_it_has_run(tmp_path: Path) -> None:
    """From the yes to its end."""
    world = OutsideWorld()
    model = HeldScriptModel(calls(("send_letter", ARGUMENTS)), "asked", "sent", held=(3,))
    async with gateway(home=tmp_path, model=model, tools=[world.tool]) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.ask("c", decide(question))
        await model.called(3)
        assert states(await parlour.channel.ask("c", "/promises"))[0] == "call that you allowed, running"
        model.go(3)
        await parlour.idle()
        ended = states(await parlour.channel.ask("c", "/promises"))
    assert ended == ["call that you allowed, done", "answer to a message, done"]


async def test_people_of_a_group_see_their_own(tmp_path: Path) -> None:
    """Nothing of others, and nothing of another chat; a person's direct chat lists all of their direct chats."""
    model = HeldScriptModel(held=(1, 2))
    async with gateway(home=tmp_path, model=model, policy=OPEN) as parlour:
        ask, say = parlour.channel.ask, parlour.channel.say
        await say("g", "from ann", group=True, sender="ann")
        await say("h", "from ann", group=True, sender="ann")
        await model.called(2)
        assert states(await ask("g", "/promises", group=True, sender="ann")) == ["answer to a message, running"]
        assert await ask("g", "/promises", group=True, sender="bob") == NOTHING
        assert await ask("bob", "/promises", sender="bob") == NOTHING
        model.go(1)
        model.go(2)
        await parlour.idle()
        assert await ask("g", "/promises", group=True, sender="bob") == NOTHING
        assert states(await ask("g", "/promises", group=True, sender="ann")) == ["answer to a message, done"]


async def test_the_operator_sees_what_is_late(tmp_path: Path) -> None:
    """The list of the command line and the finding of status, doctor and console, without a word of anybody."""
    clock = WallClock()
    model = HeldScriptModel(held=(1,))
    async with gateway(home=tmp_path, model=model, now=clock.now) as parlour:
        await parlour.channel.say("c", "a secret", sent_at=clock.now())
        await model.called(1)
        assert [line["is_late"] for line in await _list(parlour)] == [False]
        assert not [each for each in status_findings(await read_status(parlour.app)) if each.name == "promises"]
        clock.at += LATE_AFTER + timedelta(minutes=1)
        (line,) = await _list(parlour)
        assert (line["kind"], line["state"], line["key"], line["is_late"]) == ("answer", "running", "pocket:c", True)
        (row,) = promise_rows([line], {})
        assert "answer to a message, running" in row  # as /promises has it
        assert row.endswith("pocket:c  late")
        (finding,) = [each for each in status_findings(await read_status(parlour.app)) if each.name == "promises"]
        assert "1 message not answered in 15 minutes" in finding.text
        assert "pocket:c" in finding.text
        assert "`parlour promises`" in finding.text
        assert "secret" not in f"{line}{finding.text}"
        model.go(1)
        await parlour.idle()
        assert await _list(parlour) == []


async def _list(parlour: InProcessGateway) -> list[dict[str, object]]:
    return [dict(line) async for line in parlour.app.operations["promises"]({})]


async def test_the_alert_comes_and_ends(tmp_path: Path) -> None:
    """Looked for once a minute; nothing is said while nothing is late."""
    clock = WallClock()
    since = clock.now() - timedelta(minutes=20)
    answers = [LatePromises(messages=0, reminders=0), LatePromises(messages=2, reminders=1, since=since)]
    asked: list[datetime] = []

    async def late(before: datetime) -> LatePromises:
        asked.append(before)
        return answers[min(len(asked) - 1, 1)]

    source = LatePromiseSource(late, clock.now)
    (quiet,) = await source({})
    assert (quiet.cause, quiet.stage) == ("promises", 0)
    assert await source({}) == []
    clock.at += timedelta(minutes=1)
    (found,) = await source({})
    assert (found.stage, found.line, found.since, dict(found.fields)) == (
        1,
        "alerts.promises_late",
        since,
        {"count": 3},
    )
    assert asked == [clock.now() - timedelta(minutes=1) - LATE_AFTER, clock.now() - LATE_AFTER]
