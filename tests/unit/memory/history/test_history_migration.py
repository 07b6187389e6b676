"""An older system's HISTORY.md becomes history.jsonl, once, and is kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from gateway.ports.memory import HistoryEntry
from tests.fakes.history_log import HistoryLog
from tests.fakes.memory import START, FaultyDisk, ProcessCrash

OLD = """# History

Some words before.

[2026-03-06 10:00] User shared personal preferences and technical background.
Confirmed favorite color is blue.

[2026-03-06 14:30] User requested to create a FastAPI project.

A paragraph of the same entry.

2025-01-15 10:30: User asked about deployment.

[2026-03-07T08:15:30Z] With seconds.
[not a time] but a line of the same
"""


def log(folder: Path, disk: FaultyDisk | None = None) -> HistoryLog:
    """Open the history of a scope."""
    return HistoryLog(folder, disk, now=lambda: START)


def read(folder: Path) -> list[tuple[int, str, str]]:
    """Return cursor, time and content of every entry."""
    return [(each.cursor, each.timestamp, each.content) for each in log(folder).after(0)]


EXPECTED = [
    (1, "2026-11-21 21:00", "# History\n\nSome words before."),
    (
        2,
        "2026-03-06 10:00",
        "User shared personal preferences and technical background.\nConfirmed favorite color is blue.",
    ),
    (3, "2026-03-06 14:30", "User requested to create a FastAPI project.\n\nA paragraph of the same entry."),
    (4, "2025-01-15 10:30", "User asked about deployment."),
    (5, "2026-03-07 08:15", "With seconds.\n[not a time] but a line of the same"),
]


def test_everything_in_it_becomes_an_entry(tmp_path: Path) -> None:
    """What begins with a time, with or without brackets, and what stands before; the file itself is kept."""
    (tmp_path / "HISTORY.md").write_text(OLD)
    assert read(tmp_path) == EXPECTED
    assert (tmp_path / "HISTORY.md.legacy").read_text() == OLD
    mirror = (tmp_path / "HISTORY.md").read_text()
    assert mirror.count("\n\n") == len(EXPECTED)
    assert (
        "[2026-03-06 14:30] User requested to create a FastAPI project.\nA paragraph of the same entry.\n\n" in mirror
    )


def test_it_is_done_once(tmp_path: Path) -> None:
    """New entries go on behind; the readable file is not taken for an old one afterwards."""
    (tmp_path / "HISTORY.md").write_text(OLD)
    [stored] = log(tmp_path).append(HistoryEntry(timestamp="2026-11-21 21:00", content="New.", entry="e1"))
    assert stored.cursor == 6
    log(tmp_path).append(HistoryEntry(timestamp="2026-11-21 21:00", content="Newer.", entry="e2"))
    assert [content for _, _, content in read(tmp_path)] == [*(each[2] for each in EXPECTED), "New.", "Newer."]
    assert (tmp_path / "HISTORY.md").read_text().endswith("New.\n\n[2026-11-21 21:00] Newer.\n\n")


@pytest.mark.parametrize("at", range(14))
def test_a_kill_in_the_middle_does_not_double_it(tmp_path: Path, at: int) -> None:
    """At every step; the next start has each entry once, and the old file."""
    (tmp_path / "HISTORY.md").write_text(OLD)
    with suppress(ProcessCrash):
        log(tmp_path, FaultyDisk(at=at, error=ProcessCrash())).after(0)
    log(tmp_path).append(HistoryEntry(timestamp="2026-11-21 21:00", content="New.", entry="e1"))
    assert [content for _, _, content in read(tmp_path)] == [*(each[2] for each in EXPECTED), "New."]
    assert (tmp_path / "HISTORY.md.legacy").read_text() == OLD


def test_any_bytes_are_taken_over(tmp_path: Path) -> None:
    """Windows' code, a byte order mark; the kept file has the very bytes."""
    data = b"\xef\xbb\xbf[2026-03-06 10:00] caf\xe9\r\n\r\n[2026-03-06 10:01] two\r\n"
    (tmp_path / "HISTORY.md").write_bytes(data)
    assert len(read(tmp_path)) == 2
    assert (tmp_path / "HISTORY.md.legacy").read_bytes() == data


def test_an_empty_file_is_no_history(tmp_path: Path) -> None:
    """Blank lines are no entry."""
    (tmp_path / "HISTORY.md").write_text("\n\n")
    assert read(tmp_path) == []


def test_a_lost_record_is_made_again_from_the_readable_one(tmp_path: Path) -> None:
    """What was kept before stays beside it."""
    (tmp_path / "HISTORY.md").write_text(OLD)
    before = read(tmp_path)
    (tmp_path / "history.jsonl").unlink()
    assert [(time, " ".join(text.split())) for _, time, text in read(tmp_path)] == [
        (time, " ".join(text.split())) for _, time, text in before
    ]
    assert len(list(tmp_path.glob("HISTORY.md.legacy*"))) == 2
