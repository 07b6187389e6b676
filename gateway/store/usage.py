"""Usage rows: one for each model call, folded into sums per day when they are old; and the counts of usage caps.

Where several gateways share a database, caps are counted over all of them.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from threading import Lock
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from gateway.ports.access import TOOL_CALLS, CapChange, CapQuery, CountedEntry, SharedCapCounts, TokenCount
from gateway.ports.journal import CapNotice, UsageRow
from gateway.store.claims import LISTED_WORKERS
from gateway.store.database import LISTED, SET_META, Database, upsert_sql
from gateway.store.engine import StoreEngine
from gateway.store.row_codec import micros, moment, quote, sql, unquote, write_json
from gateway.store.writer import Operation, StoreWriter

_AT_ONCE = 62  # days folded in one operation: turns' writes come between two of them

_COLUMNS = "turn, person, chat, purpose, model, tokens_in, tokens_out, tokens_cached, cost, at, call, is_own"
_INSERT = sql("INSERT INTO usage (", _COLUMNS, ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
_SETTLE = (
    "UPDATE usage SET model = ?, tokens_in = ?, tokens_out = ?, tokens_cached = ?, cost = ?, at = ?, call = '' "
    "WHERE turn = ? AND call = ? AND call != '' AND call != 'day'"  # as the index `usage_open` has it
)
_OF_MODELS = f"(substr(purpose, 1, {len(TOOL_CALLS)}) != '{TOOL_CALLS}')"
_OF_TURN = sql("SELECT", _COLUMNS, "FROM usage WHERE turn = ? AND", _OF_MODELS, "ORDER BY at, rowid")
_TOKENS_OF_TURN = sql(
    "SELECT coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), coalesce(sum(tokens_cached), 0)",
    "FROM usage WHERE at >= ? AND turn = ? AND",
    _OF_MODELS,
)
_SUMS = (
    "sum(calls), sum(tokens_in), sum(tokens_out), sum(tokens_cached), "
    "CASE WHEN count(cost) = count(*) THEN sum(cost) END"
)
_TOTAL = sql(_SUMS, ", coalesce(sum(cost), 0), coalesce(sum(calls) FILTER (WHERE cost IS NULL), 0)")
_TOTALS = sql("SELECT purpose, model,", _TOTAL, "FROM usage WHERE at >= ?1 AND (?2 = '' OR chat = ?2) AND", _OF_MODELS)
_IN_ORDER = "GROUP BY purpose, model ORDER BY purpose, model"
_OF_ALL = sql(_TOTALS, _IN_ORDER)
_OF_PERSON = sql(_TOTALS, "AND person = ?3", _IN_ORDER)
_GROUPS = {
    group: sql("SELECT", group, ",", _TOTAL, "FROM usage WHERE at >= ? AND", _OF_MODELS, "GROUP BY", group)
    for group in ("person", "chat", "purpose", "model")
}
_MODELS_OF_TURN = sql(
    "SELECT model,",
    _TOTAL,
    "FROM usage WHERE at >= ? AND at <= ? AND turn = ? AND",
    _OF_MODELS,
    "GROUP BY model ORDER BY max(at), model",
)
_OF_DAY = sql("SELECT", _TOTAL, "FROM usage WHERE at >= ? AND at < ? AND", _OF_MODELS)
_TOOL_CALLS = sql(
    "SELECT person, purpose, sum(calls) FROM usage WHERE at >= ? AND NOT", _OF_MODELS, "GROUP BY person, purpose"
)
_INTERRUPTED = sql(
    "SELECT call FROM usage WHERE call != '' AND call != 'day' AND turn IN (SELECT turn FROM step) AND NOT", _OF_MODELS
)
_FOLD = (
    "INSERT INTO usage (turn, person, chat, purpose, model, tokens_in, tokens_out, tokens_cached, cost, at, call, "
    "is_own, calls) SELECT '', person, chat, purpose, model, sum(tokens_in), sum(tokens_out), sum(tokens_cached), "
    "sum(cost), ?3, 'day', 0, sum(calls) FROM usage WHERE at >= ?1 AND at < ?2 AND call != 'day' "
    "GROUP BY person, chat, purpose, model, cost IS NULL"
)
_UNFOLD = "DELETE FROM usage WHERE at >= ? AND at < ? AND call != 'day'"
_MARK = "SELECT value FROM meta WHERE name = 'usage_folded_until'"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTurn:
    """A turn that asked a model: when it first did."""

    turn: str
    person: str
    chat: str
    is_own: bool
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentTokens:
    """Tokens, in and out, of one person in one chat, and what they cost as far as it is known."""

    person: str
    chat: str
    is_own: bool
    tokens: int
    cost: int = 0  # micro-dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUsage:
    """Stored counts of the current windows."""

    turns: tuple[StartedTurn, ...]
    tokens: tuple[SpentTokens, ...]
    notices: tuple[CapNotice, ...]


def encode_usage(row: UsageRow) -> tuple[Any, ...]:
    """Return a usage row's columns."""
    return (
        quote(row.turn),
        quote(row.person),
        quote(row.chat),
        row.purpose,
        quote(row.model),
        row.tokens_in,
        row.tokens_out,
        row.tokens_cached,
        row.cost,
        micros(row.at),
        row.call,
        int(row.is_own),
    )


