"""What the text index says to a question: the best units by three tables, out of the projects asked for."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.memory.search.cues import Trait
from agent.memory.search.ranking import Candidate

TOP = 300  # of each list
# Words that stand in more units than this are left out where rarer ones are there: they cost time and tell nothing.
_COMMON = 20_000
_AT_ONCE = 500  # ids in one statement


@dataclass(frozen=True, slots=True)
class Asked:
    """A question's words in one index."""

    expression: str  # FTS5's
    ideal: float  # what a unit that holds every word could score at most; compares indexes


def languages(database: sqlite3.Connection) -> list[str]:
    """Return the languages of the index."""
    return _distinct(database, "language")


def speakers(database: sqlite3.Connection) -> list[str]:
    """Return everybody who speaks in the index, each once."""
    return _distinct(database, "who")


def _distinct(database: sqlite3.Connection, column: str) -> list[str]:
    """Step through an index from one value to the next: costs the values, not the units."""
    found = database.execute(
        f"WITH RECURSIVE one (value) AS (SELECT min({column}) FROM unit UNION ALL"  # noqa: S608 - our own names
        f" SELECT (SELECT min({column}) FROM unit WHERE {column} > one.value) FROM one WHERE one.value IS NOT NULL)"
        " SELECT value FROM one WHERE value != ''"
    )
    return [row[0] for row in found]


def projects(database: sqlite3.Connection, names: Iterable[str]) -> list[int]:
    """Return the numbers of those projects that are here."""
    wanted = set(names)
    return [row[0] for row in database.execute("SELECT id, name FROM project") if row[1] in wanted]


def ask(database: sqlite3.Connection, terms: Sequence[tuple[str, ...]], own: Sequence[int]) -> Asked:
    """Return *terms* as a query over the projects *own*."""
    # The greatest id instead of a count, which would read all of them.
    total = int(database.execute("SELECT max(id) FROM unit").fetchone()[0] or 0)
    counted = sorted((sum(_frequency(database, term) for term in each), n) for n, each in enumerate(terms))
    kept: list[int] = []
    cost = 0
    for count, n in counted:
        if kept and cost + count > _COMMON:
            break
        if count:
            cost += count
            kept.append(n)
    ideal = sum(max(1e-6, math.log((max(total, count) - count + 0.5) / (count + 0.5))) for count, _ in counted)
    words = " OR ".join(dict.fromkeys(f'"{term}"' for n in kept for term in terms[n]))
    if not words:
        return Asked("", ideal)
    everything = database.execute("SELECT count(*) FROM project").fetchone()[0] == len(own)
    filtered = "" if everything else f" AND project : ({' OR '.join(f'p{each}' for each in own)})"
    return Asked(f"(terms : ({words})){filtered}", ideal)


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


def candidates(database: sqlite3.Connection, ids: Iterable[int], own: Sequence[int]) -> list[Candidate]:
    """Return the units *ids* of the projects *own*, without their texts."""
    found = []
    for part in _parts(sorted(ids)):
        found += database.execute(
            "SELECT id, at, traits, who, role, block FROM unit"  # noqa: S608 - numbers
            f" WHERE id IN ({_list(part)}) AND project IN ({_list(own)})"
        ).fetchall()
    return [
        Candidate(id_, None if at is None else datetime.fromtimestamp(at, UTC), Trait(traits), who, role, block)
        for id_, at, traits, who, role, block in found
    ]


def _parts(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))


def _list(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "NULL"
