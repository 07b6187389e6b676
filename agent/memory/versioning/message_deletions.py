"""A message that somebody deleted: it leaves transcript and files at once, and what came of it waits for a yes.

Durable jobs. `deleted` takes the message back, so that nobody need write again for it to count, and `unindex` has the
search index follow. `unlearn` looks for what was made of it, by provenance, once no summary of it is under way: lines
of documents, of the history, of notes. None of these is removed without a yes (MEMORY-SPEC.md; PEOPLE.md, Manners).
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b32encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.editing.staged_changes import stage_for_approval
from agent.memory.editing.text_operations import RemoveLines
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.scopes import scope_folder, transcript_path
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.message_deletion import find_message
from agent.memory.versioning.deletion_traces import DeletionTrace
from agent.memory.versioning.derived_data import DerivedDataFinder
from gateway.events import SessionKey
from gateway.ports import InboxRow, Job, JobQueue, Journal, MessageOutcome, SessionRow, TurnRecord, TurnRecordStore

log = structlog.get_logger(__name__)

DELETED, UNINDEX, UNLEARN = "deleted", "unindex", "unlearn"
_BUSY = timedelta(seconds=5)
_LEARNING = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeletionJobs:
    """Does the jobs. *adopt* tells an open conversation; *person* names who sent a row; *writing* is held for files.

    *flush* brings records into their files, *forgotten* has what is derived from these follow.
    """

    home: Path
    journal: Journal
    records: TurnRecordStore
    jobs: JobQueue
    documents: FileDocumentStore
    origins: DerivedDataFinder
    flush: Callable[[], Awaitable[bool]]
    forgotten: Callable[[str], Awaitable[None]]
    adopt: Callable[[TurnRecord], None]
    person: Callable[[InboxRow], str]
    writing: asyncio.Lock
    now: Callable[[], datetime]
    disk: Disk = field(default_factory=Disk)

    @property
    def quick(self) -> Mapping[str, Handler]:
        """What changes files alone."""
        return {DELETED: self.take_back, UNLEARN: self.unlearn}

    @property
    def long(self) -> Mapping[str, Handler]:
        """What takes as long as an index is large."""
        return {UNINDEX: self.unindex}

    async def take_back(self, job: Job) -> RetryJobLater | None:
        """Say in the record that the message is gone, and have looked for what came of it."""
        key, mid = SessionKey.parse(str(job.payload["key"])), str(job.payload["mid"])
        if await self.journal.waiting_rows(
            key
        ):  # a turn may be about it; the next one takes the note up, or we do later
            return RetryJobLater(_BUSY, "its chat is being answered", counts=False)
        await self.flush()
        session = await self.journal.session(key)
        scope = session.scope or job.scope
        if any(mid in _mids(each.record) for each in await self.records.pending(key)):
            return RetryJobLater(_BUSY, "its transcript is not in its file yet", counts=False)
        traces = await asyncio.to_thread(self._traces, scope, key, mid)
        note = int(job.payload.get("note", 0))
        row = await self.records.pending_notes(key, note) if note else None
        if traces:
            payload = {
                "key": str(key),
                "mid": mid,
                "traces": [each.record() for each in traces],
                "person": self.person(row) if row is not None else "",
            }
            await self.jobs.put(
                Job(id=f"unlearn:{key}/{mid}", kind=UNLEARN, scope=scope, payload=payload, due_at=self.now())
            )
        if traces or row is not None:
            index = Job(id=f"{UNINDEX}:{key}/{mid}", kind=UNINDEX, scope=scope, payload={}, due_at=self.now())
            await self._say_gone(session, scope, mid, note)
            await self.jobs.put(index)
        log.info("memory.taken_back", key=str(key), lines=len(traces))
        return None

    async def unindex(self, job: Job) -> None:
        """Let what is derived from the transcripts hold nothing that they do not, free pages included."""
        await self.flush()
        await self.forgotten(job.scope)

    async def unlearn(self, job: Job) -> RetryJobLater | None:
        """Stage what came of a deleted message; clear the copies of the message itself."""
        key = SessionKey.parse(str(job.payload["key"]))
        found = [DeletionTrace.read(each) for each in job.payload["traces"]]
        traces = [each for each in found if each is not None]
        for other in await self.jobs.pending_in(job.scope):
            if _is_learning(other, traces):
                return RetryJobLater(_LEARNING, "a summary of it is under way", counts=False)
        mid, person = str(job.payload["mid"]), str(job.payload.get("person", ""))
        await self.documents.notice(job.scope)
        async with self.writing:
            came = await asyncio.to_thread(self.origins.find, job.scope, str(key), mid, traces)
            for document, lines in came.items():
                await asyncio.to_thread(self._stage, job.scope, document, lines, (str(key), mid), person)
        return None

    # -- parts -------------------------------------------------------------------------------------

    def _traces(self, scope: str, key: SessionKey, mid: str) -> list[DeletionTrace]:
        path = transcript_path(self.home, scope, str(key))
        return [
            DeletionTrace.of(transcript, line, said)
            for transcript, line, said in find_message(self.disk, path, str(key), mid)
        ]

    async def _say_gone(self, session: SessionRow, scope: str, mid: str, note: int) -> None:
        """Append the line that every reader of the transcript goes by; the projector blanks the files behind it."""
        record = TurnRecord(
            turn=f"d{_name(str(session.key), mid)}",
            key=session.key,
            transcript=session.transcript,
            scope=scope,
            outcome=MessageOutcome.MERGED,
            lines=(build.forgotten_line(mid),),
            from_index=session.next_index,
            to_index=session.next_index,
            inbox=(),
            at=self.now(),
        )
        if note:
            if not await self.records.append_for(note, record):
                return  # a turn took it up: its record says so
        else:
            await self.records.append(record)
        self.adopt(record)

    def _stage(self, scope: str, document: str, lines: Sequence[str], of: tuple[str, str], person: str) -> None:
        key, mid = of
        stage_for_approval(
            scope_folder(self.home, scope) / "memory",
            self.disk,
            # The whole name differs from its first letters on: people type no more than these.
            f"d{_name(key, mid, document)}",
            "deleted",
            self.now(),
            document=document,
            operations=[RemoveLines(line) for line in lines],
            session=key,
            person=person,
        )


def _is_learning(job: Job, traces: Sequence[DeletionTrace]) -> bool:
    """Say whether *job* may yet bring what a deleted message said into memory."""
    for trace in traces:
        if job.kind == "remember" and job.payload.get("turn") == trace.turn:
            return job.payload.get("origin") != "untrusted"  # that waits for a yes as it is
        # Whatever is about messages of a transcript names it, and most name their range.
        if job.payload.get("transcript") == trace.transcript:
            start, end = job.payload.get("start", 0), job.payload.get("end", trace.i + 1)
            if int(start) <= trace.i < int(end):
                return True
    return False


def _mids(record: TurnRecord) -> frozenset[str]:
    return frozenset(str(line.get("mid", "")) for line in record.lines)


def _name(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    return b32encode(digest[:10]).decode("ascii").lower()