def settle_usage(database: Database, columns: tuple[Any, ...]) -> None:
    """Store what a call took, in the place of its estimate where there is one. Tool calls have none, and keep a key."""
    turn, purpose, call = columns[0], columns[3], columns[10]
    if purpose.startswith(TOOL_CALLS):
        insert_usage(database, columns)
    elif not call or not database.execute(_SETTLE, (*columns[4:10], turn, call)).rowcount:
        insert_usage(database, (*columns[:10], "", columns[11]))


def insert_usage(database: Database, columns: tuple[Any, ...]) -> None:
    """Store a usage row."""
    database.execute(_INSERT, columns)


def usage_of(database: Database, turn: str) -> tuple[UsageRow, ...]:
    """Return the turn's usage rows, in order; reads the whole table."""
    found = database.execute(_OF_TURN, (turn,))
    return tuple(
        UsageRow(
            turn=unquote(columns[0]),
            person=unquote(columns[1]),
            chat=unquote(columns[2]),
            purpose=columns[3],
            model=unquote(columns[4]),
            tokens_in=columns[5],
            tokens_out=columns[6],
            tokens_cached=columns[7],
            cost=columns[8],
            at=moment(columns[9]),
            call=columns[10],
            is_own=bool(columns[11]),
        )
        for columns in found
    )


