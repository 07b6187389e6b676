"""history.jsonl: one line per entry, cursors that only grow, and a mirror for people."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.ports.memory import HistoryEntry
from tests.fakes.history_log import HistoryLog
from tests.fakes.memory import START, CountingDisk, FaultyDisk


def entry(n: int, content: str = "") -> HistoryEntry:
    """Return the *n*th thing that happened."""
    made = HistoryEntry(
        timestamp="2026-11-21 21:00",
        content=f"Talked about {n}.",
        session="telegram:42",
        start=n * 10,
        end=n * 10 + 10,
        origin="user",
        entry=f"e{n:016d}",
    )
    return replace(made, content=content) if content else made


def log(folder: Path, disk: CountingDisk | FaultyDisk | None = None) -> HistoryLog:
    """Open the history of a scope."""
    return HistoryLog(folder, disk, now=lambda: START)


def contents(folder: Path) -> list[str]:
    """Return what a reader finds."""
    return [each.content for each in log(folder).after(0)]


def test_a_line_has_the_fields_of_the_format(tmp_path: Path) -> None:
    """In their order; the file, its folder and everything beside it are private."""
    log(tmp_path / "memory").append(entry(1))
    [line] = (tmp_path / "memory" / "history.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "cursor": 1,
        "timestamp": "2026-11-21 21:00",
        "content": "Talked about 1.",
        "session": "telegram:42",
        "from": 10,
        "to": 20,
        "origin": "user",
        "entry": "e0000000000000001",
    }
    assert list(json.loads(line))[:3] == ["cursor", "timestamp", "content"]
    for path in (tmp_path / "memory").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "memory").stat().st_mode) == 0o700


def test_an_entry_is_stored_once(tmp_path: Path) -> None:
    """By its id, in one process or another; what is stored is returned."""
    [first] = log(tmp_path).append(entry(1))
    log(tmp_path).append(entry(2), entry(2))
    [again] = log(tmp_path).append(entry(1, content="Another summary of the same messages."))
    assert again == first
    assert contents(tmp_path) == ["Talked about 1.", "Talked about 2."]
    assert (tmp_path / "HISTORY.md").read_text().count("Talked") == 2


@pytest.mark.parametrize(
    ("cursor", "dream", "expected"),
    [(None, None, 4), ("2", None, 4), ("99", None, 100), ("", "7", 8), ("x", "-1", 4), ("9" * 40, None, 4)],
    ids=["no note", "an old note", "lines were taken away", "dream knows more", "nonsense", "absurd"],
)
def test_cursors_only_grow(tmp_path: Path, cursor: str | None, dream: str | None, expected: int) -> None:
    """The file decides, and a note that knows of a larger one is believed: no cursor is given twice."""
    log(tmp_path).append(entry(1), entry(2), entry(3))
    assert (tmp_path / ".cursor").read_text() == "3\n"
    for name, text in ((".cursor", cursor), (".dream_cursor", dream)):
        (tmp_path / name).unlink(missing_ok=True)
        if text is not None:
            (tmp_path / name).write_text(text)
    [stored] = log(tmp_path).append(entry(4))
    assert stored.cursor == expected


def test_lines_longer_than_a_look_are_read(tmp_path: Path) -> None:
    """Whatever a summary's length."""
    log(tmp_path).append(*(entry(n, content=str(n) * 9_000) for n in range(1, 6)))
    assert [each.content[0] for each in log(tmp_path).after(2)] == ["3", "4", "5"]
    assert log(tmp_path).find("e0000000000000004") == log(tmp_path).after(3)[0]
    assert log(tmp_path).find("e9") is None


def test_a_torn_tail_is_set_aside_before_the_next_append(tmp_path: Path) -> None:
    """Or two entries would be lost. A bad line in the middle costs itself."""
    log(tmp_path).append(entry(1), entry(2))
    path = tmp_path / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\xff\xfe nonsense\n" + lines[1] + b'{"cursor":3,"con')
    assert contents(tmp_path) == ["Talked about 1.", "Talked about 2."]
    log(tmp_path).append(entry(3))
    assert contents(tmp_path) == ["Talked about 1.", "Talked about 2.", "Talked about 3."]
    assert (tmp_path / "history.jsonl.corrupt").read_bytes() == b'\xff\xfe nonsense\n{"cursor":3,"con\n'
    assert [each.cursor for each in log(tmp_path).after(0)] == [1, 2, 3]


