"""Consolidation in the gateway, as durable jobs that run beside the turns.

`consolidate` asks the model and stores its answer as an `apply` job; `apply` changes MEMORY.md and the history and
moves the transcript's pointer. Both are idempotent, so no answer is paid for twice, and no lock is held during a model
call. `summarise` does the same for a transcript that /new archived, and `archive_now` while /new waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from agent.llm.chat_model import ChatModel
from agent.memory.consolidation.consolidation_request import ConsolidationAnswer
from agent.memory.consolidation.consolidator import FAILURE_LINE, FAILURES_BEFORE_RAW, Consolidator, StoredAnswer
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.messages.greetings import has_only_greetings
from agent.memory.messages.message_range import MessageRange, fit_to_tokens
from agent.memory.messages.message_reader import MessageReader
from agent.memory.messages.token_estimate import estimate_text
from agent.memory.model_calls import TOO_LONG, ModelProvider, UnusableAnswer, outage_delay, reduced_limit, unlimited
from agent.memory.prompt.due_jobs import (
    APPLY,
    CONSOLIDATE,
    FLUSH,
    NOTE,
    ROUNDS,
    ConversationSpan,
    consolidation_job,
    raw_summary_job,
)
from agent.memory.storage import transcript_lines as build
from gateway.events import SessionKey
from gateway.ports import Job, Line, MessageOutcome, SessionRow, TurnRecord

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs
    from gateway.store.records import SqlTurnRecords


log = structlog.get_logger(__name__)

_NOT_BEFORE = timedelta(hours=1)
_ARCHIVE_TRIES = 24  # while another consolidation of the same conversation is running
_WAITS = (timedelta(minutes=2), timedelta(minutes=30))  # after the first bad answer, after the second
_ARCHIVE_ROUNDS = 1_000  # of what /new archived: no turn comes after it
_INSTRUCTIONS = 400  # tokens of a question around memory and conversation
_SQUEEZES = 3  # times that a question is made smaller when the model says that it is too long
_MOST_GREETINGS = 40  # messages of a conversation that may be greetings alone
_NOT_YET = timedelta(seconds=5)
_BEFORE_RAW_SUMMARY = timedelta(days=1)  # a model that gave three bad answers is not asked again at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationJobs:
    """Handlers of the consolidation jobs.

    *writing* is held while files change; a backup holds it too. *token_limit* is that of a prompt, 0 for none.
    """

    consolidator: Consolidator
    jobs: SqlJobs
    reader: MessageReader
    records: SqlTurnRecords
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    writing: asyncio.Lock
    model: ChatModel
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    notes: bool = True  # write a session note when /new ends a conversation
    flushes: bool = False  # FLUSH jobs are handled; a compaction waits for them
    token_limit: Callable[[], Awaitable[int]] = unlimited

    async def consolidate(self, job: Job) -> RetryJobLater | None:
        """Ask the model about the job's messages and store its answer; done when there is one, or a raw archive."""
        span = ConversationSpan.of(job)
        pending = await self.jobs.pending_in(span.scope)
        mine = [each for each in pending if self._is_about(each, span.transcript)]
        if any(each.kind == APPLY and each.payload["end"] > span.start for each in mine):
            return None  # the pointer is about to move; the rest is queued as another job
        flushes = [each for each in mine if each.kind == FLUSH and not each.attempts] if self.flushes else []
        if any(each.payload.get("then") for each in flushes):
            return None  # it queues its compaction itself
        if flushes:
            return RetryJobLater(_NOT_YET, "what lasts is written down first", counts=False)
        start, _ = await self.reader.extent(span.scope, span.key, span.transcript)
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
        start, end = await self.reader.extent(job.scope, key, transcript)
        if end < int(job.payload.get("length", 0)) and job.attempts < FAILURES_BEFORE_RAW:
            return RetryJobLater(_NOT_YET, "the transcript is not in its file yet")
        if start >= end:
            return None
        if end - start <= _MOST_GREETINGS and has_only_greetings(
            await self.reader.messages(job.scope, key, transcript, start, end)
        ):
            return None
        whole = ConversationSpan(scope=job.scope, key=key, transcript=transcript, start=start, end=end)
        return await self._consolidate(job, whole, rounds=_ARCHIVE_ROUNDS)

    async def apply(self, job: Job) -> RetryJobLater | None:
        """Bring a stored answer into MEMORY.md and the history, and move the pointer."""
        async with self.writing:
            # Read again: words may have been erased from the job since it was claimed.
            current = next((each for each in await self.jobs.pending_in(job.scope) if each.id == job.id), None)
            if current is not None:
                await self._apply(ConversationSpan.of(current), StoredAnswer(**current.payload["answer"]))
                await self._go_on(current)
        return None

    async def _go_on(self, job: Job) -> None:
        """Queue the next round of a compaction that did not fit one question."""
        span, goal = ConversationSpan.of(job), int(job.payload.get("goal", 0))
        rounds = int(job.payload.get("rounds", 0))
        if goal > span.end and rounds > 1:
            rest = MessageRange(span.end, goal)
            await self.jobs.put(
                consolidation_job(span.key, span.scope, span.transcript, rest, self.now(), rounds=rounds - 1)
            )

    # -- one span ----------------------------------------------------------------------------------

    async def _apply(self, span: ConversationSpan, answer: StoredAnswer) -> None:
        await self.consolidator.apply(span.scope, str(span.key), answer)
        await self._move_pointer(span)
        log.info("consolidation.applied", key=str(span.key), start=span.start, end=span.end)

    async def _consolidate(self, job: Job, whole: ConversationSpan, *, rounds: int) -> RetryJobLater | None:
        if await self.consolidator.history.find(whole.scope, whole.entry):
            await self._move_pointer(whole)  # a crash came between the raw archive and the pointer
            return None
        epoch = await self.consolidator.documents.epoch(whole.scope)
        messages = await self.reader.messages(whole.scope, whole.key, whole.transcript, whole.start, whole.end)
        if len(messages) < whole.end - whole.start and job.attempts < FAILURES_BEFORE_RAW:
            return RetryJobLater(_NOT_YET, "the transcript is not in its file yet")
        base = await self.consolidator.current_memory(whole.scope)
        reply = await self._ask(job, whole, messages, base)
        if reply is None:  # tool results alone, or erased: a later question would show no more
            await self._keep_raw(whole, messages, is_summarised_later=False)
            return None
        count, answer = reply
        if isinstance(answer, UnusableAnswer):
            return await self._failed(job, whole, messages, answer)
        end = messages[count]["i"] if count < len(messages) else whole.end
        span = replace(whole, end=end)
        stored = self.consolidator.stored_answer(span.scope, span, messages[:count], base, answer)
        payload = {**span.payload(), "answer": dataclasses.asdict(stored), "goal": whole.end, "rounds": rounds}
        async with self.writing:
            if await self.consolidator.documents.epoch(span.scope) != epoch:
                return RetryJobLater(_NOT_YET, "something was forgotten meanwhile", counts=False)
            await self.jobs.put(
                Job(id=f"{APPLY}:{span.entry}", kind=APPLY, scope=span.scope, payload=payload, due_at=self.now())
            )
        return None

    async def _ask(
        self, job: Job, span: ConversationSpan, messages: list[Line], base: str
    ) -> tuple[int, ConsolidationAnswer | UnusableAnswer] | None:
        """Return the model's answer and how many of the messages it covers; None if they contain no text.

        A prompt that the model refuses as too long is retried with fewer messages.
        """
        provider = ModelProvider(model=self.model, purpose="consolidation", turn=job.id, key=str(span.key))
        count, most = 0, 0
        for _ in range(_SQUEEZES):
            token_limit = reduced_limit(await self.token_limit(), job.attempts)
            left = max(token_limit - estimate_text(base) - _INSTRUCTIONS, 0)
            if token_limit and left < token_limit // 8:
                break
            count, lines = fit_to_tokens(
                messages, zone=self.zone(span.scope), tokens=min(filter(None, (left, most)), default=0)
            )
            if not lines:
                return None
            answer = await self.consolidator.ask(span.scope, provider, self.model.name, base, lines)
            if not isinstance(answer, UnusableAnswer) or answer.reason != TOO_LONG:
                return count, answer
            most = sum(map(estimate_text, lines)) * 3 // 4
        return count, UnusableAnswer(TOO_LONG)

    async def _failed(
        self, job: Job, span: ConversationSpan, messages: list[Line], answer: UnusableAnswer
    ) -> RetryJobLater | None:
        """Wait before asking again; after three bad answers keep the messages themselves, and let the window move on.

        An outage is not an answer: the job waits until the model answers.
        """
        bad_answers = int(job.payload.get("bad_answers", 0)) + (not answer.is_outage)
        log.warning(
            "consolidation.failed",
            what=FAILURE_LINE,
            key=str(span.key),
            reason=answer.reason,
            bad_answers=bad_answers,
            attempts=job.attempts + 1,
        )
        if answer.is_outage:
            return RetryJobLater(outage_delay(job.attempts + 1), answer.reason)
        if bad_answers < FAILURES_BEFORE_RAW and answer.reason != TOO_LONG:
            payload = {**job.payload, "bad_answers": bad_answers}
            return RetryJobLater(_WAITS[bad_answers - 1], answer.reason, payload=payload)
        await self._keep_raw(span, messages)
        return None

    async def _keep_raw(
        self, span: ConversationSpan, messages: list[Line], *, is_summarised_later: bool = True
    ) -> None:
        async with self.writing:
            await self.consolidator.keep_raw(span.scope, str(span.key), span, messages)
            if is_summarised_later:
                await self.jobs.put(raw_summary_job(span.scope, span.entry, self.now() + _BEFORE_RAW_SUMMARY))
            await self._move_pointer(span)

    async def _move_pointer(self, span: ConversationSpan) -> None:
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

    @staticmethod
    def _is_about(job: Job, transcript: str) -> bool:
        return job.kind in (CONSOLIDATE, APPLY, FLUSH) and job.payload.get("transcript") == transcript


