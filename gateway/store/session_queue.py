"""Session queues: claiming, merging, fencing and releasing turns.

A session has at most one lease. Its epoch rises at every claim and fences all writes under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, TypeAlias

from gateway.errors import LeaseLost
from gateway.events import SessionKey, turn_id
from gateway.ports.journal import REMEMBER, InboxRow, SessionRow, Suspect, TurnLease, TurnStep
from gateway.store.claims import claim_name
from gateway.store.database import Database
from gateway.store.engine import StoreLimits
from gateway.store.inbox import ROW, read_row
from gateway.store.row_codec import moment, quote, read_key, read_step, sql, unquote, write_key
from gateway.store.suspects import LOST_LANES, SuspectHead, next_suspect, take_control

SECOND = 1_000_000  # microseconds
ALL = 2**62  # as a limit
LONGEST_PASTE = 100  # rows of one paste or album; the rest is another turn

NewTranscript: TypeAlias = Callable[[], str]

_LANE = "SELECT owner, epoch, turn FROM lane WHERE key = ?"
_ORDER = "ORDER BY sent_at, length(message_id), message_id, seq"
_QUEUED = "seq, sender, sent_at, album, length, alone, accepted_at"
# With the id of the newest change: numbers begin again in a scope that was emptied.
_VERSION = (
    "(SELECT m.number || ' ' || m.epoch || ' ' || coalesce((SELECT c.id FROM document_change c "
    "WHERE c.scope = m.scope AND c.number = m.number), '') FROM memory_scope m WHERE m.scope ="
)
_FACTS = sql(
    "SELECT l.owner, l.turn, s.transcript, s.next_index, s.created_at, s.scope,",
    "(SELECT max(seq) FROM record WHERE scope = s.scope AND key = s.key),",
    "(SELECT changes FROM stale_file WHERE scope = s.scope AND key = s.key AND transcript = s.transcript),",
    "EXISTS (SELECT 1 FROM job WHERE scope IN (s.scope, 'shared') AND kind = ?4),",
    *(sql(_VERSION, f"{each}),") for each in ("s.scope", "''", "'shared'")),
    "(SELECT count(*) FROM inbox WHERE key = k.key AND state = 'waiting' AND ended_at IS NULL),",
    "EXISTS (SELECT 1 FROM inbox WHERE key = k.key AND state = 'noted' AND ended_at IS NULL),",
    "?3 = '' OR EXISTS (SELECT 1 FROM claim WHERE name = ?2 AND worker = ?3),",
    ", ".join(f"i.{column}" for column in f"{_QUEUED}, {ROW}".split(", ")),
    "FROM (SELECT ?1 AS key) k LEFT JOIN lane l ON l.key = k.key LEFT JOIN session s ON s.key = k.key",
    "LEFT JOIN inbox i ON i.seq = (SELECT seq FROM inbox",
    "WHERE key = ?1 AND state = 'waiting' AND ended_at IS NULL",
    _ORDER,
    "LIMIT 1)",
)
_TAKE_LANE = (
    "INSERT INTO lane (key, owner, epoch, turn) VALUES (?, ?, 1, ?) "
    "ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, epoch = lane.epoch + 1, turn = excluded.turn "
    "RETURNING epoch"
)
_OWNED = "SELECT key, epoch FROM lane WHERE owner = ?"
_FREE_LANE = "UPDATE lane SET owner = '' WHERE key = ?"
RECOVER_ROWS = sql(
    "UPDATE inbox SET state = 'stamped' WHERE state = 'claimed' AND ended_at IS NULL AND key IN (SELECT key",
    LOST_LANES,
    ")",
)
RECOVER_LANES = sql("UPDATE lane SET owner = '' WHERE key IN (SELECT key", LOST_LANES, ")")
_GIVE_BACK = "UPDATE inbox SET state = 'stamped' WHERE key = ? AND state = 'claimed' AND ended_at IS NULL"
_WAITING = sql("SELECT", _QUEUED, "FROM inbox WHERE key = ? AND state = 'waiting' AND ended_at IS NULL", _ORDER)
_OF_TURN = sql("SELECT", ROW, "FROM inbox WHERE key = ? AND state = ? AND ended_at IS NULL AND turn = ?", _ORDER)
_ONE = sql("SELECT", ROW, "FROM inbox WHERE seq = ?")
_STAMP = "UPDATE inbox SET state = 'claimed', turn = ? WHERE seq = ?"
_STORE_STEP = (
    "INSERT INTO step (turn, n, kind, call, body) SELECT turn, ?, ?, ?, ? FROM lane "
    "WHERE key = ? AND owner = ? AND epoch = ? AND turn = ? ON CONFLICT DO NOTHING"
)
_NOTES = sql("SELECT", ROW, "FROM inbox WHERE key = ? AND state = 'noted' AND ended_at IS NULL ORDER BY seq")
_SESSION = "SELECT transcript, next_index, created_at, scope FROM session WHERE key = ?"


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """The columns of a queued row that merging needs."""

    seq: int
    sender: str
    sent_at: int
    album: str
    length: int
    alone: int  # never merges (a command, a job)
    accepted_at: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """State of a session, which a claim reads in one statement."""

    owner: str  # "" = nobody
    turn: str  # that was released, or ""
    session: SessionRow | None
    waiting: int
    has_notes: bool
    is_ours: bool  # the claim to the chat
    head: QueuedRow | None  # the first that waits
    head_row: tuple[Any, ...]  # its columns of `ROW`


@dataclass(frozen=True, slots=True)
class MergeDelay:
    """The head of the lane may not be whole yet."""

    seconds: float


def merge_rows(queued: Iterable[QueuedRow], limits: StoreLimits, now: int) -> tuple[list[QueuedRow], MergeDelay | None]:
    """Return the rows that make the next turn; or, with them, how long to wait for the rest of an album or paste.

    Rows behind the first are asked for only if they may belong to it.
    """
    rows = iter(queued)
    head = next(rows, None)
    if head is None:
        return [], None
    group = [head]
    if limits.merge == "off" or head.alone:
        return group, None
    if age := _age(head, limits, now):
        return [*group, *_of_the_same_absence(head, rows, age, limits, now)], None
    while limits.merge == "burst" or group[-1].album or group[-1].length >= limits.split_length:
        row = next(rows, None)
        if row is None:
            break
        if not _belongs(group[-1], row, limits) or len(group) >= _longest(limits):
            return group, None
        group.append(row)
    last = group[-1]
    if not last.album and last.length < limits.split_length:
        return group, None
    waited = (now - last.accepted_at) / SECOND
    # A negative time means that the clock went back; do not wait.
    return group, MergeDelay(limits.split_seconds - waited) if 0 <= waited < limits.split_seconds else None


def _age(row: QueuedRow, limits: StoreLimits, now: int) -> int:
    """Return 0 for what is answered as usual, 1 for a backlog, 2 for what is too old to answer."""
    minutes = (now - row.sent_at) / SECOND / 60
    if minutes > limits.expires.total_seconds() / 60:
        return 2
    return 1 if minutes > limits.backlog_minutes else 0


def _of_the_same_absence(
    head: QueuedRow, rows: Iterable[QueuedRow], age: int, limits: StoreLimits, now: int
) -> Iterable[QueuedRow]:
    """Yield the rows that the head's sender wrote before the next answer, up to their next command."""
    for row in rows:
        if row.sender != head.sender:
            continue  # another sender's turn follows; the sender's order is kept
        if row.alone or _age(row, limits, now) != age:
            return
        yield row


