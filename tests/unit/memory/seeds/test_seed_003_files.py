"""Seed 003, its files: searched with the tools that it names, as it prints them, and laid out as it draws them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agent.memory.documents.file_documents import FileDocumentStore, document_path
from agent.memory.documents.version_keeper import VersionKeeper
from agent.memory.documents.version_store import TRACKED, VersionStore
from agent.memory.history.history_log import HistoryEntry, HistoryLog
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from tests.fakes.memory import SCOPE, START

ONE_LINER = (
    "import json; [print(json.loads(l).get('content','')) for l in open('memory/history.jsonl','r',encoding='utf-8')"
    " if l.strip() and 'keyword' in l.lower()][-20:]"
)


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


async def test_the_files_stand_where_the_tree_has_them(tmp_path: Path) -> None:
    """[003] "The Files": SOUL.md and USER.md above, the rest in memory/, cursors and versions with it."""
    disk = Disk()
    documents = FileDocumentStore(
        tmp_path, disk=disk, keeper=VersionKeeper(tmp_path, disk, VersionStore(tmp_path), now=lambda: START)
    )
    for name in TRACKED:
        await documents.write(SCOPE, name, f"{name}\n", was="", why="test")
    workspace = scope_folder(tmp_path, SCOPE)
    history = HistoryLog(workspace / "memory")
    (stored,) = history.append(HistoryEntry(timestamp="2026-04-03 00:02", content="x", entry="e1"))
    history.dream_cursor = stored.cursor
    assert [document_path(tmp_path, SCOPE, name).relative_to(workspace).as_posix() for name in TRACKED] == [
        "SOUL.md",
        "USER.md",
        "memory/MEMORY.md",
    ]
    for name in ("history.jsonl", ".cursor", ".dream_cursor", ".git"):
        assert (workspace / "memory" / name).exists()


async def test_versioned_memory(tmp_path: Path) -> None:
    """[003] "Versioned Memory": what changed can be inspected, versions compared, an earlier state read back."""
    disk, versions = Disk(), VersionStore(tmp_path)
    documents = FileDocumentStore(
        tmp_path, disk=disk, keeper=VersionKeeper(tmp_path, disk, versions, now=lambda: START)
    )
    first = await documents.write(SCOPE, "MEMORY.md", "- one\n", was="", why="first")
    assert first is not None
    await documents.write(SCOPE, "MEMORY.md", "- one\n- two\n", was=first.rev, why="second")
    newest, oldest = versions.log(SCOPE)
    assert (newest.why, oldest.why) == ("second", "first")
    assert "+- two" in versions.diff(SCOPE, newest.sha)
    assert versions.documents_before(SCOPE, newest.sha) == {"MEMORY.md": b"- one\n"}
