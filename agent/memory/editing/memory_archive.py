"""The ceiling of MEMORY.md: beyond it, lines that were not used lately move to a dated archive document.

`memory/YYYY-MM-DD.archive.md` is searched, forgotten, exported and merged like a dated note. One line of MEMORY.md
names it. Marks say when each line was last changed, used in a conversation or found by a search.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from agent.base.transcript_lines import utc_now
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, extract_words, parse, render, statements
from agent.memory.editing.text_operations import AddLines, apply
from agent.memory.history.history_files import ARCHIVE_SUFFIX, archive_names, drop_absent_lines
from agent.memory.storage.scope_documents import line_fingerprint
from gateway.ports.memory import HistoryStore, MarkKind, Marks, NoteChange

log = structlog.get_logger(__name__)

_LEFT_SHARE = 0.9  # of the ceiling, so that not every new line moves another one
_NAMED = 3  # archives that MEMORY.md names; the others are counted
_POINTER = re.compile(r"- Older facts: .*\.archive\.md")
_USED_SHARE = 0.6  # of a line's words that a message repeats when it uses the line
_LEAST_WORDS = 2
_MOST_STAMPS = 4_000  # about 150 kB


@dataclass(frozen=True, slots=True)
class ArchivedLine:
    """A line of the archive document *name*, and the title of the heading above it."""

    name: str
    text: str
    heading: str


async def find_archived_lines(history: HistoryStore, scope: str, lines: Collection[str]) -> list[ArchivedLine]:
    """Return the archived lines of *scope* among *lines*, with or without their list marks."""
    wanted = {plain_line(each) for each in lines} - {""}
    found: list[ArchivedLine] = []
    for name in (await archive_names(history, scope))[::-1]:
        heading = ""
        for line in (await history.note(scope, name) or b"").decode("utf-8", "replace").splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            elif plain_line(line) in wanted:
                found.append(ArchivedLine(name, line.strip(), heading))
    return found


def restore_lines(text: str, archived: Sequence[ArchivedLine]) -> str:
    """Return *text*, that of MEMORY.md, with the archived lines that it lacks, under their headings if it has them."""
    known = set(map(plain_line, text.splitlines()))
    for each in archived:
        if plain_line(each.text) not in known:
            known.add(plain_line(each.text))
            applied = apply([AddLines(each.text, each.heading)], text)
            text = (apply([AddLines(each.text)], text) if applied.refused else applied).text
    return text


def plain_line(line: str) -> str:
    """Return *line* without its list mark."""
    return " ".join(line.strip().lstrip("-*+•").split())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryArchive:
    """Keeps the MEMORY.md of every scope within *max_chars*."""

    max_chars: int
    history: HistoryStore
    now: Callable[[], datetime] = utc_now

    async def fit(self, scope: str, before: str, text: str) -> str:
        """Return *text*, which replaced *before*, without the lines that move; these are in the archive then.

        The keys of lines that are gone are dropped. Idempotent; raises OSError.
        """
        await drop_absent_lines(self.history, scope, text)
        stamps = await self.history.marks(scope, MarkKind.USED)
        if 2 * len(text) <= self.max_chars:
            await self._mark(scope, dict.fromkeys(stamps))
            return text
        entries = [each for each in parse(text) if not _POINTER.match(each.raw)]
        was_there = {line_fingerprint(each.raw) for each in parse(before)}
        now = self._stamp()
        used = {
            name: stamps.get(name, "") if name in was_there else now
            for name in (line_fingerprint(each.raw) for each in entries)
        }
        if len(text) > self.max_chars:
            moved = self._select(entries, used)
            await self._append(scope, _with_headings(entries, moved))
            text = await self._with_pointer(scope, render(_remaining(entries, moved)))
            log.info("memory.archived", entries=len(moved), characters=len(text))
        await self._mark(scope, {name: used.get(name) or None for name in stamps.keys() | used.keys()})
        return text

    async def note_used(self, scope: str, text: str, messages: Sequence[str]) -> None:
        """Record which lines of MEMORY.md (*text*) the messages use; raises OSError."""
        if 2 * len(text) <= self.max_chars:
            return
        used = await asyncio.to_thread(_used_lines, text, messages)
        await self._mark(scope, dict.fromkeys(used, self._stamp()))

    async def note_found(self, scope: str, hits: Sequence[str]) -> None:
        """Record that a search returned *hits*, passages of MEMORY.md; raises OSError."""
        stamps = await self.history.marks(scope, MarkKind.USED)
        if not stamps:  # MEMORY.md is far from its ceiling
            return
        lines = (line for text in hits for line in (text, *text.splitlines()) if line.strip())
        found = [*dict.fromkeys(map(line_fingerprint, lines))][:_MOST_STAMPS]
        oldest = sorted(stamps.keys() - found, key=lambda name: stamps[name])
        dropped = oldest[: max(len(oldest) + len(found) - _MOST_STAMPS, 0)]
        await self._mark(scope, dict.fromkeys(dropped) | dict.fromkeys(found, self._stamp()))

    async def _mark(self, scope: str, stamps: Marks) -> None:
        if stamps:
            await self.history.write(scope, marks={MarkKind.USED: stamps})

    def _select(self, entries: list[MemoryEntry], stamps: dict[str, str]) -> set[int]:
        """Return the indices of the entries that move: the longest unused first, items with what is nested in them."""
        excess = sum(len(each.raw) + 1 + each.gap for each in entries) - int(self.max_chars * _LEFT_SHARE)
        stated = set(statements(entries))
        units = [
            _subtree(entries, n)
            for n, each in enumerate(entries)
            if n in stated and each.kind is not EntryKind.HEADING and not each.parents
        ]
        moved: set[int] = set()
        for unit in sorted(units, key=lambda unit: max(stamps[line_fingerprint(entries[n].raw)] for n in unit)):
            if excess <= 0:
                break
            moved.update(unit)
            excess -= sum(len(entries[n].raw) + 1 for n in unit)
        return moved

    async def _append(self, scope: str, entries: list[MemoryEntry]) -> None:
        name = f"{self.now().astimezone(UTC):%Y-%m-%d}{ARCHIVE_SUFFIX}"
        while True:
            was = await self.history.note(scope, name)
            old = (was or b"# Moved from MEMORY.md\n").decode("utf-8", "replace")
            there = {line.rstrip() for line in old.splitlines()}
            new = [each for each in entries if each.kind is EntryKind.HEADING or not {*each.raw.split("\n")} <= there]
            if all(each.kind is EntryKind.HEADING for each in new):
                return  # a crash came before MEMORY.md was written
            body = f"{old.rstrip()}\n\n{render(new)}".encode("utf-8", "replace")
            if await self.history.write(scope, notes={name: NoteChange(was=was, body=body)}):
                return

    async def _with_pointer(self, scope: str, text: str) -> str:
        names = (await archive_names(self.history, scope))[::-1]
        earlier = f" and {len(names) - _NAMED} earlier" if len(names) > _NAMED else ""
        pointer = f"- Older facts: {', '.join(names[:_NAMED])}{earlier} (search finds them)"
        return f"{text.rstrip()}\n\n{pointer}\n".lstrip()

    def _stamp(self) -> str:
        return f"{self.now().astimezone(UTC):%Y-%m-%dT%H:%M}"


def _used_lines(text: str, messages: Sequence[str]) -> set[str]:
    spoken = [frozenset(extract_words(each).carrying) for each in messages]
    return {line_fingerprint(each.raw) for each in parse(text) if _is_used(each, spoken)}


def _is_used(entry: MemoryEntry, messages: Sequence[frozenset[str]]) -> bool:
    words = frozenset(extract_words(entry.text).carrying)
    least = max(_LEAST_WORDS, _USED_SHARE * len(words))
    return any(len(words & each) >= least for each in messages)


def _subtree(entries: list[MemoryEntry], n: int) -> range:
    """Return the indices of an entry and of what is nested in it."""
    stop = n + 1
    while stop < len(entries) and entries[stop].parents:
        stop += 1
    return range(n, stop)


def _remaining(entries: list[MemoryEntry], indices: set[int]) -> list[MemoryEntry]:
    """Return the entries that stay, without headings that have nothing left below."""
    left = [each for n, each in enumerate(entries) if n not in indices]
    stated = set(statements(left))
    had_text = {n for n, each in enumerate(entries) if each.kind is EntryKind.HEADING} - set(statements(entries))
    emptied = {id(entries[n]) for n in had_text}
    return [each for n, each in enumerate(left) if not (n in stated and id(each) in emptied)]


def _with_headings(entries: list[MemoryEntry], indices: set[int]) -> list[MemoryEntry]:
    """Return the entries that move, under their headings."""
    found: list[MemoryEntry] = []
    above: list[MemoryEntry] = []
    for n, each in enumerate(entries):
        if each.kind is EntryKind.HEADING:
            above = [*(heading for heading in above if heading.level < each.level), each]
        elif n in indices:
            found += [heading for heading in above if not any(heading is other for other in found)]
            found.append(each)
    return found
