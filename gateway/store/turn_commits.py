"""The commit: a turn's record, its rows, its outbound messages and its jobs in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.errors import LeaseLost
from gateway.events import SessionKey
from gateway.ports.journal import Job, MessageOutcome, TurnCommit, TurnLease, TurnRecord, UnwrittenTurn
from gateway.ports.memory import UNINDEX
from gateway.store.access import insert_audit_entry
from gateway.store.database import BURY, Database, QueryResult
from gateway.store.erased_words import NO_OTHER_ERASURE, check_erasures
from gateway.store.files import encode_texts, put_texts
from gateway.store.inbox import enqueue, enqueue_reply
from gateway.store.outbox import freeze_first, part_place
from gateway.store.row_codec import (
    advance_job,
    encode_advance,
    encode_job,
    end_jobs,
    micros,
    moment,
    put_job,
    put_limited_job,
    quote,
    read_json,
    read_key,
    sql,
    unquote,
    window_columns,
    with_end,
    write_json,
    write_key,
    write_part,
)
from gateway.store.session_queue import pending_note
from gateway.store.transcripts import MAKE_STALE
from gateway.store.usage import mark_cap_notices
from gateway.text.json_lines import blank_message, decode_lines, deleted_ids, encode_lines, find_message

_RECORD = (
    "r.seq, r.turn, r.key, r.transcript, r.outcome, r.from_index, r.to_index, r.inbox, r.at, r.new_transcript, "
    "r.failure, r.supersedes, r.scope, r.body"
)
_BY_TURN = sql("SELECT", _RECORD, "FROM record r WHERE r.turn = ?")
_UNWRITTEN = (
    "SELECT r.seq, r.turn, r.scope, r.key, r.transcript, r.new_transcript, r.at, r.body "
    "FROM unwritten u JOIN record r ON r.seq = u.seq WHERE u.seq > ? ORDER BY u.seq LIMIT ?"
)
# With the number of the session's turn before it, by which an open window knows that it has missed none.
_INSERT = (
    "INSERT INTO record (turn, key, transcript, outcome, from_index, to_index, inbox, at, new_transcript, failure, "
    "supersedes, scope, anchor, snapshot, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq, "
    "(SELECT max(p.seq) FROM record p WHERE p.scope = record.scope AND p.key = record.key AND p.seq < record.seq)"
)
# With `+`, PostgreSQL does not look for a row in the index of all that are open, which are few when it makes its plan.
_END_ROW = "UPDATE inbox SET state = ?, ended_at = ?, turn = ? WHERE seq = ? AND +ended_at IS NULL"
_END_NOTES = "UPDATE inbox SET state = 'merged', ended_at = ? WHERE seq = ? AND +ended_at IS NULL"
_UNWRITE = "INSERT INTO unwritten (seq) SELECT seq FROM record WHERE turn = ?"
_FREE_REST = (
    # They were taken into a turn that has ended well, so they are no suspects.
    "UPDATE inbox SET state = 'waiting', turn = '', crashes = 0, attempts = 0 "
    "WHERE key = ? AND state = 'claimed' AND ended_at IS NULL"
)

_END_LEASE = sql(
    "UPDATE lane SET owner = '', turn = '' WHERE key = ? AND owner = ? AND epoch = ? AND turn = ? AND",
    NO_OTHER_ERASURE,
    "RETURNING (SELECT scope FROM session WHERE session.key = lane.key),",
    "(SELECT transcript FROM session WHERE session.key = lane.key),",
    "(SELECT next_index FROM session WHERE session.key = lane.key),",
    "EXISTS (SELECT 1 FROM step WHERE step.turn = ?),",
    "(SELECT count(*) FROM inbox WHERE inbox.key = lane.key AND state = 'claimed' AND ended_at IS NULL),",
    "EXISTS (SELECT 1 FROM inbox WHERE inbox.key = lane.key AND state = 'waiting' AND ended_at IS NULL)",
)

# Doing /new twice is doing it once, and a late one never takes a later transcript away.
_REPLACE = (
    "INSERT INTO session (key, transcript, next_index, created_at, used_at, scope) VALUES (?, ?, 0, ?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET transcript = excluded.transcript, next_index = 0, "
    "used_at = excluded.used_at, created_at = excluded.created_at, scope = excluded.scope "
    "WHERE session.transcript = ?"
)
_ADVANCE = (
    "INSERT INTO session (key, transcript, next_index, created_at, used_at, scope) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET next_index = excluded.next_index, used_at = excluded.used_at, "
    "scope = excluded.scope"
)
# A late pointer of a transcript that ended in another scope does not move the session.
_NAME_SCOPE = "UPDATE session SET scope = ? WHERE key = ? AND scope != ? AND transcript = ?"

_DELETION_SLICE = 128  # turns read in one operation
_OF_CHAT = "SELECT seq, transcript, body FROM record WHERE scope = ? AND key = ? AND body IS NOT NULL"
_NEXT_OF_CHAT = sql(_OF_CHAT, "AND seq > ? ORDER BY seq LIMIT ?")
_ALL_BEHIND = sql(_OF_CHAT, "AND seq > ?")
_ONE_OF_CHAT = sql(_OF_CHAT, "AND seq = ?")
_SET_BODY = "UPDATE record SET body = ? WHERE scope = ? AND seq = ?"


@dataclass(frozen=True, slots=True)
class MessageDeletion:
    """The messages that a commit deletes; they are in the turns *seqs* of its session, or behind *after*."""

    mids: Collection[str]
    seqs: Sequence[int] = ()
    after: int = -(2**62)


@dataclass(frozen=True, slots=True)
class EncodedCommit:
    """A commit, encoded before it is queued."""

    commit: TurnCommit
    key: str
    columns: tuple[Any, ...]
    texts: Mapping[str, bytes]  # of its snapshot, by digest
    erasure_ids: str  # ids of the erasures whose words it has passed, as JSON
    jobs: tuple[tuple[Any, ...], ...]
    advances: tuple[tuple[str, tuple[Any, ...] | None], ...]
    at: int
    deletion: MessageDeletion | None = None
    parts: tuple[tuple[int, str], ...] = ()  # numbers and payloads of the first message's parts
    is_mirrored: bool = True  # its lines are to be written into a file; no gateway of several does that


@dataclass(frozen=True, slots=True)
class CommitEffect:
    """Result of commit, and the queues to wake."""

    record: TurnRecord
    is_new: bool = True
    more: bool = False
    fault: str = ""  # reason of a refused commit; the lease was released
    is_marked: bool = False  # its reply's first part is stored as sending


def encode(commit: TurnCommit, at: int, erasure_ids: str = "[]", *, is_mirrored: bool = True) -> EncodedCommit:
    """Prepare *commit*, which has passed the words of the erasures *erasure_ids*, for storing."""
    record = commit.record
    key = write_key(record.key)
    mids = deleted_ids(record.lines) if record.transcript else ()
    return EncodedCommit(
        commit=commit,
        key=key,
        columns=(
            quote(record.turn),
            key,
            record.transcript,
            record.outcome.value,
            record.from_index,
            record.to_index,
            write_json(list(record.inbox)),
            micros(record.at),
            record.new_transcript,
            record.failure,
            record.supersedes,
            quote(record.scope),
            *window_columns(record.lines),
            encode_lines(
                with_end(
                    record.turn,
                    record.lines,
                    (record.from_index, record.to_index),
                    record.inbox,
                    record.outcome,
                    record.at,
                )
            ),
        ),
        texts=encode_texts(record.blobs),
        erasure_ids=erasure_ids,
        jobs=tuple(encode_job(job) for job in commit.jobs),
        advances=tuple(encode_advance(each) for each in commit.advances),
        at=at,
        deletion=MessageDeletion(mids) if mids else None,
        parts=tuple((part_place(each.id)[1], write_part(each)) for each in commit.parts),
        is_mirrored=is_mirrored,
    )


def find_record(database: Database, turn: str) -> TurnRecord | None:
    """Return the turn's record, without the texts of its snapshot."""
    columns = database.execute(_BY_TURN, (quote(turn),)).fetchone()
    if columns is None:
        return None
    seq, turn, key, transcript, outcome, start, end, inbox, at, new, failure, supersedes, scope, body = columns
    return TurnRecord(
        turn=unquote(turn),
        key=read_key(key),
        transcript=transcript,
        outcome=MessageOutcome(outcome),
        lines=tuple(decode_lines(body)) if body is not None else (),
        from_index=start,
        to_index=end,
        inbox=tuple(read_json(inbox)),
        at=moment(at),
        new_transcript=new,
        failure=failure,
        supersedes=supersedes,
        scope=unquote(scope),
        seq=seq,
    )


