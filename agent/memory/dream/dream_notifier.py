"""Sends the result of a Dream to the chat that requested it, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from agent.memory.dream.dream_applier import DreamReport
from agent.memory.jobs.job_reports import send_job_report
from gateway.events import ChatKind, SessionKey
from gateway.i18n import SLASH, ChatLanguage, translate
from gateway.ports import Job, SessionRow, TurnRecordStore

_ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamRequester:
    """The chat and message to answer when a requested Dream finishes."""

    key: str
    reply_to: str = ""
    visible_to: str = ""  # in a shared chat its asker alone
    chat_kind: str = ChatKind.DIRECT.value
    language: str = "en"

    def payload(self) -> dict[str, Any]:
        """Return it as a job carries it."""
        return {_ASKED: asdict(self)}

    @classmethod
    def of(cls, job: Job) -> DreamRequester | None:
        """Return the requester stored in a job, or None if the job was scheduled."""
        requester = job.payload.get(_ASKED)
        return cls(**requester) if isinstance(requester, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamNotifier:
    """Puts a report into the outbox; the job's id makes that once."""

    records: TurnRecordStore
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    now: Callable[[], datetime]
    sign: Callable[[SessionKey], str] = lambda _: SLASH  # before a command's name in a chat

    async def send_report(self, job: Job, requester: DreamRequester | None, report: DreamReport) -> None:
        """Send the result of the job to its requester, if it has one."""
        if requester is None:
            return
        key = SessionKey.parse(requester.key)
        session = await self.session(key)
        await send_job_report(
            self.records,
            job,
            session,
            sentence(report, ChatLanguage(requester.language, self.sign(key))),
            at=self.now(),
            reply_to=requester.reply_to,
            visible_to=requester.visible_to,
            chat_kind=ChatKind(requester.chat_kind),
        )


def sentence(report: DreamReport, language: str) -> str:
    """Return the text of the report."""
    if report.failed:
        return translate("dream.failed", language)
    if not report.entries:
        return translate("dream.nothing_new", language)
    word = "dream.done" if report.sha else "dream.no_change"
    lines = [translate(word, language, entries=report.entries, changes=report.changes, sha=report.sha)]
    lines += [translate("dream.waits", language, waits=report.waits)] if report.waits else []
    return " ".join(lines)
