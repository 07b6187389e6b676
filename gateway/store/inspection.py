"""Queries for operators: the trace of a turn, and the queue depths."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.events import InboundKind, SessionKey
from gateway.ports.journal import MessageOutcome, UsageRow
from gateway.ports.memory import REPOSITORY
from gateway.store.database import LISTED, Database, QueryResult
from gateway.store.row_codec import micros, moment, quote, read_json, read_key, sql, unquote, write_json, write_key
from gateway.store.usage import usage_of

_END = "\U0010ffff"
_FIND = (
    "SELECT turn, key FROM record WHERE turn >= ?1 AND turn < ?2 "
    "UNION SELECT turn, key FROM inbox WHERE ended_at IS NULL AND turn >= ?1 AND turn < ?2 AND turn != '' LIMIT 2"
)
_FIND_MESSAGE = "SELECT id, key FROM outbox WHERE id >= ? AND id < ?"
_INBOX = "SELECT seq, state, attempts, crashes, sent_at, accepted_at, ended_at FROM inbox WHERE"
_KNOWN = sql("SELECT turn FROM record WHERE turn", LISTED)
_OLDEST = "SELECT at FROM record ORDER BY seq LIMIT 1"
_IDENTITY = "SELECT name, value FROM meta WHERE name IN ('store', 'stamps')"
# Of the turns whose lines are in a transcript.
_NEWEST = (
    "SELECT turn FROM record WHERE inbox != '[]' AND seq NOT IN (SELECT seq FROM unwritten) ORDER BY seq DESC LIMIT 1"
)
_TURNS_AT_ONCE = 500
_MOST_SEARCHED = 20_000  # of the newest turns: a search must not hold the writer for longer than a moment
_WITHIN = (
    "at >= ? AND at < ? AND (? = '' OR key = ? OR (key >= ? AND key < ? AND (? = '' OR scope = ?))) "
    "AND (? = '[]' OR turn IN (SELECT turn FROM usage WHERE person",
    LISTED,
    "))",
)
_ENDED_TURNS = sql(
    "SELECT turn, key, outcome, at, failure FROM (SELECT seq, turn, key, scope, outcome, at, failure FROM record "
    "ORDER BY seq DESC LIMIT ?) AS newest WHERE",
    *_WITHIN,
    "ORDER BY seq DESC LIMIT ?",
)
_FAILED_TURNS = sql(
    "SELECT turn, key, outcome, at, failure FROM (SELECT seq, turn, key, outcome, at, failure FROM record "
    "ORDER BY seq DESC LIMIT ?) AS newest WHERE failure != '' AND at >= ? ORDER BY seq DESC LIMIT ?"
)
_HOUR = 3_600_000_000  # microseconds
_MESSAGES_BY_HOUR = (
    "SELECT accepted_at / ?, count(*), count(*) FILTER (WHERE ended_at IS NOT NULL AND state = 'answered'), "
    "coalesce(sum(ended_at - accepted_at) FILTER (WHERE ended_at IS NOT NULL AND state = 'answered'), 0), "
    "coalesce(max(ended_at - accepted_at) FILTER (WHERE ended_at IS NOT NULL AND state = 'answered'), 0) "
    "FROM (SELECT state, accepted_at, ended_at FROM inbox ORDER BY seq DESC LIMIT ?) AS newest "
    "WHERE accepted_at >= ? GROUP BY 1"
)
_COST_BY_HOUR = (
    "SELECT at / ?, coalesce(sum(cost), 0), coalesce(sum(calls) FILTER (WHERE cost IS NULL), 0) "
    "FROM usage WHERE at >= ? AND substr(purpose, 1, 5) != 'tool-' GROUP BY 1"
)
_OPEN_TURNS = sql(
    "SELECT turn, key, 'running', at, '' FROM (SELECT turn, key, '' AS scope, min(accepted_at) AS at FROM inbox "
    "WHERE ended_at IS NULL AND turn != '' GROUP BY turn, key) AS begun WHERE",
    *_WITHIN,
    "ORDER BY at DESC LIMIT ?",
)
_SUMS = sql(
    "SELECT turn, sum(calls), sum(tokens_in) + sum(tokens_out), coalesce(sum(cost), 0), "
    "coalesce(sum(calls) FILTER (WHERE cost IS NULL), 0) FROM usage WHERE substr(purpose, 1, 5) != 'tool-' AND turn",
    LISTED,
    "GROUP BY turn",
)
_FOREVER = 2**62  # microseconds
_DUE_STATES = "i.state IN ('waiting', 'claimed', 'stamped') AND i.ended_at IS NULL"
_PROMISE = "SELECT i.key, i.message_id, i.state, i.accepted_at, i.turn, ''"
_DUE = sql(
    _PROMISE,
    "FROM inbox i LEFT JOIN session s ON s.key = i.key WHERE",
    _DUE_STATES,
    "AND (s.scope = ? OR i.key = ?) AND (? = '' OR i.sender = ?) ORDER BY i.accepted_at, i.seq LIMIT ?",
)
_ALL_DUE = sql(_PROMISE, "FROM inbox i WHERE", _DUE_STATES, "ORDER BY i.accepted_at, i.seq LIMIT ?")
_LATE = sql("SELECT count(*), min(i.accepted_at) FROM inbox i WHERE", _DUE_STATES, "AND i.accepted_at < ?")
_OLDEST_DUE = sql("SELECT i.key FROM inbox i WHERE", _DUE_STATES, "ORDER BY i.accepted_at, i.seq LIMIT 1")
# A due reminder becomes an inbox row within a second. Those that are paused or in quiet hours are due later.
_LATE_REMINDERS = "SELECT count(*), min(due_at) FROM job WHERE kind = 'remind' AND due_at < ?"
_ENDED = (
    "SELECT key, outcome, failure, at, turn, inbox FROM record WHERE scope = ? AND key = ? AND inbox != '[]' "
    "ORDER BY seq DESC LIMIT ?"
)
# The messages of a job that fires are found by the names that make each of them once, in the order of the index.
_RUNS = sql(
    "SELECT i.key, i.turn, i.state, i.accepted_at, i.ended_at, r.failure,",
    "EXISTS (SELECT 1 FROM outbox o WHERE o.id >= i.turn || '.' AND o.id < i.turn || '/')",
    "FROM dedupe d JOIN inbox i ON i.seq = d.seq LEFT JOIN record r ON r.turn = i.turn",
    "WHERE d.name >= ? AND d.name < ? ORDER BY +i.seq DESC LIMIT ?",
)
_SPENT = (
    "SELECT coalesce(sum(tokens_in + tokens_out), 0), coalesce(sum(cost), 0), "
    "coalesce(sum(calls) FILTER (WHERE cost IS NULL), 0) "
    "FROM usage WHERE at >= ? AND at < ? AND turn = ? AND substr(purpose, 1, 5) != 'tool-'"
)
_USAGE_LATER = 60_000_000  # microseconds after the end of a turn, within which its usage is stored
_MOST_ENDED = 50  # turns in which they are looked for
_ENDED_ROWS = sql(
    "SELECT seq, message_id, sender, payload FROM inbox WHERE seq IN (", ", ".join("?" * _MOST_ENDED), ")"
)
_OPEN_ROWS = sql(_INBOX, "ended_at IS NULL AND key = ? AND turn = ?")
_ENDED_ROW = sql(_INBOX, "seq = ?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Something that will not be tried again, kept 90 days for the operator."""

    id: str  # inbox:<seq> or a part id
    key: SessionKey
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrace:
    """Everything the journal knows of one turn, for `parlour turn`."""

    turn: str
    key: SessionKey
    inbox: tuple[Mapping[str, Any], ...]
    steps: tuple[Mapping[str, Any], ...]
    record: Mapping[str, Any] | None
    parts: tuple[Mapping[str, Any], ...]
    usage: tuple[UsageRow, ...]
    dead: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuery:
    """The turns that an operator looks for. All fields that are set apply."""

    chat: SessionKey | None = None  # with its threads
    scope: str = ""  # of the threads of `chat`, where others are to be left out
    accounts: tuple[str, ...] = ()  # names of accounts: turns that one of them caused
    since: datetime | None = None
    until: datetime | None = None  # exclusive
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSummary:
    """One line about a turn, without a word of it."""

    turn: str
    key: SessionKey
    outcome: str  # "running" for a turn that has not ended
    at: datetime
    failure: str = ""
    calls: int = 0
    tokens: int = 0
    known_cost: float = 0.0
    unpriced_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HourSummary:
    """The messages that were accepted within one hour, and what its model calls cost."""

    at: datetime  # its begin
    messages: int = 0
    answers: int = 0
    mean_wait: float = 0.0  # seconds from the acceptance of an answered message to the end of its turn
    longest_wait: float = 0.0
    known_cost: float = 0.0  # dollars
    unpriced_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """An accepted message or job whose end is owed to its person, or how it ended; without a word of it."""

    kind: str  # "answer", "call" (that a person allowed), "reminder", "task"
    key: SessionKey
    state: str  # "waiting", "running", a `MessageOutcome`, or "failed": answered with an error
    at: datetime  # accepted, or ended
    turn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """One run of a scheduled request, without a word of it. It is kept as long as the row of its message."""

    key: SessionKey  # the session in which it ran
    turn: str
    state: str  # as of a `Promise`, or "silent": answered, and nothing was sent
    at: datetime
    tokens: int
    known_cost: float  # dollars
    unpriced_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatePromises:
    """Counts of messages and reminders that are overdue."""

    messages: int
    reminders: int
    since: datetime | None = None  # of the oldest; None if nothing is late
    key: SessionKey | None = None  # the chat of the oldest message


