"""Read the words of times in a query as tokens of classes, by the table `time_words.tsv`, which holds every language.

A row of the table is a class with a value, and its words. ``~`` stands for the German endings of adjectives, ``±`` for
the Spanish ones. The grammar (`time_grammar`) knows classes and no words, so it is the same for all languages.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from agent.memory.search.language_data import MONTHS, MONTHS_IN_CAPITALS

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