def _longest(limits: StoreLimits) -> int:
    return max(limits.burst, 1) if limits.merge == "burst" else LONGEST_PASTE


def _belongs(last: QueuedRow, row: QueuedRow, limits: StoreLimits) -> bool:
    if row.sender != last.sender or row.alone:
        return False
    if limits.merge == "burst" or (row.album and row.album == last.album):
        return True
    return last.length >= limits.split_length and row.sent_at - last.sent_at <= limits.split_seconds * SECOND


def claim(
    database: Database,
    key: SessionKey,
    column: str,
    owner: str,
    limits: StoreLimits,
    now: int,
    new: NewTranscript,
    *,
    shares: bool,
) -> TurnLease | MergeDelay | SuspectHead | None:
    """Take the lane's next turn, unless it is a suspect; with *shares*, only if its chat is claimed by *owner*."""
    facts = _read_facts(database, key, column, claimed_by=owner if shares else "")
    if facts.owner or not facts.is_ours:
        return None
    if facts.turn:
        stamped = database.execute(_OF_TURN, (column, "stamped", facts.turn)).fetchall()
        if stamped:
            rows = tuple(read_row(columns) for columns in stamped)
            if any(row.is_lone for row in rows):
                return SuspectHead()
            return _take(database, facts, key, column, owner, rows, facts.turn, now, new)
    group, delay = merge_rows(_queue(database, column, facts), limits, now)
    if delay is not None or not group:
        return delay
    rows = (read_row(facts.head_row), *_read_rows(database, group[1:]))
    return _take(database, facts, key, column, owner, rows, turn_id(rows[0].message), now, new)


def _queue(database: Database, column: str, facts: QueueFacts) -> Iterator[QueuedRow]:
    """Yield the rows that wait, in order; those behind the first are read when they are asked for."""
    if facts.head is not None:
        yield facts.head
    if facts.waiting > 1:
        yield from (QueuedRow(*columns) for columns in database.execute(_WAITING, (column,)).fetchall()[1:])


