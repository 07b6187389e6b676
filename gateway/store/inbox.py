"""Accepting messages: new, duplicate or edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.errors import UnreadableEvent
from gateway.events import (
    ChatKind,
    InboundKind,
    InboundMessage,
    OutboundKind,
    OutboundMessage,
    Role,
    SessionKey,
    edit_time,
    turn_id,
)
from gateway.i18n import translate
from gateway.ports.journal import STOP_WANTED, AcceptOutcome, AcceptResult, InboxRow, Job, is_set_by_person
from gateway.store.database import Database
from gateway.store.row_codec import (
    encode_job,
    moment,
    put_job,
    quote,
    read_inbound,
    read_json,
    read_key,
    sql,
    unquote,
    utf16_length,
    write_inbound,
    write_json,
    write_key,
    write_lines,
    write_outbound,
)
from gateway.store.suspects import CRASHES

LONGEST_ID = 512  # bytes of one id; PostgreSQL's index takes 2,704 for the four of a dedupe row
MINUTE = 60_000_000  # microseconds
DELETED = "\x1fdeleted"  # the revision under which a deletion is remembered

_ENQUEUE = "INSERT INTO outbox (id, key, open, payload) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_COUNT_WAITING = "SELECT count(*) FROM inbox WHERE key = ? AND state = 'waiting' AND ended_at IS NULL"
_COUNT_OF_SENDER = sql(_COUNT_WAITING, "AND sender = ?")
# A command waits until its reply is on its way, or a chat that reads slowly could be sent any number of replies.
_COUNT_CONTROLS = (
    "SELECT (SELECT count(*) FROM inbox WHERE key = ?1 AND state = 'control' AND ended_at IS NULL) "
    "+ (SELECT count(*) FROM outbox WHERE key = ?1 AND open = 3)"
)
_CONTROLS_OF_SENDER = (
    "SELECT count(*) FROM inbox WHERE key = ? AND state = 'control' AND ended_at IS NULL AND sender = ?"
)
_REPLIES = "SELECT payload FROM outbox WHERE key = ? AND open = 3"
ROW = "seq, key, message_id, sent_at, sender, payload, role, state, turn, attempts, crashes, accepted_at"
_OPEN_ROWS = sql(
    "SELECT",
    ROW,
    "FROM inbox WHERE key = ? AND state IN ('waiting', 'claimed', 'stamped') AND ended_at IS NULL",
    "AND (? = '' OR sender = ?)",
    "ORDER BY state = 'waiting', sent_at, length(message_id), message_id, seq",
)
_OPEN_CONTROLS = sql("SELECT", ROW, "FROM inbox WHERE state = 'control' AND ended_at IS NULL ORDER BY +seq")
# Also of an unknown message one row, which says how many wait.
_KNOWN = sql(
    "SELECT d.revision, d.seq, (", _COUNT_WAITING, ") FROM (SELECT ? AS name) k LEFT JOIN dedupe d USING (name)"
)
_REMEMBER = "INSERT INTO dedupe (name, revision, seq) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
# It has no row of its own, and is forgotten with the newest one.
_REMEMBER_GONE = (
    "INSERT INTO dedupe (name, revision, seq) SELECT ?, ?, coalesce(max(seq), 0) FROM inbox WHERE true "
    "ON CONFLICT DO NOTHING"
)
_INSERT = (
    "INSERT INTO inbox (key, state, sender, sent_at, message_id, album, length, alone, role, accepted_at, "
    "ended_at, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq"
)
_ENDED = "SELECT payload, seq FROM inbox WHERE ended_at IS NOT NULL AND"
LAST_MESSAGE = "SELECT max(accepted_at) FROM inbox WHERE key = ? AND message_id NOT LIKE 'job:%' AND state != 'noted'"
_COUNT_ALL = "SELECT count(*) FROM inbox WHERE state = 'waiting' AND ended_at IS NULL"
# Of one sender, or all, and from before the message that stops them; a turn's rows came when its first one did.
_IS_TOLD = sql(
    "key = ? AND ended_at IS NULL AND (? = '' OR sender = ?) AND coalesce((SELECT min(mate.seq) FROM inbox AS mate",
    "WHERE inbox.turn != '' AND mate.key = inbox.key AND mate.turn = inbox.turn AND mate.ended_at IS NULL), seq) < ?",
)
_DROP = sql(
    "UPDATE inbox SET state = 'stopped', ended_at = ? WHERE",
    _IS_TOLD,
    "AND state IN ('waiting', 'stamped') AND message_id NOT LIKE 'job:remind/%' AND message_id NOT LIKE 'job:task/%'",
    "AND NOT (state = 'stamped' AND (EXISTS (SELECT 1 FROM step WHERE step.turn = inbox.turn AND step.n > 0)",
    "OR EXISTS (SELECT 1 FROM outbox WHERE outbox.id = inbox.turn || '.0'))) RETURNING turn",
)
_STOP_BEGUN = sql(
    "INSERT INTO step (turn, n, kind, call, body) SELECT DISTINCT turn, ?, ?, '', ? FROM inbox WHERE",
    _IS_TOLD,
    "AND state = 'stamped' AND turn != '' ON CONFLICT DO NOTHING",
)


def read_row(columns: tuple[Any, ...]) -> InboxRow:
    """Read an inbox row from the columns of `ROW`."""
    seq, key, message_id, sent_at, sender, payload, role, state, turn, attempts, crashes, accepted_at = columns
    return InboxRow(
        seq=seq,
        message=read_inbound(read_key(key), unquote(message_id), sent_at, unquote(sender), payload),
        accepted_at=moment(accepted_at),
        role=Role(role),
        is_control=state == "control",
        turn=turn,
        attempts=attempts,
        is_lone=crashes >= CRASHES,
    )


class BacklogLimit:
    """Tracks whether the whole backlog is full, without a count at every message.

    A count of c rows guarantees room for the next limit - c messages.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = 0
        self._taken = 0

    def take(self, database: Database) -> bool:
        """Take one place; return False if the backlog is full."""
        if self._left <= 0:
            before = self._taken
            counted = int(database.execute(_COUNT_ALL).fetchone()[0])
            # Meanwhile others may have counted, and taken places whose rows come later (`BatchedOperation`).
            self._left = self._limit - counted - (self._taken - before)
        self._taken += 1
        self._left -= 1
        return self._left >= 0


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A message, encoded before it is queued, so that an encoding error affects no other message."""

    message: InboundMessage
    key: str
    payload: str
    names: tuple[str, ...]  # dedupe keys; one where there is a message id
    revision: str
    role: Role
    is_control: bool
    at: int
    sent_at: int
    length: int
    language: str  # of the notice that the backlog is full


def encode(
    message: InboundMessage, *, role: Role, is_control: bool, at: int, sent_at: int, language: str
) -> EncodedMessage:
    """Prepare *message* for `accept`. Raises UnreadableEvent for an id of more than `LONGEST_ID` bytes."""
    _require_short_ids(message)
    keys: tuple[str, ...] = (message.logical_key,)
    if not message.message_id and message.event_ids:
        keys = tuple(f"event/{event}" for event in message.event_ids)
    return EncodedMessage(
        message=message,
        key=write_key(message.key),
        payload=write_inbound(message),
        names=tuple(quote(_dedupe_name(message.key.channel, message.account, key)) for key in keys),
        revision=DELETED if message.kind is InboundKind.DELETION else quote(message.revision),
        role=role,
        is_control=is_control,
        at=at,
        sent_at=sent_at,
        length=utf16_length(message.text),
        language=language,
    )


def _dedupe_name(channel: str, account: str, logical_key: str) -> str:
    return f"{channel}\x1f{account}\x1f{logical_key}"


def job_name(key: SessionKey, message_id: str) -> str:
    """Return the name under which a job's message in *key* is stored once, or the beginning of such names."""
    return _dedupe_name(key.channel, "", f"{key.chat}/{message_id}")


