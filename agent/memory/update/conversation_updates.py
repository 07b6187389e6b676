"""Updates of memory from conversations in the gateway: consolidation, flush, and the note about an ended session.

A full window, a conversation that /new has ended and a raw archive are consolidated. The answer changes MEMORY.md and
the history, and moves the pointer of the transcript. Messages that got three bad answers are kept in the raw archive
and are summarised later, when a model manages it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import structlog

from agent.base import transcript_lines as build
from agent.base.scopes import scope_folder
from agent.base.transcript_lines import estimate_text
from agent.llm.chat_model import ChatModel
from agent.llm.model_calls import TOO_LONG, ModelProvider, UnusableAnswer, outage_delay, reduced_limit, unlimited
from agent.memory.jobs.job_runner import JobErasure, JobKind, JobPace, RetryJobLater
from agent.memory.prompt.due_jobs import (
    APPLY,
    CONSOLIDATE,
    FLUSH,
    NOTE,
    PROMPT,
    ROUNDS,
    SUMMARISE,
    UPDATE,
    ConversationSpan,
    after_flush,
    consolidation_job,
    prompt_of,
    raw_summary_job,
)
from agent.memory.storage.messages import (
    Message,
    MessageRange,
    MessageReader,
    TranscriptRange,
    conversation,
    fit_to_tokens,
    shorten_lines,
)
from agent.memory.storage.scope_documents import DocumentBusy
from agent.memory.update.consolidator import (
    FAILURE_LINE,
    FAILURES_BEFORE_RAW,
    ConsolidationAnswer,
    Consolidator,
    StoredAnswer,
)
from agent.memory.update.dreamer import Dreamer
from agent.memory.update.notes import FlushSection, MemoryFlusher, NoteSummary, SessionMemoryWriter, has_only_greetings
from gateway.errors import StoreUnavailable, exponential_delay
from gateway.events import SessionKey
from gateway.ports.journal import Job, Line, MessageOutcome, SessionRow, TurnRecord
from gateway.ports.memory import DocumentStore

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
NOT_YET = timedelta(seconds=5)
UpdateAnswer: TypeAlias = Mapping[str, Any]  # the payload of the job that applies it
# Earlier releases had a kind for each prompt, and two more for answers.
UPDATE_JOBS = JobKind(
    name=UPDATE,
    pace=JobPace.SLOW,
    aliases=("consolidate", "summarise", "summarise_raw", "flush", "note", "title_conversation"),
)
_EARLIER = {"apply_raw": "summarise_raw", "flushed": "flush"}
APPLY_JOBS = JobKind(name=APPLY, pace=JobPace.QUICK, aliases=tuple(_EARLIER), erasure=JobErasure.ANSWER)
_OFF = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateContext:
    """The services of every prompt. *writing* is held while memory changes, *zone* returns the time zone of a scope.

    *token_limit* is that of a prompt, 0 for none.
    """

    jobs: SqlJobs
    reader: MessageReader
    documents: DocumentStore
    history: SqlHistory
    writing: asyncio.Lock
    model: ChatModel
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    token_limit: Callable[[], Awaitable[int]] = unlimited

    async def messages(self, span: ConversationSpan) -> list[Line]:
        """Return the messages of a span, fewer if some are missing."""
        return await self.reader.messages(span.scope, span.key, span.transcript, span.start, span.end)


class UpdatePrompt(Protocol):
    """A question to a model about a scope, and what its answer changes."""

    async def ask(self, job: Job) -> UpdateAnswer | UnusableAnswer | RetryJobLater | None:
        """Return the model's answer, an outage, or the time to ask again; None if nothing is to be asked.

        A prompt handles answers that it cannot use itself: by another try, or by something in their place.
        """

    async def apply(self, job: Job) -> None:
        """Bring the answer into memory. Idempotent; the lock of memory is held."""

    async def go_on(self, job: Job, *, is_applied: bool) -> None:
        """Queue what waited for the answer, also where it was erased and is not applied."""


class MemoryUpdates:
    """Runs the prompts, by their names."""

    def __init__(
        self, context: UpdateContext, prompts: Mapping[str, UpdatePrompt], *, off: Collection[str] = ()
    ) -> None:
        """Ask none of those that are *off*; answers that they have are applied."""
        self._context = context
        self._prompts = prompts
        self._off = off

    async def ask(self, job: Job) -> RetryJobLater | None:
        """Ask the model, and store its answer as a job."""
        context, name = self._context, prompt_of(job)
        if name in self._off:
            return RetryJobLater(_OFF, "the settings switch it off", counts=False)
        prompt = self._prompts[name]
        epoch = await context.documents.epoch(job.scope)
        answer = await prompt.ask(job)
        if isinstance(answer, UnusableAnswer):  # an outage is not an answer: the job waits until the model answers
            return RetryJobLater(outage_delay(job.attempts + 1), answer.reason)
        if answer is None or isinstance(answer, RetryJobLater):
            return answer
        payload = {**answer, PROMPT: name}
        async with context.writing:
            if await context.documents.epoch(job.scope) != epoch:
                return RetryJobLater(NOT_YET, "something was forgotten meanwhile", counts=False)
            id_ = f"{APPLY}:{job.id}"
            await context.jobs.put(Job(id=id_, kind=APPLY, scope=job.scope, payload=payload, due_at=context.now()))
        return None

    async def apply(self, job: Job) -> RetryJobLater | None:
        """Bring a stored answer into memory."""
        prompt = self._prompts[str(job.payload.get(PROMPT) or _EARLIER.get(job.kind, "consolidate"))]
        async with self._context.writing:
            # Read again: words may have been erased from the job since it was claimed, or all of it.
            pending = await self._context.jobs.pending_in(job.scope)
            current = next((each for each in pending if each.id == job.id), None)
            try:
                if current is not None:
                    await prompt.apply(current)
            except DocumentBusy as busy:
                return RetryJobLater(NOT_YET, str(busy), counts=False)
        await prompt.go_on(current or job, is_applied=current is not None)
        return None


log = structlog.get_logger(__name__)

_NOT_BEFORE = timedelta(hours=1)
_ARCHIVE_TRIES = 24  # while another consolidation of the same conversation is running
_WAITS = (timedelta(minutes=2), timedelta(minutes=30))  # after the first bad answer, after the second
_ARCHIVE_ROUNDS = 1_000  # of what /new archived: no turn comes after it
_INSTRUCTIONS = 400  # tokens of a question around memory and conversation
_SQUEEZES = 3  # times that a question is made smaller when the model says that it is too long
_MOST_GREETINGS = 40  # messages of a conversation that may be greetings alone
_DAY = timedelta(days=1)
_LONGEST_RAW_WAIT = timedelta(days=30)  # after bad answers about a raw archive: the model may be another one by then


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationPrompt:
    """Asks for a summary of a span of a conversation: of a full window, or of what /new archived."""

    context: UpdateContext
    consolidator: Consolidator
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    dreamer: Dreamer | None = None  # None = nothing dreams of the history
    notes: bool = True  # write a session note when /new ends a conversation
    flushes: bool = False  # FLUSH jobs are handled; a compaction waits for them

    async def ask(self, job: Job) -> UpdateAnswer | UnusableAnswer | RetryJobLater | None:
        """Ask about as many of the messages as fit one question."""
        whole = await self._archived_span(job) if prompt_of(job) == SUMMARISE else await self._window_span(job)
        if whole is None or isinstance(whole, RetryJobLater):
            return whole
        messages = await self.context.messages(whole)
        if len(messages) < whole.end - whole.start and job.attempts < FAILURES_BEFORE_RAW:
            return RetryJobLater(NOT_YET, "the transcript is not in its file yet")
        base = await self.consolidator.current_memory(whole.scope)
        reply = await self._ask(job, whole, messages, base)
        if reply is None:  # tool results alone, or erased: a later question would show no more
            await self._keep_raw(whole, messages, is_summarised_later=False)
            return None
        count, answer = reply
        if isinstance(answer, UnusableAnswer):
            return await self._failed(job, whole, messages, answer)
        span = replace(whole, end=messages[count]["i"] if count < len(messages) else whole.end)
        stored = self.consolidator.stored_answer(span.scope, span, messages[:count], base, answer)
        rounds = _ARCHIVE_ROUNDS if prompt_of(job) == SUMMARISE else int(job.payload.get("rounds", ROUNDS))
        return {**span.payload(), "answer": dataclasses.asdict(stored), "goal": whole.end, "rounds": rounds}

    async def apply(self, job: Job) -> None:
        """Change MEMORY.md and the history, and move the pointer, in one transaction."""
        span, answer = ConversationSpan.of(job), StoredAnswer(**job.payload["answer"])
        await self.consolidator.apply(span.scope, str(span.key), answer, pointer=await self._pointer(span))
        log.info("consolidation.applied", key=str(span.key), start=span.start, end=span.end)

    async def go_on(self, job: Job, *, is_applied: bool) -> None:
        """Queue the next round of a compaction that did not fit one question, and expect a Dream."""
        if is_applied and self.dreamer is not None:
            await self.dreamer.expect(job.scope)
        span, goal = ConversationSpan.of(job), int(job.payload.get("goal", 0))
        rounds = int(job.payload.get("rounds", 0))
        if is_applied and goal > span.end and rounds > 1:
            rest, now = MessageRange(span.end, goal), self.context.now()
            await self.context.jobs.put(
                consolidation_job(span.key, span.scope, span.transcript, rest, now, rounds=rounds - 1)
            )

    # -- the span ----------------------------------------------------------------------------------

    async def _window_span(self, job: Job) -> ConversationSpan | RetryJobLater | None:
        """Return the span of the job, unless another job or an earlier summary is about it."""
        span = ConversationSpan.of(job)
        mine = [each for each in await self.context.jobs.pending_in(span.scope) if _is_about(each, span.transcript)]
        if any(each.kind == APPLY and each.payload["end"] > span.start for each in mine):
            return None  # the pointer is about to move; the rest is queued as another job
        flushes = [each for each in mine if prompt_of(each) == FLUSH and not each.attempts] if self.flushes else []
        if any(each.payload.get("then") for each in flushes):
            return None  # it queues its compaction itself
        if flushes:
            return RetryJobLater(NOT_YET, "what lasts is written down first", counts=False)
        start, _ = await self.context.reader.extent(span.scope, span.key, span.transcript)
        return span if start == span.start else None

    async def _archived_span(self, job: Job) -> ConversationSpan | RetryJobLater | None:
        """Return the span of a transcript that /new archived and no entry has yet."""
        key, transcript = SessionKey.parse(str(job.payload["key"])), str(job.payload["transcript"])
        if self.notes and not job.attempts:
            await self.context.jobs.put(replace(job, id=f"{NOTE}:{transcript}", payload={**job.payload, PROMPT: NOTE}))
        pending = await self.context.jobs.pending_in(job.scope)
        if any(_is_about(each, transcript) for each in pending if each.id != job.id):
            return RetryJobLater(NOT_YET, "its last consolidation comes first", counts=False)
        start, end = await self.context.reader.extent(job.scope, key, transcript)
        if end < int(job.payload.get("length", 0)) and job.attempts < FAILURES_BEFORE_RAW:
            return RetryJobLater(NOT_YET, "the transcript is not in its file yet")
        if start >= end:
            return None
        span = ConversationSpan(scope=job.scope, key=key, transcript=transcript, start=start, end=end)
        is_short = end - start <= _MOST_GREETINGS
        return None if is_short and has_only_greetings(await self.context.messages(span)) else span

    # -- the question ------------------------------------------------------------------------------

    async def _ask(
        self, job: Job, span: ConversationSpan, messages: list[Line], base: str
    ) -> tuple[int, ConsolidationAnswer | UnusableAnswer] | None:
        """Return the model's answer and how many of the messages it covers; None if they contain no text.

        A prompt that the model refuses as too long is retried with fewer messages.
        """
        model, zone = self.context.model, self.context.zone(span.scope)
        provider = ModelProvider(model=model, purpose="consolidation", turn=job.id, key=str(span.key))
        count, most = 0, 0
        for _ in range(_SQUEEZES):
            token_limit = reduced_limit(await self.context.token_limit(), job.attempts)
            left = max(token_limit - estimate_text(base) - _INSTRUCTIONS, 0)
            if token_limit and left < token_limit // 8:
                break
            count, lines = fit_to_tokens(messages, zone=zone, tokens=min(filter(None, (left, most)), default=0))
            if not lines:
                return None
            answer = await self.consolidator.ask(span.scope, provider, model.name, base, lines)
            if not isinstance(answer, UnusableAnswer) or answer.reason != TOO_LONG:
                return count, answer
            most = sum(map(estimate_text, lines)) * 3 // 4
        return count, UnusableAnswer(TOO_LONG)

    async def _failed(
        self, job: Job, span: ConversationSpan, messages: list[Line], answer: UnusableAnswer
    ) -> UnusableAnswer | RetryJobLater | None:
        """Wait before asking again; after three bad answers keep the messages themselves, and let the window move."""
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
            return answer
        if bad_answers < FAILURES_BEFORE_RAW and answer.reason != TOO_LONG:
            payload = {**job.payload, "bad_answers": bad_answers}
            return RetryJobLater(_WAITS[bad_answers - 1], answer.reason, payload=payload)
        await self._keep_raw(span, messages)
        return None

    async def _keep_raw(
        self, span: ConversationSpan, messages: list[Line], *, is_summarised_later: bool = True
    ) -> None:
        async with self.context.writing:
            if is_summarised_later:  # a model that gave three bad answers is not asked again at once
                await self.context.jobs.put(raw_summary_job(span.scope, span.entry, self.context.now() + _DAY))
            pointer = await self._pointer(span)
            await self.consolidator.keep_raw(span.scope, str(span.key), span, messages, pointer=pointer)

    async def _pointer(self, span: ConversationSpan) -> TurnRecord:
        """Return the record by which the window moves behind the span at the next turn."""
        session = await self.session(span.key)
        index = session.next_index if session.transcript == span.transcript else span.end
        return TurnRecord(
            turn=f"p{span.entry[1:]}",
            key=span.key,
            transcript=span.transcript,
            scope=span.scope,
            outcome=MessageOutcome.ANSWERED,
            lines=(build.pointer(span.end, span.entry),),
            from_index=index,
            to_index=index,
            inbox=(),
            at=self.context.now(),
        )


def _is_about(job: Job, transcript: str) -> bool:
    is_answer = job.kind == APPLY and "answer" in job.payload
    is_meant = is_answer or (job.kind != APPLY and prompt_of(job) in (CONSOLIDATE, FLUSH))
    return is_meant and job.payload.get("transcript") == transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class RawArchivePrompt:
    """Asks for a summary of messages that were kept raw. It edits MEMORY.md and replaces the text of their entry."""

    context: UpdateContext
    consolidator: Consolidator
    dreamer: Dreamer | None = None  # None = nothing dreams of the history
    is_scheduled: bool = True

    async def catch_up(self) -> None:
        """Enqueue a job for each raw archive of any scope: of a version without these jobs, or of the library."""
        if not self.is_scheduled:
            return
        try:
            for scope in await self.context.history.scopes():
                for entry in await self.context.history.raw_entries(scope):
                    await self.context.jobs.put(raw_summary_job(scope, entry.entry, self.context.now()))
        except StoreUnavailable as error:  # the next start repeats it
            log.warning("raw_archive.not_caught_up", error=type(error).__name__)

    async def ask(self, job: Job) -> UpdateAnswer | UnusableAnswer | RetryJobLater | None:
        """Ask about the messages of the job's entry, shortened to fit; after a bad answer again, later and later."""
        scope, history, model = job.scope, self.context.history, self.context.model
        entry = await history.find(scope, str(job.payload["entry"]))
        if entry is None or not entry.raw:
            return None
        messages = await history.raw_messages(scope, entry.entry)
        base = await self.consolidator.current_memory(scope)
        lines = conversation(messages, zone=self.context.zone(scope), with_numbers=True)
        if not lines:  # tool results alone, or erased: the entry stays as it is
            async with self.context.writing:
                await history.append(scope, replace(entry, raw=""))
            return None
        if limit := await self.context.token_limit():
            lines = shorten_lines(lines, max(limit - 2 * estimate_text(base) - _INSTRUCTIONS, limit // 8))
        provider = ModelProvider(model=model, purpose="consolidation", turn=job.id, key=entry.session)
        answer = await self.consolidator.ask(scope, provider, model.name, base, lines)
        if isinstance(answer, UnusableAnswer):
            log.warning("raw_archive.failed", entry=entry.entry, reason=answer.reason, is_outage=answer.is_outage)
            delay = exponential_delay(job.attempts + 1, _DAY, _LONGEST_RAW_WAIT)
            return answer if answer.is_outage else RetryJobLater(delay, answer.reason)
        span = TranscriptRange("", entry.start, entry.end)
        stored = self.consolidator.stored_answer(scope, span, messages, base, answer)
        stored = replace(stored, entry=entry.entry, timestamp=entry.timestamp)
        return {"session": entry.session, "answer": dataclasses.asdict(stored)}

    async def apply(self, job: Job) -> None:
        """Change MEMORY.md, and replace the raw entry's text by the summary."""
        answer = StoredAnswer(**job.payload["answer"])
        await self.consolidator.apply(job.scope, str(job.payload["session"]), answer)
        log.info("raw_archive.summarised", entry=answer.entry)

    async def go_on(self, job: Job, *, is_applied: bool) -> None:
        """Expect a Dream."""
        if is_applied and self.dreamer is not None:
            await self.dreamer.expect(job.scope)


# -- /new that waits -------------------------------------------------------------------------------


async def archive_now(job: Job, do: Callable[[Job], Awaitable[RetryJobLater | None]], jobs: SqlJobs) -> bool:
    """Run *job*, which asks for a summary, now ([000]); return True if the whole conversation is in memory.

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
            if each.kind == APPLY and _is_about(each, str(job.payload["transcript"])):
                await do(each)
                await jobs.finish(each)
                # Rounds that did not fit one prompt continue as jobs; wait for them too.
                is_more = is_more or int(each.payload.get("goal", 0)) > int(each.payload["end"])
        if (later is None and not is_more) or (later is not None and later.counts):
            break
        await asyncio.sleep(later.delay.total_seconds() if later is not None else 0)
    return later


# -- flush and note of [002] -------------------------------------------------------------------------


_LOOK_BACK = 10  # messages that are read for each one that the note is to be about: tools stand between them
_FLUSH_SQUEEZES = 4  # of a prompt that the model refuses as too long
_FLUSH_TRIES = 3  # to find the messages in their file


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPrompt:
    """Asks for lasting facts before a compaction, once per cycle, and appends them to the day's note."""

    context: UpdateContext
    home: Path

    async def ask(self, job: Job) -> UpdateAnswer | UnusableAnswer | RetryJobLater | None:
        """Ask about the newest of the job's messages that fit."""
        span, flusher = ConversationSpan.of(job), self._flusher(job)
        if await flusher.was_flushed(str(span.key), span.cycle):
            await self.go_on(job, is_applied=True)
            return None
        messages = await self.context.messages(span)
        if len(messages) < span.end - span.start and job.attempts < _FLUSH_TRIES:
            return RetryJobLater(NOT_YET, "the transcript is not in its file yet")
        section: FlushSection | UnusableAnswer = UnusableAnswer(TOO_LONG)
        for halves in range(_FLUSH_SQUEEZES):
            tokens = reduced_limit(await self.context.token_limit() * 3 // 4, job.attempts) >> halves
            section = await flusher.extract(messages, tokens=tokens)
            if not isinstance(section, UnusableAnswer) or section.reason != TOO_LONG or not tokens:
                break
        if isinstance(section, UnusableAnswer):
            if section.is_outage:
                return section
            section = flusher.excerpt(messages)
        return {**job.payload, "section": dataclasses.asdict(section)}

    async def apply(self, job: Job) -> None:
        """Write the section, and note that the cycle was flushed."""
        span, section = ConversationSpan.of(job), job.payload["section"]
        stored = FlushSection(day=section["day"], at=section["at"], bullets=tuple(section["bullets"]))
        await self._flusher(job).write(str(span.key), span.cycle, stored)
        log.info("flush.written", key=str(span.key), bullets=len(stored.bullets))

    async def go_on(self, job: Job, *, is_applied: bool) -> None:  # noqa: ARG002 - also where it was erased
        """Queue the compaction that waited for the flush."""
        if then := after_flush(job, self.context.now()):
            await self.context.jobs.put(then)

    def _flusher(self, job: Job) -> MemoryFlusher:
        context, key = self.context, str(job.payload["key"])
        return MemoryFlusher(
            scope_folder(self.home, job.scope),
            ModelProvider(model=context.model, purpose="flush", turn=job.id, key=key),
            context.model.name,
            zone=context.zone(job.scope),
            now=context.now,
            history=context.history,
            scope=job.scope,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNotePrompt:
    """Asks for a note about the job's transcript. *max_messages* and *min_user_messages* are as in the settings."""

    context: UpdateContext
    home: Path
    max_messages: int
    min_user_messages: int

    async def ask(self, job: Job) -> UpdateAnswer | UnusableAnswer | None:
        """Ask for a summary of the newest messages, if they are worth a note; one that cannot be used is left out."""
        recent = await self._recent(job)
        if not recent:
            return None
        summary = await self._writer(job).summarise(recent)
        if isinstance(summary, UnusableAnswer):
            return summary if summary.is_outage else job.payload
        return {**job.payload, **dataclasses.asdict(summary)}

    async def apply(self, job: Job) -> None:
        """Write the note unless it exists."""
        payload = job.payload
        answer = NoteSummary(payload["slug"], payload["text"]) if "text" in payload else UnusableAnswer("no summary")
        await self._writer(job).write_note(str(payload["key"]), await self._recent(job), answer)

    async def go_on(self, job: Job, *, is_applied: bool) -> None:
        """Do nothing: nothing waits for it."""

    async def _recent(self, job: Job) -> list[Message]:
        reader, transcript = self.context.reader, str(job.payload["transcript"])
        key = SessionKey.parse(str(job.payload["key"]))
        _, end = await reader.extent(job.scope, key, transcript)
        start = max(end - _LOOK_BACK * self.max_messages, 0)
        messages = await reader.messages(job.scope, key, transcript, start, end)
        return self._writer(job).recent_messages(messages, self.max_messages)

    def _writer(self, job: Job) -> SessionMemoryWriter:
        context, key = self.context, str(job.payload["key"])
        return SessionMemoryWriter(
            scope_folder(self.home, job.scope),
            ModelProvider(model=context.model, purpose="note", turn=job.id, key=key),
            context.model.name,
            zone=context.zone(job.scope),
            min_user_messages=self.min_user_messages,
            now=context.now,
            history=context.history,
            scope=job.scope,
        )
