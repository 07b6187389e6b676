"""What the readers find in other bots' folders, and that they leave them as they are."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent.importers import SYSTEMS
from agent.importers.import_data import ImportData
from agent.importers.openclaw import convert_key
from gateway.errors import UserError
from gateway.installation import operator_command
from tests.fakes import other_bots
from tests.fakes.other_bots import fingerprint, write


def read(system: str, root: Path, zone: str = "UTC") -> ImportData:
    """Read a folder; it must be the same afterwards."""
    before = fingerprint(root)
    found = SYSTEMS[system](root, zone)
    assert fingerprint(root) == before
    return found


def reasons(found: ImportData) -> dict[str, str]:
    """Return the reason of each skipped file."""
    return {each.source: each.reason for each in found.skipped}


def test_nanobot(tmp_path: Path) -> None:
    """Documents, history with cursors, notes, both formats of sessions; keys and settings stay where they are."""
    found = read("nanobot", other_bots.nanobot(tmp_path), "Europe/Berlin")
    assert [each.name for each in found.documents] == ["SOUL.md", "USER.md", "MEMORY.md"]
    (history,) = found.histories
    assert [timestamp for timestamp, _ in history.entries] == ["2026-04-03 00:02", "2026-04-04 10:00"]
    assert (history.dreamt, history.bad) == (1, (b"{torn",))
    assert [each.name for each in found.notes] == ["2026-03-25-api-design.md"]
    sessions = {each.key: each for each in found.sessions}
    assert sorted(sessions) == ["cli:direct", "telegram:42"]
    boat = sessions["telegram:42"]
    assert [each["role"] for each in boat.messages] == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    assert (boat.consolidated, boat.bad) == (2, (b"not json",))
    assert boat.messages[0]["timestamp"] == "2026-03-06T09:00:00Z"  # their clock was the machine's
    left = reasons(found)
    assert "instructs another program" in left["workspace/AGENTS.md"]
    assert operator_command("init") in left["config.json"]


def test_nanobots_database(tmp_path: Path) -> None:
    """Since 0.3.6: the workspace's own conversations, in order, as its files had them; another workspace's are left."""
    (tmp_path / "files").mkdir()
    (tmp_path / "database").mkdir()
    in_files = read("nanobot", other_bots.nanobot(tmp_path / "files"))
    found = read("nanobot", other_bots.nanobot_database(tmp_path / "database"))
    spoken, before = (next(each for each in one.sessions if each.key == "telegram:42") for one in (found, in_files))
    assert (spoken.messages, spoken.consolidated) == (before.messages, before.consolidated)
    assert reasons(found)["sessions/" + "f" * 32] == "another workspace's conversations"
    alone = read("nanobot", tmp_path / "database" / "workspace")
    assert "import ~/.nanobot" in reasons(alone)[".nanobot/workspace-id"]


def test_autobot(tmp_path: Path) -> None:
    """Keys stand in file names, HISTORY.md has times with brackets and without, tools are named beside the words."""
    found = read("autobot", other_bots.autobot(tmp_path))
    (history,) = found.histories
    assert history.entries == (
        ("2025-01-15 10:30", "User asked about deployment."),
        ("2025-01-16 09:00", "Docker."),
    )
    (session,) = found.sessions
    assert session.key == "telegram:42"
    assert session.messages[1]["tools_used"] == ["exec", "read_file"]


@pytest.mark.parametrize("in_database", [False, True])
def test_openclaw(tmp_path: Path, in_database: bool) -> None:
    """The branch that was spoken last, in the chat format, whether it stands in a file or in the database."""
    found = read("openclaw", other_bots.openclaw(tmp_path, in_database=in_database))
    spoken = next(each for each in found.sessions if each.key == "telegram:42")
    assert [(each["role"], each["content"]) for each in spoken.messages] == [
        ("user", "My boat is Nessie"),
        ("assistant", "Let me look."),
        ("tool", "contents"),
        ("assistant", "Noted."),
    ]
    assert spoken.messages[0]["by"] == {"id": "42", "name": "Ann"}
    assert spoken.messages[1]["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "x"}'}
    assert "canary" not in str(found)
    assert found.notes[0].name == "2026-03-18.md"
    assert found.notes[1].name.endswith("-projects.md")
    left = reasons(found)
    assert "--as" in left["workspace-ops"]
    assert "another agent's" in left["agents/ops"]
    if not in_database:
        assert {each.key for each in found.sessions} == {"telegram:42", "openclaw:s-old"}
        assert [why for source, why in left.items() if "s-gone" in source] == ["it was deleted there"]
        assert "a task ran in it" in left["agents/main/sessions/s-cron.jsonl"]


def test_a_database_that_is_at_work_is_read_with_its_log(tmp_path: Path) -> None:
    """What their gateway wrote last stands in the log alone; it is read, and neither file changes."""
    root = other_bots.openclaw(tmp_path, in_database=True)
    path = root / "agents" / "main" / "agent" / "openclaw-agent.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        last = json.dumps(other_bots.entry("ggggggg", "ffffff", "user", "One more"))
        database.execute("INSERT INTO transcript_events VALUES ('s-one', 7, ?, 0)", (last,))
        database.commit()
        assert path.with_name(f"{path.name}-wal").stat().st_size
        found = read("openclaw", root)
    assert found.sessions[0].messages[-1]["content"] == "One more"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("agent:main:telegram:direct:42", "telegram:42"),
        ("agent:main:telegram:dm:42", "telegram:42"),
        ("agent:main:telegram:group:-1001", "telegram:-1001"),
        ("agent:main:telegram:group:-1001:topic:7", "telegram:-1001/7"),
        ("agent:main:slack:channel:c0ab", "slack:C0AB"),
        ("agent:main:discord:channel:789:thread:345", "discord:789/345"),
        ("agent:main:main", ""),
        ("telegram:42", ""),
    ],
)
def test_openclaws_keys(theirs: str, ours: str) -> None:
    """Channel and chat are read from where they stand; what names no chat has no key."""
    assert convert_key(theirs) == ours


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("telegram:42", "telegram:42"),
        ("telegram:-1001:topic:7", "telegram:-1001/7"),
        ("slack:C0AB:171.2", "slack:C0AB/171.2"),
        ("main", "nanobot:main"),
        ("cron:daily", None),
        ("heartbeat", None),
    ],
)
def test_nanobots_keys(tmp_path: Path, theirs: str, ours: str | None) -> None:
    """A thread stands behind a slash, as with us; what a task said to itself is nobody's conversation."""
    about = {"_type": "metadata", "key": theirs}
    other_bots.jsonl(tmp_path / "sessions" / "x.jsonl", [about, {"role": "user", "content": "Hi"}])
    found = read("nanobot", tmp_path)
    assert [each.key for each in found.sessions] == ([ours] if ours else [])
    assert bool(reasons(found)) is (ours is None)


