"""Suspects: rows that may have crashed the process, and how the culprit is found.

In flight   A row is in flight while its turn is claimed, a control row while it is open, a job while it is leased.
Crash       An unclean stop adds one crash to every row in flight. Waiting rows are not charged.
Suspect     One crash: the turn is retried as usual. Two since the last deliberate stop: the turn is a suspect. A
            merged turn is one suspect, because it has one sender and one outcome; no rows are added to it.
Isolation   Only `claim_suspect` takes a suspect: one at a time, while no turn and no job runs. Every other turn goes
            first. Among suspects the one with the fewest attempts comes first, then the oldest: after a crash a
            suspect waits until each of the others has had its attempt.
Attempt     The claim adds it, in the claim's transaction and so before the work starts, and only if the turn has
            the process to itself. A waiting suspect is not claimed, so a crash charges at most one of them.
            If a platform event was in hand at the crash, the attempt was not alone and is given back.
Dead letter The pool dead-letters a suspect after three attempts without a result, and notifies its sender.
End         A suspect is cleared when its turn ends; with the last of them, isolation ends.
Stop        A deliberate stop gives the attempt of the running turn back, and clears the crashes of rows that were
            never charged. A charged suspect remains one: it was the only work of a process that crashed.
No culprit  If the process crashes whatever it does (too little memory), each life charges another suspect. Alone,
            each needs as little memory as possible.
Job         A job is never dead-lettered for crashes. From the second crash on it is postponed with growing delays,
            apart from jobs that were in flight with it, and no job starts while a suspect runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.backoff import exponential_delay
from gateway.events import SessionKey
from gateway.store.database import Database
from gateway.store.row_codec import read_key, sql
from gateway.store.workers import LISTED_WORKERS

CRASHES = 2  # unclean stops in flight that make a suspect
KILLED = "killed"  # the reason of a job that was leased at an unclean stop
_FIRST_DELAY = 30_000_000  # microseconds that a job is put off at its second crash; doubled at each further one
_LONGEST_DELAY = 86_400_000_000

# Waiting rows are no suspects, and neither is a control row that this process has taken up: its `turn` says so.
_SUSPECTS = sql(
    "FROM inbox WHERE ended_at IS NULL AND crashes >=",
    str(CRASHES),
    "AND (state = 'stamped' OR state = 'control' AND turn = '')",
)
_NEXT = sql("SELECT seq, state, key, turn", _SUSPECTS, "ORDER BY attempts, seq")
_TAKEN = "alone"  # the `turn` of a control row that runs as a suspect
_TAKE_CONTROL = "UPDATE inbox SET turn = ?, attempts = attempts + ? WHERE seq = ?"
LOST_LANES = sql("FROM lane WHERE owner != '' AND owner NOT IN", LISTED_WORKERS)
_ADD_CRASH = "UPDATE inbox SET crashes = crashes + 1 WHERE ended_at IS NULL AND"
_COUNT_CRASH = sql(_ADD_CRASH, "state = 'claimed' AND key IN (SELECT key", LOST_LANES, ")")
_COUNT_CONTROL_CRASH = sql(_ADD_CRASH, "state = 'control'")
_CONTROLS = "SELECT seq, key FROM inbox WHERE state = 'control' AND ended_at IS NULL"
_TRIED = "SELECT seq, key FROM inbox WHERE ended_at IS NULL AND (attempts > 0 OR crashes != 0)"
_FREE_CONTROLS = "UPDATE inbox SET turn = '' WHERE state = 'control' AND ended_at IS NULL AND turn != ''"
_CHARGED = "ended_at IS NULL AND attempts > 0 AND (state = 'claimed' OR state = 'control' AND turn != '')"
_GIVE_BACK = sql("UPDATE inbox SET attempts = attempts - 1 WHERE", _CHARGED)
_LAST_CHARGED = sql("SELECT seq, key FROM inbox WHERE", _CHARGED)
_ACQUIT = "UPDATE inbox SET attempts = attempts - 1 WHERE seq = ? AND +ended_at IS NULL AND attempts > 0"
_FORGET_CRASHES = "UPDATE inbox SET crashes = 0 WHERE ended_at IS NULL AND crashes != 0 AND attempts = 0"
AT_CLOSE = (_GIVE_BACK, _FORGET_CRASHES, _FREE_CONTROLS)  # of the open rows each, once per process
_LOST_JOBS = sql("leased != 0 AND worker NOT IN", LISTED_WORKERS)
_KILLED_JOBS = sql(
    "SELECT seq, id, kind, attempts, due_at FROM job WHERE", _LOST_JOBS, "ORDER BY attempts, due_at, seq"
)
FREE_JOBS = sql("UPDATE job SET leased = 0 WHERE", _LOST_JOBS)
_PUT_OFF = "UPDATE job SET attempts = ?, due_at = ?, reason = ? WHERE seq = ?"


@dataclass(frozen=True, slots=True)
class SuspectHead:
    """The next turn of a session queue is a suspect: `claim` leaves it to `claim_suspect`."""


@dataclass(frozen=True, slots=True)
class NextSuspect:
    """The suspect whose attempt is due."""

    seq: int
    is_control: bool
    key: str
    turn: str


@dataclass(frozen=True, slots=True)
class KilledJob:
    """A job that was leased at an unclean stop, for the log."""

    id: str
    kind: str
    attempts: int


def next_suspect(database: Database, is_ours: Callable[[SessionKey], bool]) -> NextSuspect | None:
    """Return the suspect with the fewest attempts, the oldest of them, of the chats that *is_ours* says."""
    for seq, state, key, turn in database.execute(_NEXT).fetchall():
        if is_ours(read_key(key)):
            return NextSuspect(seq, state == "control", key, turn)
    return None


def take_control(database: Database, seq: int, attempt: int) -> None:
    """Take up a control row that is a suspect; the process that starts next, or a deliberate stop, frees it."""
    database.execute(_TAKE_CONTROL, (_TAKEN, attempt, seq))


def count_crash(database: Database, now: int, is_lost: Callable[[SessionKey], bool] | None = None) -> list[KilledJob]:
    """Add a crash to everything that was in flight in a worker that was killed; return the jobs among it.

    Control rows are those of all chats, or of those that *is_lost* says.
    """
    database.execute(_COUNT_CRASH)
    _update(database, _COUNT_CONTROL_CRASH, _CONTROLS, is_lost)
    killed = []
    for place, (seq, id_, kind, attempts, due_at) in enumerate(database.execute(_KILLED_JOBS).fetchall(), 1):
        # The first crash delays nothing. Later ones keep the jobs apart, so that only one of them meets the next crash.
        delay = (
            int(min(exponential_delay(attempts, _FIRST_DELAY, _LONGEST_DELAY) * place, _LONGEST_DELAY))
            if attempts
            else 0
        )
        database.execute(_PUT_OFF, (attempts + 1, max(due_at, now + delay), KILLED, seq))
        killed.append(KilledJob(id_, kind, attempts + 1))
    return killed


def free_jobs(database: Database) -> None:
    """Let jobs be leased whose worker is not listed any more."""
    database.execute(FREE_JOBS)


def last_charged(database: Database, is_lost: Callable[[SessionKey], bool] | None = None) -> tuple[int, ...]:
    """Return the rows whose counted attempt was running when the process before ended.

    Of all chats, or of those that *is_lost* says: another gateway may run an attempt at the same time.
    """
    charged = database.execute(_LAST_CHARGED).fetchall()
    return tuple(seq for seq, key in charged if is_lost is None or is_lost(read_key(key)))


def acquit(database: Database, rows: tuple[int, ...]) -> None:
    """Give the attempt of these rows back: they did not have the process to themselves after all."""
    database.executemany(_ACQUIT, [(seq,) for seq in rows])


def free_controls(database: Database, is_lost: Callable[[SessionKey], bool] | None = None) -> None:
    """Let control rows that a process took up be claimed by the next one: of all chats, or of those that are lost."""
    _update(database, _FREE_CONTROLS, _CONTROLS, is_lost)


def forgive(database: Database, is_ours: Callable[[SessionKey], bool] | None = None) -> None:
    """Record a deliberate stop: no attempt for what runs, no crashes for what was never charged.

    Of all chats, or of those that *is_ours* says.
    """
    for update in (_GIVE_BACK, _FORGET_CRASHES):
        _update(database, update, _TRIED, is_ours)


def _update(database: Database, update: str, rows: str, is_meant: Callable[[SessionKey], bool] | None) -> None:
    """Update all rows, or those of the query *rows* whose chat *is_meant*."""
    if is_meant is None:
        database.execute(update)
        return
    found = database.execute(rows).fetchall()
    database.executemany(sql(update, "AND seq = ?"), [(seq,) for seq, key in found if is_meant(read_key(key))])
