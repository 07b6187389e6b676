"""The inventory of a home: the kinds of data that it may hold, and the files that no kind matches."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

_SCOPE = r"(?:(?:shared|people/[^/]+|chats/[^/]+)/)?"  # with one memory for everything, the home itself is a scope


class DataKind(StrEnum):
    """Kinds of stored data; the catalogue area `privacy` describes each and its retention."""

    MEMORY = "memory"  # documents, their versions, history, notes
    TRANSCRIPTS = "transcripts"
    FILES = "files"  # sent and received files, and the owner's own
    INDEX = "index"  # derived
    STATE = "state"  # no user data: locks, cursors, schema
    JOURNAL = "journal"  # turns, queues, changes that wait for approval, usage and preferences
    UPLOADS = "uploads"
    QUARANTINE = "quarantine"
    OPERATOR = "operator"  # settings, secrets, backups, downloads of the console, documents


_RULES: tuple[tuple[DataKind, str], ...] = (
    (DataKind.TRANSCRIPTS, _SCOPE + r"sessions/[^/]+\.jsonl(?:\.corrupt)?"),
    (DataKind.FILES, _SCOPE + r"bytes/[0-9a-f]{64}-[0-9a-f]{8}"),  # large ones; the others are in the journal
    (DataKind.FILES, _SCOPE + r"files/.+"),
    (DataKind.FILES, _SCOPE + r"exports/[^/]+"),
    (DataKind.INDEX, _SCOPE + r"(?:index|files)\.db(?:-wal|-shm|-journal)?"),
    (DataKind.MEMORY, _SCOPE + r"(?:SOUL|USER)\.md"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:MEMORY|HISTORY)\.md(?:\..+)?"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:history|raw)\.jsonl(?:\.corrupt|\.edited-[0-9a-f]+)?"),
    (DataKind.MEMORY, _SCOPE + r"memory/\d{4}-\d\d-\d\d(?:-[a-z0-9-]+|\.archive)?\.md(?:\.edited-[0-9a-f]+)?"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:MEMORY|SOUL|USER)\.conflict-[^/]+\.md"),
    (DataKind.MEMORY, _SCOPE + r"memory/\.(?:keys|used|flushed|imported)\.json"),
    (DataKind.MEMORY, _SCOPE + r"memory/\.(?:pending|dream)/[^/]+"),
    (DataKind.MEMORY, _SCOPE + r"memory/\.(?:git(?:\.[^/]+)?|mirror)/.+"),
    (
        DataKind.STATE,
        _SCOPE
        + r"memory/(?:epoch\.txt|\.(?:lock|writing|cursor|dream_cursor|imported|move)"
        + r"|\.(?:dream|lapsed)\.json|\.mirror/history\.json)",
    ),
    (DataKind.STATE, _SCOPE + r"\.move"),
    (
        DataKind.STATE,
        r"(?:lock|schema|control\.sock|windows\.json|journal\.stamp|mirror\.id|\.journal\.stamp\.part|\.restoring|\.migrating)",
    ),
    (DataKind.STATE, r"memory-cache\.db(?:-wal|-shm)?"),
    (DataKind.JOURNAL, r"journal\.db(?:-wal|-shm|-journal)?"),
    (DataKind.UPLOADS, r"uploads/.+"),
    (DataKind.QUARANTINE, r"quarantine/.+"),
    (DataKind.OPERATOR, r"(?:secrets|backups|downloads|docs)/.+"),
    (DataKind.OPERATOR, r"parlour\.(?:yaml|yml|json|toml)"),
)
_KINDS = tuple((kind, re.compile(rule + r"\Z", re.DOTALL)) for kind, rule in _RULES)
_TEMPORARY = re.compile(r"(?P<folder>(?:.*/)?)\.(?P<name>[^/]+?)\.[^./]+(?:\.(?:tmp|part))?\Z")


def data_kind_of(path: str) -> DataKind | None:
    """Return the kind of the file at *path* (relative to the home, with slashes); None if no rule matches.

    A temporary file has the kind of the file that it will become.
    """
    kind = next((kind for kind, rule in _KINDS if rule.match(path)), None)
    temporary = _TEMPORARY.match(path) if kind is None else None
    return data_kind_of(temporary["folder"] + temporary["name"]) if temporary is not None else kind


def unknown_files(home: Path) -> list[str]:
    """Return the files of a home that no rule of the inventory matches."""
    paths = [path for path in home.rglob("*") if not path.is_dir() or path.is_symlink()]
    names = [path.relative_to(home).as_posix() for path in paths]
    return sorted(name for name in names if data_kind_of(name) is None)
