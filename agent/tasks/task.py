"""A background task: the job that it is stored as, its budget, and the message that brings its end into the chat.

A task is one row at a time. Each step of it, a request to the model or the calls that the model made, replaces the row
by the next in one transaction. So a kill loses one step at most, any gateway continues from the last, and a row that
was removed (stopped, forgotten) is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from agent.base.transcript_lines import format_time
from gateway.events import AnswerSource, ChatKind, InboundKind, InboundMessage, Sender, SessionKey, short_id
from gateway.ports.journal import Job, TurnStep

TASK, TASK_END, TASK_LATE = "task", "task-end", "task-late"  # kinds of the jobs
MESSAGE_PREFIX = "job:task/"  # of a message id; then the task's id
LATE_AFTER = timedelta(seconds=60)  # without a worker; then the chat reads that it has not started
KEPT_FOR = timedelta(days=7)  # after its end, for lists
LONGEST_GOAL, LONGEST_RESULT = 4_000, 24_000  # bytes of UTF-8
ANSWER_TOKENS = 2_000  # of the budget, for the last answer
_SPACE_FOR_CUT = 8  # bytes
_AT_ONCE = timedelta(0)


class TaskState(StrEnum):
    """The state of a task."""

    WAITING = "waiting"  # no worker has taken it
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # the model gave no answer, or a step broke three times
    EXHAUSTED = "exhausted"  # it has used up its time, tokens or money
    CAPPED = "capped"  # a usage cap of its person or chat was reached
    REVOKED = "revoked"  # its person lost access
    STOPPED = "stopped"  # by its person, or an admin in its chat: they know, so nothing comes into the chat
    CANCELLED = "cancelled"  # by an owner or admin elsewhere, which its chat is told

    @property
    def is_over(self) -> bool:
        """True unless it waits or runs."""
        return self not in (TaskState.WAITING, TaskState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """The operator's limits."""

    person_tasks: int = 2  # that a person has at once
    duration: timedelta = timedelta(minutes=20)
    model_calls: int = 20
    tokens: int = 100_000
    dollars: float = 0.0  # 0 = none of its own; the caps apply


def task_id(call_key: str) -> str:
    """Return the id of the task that a tool call starts: the same after a restart."""
    return f"k{short_id(call_key, 8)}"


