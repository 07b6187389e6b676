"""The one splitter: Markdown into a platform's messages, with nothing lost between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import regex

from gateway.i18n import FALLBACK, translate
from gateway.text.markdown_blocks import CodeFence, CodeFences, begins_in_table, open_head
from gateway.text.markdown_tree import MOST_WEIGHT, weight
from gateway.text.message_text import WIDEST, LengthUnit, fit_index, grapheme_boundary, sanitize, width

_BLANK_LINES = re.compile(r"(?:[ \t]*+\n)*+")
# What continues a grapheme cluster must not begin a part; anything else may, after a space or a full stop.
_JOINING = r"\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}"
_FRESH = rf"(?=[^{_JOINING}])"
_SPACES = regex.compile(rf"(?:[ \t](?![{_JOINING}]))*+")
_LAST_SPACE = regex.compile(rf"(?r)[ \t\u3000]{_FRESH}")
_SENTENCE = regex.compile(
    rf"(?:(?<![\s\d.!?…])[.!?…]++[\"'”’)\]*_]*+(?=\s)|(?<![。！？])[。！？]++[”’）」』]*+){_FRESH}"
)
_QUOTED = re.compile(r"(?:[ ]{0,3}+>[ ]?+)++")
_NESTED_ITEM = re.compile(r"[ \t]++(?=(?:[-*+]|\d{1,9}+[.)])\s)")
_FLOOR = 0.4  # a part shorter than this share of the budget is not worth a prettier cut


@dataclass(frozen=True, slots=True)
class TextChunk:
    """One part: ``source[start:end]``, whitespace trimmed at its edges, between what was added.

    The cuts of a text tile it but for whitespace. `opening` reopens a fence or a quote, `closing` closes a fence.
    """

    start: int
    end: int
    opening: str
    body: str
    closing: str

    @property
    def text(self) -> str:
        """The part as it is sent."""
        return f"{self.opening}{self.body}{self.closing}"


def split(markdown: str, *, limit: int, unit: LengthUnit = LengthUnit.CHARACTERS) -> list[str]:
    """Cut *markdown* into parts of at most *limit* units; an empty list for blank text.

    Prefers the end of a paragraph, then of a line, a sentence, a word. A code fence that must be cut is
    closed and reopened with its info string, within the limit. A grapheme cluster is cut only when it
    is longer than the limit itself. Linear in the text. *limit* holds at least one character.
    """
    return [cut.text for cut in iter_chunks(sanitize(markdown), limit=limit, unit=unit)]


def split_bounded(
    markdown: str, *, limit: int, unit: LengthUnit = LengthUnit.CHARACTERS, max_parts: int = 40, note: str | None = None
) -> list[str]:
    """Split like `split` into at most *max_parts*; a visible line replaces the rest.

    *note* is that line, in the chat's language (by default `delivery.cut` in English). The work is bounded by the
    parts, not by the text.
    """
    # No part holds more than `limit` characters, so that the rest is out of reach, four times over for blank lines.
    size = 4 * limit * (max_parts + 1)
    source = sanitize(markdown[:size])
    parts = [cut.text for cut in islice(iter_chunks(source, limit=limit, unit=unit), max_parts + 1)]
    if len(parts) <= max_parts and len(markdown) <= size:
        return parts
    note = translate("delivery.cut", FALLBACK) if note is None else note
    kept, last = parts[: max_parts - 1], parts[max_parts - 1 : max_parts]
    budget = limit - width(f"\n\n{note}", unit)
    if not last or budget < WIDEST[unit]:
        return [*kept, note[: fit_index(note, 0, limit, unit)]]
    return [*kept, f"{split(last[0], limit=budget, unit=unit)[0]}\n\n{note}"]


def iter_chunks(text: str, *, limit: int, unit: LengthUnit = LengthUnit.CHARACTERS) -> Iterator[TextChunk]:
    """Yield the parts of clean *text* one by one; raise ValueError when not even a character fits."""
    unit = LengthUnit(unit)
    if limit < WIDEST[unit]:
        raise ValueError(f"a limit of {limit} {unit} does not hold every character")
    splitter = PartSplitter(text, unit)
    place = splitter.skip(0)
    while place < len(text):
        cut = splitter.cut(place, limit)
        if cut.body.strip():
            yield cut
        place = splitter.skip(cut.end)


class PartSplitter:
    """Cuts one text, part after part."""

    def __init__(self, text: str, unit: LengthUnit) -> None:
        self._text = text
        self._limit = 0  # of the part that is being cut
        self._unit = unit
        self._fences = CodeFences(text)
        self._first = _match_end(_BLANK_LINES, text, 0)
        self._line = 0  # where the line of the last start begins
        self._line_of = 0  # that start
        self._quote = (-1, "")  # the quote marks of a line, by where it begins

    def skip(self, place: int) -> int:
        """Return where the next part begins: past blank lines, unless they are code."""
        if self._body_around(place):
            return place
        if place and self._text[place - 1 : place] != "\n":
            place = _match_end(_SPACES, self._text, place)
        return _match_end(_BLANK_LINES, self._text, place)

    def cut(self, start: int, limit: int, least: int = 0) -> TextChunk:
        """Return the part of at most *limit* units that begins at *start*, and ends not before *least* where it can."""
        self._limit = limit
        opening = self._opening(start)
        budget = self._limit - width(opening, self._unit)
        end = self._end(start, budget, least)
        if end > start:
            return self._build(start, end, opening)
        # The next cluster does not fit beside what a fence adds, or not at all.
        end = fit_index(self._text, start, self._limit, self._unit)
        end = max(grapheme_boundary(self._text, start, end), start) if end < len(self._text) else end
        end = end if end > start else fit_index(self._text, start, self._limit, self._unit)
        return TextChunk(start, end, "", self._text[start:end], "")

    # What is added around a part

    def _body_around(self, place: int) -> CodeFence | None:
        fence = self._fences.around(place)
        return fence if fence and fence.body <= place < fence.close else None

    def _frame(self, fence: CodeFence) -> tuple[str, str]:
        """Return the text that reopens and that closes *fence*; "" if it would use half the limit."""
        for opener in (fence.opener, f"{fence.closer}\n"):
            if width(opener, self._unit) + width(fence.closer, self._unit) + 1 <= self._limit // 2:
                return opener, fence.closer
        return "", ""

    def _opening(self, start: int) -> str:
        fence = self._body_around(start)
        if fence:
            return self._frame(fence)[0]
        begin = self._line_start(start)
        if begin == start or self._fences.around(start):
            return ""
        if self._quote[0] != begin:
            quoted = _QUOTED.match(self._text, begin)
            self._quote = (begin, quoted[0] if quoted else "")
        marks = self._quote[1]
        return marks if width(marks, self._unit) <= self._limit // 4 else ""

    def _line_start(self, start: int) -> int:
        """Return where the line of *start* begins; starts only grow, so that each stretch is read once."""
        newline = self._text.rfind("\n", self._line_of, start)
        self._line_of = start
        if newline >= 0:
            self._line = newline + 1
        return self._line

    def _build(self, start: int, end: int, opening: str) -> TextChunk:
        fence = self._fences.around(end)
        if fence and fence.body < end <= fence.close:
            body = self._text[start:end]
            closing = self._frame(fence)[1]
            if closing and not body.endswith("\n"):
                closing = f"\n{closing}"
            # The fence's own last line is the closing just added.
            end = fence.end if end == fence.close and closing else end
            return TextChunk(start, end, opening, self._dedent(start, body), closing)
        body = self._text[start:end].rstrip()
        return TextChunk(start, end, opening, self._dedent(start, body), self._close_open_end(opening, body, end))

    def _close_open_end(self, opening: str, body: str, end: int) -> str:
        """Return the closer of a fence that the source itself never closed, where it fits."""
        fence = self._fences.around(end - 1)
        if not fence or not fence.body < end == fence.close == fence.end:
            return ""
        closing = f"\n{fence.closer}"
        return closing if width(f"{opening}{body}{closing}", self._unit) <= self._limit else ""

    def _dedent(self, start: int, body: str) -> str:
        """Take a nested list's indentation off a part that begins with it, or it would read as code."""
        nested = _NESTED_ITEM.match(body)
        if not nested or start <= self._first or self._fences.around(start) or self._line_start(start) != start:
            return body
        indent, lines = nested[0], body.split("\n")
        for number, line in enumerate(lines):
            if line.startswith(indent):
                lines[number] = line[len(indent) :]
            elif line.strip():
                break
        return "\n".join(lines)

    # Where to cut

    def _end(self, start: int, limit: int, least: int) -> int:
        """Return where the part ends, or *start* when nothing fits."""
        end = fit_index(self._text, start, limit, self._unit)
        if end >= len(self._text):
            return end
        inner = self._inner_end(start, end, limit)
        # The space or newline at a cut is trimmed, so that it may stand just beyond the budget.
        high = end + 1 if self._text[end] in " \n" else end
        lowest = max(start, min(least, end) - 1)
        floor = max(start + int((end - start) * _FLOOR), lowest)
        for low in (floor, lowest):
            for found in (
                self._paragraph(low, high) if low == floor else low,
                self._outer_line(low, high),
                self._inner_line(low, end, inner),
                self._sentence(low, end),
                self._space(low, high, inner),
            ):
                if found > low:
                    return found
        return grapheme_boundary(self._text, start, inner)

    def _inner_end(self, start: int, end: int, limit: int) -> int:
        """Return the end of the part if it ends in the fence around *end*."""
        fence = self._fences.around(end)
        if not fence or end <= fence.body:
            return end
        closing = self._frame(fence)[1]
        if not closing:
            return end
        return max(fit_index(self._text, start, limit - width(closing, self._unit) - 1, self._unit), start)

    def _paragraph(self, low: int, high: int) -> int:
        while (newline := self._text.rfind("\n\n", low, high)) >= low:
            place = newline + 2
            fence = self._fences.around(place)
            if not fence:
                return self._before_heading(low, place)
            high = fence.start
        return low

    def _before_heading(self, low: int, place: int) -> int:
        """Keep a heading with what it is the heading of."""
        line = self._text.rfind("\n", low, place - 2) + 1
        return line if line > low and self._text.startswith("#", line) else place

    def _outer_line(self, low: int, high: int) -> int:
        while (newline := self._text.rfind("\n", low, high)) >= low:
            fence = self._fences.around(newline + 1)
            if not fence:
                return newline + 1
            high = fence.start
        return low

    def _inner_line(self, low: int, high: int, inner: int) -> int:
        fence = self._fences.around(high)
        if not fence:
            return low
        # The newline before a closer is the line's own.
        top = inner + 1 if self._frame(fence)[1] else inner
        newline = self._text.rfind("\n", max(low, fence.body), min(top, fence.close))
        return newline + 1 if newline >= 0 else low

    def _sentence(self, low: int, high: int) -> int:
        found = low
        for sentence in _SENTENCE.finditer(self._text, low, high + 1):
            place: int = sentence.end()
            if place <= high and not self._fences.around(place):
                found = place
        return found

    def _space(self, low: int, high: int, inner: int) -> int:
        while space := _LAST_SPACE.search(self._text, low, high + 1):
            place: int = space.end()
            fence = self._fences.around(place)
            if place <= (inner if fence else high) and (not fence or fence.body < place <= fence.close):
                return place
            # An opener is cut last of all: not even its spaces are looked at.
            high = fence.start if fence and place <= fence.body else space.start()
        return low


