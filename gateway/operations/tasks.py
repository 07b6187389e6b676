"""Operations on background tasks and scheduled requests: the person, the text, the state, and the usage of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from gateway.control import Line
from gateway.control.registry import AuditRule, operation, plain
from gateway.errors import UserError
from gateway.events import PlatformAccount, Role, SessionKey, short_turn_id
from gateway.operations.group import OperationGroup, parse_chat

if TYPE_CHECKING:
    from agent.reminders.reminder import Reminder
    from agent.tasks.task import Task
    from gateway.ports.journal import Job

_MOST = 200  # entries at once
_MOST_RUNS = 50
_MOST_TRIES = 10  # of a stop, between which the task made a step


class TaskOperations(OperationGroup):
    """The operations `tasks list|stop|runs`. With a `chat`, they find nothing outside of it."""

    @operation("tasks list", Role.ADMIN, audit=AuditRule.CALL)
    async def list_tasks(self, chat: str = "") -> AsyncIterator[Line]:
        """Yield a line per background task of the last week, and per scheduled request that is still to come.

        `text` is null for those of other people's direct chats.
        """
        from agent.tasks.task import TASK, TASK_END, tasks_in

        key = parse_chat(chat) if chat else None
        found = [each for kind in (TASK, TASK_END) for each in await self._jobs(kind, key)]
        tasks = [(job.scope, task) for job in found for task in tasks_in([job])]
        tasks.sort(key=lambda each: (each[1].state.is_over, -each[1].set_at.timestamp()))
        scheduled = sorted(await self._scheduled(key), key=lambda each: each[1].due)
        for scope, task in tasks[:_MOST]:
            yield self._task_line(scope, task)
        for scope, reminder in scheduled[:_MOST]:
            yield self._scheduled_line(scope, reminder)

    @operation("tasks stop", Role.ADMIN, {"id"}, audit=AuditRule.CALL, subject="id")
    async def stop(self, id_: str = "", chat: str = "") -> AsyncIterator[Line]:
        """Stop a background task, and notify its chat. Raises UserError for one that has ended."""
        from agent.tasks.task import TASK, TaskState, tasks_in

        key = parse_chat(chat) if chat else None
        for _ in range(_MOST_TRIES):
            found = [(job, task) for job in await self._jobs(TASK, key) for task in tasks_in([job]) if task.id == id_]
            if not found:
                raise UserError(f"no running task is called {id_!r}; it may have ended meanwhile")
            ((job, task),) = found
            cancelled = task.end(TaskState.CANCELLED, self._app.now())
            if await self._app.store.jobs.advance(job, cancelled.to_job(job.scope)):
                self._app.interrupt_task(task.id)
                yield self._task_line(job.scope, cancelled)
                return
        raise UserError(f"the task {id_!r} is being changed again and again; try once more")

    @operation("tasks runs", Role.ADMIN, {"id"})
    async def runs(self, id_: str = "", chat: str = "") -> AsyncIterator[Line]:
        """Yield a line per run of a scheduled request in the last 30 days, the newest first."""
        key = parse_chat(chat) if chat else None
        reminder = next((each for _, each in await self._scheduled(key) if each.id == id_), None)
        if reminder is None:
            raise UserError(f"no scheduled request is called {id_!r}; it may be over, or have been cancelled")
        for run in await self._app.reminders.runs(reminder, limit=_MOST_RUNS):
            yield {**plain(run), "reference": short_turn_id(run.turn) if run.turn else ""}

    async def _jobs(self, kind: str, chat: SessionKey | None) -> Sequence[Job]:
        """Return the jobs of *kind*, of all or of one shared chat without its private threads."""
        from agent.base.scopes import chat_scope

        found = await self._app.store.jobs.pending_of(kind)
        return found if chat is None else [each for each in found if each.scope == chat_scope(chat)]

    async def _scheduled(self, chat: SessionKey | None) -> list[tuple[str, Reminder]]:
        """Return the scheduled requests that are still to come, with their scopes."""
        from agent.reminders.reminder import REMIND, reminders_in

        found = [(job.scope, each) for job in await self._jobs(REMIND, chat) for each in reminders_in([job])]
        return [(scope, each) for scope, each in found if not each.is_fired and not each.is_snoozed]

    def _task_line(self, scope: str, task: Task) -> Line:
        return {
            **self._common(scope, task.id, task.person, task.key, task.goal),
            "kind": "task",
            "state": str(task.state),
            "is_over": task.state.is_over,
            **plain({"at": task.set_at, "started_at": task.started_at, "ended_at": task.ended_at}),
            "steps": task.model_calls,
            "tokens": task.tokens,
            "known_cost": task.dollars,
        }

    def _scheduled_line(self, scope: str, reminder: Reminder) -> Line:
        from agent.reminders.reminder import DO

        return {
            **self._common(scope, reminder.id, reminder.person, reminder.key, reminder.text),
            "kind": "request" if reminder.kind == DO else "reminder",
            "state": f"paused: {reminder.paused}" if reminder.paused else "waiting",
            "is_over": False,
            **plain({"at": reminder.set_at, "due": None if reminder.paused else reminder.due}),
            "repeat": reminder.repeat,
        }

    def _common(self, scope: str, id_: str, person: str, key: SessionKey, text: str) -> dict[str, Any]:
        return {
            "id": id_,
            "who": PlatformAccount.from_name(person).label,
            "chat": str(key),
            "text": text if self.may_read(scope) else None,
        }
