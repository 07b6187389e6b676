"""The documents and the history of one plain folder, as the library keeps them without a gateway.

They are in the files that a gateway writes as its mirror. In a folder that a gateway has the memory of, nothing is
written, since its store would write over it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from agent.base.disk import Disk, read_text, save_corrupt
from agent.base.scopes import AREAS, SHARED, scope_folder
from agent.base.transcript_lines import decode, encode, utc_now
from agent.memory.history.history_files import (
    CURSOR,
    DREAM_CURSOR,
    LOCK,
    MARK_FILES,
    NOTE_NAME,
    cursor_of,
    digest_of,
    import_legacy,
    is_legacy,
    printed_files,
    read_files,
)
from gateway.errors import HomeInUse
from gateway.ports.journal import TurnRecord
from gateway.ports.memory import (
    HISTORY_JSONL,
    HISTORY_MD,
    MIRROR,
    RAW_JSONL,
    HistoryEntry,
    HistoryRevs,
    HistoryStore,
    HistoryUpdate,
    MarkKind,
    Marks,
    NoteChange,
    ScopeDocument,
    ScopeHistory,
    document_file,
)
from gateway.text.json_lines import encode_entry, encode_raw, read_entry

log = structlog.get_logger(__name__)

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_SAVING = 0.02  # seconds that an editor may take between emptying a file and writing it
_PAUSE = 0.01
_LOOKS = 10
_OURS = 256
_DERIVED = (CURSOR, DREAM_CURSOR, HISTORY_MD)


class FolderHistory:
    """Implements `HistoryStore` over a workspace's `memory/`, which is its only scope.

    Several processes may use it at once. The first access imports an older system's HISTORY.md. Raises OSError, and
    HomeInUse for a write in a folder that a gateway has the memory of.
    """

    def __init__(self, workspace: Path, disk: Disk | None = None, *, now: Callable[[], datetime] = utc_now) -> None:
        self._folder = Path(workspace) / "memory"
        self._disk = disk or Disk()
        self._now = now

    def append_now(self, *entries: HistoryEntry) -> tuple[HistoryEntry, ...]:
        """Store the entries, each id once, and return them as stored. Blocks; durable on return.

        HISTORY.md is updated too; if that fails, the next append repairs it.
        """
        return self._change(partial(_append, entries=entries))

    async def append(self, scope: str, *entries: HistoryEntry) -> Sequence[HistoryEntry]:  # noqa: ARG002
        """Store the entries."""
        require_unowned(self._folder.parent)
        return await asyncio.to_thread(self.append_now, *entries)

    async def keep_raw(
        self,
        scope: str,  # noqa: ARG002
        entry: HistoryEntry,
        messages: Sequence[Any],
        *,
        pointer: TurnRecord | None = None,  # noqa: ARG002
    ) -> HistoryEntry:
        """Store messages without a summary; a session's file has its pointer."""

        def keep(history: ScopeHistory) -> tuple[ScopeHistory, HistoryEntry]:
            if all((decode(raw) or {}).get("entry") != entry.entry for raw in history.raws):
                history = replace(history, raws=(*history.raws, *encode_raw(entry, messages)))
            history, (stored,) = _append(history, (replace(entry, raw=RAW_JSONL),))
            return history, stored

        require_unowned(self._folder.parent)
        return await asyncio.to_thread(self._change, keep)

    async def find(self, scope: str, entry: str) -> HistoryEntry | None:
        """Return an entry by its id."""
        return next((each for each in await self.after(scope) if each.entry == entry), None) if entry else None

    async def after(self, scope: str, cursor: int = 0, limit: int | None = None) -> Sequence[HistoryEntry]:  # noqa: ARG002
        """Return the entries after a cursor."""
        entries = map(read_entry, (await asyncio.to_thread(self._load)).entries)
        return [entry for entry in entries if entry is not None and entry.cursor > cursor][:limit]

    async def revs(self, scope: str) -> HistoryRevs:
        """Return sizes, times and inodes of the files."""
        names = await self.note_names(scope)
        return await asyncio.to_thread(
            lambda: HistoryRevs(
                entries=_rev(self._folder / HISTORY_JSONL),
                keys=_rev(self._folder / MARK_FILES[MarkKind.KEYS]),
                notes={name: _rev(self._folder / name) for name in names},
            )
        )

    async def note_names(self, scope: str) -> Sequence[str]:  # noqa: ARG002
        """Return the names of the notes."""
        names = await asyncio.to_thread(lambda: sorted(path.name for path in self._folder.glob("[0-9]*.md")))
        return [name for name in names if NOTE_NAME.match(name)]

    async def note(self, scope: str, name: str) -> bytes | None:  # noqa: ARG002
        """Return a note."""
        return await asyncio.to_thread(self._disk.load, self._folder / name)

    async def marks(self, scope: str, kind: MarkKind) -> Mapping[str, str]:  # noqa: ARG002
        """Return the marks of a kind."""
        return await asyncio.to_thread(self._marks, kind)

    async def write(
        self,
        scope: str,  # noqa: ARG002
        *,
        notes: Mapping[str, NoteChange] | None = None,
        marks: Mapping[MarkKind, Marks] | None = None,
    ) -> bool:
        """Change notes, then marks: a kill in between leaves the notes without the marks."""
        require_unowned(self._folder.parent)
        return await asyncio.to_thread(self._write, notes or {}, marks or {})

    def _write(self, notes: Mapping[str, NoteChange], marks: Mapping[MarkKind, Marks]) -> bool:
        self._disk.make_folder(self._folder)
        with self._disk.lock(self._folder / LOCK):
            if any(self._disk.load(self._folder / name) != change.was for name, change in notes.items()):
                return False
            for name, change in notes.items():
                if change.body is None:
                    self._disk.remove(self._folder / name)
                else:
                    self._disk.replace(self._folder / name, change.body)
            for kind, changes in marks.items():
                before = self._marks(kind)
                kept = {name: text for name, text in (before | dict(changes)).items() if text is not None}
                if kept and kept != before:
                    self._disk.replace(self._folder / MARK_FILES[kind], encode(kept))
                elif before and not kept:
                    self._disk.remove(self._folder / MARK_FILES[kind])
        return True

    def _marks(self, kind: MarkKind) -> dict[str, str]:
        record = decode(self._disk.load(self._folder / MARK_FILES[kind]) or b"{}") or {}
        return {name: text for name, text in record.items() if isinstance(text, str)}

    def _load(self) -> ScopeHistory:
        if is_legacy(self._folder, self._disk):
            with self._disk.lock(self._folder / LOCK):
                import_legacy(self._folder, self._disk, self._now())
        return read_files(self._folder, self._disk)

    def _change(self, update: Callable[[ScopeHistory], tuple[ScopeHistory, T]]) -> T:
        with self._disk.lock(self._folder / LOCK):
            import_legacy(self._folder, self._disk, self._now())
            before = read_files(self._folder, self._disk)
            after, result = update(before)
            self._print(printed_files(before), printed_files(after))
        return result

    def _print(self, before: dict[str, bytes], after: dict[str, bytes]) -> None:
        for name in (RAW_JSONL, HISTORY_JSONL):  # the archive first: an entry says that it has the messages
            _, _, torn = (self._disk.load(self._folder / name) or b"").rpartition(b"\n")
            if torn:
                save_corrupt(self._disk, self._folder / name, [torn])
            self._put(name, after.get(name, b""))
        try:
            for name in _DERIVED:
                current = self._disk.load(self._folder / name) or b""
                is_edited = current != before.get(name) and not after.get(name, b"").startswith(current)
                if name == HISTORY_MD and is_edited:
                    digest = hashlib.sha256(current).hexdigest()[:8]
                    self._disk.replace(self._folder / f"{name}.edited-{digest}", current)
                self._put(name, after.get(name, b""))
        except OSError as error:  # the record itself is safe, and the next change writes these again
            log.warning("history.markdown_failed", error=error.strerror)

    def _put(self, name: str, data: bytes) -> None:
        path, current = self._folder / name, self._disk.load(self._folder / name) or b""
        if current and data.startswith(current) and name not in (CURSOR, DREAM_CURSOR):
            if data != current:
                self._disk.append(path, data[len(current) :])
        elif data != current:
            self._disk.replace(path, data)


