"""The tasks that a turn may see, start and stop: those of its chat, within the limits of their person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from agent.tasks.task import LONGEST_GOAL, TASK, Task, TaskLimits, task_id, tasks_in
from gateway.errors import ToolFailed
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Role, SessionKey
from gateway.ports.access import MICROS, CapAllowance, CappedSender
from gateway.ports.journal import Job, JobLimit

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskServices:
    """The rows of tasks, the operator's limits, and the caps that budgets are reserved from."""

    jobs: SqlJobs
    limits: TaskLimits
    allowances: Callable[[InboundMessage | None, CappedSender], Awaitable[Sequence[CapAllowance]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAccess:
    """Reads the tasks of a turn's chat, and builds and checks new ones. Errors are ToolFailed, for the model."""

    services: TaskServices
    key: SessionKey
    message: InboundMessage  # the turn's first
    account: PlatformAccount  # the sender
    accounts: Sequence[PlatformAccount]  # all accounts of the sender's person
    role: Role
    scope: str
    capped_sender: CappedSender
    now: Callable[[], datetime]
    # The jobs of the turn count towards the limits although they are not stored yet.
    staged_jobs: Callable[[], Iterable[Job]] = tuple

    async def read_all(self) -> Sequence[Task]:
        """Return the tasks that wait or run first, the newest before others.

        In a shared chat they are those of the chat and its threads, elsewhere those of the sender.
        """
        is_shared = self.message.chat_kind is ChatKind.GROUP
        found = tasks_in(await self.services.jobs.pending_in(self.scope))
        return [each for each in found if (each.key.parent == self.key.parent if is_shared else self.is_own(each))]

    def is_own(self, task: Task) -> bool:
        """Return True if the turn's person set the task."""
        return task.person in self._names

    def may_stop(self, task: Task) -> bool:
        """Return True if the turn's person set the task, or is an admin of a shared chat."""
        return self.is_own(task) or self.role.covers(Role.ADMIN)

    async def build(self, goal: str, *, call_key: str, is_tainted: bool) -> Task:
        """Return a new task, for which its whole budget is left of the person's caps. Raises ToolFailed."""
        text = goal.strip()
        if not text:
            raise ToolFailed("say what to find out")
        if (size := len(text.encode("utf-8", "replace"))) > LONGEST_GOAL:
            raise ToolFailed(f"a task has at most {LONGEST_GOAL} bytes; this one has {size}")
        limits = self.services.limits
        pending = [*tasks_in(await self.services.jobs.pending_of(TASK)), *tasks_in(self.staged_jobs())]
        pending = [each for each in pending if self.is_own(each) and not each.state.is_over]
        if len(pending) >= limits.person_tasks:
            raise ToolFailed(f"limit reached: {limits.person_tasks} tasks at once; `/tasks` lists and stops them")
        await self._check_caps(pending)
        message = self.message
        return Task(
            id=task_id(call_key),
            key=self.key,
            by=message.sender.id,
            person=self.account.name,
            goal=text,
            set_at=self.now(),
            chat_kind=message.chat_kind,
            is_private=message.is_private,
            name=message.sender.name,
            team=message.sender.team,
            guild=message.guild,
            is_tainted=is_tainted,
        )

    @property
    def limit(self) -> JobLimit:
        """The limit within which the commit of the turn starts a task: two chats may have asked at one moment."""
        return JobLimit(tuple(sorted(self._names)), self.services.limits.person_tasks)

    async def _check_caps(self, pending: Sequence[Task]) -> None:
        """Raise ToolFailed unless the budget fits each daily cap beside the rest of the *pending* tasks' budgets."""
        limits = self.services.limits
        tokens = limits.tokens + sum(max(limits.tokens - each.tokens, 0) for each in pending)
        dollars = limits.dollars + sum(max(limits.dollars - each.dollars, 0.0) for each in pending)
        for each in await self.services.allowances(self.message, self.capped_sender):
            wanted = round(dollars * MICROS) if each.cap.is_cost else tokens
            if each.cap.is_daily and each.used + wanted > each.limit:
                left = each.cap.format_amount(max(each.limit - each.used, 0))
                raise ToolFailed(
                    f"a task reserves {each.cap.format_amount(wanted)} of today's usage cap, and {left} are left;"
                    " look it up in this answer instead"
                )

    @property
    def _names(self) -> set[str]:
        """Names of the accounts of the sender's person."""
        return {each.name for each in (self.account, *self.accounts)}
