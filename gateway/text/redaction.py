"""Secrets in text: those of the settings, and what has the shape of one. Logs and answers share the list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from urllib.parse import quote, quote_plus, unquote, urlsplit

REDACTED = "[redacted]"
_SHORTEST_SECRET = 6  # shorter ones would redact ordinary words
_SHORTEST_IN_ANSWERS = (8, 16)  # with a digit, and without: a local server's key is often a word, `not-needed`

# What platforms and providers issue, wherever it stands.
_TOKENS = (
    r"\b[0-9]{5,}:[A-Za-z0-9_-]{30,}",  # Telegram's
    r"\bxox[a-z]-[A-Za-z0-9-]{8,}",
    r"\bxapp-[A-Za-z0-9-]{8,}",
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\b(?:ghp|gho|ghs|github_pat)_[A-Za-z0-9_]{20,}",
    r"\bAIza[A-Za-z0-9_-]{30,}",
    r"\b[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}",  # Discord's token
)
# Secret because of where they stand: in addresses and headers, which an answer may well explain.
_PLACES = (
    r"(?<=/bot)[0-9]{3,}(?::|%3A)[A-Za-z0-9_-]+",  # Telegram's token inside an address
    r"(?<=/webhooks/)[0-9]{5,}/[A-Za-z0-9_.-]{16,}",  # Discord's interaction tokens inside addresses
    r"(?<=/interactions/)[0-9]{5,}/[A-Za-z0-9_.-]{16,}",
    r"(?i:(?<=\bbearer )|(?<=\bbasic )|(?<=\bbot ))[A-Za-z0-9._~+/=-]{16,}",
    r"(?i:(?<=authorization: )|(?<=authorization\": \")|(?<=authorization': '))[^\s\"',}]+(?: [^\s\"',}]+)?",
    r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",  # user and password of an address
    r"(?i:(?<=[?&]token=)|(?<=[?&]key=)|(?<=[?&]code=)|(?<=[?&]api_key=))[^&\s\"']+",
)
_BY_TOKEN = re.compile("|".join(_TOKENS))
_LONG_ENOUGH = re.compile(r"\S{13,}")  # a token has at least so many characters, none of them a blank
_SHORTEST_PLAIN = 34  # of a token or place of nothing but letters and digits
_BY_SHAPE = re.compile("|".join((_PLACES[0], *_TOKENS, *_PLACES[1:])))

# A word at the end of a growing text that may become a token: it begins like one, or is as long as a part of one.
_MARKS = ("xox", "xapp-", "sk-", "ghp_", "gho_", "ghs_", "github_pat_", "AIza")
_LAST_WORD = re.compile(r"(?<![A-Za-z0-9_.:%-])[A-Za-z0-9_.:%-]+\Z")
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[0-9]{5,}:?")
_LONG_WORD, _LONGEST_WORD = 16, 256  # characters
_MOST_HELD = 128  # characters at the end of a growing text, whatever they are
_LAST_RUN = re.compile(rf"[!-~]{{1,{_MOST_HELD}}}\Z")


class SecretRedactor:
    """Replaces known secrets, and text that has the shape of one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = [each for each in chain.from_iterable(map(_with_password, secrets)) if len(each) >= _SHORTEST_SECRET]
        self._known = _any_of(form for secret in known for form in _forms(secret))
        self._told = sorted({form for secret in known if _is_telling(secret) for form in _forms(secret)}, key=len)
        self._in_answers = _any_of(self._told)
        # A secret may have blanks, or letters of any script: then nothing tells where one could begin.
        self._is_of_runs = all(_LAST_RUN.match(form[:_MOST_HELD]) for form in self._told)

    def redact_log(self, text: str) -> str:
        """Return *text* without any secret, as the operator's log has it."""
        text = _sub(self._known, text)
        # Most fields are an id or a word.
        return text if len(text) < _SHORTEST_PLAIN and text.isalnum() else _BY_SHAPE.sub(REDACTED, text)

    def redact(self, text: str) -> str:
        """Return *text* without any secret, as people and the model read it.

        Patterns that only logs redact, and configured secrets that could be ordinary words, are kept.
        """
        return _redact_tokens(self._redact_told(text))

    def _redact_told(self, text: str) -> str:
        # A search for each is quicker than the pattern, which tries all of them at every character.
        return _sub(self._in_answers, text) if any(form in text for form in self._told) else text

    def redact_growing(self, text: str) -> str:
        """Return *text*, which is still growing, without any secret, nor the beginning of one at its end.

        The last word is held back until it ends, or its last 128 characters, secret or not. Otherwise a person who
        makes the bot write guesses would see which letters are right. Only beyond them a secret's beginning counts.
        """
        text = _redact_tokens(self._redact_told(text))
        last = _LAST_WORD.search(text[-_LONGEST_WORD:])
        held = len(last[0]) if last and _may_become_token(last[0]) else 0
        if self._told:
            held = max(held, self._count_held(text), self._overlap(text))
        return text[: len(text) - held]

    def _count_held(self, text: str) -> int:
        """Return the number of characters at the end of *text* that wait for the next ones."""
        if not self._is_of_runs:
            return min(len(text), _MOST_HELD)
        last = _LAST_RUN.search(text[-_MOST_HELD:])
        return len(last[0]) if last else 0

    def _overlap(self, text: str) -> int:
        """Return the length of the end of *text* that begins a secret, if it is longer than what is held anyway."""
        longest = max((_overlap(text, form) for form in self._told if len(form) > _MOST_HELD), default=0)
        return longest if longest >= _MOST_HELD else 0


def _with_password(secret: str) -> Iterator[str]:
    """Yield a secret, and where it is an address the password in it, written and meant: a library may show it alone."""
    yield secret
    if "://" in secret:
        with suppress(ValueError):
            password = urlsplit(secret).password or ""
            yield from {password, unquote(password)}


def _forms(secret: str) -> tuple[str, ...]:
    return (secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1])


def _any_of(forms: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(set(forms), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _sub(pattern: re.Pattern[str] | None, text: str) -> str:
    return text if pattern is None else pattern.sub(REDACTED, text)


def _redact_tokens(text: str) -> str:
    """Return *text* without tokens; only words that are long enough for one are looked at closely."""
    has_token = any(map(_BY_TOKEN.search, _LONG_ENOUGH.findall(text)))
    return _BY_TOKEN.sub(REDACTED, text) if has_token else text


def has_token(text: str) -> bool:
    """Return True if *text* has the shape of a secret somewhere, which people then do not see in a message."""
    return _redact_tokens(text) != text


def _is_telling(secret: str) -> bool:
    with_digit, without = _SHORTEST_IN_ANSWERS
    return len(secret) >= (with_digit if any(map(str.isdigit, secret)) else without)


def _overlap(text: str, secret: str) -> int:
    """Return the length of the longest end of *text* that is a beginning of *secret*."""
    longest = min(len(text), len(secret) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(secret[:n])), 0)


def _may_become_token(word: str) -> bool:
    if len(word) >= _LONG_WORD or _NUMBER.search(word):
        return True
    return any(mark.startswith(word) or mark in word for mark in _MARKS)