def _append(history: ScopeHistory, entries: Sequence[HistoryEntry]) -> tuple[ScopeHistory, tuple[HistoryEntry, ...]]:
    lines = list(history.entries)
    known = {entry.entry: n for n, raw in enumerate(lines) if (entry := read_entry(raw)) and entry.entry}
    cursor = max([history.cursor, history.dream_cursor, *map(cursor_of, lines[-1:])])
    stored: list[HistoryEntry] = []
    for each in entries:
        n = known.get(each.entry) if each.entry else None
        there = read_entry(lines[n]) if n is not None else None
        if n is None or there is None:
            cursor += 1
            stored.append(replace(each, cursor=cursor))
            if each.entry:
                known[each.entry] = len(lines)
            lines.append(encode_entry(stored[-1]))
        elif there.raw and not each.raw:
            stored.append(replace(each, cursor=there.cursor, timestamp=there.timestamp))
            lines[n] = encode_entry(stored[-1])
        else:
            stored.append(there)
    return replace(history, entries=tuple(lines), cursor=cursor), tuple(stored)


def _rev(path: Path) -> str:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ""
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"


# -- documents ----------------------------------------------------------------------------------------


def document_path(home: Path, scope: str, name: str) -> Path:
    """Return the path of a scope's document; raise ValueError for an invalid name."""
    if not _NAME.match(name):
        raise ValueError(f"not a document: {name!r}")
    return scope_folder(home, scope) / document_file(name)


