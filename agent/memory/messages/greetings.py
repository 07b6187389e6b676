"""Conversations of greetings alone, which memory does not summarise. Decided by words, without a model.

Only greetings, thanks and test words count, in English, German, French, Spanish and Chinese. Yes, no, ok and a thumb
may answer a question, so that a conversation with one of them is summarised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_PHRASES = """
hi hello hey hiya howdy yo greetings morning evening bye goodbye ciao cheers thanks thx ty test testing ping
good morning | good afternoon | good evening | good night | good day | hi there | hello there | hey there
how are you | how are you today | how are you doing | how is it going | hows it going | whats up | what is up
thank you | thanks a lot | see you | see you later | anyone there | are you there | you there
hallo moin servus tach tschüss tschüs danke huhu tschau guten
guten morgen | guten tag | guten abend | gute nacht | grüß gott | grüß dich | grüezi | wie gehts | wie geht es dir
wie gehts dir | wie geht es ihnen | bis bald | bis dann | auf wiedersehen | vielen dank | danke schön | bist du da
bonjour salut coucou bonsoir merci allo
bonne nuit | bonne journée | ça va | comment ça va | comment vas tu | comment allez vous | merci beaucoup | au revoir
à bientôt | tu es là
hola buenas adiós gracias chao
buenos días | buenas tardes | buenas noches | qué tal | cómo estás | cómo está | cómo estás hoy | muchas gracias
hasta luego | hasta pronto | estás ahí
你好 您好 嗨 早安 早上好 下午好 晚上好 晚安 再见 谢谢 你好吗 在吗
"""
_WORD = re.compile(r"[^\W_]+")
_REPEATED = re.compile(r"(.)\1+")
_WAVE = re.compile("[\U0001f44b\U0001f3fb-\U0001f3ff\\s.,;:!?¡¿'’…。，！？-]*")  # a waving hand, and punctuation
_CONTENT_KEYS = ("files", "quoted")


def has_only_greetings(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if the user messages are greetings alone, without files, and no tool was called."""
    said = False
    for message in messages:
        if message.get("tool_calls") or message.get("tools_used") or message.get("role") in ("tool", "function"):
            return False
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if (
            not isinstance(content, str)
            or any(message.get(name) for name in _CONTENT_KEYS)
            or not _is_greeting(content)
        ):
            return False
        said = True
    return said


def _is_greeting(text: str) -> bool:
    words = tuple(map(_stem, _WORD.findall(text.lower().replace("'", "").replace("’", ""))))
    if not words:
        return bool(_WAVE.fullmatch(text))
    at = 0
    while at < len(words):
        length = next((n for n in range(_LONGEST, 0, -1) if words[at : at + n] in _GREETINGS), 0)
        if not length:
            return False
        at += length
    return bool(_WAVE.fullmatch(_WORD.sub("", text)))


def _stem(word: str) -> str:
    """Return *word* with repeated letters as one: `heyyy` is `hey`."""
    return _REPEATED.sub(r"\1", word)


def _greetings() -> frozenset[tuple[str, ...]]:
    phrases: set[tuple[str, ...]] = set()
    for line in _PHRASES.strip().splitlines():
        pieces = line.split("|") if "|" in line else line.split()
        phrases |= {tuple(map(_stem, piece.split())) for piece in pieces}
    return frozenset(phrases)


_GREETINGS = _greetings()
_LONGEST = max(map(len, _GREETINGS))
