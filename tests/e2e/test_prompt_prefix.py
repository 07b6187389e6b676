"""The prompt's prefix: over fifty turns each request body begins with the one before, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.tools.tool import Tool, ToolContext, ToolKind, tool
from gateway.events import InboundKind, SessionKey
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, ScriptedToolCall, open_server

TURNS = 50
CHAT, OTHER = "main", "second"


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A request body, cut at the end of its messages."""

    before: bytes  # everything up to and with the last message
    after: bytes  # closing bracket, model, tools

    @classmethod
    def of(cls, data: bytes) -> RequestBody:
        messages = data.index(b'"messages":')
        _, length = json.JSONDecoder().raw_decode(data[messages + 11 :].decode())
        end = messages + 11 + len(data[messages + 11 :].decode()[:length].encode()) - 1
        return cls(data[:end], data[end:])


class GatedTool:
    """A tool that waits until the test lets it go on, so that something can be said meanwhile."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    def tool(self) -> Tool:
        """Return the tool."""

        @tool("Wait at the gate.", kind=ToolKind.LOOK)
        async def gate(context: ToolContext) -> str:
            self.reached.set()
            await self.opened.wait()
            return "the gate is open"

        return gate


def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Call a tool where the last message asks for one, otherwise answer differently each time."""
    last = body["messages"][-1]
    if "consolidation agent" in str(body["messages"][0]["content"]):
        memory = str(last["content"]).partition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
        saved = {
            "history_entry": f"[2026-11-22 10:0{n % 10}] They talked.",
            "memory_update": f"{memory}\n- summary {n}",
        }
        return ScriptedAnswer(
            text="", calls=(ScriptedToolCall(name="save_memory", arguments=json.dumps(saved), id=f"call_{n}"),)
        )
    if last["role"] == "user" and "go to the gate" in str(last["content"]):
        return ScriptedAnswer(text="", calls=(ScriptedToolCall(name="gate", id=f"call_{n}"),))
    if last["role"] == "user" and "remember" in str(last["content"]) and "[memory]" not in str(last["content"]):
        fact = json.dumps({"fact": f"fact number {n}"})
        return ScriptedAnswer(text="", calls=(ScriptedToolCall(name="remember", arguments=fact, id=f"call_{n}"),))
    return ScriptedAnswer(text=f"answer {n} with some words, é and 🙂")


def is_main(body: bytes) -> bool:
    """Say whether a request is the watched session's: the other one's messages say so, and consolidation's own do."""
    return b"second session" not in body and b"consolidation agent" not in body


async def test_fifty_turns_keep_the_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The prefix breaks exactly where docs/architecture.md says that it may, and nowhere else.

    Meanwhile there are tools, a steer, an edit, a rename, a new zone, a deletion, a second session of the scope,
    a cold cache, a restart every ten turns, and consolidations that move the window.
    """
    async with open_server(script) as server:
        for start in range(0, TURNS, 10):
            gate = GatedTool()
            async with gateway(
                home=tmp_path / "home", environment=_environment(server), tools=(gate.tool(),)
            ) as parlour:
                for n in range(start, start + 10):
                    await _turn(parlour, gate, n)
                await parlour.idle()
    bodies = [RequestBody.of(data) for data in server.bodies if is_main(data)]
    assert len(bodies) >= TURNS
    breaks = [n for n in range(1, len(bodies)) if not _extends(bodies[n - 1], bodies[n])]
    causes = _causes(tmp_path / "home")
    with capsys.disabled():
        print(f"\nprefix: {len(bodies)} bodies, broken at {breaks}; allowed: {causes}")
    assert len(breaks) == len([cause for cause in causes if cause != "first turn"])
    assert sorted(causes) == sorted(
        ["first turn", "zone", "deleted message", *["window moved"] * causes.count("window moved")]
    )
    assert "window moved" in causes
    steered = [turn for turn, said in _user_texts(tmp_path / "home").items() if len(said) == 2]
    assert len(steered) == 1
    # The deltas of memory edits, own and the other session's, are in the conversation and broke nothing.
    assert any(b"[memory]" in body.before for body in bodies)


def _extends(earlier: RequestBody, later: RequestBody) -> bool:
    return later.before.startswith(earlier.before) and later.after == earlier.after


async def _turn(parlour: InProcessGateway, gate: GatedTool, n: int) -> None:
    """One turn of the script of events; the name changes from turn 12 on."""
    name = "Ann" if n < 12 else "Ann [Example]\nof Berlin"
    say = parlour.channel.say
    match n:
        case 3 | 17 | 33:
            await parlour.channel.ask(CHAT, f"please remember this, turn {n}", name=name)
        case 8:
            # What she adds while the tool runs joins the turn at its next step.
            await say(CHAT, f"go to the gate, turn {n}", name=name)
            await gate.reached.wait()
            await say(CHAT, f"added, turn {n}", name=name)
            gate.opened.set()
            await parlour.idle()
        case 14:
            await say(CHAT, "edited text of turn 13", name=name, number="turn-13", revision="2")
            await parlour.channel.ask(CHAT, f"plain text of turn {n}", name=name)
        case 21:
            await parlour.channel.ask(CHAT, "/timezone Asia/Kolkata", name=name)
        case 26:
            await say(CHAT, "", name=name, number="turn-25", kind=InboundKind.DELETION)
            await parlour.channel.ask(CHAT, f"plain text of turn {n}", name=name)
        case 29 | 36:
            await parlour.channel.ask(OTHER, f"second session: remember this, turn {n}", name=name)
        case 39:
            parlour.app.pool._handler._services.conversations.forget(_key(parlour))  # type: ignore[attr-defined]  # a cold cache
            await parlour.channel.ask(CHAT, f"plain text of turn {n}", name=name)
        case _:
            await parlour.channel.ask(CHAT, f"plain text of turn {n}", name=name, number=f"turn-{n}")


def _key(parlour: InProcessGateway) -> SessionKey:
    return SessionKey(parlour.channel.name, CHAT)


def _environment(server: FakeOpenAI) -> dict[str, str]:
    return {
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": server.base,
        "PARLOUR_LLM__API_KEY": "test-key",
        "PARLOUR_AGENT__OVERLAP": "steer",
        "PARLOUR_TIMEZONE": "Europe/Berlin",
        "PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "40",
    }


def _user_texts(home: Path) -> Mapping[str, Sequence[str]]:
    """Return what the person said, by turn."""
    (path,) = home.glob("people/*/sessions/*main.jsonl")
    said: dict[str, list[str]] = {}
    for line in map(json.loads, path.read_bytes().splitlines()):
        if line.get("role") == "user" and "edited to" not in line["head"]:
            said.setdefault(line["turn"], []).append(line["content"])
    return said


def _causes(home: Path) -> Sequence[str]:
    """Read off the transcript why each snapshot was taken, and each deletion."""
    (path,) = home.glob("people/*/sessions/*main.jsonl")
    causes: list[str] = []
    last: Mapping[str, Any] | None = None
    for line in map(json.loads, path.read_bytes().splitlines()):
        if line.get("kind") == "forgotten":
            causes.append("deleted message")
        if line.get("kind") != "snapshot":
            continue
        if last is None:
            causes.append("first turn")
        elif line["from"] != last["from"]:
            causes.append("window moved")
        elif line["zone"] != last["zone"]:
            causes.append("zone")
        else:
            causes.append(f"unexpected: {line}")
        last = line
    return causes
