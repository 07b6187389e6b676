"""Files of scopes on each engine, in the database, in a folder and in an object store."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import FileUnavailable, ParlourError, StoreUnavailable
from gateway.ports.memory import BYTES, FileKind, FileLimit, FilesFull, FileTotal, ScopeFile, ScopeFileChange
from gateway.store import files as module
from gateway.store import objects
from gateway.store.database import SharedDatabase
from gateway.store.engine import StoreLimits
from gateway.store.files import PIECE_BYTES, SMALL_BYTES, SqlFiles
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import open_file
from tests.contract.store.conftest import StoreBackend
from tests.fakes.object_stores import ObjectBackend, open_object_backend
from tests.fakes.power_cut import PowerCut
from tests.fakes.shared_workers import Workers, until
from tests.fakes.turns import WallClock

ANN, BEN = "people/pocket%3aann", "people/pocket%3aben"
SMALL, LARGE = b"small", b"large" * SMALL_BYTES
SIZES = {
    "empty": b"",
    "small": SMALL,
    "exact": b"e" * SMALL_BYTES,
    "large": LARGE,
    "pieces": b"p" * (9 * PIECE_BYTES + 1),
}
WORKSPACE, DELETED, ATTACHMENT, TEXT = FileKind.WORKSPACE, FileKind.DELETED, FileKind.ATTACHMENT, FileKind.TEXT
_WAITS_FOR_LOCK = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%stored_file%'"


@pytest.fixture(params=["own", "directory", "bucket"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectBackend | None]:
    """Return an object store that the engine is to use; None for the engine's own place."""
    if request.param == "own":
        yield None
        return
    async with open_object_backend(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
async def files(store: SqlStore, place: ObjectBackend | None) -> SqlFiles:
    """Return the port on each engine with each place."""
    assert isinstance(store, SqlStore)
    assert isinstance(store.files, SqlFiles)
    if place is not None:
        if store.files._folders is not None:
            pytest.skip("bytes are in the home")
        return SqlFiles(store.files._engine, None, place.open())
    return store.files


def new(wall: WallClock, name: str, data: bytes, kind: FileKind = WORKSPACE) -> ScopeFileChange:
    """Return the change that adds a file."""
    return ScopeFileChange(now=ScopeFile(kind=kind, name=name, at=wall.now()), data=data)


async def contents(files: SqlFiles, scope: str = ANN) -> dict[tuple[FileKind, str], bytes | None]:
    """Return the bytes of all files of a scope."""
    return {(each.kind, each.name): await files.load(scope, each) for each in await files.files(scope)}


def stored_bytes(backend: StoreBackend, place: ObjectBackend | None) -> int:
    """Return how many contents are outside of the database."""
    return len(home_files(backend)) + (len(place.contents()) if place is not None else 0)


def home_files(backend: StoreBackend) -> list[Path]:
    """Return the files with bytes beside a journal."""
    journal = getattr(backend, "_path", None)
    return list(journal.parent.glob(f"*/*/{BYTES}/*")) if journal is not None else []


async def test_bytes_of_any_size_come_back(files: SqlFiles, backend: StoreBackend) -> None:
    """Rows, pieces, a folder or objects: what was stored is read, in one part or in many, with digest and size."""
    for name, data in SIZES.items():
        assert await files.change(ANN, new(backend.wall, name, data))
    assert await contents(files) == {(WORKSPACE, name): data for name, data in SIZES.items()}
    for each in await files.files(ANN, WORKSPACE):
        data = SIZES[each.name]
        assert (each.size, each.digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert await files.totals(ANN) == {WORKSPACE: FileTotal(count=5, size=sum(map(len, SIZES.values())))}


async def test_files_survive_a_kill(files: SqlFiles, backend: StoreBackend, place: ObjectBackend | None) -> None:
    """What was stored is there for the next process."""
    for name, data in SIZES.items():
        await files.change(ANN, new(backend.wall, name, data))
    again = (await backend.reopen()).files
    assert isinstance(again, SqlFiles)
    if place is not None:
        again = SqlFiles(again._engine, None, place.open())
    assert await contents(again) == {(WORKSPACE, name): data for name, data in SIZES.items()}


async def test_several_files_change_together_or_not_at_all(files: SqlFiles, backend: StoreBackend) -> None:
    """A file is replaced and its older version kept, restored, and removed. A change of what was read before fails."""
    await files.change(ANN, new(backend.wall, "a", LARGE))
    old = await files.find(ANN, WORKSPACE, "a")
    assert old is not None
    kept = replace(old, kind=DELETED, name="f1", original="a", at=backend.wall.now())
    swap = (ScopeFileChange(was=old, now=kept), new(backend.wall, "a", SMALL))
    assert await files.change(ANN, *swap)
    assert await contents(files) == {(DELETED, "f1"): LARGE, (WORKSPACE, "a"): SMALL}
    assert not await files.change(ANN, *swap)
    assert not await files.change(ANN, new(backend.wall, "b", SMALL), new(backend.wall, "a", LARGE))
    assert await contents(files) == {(DELETED, "f1"): LARGE, (WORKSPACE, "a"): SMALL}
    now, deleted = await files.find(ANN, WORKSPACE, "a"), await files.find(ANN, DELETED, "f1")
    assert now is not None
    assert deleted is not None
    assert deleted.original == "a"
    back = replace(deleted, kind=WORKSPACE, name="a", original="", is_untrusted=True)
    assert not await files.change(ANN, ScopeFileChange(was=deleted, now=back)), "its name is taken"
    assert await files.change(ANN, ScopeFileChange(was=now), ScopeFileChange(was=deleted, now=back))
    assert await contents(files) == {(WORKSPACE, "a"): LARGE}
    found = await files.find(ANN, WORKSPACE, "a")
    assert found is not None
    assert found.is_untrusted
    assert await files.change(ANN, ScopeFileChange(was=found, now=found, data=SMALL))
    assert await contents(files) == {(WORKSPACE, "a"): SMALL}


async def test_bytes_go_with_their_files(
    files: SqlFiles, backend: StoreBackend, store: SqlStore, place: ObjectBackend | None
) -> None:
    """Replaced, removed and refused ones leave nothing behind, in the database and outside."""
    await files.change(ANN, new(backend.wall, "a", LARGE), new(backend.wall, "b", LARGE), new(backend.wall, "c", SMALL))
    a, b, _ = await files.files(ANN)
    await files.change(ANN, ScopeFileChange(was=a, now=a, data=LARGE + b"2"))
    assert not await files.change(ANN, ScopeFileChange(was=a, now=a, data=LARGE + b"3"))
    await files.remove(ANN, WORKSPACE, names=["b"])
    await files.collect_garbage()
    assert await files.load(ANN, a) is None
    assert await files.load(ANN, b) is None
    await files.remove(ANN)
    await files.collect_garbage()
    assert stored_bytes(backend, place) == 0
    assert await pieces(files) == []


async def pieces(files: SqlFiles) -> list[tuple[str, str]]:
    """Return the places in the database that have bytes."""
    return await files._engine.fetch("SELECT DISTINCT scope, place FROM file_piece")


async def test_a_scope_reads_nothing_of_another_one(files: SqlFiles, backend: StoreBackend) -> None:
    """The same names and bytes are each scope's own: a file of one is unknown to the other, and removed alone."""
    for scope in (ANN, BEN):
        await files.put(scope, ATTACHMENT, LARGE, at=backend.wall.now())
        await files.put(scope, TEXT, SMALL, at=backend.wall.now())
    canary = await files.put(BEN, ATTACHMENT, b"canary", at=backend.wall.now())
    assert await files.load(ANN, canary) is None
    assert await files.find(ANN, ATTACHMENT, canary.name) is None
    assert await files.load_small(ANN, ATTACHMENT, [canary.name]) == {}
    assert not await files.change(ANN, ScopeFileChange(was=canary))
    await files.remove(ANN)
    assert sorted(map(str, (await contents(files, BEN)).values())) == sorted(map(str, (LARGE, SMALL, b"canary")))
    assert await files.scopes() == [BEN]


async def test_a_file_named_by_its_bytes_is_stored_once(files: SqlFiles, backend: StoreBackend) -> None:
    """The same bytes again only get a later time, and the oldest beyond the limit go."""
    first = await files.put(ANN, FileKind.RESULT, LARGE, at=backend.wall.now())
    for n in range(3):
        backend.wall.advance(seconds=60)
        await files.put(ANN, FileKind.RESULT, b"%d" % n, at=backend.wall.now(), most=3)
    backend.wall.advance(seconds=60)
    assert await files.find(ANN, FileKind.RESULT, first.name) is None
    both = await asyncio.gather(*(files.put(ANN, FileKind.RESULT, LARGE, at=backend.wall.now()) for _ in range(2)))
    assert both[0] == both[1]
    backend.wall.advance(seconds=60)
    again = await files.put(ANN, FileKind.RESULT, LARGE, at=backend.wall.now())
    assert again == replace(both[0], at=backend.wall.now())
    assert len(await files.files(ANN)) == 4
    assert await files.expire(FileKind.RESULT, before=backend.wall.now()) == 3
    assert await contents(files) == {(FileKind.RESULT, again.name): LARGE}


async def test_limits_are_exceeded_by_no_change(files: SqlFiles, backend: StoreBackend) -> None:
    """By number of each kind and by bytes of all; what takes bytes away is made also when the scope is full."""
    limit = FileLimit(kinds=(WORKSPACE, DELETED), count=2, size=12)
    assert await files.change(ANN, new(backend.wall, "a", b"12345"), new(backend.wall, "b", b"12345"), limit=limit)
    with pytest.raises(FilesFull) as full:
        await files.change(ANN, new(backend.wall, "c", b""), limit=limit)
    assert full.value.totals[WORKSPACE] == FileTotal(count=2, size=10)
    a, b = await files.files(ANN)
    with pytest.raises(FilesFull):
        await files.change(ANN, ScopeFileChange(was=a, now=a, data=b"12345678"), limit=limit)
    assert await files.change(ANN, ScopeFileChange(was=a, now=a, data=b"1234567"), limit=limit)
    tight = FileLimit(kinds=(WORKSPACE, DELETED), count=1, size=1)
    kept = replace(b, kind=DELETED, name="f1", original="b")
    assert await files.change(ANN, ScopeFileChange(was=b, now=kept), limit=tight)
    with pytest.raises(FilesFull):  # `deleted` was filled by changes without a limit
        await files.change(ANN, new(backend.wall, "c", b""), limit=FileLimit(kinds=(DELETED,), count=0, size=12))


async def test_files_move_to_another_scope(
    files: SqlFiles, backend: StoreBackend, store: SqlStore, place: ObjectBackend | None
) -> None:
    """Under other names, once, and with their bytes; one whose name is taken there is dropped."""
    for name, data in SIZES.items():
        await files.change(ANN, new(backend.wall, name, data))
    for scope in (ANN, BEN):
        await files.put(scope, ATTACHMENT, LARGE, at=backend.wall.now())
    outside = stored_bytes(backend, place)
    chosen = {each: f"{each.name}.2" for each in await files.files(ANN, WORKSPACE)}
    for _ in range(2):
        await files.move(ANN, BEN, chosen)
    assert list(await contents(files)) == [(ATTACHMENT, hashlib.sha256(LARGE).hexdigest())]
    await files.move(ANN, BEN)
    await files.collect_garbage()
    assert await contents(files) == {}
    moved = {(WORKSPACE, f"{name}.2"): data for name, data in SIZES.items()}
    assert await contents(files, BEN) == moved | {(ATTACHMENT, hashlib.sha256(LARGE).hexdigest()): LARGE}
    if outside:
        assert stored_bytes(backend, place) == outside - 1


async def test_damaged_bytes_are_not_given_out(
    files: SqlFiles, backend: StoreBackend, place: ObjectBackend | None
) -> None:
    """A changed content is found at its end, by its digest; `load` then has no bytes."""
    for data in (SMALL, LARGE):
        await files.put(ANN, ATTACHMENT, data, at=backend.wall.now())
    changed = b"tampered" + LARGE[8:]
    await files._engine.writer.submit(
        lambda database: database.execute(
            "UPDATE file_piece SET data = ? WHERE n = 0", (changed[:PIECE_BYTES],)
        ).close()
    )
    if place is not None:
        for name in place.contents():
            await place.open().put(name, changed)
    for path in home_files(backend):
        path.write_bytes(changed)
    for each in await files.files(ANN):
        assert await files.load(ANN, each) is None
        with pytest.raises(FileUnavailable):
            _ = [piece async for piece in files.stream(ANN, each)]


async def test_a_kill_between_bytes_and_row_leaves_garbage_that_is_collected(
    files: SqlFiles,
    backend: StoreBackend,
    store: SqlStore,
    place: ObjectBackend | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file is not there, and an hour later its bytes are not there either; not before, and not during a backup."""
    store_bytes = SqlFiles._store

    async def killed(self: SqlFiles, scope: str, kind: FileKind, data: bytes) -> object:
        await store_bytes(self, scope, kind, data)
        raise asyncio.CancelledError  # the process ends here

    monkeypatch.setattr(SqlFiles, "_store", killed)
    with pytest.raises(asyncio.CancelledError):
        await files.change(ANN, new(backend.wall, "a", LARGE))
    monkeypatch.setattr(SqlFiles, "_store", store_bytes)
    outside, inside = stored_bytes(backend, place), len(await pieces(files))
    assert outside + inside == 1
    assert await files.files(ANN) == []
    assert await files.collect_garbage() == 0
    backend.wall.advance(seconds=module.KEPT_FOR.total_seconds() + 1)
    async with files.keep_bytes():
        assert await files.collect_garbage() == 0
    assert await files.collect_garbage() == 1
    assert stored_bytes(backend, place) + len(await pieces(files)) == 0


@pytest.mark.parametrize("kind", [WORKSPACE, ATTACHMENT])
async def test_a_cancelled_change_is_made_whole_or_not_at_all(
    files: SqlFiles, backend: StoreBackend, kind: FileKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is cancelled, an operation that was submitted is carried out: a stored file keeps its bytes."""
    submit, left = files._engine.writer.submit, 0

    def submit_and_cancel(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            asyncio.get_running_loop().call_soon(task.cancel)
        return submit(*arguments, **options)

    async def store_file(n: int) -> None:
        if kind is ATTACHMENT:
            await files.put(ANN, ATTACHMENT, b"%d" % n * SMALL_BYTES, at=backend.wall.now())
        else:
            await files.change(ANN, new(backend.wall, f"{n}", b"%d" % n * SMALL_BYTES))

    for n in range(1, 6):
        left = n
        with monkeypatch.context() as patch:
            patch.setattr(files._engine.writer, "submit", submit_and_cancel)
            task = asyncio.ensure_future(store_file(10 + n))
            await asyncio.wait([task])
    await files.files(ANN)  # behind everything that was submitted
    await files.collect_garbage()
    found = await contents(files)
    assert found
    assert None not in found.values()


async def test_bytes_that_are_still_being_written_when_a_change_is_cancelled_are_removed_later(
    files: SqlFiles, backend: StoreBackend, place: ObjectBackend | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be cancelled: what it writes then stays listed, and is there for an hour at most."""
    has_begun, may_end, is_written = threading.Event(), threading.Event(), threading.Event()

    def write_slowly(path: Path, data: bytes) -> None:
        has_begun.set()
        may_end.wait(60)
        write(path, data)
        is_written.set()

    write = objects._write_durably
    monkeypatch.setattr(objects, "_write_durably", write_slowly)
    task = asyncio.ensure_future(files.change(ANN, new(backend.wall, "a", LARGE)))
    while not has_begun.is_set() and not task.done():  # noqa: ASYNC110 - a thread sets it
        await asyncio.sleep(0.001)
    if task.done():
        pytest.skip("no thread writes")
    task.cancel()
    await asyncio.wait([task])
    await files.collect_garbage()
    may_end.set()
    assert await asyncio.to_thread(is_written.wait, 60)
    backend.wall.advance(seconds=module.KEPT_FOR.total_seconds() + 1)
    await files.collect_garbage()
    assert stored_bytes(backend, place) == 0


async def test_a_backup_keeps_bytes_and_a_purge_waits_for_it(
    files: SqlFiles, backend: StoreBackend, store: SqlStore, place: ObjectBackend | None
) -> None:
    """While bytes are kept, a removed file's are there for those who copy them; then they go."""
    await files.put(ANN, ATTACHMENT, LARGE, at=backend.wall.now())
    outside = stored_bytes(backend, place)
    async with files.keep_bytes():
        await files.remove(ANN)
        assert stored_bytes(backend, place) == outside
        scrub = asyncio.ensure_future(store.erasing.scrub())
        await asyncio.sleep(0)
        assert not scrub.done()
    await scrub
    assert stored_bytes(backend, place) == 0


async def test_a_backup_of_another_gateway_keeps_objects(
    files: SqlFiles, backend: StoreBackend, place: ObjectBackend | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge waits for it; one that was killed holds objects for an hour."""
    if place is None:
        pytest.skip("the bytes are in the backup's snapshot, or its gateway has the home alone")
    monkeypatch.setattr(module, "_HOLD_POLL", 0.01)
    other = SqlFiles(files._engine, None, place.open())
    await files.put(ANN, ATTACHMENT, LARGE, at=backend.wall.now())
    async with other.keep_bytes():
        await files.remove(ANN)
        assert await files.collect_garbage() == 0
        waiting = asyncio.ensure_future(files.remove_unused())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert len(place.contents()) == 1
    assert await waiting == 1
    assert not place.contents()
    await files.put(ANN, ATTACHMENT, LARGE, at=backend.wall.now())
    killed = other.keep_bytes()
    await killed.__aenter__()
    await files.remove(ANN)
    assert await files.collect_garbage() == 0
    backend.wall.advance(seconds=module.KEPT_FOR.total_seconds() + 1)
    assert await files.collect_garbage() == 1
    assert await files._engine.fetch(module._HOLDS, f"{module._HOLD}%") == []
    await killed.__aexit__(None, None, None)


async def test_without_its_place_nothing_large_is_promised(
    files: SqlFiles, backend: StoreBackend, place: ObjectBackend | None
) -> None:
    """A change with a large file fails whole while the object store is away."""
    if place is None:
        pytest.skip("the engine's own place")
    place.set_away(True)
    with pytest.raises(StoreUnavailable):
        await files.change(ANN, new(backend.wall, "a", SMALL), new(backend.wall, "b", LARGE))
    assert await files.files(ANN) == []
    assert await files.change(ANN, new(backend.wall, "a", SMALL))
    place.set_away(False)
    assert await files.change(ANN, new(backend.wall, "b", LARGE))
    assert await contents(files) == {(WORKSPACE, "a"): SMALL, (WORKSPACE, "b"): LARGE}


async def test_a_file_that_another_gateway_removes_while_it_is_sent_again_is_stored(team: Workers) -> None:
    """Whoever sends a file finds its bytes behind the row, although another gateway has removed them meanwhile."""
    wall = WallClock()
    first, second = await team.open(), await team.open()
    old = await first.files.put(ANN, ATTACHMENT, SMALL, at=wall.now())
    is_removed, may_end = threading.Event(), threading.Event()

    def remove_slowly(database: SharedDatabase) -> None:
        database.execute("DELETE FROM stored_file").close()
        database.execute("DELETE FROM file_piece").close()
        database.execute("SELECT 1").fetchone()  # both are sent
        is_removed.set()
        may_end.wait(30)

    removing = asyncio.ensure_future(second._engine.writer.submit(remove_slowly))
    await asyncio.to_thread(is_removed.wait, 30)
    sending = asyncio.ensure_future(first.files.put(ANN, ATTACHMENT, SMALL, at=wall.now()))
    try:
        await until(lambda: bool(team.server.query(_WAITS_FOR_LOCK)))
    finally:
        may_end.set()
    await removing
    stored = await sending
    assert stored.place != old.place
    assert await first.files.load(ANN, stored) == SMALL


async def test_bytes_that_were_removed_before_their_row_is_stored_are_an_error_to_try_again(
    files: SqlFiles, backend: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing that takes longer than its bytes are kept stores no row without them, and says so in our words."""
    store_bytes = SqlFiles._store

    async def store_slowly(self: SqlFiles, scope: str, kind: FileKind, data: bytes) -> object:
        new_bytes = await store_bytes(self, scope, kind, data)
        backend.wall.advance(seconds=module.KEPT_FOR.total_seconds() + 1)
        await self.collect_garbage()
        return new_bytes

    monkeypatch.setattr(SqlFiles, "_store", store_slowly)
    with pytest.raises(StoreUnavailable, match="try again"):
        await files.change(ANN, new(backend.wall, "a", LARGE))
    with pytest.raises(StoreUnavailable, match="try again"):
        await files.put(ANN, ATTACHMENT, LARGE, at=backend.wall.now())
    assert await files.files(ANN) == []


async def test_a_removal_reads_only_what_it_removes(
    files: SqlFiles, backend: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scope with ten thousand attachments would hold up turns for each one that is removed."""
    kept = [await files.put(ANN, ATTACHMENT, b"%d" % n, at=backend.wall.now()) for n in range(20)]
    backend.wall.advance(seconds=60)
    limit = backend.wall.now()
    late = await files.put(ANN, ATTACHMENT, b"late", at=backend.wall.now())
    read, count = module._file, 0

    def count_rows(row: Sequence[object]) -> ScopeFile:
        nonlocal count
        count += 1
        return read(row)

    monkeypatch.setattr(module, "_file", count_rows)
    assert await files.remove(ANN, ATTACHMENT, names=[kept[0].name, "unknown"], before=limit) == 1
    assert await files.remove(ANN, ATTACHMENT, names=[late.name], before=limit) == 0
    assert count == 1
    monkeypatch.setattr(module, "_AT_ONCE", 7)
    assert await files.remove(ANN, before=limit) == 19
    assert await files.files(ANN) == [late]


async def test_every_statement_names_the_scope() -> None:
    """Only the list of scopes, and that of unused places, which are removed, do not."""
    statements = {name: text for name, text in vars(module).items() if name.startswith("_") and isinstance(text, str)}
    about = {name: text for name, text in statements.items() if "stored_file" in text or "file_piece" in text}
    unscoped = {name for name, text in about.items() if "scope = ?" not in text and "(scope" not in text}
    assert unscoped == {"_SCOPES", "_SCOPES_OF"}


def test_errors_are_ours() -> None:
    """A full scope is an error that commands and tools catch."""
    assert issubclass(FilesFull, ParlourError)


async def test_large_bytes_are_durable_before_their_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut the home has the bytes of each row that is stored, under their name."""
    home = tmp_path / "home"
    home.mkdir()
    store = await open_file(home / "journal.db", StoreLimits(), clock=WallClock().now)
    scope = home / ANN
    scope.mkdir(parents=True)
    power = PowerCut(scope, monkeypatch)
    try:
        await store.files.put(ANN, ATTACHMENT, LARGE, at=WallClock().now())
        assert LARGE in [path.read_bytes() for path in scope.rglob("*") if path.is_file()]
        assert power.image() == power.now()
    finally:
        power.close()
        await store.close()
