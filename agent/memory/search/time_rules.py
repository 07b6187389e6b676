"""The patterns of times in a search query, in English, German, Spanish and Chinese, each with what resolves it.

A pattern names a complete time, or a part of one such as "the second Sunday", which needs the time beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import regex

from agent.memory.search.language_data import MONTHS, MONTHS_IN_CAPITALS
from agent.memory.search.time_spans import (
    ConversationReference,
    Groups,
    NamedTime,
    Resolver,
    read_number,
    read_ordinal,
    resolve_ago,
    resolve_clock,
    resolve_date,
    resolve_day_of_month,
    resolve_days_of_month,
    resolve_earlier,
    resolve_feast,
    resolve_nth,
    resolve_nth_weekday,
    resolve_part,
    resolve_period,
    resolve_present,
    resolve_quarter,
    resolve_relative,
    resolve_season,
    resolve_slashes,
    resolve_third,
    resolve_week_number,
    resolve_week_of,
    resolve_weekday,
    resolve_weekdays_ago,
    resolve_weekend,
    resolve_within,
    resolve_year,
)
from agent.memory.search.time_words import (
    FEASTS,
    FEW,
    HALVES,
    NUMBERS,
    ORDINALS,
    PARTS_OF_DAY,
    SEASONS,
    SHORT_WEEKDAYS,
    UNITS,
    WEEKDAYS,
)


def _latin(words: Iterable[str]) -> list[str]:
    return [word for word in words if word[0] < "\u2e80"]


def _signs(words: Iterable[str]) -> list[str]:
    return [word for word in words if word[0] >= "\u2e80"]


# Lists of words by name in expressions. Long lists are no part of one, which would take seconds to compile: any word is
# read, and the resolver knows which are numbers and months.
_LISTS: Mapping[str, Sequence[str]] = {
    "weekdays": _latin(WEEKDAYS),
    "short_weekdays": [*SHORT_WEEKDAYS],
    "parts": _latin(PARTS_OF_DAY),
    "seasons": _latin(SEASONS),
    "feasts": [*_latin(FEASTS), *(name.replace("'", "’") for name in _latin(FEASTS) if "'" in name)],
    "few_numbers": [word for word in _latin(NUMBERS) if NUMBERS[word] <= 12],
    "few_ordinals": [word for word, number in ORDINALS.items() if number <= 12],
    "months": [*MONTHS],
    "sign_counts": _signs([*NUMBERS, *FEW, *HALVES]),
    "sign_units": _signs(UNITS),
    "sign_parts": _signs(PARTS_OF_DAY),
    "sign_feasts": _signs(FEASTS),
}
_WORD = r"\p{L}+"
_MONTH = rf"(?P<month>{_WORD})\b\.?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_NTH = rf"(?:twenty|thirty)[ -]{_WORD}|{_WORD}|\d{{1,3}}(?:st|nd|rd|th|\.?[ªº]|\.)"
_LAST_NTH = rf"{_WORD}(?:[ -](?:to[ -])?last| but (?:one|two))|{_WORD}"
_ORDINAL = rf"(?P<ordinal>{_LAST_NTH}|{_NTH})"
_DATE_DAY = rf"(?P<day>[0-3]?\d(?:st|nd|rd|th|\.)?|(?:twenty|thirty)[ -]{_WORD}|{_WORD})"
_SPANISH_DAY = rf"(?P<day>[0-3]?\d|{_WORD})"
_WEEKDAY = r"(?P<weekday>\L<weekdays>)s?"
_PART = r"(?P<part>\L<parts>)"
NUMBER = rf"\d{{1,3}}|(?:twenty|thirty|forty|fifty)[ -]{_WORD}|\p{{L}}+ y {_WORD}|{_WORD}"
_COUNT = rf"(?P<count>{NUMBER})"
_AMOUNT = (
    r"(?P<count>\d{1,3}|(?:just )?a few|(?:a )?couple(?: of)?|a dozen|half an?|a half|a quarter of an"
    r"|\p{L}+ and a half|ein paar"
    r"|ein dutzend|eine[rmn]? halbe[nrsm]?|ein halbes|einer viertel|un[oa]s (?:poc|cuant)[oa]s|un par de|una docena de"
    r"|un cuarto de|(?:twenty|thirty|forty|fifty)[ -]\p{L}+|\p{L}+ y \p{L}+|\p{L}+)"
)
_UNIT = rf"(?P<unit>{_WORD})"
_SEASON = r"(?P<season>\L<seasons>)"
_FEAST = r"(?P<feast>\L<feasts>)"
_SIGN_COUNT = r"(?P<count>\d{1,3}|\L<sign_counts>)"
_SIGN_UNIT = r"(?P<unit>\L<sign_units>)"
_SIGN_PART = r"(?P<part>\L<sign_parts>)"
_SIGN_WEEKDAY = rf"(?:周|星期|礼拜)(?P<weekday>[一二三四五六日天末])(?:{_SIGN_PART})?"
_SIGN_MONTH = rf"(?:{_YEAR}年)?(?<!\d)(?P<month>1[0-2]|[1-9])月"
_OF_YEAR = rf"(?:,? (?:of |de |del )?(?:the year |del? año )?(?:{_YEAR}|(?P<year>['’]\d\d)))?"
_FIRST, _LAST = r"(?P<first>[0-3]?\d(?:st|nd|rd|th|\.)?)", r"(?P<last>[0-3]?\d(?:st|nd|rd|th|\.)?)"
_TO = r" ?(?:-|–|to|until|through|thru|and|bis(?: zum)?|und|al|y|hasta)(?: the| el| dem)? ?"
_PART_AFTER = rf"(?:(?: in the| am| an dem| en la| por la| a)?[ -]?{_PART})?"
_NEXT_EN = r"(?P<which>next|coming|upcoming|this coming|this upcoming)"
_NEXT_DE = r"(?P<which>(?:nächste|kommende)[nrms]?)"
_NEXT_ES = r"(?P<which>próxim[oa]|proxim[oa])"
_LAST_DE = r"(?:letzte|vorige|vergangene)[nrms]?"
_ABOUT = r"(?:(?:about|around|some|roughly|approximately|exactly|almost|nearly|over|more than|just over|well over) )?"
_ETWA = r"(?:(?:etwa|ungefähr|circa|ca\.|rund|knapp|gut|genau|fast|mehr als|über) )?"
_UNOS = r"(?:(?:unos|unas|como|casi|aproximadamente|más de|alrededor de|exactamente) )?"
_MOST = rf"(?:(?: to | or |-|–| bis | oder | o | a )(?P<most>{NUMBER}))?"
_HALF_AFTER = r"(?P<half> and a half)?"
_FEW_PLURAL = r"minutes|hours|days|nights|weeks|months|years|weekends"
_FEW_PLURAL_DE = r"minuten|stunden|tage|tagen|nächten?|wochen|monate|monaten|jahre|jahren|wochenenden?"
_FEW_PLURAL_ES = r"minutos|horas|días|dias|noches|semanas|meses|años"


@dataclass(frozen=True, slots=True)
class TimeMatch:
    """A time in a text, before those beside each other are put together."""

    begin: int
    end: int
    time: NamedTime | None = None
    conversation: ConversationReference | None = None
    whole: NamedTime | None = None  # the longer time that it was placed in


@dataclass(frozen=True, slots=True)
class TimeRule:
    """A pattern of lower-case text, and what its groups mean."""

    pattern: str
    resolve: Resolver

    def find(self, text: str, lower: str, now: datetime) -> Iterator[TimeMatch]:
        """Yield the times in *text*, of which *lower* is the lower case."""
        for match in _compile(self.pattern).finditer(lower, overlapped=True):
            groups = {name: value for name, value in match.groupdict().items() if value is not None}
            if _is_no_month(text, match) or _is_place_of_noun(text, match):
                continue
            try:
                value = self.resolve(groups, now)
            except (ValueError, LookupError, OverflowError):  # 31 June, or a thousand years ago
                continue
            if isinstance(value, NamedTime):
                yield TimeMatch(match.start(), match.end(), time=value)
            else:
                yield TimeMatch(match.start(), match.end(), conversation=value)


_ORDINAL_DAY = regex.compile(r"\d(?:st|nd|rd|th|\.)")
_BEFORE_DATE = regex.compile(
    r"(?:on|the|of|since|from|to|until|till|by|before|after|between|and|around|through|late|early|mid|am|vom|zum|bis"
    r"|dem"
    r"|seit|nach|vor|der|el|del|al|de|desde|hasta|antes|y|,|:|-|–)(?:\s|$)"
)
_AFTER_DATE = regex.compile(
    r"\s*(?:$|[^\s\p{L}\p{N}]|(?:and|to|until|till|through|bis|und|y|al?|hasta|we|i|you|did|was|were|about|of|in|at)\b)"
)


def _is_no_month(text: str, match: regex.Match[str]) -> bool:
    """Return True for "may", "march" and the like in lower case, where nothing else makes them a date."""
    groups = match.groupdict()
    if groups.get("month") not in MONTHS_IN_CAPITALS:
        return False
    is_capital = text[match.start("month")].isupper()
    if match.group() == groups["month"]:
        return not (is_capital and match.start())
    if is_capital or groups.get("year") or _ORDINAL_DAY.search(match.group()) or _BEFORE_DATE.match(match.group()):
        return False
    lower = match.string
    return (
        _BEFORE_DATE.search(lower, max(0, match.start() - 9), match.start()) is None
        and _AFTER_DATE.match(lower, match.end()) is None
    )


def _is_place_of_noun(text: str, match: regex.Match[str]) -> bool:
    """Return True for "am 3. Tag": a German noun follows the number."""
    groups = match.groupdict()
    return (
        (groups.get("day") or "").endswith(".")
        and not groups.get("month")
        and _NOUN.match(text, match.end()) is not None
    )


_NOUN = regex.compile(r"\s+\p{Lu}")


@functools.cache
def _compile(pattern: str) -> regex.Pattern[str]:
    """Return a rule's expression, compiled when a question is first read."""
    # Chinese is written without spaces: a word boundary there would find nothing.
    is_latin = regex.search(r"\p{Han}|L<sign", pattern) is None
    before, after = (r"(?<![\p{L}\p{N}])", r"(?![\p{L}\p{N}])") if is_latin else ("", "")
    return compile_pattern(f"{before}(?:{pattern}){after}")