def _read_rows(database: Database, rows: Iterable[QueuedRow]) -> tuple[InboxRow, ...]:
    return tuple(read_row(database.execute(_ONE, (row.seq,)).fetchone()) for row in rows)


def _read_facts(database: Database, key: SessionKey, column: str, claimed_by: str = "") -> QueueFacts:
    owner, turn, *others = database.execute(_FACTS, (column, claim_name(key), claimed_by, REMEMBER)).fetchone()
    session, (last, changes, has_facts), versions = others[:4], others[4:7], others[7:10]
    (waiting, has_notes, is_ours), head, row = others[10:13], others[13:20], others[20:]
    return QueueFacts(
        owner=owner or "",
        turn=turn or "",
        session=(
            _session(
                key,
                session,
                head=last or 0,
                changes=changes or 0,
                has_facts=bool(has_facts),
                memory_version=";".join([each or "" for each in versions]),
            )
            if session[0] is not None
            else None
        ),
        waiting=waiting,
        has_notes=bool(has_notes),
        is_ours=bool(is_ours),
        head=QueuedRow(*head) if head[0] is not None else None,
        head_row=tuple(row),
    )


def claim_suspect(
    database: Database,
    owner: str,
    now: int,
    new: NewTranscript,
    *,
    beside: int,
    is_ours: Callable[[SessionKey], bool],
) -> Suspect | None:
    """Take the next suspect of our chats, if it may be in flight with *beside* others."""
    suspect = next_suspect(database, is_ours, beside=beside)
    if suspect is None or beside > suspect.most_beside:
        return None
    if suspect.is_control:
        take_control(database, suspect.seq)
        work: TurnLease | InboxRow = read_row(database.execute(_ONE, (suspect.seq,)).fetchone())
    else:
        stamped = database.execute(_OF_TURN, (suspect.key, "stamped", suspect.turn)).fetchall()
        rows = tuple(read_row(columns) for columns in stamped)
        key = read_key(suspect.key)
        facts = _read_facts(database, key, suspect.key)
        work = _take(database, facts, key, suspect.key, owner, rows, suspect.turn, now, new)
    return Suspect(work=work, trial=suspect.trial, is_alone=not suspect.most_beside)


def _take(
    database: Database,
    facts: QueueFacts,
    key: SessionKey,
    column: str,
    owner: str,
    rows: tuple[InboxRow, ...],
    turn: str,
    now: int,
    new: NewTranscript,
) -> TurnLease:
    (epoch,) = database.execute(_TAKE_LANE, (column, owner, turn)).fetchone()
    session = facts.session or open_session(database, key, column, now, new)
    stamped = _stamp(database, rows, turn)
    is_again = bool(rows[0].turn)
    notes: tuple[InboxRow, ...] = ()
    if facts.has_notes:
        notes = tuple(read_row(columns) for columns in database.execute(_NOTES, (column,)))
    if is_again:  # its opening is rendered: newer notes are for the next turn
        notes = tuple(note for note in notes if note.turn == turn)
    elif notes:
        database.executemany("UPDATE inbox SET turn = ? WHERE seq = ?", [(turn, note.seq) for note in notes])
    return TurnLease(
        key=key,
        turn=turn,
        epoch=epoch,
        rows=stamped,
        session=session,
        steps=read_steps(database, turn) if is_again else (),
        notes=notes,
        more=facts.waiting - (0 if is_again else len(rows)),
    )


def _stamp(database: Database, rows: tuple[InboxRow, ...], turn: str) -> tuple[InboxRow, ...]:
    is_lone = any(row.is_lone for row in rows)  # a turn is a suspect when one of its rows is
    database.executemany(_STAMP, [(turn, row.seq) for row in rows])
    return tuple(
        InboxRow(
            seq=row.seq,
            message=row.message,
            accepted_at=row.accepted_at,
            role=row.role,
            turn=turn,
            attempts=row.attempts,
            is_lone=is_lone,
        )
        for row in rows
    )


def pending_note(database: Database, column: str, note: int) -> InboxRow | None:
    """Return the note of this number while no turn has taken it up."""
    notes = (read_row(columns) for columns in database.execute(_NOTES, (column,)))
    return next((each for each in notes if each.seq == note and not each.turn), None)


def open_session(database: Database, key: SessionKey, column: str, now: int, new: NewTranscript) -> SessionRow:
    """Return the key's session, made when missing."""
    found = database.execute(_SESSION, (column,)).fetchone()
    if found is None:
        found = (new(), 0, now, "")
        database.execute(
            "INSERT INTO session (key, transcript, next_index, created_at, scope, used_at) VALUES (?, ?, ?, ?, ?, ?)",
            (column, *found, now),
        )
    return _session(key, found)


