"""Everything that a home keeps, by kind. What stands on the disk and in no row here is a promise that nobody made.

Paths are relative to the home. Pure but for `account`, which counts; it blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from agent.memory.history.history_log import HISTORY_JSONL
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, parse_time

_SCOPE = r"(?:(?:shared|people/[^/]+|chats/[^/]+)/)?"  # with one memory for everything, the home itself is a scope
_NOTE = re.compile(r"\d{4}-\d\d-\d\d(?:-[a-z0-9-]+)?\.md\Z")
_HEAD_BYTES = 4_096


class DataKind(StrEnum):
    """A kind of what is kept; the catalogue area `privacy` describes each and how long it is kept."""

    MEMORY = "memory"  # documents, their versions, history, notes, what waits for a yes
    TRANSCRIPTS = "transcripts"
    FILES = "files"  # sent and received, and those the owner put beside
    INDEX = "index"  # derived
    STATE = "state"  # says nothing of anybody: locks, cursors, schema
    JOURNAL = "journal"  # what is on its way, with usage and choices
    UPLOADS = "uploads"
    QUARANTINE = "quarantine"
    OPERATOR = "operator"  # the operator's own: settings, secrets, backups, downloads of the terminal, documents


_RULES: tuple[tuple[DataKind, str], ...] = (
    (DataKind.TRANSCRIPTS, _SCOPE + r"sessions/[^/]+\.jsonl(?:\.corrupt)?"),
    (DataKind.TRANSCRIPTS, _SCOPE + r"blobs/[0-9a-f]{64}"),  # what a snapshot showed the model
    (DataKind.FILES, _SCOPE + r"attachments/[0-9a-f]{64}"),
    (DataKind.FILES, _SCOPE + r"files/.+"),
    (DataKind.FILES, _SCOPE + r"exports/[^/]+"),
    (DataKind.INDEX, _SCOPE + r"index\.db(?:-wal|-shm|-journal)?"),
    (DataKind.MEMORY, _SCOPE + r"(?:SOUL|USER)\.md"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:MEMORY|HISTORY)\.md(?:\..+)?"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:history|raw)\.jsonl(?:\.corrupt)?"),
    (DataKind.MEMORY, _SCOPE + r"memory/\d{4}-\d\d-\d\d(?:-[a-z0-9-]+)?\.md"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:MEMORY|SOUL|USER)\.conflict-[^/]+\.md"),
    (DataKind.MEMORY, _SCOPE + r"memory/\.(?:staged|pending|dream)/[^/]+"),
    (DataKind.MEMORY, _SCOPE + r"memory/\.git(?:\.(?:new|old|corrupt-[^/]+))?/.+"),
    (
        DataKind.STATE,
        _SCOPE
        + r"memory/(?:epoch\.txt|\.(?:lock|writing|cursor|dream_cursor|(?:dream|flushed|lapsed)\.json|imported|move))",
    ),
    (DataKind.STATE, _SCOPE + r"\.move"),
    (
        DataKind.STATE,
        r"(?:lock|schema|control\.sock|windows\.json|journal\.stamp|\.journal\.stamp\.part|\.restoring|\.migrating)",
    ),
    (DataKind.JOURNAL, r"journal\.db(?:-wal|-shm|-journal)?"),
    (DataKind.UPLOADS, r"uploads/.+"),
    (DataKind.QUARANTINE, r"quarantine/.+"),
    (DataKind.OPERATOR, r"(?:secrets|backups|downloads|docs)/.+"),
    (DataKind.OPERATOR, r"parlour\.(?:yaml|yml|json|toml)"),
)
_KINDS = tuple((kind, re.compile(rule + r"\Z", re.DOTALL)) for kind, rule in _RULES)
_HALF_MADE = re.compile(r"(?P<folder>(?:.*/)?)\.(?P<name>[^/]+?)\.[^./]+(?:\.(?:tmp|part))?\Z")


def kind_of(path: str) -> DataKind | None:
    """Return of what kind the file at *path* (relative to the home, with slashes) is; None for one that nobody knows.

    What is half made, under a hidden name of its own, is of the kind that it will be.
    """
    known = next((kind for kind, rule in _KINDS if rule.match(path)), None)
    half = _HALF_MADE.match(path) if known is None else None
    return kind_of(half["folder"] + half["name"]) if half is not None else known


def unknown(home: Path) -> list[str]:
    """Return the files of a home that the inventory does not know."""
    return sorted(path for path in _paths(home) if kind_of(path) is None)


def _paths(home: Path) -> Iterator[str]:
    for path in home.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            yield path.relative_to(home).as_posix()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeInventory:
    """How much of it there is in one scope."""

    remembered: int  # lines of MEMORY.md and USER.md that say something
    summaries: int
    notes: int
    waiting: int  # for a yes
    conversations: int
    since: datetime | None  # when the oldest began
    files: int
    file_bytes: int


def count_scope(home: Path, scope: str, disk: Disk | None = None) -> ScopeInventory:
    """Count what a scope keeps. Blocks."""
    disk = disk or Disk()
    folder = scope_folder(home, scope)
    memory = folder / "memory"
    heads = [_begun(disk, path) for path in (folder / "sessions").glob("*.jsonl")]
    files = [path for area in ("attachments", "files") for path in (folder / area).rglob("*") if path.is_file()]
    return ScopeInventory(
        remembered=sum(_lines(disk, path) for path in (folder / "USER.md", memory / "MEMORY.md")),
        summaries=(disk.load(memory / HISTORY_JSONL) or b"").count(b"\n"),
        notes=sum(_NOTE.match(path.name) is not None for path in memory.glob("*.md")),
        waiting=len(list((memory / ".staged").glob("*.json"))),
        conversations=len(heads),
        since=min((at for at in heads if at is not None), default=None),
        files=len(files),
        file_bytes=sum(disk.size(path) or 0 for path in files),
    )


def _lines(disk: Disk, path: Path) -> int:
    lines = (disk.load(path) or b"").splitlines()
    return sum(bool(line.strip()) and not line.lstrip().startswith(b"#") for line in lines)


def _begun(disk: Disk, path: Path) -> datetime | None:
    head = decode(disk.read(path, 0, _HEAD_BYTES).split(b"\n", 1)[0])
    return parse_time(head.get("created")) if head is not None else None
