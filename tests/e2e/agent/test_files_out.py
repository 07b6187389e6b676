"""Files out, through the whole gateway: made or found by a model's tool, sent with its answer, and with no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.tools.tool import ResultFile, ToolContext, ToolKind, ToolResult, tool
from gateway.delivery import outbox_dispatcher
from tests.fakes.file_gateway import KEY, SCOPE, folders_with, open_gateway
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_files import InProcessFileChannel, InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import PLAIN, gateway
from tests.fakes.openai_server import ScriptedAnswer, ScriptedToolCall
from tests.fakes.stored_files import stored_files


def sends(*files: Mapping[str, str]) -> ScriptedAnswer:
    """A model's message that sends files."""
    return ScriptedAnswer(
        calls=tuple(
            ScriptedToolCall(name="send_file", arguments=json.dumps(each), id=f"s{n}") for n, each in enumerate(files)
        )
    )


async def test_a_file_is_made_and_sent_with_the_answer() -> None:
    """It arrives as it was written, after the answer's words; history names it, and the model can send it again."""
    script: list[ScriptedAnswer | str] = [
        sends({"name": "prices.csv", "text": "tea,3\n"}),
        "here you are",
        sends({"name": "PRICES.csv"}),
        "again",
    ]
    async with open_gateway(script) as at:
        assert await at.channel.ask("c", "make a table") == "here you are"
        await at.parlour.idle()
        (sent,) = at.channel.arrived
        assert (sent.name, sent.data, sent.media_type) == ("prices.csv", b"tea,3\n", "text/csv")
        shown = await at.parlour.app.memory.sessions.displayed_messages(KEY, limit=5)
        assert shown[-1].text == "here you are\n(document prices.csv, 6 bytes)"
        await at.channel.ask("c", "send it again")
        await at.parlour.idle()
        assert [each.data for each in at.channel.arrived] == [b"tea,3\n"] * 2


async def test_a_file_that_was_received_is_sent_again(tmp_path: Path) -> None:
    """By name, the newest first; after /new it is looked for in the archive; then in the workspace."""

    def script(body: Mapping[str, Any], _: int) -> ScriptedAnswer | str:
        last = body["messages"][-1]
        for asked, name in (("send it back", "n.txt"), ("and the other", "own.txt")):
            if last["role"] == "user" and last["content"].endswith(asked):
                return sends({"name": name})
        return "here"

    home = tmp_path / "home"
    async with open_gateway(script, home=home) as at:
        for text in (b"old", b"new"):
            await at.sends("keep", "n.txt", text)
        await at.channel.ask("c", "send it back")
        await at.channel.ask("c", "/new")
        await at.parlour.idle()
        await at.channel.ask("c", "send it back")
        workspace = at.parlour.app.memory.workspaces.of(SCOPE)
        await workspace.create("own.txt", b"of the workspace", is_untrusted=False)
        await at.channel.ask("c", "and the other")
        await at.parlour.idle()
        assert [each.data for each in at.channel.arrived] == [b"new", b"new", b"of the workspace"]


async def test_nothing_outside_the_scope_is_sent(tmp_path: Path) -> None:
    """Not another person's file, nothing over a link or a path, nothing through a transcript that somebody edited."""
    home = tmp_path / "home"
    names = ["secret.txt", "../MEMORY.md", "/etc/passwd", "link.txt", "folder/passwd", "/proc/self/environ"]
    names += ["../../../parlour.yaml", str(home / "parlour.yaml"), "/proc/self/root/etc/passwd"]
    hostile = sends(*({"name": name} for name in names))
    stage = HeldScriptModel("kept", calls(*((call.name, call.arguments) for call in hostile.calls)), "no")
    sources = PlatformFiles()
    async with gateway(model=stage, kind=InProcessFilePlugin(sources), home=home) as parlour:
        await parlour.channel.ask("b", "mine", sender="bob", attachments=[sources.put("secret.txt", b"of Bob")])
        folder = home / SCOPE / "files"
        folder.mkdir(parents=True)
        (home / SCOPE / "MEMORY.md").write_text("x")
        (home / "parlour.yaml").write_text("llm: {api_key: secret}")
        (folder / "link.txt").symlink_to("/etc/passwd")
        (folder / "folder").symlink_to("/etc")
        await parlour.channel.ask("c", "send me everything")
        await parlour.idle()
        said = results(stage.asked[-1])
        assert len(said) == len(names)
        assert all(each.startswith("error: there is no file called") for each in said)
        assert isinstance(parlour.channel, InProcessFileChannel)
        assert parlour.channel.arrived == []


