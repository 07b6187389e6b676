"""Homes that take turns on one database: each has the files of the one before, whenever that died."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.memory.storage.cached_scopes import FILE
from agent.memory.storage.disk import Disk
from agent.memory.storage.scope_file_sync import ScopeFileSync
from agent.memory.storage.scope_scan import scan_scope
from agent.memory.storage.written_files import note_writes
from gateway.errors import StoreUnavailable, UserError
from gateway.ports.objects import ObjectStore
from gateway.ports.scope_files import SaveScopes, ScopeChange, ScopeDelta, ScopeLook, StoredFile
from gateway.ports.store import StoreLimits
from gateway.store.engine import utc_now
from gateway.store.scope_files import SqlScopeFiles
from tests.fakes.store import open_inline_store

ANN, BOB, ROOM = "people/pocket%3aann", "people/pocket%3abob", "chats/pocket%3aroom"
PATHS = ("results/x.jsonl", "memory/history.jsonl", "memory/MEMORY.md", "USER.md", "files/a b/é.jsonl")


class LossyStore:
    """The real store, until its answer *fails*: before or after it has done what it was asked."""

    def __init__(self, store: SqlScopeFiles) -> None:
        self._store = store
        self.saves = 0
        self.fails_at = 0
        self.is_done_first = False
        self.looking: asyncio.Barrier | None = None
        self.when_listed: Callable[[], Awaitable[None]] | None = None
        self.when_saved: Callable[[], Awaitable[None]] | None = None

    async def versions(self) -> Mapping[str, str]:
        """Return the versions."""
        return await self._store.versions()

    async def look(self, *scopes: str) -> Mapping[str, ScopeLook]:
        """Return what is known of scopes."""
        return await self._store.look(*scopes)

    async def files(self, scope: str) -> tuple[str, Sequence[StoredFile]]:
        """Return the files; something may happen before they are read."""
        found = await self._store.files(scope)
        if self.when_listed is not None and scope:
            await self.when_listed()
        return found

    async def changes(self, scope: str, since: str, paths: Collection[str]) -> ScopeDelta | None:
        """Return what has changed; something may happen before it is read."""
        found = await self._store.changes(scope, since, paths)
        if self.when_listed is not None and scope:
            await self.when_listed()
        return found

    def read(self, scope: str, file: StoredFile, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes."""
        return self._store.read(scope, file, start)

    async def read_small(self, scope: str, files: Sequence[StoredFile]) -> Mapping[str, bytes]:
        """Return the contents."""
        return await self._store.read_small(scope, files)

    async def save(self, changes: Sequence[ScopeChange]) -> str | None:
        """Save, or lose the connection."""
        self.saves += 1
        if self.saves != self.fails_at:
            refused = await self._store.save(changes)
            if self.when_saved is not None:
                await self.when_saved()
            return refused
        if self.is_done_first:
            await self._store.save(changes)
        raise StoreUnavailable("the connection is lost")

    async def state(self) -> tuple[str, bool]:
        """Return the state, to all who look at the same time."""
        found = await self._store.state()
        if self.looking is not None:
            await self.looking.wait()
        return found

    async def begin_state(self, state: str) -> str:
        """Begin with the state, unless there is one."""
        return await self._store.begin_state(state)

    async def set_state(self, state: str) -> None:
        """Store the state."""
        await self._store.set_state(state)

    def use_objects(self, objects: ObjectStore) -> None:
        """Use an object store."""
        self._store.use_objects(objects)

    async def remove_unused(self) -> None:
        """Remove unused objects."""
        await self._store.remove_unused()

    def save_first(self, save: SaveScopes) -> None:
        """Do nothing: nobody commits here."""


@asynccontextmanager
async def database(folder: Path) -> AsyncIterator[LossyStore]:
    """Open an empty store."""
    store = await open_inline_store(folder / "journal.db", StoreLimits(), clock=utc_now)
    yield LossyStore(SqlScopeFiles(store._engine))
    await store.close()


async def opened(home: Path, store: LossyStore) -> ScopeFileSync:
    """Start on *home*, made when missing."""
    await asyncio.to_thread(home.mkdir, exist_ok=True)
    sync = ScopeFileSync(home, store, with_documents=True)
    await sync.start()
    return sync


