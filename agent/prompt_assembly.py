"""Stage 6, assemble: what the model is shown. The prefix is the same bytes as the turn before.

Nothing volatile is in the system prompt; time and names ride with each user line, rendered once.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from agent.attachments.attachment_loader import AttachmentLoader
from agent.attachments.file_facts import UNTRUSTED, Fact, fact_of
from agent.attachments.transcription import UsageAttribution
from agent.auto_recall import AutoRecall
from agent.chat_profiles import ChatProfile
from agent.memory.messages.sender_names import SenderNames
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.prompt_snapshot import ScopeMemory, opening, system_prompt
from agent.memory.storage import transcript_lines as build
from agent.quoted_context import build_quoted
from agent.turn_draft import TurnDraft
from gateway.events import ChatKind, InboundKind, InboundMessage
from gateway.ports import HistoryReader, InboxRow, Line

NAME_LENGTH = 64
_UNSAFE = "<>:"  # with every kind of bracket


@dataclass(frozen=True, slots=True)
class TurnScope:
    """Where a turn happens, as far as the prompt is concerned."""

    scope: str
    zone: str


class PromptAssembler:
    """Builds prompts from conversations and scope memory."""

    def __init__(
        self,
        memory: ScopeMemory,
        *,
        files: AttachmentLoader | None = None,
        overheard: HistoryReader | None = None,
        recalling: AutoRecall | None = None,
    ) -> None:
        """Without *files* an attachment is its bare fact; without *overheard* nothing is read first.

        Without *recalling* nothing is looked up before the model is asked.
        """
        self._memory = memory
        self._files = files
        self._overheard = overheard
        self._recalling = recalling

    async def assemble(
        self,
        draft: TurnDraft,
        rows: Sequence[InboxRow],
        notes: Sequence[InboxRow],
        conversation: Conversation,
        place: TurnScope,
        manner: ChatProfile,
        purse: UsageAttribution | None = None,
    ) -> list[Mapping[str, Any]]:
        """Open the draft (unless an earlier attempt did) and return system prompt and history.

        Files are fetched and the chat is read on account of *purse*; without one they are left alone.
        """
        if not draft.is_resumed:
            before: tuple[InboundMessage, ...] = ()
            if purse is not None and rows[0].message.chat_kind is ChatKind.GROUP:
                before = await self._before(draft, rows[0].message, conversation)
            facts = await self._facts(rows, place, purse)
            recalled = await self._recalled(rows, conversation, place) if purse is not None else {}
            view = (await self._memory.view(place.scope)).spoken_as(manner.soul)
            names = conversation.speaker_names
            for each in (*before, *(row.message for row in (*notes, *rows))):
                names.note(each.sender.id, clean_name(each.sender.name))
            at = draft.next_index
            told = [self.note(draft, row, place.zone, names) for row in notes]
            said = [
                self._user(draft, row, place.zone, names, files, before if row is rows[0] else ())
                for row, files in zip(rows, facts, strict=True)
            ]
            said[-1] = {**said[-1], **recalled}
            # What does not fit goes before the snapshot is taken, so that the prefix breaks once.
            fit = conversation.compacted([*told, *said], at)
            begun = opening(
                conversation,
                view.within(conversation.room.tokens),
                place.zone,
                abilities=manner.toolbox.abilities,
                model=manner.model.name,
                at=at,
                replay_from=fit.replay_from,
            )
            draft.open([*begun.lines, *told, *said, *fit.lines], begun.blobs, rows)
        snapshot = conversation.snapshot_with(draft.lines, draft.blobs)
        return [{"role": "system", "content": system_prompt(snapshot)}, *conversation.messages_with(draft.lines)]

    async def steered(
        self,
        draft: TurnDraft,
        rows: Sequence[InboxRow],
        place: TurnScope,
        conversation: Conversation,
        purse: UsageAttribution,
    ) -> list[Line]:
        """Render what the sender wrote meanwhile as transcript lines."""
        facts = await self._facts(rows, place, purse)
        names = conversation.speaker_names
        return [self._user(draft, row, place.zone, names, files, ()) for row, files in zip(rows, facts, strict=True)]

    def note(self, draft: TurnDraft, row: InboxRow, zone: str, names: SenderNames) -> Line:
        """Render an edit or deletion that came after its turn."""
        message = row.message
        if message.kind is InboundKind.DELETION:
            return build.forgotten_line(message.message_id)
        names.note(message.sender.id, clean_name(message.sender.name))
        return draft.message(
            "user",
            message.text,
            message.sent_at,
            **speaker_fields(message),
            # In the head, so that people and searches read nothing but what was typed.
            head=f"{message_header(message, zone, names)}, an earlier message edited to",
            indented=True,
            origin="user",
            files=[fact_of(each) for each in message.attachments] or None,
        )

    async def _facts(
        self, rows: Sequence[InboxRow], place: TurnScope, purse: UsageAttribution | None
    ) -> Sequence[Sequence[Fact]]:
        """Return the facts of each row's files; usually there are none, and nothing is done."""
        if not any(row.message.attachments for row in rows):
            return [()] * len(rows)
        async with asyncio.TaskGroup() as tasks:
            taken = [tasks.create_task(self._take(row.message, place, purse), name="files") for row in rows]
        return [task.result() for task in taken]

    async def _take(self, message: InboundMessage, place: TurnScope, purse: UsageAttribution | None) -> Sequence[Fact]:
        if self._files is None or purse is None or not message.attachments:
            return [fact_of(each) for each in message.attachments]
        return await self._files.load(place.scope, message.key, message.attachments, purse)

    async def _recalled(
        self, rows: Sequence[InboxRow], conversation: Conversation, place: TurnScope
    ) -> Mapping[str, str]:
        if self._recalling is None or rows[0].message.kind is not InboundKind.MESSAGE:
            return {}
        return await self._recalling.recall_before(
            place.scope, "\n".join(row.message.text for row in rows), conversation
        )

    async def _before(
        self, draft: TurnDraft, message: InboundMessage, conversation: Conversation
    ) -> tuple[InboundMessage, ...]:
        """Return what was said in the chat since we last heard somebody there."""
        if self._overheard is None or message.kind is not InboundKind.MESSAGE:
            return ()
        return await self._overheard.messages_before(message, since=conversation.last_heard or draft.begun_anew)

    def _user(
        self,
        draft: TurnDraft,
        row: InboxRow,
        zone: str,
        names: SenderNames,
        files: Sequence[Fact],
        before: Sequence[InboundMessage],
    ) -> Line:
        """Render what a person wrote as a transcript line; what they passed on, or quote, may be words of others."""
        message = row.message
        return draft.message(
            "user",
            message.text,
            message.sent_at,
            **speaker_fields(message),
            head=message_header(message, zone, names),
            indented=True,
            seen=build.format_time(row.accepted_at),
            origin=UNTRUSTED if message.is_forwarded else "user",
            files=list(files) or None,
            quoted=build_quoted(message, before, lambda each: message_header(each, zone, names)) or None,
            quoted_origin=UNTRUSTED if self._quotes_others(message) else None,
        )

    def _quotes_others(self, message: InboundMessage) -> bool:
        """Say whether *message* quotes somebody whom its chat does not admit, as far as anybody can tell."""
        if not message.quoted.strip() or not message.quoted_by:
            return False
        return self._overheard is None or not self._overheard.admits(message, message.quoted_by)


