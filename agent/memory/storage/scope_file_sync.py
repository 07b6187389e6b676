"""Keep the files of a home and of the database the same: the database is what is true, the home is a cache of it.

Everything in `agent.memory` writes files as it does without a database. Before the store commits what promises
something about them, `save` looks which files of the scope have changed and stores them in one transaction. A start
fetches what has changed elsewhere, and removes what is not in the database (docs/adr/0083-memory-in-the-database.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from agent.memory.scope_names import SHARED
from agent.memory.scopes import scope_folder
from agent.memory.storage.cached_scopes import ADOPTING, STORED, CachedFile, CachedScopes
from agent.memory.storage.disk import FILE_MODE, FOLDER_MODE
from agent.memory.storage.scope_scan import WORKSPACE, FileSignature, is_immutable, may_grow, scan_scope
from gateway.errors import ScopeReplaced, StoreUnavailable, UserError
from gateway.ports.scope_files import ScopeChange, ScopeFileStore, StoredFile, StoredFileChange

log = structlog.get_logger(__name__)

_AREAS = ("people", "chats")
_AT_ONCE = 32 * 1024 * 1024  # bytes of one transaction, if the scope's own order allows to store it in several
_SMALL, _TOGETHER = 1024 * 1024, 4 * 1024 * 1024  # bytes: files that are fetched together
_TAIL = 1024
_SECONDS_TO_REST = 10.0  # in which the files of a scope must stay the same for as long as reading them takes
_FIRST = (f"{WORKSPACE}/", "attachments/", "blobs/", "exports/", "results/", "memory/.git/objects/")
_SCOPES_AT_ONCE = 8
_MOST_OPEN = 1_024  # scopes whose files are known in memory
_EVERY, _ALL_EVERY = 5.0, 60.0  # seconds between saves of what no commit has saved, and between looks at every scope
_INDEPENDENT = ("sessions/", "attachments/", "blobs/", "results/", "exports/", f"{WORKSPACE}/")
_TRIES = 5  # of fetching a scope that others change
_EPOCH = "memory/epoch.txt"  # changes when something is erased


class _Look(NamedTuple):
    """A change to store, and the files that are the same here and there afterwards."""

    change: ScopeChange
    after: Mapping[str, CachedFile]  # the new and changed files


@dataclass(slots=True)
class _CachedScope:
    """A scope of this home as the database has it."""

    scope: str
    version: str
    files: dict[str, CachedFile]
    unsure: _Look | None = None  # sent to a database whose answer was lost
    is_behind: bool = False  # another gateway has changed it, and it is not fetched yet
    is_undone: bool = False  # something that a user of the scope has written was replaced by what another has stored
    users: int = 0  # calls that have or await its lock
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def signatures(self) -> dict[str, FileSignature]:
        """The files' signatures."""
        return {path: each.signature for path, each in self.files.items()}