def die(sync: ScopeFileSync) -> None:
    """End as a killed process does: nothing is saved, and its files close."""
    sync._cache_file()._database.close()


def tree(home: Path, scopes: Collection[str] = (ANN, BOB, ROOM, "shared")) -> dict[str, tuple[bytes, int]]:
    """Return contents and times of the stored files of a home."""
    return {
        f"{scope}/{path}": ((home / scope / path).read_bytes(), signature.modified)
        for scope in scopes
        for path, signature in scan_scope(home / scope, {}).items()
    }


def put(home: Path, scope: str, path: str, data: bytes) -> None:
    """Write a file as a whole, as `Disk` does."""
    Disk().replace(home / scope / path, data)


def append(home: Path, scope: str, path: str, data: bytes) -> None:
    """Append to a file, as transcripts do."""
    disk = Disk()
    fd = disk.open_append(home / scope / path)
    disk.write(fd, data)
    disk.close(fd)


steps = st.tuples(
    st.sampled_from(["put", "append", "append", "remove", "move", "save", "save one", "turn", "die", "torn"]),
    st.sampled_from([ANN, BOB, ROOM]),
    st.sampled_from(PATHS),
    st.binary(max_size=40),
)


def play(home: Path, kind: str, scope: str, path: str, data: bytes) -> None:
    """Change files."""
    file, disk = home / scope / path, Disk()
    if kind == "put":
        put(home, scope, path, data)
    elif kind == "append":
        append(home, scope, path, data)
    elif kind == "remove":
        disk.remove(file)
    elif kind == "torn" and file.exists():  # a failed write is cut off again
        fd = disk.open_append(file)
        disk.truncate(fd, max(file.stat().st_size - 1, 0))
        disk.close(fd)
    elif kind == "move" and (home / scope).exists():
        target = home / (BOB if scope == ANN else ANN)
        with note_writes(home / scope, target, is_tree=True):
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(exist_ok=True)
            (home / scope).rename(target)


@settings(max_examples=60)
@given(st.lists(steps, max_size=25))
def test_homes_that_take_turns_have_the_same_files(script: list[tuple[str, str, str, bytes]]) -> None:
    """After each save, an empty home gets exactly what is there; a kill loses only what was not saved."""

    async def run(folder: Path) -> None:
        async with database(folder) as store:
            homes = [folder / "a", folder / "b"]
            sync = await opened(homes[0], store)
            sync.touch(ANN, BOB)
            promised = tree(homes[0])
            for n, (kind, scope, path, data) in enumerate(script):
                home = homes[0]
                if kind == "save":
                    await sync.save_all()
                    promised = tree(home)
                elif kind == "save one":
                    await sync.save((scope,))
                    promised = await stored(folder / f"look{n}", store)
                    assert tree(home, (scope,)) == {k: v for k, v in promised.items() if k.startswith(scope)}
                elif kind == "turn":
                    await sync.close()
                    promised = tree(home)
                    homes.reverse()
                    sync = await opened(homes[0], store)
                    sync.touch(ANN, BOB)
                elif kind == "die":
                    die(sync)
                    sync = await opened(home, store)
                    sync.touch(ANN, BOB)
                else:
                    play(home, kind, scope, path, data)
                if kind in ("turn", "die"):
                    assert tree(homes[0]) == promised
            await sync.close()
            assert await stored(folder / "last", store) == tree(homes[0])

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