def job_prefix(task: str) -> str:
    """Return the prefix of the ids of all jobs of a task; `TurnCommit.ends` removes them by it."""
    return f"task:{task}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task as its row has it."""

    id: str
    key: SessionKey  # the session it was asked for in and ends in
    by: str  # user id of its person
    person: str  # their account, as a file name
    goal: str
    set_at: datetime
    chat_kind: ChatKind = ChatKind.DIRECT
    is_private: bool = False  # in a thread with a memory scope of its own
    name: str = ""  # display name of the person
    team: str = ""
    guild: str = ""
    state: TaskState = TaskState.WAITING
    is_tainted: bool = False  # untrusted text was in the prompt that set it, or was read by it
    started_at: datetime | None = None
    ended_at: datetime | None = None
    is_delivered: bool = False  # its end is in the chat
    slices: int = 0  # rows that it had before this one
    steps: tuple[TurnStep, ...] = ()  # what its model said, and the results
    model_calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    result: str = ""
    links: tuple[str, ...] | None = None  # the only addresses in the result that may be links; None = all
    sources: tuple[AnswerSource, ...] = ()

    @classmethod
    def from_job(cls, job: Job) -> Task:
        """Read a job's payload. Raises KeyError, TypeError or ValueError for any other payload."""
        row = job.payload
        links = row.get("links")
        others: dict[str, Any] = {field: str(row[name]) for name, field in _TEXTS.items()}
        others |= {name: row[name] for name in _OPTIONAL if name in row}
        return cls(
            key=SessionKey.parse(row["key"]),
            set_at=datetime.fromisoformat(row["set"]),
            chat_kind=ChatKind(row["chat_kind"]),
            state=TaskState(row["state"]),
            started_at=_moment(row.get("started")),
            ended_at=_moment(row.get("ended")),
            steps=tuple(map(_read_step, row.get("steps", ()))),
            links=None if links is None else tuple(links),
            sources=tuple(AnswerSource(each["url"], each["title"]) for each in row.get("sources", ())),
            **others,
        )

    def to_job(self, scope: str) -> Job:
        """Return the job that has this task in *scope*; due at once, or for a task that is over, to be removed."""
        payload: dict[str, Any] = {
            "v": 1,
            "key": str(self.key),
            "chat_kind": self.chat_kind.value,
            "state": self.state.value,
            "set": format_time(self.set_at),
        }
        payload |= {name: getattr(self, field) for name, field in _TEXTS.items()}
        payload |= {name: value for name in _OPTIONAL if (value := getattr(self, name))}
        payload |= {"started": format_time(self.started_at)} if self.started_at is not None else {}
        payload |= {"ended": format_time(self.ended_at)} if self.ended_at is not None else {}
        payload |= {"steps": [_write_step(each) for each in self.steps]} if self.steps else {}
        payload |= {"links": list(self.links)} if self.links is not None else {}
        payload |= {"sources": [asdict(each) for each in self.sources]} if self.sources else {}
        return Job(
            id=f"{job_prefix(self.id)}{self._place}",
            kind=TASK_END if self.state.is_over else TASK,
            scope=scope,
            payload=payload,
            due_at=(self.ended_at or self.started_at or self.set_at) + (KEPT_FOR if self.is_delivered else _AT_ONCE),
        )

    @property
    def _place(self) -> str:
        if self.state.is_over:
            return "over" if self.is_delivered else "end"
        return f"{self.slices:03d}"

    def late_job(self, scope: str) -> Job:
        """Return the job that looks a minute later whether the task has started."""
        payload = {"v": 1, "k": self.id, "key": str(self.key), "by": self.by, "person": self.person, "text": self.goal}
        payload |= {"chat_kind": self.chat_kind.value}
        return Job(
            id=f"{job_prefix(self.id)}late",
            kind=TASK_LATE,
            scope=scope,
            payload=payload,
            due_at=self.set_at + LATE_AFTER,
        )

    def start(self, now: datetime) -> Task:
        """Return the task as one that a worker has taken."""
        return replace(self, state=TaskState.RUNNING, started_at=now, slices=self.slices + 1)

    def end(self, state: TaskState, now: datetime, result: str = "") -> Task:
        """Return the task as one that ended so, without its steps."""
        return replace(self, state=state, ended_at=now, steps=(), result=cut_bytes(result, LONGEST_RESULT))

    def stop(self, now: datetime) -> Task:
        """Return the task as one that a person stopped: they know, so nothing comes into the chat."""
        return replace(self.end(TaskState.STOPPED, now), is_delivered=True)

    def message(self, now: datetime) -> InboundMessage:
        """Return the message that its end comes as: of its person, and once, as its id says."""
        return InboundMessage(
            key=self.key,
            message_id=f"{MESSAGE_PREFIX}{self.id}",
            sender=Sender(id=self.by, name=self.name, team=self.team),
            text=self.goal,
            sent_at=now,
            kind=InboundKind.JOB,
            command="task",
            chat_kind=self.chat_kind,
            is_addressed=True,
            guild=self.guild,
            is_private=self.is_private,
            is_forwarded=self.is_tainted,
        )


# Names of texts in a job's payload, and the fields they are.
_TEXTS = {"k": "id", "by": "by", "person": "person", "text": "goal"}
_OPTIONAL = (
    *("name", "team", "guild", "is_private", "is_tainted", "is_delivered"),
    *("slices", "model_calls", "tokens", "dollars", "result"),
)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def _read_step(row: Mapping[str, Any]) -> TurnStep:
    return TurnStep(n=row["n"], kind=row["kind"], lines=tuple(row["lines"]), call=row.get("call", ""))


def _write_step(step: TurnStep) -> dict[str, Any]:
    return {"n": step.n, "kind": step.kind, "lines": [dict(each) for each in step.lines], "call": step.call}


def tasks_in(jobs: Iterable[Job]) -> Sequence[Task]:
    """Return the tasks among *jobs*, those that wait or run first, without unreadable ones."""
    found = []
    for job in jobs:
        if job.kind in (TASK, TASK_END):
            try:
                found.append(Task.from_job(job))
            except (KeyError, TypeError, ValueError):
                continue
    return sorted(found, key=lambda each: (each.state.is_over, -each.set_at.timestamp()))


def is_task_end(message: InboundMessage) -> bool:
    """Return True if *message* brings the end of a task."""
    return message.kind is InboundKind.JOB and message.message_id.startswith(MESSAGE_PREFIX)


def cut_bytes(text: str, most: int) -> str:
    """Return *text* if it has at most *most* bytes of UTF-8, else its beginning with "…" behind it."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return f"{data[: most - _SPACE_FOR_CUT].decode(errors='ignore')}…"
