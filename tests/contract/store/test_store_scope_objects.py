"""Large files in an object store, on each engine and in each kind of place: none lost, left over or changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from agent.memory.storage.disk import Disk
from agent.memory.storage.scope_file_sync import ScopeFileSync
from gateway.backup import write_archive
from gateway.errors import ObjectDamaged, StoreUnavailable, UserError
from gateway.ports.scope_files import ScopeChange, StoredFile, StoredFileChange
from gateway.ports.store import Store
from gateway.scope_repair import ScopeRepair
from gateway.store.scope_files import SqlScopeFiles
from gateway.store.scope_objects import LARGER
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.object_stores import ObjectBackend, open_object_backend

ANN, BEN = "people/pocket%3aann", "people/pocket%3aben"
MEMORY = "memory/MEMORY.md"
LARGE, OTHER = b"a" * (LARGER + 1), b"b" * (LARGER + 5)
PHOTO = "attachments/" + "0" * 64


@pytest.fixture(params=["directory", "bucket"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectBackend]:
    """Return an empty place for objects."""
    async with open_object_backend(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
async def files(store: Store, place: ObjectBackend) -> SqlScopeFiles:
    """Return the port on each engine, with a place for large files."""
    assert isinstance(store, SqlStore)
    opened = SqlScopeFiles(store._engine)
    opened.use_objects(place.open())
    return opened


def whole(path: str, data: bytes, version: str, *, is_standalone: bool = True) -> StoredFileChange:
    """Return the change that writes a file as a whole."""
    file = StoredFile(path=path, size=len(data), replaced=version, modified=7)
    return StoredFileChange(file=file, data=data, is_standalone=is_standalone)


async def save(
    files: SqlScopeFiles, was: str, version: str, *changes: StoredFileChange, removed: str = ""
) -> str | None:
    """Change ANN's scope."""
    gone = [removed] if removed else []
    return await files.save([ScopeChange(scope=ANN, was=was, version=version, changes=changes, removed=gone)])


async def contents(files: SqlScopeFiles) -> dict[str, bytes]:
    """Return the contents of all files of ANN's scope."""
    return {
        each.path: b"".join([piece async for piece in files.read(ANN, each)]) for each in (await files.files(ANN))[1]
    }


async def test_large_files_are_objects_and_all_others_rows(files: SqlScopeFiles, place: ObjectBackend) -> None:
    """By size and kind; objects are named by their SHA-256, and read like any file. A change of the time keeps them."""
    given = {PHOTO: LARGE, "attachments/small": LARGE[:LARGER], "memory/large.md": OTHER}
    changes = [whole(path, data, "v1", is_standalone=path != "memory/large.md") for path, data in given.items()]
    assert await save(files, "", "v1", *changes) is None
    assert await contents(files) == given
    ((name, stored),) = place.contents().items()
    assert (len(name), stored) == (73, LARGE)
    later = StoredFile(path=PHOTO, size=len(LARGE), replaced="v1", modified=99)
    await save(files, "v1", "v2", StoredFileChange(file=later))
    await files.remove_unused()
    assert await contents(files) == given
    delta = await files.changes(ANN, "v1", given)
    assert delta is not None
    assert [(each.path, each.object) for each in delta.files] == [(PHOTO, name)]


async def test_objects_go_with_their_files(files: SqlScopeFiles, place: ObjectBackend, store: Store) -> None:
    """Removed, replaced by a large or a small content, or of a scope that is erased; a purge waits for it."""
    await save(files, "", "v1", *(whole(f"files/{n}", LARGE, "v1") for n in range(4)))
    await save(files, "v1", "v2", whole("files/1", OTHER, "v2"), whole("files/2", b"small", "v2"), removed="files/0")
    await files.remove_unused()
    assert sorted(place.contents().values()) == sorted([OTHER, LARGE])
    assert await contents(files) == {"files/1": OTHER, "files/2": b"small", "files/3": LARGE}
    gone = ScopeChange(scope=ANN, was="v2", version="v3", removed=["files/1", "files/2", "files/3"])
    assert await files.save([gone]) is None
    place.set_away(True)
    with pytest.raises(StoreUnavailable, match=r"store\.objects\.url"):
        await store.erasing.scrub()
    place.set_away(False)
    assert await store.erasing.scrub()
    assert place.contents() == {}


