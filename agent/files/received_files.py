"""The files that users sent to a scope, as its turns name them. They are read, and never changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

from agent.base.file_facts import Fact, facts_in, safe_name
from agent.base.transcript_lines import decode
from gateway.ports.journal import Line
from gateway.ports.memory import StoredTurn

if TYPE_CHECKING:
    from gateway.store.transcripts import SqlTranscripts


_LOOKED_THROUGH = 32 << 20  # bytes of older conversations
_PAGE = 128  # turns


class ReceivedFiles:
    """Finds received files by name. *lines* are those of the current conversation, the last one last."""

    def __init__(self, transcripts: SqlTranscripts) -> None:
        self._transcripts = transcripts

    async def find(self, scope: str, name: str, lines: Iterable[Line]) -> Fact | None:
        """Return the newest file called *name*, None if it does not exist."""
        wanted = safe_name(name).casefold()
        async for fact in self._all(scope, lines):
            if str(fact["name"]).casefold() == wanted:
                return fact
        return None

    async def list_facts(self, scope: str, lines: Iterable[Line], *, most: int) -> list[Fact]:
        """Return the newest *most* files, one of each name, the newest first."""
        found: dict[str, Fact] = {}
        async for fact in self._all(scope, lines):
            if len(found) == most:
                break
            found.setdefault(str(fact["name"]).casefold(), fact)
        return list(found.values())

    async def _all(self, scope: str, lines: Iterable[Line]) -> AsyncIterator[Fact]:
        """Yield the files of *lines* and of the scope's turns, the newest first."""
        for fact in _iter_stored(reversed(list(lines))):
            yield fact
        heads = sorted(await self._transcripts.heads(scope, {}), key=lambda head: -head.seq)
        left = _LOOKED_THROUGH
        for key in dict.fromkeys(head.key for head in heads):
            before: int | None = None
            while left > 0 and (page := await self._transcripts.newest(scope, key, _PAGE, before=before)):
                for fact in await asyncio.to_thread(_facts_of, page):
                    yield fact
                left -= sum(len(turn.body) for turn in page)
                before = page[0].seq


def _facts_of(turns: Iterable[StoredTurn]) -> list[Fact]:
    raws = [raw for turn in turns for raw in turn.body.split(b"\n") if b'"files"' in raw]
    return list(_iter_stored(line for raw in reversed(raws) if (line := decode(raw)) is not None))


def _iter_stored(lines: Iterable[Line]) -> Iterator[Fact]:
    """Yield the stored files that lines name, in the lines' order."""
    for line in lines:
        yield from (fact for fact in facts_in(line) if fact.get("blob") and fact.get("name"))
