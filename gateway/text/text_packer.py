"""Markdown into a platform's messages: cut, written in its dialect, and cut smaller only where that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from gateway.text.markdown_tree import MOST_WEIGHT, weight
from gateway.text.splitter import PartSplitter, iter_chunks
from gateway.text.tables import begins_in_table, open_head
from gateway.text.text_units import LengthUnit, sanitize, width

_SMALLEST = 120  # units; a part of so much source is shown as it stands rather than cut again
_CLOSER = 8  # units for what closes a fence that is cut
_SPARE = 0.9  # a part that is cut again aims at so much of the budget: marks are not spread evenly


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """One message's text: in the platform's dialect, and without any marks."""

    payload: str  # "" = `plain`, as it stands
    plain: str
    fill: float  # how much of a message it takes; more than 1 does not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWriter:
    """How one platform writes a part. Both functions are pure and linear in what they are given."""

    limit: int  # of a part's source, in `unit`
    unit: LengthUnit = LengthUnit.CHARACTERS
    max_parts: int
    write: Callable[[str], WrittenPart]  # reads Markdown
    literal: Callable[[str], WrittenPart]  # shows it as it stands; fits whenever the source is short


def pack(markdown: str, writer: PartWriter, *, note: Callable[[], str], least: int = 0) -> list[WrittenPart]:
    """Return *markdown* as messages, in order; an empty list for blank text.

    Each is as long as fits after rendering. A table that is cut has its head in every part. The first part holds the
    first *least* characters, if they fit. Text beyond `MOST_WEIGHT` is sent unparsed, which bounds the cost. If
    `max_parts` are exceeded, the result of *note* replaces the rest at the end of the last part.
    """
    # No part holds more than `limit` characters, so that the rest is out of reach, four times over for blank lines.
    size = 4 * writer.limit * (writer.max_parts + 1)
    packer = _TextPacker(sanitize(markdown[:size]), writer, least)
    parts = list(islice(packer.parts(), writer.max_parts + 1))
    if len(parts) <= writer.max_parts and len(markdown) <= size:
        return [written for _, written in parts]
    kept, cut_off = parts[: writer.max_parts - 1], parts[writer.max_parts - 1 : writer.max_parts]
    source = cut_off[0][0] if cut_off else ""
    return [*(written for _, written in kept), packer.end_with(source, note())]


@dataclass(slots=True)
class _TextPacker:
    """Packs one text; remembers what reading it has cost."""

    _text: str
    _writer: PartWriter
    _least: int
    _weight: int = 0
    _rate: float = 0.0  # how much of a message one sign took, of the last part that had to be cut again
    _splitter: PartSplitter = field(init=False)

    def __post_init__(self) -> None:
        self._splitter = PartSplitter(self._text, self._writer.unit)

    def parts(self) -> Iterator[tuple[str, WrittenPart]]:
        """Yield the parts one by one, each with its source."""
        place, head = self._splitter.skip(0), ""
        while place < len(self._text):
            end, source, written = self._fit(place, head)
            if written.payload or written.plain:
                yield source, written
            place, head = self._splitter.skip(end), open_head(source)

    def _fit(self, start: int, head: str) -> tuple[int, str, WrittenPart]:
        budget = self._source_budget(start)
        while True:
            end, source = self._source(start, budget, head)
            written = self._write(source) if source else WrittenPart("", "", 0)
            if written.fill <= 1:
                return end, source, written
            self._rate = written.fill / max(weight(source), 1)
            if budget <= _SMALLEST:
                return end, source, self._writer.literal(source)
            taken = min(width(source, self._writer.unit), budget)
            budget = max(min(int(taken * _SPARE / written.fill), taken - 1), _SMALLEST)
            if start < self._least:
                held = width(self._text[start : self._least], self._writer.unit) + _CLOSER
                budget = held if budget < held < taken else budget

    def _source_budget(self, start: int) -> int:
        """Return the source length to try for the part at *start*, assuming that the text stays as dense as before."""
        limit = self._writer.limit
        if not self._rate:
            return limit
        fill = self._rate * weight(self._text[start : start + limit])
        if fill <= 1:
            self._rate = 0.0
            return limit
        return max(int(limit * _SPARE / fill), min(_SMALLEST, limit))

    def _source(self, start: int, limit: int, head: str) -> tuple[int, str]:
        """Return where the part at *start* ends, and what it says: "", or the lines below their table's head."""
        size = width(f"{head}\n", self._writer.unit)
        if head and 4 * size <= limit and self._follows_line(start):
            cut = self._splitter.cut(start, limit - size)
            if begins_in_table(cut.text):
                return cut.end, f"{head}\n{cut.text}"
        cut = self._splitter.cut(start, limit, self._least)
        return cut.end, cut.text if cut.body.strip() else ""

    def _follows_line(self, start: int) -> bool:
        """Return True if a line begins at *start*, right below another."""
        if self._text[start - 1 : start] != "\n":
            return False
        begin = self._text.rfind("\n", 0, start - 1) + 1
        return bool(self._text[begin:start].strip(" \t\n>"))

    def _write(self, source: str) -> WrittenPart:
        self._weight += weight(source)
        return self._writer.write(source) if self._weight <= MOST_WEIGHT else self._writer.literal(source)

    def end_with(self, source: str, note: str) -> WrittenPart:
        """Return as much of *source* as fits above *note*."""
        unit, budget = self._writer.unit, self._writer.limit - width(f"\n\n{note}", self._writer.unit)
        while source and budget >= _SMALLEST:
            cut = next(iter_chunks(source, limit=budget, unit=unit))
            written = self._write(f"{cut.text}\n\n{note}")
            if written.fill <= 1:
                return written
            budget = min(int(budget * _SPARE / written.fill), budget - 1)
        return self._write(note)
