"""The prompt's prefix: over fifty turns each request body begins with the one before, byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.reminders.recurrence import slot_of
from agent.reminders.reminder import reminders_in
from agent.tools.tool import Tool, ToolContext, ToolKind, tool
from agent.web.search_engines import WebHit
from agent.web.web_tools import WebPages, build_fetch_tool, build_search_tool
from gateway.events import InboundKind, SessionKey
from tests.e2e.agent.test_tool_questions import OutsideWorld
from tests.e2e.agent.test_web_tools import ListEngine
from tests.fakes import sample_files
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ModelFault, ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.public_site import PublicSite, open_site
from tests.fakes.strict_requests import STRICTEST, violations

TURNS = 50
_EFFORTS = {10: "high", 24: "low", 37: "default"}  # by turn
_EFFORT = re.compile(rb',"reasoning_effort":"[a-z]+"')
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
    """Say whether a request is the watched session's: the other one's messages say so, and those of memory jobs do."""
    return not any(words in body for words in (b"second session", b"consolidation agent", b"extraction agent"))


async def test_fifty_turns_keep_the_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The prefix breaks exactly where docs/architecture.md says that it may, and nowhere else.

    In between there are tools, two efforts, a steer, an edit, a rename, a new zone, a deletion, a second session of the
    scope, a cold cache, a restart every ten turns, and consolidations that move the window.
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
    assert {_EFFORT.findall(body.after)[:1] == [] for body in bodies} == {True, False}
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


TOOL_WISHES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "remind me": ("remind", {"what": "stand-up", "in_minutes": 60}),
    "snooze that": ("reminder_change", {"snooze_minutes": 30}),
    "write to bob": ("send_letter", {"to": "bob"}),
    "read": ("web_fetch", {}),
    "search": ("web_search", {"query": "ferries"}),
    "count": ("count_up", {}),
    "go on": ("read_result", {"page": 2}),
}


def tool_script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Call the tool that the last message asks for, otherwise answer differently each time."""
    last, said = body["messages"][-1], str(body["messages"][-1]["content"])
    wish = next((each for each in TOOL_WISHES if each in said), "") if last["role"] == "user" else ""
    if not wish or "[allowed by" in said:
        return ScriptedAnswer(text=f"answer {n} with some words, é and 🙂")
    name, arguments = TOOL_WISHES[wish]
    if name == "web_fetch":
        arguments = {"url": re.findall(r"http://\S+", said)[0]}
    if name == "reminder_change":
        arguments = {**arguments, "id": re.findall(r"reminder (r[a-z2-7]{8})", json.dumps(body["messages"]))[0]}
    if name == "read_result":
        arguments = {**arguments, "result": re.findall(r'read_result\(\\*"(r\w+)', json.dumps(body["messages"]))[0]}
    return ScriptedAnswer(
        text="", calls=(ScriptedToolCall(name=name, arguments=json.dumps(arguments), id=f"call_{n}"),)
    )


@tool("Count.", kind=ToolKind.LOOK)
async def count_up(context: ToolContext) -> str:
    """Return a result of several pages."""
    return " ".join(map(str, range(4_000)))


async def test_tools_keep_the_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over fifty turns no tool breaks it, and the schemas are the same.

    Pages, pictures, searches, long results, calls that a person allows and denies, a reminder that fires, is snoozed
    by button and in words and is stopped, and a restart.
    """
    pages: dict[str, web.Response | str | bytes] = {
        f"/{n}": f"<title>Page {n}</title><body><p>Only a few words on page {n}.</p>" for n in range(TURNS)
    }
    pages |= {f"/{n}": sample_files.picture(form="PNG", color=color) for n, color in ((22, "red"), (38, "blue"))}
    world = OutsideWorld()
    async with open_server(tool_script) as server, open_site(monkeypatch, pages) as site:
        found = ListEngine(WebHit(title="Ferries", url=site.url("/9"), snippet="timetable"))
        tools = (build_fetch_tool(WebPages(client=site.client)), build_search_tool(found), world.tool, count_up)
        environment = _environment(server) | {"PARLOUR_TOOLS__WEB__FETCH": "false"}
        environment["PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW"] = "1000"
        environment["PARLOUR_LLM__VISION"] = "on"
        for start in (0, 30):
            async with gateway(home=tmp_path / "home", environment=environment, tools=tools) as parlour:
                for n in range(start, TURNS if start else 30):
                    await _tool_turn(parlour, site, n)
                    await parlour.idle()
    bodies = [RequestBody.of(data) for data in server.bodies]
    breaks = [n for n in range(1, len(bodies)) if not _extends(bodies[n - 1], bodies[n])]
    with capsys.disabled():
        print(f"\nprefix with tools: {len(bodies)} bodies, broken at {breaks}")
    assert breaks == []
    prompt = bodies[-1].before.decode()
    assert len(world.sent) == 2
    assert len(site.requests) >= 5
    assert prompt.count("data:image/png;base64,") == 2
    for words in ("[allowed by Ann", "⏰ stand-up", "waiting for approval", "Only a few words on page", "3998 3999"):
        assert words in prompt, words


ODD_CALLS = (
    ScriptedToolCall(name="count_up", arguments='{"to": ', id="call_0"),
    ScriptedToolCall(name="count_up", arguments="[]", id="call_0"),
    ScriptedToolCall(name="count up!", id="x" * 46),
    ScriptedToolCall(name="count_up", arguments="", id="functions.count_up:0"),
)


def odd_script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Call tools in every odd way, fail where it is asked for, and refuse what a strict server refuses."""
    last = body["messages"][-1]
    said = str(last["content"]) if last["role"] == "user" else ""
    if "fail" in said or violations(body, STRICTEST):
        return ScriptedAnswer(fault=ModelFault.BAD_REQUEST)
    if "go to the gate" in said:
        return ScriptedAnswer(text="", calls=(ScriptedToolCall(name="gate", id="call_0"),))
    if "be odd" in said:
        return ScriptedAnswer(text="", reasoning="hm", calls=(ODD_CALLS[n % len(ODD_CALLS)], ODD_CALLS[0]))
    return ScriptedAnswer(text=f"answer {n}")


