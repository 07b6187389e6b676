"""MEMORY.md, USER.md and SOUL.md of a scope as files: edits by a person, and the exchange for a new text.

A file is written beside and exchanged. The old file is looked at afterwards, so that a save at the same moment is not
lost. For each document, `memory/.mirror/` has the text that its file had at the last look, and the text that is being
exchanged for it. So after a kill, our own text is not taken for an edit, nor an edit for ours.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import structlog

from agent.base.disk import Disk, decode_text
from agent.base.scopes import list_scopes, scope_folder
from agent.base.transcript_lines import decode
from agent.memory.storage.scope_documents import TRACKED
from gateway.ports.memory import document_file

log = structlog.get_logger(__name__)

LONGEST_EDIT = 1_000_000  # bytes of a file that are taken over
DOCUMENT_PATHS = {document_file(name): name for name in TRACKED}
_SAVING = 0.1  # seconds that an editor may take between two writes of a save
_EMPTYING = 1.0  # and between emptying or removing a file and writing it
_LINGERING = 0.5  # and may write into a file that was exchanged, for it had opened it before
_COARSE = 2.5  # seconds; a file that was changed so recently can be changed again without a new time

_Signatures: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class FileState:
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

    def with_base(self, text: str) -> FileState:
        """Return the state of a file with *text*."""
        return FileState(text) if self.about is None else FileState(self.was, text)


@dataclass(frozen=True, slots=True)
class SeenFiles:
    """The documents' files of a scope, and what they were like at the last look."""

    paths: tuple[str, ...]
    signatures: _Signatures

    @property
    def are_changed(self) -> bool:
        """True if a file was changed since. Does not block: the kernel has the attributes of files that were read."""
        return self.signatures != _read_signatures(self.paths)

    def may_hide_changes(self, now: float) -> bool:
        """Return True if a file can have been changed again at the time of its last change."""
        return any(each is not None and 0 <= now - each[0] / 1e9 < _COARSE for each in self.signatures)


@dataclass(frozen=True, slots=True)
class _DocumentPaths:
    """The paths of a document: its file, what is beside it or came out of it, and its state."""

    path: Path
    aside: Path
    state: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLook:
    """The result of a look at a document's file."""

    state: FileState  # once the edits are taken over
    edits: Sequence[tuple[str, str]] = ()  # texts before and after each, the oldest first
    has_news: bool = False  # `state` is to be kept, or what came out is to be removed
    is_busy: bool = False  # somebody may be writing; look again
    is_first: bool = False  # nothing is kept of an earlier look


