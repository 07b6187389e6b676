"""An erasure rewrites every version of a scope's documents, and has one of them in memory at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from agent.memory.storage.scope_documents import rewrite_history
from gateway.ports.memory import DocumentChange, DocumentState
from tests.fakes.store import open_inline_store

SCOPE, WORD = "people/ann", "zeppelin"
START = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
CHANGES, LINES = 120, 1_000


def text_after(n: int) -> str:
    """Return a document of 64 KB, of which change *n* has rewritten one line."""
    return "".join(
        f"- {'fact':50} {line:5} {max(0, n - (n - line) % LINES) if line <= n else 0}\n" for line in range(LINES)
    )


def history() -> list[DocumentState]:
    """Return many changes of a long document; the third has a line with the word."""
    states = []
    for n in range(CHANGES):
        change = DocumentChange(id=f"{n:08x}", number=0, at=START + timedelta(minutes=n), why=f"e{n}")
        more = f"- my {WORD} leaks\n" if n == 3 else ""
        states.append(DocumentState(change=change, texts={"MEMORY.md": text_after(n) + more}))
    return states


async def test_every_version_is_rewritten_without_having_all_in_memory() -> None:
    """120 versions of 64 KB are 7 MB of texts: their lines are read, and the texts are made one by one."""
    store = await open_inline_store()
    documents = store.documents
    written = history()
    size = sum(len(each.texts["MEMORY.md"]) for each in written)
    assert size > 7_000_000
    assert await documents.replace({SCOPE: iter(written)}, was={SCOPE: 0})
    del written

    def redact(text: str, _: Mapping[str, str]) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if WORD not in line)

    tracemalloc.start()
    try:
        assert await rewrite_history(documents, SCOPE, redact) == 1
        assert await rewrite_history(documents, SCOPE, redact) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size // 4
    for state, wanted in zip(await documents.states(SCOPE), history(), strict=True):
        assert state.texts["MEMORY.md"] == redact(wanted.texts["MEMORY.md"], {})
        assert state.change.id == wanted.change.id
    states = await documents.states(SCOPE)
    assert states[-1] == list(states)[-1] == states[CHANGES - 1]
    assert list(states[2:4]) == list(states)[2:4]
    await store.close()
