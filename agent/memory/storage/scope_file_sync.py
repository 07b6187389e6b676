"""Keep the files of a home and of the database the same: the database is what is true, the home is a cache of it.

Everything in `agent.memory` writes files as it does without a database. Before the store commits what promises
something about them, `save` looks at the files of the scope that were written and stores them in one transaction. A
start fetches what has changed elsewhere, and removes what is not in the database
(docs/adr/0083-memory-in-the-database.md, docs/adr/0120-writes-are-noted.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.memory.scopes import SHARED, list_scopes, scope_folder
from agent.memory.storage.cached_scopes import ADOPTING, STORED, CachedChange, CachedScopes
from agent.memory.storage.disk import Disk, wait_for_thread
from agent.memory.storage.local_changes import KnownScope, LocalChange, find_changes, look_at_files
from agent.memory.storage.scope_fetcher import FetchInterrupted, ScopeFetcher, remove_files
from agent.memory.storage.scope_scan import (
    DOCUMENTS,
    SESSIONS,
    CachedFile,
    FileSignature,
    is_immutable,
    scan_scope,
    unit_of,
)
from agent.memory.storage.written_files import WrittenFiles
from gateway.errors import ObjectDamaged, ScopeBehind, ScopeReplaced, StoreUnavailable, UserError
from gateway.ports.scope_files import ScopeDelta, ScopeFileStore, StoredFile

log = structlog.get_logger(__name__)

_SCOPES_AT_ONCE = 8
_MOST_OPEN = 1_024  # scopes whose files are known in memory
_EVERY, _ALL_EVERY = 5.0, 60.0  # seconds between saves of what no commit has saved, and between looks at every scope
_TRIES = 5  # of fetching a scope that others change
_EPOCH = "memory/epoch.txt"  # changes when something is erased


@dataclass(slots=True)
class _OpenScope(KnownScope):
    """A scope of this home that is in use, or was recently."""

    unsure: LocalChange | None = None  # sent to a database whose answer was lost
    is_behind: bool = False  # another gateway has changed it, and it is not fetched yet
    is_undone: bool = False  # something that a user of the scope has written was replaced by what another has stored
    torn: set[str] = field(default_factory=set)  # files that a fetch which has not ended may have written
    users: int = 0  # calls that have or await its lock
    fetches: int = 0  # that have begun
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)  # taken before the other

    @property
    def is_settled(self) -> bool:
        """True if it is not in use, and is known as the database had it."""
        return not (self.users or self.unsure or self.is_suspect)

    @property
    def is_suspect(self) -> bool:
        """True if more has to be done with it than to store what was written."""
        return self.is_behind or self.is_undone or self.is_unsure


class ScopeFileSync:
    """Saves and fetches the scopes of one home; one process has it."""

    def __init__(
        self,
        home: Path,
        store: ScopeFileStore,
        *,
        with_home: bool = False,
        with_sessions: bool = False,
        with_documents: bool = False,
    ) -> None:
        """*with_home*: the home itself is a scope, as with `memory.isolation: shared`.

        *with_sessions*: files of an earlier release hold conversations, until `leave_sessions`; *with_documents*: and
        documents, until `leave_documents`.
        """
        self._home = home
        self._store = store
        self._fetcher = ScopeFetcher(home, store)
        self._with_home = with_home
        self._with_sessions = with_sessions
        self._cache: CachedScopes | None = None
        self._scopes: dict[str, _OpenScope] = {}
        self._written = WrittenFiles(home)
        self._touched: set[str] = set()
        self._together: dict[str, frozenset[str]] = {}
        self._damaged: set[str] = set()  # scopes with an object that cannot be fetched: no turn can use them
        self._in_use: Callable[[], Collection[str]] = tuple
        self._fell_behind = asyncio.Event()
        self._when_fetched: Callable[[str], object] = lambda _: None
        self._has_fetched = False
        self._has_started = False
        self._with_documents = with_documents

    async def leave_documents(self) -> None:
        """Store no files of documents any more, and remove those that are stored: documents are rows now."""
        self._with_documents = False
        for each in self._scopes.values():
            each.with_documents = False
        await self.save_all()

    # -- saving ------------------------------------------------------------------------------------

    def touch(self, *scopes: str) -> None:
        """Have the next save look at every file of *scopes*; several are saved together from now on.

        Call it when files move between scopes, or are changed where no note is made of it.
        """
        self._touched.update(scopes)
        if len(scopes) > 1:
            group = frozenset(scopes).union(*(self._together.get(each, ()) for each in scopes))
            self._together |= dict.fromkeys(group, group)

    def leave_sessions(self) -> None:
        """Have the database hold no files of conversations any more: their turns are rows."""
        self._with_sessions = False
        for scope, cached in self._scopes.items():
            cached.with_sessions = False
            self.touch(scope)

    def watch(self, in_use: Callable[[], Collection[str]], when_fetched: Callable[[str], object]) -> None:
        """Take *in_use* for the scopes that are in use; *when_fetched* is called with a scope that was fetched."""
        self._in_use, self._when_fetched = in_use, when_fetched

    async def fetch(self, *scopes: str) -> Collection[str]:
        """Bring the home's copies of *scopes*, and of what all share, up to date. Raises StoreUnavailable.

        Returns those of them that have unfinished jobs, which may be another gateway's. Call it before *scopes* are in
        use. Documents that were changed here and elsewhere are fetched as they are there; tasks that have the scope in
        use then fail to save, and run again. Raises ObjectDamaged for a scope with such an object, after the others.
        """
        named = {each for each in scopes if each or self._with_home} | {SHARED}
        before = {scope: self._open(scope).version for scope in named}
        looks = await self._store.look(*named)
        fetches = {scope: self._open(scope).fetches for scope in named}
        damaged: ObjectDamaged | None = None
        for scope in sorted(named):
            cached = self._open(scope)
            if scope not in self._in_use():
                cached.is_undone = False
            is_same = cached.version == looks[scope].version
            if not is_same and (cached.version != before[scope] or cached.lock.locked()):
                async with self._hold(scope):  # a save of this gateway may have made the other version
                    is_same = cached.version == (await self._store.look(scope))[scope].version
            if cached.is_behind or not is_same:
                try:
                    await self._catch_up(scope, fetches[scope])
                except ObjectDamaged as error:
                    damaged = error
        if damaged is not None:
            raise damaged
        return [scope for scope, look in looks.items() if look.has_jobs]

    def damaged_scopes(self) -> Collection[str]:
        """Return the scopes that cannot be used, since one of their objects is missing or damaged."""
        return sorted(self._damaged)

    async def fetch_all(self) -> None:
        """Bring the home's copies of every scope up to date, also of those that it has never had."""
        versions, here = await self._store.versions(), await asyncio.to_thread(self._cache_file().versions)
        await self.fetch(*(scope for scope in {*versions, *here} if versions.get(scope) != here.get(scope)))

    async def save(self, scopes: Collection[str] | None = None) -> None:
        """Return when every change made so far to files of *scopes* is durable in the database.

        None = those in use; all of their files are looked at. Raises StoreUnavailable, also when another gateway has
        changed one of the scopes: it is fetched, and the caller tries again.
        """
        named = {each for each in scopes or () if each or self._with_home}
        if scopes is None:
            self._touched.update(self._in_use())
        if scopes is None or len(named) < len(set(scopes)):
            named |= self._changed_scopes()
        await self._save_changed(named)

    async def _save_changed(self, scopes: Collection[str]) -> None:
        """Save those of *scopes* that have changed, and with them what is saved together, or shared."""
        changed = {SHARED, *scopes}.union(*(self._together.get(each, ()) for each in scopes))
        changed = {each for each in changed if self._may_differ(each)}
        if changed:
            await self._save(changed)
            if SHARED not in changed and self._written.has(SHARED):  # edited by hand
                await self._save({SHARED})

    def _changed_scopes(self) -> set[str]:
        return {each for each in {*self._written.scopes(), *self._touched} if each or self._with_home}

    def _may_differ(self, scope: str) -> bool:
        """Return True if something of *scope* may have to be stored, or is being stored now."""
        if scope in self._touched or self._written.has(scope):
            return True
        cached = self._scopes.get(scope)
        return cached is not None and not cached.is_settled

    async def save_all(self) -> None:
        """Save every scope of the home, also those that only an editor has touched, but none with a damaged object."""
        found = {*await asyncio.to_thread(self._local_scopes), *self._cache_file().versions(), *self._changed_scopes()}
        for scope in sorted(each for each in found if each or self._with_home):
            together = {scope, *self._together.get(scope, ())}
            if self._damaged.isdisjoint(together):
                self._touched.add(scope)
                await self._save(together)

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
                with contextlib.suppress(ObjectDamaged):  # logged; the other scopes go on
                    await self.fetch(*(scope for scope, each in self._scopes.items() if each.is_behind))
                if time.monotonic() < next_all:
                    await self._save_changed(self._changed_scopes() - self._damaged)
                else:
                    next_all = time.monotonic() + _ALL_EVERY
                    await self._store.remove_unused()
                    with contextlib.suppress(ObjectDamaged):
                        await self.fetch(*await asyncio.to_thread(self._cache_file().versions), *self._damaged)
                    await self.save_all()
            except StoreUnavailable as error:
                log.info("memory.saved_later", reason=str(error))
            except OSError as error:
                log.warning("memory.not_saved", error=error.strerror)

    async def _save(self, scopes: Collection[str]) -> None:
        async with AsyncExitStack() as stack:
            cached = [await stack.enter_async_context(self._hold(each)) for each in sorted(scopes)]
            for each in cached:
                await self._require_current(each)
                self._take_touched(each)
            count = None
            while count is None:
                found, count = await asyncio.to_thread(self._find_changes, cached)
                if found:
                    await self._store_changes(found)
            for each in cached:  # not before: what failed is looked at again
                self._written.forget(each.scope, count)
                each.is_unsure = False

    def _take_touched(self, cached: _OpenScope) -> None:
        cached.is_unsure = cached.is_unsure or cached.scope in self._touched
        self._touched.discard(cached.scope)

    def _find_changes(self, scopes: Sequence[_OpenScope]) -> tuple[dict[str, LocalChange], int | None]:
        shared = self._scopes.get(SHARED)
        if shared is not None and shared not in scopes:
            documents = look_at_files(
                self._home, KnownScope(SHARED, shared.version, shared.files, with_documents=self._with_documents), ()
            )
            for path in {*documents.changed, *documents.gone}:
                self._written.add(SHARED, path)
        return find_changes(self._home, scopes, self._written)

    async def _store_changes(self, changes: Mapping[str, LocalChange]) -> None:
        for scope, local in changes.items():
            self._scopes[scope].unsure = local  # until the answer is here
        refused = await self._store.save([local.change for local in changes.values()])
        if refused is not None:
            for scope in changes:
                self._scopes[scope].unsure = None
            raise self._build_conflict(refused)
        await self._adopt([(self._scopes[scope], local) for scope, local in changes.items()])

    async def _settle(self, cached: _OpenScope, local: LocalChange) -> bool:
        """Adopt or discard the change whose answer was lost; return True if no other gateway has changed the scope."""
        version = (await self._store.look(cached.scope))[cached.scope].version
        if version == _version_after(cached, local):
            await self._adopt([(cached, local)])
        cached.unsure = None
        return version == cached.version

    async def _adopt(self, changes: Iterable[tuple[_OpenScope, LocalChange]]) -> None:
        rows = []
        for cached, local in changes:
            cached.version = _version_after(cached, local)
            for path in local.change.removed:
                cached.files.pop(path, None)
            cached.files.update(local.after)
            cached.unsure = None
            rows.append(CachedChange(cached.scope, cached.version, local.after, local.change.removed))
        await asyncio.to_thread(self._cache_file().save, *rows)

    def _build_conflict(self, scope: str) -> ScopeBehind:
        self._scopes[scope].is_behind = True
        self._fell_behind.set()
        log.info("memory.changed_elsewhere", scope=scope)
        return ScopeBehind(f"another gateway has changed the memory of {scope or 'the home'}: it is fetched")

    async def _require_current(self, cached: _OpenScope) -> None:
        """Refuse to store what was made over an older state."""
        if cached.is_undone and cached.scope in self._in_use():
            raise ScopeReplaced(f"another gateway has changed the memory of {cached.scope or 'the home'} as well")
        if cached.is_behind or (cached.unsure is not None and not await self._settle(cached, cached.unsure)):
            raise self._build_conflict(cached.scope)

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
            await self._fetch_first(local)
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
                is_clean = not self._damaged
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
            self.touch(scope)
            await self._save((scope,))
        for scope in versions.keys() - set(local):  # the home takes over from an older copy of the database
            if scope or self._with_home:
                await self._fetch(scope, versions[scope], is_known=False)
        log.info("memory.stored", scopes=len(local))

    async def _fetch_first(self, local: Sequence[str]) -> None:
        known = self._cache_file()
        versions, here = await self._store.versions(), await asyncio.to_thread(known.versions)
        limit = asyncio.Semaphore(_SCOPES_AT_ONCE)
        fetched = 0

        async def fetch(scope: str) -> None:
            nonlocal fetched
            async with limit:
                with contextlib.suppress(ObjectDamaged):  # this scope cannot be used, and the others can
                    fetched += await self._fetch(scope, versions.get(scope, ""), is_known=scope in here)

        async with asyncio.TaskGroup() as tasks:
            for scope in sorted({*versions, *here, *local}):
                if scope or self._with_home:
                    tasks.create_task(fetch(scope))
        if fetched:
            log.info("memory.fetched", scopes=fetched)
        if known.is_clean:
            try:
                await self.save_all()
            except StoreUnavailable as error:  # another gateway has changed a scope since it was fetched
                log.info("memory.saved_later", reason=str(error))

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
        cached.is_unsure = True
        # A kill in a fetch leaves objects that no branch refers to, and that may be forgotten since.
        local = await asyncio.to_thread(look_at_files, self._home, cached, (), trusts_branch=False)
        if cached.files and (local.changed or local.gone):
            log.warning("memory.edits_dropped", scope=scope)  # another gateway, or a kill, came after them
        elif cached.files and cached.version == version:
            cached.is_unsure = False
            return False
        await self._replace(cached, drops_edits=True)
        return True

    async def _catch_up(self, scope: str, fetches: int) -> None:
        """Fetch what others have changed in *scope* while this gateway runs, unless a fetch after *fetches* has."""
        async with self._open(scope).fetching:
            cached = self._open(scope)
            if cached.fetches > fetches and not cached.is_behind:
                return
            folder = scope_folder(self._home, scope)
            async with self._hold(scope) as cached, _hold_documents(folder / DOCUMENTS):
                if cached.unsure is not None:
                    cached.is_behind = True
                    await self._settle(cached, cached.unsure)
                await self._replace(cached, drops_edits=False)
            self._when_fetched(scope)

    async def _replace(self, cached: _OpenScope, *, drops_edits: bool) -> None:
        """Make the home's copy of a scope the database's, but for changes here that do not conflict.

        With *drops_edits*, no change here is kept.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(FetchInterrupted):  # it was changed again in the meantime
                await self._replace_changed(cached, drops_edits=drops_edits)
                self._damaged.discard(cached.scope)
                return
        raise StoreUnavailable(f"other gateways keep changing the memory of {cached.scope or 'the home'}")

    async def _replace_changed(self, cached: _OpenScope, *, drops_edits: bool) -> None:
        scope, folder = cached.scope, scope_folder(self._home, cached.scope)
        cached.is_behind, self._has_fetched = True, True
        cached.fetches += 1
        delta = await self._read_delta(cached)
        self._take_touched(cached)
        cached.is_unsure = cached.is_unsure or drops_edits or not delta.version
        written, listed = self._written.notes(scope), {each.path for each in delta.files}
        notes = {*written, *delta.removed, *listed}
        actual, *different = await asyncio.to_thread(
            look_at_files, self._home, cached, notes, trusts_branch=not drops_edits
        )
        # What a fetch that has not ended wrote, and the database has no more.
        left = {path for path in cached.torn - written - listed if path not in cached.files}
        ours = {
            path for path in set().union(*different) - left if cached.with_sessions or not path.startswith(SESSIONS)
        }
        if not delta.version:
            await asyncio.to_thread(self._remove_scope, cached)
            cached.is_behind, cached.is_undone = False, bool(ours) and scope in self._in_use()
            cached.is_unsure = False
            return
        gone = cached.files.keys() & set(delta.removed)
        changed = gone | {each.path for each in delta.files if _differs(each, cached.files.get(each.path))}
        undone = ours if drops_edits else _conflicting(ours, changed)
        theirs = {path: _stored_file(path, cached.files[path]) for path in (undone & cached.files.keys()) - gone}
        theirs |= {each.path: each for each in delta.files if each.path in changed or each.path in undone}
        removed = [path for path in (changed | undone) - theirs.keys() if path in actual] + sorted(left)
        starts = {path: _trusted_bytes(each, cached.files.get(path), actual.get(path)) for path, each in theirs.items()}
        renewed = {path for path, start in starts.items() if not start and (path in cached.files or not cached.files)}
        cached.torn.update(theirs)
        if _is_erased((*removed, *gone, *renewed)):
            await asyncio.to_thread(_remove_index, folder)
        # What files refer to comes before them, and goes after them: versions are read meanwhile.
        await asyncio.to_thread(remove_files, folder, [path for path in removed if not is_immutable(path)])
        fetched: dict[str, CachedFile] = {}
        try:
            for is_first in (True, False):
                files = [each for path, each in theirs.items() if is_immutable(path) is is_first]
                fetched |= await self._fetcher.fetch(scope, files, starts)
        except ObjectDamaged as error:
            if (await self._store.look(scope))[scope].version != delta.version:
                raise FetchInterrupted("the file was removed or replaced, and its object with it") from error
            if scope not in self._damaged:  # a turn that waits for it tries again and again
                log.error("memory.object_damaged", scope=scope, reason=str(error))  # noqa: TRY400 - the line says all
            self._damaged.add(scope)
            raise
        await asyncio.to_thread(remove_files, folder, [path for path in removed if is_immutable(path)])
        for path in gone:
            del cached.files[path]
        cached.files |= fetched
        cached.version = delta.version
        await asyncio.to_thread(self._cache_file().save, CachedChange(scope, cached.version, fetched, gone))
        cached.torn.clear()
        cached.is_behind = False
        cached.is_unsure = cached.is_unsure and not drops_edits
        if undone and not drops_edits:
            cached.is_undone = scope in self._in_use()
            log.info("memory.undone", scope=scope, files=len(undone))
        log.debug("memory.caught_up", scope=scope, files=len(fetched), removed=len(removed))

    async def _read_delta(self, cached: _OpenScope) -> ScopeDelta:
        """Return the database's changes since the home's version; every file if it does not know that one."""
        known = cached.files.keys()
        delta = await self._store.changes(cached.scope, cached.version, known) if known else None
        if delta is None:
            version, files = await self._store.files(cached.scope)
            delta = ScopeDelta(version=version, files=files, removed=known - {each.path for each in files})
        if not cached.with_sessions:
            files = [each for each in delta.files if not each.path.startswith(SESSIONS)]
            delta = ScopeDelta(version=delta.version, files=files, removed=delta.removed)
        return delta

    def _remove_scope(self, cached: _OpenScope) -> None:
        folder = scope_folder(self._home, cached.scope)
        if cached.scope:
            for entry in folder.iterdir() if folder.is_dir() else ():
                if entry.name != "sessions":  # what mirrors turns goes with them
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            with contextlib.suppress(OSError):
                folder.rmdir()
        else:
            _remove_index(folder)
            remove_files(folder, scan_scope(folder, {}, is_home=True))
        cached.version, cached.files = "", {}
        self._cache_file().save(CachedChange(cached.scope, ""))

    # -- inside ------------------------------------------------------------------------------------

    def _cache_file(self) -> CachedScopes:
        assert self._cache is not None  # noqa: S101 - start comes first
        return self._cache

    @asynccontextmanager
    async def _hold(self, scope: str) -> AsyncIterator[_OpenScope]:
        """Hold the lock of a scope; the entries of unused scopes are dropped when there are many."""
        cached = self._open(scope)
        cached.users += 1
        try:
            async with cached.lock:
                yield cached
        finally:
            cached.users -= 1
            if len(self._scopes) > _MOST_OPEN and cached.is_settled:
                del self._scopes[scope]

    def _open(self, scope: str) -> _OpenScope:
        if scope not in self._scopes:
            version, files = self._cache_file().load(scope)
            self._scopes[scope] = _OpenScope(
                scope, version, files, with_sessions=self._with_sessions, with_documents=self._with_documents
            )
        return self._scopes[scope]

    def _local_scopes(self) -> list[str]:
        """Return the scopes that have a folder here. Blocks."""
        is_scope = self._with_home and any((self._home / name).exists() for name in ("memory", "sessions"))
        return list_scopes(self._home) + ([""] if is_scope else [])


def _version_after(cached: KnownScope, local: LocalChange) -> str:
    """Return the version of a scope that *local* has changed; one without files has none."""
    is_there = bool(local.after) or bool(cached.files.keys() - set(local.change.removed))
    return local.change.version if is_there else ""


def _stored_file(path: str, cached: CachedFile) -> StoredFile:
    """Return the row of a file that the database has not changed since it was cached."""
    size, modified, _ = cached.signature
    return StoredFile(path=path, size=size, replaced=cached.replaced, modified=modified)


@asynccontextmanager
async def _hold_documents(memory: Path) -> AsyncIterator[None]:
    """Hold the lock under which this process writes documents and their versions: none is half written meanwhile."""
    with contextlib.ExitStack() as stack:
        if await asyncio.to_thread(memory.is_dir):
            await wait_for_thread(asyncio.to_thread(stack.enter_context, Disk().lock(memory / ".lock")))
        yield


def _conflicting(ours: Collection[str], theirs: Collection[str]) -> set[str]:
    """Return the files of *ours* that mean something only with one that is changed in *theirs*."""
    both = {unit_of(path) for path in ours if not is_immutable(path)}
    both &= {unit_of(path) for path in theirs if not is_immutable(path)}
    return {path for path in ours if unit_of(path) in both}


def _trusted_bytes(file: StoredFile, cached: CachedFile | None, actual: FileSignature | None) -> int:
    """Return the number of bytes of the home's file that the database has."""
    if cached is None or actual is None or cached.replaced != file.replaced or cached.signature != actual:
        return 0
    return actual.size if actual.size <= file.size else 0


def _is_erased(paths: Iterable[str]) -> bool:
    """Return True if messages, files or facts may have gone with these files, which the search index may quote."""
    return any(path == _EPOCH or path.startswith("attachments/") for path in paths)


def _remove_index(folder: Path) -> None:
    for path in folder.glob("index.db*"):
        path.unlink(missing_ok=True)


def _differs(file: StoredFile, cached: CachedFile | None) -> bool:
    """Return True if the database's file is another than the one that was last seen."""
    if cached is None or file.replaced != cached.replaced or file.size != cached.signature.size:
        return True
    return is_immutable(file.path) and file.modified != cached.signature.modified  # retention goes by it