class DocumentFiles:
    """The documents' files of every scope of a home. The methods block: call them in a thread, one for a scope."""

    def __init__(self, home: Path, disk: Disk, now: Callable[[], float] = time.time) -> None:
        """*now* is the clock of the files' times."""
        self.is_closing = False  # nobody waits for editors that may have a file open
        self._home = home
        self._disk = disk
        self._now = now
        self._missing: dict[Path, float] = {}  # since when

    def see(self, scope: str) -> SeenFiles:
        """Return the present attributes of the files of *scope*."""
        folder = scope_folder(self._home, scope)
        paths = tuple(f"{folder}/{name}" for name in DOCUMENT_PATHS)
        return SeenFiles(paths, _read_signatures(paths))

    def edited_scopes(self) -> list[str]:
        """Return the scopes with files that were changed since they were looked at last, while no gateway ran."""

        def is_edited(scope: str) -> bool:
            places = [self._place(scope, name) for name in TRACKED]
            return any(_changed_at(each.path) > _changed_at(each.state) for each in places)

        return [scope for scope in ("", *list_scopes(self._home)) if is_edited(scope)]

    def look(self, scope: str, name: str) -> FileLook:
        """Return the edits of the file, and of the old one that came out of the last exchange."""
        place = self._place(scope, name)
        self._disk.repair_exchange(place.aside, place.path)
        known = self._load_state(place)
        edits: list[tuple[str, str]] = []
        has_aside = self._disk.size(place.aside) is not None
        state, is_lingering = self._look_aside(place, known, edits)
        state, is_saving = self._look_file(place, state, edits)
        has_news = state != (known or FileState("")) or (has_aside and state.about is None)
        is_busy = is_lingering or is_saving
        return FileLook(state=state, edits=edits, has_news=has_news, is_busy=is_busy, is_first=known is None)

    def exchange(self, scope: str, name: str, before: str, text: str) -> None:
        """Write *text* into a file that has *before*. The file that comes out is looked at later."""
        place = self._place(scope, name)
        self._save_state(place, FileState(before, text))
        self._disk.replace(place.aside, text.encode())
        self._disk.close(self._disk.open_append(place.path))  # an empty file, if it is missing
        self._disk.exchange(place.aside, place.path)

    def keep(self, scope: str, name: str, state: FileState) -> None:
        """Keep the *state* of a file, whose edits are taken over."""
        place = self._place(scope, name)
        self._save_state(place, state)
        if state.about is None:
            self._disk.remove(place.aside)

    def forget_missing(self, scope: str) -> None:
        """Have no file that is missing be taken for one that a person has deleted."""
        for name in TRACKED:
            if self._disk.size(self._place(scope, name).path) is None:
                self.keep(scope, name, FileState(""))

    def remove_unreadable(self, scope: str) -> None:
        """Remove the files that were set aside, since they cannot be searched for words that are erased."""
        for name in TRACKED:
            path = self._place(scope, name).path
            for aside in sorted(path.parent.glob(f"{name}.unreadable-*")):
                self._disk.remove(aside)

    def remove(self, scope: str) -> None:
        """Remove the files, and what is kept beside them."""
        self.remove_unreadable(scope)
        for name in TRACKED:
            self._disk.remove(self._place(scope, name).path)
        beside = self._place(scope, TRACKED[0]).state.parent
        if beside.exists():
            self._disk.remove_folder(beside)

    def _place(self, scope: str, name: str) -> _DocumentPaths:
        folder = scope_folder(self._home, scope)
        beside = folder / "memory" / ".mirror"
        return _DocumentPaths(folder / document_file(name), beside / f"{name}.aside", beside / f"{name}.json")

    def _look_aside(
        self, place: _DocumentPaths, last: FileState | None, edits: list[tuple[str, str]]
    ) -> tuple[FileState, bool]:
        """Look at what came out of an exchange; return the state without it, and True if it may still be written to."""
        state = last or FileState("")
        out = self._disk.load(place.aside)
        if out is None:
            return FileState(state.was), False  # a kill came before the exchange
        if last is not None and state.about is None:
            return state, False  # a kill came before it was removed
        if state.about is not None and out == state.about.encode() and self._disk.load(place.path) != out:
            return FileState(state.was), False  # a kill came right before the exchange
        is_ours = self.is_closing and _is_text(out, state.was)
        if not is_ours and (self._is_fresh(place.aside, _LINGERING) or self._is_fresh(place.path, _SAVING)):
            return state, True
        if not _is_text(out, state.was):
            if (text := _decode(out)) is None:
                self._set_aside(place.aside, place.path)
            else:
                edits.append((state.was, text))
        return FileState(state.base), False

    def _look_file(
        self, place: _DocumentPaths, state: FileState, edits: list[tuple[str, str]]
    ) -> tuple[FileState, bool]:
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

    def _save_state(self, place: _DocumentPaths, state: FileState) -> None:
        if state != self._load_state(place):
            body = {"was": state.was} if state.about is None else {"was": state.was, "about": state.about}
            self._disk.replace(place.state, json.dumps(body, ensure_ascii=False).encode())

    def _load_state(self, place: _DocumentPaths) -> FileState | None:
        found = decode(self._disk.load(place.state) or b"") or {}
        was, about = found.get("was"), found.get("about")
        return FileState(was, about if isinstance(about, str) else None) if isinstance(was, str) else None

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


def _read_signatures(paths: Sequence[str]) -> _Signatures:
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
