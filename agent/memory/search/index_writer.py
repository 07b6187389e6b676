"""Update the units of a source in an index; only units that differ are written.

The caller opens the transaction. The cost depends on the number of new units: a message at the end of a conversation
updates itself and the sizes of one block of twenty.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from agent.memory.search.index_schema import BLOCK, REACH, SOURCE_SLOTS, pack_text, unpack_text
from agent.memory.search.query import traits
from agent.memory.search.search_unit import SearchUnit, UnitChanges, UnitSource
from agent.memory.search.tokenizer import detect, index_terms, words

_NEIGHBOUR = 300  # characters of a neighbour's terms in a context
_MOST_TERMS = 0xFFFE  # that a unit's size counts


@dataclass(frozen=True, slots=True)
class _UnitRow:
    id: int
    digest: bytes
    group: str
    language: str


class UnitWriter:
    """Writes the units of one source."""

    def __init__(self, database: sqlite3.Connection, source: UnitSource) -> None:
        self._db = database
        self._source = self._find_or_insert(source)
        self._start = self._source * SOURCE_SLOTS
        self.changes = UnitChanges()
        self._vectors: set[int] = set()  # of deleted units

    def _find_or_insert(self, source: UnitSource) -> int:
        key = (_project(self._db, source.project), source.name)
        self._db.execute("INSERT OR IGNORE INTO source (project, name) VALUES (?, ?)", key)
        return int(self._db.execute("SELECT id FROM source WHERE project = ? AND name = ?", key).fetchone()[0])

    def put(self, units: Sequence[SearchUnit]) -> None:
        """Replace the source's units; units that did not change are not written."""
        old = self._rows("ASC")
        differing = [n for n, (was, unit) in enumerate(zip(old, units, strict=False)) if was.digest != unit.digest]
        if len(old) == len(units) and all(old[n].group == units[n].group for n in differing):
            languages = [row.language for row in old]
            for n in differing:
                self._delete(old[n].id)
                languages[n] = self._insert(old[n].id, units[n], languages[n - 1] if n else "")
        else:
            same = differing[0] if differing else min(len(old), len(units))
            for row in old[same:]:
                self._delete(row.id)
            self._add(old[same - 1] if same else None, units[same:])
        self._finish()

    def append(self, units: Sequence[SearchUnit]) -> None:
        """Add units after the last."""
        self._add(next(iter(self._rows("DESC LIMIT 1")), None), units)
        self._finish()

    def mark(self, mark: str) -> None:
        """Store the mark up to which the source was read."""
        self._db.execute("UPDATE source SET mark = ? WHERE id = ?", (mark, self._source))

    def remove(self) -> None:
        """Delete the source and its units."""
        self.put(())
        self._db.execute("DELETE FROM source WHERE id = ?", (self._source,))

    # -- private -------------------------------------------------------------------------------------

    def _rows(self, order: str) -> list[_UnitRow]:
        found = self._db.execute(
            'SELECT id, digest, "group", language FROM unit'  # noqa: S608 - ours
            f" WHERE id >= ? AND id < ? ORDER BY id {order}",
            (self._start, self._start + SOURCE_SLOTS),
        )
        return [_UnitRow(*row) for row in found]

    def _delete(self, unit: int) -> None:
        about, text, language, vector = self._db.execute(
            "DELETE FROM unit WHERE id = ? RETURNING about, text, language, vector", (unit,)
        ).fetchone()
        self._db.execute(
            "INSERT INTO unit_text (unit_text, rowid, terms) VALUES ('delete', ?, ?)",
            (unit, _unit_terms(about, unpack_text(text), language)),
        )
        self._resize(unit, b"\0\0\0\0")
        self.changes.gone.append(unit)
        if vector is not None:
            self._vectors.add(vector)

    def _add(self, previous: _UnitRow | None, units: Sequence[SearchUnit]) -> None:
        """Insert units after *previous*."""
        slot, group, language = (previous.id, previous.group, previous.language) if previous else (-1, "", "")
        for unit in units:
            if slot < 0:
                slot = self._start
            elif unit.group == group:
                slot += 1
            else:
                slot = -(-(slot + 1 + REACH) // BLOCK) * BLOCK
            group, language = unit.group, self._insert(slot, unit, language)

    def _insert(self, id_: int, unit: SearchUnit, before: str) -> str:
        """Insert a unit at its place after text of the language *before*; return its language."""
        found = words(unit.text)
        language = detect(found, before=before)
        terms = _unit_terms(unit.about, unit.text, language)
        vector = self._db.execute("SELECT id FROM vector WHERE content = ?", (unit.content,)).fetchone()
        self._db.execute(
            'INSERT INTO unit (id, at, traits, who, role, origin, language, line, "end", "group", content, digest,'
            " vector, length, about, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                id_, unit.at.timestamp() if unit.at else None, int(traits(unit.text, found)), unit.who, unit.role,
                unit.origin, language, unit.line, unit.end or unit.line, unit.group, unit.content, unit.digest,
                vector[0] if vector else None, len(unit.text), unit.about, pack_text(unit.text),
            ),
        )  # fmt: skip
        self._db.execute("INSERT INTO unit_text (rowid, terms) VALUES (?, ?)", (id_, terms))
        self._resize(
            id_, struct.pack("<HH", *(min(_MOST_TERMS, _count(each)) + 1 for each in (terms, _clipped(terms))))
        )
        self.changes.came.append(id_)
        return language

    def _resize(self, unit: int, size: bytes) -> None:
        """Store the size of a unit: its terms, and those that count in its neighbours' contexts, each plus one."""
        block, slot = divmod(unit, BLOCK)
        row = self._db.execute("SELECT sizes FROM block WHERE id = ?", (block,)).fetchone()
        sizes = bytearray((row[0] if row else b"").ljust(4 * BLOCK, b"\0"))
        sizes[4 * slot : 4 * slot + 4] = size
        self._db.execute("REPLACE INTO block (id, sizes) VALUES (?, ?)", (block, bytes(sizes).rstrip(b"\0")))

    def _finish(self) -> None:
        """Delete blocks without units, and vectors that no unit uses, so that nothing remains of erased text."""
        for each in self._vectors:
            self._db.execute(
                "DELETE FROM vector WHERE id = ? AND NOT EXISTS (SELECT 1 FROM unit WHERE vector = ?)", (each, each)
            )
        for block in {each // BLOCK for each in self.changes.gone}:
            self._db.execute("DELETE FROM block WHERE id = ? AND sizes = x''", (block,))


def _unit_terms(about: str, text: str, language: str) -> str:
    """Return the terms of a unit, without its speaker: a name would match every line of that person."""
    return index_terms(f"{about} {text}", language)


def _project(database: sqlite3.Connection, name: str) -> int:
    database.execute("INSERT OR IGNORE INTO project (name) VALUES (?)", (name,))
    return int(database.execute("SELECT id FROM project WHERE name = ?", (name,)).fetchone()[0])


def _count(terms: str) -> int:
    return terms.count(" ") + 1 if terms else 0


def _clipped(terms: str) -> str:
    return terms if len(terms) <= _NEIGHBOUR else terms[:_NEIGHBOUR].rpartition(" ")[0]
