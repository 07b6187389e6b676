"""Write the documents and the history of every scope to files behind their changes, and take over edits of documents.

The rows of the store are true, and the files a mirror that no turn reads (docs/adr/0126-one-store.md). Each change of
rows leaves debts for files in its own transaction. They are paid scope by scope, and while the disk is full they wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.base.disk import Disk, error_reason, wait_for_thread
from agent.base.locks import KeyLocks
from agent.base.scopes import list_scopes
from agent.memory.editing.document_commits import DocumentCommits
from agent.memory.editing.document_files import DOCUMENT_PATHS, DocumentFiles, FileLook, SeenFiles
from agent.memory.editing.three_way_merge import merge_both
from agent.memory.history.history_files import HistoryFiles, is_history_file
from agent.memory.storage.scope_documents import BY_HAND, TRACKED
from gateway.errors import StoreUnavailable
from gateway.ports.memory import REPOSITORY, StalePath, rev_of

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments
    from gateway.store.history import SqlHistory


log = structlog.get_logger(__name__)

_PASS = 0.25  # seconds between two looks at what is stale
_LOOK_AROUND = 20  # passes between two looks for edits in scopes that nobody talks to
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a file that cannot be written is tried again
_LONGEST_SETTLE, _SETTLE_POLL = 15.0, 0.1  # seconds
_KNOWN_SCOPES = 1_024  # with files that need no visit of a thread at a turn, and that are looked at for edits
_LAST_SECONDS = 3.0  # of a stop; debts are durable, and the next start pays the rest
_LAST_FLUSHES = 3  # one for a file that was exchanged, one for its next text, one for what came out
_AT_ONCE = 4  # scopes that are written at once, and leave threads to turns
_TRIES = 20  # of a compare-and-set
_COMMITTED = 256  # changes in one visit of a thread
_FOLDER = "memory/"


@dataclass(frozen=True, slots=True)
class _WriteOutage:
    """A scope whose files cannot be written, and when it is tried again."""

    reason: str
    pause: float
    until: float


class MemoryFileWriter:
    """Writes the files of every scope. `run` must run in one task; any task may call the other methods."""

    def __init__(
        self,
        home: Path,
        documents: SqlDocuments,
        history: SqlHistory,
        *,
        is_mirroring: bool = True,
        has_git: bool = True,
        disk: Disk | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """With *has_git*, each change of a document is a commit. *now* is the clock of the files' times.

        Unless *is_mirroring*, because several gateways share the store, no file is written, and none is looked at.
        """
        self._home = home
        self._documents = documents
        self._history = history
        self._is_mirroring = is_mirroring
        self._has_git = has_git
        disk = disk or Disk()
        self._files = DocumentFiles(home, disk, now)
        self._commits = DocumentCommits(home, disk)
        self._history_files = HistoryFiles(home, history, disk)
        self._now = now
        self._locks, self._commit_locks, self._history_lock = KeyLocks(), KeyLocks(), asyncio.Lock()
        self._seen: dict[str, SeenFiles] = {}  # of files without edits
        self._unsettled: set[str] = set()  # scopes with files that somebody may be writing
        self._failing: dict[str, _WriteOutage] = {}  # by scope
        self._is_store_down = False

    async def begin(self, *, is_outdated: bool) -> None:
        """Remove files that are not this store's, which would keep what is erased; a mirror then writes all again.

        With *is_outdated*, another home had the mirror since, and the store wins. Without a mirror, edits by hand are
        taken over first. Raises OSError and StoreUnavailable.
        """
        if self._is_mirroring and not is_outdated:
            return
        scopes = ["", *await asyncio.to_thread(list_scopes, self._home)]
        for scope in scopes:
            if any((await asyncio.to_thread(self._files.see, scope)).signatures):
                if not is_outdated:
                    async with self._locks.hold(scope):
                        await self._look_at(scope)
                log.info("document_files.removed", scope=scope)
            await self.remove(scope)
        if self._is_mirroring:
            for scope in await self._documents.scopes():
                await self._documents.owe_files(scope)
            for scope in sorted({*scopes, *await self._history.scopes()}):
                async with self._history_lock:
                    await self._history_files.write(scope, is_outdated=True)

    async def run(self) -> None:
        """Write until cancelled, beginning with what the last run left."""
        if not self._is_mirroring:
            await asyncio.Event().wait()
        await self.notice(*await wait_for_thread(asyncio.to_thread(self._files.edited_scopes)))
        passes = 0
        while True:
            await self.flush()
            passes += 1
            if passes % _LOOK_AROUND == 0:
                await self.notice(*await wait_for_thread(asyncio.to_thread(_changed_scopes, dict(self._seen))))
            await asyncio.sleep(_PASS)

    async def notice(self, *scopes: str) -> None:
        """Take over what a person has changed in the documents of *scopes*. Cheap without a change; never fails.

        Call it before the documents are read for a turn or a command. A file that is being saved is taken over later.
        """
        if not self._is_mirroring:
            return
        for scope in scopes:
            seen = self._seen.get(scope)
            # Every turn asks: three calls for attributes take some microseconds, a visit of a thread hundreds.
            if seen is None or seen.are_changed:
                await self._notice(scope)

    async def _notice(self, scope: str) -> None:
        try:
            async with self._locks.hold(scope):
                sights = await self._look_at(scope)
                if await self._stale_names(scope, sights):
                    self._unsettled.add(scope)  # also where files were lost without a word
        except (OSError, ValueError) as error:
            self._note_outage(scope, error)
        except StoreUnavailable:
            log.warning("memory_files.store_down", scope=scope)

    async def notice_all(self) -> None:
        """Take over what a person has changed in the documents of every scope of the home."""
        await self.notice("", *await asyncio.to_thread(list_scopes, self._home))

    async def flush(self, scope: str | None = None) -> bool:
        """Write what is stale of *scope*, or of all; return False if files could not be written.

        Files that are being saved are left for the next flush, and scopes whose files could not be written for
        a later one, unless *scope* is given.
        """
        if not self._is_mirroring:
            return True
        now = asyncio.get_running_loop().time()
        try:
            waiting = self._unsettled if scope is None else self._unsettled & {scope}
            debts: dict[str, list[StalePath]] = {}
            for file in await self._debts(scope):
                debts.setdefault(file.scope, []).append(file)
            debts |= {each: [] for each in sorted(waiting) if each not in debts}
            for each, outage in self._failing.items():
                if scope is None and now < outage.until:
                    debts.pop(each, None)
            # Each waits for the disk several times: some at once share its syncs and the store's transactions.
            scopes = list(debts)
            for start in range(0, len(scopes), _AT_ONCE):
                paying = [self._pay(each, debts[each]) for each in scopes[start : start + _AT_ONCE]]
                results = await asyncio.gather(*paying, return_exceptions=True)
                if error := next((each for each in results if each is not None), None):
                    raise error
        except StoreUnavailable:
            if not self._is_store_down:
                log.warning("memory_files.store_down")
            self._is_store_down = True
            return False
        self._is_store_down = False
        return not self._failing if scope is None else scope not in self._failing

    async def settle(self, scope: str) -> None:
        """Return when edits of *scope* are taken over, and its files and commits are those of the store.

        Nothing in its folder has an earlier text then, beside what a person has put there. Raises OSError when a file
        cannot be written, or is changed all the time, and StoreUnavailable.
        """
        if not self._is_mirroring:
            return
        self._unsettled.add(scope)
        clock = asyncio.get_running_loop()
        latest = clock.time() + _LONGEST_SETTLE
        while await self._is_behind(scope):
            if clock.time() > latest:
                raise OSError("the files of the memory are being changed all the time")
            await asyncio.sleep(_SETTLE_POLL)

    async def _is_behind(self, scope: str) -> bool:
        """Write what is stale of *scope*; return True if more is left."""
        if not await self.flush(scope):
            if self._is_store_down:
                raise StoreUnavailable("the store cannot be read")
            raise OSError(f"the files of the memory cannot be written: {self._failing[scope].reason}")
        return scope in self._unsettled or bool(await self._debts(scope))

    async def settle_history(self, scope: str) -> None:
        """Write every file of the history of *scope*, and set aside those that a person has edited.

        Raises OSError and StoreUnavailable.
        """
        if self._is_mirroring:
            debts = list(filter(_is_history, await self._documents.stale_paths(scope)))
            async with self._history_lock:
                await self._history_files.write(scope)
            await self._drop(debts)

    async def rebuild_documents(self, scope: str) -> None:
        """Write all documents of *scope* again, whatever their files have lost. Raises OSError as `settle`."""
        async with self._locks.hold(scope):
            await wait_for_thread(asyncio.to_thread(self._files.forget_missing, scope))
        async with self._commit_locks.hold(scope):
            await self._commit(scope, is_anew=True)
        await self.settle(scope)

    async def remove(self, scope: str) -> None:
        """Remove the documents' files of *scope*, their commits and what is kept beside them. Raises OSError."""
        async with self._locks.hold(scope), self._commit_locks.hold(scope):
            self._seen.pop(scope, None)
            self._unsettled.discard(scope)
            await wait_for_thread(asyncio.to_thread(self._files.remove, scope))
            await wait_for_thread(asyncio.to_thread(self._commits.remove, scope))

    async def find_change(self, scope: str, commit: str) -> str:
        """Return the id of the change that a commit is of, by the beginning of the commit's id; "" for no commit."""
        if not (self._is_mirroring and self._has_git):
            return ""
        async with self._commit_locks.hold(scope):
            return await wait_for_thread(asyncio.to_thread(self._commits.find_change, scope, commit))

    @asynccontextmanager
    async def hold(self, *scopes: str) -> AsyncIterator[None]:
        """Leave the files of *scopes* as they are while the context is open, which may move them; then look again."""
        async with AsyncExitStack() as stack:
            for scope in sorted(set(scopes)):
                await stack.enter_async_context(self._locks.hold(scope))
                await stack.enter_async_context(self._commit_locks.hold(scope))
            # A file of a history in a folder that is being renamed would be lost, or taken for the new folder.
            await stack.enter_async_context(self._history_lock)
            try:
                yield
            finally:
                for scope in scopes:
                    self._seen.pop(scope, None)

    @asynccontextmanager
    async def pause_history(self) -> AsyncIterator[None]:
        """Write no file of a history while the context is open: these grow, and a copy is to have whole lines."""
        async with self._history_lock:
            yield

    async def close(self) -> None:
        """Write what is stale, for a few seconds at most, and without a wait for editors that may have a file open."""
        self._files.is_closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                for _ in range(_LAST_FLUSHES):
                    await self.flush()

    # -- a scope -----------------------------------------------------------------------------------

    async def _debts(self, scope: str | None) -> Sequence[StalePath]:
        return [each for each in await self._documents.stale_paths(scope) if _is_document(each) or _is_history(each)]

    async def _drop(self, debts: Sequence[StalePath]) -> None:
        await asyncio.gather(*map(self._documents.drop_stale_path, debts))  # in one transaction

    async def _pay(self, scope: str, debts: Sequence[StalePath]) -> None:
        """Write the files of *scope*. Its *debts* were read before its rows are."""
        documents, history = list(filter(_is_document, debts)), list(filter(_is_history, debts))
        failure: OSError | ValueError | None = None
        try:
            if history:
                async with self._history_lock:
                    await self._history_files.write(scope, {file.path.removeprefix(_FOLDER) for file in history})
                await self._drop(history)
        except (OSError, ValueError) as error:
            failure = error
        try:
            if documents or scope in self._unsettled:
                await self._write_documents(scope, documents)
        except (OSError, ValueError) as error:
            failure = error
        if failure is not None:
            self._note_outage(scope, failure)
        elif self._failing.pop(scope, None) is not None:
            log.info("memory_files.writes_again", scope=scope)

    async def _write_documents(self, scope: str, debts: Sequence[StalePath]) -> None:
        """Write the documents' files of *scope*, and pay its *debts*."""
        async with self._locks.hold(scope):
            sights = await self._look_at(scope)
            behind = await self._stale_names(scope, sights)
            texts = await self._documents.texts(scope) if behind else {}
            for name in behind:
                if not sights[name].is_busy:
                    base, text = sights[name].state.base, texts.get(name, "")
                    await wait_for_thread(asyncio.to_thread(self._files.exchange, scope, name, base, text))
            is_settled = not behind and not any(each.is_busy for each in sights.values())
            if is_settled:
                self._unsettled.discard(scope)
            else:
                self._unsettled.add(scope)
        if not debts:
            return
        async with self._commit_locks.hold(scope):
            # Another flush may have paid them meanwhile: a repository that is owed is begun again once.
            now = await self._documents.stale_paths(scope) if is_settled else ()
            owed = [each for each in debts if each in now]
            is_anew = any(each.path == REPOSITORY for each in owed)
            if is_anew:
                await wait_for_thread(asyncio.to_thread(self._files.remove_unreadable, scope))
            await self._commit(scope, is_anew=is_anew)
            await self._drop(owed)

    async def _look_at(self, scope: str) -> Mapping[str, FileLook]:
        """Look at the documents' files, and take over what was edited."""
        files, now = await asyncio.to_thread(self._files.see, scope), self._now()
        sights = {}
        for name in TRACKED:
            sight = sights[name] = await wait_for_thread(asyncio.to_thread(self._files.look, scope, name))
            for before, after in sight.edits:
                if sight.is_first and await self._is_version(scope, name, after):
                    continue  # the file of an earlier release, which was taken over and has been changed since
                if not await self._take_over(scope, name, before, after):
                    sight = sights[name] = replace(sight, has_news=False, is_busy=True)
                    break
            if sight.has_news:
                await wait_for_thread(asyncio.to_thread(self._files.keep, scope, name, sight.state))
        if any(each.is_busy for each in sights.values()):
            self._unsettled.add(scope)
        elif not files.may_hide_changes(now):
            self._seen[scope] = files
            if len(self._seen) > _KNOWN_SCOPES:  # the one that is known longest is looked at anew
                del self._seen[next(iter(self._seen))]
        return sights

    async def _is_version(self, scope: str, name: str, text: str) -> bool:
        """Return True if a document has had *text*."""
        return any(text == each.texts.get(name, "") for each in await self._documents.states(scope))

    async def _stale_names(self, scope: str, sights: Mapping[str, FileLook]) -> Sequence[str]:
        """Return the documents whose files have not the text of the store."""
        head = (await self._documents.heads([scope]))[scope]
        return [name for name, each in sights.items() if rev_of(each.state.base) != head.revs.get(name, "")]

    async def _take_over(self, scope: str, name: str, before: str, after: str) -> bool:
        """Make a person's edit a change. Where the store has moved on, both are kept.

        Return False if other changes were faster every time.
        """
        for _ in range(_TRIES):
            now = await self._documents.read(scope, name)
            text = await asyncio.to_thread(merge_both, before, after, now.text)
            if text == now.text:
                return True
            if await self._documents.write(scope, name, text, was=now.rev, why=BY_HAND) is not None:
                log.info("document_files.edited_by_hand", scope=scope, name=name)
                return True
        return False

    async def _commit(self, scope: str, *, is_anew: bool) -> None:
        """Commit the changes that are not committed; with *is_anew*, all of them, into a new repository."""
        if is_anew:
            await wait_for_thread(asyncio.to_thread(self._commits.remove, scope))
        if not self._has_git:
            return
        newest, number = await wait_for_thread(asyncio.to_thread(self._commits.newest, scope))
        if newest and ((change := await self._documents.find(scope, newest)) is None or change.number != number):
            if any(each.path == REPOSITORY for each in await self._documents.stale_paths(scope)):
                return  # all changes were replaced a moment ago: the flush that pays this debt begins anew
            # The store is an older one: what the commits have may be nowhere else.
            await wait_for_thread(asyncio.to_thread(self._commits.set_aside, scope))
            number = 0
        while states := await self._documents.states(scope, since=number, limit=_COMMITTED):
            await wait_for_thread(asyncio.to_thread(self._commits.add, scope, states))
            number = states[-1].change.number

    def _note_outage(self, scope: str, error: OSError | ValueError) -> None:
        """Try the scope again later and later; an outage is logged once when it begins."""
        outage, reason = self._failing.get(scope), error_reason(error)
        if outage is None:
            log.error("memory_files.cannot_write", scope=scope, error=reason)
        pause = _FIRST_PAUSE if outage is None else min(outage.pause * 2, _LONGEST_PAUSE)
        self._failing[scope] = _WriteOutage(reason, pause, asyncio.get_running_loop().time() + pause)
        self._unsettled.add(scope)


def _changed_scopes(files_by_scope: Mapping[str, SeenFiles]) -> list[str]:
    return [scope for scope, files in files_by_scope.items() if files.are_changed]


def _is_document(file: StalePath) -> bool:
    return file.path in DOCUMENT_PATHS or file.path == REPOSITORY


def _is_history(file: StalePath) -> bool:
    return file.path.startswith(_FOLDER) and is_history_file(file.path.removeprefix(_FOLDER))
