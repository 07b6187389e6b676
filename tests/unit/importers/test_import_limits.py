"""What an import may read is limited in bytes, files and time; what goes beyond is left, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.importers import source_folder
from agent.importers.nanobot import read_nanobot
from gateway.errors import UserError
from tests.fakes import other_bots


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [
        ("LARGEST_TOTAL", 10, "beyond the 0 MiB that are read in all"),
        ("LONGEST", -60.0, "reading took longer than -1 minutes"),
    ],
)
def test_what_goes_beyond_a_limit_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, reason: str
) -> None:
    """Nothing beyond a limit is read, and the report says why."""
    theirs = other_bots.nanobot(tmp_path)
    everything = read_nanobot(theirs, "UTC")
    monkeypatch.setattr(source_folder, limit, value)
    data = read_nanobot(theirs, "UTC")
    assert len(data.sessions) < len(everything.sessions)
    assert reason in {item.reason for item in data.skipped}


def test_a_file_that_is_too_large_is_left(tmp_path: Path) -> None:
    """A conversation takes ten times its size in memory, so that one file's size is limited too."""
    theirs = other_bots.nanobot(tmp_path)
    with (theirs / "workspace" / "sessions" / "large.jsonl").open("wb") as large:
        large.truncate(source_folder.LARGEST_SESSION + 1)
    data = read_nanobot(theirs, "UTC")
    assert ("workspace/sessions/large.jsonl", "larger than 64 MiB") in {
        (item.source, item.reason) for item in data.skipped
    }


def test_a_folder_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder or a disk is not walked to its end."""
    theirs = other_bots.nanobot(tmp_path)
    monkeypatch.setattr(source_folder, "MOST_FILES", 0)
    with pytest.raises(UserError, match="has more than 0 files; it cannot be a bot"):
        read_nanobot(theirs, "UTC")
