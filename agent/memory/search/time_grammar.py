"""The rules of times in a query: patterns of classes of words (`time_words`), each with what resolves it.

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
from typing import Any

import regex

from agent.memory.search import time_resolvers as to
from agent.memory.search.time_resolvers import Resolver
from agent.memory.search.time_spans import ConversationReference, NamedTime
from agent.memory.search.time_words import TimeToken


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