class SqlUsage:
    """Sums over usage rows. Those of single calls are kept for 30 days, a day's sums for good."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def totals(self, *, since: datetime, person: str = "", chat: str = "") -> tuple[Mapping[str, Any], ...]:
        """Return per (purpose, model): calls, tokens_in, tokens_out, tokens_cached, cost (None if any is unknown).

        And known_cost, of the calls whose cost is known, and unpriced_calls. Tool calls are left out.
        """
        given = (micros(since), quote(chat))
        fetch = self._engine.fetch
        found = await (fetch(_OF_PERSON, *given, quote(person)) if person else fetch(_OF_ALL, *given))
        return tuple(
            {"purpose": columns[0], **_total("model", (unquote(columns[1]), *columns[2:]))} for columns in found
        )

    async def of_turn(self, turn: str, *, since: datetime) -> tuple[int, int, int]:
        """Return the tokens of a turn that began *since*: in, out, and the cached part of those in.

        Reads the calls since then.
        """
        (found,) = await self._engine.fetch(_TOKENS_OF_TURN, micros(since), quote(turn))
        tokens_in, tokens_out, tokens_cached = map(int, found)
        return tokens_in, tokens_out, tokens_cached

    async def models_of_turn(self, turn: str, *, since: datetime, until: datetime) -> tuple[Mapping[str, Any], ...]:
        """Return sums per `model` of the calls of a turn from *since* to *until*, the last to answer last.

        They have the fields of `by`. None are left once the day was folded. Reads the calls of that time.
        """
        found = await self._engine.fetch(_MODELS_OF_TURN, micros(since), micros(until), quote(turn))
        return tuple(_total("model", (unquote(columns[0]), *columns[1:])) for columns in found)

    async def tool_calls(self, *, since: datetime) -> Mapping[tuple[str, str], int]:
        """Return the number of counted tool calls, by account name and kind of tool."""
        found = await self._engine.fetch(_TOOL_CALLS, micros(since))
        return {(unquote(person), purpose.removeprefix(TOOL_CALLS)): calls for person, purpose, calls in found}

    async def interrupted_tool_calls(self) -> tuple[str, ...]:
        """Return the keys of the counted tool calls of turns that have not ended."""
        return tuple(call for (call,) in await self._engine.fetch(_INTERRUPTED))

    async def by(self, group: str, *, since: datetime, until: datetime, zone: str) -> tuple[Mapping[str, Any], ...]:
        """Return sums per `person`, `chat`, `purpose` or `day` (ISO 8601, of the IANA *zone*), under that name.

        Each also has calls, tokens_in, tokens_out, tokens_cached, cost (None if any is unknown), known_cost (of the
        calls whose cost is known) and unpriced_calls. A person or chat that was forgotten is "".
        """
        if group == "day":
            days = _days(since, until, ZoneInfo(zone))
            found = await self._engine.writer.submit(
                lambda db: [(name, *db.execute(_OF_DAY, span).fetchone()) for name, *span in days]
            )
            return tuple(_total(group, columns) for columns in found if columns[1] is not None)
        found = await self._engine.fetch(_GROUPS[group], micros(since))
        sums = [_total(group, (unquote(columns[0]), *columns[1:])) for columns in found]
        return tuple(sorted(sums, key=lambda each: (-each["tokens_in"] - each["tokens_out"], each[group])))


def _total(group: str, columns: tuple[Any, ...]) -> Mapping[str, Any]:
    names = (group, "calls", "tokens_in", "tokens_out", "tokens_cached", "cost", "known_cost", "unpriced_calls")
    return dict(zip(names, columns, strict=True))


def _days(since: datetime, until: datetime, zone: ZoneInfo) -> list[tuple[str, int, int]]:
    """Return the name, start and end of each day of *zone* from *since* to *until*."""
    day, found = since.astimezone(zone).date(), []
    while (start := midnight(day, zone)) <= until:
        day += timedelta(days=1)
        found.append(((day - timedelta(days=1)).isoformat(), micros(max(start, since)), micros(midnight(day, zone))))
    return found


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """Return when *day* begins in *zone*; where that hour is left out (a clock is put forward), a moment near it."""
    return datetime.combine(day, time(), zone)


def fold(database: Database, before: datetime, zone: ZoneInfo) -> int:
    """Replace the rows of each whole day that ended *before* by a sum; return the number of removed rows.

    A sum has the time noon, so that it counts for its day in every nearby zone. At most `_AT_ONCE` days are folded at
    a time, the rest at the next call.
    """
    found = database.execute(_MARK).fetchone()
    first = database.execute("SELECT min(at) FROM usage WHERE at >= ?", (int(found[0]) if found else 0,)).fetchone()
    if first is None or first[0] is None:
        return 0
    day, gone = moment(first[0]).astimezone(zone).date(), 0
    for _ in range(_AT_ONCE):
        start, end = midnight(day, zone), midnight(day + timedelta(days=1), zone)
        if end > before:
            break
        noon = start + (end - start) / 2
        database.execute(_FOLD, (micros(start), micros(end), micros(noon)))
        gone += database.execute(_UNFOLD, (micros(start), micros(end))).rowcount
        database.execute(SET_META, ("usage_folded_until", str(micros(end))))
        day += timedelta(days=1)
    return gone


_OURS = sql("AND turn != '' AND purpose", LISTED)
_BEGUN = sql("SELECT turn, person, chat, is_own, at FROM usage WHERE at > ?", _OURS, "ORDER BY at, rowid")
_SPENT = sql(
    "SELECT person, chat, is_own, sum(tokens_in) + sum(tokens_out), "
    "coalesce(sum(CAST(round(cost * 1000000) AS BIGINT)), 0) FROM usage WHERE at >= ?",  # micro-dollars do not drift
    _OURS,
    "GROUP BY person, chat, is_own",
)
_TOLD = "SELECT name, chat, until, most FROM cap_told"
_TELL = upsert_sql("cap_told", "name", "chat", "until", "most", keys=2)
_ENDED = "DELETE FROM cap_told WHERE name = ? AND NOT (until = ? AND most = ?)"
_FORGET = "DELETE FROM cap_told WHERE name = ? AND chat = ?"


class SqlCapUsage:
    """Counts of caps that survive a restart: usage rows and sent notifications."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def load_usage(self, *, window: datetime, day: datetime, purposes: Iterable[str]) -> CapUsage:
        """Return the turns begun since *window*, what was spent since *day*, and the notified windows that run.

        Only calls of *purposes* count. The query reads both windows by an index; it is meant for the start.
        """
        wanted = write_json(sorted(purposes))

        def read(database: Database) -> CapUsage:
            turns: dict[str, tuple[Any, ...]] = {}  # of each turn the first row
            for columns in database.execute(_BEGUN, (micros(window), wanted)):
                turns.setdefault(columns[0], columns)
            tokens_spent = database.execute(_SPENT, (micros(day), wanted)).fetchall()
            notices = database.execute(_TOLD).fetchall()
            return CapUsage(
                turns=tuple(
                    StartedTurn(
                        turn=unquote(turn),
                        person=unquote(person),
                        chat=unquote(chat),
                        is_own=bool(is_own),
                        at=moment(at),
                    )
                    for turn, person, chat, is_own, at in turns.values()
                ),
                tokens=tuple(
                    SpentTokens(
                        person=unquote(person), chat=unquote(chat), is_own=bool(is_own), tokens=tokens, cost=int(cost)
                    )
                    for person, chat, is_own, tokens, cost in tokens_spent
                ),
                notices=tuple(
                    CapNotice(name=unquote(name), chat=unquote(chat), until=moment(until), limit=most)
                    for name, chat, until, most in notices
                ),
            )

        return await self._engine.writer.submit(read)


