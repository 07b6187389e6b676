"""A chat's model, voice and tools over the wire: what is asked for, and a prefix that only a change of these breaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.e2e.test_prompt_prefix import RequestBody
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, ScriptedToolCall, open_server

CHAT = "main"


def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Answer differently each time; ask for a tool where the last message says which."""
    last = body["messages"][-1]
    said = str(last["content"])
    if last["role"] == "user" and "hijacked" in said:
        return ScriptedAnswer(
            text="", calls=(ScriptedToolCall(name="remember", arguments='{"fact": "Ann is mine"}', id=f"call_{n}"),)
        )
    return ScriptedAnswer(text=f"answer {n}")


def environment(server: FakeOpenAI, *, chats: Mapping[str, Any] | None = None, **more: str) -> dict[str, str]:
    """Return the settings of an installation with three models at one server."""
    address = {"api_base": server.base, "api_key": "test-key"}
    models = {
        "fast": {"model": "openai/small", **address},
        "careful": {"model": "openai/large", **address, "context_window": 20_000},
    }
    return {
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": server.base,
        "PARLOUR_LLM__API_KEY": "test-key",
        "PARLOUR_LLM__MODELS": json.dumps(models),
        "PARLOUR_CHATS": json.dumps(chats or {}),
        "PARLOUR_TIMEZONE": "Europe/Berlin",
        **more,
    }


def of_chat(server: FakeOpenAI) -> list[Mapping[str, Any]]:
    """Return the bodies of the answers, as they were sent."""
    return [json.loads(data) for data in server.bodies if b"consolidation agent" not in data]


def breaks(server: FakeOpenAI) -> list[int]:
    """Return which bodies do not begin with the one before, byte for byte, or ask another model or other tools."""
    bodies = [RequestBody.of(data) for data in server.bodies if b"consolidation agent" not in data]
    pairs = enumerate(pairwise(bodies), 1)
    return [n for n, (a, b) in pairs if not b.before.startswith(a.before) or a.after != b.after]


def snapshots(home: Path) -> int:
    """Count how many snapshots the chat's transcript holds."""
    (path,) = home.glob("people/*/sessions/*main.jsonl")
    return sum(json.loads(line).get("kind") == "snapshot" for line in path.read_bytes().splitlines())


async def talk(parlour: InProcessGateway, *said: str) -> list[str]:
    """Say things one after the other; return what came back."""
    answers = [await parlour.channel.ask(CHAT, each) for each in said]
    await parlour.idle()
    return answers


async def test_only_a_change_of_settings_breaks_the_prefix(tmp_path: Path) -> None:
    """Restarts with the same settings change no byte; another model, voice or set of tools breaks it once each."""
    home, here = tmp_path / "home", "pocket:main"
    decided: list[dict[str, Any]] = [
        {here: {"soul": "You are Ada."}},
        {here: {"soul": "You are Ada."}},
        {here: {"soul": "You are Ada."}, "pocket:other": {"soul": "You are Bob.", "model": "fast"}},
        {here: {"soul": "You are Ada, and brief."}},
        {here: {"soul": "You are Ada, and brief.", "tools": {"deny": ["remember"]}}},
        {here: {"soul": "You are Ada, and brief.", "tools": {"deny": ["remember"]}, "model": "fast"}},
        {here: {"soul": "You are Ada, and brief.", "tools": {"deny": ["remember"]}, "model": "fast", "language": "de"}},
        {},
    ]
    async with open_server(script) as server:
        for chats in decided:
            async with gateway(home=home, environment=environment(server, chats=chats)) as parlour:
                await talk(parlour, "one", "two")
        async with gateway(home=home, environment=environment(server, PARLOUR_LLM__MODEL="openai/newer")) as parlour:
            await talk(parlour, "three")
    changed = [6, 8, 10, 14, 16]  # another voice, fewer tools, another model, all of it back, another usual model
    assert breaks(server) == changed
    assert snapshots(home) == 1 + len(changed)
    bodies = of_chat(server)
    assert [body["model"] for body in bodies[8:]] == ["test"] * 2 + ["small"] * 4 + ["test"] * 2 + ["newer"]
    assert bodies[0]["messages"][0]["content"].startswith("You are Ada.\n")
    assert bodies[6]["messages"][0]["content"].startswith("You are Ada, and brief.\n")
    assert not bodies[14]["messages"][0]["content"].startswith("You are Ada")
    offered = [sorted(each["function"]["name"] for each in body["tools"]) for body in bodies]
    assert all(("remember" in names) is not (8 <= n < 14) for n, names in enumerate(offered))


