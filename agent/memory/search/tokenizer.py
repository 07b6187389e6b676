"""Convert text to index terms: stemmed words, or character bigrams for scripts without spaces.

SQLite's tokenizer only splits at spaces; the index stores the terms of this module, so an index and its stemmer match.
"""

from __future__ import annotations

import itertools
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import regex
import Stemmer  # Snowball in C; snowballstemmer, in Python, is ten times slower and loads all its languages

from agent.memory.search.language_data import NOT_RUSSIAN, SCRIPTS, STEMMERS, STOP, UNSPACED

VERSION = "1"  # of the terms; an index of another version is rebuilt
PLAIN = ""  # unknown language
_RUN = regex.compile(rf"(?P<signs>{UNSPACED.pattern}[\p{{M}}ー]*)+|(?:(?!{UNSPACED.pattern})[\p{{L}}\p{{M}}\p{{N}}])+")
_SIGN = regex.compile(rf"{UNSPACED.pattern}[\p{{M}}ー]*")
_ALONE = regex.compile(r"[\p{Han}\p{Hangul}]")
_LONGEST = 64  # characters of a word; longer ones (links, keys) are cut
_SURE = 2  # function words that override the language of earlier text
_UNFOLDED = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d", "ı": "i"})


def words(text: str) -> list[str]:
    """Return the words of *text* in order, lower-case; a run without spaces is one word."""
    return [match.group()[:_LONGEST] for match in _RUN.finditer(unicodedata.normalize("NFKC", text).lower())]


def is_unspaced(word: str) -> bool:
    """Return True if a word is a run of a script without spaces."""
    return UNSPACED.match(word) is not None


def detect(word_list: Sequence[str], *, before: str = PLAIN) -> str:
    """Return the language of *word_list* by script and function words; in doubt, return *before*."""
    letters = "".join(word_list)
    for language, script in SCRIPTS.items():
        # Japanese is mostly Han; a few kana tell it from Chinese.
        share = 0.1 if language == "ja" else 0.34
        if letters and len(script.findall(letters)) > share * len(letters):
            return PLAIN if language == "ru" and NOT_RUSSIAN.search(letters) else language
    votes = Counter(language for word in set(word_list) for language in _languages(word))
    if not votes:
        return before
    best = max(votes.values())
    leading = [language for language, count in votes.items() if count == best]
    if before in leading or (before and best < _SURE):
        return before
    # English wins ties: languages share function words, and English is the most frequent.
    return min(leading, key=lambda language: (language != "en", list(STOP).index(language)))


@lru_cache(maxsize=4_096)
def _languages(word: str) -> tuple[str, ...]:
    return tuple(language for language, stop in STOP.items() if word in stop)


def index_terms(text: str, language: str) -> str:
    """Return the terms of *text* in *language*, separated by spaces, as the index stores them."""
    return " ".join(_terms(words(text), language))


def _terms(word_list: Iterable[str], language: str) -> Iterator[str]:
    for word in word_list:
        if is_unspaced(word):
            yield from grams(word)
        else:
            yield stem(word, language)


def grams(run: str) -> list[str]:
    """Return the bigrams of a run, and its single characters that can be words."""
    signs = _SIGN.findall(run)
    alone = [sign for sign in signs if _ALONE.match(sign) and sign not in STOP["zh"]]
    return [*alone, *(a + b for a, b in itertools.pairwise(signs))]


@lru_cache(maxsize=65_536)
def stem(word: str, language: str) -> str:
    """Return the folded stem of a lower-case word; numbers and words of unknown languages are not stemmed."""
    name = STEMMERS.get(language)
    if name is not None and not any(sign.isdigit() for sign in word):
        word = _stemmers.get(name).stemWord(word)
    return fold(word)


class _StemmerCache(threading.local):
    """Stemmers for each thread, because a stemmer has internal state."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = Stemmer.Stemmer(name, 0)  # `stem` is the cache
        return self._known[name]


_stemmers = _StemmerCache()


def fold(word: str) -> str:
    """Return *word* without diacritics on Latin and Greek letters."""
    if word.isascii():
        return word
    apart = unicodedata.normalize("NFKD", word.casefold().translate(_UNFOLDED))
    kept = [sign for n, sign in enumerate(apart) if not (unicodedata.combining(sign) and n and _is_folded(apart, n))]
    return unicodedata.normalize("NFC", "".join(kept))


def _is_folded(apart: str, n: int) -> bool:
    """Return True if the diacritic at *n* is removed; й and が, for example, are separate letters."""
    while n and unicodedata.combining(apart[n]):
        n -= 1
    return unicodedata.name(apart[n], "").startswith(("LATIN", "GREEK")) or apart[n : n + 2] == "е\u0308"


def expand_query_word(word: str, languages: Iterable[str]) -> tuple[str, ...]:
    """Return the possible terms of a query's word in an index of *languages*."""
    if is_unspaced(word):
        found = grams(word)
        known = STOP["zh"] | STOP["ja"] | STOP["ko"]
        return tuple(dict.fromkeys(term for term in found if term not in known)) or tuple(found)
    return tuple(dict.fromkeys([stem(word, language) for language in languages] or [fold(word)]))
