"""The workspace of one scope: its files, and for a week those that were replaced or deleted.

Each file is a row of the store. One that is replaced or deleted becomes a row of another kind, with its bytes, and is
restored by its id. Every change is one transaction that is made to the files as they were read, else it begins anew. It
takes the key of the call that asked for it, is recorded under it, and has no effect the second time.

Names are parts between slashes, such as ``trips/Rome 2027.csv``. Files that users sent are read, and never changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from agent.base.file_facts import Fact, facts_in, format_size, safe_name
from agent.base.transcript_lines import decode
from gateway.errors import ToolFailed
from gateway.events import short_id
from gateway.ports.journal import Line
from gateway.ports.memory import FileKind, FileLimit, FilesFull, FileTotal, ScopeFile, ScopeFileChange, StoredTurn

if TYPE_CHECKING:
    from gateway.store.files import SqlFiles
    from gateway.store.transcripts import SqlTranscripts


MOST_LEVELS = 8
RECEIVED = "received"  # the folder of files that users sent; it exists in names alone
_LONGEST = 640  # characters of a whole name
_LONGEST_PART = 200  # bytes, so that every file system takes it from an export
_PLAIN = " \u200c\u200d"  # a space, and the joiners that some scripts and emoji need
_FORBIDDEN = "\\\ufffd"


class InvalidFileName(ToolFailed):
    """No workspace file can have this name; the text says why."""


def parse_name(name: str) -> str:
    """Return *name* in its one spelling: composed characters, no white space at the edges. Raises InvalidFileName."""
    text = unicodedata.normalize("NFC", name[:_LONGEST])
    parts = [" ".join(part.split()) for part in text.split("/")]
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidFileName("a file name is relative, such as notes/rome.md: no slash at its ends, no `.` or `..`")
    if not all(map(_is_plain, parts)):
        raise InvalidFileName("a file name has no control characters, invisible characters or backslashes")
    if max(len(name), len(text)) > _LONGEST or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise InvalidFileName("that file name is too long; choose a shorter one")
    if len(parts) > MOST_LEVELS:
        raise InvalidFileName(f"a file name has at most {MOST_LEVELS} parts between slashes")
    return "/".join(parts)


def parse_own_name(name: str) -> str:
    """Do what `parse_name` does for a file that is to be changed; a received one is refused."""
    parsed = parse_name(name)
    if parsed.partition("/")[0] == RECEIVED:
        raise InvalidFileName(f"people sent the files in {RECEIVED}/, which cannot be changed; use another name")
    return parsed


def _is_plain(part: str) -> bool:
    return all(
        character in _PLAIN or (character not in _FORBIDDEN and unicodedata.category(character)[0] not in "CZ")
        for character in part
    )


log = structlog.get_logger(__name__)

FILE_BYTES = 20_000_000
MOST_FILES = 2_000  # and as many deleted ones
KEPT_FOR = timedelta(days=7)  # deleted files
KINDS = (FileKind.WORKSPACE, FileKind.DELETED, FileKind.CALL)


class FileTooLarge(ToolFailed):
    """A file is larger than the caller takes, or than a workspace file may be."""


class WorkspaceFull(Exception):
    """A limit of the workspace is reached: *reason* names it; *trash* is the size of the deleted files in bytes."""

    def __init__(self, reason: str, trash: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trash = trash


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a file."""

    data: bytes
    is_untrusted: bool


@dataclass(frozen=True, slots=True)
class FileChange:
    """A finished change: the size of the file now, and the id that restores what was there; "" if nothing was."""

    size: int
    trash_id: str = ""


