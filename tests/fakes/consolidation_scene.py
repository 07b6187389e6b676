"""A home with a conversation in it, and what summarises and flushes it there, over a disk that can die."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from agent.memory.jobs.job_runner import Handler
from agent.memory.prompt.due_jobs import (
    CONSOLIDATE,
    FLUSH,
    NOTE,
    SUMMARISE,
    SUMMARISE_RAW,
    consolidation_job,
    prompt_of,
)
from agent.memory.storage.messages import MessageRange, MessageReader
from agent.memory.storage.scope_documents import ScopeDocuments
from agent.memory.update.consolidator import Consolidator
from agent.memory.update.conversation_updates import (
    APPLY_JOBS,
    UPDATE_JOBS,
    ConversationPrompt,
    FlushPrompt,
    MemoryUpdates,
    RawArchivePrompt,
    SessionNotePrompt,
    UpdateContext,
    UpdatePrompt,
)
from gateway.errors import ContextOverflow, ModelUnreachable
from gateway.events import SessionKey
from gateway.ports.journal import Job, MessageOutcome, SessionRow, TurnRecord
from gateway.store.history import SqlHistory
from gateway.text.json_lines import decode_lines
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.documents import FakeDocuments
from tests.fakes.histories import KilledHistory, SyncHistory, write_histories
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, FakeJobs, FakeRecords, FaultyDisk, turn_name

TURNS = 6


class ConsolidationModel(FakeChatModel):
    """Summarises politely, and counts."""

    name = "test/model"

    def __init__(self) -> None:
        self.calls = 0
        self.fails = 0  # calls that the model will not answer
        self.bad_answers = 0  # calls that it will answer without a summary
        self.takes = 0  # characters; a longer question is refused
        self.refused = 0
        self.shown: list[str] = []  # the questions that were answered
        self.is_asked = asyncio.Event()
        self.is_down: Callable[[], bool] = lambda: False
        self.outage: Exception = ModelUnreachable("down")
        self.bullets = "- a lasting fact"
        self.saved: dict[str, Any] = {
            "history_entry": "[2026-11-21 21:00] They talked.",
            "memory_update": "- old fact\n- new fact",
        }

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Summarise, or say what lasts."""
        shown = str(request.messages[-1]["content"])
        if self.takes and len(shown) > self.takes:
            self.refused += 1
            raise ContextOverflow("too long")
        self.calls += 1
        self.is_asked.set()
        self.shown.append(shown)
        if self.is_down():
            raise self.outage
        if request.purpose == "flush":
            return ChatReply(text=self.bullets, tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        if self.fails:
            self.fails -= 1
            raise ModelUnreachable("down")
        if self.bad_answers:
            self.bad_answers -= 1
            return ChatReply(text="no", tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        if request.purpose == "note":
            note = json.dumps({"slug": "talk", "summary": "They talked."})
            call = ToolCall("c", "create_session_memory", note)
            return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        call = ToolCall("c", "save_memory", json.dumps(self.saved))
        return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)


class LooseDisk(Disk):
    """A disk that does not wait for what it writes: for long runs that nobody kills."""

    def sync(self, fd: int) -> None:
        """Return at once."""


class ConsolidationScene:
    """A home with six turns in a transcript, and a consolidator over it whose disk can die."""

    def __init__(
        self,
        home: Path,
        *,
        question: str = "question",
        origin: str = "user",
        turns: int = TURNS,
        is_numbered: bool = True,
    ) -> None:
        self.home = home
        self.documents = FakeDocuments()  # which have the epoch alone
        self.writing = asyncio.Lock()
        self.prompt_limit = 0
        self.disk = Disk()
        self.records = FakeRecords()
        self.jobs = FakeJobs()
        self.model = ConsolidationModel()
        for n in range(turns):
            turn = turn_name(n)
            text = f"{question} {n}" if is_numbered else question
            said = (
                build.message(2 * n, turn, "user", text, START, mid=f"m{n}", origin=origin),
                build.message(2 * n + 1, turn, "assistant", f"answer {n}", START),
            )
            self.records.commit(
                TurnRecord(
                    turn=turn,
                    key=ANN,
                    transcript=TRANSCRIPT,
                    scope=SCOPE,
                    outcome=MessageOutcome.ANSWERED,
                    lines=said,
                    from_index=2 * n,
                    to_index=2 * n + 2,
                    inbox=(),
                    at=START,
                )
            )

    def updates(
        self,
        disk: Disk | None = None,
        *,
        zone: str = "UTC",
        now: Callable[[], datetime] = lambda: START,
        kinds: Collection[str] = (CONSOLIDATE, SUMMARISE, SUMMARISE_RAW, FLUSH, NOTE),
    ) -> MemoryUpdates:
        """Return what a process has after its start, for the prompts *kinds*."""
        context = self._context(disk or self.disk, zone, now)
        consolidator = self._consolidator(disk or self.disk, zone, now)

        async def session(key: SessionKey) -> SessionRow:
            return self.records.rows[key]

        conversations = ConversationPrompt(context=context, consolidator=consolidator, session=session, flushes=True)
        notes = SessionNotePrompt(context=context, home=self.home, max_messages=20, min_user_messages=3)
        prompts: Mapping[str, UpdatePrompt] = {
            CONSOLIDATE: conversations,
            SUMMARISE: conversations,
            SUMMARISE_RAW: RawArchivePrompt(context=context, consolidator=consolidator),
            FLUSH: FlushPrompt(context=context, home=self.home),
            NOTE: notes,
        }
        return MemoryUpdates(context, prompts, off=prompts.keys() - set(kinds))

    def consolidator(self, disk: Disk | None = None, **fields: Any) -> MemoryUpdates:
        """Return what summarises in such a process."""
        return self.updates(disk, kinds=(CONSOLIDATE, SUMMARISE), **fields)

    def flushes(self, disk: Disk | None = None, **fields: Any) -> MemoryUpdates:
        """Return what does the flushes of such a process."""
        return self.updates(disk, kinds=(FLUSH,), **fields)

    def raw_archives(self) -> RawArchivePrompt:
        """Return what asks about raw archives."""
        consolidator = self._consolidator(self.disk, "UTC", self.clock)
        return RawArchivePrompt(context=self._context(self.disk, "UTC", self.clock), consolidator=consolidator)

    def _context(self, disk: Disk, zone: str, now: Callable[[], datetime]) -> UpdateContext:
        return UpdateContext(
            jobs=self.jobs,
            reader=MessageReader(self.records.transcripts),
            documents=self.documents,
            history=self.rows(disk),
            writing=self.writing,
            model=self.model,
            zone=lambda _: zone,
            now=now,
            token_limit=self._room,
        )

    def _consolidator(self, disk: Disk, zone: str, now: Callable[[], datetime]) -> Consolidator:
        return Consolidator(
            home=self.home,
            documents=self._documents(disk),
            history=self.rows(disk),
            staging=None,
            zone=lambda _: zone,
            now=now,
            disk=disk,
        )

    def _documents(self, disk: Disk) -> ScopeDocuments:
        step = disk.step if isinstance(disk, FaultyDisk) else lambda _: None
        return ScopeDocuments(FakeDocuments(step=partial(step, "journal"), connection=self.records.connection))

    async def memory(self) -> str:
        """Return MEMORY.md."""
        return (await self.records.documents.read(SCOPE, "MEMORY.md")).text

    def clock(self) -> datetime:
        """Return the queue's time."""
        return self.jobs.now

    async def run_until(self, end: datetime) -> None:
        """Run each job when it is due, in a new process every time, until *end*."""
        while True:
            updates = self.updates(now=self.clock)
            due = [job for job in self.jobs.jobs.values() if _can_run(updates, job)]
            job = min(due, key=lambda each: each.due_at, default=None)
            if job is None or job.due_at > end:
                self.jobs.now = end
                await write_histories(self.home, self.records)
                return
            self.jobs.now = max(self.jobs.now, job.due_at)
            await self._do(job, updates.apply if job.kind in APPLY_JOBS.names else updates.ask)

    async def _do(self, job: Job, handler: Handler) -> None:
        later = await handler(job)
        if later is None:
            await self.jobs.finish(job)
        else:
            await self.jobs.put_off(job, later.delay, later.reason, counts=later.counts, payload=later.payload)

    async def _room(self) -> int:
        return self.prompt_limit

    async def run(self, updates: MemoryUpdates) -> None:
        """Run every job that is there to its end, as the background does."""
        while jobs := [job for job in self.jobs.jobs.values() if _can_run(updates, job)]:
            for job in jobs:
                await self._do(job, updates.apply if job.kind in APPLY_JOBS.names else updates.ask)
        await write_histories(self.home, self.records)

    def pointers(self) -> list[int]:
        """Return every pointer that was committed, in order."""
        lines = [line for each in self.records.stored for line in decode_lines(each.body)]
        return [line["last_consolidated"] for line in lines if "last_consolidated" in line]

    @property
    def history(self) -> SyncHistory:
        """Return the scope's history."""
        return SyncHistory(self.records.connection)

    def rows(self, disk: Disk | None = None) -> SqlHistory:
        """Return the history as such a process has it."""
        return KilledHistory(self.records.engine, disk if isinstance(disk, FaultyDisk) else None)


def _can_run(updates: MemoryUpdates, job: Job) -> bool:
    is_asked = job.kind in UPDATE_JOBS.names and prompt_of(job) not in updates._off
    return is_asked or job.kind in APPLY_JOBS.names


async def begin(home: Path, *, turns: int = TURNS, until: int = 8, **fields: Any) -> ConsolidationScene:
    """Return a world with a fact in memory and a consolidation of its first messages due, eight by default."""
    world = ConsolidationScene(home, turns=turns, **fields)
    await world.records.documents.write(SCOPE, "MEMORY.md", "- old fact\n", was="", why="t")
    await world.jobs.put(consolidation_job(ANN, SCOPE, TRANSCRIPT, MessageRange(0, until), START))
    return world