changes_of_two = st.tuples(
    st.sampled_from([0, 1]), st.sampled_from(["put", "append", "remove", "fetch", "save", "save"]),
    st.sampled_from(PATHS), st.binary(max_size=9),
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(changes_of_two, max_size=30))
def test_gateways_that_run_at_once_come_to_have_the_same_files(script: list[tuple[int, str, str, bytes]]) -> None:
    """Whatever each of them changes, and however far it is behind: no difference between them, or to the database."""

    async def run(folder: Path) -> None:
        async with database(folder) as store:
            homes = [folder / "a", folder / "b"]
            syncs = [await opened(home, store) for home in homes]
            last = [(who, kind, "", b"") for kind in ("save", "fetch") for who in (0, 1)]
            for who, kind, path, data in [*script, *last]:
                if kind == "fetch":
                    await syncs[who].fetch(ANN)
                elif kind == "save":
                    try:
                        await syncs[who].save((ANN,))
                    except StoreUnavailable:  # the other was first
                        await syncs[who].fetch(ANN)
                        await syncs[who].save((ANN,))
                else:
                    play(homes[who], kind, ANN, path, data)
            assert tree(homes[0]) == tree(homes[1]) == await stored(folder / "look", store)
            for sync in syncs:
                await sync.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def stored(home: Path, store: LossyStore) -> dict[str, tuple[bytes, int]]:
    """Return what an empty home gets."""
    sync = await opened(home, store)
    found = tree(home)
    die(sync)
    return found


