"""The ScopeFileStore port: versions by compare-and-set, files in pieces, deltas, several scopes at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.memory.storage.disk import Disk
from agent.memory.storage.scope_file_sync import ScopeFileSync
from gateway.ports.journal import Job
from gateway.ports.scope_files import ScopeChange, ScopeLook, StoredFile, StoredFileChange
from gateway.ports.store import Store
from gateway.store.database import Database
from gateway.store.scope_files import PIECE_BYTES, SqlScopeFiles
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import START

ANN, BOB = "people/pocket%3aann", "people/pocket%3abob"
ODD = "files/\udcff\n'\".txt"  # a name that is no UTF-8


@pytest.fixture
def files(store: Store) -> SqlScopeFiles:
    """Return the port on each engine; the embedded one offers it to nobody."""
    assert isinstance(store, SqlStore)
    return SqlScopeFiles(store._engine)


def whole(path: str, data: bytes, version: str, modified: int = 7) -> StoredFileChange:
    """Return the change that writes a file as a whole."""
    return StoredFileChange(file=StoredFile(path=path, size=len(data), replaced=version, modified=modified), data=data)


async def contents(files: SqlScopeFiles, scope: str) -> dict[str, bytes]:
    """Return the contents of all files of a scope."""
    return {
        each.path: b"".join([piece async for piece in files.read(scope, each)])
        for each in (await files.files(scope))[1]
    }


async def test_what_is_saved_is_read(files: SqlScopeFiles, backend: StoreBackend) -> None:
    """Bytes of every length and value, times, odd names; the small ones together, the large one in pieces."""
    large = bytes(range(256)) * 4 * 1024 * 5  # 5 MB
    given = {"a": b"", ODD: b"\x00\xff", "sessions/x.jsonl": b"{}\n", "attachments/y": large}
    changes = [whole(path, data, "v1") for path, data in given.items()]
    assert await files.save([ScopeChange(scope=ANN, was="", version="v1", changes=changes)]) is None
    version, stored = await files.files(ANN)
    assert version == "v1"
    assert {each.path: (each.size, each.replaced, each.modified) for each in stored} == {
        path: (len(data), "v1", 7) for path, data in given.items()
    }
    assert await contents(files, ANN) == given
    small = [each for each in stored if each.size < len(large)]
    assert await files.read_small(ANN, small) == {each.path: given[each.path] for each in small}
    assert await files.versions() == {ANN: "v1"}
    assert await files.files(BOB) == ("", ())


async def test_what_was_replaced_since_it_was_listed_is_not_read(files: SqlScopeFiles) -> None:
    """Its new content has the same size, as a branch has; with the rest of the list it is no state of the scope."""
    await files.save([ScopeChange(scope=ANN, was="", version="v1", changes=[whole("a", b"one", "v1")])])
    _, [listed] = await files.files(ANN)
    await files.save([ScopeChange(scope=ANN, was="v1", version="v2", changes=[whole("a", b"two", "v2")])])
    assert await files.read_small(ANN, [listed]) == {"a": b""}
    assert [piece async for piece in files.read(ANN, listed)] == []


async def test_a_file_that_grows_is_read_from_where_a_cache_ends(files: SqlScopeFiles) -> None:
    """An appended piece changes nothing before it; a file that is written anew has none of its old bytes."""
    first, second = b"a" * (PIECE_BYTES + 5), b"b" * 10
    await files.save([ScopeChange(scope=ANN, was="", version="v1", changes=[whole("x.jsonl", first, "v1")])])
    grown = StoredFile(path="x.jsonl", size=len(first) + len(second), replaced="v1", modified=8)
    appended = StoredFileChange(file=grown, start=len(first), data=second)
    assert await files.save([ScopeChange(scope=ANN, was="v1", version="v2", changes=[appended])]) is None
    assert b"".join([piece async for piece in files.read(ANN, grown, len(first))]) == second
    assert await contents(files, ANN) == {"x.jsonl": first + second}
    later = StoredFileChange(file=StoredFile(path="x.jsonl", size=grown.size, replaced="v1", modified=99))
    await files.save([ScopeChange(scope=ANN, was="v2", version="v3", changes=[later])])
    assert (await files.files(ANN))[1] == (later.file,)
    await files.save([ScopeChange(scope=ANN, was="v3", version="v4", changes=[whole("x.jsonl", b"c", "v4")])])
    assert await contents(files, ANN) == {"x.jsonl": b"c"}


async def test_a_change_to_another_version_is_refused_whole(files: SqlScopeFiles) -> None:
    """Of two scopes, one that was changed elsewhere leaves both as they were."""
    await files.save([ScopeChange(scope=ANN, was="", version="v1", changes=[whole("x", b"ann", "v1")])])
    moves = [
        ScopeChange(scope=ANN, was="v1", version="v2", removed=["x"]),
        ScopeChange(scope=BOB, was="v0", version="v2", changes=[whole("x", b"ann", "v2")]),
    ]
    assert await files.save(moves) == BOB
    assert await contents(files, ANN) == {"x": b"ann"}
    assert await files.versions() == {ANN: "v1"}
    again = [ScopeChange(scope=ANN, was="", version="v9", changes=[whole("x", b"other", "v9")])]
    assert await files.save(again) == ANN
    assert await contents(files, ANN) == {"x": b"ann"}


async def test_files_move_between_scopes_at_once_and_an_empty_scope_leaves_no_name(files: SqlScopeFiles) -> None:
    """The scope that has none left is not listed, and begins again like a new one."""
    await files.save([ScopeChange(scope=ANN, was="", version="v1", changes=[whole("x", b"ann", "v1")])])
    moves = [
        ScopeChange(scope=BOB, was="", version="v2", changes=[whole("x", b"ann", "v2")]),
        ScopeChange(scope=ANN, was="v1", version="v2", removed=["x"]),
    ]
    assert await files.save(moves) is None
    assert await files.versions() == {BOB: "v2"}
    assert await contents(files, BOB) == {"x": b"ann"}
    assert await files.save([ScopeChange(scope=ANN, was="", version="v3", changes=[whole("y", b"", "v3")])]) is None


async def test_a_look_at_scopes_names_versions_and_jobs(files: SqlScopeFiles, store: Store) -> None:
    """What another gateway has changed is fetched, and what it left to be done in a scope is done, before its use."""
    await files.save([ScopeChange(scope=ANN, was="", version="v1", changes=[whole("x", b"ann", "v1")])])
    for number in (1, 2):
        await store.jobs.put(Job(id=f"j{number}", kind="remember", scope=BOB, payload={}, due_at=START))
    assert await files.look(ANN, BOB, "shared") == {
        ANN: ScopeLook("v1", has_jobs=False),
        BOB: ScopeLook("", has_jobs=True),
        "shared": ScopeLook("", has_jobs=False),
    }


def change(was: str, version: str, *paths: str, removed: Collection[str] = ()) -> ScopeChange:
    """Return the change of ANN's scope that writes *paths*."""
    files = [whole(path, version.encode(), version) for path in paths]
    return ScopeChange(scope=ANN, was=was, version=version, changes=files, removed=removed)


