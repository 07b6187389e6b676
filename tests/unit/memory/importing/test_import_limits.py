"""What an import may read is limited in bytes, files and time; what goes beyond is left, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.memory.importers import source_folder
from agent.memory.importers.nanobot import read_nanobot
from gateway.errors import UserError
from tests.fakes import other_bots


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("LARGEST_TOTAL", 10, "beyond the 0 MiB that are read in all"),
        ("LONGEST", -60.0, "reading took longer than -1 minutes"),
    ],
)
def test_what_goes_beyond_a_limit_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, why: str
) -> None:
    """Nothing beyond a limit is read, and the report says why."""
    theirs = other_bots.nanobot(tmp_path)
    everything = read_nanobot(theirs, "UTC")
    monkeypatch.setattr(source_folder, limit, value)
    found = read_nanobot(theirs, "UTC")
    assert len(found.sessions) < len(everything.sessions)
    assert why in {left.why for left in found.left}


def test_a_file_that_is_too_large_is_left(tmp_path: Path) -> None:
    """A conversation takes ten times its size in memory, so that one file's size is limited too."""
    theirs = other_bots.nanobot(tmp_path)
    with (theirs / "workspace" / "sessions" / "large.jsonl").open("wb") as large:
        large.truncate(source_folder.LARGEST_SESSION + 1)
    found = read_nanobot(theirs, "UTC")
    assert ("workspace/sessions/large.jsonl", "larger than 64 MiB") in {(left.source, left.why) for left in found.left}


def test_a_folder_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder or a disk is not walked to its end."""
    theirs = other_bots.nanobot(tmp_path)
    monkeypatch.setattr(source_folder, "MOST_FILES", 0)
    with pytest.raises(UserError, match="holds more than 0 files; it is no folder of such a bot"):
        read_nanobot(theirs, "UTC")
