"""Every place of a scope's folder that can hold words: cleared where that can be done, else removed. Blocks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent.attachments.file_facts import blobs_in, facts_in
from agent.memory.documents.file_documents import EPOCH
from agent.memory.erasure.word_match import ErasurePattern, clear_value, without_entries, without_words
from agent.memory.history.history_log import CURSOR, DREAM_CURSOR, HISTORY_JSONL, LOCK, RAW_JSONL
from agent.memory.history.history_markdown import HISTORY_MD
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk, is_half_made
from agent.memory.storage.transcript_lines import decode, encode
from gateway.ports import Line

BLOBS, ATTACHMENTS, OWN_FILES, SESSIONS = "blobs", "attachments", "files", "sessions"
_AREAS = (SESSIONS, "memory", BLOBS, ATTACHMENTS)
INDEX = ("index.db", "index.db-wal", "index.db-shm")
LAPSED = ".lapsed.json"  # in memory/: up to which byte each transcript is blank
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
# Their content is somebody else's to clear (documents, history, transcripts), or says nothing.
_SAYS_NOTHING = {CURSOR, DREAM_CURSOR, LOCK, EPOCH, LAPSED, ".imported", ".flushed.json", ".move"}
_APART = frozenset({"MEMORY.md", "USER.md", "SOUL.md", *_SAYS_NOTHING, *INDEX})
# Emptied of the words, and never removed: much else hangs on them.
_STAYS = frozenset({HISTORY_JSONL, RAW_JSONL, HISTORY_MD})


def scope_paths(home: Path, scope: str) -> list[Path]:
    """Return the files and folders that are a scope's; of the home itself only those that a scope has."""
    folder = scope_folder(home, scope)
    if scope:
        return [folder] if folder.exists() else []
    return [path for name in (*_AREAS, OWN_FILES, "USER.md", *INDEX) if (path := folder / name).exists()]


def clear_other_files(disk: Disk, home: Path, scope: str, wanted: ErasurePattern) -> int:
    """Clear or remove whatever holds the words in a scope's folder, but for its transcripts, documents and own files.

    Lines of JSON and Markdown lose what holds them; anything else that does is removed: stored texts of snapshots,
    attachments, what waits for a yes, what was set aside. Return how many files changed.
    """
    changed = 0
    for path in list(_files(home, scope)):
        data = disk.load(path)
        if data is None or not wanted.in_bytes(data):
            continue
        left = _left(path, data, wanted)
        if left is not None and left != data and not wanted.in_bytes(left):
            disk.replace(path, left)
        elif path.name in _STAYS:
            continue  # a name of a session or an entry
        else:
            disk.remove(path)
        changed += 1
    for path in list(_files(home, scope)):
        if is_half_made(path):
            disk.remove(path)
    return changed


def _files(home: Path, scope: str) -> Iterator[Path]:
    """Yield the files of a scope that are cleared here."""
    folder = scope_folder(home, scope)
    for path in [each for top in scope_paths(home, scope) for each in (top, *sorted(top.rglob("*")))]:
        if path == folder:
            continue
        inside = path.relative_to(folder).parts
        is_apart = inside[0] == OWN_FILES or inside[:2] == ("memory", ".git")
        is_transcript = inside[0] == SESSIONS and path.suffix == ".jsonl"
        if not is_apart and not is_transcript and path.name not in _APART and path.is_file():
            yield path


def _left(path: Path, data: bytes, wanted: ErasurePattern) -> bytes | None:
    """Return what may stay of a file; None for one that is no text of ours."""
    if path.parent.name in (BLOBS, ATTACHMENTS) or path.name.startswith(".") or ".corrupt" in path.name:
        return None
    if path.suffix == ".jsonl":
        return b"".join(_line(raw, wanted) for raw in data.splitlines(keepends=True))
    if path.suffix == ".json":
        return _document(data, wanted)
    if path.suffix == ".md":
        return without_entries(data.decode("utf-8", "replace"), wanted)[0].encode()
    return None


def _line(raw: bytes, wanted: ErasurePattern) -> bytes:
    line = decode(raw)
    if line is None:
        return b"" if wanted.in_bytes(raw) else raw
    left = clear_value(line, wanted)
    return raw if left == line else encode(left)


def _document(data: bytes, wanted: ErasurePattern) -> bytes | None:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return json.dumps(clear_value(value, wanted), ensure_ascii=False).encode("utf-8", "replace")


def clear_raw(disk: Disk, memory: Path, wanted: ErasurePattern, may: Callable[[Line], bool]) -> int:
    """Empty the messages of the raw archive that hold the words and *may* go; return how many."""
    path = memory / RAW_JSONL
    data = disk.load(path)
    if data is None:
        return 0
    before = data.splitlines(keepends=True)
    after = [_raw(raw, wanted, may) for raw in before]
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    if changed:
        disk.replace(path, b"".join(after))
    return changed


def _raw(raw: bytes, wanted: ErasurePattern, may: Callable[[Line], bool]) -> bytes:
    line = decode(raw)
    message = line.get("message") if line is not None else None
    if line is None or not isinstance(message, dict) or not wanted.in_any(message) or not may(message):
        return raw
    kept = {name: message[name] for name in ("role", "timestamp", "turn", "i", "mid") if name in message}
    return encode({**line, "message": {**kept, "content": clear_value("", wanted)}})


def clear_blobs(disk: Disk, folder: Path, wanted: ErasurePattern) -> int:
    """Remove the stored texts of snapshots that hold the words; return how many. The next turn takes a snapshot."""
    removed = 0
    for path in sorted((folder / BLOBS).glob("*")):
        if wanted.in_bytes(disk.load(path) or b""):
            disk.remove(path)
            removed += 1
    return removed


class ReferencedAttachments:
    """Which attachments belong to lines that hold the words, and which to others. Look through every line first."""

    def __init__(self, wanted: ErasurePattern, may: Callable[[Line], bool]) -> None:
        self._wanted = wanted
        self._may = may
        self.is_any = False  # a line is cleared
        self._theirs: set[str] = set()
        self._others: set[str] = set()

    def look(self, raw: bytes) -> bytes:
        """Take in one line of a transcript; it stays as it is."""
        line = decode(raw)
        is_meant = without_words(raw, self._wanted, self._may) != raw
        self.is_any = self.is_any or is_meant
        if line is not None:
            facts = [*facts_in(line), *facts_in({"files": line.get("send")})]
            digests = {name.rpartition("/")[2] for name in blobs_in(facts)}
            (self._theirs if is_meant else self._others).update(digests)
        return raw

    @property
    def cleared_only(self) -> frozenset[str]:
        """What only lines name that are cleared."""
        return frozenset(each for each in self._theirs - self._others if DIGEST.match(each))


def remove_attachments(disk: Disk, folder: Path, digests: frozenset[str]) -> None:
    """Remove these attachments, durably; those that are gone are no error."""
    for digest in sorted(digests):
        disk.remove(folder / ATTACHMENTS / digest)
