"""Write MEMORY.md, USER.md and SOUL.md of every scope behind their changes, and take over what a person edits there.

The rows of the store are true, and the files a mirror that no turn reads. A file is written beside and exchanged. The
old file is looked at afterwards, so that a save at the same moment is not lost. For each document, `memory/.mirror/`
has the text that its file had at the last look, and the text that is being exchanged for it. So after a kill, our own
text is not taken for an edit, nor an edit for ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import structlog

from agent.base.disk import Disk, decode_text, error_reason, wait_for_thread
from agent.base.locks import KeyLocks
from agent.base.scopes import list_scopes, scope_folder
from agent.base.transcript_lines import decode
from agent.memory.editing.document_commits import DocumentCommits
from agent.memory.editing.three_way_merge import merge_both
from agent.memory.storage.scope_documents import BY_HAND, TRACKED
from gateway.errors import StoreUnavailable
from gateway.ports.memory import REPOSITORY, StalePath, document_file, rev_of

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments


log = structlog.get_logger(__name__)

LONGEST_EDIT = 1_000_000  # bytes of a file that are taken over
_FILES = {document_file(name): name for name in TRACKED}
_PASS = 0.25  # seconds between two looks at what is stale
_LOOK_AROUND = 20  # passes between two looks for edits in scopes that nobody talks to
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a file that cannot be written is tried again
_SAVING = 0.1  # seconds that an editor may take between two writes of a save
_EMPTYING = 1.0  # and between emptying or removing a file and writing it
_LINGERING = 0.5  # and may write into a file that was exchanged, for it had opened it before
_COARSE = 2.5  # seconds; a file that was changed so recently can be changed again without a new time
_LONGEST_SETTLE, _SETTLE_POLL = 15.0, 0.1  # seconds
_KNOWN_SCOPES = 1_024  # with files that need no visit of a thread at a turn, and that are looked at for edits
_LAST_SECONDS = 3.0  # of a stop; debts are durable, and the next start pays the rest
_LAST_FLUSHES = 3  # one for a file that was exchanged, one for its next text, one for what came out
_AT_ONCE = 4  # scopes that are written at once, and leave threads to turns
_TRIES = 20  # of a compare-and-set
_COMMITTED = 256  # changes in one visit of a thread

_Signatures: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class _FileState:
    """The text that a document's file had at the last look, and the one that is being exchanged for it."""

    was: str
    about: str | None = None

    @property
    def base(self) -> str:
        """The text that the file has, unless a person has changed it since."""
        return self.was if self.about is None else self.about

    def base_of(self, text: str) -> str:
        """Return the text that *text* was made from: an editor may read a file before the exchange, and save after it.

        That is only so for a moment. Later, a person who removes the newest lines means it.
        """
        if self.about is None:
            return self.was
        was, about, now = (set(each.split("\n")) for each in (self.was, self.about, text))
        return self.was if (about - was).isdisjoint(now) and was - about <= now else self.about

    def with_base(self, text: str) -> _FileState:
        """Return the state of a file with *text*."""
        return _FileState(text) if self.about is None else _FileState(self.was, text)


@dataclass(frozen=True, slots=True)
class _SeenFiles:
    """The documents' files of a scope, and what they were like at the last look."""

    paths: tuple[str, ...]
    signatures: _Signatures


@dataclass(frozen=True, slots=True)
class _WriteOutage:
    """A scope whose files cannot be written, and when it is tried again."""

    reason: str
    pause: float
    until: float


@dataclass(frozen=True, slots=True)
class _DocumentPaths:
    """The paths of a document: its file, what is beside it or came out of it, and its state."""

    path: Path
    aside: Path
    state: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileLook:
    """The result of a look at a document's file."""

    state: _FileState  # once the edits are taken over
    edits: Sequence[tuple[str, str]] = ()  # texts before and after each, the oldest first
    has_news: bool = False  # `state` is to be kept, or what came out is to be removed
    is_busy: bool = False  # somebody may be writing; look again
    is_first: bool = False  # nothing is kept of an earlier look


