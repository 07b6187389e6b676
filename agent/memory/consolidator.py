"""Consolidation in the gateway: from a full window to an entry, MEMORY.md and the pointer, while people go on talking.

Two durable jobs, so that nothing is paid for twice: `consolidate` asks the model and stores its answer as an `apply`
job; `apply` brings it into the files and moves the pointer, and every step of it may be done twice. No lock is held
while the model thinks. `summarise` is the same for what /new archived (MEMORY-SPEC.md, Consolidation).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from agent.llm.port import ChatModel
from agent.memory.background import Handler, Later
from agent.memory.consolidation.answer import Unusable
from agent.memory.consolidation.asking import ask
from agent.memory.consolidation.pending import StoredAnswer
from agent.memory.consolidation.slice import Slice, conversation, entry_id, origin_of
from agent.memory.files import lines as build
from agent.memory.files.disk import Disk
from agent.memory.history.log import HistoryEntry, HistoryLog
from agent.memory.provider import ModelProvider
from agent.memory.reading import Passages
from agent.memory.revising import Reviser
from agent.memory.scopes import scope_folder
from agent.memory.session_notes import NOTE
from gateway.events import SessionKey
from gateway.ports import EndState, Job, Jobs, Line, Records, SessionRow, TurnRecord

log = structlog.get_logger(__name__)

CONSOLIDATE, APPLY, SUMMARISE = "consolidate", "apply", "summarise"
DEADLINE = timedelta(seconds=120)
_WAITS = (timedelta(minutes=2), timedelta(minutes=30))  # after the first failure, after the second
_FAILURES_BEFORE_RAW = 3
_NOT_YET = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The messages from index *start* up to *end* of one transcript, and whose they are."""

    scope: str
    key: SessionKey
    transcript: str
    start: int
    end: int

    @property
    def entry(self) -> str:
        """The id of the entry that summarises it."""
        return entry_id(self.transcript, self.start, self.end)

    @classmethod
    def of(cls, job: Job) -> Span:
        """Read it off a job."""
        names = ("transcript", "start", "end")
        key = SessionKey.parse(str(job.payload["key"]))
        return cls(scope=job.scope, key=key, **{name: job.payload[name] for name in names})

    def payload(self) -> dict[str, Any]:
        """Return it as a job carries it."""
        return {"key": str(self.key), "transcript": self.transcript, "start": self.start, "end": self.end}


