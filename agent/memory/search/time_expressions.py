"""Find the times in a search query: "last Saturday", "vor vier Tagen", "entre el 3 y el 9 de mayo", "上周六晚上".

English, German, Spanish and Chinese are understood, by a table of patterns. The end of a range is the first such date
after its start.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import regex

from agent.memory.search.language_data import MONTHS, MONTHS_IN_CAPITALS
from agent.memory.search.time_spans import (
    DAY,
    NUMBERS,
    PARTS_OF_DAY,
    SEASONS,
    UNITS,
    WEEKDAYS,
    ConversationReference,
    TimeSpan,
    move_to_year,
    resolve_ago,
    resolve_date,
    resolve_days_of_month,
    resolve_feast,
    resolve_period,
    resolve_relative,
    resolve_season,
    resolve_slashes,
    resolve_week_of,
    resolve_weekday,
    resolve_weekdays_ago,
    resolve_within,
    resolve_year,
)

LONGEST_QUERY = 2_000  # characters that are read for times


def _either(words: Iterable[str]) -> str:
    return "|".join(sorted(map(regex.escape, words), key=len, reverse=True))


def _latin(words: Iterable[str]) -> list[str]:
    return [word for word in words if word[0] < "\u2e80"]


def _signs(words: Iterable[str]) -> list[str]:
    return [word for word in words if word[0] >= "\u2e80"]


_MONTH = rf"(?P<month>{_either(MONTHS)})\b\.?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_DATE_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?\b\.?"
_WEEKDAY = rf"(?P<weekday>{_either(_latin(WEEKDAYS))})s?"
_PART = rf"(?P<part>{_either(_latin(PARTS_OF_DAY))})"
_COUNT = rf"(?P<count>\d{{1,3}}|{_either(_latin(NUMBERS))})"
_UNIT = rf"(?P<unit>{_either(_latin(UNITS))})"
_SEASON = rf"(?P<season>{_either(_latin(SEASONS))})"
_SIGN_COUNT = rf"(?P<count>\d{{1,3}}|{_either(_signs(NUMBERS))})"
_SIGN_UNIT = rf"(?P<unit>{_either(_signs(UNITS))})"
_SIGN_PART = rf"(?P<part>{_either(_signs(PARTS_OF_DAY))})"
_SIGN_WEEKDAY = rf"(?:周|星期|礼拜)(?P<weekday>[一二三四五六日天末])(?:{_SIGN_PART})?"
_OF_YEAR = rf"(?:,? (?:of |de |del )?{_YEAR})?"
_SIGN_MONTH = rf"(?:{_YEAR}年)?(?<!\d)(?P<month>1[0-2]|[1-9])月"
_FIRST, _LAST = r"(?P<first>[0-3]?\d)(?:st|nd|rd|th|\.)?", r"(?P<last>[0-3]?\d)(?:st|nd|rd|th|\.)?"
_TO = r" ?(?:-|–|to|until|through|and|bis(?: zum)?|und|al|y|hasta)(?: the| el| dem)? ?"
_PART_AFTER = rf"(?:(?: in the| am| an dem| en la| por la| a)?[ -]?{_PART})?"


@dataclass(frozen=True, slots=True)
class TimeExpression:
    """A time in a text, and where it is written."""

    begin: int
    end: int
    span: TimeSpan | None = None
    conversation: ConversationReference | None = None


@dataclass(frozen=True, slots=True)
class _TimeMatch(TimeExpression):
    """A time in a text, before ranges are made of two."""

    month: int | None = None  # of a date whose year is not written: a range may move it to another year
    day: int | None = None


@dataclass(frozen=True, slots=True)
class _TimeRule:
    pattern: str
    resolve: Callable[[Mapping[str, str], datetime], TimeSpan | ConversationReference | None]

    def find(self, text: str, now: datetime) -> Iterator[_TimeMatch]:
        for match in _compile(self.pattern).finditer(text):
            groups = {name: value.lower() for name, value in match.groupdict().items() if value is not None}
            if match.group().lower() in MONTHS_IN_CAPITALS and not (match.group()[0].isupper() and match.start()):
                continue
            try:
                value = self.resolve(groups, now)
            except (ValueError, OverflowError):  # 31 June, or a thousand years ago
                continue
            if isinstance(value, TimeSpan):
                has_year = "year" in groups or "month" not in groups
                yield _TimeMatch(
                    match.start(),
                    match.end(),
                    span=value,
                    month=None if has_year else MONTHS.get(groups["month"], 0) or int(groups["month"]),
                    day=None if has_year else int(groups.get("day", 0)) or None,
                )
            elif value is not None:
                yield _TimeMatch(match.start(), match.end(), conversation=value)


@functools.cache
def _compile(pattern: str) -> regex.Pattern[str]:
    """Return a rule's expression, compiled when a question is first read: all of them take 90 ms."""
    # Chinese is written without spaces: a word boundary there would find nothing.
    is_latin = regex.search(r"\p{Han}", pattern) is None
    before, after = (r"(?<![\p{L}\p{N}])", r"(?!\p{L})") if is_latin else ("", "")
    return regex.compile(f"{before}(?:{pattern}){after}", regex.IGNORECASE)


