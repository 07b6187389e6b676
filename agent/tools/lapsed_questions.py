"""Questions about tool calls that end without a decision: not answered in time, or not shown in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from agent.memory.jobs.job_runner import send_job_report
from agent.tools.tool_questions import (
    ToolApprovals,
    ToolQuestion,
    allowed_message,
)
from gateway.events import ChatKind, InboundMessage, MessagePart, SessionKey
from gateway.i18n import translate
from gateway.ports.journal import Job

if TYPE_CHECKING:
    from gateway.store.journal import SqlJournal
    from gateway.store.records import SqlTurnRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class LapsedQuestions:
    """Handlers of the jobs that end without an answer; the runner removes them afterwards."""

    approvals: ToolApprovals
    journal: SqlJournal
    records: SqlTurnRecords
    language: Callable[[SessionKey], str]
    has_lost_access: Callable[[InboundMessage], bool]  # the sender of a job that they set
    now: Callable[[], datetime]

    async def lapse(self, job: Job) -> None:
        """End a question, and say in its chat which calls did not run. Raises StoreUnavailable.

        Nothing is sent about the question of a person who has lost access.
        """
        question = ToolQuestion(**job.payload)
        if await self.approvals.is_allowed(question):
            return  # by a press whose commit, which would have ended the question, is still to come
        self.approvals.count("lapsed")
        if self.has_lost_access(allowed_message(question, self.now())):
            return
        key = SessionKey.parse(question.key)
        waiting = [each for each, other in await self.approvals.pending(key) if other.due_at <= job.due_at]
        tools = dict.fromkeys(f"`{each.tool}`" for each in waiting if each.turn == question.turn)
        language = self.language(key)
        await send_job_report(
            self.records,
            replace(job, id=f"lapsed:{question.turn}:{question.seconds}"),  # the turn's other questions add no line
            await self.journal.session(key),
            translate("tools.lapsed", language, tools=", ".join(tools)),
            at=self.now(),
            chat_kind=ChatKind(question.chat_kind),
        )

    async def withdraw(self, part: MessagePart) -> str:
        """End the question whose arguments are in the file of *part*, which cannot be sent.

        Return the sentence that says so, the same each time; "" for any other file. Raises StoreUnavailable.
        """
        if part.file is None or not part.file.question:
            return ""
        if (found := await self.approvals.find(part.key, part.file.question)) is not None:
            await self.approvals.end(found[1])
            self.approvals.count("not_shown")
        return translate("tools.not_shown", self.language(part.key))

    async def end_denial(self, _: Job) -> None:
        """End a denial that the model did not read in a day."""
