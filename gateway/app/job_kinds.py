"""Every kind of durable job, as its owner declares it. The handlers are in `memory.build_job_runner`."""

from __future__ import annotations

from typing import Final

from agent.memory.account_links.account_linker import LINK_JOBS
from agent.memory.conversations import DELETION_OF_CONVERSATION_JOBS
from agent.memory.erasure.erase_service import ASK_ERASURE_JOBS, FORGET_JOBS
from agent.memory.erasure.message_deletions import DELETION_JOBS, UNINDEX_JOBS
from agent.memory.erasure.scope_eraser import RETENTION_JOBS, SCOPE_ERASURE_JOBS
from agent.memory.jobs.chat_edits import EDIT_JOBS, REMEMBER_JOBS
from agent.memory.jobs.job_runner import by_name
from agent.memory.privacy import EXPORT_JOBS
from agent.memory.update.conversation_updates import APPLY_JOBS, UPDATE_JOBS
from agent.memory.update.dream_phases import DREAM_JOBS
from agent.reminders.reminder_jobs import REMINDER_JOBS
from agent.tasks.task_jobs import TASK_END_JOBS, TASK_JOBS
from agent.tools.tool_questions import DECISION_JOBS, QUESTION_JOBS

JOB_KINDS: Final = by_name(
    (
        REMEMBER_JOBS,
        EDIT_JOBS,
        ASK_ERASURE_JOBS,
        QUESTION_JOBS,
        DECISION_JOBS,
        REMINDER_JOBS,
        TASK_JOBS,
        TASK_END_JOBS,
        UPDATE_JOBS,
        APPLY_JOBS,
        DREAM_JOBS,
        DELETION_JOBS,
        UNINDEX_JOBS,
        DELETION_OF_CONVERSATION_JOBS,
        FORGET_JOBS,
        SCOPE_ERASURE_JOBS,
        RETENTION_JOBS,
        LINK_JOBS,
        EXPORT_JOBS,
    )
)
