"""Read access to conversations for channels, commands and the CLI: stored turns as people see them, and the inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from agent.base.file_facts import TAINTED, UNTRUSTED, Fact, attachment_of, fact_of, facts_for_display, facts_in
from agent.base.scopes import rebase_reference
from agent.base.transcript_lines import FORGOTTEN, TranscriptBlock, decode_lines, format_time, kind_of, parse_time
from gateway.events import AnswerSource, InboundKind, SessionKey, turn_id
from gateway.ports.channel import DisplayedMessage, DisplayedPage, SessionInfo
from gateway.ports.journal import InboxRow, Line, PendingDelivery
from gateway.ports.memory import StoredTurn, anchor_index
from gateway.text import append_commands

if TYPE_CHECKING:
    from gateway.store.journal import SqlJournal
    from gateway.store.outbox import SqlOutbox
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

DisplayedTurn: TypeAlias = tuple[str, Sequence[Line]]  # its id and lines, the `end` line last
_TURNS_AT_ONCE = 200
_FEWEST_TURNS = 20
_TURNS_WITH_BUTTONS = 30  # the newest ones of a conversation
_LONGEST_POSITION = 18  # digits


class StoredSessions:
    """Implements `SessionReader`."""

    def __init__(
        self, records: SqlTurnRecords, transcripts: SqlTranscripts, journal: SqlJournal, outbox: SqlOutbox
    ) -> None:
        self._records = records
        self._transcripts = transcripts
        self._journal = journal
        self._outbox = outbox

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Return the newest *limit* messages as people saw them, oldest first, queued ones included."""
        # In this order: messages move from the inbox to the records.
        queued_rows = await self._journal.waiting_rows(key)
        if limit <= 0:
            return ()
        turns = max(limit, _FEWEST_TURNS)
        while True:  # some turns have nothing to display
            scope, stored = await self._current(key, turns)
            lines = await asyncio.to_thread(order_messages, [_displayed(each) for each in stored], queued_rows)
            if len(lines) >= limit or len(stored) < turns:
                break
            turns *= 2
        return tuple(line if scope is None else _anchored(line, scope) for line in lines[-limit:])

    async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
        """Return the messages of *turns* turns before the position *before*; see `SessionReader.displayed_page`."""
        position = _parse_position(before)
        if before and position is None:
            return None
        queued_rows = () if before else await self._journal.waiting_rows(key)
        scope = await self._records.scope_of(key)
        if scope is None:
            return None if before else DisplayedPage(tuple(order_messages((), queued_rows)))
        stored = await self._transcripts.newest(scope, key, turns, before=position)
        has_more = bool(stored) and bool(await self._transcripts.newest(scope, key, 1, before=stored[0].seq))
        lines = await asyncio.to_thread(_order_page, stored, queued_rows)
        if not before:
            newest = list(dict.fromkeys(line.turn for line in reversed(lines)))[:_TURNS_WITH_BUTTONS]
            lines = with_buttons(lines, key, await self._outbox.messages_of_all(newest))
        start = str(stored[0].seq) if has_more else ""
        return DisplayedPage(tuple(_anchored(line, scope) for line in lines), start)

    async def recent_turns(self, key: SessionKey, *, limit: int) -> Sequence[Sequence[Line]]:
        """Return the lines of the newest *limit* turns of the current transcript, oldest first.

        A command is a turn too; queued messages are not.
        """
        _, stored = await self._current(key, limit)
        return [decode_lines(each.body) for each in stored]

    async def find_turn(self, key: SessionKey, scope: str, turn: str) -> RecordedTurn | None:
        """Return a turn and the window before it; None if it is not stored.

        The window is complete from its last replay start and snapshot on.
        """
        found = await self._transcripts.find(scope, key, turn)
        if found is None:
            return None
        pages: list[Sequence[TranscriptBlock]] = []  # the newest first
        search = _WindowSearch()
        before = found.seq
        while not search.is_complete:
            stored = await self._transcripts.newest(
                scope, key, _TURNS_AT_ONCE, before=before, transcript=found.transcript
            )
            if not stored:
                break
            page = await asyncio.to_thread(_blocks, stored)
            search.add(page)
            pages.append(page)
            before = stored[0].seq
        return RecordedTurn(_block(found), [*chain.from_iterable(reversed(pages))])

    async def _current(self, key: SessionKey, limit: int) -> tuple[str | None, Sequence[StoredTurn]]:
        """Return the scope and at most *limit* newest turns of the current transcript.

        Its first turn is the /new that it began with.
        """
        scope = await self._records.scope_of(key)
        if scope is None or limit <= 0:
            return scope, ()
        stored = await self._transcripts.newest(scope, key, limit)
        first = max((n for n, each in enumerate(stored) if each.new_transcript), default=0)
        return scope, stored[first:]

    async def all(self) -> tuple[SessionInfo, ...]:
        """Return every session, the most recently used first."""
        return tuple(
            SessionInfo(
                key=row.key,
                transcript=row.transcript,
                messages=row.next_index,
                updated_at=row.used_at or row.created_at,
            )
            for row in await self._records.sessions()
        )


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A stored turn, and the turns before it that its prompt was made from."""

    block: TranscriptBlock
    earlier: Sequence[TranscriptBlock]


def _block(turn: StoredTurn) -> TranscriptBlock:
    return TranscriptBlock(turn.turn, tuple(decode_lines(turn.body)), turn.from_index, turn.to_index)


def _blocks(turns: Sequence[StoredTurn]) -> list[TranscriptBlock]:
    return [*map(_block, turns)]


@dataclass(slots=True)
class _WindowSearch:
    """What the newest pages of a transcript have of its window."""

    replay_from: int | None = None  # the last replay start
    first: int | None = None  # index of the first message in the pages
    has_snapshot: bool = False

    @property
    def is_complete(self) -> bool:
        """True if the pages have the last snapshot, and all turns from the last replay start on."""
        return self.has_snapshot and self.first is not None and (self.replay_from or -1) >= self.first

    def add(self, page: Sequence[TranscriptBlock]) -> None:
        """Add the page before those that were added."""
        lines = [line for block in page for line in block.lines]
        if self.replay_from is None:
            anchors = [anchor_index(line) for line in lines if kind_of(line) in ("pointer", "mark")]
            self.replay_from = anchors[-1] if anchors else None
        self.first = next((block.from_index for block in page if block.to_index > block.from_index), self.first)
        self.has_snapshot = self.has_snapshot or any(kind_of(line) == "snapshot" for line in lines)


def _parse_position(text: str) -> int | None:
    """Return the seq of a position; None for any other text."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_POSITION else None


