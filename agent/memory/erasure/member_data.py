"""What somebody said and had kept where others did, too: taken out of a group's files and versions. Blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.memory.documents.version_store import VersionStore
from agent.memory.erasure.scope_files import BLOBS, SESSIONS, ReferencedAttachments, clear_raw, remove_attachments
from agent.memory.erasure.word_match import ErasurePattern, pad_line, without_entries, without_words
from agent.memory.history.history_log import LOCK
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode, kind_of
from gateway.ports import Line

ALL = ErasurePattern("")  # whatever they said
_SAID = frozenset({"message", "command", "notice"})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Somebody in a shared scope: by the ids that its platform knows them by, and as accounts of ours."""

    home: Path
    scope: str
    ids: frozenset[str]
    accounts: frozenset[str]
    disk: Disk
    versions: VersionStore

    @property
    def folder(self) -> Path:
        """The scope's folder."""
        return scope_folder(self.home, self.scope)

    async def clear_said(self, redact: Callable[[Path, Callable[[bytes], bytes]], Awaitable[int]]) -> bool:
        """Blank their turns in the transcripts, and remove the files that came with them."""
        named = ReferencedAttachments(ALL, self._may())
        await redact(self.folder / SESSIONS, named.look)
        if not named.is_any:
            return False
        await asyncio.to_thread(remove_attachments, self.disk, self.folder, named.cleared_only)
        may = self._may()
        return bool(await redact(self.folder / SESSIONS, lambda raw: self._without(raw, may)))

    def without_lines(self, name: str, text: str) -> str:
        """Return a document as it stands now without the entries that they had kept."""
        brought = self.versions.imported(self.scope).get(name, {})
        return without_entries(text, ALL, lambda line: brought.get(line, "") in self.accounts)[0]

    def clear_files(self) -> bool:
        """Take them out of versions, raw archive and the stored texts of snapshots."""
        memory = self.folder / "memory"
        if not memory.is_dir():
            return False

        def redact(text: bytes, brought: Mapping[str, str]) -> bytes:
            plain = text.decode("utf-8", "surrogateescape")
            left, gone = without_entries(plain, ALL, lambda line: brought.get(line, "") in self.accounts)
            return left.encode("utf-8", "surrogateescape") if gone else text

        with self.disk.lock(memory / LOCK):
            is_named = any(version.by in self.accounts for version, _ in self.versions.every(self.scope))
            if is_named:
                self.versions.rewrite(self.scope, redact, nobody=self.accounts)
        is_raw = bool(clear_raw(self.disk, memory, ALL, self._is_by))
        if is_named:
            for path in sorted((self.folder / BLOBS).glob("*")):
                self.disk.remove(path)
        return is_named or is_raw

    def _is_by(self, line: Line) -> bool:
        by = line.get("by")
        return isinstance(by, Mapping) and by.get("id") in self.ids

    def _may(self) -> Callable[[Line], bool]:
        mine: set[str] = set()

        def may(line: Line) -> bool:
            if self._is_by(line):
                mine.add(str(line.get("turn")))
            return kind_of(line) in _SAID and line.get("turn") in mine

        return may

    def _without(self, raw: bytes, may: Callable[[Line], bool]) -> bytes:
        line = decode(raw)
        if line is None:
            return raw
        if not may(line):
            # What was overheard names who said it by a name alone, so all of it goes; nobody reads it again.
            quiet = {name: value for name, value in line.items() if name != "quoted"}
            return pad_line(quiet, quiet, len(raw)) if quiet != line else raw
        left = decode(without_words(raw, ALL, lambda _: True, whole=True)) or {}
        blank = {name: value for name, value in left.items() if name != "by"}
        short = {name: "" if value == FORGOTTEN else value for name, value in blank.items()}
        data = pad_line(blank, short, len(raw))
        return data if len(data) == len(raw) else encode(blank)