def _require_short_ids(message: InboundMessage) -> None:
    """No platform has such ids, and an index of every engine must take them."""
    ids = (str(message.key), message.message_id, message.account, message.revision, message.sender.id)
    for each in (*ids, *message.event_ids):
        # A character takes at most twelve bytes: most ids are short enough without being encoded.
        if len(each) > 40 and (size := len(quote(each).encode())) > LONGEST_ID:
            raise UnreadableEvent(f"an id of {size:,} bytes; the most is {LONGEST_ID}")


@dataclass(frozen=True, slots=True)
class AcceptEffect:
    """Result of accept, and the queues to wake."""

    acceptance: AcceptResult
    lane: SessionKey | None = None
    control: InboxRow | None = None
    chat: SessionKey | None = None
    has_job: bool = False


def accept(database: Database, new: EncodedMessage, per_chat: int, backlog: BacklogLimit) -> AcceptEffect:
    """Store *new* once."""
    found = [columns for name in new.names for columns in database.execute(_KNOWN, (new.key, name)).fetchall()]
    queued = found[0][2]
    stored_rows = [(revision, seq) for revision, seq, _ in found if seq is not None]
    if stored_rows:
        return _accept_known(database, new, stored_rows, queued)
    if new.message.kind is InboundKind.DELETION:
        # The message was never accepted, or it is so old that only transcripts have it.
        has_job = _take_back(database, new)
        if has_job:  # an edit that comes late is no new message; other chats' deletions would fill the table
            database.execute(_REMEMBER_GONE, (new.names[0], DELETED))
        return AcceptEffect(AcceptResult(outcome=AcceptOutcome.DUPLICATE, seq=0), has_job=has_job)
    if new.is_control:
        pending = int(database.execute(_COUNT_CONTROLS, (new.key,)).fetchone()[0])
        if pending >= per_chat or _has_their_share(database, new, pending, per_chat, _controls_of_sender):
            return _refuse(database, new, pending, per_chat)
        seq = _insert(database, new, "control")
        row = InboxRow(seq=seq, message=new.message, accepted_at=moment(new.at), role=new.role, is_control=True)
        return AcceptEffect(AcceptResult(outcome=AcceptOutcome.NEW, seq=seq), control=row)
    if is_set_by_person(new.message):  # it was stored before, within limits of its own, and must not be lost
        seq = _insert(database, new, "waiting")
        return AcceptEffect(AcceptResult(outcome=AcceptOutcome.NEW, seq=seq, queued=queued + 1), lane=new.message.key)
    has_share = _has_their_share(database, new, queued, per_chat, _rows_of_sender)
    if queued >= per_chat or has_share or not backlog.take(database):
        return _refuse(database, new, queued, per_chat)
    seq = _insert(database, new, "waiting")
    acceptance = AcceptResult(outcome=AcceptOutcome.NEW, seq=seq, queued=queued + 1)
    return AcceptEffect(acceptance, lane=new.message.key)


