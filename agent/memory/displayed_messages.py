"""Transcript lines as people see them in a chat: what is shown of each, in which order, with which buttons. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from agent.attachments.file_facts import (
    TAINTED,
    UNTRUSTED,
    Fact,
    attachment_of,
    fact_of,
    facts_for_display,
    facts_in,
)
from agent.memory.storage.transcript_lines import FORGOTTEN, kind_of, parse_time
from gateway.events import AnswerSource, InboundKind, SessionKey, turn_id
from gateway.ports.conversations import DisplayedMessage
from gateway.ports.journal import InboxRow, Line, PendingDelivery
from gateway.text import append_commands

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

DisplayedTurn: TypeAlias = tuple[str, Sequence[Line]]  # its id and lines, the `end` line last


def build_divider(transcript: str, at: str) -> DisplayedTurn:
    """Return the line that is shown where /new ended *transcript*, as a turn."""
    return f"{transcript}.end", ({"kind": "divider", "timestamp": at},)


@dataclass(frozen=True, slots=True)
class _SeenLine:
    """A message, the time when it appeared in the chat, and the end of its turn; None if unknown."""

    line: DisplayedMessage
    since: datetime | None = None
    ended: datetime | None = None

    def stands_before(self, other: _SeenLine) -> bool:
        """Return True if people saw this line before *other*, whose record came earlier.

        A clock that was set back tells nothing: then this turn seems to have ended before the other one.
        """
        if self.since is None or self.ended is None or other.since is None or other.ended is None:
            return False
        return self.since < other.since and other.ended <= self.ended


def order_messages(turns: Sequence[DisplayedTurn], queued_rows: Sequence[InboxRow]) -> list[DisplayedMessage]:
    """Return the messages in the order in which people saw them; turns are in the order of their commits.

    A command answered during a turn is committed before it, and a message may be queued behind an answer.
    """
    ordered: list[_SeenLine] = []
    for each in (*_displayed(turns), *_queued_lines(queued_rows, turns, datetime.now(UTC))):
        place = len(ordered)
        while place and each.stands_before(ordered[place - 1]):
            place -= 1
        ordered.insert(place, each)
    return [each.line for each in ordered]


def _displayed(turns: Sequence[DisplayedTurn]) -> list[_SeenLine]:
    deleted = {line.get("mid") for _, lines in turns for line in lines if kind_of(line) == "forgotten"}
    shown: list[_SeenLine] = []
    for turn, lines in turns:
        # Records of earlier versions say nothing of when their lines were seen, and stay in the order of their commits.
        ended = parse_time(lines[-1].get("at")) if any("seen" in line for line in lines) else None
        seen = [(each, _since(line, each.role)) for line in lines for each in visible_lines(turn, line, deleted)]
        shown += [_SeenLine(_numbered(each, n), since, ended) for n, (each, since) in enumerate(seen)]
    return shown


def _since(line: Line, role: str) -> datetime | None:
    """Return the time when the part of *role* in a transcript line appeared in the chat, by our own clock."""
    seen = parse_time(line.get("seen"))
    # In a command or a rejected message, `seen` is the user's part; a reply appears when it was given.
    return seen if role == "user" or (seen and "mid" not in line) else parse_time(line.get("timestamp"))


def with_buttons(
    lines: Sequence[DisplayedMessage], key: SessionKey, messages: Mapping[str, Sequence[PendingDelivery]]
) -> list[DisplayedMessage]:
    """Return *lines* with the buttons that can still be pressed, by the *messages* of each turn.

    A press whose answer settles it takes its row of buttons away; the line of a press is its command.
    """
    settling = {turn for turn, each in messages.items() if any(one.message.settles for one in each)}
    commands = {line.text for line in lines if line.turn in settling and line.role == "user"}
    found = [_add_buttons(line, key, messages.get(line.turn, ()), commands) for line in reversed(lines)]
    return found[::-1]


def _add_buttons(
    line: DisplayedMessage, key: SessionKey, messages: Sequence[PendingDelivery], commands: AbstractSet[str]
) -> DisplayedMessage:
    if line.role in ("user", "divider"):
        return line
    for each in messages:
        parts = [one.part for one in each.parts if one.part.choices]
        if each.message.key == key and parts:
            over = {button.row for button in parts[-1].choices if button.command in commands}
            left = tuple(button for button in parts[-1].choices if button.row not in over)
            # The stored line names the commands in its text, for readers without buttons.
            text = line.text.removesuffix(append_commands("", parts[-1].choices).lstrip()).rstrip()
            return replace(line, part=parts[-1].id, choices=left, text=text) if left else line
    return line


def visible_lines(turn: str, line: Line, deleted: AbstractSet[object]) -> list[DisplayedMessage]:
    """Return the visible messages of one transcript line. Text beside a tool call was never sent."""
    kind, role = kind_of(line), line.get("role")
    if kind == "divider":
        return [_line(turn, "divider", line, "")]
    if kind in ("command", "notice"):
        asked, told = ("content", "reply") if kind == "command" else ("asked", "content")
        is_gone = line.get("mid") and line.get("mid") in deleted
        # With a message id, files came with the user's message; otherwise they were sent with the reply.
        came, sent = (facts_in(line), ()) if line.get("mid") else ((), facts_in(line))
        said = _line(turn, "user", line, FORGOTTEN) if is_gone else _line(turn, "user", line, line.get(asked), came)
        is_press = kind == "command" and not line.get("mid")  # a typed message has an id
        said = replace(said, at=_since(line, "user") or said.at, is_press=is_press)
        both = [said, _line(turn, kind, line, line.get(told), sent)]
        return [each for each in both if each.text]
    if kind != "message" or role not in ("user", "assistant") or (role == "assistant" and line.get("tool_calls")):
        return []
    if line.get("mid") and line.get("mid") in deleted:
        return [_line(turn, str(role), line, FORGOTTEN)]
    files = facts_in(line)
    content = line.get("content")
    if line.get("stopped"):
        shown_text = "\n\n".join(part for part in (content, line["stopped"]) if part)
        shown = _line(turn, "assistant" if content else "notice", line, shown_text)
        return [replace(shown, is_partial=bool(content))]
    if not content and not files:
        return []
    return [replace(_line(turn, str(role), line, content, files), is_partial=bool(line.get("broken")))]


def _line(turn: str, role: str, line: Line, content: object, files: Sequence[Fact] = ()) -> DisplayedMessage:
    by = line.get("by")
    typed = content if isinstance(content, str) else _text(content)
    return DisplayedMessage(
        id=turn,
        turn=turn,
        role=role,
        text="\n".join(part for part in (typed, facts_for_display(files)) if part),
        at=parse_time(line.get("timestamp")) or _EPOCH,
        name=str(by.get("name", "")) if role == "user" and isinstance(by, dict) else "",
        message_id=str(line.get("mid", "")) if role == "user" else "",
        typed=typed if role == "user" else "",
        attachments=tuple(attachment_of(each) for each in files if each.get("blob") and not each.get("quoted")),
        quoted_files=tuple(attachment_of(each) for each in files if each.get("blob") and each.get("quoted")),
        replaces=str(line.get("replaces", "")) if role == "user" else "",
        is_others=role == "user" and line.get("origin") == UNTRUSTED,
        # Lines of earlier versions lack the field; none of their addresses is known to be harmless.
        sources=_sources(line) if role == "notice" else (),
        links=tuple(map(str, line.get("links", ()))) if role == "assistant" and line.get(TAINTED) else None,
    )


def _sources(line: Line) -> tuple[AnswerSource, ...]:
    """Return the sources that a notice lists."""
    return tuple(AnswerSource(str(each["url"]), str(each["title"])) for each in line.get("footnotes", ()))


def _text(content: object) -> str:
    """Return the text among content parts (an image beside it is not text)."""
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict) and "text" in part)


def _numbered(line: DisplayedMessage, n: int) -> DisplayedMessage:
    return replace(line, id=f"{line.turn}/{n}")


def _queued_lines(rows: Sequence[InboxRow], turns: Sequence[DisplayedTurn], now: datetime) -> list[_SeenLine]:
    """Return the rows that are in no turn yet: accepted, not answered."""
    answered = {seq for _, lines in turns for line in lines[-1:] for seq in map(str, line.get("inbox", ()))}
    queued: list[_SeenLine] = []
    for row in rows:
        message = row.message
        if str(row.seq) in answered or message.kind not in (InboundKind.MESSAGE, InboundKind.COMMAND):
            continue
        turn = row.turn or turn_id(message)
        line = DisplayedMessage(
            id=f"{turn_id(message)}/0",
            turn=turn,
            role="user",
            text="\n".join(
                part for part in (message.text, facts_for_display(map(fact_of, message.attachments))) if part
            ),
            at=message.sent_at,
            name=message.sender.name,
            message_id=message.message_id,
            state="waiting",
            replaces=message.replaces,
            is_press=message.kind is InboundKind.COMMAND and not message.message_id,
        )
        queued.append(_SeenLine(line, row.accepted_at, now))
    return queued
