"""`/export`: durable jobs that pack the data of a scope, send it as files, and delete the files later; `/privacy`.

One job packs the data and enqueues the files for delivery; another one deletes them a day later. After a crash, the
first removes incomplete files and starts again. The inventory names all files in a home by kind of data; a test
requires that each file matches a rule.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from agent.base.scopes import scope_folder
from agent.files.file_workspace import exported_name
from agent.memory.documents.scope_documents import ScopeDocuments
from agent.memory.editing.staged_change_store import StagedChangeStore
from agent.memory.history.history_files import printed_files
from agent.memory.jobs.job_kinds import JobKind, JobPace
from agent.memory.jobs.job_runner import RetryJobLater, send_job_report
from agent.memory.privacy.export_archive import (
    IS_EXPORT,
    ArchiveMember,
    PackedArchives,
    format_day,
    members,
    write_archives,
)
from agent.memory.storage.session_file_writer import SessionFile, list_session_files, read_session_file
from gateway.events import Attachment, SessionKey
from gateway.i18n import translate
from gateway.ports.journal import Job, Line, SessionRow
from gateway.ports.memory import FileKind, ScopeFile

if TYPE_CHECKING:
    from gateway.store.files import SqlFiles
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
    from gateway.store.outbox import SqlOutbox
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts
    from gateway.store.usage import SqlUsage

log = structlog.get_logger(__name__)

_SCOPE = r"(?:(?:shared|people/[^/]+|chats/[^/]+)/)?"  # with one memory for everything, the home itself is a scope
_COUNTED = (FileKind.ATTACHMENT, FileKind.WORKSPACE, FileKind.DELETED)
_NOTE = re.compile(r"\d{4}-\d\d-\d\d(?:-[a-z0-9-]+)?\.md\Z")
EXPORT = "export"
EXPORT_JOBS = JobKind(name=EXPORT, pace=JobPace.LONG, aliases=("unexport",))
_DIGESTS = "digests"  # field of the job that removes these files
KEPT = timedelta(days=1)  # time for downloads, and for channels that are not connected
_RETRY_DELAY = timedelta(hours=1)
_MAX_AGE = timedelta(days=7)
_MAX_FILES = 10
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
_UNLIMITED = 1 << 62
_MIN_LIMIT = 64 * 1024  # bytes: channels with smaller files cannot receive exports


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJobs:
    """Runs the jobs. *limit* returns a channel's maximum file size, *kinds* are those of jobs, by name."""

    home: Path
    jobs: SqlJobs
    records: SqlTurnRecords
    outbox: SqlOutbox
    usage: SqlUsage
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    transcripts: SqlTranscripts
    documents: ScopeDocuments
    history: SqlHistory
    files: SqlFiles
    staging: StagedChangeStore
    limit: Callable[[str], int]
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    kinds: Mapping[str, JobKind]
    logins: Callable[[str], Awaitable[Sequence[Line]]]  # of a person at services, by account; without their tokens
    disk: Disk = field(default_factory=Disk)

    def can_send(self, channel: str) -> bool:
        """Return True if an export can be sent in a channel."""
        return self.limit(channel) >= _MIN_LIMIT

    async def is_running(self, scope: str) -> bool:
        """Return True if an export of *scope* is pending or running."""
        return any(job.kind == EXPORT and _DIGESTS not in job.payload for job in await self.jobs.pending_in(scope))

    def job(self, *, scope: str, key: SessionKey, turn: str, person: str, reply_to: str, language: str) -> Job:
        """Return the job for the command's commit."""
        payload = {"key": str(key), "person": person, "reply_to": reply_to, "language": language}
        return Job(id=f"{EXPORT}:{turn}", kind=EXPORT, scope=scope, payload=payload, due_at=self.now())

    async def write(self, scope: str, person: str, target: Path, *, language: str = "en") -> PackedArchives:
        """Write one zip of *scope* to *target* atomically. Raises OSError, also if *target* exists."""
        files = await self._members(scope, person)

        def work() -> PackedArchives:
            partial = target.with_name(f".{target.name}.part")
            partial.unlink(missing_ok=True)
            try:
                packed = write_archives(files, lambda _: partial, limit=_UNLIMITED, about=self._about(scope, language))
                os.link(partial, target)  # fails if the file exists
            finally:
                partial.unlink(missing_ok=True)
            return packed

        return await asyncio.to_thread(work)

    async def run(self, job: Job) -> RetryJobLater | None:
        """Pack the data of the scope and enqueue the files for delivery, or remove those of an export. Idempotent."""
        return await (self._remove(job) if _DIGESTS in job.payload else self._export(job))

    async def _export(self, job: Job) -> RetryJobLater | None:
        key, language = SessionKey.parse(str(job.payload["key"])), str(job.payload["language"])
        limit = self.limit(key.channel)
        if limit < _MIN_LIMIT:
            return None
        files = await self._members(job.scope, str(job.payload["person"]))
        packed, stored = await self._pack(job.scope, files, limit, language)
        digests = [each.name for each in stored]
        removal = Job(
            id=f"unexport:{job.id}.{digests[0][:16]}",
            kind=EXPORT,
            scope=job.scope,
            payload={"key": str(key), _DIGESTS: digests, "since": build.format_time(self.now())},
            due_at=self.now() + KEPT,
        )
        await self.jobs.put(removal)
        await self._send(job, key, packed, stored)
        log.info("export.made", scope=job.scope, files=packed.files, zips=len(digests), left_out=len(packed.left_out))
        return None

    async def _remove(self, job: Job) -> RetryJobLater | None:
        """Remove an export's files once they are delivered, or a week old."""
        since = build.parse_time(job.payload.get("since")) or self.now()
        key = SessionKey.parse(str(job.payload["key"]))
        blobs = {f"{job.scope}/{digest}" for digest in job.payload[_DIGESTS]}
        waiting = {each.blob for one in await self.outbox.undelivered(key) for each in one.message.attachments}
        if waiting & blobs and self.now() - since < _MAX_AGE:
            return RetryJobLater(_RETRY_DELAY, "it is not delivered yet", counts=False)
        await self.files.remove(job.scope, FileKind.ATTACHMENT, names=job.payload[_DIGESTS])
        return None

    # -- parts -------------------------------------------------------------------------------------

    async def _documents(self, scope: str) -> Mapping[str, bytes]:
        """Return documents, history and notes by the names of their files."""
        texts = {name: text.encode() for name, text in (await self.documents.changes.texts(scope)).items()}
        printed = await asyncio.to_thread(printed_files, await self.history.load(scope))
        return texts | {name: data for name, data in printed.items() if not name.startswith(".")}

    async def _members(self, scope: str, person: str) -> Iterator[ArchiveMember]:
        """Return the files of an export, with the payloads of those jobs whose kind is exported."""
        usage = await self.usage.totals(since=_BEGINNING, person=person)
        jobs = await self.jobs.pending_in(scope)
        rows: dict[str, list[Line]] = {kind.export: [] for kind in self.kinds.values() if kind.export}
        for job in jobs:
            if (kind := self.kinds.get(job.kind)) is not None and kind.export and job.kind == kind.name:
                rows[kind.export].append(job.payload)
        rows["logins.jsonl"] = list(await self.logins(person))
        rows["memory/waiting.jsonl"] = list(await self.staging.records(scope))
        await self.documents.notice(scope)
        return members(
            self.home,
            scope,
            usage,
            documents=await self._documents(scope),
            conversations=await self._conversations(scope),
            attachments={each.name: each for each in await self._file_members(scope, FileKind.ATTACHMENT)},
            workspace=await self._file_members(scope, FileKind.WORKSPACE, FileKind.DELETED),
            rows=rows,
            zone=self.zone(scope),
            disk=self.disk,
        )

    async def _conversations(self, scope: str) -> Sequence[ArchiveMember]:
        """Return the files of the conversations, each of which a thread reads from the store when it is packed."""
        loop = asyncio.get_running_loop()

        def read(file: SessionFile) -> bytes:
            return asyncio.run_coroutine_threadsafe(read_session_file(file, self.transcripts), loop).result()

        files = await list_session_files(self.home, scope, self.transcripts)
        return [ArchiveMember(file.name, partial(read, file)) for file in files]

    async def _file_members(self, scope: str, *kinds: FileKind) -> Sequence[ArchiveMember]:
        """Return the files of *kinds*, each of which a thread loads from the store when it is packed."""
        loop = asyncio.get_running_loop()

        def read(file: ScopeFile) -> bytes | None:
            return asyncio.run_coroutine_threadsafe(self.files.load(scope, file), loop).result()

        return [
            ArchiveMember(each.name if each.kind is FileKind.ATTACHMENT else exported_name(each), partial(read, each))
            for each in await self.files.files(scope, *kinds)
        ]

    async def _pack(
        self, scope: str, files: Iterator[ArchiveMember], limit: int, language: str
    ) -> tuple[PackedArchives, Sequence[ScopeFile]]:
        """Write the zips and store them as attachments of the scope; return these."""
        folder = scope_folder(self.home, scope) / "exports"

        def write() -> PackedArchives:
            self.disk.make_folder(folder)
            for path in folder.glob("*"):  # files of an interrupted export; one job at a time writes here
                self.disk.remove(path)
            return write_archives(
                files, lambda n: folder / f"export-{n}.zip", limit=limit, about=self._about(scope, language)
            )

        packed = await asyncio.to_thread(write)
        stored = [
            await self.files.put(scope, FileKind.ATTACHMENT, await asyncio.to_thread(path.read_bytes), at=self.now())
            for path in packed.zips
        ]
        await asyncio.to_thread(self.disk.remove_folder, folder)
        return packed, stored

    def _about(self, scope: str, language: str) -> Callable[[PackedArchives], str]:
        def about(archives: PackedArchives) -> str:
            left_out = "\n".join(f"- {name}" for name in archives.left_out[:20]) or "-"
            day = format_day(self.now(), self.zone(scope))
            return translate("privacy.readme", language, day=day, files=archives.files, left_out=left_out)

        return about

    async def _send(self, job: Job, key: SessionKey, archives: PackedArchives, files: Sequence[ScopeFile]) -> None:
        """Put the files into the outbox; has no effect if the job's record is stored already."""
        language = str(job.payload["language"])
        session = await self.session(key)
        day = format_day(self.now(), self.zone(job.scope))
        attachments = tuple(
            Attachment(
                kind="document",
                name=f"parlour-{day}.zip" if len(files) == 1 else f"parlour-{day}-{n}.zip",
                size=each.size,
                media_type="application/zip",
                blob=f"{job.scope}/{each.name}",
            )
            for n, each in enumerate(files[:_MAX_FILES], 1)
        )
        left_out = len(archives.left_out) + max(len(files) - _MAX_FILES, 0)
        text = translate("privacy.export_done", language, files=archives.files)
        if left_out:
            text += " " + translate("privacy.export_left_out", language, count=left_out)
        facts = [
            {"kind": each.kind, "name": each.name, "size": each.size, "blob": each.blob, IS_EXPORT: True}
            for each in attachments
        ]
        await send_job_report(
            self.records,
            job,
            session,
            text,
            at=self.now(),
            reply_to=str(job.payload.get("reply_to", "")),
            attachments=attachments,
            facts=facts,
        )


# -- the inventory ---------------------------------------------------------------------------------


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
