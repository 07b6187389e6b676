"""The seeds' door: `from agent.memory import Session, SessionManager`."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.memory import Session, SessionManager
from gateway.errors import HomeInUse
from tests.fakes.memory import CountingDisk, FaultyDisk

KEY = "telegram:123456789"


def build_message(n: int, role: str = "user", **fields: Any) -> dict[str, Any]:
    """Return a message as the seeds print one."""
    return {"role": role, "content": f"message {n}", "timestamp": f"2026-03-06T10:{n % 60:02d}:00", **fields}


def dialogue(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return messages of a user and an assistant in turn."""
    return [build_message(n, "assistant" if n % 2 else "user") for n in range(first, first + count)]


def test_a_session_is_read_as_it_was_saved(tmp_path: Path) -> None:
    """Messages, pointer and times, through a second manager, tools and odd keys included."""
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    session.messages += dialogue(4)
    session.messages.append(build_message(4, "assistant", content=None, tool_calls=[{"id": "a", "function": {}}]))
    session.messages.append(build_message(5, "tool", tool_call_id="a", name="look"))
    session.messages.append(build_message(6, kind="odd", i=99, turn="mine", v=7, tools_used=["x"]))
    session.last_consolidated = 3
    manager.save(session)
    again = SessionManager(tmp_path).get_or_create(KEY)
    assert again.messages == session.messages
    assert again.last_consolidated == 3
    assert again.created_at == session.created_at
    assert again.updated_at == session.updated_at


def test_saving_appends_only_what_is_new(tmp_path: Path) -> None:
    """Bytes written and read for one more message are the same at 50 and at 5,000."""
    costs = []
    for count in (50, 5_000):
        disk = CountingDisk()
        manager = SessionManager(tmp_path / str(count), disk=disk)
        session = manager.get_or_create(KEY)
        session.messages += dialogue(count)
        manager.save(session)
        disk.reset()
        session.messages.append(build_message(7))
        manager.save(session)
        costs.append((disk.bytes_read, disk.bytes_written))
    assert costs[1][0] == costs[0][0] == 0
    assert costs[1][1] <= costs[0][1] + 16


def test_nothing_new_writes_nothing_and_a_moved_pointer_one_line(tmp_path: Path) -> None:
    """Pointer changes are pointer lines; messages are never written again."""
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    session.messages += dialogue(10)
    manager.save(session)
    [path] = (tmp_path / "sessions").iterdir()
    before = path.read_bytes()
    manager.save(session)
    assert path.read_bytes() == before
    session.last_consolidated = 6
    manager.save(session)
    added = path.read_bytes().removeprefix(before).splitlines()
    assert [json.loads(line)["kind"] for line in added] == ["pointer", "end"]
    assert SessionManager(tmp_path).get_or_create(KEY).last_consolidated == 6


def test_history_is_replayable(tmp_path: Path) -> None:
    """It starts at a user's message, without orphan results and unanswered calls."""
    session = Session(KEY, dialogue(60))
    assert len(session.get_history()) == 50
    assert [message["content"] for message in session.get_history(3)] == ["message 58", "message 59"]
    session.messages += [
        build_message(60, "assistant", tool_calls=[{"id": "a"}], content=""),
        build_message(61, "user"),
    ]
    assert [message["role"] for message in session.get_history(2)] == ["user"]
    assert session.get_history(0) == []


def test_clear_begins_a_new_transcript_and_keeps_the_old_one(tmp_path: Path) -> None:
    """As /new of the seeds: cleared, saved, invalidated; the archive stands beside."""
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    session.messages += dialogue(4)
    manager.save(session)
    session.clear()
    manager.save(session)
    manager.invalidate(KEY)
    again = manager.get_or_create(KEY)
    assert again.messages == []
    again.messages += dialogue(6, first=50)
    manager.save(again)
    assert SessionManager(tmp_path).get_or_create(KEY).messages == dialogue(6, first=50)
    assert len(list((tmp_path / "sessions").glob("*.t*.jsonl"))) == 1


@pytest.mark.parametrize("change", ["trimmed", "replaced", "shifted"])
def test_a_list_that_was_rewritten_is_saved_as_it_is(tmp_path: Path, change: str) -> None:
    """Whoever trims a session (seed 004) finds it trimmed; the file is never a mixture."""
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    session.messages += dialogue(10)
    manager.save(session)
    if change == "trimmed":
        session.messages = session.messages[-4:]
    elif change == "replaced":
        session.messages = dialogue(12, first=100)
    else:
        del session.messages[0]
        session.messages += dialogue(3, first=10)
    manager.save(session)
    assert SessionManager(tmp_path).get_or_create(KEY).messages == session.messages


def test_a_session_made_by_hand_continues_its_file(tmp_path: Path) -> None:
    """Saving what another manager loaded appends; saving something else begins anew."""
    manager = SessionManager(tmp_path)
    manager.save(Session(KEY, dialogue(4)))
    other = SessionManager(tmp_path)
    other.save(Session(KEY, dialogue(6)))
    assert not list((tmp_path / "sessions").glob("*.t*.jsonl"))
    assert SessionManager(tmp_path).get_or_create(KEY).messages == dialogue(6)
    SessionManager(tmp_path).save(Session(KEY, dialogue(2, first=70)))
    assert SessionManager(tmp_path).get_or_create(KEY).messages == dialogue(2, first=70)