def _match_end(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Return where a pattern that also matches nothing ends."""
    found = pattern.match(text, place)
    return found.end() if found else place


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
    text = sanitize(markdown[:size])
    if len(markdown) <= size and (whole := _write_whole(text, writer)) is not None:
        return whole
    packer = _TextPacker(text, writer, least)
    parts = list(islice(packer.parts(), writer.max_parts + 1))
    if len(parts) <= writer.max_parts and len(markdown) <= size:
        return [written for _, written in parts]
    kept, cut_off = parts[: writer.max_parts - 1], parts[writer.max_parts - 1 : writer.max_parts]
    source = cut_off[0][0] if cut_off else ""
    return [*(written for _, written in kept), packer.end_with(source, note())]


def _write_whole(text: str, writer: PartWriter) -> list[WrittenPart] | None:
    """Return a text without code fences as one message, as most answers are; None where it has to be cut."""
    if "```" in text or "~~~" in text or len(text) > writer.limit or weight(text) > MOST_WEIGHT:
        return None
    source = text[_match_end(_BLANK_LINES, text, 0) :].rstrip()
    if not source:
        return []
    written = writer.write(source) if width(source, writer.unit) <= writer.limit else None
    if written is None or written.fill > 1:
        return None
    return [written] if written.payload or written.plain else []


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
