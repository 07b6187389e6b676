"""Find the times in a search query: "last Saturday", "vor vier Tagen", "entre el 3 y el 9 de mayo", "上周六晚上".

English, German, Spanish and Chinese are understood. Patterns find times; then those beside each other are put together:
a time is placed in a longer one ("the second Sunday of May", "last week on Friday"), two are the ends of a range, and
"since", "before" and "the day after" move their limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from agent.memory.search.time_grammar import TimeMatch, TokenText, compile_pattern, find_times, read_tokens
from agent.memory.search.time_spans import DAY, ConversationReference, NamedTime, TimeGrain, TimeSpan, move_to_year

LONGEST_QUERY = 2_000  # characters that are read for times


@dataclass(frozen=True, slots=True)
class TimeExpression:
    """A time in a text, and where it is written."""

    begin: int
    end: int
    span: TimeSpan | None = None
    conversation: ConversationReference | None = None


def find_time_expressions(text: str, now: datetime) -> tuple[TimeExpression, ...]:
    """Return the times in *text*, in order and without overlaps; *now* is an aware time in the reader's zone."""
    words = TokenText(read_tokens(text[:LONGEST_QUERY]))
    chosen: list[TimeMatch] = []
    # The longest expression wins where two overlap: "last week" is part of "Saturday last week".
    for each in sorted(find_times(words, now), key=lambda match: (match.begin - match.end, match.begin)):
        if all(each.end <= other.begin or other.end <= each.begin for other in chosen):
            chosen.append(each)
    chosen.sort(key=lambda match: match.begin)
    whole = [
        _moved_by_days(words, each)
        for each in _place_in_longer(words, chosen)
        if each.time is None or (each.time.span is not None and each.time.is_complete)
    ]
    return tuple(_with_limits(words, each, now) for each in _merge_ranges(words, whole, now))


_BESIDE = compile_pattern("BESIDE*")


def _place_in_longer(words: TokenText, matches: Sequence[TimeMatch]) -> list[TimeMatch]:
    """Return *matches*, those beside each other as one where one is part of the other or moves it."""
    rest = list(matches)
    n = len(rest) - 2
    while n >= 0:
        joined = None
        if words.is_between(_BESIDE, rest[n].end, rest[n + 1].begin):
            joined = _join_times(rest[n], rest[n + 1], is_bare=rest[n].end == rest[n + 1].begin)
        if joined is None:
            n -= 1
            continue
        rest[n : n + 2] = [joined]
        n = len(rest) - 2
    return rest


def _join_times(first: TimeMatch, last: TimeMatch, *, is_bare: bool) -> TimeMatch | None:
    """Return two times beside each other as one, None if neither is part of the other."""
    one, other = first.time, last.time
    if one is None or other is None:
        return None
    begin, end = first.begin, last.end
    if (
        one.grain is TimeGrain.DAY
        and TimeGrain.WEEK in one.inside
        and other.grain is TimeGrain.DAY
        and not other.inside & {TimeGrain.WEEK}
    ):
        return replace(last, begin=begin)  # "Friday, 3 May"
    for day, ago in ((one, other), (other, one) if is_bare or not other.inside else (one, other)):
        is_day = day.grain in {TimeGrain.DAY, TimeGrain.PART} and (not day.inside or TimeGrain.WEEK in day.inside)
        if is_day and day.span is not None and ago.move and ago.grain >= TimeGrain.WEEK:
            return TimeMatch(begin, end, time=_moved_time(day, ago))
    for part, whole in ((one, other), (other, one)):
        if part.place is None or whole.span is None or whole.grain not in part.inside:
            continue
        try:
            span = part.place(whole.span, whole.grain)
        except ValueError:  # the fifth Sunday of a month that has four
            continue
        return TimeMatch(begin, end, time=_placed_time(part, whole, span), whole=whole)
    return None


def _placed_time(part: NamedTime, whole: NamedTime, span: TimeSpan) -> NamedTime:
    inner, outer = part.place, whole.place
    if inner is None or outer is None:
        return NamedTime(span, part.grain)
    return NamedTime(span, part.grain, lambda longer, grain: inner(outer(longer, grain), whole.grain), whole.inside)


def _moved_time(day: NamedTime, ago: NamedTime) -> NamedTime:
    """Return *day* as far back, or ahead, as *ago* says: "Saturday a week ago"."""
    span, move = day.span, ago.move
    if span is None or span.start is None or span.end is None or move is None:
        raise TypeError("a day has a beginning and an end")
    start, end = span.start, span.end
    if TimeGrain.WEEK in day.inside and move(start) > start:
        start, end = start + 7 * DAY, end + 7 * DAY  # from the Saturday to come
    return NamedTime(TimeSpan(move(start), move(start) + (end - start)), day.grain)


_DAYS_FROM = compile_pattern("(?:article:THE)?(?:count:NUM)?(?:unit:UNIT|unit:UNITS)(?:before:BEFORE|AFTER)THE?$")
_LENGTHS = {"day": 1, "week": 7, "month": 30}


def _moved_by_days(words: TokenText, match: TimeMatch) -> TimeMatch:
    """Return *match*, or the time that is so many days or weeks before or after it: "the week after Easter"."""
    span = match.time.span if match.time else None
    found = words.before(_DAYS_FROM, match.begin)
    if span is None or span.start is None or span.end is None or found is None:
        return match
    begin, values = found
    count, is_before, length = values.get("count", 1), "before" in values, _LENGTHS.get(values["unit"], 0) * DAY
    if not length:
        return match
    if "article" in values and "count" in values:  # "the three days after Easter": all of them
        start = span.start - count * length if is_before else span.end
        moved = TimeSpan(start, start + count * length)
    elif length == DAY or count == 1:
        start = span.start - count * length if is_before else span.end + (count - 1) * length
        moved = TimeSpan(start, start + length)
    else:
        middle = span.start - count * length if is_before else span.end + count * length
        moved = TimeSpan(middle - 3 * DAY, middle + 4 * DAY)
    return TimeMatch(begin, match.end, time=NamedTime(moved, TimeGrain.DAYS))


