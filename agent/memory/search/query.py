"""A question as an index reads it: terms, names, times, and what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from agent.memory.search.language_data import STOP
from agent.memory.search.query_cues import QueryCue, cues
from agent.memory.search.query_dates import TimeRange, find_time_ranges
from agent.memory.search.tokenizer import detect, expand_query_word, is_unspaced, words


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What somebody asks; made once, read by every index."""

    text: str
    words: tuple[str, ...]  # what carries it, in order, each once
    said: frozenset[str]  # every word
    language: str
    times: tuple[TimeRange, ...]
    cue: QueryCue

    def terms(self, languages: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """Return for each word what it may stand as in an index of *languages*."""
        spoken = tuple(dict.fromkeys([*([self.language] if self.language else []), *languages]))
        return tuple(dict.fromkeys(expand_query_word(word, spoken) for word in self.words))

    def names(self, speakers: Iterable[str]) -> frozenset[str]:
        """Return the speakers that the question names, by their whole or their first name."""
        text = " ".join(words(self.text))
        found = set()
        for speaker in speakers:
            parts = words(speaker)
            if parts and (" ".join(parts) in text if is_unspaced(parts[0]) else self._is_said(parts, text)):
                found.add(speaker)
        return frozenset(found)

    def _is_said(self, parts: Sequence[str], text: str) -> bool:
        return parts[0] in self.said and (parts[0] not in STOP["en"] or f" {' '.join(parts)} " in f" {text} ")


def parse_query(text: str, *, now: datetime | None = None) -> SearchQuery:
    """Return *text* as a question; *now* is what "last week" counts from."""
    found = words(text)
    language = detect(found)
    stop = STOP.get(language, frozenset())
    carrying = [
        word for word in found if word not in stop and not (len(word) == 1 and word.isascii() and word.isalpha())
    ]
    return SearchQuery(
        text=text,
        words=tuple(dict.fromkeys(carrying or found)),
        said=frozenset(found),
        language=language,
        times=find_time_ranges(text, now),
        cue=cues(text),
    )
