"""Read access to conversations for channels, commands and the CLI, from the stored turns and the inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from agent.memory.displayed_messages import DisplayedTurn, build_divider, order_messages, with_buttons
from agent.memory.scopes import rebase_reference
from agent.memory.storage.transcript_lines import TranscriptBlock, decode_lines, format_time, kind_of
from gateway.events import SessionKey
from gateway.ports.conversations import DisplayedMessage, DisplayedPage, SessionInfo
from gateway.ports.journal import InboxRow, Line
from gateway.ports.memory import StoredTurn, anchor_index

if TYPE_CHECKING:
    from gateway.store.journal import SqlJournal
    from gateway.store.outbox import SqlOutbox
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts


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
