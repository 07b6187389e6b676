"""Consolidation: summarise a range of messages into a history entry and edits of MEMORY.md.

The gateway's durable jobs (`consolidation_jobs`) and the library's `MemoryStore` both use this class. They differ in
where they keep the model's answer until it is applied, and in whose pointer they move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import structlog

from agent.attachments.file_facts import UNTRUSTED
from agent.memory.consolidation.consolidation_request import ConsolidationAnswer, request_consolidation
from agent.memory.documents.file_documents import read_epoch
from agent.memory.documents.version_store import CONSOLIDATION
from agent.memory.editing.document_editor import DocumentEditor
from agent.memory.editing.document_edits import DocumentEdit
from agent.memory.editing.edit_simulation import DocumentOutcome, EditSimulation, outcome
from agent.memory.editing.merge import BUDGET, ReviewReason
from agent.memory.editing.staged_changes import MEMORY
from agent.memory.editing.text_operations import MergeText
from agent.memory.history.history_log import HistoryEntry, HistoryLog
from agent.memory.messages.message_range import Message, entry_id, origin_of
from agent.memory.messages.taint import strip_untrusted
from agent.memory.model_calls import LlmProvider, UnusableAnswer
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from gateway.ports import DocumentStore

log = structlog.get_logger(__name__)

DEADLINE = timedelta(seconds=120)
FAILURES_BEFORE_RAW = 3  # then the messages themselves go to the raw archive
_TOO_LARGE = 8  # budgets: a longer MEMORY.md is sent cut off, and every change of it needs approval


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """A model's answer about a range of a transcript, and the MEMORY.md that it was shown."""

    entry: str
    transcript: str
    start: int
    end: int
    timestamp: str
    origin: str
    base: str
    history_entry: str
    memory_update: str


@dataclass(frozen=True, slots=True)
class TranscriptRange:
    """The messages from index *start* up to *end*, exclusive, of one transcript."""

    transcript: str
    start: int
    end: int

    @property
    def entry(self) -> str:
        """The id of the history entry about them: always the same."""
        return entry_id(self.transcript, self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidator:
    """Consolidates messages of any scope. *zone* gives a scope's time zone; *budget* is MEMORY.md's, in characters."""

    home: Path
    documents: DocumentStore
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    budget: int = BUDGET
    deadline: timedelta = DEADLINE
    disk: Disk = field(default_factory=Disk)

    async def current_memory(self, scope: str) -> str:
        """Return MEMORY.md as the model is shown it."""
        return (await self.documents.read(scope, MEMORY)).text[: _TOO_LARGE * self.budget]

    async def epoch(self, scope: str) -> str:
        """Return a value that changes whenever something of *scope* is erased."""
        return await read_epoch(self.documents, scope)

    async def ask(
        self, provider: LlmProvider, model: str, memory: str, lines: Sequence[str]
    ) -> ConsolidationAnswer | UnusableAnswer:
        """Return the model's consolidation of a conversation. Never raises."""
        return await request_consolidation(provider, model, memory, lines, deadline=self.deadline)

    def stored_answer(
        self, scope: str, span: TranscriptRange, messages: Sequence[Message], base: str, answer: ConsolidationAnswer
    ) -> StoredAnswer:
        """Return the answer in the form to store before it is applied."""
        return StoredAnswer(
            entry=span.entry,
            transcript=span.transcript,
            start=span.start,
            end=span.end,
            timestamp=self._timestamp(scope),
            origin=origin_of(strip_untrusted(messages)),
            base=base,
            history_entry=answer.history_entry,
            memory_update=answer.memory_update,
        )

    async def apply(self, scope: str, session: str, answer: StoredAnswer) -> None:
        """Apply a stored answer to MEMORY.md and append its history entry. Idempotent; raises OSError.

        Changes that need approval are staged; the question is asked in *session*.
        """
        await self._edit_memory(scope, session, answer)
        entry = HistoryEntry(
            timestamp=answer.timestamp,
            content=answer.history_entry,
            session=session,
            start=answer.start,
            end=answer.end,
            origin=answer.origin,
            entry=answer.entry,
        )
        await asyncio.to_thread(lambda: self.history(scope).append(entry))

    async def keep_raw(self, scope: str, session: str, span: TranscriptRange, messages: Sequence[Message]) -> None:
        """Append the messages to the raw archive, and a history entry that says so. Idempotent; raises OSError."""
        entry = HistoryEntry(
            timestamp=self._timestamp(scope),
            content=f"[raw] {len(messages)} messages ({span.start} to {span.end - 1}) are kept as they were: no summary"
            " could be made of them.",
            session=session,
            start=span.start,
            end=span.end,
            origin=origin_of(messages),
            entry=span.entry,
        )
        await asyncio.to_thread(lambda: self.history(scope).keep_raw(entry, messages))

    def history(self, scope: str) -> HistoryLog:
        """Return the scope's history, which blocks."""

        def local_now() -> datetime:
            return self.now().astimezone(ZoneInfo(self.zone(scope)))

        return HistoryLog(scope_folder(self.home, scope) / "memory", self.disk, now=local_now)

    async def _edit_memory(self, scope: str, session: str, answer: StoredAnswer) -> None:
        editor = DocumentEditor(home=self.home, documents=self.documents, now=self.now, disk=self.disk)
        result = await asyncio.to_thread(self._outcome, answer)
        left = await editor.write(scope, MEMORY, answer.base, result, why=f"{CONSOLIDATION}{answer.entry}")
        await editor.stage(scope, left, lambda _: answer.entry, session=session)

    def _outcome(self, answer: StoredAnswer) -> DocumentOutcome:
        only_propose = ""
        if answer.origin == UNTRUSTED:
            only_propose = ReviewReason.UNTRUSTED
        elif len(answer.base) >= _TOO_LARGE * self.budget:
            only_propose = ReviewReason.TOO_LARGE
        simulation = EditSimulation({MEMORY: answer.base}, budget=self.budget)
        simulation.do([DocumentEdit(MEMORY, MergeText(answer.memory_update))])
        return outcome(simulation, MEMORY, only_propose=only_propose)

    def _timestamp(self, scope: str) -> str:
        return f"{self.now().astimezone(ZoneInfo(self.zone(scope))):%Y-%m-%d %H:%M}"
