"""The files that users sent to a scope, as its transcripts name them. They are read, and never changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from agent.attachments.file_facts import Fact, facts_in
from agent.attachments.file_names import safe_name
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode
from gateway.ports import Line

_LOOKED_THROUGH = 32 << 20  # bytes of older conversations


class ReceivedFiles:
    """Finds received files by name. *lines* are those of the current conversation, the last one last."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._disk = Disk()

    async def find(self, scope: str, name: str, lines: Iterable[Line]) -> Fact | None:
        """Return the newest file called *name*, None if it does not exist."""
        wanted = safe_name(name).casefold()
        current = list(_iter_stored(reversed(list(lines))))

        def find() -> Fact | None:
            facts = chain(current, self._older(scope))
            return next((fact for fact in facts if str(fact["name"]).casefold() == wanted), None)

        return await asyncio.to_thread(find)

    async def list_facts(self, scope: str, lines: Iterable[Line], *, most: int) -> list[Fact]:
        """Return the newest *most* files, one of each name, the newest first."""
        current = list(_iter_stored(reversed(list(lines))))
        return await asyncio.to_thread(lambda: list(islice(_iter_distinct(chain(current, self._older(scope))), most)))

    def _older(self, scope: str) -> Iterator[Fact]:
        """Yield the files of the scope's transcripts, the newest first. Blocks."""
        left = _LOOKED_THROUGH
        found: list[tuple[float, Path]] = []
        for path in (scope_folder(self._home, scope) / "sessions").glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):  # archived in the meantime
                found.append((path.stat().st_mtime, path))
        for _, path in sorted(found, reverse=True):
            if left <= 0:
                return
            data = self._disk.load(path) or b""
            left -= len(data)
            raws = (raw for raw in reversed(data.splitlines()) if b'"files"' in raw)
            yield from _iter_stored(line for raw in raws if (line := decode(raw)) is not None)


def _iter_stored(lines: Iterable[Line]) -> Iterator[Fact]:
    """Yield the stored files that lines name, in the lines' order."""
    for line in lines:
        yield from (fact for fact in facts_in(line) if fact.get("blob") and fact.get("name"))


def _iter_distinct(facts: Iterable[Fact]) -> Iterator[Fact]:
    names: set[str] = set()
    for fact in facts:
        name = str(fact["name"]).casefold()
        if name not in names:
            names.add(name)
            yield fact