def _rows_of_sender(database: Database, key: str, sender: str) -> int:
    return int(database.execute(_COUNT_OF_SENDER, (key, sender)).fetchone()[0])


def _controls_of_sender(database: Database, key: str, sender: str) -> int:
    (waiting,) = database.execute(_CONTROLS_OF_SENDER, (key, sender)).fetchone()
    replies = database.execute(_REPLIES, (key,))
    return int(waiting) + len([1 for (payload,) in replies if read_json(payload).get("asker") == sender])


def _has_their_share(
    database: Database,
    new: EncodedMessage,
    queued: int,
    per_chat: int,
    count_of_sender: Callable[[Database, str, str], int],
) -> bool:
    """Return True if the sender fills half of a shared chat's queue; the other half is reserved for other senders."""
    half = (per_chat + 1) // 2
    if queued < half or new.message.chat_kind is ChatKind.DIRECT or new.message.kind is InboundKind.JOB:
        return False
    return count_of_sender(database, new.key, quote(new.message.sender.id)) >= half


def _insert(database: Database, new: EncodedMessage, state: str) -> int:
    message = new.message
    ended_at = new.at if state == "refused" else None
    (seq,) = database.execute(
        _INSERT,
        (
            new.key,
            state,
            quote(message.sender.id),
            new.sent_at,
            quote(message.message_id),
            quote(message.album),
            new.length,
            _is_alone(message),
            new.role.value,
            new.at,
            ended_at,
            new.payload,
        ),
    ).fetchone()
    if state != "noted":
        for name in new.names:
            database.execute(_REMEMBER, (name, new.revision, seq))
    return int(seq)


