"""The rules of times in a query: patterns of classes of words (time_grammar.tsv), each with what resolves it.

A rule names a complete time, or a part of one such as "the second Sunday", which needs the time beside it. A pattern is
a regular expression over tokens: ``NUM`` is a token of that class, ``count:NUM`` also gives its value to the resolver.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import regex

from agent.memory.search import time_resolvers as to
from agent.memory.search.time_resolvers import Resolver
from agent.memory.search.time_spans import ConversationReference, NamedTime
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
