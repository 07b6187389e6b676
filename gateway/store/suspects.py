"""Suspects: rows that may have crashed the process, and how the culprit is found.

In flight   A row is in flight while its turn is claimed, a control row while it is open, a job while it is leased.
Crash       An unclean stop adds one crash to every row in flight. Waiting rows are not charged.
Suspect     One crash: the turn is retried as usual. Two since the last deliberate stop: the turn is a suspect. A
            merged turn is one suspect, because it has one sender and one outcome; no rows are added to it.
Phase       A suspect does its own work in phases, one suspect at a time and nothing else beside it. While it
            waits for a model, it is outside any phase, and other turns and suspects run. Usual turns wait at most
            three seconds for a phase, so that a long one delays no chat.
Trial       The worker stores which row it tries before a phase starts, and removes that when the phase ends. A phase
            that still has company after three seconds of waiting does not count as a trial.
Attempt     A crash during a trial adds one attempt to the row on trial, and to no other.
            If a platform event was in hand at the crash, the attempt is given back.
Side by side  After the second crash suspects wait for their models side by side, after the third one by one. The only
            suspect, and one with an attempt or with more crashes, is on trial from its claim to its end, and only when
            no other suspect is in flight: one that crashes while it waits is found too.
Order       The suspect with the fewest attempts comes first, then the oldest: after a crash a suspect waits until
            each of the others has had its attempt.
Dead letter The pool dead-letters a suspect after three attempts without a result, and notifies its sender.
End         A suspect is cleared when its turn ends; with the last of them, isolation ends.
Stop        A deliberate stop charges nothing, and clears the crashes of rows that were never charged. A charged
            suspect remains one: it was the only work of a process that crashed.
No culprit  If the process crashes whatever it does (too little memory), each life charges another suspect. Alone,
            each needs as little memory as possible.
Job         A job is never dead-lettered for crashes. From the second crash on it is postponed with growing delays,
            apart from jobs that were in flight with it, and no job starts while there are suspects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.errors import exponential_delay
from gateway.events import SessionKey
from gateway.store.claims import LISTED_WORKERS
from gateway.store.database import SET_META, Database
from gateway.store.row_codec import quote, read_json, read_key, sql, write_json

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
_NEXT = sql("SELECT seq, state, key, turn, attempts, crashes", _SUSPECTS, "ORDER BY attempts, seq")
_ANY_NUMBER = 2**31  # of suspects may be in flight beside one after its second crash
_TAKEN = "alone"  # the `turn` of a control row that runs as a suspect
_TAKE_CONTROL = "UPDATE inbox SET turn = ? WHERE seq = ?"
_TRIAL = "trial/"  # and the worker's name, in `meta`: the key and the turn that it tries, or a control row's number
_READ_TRIAL = "DELETE FROM meta WHERE name = ? RETURNING value"
_CHARGE_TURN = (
    "UPDATE inbox SET attempts = attempts + 1 WHERE key = ? AND turn = ? AND state = 'claimed' AND ended_at IS NULL "
    "RETURNING seq"
)
_CHARGE_CONTROL = "UPDATE inbox SET attempts = attempts + 1 WHERE seq = ? AND +ended_at IS NULL RETURNING seq"
_IS_BEING_SENT = "SELECT 1 FROM outbox WHERE id >= ? AND id < ? AND open IS NOT NULL LIMIT 1"
LOST_LANES = sql("FROM lane WHERE owner != '' AND owner NOT IN", LISTED_WORKERS)
_ADD_CRASH = "UPDATE inbox SET crashes = crashes + 1 WHERE ended_at IS NULL AND"
_COUNT_CRASH = sql(_ADD_CRASH, "state = 'claimed' AND key IN (SELECT key", LOST_LANES, ")")
_COUNT_CONTROL_CRASH = sql(_ADD_CRASH, "state = 'control'")
_CONTROLS = "SELECT seq, key FROM inbox WHERE state = 'control' AND ended_at IS NULL"
_TRIED = "SELECT seq, key FROM inbox WHERE ended_at IS NULL AND crashes != 0"
_FREE_CONTROLS = "UPDATE inbox SET turn = '' WHERE state = 'control' AND ended_at IS NULL AND turn != ''"
_ACQUIT = "UPDATE inbox SET attempts = attempts - 1 WHERE seq = ? AND +ended_at IS NULL AND attempts > 0"
_FORGET_CRASHES = "UPDATE inbox SET crashes = 0 WHERE ended_at IS NULL AND crashes != 0 AND attempts = 0"
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
    most_beside: int  # other suspects that may be in flight with it

    @property
    def trial(self) -> str:
        """The value that `begin_trial` stores."""
        return str(self.seq) if self.is_control else write_json([self.key, self.turn])


@dataclass(frozen=True, slots=True)
class KilledJob:
    """A job that was leased at an unclean stop, for the log."""

    id: str
    kind: str
    attempts: int


def next_suspect(database: Database, is_ours: Callable[[SessionKey], bool], *, beside: int) -> NextSuspect | None:
    """Return the suspect with the fewest attempts, the oldest of them, of the chats that *is_ours* says.

    *beside* is the number of suspects that are in flight.
    """
    found = [columns for columns in database.execute(_NEXT).fetchall() if is_ours(read_key(columns[2]))]
    if not found:
        return None
    seq, state, key, turn, attempts, crashes = found[0]
    is_only = not beside and all(columns[3] == turn for columns in found)
    most_beside = 0 if attempts or is_only or crashes > CRASHES else _ANY_NUMBER
    return NextSuspect(seq, state == "control", key, turn, most_beside)


def take_control(database: Database, seq: int) -> None:
    """Take up a control row that is a suspect; the process that starts next, or a deliberate stop, frees it."""
    database.execute(_TAKE_CONTROL, (_TAKEN, seq))


def begin_trial(database: Database, worker: str, trial: str, answered: Iterable[str]) -> bool:
    """Store what *worker* tries; return False, and store nothing, while an answer of the turns *answered* is sent.

    A crash would leave it open whether that answer was delivered.
    """
    ranges = ((quote(f"{turn}."), quote(f"{turn}/")) for turn in answered)  # "/" follows "."
    if any(database.execute(_IS_BEING_SENT, each).fetchone() for each in ranges):
        return False
    database.execute(SET_META, (_TRIAL + worker, trial))
    return True


def end_trial(database: Database, worker: str) -> None:
    """Remove what *worker* tries. Has no effect the second time."""
    database.execute(_READ_TRIAL, (_TRIAL + worker,)).fetchall()


def end_trials(database: Database, dead: Iterable[str], *, charges: bool) -> tuple[int, ...]:
    """Remove the trials of the *dead* workers; return the rows that are charged an attempt, if it *charges*."""
    charged: list[int] = []
    for worker in dead:
        found = database.execute(_READ_TRIAL, (_TRIAL + worker,)).fetchone()
        if found is None or not charges:
            continue
        trial = read_json(found[0])
        update, columns = (_CHARGE_TURN, trial) if isinstance(trial, list) else (_CHARGE_CONTROL, (trial,))
        charged += [seq for (seq,) in database.execute(update, columns).fetchall()]
    return tuple(charged)


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


def acquit(database: Database, rows: tuple[int, ...]) -> None:
    """Give the attempt of these rows back: they did not have the process to themselves after all."""
    database.executemany(_ACQUIT, [(seq,) for seq in rows])


def free_controls(database: Database, is_lost: Callable[[SessionKey], bool] | None = None) -> None:
    """Let control rows that a process took up be claimed by the next one: of all chats, or of those that are lost."""
    _update(database, _FREE_CONTROLS, _CONTROLS, is_lost)


def forgive(database: Database, is_ours: Callable[[SessionKey], bool] | None = None) -> None:
    """Record a deliberate stop: no crashes for what was never charged.

    Of all chats, or of those that *is_ours* says.
    """
    _update(database, _FORGET_CRASHES, _TRIED, is_ours)


def _update(database: Database, update: str, rows: str, is_meant: Callable[[SessionKey], bool] | None) -> None:
    """Update all rows, or those of the query *rows* whose chat *is_meant*."""
    if is_meant is None:
        database.execute(update)
        return
    found = database.execute(rows).fetchall()
    database.executemany(sql(update, "AND seq = ?"), [(seq,) for seq, key in found if is_meant(read_key(key))])
