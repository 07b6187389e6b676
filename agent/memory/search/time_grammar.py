"""Find the times in a search query: "last Saturday", "vor vier Tagen", "entre el 3 y el 9 de mayo", "上周六晚上".

English, German, Spanish and Chinese are understood. Rules are patterns of classes of words (time_grammar.tsv), each
with what resolves it. Then times beside each other are put together: a time is placed in a longer one ("the second
Sunday of May", "last week on Friday"), two are the ends of a range, and "since", "before" and "the day after" move
their limits.

A rule names a complete time, or a part of one such as "the second Sunday", which needs the time beside it. A pattern is
a regular expression over tokens: ``NUM`` is a token of that class, ``count:NUM`` also gives its value to the resolver.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import regex

from agent.memory.search import time_resolvers as to
from agent.memory.search.time_resolvers import Resolver
from agent.memory.search.time_spans import DAY, ConversationReference, NamedTime, TimeGrain, TimeSpan, move_to_year
from agent.memory.search.tokenizer import MONTHS, MONTHS_IN_CAPITALS

_ENDINGS: Mapping[str, tuple[str, ...]] = {"~": ("e", "en", "er", "es", "em"), "±": ("o", "a", "os", "as")}
_LONGEST = 6  # tokens of a phrase
_DAY, _MONTH, _YEAR = r"(?P<day>[0-3]?\d)", r"(?P<month>[01]?\d)", r"(?P<year>(?:19|20)\d\d)"
# Without a year, a date in digits needs a preposition or the second dot, or versions of programs would be dates.
_DATES = (
    rf"{_YEAR}-{_MONTH}-{_DAY}|{_YEAR}[-/](?P<month>0[1-9]|1[0-2])|(?P<month>0?[1-9]|1[0-2])/{_YEAR}"
    rf"|(?P<month>[0-3]?\d)/{_DAY}/{_YEAR}|{_DAY}\.{_MONTH}\.{_YEAR}?"
    rf"|(?<=\b(?:am|vom|zum|dem|den|seit|bis) ){_DAY}\.{_MONTH}(?:\.(?P<year>\d\d))?"
)
_TOKEN = regex.compile(
    rf"(?<![\p{{L}}\p{{N}}.])(?P<DATE>{_DATES})(?![\p{{L}}\p{{N}}]|\.\d)"
    r"|(?<!\d)(?P<CLOCKTIME>[0-2]?\d:[0-5]\d)(?!\d)|(?<![\p{L}\d])(?P<PARTOFYEAR>[qths][1-4])(?![\p{L}\d])"
    r"|(?<!\d)(?P<DAYORD>\d{1,3}(?:(?:st|nd|rd|th)(?!\p{L})|\.?[ªº]|\.(?!\d)))|(?P<DIGITS>\d+)"
    r"|(?P<SHORTYEAR>(?<!\p{L})'\d\d)(?!\d)|\p{Han}"
    # "Dienstagmorgen" is two words.
    r"|(?:montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag)(?=(?:früh|(?:vor|nach)?mittag|morgen|abend|nacht)\b)"
    r"|(?:(?!\p{Han})\p{L})+(?:['’]\p{L}+)*|\S"
)


@dataclass(frozen=True, slots=True)
class TimeMatch:
    """A time in a text, before those beside each other are put together, and its tokens, *end* not included."""

    begin: int
    end: int
    time: NamedTime | None = None
    conversation: ConversationReference | None = None
    whole: NamedTime | None = None  # the longer time that it was placed in


_NEAR = 8  # tokens before a time that may say what it is
_BACK, _AHEAD = {"direction": -1}, {"direction": 1}
_MACROS = {
    "{amount}": "(?:(?:count:NUM|few:FEW|part_of:HALF)GE?)",
    "{unit}": "(?:unit:UNIT|plural:UNITS)",
    "{part}": "(?:LINK*part:PART)?",
    "{ordinal}": "(?:ordinal:ORDP|ordinal:ORDL)",
    "{final}": "(?:TO(?:OWN|TALK|NUMBER)?(?:final:ORDP|final:NUM))?",
    "{which}": "(?:last:LAST|last:PAST|this:THIS|next:NEXT|before_last:BLAST)",
    "{after}": "(?:(?:last:LAST|last:PAST|next:NEXT|before_last:BLAST)(?!UNIT))?",
    "{year}": "(?:COMMA?OF?THE?YEARWORD?(?:year:YEAR|year:SHORTYEAR))?",
    "{day}": "(?:day:DAYORD|day:DIGITS|day:ORDP)",
    "{first}": "(?:first:DAYORD|first:DIGITS)",
    "{last}": "(?:last:DAYORD|last:DIGITS)",
    "{free}": "(?=$|SIGN|COMMA|FREE)",
}
# Patterns with what they tell the resolver beside the values of their groups. Of two of one length the first wins.
_RULES: Sequence[tuple[str, Resolver, Mapping[str, Any]]] = (
    # Days near today.
    ("offset:REL{part}|daypart:DAYPART", to.resolve_relative, {}),
    ("(?<!NOTMORGEN)offset:MORGEN{part}", to.resolve_relative, {}),
    ("THIS part:PART", to.resolve_relative, {"offset": 0}),
    ("(?:LAST|PAST)part:PART|part:PART LAST", to.resolve_relative, {"offset": -1}),
    ("BLAST part:PART|part:PART BLAST", to.resolve_relative, {"offset": -2}),
    # So and so long ago, and in so and so long.
    ("ABOUT?{amount}(?:OR most:NUM)?OF?{unit}(?:plus:ANDHALF)?AGO{part}", to.resolve_ago, _BACK),
    ("AGO0 ABOUT?{amount}(?:OR most:NUM)?{unit}(?:plus:ANDHALF)?|AGO0 unit:UNIT plus:ANDHALF", to.resolve_ago, _BACK),
    ("IN0 ABOUT?{amount}{unit}|{amount}{unit}from:HENCE", to.resolve_ago, _AHEAD),
    ("OTHERDAY", to.resolve_ago, {**_BACK, "few": True, "unit": "day"}),
    ("THE?(?:LAST|PAST|RECENT){amount}{unit}(?!NOTWITHIN)|THE?{amount}PAST plural:UNITS", to.resolve_within, _BACK),
    ("THE?(?:LAST|PAST|RECENT)plural:UNITS(?!NOTWITHIN)|SINCE0 ABOUT?{amount}{unit}", to.resolve_within, _BACK),
    ("(?:THE?PAST|EN LAST)unit:UNIT(?!NOTWITHIN)|SIGNTHIS few:FEW{unit}", to.resolve_within, _BACK),
    ("NEXT{amount}{unit}|NEXT plural:UNITS", to.resolve_within, _AHEAD),
    # Periods of the calendar.
    ("LAST unit:UNIT(?!IM)|THE?unit:UNIT(?:LAST|PRIOR)|SIGNLAST unit:SIGNUNIT", to.resolve_period, {"offset": -1}),
    ("THIS unit:UNIT|SIGNTHIS unit:SIGNUNIT", to.resolve_period, {"offset": 0}),
    ("BLAST unit:UNIT|THE?unit:UNIT BLAST|SIGNBLAST unit:SIGNUNIT", to.resolve_period, {"offset": -2}),
    ("NEXT unit:UNIT|THE?unit:UNIT NEXT|SIGNNEXT unit:SIGNUNIT", to.resolve_period, {"offset": 1}),
    ("offset:YEARREL", to.resolve_period, {"unit": "year"}),
    ("(?:AT0 EN|AM|ES)WEEKEND|SIGNWEEKEND", to.resolve_weekend, {}),
    ("THE unit:UNIT", to.resolve_present, {}),
    ("quarter:QUARTER{year}|quarter:PARTOFYEAR OF?year:YEAR|ordinal:ORDP unit:UNIT{year}", to.resolve_quarter, {}),
    ("KW number:NUM{year}|unit:UNIT NUMBER?number:NUM COMMA?OF?year:YEAR", to.resolve_week_number, {}),
    # Parts of a longer time.
    ("when:EARLIER", to.resolve_earlier, {}),
    ("(?<!BE)third:THIRD|third:THIRDOF(?=OF)|third:THIRDIM(?=IM)", to.resolve_third, {}),
    ("THE?{ordinal}weekday:WD", to.resolve_nth_weekday, {}),
    ("THE?{ordinal}{amount}?{unit}|THE?{amount}{ordinal}plural:UNITS", to.resolve_nth, {}),
    ("part:PART", to.resolve_part, {}),
    (
        "(?:AT THE?)?(?:time:CLOCKTIME|hour:NUM)half:AMPM|hour:NUM SIGNCLOCK|AT THE?(?:time:CLOCKTIME|hour:NUM)CLOCK?",
        to.resolve_clock,
        {},
    ),
    # Weekdays.
    ("(?:LAST|PAST)?weekday:WD{part}|weekday:WD LAST{part}", to.resolve_weekday, {}),
    ("(?:ON|LAST|PAST)weekday:SHORTWD{part}", to.resolve_weekday, {}),
    ("this:THIS weekday:WD{part}|next:NEXT(?:weekday:WD|weekday:SHORTWD){part}", to.resolve_weekday, {}),
    ("weekday:WD next:NEXT|before_last:BLAST weekday:WD|weekday:WD before_last:BLAST", to.resolve_weekday, {}),
    ("SIGNLAST weekday:WD{part}", to.resolve_weekday, {"weeks": 1}),
    ("SIGNBLAST weekday:WD{part}", to.resolve_weekday, {"weeks": 2}),
    ("SIGNTHIS weekday:WD{part}", to.resolve_weekday, {"weeks": 0}),
    ("SIGNNEXT weekday:WD{part}", to.resolve_weekday, {"weeks": -1}),
    ("count:NUM(?:weekday:WD|weekday:WDS)AGO|AGO0 count:NUM(?:weekday:WD|weekday:WDS)", to.resolve_weekdays_ago, {}),
    # Dates.
    ("unit:UNIT(?:OF|HENCE|STARTING)+(?:ON|THE)*(?:{day}OF?month:MON|month:MON{day}){year}", to.resolve_week_of, {}),
    ("(?:year:YEAR NIAN)?month:NUM YUE day:NUM RI THATWEEK", to.resolve_week_of, {"unit": "week"}),
    ("{day}OF?month:MON{year}{part}|day:NUM OF month:MON{year}{part}", to.resolve_date, {}),
    ("month:MON THE?{day}{year}{part}|date:DATE", to.resolve_date, {}),
    ("{which}?month:MON{after}{year}", to.resolve_date, {}),
    ("(?:year:YEAR NIAN)?month:NUM YUE(?:day:NUM RI?)?{part}", to.resolve_date, {}),
    ("(?:BETWEEN THE?)?{first}TO JOINED?{last}OF?month:MON{year}", to.resolve_days_of_month, {}),
    ("month:MON{first}TO{last}(?!MON){year}", to.resolve_days_of_month, {}),
    ("(?:year:YEAR NIAN)?month:NUM YUE first:NUM RI?TO last:NUM RI", to.resolve_days_of_month, {}),
    # Not "the 3rd floor" and "am 3. Tag": what follows is no noun.
    ("THE day:DAYORD{free}|DIA day:DIGITS", to.resolve_day_of_month, {}),
    ("(?<=ELDAY)day:DIGITS(?=(?:SIGN|COMMA)*$|JOIN|AND)", to.resolve_day_of_month, {}),
    ("(?<=AMDAY)day:DOTDAY(?!NOUN|UNIT|TIME)", to.resolve_day_of_month, {}),
    # Alone "fall" and "spring" are verbs, and "summer" is a kind of dress.
    ("IN THE?season:SEASON{after}{year}|{which}season:SEASON{year}", to.resolve_season, {}),
    ("THE?season:SEASON{which}(?!UNIT){year}", to.resolve_season, {}),
    ("season:SEASON OF?year:YEAR|(?:year:YEAR NIAN)?season:SIGNSEASON", to.resolve_season, {}),
    ("season:SEASON", to.resolve_bare_season, {}),
    ("year:YEAR NIAN?", to.resolve_year, {}),
    ("{which}?feast:FEAST{after}{year}", to.resolve_feast, {}),
    # Conversations by their place.
    ("ordinal:ORDP{final}TALK|(?:OWN|(?<=SINCE))ordinal:ORDL TALK", to.resolve_conversation, {}),
    ("OWN{ordinal}{amount}TALK|OWN{amount}{ordinal}TALK", to.resolve_conversation, {}),
    ("(?:BETWEEN OWN?)?ordinal:ORDP TALK TO OWN?final:ORDP ONE?", to.resolve_conversation, {}),
    ("COUNTED NUMBER?ordinal:NUM{final}", to.resolve_conversation, {}),
    ("{ordinal}TIME(?:WHEN|THAT|COMMA)*WE?TALKED|ordinal:ORDL MAL", to.resolve_conversation, {}),
    ("ago:NUM TALK AGO|AGO0 ago:NUM TALK", to.resolve_conversation, {}),
    ("ordinal:ORDP TIMES TALK|ordinal:SIGNLASTTIME TALK?", to.resolve_conversation, {}),
    ("WE FIRSTLY TALKED", to.resolve_conversation, {"ordinal": 1}),
    ("WHEN WE LASTLY TALKED", to.resolve_conversation, {"ordinal": -1}),
    ("TALK BEFORETHAT", to.resolve_conversation, {"ordinal": -2}),
)


class TokenText:
    """Tokens of a text, as patterns of classes read them. Places are counted in tokens."""

    def __init__(self, tokens: Sequence[TimeToken]) -> None:
        self.tokens = tokens
        encoded = [f"<,{','.join(token.values)},>" for token in tokens]
        self._text = "".join(encoded)
        self._offsets = [*accumulate(map(len, encoded), initial=0)]

    def values(self, match: regex.Match[str]) -> dict[str, Any]:
        """Return the values of the groups of *match*."""
        found = {}
        for group, matched in match.groupdict().items():
            if matched is not None:
                name, _, kind = group.partition("__")
                found[name] = self.tokens[self._place(match.start(group))].values[kind]
        return found

    def _place(self, offset: int) -> int:
        return bisect_left(self._offsets, offset)

    def find(self, pattern: regex.Pattern[str]) -> Iterator[tuple[int, int, regex.Match[str]]]:
        """Yield every match, overlaps included, with its first token and the one after it."""
        for match in pattern.finditer(self._text, overlapped=True):
            yield self._place(match.start()), self._place(match.end()), match

    def before(self, pattern: regex.Pattern[str], place: int) -> tuple[int, dict[str, Any]] | None:
        """Return where a match begins that ends before *place*, and its values; *pattern* ends with ``$``."""
        match = pattern.search(self._text, self._offsets[max(0, place - _NEAR)], self._offsets[place])
        return (self._place(match.start()), self.values(match)) if match else None

    def is_between(self, pattern: regex.Pattern[str], begin: int, end: int) -> bool:
        """Return True if *pattern* matches all tokens from *begin* to *end*."""
        return pattern.fullmatch(self._text, self._offsets[begin], self._offsets[end]) is not None

    def has(self, name: str, place: int) -> bool:
        """Return True if there is a token of the class *name* at *place*."""
        return 0 <= place < len(self.tokens) and name in self.tokens[place].values


def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Return a pattern of classes as one of encoded tokens."""
    for name, text in _MACROS.items():
        pattern = pattern.replace(name, text)
    return regex.compile(regex.sub(r"(?<!\w)(?:(\w++):)?([A-Z][A-Z0-9]*+)(?!\w)", _atom, pattern).replace(" ", ""))


