"""The prompts of [002] in the gateway: the flush before a compaction, and the note about a session that /new ended."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.base.scopes import scope_folder
from agent.llm.model_calls import TOO_LONG, ModelProvider, UnusableAnswer, reduced_limit
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.prompt.due_jobs import ConversationSpan, after_flush
from agent.memory.storage.messages import Message
from agent.memory.update.memory_updates import NOT_YET, UpdateAnswer, UpdateContext
from agent.memory.update.notes import FlushSection, MemoryFlusher, NoteSummary, SessionMemoryWriter
from gateway.events import SessionKey
from gateway.ports.journal import Job, Line

log = structlog.get_logger(__name__)

_LOOK_BACK = 10  # messages that are read for each one that the note is to be about: tools stand between them
_SQUEEZES = 4  # of a prompt that the model refuses as too long
_TRIES = 3  # to find the messages in their file


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
        messages = await self._messages(span)
        if len(messages) < span.end - span.start and job.attempts < _TRIES:
            return RetryJobLater(NOT_YET, "the transcript is not in its file yet")
        section: FlushSection | UnusableAnswer = UnusableAnswer(TOO_LONG)
        for halves in range(_SQUEEZES):
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

    async def _messages(self, span: ConversationSpan) -> list[Line]:
        return await self.context.reader.messages(span.scope, span.key, span.transcript, span.start, span.end)

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
