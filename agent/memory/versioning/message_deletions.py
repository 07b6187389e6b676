"""Durable jobs for messages that a user deleted in a chat.

`deleted` records the deletion, which blanks the message; `unindex` removes its files, and its words from the search
index. `unlearn` finds the lines derived from it in documents, history and notes, once no job is summarising the
message. These lines are removed only after approval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.memory.documents.scope_documents import ScopeDocuments
from agent.memory.editing.staged_change_store import StagedChangeStore
from agent.memory.editing.staged_changes import StagedChange
from agent.memory.editing.text_operations import RemoveLines
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.erasure_notes import owe_mirror, pay_mirror
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.versioning.derived_data import DeletionTrace, DerivedDataFinder
from gateway.events import SessionKey, short_id
from gateway.ports.journal import InboxRow, Job, MessageOutcome, SessionRow, TurnRecord
from gateway.ports.memory import FileKind, StoredTurn
from gateway.text.deleted_messages import DIGEST, find_message

if TYPE_CHECKING:
    from gateway.store.files import SqlFiles
    from gateway.store.jobs import SqlJobs
    from gateway.store.journal import SqlJournal
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts


log = structlog.get_logger(__name__)

DELETED, UNLEARN = "deleted", "unlearn"
_BUSY_DELAY = timedelta(seconds=5)
_SUMMARY_DELAY = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeletionJobs:
    """Handlers of the jobs.

    *purge_index* removes from a scope's index what its sources no longer have; *person* returns the sender of a row;
    *writing* is held while files are written.
    """

    home: Path
    session_files: SessionFileWriter
    files: SqlFiles
    journal: SqlJournal
    records: SqlTurnRecords
    transcripts: SqlTranscripts
    jobs: SqlJobs
    documents: ScopeDocuments
    derived_data: DerivedDataFinder
    staging: StagedChangeStore
    purge_index: Callable[[str], Awaitable[None]]
    person: Callable[[InboxRow], str]
    writing: asyncio.Lock
    now: Callable[[], datetime]
    _disk: Disk = field(default_factory=Disk)

    async def delete(self, job: Job) -> RetryJobLater | None:
        """Record the deletion, write the files without the message, and enqueue the jobs that find derived data."""
        key, mid = SessionKey.parse(str(job.payload["key"])), str(job.payload["mid"])
        session = await self.journal.session(key)
        scope, debt = session.scope or job.scope, f"message:{key}/{mid}"
        await owe_mirror(self.home, scope, self._disk, erasure=debt)
        if await self.journal.waiting_rows(key):  # the next turn may record the deletion; if not, a retry does
            return RetryJobLater(_BUSY_DELAY, "its chat is being answered", counts=False)
        traces = await self._traces(scope, key, mid)
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
            await self._record_deletion(session, scope, mid, note)
        if not await self.session_files.flush():
            return RetryJobLater(_BUSY_DELAY, "the files of conversations cannot be written", counts=False)
        await pay_mirror(self.home, scope, self._disk, erasure=debt)
        log.info("memory.message_deleted", key=str(key), lines=len(traces))
        return None

    async def unindex(self, job: Job) -> None:
        """Remove the files of deleted messages that no line refers to, and from the index what is in no turn."""
        digests = {str(each) for each in job.payload.get("files", ())}
        await remove_unreferenced(self.files, self.transcripts, job.scope, digests)
        await self.purge_index(job.scope)

    async def unlearn(self, job: Job) -> RetryJobLater | None:
        """Stage the removal of lines derived from a deleted message; blank copies of the message itself."""
        key = SessionKey.parse(str(job.payload["key"]))
        parsed = [DeletionTrace.read(each) for each in job.payload["traces"]]
        traces = [each for each in parsed if each is not None]
        for other in await self.jobs.pending_in(job.scope):
            if _may_remember(other, traces):
                return RetryJobLater(_SUMMARY_DELAY, "a summary of it is being made", counts=False)
        mid, person = str(job.payload["mid"]), str(job.payload.get("person", ""))
        await self.documents.notice(job.scope)
        async with self.writing:
            derived = await self.derived_data.find(job.scope, str(key), mid, traces)
            for document, lines in derived.items():
                change = StagedChange(
                    # Names differ in their first letters, because users type only these.
                    name=f"d{_name(str(key), mid, document)}",
                    why="deleted",
                    at=self.now(),
                    document=document,
                    operations=tuple(map(RemoveLines, lines)),
                    session=str(key),
                    person=person,
                )
                await self.staging.stage(job.scope, change)
        return None

    async def _traces(self, scope: str, key: SessionKey, mid: str) -> list[DeletionTrace]:
        """Return a trace of each occurrence of the message."""
        traces: list[DeletionTrace] = []
        after: tuple[str, int] | None = None
        while turns := await self.transcripts.scan(scope, keys=frozenset({key}), after=after):
            traces += await asyncio.to_thread(_find_traces, turns, mid)
            after = (str(key), turns[-1].seq)
        return traces

    async def _record_deletion(self, session: SessionRow, scope: str, mid: str, note: int) -> None:
        """Append the `forgotten` line, which blanks the message in the same transaction."""
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
            await self.records.append_for(note, record)  # nothing where a turn has recorded the deletion
        else:
            await self.records.append(record)


async def remove_unreferenced(
    files: SqlFiles, transcripts: SqlTranscripts, scope: str, digests: Collection[str]
) -> None:
    """Remove those attachments of *scope* that no line refers to."""
    left = {digest for digest in digests if DIGEST.fullmatch(digest)}
    after: tuple[str, int] | None = None
    while left and (turns := await transcripts.scan(scope, after=after)):
        left -= {each for each in left if any(each.encode() in turn.body for turn in turns)}
        after = (str(turns[-1].key), turns[-1].seq)
    await files.remove(scope, FileKind.ATTACHMENT, names=left)


def _may_remember(job: Job, traces: Sequence[DeletionTrace]) -> bool:
    """Return True if the pending *job* may still write the content of a deleted message into memory."""
    for trace in traces:
        if job.kind == "remember" and job.payload.get("turn") == trace.turn:
            return job.payload.get("origin") != "untrusted"  # which needs approval anyway
        # Jobs about messages have the transcript in their payload, and most of them the range.
        if job.payload.get("transcript") == trace.transcript:
            start, end = job.payload.get("start", 0), job.payload.get("end", trace.i + 1)
            if int(start) <= trace.i < int(end):
                return True
    return False


def _find_traces(turns: Sequence[StoredTurn], mid: str) -> list[DeletionTrace]:
    found = ((turn, find_message(raw, {mid})) for turn in turns for raw in turn.body.splitlines())
    return [DeletionTrace.of(turn.transcript, *each) for turn, each in found if each is not None]


def _name(*parts: str) -> str:
    return short_id("\0".join(parts))