@dataclass(frozen=True, slots=True)
class FileWorkspace:
    """The files of *scope*, with at most *most_bytes*, deleted ones included.

    Methods raise InvalidFileName, FileTooLarge, OSError where the disk fails, and StoreUnavailable.
    """

    store: SqlFiles
    scope: str
    most_bytes: int
    now: Callable[[], datetime]
    on_change: Callable[[str], None] = lambda _: None  # called with the scope when a file has other bytes, or is gone

    # -- reading -----------------------------------------------------------------------------------

    async def list_files(self) -> list[ScopeFile]:
        """Return the files, the last changed first."""
        return _newest_first(await self.store.files(self.scope, FileKind.WORKSPACE))

    async def deleted_files(self) -> list[ScopeFile]:
        """Return the files that can be restored by their names, the last deleted first."""
        return _newest_first(await self.store.files(self.scope, FileKind.DELETED))

    async def read(self, name: str, *, most: int = FILE_BYTES) -> FileContent | None:
        """Return the file *name*, None if it does not exist. Raises FileTooLarge beyond *most* bytes."""
        parsed = parse_name(name)
        while (file := await self.store.find(self.scope, FileKind.WORKSPACE, parsed)) is not None:
            if file.size > most:
                raise FileTooLarge(f"{file.name} is larger than {format_size(most)}")
            if (data := await self._load(file)) is not None:
                return FileContent(data, file.is_untrusted)
        return None

    # -- changing ----------------------------------------------------------------------------------

    async def create(self, name: str, data: bytes, *, is_untrusted: bool) -> FileChange | None:
        """Write a new file; None if another one has its name. Raises WorkspaceFull."""
        parsed = parse_own_name(name)
        while True:
            old = await self._find_old(parsed)
            if old is not None:
                return FileChange(len(data)) if await _holds(old, data) else None
            if await self._change(self._put(None, parsed, data, is_untrusted=is_untrusted), added=len(data)):
                return FileChange(len(data))

    async def replace(self, name: str, data: bytes, *, key: str, is_untrusted: bool) -> FileChange:
        """Write the file *name*; its older version can be restored. Raises WorkspaceFull."""
        parsed, call = parse_own_name(name), _derive_id(key, name)
        while True:
            old = await self._find_old(parsed)
            if (done := await self._find_done(call, old)) is not None:
                return done
            if old is not None and old.is_untrusted is is_untrusted and await _holds(old, data):
                return FileChange(len(data))
            kept = () if old is None else (self._keep(old, call),)
            new = self._put(None, parsed, data, is_untrusted=is_untrusted)
            if await self._change(*kept, new, self._record(call), added=len(data)):
                return FileChange(len(data), call if kept else "")

    async def append(self, name: str, data: bytes, *, key: str, is_untrusted: bool) -> FileChange:
        """Add *data* to the end of the file *name*, or create it; a marked file stays marked. Raises WorkspaceFull."""
        parsed, call = parse_own_name(name), _derive_id(key, name)
        while True:
            old = await self._find_old(parsed)
            if (done := await self._find_done(call, old)) is not None:
                return done
            if old is not None and old.size + len(data) > FILE_BYTES:
                raise _too_large(old.size + len(data))
            before = b"" if old is None else await self._load(old)
            if before is None:
                continue
            marked = is_untrusted or (old is not None and old.is_untrusted)
            new = self._put(old, parsed, before + data, is_untrusted=marked)
            if await self._change(new, self._record(call), added=len(data)):
                return FileChange(len(before) + len(data))

    async def delete(self, name: str, *, key: str) -> FileChange | None:
        """Delete the file *name*, which can be restored; None if it does not exist."""
        parsed, call = parse_own_name(name), _derive_id(key, name)
        while True:
            old = await self.store.find(self.scope, FileKind.WORKSPACE, parsed)
            if (done := await self._find_done(call, None)) is not None:
                return done
            if old is None:
                return None
            if await self.store.change(self.scope, self._keep(old, call), self._record(call)):
                self.on_change(self.scope)
                return FileChange(0, call)

    async def restore(self, trash_id: str) -> str | None:
        """Put a deleted file back and return its name, None for an unknown id. A file in its place is deleted.

        Restoring it again has no effect while it is there.
        """
        while True:
            deleted = await self.store.find(self.scope, FileKind.DELETED, trash_id)
            done = await self.store.find(self.scope, FileKind.CALL, trash_id)
            if deleted is None:
                return await self._find_restored(done)
            old, at = await self._find_old(deleted.original), self.now()
            record = ScopeFile(kind=FileKind.CALL, name=trash_id, at=at, original=deleted.original)
            kept = () if old is None else (self._keep(old, _derive_id(secrets.token_hex(8), old.name)),)
            back = replace(deleted, kind=FileKind.WORKSPACE, name=deleted.original, original="", at=at)
            changes = (
                *kept,
                ScopeFileChange(was=deleted, now=back),
                ScopeFileChange(was=done, now=record, data=b""),
            )
            if await self.store.change(self.scope, *changes):
                self.on_change(self.scope)
                return deleted.original

    async def empty_trash(self) -> int:
        """Remove the deleted files for good; return their number."""
        return await self.store.remove(self.scope, FileKind.DELETED)

    async def erase(self, clear: Callable[[str, bytes], bytes | None], *, is_preview: bool = False) -> list[str]:
        """Pass the name and the bytes of each file to *clear*, and store its result; None removes the file for good.

        *clear* runs in a thread. A deleted file that would change is removed. Return the names of the files that
        changed, or with *is_preview* would change.
        """
        changed: dict[str, None] = {}
        is_done = False
        while not is_done:
            is_done = True
            for file in await self.store.files(self.scope, *KINDS):
                if file.kind is FileKind.CALL and not file.original:
                    continue
                name = file.original or file.name
                data = await self.store.load(self.scope, file)
                if data is None:
                    if await self._is_current(file):
                        log.warning("workspace.not_read", scope=self.scope)
                    else:
                        is_done = False  # it may have another name now: look at all of them again
                    continue
                after = await asyncio.to_thread(clear, name, data)
                if after == data:
                    continue
                if file.kind is not FileKind.CALL:
                    changed[name] = None
                if not is_preview:
                    is_kept = file.kind is FileKind.WORKSPACE and after is not None
                    change = ScopeFileChange(was=file, now=file, data=after) if is_kept else ScopeFileChange(was=file)
                    is_done = await self.store.change(self.scope, change) and is_done
        return list(changed)

    # -- steps of a change -------------------------------------------------------------------------

    async def _find_old(self, name: str) -> ScopeFile | None:
        """Return the file *name*. Raises InvalidFileName if it would be in a file, or in the place of a folder."""
        files = {each.name: each for each in await self.store.files(self.scope, FileKind.WORKSPACE)}
        if name in files:
            return files[name]
        parts = name.split("/")
        is_inside = any("/".join(parts[:n]) in files for n in range(1, len(parts)))
        if is_inside or any(each.startswith(f"{name}/") for each in files):
            raise InvalidFileName("a part of that name is a folder where a file is needed, or the reverse")
        return None

    async def _find_done(self, call: str, file: ScopeFile | None) -> FileChange | None:
        """Return what a call did in an earlier attempt to *file*, which is as it is now."""
        if await self.store.find(self.scope, FileKind.CALL, call) is None:
            return None
        kept = await self.store.find(self.scope, FileKind.DELETED, call)
        return FileChange(0 if file is None else file.size, "" if kept is None else call)

    async def _find_restored(self, record: ScopeFile | None) -> str | None:
        """Return the name of the file that *record* has restored, if it is there as it was then."""
        if record is None or not record.original:
            return None
        file = await self.store.find(self.scope, FileKind.WORKSPACE, record.original)
        return file.name if file is not None and file.at == record.at else None

    async def _load(self, file: ScopeFile) -> bytes | None:
        """Return the bytes of a file; None if it has changed since. Raises ToolFailed if they are lost."""
        data = await self.store.load(self.scope, file)
        if data is None and await self._is_current(file):
            raise ToolFailed(f"{file.name} is not kept here any more")
        return data

    async def _is_current(self, file: ScopeFile) -> bool:
        return await self.store.find(self.scope, file.kind, file.name) == file

    def _put(self, old: ScopeFile | None, name: str, data: bytes, *, is_untrusted: bool) -> ScopeFileChange:
        if len(data) > FILE_BYTES:
            raise _too_large(len(data))
        new = ScopeFile(kind=FileKind.WORKSPACE, name=name, at=self.now(), is_untrusted=is_untrusted)
        return ScopeFileChange(was=old, now=new, data=data)

    def _keep(self, old: ScopeFile, trash_id: str) -> ScopeFileChange:
        """Return the change that makes a file one that can be restored by an id."""
        kept = replace(old, kind=FileKind.DELETED, name=trash_id, original=old.name, at=self.now())
        return ScopeFileChange(was=old, now=kept)

    def _record(self, call: str) -> ScopeFileChange:
        return ScopeFileChange(now=ScopeFile(kind=FileKind.CALL, name=call, at=self.now()), data=b"")

    async def _change(self, *changes: ScopeFileChange, added: int) -> bool:
        """Make changes that add bytes; False if they must begin anew. Raises WorkspaceFull."""
        limit = FileLimit(kinds=(FileKind.WORKSPACE, FileKind.DELETED), count=MOST_FILES, size=self.most_bytes)
        try:
            is_done = await self.store.change(self.scope, *changes, limit=limit)
        except FilesFull as full:
            raise await self._describe_full(full.totals, added) from None
        if is_done:
            self.on_change(self.scope)
        return is_done

    async def _describe_full(self, totals: Mapping[FileKind, FileTotal], added: int) -> WorkspaceFull:
        kept, deleted = (totals.get(each, FileTotal()) for each in (FileKind.WORKSPACE, FileKind.DELETED))
        if kept.size + deleted.size + added <= self.most_bytes:
            what = "deleted files" if deleted.count >= MOST_FILES else "files"
            return WorkspaceFull(f"the workspace is full ({MOST_FILES} {what})", deleted.size)
        largest = max(await self.list_files(), key=lambda each: each.size, default=None)
        named = f"; the largest: {largest.name}, {format_size(largest.size)}" if largest else ""
        return WorkspaceFull(f"the workspace is full ({format_size(self.most_bytes)}){named}", deleted.size)


