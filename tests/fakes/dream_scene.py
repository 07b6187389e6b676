"""A home with a history, and a Dreamer over it whose disk can die and whose model says what a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.base.disk import Disk
from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from agent.memory.editing.staged_changes import StagedChange
from agent.memory.editing.text_operations import EDIT_MEMORY
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.storage.scope_documents import ScopeDocuments
from agent.memory.update.dream_phases import DREAM
from agent.memory.update.dreamer import DreamApplier, Dreamer, DreamRequester
from gateway.events import OutboundMessage, SessionKey
from gateway.ports.journal import Job, SessionRow, TurnRecord
from gateway.ports.memory import DocumentChange, HistoryEntry
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.documents import FakeDocuments
from tests.fakes.histories import KilledHistory, SyncHistory, write_histories
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, FakeJobs, FakeRecords, FaultyDisk
from tests.fakes.proposals import open_staging

Said = str | Mapping[str, Any] | BaseException
Answer = Said | Callable[[str], Said]  # of the prompt
ROOM = "chats/telegram%3a-100"


def edits(*operations: Mapping[str, str], done: bool = True) -> dict[str, Any]:
    """Return an answer of phase two."""
    return {"operations": [{"document": "MEMORY.md", **each} for each in operations], "done": done}


def add(text: str, **fields: str) -> dict[str, str]:
    """Return the operation that adds a line."""
    return {"op": "add", "text": text, **fields}


def swap(old: str, text: str, **fields: str) -> dict[str, str]:
    """Return the operation that replaces a line."""
    return {"op": "replace", "old": old, "text": text, **fields}


def remove(old: str, **fields: str) -> dict[str, str]:
    """Return the operation that removes a line."""
    return {"op": "remove", "old": old, **fields}


class DreamModel(FakeChatModel):
    """Gives its answers in turn, the last one for ever: a text, the arguments of the tool, or an error to raise."""

    def __init__(self, *answers: Answer) -> None:
        self.name = "test/dream"
        self.answers = list(answers) or ["Nothing to change.", edits()]
        self.asked: list[ChatRequest] = []
        self.meanwhile: Callable[[int], None] = lambda _: None  # called in every call, with its number

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer."""
        self.asked.append(request)
        self.meanwhile(len(self.asked))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(self.prompts[-1])
        if isinstance(answer, BaseException):
            raise answer
        calls = () if isinstance(answer, str) else (ToolCall("c", EDIT_MEMORY, json.dumps(answer)),)
        text = answer if isinstance(answer, str) else ""
        return ChatReply(text=text, tool_calls=calls, model=self.name, tokens=TokenUsage(100, 10), cost=0.0)

    @property
    def prompts(self) -> list[str]:
        """What it was shown, call by call."""
        return [str(each.messages[-1]["content"]) for each in self.asked]


class KilledDreamJobs(FakeJobs):
    """The journal, which the process may die in or behind like in any other write."""

    disk: FaultyDisk | None = None

    async def put(self, job: Job) -> None:
        """Queue, or die before or behind it."""
        self.step()
        await super().put(job)
        self.step()

    async def finish(self, job: Job) -> None:
        """Finish, or die before it."""
        self.step()
        await super().finish(job)

    def step(self) -> None:
        """Count one more place to die in."""
        if self.disk is not None:
            self.disk.step("journal")


class KilledRecords(FakeRecords):
    """As `KilledDreamJobs`."""

    disk: FaultyDisk | None = None

    async def append(self, record: TurnRecord, *, outbound: Sequence[OutboundMessage] = ()) -> None:
        """Commit, or die before or behind it."""
        if self.disk is not None:
            self.disk.step("journal")
        await super().append(record, outbound=outbound)
        if self.disk is not None:
            self.disk.step("journal")