def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Return an expression whose lists of words are those of times."""
    names = set(regex.findall(r"\\L<(\w+)>", pattern))
    return regex.compile(pattern, **{name: _LISTS[name] for name in names})


def _rule(resolve: Resolver, *patterns: str) -> Iterator[TimeRule]:
    for pattern in patterns:
        yield TimeRule(pattern, resolve)


def _few(resolve: Resolver, unit: str = "") -> Resolver:
    """Resolve a time with an uncounted number of units: "the other day", "in recent weeks"."""
    return lambda groups, now: resolve({"count": FEW[0], **groups, **({"unit": unit} if unit else {})}, now)


def _resolve_bare_season(groups: Groups, now: datetime) -> NamedTime | ConversationReference:
    """Resolve "summer", which is a time only beside another one: "early summer", "summer of last year"."""
    found = resolve_season(groups, now)
    return replace(found, is_complete=False)


def _resolve_conversation(groups: Groups, now: datetime) -> ConversationReference:  # noqa: ARG001 - a resolver
    """Resolve "our fourth talk", "talks 5 through 7", "our last three talks"."""
    first = read_ordinal(groups["ordinal"]) if "ordinal" in groups else read_number(groups["number"])
    last = first
    if "final" in groups:
        last = read_ordinal(groups["final"]) if groups["final"] not in NUMBERS else read_number(groups["final"])
    if "count" in groups:
        count = 3 if groups["count"] in FEW else read_number(groups["count"])
        first, last = (first, first + count - 1) if first > 0 else (first - count + 1, first)
    if not first or (first > 0 and last < first):
        raise ValueError("not a range of conversations")
    return ConversationReference(first, last)


def _resolve_conversations_ago(groups: Groups, now: datetime) -> ConversationReference:  # noqa: ARG001 - a resolver
    """Resolve "three talks ago"."""
    count = read_number(groups["count"])
    return ConversationReference(-count, -count)


def _conversation(place: int) -> Resolver:
    return lambda _groups, _now: ConversationReference(place, place)


_TALK = r"(?:talk|conversation|chat|discussion|session|call|dialogue)s?"
_NUMBERED_TALK = r"(?:talk|conversation|chat|session|dialogue)s?"
_TALKED = r"(?:talked|spoke|chatted|wrote|met|discussed|texted|talk|spoken|had a (?:talk|chat|conversation))"
_GESPRÄCH = r"(?:gesprächs?|gespräche[sn]?|unterhaltung(?:en)?|chats?|sitzung(?:en)?)"
_GESPROCHEN = r"(?:gesprochen|geschrieben|unterhalten|geredet)"
_CHARLA = r"(?:conversaci[oó]n(?:es)?|charlas?|sesi[oó]n(?:es)?|chats?)"
_ITS_NUMBER = rf"(?:number |no\. ?|nr\. ?|nummer |número |# ?)?(?P<number>{NUMBER})"
_TO_NUMBER = (
    r"(?:(?: ?- ?| ?– ?| to | through | thru | until | and | bis(?: zum)? | und | a | al? | y | hasta(?: la)? )"
    r"(?:the |our |number |talk |session |# ?|de[mr] |das |unser\p{L}* |la |nuestra )?(?P<final>\d{1,3}(?:st|nd|rd|th"
    r"|\.?[ªº]|\.)?|\L<few_ordinals>|\L<few_numbers>))?"
)


def _conversation_rules() -> Iterator[TimeRule]:
    """Yield the rules of conversations that are named by their place."""
    own = r"(?:our|the)"
    unser = r"(?:unser\p{L}*|de[mrsn]|das|die)"
    yield from _rule(
        _resolve_conversation,
        rf"(?:in |during |from )?(?:{own} )?(?:very )?(?P<ordinal>{_NTH}){_TO_NUMBER} {_TALK}",
        rf"(?:from )?(?:{own} )?(?P<ordinal>{_NTH}) {_TALK} (?:to|through|until) (?:{own} )?"
        rf"(?P<final>\L<few_ordinals>)(?: one)?",
        rf"(?:in |during |from )?{own} (?P<ordinal>{_LAST_NTH}|previous){_TO_NUMBER} {_TALK}",
        rf"(?:in |during |from |over )?{own} (?P<ordinal>first|last|latest|previous) {_AMOUNT} {_TALK}",
        rf"(?:in |during |from |between )?(?:{own} )?{_NUMBERED_TALK} {_ITS_NUMBER}{_TO_NUMBER}",
        rf"(?:the )?(?P<ordinal>{_NTH}|{_LAST_NTH}) time (?:that )?we(?:['’]ve| have| had)? {_TALKED}",
        rf"(?:in |bei |aus )?(?:{unser} )?(?P<ordinal>{_NTH}){_TO_NUMBER} {_GESPRÄCH}",
        rf"(?:in |bei |aus )?{unser} (?P<ordinal>{_LAST_NTH}|vorige[nrms]?) {_GESPRÄCH}",
        rf"(?:in |bei )?{unser} (?P<ordinal>ersten|letzten) {_AMOUNT} {_GESPRÄCH}",
        rf"(?:in |aus |zwischen )?(?:{unser} )?{_GESPRÄCH} {_ITS_NUMBER}{_TO_NUMBER}",
        rf"(?:als wir )?(?:uns )?(?:zum|beim|das) (?P<ordinal>{_NTH}|{_LAST_NTH}) mal,?"
        rf"(?: als wir(?: uns)?)? {_GESPROCHEN}(?: haben)?",
        rf"(?:en |de )?(?:nuestra|la) (?P<ordinal>{_NTH}|{_LAST_NTH}){_TO_NUMBER} {_CHARLA}",
        rf"(?:en |de )?(?:nuestras|las) (?P<ordinal>primeras|últimas|ultimas) {_AMOUNT} {_CHARLA}",
        rf"(?:en |de )?(?:nuestras|las) {_AMOUNT} (?P<ordinal>primeras|últimas|ultimas) {_CHARLA}",
        rf"(?:en |entre |de )?(?:la |las |nuestra |nuestras )?{_CHARLA} {_ITS_NUMBER}{_TO_NUMBER}",
        rf"la (?P<ordinal>{_NTH}|{_LAST_NTH}) vez que hablamos",
    )
    yield from _rule(
        _resolve_conversations_ago,
        rf"(?:from )?{_COUNT} {_TALK} (?:ago|back|before this one)",
        rf"vor {_COUNT} {_GESPRÄCH}",
        rf"hace {_COUNT} {_CHARLA}",
    )
    yield from _rule(
        _conversation(1),
        rf"(?:when )?we (?:first|initially) {_TALKED}",
        r"(?:我们)?第一次(?:聊天?|谈话|对话|交谈|说话)",
    )
    yield from _rule(
        _conversation(-1),
        rf"when we last {_TALKED}",
        r"(?:beim |das )?letzte[ns]? mal(?:,? als wir (?:uns )?(?:gesprochen|geschrieben) haben)?",
        r"(?:我们)?上(?:一)?次(?:聊天?|谈话|对话|交谈)?",
    )
    yield from _rule(
        _conversation(-2),
        rf"(?:in |during )?(?:{own} )?{_TALK} before (?:that|last|the last(?: one)?|the previous one)",
        r"(?:beim |das )?vorletzte[ns]? mal",
        rf"(?:en )?la {_CHARLA} (?:antes de|anterior a) la última",
        r"上上次(?:聊天?|谈话|对话|交谈)?",
    )


_THE = r"(?:in |on |during |over )?(?:the |der |die |das |dem |den |am |im |el |la |en la )?"
_WEEK_OF = r"week (?:of|from|starting|beginning)(?: on)?"
_NO_THIRD = (
    r"(?<!\b(?:was|were|am|is|are|be|been|being|too|so|very|came|come|arrived|stayed|up|home|slept|ran|'m|'re) )"
)

TIME_RULES: Sequence[TimeRule] = (
    # Days near today.
    *_rule(
        resolve_relative(0),
        r"today",
        r"heute(?: (?P<part>früh|morgen|vormittag|mittag|nachmittag|abend|nacht))?",
        rf"this (?:very |past )?{_PART}",
        r"(?P<part>tonight)",
        rf"(?:an )?diese[nmrs]? {_PART}",
        rf"hoy(?: por la {_PART})?",
        rf"est[ae] (?:misma |mismo )?{_PART}",
        rf"今(?:天|日)?{_SIGN_PART}",
        r"今[天日]",
    ),
    *_rule(
        resolve_relative(-1),
        rf"yesterday(?: {_PART})?",
        r"(?:last|this past) (?P<part>night|evening)",
        r"(?:in der |die )?(?:letzte|vergangene)[nr]? (?P<part>nacht)",
        r"gestern(?: (?P<part>früh|morgen|vormittag|mittag|nachmittag|abend|nacht))?",
        rf"ayer(?: (?:por|a|en) la {_PART}| al {_PART})?",
        r"(?P<part>anoche)|(?:la )?(?P<part>noche) pasada",
        rf"昨[天日]?{_SIGN_PART}",
        r"昨[天日]",
    ),
    *_rule(
        resolve_relative(-2),
        rf"(?:the )?day before yesterday(?: (?:in the )?{_PART})?",
        r"(?:the )?(?P<part>night|evening) before last",
        r"(?:in der )?vorletzte[nr]? (?P<part>nacht)",
        r"vorgestern(?: (?P<part>früh|morgen|vormittag|mittag|nachmittag|abend|nacht))?",
        r"(?:anteayer|antes de ayer|antier)(?: por la (?P<part>mañana|tarde|noche))?",
        r"ante(?P<part>anoche)|antenoche",
        rf"前天{_SIGN_PART}",
        r"前[天日]",
    ),
    *_rule(resolve_relative(-3), r"vorvorgestern", r"trasanteayer", r"大前天"),
    *_rule(
        resolve_relative(1),
        rf"tomorrow(?: {_PART})?",
        r"(?<!\b(?:am|guten|jeden|heute|gestern|vorgestern|diesen) )morgen(?: (?P<part>früh|vormittag|mittag"
        r"|nachmittag|abend|nacht))?",
        rf"(?<!\b(?:la|esta|una|de|cada|ayer|misma) )mañana(?: por la {_PART})?",
        rf"明[天日](?:{_SIGN_PART})?",
    ),
    *_rule(
        resolve_relative(2),
        r"(?:the )?day after tomorrow",
        r"übermorgen(?: (?P<part>früh|abend))?",
        r"pasado mañana",
        "后天",
    ),
    # So and so long ago, and in so and so long.
    *_rule(
        resolve_ago(-1),
        rf"{_ABOUT}{_AMOUNT}{_MOST} (?:of )?{_UNIT}{_HALF_AFTER} (?:ago|back)(?: in the {_PART})?",
        rf"{_ETWA}vor {_ETWA}{_AMOUNT}{_MOST}(?: |(?<=viertel)){_UNIT}",
        rf"hace (?:ya )?{_UNOS}{_AMOUNT}{_MOST} {_UNIT}(?P<half> y medi[oa])?",
        r"hace (?P<unit>año|mes)(?P<half> y medio)",
        rf"{_AMOUNT} {_UNIT}(?P<half> y medi[oa])? atrás",
        rf"{_SIGN_COUNT}个?{_SIGN_UNIT}(?:之|以)?前",
    ),
    *_rule(
        resolve_ago(1),
        rf"in {_ABOUT}{_AMOUNT} (?P<unit>days?|weeks?|fortnights?|months?|years?)(?:['’]s? time)?",
        rf"{_AMOUNT} {_UNIT} (?:from|hence)(?: now| today)?",
        rf"in {_ETWA}{_AMOUNT} (?P<unit>tag|tagen|wochen?|monate?|monaten|jahren?)",
        rf"(?:dentro de|en) {_UNOS}{_AMOUNT} (?P<unit>días?|semanas?|mes|meses|años?)",
        rf"{_SIGN_COUNT}个?{_SIGN_UNIT}(?:之|以)?后",
    ),
    *_rule(
        _few(resolve_ago(-1), "day"),
        r"(?:just )?the other (?:day|night|evening|morning|afternoon)",
        r"neulich|letztens|dieser tage",
        r"el otro día|la otra (?:noche|tarde|mañana)|hace poco",
    ),
    *_rule(
        resolve_within(-1),
        rf"(?:in |over |during |for |within )?(?:the |these |this |my |our )?(?:last|past) {_AMOUNT} {_UNIT}(?! of\b)",
        rf"(?:in |während |seit )?(?:den |der |die |das |dem |diesen |diese )?(?:letzte"
        rf"|vergangene)[nsm]? {_AMOUNT} {_UNIT}(?! (?:des|im|vom|der)\b)",
        rf"(?:en |durante )?(?:est[oa]s |los |las |el |la )?(?:últim[oa]s?|pasad[oa]s) {_AMOUNT} {_UNIT}(?! del?\b)",
        rf"(?:schon )?seit {_ETWA}{_AMOUNT} {_UNIT}",
        r"(?:in |over |during |for |within )?(?:this last|the past|this past) (?P<unit>hour|day|week|fortnight|month"
        r"|quarter|year|decade)",
        r"(?:in|over|during|for|within|from) (?:the )?last (?P<unit>hour|day|week|fortnight|month|quarter|year"
        r"|decade)(?! (?:of|in|before)\b)",
        r"the last (?P<unit>hour|day|week|fortnight|month|year|decade)(?! (?:of|in|before)\b)",
        r"(?:in der |die )?(?:letzte|vergangene)[nr]? (?P<unit>stunde)",
        r"(?:en |durante )?(?:la|el|este|esta) últim[oa] (?P<unit>hora|día|semana|mes|trimestre|año)(?! del?\b)",
        rf"(?:最近|过去|这){_SIGN_COUNT}个?{_SIGN_UNIT}",
    ),
    *_rule(
        _few(resolve_within(-1)),
        rf"(?:in |over |during |for )?(?:the |these )?(?:last|past|recent) (?P<unit>{_FEW_PLURAL})(?! of\b)",
        rf"(?:in |während )?(?:den |die |diese |diesen )?(?:letzten|vergangenen) (?P<unit>{_FEW_PLURAL_DE})(?! (?:des"
        rf"|im|vom|der)\b)",
        rf"(?:en |durante )?(?:est[oa]s |los |las )?últim[oa]s (?P<unit>{_FEW_PLURAL_ES})(?! de)",
        r"(?:最近|这)几(?P<unit>天|周)",
    ),
    *_rule(
        resolve_within(1),
        rf"(?:in |over |during |within )?(?:the )?(?:next|coming) {_AMOUNT} {_UNIT}",
        rf"(?:in )?(?:den |die )?(?:nächsten|kommenden) {_AMOUNT} {_UNIT}",
        rf"(?:en )?(?:los |las )?próxim[oa]s {_AMOUNT} {_UNIT}",
    ),
    *_rule(
        _few(resolve_within(1)),
        rf"(?:in |over |during )?the (?:next|coming) (?P<unit>{_FEW_PLURAL})",
        rf"(?:in )?(?:den |die )(?:nächsten|kommenden) (?P<unit>{_FEW_PLURAL_DE})",
        rf"(?:en )?(?:los |las )próxim[oa]s (?P<unit>{_FEW_PLURAL_ES})",
    ),
    # Calendar periods.
    *_rule(
        resolve_period(-1),
        r"(?:on |over )?(?:the )?last (?P<unit>weekend)|this past (?P<unit>weekend)|the past (?P<unit>weekend)",
        r"last (?P<unit>week|fortnight|month|quarter|year|decade)(?:['’]s)?",
        r"(?:the |this )?previous (?P<unit>week|month|quarter|year|weekend|decade)",
        r"(?:the )?(?P<unit>week|month|year|weekend) just gone",
        rf"(?:in der |am |im |des |der )?{_LAST_DE} (?P<unit>woche|monats?|jahr|jahre?s|jahrzehnt|quartals?"
        rf"|wochenendes?)(?! im\b)",
        r"(?:el |la )?(?P<unit>semana|mes|año|fin|finde|trimestre|década)(?: de semana)? (?:pasad[oa]|anterior)",
        r"el pasado (?P<unit>mes|año|fin)(?: de semana)?|la pasada (?P<unit>semana)",
        r"上(?:个)?(?P<unit>周|星期|礼拜|月)(?![一二三四五六日天末])",
        r"去(?P<unit>年)",
    ),
    *_rule(
        resolve_period(0),
        r"(?:in |during )?(?:this|the current) (?P<unit>week|month|quarter|year|weekend|decade)",
        r"(?:in |an |im laufe )?(?:der )?diese[nrms]? (?P<unit>woche|monats?|jahr|jahre?s|quartals?|wochenendes?)",
        r"(?:en )?est[ea] (?:mism[oa] )?(?P<unit>semana|mes|año|fin|finde|trimestre)(?: de semana)?",
        r"(?:这个?|本)(?P<unit>周|星期|礼拜|月)(?![一二三四五六日天末])",
        r"今(?P<unit>年)",
    ),
    *_rule(
        resolve_period(-2),
        r"(?:the )?(?P<unit>week|month|quarter|year|weekend) before last",
        r"(?:in der |am |im )?vorletzte[nrms]? (?P<unit>woche|monats?|jahr|jahre?s|quartals?|wochenendes?)",
        r"(?:la |el )?(?:antepenúltim[oa]|penúltim[oa]) (?P<unit>semana|mes|año|fin)",
        r"(?:la |el )?(?P<unit>semana|mes|año|fin) (?:antepasad[oa]|anterior (?:a|al|a la) pasad[oa])",
        r"上上(?:个)?(?P<unit>周|星期|月)(?![一二三四五六日天末])",
        r"前(?P<unit>年)",
    ),
    *_rule(
        resolve_period(1),
        r"(?:next|this coming|the coming|the following) (?P<unit>week|fortnight|month|quarter|year|weekend|decade)",
        r"(?:in der |am |im )?(?:nächste|kommende)[nrms]? (?P<unit>woche|monats?|jahr|jahre?s|quartals?|wochenendes?)",
        r"(?:el |la )?próxim[oa] (?P<unit>semana|mes|año|fin|finde|trimestre)(?: de semana)?",
        r"(?:el |la )?(?P<unit>semana|mes|año|fin|finde)(?: de semana)? (?:que viene|próxim[oa]|entrante)",
        r"下(?:个)?(?P<unit>周|星期|礼拜|月)(?![一二三四五六日天末])",
        r"明(?P<unit>年)",
    ),
    *_rule(
        resolve_weekend,
        r"(?:at|on|over|during) the weekend|am wochenende|übers wochenende|(?:en |durante )?el (?:fin de semana"
        r"|finde)|周末",
    ),
    *_rule(
        resolve_present,
        r"the (?P<unit>week|month|quarter|year|decade)",
        r"(?:des|der|dem|im) (?P<unit>woche|monats?|quartals?|jahre?s?)",
        r"(?:de la|de|del|el|la) (?P<unit>semana|mes|trimestre|año)",
    ),
    *_rule(
        resolve_quarter,
        rf"(?:in )?q(?P<quarter>[1-4])(?:[ /-]?{_YEAR}| (?P<year>['’]\d\d))?",
        rf"t(?P<quarter>[1-4])(?: de)?[ /-]?{_YEAR}",
        rf"(?:in |im )?(?:the |das |dem |el )?(?P<ordinal>{_NTH}) (?:quarter|quartals?|trimestre)(?:,? (?:of |de "
        rf"|del |von )?{_YEAR})?",
        rf"(?P<semester>[hs])(?P<quarter>[12])[ /-]?{_YEAR}",
        rf"(?:in |im )?(?:the |das |dem |el )?(?P<ordinal>{_NTH}) (?P<semester>halbjahr|semestre)(?:,? (?:of |de "
        rf"|del |von )?{_YEAR})?",
    ),
    *_rule(
        resolve_week_number,
        rf"(?:in )?(?:calendar week|kw|kalenderwoche) (?P<number>[1-5]?\d)(?:,? (?:of )?{_YEAR}|/{_YEAR})?",
        rf"(?:in )?(?:week|semana)(?: number| no\.?| número)? (?P<number>[1-5]?\d),? (?:of |de |del )?{_YEAR}",
    ),
    # Parts of a longer time.
    *_rule(
        resolve_earlier,
        r"(?P<when>earlier|later)(?: on)?(?: in)?",
        r"(?P<when>früher|später)(?: in)?",
        r"(?P<when>más temprano|más tarde)",
    ),
    *_rule(
        resolve_third,
        rf"{_NO_THIRD}(?P<third>early|mid|late)(?: in)?",
        r"(?:(?:in|at|by|towards?|around|near|since|from) )?(?:the |a )?(?:very )?(?P<third>beginning|start|middle"
        r"|end|close|tail end|early part|latter part) of",
        r"(?:gegen |zu |am )?(?P<third>anfang|beginn|mitte|ende)(?: im)?",
        r"(?P<third>früh|spät) im",
        r"(?:a |hacia |al |para )?(?P<third>principios?|comienzos?|inicios?|mediados|finales|final|fines|fin)"
        r"(?= del? )",
    ),
    *_rule(resolve_nth_weekday, rf"{_THE}{_ORDINAL} {_WEEKDAY}"),
    *_rule(
        resolve_nth,
        rf"{_THE}{_ORDINAL} (?:(?P<unit>days?|weeks?|weekends?|months?|quarters?|tagen?|tag|wochen?|wochenenden?"
        r"|monate?|quartale?|días?|semana|fin|finde|mes|quincena)(?: de semana)?|half|hälfte|mitad)",
        r"(?:in |on |during |over )?(?:the |die |den |los |las )?"
        r"(?P<ordinal>first|last|ersten|letzten|primer[oa]s|últim[oa]s)"
        rf" {_AMOUNT} (?P<unit>days|weeks|months|tagen?|wochen|monaten?|días|semanas|meses)",
        rf"(?:in |on |during )?(?:the |los |las )?{_AMOUNT} (?P<ordinal>primer[oa]s|últim[oa]s) "
        r"(?P<unit>días|semanas|meses)",
    ),
    *_rule(
        resolve_part,
        r"(?:(?:in|on|during|at) )?(?:the |that )?(?P<part>morning|noon|afternoon|evening|night)(?: of)?(?: on)?",
        r"(?:am|in der|gegen|zum) (?P<part>früh|morgen|vormittag|mittag|nachmittag|abend|nacht)(?: des| vom| der)?",
        r"(?P<part>früh|vormittag|mittag|nachmittag|abend|nacht)s?",
        r"(?:(?:por|en|de|a) )?(?:la|al) (?P<part>mañana|tarde|noche|mediodía)(?: del?)?",
    ),
    *_rule(
        resolve_clock,
        r"(?:at |around |about |by )(?P<hour>[01]?\d|2[0-3])(?:[:.](?P<minute>[0-5]\d))?(?: ?(?P<half>[ap]\.?m\.?|)"
        r"(?: o['’]clock)?)",
        r"(?P<hour>[01]?\d)(?:[:.](?P<minute>[0-5]\d))? ?(?P<half>[ap]\.?m\.?)",
        r"(?:um |gegen )(?P<hour>[01]?\d|2[0-3])(?:[:.](?P<minute>[0-5]\d))?(?: uhr)?",
        r"a las? (?P<hour>[01]?\d|2[0-3])(?:[:.](?P<minute>[0-5]\d))?(?: ?h)?",
    ),
    # Weekdays.
    *_rule(resolve_weekday(1), rf"上个?{_SIGN_WEEKDAY}"),
    *_rule(resolve_weekday(2), rf"上上个?{_SIGN_WEEKDAY}"),
    *_rule(resolve_weekday(0), rf"[这本]个?{_SIGN_WEEKDAY}"),
    *_rule(resolve_weekday(-1), rf"下个?{_SIGN_WEEKDAY}"),
    *_rule(resolve_weekday(), _SIGN_WEEKDAY),
    *_rule(
        resolve_weekday(),
        rf"(?:on )?(?:the )?(?:(?P<which>last|previous) |this past |past )?{_WEEKDAY}(?:['’]s)?{_PART_AFTER}",
        rf"(?:on |this past |past )(?P<weekday>\L<short_weekdays>)\.?{_PART_AFTER}",
        rf"(?P<which>last|previous|next) (?P<weekday>\L<short_weekdays>)\.?{_PART_AFTER}",
        rf"(?:am |an dem |der |den )?(?:(?P<which>{_LAST_DE}) )?{_WEEKDAY}{_PART_AFTER}",
        rf"(?:el )?(?:(?P<which>pasado|último) )?{_WEEKDAY}(?: (?P<which>pasado))?(?: (?:por|en) la {_PART})?",
        rf"(?P<which>this) {_WEEKDAY}{_PART_AFTER}",
        rf"(?:an )?(?P<which>diese[nms]?) {_WEEKDAY}{_PART_AFTER}",
        rf"(?P<which>este) {_WEEKDAY}(?: (?:por|en) la {_PART})?",
        rf"(?:on )?(?:the )?{_NEXT_EN} {_WEEKDAY}{_PART_AFTER}",
        rf"(?:am )?{_NEXT_DE} {_WEEKDAY}{_PART_AFTER}",
        rf"(?:el )?{_NEXT_ES} {_WEEKDAY}|(?:el )?{_WEEKDAY} (?P<which>que viene|próximo)",
    ),
    *_rule(
        resolve_weekday(-1),
        rf"{_WEEKDAY} next week{_PART_AFTER}",
        rf"{_WEEKDAY} nächster woche",
        rf"{_WEEKDAY} de la semana que viene",
    ),
    *_rule(
        resolve_weekday(2),
        rf"(?:on )?(?:the )?{_WEEKDAY} before last",
        rf"(?:am )?vorletzte[nrms]? {_WEEKDAY}",
        rf"(?:el )?(?:penúltimo {_WEEKDAY}|{_WEEKDAY} antepasado)",
    ),
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
        rf"(?:en )?(?:la )?semana del? {_SPANISH_DAY} (?:de )?{_MONTH}{_OF_YEAR}",
        rf"{_SIGN_MONTH}(?P<day>[0-3]?\d)[日号]那一?周",
    ),
    *_rule(
        resolve_date,
        rf"(?:on |am |el |vom |zum |dem |den |the |der )*{_DATE_DAY} ?(?:of |de |del )?{_MONTH}{_OF_YEAR}{_PART_AFTER}",
        rf"(?:el )?(?:día )?{_SPANISH_DAY} de {_MONTH}{_OF_YEAR}(?: por la {_PART})?",
        rf"(?:on )?{_MONTH} (?:the )?{_DATE_DAY}{_OF_YEAR}{_PART_AFTER}",
        rf"(?:in |im |en |during |throughout )?(?:(?P<which>last|this|{_LAST_DE}|diese[nrms]?) )?"
        rf"(?:el mes de )?{_MONTH}(?: (?P<which>pasado))?{_OF_YEAR}",
        rf"(?:in |im |en )?(?:the )?(?:(?P<which>next|nächste[nrms]?|kommende[nrms]?|próximo) ){_MONTH}|{_MONTH} "
        rf"(?P<which>before last)",
        rf"{_SIGN_MONTH}(?P<day>[0-3]?\d)[日号]?(?:{_SIGN_PART})?",
        rf"{_SIGN_MONTH}(?!\d)",
    ),
    *_rule(
        resolve_days_of_month,
        rf"(?:from |between |zwischen |vom |entre |del )?(?:the |dem |el )?{_FIRST}{_TO}{_LAST} ?(?:of |de )?{_MONTH}"
        + _OF_YEAR,
        rf"(?:from |between )?{_MONTH} {_FIRST}{_TO}{_LAST}\b(?! ?\L<months>\b)(?:,? {_YEAR})?",
        rf"(?:从|在)?{_SIGN_MONTH}(?P<first>[0-3]?\d)[日号]?(?:到|至|和|-|–)(?P<last>[0-3]?\d)[日号](?:之?间)?",
    ),
    *_rule(
        resolve_day_of_month,
        # Not "the 3rd floor": what follows is no noun.
        r"(?:on |(?<=\b(?:since|until|till|from|by|before|after|between|and|to|through) ))the (?P<day>[0-3]?\d(?:st"
        r"|nd|rd|th))"
        r"(?=\s*(?:$|[^\s\p{L}\p{N}-]|(?:of|and|to|until|through|in|at|about|we|i|you|did|was|were|what|that|last"
        r"|this)\b))",
        r"the (?P<day>[0-3]?\d(?:st|nd|rd|th))(?=[?.!,;]?\s*$|\s+(?:and|to|until|through|of (?:last|this|the))\b)",
        r"(?:am |(?<=\b(?:vom|zum|dem|den|seit|bis|ab|und) ))(?P<day>[0-3]?\d\.)"
        r"(?!\s*(?:tag|mal|stock|platz|geburtstag|versuch|kapitel))",
        r"(?:el |(?<=\b(?:del|al|hasta) ))(?:día (?P<day>[0-3]?\d)|(?P<day>[0-3]?\d)(?=[?.!,;]?\s*$|\s+(?:y|al|hasta"
        r"|del mes)\b))",
    ),
    *_rule(
        resolve_date,
        r"(?P<year>(?:19|20)\d\d)-(?P<month>[01]?\d)-(?P<day>[0-3]?\d)",
        r"(?P<year>(?:19|20)\d\d)[-/](?P<month>0[1-9]|1[0-2])",
        r"(?P<month>0?[1-9]|1[0-2])/(?P<year>(?:19|20)\d\d)",
        r"(?:am |vom |zum |dem |den )?(?P<day>[0-3]?\d)\.(?P<month>[01]?\d)\.(?P<year>(?:19|20)\d\d)?",
        r"(?:am |vom |zum |dem |den |seit |bis )(?P<day>[0-3]?\d)\.(?P<month>[01]?\d)\.(?P<year>\d\d)",
        r"(?:am |vom |zum |dem |den )(?P<day>[0-3]?\d)\.(?P<month>[01]?\d)",
    ),
    *_rule(resolve_slashes, r"(?P<month>[0-3]?\d)/(?P<day>[0-3]?\d)/(?P<year>(?:19|20)\d\d)"),
    *_rule(
        resolve_season,
        # Alone "fall" and "spring" are verbs, and "summer" is a kind of dress.
        rf"(?:in |during |over |since |throughout )(?:the )?(?:(?P<which>last|previous|this|next) )?{_SEASON}(?: "
        rf"(?:of )?{_YEAR})?",
        rf"(?:the )?(?P<which>last|previous|this|next) {_SEASON}(?:['’]s)?|the {_SEASON} (?P<which>before last)",
        rf"(?:the )?{_SEASON} (?:of )?{_YEAR}",
        rf"(?:im |seit dem )(?:(?P<which>{_LAST_DE}|diese[nrms]?|nächste[nrms]?|kommende[nrms]?"
        rf"|vorletzte[nrms]?) )?{_SEASON}(?: {_YEAR})?",
        rf"(?P<which>{_LAST_DE}|diese[nrms]?|nächste[nrms]?|kommende[nrms]?|vorletzte[nrms]?) {_SEASON}"
        rf"|{_SEASON} {_YEAR}",
        rf"(?:en )?(?:el |la ){_SEASON}(?: (?P<which>pasad[oa]|antepasad[oa]|que viene))?(?: de {_YEAR})?",
        rf"en {_SEASON}(?: de {_YEAR})?|est[ea] {_SEASON}|(?:el |la )?(?P<which>próxim[oa]|últim[oa]"
        rf"|pasad[oa]) {_SEASON}",
        rf"{_SEASON} (?P<which>pasad[oa])",
        rf"(?:(?P<which>去年|今年)|{_YEAR}年)?(?P<season>春天|春季|夏天|夏季|秋天|秋季|冬天|冬季)",
    ),
    *_rule(
        _resolve_bare_season,
        rf"(?:the |des |der )?{_SEASON}s?",
    ),
    *_rule(
        resolve_year,
        rf"(?:in |im jahr |des jahres |in the year |en |during |en el año |el año )?{_YEAR}",
        r"(?P<year>(?:19|20)\d\d)年",
    ),
    *_rule(
        resolve_feast,
        rf"(?:(?:at|over|on|during|an|zu|über|en|la|el|the) )*(?:(?P<which>last|this|next|{_LAST_DE}|diese[nrms]?"
        rf"|nächste[nrms]?|vorletzte[nrms]?|próxim[oa]) )?{_FEAST}(?:,? (?:of |de )?{_YEAR}| (?P<which>pasad[oa]"
        rf"|before last|que viene))?",
        r"(?P<feast>\L<sign_feasts>)",
    ),
    # Conversations by their place.
    *_conversation_rules(),
)
