"""`/export`: durable jobs that pack the data of a scope, send it as files, and delete the files later; `/privacy`.

One job packs the data and enqueues the files for delivery; another one deletes them a day later. After a crash, the
first removes incomplete files and starts again.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
import re
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import structlog

from agent.base import transcript_lines as build
from agent.base.disk import FILE_MODE, Disk
from agent.base.file_facts import blobs_in, facts_in, safe_name
from agent.base.scopes import scope_folder
from agent.base.transcript_lines import decode, encode, kind_of
from agent.files.file_workspace import exported_name
from agent.memory.editing.staged_changes import StagedChangeStore
from agent.memory.history.history_files import NOTE_NAME, printed_files
from agent.memory.jobs.job_runner import JobKind, JobPace, RetryJobLater, send_job_report
from agent.memory.storage.messages import moment
from agent.memory.storage.scope_documents import ScopeDocuments
from agent.memory.storage.session_file_writer import SessionFile, list_session_files, read_session_file
from agent.memory.storage.stored_sessions import visible_lines
from gateway.events import Attachment, SessionKey
from gateway.i18n import translate
from gateway.ports.journal import Job, Line, SessionRow
from gateway.ports.memory import RAW_JSONL, FileKind, ScopeFile

if TYPE_CHECKING:
    from gateway.store.files import SqlFiles
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
    from gateway.store.outbox import SqlOutbox
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts
    from gateway.store.usage import SqlUsage
_COPIES = "[A-Z]*.conflict-*.md"  # of documents, that two writers changed
IS_EXPORT = "is_export"  # in file facts: exports do not contain earlier exports
_EXCLUDED_FIELDS = frozenset({"quoted", "thinking"})
_OVERHEAD = 1_024  # bytes of a zip file for each member's headers
_TAIL = 4_096
_COLUMNS = ("purpose", "model", "calls", "tokens_in", "tokens_out", "tokens_cached", "cost")

Read = Callable[[], bytes | None]


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One file of an export."""

    name: str
    read: Read


@dataclass(slots=True)
class PackedArchives:
    """The zip files of an export, and the members that were too large for one."""

    zips: list[Path] = field(default_factory=list)
    files: int = 0
    left_out: list[str] = field(default_factory=list)


def members(
    home: Path,
    scope: str,
    usage: Sequence[Mapping[str, Any]],
    *,
    documents: Mapping[str, bytes] | None = None,
    conversations: Sequence[ArchiveMember] = (),
    attachments: Mapping[str, ArchiveMember] | None = None,
    workspace: Sequence[ArchiveMember] = (),
    rows: Mapping[str, Sequence[Line]] | None = None,
    zone: str,
    disk: Disk,
) -> Iterator[ArchiveMember]:
    """Yield the members of an export of *scope*: memory, conversations as JSON Lines and as text, files, usage.

    *documents* are its documents, history and notes by name, *conversations* the files of its transcripts,
    *attachments* the files that were sent and received, by digest, *workspace* those of its workspace, and *rows* the
    content of further JSON Lines files by name.
    """
    folder = scope_folder(home, scope)
    yield ArchiveMember("usage.csv", lambda: _usage(usage))
    yield from chain.from_iterable(starmap(_encoded, (rows or {}).items()))
    for document, data in sorted((documents or {}).items()):
        read = partial(bytes, data)
        is_raw = document == RAW_JSONL
        yield ArchiveMember(f"memory/{document}", partial(_filter_lines, read) if is_raw else read)
    others = [path for path in (folder / "memory").glob("[0-9]*.md") if not NOTE_NAME.match(path.name)]
    for path in sorted([*others, *(folder / "memory").glob(_COPIES)]):
        yield from _plain(disk, path, f"memory/{path.name}")
    names: dict[str, str] = {}  # digest -> file name in a conversation
    for each in conversations:
        names |= _file_names(each.read)
        yield ArchiveMember(f"conversations/{each.name}", partial(_filter_lines, each.read))
        text = f"conversations/{each.name.removesuffix('.jsonl')}.md"
        yield ArchiveMember(text, partial(_render_text, each.read, zone))
    for digest, member in (attachments or {}).items():
        # Attachments that no conversation refers to are unused, or exports.
        if digest in names:
            yield replace(member, name=f"files/{digest[:8]} {names[digest]}")
    yield from workspace


