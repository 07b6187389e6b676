"""A database of a release before files were rows: its files come into a home once, and its tables go."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.base.scopes import scope_folder
from agent.memory import file_adoption as earlier_files
from agent.memory.file_adoption import build_filter, drop_earlier_files, fetch_earlier_files
from gateway.errors import UserError
from gateway.ports.memory import CACHE
from gateway.store.engine import StoreLimits
from gateway.store.file_copies import SqlEarlierFiles
from gateway.store.objects import DirectoryObjects, ObjectStore
from gateway.store.postgres import open_database
from gateway.store.sql_store import SqlStore
from tests.fakes.earlier_database import MEMORY_ID, fill_database, mark_home
from tests.fakes.memory import ProcessCrash
from tests.fakes.postgres_server import PostgresServer

SCOPE = "people/telegram%3a42"
ALL = build_filter(documents=True, conversations=True, history=True, files=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a home as the release before had it."""
    home = tmp_path / "source"
    large = os.urandom(900_000)
    for path, data in {
        "memory/MEMORY.md": b"- likes tea\n", "memory/history.jsonl": b"{}\n", "memory/.git/HEAD": b"ref: x\n",
        "sessions/telegram%3a42.jsonl": b"{}\n" * 9, f"attachments/{hashlib.sha256(large).hexdigest()}": large,
        "files/notes/a.txt": b"", "USER.md": b"- Ann\n", "exports/x.zip": b"zip",
    }.items():  # fmt: skip
        file = scope_folder(home, SCOPE) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    chat = scope_folder(home, "chats/telegram%3a7") / "memory" / "MEMORY.md"
    chat.parent.mkdir(parents=True)
    chat.write_text("- a group\n")
    return home


@pytest.fixture
async def opened(server: PostgresServer, source: Path) -> AsyncIterator[SqlStore]:
    """Return the store of a database with the files of *source*."""
    fill_database(server.url, source)
    store = await open_database(server.url, StoreLimits())
    yield store
    await store.close()


def port_of(store: SqlStore) -> SqlEarlierFiles:
    """Return the port under test."""
    assert store.earlier_files is not None
    return store.earlier_files


async def fetch(
    home: Path,
    store: SqlStore,
    *,
    objects: ObjectStore | None = None,
    is_wanted: Callable[[str], bool] = ALL,
) -> int:
    """Fetch as a start does."""
    return await fetch_earlier_files(home, port_of(store), objects, is_wanted=is_wanted, is_one=False)


def contents(home: Path) -> dict[str, bytes]:
    """Return the files of the scopes of a home."""
    areas = [path for area in ("people", "chats") for path in (home / area).rglob("*") if path.is_file()]
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in areas}


def expected(source: Path) -> dict[str, bytes]:
    """Return what comes out of the database: all but unfinished exports."""
    return {path: data for path, data in contents(source).items() if "/exports/" not in path}


async def test_a_new_home_gets_every_file_as_it_was(opened: SqlStore, source: Path, tmp_path: Path) -> None:
    """Byte for byte, private, and with its time, by which retention goes; a second time nothing is left to do."""
    home = tmp_path / "new"
    assert await fetch(home, opened) == len(expected(source))
    assert contents(home) == expected(source)
    for path in contents(home):
        assert (home / path).stat().st_mtime_ns == (source / path).stat().st_mtime_ns
        assert (home / path).stat().st_mode & 0o077 == 0
    assert await fetch(home, opened) == 0