def test_few_sessions_are_kept_and_few_files_open(tmp_path: Path) -> None:
    """The cache is bounded; what was saved and given up is read again."""
    manager = SessionManager(tmp_path, capacity=3)
    for n in range(10):
        session = manager.get_or_create(f"web:{n}")
        session.messages += dialogue(2)
        manager.save(session)
    assert len(manager._cache) == 3
    assert manager.get_or_create("web:0").messages == dialogue(2)


@pytest.mark.parametrize(
    "key", ["cli:user123", "no colon", "x:..", "web:../../etc/passwd", "a:" + "é" * 300, "x:A", "x:a"]
)
def test_any_key_has_a_file_of_its_own_inside_the_folder(tmp_path: Path, key: str) -> None:
    """No key leaves the sessions folder, and case twins are two sessions."""
    manager = SessionManager(tmp_path)
    manager.save(Session("x:a", dialogue(2)))
    manager.save(Session("x:A", dialogue(4)))
    manager.save(Session(key, dialogue(6)))
    assert SessionManager(tmp_path).get_or_create(key).messages == dialogue(6)
    for path in (tmp_path / "sessions").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_damage_costs_its_line(tmp_path: Path) -> None:
    """A torn tail and a bad line are set aside, the rest loads, and saving goes on."""
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    for n in range(4):
        session.messages.append(build_message(n))
        manager.save(session)
    [path] = (tmp_path / "sessions").iterdir()
    lines = path.read_bytes().split(b"\n")
    lines[3] = b"\xff\xff"
    path.write_bytes(b"\n".join(lines) + b'{"torn')
    again = SessionManager(tmp_path)
    loaded = again.get_or_create(KEY)
    assert [message["content"] for message in loaded.messages] == ["message 0", "message 2", "message 3"]
    loaded.messages.append(build_message(9))
    again.save(loaded)
    contents = [message["content"] for message in SessionManager(tmp_path).get_or_create(KEY).messages]
    assert contents == ["message 0", "message 2", "message 3", "message 9"]
    assert path.with_name(path.name + ".corrupt").read_bytes() == b'\xff\xff\n{"torn\n'


def test_a_failed_save_can_be_made_again(tmp_path: Path) -> None:
    """A full disk raises, loses nothing in memory, and doubles nothing in the file."""
    for at in range(4):
        disk = FaultyDisk(at=-1, error=OSError(errno.ENOSPC, "full"))
        manager = SessionManager(tmp_path / str(at), disk=disk)
        session = manager.get_or_create(KEY)
        session.messages += dialogue(2)
        manager.save(session)
        session.messages += dialogue(2, first=2)
        disk.at = disk.count + at
        try:
            manager.save(session)
        except OSError:
            manager.save(session)
        assert SessionManager(tmp_path / str(at)).get_or_create(KEY).messages == dialogue(4)


def test_a_home_with_a_live_gateway_is_refused(tmp_path: Path) -> None:
    """For the home and for a scope in it, at every save; reading works."""
    scope = tmp_path / "people" / "ann"
    manager = SessionManager(scope)
    session = manager.get_or_create(KEY)
    session.messages += dialogue(2)
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        for each in (manager, SessionManager(scope), SessionManager(tmp_path)):
            with pytest.raises(HomeInUse, match="a gateway owns"):
                each.save(session)
        assert SessionManager(scope).get_or_create(KEY).messages == []
    finally:
        os.close(fd)
    manager.save(session)
    assert SessionManager(scope).get_or_create(KEY).messages == dialogue(2)


def test_the_json_document_of_the_first_seed_is_imported(tmp_path: Path) -> None:
    """`sessions/telegram_123456789.json` as [000] prints it; the file itself is left as it is."""
    document = {
        "key": KEY,
        "messages": dialogue(4),
        "last_consolidated": 2,
        "created_at": "2026-03-06T10:00:00",
        "updated_at": "2026-03-06T10:00:01",
    }
    old = tmp_path / "sessions" / "telegram_123456789.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps(document))
    manager = SessionManager(tmp_path)
    session = manager.get_or_create(KEY)
    assert session.messages == dialogue(4)
    assert session.last_consolidated == 2
    assert session.created_at == datetime(2026, 3, 6, 10, tzinfo=UTC)
    session.messages += dialogue(2, first=4)
    manager.save(session)
    again = SessionManager(tmp_path).get_or_create(KEY)
    assert (again.messages, again.last_consolidated) == (dialogue(6), 2)
    assert json.loads(old.read_text()) == document


def test_nanobots_lines_are_imported(tmp_path: Path) -> None:
    """Its metadata line and messages; a file of another key is not taken for this one's."""
    old = tmp_path / "sessions" / "telegram_123456789.jsonl"
    old.parent.mkdir(parents=True)
    about = {"_type": "metadata", "key": KEY, "created_at": "2026-03-06T10:00:00", "last_consolidated": 1}
    old.write_text("\n".join(json.dumps(line) for line in [about, *dialogue(3)]))
    assert SessionManager(tmp_path).get_or_create(KEY).messages == dialogue(3)
    old.write_text(json.dumps({**about, "key": "telegram:123456789_"}))
    assert SessionManager(tmp_path).get_or_create(KEY).messages == []
