"""/new that waits for its archive, as [000] has it: the conversation is summarised before the next one begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import structlog

from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.prompt.due_jobs import APPLY
from gateway.ports import Job, JobQueue

log = structlog.get_logger(__name__)

_LATER = timedelta(hours=1)
_TRIES = 24  # while a consolidation of the same conversation is under way


async def archive_now(job: Job, do: Callable[[Job], Awaitable[RetryJobLater | None]], jobs: JobQueue) -> bool:
    """Do now what *job*, a `summarise`, would do later; say whether all of the conversation is safe in memory.

    What the model answered is stored and stands in MEMORY.md and the history on return. False changes nothing.
    """
    # Tried once already: the note belongs to a conversation that has ended, and this one may go on. Queued, since
    # nothing else is done in a scope, and for later, so that nobody else takes it up.
    ahead = replace(job, id=f"{job.id}.now", attempts=1, due_at=job.due_at + _LATER)
    await jobs.put(ahead)
    try:
        later = await _do(ahead, do, jobs)
    finally:
        await jobs.finish(ahead)
    if later is not None:
        log.warning("new.not_archived", reason=later.reason)
    return later is None


async def _do(job: Job, do: Callable[[Job], Awaitable[RetryJobLater | None]], jobs: JobQueue) -> RetryJobLater | None:
    later: RetryJobLater | None = None
    for _ in range(_TRIES):
        later, is_more = await do(job), False
        for each in await jobs.pending_in(job.scope):
            if each.kind == APPLY and each.payload.get("transcript") == job.payload["transcript"]:
                await do(each)
                await jobs.finish(each)
                # What did not fit one question goes on in the background; it is waited for, too.
                is_more = is_more or int(each.payload.get("goal", 0)) > int(each.payload["end"])
        if (later is None and not is_more) or (later is not None and later.counts):
            break
        await asyncio.sleep(later.delay.total_seconds() if later is not None else 0)
    return later