async def test_of_two_gateways_one_stores_a_file_and_nothing_is_left_of_the_other(
    files: SqlScopeFiles, place: ObjectBackend
) -> None:
    """The same content at the same time: the refused one's object is removed, and not the other's."""
    assert await save(files, "", "v1", whole(PHOTO, LARGE, "v1")) is None
    assert await save(files, "", "v2", whole(PHOTO, LARGE, "v2")) == ANN
    assert len(place.contents()) == 2
    await files.remove_unused()
    assert len(place.contents()) == 1
    assert await contents(files) == {PHOTO: LARGE}


async def test_without_the_object_store_nothing_is_promised(files: SqlScopeFiles, place: ObjectBackend) -> None:
    """A change with a large file fails whole, and is made once the place is back; others do not need it."""
    place.set_away(True)
    with pytest.raises(StoreUnavailable, match=r"store\.objects\.url"):
        await save(files, "", "v1", whole(PHOTO, LARGE, "v1"), whole("files/note", b"small", "v1"))
    assert await files.files(ANN) == ("", ())
    assert await save(files, "", "v1", whole("files/note", b"small", "v1")) is None
    place.set_away(False)
    assert await save(files, "v1", "v2", whole(PHOTO, LARGE, "v2")) is None
    assert await contents(files) == {"files/note": b"small", PHOTO: LARGE}


