"""Read an index for a query: its words as terms of the index, where these are, and units by time."""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.memory.search.search_unit import BLOCK, SOURCE_SLOTS, RankedCandidate
from agent.memory.search.time_spans import ConversationReference, TimeSpan

TOP = 300  # of each list
# A query reads at most about so many rows: its rarest words first, the others only as far as this reaches. Common words
# cost most of the time and tell next to nothing; an index of fewer units never leaves one out.
_ROWS = 12_000
_CONTEXT_ROWS = 5_000  # of units: each stands in five contexts
_INFORMATIVE = 200  # characters: a longer message is not preferred to one of this length
_PAUSE = 4 * 3600.0  # seconds without a message that end a conversation
AT_ONCE = 500  # ids in one statement


@dataclass(frozen=True, slots=True)
class IndexedTerms:
    """A query's words as terms of one index."""

    terms: tuple[str, ...]  # of the rarest words; empty if the index has none of the words
    rare: frozenset[str]  # those that count in contexts
    ideal: float  # maximum score of a unit with every word; makes indexes comparable
    weights: tuple[tuple[tuple[str, ...], float], ...]  # the terms of each word, and how rare it is


def languages(database: sqlite3.Connection) -> list[str]:
    """Return the languages of the index."""
    return _distinct(database, "language")


def speakers(database: sqlite3.Connection) -> list[str]:
    """Return the distinct speakers in the index."""
    return _distinct(database, "who")


def _distinct(database: sqlite3.Connection, column: str) -> list[str]:
    """Return the distinct values of an indexed column; the cost depends on the number of values, not of rows."""
    found = database.execute(
        f"WITH RECURSIVE one (value) AS (SELECT min({column}) FROM unit UNION ALL"  # noqa: S608 - our own names
        f" SELECT (SELECT min({column}) FROM unit WHERE {column} > one.value) FROM one WHERE one.value IS NOT NULL)"
        " SELECT value FROM one WHERE value != ''"
    )
    return [row[0] for row in found]


def sources(database: sqlite3.Connection, projects: Iterable[str]) -> list[int]:
    """Return the ids of the sources of the projects named *projects*."""
    wanted = set(projects)
    found = database.execute("SELECT s.id, p.name FROM source s JOIN project p ON p.id = s.project")
    return [id_ for id_, name in found if name in wanted]


def build_term_query(database: sqlite3.Connection, terms: Sequence[tuple[str, ...]], total: int) -> IndexedTerms:
    """Return *terms*, the forms of each word, as a query of an index of *total* units."""
    counted = sorted((sum(_frequency(database, term) for term in each), n) for n, each in enumerate(terms))
    ideal = sum(rarity(count, total) for count, _ in counted)
    weights = tuple((terms[n], rarity(max(1, count), total, least=1) / (1 if count else 2)) for count, n in counted)
    known = [(count, terms[n]) for count, n in counted if count]
    return IndexedTerms(_rarest(known, _ROWS), frozenset(_rarest(known, _CONTEXT_ROWS)), ideal, weights)


def rarity(count: int, total: int, *, least: float = 0.0) -> float:
    """Return the weight of a word in *count* of *total* units as in FTS5's BM25, or with *least* 1 never near 0."""
    return max(1e-6, math.log(least + (max(total, count) - count + 0.5) / (count + 0.5)))


def _rarest(counted_terms: Sequence[tuple[int, tuple[str, ...]]], rows: int) -> tuple[str, ...]:
    """Return the terms of the rarest words, at least of one."""
    costs = itertools.accumulate(count for count, _ in counted_terms)
    kept = [each for n, ((_, each), cost) in enumerate(zip(counted_terms, costs, strict=True)) if not n or cost <= rows]
    return tuple(dict.fromkeys(term for each in kept for term in each))


def _frequency(database: sqlite3.Connection, term: str) -> int:
    row = database.execute("SELECT doc FROM unit_words WHERE term = ?", (term,)).fetchone()
    return int(row[0]) if row else 0


def has_any(database: sqlite3.Connection, terms: Iterable[str]) -> bool:
    """Return True if the index has one of *terms*."""
    return any(_frequency(database, term) for term in terms)


def ids_within(database: sqlite3.Connection, ids: Iterable[int], span: TimeSpan) -> set[int]:
    """Return those of the units *ids* that are from a span of time."""
    limits, times = _time_limits(span)
    found = database.execute(
        f"SELECT id FROM unit WHERE id IN ({_list(ids)}) AND {limits or 'true'}",  # noqa: S608 - numbers
        times,
    )
    return {row[0] for row in found}


