"""The ScopeFileStore port: versions by compare-and-set, files in pieces, several scopes at once."""

from __future__ import annotations

import pytest

from gateway.ports.scope_files import ScopeChange, StoredFile, StoredFileChange
from gateway.ports.store import Store
from gateway.store.scope_files import PIECE_BYTES, SqlScopeFiles
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend

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
    small = [path for path in given if given[path] != large]
    assert await files.read_small(ANN, small) == {path: given[path] for path in small}
    assert await files.versions() == {ANN: "v1"}
    assert await files.files(BOB) == ("", ())


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


async def test_the_state_survives_a_restart(files: SqlScopeFiles, backend: StoreBackend) -> None:
    """So do the files. Of two gateways that begin, the first is the one."""
    assert await files.state() == ("", False)
    assert await files.begin_state("adopting:1") == "adopting:1"
    assert await files.begin_state("adopting:2") == "adopting:1"
    await files.set_state("stored:1")
    await files.save([ScopeChange(scope=ANN, was="", version="v1", changes=[whole("x", b"ann", "v1")])])
    await backend.kill()
    again = await backend.open()
    assert isinstance(again, SqlStore)
    after = SqlScopeFiles(again._engine)
    assert await after.state() == ("stored:1", False)
    assert await contents(after, ANN) == {"x": b"ann"}