def mark_cap_notices(database: Database, notices: Iterable[CapNotice]) -> None:
    """Note sent cap notifications in place of those of earlier windows."""
    notices = tuple(notices)
    database.executemany(_ENDED, [(quote(each.name), micros(each.until), each.limit) for each in notices])
    database.executemany(
        _TELL, [(quote(each.name), quote(each.chat), micros(each.until), each.limit) for each in notices]
    )


def prune_cap_notices(database: Database, now: int) -> int:
    """Remove windows that have ended."""
    return database.execute("DELETE FROM cap_told WHERE until < ?", (now,)).rowcount


def forget_cap_notices(database: Database, names: Iterable[str]) -> None:
    """Remove what is noted of people and chats (as columns have them)."""
    gone = set(names)
    told = database.execute("SELECT name, chat FROM cap_told").fetchall()
    database.executemany(_FORGET, [(name, chat) for name, chat in told if chat in gone or _whose(name) in gone])


def _whose(name: str) -> str:
    """Return the person or chat in the name of a cap notice: the part after its first slash, or all of it."""
    kind, slash, who = name.partition("/")
    return who if slash else kind


T = TypeVar("T")

_POSTED_WITHIN = 0.25  # seconds
_KEEP = timedelta(hours=26) // timedelta(microseconds=1)  # of entries; longer than any day

_READ_CAPS = sql(
    "SELECT 'tokens', name, '', sum(spent), coalesce(sum(held) FILTER (WHERE worker IN",
    LISTED_WORKERS,
    "), 0), '' FROM cap_count WHERE worker != ? AND until = ? AND name", LISTED, "GROUP BY name",
    "UNION ALL SELECT 'entry', name, entry, at, 0, '' FROM cap_entry WHERE at > ? AND name", LISTED,
    "UNION ALL SELECT 'notice', name, chat, until, most, turn FROM cap_told WHERE name", LISTED,
)  # fmt: skip
_COUNT_CAPS = upsert_sql("cap_count", "name", "worker", "until", "spent", "held", keys=2)
_ENTER = "INSERT INTO cap_entry (name, entry, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_TELL_TURN = upsert_sql("cap_told", "name", "chat", "until", "most", "turn", keys=2)
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
    for kind, name, text, number, other, turn in database.execute(_READ_CAPS, columns):
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
        database.executemany(_COUNT_CAPS, rows)
    if entries := [each for change in changes for each in change.entries]:
        database.executemany(_ENTER, [(digest(each.name), quote(each.entry), micros(each.at)) for each in entries])
    for notice, turn in (each for change in changes for each in change.notices):
        name, ends = quote(notice.name), micros(notice.until)
        database.execute(_ENDED, (name, ends, notice.limit))
        database.execute(_TELL_TURN, (name, quote(notice.chat), ends, notice.limit, quote(turn)))


def prune_cap_counts(database: Database, now: int) -> int:
    """Remove the counts of days that have ended."""
    gone = database.execute("DELETE FROM cap_count WHERE until <= ?", (now,)).rowcount
    return gone + database.execute("DELETE FROM cap_entry WHERE at < ?", (now - _KEEP,)).rowcount
