"""Keeps a version in one process after the other, each killed at a later change of the disk than the one before.

`python -m tests.fakes.killed_commits FOLDER` copies FOLDER/base, or begins without a repository where there is none,
to FOLDER/0, FOLDER/1 … until a process has lived. It forks, and so it is a process of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.memory.documents.version_store import VersionStore

SCOPE = "people/telegram%3a42"
AT = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
TEXTS = {"MEMORY.md": b"- tea\n- dog\n", "USER.md": b"- Ann\n"}
_CHANGES = frozenset({"os.mkdir", "os.rename", "os.remove", "os.chmod", "os.truncate", "os.utime"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def keep(home: Path, why: str = "second") -> None:
    """Keep the version that the kills fall into."""
    VersionStore(home).save_version(SCOPE, TEXTS, why=why, at=AT + timedelta(minutes=1))


def _die_at(number: int) -> None:
    """Have this process killed before its change of that number."""
    left = [number]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and arguments[2] & _WRITING):
            if not left[0]:
                os._exit(9)
            left[0] -= 1

    sys.addaudithook(hook)


def main(folder: Path) -> None:
    """Kill until nothing is left to be killed at."""
    VersionStore(folder / "imports").save_version(
        SCOPE, TEXTS, why="none", at=AT
    )  # the library is loaded once, not in each child
    shutil.rmtree(folder / "imports")
    number, status = 0, -1
    while status:
        home = folder / str(number)
        if (folder / "base").exists():
            shutil.copytree(folder / "base", home)
        child = os.fork()
        if not child:
            _die_at(number)
            keep(home)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
