"""A model whose window nobody knows, through the whole gateway: it refuses what is too long, and all are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from agent.base.transcript_lines import kind_of
from agent.tools.tool import Tool, ToolContext, ToolKind, tool
from gateway.events import SessionKey
from tests.fakes.histories import stored_entries
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ModelFault, ScriptedAnswer, ScriptedToolCall, open_server

WINDOW = 8_192  # what the server's refusal names
CHAT = "ann"
MEMORY = Path("people/pocket%3aann/memory")


class SmallWindowProvider:
    """A provider with a window of 8,192 tokens, which it counts in its own way: three letters are one."""

    def __init__(self) -> None:
        self.refused = 0
        self.answered: list[tuple[str, int]] = []  # (what for, tokens)
        self.broken: list[Mapping[str, Any]] = []  # prompts that no provider would take

    def __call__(self, body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Refuse or answer."""
        prompt = json.dumps([body["messages"], body.get("tools", [])], ensure_ascii=False)
        tokens = len(prompt) // 3
        if not has_paired_calls(body["messages"]):
            self.broken.append(body)
        if tokens > WINDOW - 200:
            self.refused += 1
            return ScriptedAnswer(fault=ModelFault.OVERFLOW)
        system = str(body["messages"][0]["content"])
        what = "summary" if "consolidation agent" in system else "flush" if "extraction agent" in system else "answer"
        self.answered.append((what, tokens))
        return self._said(what, body["messages"], n, (tokens, 20, 0))

    def _said(
        self, what: str, messages: list[Mapping[str, Any]], n: int, tokens: tuple[int, int, int]
    ) -> ScriptedAnswer:
        last = messages[-1]
        if what == "flush":
            return ScriptedAnswer(text=f"- flushed fact {n}", tokens=tokens)
        if what == "summary":
            memory = str(last["content"]).partition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
            saved = {"history_entry": f"[2026-11-22 10:00] Part {n}.", "memory_update": memory or "- nothing new"}
            return ScriptedAnswer(
                calls=(ScriptedToolCall(name="save_memory", arguments=json.dumps(saved), id=f"c{n}"),), tokens=tokens
            )
        if last["role"] == "user" and "look it up" in str(last["content"]):
            calls = tuple(
                ScriptedToolCall(name="encyclopedia", arguments=f'{{"volume": {k}}}', id=f"c{n}.{k}") for k in range(3)
            )
            return ScriptedAnswer(calls=calls, tokens=tokens)
        return ScriptedAnswer(text=f"answer {n}", tokens=tokens)


def has_paired_calls(messages: list[Mapping[str, Any]]) -> bool:
    """Say whether every call has its result, and every result its call, right behind it."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return False
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return False
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return not open_calls


def encyclopedia() -> Tool:
    """Return a tool whose answers are as long as they may be."""

    @tool("Look something up.", kind=ToolKind.LOOK)
    async def encyclopedia(context: ToolContext, volume: int) -> str:
        return f"volume {volume} " * 20_000

    return encyclopedia


def environment(server: FakeOpenAI, **more: str) -> dict[str, str]:
    """Return the settings: consolidation by tokens alone."""
    return {
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": server.base,
        "PARLOUR_LLM__API_KEY": "test-key",
        "PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "10000",
        "PARLOUR_AGENT__MERGE": "off",  # or a long text waits two seconds for its other half
        **more,
    }


async def wait_jobs_done(parlour: InProcessGateway) -> None:
    """Return when no job is left and every record is in its file."""
    while True:
        pending = await parlour.app.store.jobs.pending_in("people/pocket%3aann")
        if all(job.kind == "dream" for job in pending):  # which is due in two hours
            return await parlour.idle()
        await asyncio.sleep(0.01)


def transcript(home: Path) -> list[Mapping[str, Any]]:
    """Return the chat's lines as they stand."""
    path = home / "people/pocket%3aann/sessions/pocket%3aann.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def test_a_narrow_window_is_learned_and_nobody_notices(tmp_path: Path) -> None:
    """One refusal or two; then prompts fit, summaries and flushes come, and a restart has learned nothing away."""
    narrow, home = SmallWindowProvider(), tmp_path / "home"
    async with open_server(narrow) as server:
        async with gateway(home=home, tools=[encyclopedia()], environment=environment(server)) as parlour:
            for n in range(24):
                said = await parlour.channel.ask(CHAT, f"thing {n}: " + "words and more words " * 40)
                assert said.startswith("answer ")
            await wait_jobs_done(parlour)
            assert 1 <= narrow.refused <= 3
            [fact] = parlour.app.models.catalog.usual.facts.facts()
            assert (fact.name, fact.value.partition(" ")[0]) == ("window", str(WINDOW))
            assert not (home / "windows.json").exists()
            assert (await parlour.channel.ask(CHAT, "giant " * 10_000)).startswith("answer ")
            assert (await parlour.channel.ask(CHAT, "please look it up")).startswith("answer ")
            await wait_jobs_done(parlour)
            before = server.requests[[what for what, _ in narrow.answered].index("answer")]["messages"]
            last = last_answer_request(server)
            story = await parlour.app.store.usage.totals(since=parlour.app.commands.queue.now().replace(year=2000))
        refused = narrow.refused
        async with gateway(home=home, tools=[encyclopedia()], environment=environment(server)) as parlour:
            assert (await parlour.channel.ask(CHAT, "after the restart")).startswith("answer ")
            await wait_jobs_done(parlour)
            again = last_answer_request(server)
    assert narrow.refused == refused
    assert narrow.broken == []
    assert before[1]["content"].endswith("words and more words ")
    lines = transcript(home)
    assert any(len(str(line.get("content"))) == 6 * 10_000 for line in lines if line.get("role") == "user")
    assert {"trim", "mark", "pointer"} & {kind_of(line) for line in lines} >= {"trim", "pointer"}
    is_moved = any(kind_of(line) in ("snapshot", "trim", "pointer") for line in lines[-6:])
    assert is_moved or again[: len(last)] == last
    entries = stored_entries(home, "people/pocket%3aann")
    assert [each.start for each in entries] == [0, *(each.end for each in entries[:-1])]
    [day] = (home / MEMORY).glob("20??-??-??.md")
    assert day.read_text().count("## Flush at") == [what for what, _ in narrow.answered].count("flush")
    # Every call that was answered is in the sums; what was refused took nothing.
    assert sum(row["tokens_in"] for row in story) in accumulate(tokens for _, tokens in narrow.answered)


