"""Seed 003, "Memory in nanobot": what it says of history.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

from agent.memory import MemoryStore
from agent.memory.history.history_log import HistoryEntry, HistoryLog

LINE = (
    '{"cursor": 42, "timestamp": "2026-04-03 00:02", '
    '"content": "- User prefers dark mode\\n- Decided to use PostgreSQL"}'
)


def test_its_line_is_one_of_ours(tmp_path: Path) -> None:
    """[003] "Stage 1": the example line is read, and what is appended has the same first three fields."""
    (tmp_path / "history.jsonl").write_text(LINE + "\n")
    history = HistoryLog(tmp_path)
    [read] = history.after(0)
    assert (read.cursor, read.timestamp) == (42, "2026-04-03 00:02")
    history.append(HistoryEntry(timestamp="2026-04-03 02:00", content="more", entry="e1"))
    second = json.loads((tmp_path / "history.jsonl").read_text().splitlines()[1])
    assert list(second)[:3] == list(json.loads(LINE))
    assert (tmp_path / ".cursor").read_text().strip() == "43"


def test_append_only(tmp_path: Path) -> None:
    """[003] "This file is append-only": what stands there is never written again."""
    store = MemoryStore(tmp_path)
    path = tmp_path / "memory" / "history.jsonl"
    before = b""
    for n in range(5):
        store.append_history(f"[2026-04-03 00:0{n}] entry {n}")
        assert path.read_bytes().startswith(before)
        before = path.read_bytes()
    assert [json.loads(line)["cursor"] for line in before.splitlines()] == [1, 2, 3, 4, 5]


def test_the_one_liner_in_python_works(tmp_path: Path) -> None:
    """[003] "Why history.jsonl": its search, as it is written there."""
    store = MemoryStore(tmp_path)
    store.append_history("Decided to use PostgreSQL")
    store.append_history("Something else")
    path = tmp_path / "memory" / "history.jsonl"
    found = [
        json.loads(line).get("content", "")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip() and "postgresql" in line.lower()
    ][-20:]
    assert found == ["Decided to use PostgreSQL"]


def test_dream_reads_new_entries_in_batches_of_twenty(tmp_path: Path) -> None:
    """[003] `maxBatchSize`: the entries behind `.dream_cursor`, twenty at a time, each once."""
    history = HistoryLog(tmp_path)
    history.append(*(HistoryEntry(timestamp="2026-04-03 00:02", content=f"{n}", entry=f"e{n}") for n in range(45)))
    sizes = []
    while batch := history.after(history.dream_cursor, limit=20):
        sizes.append(len(batch))
        history.dream_cursor = batch[-1].cursor
    assert sizes == [20, 20, 5]
    assert HistoryLog(tmp_path).dream_cursor == 45
