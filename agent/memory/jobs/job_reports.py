"""Reports of jobs in chats: a turn record with its message, stored once per job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent.memory.storage import transcript_lines as build
from gateway.events import Attachment, ChatKind, MessageButton, OutboundKind, OutboundMessage, short_id
from gateway.ports.journal import Job, MessageOutcome, SessionRow, TurnRecord

if TYPE_CHECKING:
    from gateway.store.records import SqlTurnRecords


async def send_job_report(
    records: SqlTurnRecords,
    job: Job,
    session: SessionRow,
    text: str,
    *,
    at: datetime,
    reply_to: str = "",
    visible_to: str = "",
    chat_kind: ChatKind = ChatKind.DIRECT,
    attachments: Sequence[Attachment] = (),
    facts: Sequence[Mapping[str, Any]] = (),
    choices: Sequence[MessageButton] = (),
) -> None:
    """Send *text* to the chat of *session* with *attachments*, whose *facts* its transcript keeps, and buttons.

    Only *visible_to* sees it, if given. Idempotent: a stored record of this job is not replaced.
    """
    turn = f"t{short_id(job.id)}"
    files = {"files": list(facts)} if facts else {}
    record = TurnRecord(
        turn=turn,
        key=session.key,
        transcript=session.transcript,
        scope=job.scope,
        outcome=MessageOutcome.ANSWERED,
        # A message visible to one person only is never stored in a shared transcript.
        lines=() if visible_to else (build.notice(turn, text, at, **files),),
        from_index=session.next_index,
        to_index=session.next_index,
        inbox=(),
        at=at,
    )
    message = OutboundMessage(
        id=f"{turn}.1",
        key=session.key,
        text=text,
        kind=OutboundKind.NOTICE,
        reply_to=reply_to,
        visible_to=visible_to,
        chat_kind=chat_kind,
        attachments=tuple(attachments),
        choices=tuple(choices),
    )
    await records.append(record, outbound=(message,))