def consolidation(key: SessionKey, scope: str, transcript: str, taken: Slice, now: datetime) -> Job:
    """Return the job that is due when a window is full; the same one however often that is noticed."""
    span = Span(scope=scope, key=key, transcript=transcript, start=taken.start, end=taken.end)
    return Job(
        id=f"{CONSOLIDATE}:{transcript}.{taken.start}",
        kind=CONSOLIDATE,
        scope=scope,
        payload=span.payload(),
        due_at=now,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidator:
    """Does the jobs. *adopt* tells an open conversation of its new pointer.

    *writing* is held while files change, so that a backup can have them stand still.
    """

    home: Path
    jobs: Jobs
    passages: Passages
    records: Records
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    adopt: Callable[[TurnRecord], None]
    writing: asyncio.Lock
    reviser: Reviser
    model: ChatModel
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    disk: Disk = dataclasses.field(default_factory=Disk)
    deadline: timedelta = DEADLINE
    notes: bool = True  # a conversation that /new ends gets a note, too

    @property
    def slow(self) -> Mapping[str, Handler]:
        """What asks a model."""
        return {CONSOLIDATE: self.consolidate, SUMMARISE: self.summarise}

    @property
    def quick(self) -> Mapping[str, Handler]:
        """What changes files alone."""
        return {APPLY: self.apply}

    async def consolidate(self, job: Job) -> Later | None:
        """Ask the model about the job's messages and store its answer; done when there is one, or a raw archive."""
        span = Span.of(job)
        pending = await self.jobs.pending_in(span.scope)
        if any(each.kind == APPLY and self._is_about(each, span.transcript) for each in pending):
            return None  # the pointer is about to move; what is due then will be a job of its own
        start, _ = await self.passages.extent(span.scope, span.key, span.transcript)
        return await self._consolidate(job, span) if start == span.start else None

    async def summarise(self, job: Job) -> Later | None:
        """Summarise what no entry holds yet of a transcript that /new archived."""
        key, transcript = SessionKey.parse(str(job.payload["key"])), str(job.payload["transcript"])
        if self.notes and not job.attempts:
            await self.jobs.put(replace(job, id=f"{NOTE}:{transcript}", kind=NOTE))
        if any(self._is_about(each, transcript) for each in await self.jobs.pending_in(job.scope) if each.id != job.id):
            return Later(_NOT_YET, "its last consolidation comes first", counts=False)
        start, end = await self.passages.extent(job.scope, key, transcript)
        if end < int(job.payload.get("length", 0)) and job.attempts < _FAILURES_BEFORE_RAW:
            return Later(_NOT_YET, "the transcript is not in its file yet")
        if start >= end:
            return None
        return await self._consolidate(job, Span(scope=job.scope, key=key, transcript=transcript, start=start, end=end))

    async def apply(self, job: Job) -> Later | None:
        """Bring a stored answer into MEMORY.md and the history, and move the pointer."""
        async with self.writing:
            # As it stands now: something may have been forgotten since it was taken up.
            current = next((each for each in await self.jobs.pending_in(job.scope) if each.id == job.id), None)
            if current is not None:
                await self._apply(Span.of(current), StoredAnswer(**current.payload["answer"]))
        return None

    # -- one span ----------------------------------------------------------------------------------

    async def _apply(self, span: Span, answer: StoredAnswer) -> None:
        await self.reviser.revise(span.scope, answer)
        entry = HistoryEntry(
            timestamp=answer.timestamp,
            content=answer.history_entry,
            session=str(span.key),
            start=span.start,
            end=span.end,
            origin=answer.origin,
            entry=answer.entry,
        )
        await asyncio.to_thread(lambda: self._history(span.scope).append(entry))
        await self._point(span)
        log.info("consolidation.applied", key=str(span.key), start=span.start, end=span.end)

    async def _consolidate(self, job: Job, span: Span) -> Later | None:
        if await asyncio.to_thread(lambda: self._history(span.scope).find(span.entry)):
            await self._point(span)  # a crash came between the raw archive and the pointer
            return None
        epoch = await self.reviser.epoch(span.scope)
        messages = await self.passages.messages(span.scope, span.key, span.transcript, span.start, span.end)
        if len(messages) < span.end - span.start and job.attempts < _FAILURES_BEFORE_RAW:
            return Later(_NOT_YET, "the transcript is not in its file yet")
        lines = conversation(messages, zone=self.zone(span.scope))
        if not lines:  # tool results alone, or forgotten
            await self._keep_raw(span, messages)
            return None
        base = await self.reviser.text(span.scope)
        provider = ModelProvider(model=self.model, purpose="consolidation", turn=job.id, key=str(span.key))
        said = await ask(provider, self.model.name, base, lines, deadline=self.deadline)
        if isinstance(said, Unusable):
            return await self._failed(job, span, messages, said)
        answer = StoredAnswer(
            entry=span.entry,
            transcript=span.transcript,
            start=span.start,
            end=span.end,
            timestamp=self._local(self.now(), span.scope),
            origin=origin_of(messages),
            base=base,
            history_entry=said.history_entry,
            memory_update=said.memory_update,
        )
        payload = {**span.payload(), "answer": dataclasses.asdict(answer)}
        async with self.writing:
            if await self.reviser.epoch(span.scope) != epoch:
                return Later(_NOT_YET, "something was forgotten meanwhile", counts=False)
            await self.jobs.put(
                Job(id=f"{APPLY}:{span.entry}", kind=APPLY, scope=span.scope, payload=payload, due_at=self.now())
            )
        return None

    async def _failed(self, job: Job, span: Span, messages: list[Line], said: Unusable) -> Later | None:
        """Wait before asking again; after three failures keep the messages themselves, and let the window move on."""
        failures = job.attempts + 1
        log.warning("consolidation.failed", key=str(span.key), reason=said.reason, failures=failures)
        if failures < _FAILURES_BEFORE_RAW:
            return Later(_WAITS[failures - 1], said.reason)
        await self._keep_raw(span, messages)
        return None

    async def _keep_raw(self, span: Span, messages: list[Line]) -> None:
        entry = HistoryEntry(
            timestamp=self._local(self.now(), span.scope),
            content=f"[raw] {len(messages)} messages ({span.start} to {span.end - 1}) are kept as they were: no summary"
            " could be made of them.",
            session=str(span.key),
            start=span.start,
            end=span.end,
            origin=origin_of(messages),
            entry=span.entry,
        )
        async with self.writing:
            await asyncio.to_thread(lambda: self._history(span.scope).keep_raw(entry, messages))
            await self._point(span)

    async def _point(self, span: Span) -> None:
        """Say in the transcript that the span is in the history; the window moves, and the next turn sees it."""
        session = await self.session(span.key)
        index = session.next_index if session.transcript == span.transcript else span.end
        record = TurnRecord(
            turn=f"p{span.entry[1:]}",
            key=span.key,
            transcript=span.transcript,
            scope=span.scope,
            outcome=EndState.ANSWERED,
            lines=(build.pointer(span.end, span.entry),),
            from_index=index,
            to_index=index,
            inbox=(),
            at=self.now(),
        )
        await self.records.append(record)
        self.adopt(record)

    @staticmethod
    def _is_about(job: Job, transcript: str) -> bool:
        return job.kind in (CONSOLIDATE, APPLY) and job.payload.get("transcript") == transcript

    def _history(self, scope: str) -> HistoryLog:
        return HistoryLog(scope_folder(self.home, scope) / "memory", self.disk, now=self.now)

    def _local(self, at: datetime, scope: str) -> str:
        return f"{at.astimezone(ZoneInfo(self.zone(scope))):%Y-%m-%d %H:%M}"
