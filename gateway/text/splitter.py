"""The one splitter: Markdown into parts that a platform takes, with nothing lost between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import regex

from gateway.i18n import FALLBACK, translate
from gateway.text.code_fences import CodeFence, CodeFences
from gateway.text.text_units import WIDEST, LengthUnit, fit_index, grapheme_boundary, sanitize, width

_BLANK_LINES = re.compile(r"(?:[ \t]*+\n)*+")
# What continues a grapheme cluster must not begin a part; anything else may, after a space or a full stop.
_JOINING = r"\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}"
_FRESH = rf"(?=[^{_JOINING}])"
_SPACES = regex.compile(rf"(?:[ \t](?![{_JOINING}]))*+")
_LAST_SPACE = regex.compile(rf"(?r)[ \t\u3000]{_FRESH}")
_SENTENCE = regex.compile(rf"(?:(?<![\s\d])[.!?…]++[\"'”’)\]*_]*+(?=\s)|[。！？]++[”’）」』]*+){_FRESH}")
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