def _dicts(cursor: QueryResult) -> tuple[dict[str, Any], ...]:
    names = [column[0] for column in cursor.description]
    return tuple(dict(zip(names, columns, strict=True)) for columns in cursor)


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: moment(value) if (name == "at" or name.endswith("_at")) and value is not None else value
        for name, value in row.items()
    }


def trace_turn(database: Database, reference: str) -> TurnTrace | None:
    """Return the trace of the turn whose id begins with *reference*; None for no or several matches."""
    ids = (reference, reference + _END)
    found = set(database.execute(_FIND, ids)) if reference else set()
    if reference:
        found |= {(id_.partition(".")[0], key) for id_, key in database.execute(_FIND_MESSAGE, ids)}
    if len(found) != 1:
        return None
    ((turn, key),) = found
    record = _record(database, turn)
    rows = [_timed(row) for row in _dicts(database.execute(_OPEN_ROWS, (key, turn)))]
    for seq in record["inbox"] if record else ():
        ended = _dicts(database.execute(_ENDED_ROW, (seq,)))
        rows += [_timed(row) for row in ended]
    steps = _dicts(database.execute("SELECT n, kind, call FROM step WHERE turn = ? ORDER BY n", (turn,)))
    parts = _dicts(
        database.execute(
            "SELECT o.id || '.' || n AS id, state, attempts, message_id, reason, at "
            "FROM outbox o JOIN part ON part.message = o.seq WHERE o.id >= ? AND o.id < ? ORDER BY o.id, n",
            (f"{turn}.", f"{turn}/"),
        )
    )
    return TurnTrace(
        turn=unquote(turn),
        key=read_key(key),
        inbox=tuple(rows),
        steps=steps,
        record=record,
        parts=tuple(_timed(part) for part in parts),
        usage=usage_of(database, turn),
        dead=_dead(database, turn),
    )


