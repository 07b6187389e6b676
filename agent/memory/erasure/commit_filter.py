"""Words that are being erased, which the commits of turns must not bring back.

A turn that began before its scope was erased may write the words that it has read. If it committed them, the next turn
of its chat would read them, and so on: in a chat where messages wait, an erasure would run after them for ever. So the
lines of a turn pass the words of every erasure that is not done. An erasure's own passes find the rest: the commits of
another gateway that did not know of it, and those of jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from agent.memory.erasure.word_eraser import PLANNED_KINDS, ErasureRequester, may_clear
from agent.memory.erasure.word_match import ErasurePattern, clear_line
from gateway.ports import Job, JobQueue, TurnRecord

_LONGEST_COMMAND = timedelta(minutes=10)  # from the beginning of an erasure to the commit of its job


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedWords:
    """The words of an erasure that is not done."""

    pattern: ErasurePattern
    requester: ErasureRequester
    is_purge: bool
    begun_at: datetime


@dataclass(slots=True)
class CommitFilter:
    """The erasures of this process that are not done, by scope and job."""

    jobs: JobQueue
    now: Callable[[], datetime]
    _begun: dict[str, dict[str, ErasedWords]] = field(default_factory=dict)

    def begin(self, scope: str, job_id: str, words: ErasedWords) -> None:
        """Let commits of *scope* pass these words until `end`. Idempotent."""
        self._begun.setdefault(scope, {})[job_id] = words

    def end(self, scope: str, job_id: str) -> None:
        """Let the words pass again: no turn knows them from before."""
        words = self._begun.get(scope, {})
        words.pop(job_id, None)
        if not words:
            self._begun.pop(scope, None)

    def has_words(self, scope: str) -> bool:
        """Return True if words of *scope* are being erased."""
        return scope in self._begun

    async def apply(self, scope: str, record: TurnRecord, jobs: Sequence[Job]) -> tuple[TurnRecord, Sequence[Job]]:
        """Return a commit of *scope* without the words: its lines cleared, and its jobs with the words left out."""
        pending = {each.id for each in await self.jobs.pending_in(scope)}
        for job_id, words in list(self._begun.get(scope, {}).items()):
            if job_id not in pending and self.now() - words.begun_at > _LONGEST_COMMAND:  # its command failed
                self.end(scope, job_id)
            else:
                record, jobs = await asyncio.to_thread(_apply, words, record, jobs)
        return record, jobs


def _apply(words: ErasedWords, record: TurnRecord, jobs: Sequence[Job]) -> tuple[TurnRecord, Sequence[Job]]:
    is_allowed = may_clear(words.requester)
    pattern = words.pattern.deep if words.is_purge else words.pattern
    lines = tuple(clear_line(each, pattern, is_allowed, whole=words.is_purge) for each in record.lines)
    if words.requester.may_all:
        jobs = [each for each in jobs if each.kind not in PLANNED_KINDS or not pattern.in_any(each.payload)]
    return replace(record, lines=lines), jobs