async def difference(files: SqlScopeFiles, since: str, known: Collection[str]) -> tuple[str, set[str], set[str]] | None:
    """Return the version, the new and changed paths and the removed ones."""
    delta = await files.changes(ANN, since, known)
    return None if delta is None else (delta.version, {each.path for each in delta.files}, set(delta.removed))


async def test_a_delta_has_what_is_newer_than_a_version(files: SqlScopeFiles) -> None:
    """Changed, removed and restored files since each version that a cache may have; nothing of before."""
    await files.save([change("", "v1", "a", "b", ODD)])
    await files.save([change("v1", "v2", "a")])
    await files.save([change("v2", "v3", "c", removed=["b", ODD])])
    await files.save([change("v3", "v4", "b")])
    known = ["a", "b", "c", ODD]
    assert await difference(files, "v4", known) == ("v4", set(), set())
    assert await difference(files, "v3", known) == ("v4", {"b"}, set())
    assert await difference(files, "v2", known) == ("v4", {"b", "c"}, {ODD})
    assert await difference(files, "v1", known) == ("v4", {"a", "b", "c"}, {ODD})
    assert await difference(files, "", known) is None
    assert await difference(files, "v0", known) is None
    await files.save([change("v4", "v5", removed=["a", "b", "c"])])
    assert await difference(files, "v4", known) is None  # the scope is gone: an empty list says so
    await files.save([change("", "v6", "a")])
    assert await difference(files, "v4", known) is None
    assert await difference(files, "v6", known) == ("v6", set(), set())


async def test_a_cache_that_is_far_behind_lists_all(files: SqlScopeFiles) -> None:
    """Some versions are known, and what was removed is not kept for longer than they are."""
    await files.save([change("", "v0", "a", "b")])
    for n in range(40):
        await files.save([change(f"v{n}", f"v{n + 1}", "a", removed=["b"] if n == 0 else ())])
    assert await difference(files, "v39", ["a"]) == ("v40", {"a"}, set())
    assert await difference(files, "v9", ["a"]) == ("v40", {"a"}, set())
    assert await difference(files, "v8", ["a"]) is None
    await files.save([change("v40", "v41", "b", "c")])
    await files.save([change("v41", "v42", removed=["b"])])
    assert await rows(files, "SELECT count(*) FROM scope_removal") == [(1,)]
    assert await rows(files, "SELECT length(recent) FROM scope") == [(32 * 4 - 1,)]


async def test_a_change_by_the_release_before_is_in_no_delta_but_in_the_list(files: SqlScopeFiles) -> None:
    """It numbers nothing: caches list all files until they are past it, and what it changed is not missed."""
    await files.save([change("", "v1", "a", "b")])
    await files.save([change("v1", "v2", removed=["b"])])
    for statement in (
        "UPDATE scope SET version = 'old'",
        "UPDATE scope_file SET size = 99 WHERE path = 'a'",
        "INSERT INTO scope_file (scope, path, size, replaced, modified) SELECT scope, 'b', 1, 'old', 7 FROM scope",
    ):
        await rows(files, statement)
    assert await difference(files, "v2", ["a", "b"]) is None
    assert await difference(files, "old", ["a", "b"]) is None
    await files.save([change("old", "v3", "c")])
    for since in ("v1", "v2", "old"):
        assert await difference(files, since, ["a", "b"]) is None
    await files.save([change("v3", "v4", "d")])
    assert await difference(files, "v3", ["a", "b", "c"]) == ("v4", {"d"}, set())
    assert {each.path: each.size for each in (await files.files(ANN))[1]} == {"a": 99, "b": 1, "c": 2, "d": 2}