@pytest.mark.parametrize("is_done_first", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_lost_answer_loses_and_doubles_nothing(tmp_path: Path, is_done_first: bool, is_killed: bool) -> None:
    """The next save finds out whether the change was made; a killed process's home becomes what the database has."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync = await opened(home, store)
        put(home, ANN, "memory/MEMORY.md", b"one")
        append(home, ANN, "results/x.jsonl", b"1\n")
        await sync.save((ANN,))
        before = tree(home)
        append(home, ANN, "results/x.jsonl", b"2\n")
        put(home, ANN, "memory/MEMORY.md", b"two")
        store.fails_at, store.is_done_first = store.saves + 1, is_done_first
        with pytest.raises(StoreUnavailable):
            await sync.save((ANN,))
        after = tree(home)
        if is_killed:
            die(sync)
            sync = await opened(home, store)
            assert tree(home) == (after if is_done_first else before)
        append(home, ANN, "results/x.jsonl", b"3\n")
        await sync.save((ANN,))
        assert await stored(tmp_path / "b", store) == tree(home)
        die(sync)


async def test_what_another_gateway_changed_is_fetched_and_never_overwritten(tmp_path: Path) -> None:
    """Of the same documents the other's are kept, and a user of the scope fails once; everything else is both's."""
    async with database(tmp_path) as store:
        first, second = await opened(tmp_path / "a", store), await opened(tmp_path / "b", store)
        in_use, fetched = {ANN}, list[str]()
        first.watch(lambda: in_use, fetched.append)
        put(tmp_path / "a", ANN, "USER.md", b"first")
        await first.save((ANN,))
        await second.fetch(ANN)
        assert tree(tmp_path / "b") == tree(tmp_path / "a")
        put(tmp_path / "b", ANN, "USER.md", b"second")
        append(tmp_path / "b", ANN, "results/x.jsonl", b"1\n")
        await second.save((ANN,))
        put(tmp_path / "a", ANN, "memory/MEMORY.md", b"late")  # it belongs to USER.md
        append(tmp_path / "a", ANN, "results/y.jsonl", b"2\n")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="another gateway"):
                await first.save((ANN,))
        await first.fetch(ROOM, ANN)
        assert fetched == [ANN]
        with pytest.raises(StoreUnavailable, match="another gateway"):
            await first.save((ANN,))  # the turn that has written MEMORY.md
        in_use.clear()
        await first.fetch(ANN)
        await first.save((ANN,))
        await second.fetch(ANN)
        assert tree(tmp_path / "a") == tree(tmp_path / "b")
        assert {path: data for path, (data, _) in tree(tmp_path / "a").items()} == {
            f"{ANN}/USER.md": b"second",
            f"{ANN}/results/x.jsonl": b"1\n",
            f"{ANN}/results/y.jsonl": b"2\n",
        }
        die(first)
        die(second)


async def test_a_fetch_during_a_save_of_this_gateway_fetches_nothing(tmp_path: Path) -> None:
    """The database has a newer version than the home only until the save ends: nothing that is open is read again."""
    async with database(tmp_path) as store:
        sync = await opened(tmp_path / "a", store)
        await sync.fetch(ANN)
        is_stored, fetched = asyncio.Event(), list[str]()
        sync.watch(tuple, fetched.append)

        async def hold() -> None:
            is_stored.set()
            for _ in range(100):  # turns of the loop, in which the fetch compares the versions
                await asyncio.sleep(0)

        store.when_saved = hold
        put(tmp_path / "a", ANN, "USER.md", b"first")
        saving = asyncio.create_task(sync.save((ANN,)))
        await is_stored.wait()
        await sync.fetch(ANN)
        await saving
        assert not fetched
        die(sync)


async def test_turns_that_need_the_same_change_fetch_it_once(tmp_path: Path) -> None:
    """The first of them fetches, the others wait; a change that comes later is fetched again."""
    async with database(tmp_path) as store:
        first, second = await opened(tmp_path / "a", store), await opened(tmp_path / "b", store)
        fetched = list[str]()
        second.watch(tuple, fetched.append)
        for n in (1, 2):
            append(tmp_path / "a", ANN, "results/x.jsonl", b"one\n")
            await first.save((ANN,))
            await asyncio.gather(*(second.fetch(ANN) for _ in range(5)))
            assert tree(tmp_path / "b") == tree(tmp_path / "a")
            assert fetched == [ANN] * n
        die(first)
        die(second)


async def test_what_is_forgotten_elsewhere_leaves_a_running_gateways_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to use the scope here; its search index goes with it."""
    async with database(tmp_path) as store:
        first, second = await opened(tmp_path / "a", store), await opened(tmp_path / "b", store)
        append(tmp_path / "a", ANN, "results/x.jsonl", b"secret\n")
        await first.save((ANN,))
        await second.fetch(ANN)
        put(tmp_path / "b", ANN, "index.db", b"secret")
        Disk().remove_folder(tmp_path / "a" / ANN)
        await first.save((ANN,))
        for name in ("_EVERY", "_ALL_EVERY"):
            monkeypatch.setattr(f"agent.memory.storage.scope_file_sync.{name}", 0.0)
        fetched = asyncio.Event()
        second.watch(tuple, lambda _: fetched.set())
        running = asyncio.create_task(second.run())
        async with asyncio.timeout(30):
            await fetched.wait()
        assert not (tmp_path / "b" / ANN).exists()
        running.cancel()
        await asyncio.wait([running])
        die(first)
        die(second)


async def test_files_that_keep_changing_are_not_stored_half(tmp_path: Path) -> None:
    """What is stored of a scope is what it was at one moment: no later file without an earlier one."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync = await opened(home, store)
        is_over = False

        def write() -> None:
            n = 0
            while not is_over:
                n += 1
                put(home, ANN, "memory/MEMORY.md", b"%d" % n)
                put(home, ANN, "USER.md", b"%d" % n)

        writer = asyncio.create_task(asyncio.to_thread(write))
        for n in range(10):
            await sync.save((ANN,))
            found = await stored(tmp_path / f"look{n}", store)
            if found:
                first = int(found[f"{ANN}/memory/MEMORY.md"][0])
                second = int(found.get(f"{ANN}/USER.md", (b"0", 0))[0])
                assert first - 1 <= second <= first
        is_over = True
        await writer
        await sync.close()


async def test_a_large_first_save_is_several_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attachments before what refers to them; a kill in between keeps the home, which the next start stores."""
    monkeypatch.setattr("agent.memory.storage.local_changes._AT_ONCE", 1_000)
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        for n in range(5):
            put(home, ANN, f"attachments/{n:064x}", bytes([n]) * 900)
        put(home, ANN, "memory/history.jsonl", b"1\n")
        store.fails_at = 4
        with pytest.raises(StoreUnavailable):
            await opened(home, store)
        _, partial = await store.files(ANN)
        assert len(partial) == 3
        assert "memory/history.jsonl" not in {each.path for each in partial}
        with pytest.raises(UserError, match="another home"):
            await opened(tmp_path / "b", store)
        expected = tree(home)
        sync = await opened(home, store)
        assert tree(home) == expected
        assert await stored(tmp_path / "c", store) == expected
        die(sync)


async def test_a_damaged_cache_is_refused_where_there_is_memory(tmp_path: Path) -> None:
    """Without the cache's word, a home may hold what was forgotten elsewhere."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync = await opened(home, store)
        put(home, ANN, "USER.md", b"first")
        await sync.close()
        for path in home.glob(f"{FILE}*"):
            path.write_bytes(b"no database" * 1_000)
        with pytest.raises(UserError, match="not the database's"):
            await opened(home, store)
        (home / "people").rename(tmp_path / "aside")
        sync = await opened(home, store)
        assert (home / ANN / "USER.md").read_bytes() == b"first"
        await sync.close()


async def test_after_a_power_cut_every_file_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a clean stop in the same start of the machine, no file of the home is trusted."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync = await opened(home, store)
        put(home, ANN, "USER.md", b"first")
        await sync.save((ANN,))
        before = (home / ANN / "USER.md").stat()
        die(sync)
        with (home / ANN / "USER.md").open("r+b") as file:
            file.write(b"\0\0\0\0\0")  # what the disk had
        os.utime(home / ANN / "USER.md", ns=(before.st_mtime_ns, before.st_mtime_ns))
        monkeypatch.setattr("agent.memory.storage.cached_scopes._boot", lambda: "another")
        sync = await opened(home, store)
        assert (home / ANN / "USER.md").read_bytes() == b"first"
        await sync.close()


async def test_empty_homes_start_at_the_same_time(tmp_path: Path) -> None:
    """Each joins the memory that one of them began, and has it at its next start too, with what was written since."""
    async with database(tmp_path) as store:
        homes = [tmp_path / f"home{number}" for number in range(3)]
        store.looking = asyncio.Barrier(len(homes))
        syncs = await asyncio.gather(*(opened(home, store) for home in homes))
        store.looking = None
        note = homes[0] / "people" / "ann" / "memory" / "MEMORY.md"
        note.parent.mkdir(parents=True)
        note.write_text("a fact")
        await syncs[0].save(["people/ann"])
        for sync in syncs:
            await sync.close()
        for home in homes:
            await (await opened(home, store)).close()
            assert (home / note.relative_to(homes[0])).read_text() == "a fact"


async def test_a_start_fetches_what_grows_at_another_gateway(tmp_path: Path) -> None:
    """A transcript that is written between its listing and its reading is listed again, and fetched whole."""
    async with database(tmp_path) as store:
        writer = await opened(tmp_path / "first", store)
        transcript = ("people/ann", "results/ann.jsonl")
        append(tmp_path / "first", *transcript, b"one\n")
        await writer.save(["people/ann"])

        async def grow() -> None:
            append(tmp_path / "first", *transcript, b"two\n")
            store.when_listed = None
            await writer.save(["people/ann"])

        store.when_listed = grow
        reader = await opened(tmp_path / "second", store)
        assert (tmp_path / "second/people/ann/results/ann.jsonl").read_text() == "one\ntwo\n"
        for sync in (writer, reader):
            await sync.close()


async def test_files_of_conversations_leave_the_database_once_their_turns_are_rows(tmp_path: Path) -> None:
    """Until then a start fetches them, to take the turns over; then they stay in the homes, whose mirror they are."""
    async with database(tmp_path) as store:
        syncs = [ScopeFileSync(tmp_path / name, store, with_sessions=True, with_documents=True) for name in ("a", "b")]
        (tmp_path / "b").mkdir()
        put(tmp_path / "a", ANN, "sessions/x.jsonl", b"1\n")
        for sync in syncs:
            await sync.start()
        assert tree(tmp_path / "a") == tree(tmp_path / "b")
        for sync in syncs:
            sync.leave_sessions()
            with suppress(StoreUnavailable):  # the other was first
                await sync.save_all()
            await sync.fetch(ANN)
            await sync.save_all()
        _, files = await store.files(ANN)
        assert not files
        assert all((tmp_path / name / ANN / "sessions/x.jsonl").exists() for name in ("a", "b"))
        put(tmp_path / "a", ANN, "sessions/y.jsonl", b"1\n")
        put(tmp_path / "a", ANN, "USER.md", b"Ann")
        await syncs[0].save((ANN,))
        third = await opened(tmp_path / "c", store)
        assert set(tree(tmp_path / "c")) == {f"{ANN}/USER.md"}
        for sync in (*syncs, third):
            die(sync)