# -- /new that waits -------------------------------------------------------------------------------


async def archive_now(job: Job, do: Callable[[Job], Awaitable[RetryJobLater | None]], jobs: SqlJobs) -> bool:
    """Run *job*, a `summarise`, now ([000]); return True if the whole conversation is in memory.

    On True the model's answer has been applied to MEMORY.md and the history. On False nothing was changed.
    """
    # Tried once already: the note belongs to a conversation that has ended, and this one may go on. Queued, since
    # it reserves the scope, and due later, so that no worker claims it.
    ahead = replace(job, id=f"{job.id}.now", attempts=1, due_at=job.due_at + _NOT_BEFORE)
    await jobs.put(ahead)
    try:
        later = await _do(ahead, do, jobs)
    finally:
        await jobs.finish(ahead)
    if later is not None:
        log.warning("new.not_archived", reason=later.reason)
    return later is None


async def _do(job: Job, do: Callable[[Job], Awaitable[RetryJobLater | None]], jobs: SqlJobs) -> RetryJobLater | None:
    later: RetryJobLater | None = None
    for _ in range(_ARCHIVE_TRIES):
        later, is_more = await do(job), False
        for each in await jobs.pending_in(job.scope):
            if each.kind == APPLY and each.payload.get("transcript") == job.payload["transcript"]:
                await do(each)
                await jobs.finish(each)
                # Rounds that did not fit one prompt continue as jobs; wait for them too.
                is_more = is_more or int(each.payload.get("goal", 0)) > int(each.payload["end"])
        if (later is None and not is_more) or (later is not None and later.counts):
            break
        await asyncio.sleep(later.delay.total_seconds() if later is not None else 0)
    return later