def commit_turn(database: Database, lease: TurnLease, new: EncodedCommit, owner: str) -> CommitEffect:
    """Commit the turn of a session.

    If the session has moved on since the claim (a new transcript was started), nothing is stored and the rows are
    released with one more crash, a suspect's with an attempt: a turn that can never commit must not run for ever. What
    it has stored belongs to the transcript before. If another gateway has linked the session's scope to another one,
    the turn runs again in that.
    """
    record = new.commit.record
    scope = quote(record.scope)
    columns = (new.key, owner, lease.epoch, record.turn, scope, new.erasure_ids, record.turn)
    found = database.execute(_END_LEASE, columns).fetchone()
    if found is None:
        check_erasures(database, scope, new.erasure_ids)
        stored = find_record(database, lease.turn)  # by a commit whose result was lost
        if stored is None:
            raise LeaseLost(f"turn {record.turn} is no longer ours")
        return CommitEffect(stored, is_new=False)
    session_scope, *session, has_steps, claimed, more = found
    if session != [record.transcript, record.from_index]:
        _give_back(database, new, crashes=1, attempts=int(lease.is_lone))
        database.execute("DELETE FROM step WHERE turn = ?", (record.turn,))
        return CommitEffect(record, is_new=False, more=True, fault="the session has moved on since the claim")
    if session_scope not in (quote(lease.session.scope), scope):  # a command beside a first turn gives its session one
        _give_back(database, new)
        return CommitEffect(record, is_new=False, more=True, fault="its memory was linked to another one")
    notes = [note.seq for note in lease.notes]
    inserted, ended = _store(database, new, notes=notes)
    if notes:
        database.executemany(_END_NOTES, [(new.at, seq) for seq in notes])
    if has_steps:
        database.execute("DELETE FROM step WHERE turn = ?", (record.turn,))
    is_marked = bool(new.parts) and freeze_first(database, new.commit.outbound[0], new.parts, new.at)
    has_rest = (0 if ended is None else ended.rowcount) < claimed
    if has_rest:
        database.execute(_FREE_REST, (new.key,))
    return CommitEffect(_numbered(record, inserted), more=has_rest or bool(more), is_marked=is_marked)


