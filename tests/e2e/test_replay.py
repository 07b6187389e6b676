"""`parlour replay`: a stored turn of a whole gateway runs again with its recorded answers; differences are named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.llm.scripted_model import ScriptedModel, ScriptEntry
from agent.memory.prompt import prompt_snapshot
from agent.tools.tool import Tool, ToolContext, ToolKind, tool
from gateway.errors import NothingToReplay, UserError
from gateway.events import InboundKind, MessagePart, OutboundMessage
from gateway.operations.replays import report_rows
from gateway.operations.turns import activity_rows, turn_rows
from gateway.ports.memory import FileKind
from tests.fakes.documents import edit_by_hand
from tests.fakes.gateway import COMMAND
from tests.fakes.held_model import calls
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

LOOK = calls(("look", json.dumps({"place": "the roof"})))


def look_tool(runs: list[str]) -> Tool:
    """Return a tool that notes its runs."""

    @tool("Look at a place.", kind=ToolKind.LOOK)
    async def look(context: ToolContext, place: str) -> str:
        """Look."""
        runs.append(place)
        return f"{place} is wet"

    return look


def changed_look() -> Tool:
    """Return the tool of a later release, with another argument."""

    @tool("Look at a place.", kind=ToolKind.LOOK)
    async def look(context: ToolContext, where: str) -> str:
        """Look."""
        raise AssertionError("a replay runs no tool")

    return look


def scripted(*entries: ScriptEntry | str) -> ScriptedModel:
    """Return a model that says *entries*, and the last one from then on."""
    return ScriptedModel([ScriptEntry(text=each) if isinstance(each, str) else each for each in entries])


async def newest_turn(parlour: InProcessGateway) -> str:
    """Return the id of the newest turn, once everything is in its file."""
    await parlour.idle()
    find = parlour.app.operations["turns find"]
    return str(await anext(line["turn"] async for line in find({})))


async def run_again(parlour: InProcessGateway, turn: str, **arguments: str) -> Mapping[str, Any]:
    """Return the line of the operation, as a program reads it."""
    operation = parlour.app.operations["replay"]
    (line,) = [line async for line in operation({"reference": turn, **arguments})]
    return dict(json.loads(json.dumps(line)))


async def stored(parlour: InProcessGateway) -> tuple[object, ...]:
    """Return what a replay must not change: files, turns with their usage, messages, queues."""
    files = {
        str(path): path.read_bytes()
        for path in parlour.home.rglob("*")
        if path.is_file() and path.suffix in (".jsonl", ".md", ".json")
    }
    turns = [line async for line in parlour.app.operations["turns find"]({})]
    return files, turns, parlour.channel.sent, await parlour.app.store.journal.depth()


async def test_a_turn_with_tools_reproduces_itself_without_effects(tmp_path: Path) -> None:
    """Recorded answers and results give the same prompt, decisions, answer and parts; nothing runs or is stored."""
    runs: list[str] = []
    model = scripted("Hello Ann.", LOOK, "It is *wet*.")
    async with gateway(home=tmp_path / "home", model=model, tools=(look_tool(runs),)) as parlour:
        await parlour.channel.ask("c1", "Hello")
        await parlour.channel.ask("c1", "How is the roof?\nAnd the cellar?")
        turn = await newest_turn(parlour)
        before, requests = await stored(parlour), len(model.requests)
        line = await run_again(parlour, turn)
        assert (line["differences"], line["notes"]) == ([], [])
        assert (line["replies"], line["answer"], line["model"]) == (2, "It is *wet*.", "scripted")
        assert (runs, len(model.requests)) == (["the roof"], requests)
        assert await stored(parlour) == before
    assert next(iter(report_rows([line], {}))) == f"{turn}: 2 recorded answers, no differences"


async def test_merged_messages_are_replayed_as_one_turn(tmp_path: Path) -> None:
    """A turn of two messages has both in its prompt, with their heads."""
    async with gateway(home=tmp_path / "home", model=scripted("Two pictures.")) as parlour:
        await parlour.channel.say("c1", "first", album="a")
        _, answered = await parlour.channel.say("c1", "second", album="a")
        await answered
        turn = await newest_turn(parlour)
        trace = await parlour.app.store.journal.trace(turn)
        assert trace is not None
        assert len(trace.inbox) == 2
        assert (await run_again(parlour, turn))["differences"] == []


async def test_what_has_changed_since_is_named(tmp_path: Path) -> None:
    """Another persona, a tool with another schema, and a call that no longer fits it: each is named, and no more."""
    home, runs = tmp_path / "home", list[str]()
    async with gateway(home=home, model=scripted(LOOK, "Wet."), tools=(look_tool(runs),)) as parlour:
        await parlour.channel.ask("c1", "How is the roof?")
        turn = await newest_turn(parlour)
    edit_by_hand(home / "SOUL.md", "You are a pirate.\n")
    async with gateway(home=home, model=scripted("unasked"), tools=(changed_look(),)) as parlour:
        line = await run_again(parlour, turn)
    named = {each["where"]: each for each in line["differences"]}
    assert set(named) == {"persona", "tool look", "call 1 (look)"}
    assert named["persona"]["now"] == "You are a pirate."
    assert "place" in named["call 1 (look)"]["now"]
    rows = "\n".join(report_rows([line], {}))
    assert "3 differences" in rows
    assert "You are a pirate." in rows


async def test_code_that_writes_prompts_otherwise_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose prompts have other bytes is named, by the part of the prompt; its next turn has a snapshot."""
    async with gateway(home=tmp_path / "home", model=scripted("Hello.")) as parlour:
        await parlour.channel.ask("c1", "Hello")
        turn = await newest_turn(parlour)
        monkeypatch.setattr(prompt_snapshot, "_WHO", "# Where you are\n\nElsewhere.")
        prompt_snapshot.prompt_format.cache_clear()
        line = await run_again(parlour, turn)
        await parlour.channel.ask("c1", "And now?")
        again = await run_again(parlour, await newest_turn(parlour))
    prompt_snapshot.prompt_format.cache_clear()
    assert [each["where"] for each in line["differences"]] == ["prompt format, system"]
    assert again["differences"] == []


