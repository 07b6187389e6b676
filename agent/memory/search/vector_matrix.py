"""Exact vector search: a matrix of a scope's vectors in memory, updated with the index.

Similarities are cosines of the vectors minus the mean of the index, which all its texts have in common, such as a
language that the model knows little of, tells nothing about a query.
The smoothed vector of a unit (itself plus its neighbours, weighted 0.6 and 0.3) is not stored: its similarity is the
weighted sum of the single similarities, so one matrix product gives both.
Rows stay packed, one byte a number and a scale each; a product unpacks a block of them at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.memory.search.search_unit import SOURCE_SLOTS, UnitChanges

NEAR = ((1, 0.6), (2, 0.3))  # weights of neighbours in the smoothed vector
PEOPLE = 100  # units, other than answers of the bot, that are always scored
_PRIOR = 10  # zero vectors that count in the mean, so that the mean of few texts does not erase what they say
_LEAST_SQUARE = 1e-3  # of a length, against division by zero
_GROWTH = 1.2  # how much larger than needed the matrix is made
_BLOCK_ROWS = 1_024  # rows unpacked at once: with 384 numbers 1.5 MB, which stays in the processor's cache
_ROWS = (
    "SELECT u.id, v.data, u.role = 'assistant' FROM unit u JOIN vector v ON v.id = u.vector WHERE length(v.data) = ?"
)

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]


_SCALE_BYTES = 4


def pack(vector: Floats) -> bytes:
    """Encode a vector as a scale and one byte a number."""
    scale = np.float32(max(float(np.abs(vector).max(initial=0.0)), 1e-12) / 127)
    numbers: bytes = np.rint(vector / scale).astype(np.int8).tobytes()
    return scale.tobytes() + numbers


def packed_size(dimensions: int) -> int:
    """Return the number of bytes of a packed vector."""
    return _SCALE_BYTES + dimensions


class VectorMatrix:
    """The vectors of one index. Not safe to use from two threads at once."""

    def __init__(self, database: sqlite3.Connection, dimensions: int) -> None:
        """Read every vector, which takes half a second for 100,000."""
        self.dimensions = dimensions
        count = int(database.execute("SELECT count(*) FROM unit WHERE vector IS NOT NULL").fetchone()[0])
        capacity = int(count * _GROWTH) + 64
        self._rows: Bytes = np.zeros((capacity, dimensions), dtype=np.int8)
        self._scales: Floats = np.zeros(capacity, dtype=np.float32)
        self._ids: Ints = np.full(capacity, -1, dtype=np.int64)
        self._near: Ints = np.full((capacity, 2 * len(NEAR)), -1, dtype=np.int64)
        self._norms: Floats = np.ones(capacity, dtype=np.float32)
        self._is_answer: Flags = np.zeros(capacity, dtype=np.bool_)
        self._sum: npt.NDArray[np.float64] = np.zeros(dimensions)
        self._centering: VectorCentering | None = None  # of the last query, if no vector has changed since
        self._row_of: dict[int, int] = {}
        self._count = 0
        self._lost = 0
        self._take(database.execute(f"{_ROWS} ORDER BY u.id", (packed_size(dimensions),)))
        self._join_all()

    @property
    def needs_rebuild(self) -> bool:
        """True if so many vectors were deleted that reading all of them again is better."""
        return self._lost > 1_000 and self._lost > self._count // 4

    @property
    def bytes(self) -> int:
        """Size of the matrix in memory, in bytes."""
        arrays = (self._rows, self._scales, self._ids, self._near, self._norms, self._is_answer)
        return sum(each.nbytes for each in arrays)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self._count

    def _take(self, rows: sqlite3.Cursor) -> None:
        while batch := rows.fetchmany(2_048):
            start, end = self._count, self._count + len(batch)
            if end > len(self._rows):
                self._grow(end)
            joined = np.frombuffer(b"".join(row[1] for row in batch), dtype=np.int8).reshape(len(batch), -1)
            self._scales[start:end] = np.ascontiguousarray(joined[:, :_SCALE_BYTES]).view(np.float32)[:, 0]
            self._rows[start:end] = joined[:, _SCALE_BYTES:]
            self._ids[start:end] = [row[0] for row in batch]
            self._is_answer[start:end] = [row[2] for row in batch]
            self._near[start:end] = -1
            self._sum += self._unpack(slice(start, end)).sum(axis=0)
            self._row_of.update((row[0], start + k) for k, row in enumerate(batch))
            self._count = end

    def _grow(self, needed: int) -> None:
        more = int(needed * _GROWTH) + 64 - len(self._rows)
        self._rows = np.vstack((self._rows, np.zeros((more, self.dimensions), dtype=np.int8)))
        self._scales = np.concatenate((self._scales, np.zeros(more, dtype=np.float32)))
        self._ids = np.concatenate((self._ids, np.full(more, -1, dtype=np.int64)))
        self._near = np.vstack((self._near, np.full((more, 2 * len(NEAR)), -1, dtype=np.int64)))
        self._norms = np.concatenate((self._norms, np.ones(more, dtype=np.float32)))
        self._is_answer = np.concatenate((self._is_answer, np.zeros(more, dtype=np.bool_)))

    def _join_all(self) -> None:
        """Find the neighbours of every row, which have adjacent ids; the rows are in order of their ids."""
        n = self._count
        ids = self._ids[:n]
        for column, (distance, _) in enumerate(NEAR):
            # Units without a vector leave gaps: adjacent rows can be further apart in the text.
            for closer in range(1, distance + 1):
                is_near = np.flatnonzero(ids[closer:] - ids[:-closer] == distance)
                self._near[is_near, 2 * column + 1] = is_near + closer
                self._near[is_near + closer, 2 * column] = is_near
        for start in range(0, n, _BLOCK_ROWS):
            self._measure(np.arange(start, min(n, start + _BLOCK_ROWS)))

    def _measure(self, which: Ints) -> None:
        """Compute the length of the smoothed vectors of rows *which*."""
        total = self._unpack(which)
        for column in range(2 * len(NEAR)):
            near = self._near[which, column]
            total += np.where((near >= 0)[:, None], self._unpack(near), 0) * np.float32(NEAR[column // 2][1])
        self._norms[which] = np.maximum(np.linalg.norm(total, axis=1), 1e-6)

    def _unpack(self, which: Ints | slice) -> Floats:
        """Return rows *which* as numbers."""
        unpacked: Floats = self._rows[which] * self._scales[which, None]
        return unpacked

    # -- keeping step ----------------------------------------------------------------------------------

    def follow(self, database: sqlite3.Connection, changes: UnitChanges) -> None:
        """Remove deleted units, and add new units that have a vector."""
        self._centering = None
        touched: set[int] = set()
        for row in [self._row_of.pop(each) for each in changes.gone if each in self._row_of]:
            self._sum -= self._unpack(slice(row, row + 1))[0]
            self._rows[row] = 0
            for near in self._near[row]:
                if near >= 0:
                    self._near[near][self._near[near] == row] = -1
                    touched.add(int(near))
            self._near[row] = -1
            self._ids[row] = -1
            self._lost += 1
        start = self._count
        for each in changes.came:
            if each not in self._row_of:
                self._take(database.execute(f"{_ROWS} AND u.id = ?", (packed_size(self.dimensions), each)))
        for row in range(start, self._count):
            touched |= self._join(row)
        if touched:
            self._measure(np.array(sorted(touched), dtype=np.int64))

    def _join(self, row: int) -> set[int]:
        touched = {row}
        for column, (distance, _) in enumerate(NEAR):
            for side, sign in ((0, -1), (1, 1)):
                near = self._row_of.get(int(self._ids[row]) + sign * distance)
                if near is not None:
                    self._near[row, 2 * column + side] = near
                    self._near[near, 2 * column + 1 - side] = row
                    touched.add(near)
        return touched

    # -- asking ----------------------------------------------------------------------------------------

    @property
    def center(self) -> Floats:
        """The mean vector, nearer to zero the fewer vectors there are."""
        center: Floats = (self._sum / (self._count - self._lost + _PRIOR)).astype(np.float32)
        return center

    def score(
        self, question: Floats, sources: Sequence[int], top: int, *, center: Floats | None = None
    ) -> VectorScores:
        """Return the similarity of *question* to every unit of *sources*, seen from *center*, by default ours."""
        center = self.center if center is None else center
        if self._centering is None or not np.array_equal(self._centering.center, center):
            self._centering = self._measure_from(center)
        direction = question - center
        direction /= np.sqrt(max(_LEAST_SQUARE, float(direction @ direction)))
        along = self._times(direction) - np.float32(direction @ center)
        own: Floats = along / self._centering.lengths
        smooth: Floats = self._smooth(along) / self._centering.smooth_lengths
        ids = self._ids[: self._count]
        hidden = ~np.isin(ids // SOURCE_SLOTS, sources)
        own[hidden] = smooth[hidden] = -1
        return VectorScores(ids, self._row_of, own, smooth, self._is_answer[: self._count], top)

    def _measure_from(self, center: Floats) -> VectorCentering:
        """Compute the lengths of all vectors, alone and smoothed, from *center*."""
        square = np.float32(center @ center)
        along = self._times(center)
        weights = self._smooth(np.ones(self._count, dtype=np.float32))
        lengths = 1 - 2 * along + square
        smooth = self._norms[: self._count] ** 2 - 2 * weights * self._smooth(along) + weights**2 * square
        return VectorCentering(
            center, np.sqrt(np.maximum(lengths, _LEAST_SQUARE)), np.sqrt(np.maximum(smooth, _LEAST_SQUARE))
        )

    def _times(self, vector: Floats) -> Floats:
        """Return the product of every row with *vector*."""
        # Not `@`: for one vector BLAS uses every core, which doubles the processor time and is not faster.
        products: Floats = np.empty(self._count, dtype=np.float32)
        for start in range(0, self._count, _BLOCK_ROWS):
            block = slice(start, min(self._count, start + _BLOCK_ROWS))
            products[block] = np.einsum("ij,j->i", self._rows[block].astype(np.float32), vector) * self._scales[block]
        return products

    def _smooth(self, values: Floats) -> Floats:
        """Return each row's value plus the weighted values of its neighbours."""
        total: Floats = values.copy()
        for column in range(2 * len(NEAR)):
            near = self._near[: self._count, column]
            total += np.where(near >= 0, values[near], 0) * np.float32(NEAR[column // 2][1])
        return total


@dataclass(frozen=True, slots=True, eq=False)
class VectorCentering:
    """The lengths of the vectors of a matrix, seen from a center."""

    center: Floats
    lengths: Floats
    smooth_lengths: Floats


class VectorScores:
    """Similarities of a query with every unit: of the unit alone, and smoothed with its neighbours."""

    def __init__(
        self, ids: Ints, row_of: Mapping[int, int], plain: Floats, smooth: Floats, is_answer: Flags, top: int
    ) -> None:
        self._row_of, self._own, self._smooth = row_of, plain, smooth
        best = {int(ids[row]) for scores in (plain, smooth) for row in _top(scores, top)}
        # Apart, because the pieces of long answers would fill the list.
        people = {int(ids[row]) for row in _top(np.where(is_answer, -1, plain + smooth), PEOPLE)}
        self.best_of_people = frozenset(people)
        self.best = frozenset(best | people)

    def of(self, unit: int) -> tuple[float, float] | None:
        """Return the own and smoothed similarity of a unit; None if it has no vector or is of another source."""
        row = self._row_of.get(unit)
        return None if row is None or self._own[row] <= -1 else (float(self._own[row]), float(self._smooth[row]))


def _top(scores: Floats, top: int) -> Ints:
    found = np.argpartition(scores, -top)[-top:] if len(scores) > top else np.arange(len(scores))
    return np.asarray(found[scores[found] > 0], dtype=np.int64)
