"""Reading messages of any transcript by index, whether they are in the journal, the file or an archive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent.memory.scopes import transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_reader import read_messages, transcript_extent
from gateway.events import SessionKey
from gateway.ports import Line, TurnRecord, TurnRecordStore


class MessageReader:
    """Reads messages of transcripts. *flush* projects committed turns into the files."""

    def __init__(self, home: Path, records: TurnRecordStore, *, flush: Callable[[], Awaitable[bool]]) -> None:
        self._home = home
        self._records = records
        self._flush = flush
        self._disk = Disk()

    async def messages(self, scope: str, key: SessionKey, transcript: str, start: int, end: int) -> list[Line]:
        """Return the message lines from *start* up to *end*, in order; fewer if some are missing.

        Those that were replaced by another version are empty: memory is made of what a conversation went on with.
        """
        # The journal first: a turn projected in between is then read twice rather than missed.
        pending = await self._pending(key)
        return await asyncio.to_thread(
            read_messages,
            self._disk,
            self._path(scope, key),
            transcript,
            start,
            end,
            pending=pending,
            without_replaced=True,
        )

    async def extent(self, scope: str, key: SessionKey, transcript: str) -> tuple[int, int]:
        """Return the index up to which the transcript is summarised, and its number of messages."""
        await self._flush()
        pending = await self._pending(key)
        return await asyncio.to_thread(
            transcript_extent, self._disk, self._path(scope, key), transcript, pending=pending
        )

    async def _pending(self, key: SessionKey) -> list[TurnRecord]:
        return [each.record for each in await self._records.pending(key)]

    def _path(self, scope: str, key: SessionKey) -> Path:
        return transcript_path(self._home, scope, str(key))
