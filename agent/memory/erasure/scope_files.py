"""Erase words from the files of a scope's folder and from its history.

Matching lines are cleared, other matching files removed. Plain functions block.

Erasures, deletions and retention that have begun have a note in the folder, each its own. The store knows its erasures,
but a store that is lost does not, and `parlour mirror import` must not bring words back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base.disk import Disk, is_half_made, wait_for_thread
from agent.base.file_facts import blobs_in, facts_in
from agent.base.scopes import find_scopes, list_scopes, scope_folder
from agent.base.transcript_lines import FORGOTTEN, decode, encode
from agent.memory.erasure.word_match import (
    ErasurePattern,
    clear_value,
    without_entries,
    without_sentences,
    without_words,
)
from agent.memory.history.history_files import LOCK, is_history_file, remembered_lines
from agent.memory.storage.scope_documents import ScopeDocuments, line_fingerprint
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.ports.journal import Job, Line
from gateway.ports.memory import BYTES, HISTORY_JSONL, RAW_JSONL, FileKind, MarkKind

if TYPE_CHECKING:
    from agent.memory.editing.staged_changes import StagedChangeStore
    from agent.memory.search.scope_recall import ScopeRecall
    from gateway.home import HomeUnscopedData
    from gateway.store.erasure import SqlErasure
    from gateway.store.files import SqlFiles
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts

_NOTES = Path("memory") / ".mirror" / "erasures"


async def owe_mirror(home: Path, scope: str, disk: Disk, *, erasure: str) -> None:
    """Note, durably, that *erasure*, of any name, is about to erase words from *scope*. Raises OSError."""
    if scope_folder(home, scope).is_dir():
        await wait_for_thread(asyncio.to_thread(disk.replace, _note(home, scope, erasure), b""))


async def pay_mirror(home: Path, scope: str, disk: Disk, *, erasure: str) -> None:
    """Note that no file of *scope* has the words of *erasure* any more. Raises OSError."""
    path = _note(home, scope, erasure)
    if path.exists():
        await wait_for_thread(asyncio.to_thread(disk.remove, path))


def owed_scopes(home: Path) -> Sequence[str]:
    """Return the scopes whose files may have erased words. Blocks."""
    scopes = ("", *list_scopes(home))
    return [scope or "the home" for scope in scopes if any((scope_folder(home, scope) / _NOTES).glob("*"))]


def _note(home: Path, scope: str, erasure: str) -> Path:
    return scope_folder(home, scope) / _NOTES / hashlib.sha256(erasure.encode()).hexdigest()[:16]


SCRUB = "scrub"  # kind of the job that erases deleted data from the journal's pages
OWN_FILES, SESSIONS = "files", "sessions"
_AREAS = (SESSIONS, "memory", BYTES)
INDEX = tuple(f"{name}{end}" for name in ("index.db", "files.db") for end in ("", "-wal", "-shm"))
_KEPT = ("role", "timestamp", "turn", "i")  # fields of a message whose words are erased
LAPSED = ".lapsed.json"  # in memory/, of earlier releases
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
# Files without user text, and files that are cleared elsewhere (documents, index).
_NO_TEXT = {LOCK, LAPSED, ".imported", ".move"}
_EXCLUDED = frozenset({"MEMORY.md", "USER.md", "SOUL.md", *_NO_TEXT, *INDEX})
_MIRRORED = (("memory", ".git"), ("memory", ".mirror"))  # written from the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureStorage:
    """Everywhere that words are stored. *reopen* discards what is cached of a scope; hold *writing* to change files.

    *settle_documents* takes over edits by hand, and returns when the files of the documents are written.
    """

    home: Path
    documents: ScopeDocuments
    transcripts: SqlTranscripts
    session_files: SessionFileWriter
    history: SqlHistory
    files: SqlFiles
    settle_history: Callable[[str], Awaitable[None]]  # write the files of a scope's history, edited ones set aside
    records: SqlTurnRecords
    jobs: SqlJobs
    store: SqlErasure
    unscoped_data: HomeUnscopedData
    index: ScopeRecall
    staging: StagedChangeStore
    writing: asyncio.Lock
    settle_documents: Callable[[str], Awaitable[None]]
    reopen: Callable[[str], None]
    now: Callable[[], datetime]
    disk: Disk = field(default_factory=Disk)

    async def scopes(self) -> list[str]:
        """Return every scope of which something is stored."""
        return await find_scopes(
            self.home,
            sessions=await self.records.sessions(),
            documents=self.documents.changes,
            history=self.history,
            files=self.files,
        )


def scope_paths(home: Path, scope: str) -> list[Path]:
    """Return the files and folders of a scope; of the home itself only those that belong to a scope."""
    folder = scope_folder(home, scope)
    if scope:
        return [folder] if folder.exists() else []
    return [path for name in (*_AREAS, OWN_FILES, "USER.md", *INDEX) if (path := folder / name).exists()]


def remove_set_aside(disk: Disk, folder: Path) -> None:
    """Remove the documents and repositories that the mirror has set aside: nothing finds words in their bytes."""
    for path in folder.glob("memory/.git.*"):
        disk.remove_folder(path)
    for path in [*folder.glob("*.md.unreadable-*"), *folder.glob("memory/*.md.unreadable-*")]:
        disk.remove(path)


def clear_other_files(disk: Disk, home: Path, scope: str, pattern: ErasurePattern) -> int:
    """Erase the words from a scope's folder, except its transcripts, documents, history and the bytes of its files.

    Lines of JSON and Markdown files are cleared; any other file that contains the words is removed, such as corrupt
    lines. Return the number of changed files.
    """
    changed = 0
    for path in list(_files(home, scope)):
        data = disk.load(path)
        if data is None or not pattern.in_bytes(data):
            continue
        cleared = _clear_file(path, data, pattern)
        if cleared is not None and cleared != data and not pattern.in_bytes(cleared):
            disk.replace(path, cleared)
        else:
            disk.remove(path)
        changed += 1
    for path in list(_files(home, scope)):
        if is_half_made(path):
            disk.remove(path)
    return changed


def _files(home: Path, scope: str) -> Iterator[Path]:
    """Yield the files that `clear_other_files` clears."""
    folder = scope_folder(home, scope)
    for path in [each for top in scope_paths(home, scope) for each in (top, *sorted(top.rglob("*")))]:
        if path == folder:
            continue
        inside = path.relative_to(folder).parts
        is_excluded = inside[0] in (OWN_FILES, BYTES) or inside[:2] in _MIRRORED or path.name in _EXCLUDED
        # Their rows are cleared.
        is_printed = (inside[0] == SESSIONS and path.suffix == ".jsonl") or (
            inside[0] == "memory" and is_history_file("/".join(inside[1:]))
        )
        if not is_excluded and not is_printed and path.is_file():
            yield path


def _clear_file(path: Path, data: bytes, pattern: ErasurePattern) -> bytes | None:
    """Return the file without the words; None for a file that must be removed as a whole."""
    if path.name.startswith(".") or ".corrupt" in path.name:
        return None
    if path.suffix == ".jsonl":
        return b"".join(_clear_line(raw, pattern) for raw in data.splitlines(keepends=True))
    if path.suffix == ".json":
        return _clear_json(data, pattern)
    if path.suffix == ".md":
        return without_entries(data.decode("utf-8", "replace"), pattern)[0].encode()
    return None


def clear_workspace_file(name: str, data: bytes, pattern: ErasurePattern, *, whole: bool) -> bytes | None:
    """Return a file of the workspace without the lines that contain the words; None for one to remove as a whole.

    A file with the words in its name is removed, and with *whole* any other one that holds them in a form that cannot
    be cleared, such as an archive.
    """
    if pattern.in_text(name):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not pattern.in_text(text):
        return None if whole and pattern.in_bytes(data) else data
    cleared: bytes | None = None
    if name.lower().endswith(".json"):
        cleared = _clear_json(data, pattern)
    elif name.lower().endswith(".md"):
        cleared = without_entries(text, pattern)[0].encode()
    if cleared is None:
        cleared = _without_lines(text, pattern).encode()
    return None if pattern.in_text(cleared.decode()) else cleared


def _without_lines(text: str, pattern: ErasurePattern) -> str:
    """Return *text* without the lines that contain the words, also at the end of one and the beginning of the next."""
    lines = text.splitlines(keepends=True)
    is_match = [pattern.in_text(line) for line in lines]
    for n, (line, following) in enumerate(pairwise(lines)):
        if not (is_match[n] or is_match[n + 1]) and pattern.in_text(line + following):
            is_match[n] = is_match[n + 1] = True
    return "".join(line for line, matches in zip(lines, is_match, strict=True) if not matches)


def _clear_line(raw: bytes, pattern: ErasurePattern) -> bytes:
    line = decode(raw)
    if line is None:
        return b"" if pattern.in_bytes(raw) else raw
    cleared = clear_value(line, pattern)
    return raw if cleared == line else encode(cleared)


def _clear_json(data: bytes, pattern: ErasurePattern) -> bytes | None:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return json.dumps(clear_value(value, pattern), ensure_ascii=False).encode("utf-8", "replace")


# -- histories -------------------------------------------------------------------------------------


async def redact_history(history: SqlHistory, scope: str, pattern: ErasurePattern, *, memory: str) -> int:
    """Take the words out of every entry and note as a reader sees them; return the number of entries and lines changed.

    Keys are kept only of lines that *memory*, the text of MEMORY.md, and its archives have, if they lack the words.
    Entries keep their cursors and ranges. Raw messages with the words are blanked. Idempotent.
    """
    lines = await remembered_lines(history, scope, memory)
    keyed = frozenset(line_fingerprint(line) for line in lines if not pattern.in_text(line))
    counts: dict[bytes, int] = {}

    def redact(place: str, body: bytes) -> bytes:
        if place == RAW_JSONL:
            return _redact_raw(body, lambda message: pattern.in_text(str(message)))
        if place == HISTORY_JSONL:
            redacted = _redact_entry(body, pattern, keyed)
            counts[body] = int(redacted != body)
            return redacted
        text, counts[body] = without_entries(body.decode("utf-8", "replace"), pattern)
        return text.encode("utf-8", "replace") if counts[body] else body

    await history.rewrite(scope, redact)
    marks = await history.marks(scope, MarkKind.KEYS)
    gone = {name: None for name, words in marks.items() if name not in keyed or pattern.in_text(words)}
    if gone:
        await history.write(scope, marks={MarkKind.KEYS: gone})
    return sum(counts.values())


async def blank_raw(
    history: SqlHistory, scope: str, is_match: Callable[[Line, Line], bool], *, keeps: tuple[str, ...] = _KEPT
) -> int:
    """Blank the raw messages for which *is_match*, called with the archive's line and the message, returns True.

    Return their number; the fields *keeps* of a message stay. Idempotent.
    """

    def change(place: str, body: bytes) -> bytes:
        line = decode(body) if place == RAW_JSONL else None
        if line is None:
            return body
        return _redact_raw(body, lambda message: is_match(line, message), keeps)

    return await history.rewrite(scope, change)


def _redact_entry(body: bytes, pattern: ErasurePattern, keyed: frozenset[str]) -> bytes:
    line = decode(body) or {}
    content, keys = line.get("content"), line.get("keys")
    redacted = dict(line)
    if isinstance(keys, dict):
        redacted["keys"] = {
            name: text for name, text in keys.items() if name in keyed and not pattern.in_text(str(text))
        }
    if isinstance(content, str):
        redacted["content"] = without_sentences(content, pattern)
    return body if redacted == line else encode(redacted)


def _redact_raw(body: bytes, is_match: Callable[[Line], bool], keeps: tuple[str, ...] = _KEPT) -> bytes:
    line = decode(body) or {}
    message = line.get("message")
    if not isinstance(message, Mapping) or not is_match(message):
        return body
    kept = {name: message[name] for name in keeps if name in message}
    blank = {**line, "message": {**kept, "content": FORGOTTEN}}
    return body if blank == line else encode(blank)


async def clear_raw(
    history: SqlHistory, scope: str, pattern: ErasurePattern, is_allowed: Callable[[Line], bool]
) -> int:
    """Blank the raw messages that contain the words and are allowed; return their number."""
    return await blank_raw(
        history,
        scope,
        lambda _, message: pattern.in_any(message) and is_allowed(message),
        keeps=("role", "timestamp", "turn", "i", "mid"),
    )


async def clear_history(history: SqlHistory, scope: str, pattern: ErasurePattern) -> int:
    """Erase the words from every entry, raw message and note, in whatever form they have; return the number of changes.

    A note that cannot be cleared is removed.
    """

    def change(name: str, body: bytes) -> bytes:
        if not pattern.in_bytes(body):
            return body
        if name in (HISTORY_JSONL, RAW_JSONL):
            return _clear_line(body, pattern) or body
        cleared = without_entries(body.decode("utf-8", "replace"), pattern)[0].encode()
        return b"" if pattern.in_bytes(cleared) else cleared

    return await history.rewrite(scope, change)


async def remove_matching(files: SqlFiles, scope: str, pattern: ErasurePattern, *kinds: FileKind) -> int:
    """Remove the files of *kinds* that contain the words; return their number."""
    removed = 0
    for file in await files.files(scope, *kinds):
        data = await files.load(scope, file) or b""
        if await asyncio.to_thread(pattern.in_bytes, data):
            removed += await files.remove(scope, file.kind, names=(file.name,))
    return removed


class ReferencedAttachments:
    """Attachments of the lines that match an erasure, and of other lines. `look` must see every line first."""

    def __init__(
        self, pattern: ErasurePattern, is_allowed: Callable[[Line], bool], *, drops_quoted: bool = False
    ) -> None:
        """*drops_quoted*: the erasure removes the quoted files of the other lines, too."""
        self._drops_quoted = drops_quoted
        self._pattern = pattern
        self._is_allowed = is_allowed
        self.has_matches = False
        self._matching: set[str] = set()
        self._others: set[str] = set()

    def look(self, raw: bytes) -> bytes:
        """Record the attachments of a transcript line; return the line unchanged."""
        line = decode(raw)
        is_match = without_words(raw, self._pattern, self._is_allowed) != raw
        self.has_matches = self.has_matches or is_match
        if line is not None:
            facts = [*facts_in(line), *facts_in({"files": line.get("send")})]
            for fact in facts:
                is_removed = is_match or (self._drops_quoted and bool(fact.get("quoted")))
                digests = {name.rpartition("/")[2] for name in blobs_in([fact])}
                (self._matching if is_removed else self._others).update(digests)
        return raw

    @property
    def unreferenced(self) -> frozenset[str]:
        """The attachments that no line refers to after the erasure."""
        return frozenset(each for each in self._matching - self._others if DIGEST.match(each))


# -- what follows an erasure -----------------------------------------------------------------------


def scrub_job(cause: Job, scope: str, now: datetime) -> Job:
    """Return the job that follows *cause*, which has erased something of *scope*."""
    return Job(id=f"{SCRUB}:{cause.id}", kind=SCRUB, scope=scope, payload={}, due_at=now)


def build_id_filter(ids: set[str]) -> Callable[[bytes], bool]:
    """Return a predicate for bytes that contain one of *ids* as a separate word."""
    words = "|".join(re.escape(each) for each in sorted(ids - {""}))
    pattern = re.compile(rf"(?<![0-9A-Za-z])(?:{words})(?![0-9A-Za-z])".encode()) if words else None
    return lambda data: pattern is not None and pattern.search(data) is not None