class DocumentFileWriter:
    """Writes the documents of every scope. `run` must run in one task; any task may call the other methods."""

    def __init__(
        self,
        home: Path,
        documents: SqlDocuments,
        *,
        is_mirroring: bool = True,
        has_git: bool = True,
        disk: Disk | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """With *has_git*, each change is a commit. *now* is the clock of the files' times.

        Unless *is_mirroring*, because several gateways share the store, no file is written, and none is looked at.
        """
        self._home = home
        self._documents = documents
        self._is_mirroring = is_mirroring
        self._has_git = has_git
        self._disk = disk or Disk()
        self._commits = DocumentCommits(home, self._disk)
        self._now = now
        self._locks, self._commit_locks = KeyLocks(), KeyLocks()
        self._seen: dict[str, _SeenFiles] = {}  # of files without edits
        self._missing: dict[Path, float] = {}  # since when
        self._unsettled: set[str] = set()  # scopes with files that somebody may be writing
        self._failing: dict[str, _WriteOutage] = {}  # by scope
        self._is_store_down = self._is_closing = False

    async def begin(self, *, is_outdated: bool) -> None:
        """Remove files that are not this store's, which would keep what is erased; a mirror then writes all again.

        With *is_outdated*, another home had the mirror since, and the store wins. Without a mirror, edits by hand are
        taken over first. Raises OSError and StoreUnavailable.
        """
        if self._is_mirroring and not is_outdated:
            return
        for scope in ("", *await asyncio.to_thread(list_scopes, self._home)):
            if any((await asyncio.to_thread(self._files_of, scope)).signatures):
                if not is_outdated:
                    async with self._locks.hold(scope):
                        await self._look_at(scope)
                log.info("document_files.removed", scope=scope)
            await self.remove(scope)
        if self._is_mirroring:
            for scope in await self._documents.scopes():
                await self._documents.owe_files(scope)

    async def run(self) -> None:
        """Write until cancelled, beginning with what the last run left."""
        if not self._is_mirroring:
            await asyncio.Event().wait()
        for scope in await wait_for_thread(asyncio.to_thread(self._edited_scopes)):
            await self.notice(scope)
        passes = 0
        while True:
            await self.flush()
            passes += 1
            if passes % _LOOK_AROUND == 0:
                for scope in await wait_for_thread(asyncio.to_thread(self._changed, dict(self._seen))):
                    await self.notice(scope)
            await asyncio.sleep(_PASS)

    async def notice(self, *scopes: str) -> None:
        """Take over what a person has changed in the documents of *scopes*. Cheap without a change; never fails.

        Call it before the documents are read for a turn or a command. A file that is being saved is taken over later.
        """
        if not self._is_mirroring:
            return
        for scope in scopes:
            seen = self._seen.get(scope)
            # Every turn asks. The kernel has the attributes of files that were looked at: three such calls take some
            # microseconds, a visit of a thread hundreds.
            if seen is None or seen.signatures != _signatures(seen.paths):
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
            log.warning("document_files.store_down", scope=scope)

    async def notice_all(self) -> None:
        """Take over what a person has changed in the documents of every scope of the home."""
        for scope in ("", *await asyncio.to_thread(list_scopes, self._home)):
            await self.notice(scope)

    async def flush(self, scope: str | None = None) -> bool:
        """Write what is stale of *scope*, or of all; return False if files could not be written.

        Files that are being saved are left for the next flush, and scopes whose files could not be written for
        a later one, unless *scope* is given.
        """
        if not self._is_mirroring:
            return True
        now = asyncio.get_running_loop().time()
        try:
            stale = [each for each in await self._documents.stale_paths(scope) if _is_ours(each)]
            waiting = self._unsettled if scope is None else self._unsettled & {scope}
            debts: dict[str, list[StalePath]] = {}
            for file in stale:
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
                log.warning("document_files.store_down")
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
        return scope in self._unsettled or any(map(_is_ours, await self._documents.stale_paths(scope)))

    async def rebuild(self, scope: str) -> None:
        """Write all of *scope* again, whatever its files have lost. Raises OSError as `settle`."""
        async with self._locks.hold(scope):
            await wait_for_thread(asyncio.to_thread(self._forget_missing, scope))
        async with self._commit_locks.hold(scope):
            await self._commit(scope, is_anew=True)
        await self.settle(scope)

    async def remove(self, scope: str) -> None:
        """Remove the documents' files of *scope*, their commits and what is kept beside them. Raises OSError."""
        async with self._locks.hold(scope), self._commit_locks.hold(scope):
            self._seen.pop(scope, None)
            self._unsettled.discard(scope)
            await wait_for_thread(asyncio.to_thread(self._remove, scope))

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
            try:
                yield
            finally:
                for scope in scopes:
                    self._seen.pop(scope, None)

    async def close(self) -> None:
        """Write what is stale, for a few seconds at most, and without a wait for editors that may have a file open."""
        self._is_closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                for _ in range(_LAST_FLUSHES):
                    await self.flush()

    # -- a scope -----------------------------------------------------------------------------------

    async def _pay(self, scope: str, stale: Sequence[StalePath]) -> None:
        try:
            await self._write_scope(scope, stale)
        except (OSError, ValueError) as error:
            self._note_outage(scope, error)
        else:
            self._note_success(scope)

    async def _write_scope(self, scope: str, stale: Sequence[StalePath]) -> None:
        """Write the files of *scope*, and pay its debts *stale*, which were read before its documents are."""
        async with self._locks.hold(scope):
            sights = await self._look_at(scope)
            behind = await self._stale_names(scope, sights)
            texts = await self._documents.texts(scope) if behind else {}
            for name in behind:
                if not sights[name].is_busy:
                    place, text = self._place(scope, name), texts.get(name, "")
                    await wait_for_thread(asyncio.to_thread(self._exchange, place, sights[name].state.base, text))
            is_settled = not behind and not any(each.is_busy for each in sights.values())
            if is_settled:
                self._unsettled.discard(scope)
            else:
                self._unsettled.add(scope)
        if not stale:
            return
        async with self._commit_locks.hold(scope):
            # Another flush may have paid them meanwhile: a repository that is owed is begun again once.
            now = await self._documents.stale_paths(scope) if is_settled else ()
            owed = [each for each in stale if each in now]
            is_anew = any(each.path == REPOSITORY for each in owed)
            if is_anew:
                await wait_for_thread(asyncio.to_thread(self._remove_unreadable, scope))
            await self._commit(scope, is_anew=is_anew)
            await asyncio.gather(*map(self._documents.drop_stale_path, owed))  # in one transaction

    async def _look_at(self, scope: str) -> Mapping[str, _FileLook]:
        """Look at the documents' files, and take over what was edited."""
        files, now = await asyncio.to_thread(self._files_of, scope), self._now()
        sights = {}
        for name in TRACKED:
            place = self._place(scope, name)
            sight = sights[name] = await wait_for_thread(asyncio.to_thread(self._look, place))
            for before, after in sight.edits:
                if sight.is_first and await self._is_version(scope, name, after):
                    continue  # the file of an earlier release, which was taken over and has been changed since
                if not await self._take_over(scope, name, before, after):
                    sight = sights[name] = replace(sight, has_news=False, is_busy=True)
                    break
            if sight.has_news:
                await wait_for_thread(asyncio.to_thread(self._keep, place, sight.state))
        if any(each.is_busy for each in sights.values()):
            self._unsettled.add(scope)
        elif all(each is None or not 0 <= now - each[0] / 1e9 < _COARSE for each in files.signatures):
            self._seen[scope] = files
            if len(self._seen) > _KNOWN_SCOPES:  # the one that is known longest is looked at anew
                del self._seen[next(iter(self._seen))]
        return sights

    async def _is_version(self, scope: str, name: str, text: str) -> bool:
        """Return True if a document has had *text*."""
        return any(text == each.texts.get(name, "") for each in await self._documents.states(scope))

    async def _stale_names(self, scope: str, sights: Mapping[str, _FileLook]) -> Sequence[str]:
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
            log.error("document_files.cannot_write", scope=scope, error=reason)
        pause = _FIRST_PAUSE if outage is None else min(outage.pause * 2, _LONGEST_PAUSE)
        self._failing[scope] = _WriteOutage(reason, pause, asyncio.get_running_loop().time() + pause)
        self._unsettled.add(scope)

    def _note_success(self, scope: str) -> None:
        if self._failing.pop(scope, None) is not None:
            log.info("document_files.writes_again", scope=scope)

    # -- in the thread -----------------------------------------------------------------------------

    def _place(self, scope: str, name: str) -> _DocumentPaths:
        folder = scope_folder(self._home, scope)
        beside = folder / "memory" / ".mirror"
        return _DocumentPaths(folder / document_file(name), beside / f"{name}.aside", beside / f"{name}.json")

    def _files_of(self, scope: str) -> _SeenFiles:
        folder = scope_folder(self._home, scope)
        paths = tuple(f"{folder}/{name}" for name in _FILES)
        return _SeenFiles(paths, _signatures(paths))

    def _edited_scopes(self) -> list[str]:
        """Return the scopes with files that were changed since they were looked at last, while no gateway ran."""

        def is_edited(scope: str) -> bool:
            places = [self._place(scope, name) for name in TRACKED]
            return any(_changed_at(each.path) > _changed_at(each.state) for each in places)

        return [scope for scope in ("", *list_scopes(self._home)) if is_edited(scope)]

    def _changed(self, files_of: Mapping[str, _SeenFiles]) -> list[str]:
        return [scope for scope, files in files_of.items() if _signatures(files.paths) != files.signatures]

    def _look(self, place: _DocumentPaths) -> _FileLook:
        """Return the edits of the file, and of the old one that came out of the last exchange."""
        self._disk.repair_exchange(place.aside, place.path)
        known = self._load_state(place)
        edits: list[tuple[str, str]] = []
        has_aside = self._disk.size(place.aside) is not None
        state, is_lingering = self._look_aside(place, known, edits)
        state, is_saving = self._look_file(place, state, edits)
        has_news = state != (known or _FileState("")) or (has_aside and state.about is None)
        is_busy = is_lingering or is_saving
        return _FileLook(state=state, edits=edits, has_news=has_news, is_busy=is_busy, is_first=known is None)

    def _look_aside(
        self, place: _DocumentPaths, last: _FileState | None, edits: list[tuple[str, str]]
    ) -> tuple[_FileState, bool]:
        """Look at what came out of an exchange; return the state without it, and True if it may still be written to."""
        state = last or _FileState("")
        out = self._disk.load(place.aside)
        if out is None:
            return _FileState(state.was), False  # a kill came before the exchange
        if last is not None and state.about is None:
            return state, False  # a kill came before it was removed
        if state.about is not None and out == state.about.encode() and self._disk.load(place.path) != out:
            return _FileState(state.was), False  # a kill came right before the exchange
        is_ours = self._is_closing and _is_text(out, state.was)
        if not is_ours and (self._is_fresh(place.aside, _LINGERING) or self._is_fresh(place.path, _SAVING)):
            return state, True
        if not _is_text(out, state.was):
            if (text := _decode(out)) is None:
                self._set_aside(place.aside, place.path)
            else:
                edits.append((state.was, text))
        return _FileState(state.base), False

    def _look_file(
        self, place: _DocumentPaths, state: _FileState, edits: list[tuple[str, str]]
    ) -> tuple[_FileState, bool]:
        """Look at a document's file; return the state with its text, and True if it may be half saved."""
        data = self._load(place.path, state.base)
        if data is None:
            if state.base and self._now() - self._missing.setdefault(place.path, self._now()) < _EMPTYING:
                return state, True
            text: str | None = ""
        else:
            self._missing.pop(place.path, None)
            if _is_text(data, state.base):
                return state, False
            if self._is_fresh(place.path, _SAVING if data else _EMPTYING):
                return state, True
            text = _decode(data)
        if text is None:
            state = state.with_base("")
            self._save_state(place, state)  # first, or the file would be taken for one that was deleted
            self._set_aside(place.path, place.path)
        elif text != state.base:
            edits.append((state.base_of(text), text))
            state = state.with_base(text)
        return state, False

    def _exchange(self, place: _DocumentPaths, before: str, text: str) -> None:
        """Write *text* into a file that has *before*. The file that comes out is looked at later."""
        self._save_state(place, _FileState(before, text))
        self._disk.replace(place.aside, text.encode())
        self._disk.close(self._disk.open_append(place.path))  # an empty file, if it is missing
        self._disk.exchange(place.aside, place.path)

    def _keep(self, place: _DocumentPaths, state: _FileState) -> None:
        self._save_state(place, state)
        if state.about is None:
            self._disk.remove(place.aside)

    def _save_state(self, place: _DocumentPaths, state: _FileState) -> None:
        if state != self._load_state(place):
            body = {"was": state.was} if state.about is None else {"was": state.was, "about": state.about}
            self._disk.replace(place.state, json.dumps(body, ensure_ascii=False).encode())

    def _load_state(self, place: _DocumentPaths) -> _FileState | None:
        found = decode(self._disk.load(place.state) or b"") or {}
        was, about = found.get("was"), found.get("about")
        return _FileState(was, about if isinstance(about, str) else None) if isinstance(was, str) else None

    def _load(self, path: Path, base: str) -> bytes | None:
        """Return a file's bytes, of a longer one than can be taken over only the first; None if it is missing."""
        if self._disk.size(path) is None:
            return None
        return self._disk.read(path, 0, max(LONGEST_EDIT, len(base.encode())) + 1)

    def _is_fresh(self, path: Path, seconds: float) -> bool:
        try:
            return 0 <= self._now() - path.stat().st_ctime < seconds
        except FileNotFoundError:  # just now
            return True

    def _set_aside(self, file: Path, path: Path) -> None:
        """Give a file that cannot be read as text, or is too long, a name beside the document."""
        aside = path.with_name(f"{path.name}.unreadable-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
        self._disk.rename(file, aside)
        log.error("document_files.unreadable", file=aside.name)

    def _forget_missing(self, scope: str) -> None:
        for name in TRACKED:
            place = self._place(scope, name)
            if self._disk.size(place.path) is None:
                self._keep(place, _FileState(""))

    def _remove_unreadable(self, scope: str) -> None:
        """Remove the files that were set aside, since they cannot be searched for words that are erased."""
        for name in TRACKED:
            path = self._place(scope, name).path
            for aside in sorted(path.parent.glob(f"{name}.unreadable-*")):
                self._disk.remove(aside)

    def _remove(self, scope: str) -> None:
        self._remove_unreadable(scope)
        for name in TRACKED:
            self._disk.remove(self._place(scope, name).path)
        beside = self._place(scope, TRACKED[0]).state.parent
        if beside.exists():
            self._disk.remove_folder(beside)
        self._commits.remove(scope)


def _signatures(paths: Sequence[str]) -> _Signatures:
    """Return the change time, size, inode and modification time of each file."""
    found: list[tuple[int, int, int, int] | None] = []
    for path in paths:
        try:
            stat = os.stat(path)  # noqa: PTH116 - a Path costs more than the call
        except (FileNotFoundError, NotADirectoryError):
            found.append(None)
        else:
            found.append((stat.st_ctime_ns, stat.st_size, stat.st_ino, stat.st_mtime_ns))
    return tuple(found)


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_ctime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _is_ours(file: StalePath) -> bool:
    return file.path in _FILES or file.path == REPOSITORY


def _is_text(data: bytes, text: str) -> bool:
    return data == text.encode() or _decode(data) == text


def _decode(data: bytes) -> str | None:
    """Return the text that a person saved; None for bytes of no text, and for too many."""
    if len(data) > LONGEST_EDIT:
        return None
    try:
        text = decode_text(data)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
