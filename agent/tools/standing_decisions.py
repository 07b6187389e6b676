"""Standing decisions: a yes or a no to the calls of one tool about one subject, in a person's direct chat.

A decision is a job of the person's scope, due when it ends. It replaces a question: a yes only in turns that a message
of the person started, and without untrusted text in the prompt; a no wherever the call would ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from agent.memory.jobs.job_kinds import JobErasure, JobKind, JobPace
from agent.tools.tool_questions import ToolQuestion, format_subject
from gateway.events import SessionKey, short_id
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports.journal import Job

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs


STANDING_DECISION = "tool_decision"
DECISION_JOBS = JobKind(
    name=STANDING_DECISION, pace=JobPace.QUICK, erasure=JobErasure.ADMIN, export="tool_decisions.jsonl"
)
DURATION = timedelta(days=30)  # of a yes
_UNTIL_REVOKED = timedelta(days=36_500)  # of a no


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingDecision:
    """A yes or a no that holds for further calls."""

    id: str
    key: str  # the chat; its threads are included
    by: str  # account name of the person
    tool: str
    subject: str  # what the calls are about; "" = all calls of a tool without subjects
    schema: str  # digest of the tool's schema: the decision ends when the tool changes
    is_allowed: bool
    at: str  # ISO 8601
    until: str

    @property
    def what(self) -> str:
        """The tool and the subject, in Markdown."""
        return format_subject(self.tool, self.subject)

    def text(self, zone: str, language: str) -> str:
        """Return one line with the decision, its end, and the command that revokes it."""
        until = format_moment(datetime.fromisoformat(self.until), zone, language)
        key = "tools.standing_yes" if self.is_allowed else "tools.standing_no"
        return translate(key, language, what=self.what, until=until, id=self.id)


def build_decision(question: ToolQuestion, account: str, now: datetime, *, is_allowed: bool) -> StandingDecision:
    """Return the decision about further calls like that of *question*; a new one has the id of an earlier one."""
    chat = str(SessionKey.parse(question.key).parent)
    return StandingDecision(
        id="g" + short_id("\n".join((chat, account, question.tool, question.subject)), 10),
        key=chat,
        by=account,
        tool=question.tool,
        subject=question.subject,
        schema=question.schema,
        is_allowed=is_allowed,
        at=now.isoformat(timespec="seconds"),
        until=(now + (DURATION if is_allowed else _UNTIL_REVOKED)).isoformat(timespec="seconds"),
    )


def decision_job(decision: StandingDecision, scope: str) -> Job:
    """Return the job of a decision; it is due when the decision ends."""
    return Job(
        id=f"grant:{decision.key}:{decision.id}",
        kind=STANDING_DECISION,
        scope=scope,
        payload=asdict(decision),
        due_at=datetime.fromisoformat(decision.until),
    )


class StandingDecisions:
    """The decisions that hold now."""

    def __init__(self, jobs: SqlJobs) -> None:
        self._jobs = jobs

    async def read(self, scope: str, key: SessionKey, account: str) -> Sequence[tuple[StandingDecision, Job]]:
        """Return the decisions of *account* in the chat of *key* with their jobs, the oldest first."""
        found = [
            (StandingDecision(**job.payload), job)
            for job in await self._jobs.pending_in(scope)
            if job.kind == STANDING_DECISION
        ]
        return [each for each in found if each[0].key == str(key.parent) and each[0].by == account]

    async def verdicts(self, scope: str, key: SessionKey, account: str) -> Mapping[tuple[str, str, str], bool]:
        """Return the decisions of *account* in the chat of *key*, by tool, subject and digest of the tool's schema."""
        found = await self.read(scope, key, account)
        return {(each.tool, each.subject, each.schema): each.is_allowed for each, _ in found}

    async def expire(self, _: Job) -> None:
        """End a decision: the runner removes its job."""