@pytest.mark.parametrize("stem", ["telegram_42", "dGVsZWdyYW06NDI", "k_dGVsZWdyYW06NDI"])
def test_a_key_is_read_from_a_files_name(tmp_path: Path, stem: str) -> None:
    """Where the first line does not say it: plain, or in base64."""
    other_bots.jsonl(
        tmp_path / "sessions" / f"{stem}.jsonl", [{"_type": "metadata"}, {"role": "user", "content": "Hi"}]
    )
    assert [each.key for each in read("nanobot", tmp_path).sessions] == ["telegram:42"]


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    """A folder from somebody else cannot have us read what it points to."""
    secret = write(tmp_path / "secret", "canary")
    root = tmp_path / "bot"
    write(root / "memory" / "MEMORY.md", "- tea\n")
    (root / "USER.md").symlink_to(secret)
    (root / "memory" / "2026-01-01.md").symlink_to(secret)
    (root / "sessions").symlink_to(tmp_path)
    found = read("nanobot", root)
    assert "canary" not in str(found)
    assert {"USER.md", "memory/2026-01-01.md"} <= set(reasons(found))


def test_what_is_no_folder_of_theirs_is_said(tmp_path: Path) -> None:
    """A path that is not there, and a state folder whose workspace stands elsewhere, each with what to do."""
    with pytest.raises(UserError, match="is not a folder"):
        SYSTEMS["nanobot"](tmp_path / "nowhere", "UTC")
    (tmp_path / "agents" / "main").mkdir(parents=True)
    with pytest.raises(UserError, match="name the workspace's own folder"):
        SYSTEMS["openclaw"](tmp_path, "UTC")


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_wrong_folder_is_refused_with_what_was_expected(tmp_path: Path, system: str) -> None:
    """An empty folder, or one with anything else in it, is not imported as nothing."""
    for name in ("", "src/main.py", "README.md", "config.json"):
        if name:
            write(tmp_path / name, "{}")
        with pytest.raises(UserError, match=r"expected one of memory, .*MEMORY\.md, SOUL\.md, USER\.md in it"):
            SYSTEMS[system](tmp_path, "UTC")
    (tmp_path / "workspace" / "memory").mkdir(parents=True)
    assert SYSTEMS[system](tmp_path, "UTC").documents == []  # theirs, and new