def _give_back(database: Database, new: EncodedCommit, *, crashes: int = 0, attempts: int = 0) -> None:
    """Have the turn run again, its rows charged with *crashes* and *attempts*."""
    database.execute(
        "UPDATE inbox SET state = 'stamped', crashes = crashes + ?, attempts = attempts + ? "
        "WHERE key = ? AND state = 'claimed' AND ended_at IS NULL",
        (crashes, attempts, new.key),
    )
    database.execute("UPDATE lane SET turn = ? WHERE key = ?", (new.columns[0], new.key))


def settle_row(database: Database, new: EncodedCommit, row: int | None = None) -> CommitEffect:
    """Commit what belongs to no lane: a control row's record, or lines of no row at all."""
    record = new.commit.record
    stored = find_record(database, record.turn)
    if stored is not None:
        return CommitEffect(stored, is_new=False)
    check_erasures(database, quote(record.scope), new.erasure_ids)
    _lock_lane(database, new)
    if record.to_index > record.from_index:
        session = database.execute("SELECT transcript, next_index FROM session WHERE key = ?", (new.key,)).fetchone()
        if session is not None and session != (record.transcript, record.from_index):
            raise LeaseLost(f"the session of {record.turn} has moved on")
    inserted, _ = _store(database, new, row)
    if row is not None and row not in record.inbox:
        database.execute(_END_ROW, (record.outcome.value, new.at, new.columns[0], row))
    return CommitEffect(_numbered(record, inserted))


