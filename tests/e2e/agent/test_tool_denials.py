"""What a decision leaves behind: the model learns of a no at its next turn, and the audit has every step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from agent.llm.chat_model import ChatRequest
from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import ToolContext, ToolKind, tool
from agent.tools.tool_questions import LIFETIME, RUN_LIFETIME, STANDING_DECISION, TOOL_DENIAL, TOOL_QUESTION
from tests.e2e.agent.test_tool_questions import ARGUMENTS, OutsideWorld, decide, read_page
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway

SEND = calls(("send_letter", ARGUMENTS))


async def audit(parlour: InProcessGateway) -> list[tuple[str, str, str]]:
    """Return the audit lines: who, what, and the outcome."""
    found = await parlour.app.store.access.audit(limit=100)
    return [(each.by, each.what, each.outcome) for each in reversed(found)]


def refusals(request: ChatRequest) -> list[str]:
    """Return the messages that tell of a no."""
    return [str(each["content"]) for each in request.messages if str(each["content"]).startswith("[refused by")]


async def test_the_model_reads_of_a_no_once(tmp_path: Path) -> None:
    """At its next turn, over a restart, without a call of its own; the line stays where it is in the history."""
    world, home = OutsideWorld(), tmp_path / "home"
    model = HeldScriptModel(SEND, "asked")
    async with gateway(home=home, model=model, tools=[world.tool]) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.ask("c", decide(question, "deny"))
        await parlour.idle()
        assert len(model.asked) == 2
    model = HeldScriptModel("fine", "still fine")
    async with gateway(home=home, model=model, tools=[world.tool]) as parlour:
        await parlour.channel.ask("c", "hello")
        await parlour.channel.ask("c", "hello again")
        first, second = map(refusals, model.asked)
        assert len(first) == 1
        assert first[0].startswith("[refused by Ann: send_letter, asked ")
        assert second == first
        assert model.asked[1].messages[: len(model.asked[0].messages)] == model.asked[0].messages
        assert await parlour.app.store.jobs.pending_of(TOOL_DENIAL) == ()
    assert world.sent == []


async def test_a_new_session_does_not_read_of_an_old_no() -> None:
    """Nor does another chat."""
    world = OutsideWorld()
    model = HeldScriptModel(SEND, "asked", "in d", "in c")
    async with gateway(model=model, tools=[world.tool]) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.ask("c", decide(question, "deny"))
        await parlour.channel.ask("d", "hello")
        await parlour.channel.ask("c", "/new")
        await parlour.channel.ask("c", "hello")
        assert not any(map(refusals, model.asked))
        assert await parlour.app.store.jobs.pending_of(TOOL_DENIAL) == ()


async def test_questions_and_decisions_leave_audit_lines() -> None:
    """Tool and outcome, never an argument, also if the person who asked decides alone in a direct chat."""
    world = OutsideWorld()
    model = HeldScriptModel(SEND, "asked", "done", SEND, "asked", SEND, "asked")
    async with gateway(model=model, tools=[world.tool], policy=OPEN) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.ask("c", f"{decide(question)} here")
        await parlour.idle()
        await parlour.channel.ask("c", decide(question, "deny"))
        (decision,) = await parlour.app.store.jobs.pending_of(STANDING_DECISION)
        await parlour.channel.ask("c", f"/tools revoke {decision.payload['id']}")
        question = await parlour.channel.ask("g", "write to bob", group=True, sender="ann")
        await parlour.channel.ask("g", decide(question), group=True, sender="eve")
        await parlour.channel.ask("g", decide(question, "deny"), group=True, sender="eve", is_admin=True)
        found = await audit(parlour)
    assert found == [
        ("pocket:ann", "tools ask send_letter", "asked"),
        ("pocket:ann", "tools allow send_letter", "done"),
        ("pocket:ann", "tools deny", "settled"),
        ("pocket:ann", "tools revoke send_letter", "done"),
        ("pocket:ann", "tools ask send_letter", "asked"),
        ("pocket:eve", "tools allow send_letter", "refused"),
        ("pocket:eve", "tools deny send_letter", "done"),
    ]
    assert "bob" not in str(found)


async def test_a_question_about_a_program_lapses_after_an_hour() -> None:
    """Others after a day; a lapsed one cannot be allowed."""
    ran: list[str] = []

    @tool("Run a program.", kind=ToolKind.RUN, name="run_program")
    async def run_program(context: ToolContext) -> str:
        ran.append(context.turn)
        return "0"

    world = OutsideWorld()
    model = HeldScriptModel(calls(("read_page", "{}")), calls(("run_program", "{}")), "asked", SEND, "asked")
    async with gateway(model=model, tools=[world.tool, read_page, run_program]) as parlour:
        await parlour.channel.ask("c", "read it and run")
        await parlour.channel.ask("c", "write to bob")
        jobs, now = await parlour.app.store.jobs.pending_of(TOOL_QUESTION), parlour.app.commands.queue.now()
        left = {job.payload["tool"]: job.due_at - now for job in jobs}
    assert abs(left["run_program"] - RUN_LIFETIME) < timedelta(minutes=5)
    assert abs(left["send_letter"] - LIFETIME) < timedelta(minutes=5)
    assert ran == []


async def test_other_members_do_not_use_the_rights_of_the_next_person() -> None:
    """In a group, what costs asks once somebody else has written; before that, and in a direct chat, it does not."""
    drawn: list[str] = []

    @tool("Draw.", kind=ToolKind.SPEND, name="draw")
    async def draw(context: ToolContext) -> str:
        drawn.append(context.sender.id)
        return "drawn"

    script: list[ScriptEntry | str] = [calls(("draw", "{}")), "done"]
    model = HeldScriptModel(*script, *script, "hello", *script)
    async with gateway(model=model, tools=[draw], policy=OPEN) as parlour:
        await parlour.channel.ask("c", "draw", sender="ann")
        await parlour.channel.ask("g", "draw", group=True, sender="ann")
        assert drawn == ["ann", "ann"]
        await parlour.channel.ask("g", "when I say hello, draw ten", group=True, sender="eve")
        question = await parlour.channel.ask("g", "hello", group=True, sender="ann")
        assert "Other members' messages are part of this conversation." in question
        assert drawn == ["ann", "ann"]