async def test_a_made_file_is_written_nowhere_else(tmp_path: Path) -> None:
    """Attacks 51 to 56: a path, a link or the name of a file of ours in `name` creates and changes nothing there."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    folder = home / SCOPE / "files"
    (home / SCOPE / "memory").mkdir(parents=True)
    folder.mkdir()
    outside.mkdir()
    ours = {home / SCOPE / "memory/MEMORY.md": "- a fact\n", home / "parlour.yaml": "", home / ".env": ""}
    for path, text in ours.items():
        path.write_text(text)
    (folder / "linked").symlink_to(outside)
    (folder / "dangling.txt").symlink_to(outside / "made.txt")
    names = [str(outside / "a.txt"), "../../../outside/b.txt", "linked/c.txt", "dangling.txt", "\0d.txt"]
    names += ["MEMORY.md", "../memory/MEMORY.md", "../../../parlour.yaml", ".env", "sessions/pocket%3ac.jsonl"]
    hostile = [{"name": name, "text": "- planted"} for name in names]
    stage = HeldScriptModel(calls(*(("send_file", json.dumps(each)) for each in hostile)), "made")
    async with gateway(model=stage, kind=InProcessFilePlugin(PlatformFiles()), home=home) as parlour:
        await parlour.channel.ask("c", "write everywhere")
        await parlour.idle()
        assert len(results(stage.asked[-1])) == len(names)
    assert {path: path.read_text() for path in ours} == ours
    assert folders_with(tmp_path, b"- planted") == set()
    assert {name.rpartition("/")[0] for name, data in stored_files(home).items() if data == b"- planted"} == {
        f"{SCOPE}/attachment"
    }


async def test_what_does_not_fit_is_said_to_the_model() -> None:
    """Too large for the channel, or a channel that takes none: the tool says so, and the answer comes all the same."""
    text = json.dumps({"name": "a.txt", "text": "x" * 90_000})
    for limit, why in (
        (50_000, "a.txt has 90 KB, and only 50 KB can be sent here"),
        (0, "files cannot be sent in this chat"),
    ):
        stage = HeldScriptModel(calls(("send_file", text)), "sorry")
        kind = InProcessFilePlugin(PlatformFiles(), replace(PLAIN, file_limit=limit))
        async with gateway(model=stage, kind=kind) as parlour:
            assert await parlour.channel.ask("c", "a file please") == "sorry"
            assert why in results(stage.asked[-1])[0]


async def test_a_killed_turn_still_sends_its_file(tmp_path: Path) -> None:
    """The call is not asked again; the file rides on the answer that the second run gives."""
    first = HeldScriptModel(calls(("send_file", json.dumps({"name": "a.md", "text": "# A"}))), held=[2])
    async with gateway(model=first, kind=InProcessFilePlugin(PlatformFiles())) as parlour:
        await parlour.channel.say("c", "a file please", number="1")
        await first.called(2)
        copy = parlour.kill(tmp_path / "copy")
        first.go(2)
    model = HeldScriptModel("here")
    async with gateway(home=copy, model=model, kind=InProcessFilePlugin(PlatformFiles())) as parlour:
        await parlour.channel.posted("c", 2)
        await parlour.idle()
        assert isinstance(parlour.channel, InProcessFileChannel)
        assert [(each.name, each.data) for each in parlour.channel.arrived] == [("a.md", b"# A")]
        assert len(model.asked) == 1


@tool("Draw a chart.", kind=ToolKind.COMPUTE, name="chart")
async def chart(context: ToolContext, count: int = 1, size: int = 4) -> ToolResult:
    """Return pictures, as a tool that draws does."""
    files = [ResultFile(f"../chart {n}.png", b"\x89PNG" + b"x" * (size - 4)) for n in range(count)]
    return ToolResult(text="drawn", files=files)


async def test_a_result_brings_files() -> None:
    """They are sent with the answer, within its limits; the model reads which ones, and what could not be sent."""
    model = HeldScriptModel(calls(("chart", "{}")), "here", calls(("chart", '{"count": 12}')), "all")
    kind = InProcessFilePlugin(PlatformFiles())
    async with gateway(model=model, tools=[chart], kind=kind) as parlour:
        assert await parlour.channel.ask("c", "draw") == "here"
        await parlour.idle()
        assert isinstance(parlour.channel, InProcessFileChannel)
        (sent,) = parlour.channel.arrived
        assert (sent.data, sent.media_type) == (b"\x89PNG", "image/png")
        assert "/" not in sent.name
        assert results(model.asked[1]) == [f"drawn\n({sent.name}, 4 bytes, will be sent with your answer)"]
        await parlour.channel.ask("c", "draw more")
        await parlour.idle()
        assert len(parlour.channel.arrived) == 11
        assert results(model.asked[3])[-1].count("is not sent: at most 10 files go with one answer") == 2


async def test_a_file_of_a_result_that_is_too_large_or_not_wanted_is_named() -> None:
    """The chat's limit holds, and where files cannot be sent, none is kept; the answer is sent all the same."""
    too_large = '{"size": 1000001}'
    for kind, why in ((InProcessFilePlugin(PlatformFiles()), "only 1.0 MB can be sent here"), (None, "cannot be sent")):
        model = HeldScriptModel(calls(("chart", too_large)), "here")
        async with gateway(model=model, tools=[chart], kind=kind) as parlour:
            assert await parlour.channel.ask("c", "draw") == "here"
            await parlour.idle()
            (told,) = results(model.asked[1])
            assert told.startswith("drawn\n(a file of the result is not sent: ")
            assert why in told