async def test_the_object_of_a_killed_gateway_is_removed(
    files: SqlScopeFiles, place: ObjectBackend, backend: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written and never referred to: after a quarter of an hour it goes, and not while it may be waited for."""
    with monkeypatch.context() as patch:
        patch.setattr("gateway.store.scope_files._save", _killed)
        with pytest.raises(ZeroDivisionError):
            await save(files, "", "v1", whole(PHOTO, LARGE, "v1"))
    assert len(place.contents()) == 1
    await files.remove_unused()
    assert len(place.contents()) == 1
    backend.wall.advance(minutes=16)
    await files.remove_unused()
    assert place.contents() == {}


async def test_an_object_that_was_removed_before_its_commit_is_stored_again(
    files: SqlScopeFiles, place: ObjectBackend, backend: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that comes later than that refers to nothing: it fails, and the next one has the content."""
    store_objects = files._objects
    assert store_objects is not None
    first = await store_objects.store(
        [ScopeChange(scope=ANN, was="", version="v1", changes=[whole(PHOTO, LARGE, "v1")])]
    )
    backend.wall.advance(minutes=16)
    await files.remove_unused()
    with monkeypatch.context() as patch:
        patch.setattr(store_objects, "store", _returns(first))
        with pytest.raises(StoreUnavailable, match="stored again"):
            await save(files, "", "v1", whole(PHOTO, LARGE, "v1"))
    assert await files.files(ANN) == ("", ())
    assert await save(files, "", "v1", whole(PHOTO, LARGE, "v1")) is None
    assert await contents(files) == {PHOTO: LARGE}


@pytest.mark.parametrize("data", [LARGE[:-1], LARGE + b"a", b"b" + LARGE[1:], b"", None])
async def test_a_damaged_object_blocks_its_scope_alone(
    files: SqlScopeFiles, place: ObjectBackend, tmp_path: Path, data: bytes | None
) -> None:
    """Truncated, longer, other or no bytes reach no home. Without them its scope is not served, and others are.

    What is written there is stored, nothing of the damaged scope is, and the restored object is fetched.
    """
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    Disk().replace(homes[0] / ANN / PHOTO, LARGE)
    Disk().replace(homes[0] / BEN / MEMORY, b"- likes tea\n")
    first, second = (ScopeFileSync(home, files, with_documents=True) for home in homes)
    await first.start()
    before = await files.files(ANN)
    ((name, _),) = place.contents().items()
    place.change(name, data)
    await second.start()
    assert not (homes[1] / ANN / PHOTO).exists()
    for _ in range(2):
        with pytest.raises(ObjectDamaged, match=name):
            await second.fetch(ANN, BEN)
    Disk().replace(homes[1] / BEN / MEMORY, b"- likes coffee\n")
    await second.save_all()
    second.touch(ANN)
    with pytest.raises(StoreUnavailable):
        await second.save((ANN,))
    await second.close()
    await first.fetch(BEN)
    assert (homes[0] / BEN / MEMORY).read_bytes() == b"- likes coffee\n"
    assert await files.files(ANN) == before
    again = ScopeFileSync(homes[1], files, with_documents=True)
    await again.start()
    place.change(name, LARGE)
    await again.fetch(ANN)
    assert (homes[1] / ANN / PHOTO).read_bytes() == LARGE
    await again.save_all()
    assert await files.files(ANN) == before
    for each in (first, again):
        await each.close()


async def test_damaged_files_are_restored_from_any_copy_and_removed_without_one(
    files: SqlScopeFiles, place: ObjectBackend, tmp_path: Path
) -> None:
    """From a home, a copy of the objects and a backup; a damaged copy is none. Whole files stay, no object is left."""
    given = {f"files/{n}": bytes([n]) * (LARGER + n + 1) for n in range(5)} | {MEMORY: b"- likes tea\n"}
    changes = [whole(path, data, "v1", is_standalone=path != MEMORY) for path, data in given.items()]
    await save(files, "", "v1", *changes)
    names = {each.path: each.object for each in (await files.files(ANN))[1]}
    damages = [None, given["files/1"][:-1], b"x" + given["files/2"][1:], b""]
    for n, damage in enumerate(damages):
        place.change(names[f"files/{n}"], damage)
    repair = ScopeRepair(files)
    damaged = [found async for _, _, found in repair.check() if found is not None]
    assert [(each.scope, each.file.path) for each in damaged] == [(ANN, f"files/{n}") for n in range(4)]
    assert all(each.file.object in each.reason for each in damaged)
    home, copy, archive = tmp_path / "home", tmp_path / "copy", tmp_path / "backup.tar.gz"
    Disk().replace(home / ANN / "files/0", given["files/0"])
    Disk().replace(copy / names["files/1"], given["files/1"])
    Disk().replace(tmp_path / "other" / ANN / "files/2", given["files/2"])
    for n in (1, 3):
        Disk().replace(home / ANN / f"files/{n}", b"?" * len(given[f"files/{n}"]))
    write_archive(tmp_path / "other", archive, schema=1)
    restored = {source.name: await repair.restore(damaged, source) for source in (home, copy, archive)}
    assert {name: [each.file.path for each in found] for name, found in restored.items()} == {
        "home": ["files/0"], "copy": ["files/1"], "backup.tar.gz": ["files/2"]
    }  # fmt: skip
    assert [found.file.path async for _, _, found in repair.check() if found is not None] == ["files/3"]
    await repair.remove(damaged[3])
    await repair.remove(damaged[0])  # it is whole again: nothing is done
    del given["files/3"]
    assert await contents(files) == given
    await files.remove_unused()
    assert sorted(place.contents().values()) == sorted(data for path, data in given.items() if path != MEMORY)
    for source in (tmp_path / "none", home / ANN / "files/0"):
        with pytest.raises(UserError, match="cannot be read"):
            await repair.restore(damaged, source)


async def test_lost_rows_are_found_and_a_repair_waits_for_other_gateways(
    files: SqlScopeFiles, place: ObjectBackend, store: Store, tmp_path: Path
) -> None:
    """A file in the database lacks a piece; a change of the scope by another gateway is not undone by a repair."""
    await save(files, "", "v1", whole(PHOTO, LARGE, "v1"), whole(MEMORY, OTHER, "v1", is_standalone=False))
    assert isinstance(store, SqlStore)
    lose = "DELETE FROM scope_piece WHERE start > 0"
    await store._engine.writer.submit(lambda database: database.execute(lose).close())
    (name,) = place.contents()
    place.change(name, None)
    repair = ScopeRepair(files)
    damaged = [found async for _, _, found in repair.check() if found is not None]
    assert [each.file.path for each in damaged] == [PHOTO, MEMORY]
    assert "a dump of the database has all" in damaged[1].reason
    Disk().replace(tmp_path / ANN / PHOTO, LARGE)
    Disk().replace(tmp_path / ANN / MEMORY, OTHER)
    list_files = files.files

    async def list_then_change(scope: str) -> tuple[str, Sequence[StoredFile]]:
        listed = await list_files(scope)
        if listed[0] == "v1":
            await save(files, "v1", "v2", whole(MEMORY, b"- likes coffee\n", "v2", is_standalone=False))
        return listed

    files.files = list_then_change  # type: ignore[method-assign]
    assert [each.file.path for each in await repair.restore(damaged, tmp_path)] == [PHOTO]
    assert await contents(files) == {PHOTO: LARGE, MEMORY: b"- likes coffee\n"}


async def test_a_gateway_without_the_setting_says_so(files: SqlScopeFiles, store: Store) -> None:
    """A file that is elsewhere is not taken for an empty one."""
    await save(files, "", "v1", whole(PHOTO, LARGE, "v1"))
    assert isinstance(store, SqlStore)
    with pytest.raises(StoreUnavailable, match="PARLOUR_STORE__OBJECTS__URL"):
        await contents(SqlScopeFiles(store._engine))


def _killed(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def _returns(value: object) -> object:
    async def store(*_: object) -> object:
        return value

    return store