async def test_a_model_is_chosen_and_stays_chosen(tmp_path: Path) -> None:
    """By /model NAME, over a restart, until /model default; usage rows name the model that was really asked."""
    home = tmp_path / "home"
    async with open_server(script) as server:
        async with gateway(home=home, environment=environment(server)) as parlour:
            shown, _, taken, *_ = await talk(parlour, "/model", "hello", "/model Careful", "hello again", "and again")
            assert "This chat uses `openai/test`, the default." in shown
            assert "- `fast`" in shown
            assert "- `careful`" in shown
            assert taken == "This chat uses `careful` (openai/large) from the next message on."
        async with gateway(home=home, environment=environment(server)) as parlour:
            _, shown, unknown, near, back, _ = await talk(
                parlour, "still there?", "/model", "/model gpt-9 `x`", "/model carefull", "/model default", "bye"
            )
            assert "This chat uses `careful` (openai/large), chosen for this chat." in shown
            assert unknown == "Unknown model: gpt-9 x. Available models: `fast`, `careful`."
            assert near == "Unknown model: carefull. Did you mean careful?"
            assert back == "This chat uses `openai/test` again from the next message on."
            rows = await parlour.app.store.usage.totals(since=datetime(2000, 1, 1, tzinfo=UTC), chat="pocket:main")
        asked = [body["model"] for body in of_chat(server)]
        assert asked == ["test", "large", "large", "large", "test"]
        assert {row["model"]: row["calls"] for row in rows} == {"openai/test": 2, "openai/large": 3}
        assert breaks(server) == [1, 4]
        assert snapshots(home) == 3


async def test_a_model_that_is_gone_is_told_once(tmp_path: Path) -> None:
    """Who chose it hears so below the next answer, and the usual model answers from then on."""
    home = tmp_path / "home"
    async with open_server(script) as server:
        async with gateway(home=home, environment=environment(server)) as parlour:
            await talk(parlour, "/model fast", "hello")
        fewer = {"PARLOUR_LLM__MODELS": json.dumps({"careful": {"model": "openai/large"}})}
        async with gateway(home=home, environment=environment(server) | fewer) as parlour:
            first, second, shown = await talk(parlour, "hello", "hello", "/model")
    told = "(`fast`, the model chosen for this chat, is not available any more. `openai/test` answers instead.)"
    assert first == f"answer 2\n\n{told}"
    assert second == "answer 3"
    assert "default" in shown
    bodies = of_chat(server)
    assert [body["model"] for body in bodies] == ["small", "test", "test"]
    assert told not in json.dumps(bodies[-1])  # people read it, the model never does


async def test_a_tool_that_is_off_is_not_run(tmp_path: Path) -> None:
    """A model that asks for it all the same, as one does whose prompt was hijacked, is told that there is none."""
    denied = {"pocket:main": {"tools": {"deny": ["remember"]}}}
    async with open_server(script) as server:
        async with gateway(home=tmp_path / "home", environment=environment(server, chats=denied)) as parlour:
            await talk(parlour, "you are hijacked")
            elsewhere = await parlour.channel.ask("other", "you are hijacked")
            await parlour.idle()
            assert elsewhere
        off, on = of_chat(server)[1], of_chat(server)[3]
    memories = [path.read_text("utf-8") for path in (tmp_path / "home").rglob("MEMORY.md")]
    assert "there is no tool called 'remember'" in off["messages"][-1]["content"]
    assert "there is no tool" not in on["messages"][-1]["content"]
    assert "remember" not in [each["function"]["name"] for each in off["tools"]]
    assert sum("Ann is mine" in text for text in memories) == 1
