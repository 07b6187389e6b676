"""Saying in the chat what a Dream came to, once, to whoever asked for it."""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from agent.memory.dream.applying import Report
from agent.memory.files import lines as build
from gateway.events import ChatKind, OutboundKind, OutboundMessage, SessionKey
from gateway.ports import EndState, Job, Records, SessionRow, TurnRecord
from gateway.words import say

_ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who wants to hear of a Dream, and where."""

    key: str
    reply_to: str = ""
    visible_to: str = ""  # in a shared chat its asker alone
    chat_kind: str = ChatKind.DIRECT.value
    language: str = "en"

    def payload(self) -> dict[str, Any]:
        """Return it as a job carries it."""
        return {_ASKED: asdict(self)}

    @classmethod
    def of(cls, job: Job) -> Asked | None:
        """Read it off a job; None for one that nobody asked for."""
        asked = job.payload.get(_ASKED)
        return cls(**asked) if isinstance(asked, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Teller:
    """Puts a report into the outbox; the job's id makes that once."""

    records: Records
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    now: Callable[[], datetime]

    async def tell(self, job: Job, asked: Asked | None, report: Report) -> None:
        """Say what came of the job to whoever asked for it, if anybody did."""
        if asked is None:
            return
        key = SessionKey.parse(asked.key)
        session = await self.session(key)
        turn = "t" + b32encode(sha256(job.id.encode("utf-8", "surrogatepass")).digest()[:10]).decode().lower()
        text = sentence(report, asked.language)
        record = TurnRecord(
            turn=turn,
            key=key,
            transcript=session.transcript,
            scope=job.scope,
            outcome=EndState.ANSWERED,
            # What one person alone sees never joins a shared transcript (FORMATS.md, Sends).
            lines=() if asked.visible_to else (build.notice(turn, text, self.now()),),
            from_index=session.next_index,
            to_index=session.next_index,
            inbox=(),
            at=self.now(),
        )
        message = OutboundMessage(
            id=f"{turn}.1",
            key=key,
            text=text,
            kind=OutboundKind.NOTICE,
            reply_to=asked.reply_to,
            visible_to=asked.visible_to,
            chat_kind=ChatKind(asked.chat_kind),
        )
        await self.records.append(record, outbound=(message,))


def sentence(report: Report, language: str) -> str:
    """Return what people are told."""
    if report.failed:
        return say("dream.failed", language)
    if not report.entries:
        return say("dream.nothing_new", language)
    word = "dream.done" if report.sha else "dream.no_change"
    lines = [say(word, language, entries=report.entries, changes=report.changes, sha=report.sha)]
    lines += [say("dream.waits", language, waits=report.waits)] if report.waits else []
    return " ".join(lines)