def test_lines_of_the_third_seed_are_read(tmp_path: Path) -> None:
    """They have cursor, timestamp, content alone; ours go on behind them."""
    (tmp_path / "history.jsonl").write_text(
        '{"cursor": 42, "timestamp": "2026-04-03 00:02", '
        '"content": "- User prefers dark mode\\n- Decided to use PostgreSQL"}\n'
    )
    [stored] = log(tmp_path).append(entry(1))
    assert stored.cursor == 43
    assert log(tmp_path).after(41)[0].content == "- User prefers dark mode\n- Decided to use PostgreSQL"
    assert (tmp_path / "HISTORY.md").read_text() == (
        "[2026-04-03 00:02] - User prefers dark mode\n- Decided to use PostgreSQL\n\n"
        "[2026-11-21 21:00] Talked about 1.\n\n"
    )


@pytest.mark.parametrize(
    "line", [b"17", b"[]", b'{"cursor":"x"}', b'{"cursor":true}', b'{"cursor":-1}', b'{"cursor":1e3}']
)
def test_odd_lines_are_set_aside(tmp_path: Path, line: bytes) -> None:
    """They are no entries, and stop nothing."""
    tmp_path.joinpath("history.jsonl").write_bytes(line + b"\n")
    log(tmp_path).append(entry(1))
    assert contents(tmp_path) == ["Talked about 1."]


@pytest.mark.parametrize("at", range(12))
def test_a_failing_disk_leaves_a_history_that_goes_on(tmp_path: Path, at: int) -> None:
    """Whatever step fails: nothing is half there, and the same append again stores it once, in the mirror too."""
    log(tmp_path).append(entry(1))
    disk = FaultyDisk(at=at)
    try:
        log(tmp_path, disk).append(entry(2))
    except OSError:
        assert contents(tmp_path) in (["Talked about 1."], ["Talked about 1.", "Talked about 2."])
    log(tmp_path).append(entry(2))
    assert contents(tmp_path) == ["Talked about 1.", "Talked about 2."]
    expected = "[2026-11-21 21:00] Talked about 1.\n\n[2026-11-21 21:00] Talked about 2.\n\n"
    assert (tmp_path / "HISTORY.md").read_text() == expected


def test_the_readable_history_is_rebuilt_when_it_is_missing_or_shorter(tmp_path: Path) -> None:
    """It is derived: what was cut off comes back, and what a person wrote is not lost with it."""
    mirror = tmp_path / "HISTORY.md"
    log(tmp_path).append(entry(1), entry(2))
    whole = mirror.read_text()
    mirror.unlink()
    log(tmp_path).append(entry(2))
    assert mirror.read_text() == whole
    mirror.write_text(whole[:40])
    log(tmp_path).append(entry(3))
    assert mirror.read_text() == whole + "[2026-11-21 21:00] Talked about 3.\n\n"
    mirror.write_text("mine\n")
    log(tmp_path).append(entry(4))
    assert mirror.read_text().count("Talked") == 4
    [copy] = tmp_path.glob("HISTORY.md.edited-*")
    assert copy.read_text() == "mine\n"


def test_text_that_a_person_added_to_the_readable_history_is_kept_beside(tmp_path: Path) -> None:
    """As a gateway does: HISTORY.md is what the record has, and the edited file is a copy."""
    mirror = tmp_path / "HISTORY.md"
    log(tmp_path).append(entry(1))
    edited = mirror.read_text() + "And I was there too.\n"
    mirror.write_text(edited)
    log(tmp_path).append(entry(2))
    assert [path.read_text() for path in tmp_path.glob("HISTORY.md.edited-*")] == [edited]
    assert "Talked about 2." in mirror.read_text()
    assert "there too" not in mirror.read_text()


def test_a_blank_line_separates_entries_and_stands_in_none(tmp_path: Path) -> None:
    """An entry that begins with its time does not get another."""
    log(tmp_path).append(entry(1, content="[2026-03-06 10:00] One.\n\n\nTwo.\r\n"))
    assert (tmp_path / "HISTORY.md").read_text() == "[2026-03-06 10:00] One.\nTwo.\n\n"


def test_raw_messages_are_kept_once_and_the_history_says_so(tmp_path: Path) -> None:
    """As they are, tool results too."""
    messages = [{"role": "user", "content": "hi"}, {"role": "tool", "content": "result", "tool_call_id": "a"}]
    for _ in range(2):
        stored = log(tmp_path).keep_raw(entry(1, content="[raw] 2 messages"), messages)
    assert stored.raw == "raw.jsonl"
    lines = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert [line["message"] for line in lines] == messages
    assert [(line["entry"], line["i"]) for line in lines] == [(stored.entry, 10), (stored.entry, 11)]
    assert contents(tmp_path) == ["[raw] 2 messages"]