def _is_alone(message: InboundMessage) -> int:
    """Return 1 for a command, a button, a job and another version of an earlier message: they never merge."""
    return int(message.kind is not InboundKind.MESSAGE or bool(message.replaces))


def _accept_known(
    database: Database, new: EncodedMessage, stored_rows: Sequence[tuple[str, int]], queued: int
) -> AcceptEffect:
    seq = stored_rows[0][1]
    unchanged = AcceptEffect(AcceptResult(outcome=AcceptOutcome.DUPLICATE, seq=seq, queued=queued))
    # An original that comes after its edit is late, not newer.
    if not new.message.message_id or not new.revision or any(revision == new.revision for revision, _ in stored_rows):
        return unchanged
    database.execute(_REMEMBER, (new.names[0], new.revision, seq))
    revisions = [revision for revision, _ in stored_rows]
    if DELETED in revisions or _is_outdated(new, map(unquote, revisions)):
        return unchanged
    found = database.execute("SELECT state, turn, payload FROM inbox WHERE seq = ?", (seq,)).fetchone()
    if found is None or found[0] == "control":
        return unchanged
    state, turn, payload = found
    if state == "waiting":
        return _change_waiting(database, new, seq, payload, queued)
    if not turn:  # refused or stopped before any turn saw it: there is nothing to correct
        return unchanged
    note = _insert(database, new, "noted")
    has_job = False
    if new.revision == DELETED:
        # Deleted texts are blanked at once, except those of a running turn, which are blanked after it.
        blank_ended(database, "seq = ?", seq)
        has_job = _take_back(database, new, note)
    return AcceptEffect(AcceptResult(outcome=AcceptOutcome.NOTED, seq=seq), has_job=has_job)


def _is_outdated(new: EncodedMessage, revisions: Iterable[str]) -> bool:
    """Return True for an edit that was made before another one that is stored already."""
    made_at = edit_time(new.message.revision)
    return new.revision != DELETED and any(edit_time(each) > made_at for each in revisions)


def _take_back(database: Database, new: EncodedMessage, note: int = 0) -> bool:
    """Queue what takes the message out of files and memory; nothing where no conversation ever was."""
    found = database.execute("SELECT scope FROM session WHERE key = ?", (new.key,)).fetchone()
    if found is None:
        return False
    job = Job(
        id=f"deleted:{new.message.key}/{new.message.message_id}",
        kind="deleted",
        scope=unquote(found[0]),
        payload={"key": str(new.message.key), "mid": new.message.message_id, "note": note},
        due_at=moment(new.at),
    )
    put_job(database, encode_job(job))
    return True


def blank_ended(database: Database, condition: str, *values: int) -> int:
    """Take what was said out of the ended rows that meet *condition*; return their number."""
    blanked = [(_blank(payload), seq) for payload, seq in database.execute(sql(_ENDED, condition), values)]
    database.executemany("UPDATE inbox SET payload = ? WHERE seq = ?", blanked)
    return len(blanked)


def _blank(payload: str) -> str:
    fields = read_json(payload)
    for name in ("command", "quoted", "quoted_name", "quoted_files", "forwarded_from", "attachments"):
        fields.pop(name, None)
    return write_json({**fields, "text": ""})


