"""The ceiling of MEMORY.md: beyond it, lines that were not used lately move to a dated archive document.

`memory/YYYY-MM-DD.archive.md` is searched, forgotten, exported and merged like a dated note. One line of MEMORY.md
names it. `.used.json` is derived: when each line was last changed, used in a conversation or found by a search.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.memory.editing.entry_matching import extract_words, statements
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse, render
from agent.memory.editing.text_operations import AddLines, apply
from agent.memory.history.history_log import ARCHIVE_SUFFIX, line_fingerprint, load_keys, save_keys
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, utc_now

log = structlog.get_logger(__name__)

USED = ".used.json"
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


def find_archived_lines(folder: Path, disk: Disk, lines: Collection[str]) -> list[ArchivedLine]:
    """Return the archived lines among *lines*, with or without their list marks. *folder* is a scope's `memory/`."""
    wanted = {plain_line(each) for each in lines} - {""}
    found: list[ArchivedLine] = []
    for path in sorted(folder.glob(f"[0-9]*{ARCHIVE_SUFFIX}"), reverse=True):
        heading = ""
        for line in (disk.load(path) or b"").decode("utf-8", "replace").splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            elif plain_line(line) in wanted:
                found.append(ArchivedLine(path.name, line.strip(), heading))
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
    """Keeps the MEMORY.md of every scope within *max_chars*. Methods block."""

    max_chars: int
    now: Callable[[], datetime] = utc_now
    disk: Disk = field(default_factory=Disk)

    def fit(self, folder: Path, before: str, text: str) -> str:
        """Return *text*, which is to replace *before*, without the lines that move; these are in the archive then.

        *folder* is the scope's `memory/`. The keys of lines that are gone are dropped. The caller holds the scope's
        lock. Idempotent; raises OSError.
        """
        save_keys(folder, self.disk, load_keys(folder, self.disk), text)
        if 2 * len(text) <= self.max_chars:
            if (folder / USED).is_file():  # fingerprints of erased lines, perhaps
                self.disk.remove(folder / USED)
            return text
        entries = [each for each in parse(text) if not _POINTER.match(each.raw)]
        was_there = {line_fingerprint(each.raw) for each in parse(before)}
        stamps = self._load(folder)
        now = self._stamp()
        present = {line_fingerprint(each.raw): each for each in entries}
        stamps = {name: stamps.get(name, "") if name in was_there else now for name in present}
        if len(text) > self.max_chars:
            moved = self._select(entries, stamps)
            self._append(folder, _with_headings(entries, moved))
            text = self._with_pointer(folder, render(_remaining(entries, moved)))
            log.info("memory.archived", entries=len(moved), characters=len(text))
        self._save(folder, {name: at for name, at in stamps.items() if at})
        return text

    def note_used(self, folder: Path, text: str, messages: Sequence[str]) -> None:
        """Record which lines of MEMORY.md (*text*) the messages use; raises OSError."""
        if 2 * len(text) <= self.max_chars:
            return
        spoken = [frozenset(extract_words(each).carrying) for each in messages]
        used = {line_fingerprint(each.raw) for each in parse(text) if _is_used(each, spoken)}
        if used:
            self._save(folder, self._load(folder) | dict.fromkeys(used, self._stamp()))

    def note_found(self, folder: Path, hits: Sequence[str]) -> None:
        """Record that a search returned *hits*, passages of MEMORY.md; raises OSError."""
        if 2 * (self.disk.size(folder / "MEMORY.md") or 0) <= self.max_chars:
            return
        found = {line_fingerprint(line) for text in hits for line in (text, *text.splitlines()) if line.strip()}
        stamps = self._load(folder) | dict.fromkeys(found, self._stamp())
        latest = sorted(stamps, key=lambda name: stamps[name])[-_MOST_STAMPS:]
        self._save(folder, {name: stamps[name] for name in latest})

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

    def _append(self, folder: Path, entries: list[MemoryEntry]) -> None:
        path = folder / f"{self.now().astimezone(UTC):%Y-%m-%d}{ARCHIVE_SUFFIX}"
        old = (self.disk.load(path) or b"# Moved from MEMORY.md\n").decode("utf-8", "replace")
        there = {line.rstrip() for line in old.splitlines()}
        new = [each for each in entries if each.kind is EntryKind.HEADING or not {*each.raw.split("\n")} <= there]
        if any(each.kind is not EntryKind.HEADING for each in new):  # else a crash came before MEMORY.md was written
            self.disk.replace(path, f"{old.rstrip()}\n\n{render(new)}".encode("utf-8", "replace"))

    def _with_pointer(self, folder: Path, text: str) -> str:
        names = sorted((path.name for path in folder.glob(f"[0-9]*{ARCHIVE_SUFFIX}")), reverse=True)
        earlier = f" and {len(names) - _NAMED} earlier" if len(names) > _NAMED else ""
        pointer = f"- Older facts: {', '.join(names[:_NAMED])}{earlier} (search finds them)"
        return f"{text.rstrip()}\n\n{pointer}\n".lstrip()

    # -- when lines were used ----------------------------------------------------------------------

    def _stamp(self) -> str:
        return f"{self.now().astimezone(UTC):%Y-%m-%dT%H:%M}"

    def _load(self, folder: Path) -> dict[str, str]:
        record = decode(self.disk.load(folder / USED) or b"{}") or {}
        return {name: at for name, at in record.items() if isinstance(at, str)}

    def _save(self, folder: Path, stamps: dict[str, str]) -> None:
        if stamps != self._load(folder):
            self.disk.replace(folder / USED, json.dumps(stamps, sort_keys=True).encode())


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
