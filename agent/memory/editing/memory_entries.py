"""MEMORY.md as entries: headings, list items, paragraphs, fenced code; read and written back without a loss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]|$)")
_ITEM = re.compile(r"([ \t]*)(?:[-*+•]|\d{1,9}[.)])(?:[ \t]+(.*))?$")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_DEEPEST = 8  # items around an item that count for what it means
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")


class EntryKind(Enum):
    """Kinds of entries."""

    HEADING = "heading"
    ITEM = "item"
    PARAGRAPH = "paragraph"
    FENCE = "fence"
    RULE = "rule"  # `---`


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEntry:
    """One thing that a text says. `raw` are its lines as they stand, without the blank ones around it."""

    kind: EntryKind
    raw: str
    gap: int = 0  # blank lines before it
    level: int = 0  # of a heading, from 1
    depth: int = 0  # of an item: its indentation
    headings: tuple[str, ...] = ()  # titles of the headings above it, the outermost first
    parents: tuple[str, ...] = ()  # raws of the items it is nested in, the outermost first

    @property
    def text(self) -> str:
        """The text without list marks and heading signs."""
        lines = self.raw.split("\n")
        if self.kind is EntryKind.HEADING:
            return _title(self.raw) if len(lines) == 1 else lines[0].strip()
        if self.kind is EntryKind.ITEM:
            found = _ITEM.match(lines[0])
            lines[0] = (found.group(2) or "") if found else lines[0]
        return "\n".join(line.strip() for line in lines).strip()

    @property
    def context(self) -> tuple[str, ...]:
        """The texts above it: headings, then the items it is nested in."""
        return (*self.headings, *map(_text_of_item, self.parents))


@lru_cache(maxsize=1_024)
def _text_of_item(raw: str) -> str:
    return MemoryEntry(kind=EntryKind.ITEM, raw=raw).text


def parse(text: str) -> list[MemoryEntry]:
    """Return the entries of *text*, in order; `render` gives the text back."""
    reader = _EntryParser()
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        reader.feed(line)
    return reader.finish()


def render(entries: Sequence[MemoryEntry]) -> str:
    """Return the text of *entries*; blank lines are added where an entry would run into the one before."""
    lines: list[str] = []
    before: MemoryEntry | None = None
    for entry in entries:
        least = 0 if before is None else _least_gap(before, entry)
        lines += [""] * max(entry.gap, least)
        lines.append(entry.raw)
        before = entry
    return "\n".join(lines) + "\n" if lines else ""


def _least_gap(before: MemoryEntry, entry: MemoryEntry) -> int:
    """Return the number of blank lines without which two entries would be parsed as one."""
    if entry.kind is EntryKind.RULE:
        return 1 if before.kind is EntryKind.PARAGRAPH else 0  # or it would underline a title
    is_lazy = entry.kind is EntryKind.PARAGRAPH or (entry.kind is EntryKind.HEADING and "\n" in entry.raw)
    return 1 if is_lazy and before.kind in (EntryKind.ITEM, EntryKind.PARAGRAPH) else 0


class _EntryParser:
    """Gathers lines into entries."""

    def __init__(self) -> None:
        self._done: list[MemoryEntry] = []
        self._open: MemoryEntry | None = None
        self._lines: list[str] = []
        self._blank = 0
        self._fence = ""  # the marker that closes the open fence
        self._titles: list[tuple[int, str]] = []
        self._items: list[tuple[int, str]] = []  # (depth, raw) of the items around

    def feed(self, line: str) -> None:
        """Take one line."""
        if self._fence:
            self._lines.append(line)
            mark = line.strip()
            if mark.startswith(self._fence) and not mark.strip(self._fence[0]):
                self._fence = ""
            return
        if not line.strip():
            self._blank += 1
            return
        if not self._goes_on(line):
            self._begin(line)
        if found := _FENCE.match(line):
            self._fence = found.group(1)

    def finish(self) -> list[MemoryEntry]:
        """Return the entries after the last line."""
        if self._fence:  # never closed, as in a cut answer: close it, or later text would become part of it
            while not self._lines[-1].strip():
                self._lines.pop()
            self._lines.append(self._fence)
        self._close()
        return self._done

    def _goes_on(self, line: str) -> bool:
        """Add the line to the open entry if it belongs there."""
        entry = self._open
        if entry is None or entry.kind not in (EntryKind.ITEM, EntryKind.PARAGRAPH):
            return False
        if entry.kind is EntryKind.PARAGRAPH and not self._blank and len(self._lines) == 1 and _UNDERLINE.match(line):
            level = 1 if "=" in line else 2
            self._titles = [each for each in self._titles if each[0] < level]
            self._open = replace(entry, kind=EntryKind.HEADING, level=level, headings=self._above())
            self._lines.append(line)
            self._titles.append((level, self._lines[0].strip()))
            self._items = []
            return True
        in_item = entry.kind is EntryKind.ITEM and _indent(line) > max(entry.depth, 1)
        if _starts(line, in_item=in_item) or (self._blank and not in_item):
            return False
        self._lines += [""] * self._blank
        self._blank = 0
        self._lines.append(line)
        return True

    def _begin(self, line: str) -> None:
        self._close()
        gap, self._blank = self._blank, 0
        if found := _HEADING.match(line):
            level, title = len(found.group(1)), _title(line)
            self._titles = [each for each in self._titles if each[0] < level]
            self._items = []
            self._open = MemoryEntry(kind=EntryKind.HEADING, raw="", gap=gap, level=level, headings=self._above())
            self._titles.append((level, title))
        elif _RULE.match(line):
            self._items = []
            self._open = MemoryEntry(kind=EntryKind.RULE, raw="", gap=gap, headings=self._above())
        elif _ITEM.match(line):
            depth = _indent(line)
            self._items = [each for each in self._items if each[0] < depth]
            self._open = MemoryEntry(
                kind=EntryKind.ITEM, raw="", gap=gap, depth=depth, headings=self._above(), parents=self._around()
            )
            self._items.append((depth, line))
        else:
            kind = EntryKind.FENCE if _FENCE.match(line) else EntryKind.PARAGRAPH
            self._items = [each for each in self._items if each[0] < _indent(line)]
            self._open = MemoryEntry(kind=kind, raw="", gap=gap, headings=self._above(), parents=self._around())
        self._lines = [line]

    def _around(self) -> tuple[str, ...]:
        return tuple(raw for _, raw in self._items[-_DEEPEST:])

    def _above(self) -> tuple[str, ...]:
        return tuple(title for _, title in self._titles)

    def _close(self) -> None:
        if self._open is not None:
            raw = "\n".join(self._lines)
            self._done.append(replace(self._open, raw=raw))
            if self._open.kind is EntryKind.ITEM:  # nested items have all of its lines as their context
                self._items[-1] = (self._open.depth, raw)
        self._open, self._lines = None, []


def _starts(line: str, *, in_item: bool) -> bool:
    """Return True if the line always begins an entry; a fence inside an item does not."""
    if _ITEM.match(line) or _HEADING.match(line):
        return True
    return not in_item and bool(_FENCE.match(line) or _RULE.match(line))


def _title(line: str) -> str:
    """Return the title of a `#` heading, without the signs before and after it."""
    text = line.strip().lstrip("#").strip()
    bare = text.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else text


def _indent(line: str) -> int:
    width = 0
    for character in line:
        if character == "\t":
            width += 4 - width % 4
        elif character == " ":
            width += 1
        else:
            break
    return width