def store_pointer(database: Database, new: EncodedCommit) -> None:
    """Commit lines of no row once, in a transaction that has looked for erasures."""
    if find_record(database, new.commit.record.turn) is None:
        _lock_lane(database, new)
        _store(database, new)


def _lock_lane(database: Database, new: EncodedCommit) -> None:
    # As a turn's commit has it, before the number is taken: those who follow a session by number would miss one that
    # is committed behind a higher one.
    database.execute("UPDATE lane SET epoch = epoch WHERE key = ?", (new.key,)).close()


def settle_note(database: Database, new: EncodedCommit, note: int) -> CommitEffect | None:
    """Commit lines that end a note; None when a turn has taken it up, or it has ended."""
    if pending_note(database, new.key, note) is None:
        return None
    return settle_row(database, new, note)


def _store(
    database: Database, new: EncodedCommit, control: int | None = None, *, notes: Collection[int] = ()
) -> tuple[QueryResult, QueryResult | None]:
    """Store everything but the lease and its *notes*; return the results of the record and of the rows that it ended.

    They are looked at last, so that a server gets all these statements at once.
    """
    record = new.commit.record
    inserted = _store_lines(database, new)
    ended = _end_rows(database, record, new, notes)
    _move_session(database, record, new)
    for message in new.commit.outbound:
        if control is None:
            enqueue(database, message)
        else:
            enqueue_reply(database, message, control)
    for prefix in new.commit.ends:
        end_jobs(database, prefix)
    for job, columns in zip(new.commit.jobs, new.jobs, strict=True):
        if job.limit is None:
            put_job(database, columns)
        else:
            put_limited_job(database, columns, job.limit)
    for advance in new.advances:
        advance_job(database, advance)
    if new.commit.audit is not None:
        insert_audit_entry(database, new.commit.audit)
    if new.commit.cap_notices:
        mark_cap_notices(database, new.commit.cap_notices)
    return inserted, ended


def _numbered(record: TurnRecord, inserted: QueryResult) -> TurnRecord:
    """Return *record* with its number and that of the session's turn before."""
    seq, previous = inserted.fetchone()
    return replace(record, seq=seq, previous=previous or 0)


def _store_lines(database: Database, new: EncodedCommit) -> QueryResult:
    """Store the record; the result has its number and that of the session's turn before."""
    record = new.commit.record
    inserted = database.execute(_INSERT, new.columns)
    if new.is_mirrored:
        database.execute(_UNWRITE, (new.columns[0],)).close()
    if new.texts:
        put_texts(database, quote(record.scope), new.texts, record.at)
    if new.deletion is not None:
        _store_deletion(database, record, new.deletion)
    return inserted


