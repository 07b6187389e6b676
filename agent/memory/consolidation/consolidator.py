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
from zoneinfo import ZoneInfo

import structlog

from agent.llm.chat_model import ChatModel
from agent.memory.consolidation.consolidation_request import ConsolidationAnswer, request_consolidation
from agent.memory.consolidation.consolidation_state import StoredAnswer
from agent.memory.consolidation.memory_reviser import MemoryReviser
from agent.memory.history.history_log import HistoryEntry, HistoryLog
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.messages.message_range import MessageRange, fit_to_tokens, origin_of
from agent.memory.messages.message_reader import MessageReader
from agent.memory.messages.taint import strip_untrusted
from agent.memory.messages.token_estimate import estimate_text
from agent.memory.model_calls import TOO_LONG, ModelProvider, UnusableAnswer
from agent.memory.prompt.due_jobs import (
    APPLY,
    CONSOLIDATE,
    FLUSH,
    NOTE,
    ROUNDS,
    SUMMARISE,
    ConversationSpan,
    consolidation_job,
)
from agent.memory.scopes import scope_folder
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from gateway.events import SessionKey
from gateway.ports import Job, JobQueue, Line, MessageOutcome, SessionRow, TurnRecord, TurnRecordStore

log = structlog.get_logger(__name__)

DEADLINE = timedelta(seconds=120)
_WAITS = (timedelta(minutes=2), timedelta(minutes=30))  # after the first failure, after the second
_FAILURES_BEFORE_RAW = 3
_ARCHIVE_ROUNDS = 1_000  # of what /new archived: no turn comes after it
_INSTRUCTIONS = 400  # tokens of a question around memory and conversation
_SQUEEZES = 3  # times that a question is made smaller when the model says that it is too long
_NOT_YET = timedelta(seconds=5)