_JOINS, _MARKED_JOINS = compile_pattern("(?:JOIN|AND)JOINED?"), compile_pattern("JOIN JOINED?")
_BETWEEN = compile_pattern("BETWEEN THE?$")


def _merge_ranges(words: TokenText, matches: Sequence[TimeMatch], now: datetime) -> Iterator[TimeMatch]:
    """Yield *matches*, two of them as one where they are the ends of a range."""
    rest = list(matches)
    while rest:
        first = rest.pop(0)
        between = words.before(_BETWEEN, first.begin)
        joins = _JOINS if between else _MARKED_JOINS
        if (
            rest
            and (first.time is None) == (rest[0].time is None)
            and words.is_between(joins, first.end, rest[0].begin)
        ):
            last = rest.pop(0)
            begin = between[0] if between else first.begin
            if first.conversation is not None and last.conversation is not None:
                talks = ConversationReference(first.conversation.first, last.conversation.last)
                yield TimeMatch(begin, last.end, conversation=talks)
            else:
                yield TimeMatch(begin, last.end, time=NamedTime(_range(first, last, now), TimeGrain.DAYS))
        else:
            yield first


def _range(first: TimeMatch, last: TimeMatch, now: datetime) -> TimeSpan:
    """Return the span from the start of *first* to the end of *last*; dates without a year are put in order."""
    one, other = first.time, last.time
    if one is None or other is None or one.span is None or other.span is None:
        raise TypeError("only times with limits have a range")
    if last.whole is not None and one.place is not None and last.whole.span and last.whole.grain in one.inside:
        one = NamedTime(one.place(last.whole.span, last.whole.grain), one.grain)  # "from Monday to Friday last week"
    if first.whole is not None and other.place is not None and first.whole.span and first.whole.grain in other.inside:
        other = NamedTime(other.place(first.whole.span, first.whole.grain), other.grain)
    start = one.span.start if one.span else None
    end = other.span.end if other.span else None
    if start is None or end is None:
        return TimeSpan(start, end)
    has_year, has_last_year = TimeGrain.YEAR not in one.inside, TimeGrain.YEAR not in other.inside
    if end <= start and not has_last_year:
        end = move_to_year(end, end.year + 1)
    elif end <= start and TimeGrain.MONTH in other.inside:
        start -= 31 * DAY  # "from the 20th to the 3rd"
    elif end <= start and has_year:
        end += -((end - start) // (7 * DAY)) * 7 * DAY  # "between Monday and Wednesday", on a Wednesday
    elif not has_year and has_last_year and start >= end:
        start = next(at for at in (move_to_year(start, end.year), move_to_year(start, end.year - 1)) if at < end)
    elif not has_year and has_last_year and other.span is not None and other.span.start is not None:
        # "from 3 May to 9 June 2023": the year of the end.
        moved = move_to_year(start, other.span.start.year)
        start = moved if moved < end <= now + 366 * DAY else start
    return TimeSpan(start, end) if start < end else TimeSpan(end, max(start, end + DAY))  # no order makes sense of them


_LIMITS = (
    (compile_pattern("SINCE JOINED?$"), "SIGNSINCE"), (compile_pattern("BEFORE JOINED?$"), "SIGNBEFORE"),
    (compile_pattern("UNTIL JOINED?$"), "SIGNUNTIL"), (compile_pattern("AFTER JOINED?$"), "SIGNAFTER"),
)  # fmt: skip


def _with_limits(words: TokenText, match: TimeMatch, now: datetime) -> TimeExpression:
    """Return *match* as an expression; "since", "before" and "after" leave one end of a span open."""
    begin, end, talks = match.begin, match.end, match.conversation
    span = match.time.span if match.time else None
    for n, (before, after) in enumerate(_LIMITS):
        written = words.before(before, begin)
        if written is None and n == 0 and words.has("ONWARDS", end):
            written = words.before(_BETWEEN, begin)  # "from 27 December on"
        if written is not None:
            begin = written[0]
        elif words.has(after, end):
            end += 1
        else:
            continue
        span = _limited_span(span, n, now) if span else None
        talks = _limited(talks, n) if talks else None
        break
    while words.has("LEAD", begin - 1) or words.has("OWN", begin - 1):
        begin -= 1  # "in our first talk": none of these is a word to search for
    return TimeExpression(words.tokens[begin].begin, words.tokens[end - 1].end, span, talks)


def _limited_span(span: TimeSpan, limit: int, now: datetime) -> TimeSpan:
    """Return the time since, before, up to or after *span*; a time to come limits what is to come."""
    is_to_come = span.start is not None and span.start > now
    past, soon = (now, None) if is_to_come else (None, now + timedelta(seconds=1))
    match limit:
        case 0:
            return TimeSpan(span.start, soon)
        case 1:
            return TimeSpan(past, span.start)
        case 2:
            return TimeSpan(past, span.end)
    return TimeSpan(span.end, soon if span.end and span.end <= now else None)


def _limited(conversations: ConversationReference, limit: int) -> ConversationReference:
    """Return the conversations since, before, up to or after *conversations*; 0 is the present one."""
    match limit:
        case 0:
            return ConversationReference(conversations.first, 0)
        case 1:
            return ConversationReference(1, conversations.first - 1) if conversations.first != 1 else conversations
        case 2:
            return ConversationReference(1, conversations.last)
    return ConversationReference(conversations.last + 1, 0)