def _end_rows(database: Database, record: TurnRecord, new: EncodedCommit, notes: Collection[int]) -> QueryResult | None:
    turn = new.columns[0]
    # Rows outside the answer end like the first row.
    rest = MessageOutcome.MERGED if record.outcome is MessageOutcome.ANSWERED else record.outcome
    ends = [
        ((record.outcome if place == 0 else rest).value, new.at, turn, seq)
        for place, seq in enumerate(record.inbox)
        if seq not in notes  # they were never claimed, and must not be counted as if they were
    ]
    ended = database.executemany(_END_ROW, ends) if ends else None
    if record.outcome is MessageOutcome.DEAD:
        buried = [(f"inbox:{seq}", turn, new.key, record.failure, new.at) for seq in record.inbox]
        database.executemany(BURY, buried)
    return ended


def _move_session(database: Database, record: TurnRecord, new: EncodedCommit) -> None:
    scope = quote(record.scope)
    if record.new_transcript:
        database.execute(_REPLACE, (new.key, record.new_transcript, new.at, new.at, scope, record.transcript))
    elif record.to_index > record.from_index:
        database.execute(_ADVANCE, (new.key, record.transcript, record.to_index, new.at, new.at, scope))
    else:
        database.execute(_NAME_SCOPE, (scope, new.key, scope, record.transcript))


def unwritten(
    database: Database, after: int, limit: int, is_ours: Callable[[SessionKey], bool]
) -> tuple[UnwrittenTurn, ...]:
    """Return at most *limit* turns of our chats that are in no file yet, in commit order."""
    found: list[UnwrittenTurn] = []
    while len(found) < limit:
        page = [
            UnwrittenTurn(
                seq=seq,
                turn=unquote(turn),
                scope=unquote(scope),
                key=read_key(key),
                transcript=transcript,
                new_transcript=new,
                at=moment(at),
                body=bytes(body) if body is not None else b"",
            )
            for seq, turn, scope, key, transcript, new, at, body in database.execute(_UNWRITTEN, (after, limit))
        ]
        found += [each for each in page if is_ours(each.key)]
        if len(page) < limit:
            break
        after = page[-1].seq
    return tuple(found[:limit])


# -- deleted messages ----------------------------------------------------------------------------------


def find_deleted_turns(database: Database, record: TurnRecord, deletion: MessageDeletion) -> MessageDeletion | None:
    """Return *deletion* with the turns of the next slice of the session; None at its end.

    The turns are found before the transaction, so that it reads few rows: those, and the ones committed since.
    """
    chat = (quote(record.scope), write_key(record.key))
    rows = database.execute(_NEXT_OF_CHAT, (*chat, deletion.after, _DELETION_SLICE)).fetchall()
    if not rows:
        return None
    found = [seq for seq, _, body in rows if any(find_message(raw, deletion.mids) for raw in bytes(body).split(b"\n"))]
    return MessageDeletion(deletion.mids, (*deletion.seqs, *found), rows[-1][0])


def _store_deletion(database: Database, record: TurnRecord, deletion: MessageDeletion) -> None:
    """Blank the messages, and queue the job that removes their files and what the search index has of them."""
    scope, key = quote(record.scope), write_key(record.key)
    rows: list[Any] = []
    for seq in deletion.seqs:
        rows += database.execute(_ONE_OF_CHAT, (scope, key, seq)).fetchall()
    rows += database.execute(_ALL_BEHIND, (scope, key, deletion.after)).fetchall()
    files = set[str]()
    changed = set[str]()
    for seq, transcript, body in rows:
        lines = [blank_message(raw + b"\n", deletion.mids, record.turn) for raw in bytes(body).split(b"\n")[:-1]]
        blanked = b"".join(raw for raw, _ in lines)
        if blanked != bytes(body):
            files.update(*(digests for _, digests in lines))
            changed.add(transcript)
            database.execute(_SET_BODY, (blanked, scope, seq))
    if changed:
        database.executemany(MAKE_STALE, [(scope, key, transcript) for transcript in sorted(changed)])
        job = Job(
            id=f"{UNINDEX}:{record.turn}",
            kind=UNINDEX,
            scope=record.scope,
            payload={"files": sorted(files)},
            due_at=record.at,
        )
        put_job(database, encode_job(job))