async def _unbounded() -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidator:
    """Does the jobs. *adopt* tells an open conversation of its new pointer.

    *writing* is held while files change, so that a backup can have them stand still.
    """

    home: Path
    jobs: JobQueue
    passages: MessageReader
    records: TurnRecordStore
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    adopt: Callable[[TurnRecord], None]
    writing: asyncio.Lock
    reviser: MemoryReviser
    model: ChatModel
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    disk: Disk = dataclasses.field(default_factory=Disk)
    deadline: timedelta = DEADLINE
    notes: bool = True  # a conversation that /new ends gets a note, too
    flushes: bool = False  # somebody does FLUSH jobs; a compaction waits for them
    room: Callable[[], Awaitable[int]] = _unbounded  # what a prompt may weigh

    @property
    def slow(self) -> Mapping[str, Handler]:
        """What asks a model."""
        return {CONSOLIDATE: self.consolidate, SUMMARISE: self.summarise}

    @property
    def quick(self) -> Mapping[str, Handler]:
        """What changes files alone."""
        return {APPLY: self.apply}

    async def consolidate(self, job: Job) -> RetryJobLater | None:
        """Ask the model about the job's messages and store its answer; done when there is one, or a raw archive."""
        span = ConversationSpan.of(job)
        pending = await self.jobs.pending_in(span.scope)
        mine = [each for each in pending if self._is_about(each, span.transcript)]
        if any(each.kind == APPLY and each.payload["end"] > span.start for each in mine):
            return None  # the pointer is about to move; what is due then will be a job of its own
        flushes = [each for each in mine if each.kind == FLUSH and not each.attempts] if self.flushes else []
        if any(each.payload.get("then") for each in flushes):
            return None  # it queues its compaction itself
        if flushes:
            return RetryJobLater(_NOT_YET, "what lasts is written down first", counts=False)
        start, _ = await self.passages.extent(span.scope, span.key, span.transcript)
        if start != span.start:
            return None
        return await self._consolidate(job, span, rounds=int(job.payload.get("rounds", ROUNDS)))

    async def summarise(self, job: Job) -> RetryJobLater | None:
        """Summarise what no entry holds yet of a transcript that /new archived."""
        key, transcript = SessionKey.parse(str(job.payload["key"])), str(job.payload["transcript"])
        if self.notes and not job.attempts:
            await self.jobs.put(replace(job, id=f"{NOTE}:{transcript}", kind=NOTE))
        if any(self._is_about(each, transcript) for each in await self.jobs.pending_in(job.scope) if each.id != job.id):
            return RetryJobLater(_NOT_YET, "its last consolidation comes first", counts=False)
        start, end = await self.passages.extent(job.scope, key, transcript)
        if end < int(job.payload.get("length", 0)) and job.attempts < _FAILURES_BEFORE_RAW:
            return RetryJobLater(_NOT_YET, "the transcript is not in its file yet")
        if start >= end:
            return None
        whole = ConversationSpan(scope=job.scope, key=key, transcript=transcript, start=start, end=end)
        return await self._consolidate(job, whole, rounds=_ARCHIVE_ROUNDS)

    async def apply(self, job: Job) -> RetryJobLater | None:
        """Bring a stored answer into MEMORY.md and the history, and move the pointer."""
        async with self.writing:
            # As it stands now: something may have been forgotten since it was taken up.
            current = next((each for each in await self.jobs.pending_in(job.scope) if each.id == job.id), None)
            if current is not None:
                await self._apply(ConversationSpan.of(current), StoredAnswer(**current.payload["answer"]))
                await self._go_on(current)
        return None

    async def _go_on(self, job: Job) -> None:
        """Queue the next round of a compaction that did not fit one question."""
        span, goal, rounds = (
            ConversationSpan.of(job),
            int(job.payload.get("goal", 0)),
            int(job.payload.get("rounds", 0)),
        )
        if goal > span.end and rounds > 1:
            rest = MessageRange(span.end, goal)
            await self.jobs.put(
                consolidation_job(span.key, span.scope, span.transcript, rest, self.now(), rounds=rounds - 1)
            )

    # -- one span ----------------------------------------------------------------------------------

    async def _apply(self, span: ConversationSpan, answer: StoredAnswer) -> None:
        await self.reviser.revise(span.scope, answer, session=str(span.key))
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

    async def _consolidate(self, job: Job, whole: ConversationSpan, *, rounds: int) -> RetryJobLater | None:
        if await asyncio.to_thread(lambda: self._history(whole.scope).find(whole.entry)):
            await self._point(whole)  # a crash came between the raw archive and the pointer
            return None
        epoch = await self.reviser.epoch(whole.scope)
        messages = await self.passages.messages(whole.scope, whole.key, whole.transcript, whole.start, whole.end)
        if len(messages) < whole.end - whole.start and job.attempts < _FAILURES_BEFORE_RAW:
            return RetryJobLater(_NOT_YET, "the transcript is not in its file yet")
        base = await self.reviser.text(whole.scope)
        asked = await self._ask(job, whole, messages, base)
        if asked is None:  # tool results alone, or forgotten
            await self._keep_raw(whole, messages)
            return None
        count, said = asked
        if isinstance(said, UnusableAnswer):
            return await self._failed(job, whole, messages, said)
        end = messages[count]["i"] if count < len(messages) else whole.end
        span = replace(whole, end=end)
        answer = StoredAnswer(
            entry=span.entry,
            transcript=span.transcript,
            start=span.start,
            end=span.end,
            timestamp=self._local(self.now(), span.scope),
            origin=origin_of(strip_untrusted(messages[:count])),
            base=base,
            history_entry=said.history_entry,
            memory_update=said.memory_update,
        )
        payload = {**span.payload(), "answer": dataclasses.asdict(answer), "goal": whole.end, "rounds": rounds}
        async with self.writing:
            if await self.reviser.epoch(span.scope) != epoch:
                return RetryJobLater(_NOT_YET, "something was forgotten meanwhile", counts=False)
            await self.jobs.put(
                Job(id=f"{APPLY}:{span.entry}", kind=APPLY, scope=span.scope, payload=payload, due_at=self.now())
            )
        return None

    async def _ask(
        self, job: Job, span: ConversationSpan, messages: list[Line], base: str
    ) -> tuple[int, ConsolidationAnswer | UnusableAnswer] | None:
        """Return what the model says about the first so many messages: as many as it takes. None: there are no words.

        A prompt that it refuses as too long teaches the client, and is made smaller.
        """
        provider = ModelProvider(model=self.model, purpose="consolidation", turn=job.id, key=str(span.key))
        count, most = 0, 0
        for _ in range(_SQUEEZES):
            room = await self.room()
            # MEMORY.md is in the question, and once more in the answer.
            left = max(room - 2 * estimate_text(base) - _INSTRUCTIONS, 0)
            if room and left < room // 8:
                break
            count, lines = fit_to_tokens(
                messages, zone=self.zone(span.scope), tokens=min(filter(None, (left, most)), default=0)
            )
            if not lines:
                return None
            said = await request_consolidation(provider, self.model.name, base, lines, deadline=self.deadline)
            if not isinstance(said, UnusableAnswer) or said.reason != TOO_LONG:
                return count, said
            most = sum(map(estimate_text, lines)) * 3 // 4
        return count, UnusableAnswer(TOO_LONG)

    async def _failed(
        self, job: Job, span: ConversationSpan, messages: list[Line], said: UnusableAnswer
    ) -> RetryJobLater | None:
        """Wait before asking again; after three failures keep the messages themselves, and let the window move on."""
        failures = job.attempts + 1
        log.warning("consolidation.failed", key=str(span.key), reason=said.reason, failures=failures)
        if failures < _FAILURES_BEFORE_RAW and said.reason != TOO_LONG:
            return RetryJobLater(_WAITS[failures - 1], said.reason)
        await self._keep_raw(span, messages)
        return None

    async def _keep_raw(self, span: ConversationSpan, messages: list[Line]) -> None:
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

    async def _point(self, span: ConversationSpan) -> None:
        """Say in the transcript that the span is in the history; the window moves, and the next turn sees it."""
        session = await self.session(span.key)
        index = session.next_index if session.transcript == span.transcript else span.end
        record = TurnRecord(
            turn=f"p{span.entry[1:]}",
            key=span.key,
            transcript=span.transcript,
            scope=span.scope,
            outcome=MessageOutcome.ANSWERED,
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
        return job.kind in (CONSOLIDATE, APPLY, FLUSH) and job.payload.get("transcript") == transcript

    def _history(self, scope: str) -> HistoryLog:
        return HistoryLog(scope_folder(self.home, scope) / "memory", self.disk, now=self.now)

    def _local(self, at: datetime, scope: str) -> str:
        return f"{at.astimezone(ZoneInfo(self.zone(scope))):%Y-%m-%d %H:%M}"