def find_turns(database: Database, query: TurnQuery) -> tuple[TurnSummary, ...]:
    """Return the turns that *query* names: the running ones, then the newest of those that have ended."""
    chat = write_key(query.chat) if query.chat is not None else ""
    scope, accounts = quote(query.scope), write_json(sorted(map(quote, query.accounts)))
    columns = (
        micros(query.since) if query.since else 0,
        micros(query.until) if query.until else _FOREVER,
        *(chat, chat, f"{chat}/", f"{chat}0"),  # "0" follows "/": all threads of the chat are between the two
        *(scope, scope, accounts, accounts),
        query.limit,
    )
    found = [*database.execute(_OPEN_TURNS, columns), *database.execute(_ENDED_TURNS, (_MOST_SEARCHED, *columns))]
    return _summaries(database, list({row[0]: row for row in reversed(found)}.values())[::-1][: query.limit])


def failed_turns(database: Database, since: int, limit: int) -> tuple[TurnSummary, ...]:
    """Return the turns that failed since *since*, the newest first, among the newest 20,000."""
    return _summaries(database, list(database.execute(_FAILED_TURNS, (_MOST_SEARCHED, since, limit))))


def summarise_hours(database: Database, since: int, until: int) -> tuple[HourSummary, ...]:
    """Return every hour from that of *since* to that of *until*, the oldest first.

    Messages are counted among the newest 20,000.
    """
    first = since // _HOUR
    begin = first * _HOUR
    messages = {hour: each for hour, *each in database.execute(_MESSAGES_BY_HOUR, (_HOUR, _MOST_SEARCHED, begin))}
    costs = {hour: each for hour, *each in database.execute(_COST_BY_HOUR, (_HOUR, begin))}
    found = []
    for hour in range(first, until // _HOUR + 1):
        accepted, answers, waits, longest = messages.get(hour, (0, 0, 0, 0))
        cost, unpriced = costs.get(hour, (0.0, 0))
        summary = HourSummary(
            at=moment(hour * _HOUR),
            messages=accepted,
            answers=answers,
            mean_wait=waits / 1e6 / (answers or 1),
            longest_wait=longest / 1e6,
            known_cost=float(cost),
            unpriced_calls=int(unpriced),
        )
        found.append(summary)
    return tuple(found)


def _summaries(database: Database, rows: Sequence[Sequence[Any]]) -> tuple[TurnSummary, ...]:
    """Return the summaries of *rows* of turns, with what each of them used."""
    sums = {turn: each for turn, *each in database.execute(_SUMS, (write_json([row[0] for row in rows]),))}
    return tuple(
        TurnSummary(
            turn=unquote(turn),
            key=read_key(key),
            outcome=outcome,
            at=moment(at),
            failure=unquote(failure),
            **dict(
                zip(("calls", "tokens", "known_cost", "unpriced_calls"), sums.get(turn, (0, 0, 0.0, 0)), strict=True)
            ),
        )
        for turn, key, outcome, at, failure in rows
    )


_PROMISES_BY_PREFIX = {"job:remind/": "reminder", "job:task/": "task", "job:allowed/": "call"}


def _promise(columns: tuple[Any, ...]) -> Promise:
    key, message_id, state, at, turn, failure = columns
    kind = next((kind for start, kind in _PROMISES_BY_PREFIX.items() if message_id.startswith(start)), "answer")
    return Promise(kind=kind, key=read_key(key), state=_state_word(state, failure), at=moment(at), turn=unquote(turn))


def _state_word(state: str, failure: str) -> str:
    return {"claimed": "running", "stamped": "waiting"}.get(state, "failed" if failure else state)


def due_promises(database: Database, scope: str, key: str, sender: str, limit: int) -> tuple[Promise, ...]:
    """Return the due promises in the chats of *scope* and in *key*, of *sender* or of all, the oldest first."""
    return tuple(map(_promise, database.execute(_DUE, (scope, key, sender, sender, limit))))


def all_due_promises(database: Database, limit: int) -> tuple[Promise, ...]:
    """Return the due promises of all chats, the oldest first."""
    return tuple(map(_promise, database.execute(_ALL_DUE, (limit,))))


def ended_promises(database: Database, scope: str, key: str, sender: str, limit: int) -> tuple[Promise, ...]:
    """Return the ended promises of *sender* in *key*, or of all, the newest first; commands are left out.

    They are looked for among the newest 50 turns.
    """
    turns = list(database.execute(_ENDED, (scope, key, _MOST_ENDED)))
    first = {turn: read_json(inbox)[0] for _, _, _, _, turn, inbox in turns}
    numbers = [*first.values(), *[-1] * (_MOST_ENDED - len(first))]
    rows = {
        seq: (message_id, of)
        for seq, message_id, of, payload in database.execute(_ENDED_ROWS, tuple(numbers))
        if read_json(payload).get("kind") not in (InboundKind.COMMAND, InboundKind.BUTTON)
    }
    found = [
        _promise((chat, rows[first[turn]][0], outcome, at, turn, failure))
        for chat, outcome, failure, at, turn, _ in turns
        if first[turn] in rows and sender in ("", rows[first[turn]][1])
    ]
    return tuple(found[:limit])


def scheduled_runs(database: Database, names: Collection[str], limit: int) -> tuple[ScheduledRun, ...]:
    """Return the runs whose messages are stored under names that begin with one of *names*, the newest first."""
    found = [row for name in names for row in database.execute(_RUNS, (quote(name), quote(name + _END), limit))]
    runs = []
    for key, turn, state, at, ended_at, failure, has_messages in sorted(found, key=lambda row: -row[3])[:limit]:
        until = _FOREVER if ended_at is None else ended_at + _USAGE_LATER
        tokens, cost, unpriced = database.execute(_SPENT, (at, until, turn)).fetchone()
        word = _state_word(state, failure or "")
        run = ScheduledRun(
            key=read_key(key),
            turn=unquote(turn),
            state="silent" if word == MessageOutcome.ANSWERED.value and not has_messages else word,
            at=moment(at),
            tokens=tokens,
            known_cost=cost,
            unpriced_calls=unpriced,
        )
        runs.append(run)
    return tuple(runs)


def late_promises(database: Database, before: int) -> LatePromises:
    """Return the promises that were accepted, or due, before *before* and have not ended."""
    messages, oldest = database.execute(_LATE, (before,)).fetchone()
    reminders, oldest_reminder = database.execute(_LATE_REMINDERS, (before,)).fetchone()
    since = min((each for each in (oldest, oldest_reminder) if each is not None), default=None)
    chat = database.execute(_OLDEST_DUE).fetchone() if messages else None
    return LatePromises(
        messages=messages,
        reminders=reminders,
        since=None if since is None else moment(since),
        key=None if chat is None else read_key(chat[0]),
    )


def _record(database: Database, turn: str) -> dict[str, Any] | None:
    found = _dicts(
        database.execute(
            "SELECT r.seq, transcript, outcome, from_index, to_index, inbox, at, new_transcript, failure, supersedes, "
            "u.seq IS NULL AS is_written FROM record r LEFT JOIN unwritten u ON u.seq = r.seq WHERE turn = ?",
            (turn,),
        )
    )
    if not found:
        return None
    return _timed(found[0]) | {"inbox": read_json(found[0]["inbox"]), "is_written": bool(found[0]["is_written"])}


def _dead(database: Database, turn: str) -> tuple[DeadLetter, ...]:
    found = database.execute("SELECT id, key, reason, at FROM dead WHERE turn = ? ORDER BY at, id", (turn,))
    return tuple(
        DeadLetter(id=unquote(id_), key=read_key(key), reason=unquote(reason), at=moment(at))
        for id_, key, reason, at in found
    )


def queue_depth(database: Database, now: int) -> dict[str, Any]:
    """Count what waits."""
    queued, oldest = database.execute(
        "SELECT count(*), min(accepted_at) FROM inbox WHERE ended_at IS NULL AND state IN ('waiting', 'stamped')"
    ).fetchone()
    (running,) = database.execute("SELECT count(*) FROM inbox WHERE ended_at IS NULL AND state = 'claimed'").fetchone()
    (undelivered,) = database.execute("SELECT count(*) FROM outbox WHERE open IN (1, 3)").fetchone()
    (dead,) = database.execute("SELECT count(*) FROM dead").fetchone()
    (unwritten,) = database.execute("SELECT count(*) FROM unwritten").fetchone()
    return {
        "queued": queued,
        "running": running,
        "oldest_seconds": max(0.0, (now - oldest) / 1_000_000) if oldest is not None else 0.0,
        "undelivered": undelivered,
        "dead": dead,
        "unwritten": unwritten,
    }


def missing_turns(database: Database, turns: Mapping[str, int]) -> Collection[str]:
    """Return those of *turns* that must have been stored at these times (microseconds since 1970), and are not there.

    A turn that is older than the oldest record may have been removed by age.
    """
    oldest = database.execute(_OLDEST).fetchone()
    wanted = [turn for turn, at in turns.items() if oldest is None or at >= oldest[0]]
    known: set[str] = set()
    for start in range(0, len(wanted), _TURNS_AT_ONCE):
        names = write_json([quote(turn) for turn in wanted[start : start + _TURNS_AT_ONCE]])
        known.update(unquote(turn) for (turn,) in database.execute(_KNOWN, (names,)))
    return [turn for turn in wanted if turn not in known]


def stale_sessions(database: Database) -> Collection[str]:
    """Return the sessions with files that may still have turns which were removed from the store."""
    found = database.execute("SELECT DISTINCT key FROM stale_file WHERE changes > written AND key != ''")
    return {unquote(key) for (key,) in found}


def owed_erasures(database: Database) -> Sequence[str]:
    """Return the scopes with files that may still have erased words, or with an erasure that has not ended."""
    found = database.execute(
        "SELECT scope FROM stale_file WHERE changes > written AND written >= 0 AND (key != '' OR transcript = ?) "
        "UNION SELECT scope FROM job WHERE kind IN ('forget', 'forgotten', 'purge', 'erase', 'delete_conversation')",
        (quote(REPOSITORY),),
    )
    return sorted(unquote(scope) or "the home" for (scope,) in found)


def count_turns(database: Database) -> int | None:
    """Return the number of stored turns; None in a store whose turns are in files of an earlier release."""
    if database.execute("SELECT 1 FROM meta WHERE name = 'adopted_turns'").fetchone() is None:
        return None
    (count,) = database.execute(  # of indices, not of the rows with their lines
        "SELECT (SELECT count(*) FROM record) - (SELECT count(*) FROM record WHERE body IS NULL)"
    ).fetchone()
    return int(count)


def count_people(database: Database) -> int:
    """Return the number of people with a conversation, a memory or files of their own."""
    (count,) = database.execute(
        "SELECT count(*) FROM (SELECT scope FROM session UNION SELECT scope FROM memory_scope"
        " UNION SELECT scope FROM stored_file) found WHERE scope LIKE 'people/%'"
    ).fetchone()
    return int(count)


def newest_turn(database: Database) -> str:
    """Return the newest turn that answered messages and is in its file; "" without one."""
    found = database.execute(_NEWEST).fetchone()
    return unquote(found[0]) if found is not None else ""


def read_identity(database: Database) -> tuple[str, int]:
    """Return the random id of a store, "" before its first start, and its count of stamps."""
    meta = dict(database.execute(_IDENTITY).fetchall())
    return str(meta.get("store", "")), int(meta.get("stamps", "0"))
