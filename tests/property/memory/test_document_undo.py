"""Any sequence of changes and undos of rows gives the texts, and refuses the undos, that it does on texts alone."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.memory.editing.memory_versions import MemoryService, UndoResult
from agent.memory.editing.three_way_merge import revert_change, three_way
from agent.memory.storage.scope_documents import change_document
from tests.fakes.documents import open_documents
from tests.fakes.histories import open_history

SCOPE, NAME = "people/telegram%3a42", "MEMORY.md"
LINES = st.sampled_from(
    ["", "# A", "- tea", "- dog", "  - nested", "- cat", "text", "```", "| a | b |", "x\r", "y\u2028z"]
)
TEXTS = st.lists(LINES, max_size=7).map("\n".join)


@given(st.data())
def test_changes_merges_and_undos_are_those_of_texts(data: st.DataObject) -> None:
    """A text is replaced, merged with what a stale copy became, or a change is undone; each line keeps a source."""
    asyncio.run(_play(data))


async def _play(data: st.DataObject) -> None:
    documents, changes = open_documents()
    nothing: Any = None  # an undo asks neither journal nor sessions
    service = MemoryService(open_history(), documents, nothing, nothing)
    now, past = "", list[tuple[str, str, str]]()  # id, text before and after each change
    for _ in range(data.draw(st.integers(1, 7))):
        kind = data.draw(st.sampled_from(["replace", "merge", "undo"]))
        before = now
        if kind == "undo" and past:
            id_, old, new = data.draw(st.sampled_from(past))
            expected = revert_change(old, new, now)
            done = await service.undo(SCOPE, id_, by="ann")
            assert (done is UndoResult.DONE) == (expected is not None)
            now = before if expected is None else expected
        else:
            base = data.draw(st.sampled_from([now, *(after for *_, after in past)])) if kind == "merge" else now
            text = data.draw(TEXTS)

            def make(current: str, base: str = base, text: str = text) -> str:
                return three_way(base, text, current).text

            now = make(now)
            assert await change_document(documents, SCOPE, NAME, make, why="test", by="ann") == (before, now)
        assert changes.text(SCOPE) == now
        newest = await changes.log(SCOPE, limit=1)
        if now != before:
            past.append((newest[0].id, before, now))
        assert len(await changes.log(SCOPE, limit=99)) == len(past)
    assert [dict(each.texts) for each in await changes.states(SCOPE)] == [
        {NAME: after} if after else {} for *_, after in past
    ]
    for line in now.split("\n") if now else ():
        assert await changes.source(SCOPE, NAME, line) is not None
