"""Finding what was said: by the model's tools, by /search, by the operator, and by itself before the model is asked."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ChatRequest
from gateway.i18n import translate
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

SCOPE = "people/pocket%3aann"
AUTO = {"PARLOUR_MEMORY__AUTO_RECALL": "true"}
DENTIST = "my dentist is Doctor Molar in Elm Street"


@pytest.fixture
def patient_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let automatic recall wait half a minute instead of half a second: a busy machine may need it."""
    monkeypatch.setattr("agent.turns.prompt_assembly._SECONDS", 30.0)


async def have_conversation(parlour: InProcessGateway) -> None:
    """Have a conversation that is over."""
    await parlour.channel.ask("ann", DENTIST)
    await parlour.channel.ask("ann", "and I never eat fish")
    await parlour.channel.ask("ann", "/new")
    await parlour.idle()


def lines(parlour: InProcessGateway) -> list[dict[str, Any]]:
    """Return every line of Ann's transcripts."""
    files = sorted((parlour.home / SCOPE / "sessions").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


async def test_a_model_finds_what_was_said_in_another_conversation_and_reads_on(tmp_path: Path) -> None:
    """memory_search names who, when and where; memory_get reads what stood around it."""
    model = HeldScriptModel(
        "noted", "noted", calls(("memory_search", '{"query": "who is my dentist?"}')), in_turns=True
    )
    async with gateway(model=model, home=tmp_path / "home") as parlour:
        await have_conversation(parlour)
        await parlour.channel.ask("ann", "who was it again?")
        found = results(last_prompt(model))[-1]
        place = re.search(r"a = (sessions/\S+)\n(?:.*\n)*?a:1 \d{4}-\d\d-\d\d \d\d:\d\d Ann: (.*)", found)
        assert place is not None
        assert place[2].startswith(DENTIST)
        arguments = json.dumps({"source": place[1], "line": 1})
    reader = HeldScriptModel(calls(("memory_get", arguments)))
    async with gateway(model=reader, home=tmp_path / "home") as parlour:
        await parlour.channel.ask("ann", "read on")
        assert "and I never eat fish" in results(reader.asked[-1])[-1]


async def test_search_in_a_chat_is_for_whoever_asks() -> None:
    """The best places with when and by whom; nothing and no words are said plainly; another chat finds nothing."""
    async with gateway(model=HeldScriptModel()) as parlour:
        await have_conversation(parlour)
        answer = await parlour.channel.ask("ann", "/search dentist")
        assert re.search(r"- \d{4}-\d\d-\d\d \d\d:\d\d, Ann: " + DENTIST, answer)
        assert (
            await parlour.channel.ask("ann", "/search zeppelin") == "No matching messages or memories were found here."
        )
        assert "/search the address" in await parlour.channel.ask("ann", "/search")
        assert "Molar" not in await parlour.channel.ask("bob", "/search dentist", sender="bob", name="Bob")


def last_prompt(model: HeldScriptModel) -> ChatRequest:
    """Return the last request of a turn; background jobs ask the same model."""
    return [request for request in model.asked if request.purpose == "answer"][-1]


@pytest.mark.usefixtures("patient_recall")
async def test_what_may_help_is_recalled_once_and_kept_as_it_was_sent() -> None:
    """It stands before the words it was found for, in later prompts too, and is in no search and no export."""
    model = HeldScriptModel()
    async with gateway(model=model, environment=AUTO) as parlour:
        await have_conversation(parlour)
        await parlour.channel.ask("ann", "when shall I call my dentist?")
        asked = str(last_prompt(model).messages[-1]["content"])
        assert asked.startswith("[recalled]")
        assert DENTIST in asked
        assert asked.endswith("when shall I call my dentist?")
        await parlour.channel.ask("ann", "ok thanks")
        again = [str(message["content"]) for message in last_prompt(model).messages]
        assert asked in again
        assert not again[-1].startswith("[recalled]")
        await parlour.idle()
        [line] = [line for line in lines(parlour) if "recall" in line]
        assert line["content"] == "when shall I call my dentist?"
        hits = await parlour.app.recall.search(SCOPE, "recalled said or noted here earlier")
        assert not any("[recalled]" in hit.text for hit in hits)


@pytest.mark.usefixtures("patient_recall")
async def test_what_stands_in_the_prompt_is_not_recalled_again() -> None:
    """The window's own messages and MEMORY.md are before the model's eyes anyhow."""
    model = HeldScriptModel()
    async with gateway(model=model, environment=AUTO) as parlour:
        await parlour.channel.ask("ann", f"/remember {DENTIST}")
        await parlour.channel.ask("ann", f"as I said, {DENTIST}")
        await parlour.channel.ask("ann", "when shall I call my dentist?")
        assert not str(last_prompt(model).messages[-1]["content"]).startswith("[recalled]")


async def test_the_operator_searches_and_makes_the_index_anew() -> None:
    """`parlour search` and `parlour mirror rebuild` ask the gateway that runs."""
    async with gateway(model=HeldScriptModel()) as parlour:
        await have_conversation(parlour)
        asked = parlour.app.operations
        found = [line async for line in asked["memory search"]({"text": "dentist", "scope": SCOPE})]
        assert found[0]["text"].startswith(DENTIST)
        assert found[0]["who"] == "Ann"
        (parlour.home / SCOPE / "index.db").write_bytes(b"broken")
        made = [line async for line in asked["mirror rebuild"]({"scope": SCOPE})]
        assert {line["name"]: line["count"] for line in made}["index.db"] >= 4
        found = [line async for line in asked["memory search"]({"text": "dentist", "scope": SCOPE})]
        assert found[0]["text"].startswith(DENTIST)


async def test_a_search_while_the_index_is_built_says_so(tmp_path: Path) -> None:
    """The command and the tool answer that there may be more in a minute; neither fails, and nobody is alerted."""
    model = HeldScriptModel("noted", "noted", calls(("memory_search", '{"query": "my dentist"}')), in_turns=True)
    async with gateway(model=model, home=tmp_path / "home") as parlour:
        await have_conversation(parlour)
        parlour.app.recall._options = replace(parlour.app.recall._options, patience=0.0)
        assert translate("search.building") in await parlour.channel.ask("ann", "/search dentist")
        await parlour.app.recall._memory.wait_idle(parlour.home / SCOPE / "index.db")
        assert DENTIST in await parlour.channel.ask("ann", "/search dentist")
        await parlour.app.recall.close_index(SCOPE)
        (parlour.home / SCOPE / "index.db").unlink()
        await parlour.channel.ask("ann", "who was it?")
        assert "The index is being built" in results(last_prompt(model))[-1]
