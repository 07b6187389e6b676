"""The model calls of [002] as durable jobs: the flush before a compaction, the note about a session that /new ended.

`flush` asks the model and `flushed` writes its answer, so that a crash at any step leaves exactly one section.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.llm.chat_model import ChatModel
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.messages.message_reader import MessageReader
from agent.memory.model_calls import TOO_LONG, ModelProvider, UnusableAnswer, outage_delay, reduced_limit
from agent.memory.notes.memory_flusher import FlushSection, MemoryFlusher
from agent.memory.notes.session_note_writer import SessionMemoryWriter
from agent.memory.prompt.due_jobs import FLUSHED, ConversationSpan, after_flush
from agent.memory.scopes import scope_folder
from gateway.events import SessionKey
from gateway.ports import DocumentStore, HistoryStore, Job

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs


log = structlog.get_logger(__name__)

_NOT_YET = timedelta(seconds=5)
_LOOK_BACK = 10  # messages that are read for each one that the note is to be about: tools stand between them
_SQUEEZES = 4  # of a prompt that the model refuses as too long
_TRIES = 3  # to find the messages in their file


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushJobs:
    """Handlers of the flush jobs. *writing* is held while files change; *token_limit* returns a prompt's limit."""

    home: Path
    jobs: SqlJobs
    reader: MessageReader
    documents: DocumentStore
    writing: asyncio.Lock
    model: ChatModel
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    token_limit: Callable[[], Awaitable[int]]
    history: HistoryStore

    async def flush(self, job: Job) -> RetryJobLater | None:
        """Ask the model for lasting facts in the job's messages, once per cycle, and store the answer as a job."""
        span = ConversationSpan.of(job)
        flusher = self._flusher(job)
        if await flusher.was_flushed(str(span.key), span.cycle):
            await self._go_on(job)
            return None
        epoch = await self.documents.epoch(span.scope)
        messages = await self.reader.messages(span.scope, span.key, span.transcript, span.start, span.end)
        if len(messages) < span.end - span.start and job.attempts < _TRIES:
            return RetryJobLater(_NOT_YET, "the transcript is not in its file yet")
        section: FlushSection | UnusableAnswer = UnusableAnswer(TOO_LONG)
        for halves in range(_SQUEEZES):
            tokens = reduced_limit(await self.token_limit() * 3 // 4, job.attempts) >> halves
            section = await flusher.extract(messages, tokens=tokens)
            if not isinstance(section, UnusableAnswer) or section.reason != TOO_LONG or not tokens:
                break
        if isinstance(section, UnusableAnswer):
            if section.is_outage:
                return RetryJobLater(outage_delay(job.attempts + 1), section.reason)
            section = flusher.excerpt(messages)
        payload = {**job.payload, "section": asdict(section)}
        async with self.writing:
            if await self.documents.epoch(span.scope) != epoch:
                return RetryJobLater(_NOT_YET, "something was forgotten meanwhile", counts=False)
            await self.jobs.put(
                Job(id=f"{FLUSHED}:{span.cycle}", kind=FLUSHED, scope=span.scope, payload=payload, due_at=self.now())
            )
        return None

    async def write(self, job: Job) -> RetryJobLater | None:
        """Write the stored answer. Idempotent."""
        async with self.writing:
            if all(each.id != job.id for each in await self.jobs.pending_in(job.scope)):
                await self._go_on(job)  # something of it was forgotten
                return None
            span, section = ConversationSpan.of(job), job.payload["section"]
            stored = FlushSection(day=section["day"], at=section["at"], bullets=tuple(section["bullets"]))
            await self._flusher(job).write(str(span.key), span.cycle, stored)
            log.info("flush.written", key=str(span.key), bullets=len(stored.bullets))
        await self._go_on(job)
        return None

    async def _go_on(self, job: Job) -> None:
        """Queue the compaction that waited for the flush."""
        if then := after_flush(job, self.now()):
            await self.jobs.put(then)

    def _flusher(self, job: Job) -> MemoryFlusher:
        key = str(job.payload["key"])
        return MemoryFlusher(
            scope_folder(self.home, job.scope),
            ModelProvider(model=self.model, purpose="flush", turn=job.id, key=key),
            self.model.name,
            zone=self.zone(job.scope),
            now=self.now,
            history=self.history,
            scope=job.scope,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNoteJobs:
    """Writes them. *max_messages* and *min_user_messages* as the settings have them."""

    home: Path
    reader: MessageReader
    model: ChatModel
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    history: HistoryStore
    max_messages: int
    min_user_messages: int

    async def write(self, job: Job) -> RetryJobLater | None:
        """Write the note about the job's transcript unless it exists."""
        key, transcript = SessionKey.parse(str(job.payload["key"])), str(job.payload["transcript"])
        _, end = await self.reader.extent(job.scope, key, transcript)
        start = max(end - _LOOK_BACK * self.max_messages, 0)
        messages = await self.reader.messages(job.scope, key, transcript, start, end)
        writer = SessionMemoryWriter(
            scope_folder(self.home, job.scope),
            ModelProvider(model=self.model, purpose="note", turn=job.id, key=str(key)),
            self.model.name,
            zone=self.zone(job.scope),
            min_user_messages=self.min_user_messages,
            now=self.now,
            history=self.history,
            scope=job.scope,
        )
        recent = writer.recent_messages(messages, self.max_messages)
        summary = await writer.summarise(recent) if recent else None
        if isinstance(summary, UnusableAnswer) and summary.is_outage:
            return RetryJobLater(outage_delay(job.attempts + 1), summary.reason)
        if summary is not None:
            await writer.write_note(str(key), recent, summary)
        return None