async def rows(files: SqlScopeFiles, statement: str) -> list[Any]:
    """Return the rows of a statement."""

    def run(database: Database) -> list[Any]:
        result = database.execute(statement)
        return result.fetchall() if statement.startswith("SELECT") else []

    return await files._engine.writer.submit(run)


class CountedRows:
    """A database that counts statements, and the rows that are read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.statements = self.rows = 0

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run one statement, and read all of its rows."""
        self.statements += 1
        result = self._database.execute(statement, parameters)
        if not statement.startswith("SELECT"):
            return result
        found = result.fetchall()
        self.rows += len(found)
        return _ReadRows(found)

    def executemany(self, statement: str, parameters: Any, /) -> Any:
        """Run a statement several times."""
        self.statements += 1
        return self._database.executemany(statement, parameters)


class _ReadRows(list[Any]):
    def fetchall(self) -> list[Any]:
        return self

    def fetchone(self) -> Any:
        return self[0] if self else None


async def test_catching_up_reads_what_has_changed_and_not_the_scope(
    files: SqlScopeFiles, backend: StoreBackend, tmp_path: Path
) -> None:
    """Of 1,000 files, a changed, a new and a removed one are seven rows for another gateway, in four statements."""
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    for n in range(1_000):
        path = homes[0] / ANN / f"files/{n}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % n)
    first, second = (ScopeFileSync(home, files, with_documents=True) for home in homes)
    await first.start()
    await second.start()
    Disk().replace(homes[0] / ANN / "files/7.txt", b"changed")
    Disk().replace(homes[0] / ANN / "USER.md", b"new")
    Disk().remove(homes[0] / ANN / "files/8.txt")
    await first.save([ANN])
    counted: list[CountedRows] = []
    writer = files._engine.writer
    submit = writer.submit

    def count(operation: Any, *others: Any, **options: Any) -> Any:
        def run(database: Database) -> Any:
            counted.append(CountedRows(database))
            return operation(counted[-1])

        return submit(run, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "submit", count)
        await second.fetch(ANN)
    assert sum(each.rows for each in counted) == 7  # a version twice, three differences, two contents
    assert sum(each.statements for each in counted) == 4
    names = {path.name: path.read_bytes() for path in (homes[1] / ANN).rglob("*") if path.is_file()}
    assert len(names) == 1_000
    assert "8.txt" not in names
    assert (names["7.txt"], names["USER.md"]) == (b"changed", b"new")
    for each in (first, second):
        await each.close()


async def test_the_state_survives_a_restart(files: SqlScopeFiles, backend: StoreBackend) -> None:
    """So do the files. Of two gateways that begin, the first is the one."""
    assert await files.state() == ("", False)
    assert await files.begin_state("adopting:1") == "adopting:1"
    assert await files.begin_state("adopting:2") == "adopting:1"
    await files.set_state("stored:1")
    await files.save([ScopeChange(scope=ANN, was="", version="v1", changes=[whole("x", b"ann", "v1")])])
    again = await backend.reopen()
    assert isinstance(again, SqlStore)
    after = SqlScopeFiles(again._engine)
    assert await after.state() == ("stored:1", False)
    assert await contents(after, ANN) == {"x": b"ann"}


async def test_documents_that_are_rows_are_stored_no_more(files: SqlScopeFiles, tmp_path: Path) -> None:
    """Once they are taken over, their files are in the database no more, and stay here."""
    folder = tmp_path / ANN
    names = ("memory/MEMORY.md", "SOUL.md", "memory/.git/HEAD", "memory/epoch.txt", "workspace/plan.md")
    for name in names:
        Disk().replace(folder / name, b"x\n")
    sync = ScopeFileSync(tmp_path, files, with_documents=True)
    await sync.start()
    await sync.save_all()
    assert {each.path for each in (await files.files(ANN))[1]} == set(names)
    await sync.leave_documents()
    assert {each.path for each in (await files.files(ANN))[1]} == {"workspace/plan.md"}
    Disk().replace(folder / "memory/MEMORY.md", b"y\n")
    Disk().replace(folder / "memory/.mirror/MEMORY.md.json", b"{}")
    Disk().replace(folder / "workspace/plan.md", b"z\n")
    await sync.close()
    again = ScopeFileSync(tmp_path, files, with_documents=False)
    await again.start()
    await again.close()
    assert await contents(files, ANN) == {"workspace/plan.md": b"z\n"}
    assert (folder / "memory/MEMORY.md").read_bytes() == b"y\n"
    assert (folder / "memory/.git/HEAD").read_bytes() == b"x\n"
