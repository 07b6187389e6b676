"""Seed 003, "Memory in nanobot": what it says of history.jsonl, searched with the tools that it names, as printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from agent.memory import MemoryStore
from gateway.ports.memory import HistoryEntry
from tests.fakes.history_log import HistoryLog

LINE = (
    '{"cursor": 42, "timestamp": "2026-04-03 00:02", '
    '"content": "- User prefers dark mode\\n- Decided to use PostgreSQL"}'
)
ONE_LINER = (
    "import json; [print(json.loads(l).get('content','')) for l in open('memory/history.jsonl','r',encoding='utf-8')"
    " if l.strip() and 'keyword' in l.lower()][-20:]"
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


def remembered(workspace: Path) -> None:
    """Write two entries of which one has the word."""
    HistoryLog(workspace / "memory").append(
        HistoryEntry(timestamp="2026-04-03 00:02", content="- The Keyword is *möwe*\n- and more", entry="e1"),
        HistoryEntry(timestamp="2026-04-03 00:03", content="something else", entry="e2"),
    )


def run(*command: str, at: Path) -> str:
    """Run a tool in the workspace; return what it prints."""
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=True)  # noqa: S603 - fixed commands
    return done.stdout


def test_grep_as_printed(tmp_path: Path) -> None:
    """[003] `grep -i "keyword" memory/history.jsonl`: the entry's one line, readable as it was written."""
    remembered(tmp_path)
    (line,) = run("grep", "-i", "keyword", "memory/history.jsonl", at=tmp_path).splitlines()
    assert "möwe" in line
    assert "and more" in line


def test_python_as_printed(tmp_path: Path) -> None:
    """[003] the Python line, to the letter, prints what the entry says."""
    remembered(tmp_path)
    assert run(sys.executable, "-c", ONE_LINER, at=tmp_path) == "- The Keyword is *möwe*\n- and more\n"