def _session(key: SessionKey, columns: Sequence[Any], **facts: Any) -> SessionRow:
    """Return the row of *key*, with the *facts* that are not among its columns."""
    transcript, next_index, created_at, scope = columns
    return SessionRow(
        key=key,
        transcript=transcript,
        next_index=next_index,
        created_at=moment(created_at),
        scope=unquote(scope),
        **facts,
    )


HAS_SESSION = (
    "SELECT 1 FROM session WHERE key = ? AND scope = ? "
    "UNION ALL SELECT 1 FROM session WHERE key >= ? AND key < ? AND scope = ? LIMIT 1"
)


def list_sessions(database: Database, limit: int = ALL, *, scope: str = "") -> tuple[SessionRow, ...]:
    """Return every session (of *scope*), or *limit* of them, the most recently used first."""
    found = database.execute(
        "SELECT key, used_at, transcript, next_index, created_at, scope FROM session "
        "WHERE ?2 IN ('', scope) ORDER BY used_at DESC, key LIMIT ?1",
        (limit, quote(scope)),
    )
    return tuple(_session(read_key(key), columns, used_at=moment(used_at)) for key, used_at, *columns in found)


def has_session(database: Database, chat: SessionKey, scope: str) -> bool:
    """Return True if *chat* or one of its threads has a session of *scope*."""
    key, column = write_key(chat), quote(scope)
    # "0" follows "/": all threads of the chat are between the two.
    found = database.execute(HAS_SESSION, (key, column, f"{key}/", f"{key}0", column))
    return found.fetchone() is not None


def read_steps(database: Database, turn: str) -> tuple[TurnStep, ...]:
    """Return the turn's steps in order."""
    found = database.execute("SELECT n, kind, call, body FROM step WHERE turn = ? ORDER BY n", (turn,))
    return tuple(read_step(n, kind, unquote(call), body) for n, kind, call, body in found)


def check_lease(database: Database, column: str, owner: str, epoch: int, turn: str) -> None:
    """Raise LeaseLost unless the lane is ours, at this epoch, with this turn."""
    lane = database.execute(_LANE, (column,)).fetchone()
    if lane is None or lane != (owner, epoch, turn):
        raise LeaseLost(f"turn {turn} is no longer ours")


def steer(database: Database, lease: TurnLease, column: str, owner: str, limits: StoreLimits) -> tuple[InboxRow, ...]:
    """Stamp the sender's rows at the head of the queue with the running turn. Other senders' rows keep their places."""
    check_lease(database, column, owner, lease.epoch, lease.turn)
    if lease.is_lone:
        return ()  # rows beside a suspect must not share its outcome
    sender = quote(lease.rows[0].message.sender.id)
    queued = (QueuedRow(*columns) for columns in database.execute(_WAITING, (column,)).fetchall())
    theirs = takewhile(lambda row: row.sender == sender and not row.alone, queued)
    return _stamp(database, _read_rows(database, islice(theirs, limits.burst)), lease.turn)


def store_steps(
    database: Database, lease: TurnLease, column: str, owner: str, steps: Sequence[tuple[TurnStep, str]]
) -> None:
    """Store steps, each with its body, once."""
    held = (column, owner, lease.epoch, lease.turn)
    for step, body in steps:
        if not database.execute(_STORE_STEP, (step.n, step.kind, quote(step.call), body, *held)).rowcount:
            check_lease(database, *held)  # it was stored before


def release(database: Database, lease: TurnLease, column: str, owner: str) -> None:
    """Give the rows back, stamped as they are."""
    check_lease(database, column, owner, lease.epoch, lease.turn)
    database.execute(_GIVE_BACK, (column,))
    database.execute(_FREE_LANE, (column,))


def free_orphans(database: Database, owner: str, held_epochs: Mapping[SessionKey, int]) -> list[SessionKey]:
    """Release leases without a worker; return the keys of *held* that are no longer leased.

    After a fault a broken batch may be in the file: its claims have no worker, and its commits released the lease.
    """
    owned = {read_key(key): (key, epoch) for key, epoch in database.execute(_OWNED, (owner,))}
    for key, (column, epoch) in owned.items():
        if held_epochs.get(key) != epoch:
            database.execute(_GIVE_BACK, (column,))
            database.execute(_FREE_LANE, (column,))
    return [key for key, epoch in held_epochs.items() if key not in owned or owned[key][1] != epoch]


def recover(database: Database) -> None:
    """Give back the lanes of workers that are not listed any more."""
    database.execute(RECOVER_ROWS)
    database.execute(RECOVER_LANES)
