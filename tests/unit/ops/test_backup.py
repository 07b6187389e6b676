"""Backups are whole and private; a restore changes all or nothing; damaged journals are told from others."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shlex
import shutil
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from agent.files.file_workspace import ScopeWorkspaces
from gateway.backup import MANIFEST, backup
from gateway.errors import HomeInUse, SchemaTooNew, StoreUnavailable, UserError
from gateway.home import Home
from gateway.journal_file import journal_fault
from gateway.preflight import open_home
from gateway.restore import restore
from gateway.settings.setting_types import LEFT_OUT
from gateway.store.engine import StoreLimits, utc_now
from gateway.store.sqlite import FILE, open_file, schema
from gateway.store.sqlite.connection import SqliteConnection
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.store import open_inline_store
from tests.faults.process_pool import ForkServer

CANARY = "canary-secret-value"


class JournalOf:
    """A store over a real SQLite file, which it copies while it is open."""

    def __init__(self, home: Home) -> None:
        self.connection = sqlite3.connect(home.journal)
        self.connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS t(n)")

    def add(self, number: int) -> None:
        with self.connection:
            self.connection.execute("INSERT INTO t VALUES (?)", (number,))

    async def backup(self, target: Path) -> None:
        with closing(sqlite3.connect(target)) as copy:
            self.connection.backup(copy)

    def close(self) -> None:
        self.connection.close()


def fill(home: Home) -> None:
    """Put one of everything into a home: transcript with a torn tail, blob, index, secrets, settings."""
    scope = home.path / "people" / "telegram%3a42"
    (scope / "sessions").mkdir(parents=True)
    (scope / "sessions" / "telegram%3a42.jsonl").write_bytes(b'{"kind":"head"}\n{"i":0}\n{"kind":"end"}\n{"torn')
    (scope / "USER.md").write_text("# Ann\n")
    (scope / "files").mkdir()
    (scope / "files" / "USER.md").write_text("# Hers\n")
    (scope / "index.db").write_bytes(b"derived")
    (scope / "blobs").mkdir()
    (scope / "blobs" / "big").write_bytes(os.urandom(200_000))
    home.secrets.mkdir()
    (home.secrets / "LLM__API_KEY").write_text(CANARY)
    (home.path / "parlour.yaml").write_text(
        f"# my own words\nllm: {{model: a/b, api_key: {CANARY}}}\n"
        f"channels:\n  discord: {{enabled: off, token: '{CANARY}-2'}}\n"
    )


def contents(archive: Path) -> dict[str, bytes]:
    """Return every member of an archive."""
    with tarfile.open(archive) as packed:
        return {member.name: packed.extractfile(member).read() for member in packed}  # type: ignore[union-attr]


async def test_there_and_back(tmp_path: Path) -> None:
    """What is backed up while the gateway runs comes back byte for byte, journal and settings included.

    Files of documents are left out, because their rows are in the journal.
    """
    target = tmp_path / "b.tar.gz"
    with open_home(tmp_path / "home") as home:
        fill(home)
        store = JournalOf(home)
        store.add(7)
        made = await backup(home, store.backup, target)
        store.close()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert made.files == restore(target, tmp_path / "other")
    scope = tmp_path / "other" / "people" / "telegram%3a42"
    assert (scope / "files" / "USER.md").read_text() == "# Hers\n"
    assert not (scope / "USER.md").exists()
    assert (scope / "blobs" / "big").read_bytes() == (
        tmp_path / "home" / "people" / "telegram%3a42" / "blobs" / "big"
    ).read_bytes()
    with closing(sqlite3.connect(tmp_path / "other" / "journal.db")) as journal:
        assert journal.execute("SELECT n FROM t").fetchall() == [(7,)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "other").rglob("*") if path.is_file()} == {0o600}
    with open_home(tmp_path / "other"):
        pass


async def test_no_secret_and_nothing_passing_is_in_a_backup(tmp_path: Path) -> None:
    """Attack 90: no key from the secrets folder or the settings file; no lock, socket, index; and it says so."""
    with open_home(tmp_path / "home") as home:
        fill(home)
        home.socket.touch()
        made = await backup(home, None, tmp_path / "b.tar.gz")
    found = contents(made.target)
    assert CANARY.encode() not in b"".join(found.values())
    assert b"# my own words" in found["parlour.yaml"]
    assert found["parlour.yaml"].count(LEFT_OUT.encode()) == 2
    assert not {
        name for name in found if name.startswith(("secrets", "backups", "lock", "control.sock")) or "index.db" in name
    }
    assert {"secrets/", "parlour.yaml: llm.api_key", "parlour.yaml: channels.discord.token"} <= set(made.left_out)


async def test_a_secret_written_with_escapes_keeps_the_whole_settings_file_out(tmp_path: Path) -> None:
    """What cannot be told apart from the text around it does not go out with it."""
    with open_home(tmp_path / "home") as home:
        (home.path / "parlour.json").write_text('{"llm": {"api_key": "can\\u0061ry-secret-value"}}')
        made = await backup(home, None, tmp_path / "b.tar.gz")
    assert "parlour.json" not in contents(made.target)
    assert any(line.startswith("parlour.json (") for line in made.left_out)


async def test_transcripts_end_at_a_whole_line(tmp_path: Path) -> None:
    """A line that was being written when the process died is not in the backup."""
    with open_home(tmp_path / "home") as home:
        fill(home)
        made = await backup(home, None, tmp_path / "b.tar.gz")
    transcript = contents(made.target)["people/telegram%3a42/sessions/telegram%3a42.jsonl"]
    assert transcript == b'{"kind":"head"}\n{"i":0}\n{"kind":"end"}\n'


async def test_a_workspace_comes_back_whole(tmp_path: Path) -> None:
    """Its files, small and large, their marks, and what was deleted; also files whose names are those of ours."""
    scope = "people/telegram%3a42"
    contents = {"data.jsonl": b'{"no":"end"}', "index.db": b"a table", "Trips/Rome.md": b"Forum" * 40_000}
    with open_home(tmp_path / "home") as home:
        store = await open_inline_store(home.journal)
        at = ScopeWorkspaces(store.files, most_mb=1, now=utc_now).of(scope)
        for name, data in contents.items():
            await at.create(name, data, is_untrusted=name == "Trips/Rome.md")
        change = await at.replace("data.jsonl", b"new", key="1", is_untrusted=False)
        await backup(home, store.backup, tmp_path / "b.tar.gz")
        await store.close()
    restore(tmp_path / "b.tar.gz", tmp_path / "other")
    store = await open_inline_store(tmp_path / "other" / "journal.db")
    back = ScopeWorkspaces(store.files, most_mb=1, now=utc_now).of(scope)
    assert await back.restore(change.trash_id) == "data.jsonl"
    files = await back.list_files()
    found = {each.name: await back.read(each.name) for each in files}
    assert {name: content.data for name, content in found.items() if content} == contents
    assert [each.name for each in files if each.is_untrusted] == ["Trips/Rome.md"]
    await store.close()


async def test_files_and_journal_are_of_one_instant(tmp_path: Path) -> None:
    """What is written after the instant is in no file of the backup, though packing takes its time."""
    with open_home(tmp_path / "home") as home:
        fill(home)
        store = JournalOf(home)
        store.add(1)
        transcript = next(home.path.rglob("*.jsonl"))
        transcript.write_bytes(b'{"i":0}\n' * 20_000)  # large enough to be linked, not copied
        size = transcript.stat().st_size

        @asynccontextmanager
        async def still() -> AsyncIterator[None]:
            yield
            # The moment after: a turn is committed and projected, MEMORY.md is replaced, a session is renamed.
            store.add(2)
            with transcript.open("ab") as file:
                file.write(b'{"i":1}\n')
            (home.path / "new").write_text("x")
            transcript.rename(transcript.with_suffix(".archived.jsonl"))

        made = await backup(home, store.backup, tmp_path / "b.tar.gz", still=still())
        store.close()
    restore(made.target, tmp_path / "other")
    assert [path.stat().st_size for path in (tmp_path / "other").rglob("*.jsonl")] == [size]
    assert not (tmp_path / "other" / "new").exists()
    with closing(sqlite3.connect(tmp_path / "other" / "journal.db")) as journal:
        assert journal.execute("SELECT n FROM t").fetchall() == [(1,)]


async def test_a_backup_replaces_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """An existing file stays; neither success nor failure leaves temporary files."""
    target = tmp_path / "b.tar.gz"
    target.write_text("mine")
    with open_home(tmp_path / "home") as home:
        fill(home)
        with pytest.raises(UserError, match="already exists"):
            await backup(home, None, target)
        with pytest.raises(UserError, match="not a directory"):
            await backup(home, None, tmp_path / "nowhere" / "b.tar.gz")
        await backup(home, None, tmp_path / "c.tar.gz")
        assert list(home.backups.iterdir()) == []
    assert target.read_text() == "mine"
    assert names_in(tmp_path) == ["b.tar.gz", "c.tar.gz", "home"]


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


async def made_in(tmp_path: Path) -> Path:
    """Return a backup of a filled home."""
    with open_home(tmp_path / "home") as home:
        fill(home)
        return (await backup(home, None, tmp_path / "b.tar.gz")).target


async def test_a_home_with_data_needs_force_and_is_kept_aside(tmp_path: Path) -> None:
    """Without --force nothing is touched; with it, what was there moves into backups/, secrets and settings stay."""
    archive = await made_in(tmp_path)
    other = tmp_path / "other"
    with open_home(other) as home:
        (home.path / "precious.md").write_text("mine")
        (home.path / "parlour.yaml").write_text("language: de\n")
        home.secrets.mkdir()
        (home.secrets / "LLM__API_KEY").write_text("kept")
    with pytest.raises(UserError, match="use --force to replace it"):
        restore(archive, other)
    assert (other / "precious.md").read_text() == "mine"
    restore(archive, other, force=True)
    assert not (other / "precious.md").exists()
    (aside,) = (other / "backups").iterdir()
    assert (aside / "precious.md").read_text() == "mine"
    assert (other / "parlour.yaml").read_text() == "language: de\n"
    assert (other / "secrets" / "LLM__API_KEY").read_text() == "kept"


async def test_a_home_in_use_is_not_restored_into(tmp_path: Path) -> None:
    """A restore takes the lock like everybody."""
    archive = await made_in(tmp_path)
    with open_home(tmp_path / "other"), pytest.raises(HomeInUse):
        await asyncio.to_thread(restore, archive, tmp_path / "other", force=True)


def repacked(
    archive: Path, target: Path, change: Callable[[dict[str, tarfile.TarInfo], dict[str, bytes]], None]
) -> Path:
    """Write *archive* again after *change* has had its way with its members."""
    members, data = {}, {}
    with tarfile.open(archive) as old:
        for member in old:
            members[member.name] = member
            data[member.name] = old.extractfile(member).read()  # type: ignore[union-attr]
    change(members, data)
    with tarfile.open(target, "w:gz") as new:
        for name, member in members.items():
            member.size = len(data.get(name, b"")) if member.isreg() else 0
            new.addfile(member, io.BytesIO(data.get(name, b"")))
    return target


def add_member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[..., None]:
    """Return a change that adds a member of that name and type."""

    def change(members: dict[str, tarfile.TarInfo], data: dict[str, bytes]) -> None:
        evil = tarfile.TarInfo(name)
        evil.type, evil.linkname = kind, link
        members["evil"], data["evil"] = evil, b"evil"

    return change


def flip(members: dict[str, tarfile.TarInfo], data: dict[str, bytes]) -> None:
    """Change a file's words."""
    data["people/telegram%3a42/USER.md"] = b"# Eve\n"


