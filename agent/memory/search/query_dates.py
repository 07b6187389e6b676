"""Which time a question names: a day, a month, a year, or a span before now, in the words of several languages.

Things are told soon after they happen, so what a question names reaches a little further than its own end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import regex

_MONTHS_TEXT = """
    january january jan januar janvier enero gennaio janeiro januari stycznia styczeń января январь январе
    february feb februar février febrero febbraio fevereiro februari lutego luty февраля февраль феврале
    march mar märz mars marzo março maart marca marzec марта март марте
    april apr avril abril aprile kwietnia kwiecień апреля апрель апреле
    may mai mayo maggio maio mei maja maj мая май мае
    june jun juni juin junio giugno junho czerwca czerwiec июня июнь июне
    july jul juli juillet julio luglio julho lipca lipiec июля июль июле
    august aug août agosto augustus augusti sierpnia sierpień августа август августе
    september sep sept septembre septiembre settembre setembro września wrzesień сентября сентябрь сентябре
    october oct oktober octobre octubre ottobre outubro października październik октября октябрь октябре
    november nov novembre noviembre novembro listopada listopad ноября ноябрь ноябре
    december dec dezember décembre diciembre dicembre dezembro grudnia grudzień декабря декабрь декабре
"""
_MONTHS: Mapping[str, int] = {
    name: n for n, names in enumerate(_MONTHS_TEXT.strip().splitlines(), start=1) for name in names.split()
}
# In lower case these are other words.
_CAPITAL = frozenset({"may", "mar", "march", "mars", "mai", "maj"})
_PART = regex.compile(r"[\p{L}\p{M}]+|\d+")
_NUMERIC = regex.compile(r"(?<!\d)(?:(\d{4})-(\d{1,2})-(\d{1,2})|(\d{1,2})[./](\d{1,2})[./](\d{4}))(?!\d)")
_SIGNS = regex.compile(r"(?:(\d{4})\s*年\s*)?(\d{1,2})\s*月(?:\s*(\d{1,2})\s*[日号])?|(\d{4})\s*年")
_YEAR = regex.compile(r"(?:19|20)\d\d")
_SPANS: Sequence[tuple[regex.Pattern[str], int, int]] = tuple(
    (regex.compile(rf"(?<![\p{{L}}])(?:{words})", regex.IGNORECASE), start, end)
    for words, start, end in (
        (r"today|heute|aujourd'hui|hoy\b|oggi|hoje|vandaag|сегодня|今天", 0, 1),
        (r"yesterday|gestern|hier\b|ayer|ieri|ontem|gisteren|вчера|昨天", -1, 1),
        (r"this week|diese[rn]? woche|cette semaine|esta semana|на этой неделе|这周|本周", -6, 1),
        (r"last week|letzte[rn]? woche|la semaine dernière|la semana pasada|на прошлой неделе|上周|上个星期", -13, -4),
        (r"last month|letzten monat|le mois dernier|el mes pasado|в прошлом месяце|上个月", -61, -12),
        (r"last year|letztes jahr|l'année dernière|el año pasado|в прошлом году|去年", -730, -180),
    )
)
_DAY_AFTER, _MONTH_AFTER = timedelta(days=3), timedelta(days=6)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A time that a question names; what is None may be anything."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    start: datetime | None = None  # instead: a span
    end: datetime | None = None

    def covers(self, at: datetime) -> bool:
        """Say whether what was said at *at* is likely about this time."""
        if self.start is not None and self.end is not None:
            return self.start <= at < self.end
        if self.day is not None:
            return any(self._is(at - timedelta(days=n)) for n in range(_DAY_AFTER.days + 1))
        return self._is(at) or (self.month is not None and self._is(at - _MONTH_AFTER))

    def _is(self, at: datetime) -> bool:
        return (
            self.year in (None, at.year) and self.month in (None, at.month) and (self.day is None or self.day == at.day)
        )


def find_time_ranges(text: str, now: datetime | None = None) -> tuple[TimeRange, ...]:
    """Return the times that *text* names; those relative to today need *now*."""
    found = [*_numeric(text), *_months(text)]
    if not found:
        found = [TimeRange(year=int(match.group())) for match in _YEAR.finditer(text)]
    if now is not None:
        for words, start, end in _SPANS:
            if words.search(text):
                day = now.replace(hour=0, minute=0, second=0, microsecond=0)
                found.append(TimeRange(start=day + timedelta(days=start), end=day + timedelta(days=end)))
    return tuple(dict.fromkeys(found))


def _numeric(text: str) -> Iterator[TimeRange]:
    for match in _NUMERIC.finditer(text):
        year, month, day, one, other, late = (int(group) if group else 0 for group in match.groups())
        tries = [(year, month, day)] if year else [(late, other, one), (late, one, other)]  # 7/5 may be either
        yield from (TimeRange(*each) for each in tries if _is_date(*each))
    for match in _SIGNS.finditer(text):
        given = [int(group) if group else None for group in match.groups()]
        if given[1] is None or 1 <= given[1] <= 12:
            yield TimeRange(given[3] or given[0], given[1], given[2])


def _is_date(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _months(text: str) -> Iterator[TimeRange]:
    parts = _PART.findall(text)
    for n, part in enumerate(parts):
        month = _MONTHS.get(part.lower())
        if month is None or (part.lower() in _CAPITAL and not (part[0].isupper() and n)):
            continue
        around = [each for each in parts[max(0, n - 3) : n + 5] if each.isdecimal()]
        days = [int(each) for each in (*parts[max(0, n - 3) : n], *parts[n + 1 : n + 2]) if each.isdecimal()]
        years = [int(each) for each in around if _YEAR.fullmatch(each)]
        day = next((each for each in days if 1 <= each <= 31), None)
        yield TimeRange(years[0] if years else None, month, day)