def _displayed(turn: StoredTurn) -> DisplayedTurn:
    return turn.turn, decode_lines(turn.body)


def _order_page(turns: Sequence[StoredTurn], queued_rows: Sequence[InboxRow]) -> list[DisplayedMessage]:
    """Return the messages of *turns*, with a divider behind each turn that ends a transcript."""
    history: list[DisplayedTurn] = []
    for each in turns:
        history.append(_displayed(each))
        if each.new_transcript:
            history.append(build_divider(each.transcript, format_time(each.at)))
    return order_messages(history, queued_rows)


def _anchored(line: DisplayedMessage, scope: str) -> DisplayedMessage:
    """Return *line* with its attachments located in *scope*, which may have been renamed since."""
    if not line.attachments:
        return line
    return replace(
        line, attachments=tuple(replace(each, blob=rebase_reference(scope, each.blob)) for each in line.attachments)
    )


# -- messages as people see them -------------------------------------------------------------------


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
    for each in (*_seen_turns(turns), *_queued_lines(queued_rows, turns, datetime.now(UTC))):
        place = len(ordered)
        while place and each.stands_before(ordered[place - 1]):
            place -= 1
        ordered.insert(place, each)
    return [each.line for each in ordered]


def _seen_turns(turns: Sequence[DisplayedTurn]) -> list[_SeenLine]:
    deleted = {line.get("mid") for _, lines in turns for line in lines if kind_of(line) == "forgotten"}
    shown: list[_SeenLine] = []
    for turn, lines in turns:
        # Records of earlier versions say nothing of when their lines were seen, and stay in the order of their commits.
        ended = parse_time(lines[-1].get("at")) if any("seen" in line for line in lines) else None
        seen = [(each, _since(line, each.role)) for line in lines for each in visible_lines(turn, line, deleted)]
        seen = _with_steps(seen, lines)
        shown += [_SeenLine(_numbered(each, n), since, ended) for n, (each, since) in enumerate(seen)]
    return shown


def _with_steps(
    messages: list[tuple[DisplayedMessage, datetime | None]], lines: Sequence[Line]
) -> list[tuple[DisplayedMessage, datetime | None]]:
    """Return *messages* with the number of the turn's tool calls on the last line by the bot."""
    steps = sum(len(line.get("tool_calls") or ()) for line in lines)
    has_reasoning = any(line.get("thinking") for line in lines)
    places = [n for n, (each, _) in enumerate(messages) if each.role in ("assistant", "notice")]
    if places and (steps or has_reasoning):
        last, since = messages[places[-1]]
        messages[places[-1]] = (replace(last, steps=steps, has_reasoning=has_reasoning), since)
    return messages


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
            typed=message.text,
            replaces=message.replaces,
            is_press=message.kind is InboundKind.COMMAND and not message.message_id,
        )
        queued.append(_SeenLine(line, row.accepted_at, now))
    return queued
