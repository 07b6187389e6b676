"""Tell live workers from dead ones: by the lock of each one's session, and its heartbeat by the server's clock."""

from __future__ import annotations

from datetime import datetime, timedelta

from gateway.store.claims import DEAD_AFTER, HEARTBEAT
from gateway.store.database import Database
from gateway.store.engine import Clock
from gateway.store.row_codec import moment, sql, unquote

_DEAD_AFTER = DEAD_AFTER // timedelta(microseconds=1)
_MISSED = 2 * HEARTBEAT // timedelta(microseconds=1)  # since the last heartbeat: one was missed
RETRY = HEARTBEAT / 2  # at most, between two attempts to connect to a server that is down
# After a failure of the server all are silent. Who is back first gives the others as long to come back.
_RETURNED = (2 * HEARTBEAT + RETRY) // timedelta(microseconds=1)
_OF_WORKER = "hashtextextended(current_schema() || '/' || {}, 0)"
_TAKE = sql("SELECT pg_try_advisory_lock(", _OF_WORKER.format("?"), ")")
_GIVE = sql("SELECT pg_advisory_unlock(", _OF_WORKER.format("?"), ")")
LOCK_HERE = (
    "locktype = 'advisory' AND granted "
    "AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_HELD = sql(
    "FROM worker JOIN pg_locks ON", LOCK_HERE, "AND objsubid = 1",
    "AND ((classid::bigint << 32) | objid::bigint) =", _OF_WORKER.format("name"),
)  # fmt: skip
RUNNING = sql(  # a transaction has this lock before it has a snapshot, and until it has ended
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'virtualxid' AND granted AND pid != pg_backend_pid()",
    "AND pid IN (SELECT pid", _HELD, ")",
)  # fmt: skip
_END_SESSIONS = sql(  # our broken one, and those of workers that hang
    "SELECT pg_terminate_backend(pid, 1000)", _HELD,
    "WHERE CASE WHEN name = ?1 THEN pid = ?2 ELSE beat_at < ?3 END",
)  # fmt: skip
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_LIVE = sql(  # before schema 9 there is no column `shares`
    "SELECT host, process, to_char(to_timestamp(started_at / 1000000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')",
    _HELD, "WHERE name != ? AND (? = 0 OR coalesce(to_jsonb(worker) ->> 'shares', '0') = '0')",
    "ORDER BY started_at LIMIT 1",
)  # fmt: skip
_CONNECTED_SINCE = (
    "SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity WHERE pid = pg_backend_pid()"
)
_OTHERS = "SELECT name, beat_at FROM worker WHERE name != ?"


def server_time(database: Database) -> int:
    """Return the server's time as columns have it: the one clock that all workers share."""
    return int(database.execute(_NOW).fetchone()[0])


class ServerClock:
    """The clock of all gateways that share a database: this machine's, corrected by the server's.

    A job is due, and a code is valid, at the same moment for each of them, however far their own clocks are apart.
    """

    def __init__(self, clock: Clock) -> None:
        self._machine_clock = clock
        self._ahead = timedelta()  # our own clock; changed at each look at the server

    def __call__(self) -> datetime:
        """Return the server's time, as far as we know it."""
        return self._machine_clock() - self._ahead

    def read(self, database: Database) -> int:
        """Return the server's time as columns have it; correct ours by it, as little as the reply's delay allows."""
        before = self._machine_clock()
        at = server_time(database)
        after = self._machine_clock()
        self._ahead = min(max(self._ahead, before - moment(at)), after - moment(at))
        return at


def take_lock(database: Database, worker: str) -> bool:
    """Take a worker's lock for this session; return False if another session has it."""
    return bool(database.execute(_TAKE, (worker,)).fetchone()[0])


def give_lock(database: Database, worker: str) -> None:
    """Give a worker's lock back."""
    database.execute(_GIVE, (worker,))


def end_sessions(database: Database, worker: str, broken: int = 0) -> None:
    """End the sessions of workers that hang, and of *worker* the one with the server's process *broken*."""
    database.execute(_END_SESSIONS, (worker, broken, server_time(database) - _DEAD_AFTER)).fetchall()


def describe_live(database: Database, worker: str, *, shares: bool) -> str:
    """Describe another worker that has its lock, and does not share the database with one that *shares*."""
    found = database.execute(_LIVE, (worker, int(shares))).fetchone()
    return f"on {unquote(found[0])}, process {found[1]}, since {found[2]} UTC" if found is not None else ""


def take_dead(database: Database, worker: str, *, shares: bool) -> list[str]:
    """Return the other workers that are dead, with their locks taken, so that none of them can come back.

    A worker is dead when its lock is free and a heartbeat was missed; one that hangs loses its session first. A worker
    that has just connected takes no other for dead. Where the database is not shared, those who start have seen
    already that no other is alive.
    """
    others = database.execute(_OTHERS, (worker,)).fetchall()
    if not others:
        return []
    now = server_time(database)
    silent = [(name, now - beat_at) for name, beat_at in others if not shares or now - beat_at > _MISSED]
    if shares and silent and now - database.execute(_CONNECTED_SINCE).fetchone()[0] < _RETURNED:
        return []
    if any(silence > _DEAD_AFTER for _, silence in silent):
        end_sessions(database, worker)
    return [name for name, _ in silent if take_lock(database, name)]
