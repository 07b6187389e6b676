"""Jobs of tasks that need no model: the end of one comes into its chat, and one that waits for a worker is reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from agent.memory.jobs.approval_questions import short
from agent.memory.jobs.job_runner import JobErasure, JobKind, JobPace, RetryJobLater, send_job_report
from agent.tasks.task import TASK, TASK_END, TASK_LATE, Task, TaskState, tasks_in
from gateway.events import ChatKind, MessageButton, Role, SessionKey
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports.journal import AcceptOutcome, Job

if TYPE_CHECKING:
    from gateway.chat_locales import ChatLocales
    from gateway.store.jobs import SqlJobs
    from gateway.store.journal import SqlJournal
    from gateway.store.records import SqlTurnRecords


log = structlog.get_logger(__name__)

TASK_JOBS = JobKind(name=TASK, pace=JobPace.TASK, erasure=JobErasure.OWN, export="tasks.jsonl")
TASK_END_JOBS = JobKind(
    name=TASK_END, pace=JobPace.QUICK, aliases=(TASK_LATE,), erasure=JobErasure.OWN, export="tasks.jsonl"
)
_LOOK_AGAIN = timedelta(minutes=10)  # whether the turn of an end was committed, which removes the job
_MOST_LOOKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEndJobs:
    """Handlers of the jobs."""

    jobs: SqlJobs
    journal: SqlJournal
    records: SqlTurnRecords
    locales: ChatLocales
    open_chat: Callable[[SessionKey], Awaitable[SessionKey]]  # in which people see what is sent to a session
    now: Callable[[], datetime]

    async def run(self, job: Job) -> RetryJobLater | None:
        """Bring an end into its chat, remove one that is a week old, or report a task that has not started."""
        if job.kind == TASK_LATE:
            await self._report_late(job)
            return None
        found = tasks_in([job])
        if not found or found[0].is_delivered:
            return None
        task = found[0]
        message = replace(task, key=await self.open_chat(task.key)).message(self.now())
        accepted = await self.journal.accept(message, role=Role.MEMBER, is_control=False)
        if (is_new := accepted.outcome is AcceptOutcome.NEW) or job.attempts < _MOST_LOOKS:
            return RetryJobLater(_LOOK_AGAIN, "its turn has not been committed yet", counts=not is_new)
        # The turn ended without it: refused, or dead-lettered.
        await self.jobs.advance(job, replace(task, is_delivered=True).to_job(job.scope))
        return None

    async def _report_late(self, job: Job) -> None:
        """Say in the chat that no worker has taken a task, or that it was never stored; the job's id makes that once.

        It is not stored if its person had as many as they may have at that moment. An ended one is stored for days.
        """
        found = [each for each in tasks_in(await self.jobs.pending_in(job.scope)) if each.id == job.payload["k"]]
        if found and found[0].state is not TaskState.WAITING:
            return
        key = await self.open_chat(SessionKey.parse(job.payload["key"]))
        language = self.locales.language(key)
        await send_job_report(
            self.records,
            job,
            await self.journal.session(key),
            translate("tasks.late" if found else "tasks.not_started", language, what=short(str(job.payload["text"]))),
            at=self.now(),
            chat_kind=ChatKind(job.payload["chat_kind"]),
            choices=[stop_button(each, translate("tasks.stop", language)) for each in found],
        )
        log.info("task.late", task=job.payload["k"])


def state_words(task: Task, now: datetime, zone: str, language: str) -> str:
    """Return the state of *task* in words, with its duration and steps or the time of its end."""
    if task.state is TaskState.RUNNING and task.started_at is not None:
        minutes = int((now - task.started_at).total_seconds() // 60)
        return translate("tasks.running_since", language, minutes=minutes, steps=task.model_calls)
    state = translate(f"tasks.is_{task.state}", language)
    return state if task.ended_at is None else f"{state}, {format_moment(task.ended_at, zone, language)}"


def stop_button(task: Task, label: str, row: int = 0) -> MessageButton:
    """Return the button that stops *task*."""
    return MessageButton(label, f"/tasks stop {task.id}", row)