async def test_a_file_of_a_stopped_turn_is_not_sent() -> None:
    """It belongs to the answer, which does not come."""
    model = HeldScriptModel(calls(("chart", "{}")), held=[2])
    kind = InProcessFilePlugin(PlatformFiles())
    async with gateway(model=model, tools=[chart], kind=kind) as parlour:
        await parlour.channel.say("c", "draw")
        await model.called(2)
        await parlour.channel.say("c", "/stop")
        await parlour.idle()
        assert isinstance(parlour.channel, InProcessFileChannel)
        assert parlour.channel.arrived == []


async def test_a_secret_is_in_no_file_of_the_model() -> None:
    """Neither in what it writes into one, nor in the file's name; a file of the workspace is looked at when it goes."""
    secret = "tok-9f8e7d6c5b4a"
    written = {"name": "notes.txt", "text": f"the key is {secret}", "mode": "new"}
    script: list[ScriptedAnswer | str] = [
        sends({"name": f"{secret}.txt", "text": f"it is {secret}!"}),
        "one",
        ScriptedAnswer(calls=(ScriptedToolCall(name="file_write", arguments=json.dumps(written), id="w"),)),
        sends({"name": "notes.txt"}),
        "two",
    ]
    async with open_gateway(script, PARLOUR_LLM__API_KEY=secret) as at:
        await at.channel.ask("c", "tell me the key")
        await at.channel.ask("c", "once more")
        await at.parlour.idle()
        assert [each.data for each in at.channel.arrived] == [b"it is [redacted]!", b"the key is [redacted]"]
        assert not any(secret in each.name for each in at.channel.arrived)


async def test_a_secret_is_in_no_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is its beginning, where the line is cut."""
    secret = "tok-9f8e7d6c5b4a"
    done = asyncio.Event()
    monkeypatch.setattr(outbox_dispatcher, "_STATUS_EVERY", 0.0)

    @tool("Look.", kind=ToolKind.LOOK, name="look")
    async def look(context: ToolContext) -> str:
        for before in range(80):
            context.progress(f"{'x' * before} {secret}")
            for _ in range(10):
                await asyncio.sleep(0)
        done.set()
        return "seen"

    model = HeldScriptModel(calls(("look", "{}")), "Well.")
    environment = {"PARLOUR_LLM__API_KEY": secret}
    shown = replace(PLAIN, shows_activity=True)
    async with gateway(model=model, tools=[look], capabilities=shown, environment=environment) as up:
        await up.channel.ask("c", "look")
        await up.idle()
        assert done.is_set()
        texts = [each.text for each in up.channel.activities if each.text]
        assert len(texts) > 3
        assert not any(secret[:5] in each for each in texts)
