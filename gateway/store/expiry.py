"""Retention: texts are blanked after a week, keys removed after a month, dead letters after a quarter.

All rows are read in the order of their numbers, every few hours and some at a time, so that turns never wait long for
the writer. Indices by time of end would cost every message a page each instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from zoneinfo import ZoneInfo

from gateway.store import access, inbox, outbox
from gateway.store.database import SET_META, Database
from gateway.store.engine import BLANK_AFTER
from gateway.store.outbox import KEEP
from gateway.store.proposals import prune_proposals
from gateway.store.row_codec import moment, sql
from gateway.store.shared_windows import forget_windows
from gateway.store.transcripts import FORGET_CHANGES
from gateway.store.usage import fold, prune_cap_counts, prune_cap_notices

KEEP_DEAD = timedelta(days=90)

ROWS_AT_ONCE = 2_000  # a few milliseconds

_MARK = "SELECT value FROM meta WHERE name = 'blanked_until'"
_EXPIRE_NOTES = (
    "UPDATE inbox SET state = 'stopped', ended_at = accepted_at "
    "WHERE ended_at IS NULL AND state = 'noted' AND turn = '' AND accepted_at < ?"
)
_ENDED_WITHIN = "seq >= ? AND seq < ? AND ended_at >= ? AND ended_at < ?"
_FORGET = (
    "DELETE FROM inbox WHERE seq >= ? AND seq < ? AND ended_at IS NOT NULL AND ended_at < ? "
    # The highest number stays, so that no number is given twice.
    "AND seq < (SELECT max(seq) FROM inbox) RETURNING seq"
)
# SQLite reads the whole table for two of them at once.
_ENDS = "SELECT (SELECT coalesce(min(seq), 0) FROM {0}), (SELECT coalesce(max(seq), 0) FROM {0})"
_ENDS_OF_INBOX, _ENDS_OF_OUTBOX = _ENDS.format("inbox"), _ENDS.format("outbox")
# Of turns whose lines were removed. The highest number stays, as above.
_FORGET_TURNS = "DELETE FROM record WHERE body IS NULL AND at < ? AND seq < (SELECT max(seq) FROM record)"
_NAME_BEHIND = "SELECT name FROM dedupe WHERE name > ? ORDER BY name LIMIT 1 OFFSET ?"
_FORGET_KEYS = (
    "DELETE FROM dedupe WHERE name > ? AND seq <= ? AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.seq = dedupe.seq)"
)


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class PruneTimes:
    """The limits of one pruning: microseconds since 1970, except the numbers of rows."""

    now: int
    since: int  # the texts of what ended before it are blank already
    until: int  # of what ended before it the texts go
    keep: int  # of what ended before it the rows go
    inbox: tuple[int, int]  # first and last number
    outbox: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows of a table by number."""

    table: str
    first: int
    end: int  # the number behind the last

    @property
    def limits(self) -> tuple[int, int]:
        """Return the first number and the one behind the last."""
        return self.first, self.end


@dataclass(frozen=True, slots=True)
class PrunedSpan:
    """The result for one span."""

    changed: int  # rows
    newest_gone: int = 0  # the highest number of a removed inbox row


def begin_prune(database: Database, now: int, blank_after: timedelta = BLANK_AFTER) -> PruneTimes:
    """Return the limits of a pruning, and end the notes that no later turn fetched."""
    found = database.execute(_MARK).fetchone()
    keep = now - _micros(KEEP)
    database.execute(_EXPIRE_NOTES, (keep,))
    return PruneTimes(
        now=now,
        since=int(found[0]) if found is not None else 0,
        until=now - _micros(blank_after),
        keep=keep,
        inbox=database.execute(_ENDS_OF_INBOX).fetchone(),
        outbox=database.execute(_ENDS_OF_OUTBOX).fetchone(),
    )


def spans(times: PruneTimes) -> Iterator[RowSpan]:
    """Yield the spans to look at, one for each transaction."""
    for table, (first, last) in (("inbox", times.inbox), ("outbox", times.outbox)):
        for start in range(first, last + 1, ROWS_AT_ONCE):
            yield RowSpan(table, start, min(start + ROWS_AT_ONCE, last + 1))


def prune_span(database: Database, span: RowSpan, times: PruneTimes) -> PrunedSpan:
    """Blank and remove what has ended within *span*."""
    if span.table == "outbox":
        return PrunedSpan(outbox.purge(database, (times.since, times.until), times.keep, span.limits))
    blanked = inbox.blank_ended(database, _ENDED_WITHIN, *span.limits, times.since, times.until)
    gone = database.execute(_FORGET, (*span.limits, times.keep)).fetchall()
    return PrunedSpan(blanked + len(gone), max((seq for (seq,) in gone), default=0))


def prune_keys(database: Database, after: str, newest_gone: int) -> str | None:
    """Remove keys of inbox rows up to the number *newest_gone* that are gone, from the name *after* on.

    Returns the name to go on from; None at the end.
    """
    found = database.execute(_NAME_BEHIND, (after, ROWS_AT_ONCE)).fetchone()
    limit, last = ("", ()) if found is None else ("AND name <= ?", found)
    database.execute(sql(_FORGET_KEYS, limit), (after, newest_gone, *last))
    return found[0] if found is not None else None


def finish_prune(database: Database, times: PruneTimes, *, zone: str = "UTC") -> int:
    """Remove what is past its time elsewhere; remember how far texts are blank. Returns the number of rows.

    Of usage a day's sums of *zone* stay for good.
    """
    count = fold(database, moment(times.keep), ZoneInfo(zone)) + prune_cap_notices(database, times.now)
    count += prune_cap_counts(database, times.now)
    count += database.execute(_FORGET_TURNS, (times.keep,)).rowcount
    database.execute(FORGET_CHANGES).close()
    count += database.execute("DELETE FROM dead WHERE at < ?", (times.now - _micros(KEEP_DEAD),)).rowcount
    count += access.prune(database, times.now) + prune_proposals(database, times.now)
    forget_windows(database)
    database.execute(SET_META, ("blanked_until", str(max(times.since, times.until))))
    return count
