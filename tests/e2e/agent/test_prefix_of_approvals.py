"""The prompt's prefix while memory is argued with: a yes rides behind it, a deletion breaks it where it stood."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from agent.base.transcript_lines import utc_now
from agent.memory.editing.staged_changes import StagedChange
from agent.memory.editing.text_operations import AddLines, RemoveLines
from tests.e2e.agent.test_consolidation import SCOPE, SummaryModel, at_work, quiet, talk
from tests.e2e.agent.test_deletions import delete, transcripts, until
from tests.fakes.documents import edit_by_hand
from tests.fakes.inprocess_gateway import InProcessGateway


def breaks(prompts: Sequence[Sequence[Any]]) -> list[int]:
    """Return which prompts do not begin with the one before."""
    return [n for n, (before, after) in enumerate(pairwise(prompts), 1) if list(after[: len(before)]) != list(before)]


async def delete_message(parlour: InProcessGateway, number: str, words: str) -> None:
    """Delete a message and return when it is out of the transcript."""
    await delete(parlour, number)
    await until(lambda: words not in transcripts(parlour.home))
    await parlour.idle()


async def test_a_yes_and_an_edit_by_hand_ride_behind_the_prefix() -> None:
    """Approved in the chat and saved in an editor meanwhile: both are deltas, and nothing before them changes."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await talk(parlour, 1)
        await parlour.channel.ask("ann", "/remember the office is in Bonn")
        await talk(parlour, 1)
        folder = parlour.home / SCOPE / "memory"
        operations = (RemoveLines("- the office is in Bonn"), AddLines("- the office is in Köln"))
        change = StagedChange(name="dprefix", why="many", at=utc_now(), operations=operations)
        await parlour.app.commands.staging.stage(SCOPE, change)
        assert (await parlour.channel.ask("ann", "/memory approve dprefix")).startswith("Approved.")
        await talk(parlour, 1)
        await parlour.settle_documents()
        edit_by_hand(folder / "MEMORY.md", (folder / "MEMORY.md").read_text() + "- by hand\n")
        await talk(parlour, 1)
        assert breaks(model.prompts) == []
        assert "the office is in Köln" in str(model.prompts[-1])
        assert "by hand" in str(model.prompts[-1])


async def test_a_deletion_breaks_the_prefix_once_and_where_it_stood() -> None:
    """What is in the window goes with one break; what had left it, and is in no prompt, breaks nothing."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await parlour.channel.ask("ann", "the oldest of all that is said in here today", number="1")
        await talk(parlour, 4)
        await quiet(parlour)
        await parlour.channel.ask("ann", "the newest of all that is said in here today", number="2")
        window_moved = breaks(model.prompts)
        assert len(window_moved) == 1
        assert "the oldest" not in str(model.prompts[-1])
        await delete_message(parlour, "1", "the oldest of")
        await talk(parlour, 1)
        assert breaks(model.prompts) == window_moved
        await delete_message(parlour, "2", "the newest of")
        await talk(parlour, 1)
        assert breaks(model.prompts) == [*window_moved, len(model.prompts) - 1]
        assert "the newest of" not in str(model.prompts[-1])
