"""Stage 6, assemble: what the model is shown. The prefix is the same bytes as the turn before.

Nothing volatile is in the system prompt; time and names ride with each user line, rendered once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from agent.draft import Draft
from agent.memory.conversation import Conversation
from agent.memory.files import lines as build
from agent.memory.snapshot import ScopeMemory, opening, system_prompt
from gateway.events import Attachment, InboundKind, InboundMessage
from gateway.ports import InboxRow, Line

NAME_LENGTH = 64
_UNSAFE = re.compile(r"[\[\]<>{}()]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn happens, as far as the prompt is concerned."""

    scope: str
    zone: str


class Context:
    """Builds prompts from conversations and scope memory."""

    def __init__(self, memory: ScopeMemory, *, abilities: str) -> None:
        self._memory = memory
        self._abilities = abilities

    async def assemble(
        self,
        draft: Draft,
        rows: Sequence[InboxRow],
        notes: Sequence[InboxRow],
        conversation: Conversation,
        place: Place,
    ) -> list[Mapping[str, Any]]:
        """Open the draft (unless an earlier attempt did) and return system prompt and history."""
        if not draft.is_resumed:
            view = await self._memory.view(place.scope)
            begun = opening(conversation, view, place.zone, abilities=self._abilities, at=draft.next_index)
            told = [self.note(draft, row, place.zone) for row in notes]
            said = [self.user(draft, row, place.zone) for row in rows]
            draft.open([*begun.lines, *told, *said], begun.blobs, rows)
        snapshot = conversation.snapshot_with(draft.lines, draft.blobs)
        return [{"role": "system", "content": system_prompt(snapshot)}, *conversation.messages_with(draft.lines)]

    def user(self, draft: Draft, row: InboxRow, zone: str) -> Line:
        """Render what a person wrote as a transcript line."""
        message = row.message
        return draft.message(
            "user",
            content(message),
            message.sent_at,
            **speaker(message),
            head=head(message, zone),
            origin="user",
        )

    def note(self, draft: Draft, row: InboxRow, zone: str) -> Line:
        """Render an edit or deletion that came after its turn."""
        message = row.message
        if message.kind is InboundKind.DELETION:
            return build.forgotten(message.message_id)
        return draft.message(
            "user",
            content(message),
            message.sent_at,
            **speaker(message),
            # In the head, so that people and searches read nothing but what was typed.
            head=f"{head(message, zone)}, an earlier message edited to",
            origin="user",
        )


def speaker(message: InboundMessage) -> dict[str, Any]:
    """Return the fields of a line that say who spoke and in which message."""
    return {"by": {"id": message.sender.id, "name": clean_name(message.sender.name)}, "mid": message.message_id}


def head(message: InboundMessage, zone: str) -> str:
    """Return ``Sat 21 Nov 22:20 CET, Ann``: weekday, local time and zone, who spoke."""
    when = local(message.sent_at, zone)
    name = clean_name(message.sender.name)
    return f"{when}, {name}" if name else when


def local(at: datetime, zone: str) -> str:
    """Return a moment as people write it, in English whatever the machine's locale."""
    moment = at.astimezone(ZoneInfo(zone))
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[moment.weekday()]
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[moment.month - 1]
    return f"{day} {moment.day} {month} {moment:%H:%M} {moment.tzname()}"


def clean_name(name: str) -> str:
    """Make a display name harmless in a prompt: one line, no brackets or controls, at most 64 characters."""
    flat = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in name)
    return " ".join(_UNSAFE.sub("", flat).split())[:NAME_LENGTH].strip()


def content(message: InboundMessage) -> str:
    """Return the text with what it quotes and the files it carries, as facts."""
    parts = [message.text] if message.text else []
    if message.quoted:
        quoted = "\n".join(f"> {line}" for line in message.quoted.splitlines())
        parts.insert(0, quoted)
    parts.extend(fact(attachment) for attachment in message.attachments)
    return "\n".join(parts)


def fact(attachment: Attachment) -> str:
    """Return one line on a file: kind, name, size."""
    caption = f": {attachment.caption}" if attachment.caption else ""
    return f"({attachment.kind} {clean_name(attachment.name)}, {attachment.size} bytes{caption})"