class DreamScene:
    """One scope and its Dreamer."""

    def __init__(self, home: Path, *answers: Answer, scope: str = SCOPE, records: KilledRecords | None = None) -> None:
        self.home = home
        self.scope = scope
        self.jobs = KilledDreamJobs()
        self.records = records or KilledRecords()
        self.model = DreamModel(*answers)
        self.now = START
        self.changes = FakeDocuments(now=lambda: self.now)
        self.documents = ScopeDocuments(self.changes)
        self.staging = open_staging(home, self.documents, now=lambda: self.now)

    def write(self, name: str, text: str) -> None:
        """Change a document as a person does."""
        self.changes.put(self.scope, **{name.removesuffix(".md"): text})

    def text(self, name: str = "MEMORY.md") -> str:
        """Return a document."""
        return self.changes.text(self.scope, name)

    def happened(self, *contents: str, origin: str = "user") -> Sequence[HistoryEntry]:
        """Add entries to the history."""
        start = len(self.history.after(0))
        return self.history.append(
            *(
                HistoryEntry(
                    timestamp="2026-11-21 20:00",
                    content=content,
                    session=str(ANN),
                    start=10 * (start + n),
                    end=10 * (start + n) + 10,
                    origin=origin,
                    entry=f"e{start + n}",
                )
                for n, content in enumerate(contents)
            )
        )

    @property
    def history(self) -> SyncHistory:
        """Return the scope's history."""
        return SyncHistory(self.records.connection, self.scope)

    def dreamer(self, disk: Disk | None = None, **fields: Any) -> Dreamer:
        """Return what a process has after its start."""
        self.jobs.disk = self.records.disk = disk if isinstance(disk, FaultyDisk) else None
        self.changes.step = self.jobs.step
        disk = disk or Disk()

        async def session(key: SessionKey) -> SessionRow:
            return SessionRow(key=key, transcript=TRANSCRIPT, next_index=0, created_at=START, scope=self.scope)

        rows = KilledHistory(self.records.engine, self.records.disk)
        return Dreamer(
            history=rows,
            jobs=self.jobs,
            model=self.model,
            applier=DreamApplier(
                home=self.home,
                documents=self.documents,
                history=rows,
                staging=self.staging,
                now=lambda: self.now,
                disk=disk,
            ),
            records=self.records,
            session=session,
            writing=asyncio.Lock(),
            zone=lambda _: "Europe/Berlin",
            now=lambda: self.now,
            **fields,
        )

    async def ask(self, n: int = 0) -> Job:
        """Queue what /dream queues."""
        job = Job(
            id=f"{DREAM}:turn{n}",
            kind=DREAM,
            scope=self.scope,
            payload=DreamRequester(key=str(ANN), reply_to="m1").payload(),
            due_at=self.now,
        )
        await self.jobs.put(job)
        return job

    async def run(self, dreamer: Dreamer, most: int = 5) -> list[RetryJobLater]:
        """Run the jobs that are there as the background does, whenever they are due; return why some were put off."""
        put_off: list[RetryJobLater] = []
        for _ in range(most):
            for job in list(self.jobs.jobs.values()):
                later = await dreamer.run(job)
                if later is None:
                    await self.jobs.finish(job)
                else:
                    await self.jobs.put_off(job, later.delay, later.reason, counts=later.counts)
                    put_off.append(later)
            if not self.jobs.jobs:
                break
        await write_histories(self.home, self.records)
        return put_off

    async def dream(self, disk: Disk | None = None, **fields: Any) -> Dreamer:
        """Expect what is new and dream until nothing is left; return the dreamer."""
        dreamer = self.dreamer(disk, **fields)
        await dreamer.expect(self.scope)
        await self.run(dreamer)
        return dreamer

    def commits(self) -> list[DocumentChange]:
        """Return Dream's changes, the newest first."""
        return [each for each in self.changes.changes(self.scope) if each.why.startswith("dream: ")]

    async def waiting(self) -> list[StagedChange]:
        """Return what waits for a yes."""
        return await self.staging.pending_changes(self.scope)

    @property
    def reports(self) -> list[str]:
        """What was said in the chat."""
        return [each.text for each in self.records.said]
