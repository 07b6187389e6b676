"""Inventory of all files in a home by kind of data, for `/privacy`; a test requires that each file matches a rule.

Paths are relative to the home. `count_scope` and `unknown_files` block; everything else is pure.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path

from agent.memory.privacy.export_jobs import ExportJobs
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from gateway.ports import FileKind, FileTotal

_SCOPE = r"(?:(?:shared|people/[^/]+|chats/[^/]+)/)?"  # with one memory for everything, the home itself is a scope
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
    (DataKind.TRANSCRIPTS, _SCOPE + r"blobs/[0-9a-f]{64}"),  # texts of prompt snapshots
    (DataKind.FILES, _SCOPE + r"attachments/[0-9a-f]{64}"),
    (DataKind.FILES, _SCOPE + r"files/.+"),
    (DataKind.FILES, _SCOPE + r"bytes/[0-9a-f]{64}-[0-9a-f]{8}"),  # of rows
    (DataKind.FILES, _SCOPE + r"results/[0-9a-f]{64}"),  # long results of tools, for a week
    (DataKind.FILES, _SCOPE + r"exports/[^/]+"),
    (DataKind.INDEX, _SCOPE + r"index\.db(?:-wal|-shm|-journal)?"),
    (DataKind.MEMORY, _SCOPE + r"(?:SOUL|USER)\.md"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:MEMORY|HISTORY)\.md(?:\..+)?"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:history|raw)\.jsonl(?:\.corrupt|\.edited-[0-9a-f]+)?"),
    (DataKind.MEMORY, _SCOPE + r"memory/\d{4}-\d\d-\d\d(?:-[a-z0-9-]+|\.archive)?\.md(?:\.edited-[0-9a-f]+)?"),
    (DataKind.MEMORY, _SCOPE + r"memory/(?:MEMORY|SOUL|USER)\.conflict-[^/]+\.md"),
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


def count_scope(
    home: Path,
    scope: str,
    *,
    remembered: int = 0,
    summaries: int = 0,
    notes: int = 0,
    staged_changes: int = 0,
    conversations: int = 0,
    since: datetime | None = None,
    workspace: Collection[FileTotal] = (),
) -> ScopeInventory:
    """Count the files of a scope, beside what the store counts. Blocks."""
    disk = Disk()
    folder = scope_folder(home, scope)
    files = [path for path in (folder / "attachments").glob("*") if path.is_file()]
    return ScopeInventory(
        remembered=remembered,
        summaries=summaries,
        notes=notes,
        waiting=staged_changes,
        conversations=conversations,
        since=since,
        files=len(files) + sum(each.count for each in workspace),
        file_bytes=sum(disk.size(path) or 0 for path in files) + sum(each.size for each in workspace),
    )


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

    def __init__(self, home: Path, facts: PrivacyFacts, exports: ExportJobs) -> None:
        self._home = home
        self.facts = facts
        self.exports = exports

    async def count(self, scope: str) -> ScopeInventory:
        """Count the data of *scope*."""
        staged_changes = len(await self.exports.staging.records(scope))
        conversations, since = await self.exports.transcripts.count(scope)
        texts = await self.exports.documents.changes.texts(scope)
        totals = await self.exports.files.totals(scope)
        count = partial(
            count_scope,
            remembered=sum(_count_lines(texts.get(name, "")) for name in ("USER.md", "MEMORY.md")),
            summaries=len(await self.exports.history.after(scope)),
            notes=sum(_NOTE.match(name) is not None for name in await self.exports.history.note_names(scope)),
            staged_changes=staged_changes,
            conversations=conversations,
            since=since,
            workspace=[each for kind, each in totals.items() if kind in (FileKind.WORKSPACE, FileKind.DELETED)],
        )
        return await asyncio.to_thread(count, self._home, scope)