async def test_a_fetch_that_is_killed_anywhere_goes_on(
    opened: SqlStore, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a file is written again, and none is left under another name."""
    append, at = earlier_files._append, 0
    while True:
        home, left = tmp_path / f"killed-{at}", [at]

        def die(path: Path, data: bytes, left: list[int] = left) -> None:
            left[0] -= 1
            append(path, data[: len(data) // 2] if left[0] < 0 else data)
            if left[0] < 0:
                raise ProcessCrash

        monkeypatch.setattr(earlier_files, "_append", die)
        try:
            await fetch(home, opened)
        except ProcessCrash:
            monkeypatch.setattr(earlier_files, "_append", append)
            await fetch(home, opened)
            assert contents(home) == expected(source), at
        else:
            break
        at += 1
    assert at > 8


async def test_the_database_wins_over_a_homes_copy(opened: SqlStore, source: Path, tmp_path: Path) -> None:
    """What was changed or erased at another gateway since does not come back; other data of a home stay."""
    home = tmp_path / "copy"
    shutil.copytree(source, home)
    mark_home(home)
    folder = scope_folder(home, SCOPE)
    (folder / "memory" / "MEMORY.md").write_text("- likes tea\n- erased elsewhere\n")
    (folder / "attachments" / "erased").write_bytes(b"erased")
    (folder / "index.db").write_bytes(b"an index")
    gone = scope_folder(home, "people/gone") / "memory"
    gone.mkdir(parents=True)
    (gone / "MEMORY.md").write_text("- erased as a whole\n")
    await fetch(home, opened)
    left = {path: data for path, data in contents(home).items() if "/exports/" not in path}
    assert left == {**expected(source), f"{SCOPE}/index.db": b"an index"}


async def test_only_what_is_not_taken_over_yet_is_fetched(opened: SqlStore, tmp_path: Path) -> None:
    """Where documents, turns and histories are rows already, their mirror is left alone."""
    home = tmp_path / "new"
    mark_home(home)
    mirror = scope_folder(home, SCOPE) / "memory" / "MEMORY.md"
    mirror.parent.mkdir(parents=True)
    mirror.write_text("- as the rows have it\n")
    is_wanted = build_filter(documents=False, conversations=False, history=False, files=True)
    assert await fetch(home, opened, is_wanted=is_wanted) == 2
    assert mirror.read_text() == "- as the rows have it\n"
    assert not list((home / SCOPE).rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("state", "id_", "line"),
    [
        ("stored:ffff", MEMORY_ID, "has memory that is not the database's"),
        ("adopting:ffff", MEMORY_ID, "is being stored from another home"),
        (f"adopting:{MEMORY_ID}", MEMORY_ID, ""),
        (f"stored:{MEMORY_ID}", "", "has memory that is not the database's"),
    ],
)
async def test_a_home_with_other_memory_is_refused(
    opened: SqlStore, source: Path, tmp_path: Path, server: PostgresServer, state: str, id_: str, line: str
) -> None:
    """Nothing of it is removed. The home that was being stored has all, and nothing is fetched into it."""
    server.query(f"UPDATE scope_state SET value = '{state}'")  # noqa: S608 - of the test
    home = tmp_path / "home"
    shutil.copytree(source, home)
    (scope_folder(home, SCOPE) / "memory" / "MEMORY.md").write_text("- only here\n")
    if id_:
        mark_home(home, id_)
    before = contents(home)
    if line:
        with pytest.raises(UserError, match=line):
            await fetch(home, opened)
    else:
        assert await fetch(home, opened) == 0
    assert contents(home) == before


async def test_an_object_is_read_and_verified(server: PostgresServer, source: Path, tmp_path: Path) -> None:
    """A damaged one, or none, stops the start with a line that says what helps; the tables stay."""
    (photo,) = (scope_folder(source, SCOPE) / "attachments").iterdir()
    fill_database(server.url, source, objects=[photo])
    store = await open_database(server.url, StoreLimits())
    objects, name = DirectoryObjects(tmp_path / "objects"), f"{photo.name}-00000000"
    for data in (None, b"other", photo.read_bytes()[:-1]):
        home = tmp_path / f"home-{data and len(data)}"
        if data is not None:
            await objects.put(name, data)
        with pytest.raises(UserError, match="is missing or damaged"):
            await fetch(home, store, objects=objects)
    with pytest.raises(UserError, match="OBJECTS__URL"):
        await fetch(tmp_path / "none", store)
    await objects.put(name, photo.read_bytes())
    home = tmp_path / "whole"
    await fetch(home, store, objects=objects)
    assert contents(home) == expected(source)
    await drop_earlier_files(home, port_of(store))
    assert server.query("SELECT name, due FROM unused_object") == [(name, 0)]
    await store.close()


async def test_the_tables_are_dropped_once_and_other_homes_lose_their_copies(
    opened: SqlStore, source: Path, tmp_path: Path
) -> None:
    """A copy at another gateway's home would keep what is erased from now on."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for home in (mine, other):
        shutil.copytree(source, home)
        mark_home(home)
    await drop_earlier_files(mine, port_of(opened))
    assert not await port_of(opened).exists()
    assert not (mine / CACHE).exists()
    assert list((mine / SCOPE / "attachments").iterdir())  # taken over, and moved away by who did that
    assert await fetch(mine, opened) == 0
    for _ in range(2):
        await drop_earlier_files(other, port_of(opened))
        assert not (other / CACHE).exists()
        assert not (other / SCOPE / "attachments").exists()
        assert not (other / SCOPE / "files").exists()


async def test_gateways_that_start_at_once_on_a_new_database_drop_the_tables_once(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Each finds them as they are, or dropped."""
    fill_database(server.url, tmp_path / "nothing", state="")
    stores = [await open_database(server.url, StoreLimits(), shares=True) for _ in range(3)]

    async def start(store: SqlStore, home: Path) -> None:
        assert await fetch(home, store) == 0
        await drop_earlier_files(home, port_of(store))
        assert await port_of(store).state() == ("", False)

    await asyncio.gather(*(start(store, tmp_path / str(n)) for n, store in enumerate(stores)))
    assert not any([await port_of(store).exists() for store in stores])
    for store in stores:
        await store.close()