def _atom(match: regex.Match[str]) -> str:
    token = f"<[^<>]*,{match[2]},[^<>]*>"
    return f"(?P<{match[1]}__{match[2]}>{token})" if match[1] else f"(?:{token})"


@functools.cache
def _compiled() -> Sequence[tuple[regex.Pattern[str], Resolver, Mapping[str, Any]]]:
    """Return the rules, compiled when a query is first read."""
    return [(compile_pattern(pattern), resolve, told) for pattern, resolve, told in _RULES]


def find_times(text: TokenText, now: datetime) -> Iterator[TimeMatch]:
    """Yield what the rules find, overlaps included."""
    for pattern, resolve, told in _compiled():
        for begin, end, match in text.find(pattern):
            if _is_no_month(text, begin, end):
                continue
            try:
                value = resolve({**told, **text.values(match)}, now)
            except (ValueError, LookupError, OverflowError):  # 31 June, or a thousand years ago
                continue
            if isinstance(value, NamedTime):
                yield TimeMatch(begin, end, time=value)
            else:
                yield TimeMatch(begin, end, conversation=value)


def _is_no_month(text: TokenText, begin: int, end: int) -> bool:
    """Return True for "may", "march" and the like, where nothing else makes them a date."""
    found = text.tokens[begin:end]
    doubtful = next((token.values for token in found if "DOUBTFUL" in token.values), None)
    if doubtful is None:
        return False
    is_lower, is_alone = doubtful["DOUBTFUL"], len(found) == 1
    follows = begin > 0 and text.has("PREP", begin - 1)
    is_free = end == len(text.tokens) or any(text.has(name, end) for name in ("SIGN", "COMMA", "FREE"))
    if is_alone:  # "May I ask", "in may we"
        return not (is_lower and follows and is_free)
    is_date = any(not {"YEAR", "DAYORD"}.isdisjoint(token.values) for token in found) or "PREP" in found[0].values
    return is_lower and not (is_date or follows or is_free)


