"""A whole conversation as one document: Markdown or JSON for its person, HTML without scripts for readers of a link."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

from gateway.channel import SessionReader
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.ports.channel import DisplayedMessage
from gateway.text import sanitize

LONGEST_DOCUMENT = 10_000_000  # characters of texts; the oldest messages beyond are left out
_TURNS_AT_ONCE = 200
_SHARED_TURNS_AT_ONCE = 50  # a page of a link is short
MOST_LATER_TURNS = 2_000  # of a conversation, behind the last turn that a link shows


@dataclass(frozen=True, slots=True)
class ConversationText:
    """The messages of a conversation, oldest first."""

    title: str
    lines: Sequence[DisplayedMessage]
    is_cut: bool = False  # older messages are left out


async def read_conversation(
    sessions: SessionReader, key: SessionKey, title: str, *, until: str = "", longest: int = LONGEST_DOCUMENT
) -> ConversationText:
    """Read the newest messages of *key*, at most *longest* characters.

    With *until*, those up to the last one of that turn; none if the turn is gone, or more than `MOST_LATER_TURNS` are
    behind it. Queued messages and presses of buttons are left out.
    """
    found: list[DisplayedMessage] = []  # the newest first
    size, before, is_found, is_cut = 0, "", not until, False
    at_once = _SHARED_TURNS_AT_ONCE if until else _TURNS_AT_ONCE
    for number in count(1):
        page = await sessions.displayed_page(key, before, turns=at_once)
        if page is None:
            break
        lines = [each for each in page.lines if not each.is_press and each.state == "done"]
        if not is_found:
            last = max((n for n, each in enumerate(lines) if each.turn == until), default=-1)
            is_found, lines = last >= 0, lines[: last + 1]
        for line in reversed(lines):
            size += len(line.text)
            if size > longest:
                break
            found.append(line)
        before = page.before
        is_cut = bool(before) or size > longest
        if not before or size > longest or (not is_found and number * at_once >= MOST_LATER_TURNS):
            break
    return ConversationText(title, found[::-1], is_cut=is_cut)


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