def find_messages_within(
    database: sqlite3.Connection, span: TimeSpan, source_ids: Sequence[int], *, top: int = TOP
) -> dict[int, float]:
    """Return the longest *top* messages of a span of time, each with its length from 0 to 1."""
    limits, times = _time_limits(span)
    found = database.execute(
        "SELECT id, min(length, ?) FROM unit"  # noqa: S608 - numbers
        f" WHERE at IS NOT NULL AND role != '' AND id / {SOURCE_SLOTS} IN ({_list(source_ids)}) AND {limits or 'true'}"
        " ORDER BY min(length, ?) DESC, id DESC LIMIT ?",
        (_INFORMATIVE, *times, _INFORMATIVE, top),
    )
    return {row[0]: row[1] / _INFORMATIVE for row in found}


def has_messages_within(database: sqlite3.Connection, span: TimeSpan, source_ids: Sequence[int]) -> bool:
    """Return True if anything in the sources is from a span of time."""
    limits, times = _time_limits(span)
    found = database.execute(
        f"SELECT 1 FROM unit WHERE at IS NOT NULL AND id / {SOURCE_SLOTS} IN ({_list(source_ids)})"  # noqa: S608 - numbers
        f" AND {limits or 'true'} LIMIT 1",
        times,
    )
    return found.fetchone() is not None


def find_nearest(database: sqlite3.Connection, span: TimeSpan, source_ids: Sequence[int]) -> list[float]:
    """Return when the last unit before a span of time and the first after it are from, if they exist."""
    own = f"SELECT at FROM unit WHERE id / {SOURCE_SLOTS} IN ({_list(source_ids)})"  # noqa: S608 - numbers
    nearest = []
    for limit, order in ((span.start, "< ? ORDER BY at DESC"), (span.end, ">= ? ORDER BY at ASC")):
        if limit is not None:
            found = database.execute(f"{own} AND at {order} LIMIT 1", (limit.timestamp(),)).fetchone()
            nearest += [found[0]] if found else []
    return nearest


def count_conversations(database: sqlite3.Connection) -> int:
    """Return the number of conversations in the index."""
    rows = database.execute("SELECT at FROM unit WHERE at IS NOT NULL AND role != '' ORDER BY at")
    times = [at for (at,) in rows]
    return len(times[:1]) + len([at for before, at in itertools.pairwise(times) if at - before > _PAUSE])


def conversation_span(database: sqlite3.Connection, which: ConversationReference, now: datetime) -> TimeSpan | None:
    """Return when conversations took place, None if none did; they are hours without a message apart."""
    first, last = (_find_conversation(database, number, now) for number in (which.first, which.last))
    if first is None or last is None:
        return None
    start, end = min(first[0], last[0]), max(first[1], last[1])
    return TimeSpan(datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end + 1, UTC))


def _find_conversation(database: sqlite3.Connection, number: int, now: datetime) -> tuple[float, float] | None:
    """Return the first and last message of the conversation *number*: from 1 on, or backwards from 0, the present."""
    rows = database.execute(
        "SELECT at FROM unit WHERE at IS NOT NULL AND at <= ? AND role != ''"  # noqa: S608 - ours
        f" ORDER BY at {'ASC' if number > 0 else 'DESC'}",
        (now.timestamp(),),
    )
    # The present conversation may have no message yet.
    place, previous = (0, float("-inf")) if number > 0 else (0, now.timestamp())
    times: list[float] = []
    for (at,) in rows:
        place += abs(at - previous) > _PAUSE
        if place > abs(number):
            break
        if place == abs(number):
            times.append(at)
        previous = at
    if not times:
        return (now.timestamp(), now.timestamp()) if not number else None
    return min(times), max(times)


def _time_limits(span: TimeSpan | None) -> tuple[str, list[float]]:
    """Return a condition on `unit.at` and its parameters, "" without limits."""
    limits = [(sign, at.timestamp()) for sign, at in ((">=", span.start), ("<", span.end)) if at] if span else []
    return " AND ".join(f"at {sign} ?" for sign, _ in limits), [at for _, at in limits]


def candidates(
    database: sqlite3.Connection, ids: Iterable[int], *, within: TimeSpan | None = None
) -> list[RankedCandidate]:
    """Return the units *ids*, only those *within* a time, without their texts."""
    limits, times = _time_limits(within)
    found = database.execute(
        f"SELECT id, at, traits, who, role, line FROM unit WHERE id IN ({_list(sorted(ids))}) AND {limits or 'true'}",  # noqa: S608 - numbers
        times,
    )
    return [
        RankedCandidate(id_, at, traits, who, role, id_ // BLOCK, message=(id_ // SOURCE_SLOTS, line))
        for id_, at, traits, who, role, line in found
    ]


def _list(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids)) or "NULL"
