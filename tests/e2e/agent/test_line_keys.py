"""Keys of remembered lines: found by the class of a thing and by other spellings, never shown, erased with the line."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agent.llm.scripted_model import ScriptEntry
from agent.memory.editing.text_operations import LONGEST_KEYS
from agent.memory.storage.scope_documents import line_fingerprint
from gateway.ports.memory import MarkKind
from tests.e2e.agent.test_consolidation import SummaryModel, at_work, entries, quiet, talk
from tests.e2e.agent.test_forget import everything
from tests.e2e.agent.test_memory_edit import edit, obedient, remember
from tests.e2e.agent.test_sharing import answer_to_unshare
from tests.fakes.documents import stored_text
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.staged_changes import erase

SCOPE = "people/pocket%3aann"
PHO, GODMOTHER = "- Orders pho on Fridays", "- Katherine Lindqvist is Emil's godmother"
OPERATIONS = [
    {"op": "add", "text": PHO, "keys": "food, dish, Vietnamese", "source": 0},
    {"op": "add", "text": GODMOTHER, "keys": "Catherine, Kathy, family"},
    {"op": "add", "text": "- Likes rain", "keys": ["weather"]},
]


async def test_line_is_found_by_its_keys_until_it_is_forgotten() -> None:
    """The keys stand beside the history entry, in no line of MEMORY.md, prompt or hit; /forget erases them."""
    answers = iter([OPERATIONS])
    model = SummaryModel(
        lambda _, memory: {"history_entry": "[2026-11-22 10:00] They talked.", "operations": next(answers, [])}
    )
    async with at_work(model) as parlour:
        await talk(parlour, 7)
        await quiet(parlour)
        memory = stored_text(parlour.home, SCOPE)
        assert PHO in memory
        assert GODMOTHER in memory
        assert "- Likes rain" in memory
        assert "Vietnamese" not in memory
        assert sorted(key for entry in entries(parlour.home) for key in entry.keys.values()) == [
            "Catherine, Kathy, family",
            "food, dish, Vietnamese",
        ]
        for query, line in (("what is my favourite food?", PHO), ("who is Kathy?", GODMOTHER)):
            first = (await parlour.app.recall.search(SCOPE, query))[0]
            assert (first.source, first.text) == ("memory/MEMORY.md", line)
        await parlour.channel.ask("ann", "which dish is it?")
        assert "Vietnamese" not in str(model.prompts[-1])

        await erase(parlour.channel.ask, "ann", "/forget pho")
        await quiet(parlour)
        assert "Vietnamese" not in everything(parlour.home)
        assert "Kathy" in everything(parlour.home)
        found = await parlour.app.recall.search(SCOPE, "Vietnamese food")
        assert not any(hit.source == "memory/MEMORY.md" and "pho" in hit.text for hit in found)
        index = (parlour.home / SCOPE / "index.db").read_bytes()
        assert b"Vietnames" not in index
        assert b"vietnames" not in index


async def keys_of(parlour: InProcessGateway, scope: str) -> Mapping[str, str]:
    """Return the keys of lines that no summary added."""
    return await parlour.app.store.history.marks(scope, MarkKind.KEYS)


async def test_keys_of_an_edit_in_conversation_find_the_line_until_it_is_gone() -> None:
    """memory_edit has no summary to store them with: they are beside the document, and leave with their line."""
    model = obedient(
        edit({"op": "add", "text": "Orders pho on Fridays", "keys": "food,  dish, Vietnamese"}),
        ScriptEntry(text="ok"),
        edit({"op": "replace", "old": "Likes rain", "text": "Likes snow", "keys": "weather"}),
        ScriptEntry(text="ok"),
        edit({"op": "remove", "old": "Likes snow"}),
    )
    async with gateway(model=model) as parlour:
        await remember(parlour, "Likes rain", "Works in Bern")
        await parlour.channel.ask("ann", "remember what I order")
        first = (await parlour.app.recall.search(SCOPE, "what is my favourite food?"))[0]
        assert (first.source, first.text) == ("memory/MEMORY.md", PHO)
        await parlour.channel.ask("ann", "snow rather than rain")
        assert sorted((await keys_of(parlour, SCOPE)).values()) == ["food, dish, Vietnamese", "weather"]
        await parlour.channel.ask("ann", "forget the snow")
        assert list((await keys_of(parlour, SCOPE)).values()) == ["food, dish, Vietnamese"]
        await erase(parlour.channel.ask, "ann", "/forget Vietnamese")
        assert PHO in stored_text(parlour.home, SCOPE)
        assert await keys_of(parlour, SCOPE) == {}
        found = await parlour.app.recall.search(SCOPE, "which Vietnamese dish")
        assert not any(hit.source == "memory/MEMORY.md" and "pho" in hit.text for hit in found)


async def test_keys_of_a_fact_that_is_remembered_go_with_it_when_it_is_shared_and_with_its_erasure() -> None:
    """`remember` takes keys, cut at their limit; `/share` of the same fact takes them along, `/unshare` erases them."""
    fact = "Nuts make Emil ill"
    call = ("remember", json.dumps({"fact": fact, "keys": "dinner,\nallergy " + "x" * LONGEST_KEYS}))
    async with gateway(model=obedient(ScriptEntry(calls=(call,)))) as parlour:
        await parlour.channel.ask("ann", "keep in mind what Emil cannot eat")
        await parlour.channel.ask("ann", "thanks")
        [keys] = (await keys_of(parlour, SCOPE)).values()
        assert keys.startswith("dinner, allergy xx")
        assert len(keys) == LONGEST_KEYS
        assert stored_text(parlour.home, SCOPE) == f"- {fact}\n"

        await parlour.channel.ask("ann", f"/share {fact}")
        await parlour.channel.ask("bob", "hello")
        assert await keys_of(parlour, "shared") == {line_fingerprint(f"- {fact}"): keys}
        found = await parlour.app.recall.search("people/pocket%3abob", "what do we cook for dinner?")
        assert [hit.text for hit in found] == [f"- {fact}"]
        await parlour.channel.ask("ann", "/unshare nuts")
        await parlour.channel.ask("ann", await answer_to_unshare(parlour))
        await quiet(parlour)
        assert await keys_of(parlour, "shared") == {}
        assert await parlour.app.recall.search("people/pocket%3abob", "what do we cook for dinner?") == []
        assert len(await keys_of(parlour, SCOPE)) == 1
