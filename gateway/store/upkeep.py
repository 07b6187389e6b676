"""Upkeep of a store: retention, and the check of its tables.

Texts are blanked after a week, keys removed after a month, dead letters after a quarter.

All rows are read in the order of their numbers, every few hours and some at a time, so that turns never wait long for
the writer. Indices by time of end would cost every message a page each instead.

The check finds wrong numbers of rows, rows that refer to missing ones, and texts that differ from their digests. It
reads on another connection than the gateways use, and changes nothing. Files are read as their users read them, since
their bytes may be outside the database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from zoneinfo import ZoneInfo

from gateway.errors import FileUnavailable
from gateway.ports.memory import ScopeFile, rev_of
from gateway.store import access, inbox, outbox
from gateway.store.database import SET_META, Database
from gateway.store.engine import BLANK_AFTER
from gateway.store.files import SqlFiles
from gateway.store.history import rev_of_note
from gateway.store.outbox import KEEP
from gateway.store.proposals import prune_proposals
from gateway.store.row_codec import moment, sql, unquote
from gateway.store.shared_windows import forget_windows
from gateway.store.transcripts import FORGET_CHANGES
from gateway.store.usage import fold, prune_cap_counts, prune_cap_notices
from gateway.text.json_lines import decode_line

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


_AT_ONCE = 200  # turns
_COUNTED = {
    "turns": "SELECT count(*) FROM record WHERE transcript != ''",
    "messages that wait": "SELECT count(*) FROM inbox WHERE ended_at IS NULL",
    "documents": "SELECT count(*) FROM document",
    "changes of documents": "SELECT count(*) FROM document_change",
    "history entries": "SELECT count(*) FROM history_entry",
    "notes": "SELECT count(*) FROM note_file",
    "proposals": "SELECT count(*) FROM proposal",
    "jobs": "SELECT count(*) FROM job",
    "files": "SELECT count(*) FROM stored_file",
}
# Each statement returns how many rows refer to one that is missing.
_REFERENCES = {
    "parts of a missing answer": (
        "SELECT count(*) FROM part WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE outbox.seq = part.message)"
    ),
    "turns behind the next index of their conversation": (
        "SELECT count(*) FROM session WHERE EXISTS (SELECT 1 FROM record WHERE record.scope = session.scope "
        "AND record.key = session.key AND record.transcript = session.transcript "
        "AND record.to_index > session.next_index)"
    ),
    "document lines of a missing change": (
        "SELECT count(*) FROM document_line AS l WHERE NOT EXISTS (SELECT 1 FROM document_change AS c "
        "WHERE c.scope = l.scope AND c.number = l.added) OR (l.removed IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM document_change AS c WHERE c.scope = l.scope AND c.number = l.removed))"
    ),
    "document lines of a missing document": (
        "SELECT count(*) FROM document_line AS l WHERE removed IS NULL AND NOT EXISTS "
        "(SELECT 1 FROM document AS d WHERE d.scope = l.scope AND d.name = l.document)"
    ),
    "history entries behind the cursor of their history": (
        "SELECT count(*) FROM history_entry AS e WHERE NOT EXISTS "
        "(SELECT 1 FROM history AS h WHERE h.scope = e.scope AND h.cursor >= e.cursor)"
    ),
    "raw messages of a missing history entry": (
        "SELECT count(*) FROM raw_message AS r WHERE NOT EXISTS "
        "(SELECT 1 FROM history_entry AS e WHERE e.scope = r.scope AND e.entry = r.entry)"
    ),
}
_BODIES = "SELECT seq, body FROM record WHERE seq > ? AND body IS NOT NULL ORDER BY seq LIMIT ?"
_DOCUMENTS = "SELECT scope, name FROM document ORDER BY scope, name"
_DOCUMENT = (
    "SELECT d.rev, l.text FROM document AS d LEFT JOIN document_line AS l ON l.scope = d.scope AND l.document = d.name "
    "AND l.removed IS NULL WHERE d.scope = ? AND d.name = ? ORDER BY l.place"
)
_NOTES = "SELECT rev, body FROM note_file"


@dataclass(frozen=True, slots=True)
class TableFault:
    """Rows that are not as they were stored."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class TableCheck:
    """Numbers of rows, and the faults."""

    counts: Mapping[str, int]
    faults: Sequence[TableFault]


def check_tables(database: Database) -> TableCheck:
    """Read all turns, documents and notes, and count rows that refer to missing ones."""
    counts = {name: _count(database, statement) for name, statement in _COUNTED.items()}
    faults = [TableFault(name, _count(database, statement)) for name, statement in _REFERENCES.items()]
    faults.append(TableFault("turns with lines that cannot be read", sum(map(_is_unreadable, _bodies(database)))))
    faults.append(TableFault("documents with other lines than were stored", _count_changed_documents(database)))
    changed = sum(rev != rev_of_note(bytes(body)) for rev, body in database.execute(_NOTES))
    faults.append(TableFault("notes with another text than was stored", changed))
    return TableCheck(counts, [fault for fault in faults if fault.count])


async def damaged_files(files: SqlFiles) -> AsyncIterator[tuple[str, ScopeFile, str]]:
    """Read every file; yield the scope, the file and the reason of each whose bytes are not what was stored."""
    for scope in await files.scopes():
        for file in await files.files(scope):
            try:
                async for _ in files.stream(scope, file):
                    pass
            except FileUnavailable as error:
                if await files.find(scope, file.kind, file.name) == file:  # not replaced while it was read
                    yield scope, file, str(error)


def _count(database: Database, statement: str) -> int:
    (count,) = database.execute(statement).fetchone()
    return int(count)


def _bodies(database: Database) -> Iterator[bytes]:
    last = -(2**62)
    while rows := database.execute(_BODIES, (last, _AT_ONCE)).fetchall():
        last = rows[-1][0]
        yield from (bytes(body) for _, body in rows)


def _is_unreadable(body: bytes) -> bool:
    *lines, rest = body.split(b"\n")
    return bool(rest) or any(decode_line(line) is None for line in lines)


def _count_changed_documents(database: Database) -> int:
    return sum(_is_changed(database, *key) for key in database.execute(_DOCUMENTS).fetchall())


def _is_changed(database: Database, scope: str, name: str) -> bool:
    rows = database.execute(_DOCUMENT, (scope, name)).fetchall()
    text = "\n".join(unquote(line) for _, line in rows if line is not None)
    return bool(rows) and rows[0][0] != rev_of(text)