def drop(members: dict[str, tarfile.TarInfo], data: dict[str, bytes]) -> None:
    """Take a file out."""
    del members["people/telegram%3a42/USER.md"]


def drop_manifest(members: dict[str, tarfile.TarInfo], data: dict[str, bytes]) -> None:
    """Take the list of files out."""
    del members[MANIFEST]


TRICKS = {
    "absolute": add_member("/etc/evil"),
    "upwards": add_member("../evil"),
    "upwards-inside": add_member("people/../../evil"),
    "dot": add_member("./evil"),
    "symlink": add_member("evil", kind=tarfile.SYMTYPE, link="/etc/passwd"),
    "hardlink": add_member("evil", kind=tarfile.LNKTYPE, link="people/telegram%3a42/USER.md"),
    "device": add_member("evil", kind=tarfile.CHRTYPE),
    "secrets": add_member("secrets/LLM__API_KEY"),
    "lock": add_member("lock"),
    "extra": add_member("extra.md"),
    "twice": add_member("people/telegram%3a42/USER.md"),
    "changed": flip,
    "missing": drop,
    "no-manifest": drop_manifest,
}


@pytest.mark.parametrize("trick", TRICKS)
async def test_a_bad_archive_changes_nothing(tmp_path: Path, trick: str) -> None:
    """Path tricks, links, devices, changed, missing and additional files: refused in one line, the home untouched."""
    evil = repacked(await made_in(tmp_path), tmp_path / "evil.tar.gz", TRICKS[trick])
    other = tmp_path / "other"
    with open_home(other) as home:
        (home.path / "precious.md").write_text("mine")
    before = names_in(other)
    with pytest.raises(UserError, match="nothing was changed") as wrong:
        restore(evil, other, force=True)
    assert "\n" not in str(wrong.value)
    assert names_in(other) == before
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kept", [0, 10, 500, -1])
async def test_a_cut_archive_changes_nothing(tmp_path: Path, kept: int) -> None:
    """A download that broke off is refused, wherever it broke."""
    archive = await made_in(tmp_path)
    data = archive.read_bytes()
    archive.write_bytes(data[: kept if kept >= 0 else len(data) // 2])
    with pytest.raises(UserError, match="nothing was changed"):
        restore(archive, tmp_path / "other")
    assert not list((tmp_path / "other").glob("people"))


async def test_an_archive_of_a_newer_parlour_is_refused(tmp_path: Path) -> None:
    """Data we do not know is not put in the place of data we do."""

    def newer(_: dict[str, tarfile.TarInfo], data: dict[str, bytes]) -> None:
        data[MANIFEST] = json.dumps(json.loads(data[MANIFEST]) | {"schema": 99}).encode()

    archive = repacked(await made_in(tmp_path), tmp_path / "newer.tar.gz", newer)
    with pytest.raises(SchemaTooNew, match="schema 99"):
        restore(archive, tmp_path / "other")


async def test_a_restore_that_was_killed_while_swapping_is_noticed(tmp_path: Path) -> None:
    """Half of each is never taken for a home; the same command again mends it."""
    archive = await made_in(tmp_path)
    restore(archive, tmp_path / "other")
    Home(tmp_path / "other").restoring.write_text("x")
    interrupted = pytest.raises(UserError, match="was interrupted; run `parlour restore FILE --force` again")
    with interrupted, open_home(tmp_path / "other"):
        pass
    restore(archive, tmp_path / "other", force=True)
    with open_home(tmp_path / "other"):
        pass


OTHER = 12345  # a user id that owns nothing


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    """A journal that was closed."""
    store = await open_file(tmp_path / FILE, StoreLimits())
    await store.close()
    return tmp_path / FILE


@contextmanager
def forbidden(journal: Path) -> Iterator[Path]:
    """Give a copy of the journal that this process may not read; root becomes another user for that."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders keep other users out
        copy = Path(shutil.copy(journal, folder))
        copy.chmod(0)
        if is_root:
            os.chown(folder, OTHER, OTHER)
            os.seteuid(OTHER)
        try:
            yield copy
        finally:
            if is_root:
                os.seteuid(0)


async def opening(journal: Path) -> str:
    """Return the line with which opening the store ends."""
    with pytest.raises(StoreUnavailable) as refused:
        await open_file(journal, StoreLimits())
    return str(refused.value)


async def test_another_owners_journal_is_not_damaged(journal: Path) -> None:
    """What may not be read is named with whom it keeps out; no restore is advised, which would drop everything."""
    with forbidden(journal) as kept:
        fault = journal_fault(kept)
        assert f"user id {os.geteuid()} cannot read and write {kept}" in fault
        assert "no data is damaged" in fault
        assert "restore" not in fault
    assert journal_fault(journal) == ""


async def test_a_locked_journal_is_not_damaged(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that holds the file is said, by the start and by the doctor."""
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(journal, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE meta SET value = value")
        for line in (journal_fault(journal), await opening(journal)):
            assert "is locked by another program" in line
            assert "restore" not in line


async def test_a_full_disk_is_not_damage(tmp_path: Path) -> None:
    """SQLite's own word for a full disk asks for room."""

    def connect(path: Path) -> SqliteConnection:
        connection = schema.connect(path)
        connection.execute("PRAGMA max_page_count = 2")
        return connection

    with pytest.raises(StoreUnavailable, match="is full: free some space and start again; no data is damaged"):
        await open_file(tmp_path / FILE, StoreLimits(), connect=connect)


def damage(journal: Path) -> None:
    """Write over everything but the journal's first page."""
    whole = journal.read_bytes()
    journal.write_bytes(whole[:4_000] + b"\xff" * (len(whole) - 4_000))


async def test_the_commands_in_the_line_about_damage_work_as_printed(tmp_path: Path, zygote: ForkServer) -> None:
    """A start on a damaged journal names two commands; after either, run as it is printed, the next one succeeds."""
    gateway = GatewayProcess(tmp_path / "a home", free_port(), zygote, XDG_RUNTIME_DIR=str(tmp_path))
    await gateway.start()
    await gateway.command("send", "web:owner", "Hello.")
    async with asyncio.timeout(60):
        while "Hello." not in await gateway.command("sessions", "show", "web:owner"):
            pass  # accepted, and answered in a moment: the backup must hold it
    (gateway.home / "backups").mkdir(mode=0o700)
    await gateway.command("backup", str(gateway.home / "backups" / "now.tar.gz"))
    for chosen in range(2):
        assert await gateway.stop() == 0
        damage(gateway.home / FILE)
        code, said = await gateway.run_to_its_end("run")
        assert code == 1, said
        line = next(line for line in said.splitlines() if line.startswith("parlour: "))
        assert "is damaged" in line
        _, doctor = await gateway.run_to_its_end("doctor", "--offline")
        assert line.removeprefix("parlour: ") in doctor
        commands = re.findall(r"run `([^`]+)`", line)
        assert len(commands) == 2
        name, *words = shlex.split(commands[chosen])
        assert name.endswith("/bin/parlour")
        code, said = await gateway.run_to_its_end(*words, typed="y\n")
        assert code == 0, said
        await gateway.start()
        assert "Hello." in await gateway.command("sessions", "show", "web:owner")
    assert await gateway.stop() == 0
    assert len([*(gateway.home / "backups").glob("lost-*/journal.db")]) == 1
