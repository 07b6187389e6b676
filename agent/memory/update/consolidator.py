"""Consolidation: summarise a range of messages into a history entry and edits of MEMORY.md.

The gateway's durable jobs (`conversation_updates`) and the library's `MemoryStore` both use this class. They differ in
where they keep the model's answer until it is applied, and in whose pointer they move.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from agent.attachments.file_facts import UNTRUSTED
from agent.memory.documents.document_changes import CONSOLIDATION
from agent.memory.editing.document_editor import DocumentEditor
from agent.memory.editing.document_edits import DocumentEdit, keys_of_lines, read_edit
from agent.memory.editing.edit_review import with_evidence
from agent.memory.editing.edit_simulation import BUDGET, DocumentOutcome, EditSimulation, outcome
from agent.memory.editing.memory_archive import MemoryArchive
from agent.memory.editing.staged_change_store import StagedChangeStore
from agent.memory.editing.staged_changes import MEMORY, ReviewReason, StagedChange
from agent.memory.editing.text_operations import changed_texts
from agent.memory.editing.whole_text import edits_of_text
from agent.memory.history.line_keys import line_fingerprint
from agent.memory.messages.message_range import Message, TranscriptRange, origin_of, own_words
from agent.memory.messages.taint import strip_untrusted
from agent.memory.model_calls import LlmProvider, UnusableAnswer
from agent.memory.storage.disk import Disk
from agent.memory.update.consolidation_request import ConsolidationAnswer, request_consolidation
from gateway.ports.memory import DocumentStore, HistoryEntry, HistoryStore

log = structlog.get_logger(__name__)

DEADLINE = timedelta(seconds=120)
FAILURE_LINE = "Memory consolidation failed"  # of the log, as [000] tells operators to search for it
FAILURES_BEFORE_RAW = 3  # then the messages themselves go to the raw archive
_ENDLESS = 4  # budgets: a longer text is no memory
_MOST_EDITS = 200  # that a whole document amounts to
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
    memory_update: str = ""  # of an older version, which stored no operations
    operations: Sequence[Mapping[str, Any]] = ()  # records of the edits

    @property
    def edits(self) -> list[DocumentEdit]:
        """The edits of MEMORY.md."""
        edits = [edit for edit in map(read_edit, self.operations) if edit is not None]
        return edits + [DocumentEdit(MEMORY, each) for each in edits_of_text(self.base, self.memory_update)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidator:
    """Consolidates messages of any scope. *zone* gives a scope's time zone; *budget* is MEMORY.md's, in characters."""

    home: Path | None  # as `DocumentEditor` has it
    documents: DocumentStore
    history: HistoryStore
    staging: StagedChangeStore | None  # None = no question can be asked
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    budget: int = BUDGET
    deadline: timedelta = DEADLINE
    disk: Disk = field(default_factory=Disk)
    archive: MemoryArchive | None = None
    asks_edits: bool = True  # rather than the whole memory, as [001] does

    async def current_memory(self, scope: str) -> str:
        """Return MEMORY.md as the model is shown it."""
        return (await self.documents.read(scope, MEMORY)).text[: _TOO_LARGE * self.budget]

    async def ask(
        self, scope: str, provider: LlmProvider, model: str, memory: str, lines: Sequence[str]
    ) -> ConsolidationAnswer | UnusableAnswer:
        """Return the model's consolidation of a conversation, whose use of MEMORY.md is recorded. Raises OSError."""
        if self.archive is not None:
            await self.archive.note_used(scope, memory, lines)
        answer = await request_consolidation(
            provider, model, memory, lines, deadline=self.deadline, asks_edits=self.asks_edits
        )
        if isinstance(answer, UnusableAnswer):
            return answer
        is_endless = len(answer.memory_update) > _ENDLESS * max(self.budget, len(memory))
        if is_endless or len(await asyncio.to_thread(edits_of_text, memory, answer.memory_update)) > _MOST_EDITS:
            return UnusableAnswer("too long")
        return answer

    def stored_answer(
        self, scope: str, span: TranscriptRange, messages: Sequence[Message], base: str, answer: ConsolidationAnswer
    ) -> StoredAnswer:
        """Return the answer in the form to store before it is applied: its edits, each with its message."""
        own = own_words(messages)
        numbers = {int(message.get("i", n)) for n, message in enumerate(messages)}
        edits = [
            *answer.edits,
            *(DocumentEdit(MEMORY, each) for each in edits_of_text(base, answer.memory_update) if answer.memory_update),
        ]
        return StoredAnswer(
            entry=span.entry,
            transcript=span.transcript,
            start=span.start,
            end=span.end,
            timestamp=self._timestamp(scope),
            origin=origin_of(strip_untrusted(messages)),
            base=base,
            history_entry=answer.history_entry,
            operations=[with_evidence(each, own, numbers).record() for each in edits],
        )

    async def apply(self, scope: str, session: str, answer: StoredAnswer) -> None:
        """Apply a stored answer to MEMORY.md and append its history entry. Idempotent; raises OSError.

        Changes that need approval are staged; the question is asked in *session*.
        """
        left = await self._edit_memory(scope, session, answer)
        entry = HistoryEntry(
            timestamp=answer.timestamp,
            content=answer.history_entry,
            session=session,
            start=answer.start,
            end=answer.end,
            origin=answer.origin,
            entry=answer.entry,
            sources={line: edit.source for line, edit in _new_lines(answer.edits) if edit.source >= 0},
            keys=keys_of_lines(answer.edits, pending_operations=left.waiting_operations),
        )
        await self.history.append(scope, entry)

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
        await self.history.keep_raw(scope, entry, messages)

    async def _edit_memory(self, scope: str, session: str, answer: StoredAnswer) -> DocumentOutcome:
        """Write and stage the edits; return the outcome."""
        editor = DocumentEditor(home=self.home, documents=self.documents, staging=self.staging, disk=self.disk)
        result = await asyncio.to_thread(self._outcome, answer)
        why = f"{CONSOLIDATION}{answer.entry}"
        left = await editor.write(scope, MEMORY, answer.base, result, why=why)

        def build(reason: str) -> StagedChange:
            name = _staged_name(answer, reason)
            return StagedChange(name=name, why=reason, at=self.now(), session=session, cause=why)

        await editor.stage(scope, left, build)
        return left

    def _outcome(self, answer: StoredAnswer) -> DocumentOutcome:
        only_propose = ""
        if answer.origin == UNTRUSTED:
            only_propose = ReviewReason.UNTRUSTED
        elif len(answer.base) >= _TOO_LARGE * self.budget:
            only_propose = ReviewReason.TOO_LARGE
        simulation = EditSimulation({MEMORY: answer.base}, budget=self.budget)
        results = simulation.do(answer.edits, is_final=True)
        if refused := [each for each in results if each.why and not each.review]:
            log.info("consolidation.edits_refused", entry=answer.entry, edits=len(refused))
        return outcome(simulation, MEMORY, only_propose=only_propose)

    def _timestamp(self, scope: str) -> str:
        return f"{self.now().astimezone(ZoneInfo(self.zone(scope))):%Y-%m-%d %H:%M}"


def _new_lines(edits: Sequence[DocumentEdit]) -> list[tuple[str, DocumentEdit]]:
    """Return the fingerprint of each new line with its edit."""
    return [
        (line_fingerprint(line), edit)
        for edit in edits
        for line in changed_texts(edit.operation)[1].splitlines()
        if line.strip()
    ]


def _staged_name(answer: StoredAnswer, reason: str) -> str:
    """Return the name of what waits for *reason*: the entry's id, or one derived from it for a second reason."""
    if reason == ReviewReason.MEANING:
        return "m" + hashlib.sha256(answer.entry.encode()).hexdigest()[:16]
    return answer.entry