def write_archives(
    files: Iterator[ArchiveMember], into: Callable[[int], Path], *, limit: int, about: Callable[[PackedArchives], str]
) -> PackedArchives:
    """Write *files* to zip files of at most *limit* bytes, with mode 0600; *into* returns the path of each, from 1.

    *about* returns the text of README.md, which is in the last one.
    """
    packed = PackedArchives()
    writer: zipfile.ZipFile | None = None
    bytes_left = 0
    try:
        for member in files:
            data = member.read()
            if data is None:
                continue
            info = zipfile.ZipInfo(member.name, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = FILE_MODE << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            needed = _packed_size(data) + _OVERHEAD + 2 * len(member.name.encode("utf-8", "replace"))
            if needed > limit - 2 * _TAIL:
                packed.left_out.append(member.name)
                continue
            if writer is None or needed > bytes_left:
                if writer is not None:
                    writer.close()
                packed.zips.append(into(len(packed.zips) + 1))
                writer, bytes_left = _open(packed.zips[-1]), limit - 2 * _TAIL
            writer.writestr(info, data)
            packed.files += 1
            bytes_left -= needed
        if writer is None:
            packed.zips.append(into(1))
            writer = _open(packed.zips[-1])
        writer.writestr("README.md", about(packed)[: _TAIL - 200])
    finally:
        if writer is not None:
            writer.close()
    return packed


def _open(path: Path) -> zipfile.ZipFile:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    return zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)


def _packed_size(data: bytes) -> int:
    # The size after deflating; incompressible data grows by a few bytes per block.
    return len(zlib.compress(data)) + len(data) // 1_000 + 64


def _plain(disk: Disk, path: Path, name: str) -> Iterator[ArchiveMember]:
    if disk.size(path) is not None:
        yield ArchiveMember(name, lambda: disk.load(path))


def _encoded(name: str, lines: Sequence[Line]) -> Iterator[ArchiveMember]:
    data = b"".join(map(encode, lines))
    if data:
        yield ArchiveMember(name, lambda: data)


def _lines(read: Read) -> Iterator[Line]:
    for raw in (read() or b"").splitlines():
        line = decode(raw)
        if line is not None:
            yield line


def _filter_lines(read: Read) -> bytes:
    """Return a transcript without the excluded fields."""
    return b"".join(encode(_filter_fields(line)) for line in _lines(read))


def _filter_fields(line: Line) -> Line:
    fields = {name: value for name, value in line.items() if name not in _EXCLUDED_FIELDS}
    if isinstance(fields.get("message"), Mapping):  # a message of the raw archive
        fields["message"] = _filter_fields(fields["message"])
    return fields


def _render_text(read: Read, zone: str) -> bytes:
    """Render a transcript as Markdown with speakers and times."""
    sections: list[str] = []
    for line in _lines(read):
        if kind_of(line) == "head":
            sections.append(f"# {line.get('key', '')}\n\nbegun {moment(line.get('created'), zone)} ({zone})\n")
        at = moment(line.get("timestamp"), zone)
        for each in visible_lines(str(line.get("turn", "")), line, frozenset()):
            speaker = (each.name or "you") if each.role == "user" else "Parlour"
            sections.append(f"**{speaker}**, {at}\n\n{each.text}\n")
    return "\n".join(sections).encode("utf-8", "replace")


def _file_names(read: Read) -> dict[str, str]:
    """Return the names of a conversation's files by digest."""
    names: dict[str, str] = {}
    for line in _lines(read):
        for fact in facts_in(line):
            if fact.get(IS_EXPORT):
                continue
            for blob in blobs_in([fact]):
                names[blob.rpartition("/")[2]] = safe_name(str(fact.get("name", "")), str(fact.get("kind", "document")))
    return names


def _usage(rows: Sequence[Mapping[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    writer.writerows([["unknown" if row[name] is None else row[name] for name in _COLUMNS] for row in rows])
    return out.getvalue().encode("utf-8", "replace")


def format_day(at: datetime, zone: str) -> str:
    """Format the date of *at* in *zone*."""
    return f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d}"


log = structlog.get_logger(__name__)

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
    browsers: Callable[[str], Awaitable[Sequence[Line]]]  # of a person, that show notifications; without their keys
    links: Callable[[str], Awaitable[Sequence[Line]]]  # to conversations of a person; without what opens them
    runs: Callable[[Sequence[Job]], Awaitable[Sequence[Line]]]  # of the reminders among jobs
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
        rows["browsers.jsonl"] = list(await self.browsers(person))
        rows["shared_links.jsonl"] = list(await self.links(person))
        rows["runs.jsonl"] = list(await self.runs(jobs))
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


# -- /privacy and /export --------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyFacts:
    """Settings about stored data and the models that receive it."""

    models: tuple[str, ...] = ()  # remote models that receive conversations
    listens: str = ""  # the model that receives voice messages
    draws: str = ""  # the model that receives the descriptions of pictures
    speaks: str = ""  # the model that receives answers to them, to read them out
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
