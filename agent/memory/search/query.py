"""Parse a search query: its words, the names, times and cues in it; detect the traits of indexed texts."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import regex

from agent.memory.search.time_grammar import find_time_expressions
from agent.memory.search.time_spans import ConversationReference, TimeSpan
from agent.memory.search.tokenizer import (
    MONTHS,
    MONTHS_IN_CAPITALS,
    STOP,
    detect,
    expand_query_word,
    is_unspaced,
    words,
)

_CONVERSING = regex.compile(
    r"(?<!\p{L})(?:talk(?:ed|ing)?|discuss(?:ed|ion|ing)?|sa(?:y|id)|told?|tell|mention(?:ed|ing)?|speak(?:ing)?|spoke|chat(?:ted|ting)?"
    r"|writ(?:e|ing)|wrote|conversations?|messages?|come? up"
    r"|gesprochen|sprachen|sprechen|gesprächs?|besprochen|geredet|redeten|reden|gesagt|sagte|erzählt|geschrieben|schrieb"
    r"|unterhalten|unterhielten|unterhaltung|diskutiert|erwähnt|worum ging"
    r"|habl(?:amos|ado|é|ó|aron|aba|ábamos|aste)|dij(?:e|o|imos|iste|eron)|dicho|comentamos|comentado|conversamos"
    r"|conversación|charl(?:amos|a|ado)|tratamos|discutimos|contamos|cont[éó]|escrib(?:í|ió|imos)|mensajes?)(?!\p{L})"
    r"|聊天?|谈话|谈|说|讲|讨论|提到|对话",
    regex.IGNORECASE,
)
# What else such a question consists of, besides function words.
_NO_TOPIC = regex.compile(
    r"(?<!\p{L})(?:topics?|subjects?|things?|anything|everything|something|happen(?:ed)?|going on|went on|back|go|up"
    r"|show|summar(?:y|i[sz]e)|recap|cover(?:ed)?|remind|remember|again|date|day|time|please|know"
    r"|thema|themen|ging|los|war|wir|worüber|wovon|worum|etwas|alles|nochmal|zeig|fasse?|zusammen|passiert|geht|gab|bitte"
    r"|tag|temas?|pasó|cosas?|algo|todo|día|sobre)(?!\p{L})"
    r"|我们|咱们|我|你|发生|什么|哪些|些|话题|内容|事情?|关于|了|过|的|吗|呢|都|在|有|是|那天?|时候?",
    regex.IGNORECASE,
)


# Words of questions about everything: summaries, orders, developments.
_OVERVIEW = regex.compile(
    r"(?<!\p{L})(?:summar(?:y|ies|i[sz]e\p{L}*)|recap|overview|timeline|chronolog\p{L}+|in (?:what|which) order"
    r"|in order(?! to)|(?:over|across) (?:time|the (?:course|months|weeks|years))|throughout|(?:walk|take) me through"
    r"|from (?:the )?(?:beginning|start) to|how (?:did|has|have) .{0,60}(?:evolve|progress|develop|change)\p{L}*"
    r"|(?:list|name|give me|tell me|what (?:are|were)) (?:all|every\p{L}*)|everything (?:we|i|you|that)"
    r"|all (?:of )?(?:the|our|my) (?:\p{L}+ ){0,2}(?:things|topics|subjects|projects|conversations|talks|plans|steps)"
    r"|what have (?:we|i|you) (?:all )?(?:worked|done|discussed|covered|talked|been)"
    r"|(?:done|talked|discussed|covered|worked|written|planned)(?: \p{L}+){0,3} so far"
    r"|zusammenfass\p{L}*|fasse? .{0,60}zusammen|überblick|übersicht|in welcher reihenfolge|der reihe nach"
    r"|chronologisch\p{L}*|alles,? (?:was|worüber|woran)|im (?:laufe|verlauf) (?:de|unse)\p{L}+|von anfang (?:an|bis)"
    r"|wie ha(?:t|ben) .{0,60}entwickelt|alle (?:unsere|meine) |woran (?:haben|hatten) wir"
    r"|was haben wir (?:alles|bisher|insgesamt)"
    r"|res[uú]m(?:en|e|eme|enes|ir|ame)|recapitula\p{L}*|en qué orden|cronol[oó]g\p{L}+|a lo largo de|todo lo que"
    r"|todos (?:los|nuestros|mis) (?:temas|proyectos|planes|pasos)|(?:ha|han) evolucionado|desde el principio"
    r"|(?:qué|en qué|de qué) hemos (?:trabajado|hecho|hablado|discutido))(?!\p{L})"
    r"|总结|概括|概述|按.{0,4}顺序|到目前为止|所有的?(?:话题|事情|项目|内容)|从头到尾|时间线",
    regex.IGNORECASE,
)


# A wish of a person for all that follows.
_WISH = regex.compile(
    r"(?<!\p{L})(?:from now on|from here on|going forward|in (?:the )?future,|henceforth|every time (?:i|you)\b"
    r"|(?:please|(?:should|must|to)) (?:always|never)|don't ever|i(?:'d| would)? (?:want|like|prefer) you to"
    r"|(?:always|never) (?:use|write|answer|reply|call|give|send|show|suggest|include|mention|ask|tell|recommend|start"
    r"|end|speak|add|put|say|explain|keep|assume|schedule|book)"
    r"|ab (?:jetzt|sofort|heute)|von (?:nun|jetzt) an|in zukunft|künftig|bitte (?:immer|nie|niemals)|jedes mal, wenn"
    r"|(?:antworte|schreibe?|nenne?|gib|zeige?|schicke?|sage?|verwende|benutze|frage?|erkläre) .{0,40}"
    r"(?:immer|nie|niemals|nicht mehr)"
    r"|de ahora en adelante|a partir de ahora|en el futuro,|por favor,? (?:siempre|nunca)|cada vez que"
    r"|(?:siempre|nunca) (?:me )?(?:resp[oó]nd|escr[ií]b|us|ll[aá]m|cont[eé]st|hag|dig|recomi[eé]nd|preg[uú]nt)\p{L}+)"
    r"|以后|从现在(?:起|开始)|请(?:总是|一直|永远|不要再)",
    regex.IGNORECASE,
)
_PART = regex.compile(r"[\p{L}\p{M}]+|\d+")
_NUMERIC = regex.compile(r"(?<!\d)(?:(\d{4})-(\d{1,2})-(\d{1,2})|(\d{1,2})[./](\d{1,2})[./](\d{4}))(?!\d)")
_SIGNS = regex.compile(r"(?:(\d{4})\s*年\s*)?(\d{1,2})\s*月(?:\s*(\d{1,2})\s*[日号])?|(\d{4})\s*年")
_YEAR = regex.compile(r"(?:19|20)\d\d")
_DAY_AFTER, _MONTH_AFTER = timedelta(days=3), timedelta(days=6)


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A parsed search query, independent of an index."""

    text: str
    words: tuple[str, ...]  # content words, in order, each once
    all_words: frozenset[str]
    language: str
    times: tuple[TimeRange, ...]
    cue: QueryCue
    spans: tuple[TimeSpan, ...] = ()  # the times that the query names
    conversations: tuple[ConversationReference, ...] = ()
    topic: frozenset[str] = frozenset()  # words besides these times and "what did we talk about"
    asks_conversation: bool = False  # what was said, rather than what happened
    asks_overview: bool = False  # of a whole time or subject, rather than for one thing
    bounds: TimeSpan | None = None  # results are from this time only
    now: datetime | None = None  # when it is asked

    def terms(self, languages: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """Return, for each word, its possible terms in an index of *languages*."""
        candidates = tuple(dict.fromkeys([*([self.language] if self.language else []), *languages]))
        return tuple(dict.fromkeys(expand_query_word(word, candidates) for word in self.words))

    def names(self, speakers: Iterable[str]) -> frozenset[str]:
        """Return the speakers that the query names by full name or first name."""
        text = " ".join(words(self.text))
        matches = set()
        for speaker in speakers:
            parts = words(speaker)
            if parts and (" ".join(parts) in text if is_unspaced(parts[0]) else self._has_name(parts, text)):
                matches.add(speaker)
        return frozenset(matches)

    def _has_name(self, parts: Sequence[str], text: str) -> bool:
        return parts[0] in self.all_words and (parts[0] not in STOP["en"] or f" {' '.join(parts)} " in f" {text} ")


def parse_query(text: str, *, now: datetime | None = None, bounds: TimeSpan | None = None) -> SearchQuery:
    """Parse a query; times such as "last week" are relative to *now*, and not found without it."""
    all_words = words(text)
    language = detect(all_words)
    stop = STOP.get(language, frozenset())
    content = [
        word for word in all_words if word not in stop and not (len(word) == 1 and word.isascii() and word.isalpha())
    ]
    expressions = find_time_expressions(text, now) if now is not None else ()
    rest = text
    for each in reversed(expressions):
        rest = f"{rest[: each.begin]} {rest[each.end :]}"
    return SearchQuery(
        text=text,
        words=tuple(dict.fromkeys(content or all_words)),
        all_words=frozenset(all_words),
        language=language,
        times=find_time_ranges(text),
        cue=cues(text),
        spans=tuple(dict.fromkeys(each.span for each in expressions if each.span is not None)),
        conversations=tuple(dict.fromkeys(each.conversation for each in expressions if each.conversation is not None)),
        topic=frozenset(words(_NO_TOPIC.sub(" ", _CONVERSING.sub(" ", rest)))) - stop - STOP["en"],
        asks_conversation=_CONVERSING.search(rest) is not None or any(each.conversation for each in expressions),
        asks_overview=_OVERVIEW.search(text) is not None,
        bounds=bounds,
        now=now,
    )


# -- cues ------------------------------------------------------------------------------------------


def is_standing_wish(text: str) -> bool:
    """Return True if *text* asks for something from then on: "always", "never", "from now on"."""
    return _WISH.search(text) is not None


class UnitTrait(enum.IntFlag):
    """Traits of a unit's text; stored in the index, so that ranking does not read texts."""

    NONE = 0
    TIME = 1  # contains a time
    SHORT = 2  # a few words, such as "yes"
    QUESTION = 4  # ends with a question mark
    STATEMENT = 8  # its author speaks of themselves, or gives a number


class QueryCue(enum.IntFlag):
    """Kinds of things that a query asks for."""

    NONE = 0
    WHEN = 1
    LATEST = 2
    SELF = 4  # the asker's own words
    OTHER = 8  # what the assistant said


def _any(*words: str) -> regex.Pattern[str]:
    return regex.compile(rf"(?<![\p{{L}}\p{{N}}])(?:{'|'.join(words)})(?![\p{{L}}\p{{N}}])", regex.IGNORECASE)


_CUES: Sequence[tuple[QueryCue, regex.Pattern[str], regex.Pattern[str]]] = (
    (
        QueryCue.WHEN,
        _any(
            r"when|(?:what|which) (?:date|day|month|year|time|week|season)|how long(?: ago)?|since when",
            r"wann|seit wann|an welchem tag|in welchem (?:monat|jahr)|wie lange|quand|cuándo|quando",
            r"wanneer|kiedy|när|når|когда|в каком (?:году|месяце)|как давно|πότε|متى",
        ),
        regex.compile(r"什么时候|何时|哪天|哪一天|几号|几月|哪年|多久|いつ|언제"),
    ),
    (
        QueryCue.LATEST,
        _any(
            r"now|nowadays|currently|current|latest|newest|most recent(?:ly)?|these days|at the moment|right now",
            r"jetzt|zurzeit|derzeit|aktuell\p{L}*|momentan|gerade|neueste\p{L}*|zuletzt|inzwischen|mittlerweile",
            r"maintenant|actuel\p{L}*|dernière?|ahora|actual\p{L}*|últim[oa]|adesso|ora|attuale|ultim[oa]|agora|atual",
            r"nu|momenteel|сейчас|теперь|нынешн\p{L}*|последн\p{L}*|текущ\p{L}*",
        ),
        regex.compile(r"现在|目前|最近|最新|如今|当前|今の|最新|지금|요즘|최근"),
    ),
    (
        QueryCue.OTHER,
        _any(
            r"did you|(?:had|have) you (?:said|told|recommended|suggested)|according to you|the assistant(?:'s)?",
            r"you (?:said|told|recommended|suggested|proposed|advised|mentioned|wrote|gave|explained|called|named)",
            r"your (?:own )?(?:advice|answer|suggestion|recommendation|proposal|tip|idea|recipe|opinion)s?",
            r"hast du|hattest du|laut dir|sagtest du",
            r"du (?:\p{L}+ ){0,2}(?:gesagt|empfohlen|vorgeschlagen|geraten|genannt|erwähnt)",
            r"deine?[nrm]? (?:rat|vorschlag|tipp|empfehlung|antwort|idee|rezept)|(?:der|vom) assistent(?:en)?",
            r"as-tu|avais-tu|tu (?:as|avais|m'as|m'avais)|selon toi|l'assistant",
            r"(?:ton|ta|tes) (?:conseil|suggestion|recommandation|réponse|idée|recette)s?",
            r"(?:me )?(?:dijiste|recomendaste|sugeriste|aconsejaste|propusiste|mencionaste)|según tú|el asistente",
            r"tus? (?:consejo|sugerencia|recomendación|respuesta|idea|receta)s?",
            r"ты (?:сказал|советовал|посоветовал|предлагал|предложил|рекомендовал)\p{L}*|твой совет",
        ),
        regex.compile(r"你(?:说过?|推荐|建议|告诉)"),
    ),
    (
        QueryCue.SELF,
        _any(
            r"i|my|me|mine|we|our|us|ich|mein\p{L}{0,2}|mich|mir|wir|unser\p{L}{0,2}|je|j|mon|ma|mes|moi|nous|notre",
            r"yo|mi|mis|mí|io|mio|mia|eu|meu|minha|ik|mijn|я|мне|меня|мой|моя|моё|мои|моего|моей|мою|моих|мы|наш\p{L}{0,3}",
        ),
        regex.compile(r"我|私|僕|俺|나의|내가|제가"),
    ),
)
# "me" is not among these: "write me a list" tells nothing about its author.
_FIRST_PERSON = _any(
    r"i|my|mine|we|our|ours|ich|wir|mein\p{L}{0,2}|unser\p{L}{0,2}|je|j|nous|mon|ma|mes|notre|nos",
    r"yo|mi|mis|nosotr[oa]s|nuestr[oa]s?|soy|estoy|tengo|quiero|voy|vivo|trabajo|compré|io|mio|mia|eu|meu|minha",
    r"ik|mijn|wij|я|мой|моя|моё|мои|моего|моей|мою|моих|у меня|мы|наш\p{L}{0,3}",
)
_FIRST_PERSON_LETTERS = regex.compile(r"我|私|僕|俺|나의|내가|제가|저는|나는")
_FIRST_PERSON_SIGNS = regex.compile(rf"{_FIRST_PERSON_LETTERS.pattern}|\p{{N}}")
# How a task for the bot begins. It tells nothing about its author, even with "my" in it, nor do its numbers.
_TASK = regex.compile(
    r"\s*(?:please |bitte |por favor,? )?(?:(?:can|could|would) you (?:please )?|(?:kannst|könntest) du (?:mir )?)?"
    r"(?:write|rewrite|give|tell|show|explain|describe|create|make|draft|suggest|recommend|summari[sz]e|translate|shorten"
    r"|correct|convert|compare|(?:schreib|sag|zeig|mach|nenn|erklär|beschreib|erstell|schlag|fass|übersetz|kürz|vergleich"
    r"|formulier)e?|gib|entwirf|empfiehl|escribe(?:me)?|d[ai]me|muéstrame|explica(?:me)?|haz(?:me)?|crea|sugiere(?:me)?"
    r"|resume|traduce)(?!\p{L})|\s*请?(?:帮我|给我|告诉我|写|解释|列出|推荐|总结|翻译)",
    regex.IGNORECASE,
)
_SENTENCE = regex.compile(r"[^.!?。！？\n]+(?:[.!?。！？]+(?!\s|$)[^.!?。！？\n]+)*[.!?。！？]*")
_TIME = _any(
    r"\d{1,2}(?:st|nd|rd|th)|(?:19|20)\d\d|\d{1,2}[:.]\d\d|\d{1,2} ?[ap]m",
    r"(?:yester|to|mon|tues|wednes|thurs|fri|satur|sun)day|tomorrow|tonight|ago|(?:last|next|this) \p{L}+|weekend",
    r"(?:january|february|march|april|june|july|august|september|october|november|december)|(?:day|week|month|year)s?",
    r"recently|gestern|heute|morgen|vorgestern|vor \w+ \p{L}+|letzte\p{L}*|nächste\p{L}*",
    r"(?:mon|diens|donners|frei|sams|sonn)tag|mittwoch",
    r"januar|februar|märz|mai|juni|juli|oktober|dezember|tage?n?|wochen?|monate?n?|jahre?n?",
    r"hier|aujourd'hui|demain|dernière?|prochaine?|ayer|hoy|mañana|pasad[oa]|próxim[oa]|semana|año|mes|semaine|mois|ans?",
    r"вчера|сегодня|завтра|назад|прошл\p{L}+|следующ\p{L}+|недел\p{L}+|месяц\p{L}*|год\p{L}{0,2}",
    r"(?:понедельник|вторник|сред[уа]|четверг|пятниц[уа]|суббот[уа]|воскресенье)",
)
_TIME_SIGNS = regex.compile(
    r"昨天|今天|明天|前天|后天|上周|下周|上个月|下个月|去年|今年|明年|星期|周[一二三四五六日末]|\d\s{0,2}[年月日号点]|昨日|今日|明日|어제|오늘|내일"
)
_MARKS_OF_QUESTIONS = "?？؟"
_MAY_FOLLOW = regex.compile(r"[\s\p{So}\p{P}\p{Sk}]")
_FEW_WORDS, _FEW_SIGNS = 5, 8


def traits(text: str, word_list: Sequence[str]) -> UnitTrait:
    """Return the traits of *text*, whose words are *word_list*."""
    traits_ = UnitTrait.NONE
    if _TIME.search(text) or _TIME_SIGNS.search(text):
        traits_ |= UnitTrait.TIME
    if sum(len(word) / _FEW_SIGNS * _FEW_WORDS if is_unspaced(word) else 1 for word in word_list) < _FEW_WORDS:
        traits_ |= UnitTrait.SHORT
    if any(_states(sentence) for sentence in _SENTENCE.findall(text)):
        traits_ |= UnitTrait.STATEMENT
    if _ends_by_asking(text) or _TASK.match(text):
        traits_ |= UnitTrait.QUESTION
    return traits_


def _states(sentence: str) -> bool:
    return not _TASK.match(sentence) and bool(_FIRST_PERSON.search(sentence) or _FIRST_PERSON_SIGNS.search(sentence))


def is_personal(message: str) -> bool:
    """Return True if the author of *message* speaks of themselves, other than in a task for the bot."""
    is_first = _FIRST_PERSON.search(message) or _FIRST_PERSON_LETTERS.search(message)
    return bool(is_first) and not _TASK.match(message)


def _ends_by_asking(text: str) -> bool:
    """Return True if *text* ends with a question mark; punctuation and bracketed file notes may follow it."""
    end = len(text.rstrip())
    while end and text[end - 1] == "]":
        start = text.rfind("[", 0, end)
        if start < 0 or text.find("]", start, end - 1) >= 0:
            break
        if _asks_before(text, end - 1, start + 1):
            return True
        end = start
        while end and text[end - 1].isspace():
            end -= 1
    return _asks_before(text, end, 0)


def _asks_before(text: str, end: int, start: int) -> bool:
    """Return True if there is a question mark from *start* on with only punctuation between it and *end*."""
    for n in range(end - 1, start - 1, -1):
        if text[n] in _MARKS_OF_QUESTIONS:
            return True
        if not _MAY_FOLLOW.match(text[n]):
            return False
    return False


def cues(question: str) -> QueryCue:
    """Return the cues in *question*."""
    found = QueryCue.NONE
    for cue, phrases, signs in _CUES:
        if phrases.search(question) or signs.search(question):
            found |= cue
    # "What did you tell me?" asks for the assistant's words, although it contains "me".
    return found & ~QueryCue.SELF if QueryCue.OTHER in found else found


# -- times -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A date in a query; None matches any value."""

    year: int | None = None
    month: int | None = None
    day: int | None = None

    def covers(self, at: datetime) -> bool:
        """Return True if a message from *at* is likely about this time; people report events up to some days later."""
        if self.day is not None:
            return any(self._is(at - timedelta(days=n)) for n in range(_DAY_AFTER.days + 1))
        return self._is(at) or (self.month is not None and self._is(at - _MONTH_AFTER))

    def _is(self, at: datetime) -> bool:
        return (
            self.year in (None, at.year) and self.month in (None, at.month) and (self.day is None or self.day == at.day)
        )


def find_time_ranges(text: str) -> tuple[TimeRange, ...]:
    """Return the dates in *text*."""
    found = [*_numeric(text), *_months(text)]
    if not found:
        found = [TimeRange(year=int(match.group())) for match in _YEAR.finditer(text)]
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
        month = MONTHS.get(part.lower())
        if month is None or (part.lower() in MONTHS_IN_CAPITALS and not (part[0].isupper() and n)):
            continue
        around = [each for each in parts[max(0, n - 3) : n + 5] if each.isdecimal()]
        days = [int(each) for each in (*parts[max(0, n - 3) : n], *parts[n + 1 : n + 2]) if each.isdecimal()]
        years = [int(each) for each in around if _YEAR.fullmatch(each)]
        day = next((each for each in days if 1 <= each <= 31), None)
        yield TimeRange(years[0] if years else None, month, day)
