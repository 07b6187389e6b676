"""Read the messages of transcripts as search units; after the first time, only new ones are read.

The sources of a scope follow its rows: of each session the turns behind the last one that was seen, and all of a
transcript of which a turn was changed or removed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from agent.attachments.file_facts import facts_in
from agent.memory.messages.message_reader import messages_between
from agent.memory.messages.taint import origin_of_words
from agent.memory.search.search_unit import SearchUnit, SourceReading, chunk_message, group_by_silence
from agent.memory.storage.transcript_lines import FORGOTTEN, decode_lines, format_time, kind_of, parse_time
from gateway.events import SessionKey
from gateway.ports.journal import Line
from gateway.ports.memory import StoredTurn, TranscriptHead

if TYPE_CHECKING:
    from gateway.store.transcripts import SqlTranscripts


_MARK = re.compile(r"(\d+):(-?\d+):([^#]+)#(\S*) (\S*)")


class TranscriptSource:
    """The transcripts of a scope."""

    def __init__(self, scope: str, turns: SqlTranscripts) -> None:
        self._scope = scope
        self._turns = turns
        self._heads: dict[str, TranscriptHead] = {}  # by the id of the transcript
        self._seen: dict[SessionKey, int] = {}  # the last turn of each session
        self._changes: Mapping[tuple[SessionKey, str], int] = {}

    async def marks(self) -> Mapping[str, str]:
        """Return a mark of each transcript that changes with its turns; costs what is new."""
        changes = await self._turns.changes(self._scope)  # before the turns: a change while they are read comes again
        differ = {each for each in {*changes, *self._changes} if changes.get(each) != self._changes.get(each)}
        read_again = {key for key, _ in differ}
        seen = {key: seq for key, seq in self._seen.items() if key not in read_again}
        firsts = await self._turns.sessions(self._scope)
        heads = {
            name: head
            for name, head in self._heads.items()
            # The count of changes goes with the last turn of a session.
            if head.key not in read_again and head.seq >= firsts.get(head.key, head.seq + 1)
        }
        for head in await self._turns.heads(self._scope, seen):
            heads[head.transcript] = head
        for head in heads.values():
            seen[head.key] = max(head.seq, seen.get(head.key, head.seq))
        self._heads, self._seen, self._changes = heads, seen, changes  # at once: another call may be under way
        return {
            name: _ReadPosition(self._count(head), head.seq, head.turn).mark.partition("#")[0]
            for name, head in heads.items()
        }

    async def read(self, transcript: str, since: str) -> SourceReading:
        """Return the messages since the mark *since*; all of them if turns were changed or removed.

        Raises FileNotFoundError without such a transcript, as of the last `marks`.
        """
        head, position = self._head(transcript), _ReadPosition.parse(since)
        is_more = position.turn != "" and await self._is_before(position, head)
        if not is_more:
            position = _ReadPosition(changes=self._count(head))
        units: list[SearchUnit] = []
        while page := await self._turns.since(self._scope, head.key, transcript, position.seq):
            new, position = await asyncio.to_thread(_read_page, page, position)
            units += new
        return SourceReading(units=units, mark=position.mark, is_more=is_more)

    async def messages(self, transcript: str, low: int, high: int) -> Sequence[Line]:
        """Return the messages with ``low <= i < high``. Raises FileNotFoundError as `read`."""
        turns = await self._turns.messages(self._scope, self._head(transcript).key, transcript, low, high)
        return await asyncio.to_thread(messages_between, turns, low, high)

    def _head(self, transcript: str) -> TranscriptHead:
        """Return the last turn as of the last `marks`. Raises FileNotFoundError."""
        if transcript not in self._heads:
            raise FileNotFoundError(transcript)
        return self._heads[transcript]

    def _count(self, head: TranscriptHead) -> int:
        return self._changes.get((head.key, head.transcript), 0)

    async def _is_before(self, position: _ReadPosition, head: TranscriptHead) -> bool:
        """Return True if the turns up to *position* are in the store as they were read."""
        if position.changes != self._count(head):
            return False
        # Another store, such as one that was filled again, has other numbers.
        found = await self._turns.find(self._scope, head.key, position.turn)
        return found is not None and found.seq == position.seq


@dataclass(frozen=True, slots=True)
class _ReadPosition:
    """The turn up to which a transcript was read, as its mark has it."""

    changes: int
    seq: int = -(2**62)
    turn: str = ""
    group: str = ""
    last: str = ""  # time of the last message

    @property
    def mark(self) -> str:
        """The mark; behind `#` is what the next messages are grouped by."""
        return f"{self.changes}:{self.seq}:{quote(self.turn)}#{self.group} {self.last}"

    @classmethod
    def parse(cls, mark: str) -> _ReadPosition:
        """Return the position of a mark; one before every turn for none, and for that of an earlier release."""
        found = _MARK.fullmatch(mark)
        if found is None:
            return cls(changes=-1)
        changes, seq, turn, group, last = found.groups()
        return cls(int(changes), int(seq), unquote(turn), group, last)


def _read_page(turns: Sequence[StoredTurn], position: _ReadPosition) -> tuple[list[SearchUnit], _ReadPosition]:
    """Return the units of the messages of *turns*, and the position behind them."""
    units: list[SearchUnit] = []
    for line, text in _messages(line for turn in turns for line in decode_lines(turn.body)):
        by = line.get("by")
        who = str(by.get("name", "")) if isinstance(by, dict) and line["role"] == "user" else ""
        at = parse_time(line.get("timestamp"))
        origin = origin_of_words(line)
        units += chunk_message(text, line=line["i"] + 1, at=at, who=who, role=line["role"], origin=origin)
    last = SearchUnit(text="", line=0, at=parse_time(position.last), group=position.group) if position.group else None
    units = group_by_silence(units, last=last)
    times = [unit.at for unit in units if unit.at]
    return units, _ReadPosition(
        changes=position.changes,
        seq=turns[-1].seq,
        turn=turns[-1].turn,
        group=units[-1].group if units else position.group,
        last=format_time(times[-1]) if times else position.last,
    )


def _messages(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """Yield the messages of users and the bot with their texts."""
    for line in lines:
        if kind_of(line) != "message" or line.get("role") not in ("user", "assistant"):
            continue
        text = text_of(line).strip()
        if text and text != FORGOTTEN:
            yield line, text


def text_of(line: Line) -> str:
    """Return the text of a message and the transcripts of its voice messages, without third-party content."""
    content = line.get("content")
    text = content if isinstance(content, str) else ""
    transcripts = [str(fact["said"]) for fact in facts_in(line) if fact.get("said") and not fact.get("origin")]
    return "\n".join([text, *transcripts]) if transcripts else text