class ScopeFileSync:
    """Saves and fetches the scopes of one home; one process has it."""

    def __init__(self, home: Path, store: ScopeFileStore, *, with_home: bool = False) -> None:
        """*with_home*: the home itself is a scope, as with `memory.isolation: shared`."""
        self._home = home
        self._store = store
        self._with_home = with_home
        self._cache: CachedScopes | None = None
        self._scopes: dict[str, _CachedScope] = {}
        self._touched: set[str] = set()
        self._together: dict[str, frozenset[str]] = {}
        self._in_use: Callable[[], Collection[str]] = tuple
        self._fell_behind = asyncio.Event()
        self._hold_still: Callable[[Path], AbstractAsyncContextManager[None]] = lambda _: contextlib.nullcontext()
        self._when_fetched: Callable[[str], object] = lambda _: None
        self._has_fetched = False
        self._has_started = False

    # -- saving ------------------------------------------------------------------------------------

    def touch(self, *scopes: str) -> None:
        """Note that files of *scopes* may change; several are saved together from now on: files move between them."""
        self._touched.update(scopes)
        if len(scopes) > 1:
            group = frozenset(scopes).union(*(self._together.get(each, ()) for each in scopes))
            self._together |= dict.fromkeys(group, group)

    def watch(
        self,
        in_use: Callable[[], Collection[str]],
        hold_still: Callable[[Path], AbstractAsyncContextManager[None]],
        when_fetched: Callable[[str], object],
    ) -> None:
        """Take the scopes that *in_use* returns for touched.

        Files of a folder are replaced inside its *hold_still*; *when_fetched* is called with a scope afterwards.
        """
        self._in_use, self._hold_still, self._when_fetched = in_use, hold_still, when_fetched

    async def fetch(self, *scopes: str) -> None:
        """Bring the home's copies of *scopes*, and of what all share, up to date. Raises StoreUnavailable.

        Call it before *scopes* are in use. Documents that were changed here and elsewhere are fetched as they are
        there; tasks that have the scope in use then fail to save, and run again.
        """
        named = {each for each in scopes if each or self._with_home} | {SHARED}
        versions = await self._store.versions(named)
        for scope in sorted(named):
            cached = self._open(scope)
            if scope not in self._in_use():
                cached.is_undone = False
            if cached.is_behind or cached.version != versions.get(scope, ""):
                await self._catch_up(scope)

    async def save(self, scopes: Collection[str] | None = None) -> None:
        """Return when every change made so far to files of *scopes* is durable in the database; None = those in use.

        Raises StoreUnavailable, also when another gateway has changed one of the scopes: it is fetched, and the
        caller tries again.
        """
        named = {each for each in scopes or () if each or self._with_home}
        if scopes is None or len(named) < len(set(scopes)):
            named |= self._touched | set(self._in_use())
        named = {each for each in named if each or self._with_home} | {SHARED}
        await self._save(named.union(*(self._together.get(each, ()) for each in named)))

    async def save_all(self) -> None:
        """Save every scope of the home, also those that only an editor has touched."""
        found = {*await asyncio.to_thread(self._local_scopes), *self._cache_file().versions(), *self._touched}
        for scope in sorted(each for each in found if each or self._with_home):
            await self._save({scope, *self._together.get(scope, ())})

    async def run(self) -> None:
        """Save changes that no commit has asked for, such as edits by hand, until cancelled.

        Changes by other gateways are fetched once a minute, so that forgotten messages leave every disk.
        """
        next_all = time.monotonic() + _ALL_EVERY
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY):
                    await self._fell_behind.wait()
            self._fell_behind.clear()
            try:
                await self.fetch(*(scope for scope, each in self._scopes.items() if each.is_behind))
                if time.monotonic() < next_all:
                    await self.save()
                else:
                    next_all = time.monotonic() + _ALL_EVERY
                    await self.fetch(*await asyncio.to_thread(self._cache_file().versions))
                    await self.save_all()
            except StoreUnavailable as error:
                log.info("memory.saved_later", reason=str(error))
            except OSError as error:
                log.warning("memory.not_saved", error=error.strerror)

    async def _save(self, scopes: Collection[str]) -> None:
        self._touched -= set(scopes)
        async with AsyncExitStack() as stack:
            cached = [await stack.enter_async_context(self._hold(each)) for each in sorted(scopes)]
            try:
                for each in cached:
                    self._require_current(each)
                    if each.unsure is not None:
                        await self._settle(each)
                is_rest = False
                while not is_rest:
                    looks, is_rest = await asyncio.to_thread(self._look, cached)
                    if looks:
                        await self._store_changes(looks)
            except BaseException:
                self._touched |= {each.scope for each in cached}
                raise

    async def _store_changes(self, looks: Mapping[str, _Look]) -> None:
        for scope, look in looks.items():
            self._scopes[scope].unsure = look  # until the answer is here
        refused = await self._store.save([look.change for look in looks.values()])
        if refused is not None:
            for scope in looks:
                self._scopes[scope].unsure = None
            raise self._build_conflict(refused)
        for scope, look in looks.items():
            await self._adopt(self._scopes[scope], look)

    async def _settle(self, cached: _CachedScope) -> None:
        """Adopt or discard the change whose answer was lost."""
        look = cached.unsure
        assert look is not None  # noqa: S101 - asked by the caller
        version, _ = await self._store.files(cached.scope)
        if version == self._version_after(cached, look):
            await self._adopt(cached, look)
        elif version != cached.version:
            raise self._build_conflict(cached.scope)
        cached.unsure = None

    async def _adopt(self, cached: _CachedScope, look: _Look) -> None:
        cached.version = self._version_after(cached, look)
        for path in look.change.removed:
            cached.files.pop(path, None)
        cached.files.update(look.after)
        cached.unsure = None
        await asyncio.to_thread(
            self._cache_file().save, cached.scope, cached.version, dict(look.after), tuple(look.change.removed)
        )

    @staticmethod
    def _version_after(cached: _CachedScope, look: _Look) -> str:
        """Return the version; a scope without files has none."""
        is_there = bool(look.after) or bool(cached.files.keys() - set(look.change.removed))
        return look.change.version if is_there else ""

    def _build_conflict(self, scope: str) -> StoreUnavailable:
        self._scopes[scope].is_behind = True
        self._fell_behind.set()
        log.info("memory.changed_elsewhere", scope=scope)
        return StoreUnavailable(f"another gateway has changed the memory of {scope or 'the home'}: it is fetched")

    def _require_current(self, cached: _CachedScope) -> None:
        """Refuse to store what was made over an older state."""
        if cached.is_undone and cached.scope in self._in_use():
            raise ScopeReplaced(f"another gateway has changed the memory of {cached.scope or 'the home'} as well")
        if cached.is_behind:
            raise self._build_conflict(cached.scope)

    def _look(self, cached: Sequence[_CachedScope]) -> tuple[dict[str, _Look], bool]:
        """Return what has changed in each scope, at one moment, and True if that is all of it. Blocks."""
        until = time.monotonic() + _SECONDS_TO_REST
        while True:
            before = {each.scope: self._scan(each) for each in cached}
            changed = {each.scope: _changed_paths(each, before[each.scope]) for each in cached}
            removed = {each.scope: each.files.keys() - before[each.scope].keys() for each in cached}
            is_rest = _select(before, changed)
            found: dict[str, _Look] = {}
            with contextlib.suppress(FileNotFoundError, _TornFile):
                for each in cached:
                    if changed[each.scope] or (is_rest and removed[each.scope]):
                        gone = removed[each.scope] if is_rest else ()
                        found[each.scope] = self._read(each, before[each.scope], changed[each.scope], gone)
                # Without this, a file could be stored without the one that was written before it.
                if not found or all(self._scan(each) == before[each.scope] for each in cached):
                    return found, is_rest
            if time.monotonic() > until:
                raise StoreUnavailable("the files of the memory keep changing")
            time.sleep(0.002)  # in a thread; writing a file takes about as long

    def _scan(self, cached: _CachedScope) -> dict[str, FileSignature]:
        return scan_scope(scope_folder(self._home, cached.scope), cached.signatures, is_home=not cached.scope)

    def _read(
        self,
        cached: _CachedScope,
        actual: Mapping[str, FileSignature],
        paths: Iterable[str],
        removed: Collection[str],
    ) -> _Look:
        folder = scope_folder(self._home, cached.scope)
        version = secrets.token_hex(8)
        changes: list[StoredFileChange] = []
        after: dict[str, CachedFile] = {}
        for path in paths:
            signature, known = actual[path], cached.files.get(path)
            start = _grown_from(folder / path, known, signature)
            is_same = known is not None and is_immutable(path) and known.signature.size == signature.size
            data = None if is_same else _read_exactly(folder / path, start, signature.size - start)
            is_kept = known is not None and (is_same or start > 0)
            replaced = known.replaced if is_kept and known is not None else version
            tail = _tail_of(folder / path, signature.size) if may_grow(path) else 0
            after[path] = CachedFile(signature, replaced, tail)
            stored = StoredFile(path=path, size=signature.size, replaced=replaced, modified=signature.modified)
            changes.append(StoredFileChange(file=stored, start=start, data=data))
        change = ScopeChange(
            scope=cached.scope, was=cached.version, version=version, changes=changes, removed=tuple(removed)
        )
        return _Look(change, after)

    # -- start and end -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Fetch the scopes that differ from the database; store them, at the first start with it.

        Raises UserError for a home whose memory is not the database's.
        """
        self._cache = await asyncio.to_thread(CachedScopes, self._home)
        local = await asyncio.to_thread(self._local_scopes)
        state, has_turns = await self._store.state()
        kind, _, id_ = state.partition(":")
        if not kind:
            if has_turns and not local:
                raise UserError(
                    f"the database has conversations, but no memory yet, and {self._home} has none: it is in the home"
                    " of the machine where the gateway ran before. Start it there once, which stores it"
                )
            # A home without memory has nothing to store: gateways with such homes can start at the same time.
            wanted = ADOPTING if local else STORED
            kind, _, id_ = (await self._store.begin_state(f"{wanted}:{self._cache.begin()}")).partition(":")
        if self._cache.id != id_:
            if kind == ADOPTING:
                raise UserError("the memory is being stored from another home: start the gateway there once more")
            if local:
                raise UserError(
                    f"{self._home} has memory that is not the database's ({local[0]}, …): move its folders people,"
                    " chats and shared away, or set PARLOUR_HOME to another directory"
                )
            self._cache.begin(id_)
        if kind == ADOPTING:
            await self._store_home(local)
            await self._store.set_state(f"{STORED}:{id_}")
        else:
            await self._fetch_all(local)
        self._has_started = True

    async def close(self) -> None:
        """Save everything; after a start that follows, what differs was edited by hand."""
        if self._cache is None:
            return
        is_clean = self._cache.is_clean  # of the last run, if this one has not begun
        try:
            if self._has_started:
                is_clean = False
                await self.save_all()
                is_clean = True
        except (StoreUnavailable, OSError) as error:
            log.warning("memory.not_saved", error=str(error))
        finally:
            if self._has_fetched:
                await asyncio.to_thread(os.sync)  # fetched files are not synced one by one
            await asyncio.to_thread(self._cache.close, is_clean=is_clean)

    async def _store_home(self, local: Sequence[str]) -> None:
        """Store every scope of the home; one that a crash interrupted is stored again."""
        versions = await self._store.versions()
        for scope in local:
            cached = self._open(scope)
            if cached.version != versions.get(scope, ""):
                cached.version, stored = await self._store.files(scope)
                cached.files = {each.path: CachedFile(FileSignature(-1, -1, 0), "") for each in stored}
            await self._save((scope,))
        for scope in versions.keys() - set(local):  # the home takes over from an older copy of the database
            if scope or self._with_home:
                await self._fetch(scope, versions[scope], is_known=False)
        log.info("memory.stored", scopes=len(local))

    async def _fetch_all(self, local: Sequence[str]) -> None:
        known = self._cache_file()
        versions, here = await self._store.versions(), await asyncio.to_thread(known.versions)
        limit = asyncio.Semaphore(_SCOPES_AT_ONCE)
        fetched = 0

        async def fetch(scope: str) -> None:
            nonlocal fetched
            async with limit:
                fetched += await self._fetch(scope, versions.get(scope, ""), is_known=scope in here)

        async with asyncio.TaskGroup() as tasks:
            for scope in sorted({*versions, *here, *local}):
                if scope or self._with_home:
                    tasks.create_task(fetch(scope))
        if fetched:
            log.info("memory.fetched", scopes=fetched)
        if known.is_clean:
            await self.save_all()

    async def _fetch(self, scope: str, version: str, *, is_known: bool) -> bool:
        """Make the home's copy of *scope* the database's; return False if it is, up to edits by hand."""
        known, cached = self._cache_file(), self._open(scope)
        if known.is_clean and cached.version == version:
            return False
        if not version:
            if known.is_clean and not is_known:
                return False  # made by hand while no gateway ran
            await asyncio.to_thread(self._remove_scope, cached)
            return True
        actual = await asyncio.to_thread(self._scan, cached)
        if cached.version == version and cached.files and _is_same(cached, actual):
            return False
        if cached.files and not _is_same(cached, actual):
            log.warning("memory.edits_dropped", scope=scope)  # another gateway, or a kill, came after them
        for _ in range(_TRIES):
            try:
                await self._fetch_files_of(cached, actual)
            except _Damaged:  # another gateway has changed it since its files were listed
                actual = await asyncio.to_thread(self._scan, cached)
            else:
                return True
        raise _conflict_again(scope)

    async def _fetch_files_of(self, cached: _CachedScope, actual: Mapping[str, FileSignature]) -> None:
        """Make the home's copy of a scope, where *actual* files are, the database's."""
        scope, known = cached.scope, self._cache_file()
        self._has_fetched = True
        version, stored = await self._store.files(scope)
        wanted = {each.path: each for each in stored}
        folder = scope_folder(self._home, scope)
        starts = {
            each.path: _trusted_bytes(each, cached.files.get(each.path), actual.get(each.path)) for each in stored
        }
        removed = [path for path in {*actual, *cached.files} if path not in wanted]
        renewed = [path for path, start in starts.items() if start == 0 and (path in cached.files or not cached.files)]
        if _is_erased([*removed, *renewed]):
            await asyncio.to_thread(_remove_index, folder)
        await asyncio.to_thread(_remove_files, folder, removed)
        await self._fetch_files(scope, [each for each in stored if starts[each.path] < max(each.size, 1)], starts)
        cached.version = version
        cached.files = await asyncio.to_thread(_finish_files, folder, stored)
        await asyncio.to_thread(known.save, scope, "", {})
        await asyncio.to_thread(known.save, scope, version, cached.files)

    async def _catch_up(self, scope: str) -> None:
        """Fetch what others have changed in *scope* while this gateway runs."""
        async with self._hold_still(scope_folder(self._home, scope)), self._hold(scope) as cached:
            for _ in range(_TRIES):
                if cached.unsure is not None:
                    cached.is_behind = True
                    version, _ = await self._store.files(scope)
                    if version == self._version_after(cached, cached.unsure):
                        await self._adopt(cached, cached.unsure)
                    cached.unsure = None
                try:
                    await self._replace_changed(cached)
                    break
                except _Damaged:  # it was changed again meanwhile
                    continue
            else:
                raise _conflict_again(scope)
        self._when_fetched(scope)

    async def _replace_changed(self, cached: _CachedScope) -> None:
        scope, known = cached.scope, self._cache_file()
        folder = scope_folder(self._home, scope)
        cached.is_behind, self._has_fetched = True, True
        version, stored = await self._store.files(scope)
        actual = await asyncio.to_thread(self._scan, cached)
        ours = {*_changed_paths(cached, actual), *(cached.files.keys() - actual.keys())}
        theirs = {each.path: each for each in stored}
        changed = {path for path, each in theirs.items() if _differs(each, cached.files.get(path))}
        changed |= cached.files.keys() - theirs.keys()
        both = {_unit(path) for path in ours if not is_immutable(path)} & {
            _unit(path) for path in changed if not is_immutable(path)
        }
        undone = {path for path in ours if _unit(path) in both}
        wanted = [each for path, each in theirs.items() if path in changed or path in undone]
        if not version:
            await asyncio.to_thread(self._remove_scope, cached)
            cached.is_behind, cached.is_undone = False, bool(ours) and scope in self._in_use()
            return
        removed = [path for path in (changed | undone) - theirs.keys() if path in actual]
        starts = {
            each.path: _trusted_bytes(each, cached.files.get(each.path), actual.get(each.path)) for each in wanted
        }
        if _is_erased(
            [*removed, *(path for path in undone | changed if path in cached.files and not starts.get(path))]
        ):
            await asyncio.to_thread(_remove_index, folder)
        await asyncio.to_thread(_remove_files, folder, removed)
        await self._fetch_files(scope, [each for each in wanted if starts[each.path] < max(each.size, 1)], starts)
        fetched = await asyncio.to_thread(_finish_files, folder, wanted)
        gone = [path for path in cached.files if path not in theirs]
        for path in gone:
            del cached.files[path]
        cached.files |= fetched
        cached.version = version
        await asyncio.to_thread(known.save, scope, version, fetched, gone)
        cached.is_behind = False
        if undone:
            cached.is_undone = scope in self._in_use()
            log.info("memory.undone", scope=scope, files=len(undone))
        log.debug("memory.caught_up", scope=scope, files=len(fetched), removed=len(removed))

    async def _fetch_files(self, scope: str, files: Sequence[StoredFile], starts: Mapping[str, int]) -> None:
        folder = scope_folder(self._home, scope)
        small = [each for each in files if starts[each.path] == 0 and each.size <= _SMALL]
        for batch in _batches(small):
            contents = await self._store.read_small(scope, [each.path for each in batch])
            await asyncio.to_thread(_write_files, folder, batch, contents)
        for each in files:
            if each.size > _SMALL or starts[each.path] > 0:
                await self._fetch_large(scope, each, starts[each.path])

    async def _fetch_large(self, scope: str, file: StoredFile, start: int) -> None:
        """Fetch a file piece by piece, or the end of one that has grown."""
        path = _path_in(scope_folder(self._home, scope), file.path)
        beside = path if start else path.with_name(f".{path.name[:100]}.fetched.tmp")
        await asyncio.to_thread(_prepare, beside, start)
        size = start
        async for data in self._store.read(scope, file, start):
            await asyncio.to_thread(_append, beside, data)
            size += len(data)
        if size != file.size:
            raise _damaged(scope, file)
        if beside != path:
            await asyncio.to_thread(beside.replace, path)

    def _remove_scope(self, cached: _CachedScope) -> None:
        folder = scope_folder(self._home, cached.scope)
        if cached.scope:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            _remove_index(folder)
            _remove_files(folder, [*self._scan(cached)])
        cached.version, cached.files = "", {}
        self._cache_file().save(cached.scope, "", {})

    # -- inside ------------------------------------------------------------------------------------

    def _cache_file(self) -> CachedScopes:
        assert self._cache is not None  # noqa: S101 - start comes first
        return self._cache

    @contextlib.asynccontextmanager
    async def _hold(self, scope: str) -> AsyncIterator[_CachedScope]:
        """Hold the lock of a scope; the entries of unused scopes are dropped when there are many."""
        cached = self._open(scope)
        cached.users += 1
        try:
            async with cached.lock:
                yield cached
        finally:
            cached.users -= 1
            if len(self._scopes) > _MOST_OPEN and not cached.users and cached.unsure is None and not cached.is_undone:
                del self._scopes[scope]

    def _open(self, scope: str) -> _CachedScope:
        if scope not in self._scopes:
            self._scopes[scope] = _CachedScope(scope, *self._cache_file().load(scope))
        return self._scopes[scope]

    def _local_scopes(self) -> list[str]:
        """Return the scopes that have a folder here. Blocks."""
        found = [
            f"{area}/{path.name}" for area in _AREAS for path in sorted((self._home / area).glob("*")) if path.is_dir()
        ]
        found += [SHARED] if (self._home / SHARED).is_dir() else []
        is_scope = self._with_home and any((self._home / name).exists() for name in ("memory", "sessions"))
        return found + ([""] if is_scope else [])


class _TornFile(Exception):
    """A file has changed while it was read."""


def _changed_paths(cached: _CachedScope, actual: Mapping[str, FileSignature]) -> list[str]:
    """Return the new and changed files."""
    return [
        path
        for path, signature in actual.items()
        if (known := cached.files.get(path)) is None or known.signature != signature
    ]


def _select(actual: Mapping[str, Mapping[str, FileSignature]], changed: dict[str, list[str]]) -> bool:
    """Leave what one transaction takes of *changed*; return True if that is all.

    Only files that others refer to are stored before the rest: without these others they mean nothing.
    """
    total = sum(actual[scope][path].size for scope, paths in changed.items() for path in paths)
    if total <= _AT_ONCE:
        return True
    room, has_first = _AT_ONCE, False
    selected: dict[str, list[str]] = {scope: [] for scope in changed}
    for scope, paths in changed.items():
        for path in paths:
            size = actual[scope][path].size
            if path.startswith(_FIRST) and (size <= room or not has_first):
                selected[scope].append(path)
                room, has_first = room - size, True
    if has_first:
        changed.update(selected)
    return not has_first


def _grown_from(path: Path, cached: CachedFile | None, signature: FileSignature) -> int:
    """Return the size that the file had before something was appended to it; 0 if it is another file."""
    if cached is None or not may_grow(str(path)):
        return 0
    is_longer = cached.signature.inode == signature.inode and 0 < cached.signature.size < signature.size
    return cached.signature.size if is_longer and _tail_of(path, cached.signature.size) == cached.tail else 0


def _tail_of(path: Path, size: int) -> int:
    """Return the checksum of the last bytes before *size*."""
    start = max(size - _TAIL, 0)
    return zlib.crc32(_read_exactly(path, start, size - start))


def _read_exactly(path: Path, start: int, length: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        pieces = []
        while length > 0:
            piece = os.pread(fd, length, start)
            if not piece:
                raise _TornFile
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
    finally:
        os.close(fd)
    return b"".join(pieces)


# -- fetching ------------------------------------------------------------------------------------------


def _is_same(cached: _CachedScope, actual: Mapping[str, FileSignature]) -> bool:
    return cached.signatures == actual


def _trusted_bytes(file: StoredFile, cached: CachedFile | None, actual: FileSignature | None) -> int:
    """Return how many bytes of the home's file are the database's."""
    if cached is None or actual is None or cached.replaced != file.replaced or cached.signature != actual:
        return 0
    return actual.size if actual.size <= file.size else 0


def _is_erased(paths: Iterable[str]) -> bool:
    """Return True if messages, files or facts may have gone with these files, which the search index may quote."""
    return any(path == _EPOCH or path.startswith(("sessions/", "attachments/")) for path in paths)


def _batches(files: Sequence[StoredFile]) -> Iterable[Sequence[StoredFile]]:
    batch: list[StoredFile] = []
    size = 0
    for each in files:
        if batch and size + each.size > _TOGETHER:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.size
    if batch:
        yield batch


def _write_files(folder: Path, files: Sequence[StoredFile], contents: Mapping[str, bytes]) -> None:
    for each in files:
        data = contents[each.path]
        if len(data) != each.size:
            raise _damaged(folder.name, each)
        path = _path_in(folder, each.path)
        beside = path.with_name(f".{path.name[:100]}.fetched.tmp")
        _prepare(beside, 0)
        _append(beside, data)
        beside.replace(path)


def _path_in(folder: Path, path: str) -> Path:
    """Return the path of a stored file; it never leads out of *folder*."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"not a file of a scope: {path!r}")
    return folder / path