def test_another_bots_folder_is_named(tmp_path: Path) -> None:
    """Each reader would find half of the other's data."""
    write(tmp_path / "o" / "agents" / "main" / "sessions" / "sessions.json", "{}")
    with pytest.raises(UserError, match="`parlour import openclaw`"):
        SYSTEMS["nanobot"](tmp_path / "o", "UTC")
    with pytest.raises(UserError, match="`parlour import nanobot`"):
        SYSTEMS["openclaw"](other_bots.nanobot(tmp_path / "n"), "UTC")


def test_autobots_sessions_need_no_header(tmp_path: Path) -> None:
    """Lines of messages alone; the key is the file's name. Other lines are still no session."""
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]
    other_bots.jsonl(tmp_path / "sessions" / "telegram_42.jsonl", [*said, "{torn"])
    other_bots.jsonl(tmp_path / "sessions" / "b.jsonl", [*said, {"level": "info", "event": "x"}])
    found = read("autobot", tmp_path)
    (session,) = found.sessions
    assert (session.key, len(session.messages), session.consolidated, session.bad) == ("telegram:42", 2, 0, (b"{torn",))
    assert reasons(found) == {"sessions/b.jsonl": "it is not a session"}


def test_history_md_is_compared_with_the_record(tmp_path: Path) -> None:
    """Entries of both are taken once; those that only HISTORY.md has are taken too, repetitions counted."""
    other_bots.nanobot(tmp_path)
    path = tmp_path / "workspace" / "memory" / "HISTORY.md"
    same = "[2026-04-03 00:02] - User prefers dark mode\n- PostgreSQL\n\n[2026-04-04 10:00] Talked about boats.\n\n"
    write(path, same)
    found = read("nanobot", tmp_path)
    assert [each.source for each in found.histories] == ["workspace/memory/history.jsonl"]
    assert reasons(found)["workspace/memory/HISTORY.md"] == "history.jsonl has the same entries"
    write(path, f"[2026-04-01 09:00] Ann bought a boat.\n\n{same}[2026-05-04 10:00] Talked about boats.\n\n")
    record, markdown = read("nanobot", tmp_path).histories
    assert len(record.entries) == 2
    assert markdown.entries == (
        ("2026-04-01 09:00", "Ann bought a boat."),
        ("2026-05-04 10:00", "Talked about boats."),
    )


def test_odd_files_cost_themselves(tmp_path: Path) -> None:
    """No JSON, no session, a session without words, bytes of any kind: each is left out with its reason."""
    write(tmp_path / "sessions" / "a.json", "{")
    write(tmp_path / "sessions" / "b.jsonl", '{"x": 1}\n')
    write(tmp_path / "sessions" / "c.jsonl", '{"_type": "metadata"}\n{"role": "user", "content": {"odd": 1}}\n')
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "2026-02-31.md").write_bytes(b"caf\xe9\n")
    write(tmp_path / "memory" / "2026-01-01.md", " \n")
    found = read("nanobot", tmp_path)
    assert found.sessions == []
    assert set(reasons(found)) == {"sessions/a.json", "sessions/b.jsonl", "sessions/c.jsonl", "memory/2026-01-01.md"}
    assert [each.text for each in found.notes] == ["café\n"]
