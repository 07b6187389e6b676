"""What people ask with, and what answers look like: who, when, which is the latest."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import regex

from agent.memory.search.tokenizer import is_unspaced


class UnitTrait(enum.IntFlag):
    """What a unit looks like; kept in the index, so that ranking need not read texts."""

    NONE = 0
    TIME = 1  # says when
    SHORT = 2  # hardly more than a yes
    QUESTION = 4  # ends by asking


class QueryCue(enum.IntFlag):
    """What a question wants."""

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
            r"did you|you (?:said|told|recommended|suggested|proposed|advised|mentioned|wrote|gave|explained)",
            r"have you (?:said|told|recommended|suggested)|your (?:advice|answer|suggestion|recommendation|proposal)",
            r"hast du|du (?:gesagt|empfohlen|vorgeschlagen)|dein (?:rat|vorschlag)",
            r"as-tu|tu (?:as|m'as)|me (?:dijiste|recomendaste)",
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


def traits(text: str, found: Sequence[str]) -> UnitTrait:
    """Return what *text*, of words *found*, looks like."""
    traits_ = UnitTrait.NONE
    if _TIME.search(text) or _TIME_SIGNS.search(text):
        traits_ |= UnitTrait.TIME
    if sum(len(word) / _FEW_SIGNS * _FEW_WORDS if is_unspaced(word) else 1 for word in found) < _FEW_WORDS:
        traits_ |= UnitTrait.SHORT
    if _ends_by_asking(text):
        traits_ |= UnitTrait.QUESTION
    return traits_


def _ends_by_asking(text: str) -> bool:
    """Return True if *text* ends in a question mark; signs may follow, and notes of files in brackets. Linear."""
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
    """Return True if nothing but signs stands between a question mark and *end*; not looked for before *start*."""
    for n in range(end - 1, start - 1, -1):
        if text[n] in _MARKS_OF_QUESTIONS:
            return True
        if not _MAY_FOLLOW.match(text[n]):
            return False
    return False


def cues(question: str) -> QueryCue:
    """Return what *question* wants."""
    wanted = QueryCue.NONE
    for cue, words, signs in _CUES:
        if words.search(question) or signs.search(question):
            wanted |= cue
    # "What did you tell me?" asks for the assistant's words, though it says "me".
    return wanted & ~QueryCue.SELF if QueryCue.OTHER in wanted else wanted