def _prepare(path: Path, size: int) -> None:
    """Make the file, its folders private; keep *size* bytes of it."""
    made = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
    for each in reversed(made):
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=FOLDER_MODE)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _finish_files(folder: Path, files: Sequence[StoredFile]) -> dict[str, CachedFile]:
    """Give the files their times, which retention goes by; return them as they are now."""
    found = {}
    for each in files:
        path = _path_in(folder, each.path)
        os.utime(path, ns=(each.modified, each.modified))
        stat = path.stat()
        tail = _tail_of(path, each.size) if may_grow(each.path) else 0
        found[each.path] = CachedFile(FileSignature(stat.st_size, stat.st_mtime_ns, stat.st_ino), each.replaced, tail)
    return found


def _remove_files(folder: Path, paths: Iterable[str]) -> None:
    for path in paths:
        file = _path_in(folder, path)
        file.unlink(missing_ok=True)
        for each in file.parents:
            if each == folder:
                break
            with contextlib.suppress(OSError):  # others are in it, or it has gone
                each.rmdir()


def _remove_index(folder: Path) -> None:
    for path in folder.glob("index.db*"):
        path.unlink(missing_ok=True)


class _Damaged(StoreUnavailable):
    """The pieces of a file are not what its row says."""


def _damaged(scope: str, file: StoredFile) -> StoreUnavailable:
    return _Damaged(f"the database has not all of the file {file.path} of {scope}")


def _conflict_again(scope: str) -> StoreUnavailable:
    return StoreUnavailable(f"other gateways keep changing the memory of {scope or 'the home'}")


def _differs(file: StoredFile, cached: CachedFile | None) -> bool:
    """Return True if the database's file is another than the one that was last seen."""
    return cached is None or file.replaced != cached.replaced or file.size != cached.signature.size


def _unit(path: str) -> str:
    """Return the files that mean something only together: a transcript, a file, or all of the documents."""
    return path if path.startswith(_INDEPENDENT) else "memory"
