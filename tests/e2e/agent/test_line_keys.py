"""Keys of remembered lines: found by the class of a thing and by other spellings, never shown, erased with the line."""

from __future__ import annotations

from tests.e2e.agent.test_consolidation import SummaryModel, at_work, entries, quiet, talk
from tests.e2e.agent.test_forget import everything
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
        memory = (parlour.home / SCOPE / "memory" / "MEMORY.md").read_text()
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
