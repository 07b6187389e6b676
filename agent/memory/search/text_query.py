"""Query the full-text tables of an index for the best units of selected projects."""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.memory.search.ranking import RankedCandidate

TOP = 300  # of each list
# A query reads at most about so many rows: its rarest words first, the others only as far as this reaches. Common words
# cost most of the time and tell next to nothing; an index of fewer units never leaves one out.
_ROWS = 12_000
_CONTEXT_ROWS = 5_000  # of units: each stands in five contexts
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


def best(database: sqlite3.Connection, table: str, expression: str, top: int = TOP) -> dict[int, float]:
    """Return the *top* rows of a text table with their BM25, higher is better."""
    if not expression:
        return {}
    found = database.execute(
        f"SELECT rowid, -rank FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT ?",  # noqa: S608 - our own names
        (expression, top),
    )
    return {row[0]: max(0.0, row[1]) for row in found}


def candidates(database: sqlite3.Connection, ids: Iterable[int], project_ids: Sequence[int]) -> list[RankedCandidate]:
    """Return the units *ids* of the projects *project_ids*, without their texts."""
    found = []
    for part in _parts(sorted(ids)):
        found += database.execute(
            "SELECT id, at, traits, who, role, block, source, line FROM unit"  # noqa: S608 - numbers
            f" WHERE id IN ({_list(part)}) AND project IN ({_list(project_ids)})"
        ).fetchall()
    return [
        RankedCandidate(id_, at, traits, who, role, block, message=(source, line))
        for id_, at, traits, who, role, block, source, line in found
    ]


def _parts(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))


def _list(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "NULL"
