"""Update the units of a source in an index; only units that differ are written.

The caller opens the transaction. The cost depends on the number of new units: a message at the end of a conversation
updates itself, the contexts of the two messages before it, and one block of twenty.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from agent.memory.search.query import traits
from agent.memory.search.search_unit import SearchUnit, UnitSource
from agent.memory.search.tokenizer import detect, index_terms, words

REACH = 2  # neighbours on each side in a unit's context
BLOCK = 20  # units
_NEIGHBOUR = 300  # characters of a neighbour's terms in a context


@dataclass(slots=True)
class UnitChanges:
    """Ids of deleted and added units."""

    gone: list[int] = field(default_factory=list)
    came: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of added and deleted units."""
        return len(self.gone) + len(self.came)


@dataclass(frozen=True, slots=True)
class _UnitRow:
    id: int
    position: int
    block: int
    ordinal: int
    group: str
    language: str
    digest: bytes
    terms: str


class UnitWriter:
    """Writes the units of one source; *is_flat* leaves contexts and blocks out."""

    def __init__(self, database: sqlite3.Connection, source: UnitSource, *, is_flat: bool = False) -> None:
        self._db = database
        self._is_flat = is_flat
        self._project = _project(database, source.project)
        self._token = f"p{self._project}"
        self._source = self._find_or_insert(source)
        self.changes = UnitChanges()

    def _find_or_insert(self, source: UnitSource) -> int:
        key = (self._project, source.name)
        self._db.execute("INSERT OR IGNORE INTO source (project, name) VALUES (?, ?)", key)
        return int(self._db.execute("SELECT id FROM source WHERE project = ? AND name = ?", key).fetchone()[0])

    def put(self, units: Sequence[SearchUnit]) -> None:
        """Replace the source's units; units that did not change are not written."""
        old: list[tuple[bytes, str]] = self._db.execute(
            'SELECT digest, "group" FROM unit WHERE source = ? ORDER BY position', (self._source,)
        ).fetchall()
        differing = [n for n, (was, unit) in enumerate(zip(old, units, strict=False)) if was[0] != unit.digest]
        if len(old) == len(units) and all(old[n][1] == units[n].group for n in differing):
            for n in differing:
                self._splice(n, n + 1, [units[n]])
            return
        same = differing[0] if differing else min(len(old), len(units))
        self._splice(same, len(old), units[same:])

    def append(self, units: Sequence[SearchUnit]) -> None:
        """Add units after the last."""
        last = self._db.execute("SELECT max(position) FROM unit WHERE source = ?", (self._source,)).fetchone()[0]
        end = 0 if last is None else last + 1
        self._splice(end, end, units)

    def mark(self, mark: str) -> None:
        """Store the mark up to which the source was read."""
        self._db.execute("UPDATE source SET mark = ? WHERE id = ?", (mark, self._source))

    def remove(self) -> None:
        """Delete the source and its units."""
        self.put(())
        self._db.execute("DELETE FROM source WHERE id = ?", (self._source,))

    # -- private -------------------------------------------------------------------------------------

    def _splice(self, start: int, stop: int, units: Sequence[SearchUnit]) -> None:
        """Replace the units at [start, stop); as many as before, or *stop* is the end."""
        if start == stop and not units:
            return
        before = self._rows(start - 2 * REACH, stop + 2 * REACH)
        touched = [row for row in before if start <= row.position < stop]
        self._drop_contexts(before, start, stop)
        previous = next((row for row in before if row.position == start - 1), None)
        blocks = {row.block for row in touched} | ({previous.block} if previous else set())
        if not self._is_flat:
            for block in blocks:
                self._drop_block(block)
        for row in touched:
            self._text("unit_text", row.id, row.terms, is_delete=True)
        vectors = self._forget([row.id for row in touched])
        self._insert(start, units, previous, touched if len(touched) == len(units) else ())
        self._drop_vectors(vectors)
        if self._is_flat:
            return
        new = {
            int(row[0])
            for row in self._db.execute(
                "SELECT DISTINCT block FROM unit WHERE source = ? AND position >= ? AND position < ?",
                (self._source, start, start + len(units)),
            )
        }
        for block in blocks | new:
            self._add_block(block)
        after = self._rows(start - 2 * REACH, start + len(units) + 2 * REACH)
        for row in _affected(after, start, start + len(units)):
            self._text("context_text", row.id, _context(after, row))

    def _rows(self, start: int, stop: int) -> list[_UnitRow]:
        found = self._db.execute(
            'SELECT id, position, block, ordinal, "group", language, digest, about, text FROM unit'
            " WHERE source = ? AND position >= ? AND position < ? ORDER BY position",
            (self._source, start, stop),
        )
        return [
            _UnitRow(id_, position, block, ordinal, group, language, digest, _unit_terms(about, text, language))
            for id_, position, block, ordinal, group, language, digest, about, text in found
        ]

    def _drop_contexts(self, rows: Sequence[_UnitRow], start: int, stop: int) -> None:
        if not self._is_flat:
            for row in _affected(rows, start, stop):
                self._text("context_text", row.id, _context(rows, row), is_delete=True)

    def _drop_block(self, block: int) -> None:
        self._text("block_text", block, self._block_terms(block), is_delete=True)

    def _add_block(self, block: int) -> None:
        if terms := self._block_terms(block):
            self._text("block_text", block, terms)
        else:
            self._db.execute("DELETE FROM block WHERE id = ?", (block,))

    def _block_terms(self, block: int) -> str:
        found = self._db.execute("SELECT about, text, language FROM unit WHERE block = ? ORDER BY position", (block,))
        return " ".join(_unit_terms(*row) for row in found)

    def _text(self, table: str, rowid: int, terms: str, *, is_delete: bool = False) -> None:
        if is_delete:
            statement = f"INSERT INTO {table} ({table}, rowid, project, terms) VALUES ('delete', ?, ?, ?)"  # noqa: S608 - our own names
        else:
            statement = f"INSERT INTO {table} (rowid, project, terms) VALUES (?, ?, ?)"  # noqa: S608 - our own names
        self._db.execute(statement, (rowid, self._token, terms))

    def _forget(self, ids: Sequence[int]) -> set[int]:
        """Delete units; return the vectors they had."""
        vectors: set[int] = set()
        for each in ids:
            row = self._db.execute("SELECT vector FROM unit WHERE id = ?", (each,)).fetchone()
            if row and row[0] is not None:
                vectors.add(row[0])
            self._db.execute("DELETE FROM unit WHERE id = ?", (each,))
        self.changes.gone += ids
        return vectors

    def _drop_vectors(self, vectors: Iterable[int]) -> None:
        """Delete the vectors that no unit uses any more, so that nothing remains of erased text."""
        for each in vectors:
            self._db.execute(
                "DELETE FROM vector WHERE id = ? AND NOT EXISTS (SELECT 1 FROM unit WHERE vector = ?)", (each, each)
            )

    def _insert(
        self, start: int, units: Sequence[SearchUnit], previous: _UnitRow | None, places: Sequence[_UnitRow]
    ) -> None:
        """Insert units after *previous*; a unit that replaces one of the same group keeps its block."""
        group, ordinal, block, language = (
            (previous.group, previous.ordinal, previous.block, previous.language) if previous else (None, -1, 0, "")
        )
        for n, unit in enumerate(units):
            if unit.group != group:
                group, ordinal, block = unit.group, -1, 0
            ordinal += 1
            if places and places[n].group == unit.group:
                ordinal, block = places[n].ordinal, places[n].block
            elif not block or ordinal % BLOCK == 0:
                block = self._new_block()
            found = words(unit.text)
            language = detect(found, before=language)
            terms = _unit_terms(unit.about, unit.text, language)
            vector = self._db.execute("SELECT id FROM vector WHERE content = ?", (unit.content,)).fetchone()
            cursor = self._db.execute(
                "INSERT INTO unit (source, project, position, block, ordinal, at, traits, who, role, origin, language, "
                'line, "end", "group", content, digest, vector, length, about, text)'
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    self._source, self._project, start + n, block, ordinal, unit.at.timestamp() if unit.at else None,
                    int(traits(unit.text, found)), unit.who, unit.role, unit.origin, language,
                    unit.line, unit.end or unit.line, unit.group, unit.content, unit.digest,
                    vector[0] if vector else None, len(unit.text), unit.about, unit.text,
                ),
            )  # fmt: skip
            made = int(cursor.lastrowid or 0)
            self._text("unit_text", made, terms)
            self.changes.came.append(made)

    def _new_block(self) -> int:
        cursor = self._db.execute("INSERT INTO block (source, project) VALUES (?, ?)", (self._source, self._project))
        return int(cursor.lastrowid or 0)


@lru_cache(maxsize=256)  # a write derives the terms of the last block and its neighbours several times
def _unit_terms(about: str, text: str, language: str) -> str:
    """Return the terms of a unit, without its speaker: a name would match every line of that person."""
    return index_terms(f"{about} {text}", language)


def _project(database: sqlite3.Connection, name: str) -> int:
    database.execute("INSERT OR IGNORE INTO project (name) VALUES (?)", (name,))
    return int(database.execute("SELECT id FROM project WHERE name = ?", (name,)).fetchone()[0])


def _affected(rows: Sequence[_UnitRow], start: int, stop: int) -> Iterable[_UnitRow]:
    return (row for row in rows if start - REACH <= row.position < stop + REACH)


def _context(rows: Sequence[_UnitRow], row: _UnitRow) -> str:
    """Return the terms of a unit among its neighbours of the same group."""
    return " ".join(
        other.terms if other.id == row.id else _clipped(other.terms)
        for other in rows
        if abs(other.position - row.position) <= REACH and other.group == row.group
    )


def _clipped(terms: str) -> str:
    return terms if len(terms) <= _NEIGHBOUR else terms[:_NEIGHBOUR].rpartition(" ")[0]