def speaker_fields(message: InboundMessage) -> dict[str, Any]:
    """Return the fields of a line that say who spoke and in which message."""
    return {"by": {"id": message.sender.id, "name": clean_name(message.sender.name)}, "mid": message.message_id}


def message_header(message: InboundMessage, zone: str, names: SenderNames | None = None) -> str:
    """Return ``Sat 21 Nov 22:20 CET, Ann``: weekday, local time and zone, who spoke.

    Somebody whose name others in *names* have too carries the end of their id: ``Ann (U0ANN)``.
    """
    when = local(message.sent_at, zone)
    name = clean_name(message.sender.name)
    name = name if names is None else names.label(message.sender.id, name)
    return f"{when}, {name}" if name else when


def local(at: datetime, zone: str) -> str:
    """Return a moment as people write it, in English whatever the machine's locale."""
    moment = at.astimezone(ZoneInfo(zone))
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[moment.weekday()]
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[moment.month - 1]
    return f"{day} {moment.day} {month} {moment:%H:%M} {moment.tzname()}"


def clean_name(name: str) -> str:
    """Make a display name harmless in a prompt: one line, no brackets, colons or controls, at most 64 characters."""
    flat = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in name)
    plain = "".join(each for each in flat if each not in _UNSAFE and unicodedata.category(each) not in ("Ps", "Pe"))
    return " ".join(plain.split())[:NAME_LENGTH].strip()