def _conversation(which: ConversationReference) -> Callable[[Mapping[str, str], datetime], ConversationReference]:
    return lambda _groups, _now: which


def _rule(
    resolve: Callable[[Mapping[str, str], datetime], TimeSpan | ConversationReference | None], *patterns: str
) -> Iterator[_TimeRule]:
    for pattern in patterns:
        yield _TimeRule(pattern, resolve)


_WEEK_OF = r"week (?:of|from|starting|beginning)(?: on)?"
_TALK = r"(?:talk|conversation|chat|discussion|session|call)s?"
_TALKED = r"(?:talked|spoke|chatted|wrote|met|discussed|texted)"
_GESPRÄCH = r"(?:gespräch|unterhaltung|chat|sitzung)s?"
_CHARLA = r"(?:conversaci[oó]n|charla|sesi[oó]n|chat)"

_RULES: Sequence[_TimeRule] = (
    # Days near today.
    *_rule(
        resolve_relative(0),
        r"(?:earlier )?today",
        r"heute(?: (?P<part>früh|morgen|vormittag|mittag|nachmittag|abend|nacht))?",
        rf"this {_PART}",
        r"(?P<part>tonight)",
        rf"hoy(?: por la {_PART})?",
        rf"est[ae] {_PART}",
        rf"今(?:天|日)?{_SIGN_PART}",
        r"今[天日]",
    ),
    *_rule(
        resolve_relative(-1),
        rf"yesterday(?: {_PART})?",
        r"last (?P<part>night)",
        r"gestern(?: (?P<part>früh|morgen|vormittag|mittag|nachmittag|abend|nacht))?",
        rf"ayer(?: (?:por|a|en) la {_PART}| al {_PART})?",
        r"(?P<part>anoche)",
        rf"昨[天日]?{_SIGN_PART}",
        r"昨[天日]",
    ),
    *_rule(
        resolve_relative(-2),
        rf"(?:the )?day before yesterday(?: (?:in the )?{_PART})?",
        r"vorgestern(?: (?P<part>früh|morgen|vormittag|mittag|nachmittag|abend|nacht))?",
        r"anteayer|antes de ayer|antier",
        rf"前天{_SIGN_PART}",
        r"前[天日]",
    ),
    *_rule(resolve_relative(-3), r"vorvorgestern", r"大前天"),
    # So and so long ago.
    *_rule(
        resolve_ago,
        rf"(?:about |around )?(?:a )?{_COUNT} (?:of )?{_UNIT}s? ago(?: in the {_PART})?",
        rf"vor {_COUNT} {_UNIT}",
        rf"hace {_COUNT} {_UNIT}",
        rf"{_SIGN_COUNT}个?{_SIGN_UNIT}(?:之|以)?前",
    ),
    *_rule(
        resolve_within,
        rf"(?:in |over |during |for |within )?(?:the )?(?:last|past) {_COUNT} {_UNIT}",
        rf"(?:in |während |seit )?(?:den |der |die )?(?:letzten|vergangenen) {_COUNT} {_UNIT}",
        rf"(?:en |durante )?(?:los |las )?(?:últim[oa]s|pasad[oa]s) {_COUNT} {_UNIT}",
        rf"(?:最近|过去|这){_SIGN_COUNT}个?{_SIGN_UNIT}",
    ),
    # Calendar periods.
    *_rule(
        resolve_period(-1),
        r"last (?P<unit>week|month|year|weekend)",
        r"(?:the )?previous (?P<unit>week|month|year|weekend)",
        r"(?:in der |am |im )?(?:letzte[nrms]?|vorige[nrms]?|vergangene[nrms]?) (?P<unit>woche|monat|jahr|wochenende)",
        r"(?:el |la )?(?P<unit>semana|mes|año|fin)(?: de semana)? pasad[oa]",
        r"上(?:个)?(?P<unit>周|星期|礼拜|月)(?![一二三四五六日天末])",
        r"去(?P<unit>年)",
    ),
    *_rule(
        resolve_period(0),
        r"this (?P<unit>week|month|year|weekend)",
        r"(?:in |an )?diese[nrms]? (?P<unit>woche|monat|jahr|wochenende)",
        r"est[ea] (?P<unit>semana|mes|año|fin)(?: de semana)?",
        r"(?:这个?|本)(?P<unit>周|星期|礼拜|月)(?![一二三四五六日天末])",
        r"今(?P<unit>年)",
    ),
    *_rule(
        resolve_period(-2),
        r"(?:the )?(?P<unit>week|month|year|weekend) before last",
        r"vorletzte[nrms]? (?P<unit>woche|monat|jahr|wochenende)",
        r"(?:la |el )?(?:antepenúltim[oa]|penúltim[oa]) (?P<unit>semana|mes|año|fin)",
        r"上上(?:个)?(?P<unit>周|星期|月)(?![一二三四五六日天末])",
        r"前(?P<unit>年)",
    ),
    *_rule(resolve_weekday(1), rf"上个?{_SIGN_WEEKDAY}"),
    *_rule(resolve_weekday(2), rf"上上个?{_SIGN_WEEKDAY}"),
    *_rule(resolve_weekday(0), rf"[这本]个?{_SIGN_WEEKDAY}"),
    *_rule(resolve_weekday(), _SIGN_WEEKDAY),
    # Weekdays.
    *_rule(
        resolve_weekday(),
        rf"(?:on )?(?:last |this past |past )?{_WEEKDAY}{_PART_AFTER}",
        rf"(?:am )?(?:letzte[nrms]? |vergangene[nrms]? |vorige[nrms]? )?{_WEEKDAY}{_PART_AFTER}",
        rf"(?:el )?(?:pasado )?{_WEEKDAY}(?: pasado)?(?: (?:por|en) la {_PART})?",
    ),
    *_rule(
        resolve_weekday(1),
        rf"{_WEEKDAY} (?:of )?last week{_PART_AFTER}",
        rf"last week(?:'s)?,? (?:on )?{_WEEKDAY}{_PART_AFTER}",
        rf"{_WEEKDAY} (?:in der )?(?:letzter?|voriger?|vergangener?) woche",
        rf"(?:letzte|vorige|vergangene) woche (?:am )?{_WEEKDAY}{_PART_AFTER}",
        rf"{_WEEKDAY} de la semana pasada",
    ),
    *_rule(resolve_weekday(2), rf"(?:on )?(?:the )?{_WEEKDAY} before last", rf"(?:am )?vorletzte[nrms]? {_WEEKDAY}"),
    *_rule(
        resolve_weekdays_ago,
        rf"{_COUNT} {_WEEKDAY} ago",
        rf"vor {_COUNT} {_WEEKDAY}(?:en)?",
        rf"hace {_COUNT} {_WEEKDAY}",
    ),
    # Dates.
    *_rule(
        resolve_week_of,
        rf"(?:in |during )?(?:the )?{_WEEK_OF} (?:the )?{_DATE_DAY} ?(?:of )?{_MONTH}{_OF_YEAR}",
        rf"(?:in |during )?(?:the )?{_WEEK_OF} {_MONTH} {_DATE_DAY}(?:,? {_YEAR})?",
        rf"(?:in der |die )?woche (?:vom|ab dem) {_DATE_DAY} {_MONTH}{_OF_YEAR}",
        rf"(?:en )?(?:la )?semana del? {_DATE_DAY} (?:de )?{_MONTH}{_OF_YEAR}",
        rf"{_SIGN_MONTH}(?P<day>[0-3]?\d)[日号]那一?周",
    ),
    *_rule(
        resolve_date,
        rf"(?:on |am |el |vom |zum |dem |den |the )*{_DATE_DAY} ?(?:of |de |del )?{_MONTH}{_OF_YEAR}{_PART_AFTER}",
        rf"(?:on )?{_MONTH} (?:the )?{_DATE_DAY}(?:,? {_YEAR})?{_PART_AFTER}",
        rf"(?:in |im |en |during |last |letzten )?(?:(?P<third>early|mid|late|anfang|mitte|ende) )?{_MONTH}{_OF_YEAR}",
        rf"(?:(?:in|at|by|towards) the |the |a )?(?P<third>beginning|start|middle|end|principios|mediados|finales)"
        rf" (?:of|de) {_MONTH}{_OF_YEAR}",
        rf"{_SIGN_MONTH}(?P<day>[0-3]?\d)[日号]?(?:{_SIGN_PART})?",
        rf"{_SIGN_MONTH}(?!\d)(?P<third>[初中底])?",
    ),
    *_rule(
        resolve_days_of_month,
        rf"(?:from |between |zwischen |vom |entre |del )?(?:the |dem |el )?{_FIRST}{_TO}{_LAST} ?(?:of |de )?{_MONTH}"
        + _OF_YEAR,
        rf"(?:from |between )?{_MONTH} {_FIRST}{_TO}{_LAST}\b(?! ?(?:{_either(MONTHS)})\b)(?:,? {_YEAR})?",
        rf"(?:从|在)?{_SIGN_MONTH}(?P<first>[0-3]?\d)[日号]?(?:到|至|和|-|–)(?P<last>[0-3]?\d)[日号](?:之?间)?",
    ),
    *_rule(
        resolve_date,
        r"(?P<year>(?:19|20)\d\d)-(?P<month>[01]?\d)-(?P<day>[0-3]?\d)",
        r"(?P<day>[0-3]?\d)\.(?P<month>[01]?\d)\.(?:(?P<year>(?:19|20)\d\d))?",
    ),
    *_rule(resolve_slashes, r"(?P<month>[0-3]?\d)/(?P<day>[0-3]?\d)/(?P<year>(?:19|20)\d\d)"),
    *_rule(
        resolve_season,
        rf"(?:in |during )?(?:the )?(?:(?P<last>last|previous) |this )?{_SEASON}(?: (?:of )?{_YEAR})?",
        rf"(?:im )?(?:(?P<last>letzte[nrms]?|vorige[nrms]?|vergangene[nrms]?) |diese[nrms]? )?{_SEASON}(?: {_YEAR})?",
        rf"(?:en )?(?:el |la )?{_SEASON}(?: (?P<last>pasad[oa]))?(?: de {_YEAR})?",
        rf"(?:(?P<last>去年)|今年|{_YEAR}年)?(?P<season>春天|春季|夏天|夏季|秋天|秋季|冬天|冬季)",
    ),
    *_rule(resolve_year, rf"(?:in |im jahr |in the year |en |during )?{_YEAR}", r"(?P<year>(?:19|20)\d\d)年"),
    *_rule(
        resolve_feast(12, 24, 3),
        rf"(?:at |over |an |zu |über |en )?(?:christmas|xmas|weihnachten|navidad(?:es)?)(?: {_YEAR})?",
        r"圣诞节?",
    ),
    *_rule(
        resolve_feast(12, 31, 2),
        r"(?:on |at |an |zu |en )?(?:new year(?:'?s)?(?: eve)?|silvester|nochevieja|año nuevo)",
        r"跨年|元旦",
    ),
    # Conversations by their place.
    *_rule(
        _conversation(ConversationReference.FIRST),
        rf"(?:in |during )?(?:our |the )?(?:very )?first {_TALK}",
        rf"(?:when )?we (?:first|initially) {_TALKED}",
        rf"(?:the )?first time (?:that )?we {_TALKED}",
        rf"(?:in |bei )?(?:unser\p{{L}}*|de[mrs]|das) (?:aller)?erste[nrms]? {_GESPRÄCH}",
        r"(?:als wir )?(?:uns )?zum ersten mal (?:gesprochen|geschrieben|unterhalten)(?: haben)?",
        rf"(?:en )?(?:nuestra|la) primera {_CHARLA}",
        r"la primera vez que hablamos",
        r"(?:我们)?第一次(?:聊天?|谈话|对话|交谈|说话)",
    ),
    *_rule(
        _conversation(ConversationReference.LAST),
        rf"(?:in |during )?(?:our |the )(?:last|previous|most recent) {_TALK}",
        rf"(?:the )?last time (?:that )?we {_TALKED}",
        rf"when we last {_TALKED}",
        rf"(?:in |bei )?(?:unser\p{{L}}*|de[mrs]|das) (?:letzte[nrms]?|vorige[nrms]?) {_GESPRÄCH}",
        r"(?:beim |das )?letzte[ns]? mal(?:,? als wir (?:gesprochen|geschrieben) haben)?",
        rf"(?:en )?(?:nuestra|la) última {_CHARLA}",
        r"la última vez que hablamos",
        r"(?:我们)?上(?:一)?次(?:聊天?|谈话|对话|交谈)?",
    ),
    *_rule(
        _conversation(ConversationReference.SECOND_TO_LAST),
        rf"(?:the |our )?{_TALK} before (?:that|last|the last(?: one)?)",
        rf"(?:the |our )?(?:second[- ]to[- ]last|penultimate|next[- ]to[- ]last) {_TALK}",
        rf"(?:in |bei )?(?:unser\p{{L}}*|de[mrs]|das) vorletzte[nrms]? {_GESPRÄCH}",
        rf"(?:en )?(?:nuestra|la) penúltima {_CHARLA}",
        r"上上次(?:聊天?|谈话|对话|交谈)?",
    ),
)


def find_time_expressions(text: str, now: datetime) -> tuple[TimeExpression, ...]:
    """Return the times in *text*, in order and without overlaps; *now* is an aware time in the reader's zone."""
    text = text[:LONGEST_QUERY]
    matches = [each for rule in _RULES for each in rule.find(text, now)]
    chosen: list[_TimeMatch] = []
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


def _merge_ranges(text: str, matches: Sequence[_TimeMatch], now: datetime) -> Iterator[_TimeMatch]:
    """Yield *matches*, two of them as one where they are the ends of a range."""
    rest = list(matches)
    while rest:
        first = rest.pop(0)
        between = _BETWEEN.search(text, 0, first.begin)
        if rest and first.span is not None and rest[0].span is not None:
            join = text[first.end : rest[0].begin]
            if (_JOINS if between else _MARKED_JOINS).fullmatch(join):
                last = rest.pop(0)
                yield _TimeMatch(between.start() if between else first.begin, last.end, _range(first, last, now))
                continue
        yield first


def _range(first: _TimeMatch, last: _TimeMatch, now: datetime) -> TimeSpan:
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


def _with_limits(text: str, matches: Iterable[_TimeMatch], now: datetime) -> Iterator[TimeExpression]:
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