async def test_parts_that_are_rendered_otherwise_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored answer is cut and rendered by the code of today."""
    async with gateway(home=tmp_path / "home", model=scripted("Hello.")) as parlour:
        await parlour.channel.ask("c1", "Hello")
        turn = await newest_turn(parlour)
        render = parlour.channel.render

        def render_bold(message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
            return [replace(each, payload=f"**{each.payload}**") for each in render(message, least=least)]

        monkeypatch.setattr(parlour.channel, "render", render_bold)
        (difference,) = (await run_again(parlour, turn))["differences"]
    assert difference["where"] == f"parts of {turn}.1"
    assert "**Hello.**" in difference["now"]


async def test_another_model_answers_beside_the_recorded_answer(tmp_path: Path) -> None:
    """It gets the same prompt and the recorded results of the same calls; another call does not run."""
    runs: list[str] = []
    cellar = calls(("look", json.dumps({"place": "the cellar"})))
    model = scripted(LOOK, "Wet.", LOOK, cellar, "Wet, and I could not see the cellar.")
    async with gateway(home=tmp_path / "home", model=model, tools=(look_tool(runs),)) as parlour:
        await parlour.channel.ask("c1", "How is the roof?")
        turn = await newest_turn(parlour)
        before, first = await stored(parlour), model.requests[0]
        line = await run_again(parlour, turn, model="scripted")
        assert await stored(parlour) == before
    assert (line["differences"], runs) == ([], ["the roof"])
    assert [each["is_recorded"] for each in line["other"]["calls"]] == [True, False]
    assert (line["answer"], line["other"]["text"]) == ("Wet.", "Wet, and I could not see the cellar.")
    assert (model.requests[2].messages, model.requests[2].tools) == (first.messages, first.tools)
    rows = "\n".join(report_rows([line], {}))
    assert rows.index("Wet.") < rows.index("Wet, and I could not")


async def _without_turns(parlour: InProcessGateway) -> None:
    for row in await parlour.app.store.records.sessions():
        await parlour.app.store.transcripts.remove(row.scope)


async def _without_snapshot_texts(parlour: InProcessGateway) -> None:
    for scope in await parlour.app.store.files.scopes():
        await parlour.app.store.files.remove(scope, FileKind.TEXT)


@pytest.mark.parametrize(
    ("remove", "said"),
    [(_without_turns, "not stored any more"), (_without_snapshot_texts, "cannot be rebuilt")],
    ids=["messages", "snapshot texts"],
)
async def test_a_turn_that_was_removed_by_age_is_an_error(
    tmp_path: Path, remove: Callable[[InProcessGateway], Awaitable[None]], said: str
) -> None:
    """What retention has taken is not made up: the error says what is missing."""
    home = tmp_path / "home"
    async with gateway(home=home, model=scripted("Hello.")) as parlour:
        await parlour.channel.ask("c1", "Hello")
        turn = await newest_turn(parlour)
        await remove(parlour)
        with pytest.raises(NothingToReplay, match=said):
            await run_again(parlour, turn)
        with pytest.raises(UserError, match="no turn starts with"):
            await run_again(parlour, "t0000")


async def test_a_turn_whose_message_was_deleted_is_an_error(tmp_path: Path) -> None:
    """Words that were taken back are not replayed; a turn that had read them is, and the report says so."""
    async with gateway(home=tmp_path / "home", model=scripted("Hello.")) as parlour:
        await parlour.channel.ask("c1", "My secret is 1234", number="m1")
        turn = await newest_turn(parlour)
        await parlour.channel.ask("c1", "Are you there?")
        later = await newest_turn(parlour)
        await parlour.channel.say("c1", "", number="m1", revision="2", kind=InboundKind.DELETION)
        await parlour.channel.ask("c1", "And now?")
        newest = await newest_turn(parlour)
        with pytest.raises(NothingToReplay, match="were erased"):
            await run_again(parlour, turn)
        for each in (later, newest):
            line = await run_again(parlour, each)
            assert line["differences"] == []
            assert "messages before the turn were erased since; the model had read them" in line["notes"]


async def test_a_command_has_nothing_to_replay(tmp_path: Path) -> None:
    """A command asked no model: the error says so, and the exit code tells it from a fault."""
    async with gateway(home=tmp_path / "home", model=scripted("Hello.")) as parlour:
        await parlour.channel.ask("c1", "/help", kind=InboundKind.COMMAND)
        turn = await newest_turn(parlour)
        with pytest.raises(NothingToReplay, match="asked no model"):
            await run_again(parlour, turn)
    command = await asyncio.create_subprocess_exec(
        COMMAND, "replay", turn, "--json",
        env={"PARLOUR_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await command.communicate()
    assert (command.returncode, out) == (4, b"")
    assert b"asked no model" in err


async def test_the_activity_names_the_turns_that_failed(tmp_path: Path) -> None:
    """One failed and one was answered: both are counted, and the failed one has the sentence that its sender read."""
    model = scripted(ScriptEntry(error="refused"), "Hello Ann.")
    async with gateway(home=tmp_path / "home", model=model) as parlour:
        refusal = await parlour.channel.ask("c1", "Hello")
        await parlour.channel.ask("c1", "Hello again")
        await parlour.idle()
        (line,) = [line async for line in parlour.app.operations["activity"]({})]
        (failed,) = line["failed"]
        assert failed["key"].startswith("pocket:c1")
        assert failed["reason"] in refusal
        assert failed["reference"] in refusal
        assert len(line["hours"]) == 24
        assert sum(each["messages"] for each in line["hours"]) == 2
        rows = list(activity_rows([line], {}))
        assert f"{failed['reference']}  {failed['key']}: {failed['reason']}" in rows[-1]
        (story,) = [line async for line in parlour.app.operations["turn"]({"reference": failed["reference"]})]
        assert any(failed["reason"] in row for row in turn_rows([story], {}))
