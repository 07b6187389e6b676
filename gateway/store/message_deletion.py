"""Blank deleted messages in the transaction that stores their `forgotten` lines.

Their turns are found before, so that the transaction reads few rows: those, and the ones that were committed since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.ports.journal import Job, TurnRecord
from gateway.ports.memory import UNINDEX
from gateway.store.database import Database
from gateway.store.row_codec import encode_job, put_job, quote, sql, write_key
from gateway.store.transcripts import MAKE_STALE
from gateway.text.json_lines import blank_message, find_message

_SLICE = 128  # turns read in one operation
_OF_CHAT = "SELECT seq, transcript, body FROM record WHERE scope = ? AND key = ? AND body IS NOT NULL"
_BEHIND = sql(_OF_CHAT, "AND seq > ? ORDER BY seq LIMIT ?")
_ALL_BEHIND = sql(_OF_CHAT, "AND seq > ?")
_ONE = sql(_OF_CHAT, "AND seq = ?")
_SET_BODY = "UPDATE record SET body = ? WHERE scope = ? AND seq = ?"


@dataclass(frozen=True, slots=True)
class MessageDeletion:
    """The messages that a commit deletes; they are in the turns *seqs* of its session, or behind *after*."""

    mids: Collection[str]
    seqs: Sequence[int] = ()
    after: int = -(2**62)


def find_more(database: Database, record: TurnRecord, deletion: MessageDeletion) -> MessageDeletion | None:
    """Return *deletion* with the turns of the next slice of the session; None at its end."""
    chat = (quote(record.scope), write_key(record.key))
    rows = database.execute(_BEHIND, (*chat, deletion.after, _SLICE)).fetchall()
    if not rows:
        return None
    found = [seq for seq, _, body in rows if any(find_message(raw, deletion.mids) for raw in bytes(body).split(b"\n"))]
    return MessageDeletion(deletion.mids, (*deletion.seqs, *found), rows[-1][0])


def store_deletion(database: Database, record: TurnRecord, deletion: MessageDeletion) -> None:
    """Blank the messages, and queue the job that removes their files and what the search index has of them."""
    scope, key = quote(record.scope), write_key(record.key)
    rows: list[Any] = [row for seq in deletion.seqs for row in database.execute(_ONE, (scope, key, seq)).fetchall()]
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