class FileDocumentStore:
    """Implements `DocumentStore` over the files of a home. A rev is the sha256 of the bytes."""

    def __init__(
        self,
        home: Path,
        *,
        disk: Disk | None = None,
        fit: Callable[[str, str, str], Awaitable[str]] | None = None,
        history: HistoryStore | None = None,
    ) -> None:
        """Serve the documents of *home*. *fit* returns a new MEMORY.md (scope, old text, new text) in its ceiling.

        *history* gets the entries that are stored beside a change.
        """
        self._fit = fit
        self._history = history
        self._home = home
        self._disk = disk or Disk()
        self._ours: OrderedDict[str, None] = OrderedDict()  # revs that we wrote; these files are complete

    async def read(self, scope: str, name: str) -> ScopeDocument:
        """Return the current text."""
        return await asyncio.to_thread(self.read_now, scope, name)

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = "", beside: HistoryUpdate | None = None
    ) -> ScopeDocument | None:
        """Replace the text if its rev is still *was*; return None if another writer was faster. Durable on return.

        An entry *beside* it is stored afterwards: a caller that a crash interrupts does both again.
        """
        is_fitted = self._fit is not None and name == "MEMORY.md"
        before = (await self.read(scope, name)).text if is_fitted else ""
        written = await asyncio.to_thread(self.write_now, scope, name, text, was=was)
        if written is None:
            return None
        if beside is not None and self._history is not None:
            await self._history.append(scope, beside.entry)
        if written.rev == was:
            return written
        log.info("document.written", scope=scope, name=name, why=why, by=by)
        if self._fit is not None and is_fitted and (fitted := await self._fit(scope, before, text)) != text:
            done = await asyncio.to_thread(self.write_now, scope, name, fitted, was=written.rev)
            return done or written  # a later change brings it within its ceiling
        return written

    async def epoch(self, scope: str) -> str:  # noqa: ARG002 - the port's
        """Return "": nothing erases in a folder without a gateway."""
        return ""

    def read_now(self, scope: str, name: str) -> ScopeDocument:
        """Do what `read` does; blocks."""
        data = self._read_settled(document_path(self._home, scope, name))
        if data is None:
            return ScopeDocument(name=name, text="", rev="")
        return ScopeDocument(name=name, text=read_text(data), rev=digest_of(data))

    def _read_settled(self, path: Path) -> bytes | None:
        """Return the file's bytes once no editor is saving it: some editors empty a file before they write."""
        data = self._disk.load(path)
        for _ in range(_LOOKS):
            if data is None or digest_of(data) in self._ours or not _is_fresh(path):
                break
            time.sleep(_PAUSE)
            data = self._disk.load(path)
        while len(self._ours) > _OURS:
            self._ours.popitem(last=False)
        return data

    def _scope_lock(self, scope: str) -> AbstractContextManager[None]:
        return self._disk.lock(scope_folder(self._home, scope) / "memory" / ".lock")

    def write_now(self, scope: str, name: str, text: str, *, was: str) -> ScopeDocument | None:
        """Do what `write` does; blocks."""
        path = document_path(self._home, scope, name)
        data = text.encode("utf-8", "replace")
        # The lock keeps our own writers apart, in every process; an editor's save shows in the rev.
        with self._scope_lock(scope):
            now = self._read_settled(path)
            if ("" if now is None else digest_of(now)) != was:
                return None
            if not self._replace(path, data, now):
                return None
        return ScopeDocument(name=name, text=read_text(data), rev=digest_of(data))

    def _replace(self, path: Path, data: bytes, was: bytes | None) -> bool:
        """Replace the file's bytes *was*; return False if an editor was faster."""
        if was == data:
            return True
        self._ours[digest_of(data)] = None
        return self._disk.swap(path, data, was=was)


def _is_fresh(path: Path) -> bool:
    try:
        return 0 <= time.time() - path.stat().st_mtime < _SAVING
    except OSError:
        return False


# -- folders without a gateway ---------------------------------------------------------------------


@contextlib.contextmanager
def hold_unowned(workspace: Path) -> Iterator[None]:
    """Hold the lock of the home of *workspace*, shared, for one write. Raises HomeInUse if a gateway has the memory."""
    with contextlib.ExitStack() as stack:
        for home in _homes(workspace):
            if is_mirrored(home):
                raise HomeInUse(
                    f"a gateway owns {home} and writes its memory into these files: change it there, in a chat or with"
                    " `parlour memory`, or edit the Markdown files by hand"
                )
            if not (home / "lock").is_file():
                continue
            fd = os.open(home / "lock", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HomeInUse(f"a gateway owns {home}: ask it (`parlour sessions list`), or stop it first") from None
        yield


def require_unowned(workspace: Path) -> None:
    """Raise HomeInUse if a gateway has the memory of *workspace*: before a model is paid for what is not stored."""
    with hold_unowned(workspace):
        return


def is_mirrored(workspace: Path) -> bool:
    """Return True if a gateway writes what it stores into the files of *workspace*."""
    return any((home / MIRROR).exists() for home in _homes(workspace))


def _homes(workspace: Path) -> list[Path]:
    """Return the folders that *workspace* may be a part of: itself, and its home if it is a scope."""
    homes = [workspace]
    if workspace.parent.name in AREAS:
        homes.append(workspace.parent.parent)
    if workspace.name == SHARED:
        homes.append(workspace.parent)
    return homes
