"""Summaries of raw archives: messages that got three bad answers are summarised later, when a model manages it.

A day after an entry got a raw archive, a job asks the model about it and stores the answer as another job, which edits
MEMORY.md and replaces the entry's text. Both are idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from agent.llm.chat_model import ChatModel
from agent.memory.consolidation.consolidator import Consolidator, StoredAnswer
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.messages.message_range import TranscriptRange, conversation, shorten_lines
from agent.memory.messages.token_estimate import estimate_text
from agent.memory.model_calls import ModelProvider, UnusableAnswer, outage_delay, unlimited
from agent.memory.prompt.due_jobs import APPLY_RAW, raw_summary_job
from gateway.backoff import exponential_delay
from gateway.errors import StoreUnavailable
from gateway.ports import Job

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs


log = structlog.get_logger(__name__)

_DAY = timedelta(days=1)
_LONGEST_WAIT = timedelta(days=30)  # after bad answers: the model may be another one by then
_INSTRUCTIONS = 400  # tokens of a prompt around memory and conversation
_NOT_YET = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawArchiveJobs:
    """Handlers of the jobs. *writing* is held while files change; *token_limit* returns a prompt's token limit."""

    history: SqlHistory
    consolidator: Consolidator
    jobs: SqlJobs
    writing: asyncio.Lock
    model: ChatModel
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    is_scheduled: bool = True
    token_limit: Callable[[], Awaitable[int]] = unlimited

    async def catch_up(self) -> None:
        """Enqueue a job for each raw archive of any scope: of a version without these jobs, or of the library."""
        if not self.is_scheduled:
            return
        try:
            for scope in await self.history.scopes():
                for entry in await self.history.raw_entries(scope):
                    await self.jobs.put(raw_summary_job(scope, entry.entry, self.now()))
        except StoreUnavailable as error:  # the next start repeats it
            log.warning("raw_archive.not_caught_up", error=type(error).__name__)

    async def summarise(self, job: Job) -> RetryJobLater | None:
        """Ask the model about an entry's raw messages and store its answer; a later try may succeed."""
        scope = job.scope
        entry = await self.history.find(scope, str(job.payload["entry"]))
        if entry is None or not entry.raw:
            return None
        epoch = await self.consolidator.documents.epoch(scope)
        messages = await self.history.raw_messages(scope, entry.entry)
        base = await self.consolidator.current_memory(scope)
        lines = conversation(messages, zone=self.zone(scope), with_numbers=True)
        if not lines:  # tool results alone, or erased: the entry stays as it is
            async with self.writing:
                await self.history.append(scope, replace(entry, raw=""))
            return None
        if limit := await self.token_limit():
            lines = shorten_lines(lines, max(limit - 2 * estimate_text(base) - _INSTRUCTIONS, limit // 8))
        provider = ModelProvider(model=self.model, purpose="consolidation", turn=job.id, key=entry.session)
        answer = await self.consolidator.ask(scope, provider, self.model.name, base, lines)
        if isinstance(answer, UnusableAnswer):
            log.warning("raw_archive.failed", entry=entry.entry, reason=answer.reason, is_outage=answer.is_outage)
            tries = job.attempts + 1
            delay = outage_delay(tries) if answer.is_outage else exponential_delay(tries, _DAY, _LONGEST_WAIT)
            return RetryJobLater(delay, answer.reason)
        span = TranscriptRange("", entry.start, entry.end)
        stored = replace(
            self.consolidator.stored_answer(scope, span, messages, base, answer),
            entry=entry.entry,
            timestamp=entry.timestamp,
        )
        async with self.writing:
            if await self.consolidator.documents.epoch(scope) != epoch:
                return RetryJobLater(_NOT_YET, "something was forgotten meanwhile", counts=False)
            payload = {"session": entry.session, "answer": asdict(stored)}
            job = Job(id=f"{APPLY_RAW}:{entry.entry}", kind=APPLY_RAW, scope=scope, payload=payload, due_at=self.now())
            await self.jobs.put(job)
        return None

    async def apply(self, job: Job) -> RetryJobLater | None:
        """Bring a stored answer into MEMORY.md, and replace the raw entry's text by the summary."""
        async with self.writing:
            # Read again: it is removed when words of it are erased.
            if any(each.id == job.id for each in await self.jobs.pending_in(job.scope)):
                answer = StoredAnswer(**job.payload["answer"])
                await self.consolidator.apply(job.scope, str(job.payload["session"]), answer)
                log.info("raw_archive.summarised", entry=answer.entry)
        return None
