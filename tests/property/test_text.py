"""What the splitter promises for any text, in any unit, at any limit."""

from __future__ import annotations

import re

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from gateway.text import LengthUnit, iter_chunks, parse, render_plain, sanitize, split, split_bounded, width
from gateway.text.message_text import grapheme_boundary

MARKDOWN = (
    "```", "````", "~~~", "```py\n", "\n", "\n\n", "> ", "- ", "1. ", "   ", "    ", "# ", "`", "*", "**", "[a](b)",
    "word", "A sentence. ", "漢字。", "👨‍👩‍👧‍👦", "🇩🇪", "é", "e\u0301", "\u0301", "\u200d", "שלום", "\u202e",
    "\t", "\r\n", "\x00", "\ud83d", "\ude00", "x" * 40, "|a|b|\n|-|-|\n", "\u3000", "क्षि", "\u0600",
)  # fmt: skip
texts = st.one_of(
    st.text(st.one_of(st.sampled_from(MARKDOWN), st.characters()).map(lambda piece: piece[:1] or "x")),
    st.lists(st.one_of(st.sampled_from(MARKDOWN), st.text(max_size=6)), max_size=60).map("".join),
    st.lists(st.sampled_from(MARKDOWN), max_size=60).map("".join),
)
units = st.sampled_from(LengthUnit)
limits = st.integers(4, 120)


def squeezed(text: str) -> str:
    """Return *text* without whitespace: what no cut may touch."""
    return re.sub(r"\s+", "", text)


@given(texts, limits, units)
def test_every_part_fits_and_none_is_empty(text: str, limit: int, unit: LengthUnit) -> None:
    """Each part holds something and is within the limit, what a fence adds included."""
    for part in split(text, limit=limit, unit=unit):
        assert part.strip()
        assert width(part, unit) <= limit


@given(texts, limits, units)
def test_nothing_is_lost_between_cuts(text: str, limit: int, unit: LengthUnit) -> None:
    """The cuts tile the source but for whitespace, in order, and each body is its stretch of the source."""
    source, place = sanitize(text), 0
    for cut in iter_chunks(source, limit=limit, unit=unit):
        assert not source[place : cut.start].strip()
        stretch = squeezed(source[cut.start : cut.end])
        assert stretch.startswith(squeezed(cut.body))
        # What is left of the stretch is the fence's own last line, replaced by the one that was added.
        rest = stretch[len(squeezed(cut.body)) :]
        assert not rest or (cut.closing and set(rest) <= set("`~>"))
        place = cut.end
    assert not source[place:].strip()


@given(texts, limits, units)
def test_no_cluster_is_torn_that_fits(text: str, limit: int, unit: LengthUnit) -> None:
    """A cut inside a grapheme cluster happens only to one that is longer than the limit."""
    source = sanitize(text)
    starts = [cut.start for cut in iter_chunks(source, limit=limit, unit=unit)]
    clusters = [(found.start(), found.end()) for found in regex.finditer(r"\X", source)]
    for start, end in clusters:
        if any(start < place < end for place in starts):
            assert width(source[start:end], unit) > limit


@given(texts, st.integers(0, 60), st.integers(0, 60))
def test_boundary_agrees_with_the_whole_text(text: str, start: int, length: int) -> None:
    """Looking only near a cut finds the same boundary as reading the whole text from the start of a cluster."""
    source = sanitize(text)
    ends = [0, *(found.end() for found in regex.finditer(r"\X", source))]
    begin = max(place for place in ends if place <= min(start, len(source)))
    end = min(begin + length, len(source))
    assert grapheme_boundary(source, begin, end) == max(place for place in ends if place <= end)


@given(texts)
def test_clean_text_can_be_sent_and_stays(text: str) -> None:
    """Clean text encodes, holds no control characters but tab and newline, and cleaning again changes nothing."""
    cleaned = sanitize(text)
    cleaned.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", cleaned)
    assert sanitize(cleaned) == cleaned


@given(texts, limits, units, st.integers(1, 4))
def test_a_bounded_answer_says_when_it_is_cut(text: str, limit: int, unit: LengthUnit, most: int) -> None:
    """Never more than so many parts, each within the limit; the last one says so when something is missing."""
    parts = split_bounded(text, limit=limit, unit=unit, max_parts=most, note="(cut)")
    assert len(parts) <= most
    assert all(width(part, unit) <= limit and part.strip() for part in parts)
    whole = split(text, limit=limit, unit=unit)
    if len(whole) > most:
        assert parts[-1].endswith("(cut)"[:limit])
    else:
        assert parts == whole


@given(texts)
def test_any_text_has_a_tree_and_a_plain_form(text: str) -> None:
    """Parsing never fails, and plain text is sendable."""
    parse(text)
    assert render_plain(text) == sanitize(render_plain(text))


@given(st.lists(st.sampled_from(["a b", "if x:", "    y()", "", "``", "<html>"]), min_size=1, max_size=40), limits)
def test_code_survives_the_cuts(lines: list[str], limit: int) -> None:
    """Lines of a fence that fit stay whole and in order, inside a fence in every part, with their indentation."""
    limit = max(limit, 40)
    parts = split("```py\n" + "\n".join(lines) + "\n```", limit=limit)
    shown: list[str] = []
    for part in parts:
        first, *body, last = part.split("\n")
        assert (first, last) == ("```py", "```")
        shown += body
    assert [line for line in shown if line] == [line for line in lines if line]


@pytest.mark.parametrize("unit", list(LengthUnit))
def test_a_limit_that_holds_no_character_is_refused(unit: LengthUnit) -> None:
    """A limit below the widest character would lose text, so it is an error."""
    with pytest.raises(ValueError, match="does not hold"):
        split("x", limit=0, unit=unit)
