"""Counts of caps over all gateways that share a database.

**Tokens** have a row for each name and gateway, which only that gateway writes, always as a whole: the tokens that it
has spent today, and those that its running calls have reserved. The row can be written again without harm, so a lost
reply or a late write needs no repair. Reservations count while their gateway is listed: those of a dead one are
released by its removal from the list.

Counts that nothing waits for are collected until their transaction begins, which then writes each row once.

**Turns and tool calls** have a row each, by their key. **Notices** are claimed by the turn that sends them.

Decisions are exclusive over all gateways: their transactions begin with a lock (gateway/store/postgres/sessions.py).
No name of a person or chat is stored, but its digest: there is nothing to forget, and to be forgotten frees no cap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Lock
from typing import TypeVar

from gateway.ports.access import CapChange, CapQuery, CountedEntry, SharedCapCounts, TokenCount
from gateway.ports.journal import CapNotice
from gateway.store.database import LISTED, Database, upsert_sql
from gateway.store.row_codec import micros, moment, quote, sql, unquote, write_json
from gateway.store.workers import LISTED_WORKERS
from gateway.store.writer import Operation, StoreWriter

T = TypeVar("T")

_POSTED_WITHIN = 0.25  # seconds
_KEEP = timedelta(hours=26) // timedelta(microseconds=1)  # of entries; longer than any day

_READ = sql(
    "SELECT 'tokens', name, '', sum(spent), coalesce(sum(held) FILTER (WHERE worker IN",
    LISTED_WORKERS,
    "), 0), '' FROM cap_count WHERE worker != ? AND until = ? AND name", LISTED, "GROUP BY name",
    "UNION ALL SELECT 'entry', name, entry, at, 0, '' FROM cap_entry WHERE at > ? AND name", LISTED,
    "UNION ALL SELECT 'notice', name, chat, until, most, turn FROM cap_told WHERE name", LISTED,
)  # fmt: skip
_COUNT = upsert_sql("cap_count", "name", "worker", "until", "spent", "held", keys=2)
_ENTER = "INSERT INTO cap_entry (name, entry, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_TELL = upsert_sql("cap_told", "name", "chat", "until", "most", "turn", keys=2)
_ENDED = "DELETE FROM cap_told WHERE name = ? AND NOT (until = ? AND most = ?)"
_IS_COUNTED = "SELECT 1 FROM worker WHERE name != ? AND EXISTS (SELECT 1 FROM cap_count)"


def digest(name: str) -> str:
    """Return the stored form of the name of a counter."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class _PostedChanges:
    """Changes for one transaction, collected on the event loop until it begins on the writer's thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._changes: list[CapChange] = []
        self._is_closed = False

    def add(self, change: CapChange) -> bool:
        """Add *change*; return False if no more are taken."""
        with self._lock:
            if not self._is_closed:
                self._changes.append(change)
            return not self._is_closed

    def close(self) -> Sequence[CapChange]:
        """Take no more; return the collected changes. Safe to call again."""
        with self._lock:
            self._is_closed = True
        return self._changes


class SqlSharedCaps:
    """Counts of caps over all gateways that share a database. Decisions are made one after the other.

    Reservations of a gateway that is not listed any more do not count; the tokens that it has spent do.
    """

    def __init__(self, writer: StoreWriter, worker: str) -> None:
        self._writer = writer
        self._worker = worker
        self._posted = _PostedChanges()
        self._posted.close()

    async def start(self, bases: Sequence[CapChange]) -> None:
        """Begin with the counts of the usage rows, unless another gateway counts already. Raises StoreUnavailable."""

        def begin(database: Database) -> None:
            if database.execute(_IS_COUNTED, (self._worker,)).fetchone() is None:
                database.execute("DELETE FROM cap_count")
                database.execute("DELETE FROM cap_entry")
                _store(database, bases, "")

        await self._submit(begin)

    async def judge(self, query: CapQuery, decide: Callable[[SharedCapCounts], tuple[CapChange | None, T]]) -> T:
        """Read the counts, store the change that *decide* returns and return its result, in one exclusive transaction.

        *decide* runs on another thread, and twice if the transaction is run again: it must change nothing. Raises
        StoreUnavailable; then it is unknown whether the change was stored.
        """

        def operation(database: Database) -> T:
            change, result = decide(_read(database, query, self._worker))
            if change is not None:
                _store(database, (change,), self._worker)
            return result

        return await self._submit(operation)

    def post(self, change: CapChange) -> None:
        """Store *change* soon; it is kept until it could be stored."""
        if self._posted.add(change):
            return
        posted = self._posted = _PostedChanges()
        posted.add(change)
        self._writer.submit_nowait(
            lambda database: _store(database, posted.close(), self._worker), within=_POSTED_WITHIN
        )

    async def _submit(self, operation: Operation[T]) -> T:
        self._posted.close()  # what is posted from now on is newer, and must be stored behind this
        return await self._writer.submit(operation)


def _read(database: Database, query: CapQuery, worker: str) -> SharedCapCounts:
    names = {digest(name): name for name in query.names}
    listed, told = write_json(list(names)), write_json([quote(name) for name in query.notices])
    columns = (worker, micros(query.day), listed, micros(query.since), listed, told)
    elsewhere: dict[str, TokenCount] = {}
    entries: list[CountedEntry] = []
    notices: list[tuple[CapNotice, str]] = []
    for kind, name, text, number, other, turn in database.execute(_READ, columns):
        if kind == "tokens":
            elsewhere[names[name]] = TokenCount(names[name], number, other)
        elif kind == "entry":
            entries.append(CountedEntry(names[name], unquote(text), moment(number)))
        else:
            notice = CapNotice(name=unquote(name), chat=unquote(text), until=moment(number), limit=other)
            notices.append((notice, unquote(turn)))
    entries.sort(key=lambda each: each.at)
    return SharedCapCounts(elsewhere=elsewhere, entries=tuple(entries), notices=tuple(notices))


def _store(database: Database, changes: Sequence[CapChange], worker: str) -> None:
    latest = {each.name: (change.day, each) for change in changes for each in change.tokens}
    if latest:
        rows = [(digest(name), worker, micros(day), each.spent, each.held) for name, (day, each) in latest.items()]
        database.executemany(_COUNT, rows)
    if entries := [each for change in changes for each in change.entries]:
        database.executemany(_ENTER, [(digest(each.name), quote(each.entry), micros(each.at)) for each in entries])
    for notice, turn in (each for change in changes for each in change.notices):
        name, ends = quote(notice.name), micros(notice.until)
        database.execute(_ENDED, (name, ends, notice.limit))
        database.execute(_TELL, (name, quote(notice.chat), ends, notice.limit, quote(turn)))


def prune_cap_counts(database: Database, now: int) -> int:
    """Remove the counts of days that have ended."""
    gone = database.execute("DELETE FROM cap_count WHERE until <= ?", (now,)).rowcount
    return gone + database.execute("DELETE FROM cap_entry WHERE at < ?", (now - _KEEP,)).rowcount
