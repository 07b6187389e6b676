"""Inventory of all files in a home by kind of data, for `/privacy`; a test requires that each file matches a rule.

Paths are relative to the home.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from agent.memory.privacy.export_jobs import ExportJobs
from gateway.ports.memory import FileKind

_SCOPE = r"(?:(?:shared|people/[^/]+|chats/[^/]+)/)?"  # with one memory for everything, the home itself is a scope
_COUNTED = (FileKind.ATTACHMENT, FileKind.WORKSPACE, FileKind.DELETED)
_NOTE = re.compile(r"\d{4}-\d\d-\d\d(?:-[a-z0-9-]+)?\.md\Z")


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
    (DataKind.INDEX, _SCOPE + r"index\.db(?:-wal|-shm|-journal)?"),
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


def kind_of(path: str) -> DataKind | None:
    """Return the kind of the file at *path* (relative to the home, with slashes); None if no rule matches.

    A temporary file has the kind of the file that it will become.
    """
    kind = next((kind for kind, rule in _KINDS if rule.match(path)), None)
    temporary = _TEMPORARY.match(path) if kind is None else None
    return kind_of(temporary["folder"] + temporary["name"]) if temporary is not None else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeInventory:
    """Amount of data in one scope."""

    remembered: int  # lines of MEMORY.md and USER.md, without headings
    summaries: int
    notes: int
    waiting: int  # staged changes
    conversations: int
    since: datetime | None  # time of the oldest turn
    files: int
    file_bytes: int


def _count_lines(text: str) -> int:
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


# -- /privacy and /export --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyFacts:
    """Settings about stored data and the models that receive it."""

    models: tuple[str, ...] = ()  # remote models that receive conversations
    listens: str = ""  # the model that receives voice messages
    embeds: str = ""  # the model that receives texts for vector search
    retention_days: int = 0  # 0 = no limit
    has_uploads: bool = False  # files can be uploaded on the page


class PrivacyService:
    """Counts and exports the data of a scope, which comes from the event."""

    def __init__(self, facts: PrivacyFacts, exports: ExportJobs) -> None:
        self.facts = facts
        self.exports = exports

    async def count(self, scope: str) -> ScopeInventory:
        """Count the data of *scope*."""
        exports = self.exports
        conversations, since = await exports.transcripts.count(scope)
        texts = await exports.documents.changes.texts(scope)
        totals = await exports.files.totals(scope)
        files = [each for kind, each in totals.items() if kind in _COUNTED]
        return ScopeInventory(
            remembered=sum(_count_lines(texts.get(name, "")) for name in ("USER.md", "MEMORY.md")),
            summaries=len(await exports.history.after(scope)),
            notes=sum(_NOTE.match(name) is not None for name in await exports.history.note_names(scope)),
            waiting=len(await exports.staging.records(scope)),
            conversations=conversations,
            since=since,
            files=sum(each.count for each in files),
            file_bytes=sum(each.size for each in files),
        )