def is_answer(body: Mapping[str, Any]) -> bool:
    """Say whether a request is a turn's own."""
    return "agent" not in str(body["messages"][0]["content"]).partition(".")[0]


def last_answer_request(server: FakeOpenAI) -> Any:
    """Return the messages of the last request of a turn; requests of jobs come beside it."""
    return [body["messages"] for body in server.requests if is_answer(body)][-1]


async def test_a_turn_that_overflows_in_its_middle_goes_on_after_a_kill(tmp_path: Path) -> None:
    """What was cut is a step: the turn that a crash interrupted asks with the same bytes, and no tool runs twice."""
    narrow, home = SmallWindowProvider(), tmp_path / "home"
    gate, reached = asyncio.Event(), asyncio.Event()

    async with open_server(narrow) as server:
        settings = environment(server, PARLOUR_LLM__CONTEXT_WINDOW=str(WINDOW))
        waits = wait_tool(reached, gate)
        async with gateway(home=home, tools=[encyclopedia(), waits], environment=settings) as parlour:
            await parlour.channel.ask(CHAT, "please look it up")
            server.script = then_wait(narrow)
            await parlour.channel.say(CHAT, "please look it up and wait", number="1")
            await reached.wait()
            dead = parlour.kill(tmp_path / "dead")
            held = last_answer_request(server)
            gate.set()
            await parlour.idle()
        gate.set()
        async with gateway(
            home=dead, tools=[encyclopedia(), wait_tool(reached, gate)], environment=settings
        ) as parlour:
            await parlour.idle()
            [post] = parlour.channel.posts[CHAT]
            assert post.text.startswith("answer ")
            resumed = last_answer_request(server)
    assert resumed[: len(held)] == held
    assert narrow.refused == 0
    assert narrow.broken == []


def wait_tool(reached: asyncio.Event, gate: asyncio.Event) -> Tool:
    """Return a tool that waits at the gate."""

    @tool("Wait.", kind=ToolKind.LOOK, name="wait")
    async def wait(context: ToolContext) -> str:
        reached.set()
        await gate.wait()
        return "waited"

    return wait


def then_wait(narrow: SmallWindowProvider) -> Any:
    """Return a script that, when the encyclopedia has spoken, waits once."""

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        answer = narrow(body, n)
        called = [call["function"]["name"] for m in body["messages"] for call in m.get("tool_calls") or ()]
        if answer.fault is None and body["messages"][-1]["role"] == "tool" and "wait" not in called:
            return ScriptedAnswer(calls=(ScriptedToolCall(name="wait", id=f"w{n}"),), tokens=answer.tokens)
        return answer

    return script


async def test_a_model_that_refuses_everything_ends_in_a_line(tmp_path: Path) -> None:
    """Bounded: a few tries, one line that says what to do, and the next message is answered as ever."""
    narrow = SmallWindowProvider()
    refuses = {"all": True}

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        return ScriptedAnswer(fault=ModelFault.OVERFLOW) if refuses["all"] else narrow(body, n)

    async with (
        open_server(script) as server,
        gateway(home=tmp_path / "home", environment=environment(server)) as parlour,
    ):
        assert "/new starts a new one" in await parlour.channel.ask(CHAT, "long " * 8_000)
        assert 1 < len(server.bodies) <= 6
        refuses["all"] = False
        assert (await parlour.channel.ask(CHAT, "and now")).startswith("answer ")
    assert SessionKey("pocket", CHAT)