# -- words of times --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimeToken:
    """A word, number or sign, its place, and its value in each class that it belongs to."""

    begin: int
    end: int
    values: Mapping[str, Any]


@functools.cache
def _table() -> Mapping[tuple[str, ...], Mapping[str, Any]]:
    """Return the classes of each word and phrase, by its tokens."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in Path(__file__).with_suffix(".tsv").read_text("utf-8").splitlines():
        head, words = line.split("\t")
        name, _, value = head.partition(" ")
        for phrase in (each for word in words.split("|") for each in _inflected(word)):
            tokens = tuple(match[0] for match in _TOKEN.finditer(phrase))
            found.setdefault(tokens, {}).setdefault(name, _read_value(value))
    for word, number in MONTHS.items():
        found.setdefault((word,), {})["MON"] = number
    return found


def _inflected(word: str) -> list[str]:
    mark = next((mark for mark in _ENDINGS if mark in word), "")
    return [word.replace(mark, ending) for ending in _ENDINGS[mark]] if mark else [word]


def _read_value(text: str) -> Any:
    """Return a number, numbers or words, as the table has them."""
    try:
        numbers = tuple(float(part) if "." in part else int(part) for part in text.split())
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else numbers or True


def read_tokens(text: str) -> list[TimeToken]:
    """Return the tokens of *text*, the longest phrases as one; each has a class, at least OTHER or SIGN."""
    # Letter by letter, so that places stay; a hyphen between letters is a space.
    lower = "".join(each.lower() if len(each.lower()) == 1 else each for each in text).replace("’", "'")
    matches = [*_TOKEN.finditer(regex.sub(r"(?<=\p{L})-(?=\p{L})", " ", lower))]
    words, tokens, n = [match[0] for match in matches], list[TimeToken](), 0
    while n < len(words):
        lengths = range(min(_LONGEST, len(words) - n), 0, -1)
        length = next((length for length in lengths if tuple(words[n : n + length]) in _table()), 0)
        begin, end = matches[n].start(), matches[n + (length or 1) - 1].end()
        if length:
            values = _table()[tuple(words[n : n + length])]
            if length == 1 and words[n] in MONTHS_IN_CAPITALS and (n == 0 or text[begin].islower()):
                values = {**values, "DOUBTFUL": text[begin].islower()}
        elif words[n].endswith("'s") and (words[n][:-2],) in _table():
            values, end = _table()[(words[n][:-2],)], end - 2
        else:
            values = _classify(matches[n]) | ({"NOUN": True} if text[begin].isupper() else {})
        tokens.append(TimeToken(begin, end, values))
        n += length or 1
    return tokens


def _classify(match: regex.Match[str]) -> dict[str, Any]:
    """Return the classes of numbers, dates in digits, and of what is in no table."""
    text, number = match[0], int("0" + regex.sub(r"\D", "", match[0])[:4])
    match match.lastgroup:
        case "DATE":
            date = {name: int(value) for name, value in match.groupdict().items() if value and name != "DATE"}
            if date.get("month", 0) > 12:
                date["month"], date["day"] = date["day"], date["month"]
            return {"DATE": date}
        case "CLOCKTIME":
            return {"CLOCKTIME": tuple(map(int, text.split(":")))}
        case "PARTOFYEAR":
            return {"QUARTER" if text[0] == "q" else "PARTOFYEAR": (6 if text[0] in "hs" else 3, int(text[1]))}
        case "DAYORD":
            return {"DAYORD": number, "ORDP": number, **({"NUM": number, "DOTDAY": number} if text[-1] == "." else {})}
        case "SHORTYEAR":
            return {"SHORTYEAR": 2_000 + number}
        case "DIGITS" if len(text) < 4:
            return {"NUM": number, "DIGITS": number}
        case "DIGITS" if len(text) == 4 and 1_900 <= number < 2_100:
            return {"YEAR": number}
    return {"OTHER": True} if text.isalnum() else {"SIGN": True}


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
