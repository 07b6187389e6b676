"""/forget: from the next turn on the words are in no prompt, no memory, no summary and no transcript of the scope."""

from __future__ import annotations

from pathlib import Path

from gateway.ports.memory import MarkKind
from tests.e2e.agent.test_consolidation import SummaryModel, at_work, entries, quiet, talk
from tests.fakes.canaries import where
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.staged_changes import erase

SCOPE = "people/pocket%3aann"


def everything(home: Path, scope: str = SCOPE) -> str:
    """Return every file of a scope that a model or a search reads."""
    folder = home / scope
    files = [*folder.glob("sessions/*"), *folder.glob("memory/*")]
    return "\n".join(file.read_text() for file in files if file.is_file())


async def test_what_is_forgotten_is_in_no_prompt_and_no_file() -> None:
    """Said, remembered, summarised and answered: gone from all of it; what was said beside it stays."""
    model = SummaryModel(
        lambda _, memory: {
            "history_entry": "[2026-11-22 10:00] They met. She told of the zeppelin. They left.",
            "memory_update": f"{memory}\n- She owns a Zeppelin",
        }
    )
    async with at_work(model) as parlour:
        await parlour.channel.ask("ann", "/remember the zeppelin is red")
        await parlour.channel.ask("ann", "/remember my dog is Bello")
        await parlour.channel.ask("ann", "my zeppelin leaks")
        await talk(parlour, 4)
        await quiet(parlour)
        await parlour.channel.ask("ann", "about the ZEPPELIN again")
        assert "zeppelin" in everything(parlour.home).lower()
        marks = {MarkKind.DREAM: {"run": '{"base": {"MEMORY.md": "- She owns a Zeppelin"}}'}}
        await parlour.app.store.history.write(SCOPE, marks=marks)
        (parlour.home / SCOPE / "memory" / "USER.conflict-0123abcd.md").write_text("- Flies a zeppelin\n")
        answer = await erase(parlour.channel.ask, "ann", "/forget Zeppelin")
        assert "2 remembered lines, 2 summary" in answer  # the conflict copy counts as one
        assert "zeppelin" not in answer.lower()
        assert not await parlour.app.store.history.marks(SCOPE, MarkKind.DREAM)
        await parlour.channel.ask("ann", "and what now?")
        prompt = str(model.prompts[-1]).lower()
        assert "zeppelin" not in prompt
        assert "bello" in prompt
        await quiet(parlour)
        left = everything(parlour.home).lower()
        assert left.count("zeppelin") == left.count("/forget zeppelin")  # only the record of the asking
        [entry] = entries(parlour.home)
        assert entry.content == "[2026-11-22 10:00] They met. They left."


async def test_a_consolidation_under_way_does_not_bring_it_back() -> None:
    """Forgotten while the model reads it: its answer does not count, and it is asked anew without the words."""
    model = SummaryModel(
        lambda n, memory: (
            {"history_entry": f"[2026-11-22 10:00] {n}", "memory_update": f"{memory}\n- the zeppelin {n}"}
            if n == 1
            else {"history_entry": f"[2026-11-22 10:00] {n}", "memory_update": f"{memory}\n- fact {n}"}
        )
    )
    model.go_on.clear()
    async with at_work(model) as parlour:
        await parlour.channel.ask("ann", "my zeppelin leaks")
        await talk(parlour, 4)
        await model.thinking.wait()
        await erase(parlour.channel.ask, "ann", "/forget zeppelin")
        model.go_on.set()
        while not model.asked:
            await parlour.idle()
        await parlour.channel.ask("ann", "and now")
        assert "zeppelin" not in str(model.prompts[-1])
        memory = parlour.home / SCOPE / "memory" / "MEMORY.md"
        assert not memory.exists() or "zeppelin" not in memory.read_text()


async def test_no_search_finds_it_any_more() -> None:
    """The index lets go of it with the answer, in its file, too; what else was said is found as before."""
    async with at_work(SummaryModel()) as parlour:
        ask = parlour.channel.ask
        await ask("ann", "my zeppelin is silver")
        await ask("ann", "my bicycle is green")
        assert "silver" in await ask("ann", "/search zeppelin")
        await erase(ask, "ann", "/forget zeppelin")
        assert "silver" not in await ask("ann", "/search zeppelin silver")
        assert "green" in await ask("ann", "/search bicycle")
        await parlour.idle()
        index = where(parlour.kill(parlour.home.parent / "killed"), "zeppelin is silver")
        assert not any("index.db" in name for name in index)


async def test_words_that_are_nowhere_change_nothing() -> None:
    """And too few letters are refused with an example."""
    async with gateway() as parlour:
        assert "at least 3 characters" in await parlour.channel.ask("ann", "/forget ab")
        assert "found nothing" in await parlour.channel.ask("ann", "/forget unicorn")