class ScopeWorkspaces:
    """Gives each scope its own workspace, and expires deleted files in all of them."""

    def __init__(
        self,
        store: SqlFiles,
        *,
        most_mb: int,
        now: Callable[[], datetime],
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Keep at most *most_mb* megabytes in each scope. *on_change* is that of `FileWorkspace`."""
        self._store = store
        self._most_bytes = most_mb * 1_000_000
        self._now = now
        self._on_change = on_change

    def of(self, scope: str) -> FileWorkspace:
        """Return the workspace of *scope*, which need not exist yet."""
        return FileWorkspace(self._store, scope, self._most_bytes, self._now, self._on_change)

    async def expire_trash(self) -> int:
        """Remove for good what was deleted more than a week ago; return the number of files."""
        limit = self._now() - KEPT_FOR
        await self._store.expire(FileKind.CALL, before=limit)
        return await self._store.expire(FileKind.DELETED, before=limit)


async def merge_workspaces(store: SqlFiles, source: str, target: str) -> None:
    """Give the workspace of *source* to *target*. Idempotent; hold the exclusive locks of both scopes.

    A file gets a number where *target* has another one of its name; equal files become one.
    """
    taken = {each.name: each for each in await store.files(target, FileKind.WORKSPACE)}
    moved: dict[ScopeFile, str] = {}
    for file in await store.files(source, *KINDS):
        name, n = file.name, 2
        while file.kind is FileKind.WORKSPACE and name in taken and not _is_equal(taken[name], file):
            name, n = f"{file.name}.{n}", n + 1
        if file.kind is FileKind.WORKSPACE:
            taken[name] = file
        moved[file] = name
    await store.move(source, target, moved)


def exported_name(file: ScopeFile) -> str:
    """Return the name of a workspace's file in an export."""
    if file.kind is FileKind.DELETED:
        return f"deleted files/{file.at.astimezone(UTC):%Y%m%dt%H%M%Sz}.{file.name}/{file.original}"
    return f"files/{file.name}"


def _is_equal(file: ScopeFile, other: ScopeFile) -> bool:
    return (file.digest, file.is_untrusted) == (other.digest, other.is_untrusted)


async def _holds(file: ScopeFile, data: bytes) -> bool:
    return file.size == len(data) and file.digest == (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()


def _newest_first(files: Sequence[ScopeFile]) -> list[ScopeFile]:
    return sorted(files, key=lambda each: (each.at, each.name), reverse=True)


def _too_large(size: int) -> FileTooLarge:
    return FileTooLarge(f"a file has at most {format_size(FILE_BYTES)}; this one would have {format_size(size)}")


def _derive_id(key: str, name: str) -> str:
    return "f" + short_id(f"{key}\n{name}", 8)


# -- files that users sent -------------------------------------------------------------------------

_LOOKED_THROUGH = 32 << 20  # bytes of older conversations
_PAGE = 128  # turns


class ReceivedFiles:
    """Finds received files by name. *lines* are those of the current conversation, the last one last."""

    def __init__(self, transcripts: SqlTranscripts) -> None:
        self._transcripts = transcripts

    async def find(self, scope: str, name: str, lines: Iterable[Line]) -> Fact | None:
        """Return the newest file called *name*, None if it does not exist."""
        wanted = safe_name(name).casefold()
        async for fact in self._all(scope, lines):
            if str(fact["name"]).casefold() == wanted:
                return fact
        return None

    async def list_facts(self, scope: str, lines: Iterable[Line], *, most: int) -> list[Fact]:
        """Return the newest *most* files, one of each name, the newest first."""
        found: dict[str, Fact] = {}
        async for fact in self._all(scope, lines):
            if len(found) == most:
                break
            found.setdefault(str(fact["name"]).casefold(), fact)
        return list(found.values())

    async def _all(self, scope: str, lines: Iterable[Line]) -> AsyncIterator[Fact]:
        """Yield the files of *lines* and of the scope's turns, the newest first."""
        for fact in _iter_stored(reversed(list(lines))):
            yield fact
        heads = sorted(await self._transcripts.heads(scope, {}), key=lambda head: -head.seq)
        left = _LOOKED_THROUGH
        for key in dict.fromkeys(head.key for head in heads):
            before: int | None = None
            while left > 0 and (page := await self._transcripts.newest(scope, key, _PAGE, before=before)):
                for fact in await asyncio.to_thread(_facts_of, page):
                    yield fact
                left -= sum(len(turn.body) for turn in page)
                before = page[0].seq


def _facts_of(turns: Iterable[StoredTurn]) -> list[Fact]:
    raws = [raw for turn in turns for raw in turn.body.split(b"\n") if b'"files"' in raw]
    return list(_iter_stored(line for raw in reversed(raws) if (line := decode(raw)) is not None))


def _iter_stored(lines: Iterable[Line]) -> Iterator[Fact]:
    """Yield the stored files that lines name, in the lines' order."""
    for line in lines:
        yield from (fact for fact in facts_in(line) if fact.get("blob") and fact.get("name"))
