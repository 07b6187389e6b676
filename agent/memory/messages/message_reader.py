"""Reading messages of any transcript by index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.memory.storage.transcript_lines import (
    FORGOTTEN,
    consolidated_index,
    decode_lines,
    deleted_ids,
    is_replaced,
    kind_of,
)
from gateway.events import SessionKey
from gateway.ports.journal import Line
from gateway.ports.memory import StoredTurn

if TYPE_CHECKING:
    from gateway.store.transcripts import SqlTranscripts


_KEPT_OF_REPLACED = ("i", "turn", "role", "timestamp", "by")


class MessageReader:
    """Reads messages of stored turns."""

    def __init__(self, transcripts: SqlTranscripts) -> None:
        self._transcripts = transcripts

    async def messages(self, scope: str, key: SessionKey, transcript: str, start: int, end: int) -> list[Line]:
        """Return the message lines from *start* up to *end*, in order; fewer if some are missing.

        Those that were replaced by another version are empty: memory is made of what a conversation went on with.
        Deleted messages have the content FORGOTTEN.
        """
        turns = await self._transcripts.messages(scope, key, transcript, start, end)
        return await asyncio.to_thread(messages_between, turns, start, end, without_replaced=True)

    async def extent(self, scope: str, key: SessionKey, transcript: str) -> tuple[int, int]:
        """Return the index up to which the transcript is summarised, and its number of messages."""
        turns = (await self._transcripts.window(scope, key, transcript)).turns
        lines = [line for each in turns for line in decode_lines(each.body)]
        anchors = [line for line in lines if kind_of(line) in ("pointer", "mark")]
        return max(map(consolidated_index, anchors), default=0), max((each.to_index for each in turns), default=0)


def messages_between(turns: Sequence[StoredTurn], low: int, high: int, *, without_replaced: bool = False) -> list[Line]:
    """Return the message lines with ``low <= i < high`` of *turns*, which has later turns that change them too.

    *without_replaced* empties the messages that were replaced by another version.
    """
    messages: dict[int, Line] = {}
    deleted: set[str] = set()
    rewinds: list[Line] = []
    for each in turns:
        lines = decode_lines(each.body)
        deleted |= deleted_ids(lines)
        rewinds += [line for line in lines if without_replaced and kind_of(line) == "rewind"]
        messages |= {line["i"]: line for line in lines if kind_of(line) == "message" and low <= line["i"] < high}
    for i, line in messages.items():
        if is_replaced(line, rewinds):
            messages[i] = {name: line[name] for name in _KEPT_OF_REPLACED if name in line} | {"content": ""}
    return [
        {**line, "content": FORGOTTEN} if line.get("mid") in deleted else line for _, line in sorted(messages.items())
    ]
