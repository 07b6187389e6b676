"""Kill a process before each call that changes the disk, during every kind of change of a workspace.

Prints one JSON object for each kill: what a reader finds afterwards, and what the same call leaves when it runs again.
Run by test_workspace_killed.py in a process of its own, which has no threads and can be forked.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.files.file_workspace import FileWorkspace

_CALLS = ("open", "write", "fsync", "link", "rename", "unlink", "mkdir", "rmdir")
KILLED = 9
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)

Change = Callable[[FileWorkspace], object]


def _restore(workspace: FileWorkspace) -> object:
    return [workspace.restore(each.id) for each in workspace.deleted_files() if each.name == "old.txt"]


CHANGES: dict[str, Change] = {
    "create": lambda at: at.create("a/new.txt", b"new", is_untrusted=False),
    "replace": lambda at: at.replace("a/kept.txt", b"new", key="k", is_untrusted=False),
    "mark": lambda at: at.replace("a/kept.txt", b"new", key="k", is_untrusted=True),
    "unmark": lambda at: at.replace("theirs.txt", b"new", key="k", is_untrusted=False),
    "append": lambda at: at.append("a/kept.txt", b"+new", key="k", is_untrusted=False),
    "append_marked": lambda at: at.append("a/kept.txt", b"+new", key="k", is_untrusted=True),
    "delete": lambda at: at.delete("a/kept.txt", key="k"),
    "restore": _restore,
}


def prepare(root: Path) -> None:
    """Make a workspace with a file, a marked one and a deleted one."""
    workspace = open_workspace(root)
    workspace.create("a/kept.txt", b"kept", is_untrusted=False)
    workspace.create("theirs.txt", b"theirs", is_untrusted=True)
    workspace.create("old.txt", b"old", is_untrusted=False)
    workspace.delete("old.txt", key="before")


def open_workspace(root: Path, now: datetime = NOON) -> FileWorkspace:
    """Return the workspace at *root*."""
    return FileWorkspace(root, most_bytes=10_000, now=lambda: now)


def state(root: Path) -> dict[str, Any]:
    """Return what a reader finds."""
    workspace = open_workspace(root)
    files = {}
    for each in workspace.list_files():
        content = workspace.read(each.name)
        files[each.name] = [content.data.decode(), content.is_untrusted] if content else None
    return {"files": files, "deleted": sorted((each.name, each.size) for each in workspace.deleted_files())}


def die_before(n: int) -> None:
    """End this process without any clean-up before the *n*-th call that changes the disk."""
    left = n

    def counted(real: Callable[..., Any], is_change: Callable[..., bool]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if is_change(*arguments):
                left -= 1
                if left < 0:
                    os._exit(KILLED)
            return real(*arguments, **options)

        return call

    for name in _CALLS:
        creates = (lambda _, flags, *__: bool(flags & os.O_CREAT)) if name == "open" else (lambda *_: True)
        setattr(os, name, counted(getattr(os, name), creates))


def run(change: Change, root: Path, n: int) -> int:
    """Run *change* in a child that dies before its *n*-th call; return its exit code."""
    child = os.fork()
    if child == 0:
        die_before(n)
        change(open_workspace(root))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Kill every change at every call."""
    for name, change in CHANGES.items():
        for n in range(200):
            with tempfile.TemporaryDirectory() as folder:
                root = Path(folder) / "files"
                prepare(root)
                before = state(root)
                code = run(change, root, n)
                killed = state(root)
                change(open_workspace(root, NOON + timedelta(minutes=n % 2)))
                left = sorted(path.name for path in root.rglob("*") if path.name.startswith(".new-"))
                line = {"change": name, "n": n, "code": code, "before": before, "killed": killed, "left": left}
                sys.stdout.write(json.dumps({**line, "again": state(root)}) + "\n")
            if code == 0:
                break


if __name__ == "__main__":
    main()
