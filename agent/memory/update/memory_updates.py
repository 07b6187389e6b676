"""Memory updates as durable jobs: a model is asked, its answer is stored, and the answer is brought into memory.

A job that asks names its prompt. Its answer is a job of kind APPLY, which is stored unless something of the scope was
erased since the prompt was read. Both are idempotent, so that no answer is paid for twice. No lock is held
during a model call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from agent.llm.chat_model import ChatModel
from agent.llm.model_calls import UnusableAnswer, outage_delay, unlimited
from agent.memory.documents.scope_documents import DocumentBusy
from agent.memory.jobs.job_kinds import JobErasure, JobKind, JobPace
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.prompt.due_jobs import APPLY, PROMPT, UPDATE, prompt_of
from agent.memory.storage.messages import MessageReader
from gateway.ports.journal import Job
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
