"""Find the times in a search query: "last Saturday", "vor vier Tagen", "entre el 3 y el 9 de mayo", "上周六晚上".

English, German, Spanish and Chinese are understood. The end of a range is the first such date after its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import regex

from agent.memory.search.time_rules import TIME_RULES, TimeExpression, TimeMatch
from agent.memory.search.time_spans import DAY, TimeSpan, move_to_year

LONGEST_QUERY = 2_000  # characters that are read for times


def find_time_expressions(text: str, now: datetime) -> tuple[TimeExpression, ...]:
    """Return the times in *text*, in order and without overlaps; *now* is an aware time in the reader's zone."""
    text = text[:LONGEST_QUERY]
    matches = [each for rule in TIME_RULES for each in rule.find(text, now)]
    chosen: list[TimeMatch] = []
    # The longest expression wins where two overlap: "last week" is part of "Saturday last week".
    for each in sorted(matches, key=lambda match: (match.begin - match.end, match.begin)):
        if all(each.end <= other.begin or other.end <= each.begin for other in chosen):
            chosen.append(each)
    chosen.sort(key=lambda match: match.begin)
    return tuple(_with_limits(text, _merge_ranges(text, chosen, now), now))


_JOINS = regex.compile(
    r"\s*(?:-|–|to|until|till|through|and|bis(?: zum)?|und|a|al|y|hasta|到|至|和|与)\s*(?:the |dem |el |la )?",
    regex.IGNORECASE,
)
_MARKED_JOINS = regex.compile(
    r"\s*(?:-|–|to|until|till|through|bis(?: zum)?|hasta|到|至)\s*(?:the |dem |el |la )?", regex.IGNORECASE
)
_BETWEEN = regex.compile(
    r"(?<!\p{L})(?:between|from|zwischen|vo[nm]|entre|desde|del?|从|在)\s*(?:the |dem |el |la )?$", regex.IGNORECASE
)
_SINCE = regex.compile(
    r"(?<!\p{L})(?:since|from|starting|seit(?: dem)?|ab(?: dem)?|desde(?: el)?|自从?|从)\s*$", regex.IGNORECASE
)
_BEFORE = regex.compile(r"(?<!\p{L})(?:before|prior to|vor(?: dem)?|antes del?)\s*$", regex.IGNORECASE)
_UNTIL = regex.compile(r"(?<!\p{L})(?:until|till|up to|bis(?: zum)?|hasta(?: el)?)\s*$", regex.IGNORECASE)
_AFTER = regex.compile(r"(?<!\p{L})(?:after|nach(?: dem)?|después del?)\s*$", regex.IGNORECASE)
_SINCE_SIGNS, _BEFORE_SIGNS, _UNTIL_SIGNS, _AFTER_SIGNS = (
    regex.compile(rf"\s*(?:{each})") for each in ("以来|起", "之前|以前", "为止", "之后|以后")
)


def _merge_ranges(text: str, matches: Sequence[TimeMatch], now: datetime) -> Iterator[TimeMatch]:
    """Yield *matches*, two of them as one where they are the ends of a range."""
    rest = list(matches)
    while rest:
        first = rest.pop(0)
        between = _BETWEEN.search(text, 0, first.begin)
        if rest and first.span is not None and rest[0].span is not None:
            join = text[first.end : rest[0].begin]
            if (_JOINS if between else _MARKED_JOINS).fullmatch(join):
                last = rest.pop(0)
                yield TimeMatch(between.start() if between else first.begin, last.end, _range(first, last, now))
                continue
        yield first


def _range(first: TimeMatch, last: TimeMatch, now: datetime) -> TimeSpan:
    """Return the span from the start of *first* to the end of *last*; dates without a year are put in order."""
    start = first.span.start if first.span else None
    end = last.span.end if last.span else None
    if start is None or end is None:
        return TimeSpan(start, end)
    if end <= start and last.month is not None:
        end = move_to_year(end, end.year + 1)
    elif end <= start and first.month is None:
        end += -((end - start) // (7 * DAY)) * 7 * DAY  # "between Monday and Wednesday", on a Wednesday
    elif first.month is not None and last.month is None and start >= end:
        start = next(at for at in (move_to_year(start, end.year), move_to_year(start, end.year - 1)) if at < end)
    elif first.month is not None and last.month is None and last.span is not None and last.span.start is not None:
        # "from 3 May to 9 June 2023": the year of the end.
        moved = move_to_year(start, last.span.start.year)
        start = moved if moved < end <= now + 366 * DAY else start
    return TimeSpan(start, end) if start < end else TimeSpan(end, start)


def _with_limits(text: str, matches: Iterable[TimeMatch], now: datetime) -> Iterator[TimeExpression]:
    """Yield *matches* as expressions; "since", "before" and "after" leave one end of a span open."""
    for each in matches:
        begin, end, span = each.begin, each.end, each.span
        if span is not None:
            for before, after, limited in (
                (_SINCE, _SINCE_SIGNS, TimeSpan(span.start, now + timedelta(seconds=1))),
                (_BEFORE, _BEFORE_SIGNS, TimeSpan(None, span.start)),
                (_UNTIL, _UNTIL_SIGNS, TimeSpan(None, span.end)),
                (_AFTER, _AFTER_SIGNS, TimeSpan(span.end, now + timedelta(seconds=1))),
            ):
                if written := before.search(text, 0, begin):
                    begin, span = written.start(), limited
                    break
                if written := after.match(text, end):
                    end, span = written.end(), limited
                    break
        yield TimeExpression(begin, end, span, each.conversation)
