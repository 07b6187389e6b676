"""A whole conversation as one document: Markdown or JSON for its person, HTML without scripts for readers of a link."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.channel import SessionReader
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.ports.channel import DisplayedMessage
from gateway.text import sanitize

LONGEST_DOCUMENT = 10_000_000  # characters of texts; the oldest messages beyond are left out
_TURNS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class ConversationText:
    """The messages of a conversation, oldest first."""

    title: str
    lines: Sequence[DisplayedMessage]
    is_cut: bool = False  # older messages are left out


async def read_conversation(
    sessions: SessionReader, key: SessionKey, title: str, *, until: str = "", longest: int = LONGEST_DOCUMENT
) -> ConversationText:
    """Read the newest messages of *key*, up to *longest* characters.

    With *until*, those up to the last one of that turn; none if the turn is gone. Queued messages and presses of
    buttons are left out.
    """
    pages: list[Sequence[DisplayedMessage]] = []
    size, before, is_found = 0, "", not until
    while True:
        page = await sessions.displayed_page(key, before, turns=_TURNS_AT_ONCE)
        if page is None:
            break
        lines = [each for each in page.lines if not each.is_press and each.state == "done"]
        if not is_found:
            last = max((n for n, each in enumerate(lines) if each.turn == until), default=-1)
            is_found, lines = last >= 0, lines[: last + 1]
        pages.append(lines)
        size += sum(len(each.text) for each in lines)
        before = page.before
        if not before or size > longest:
            break
    return ConversationText(title, [line for lines in reversed(pages) for line in lines], is_cut=bool(before))


def to_markdown(conversation: ConversationText, language: str) -> str:
    """Return the conversation as Markdown: a heading for each message, its text as it was written."""
    blocks = [f"# {_flat(conversation.title)}"]
    if conversation.is_cut:
        blocks.append(f"*{translate('web.export_cut', language)}*")
    for line in conversation.lines:
        if line.role == "divider":
            blocks.append("---")
        else:
            blocks += [
                f"## {translate('web.you' if line.role == 'user' else 'web.bot', language)} · {_minute(line.at)}",
                sanitize(line.text),
            ]
    return "\n\n".join(blocks) + "\n"


def to_json(conversation: ConversationText) -> str:
    """Return the conversation as a JSON object with its messages."""
    messages = [
        {
            "role": line.role,
            "at": line.at.isoformat(),
            "text": sanitize(line.text),
            **({"id": line.message_id} if line.message_id else {}),
            **({"replaces": line.replaces} if line.replaces else {}),
            **({"files": [each.name for each in line.attachments]} if line.attachments else {}),
        }
        for line in conversation.lines
        if line.role != "divider"
    ]
    document = {"title": conversation.title, "is_cut": conversation.is_cut, "messages": messages}
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _flat(text: str) -> str:
    return " ".join(sanitize(text).split())


def _minute(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
