"""Query the full-text tables of an index for the best units of selected projects."""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.memory.search.ranking import RankedCandidate
from agent.memory.search.time_expressions import ConversationReference, TimeSpan

TOP = 300  # of each list
# A query reads at most about so many rows: its rarest words first, the others only as far as this reaches. Common words
# cost most of the time and tell next to nothing; an index of fewer units never leaves one out.
_ROWS = 12_000
_CONTEXT_ROWS = 5_000  # of units: each stands in five contexts
_INFORMATIVE = 200  # characters: a longer message is not preferred to one of this length
_PAUSE = 4 * 3600.0  # seconds without a message that end a conversation
_AT_ONCE = 500  # ids in one statement


@dataclass(frozen=True, slots=True)
class IndexedTerms:
    """A query's words as a full-text query of one index."""

    expression: str  # FTS5 query; "" if the index has none of the words
    rare: str  # a query of fewer words, for contexts
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


def projects(database: sqlite3.Connection, names: Iterable[str]) -> list[int]:
    """Return the ids of the projects that the index has."""
    wanted = set(names)
    return [row[0] for row in database.execute("SELECT id, name FROM project") if row[1] in wanted]


def build_match_query(
    database: sqlite3.Connection, terms: Sequence[tuple[str, ...]], project_ids: Sequence[int]
) -> IndexedTerms:
    """Return *terms* as a query over the projects *project_ids*."""
    counted = sorted((sum(_frequency(database, term) for term in each), n) for n, each in enumerate(terms))
    # The greatest id instead of a count, which would read every row.
    total = int(database.execute("SELECT max(id) FROM unit").fetchone()[0] or 0)
    ideal = sum(_rarity(count, total) for count, _ in counted)
    weights = tuple((terms[n], _rarity(max(1, count), total, least=1) / (1 if count else 2)) for count, n in counted)
    everything = database.execute("SELECT count(*) FROM project").fetchone()[0] == len(project_ids)
    filtered = "" if everything else f" AND project : ({' OR '.join(f'p{each}' for each in project_ids)})"
    known = [(count, terms[n]) for count, n in counted if count]
    return IndexedTerms(
        _expression(known, _ROWS, filtered), _expression(known, _CONTEXT_ROWS, filtered), ideal, weights
    )


def _rarity(count: int, total: int, *, least: float = 0.0) -> float:
    """Return the weight of a word in *count* of *total* units as in FTS5's BM25, or with *least* 1 never near 0."""
    return max(1e-6, math.log(least + (max(total, count) - count + 0.5) / (count + 0.5)))


def _expression(counted_terms: Sequence[tuple[int, tuple[str, ...]]], rows: int, filtered: str) -> str:
    """Return a query for the rarest words, at least one."""
    costs = itertools.accumulate(count for count, _ in counted_terms)
    kept = [each for n, ((_, each), cost) in enumerate(zip(counted_terms, costs, strict=True)) if not n or cost <= rows]
    words = " OR ".join(dict.fromkeys(f'"{term}"' for each in kept for term in each))
    return f"(terms : ({words})){filtered}" if words else ""


def _frequency(database: sqlite3.Connection, term: str) -> int:
    row = database.execute("SELECT doc FROM unit_words WHERE term = ?", (term,)).fetchone()
    return int(row[0]) if row else 0


def has_any(database: sqlite3.Connection, terms: Iterable[str]) -> bool:
    """Return True if the index has one of *terms*."""
    return any(_frequency(database, term) for term in terms)


def best(
    database: sqlite3.Connection, table: str, expression: str, top: int = TOP, *, within: TimeSpan | None = None
) -> dict[int, float]:
    """Return the *top* rows of a text table with their BM25, higher is better; of units only, those *within* a time."""
    if not expression:
        return {}
    limits, times = _time_limits(within)
    # CROSS JOIN keeps the order: with `rowid IN (…)`, SQLite would ask FTS5 for every message of the time.
    joined = f" CROSS JOIN unit ON unit.id = {table}.rowid AND {limits}" if limits else ""
    found = database.execute(
        f"SELECT {table}.rowid, -rank FROM {table}{joined} WHERE {table} MATCH ? ORDER BY rank LIMIT ?",  # noqa: S608 - ours
        (*times, expression, top),
    )
    return {row[0]: max(0.0, row[1]) for row in found}


def find_messages_within(
    database: sqlite3.Connection, span: TimeSpan, project_ids: Sequence[int], *, top: int = TOP
) -> dict[int, float]:
    """Return the longest *top* messages of a span of time, each with its length from 0 to 1."""
    limits, times = _time_limits(span)
    found = database.execute(
        "SELECT id, min(length, ?) FROM unit"  # noqa: S608 - numbers
        f" WHERE at IS NOT NULL AND role != '' AND project IN ({_list(project_ids)}) AND {limits or 'true'}"
        " ORDER BY min(length, ?) DESC, id DESC LIMIT ?",
        (_INFORMATIVE, *times, _INFORMATIVE, top),
    )
    return {row[0]: row[1] / _INFORMATIVE for row in found}


def conversation_span(database: sqlite3.Connection, which: ConversationReference, now: datetime) -> TimeSpan | None:
    """Return when a conversation took place, None if there is none; conversations are hours without a message apart."""
    is_first = which is ConversationReference.FIRST
    rows = database.execute(
        "SELECT at FROM unit WHERE at IS NOT NULL AND at <= ? AND role != ''"  # noqa: S608 - ours
        f" ORDER BY at {'ASC' if is_first else 'DESC'}",
        (now.timestamp(),),
    )
    # Backwards from now, conversation 0 is the present one, which may have no message yet.
    number, wanted = {
        ConversationReference.FIRST: (-1, 0),
        ConversationReference.LAST: (0, 1),
        ConversationReference.SECOND_TO_LAST: (0, 2),
    }[which]
    previous = float("-inf") if is_first else now.timestamp()
    times: list[float] = []
    for (at,) in rows:
        number += abs(at - previous) > _PAUSE
        if number > wanted:
            break
        if number == wanted:
            times.append(at)
        previous = at
    if not times:
        return None
    return TimeSpan(datetime.fromtimestamp(min(times), UTC), datetime.fromtimestamp(max(times) + 1, UTC))


def _time_limits(span: TimeSpan | None) -> tuple[str, list[float]]:
    """Return a condition on `unit.at` and its parameters, "" without limits."""
    limits = [(sign, at.timestamp()) for sign, at in ((">=", span.start), ("<", span.end)) if at] if span else []
    return " AND ".join(f"at {sign} ?" for sign, _ in limits), [at for _, at in limits]


def candidates(
    database: sqlite3.Connection,
    ids: Iterable[int],
    project_ids: Sequence[int],
    *,
    within: TimeSpan | None = None,
) -> list[RankedCandidate]:
    """Return the units *ids* of the projects *project_ids*, *within* a time, without their texts."""
    limits, times = _time_limits(within)
    found = []
    for part in _parts(sorted(ids)):
        found += database.execute(
            "SELECT id, at, traits, who, role, block, source, line FROM unit"  # noqa: S608 - numbers
            f" WHERE id IN ({_list(part)}) AND project IN ({_list(project_ids)}){f' AND {limits}' if limits else ''}",
            times,
        ).fetchall()
    return [
        RankedCandidate(id_, at, traits, who, role, block, message=(source, line))
        for id_, at, traits, who, role, block, source, line in found
    ]


def _parts(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))


def _list(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "NULL"
