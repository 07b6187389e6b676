"""Score units, contexts and blocks by the words of a query: BM25 from one full-text table.

A context is a unit with up to `REACH` neighbours on each side, a block is `BLOCK` slots of a conversation. Neighbours
have adjacent ids (index_file.py), so a unit's words are also words of its neighbours' contexts and of its block.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agent.memory.search import text_query
from agent.memory.search.index_file import IndexUnusable
from agent.memory.search.search_unit import BLOCK, REACH, SOURCE_SLOTS
from agent.memory.search.time_spans import TimeSpan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_K1, _B = 1.2, 0.75  # as in FTS5
_STEPS = tuple(step for step in range(-REACH, REACH + 1) if step)


class UnitSizes:
    """The number of terms of every unit, context and block of an index at one time. A row is a slot, used or not."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Read the sizes, which takes 12 milliseconds for 100,000 units."""
        found = database.execute("SELECT id, sizes FROM block ORDER BY id").fetchall()
        packed = b"".join(sizes.ljust(4 * BLOCK, b"\0") for _, sizes in found)
        if len(packed) != 4 * BLOCK * len(found):
            raise IndexUnusable("a block is damaged")
        pairs = np.frombuffer(packed, dtype="<u2").reshape(-1, 2).astype(np.int32)
        blocks = np.array([id_ for id_, _ in found], dtype=np.int64)
        self.ids: Ints = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        # Lengths are one term more than the text's: the weights of the ranking were measured with such lengths.
        self.units: Sizes = pairs[:, 0].copy()  # 0 where no unit is
        self.clips: Sizes = np.maximum(pairs[:, 1] - 1, 0)  # terms that count in the contexts of neighbours
        self.count = int(np.count_nonzero(self.units))
        self.contexts: Sizes = self.units.copy()
        rows = np.flatnonzero(self.units)
        for step in _STEPS:
            near = self.near(rows, step)
            self.contexts[rows] += np.where(near >= 0, self.clips[near], 0)
        self.blocks: Sizes = np.maximum(self.units - 1, 0).reshape(-1, BLOCK).sum(axis=1, dtype=np.int32) + 1

    def near(self, rows: Ints, step: int) -> Ints:
        """Return the rows of the units *step* after the units *rows*, -1 for each that has none."""
        found = np.clip(rows + step, 0, max(0, len(self.ids) - 1))
        is_near = (self.ids[found] == self.ids[rows] + step) & (self.units[found] > 0)
        return np.where(is_near, found, -1).astype(np.int64)


class TextScores:
    """BM25 of the units, contexts and blocks that have a query's words, in some sources of an index."""

    def __init__(
        self,
        database: sqlite3.Connection,
        sizes: UnitSizes,
        query: text_query.IndexedTerms,
        sources: Sequence[int],
        *,
        is_flat: bool,
    ) -> None:
        """Count the words; *is_flat* leaves contexts and blocks out. Raises IndexUnusable."""
        self._db = database
        self._ids = sizes.ids
        self._is_searched: Flags = np.isin(sizes.ids // SOURCE_SLOTS, sources)
        count = len(sizes.ids)
        self._units, self._contexts, self._blocks = np.zeros(count), np.zeros(count), np.zeros(count // BLOCK)
        for term in query.terms:
            ids, offsets = _read_places(database, term)
            rows = np.searchsorted(sizes.ids, ids).astype(np.int64)
            if not (np.array_equal(sizes.ids[rows[rows < count]], ids) and sizes.units[rows].all()):
                raise IndexUnusable("a word is in a unit that does not exist")
            _add(self._units, rows, sizes.units, sizes.count)
            if is_flat:
                continue
            _add(self._blocks, rows // BLOCK, sizes.blocks, len(sizes.blocks))
            if term in query.rare:
                early = rows[offsets < sizes.clips[rows]]
                around = np.concatenate([rows, *(sizes.near(early, step) for step in _STEPS)])
                _add(self._contexts, around[around >= 0], sizes.contexts, sizes.count)

    def units(self, top: int, *, within: TimeSpan | None = None) -> dict[int, float]:
        """Return the best *top* units, only those *within* a time, with their scores."""
        return self._best(self._units, top, within)

    def contexts(self, top: int, *, within: TimeSpan | None = None) -> dict[int, float]:
        """Return the units with the best *top* contexts, only those *within* a time, with their scores."""
        return self._best(self._contexts, top, within)

    def blocks(self, top: int) -> dict[int, float]:
        """Return the best *top* blocks with their scores."""
        scores = np.where(self._is_searched[::BLOCK], self._blocks, 0)
        return _scored(self._ids[::BLOCK] // BLOCK, scores, _ranked(scores, top))

    def _best(self, scores: Floats, top: int, within: TimeSpan | None) -> dict[int, float]:
        scores = np.where(self._is_searched, scores, 0)
        if within is None:
            return _scored(self._ids, scores, _ranked(scores, top))
        ranked = _ranked(scores, len(scores))
        found: dict[int, float] = {}
        for start in range(0, len(ranked), text_query.AT_ONCE):
            part = _scored(self._ids, scores, ranked[start : start + text_query.AT_ONCE])
            kept = text_query.ids_within(self._db, part, within)
            found |= {id_: score for id_, score in part.items() if id_ in kept}
            if len(found) >= top:
                break
        return dict(list(found.items())[:top])


def _read_places(database: sqlite3.Connection, term: str) -> tuple[Ints, Ints]:
    """Return the units that have *term*, once for each time, and the number of terms before it."""
    # As two texts, which takes a third of the time of as many rows.
    ids, offsets = database.execute(
        "SELECT group_concat(doc), group_concat(offset) FROM unit_places WHERE term = ?", (term,)
    ).fetchone()
    return np.fromstring(ids or "", dtype=np.int64, sep=","), np.fromstring(offsets or "", dtype=np.int64, sep=",")


def _add(scores: Floats, rows: Ints, sizes: Sizes, total: int) -> None:
    """Add the BM25 of one word, which occurs in *rows* once for each time they are named, to *scores*."""
    found, counts = np.unique(rows, return_counts=True)
    rarity = text_query.rarity(len(found), total)
    mean = int(sizes.sum()) / total
    # In the order of FTS5, so that equal units have equal scores in both.
    scores[found] += rarity * (counts * (_K1 + 1) / (counts + _K1 * (1 - _B + _B * sizes[found] / mean)))


def _ranked(scores: Floats, top: int) -> Ints:
    """Return at most *top* rows with a score, best first, the earlier first among equals."""
    rows = np.flatnonzero(scores)
    if len(rows) > top:
        least = -np.partition(-scores[rows], top - 1)[top - 1]
        rows = rows[scores[rows] >= least]
    return np.asarray(rows[np.argsort(-scores[rows], kind="stable")][:top], dtype=np.int64)


def _scored(ids: Ints, scores: Floats, rows: Ints) -> dict[int, float]:
    return dict(zip(ids[rows].tolist(), scores[rows].tolist(), strict=True))