async def test_odd_calls_and_failed_turns_keep_the_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ids, names and arguments are sent as every server takes them, the same in each later request.

    Between them turns fail, messages are added to a running turn and wait for one, and the gateway restarts.
    """
    failed = 0
    async with open_server(odd_script) as server:
        for start in range(0, TURNS, 25):
            gate = GatedTool()
            environment = _environment(server) | {"PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "1000"}
            async with gateway(
                home=tmp_path / "home", environment=environment, tools=(gate.tool(), count_up)
            ) as parlour:
                for n in range(start, start + 25):
                    answer = await _odd_turn(parlour, gate, n)
                    failed += not answer.startswith("answer")
                await parlour.idle()
    bodies = [RequestBody.of(data) for data in server.bodies]
    breaks = [n for n in range(1, len(bodies)) if not _extends(bodies[n - 1], bodies[n])]
    with capsys.disabled():
        print(f"\nprefix with odd calls: {len(bodies)} bodies, broken at {breaks}; {failed} turns failed")
    assert breaks == []
    assert failed == 10
    assert [violations(body, STRICTEST) for body in server.requests] == [[]] * len(bodies)
    messages = server.requests[-1]["messages"]
    assert sum(each["content"] == "[no answer was sent]" for each in messages) == 9  # the tenth was just asked
    assert sum(each["content"] == "(noted)" for each in messages) == 2
    assert any(each.get("reasoning_content") == "hm" for each in messages)


async def _odd_turn(parlour: InProcessGateway, gate: GatedTool, n: int) -> str:
    """Have one turn and return its answer."""
    if n in (8, 33):
        _, answered = await parlour.channel.say(CHAT, f"go to the gate, turn {n}")
        await gate.reached.wait()
        await parlour.channel.say(CHAT, f"added, turn {n}")
        gate.opened.set()
        await answered
        await parlour.idle()
        return parlour.channel.posts[CHAT][-1].text
    words = "be odd" if n % 5 in (1, 2) else "fail" if n % 5 == 4 else "plain text"
    return await parlour.channel.ask(CHAT, f"{words}, turn {n}")


async def _tool_turn(parlour: InProcessGateway, site: PublicSite, n: int) -> None:
    """One turn of the script of events."""
    ask = parlour.channel.ask
    match n:
        case 2:
            await ask(CHAT, "remind me of the stand-up in an hour")
        case 4 | 33:
            await _fire(parlour)
            await ask(CHAT, f"plain text of turn {n}")
        case 5 | 48:
            (reminder, *_) = reminders_in(await parlour.app.store.jobs.pending_of("remind"))
            command = f"snooze {reminder.id} 10" if n == 5 else f"stop {reminder.id}"
            await parlour.channel.say(CHAT, f"/reminders {command}", kind=InboundKind.BUTTON)
            await ask(CHAT, f"plain text of turn {n}")
        case 7 | 9 | 27:
            await ask(CHAT, f"write to bob, turn {n}")
            await _decide(parlour, "deny" if n == 9 else "allow")
        case 12 | 13 | 22 | 38 | 44:
            await ask(CHAT, f"read {site.url(f'/{n}')} in turn {n}")
        case 16:
            await ask(CHAT, "search for ferries")
        case 19:
            await ask(CHAT, "count, please")
        case 20:
            await ask(CHAT, "go on")
        case 25:  # a page is in the prompt, so it asks
            await ask(CHAT, "snooze that for half an hour")
            await _decide(parlour, "allow")
        case _:
            await ask(CHAT, f"plain text of turn {n}")


async def _fire(parlour: InProcessGateway) -> None:
    """Have the reminder fire now."""
    jobs = parlour.app.store.jobs
    (job, reminder) = next(
        (job, each) for job in await jobs.pending_of("remind") for each in reminders_in([job]) if not each.is_fired
    )
    now = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
    count = len(parlour.channel.posts[CHAT])
    await jobs.advance(job, replace(reminder, at=slot_of(now, reminder.zone)).to_job(job.scope))
    await parlour.channel.until(lambda: any("⏰" in post.text for post in parlour.channel.posts[CHAT][count:]))


async def _decide(parlour: InProcessGateway, word: str) -> None:
    """Press a button of the one question, and return when its call has ended."""
    ((question, _),) = await parlour.app.commands.approvals.pending(_key(parlour))
    await parlour.channel.ask(CHAT, f"/tools {word} {question.id}")
    await parlour.idle()


def _extends(earlier: RequestBody, later: RequestBody) -> bool:
    # The effort may change from turn to turn; it stands behind the prompt.
    same_rest = _EFFORT.sub(b"", later.after) == _EFFORT.sub(b"", earlier.after)
    return later.before.startswith(earlier.before) and same_rest


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
        case 10 | 24 | 37:
            await parlour.channel.ask(CHAT, f"/effort {_EFFORTS[n]}", name=name)
            await parlour.channel.ask(CHAT, f"plain text of turn {n}", name=name)
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
            parlour.app.pool._handler._services.conversations.forget(_key(parlour))  # a cold cache
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