def _change_waiting(database: Database, new: EncodedMessage, seq: int, payload: str, queued: int) -> AcceptEffect:
    if new.revision == DELETED:
        database.execute("UPDATE inbox SET state = 'stopped', ended_at = ? WHERE seq = ?", (new.at, seq))
        blank_ended(database, "seq = ?", seq)
        return AcceptEffect(AcceptResult(outcome=AcceptOutcome.DELETED, seq=seq, queued=queued - 1))
    # Queue position and turn stay the first delivery's; the text is the edit's.
    after = replace(new.message, event_ids=tuple(read_json(payload).get("event_ids", ())))
    database.execute(
        "UPDATE inbox SET sender = ?, payload = ?, length = ?, alone = ?, role = ? WHERE seq = ?",
        (quote(after.sender.id), write_inbound(after), new.length, _is_alone(after), new.role.value, seq),
    )
    return AcceptEffect(AcceptResult(outcome=AcceptOutcome.EDITED, seq=seq, queued=queued))


def _refuse(database: Database, new: EncodedMessage, queued: int, limit: int) -> AcceptEffect:
    seq = _insert(database, new, "refused")
    acceptance = AcceptResult(outcome=AcceptOutcome.FULL, seq=seq, queued=queued)
    found = database.execute("SELECT told_at FROM lane WHERE key = ?", (new.key,)).fetchone()
    if found is not None and 0 <= new.at - found[0] < MINUTE:
        return AcceptEffect(acceptance)
    database.execute(
        "INSERT INTO lane (key, told_at) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET told_at = excluded.told_at",
        (new.key, new.at),
    )
    line = OutboundMessage(
        id=f"{turn_id(new.message)}.1",
        key=new.message.key,
        text=translate("queue.full", new.language, limit=limit),
        kind=OutboundKind.NOTICE,
        reply_to=new.message.message_id,
    )
    enqueue(database, line)
    return AcceptEffect(acceptance, chat=new.message.key)


def enqueue(database: Database, message: OutboundMessage) -> None:
    """Put *message* into the outbox, once."""
    database.execute(
        _ENQUEUE,
        (quote(message.id), write_key(message.key), 1, write_outbound(message)),
    )


def enqueue_reply(database: Database, message: OutboundMessage, control: int) -> None:
    """Put the reply to the *control* row into the outbox, once: it gives way to answers until it is being sent."""
    found = database.execute("SELECT sender FROM inbox WHERE seq = ?", (control,)).fetchone()
    if found is not None:
        payload = write_json({**read_json(write_outbound(message)), "asker": found[0]})
        database.execute(_ENQUEUE, (quote(message.id), write_key(message.key), 3, payload))


def waiting_rows(database: Database, key: str, sender: str) -> tuple[InboxRow, ...]:
    """Return the lane rows of *key* that have not ended, those of a turn first."""
    found = database.execute(_OPEN_ROWS, (key, sender, sender))
    return tuple(read_row(columns) for columns in found)


def drop(database: Database, key: str, sender: str, before: int, at: int) -> int:
    """End the unclaimed rows of *key* as stopped, except reminders, ends of tasks, and turns that have begun.

    A turn with steps or a preview gets a step that ends it at its next claim, also if that is after a kill.
    """
    told = (key, sender, sender, before)
    dropped = database.execute(_DROP, (at, *told)).fetchall()
    # A released turn has one sender, so it is dropped whole, with its steps.
    for turn in {turn for (turn,) in dropped if turn}:
        database.execute("DELETE FROM step WHERE turn = ?", (turn,))
        database.execute("UPDATE lane SET turn = '' WHERE key = ? AND turn = ?", (key, turn))
    step = (STOP_WANTED.n, STOP_WANTED.kind, write_lines(STOP_WANTED.lines, STOP_WANTED.blobs))
    database.execute(_STOP_BEGUN, (*step, *told))
    return len(dropped)


def ready_sessions(database: Database) -> list[SessionKey]:
    """Return the keys that have unclaimed rows, the longest waiting first."""
    found = database.execute(
        "SELECT key FROM inbox WHERE state IN ('waiting', 'stamped') AND ended_at IS NULL "
        "GROUP BY key ORDER BY min(seq)"
    )
    return [read_key(key) for (key,) in found]


def open_controls(database: Database) -> list[InboxRow]:
    """Return the control rows that have not ended, in order."""
    found = database.execute(_OPEN_CONTROLS)
    return [read_row(columns) for columns in found]
