"""Access decisions over the writer: the roster in memory, its rows, the audit, and notes about people.

Notes are JSON by name, beside the roster; the codes for owners and pairing are such notes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from gateway.events import short_id
from gateway.ports.access import AccessChange, AccessEntry, AccessStatus
from gateway.ports.journal import AuditEntry
from gateway.store.database import CachedRows, Database, SharedDatabase, upsert_sql
from gateway.store.engine import StoreEngine
from gateway.store.inbox import enqueue
from gateway.store.row_codec import micros, moment, quote, unquote

KEEP_AUDIT = timedelta(days=365)

_INSERT_LINE = (
    "INSERT INTO audit (id, at, decided_by, place, what, whom, outcome) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_PUT = upsert_sql("access", "channel", "who", "standing", "decided_by", "at", "name", keys=2)
_PUT_NOTE = upsert_sql("access_note", "name", "value")
_LINES = (
    "SELECT id, at, decided_by, place, what, whom, outcome FROM audit "
    "WHERE ? = '' OR decided_by = ? OR whom = ? ORDER BY seq DESC LIMIT ?"
)


@dataclass(slots=True)
class AccessSnapshot:
    """Access decisions and notes, cached in memory."""

    members: dict[tuple[str, str], AccessEntry] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    edition: int = 0

    def replace(self, other: AccessSnapshot) -> None:
        """Take over the rows of *other*, in place: views of these are live."""
        for mine, theirs in ((self.members, other.members), (self.notes, other.notes)):
            mine.clear()
            mine.update(theirs)  # type: ignore[arg-type]
        self.edition += 1


def load(database: Database) -> AccessSnapshot:
    """Load the cached rows."""
    found = database.execute("SELECT channel, who, standing, decided_by, at, name FROM access")
    members = [
        AccessEntry(
            channel=unquote(channel),
            who=unquote(who),
            standing=AccessStatus(standing),
            by=unquote(by),
            at=moment(at),
            name=unquote(name),
        )
        for channel, who, standing, by, at, name in found
    ]
    notes = database.execute("SELECT name, value FROM access_note")
    return AccessSnapshot(
        {(each.channel, each.who): each for each in members},
        {unquote(name): unquote(value) for name, value in notes},
    )


class SqlAccess:
    """The durable roster: read from memory, since judging a message waits for nothing; changed before it counts."""

    def __init__(self, engine: StoreEngine, snapshot: AccessSnapshot) -> None:
        self._engine = engine
        self._snapshot = snapshot

    def members(self) -> Mapping[tuple[str, str], AccessEntry]:
        """Return every effective decision by (channel, who), as a live view."""
        return MappingProxyType(self._snapshot.members)

    def notes(self) -> Mapping[str, str]:
        """Return the stored notes (the hash of a code, a count of tries) by name, as a live view."""
        return MappingProxyType(self._snapshot.notes)

    def edition(self) -> int:
        """Return a number that grows with every change of `members`, so that what is derived can be kept."""
        return self._snapshot.edition

    async def change(self, change: AccessChange) -> bool:
        """Write *change* durably, then let it count; False, and nothing is written, when what it spends is gone."""
        return await self._engine.writer.submit(
            lambda database: write(database, change), lambda done: self._adopt(change) if done else None
        )

    async def audit(self, *, limit: int, about: str = "") -> Sequence[AuditEntry]:
        """Return lines, the newest first; of one "channel:user_id" as decider or as whom it is about, if given."""
        return [_read_line(each) for each in await self._engine.fetch(_LINES, *(quote(about),) * 3, limit)]

    def _adopt(self, change: AccessChange) -> None:
        snapshot = self._snapshot
        for each in change.put:
            snapshot.members[each.channel, each.who] = each
        for gone in change.remove:
            snapshot.members.pop(gone, None)
        if change.spends is not None:
            snapshot.notes.pop(change.spends[0], None)
        for name, value in (change.notes or {}).items():
            if value:
                snapshot.notes[name] = value
            else:
                snapshot.notes.pop(name, None)
        if change.put or change.remove:
            snapshot.edition += 1
        for message in change.notices:
            self._engine.wake_chat(message.key)


# -- in one transaction ----------------------------------------------------------------------------------


def write(database: SharedDatabase, change: AccessChange) -> bool:
    """Write all of *change*, or nothing and False."""
    if change.spends is not None:
        name, value = change.spends
        spent = database.execute(
            "DELETE FROM access_note WHERE name = ? AND value = ?", (quote(name), quote(value))
        ).rowcount
        if not spent:
            return False
    for channel, who in change.remove:
        database.execute("DELETE FROM access WHERE channel = ? AND who = ?", (quote(channel), quote(who)))
    rows = [
        (quote(each.channel), quote(each.who), each.standing.value, quote(each.by), micros(each.at), quote(each.name))
        for each in change.put
    ]
    database.executemany(_PUT, rows)
    for name, value in (change.notes or {}).items():
        if value:
            database.execute(_PUT_NOTE, (quote(name), quote(value)))
        else:
            database.execute("DELETE FROM access_note WHERE name = ?", (quote(name),))
    if change.line is not None:
        insert_audit_entry(database, change.line)
    for message in change.notices:
        enqueue(database, message)
    if change.put or change.remove or change.notes or change.spends is not None:
        database.changes_cached(CachedRows.ACCESS)
    return True


def insert_audit_entry(database: Database, line: AuditEntry) -> None:
    """Write an audit line, once for its id."""
    names = (line.by, line.where, line.what, line.whom, line.outcome)
    database.execute(_INSERT_LINE, (quote(line.id), micros(line.at), *(quote(each) for each in names)))


def prune(database: Database, now: int) -> int:
    """Remove audit entries older than a year; return their number."""
    age = KEEP_AUDIT // timedelta(microseconds=1)
    return database.execute("DELETE FROM audit WHERE at < ?", (now - age,)).rowcount


def _read_line(columns: tuple[Any, ...]) -> AuditEntry:
    ident, at, by, where, what, whom, outcome = columns
    return AuditEntry(
        id=unquote(ident),
        at=moment(at),
        by=unquote(by),
        where=unquote(where),
        what=unquote(what),
        whom=unquote(whom),
        outcome=outcome,
    )


DAY = timedelta(days=1)
TOLD = "told:"  # told:<channel>:<sender>: the sender got the reply of the day, in a direct message
TOLD_HERE = "told-here:"  # told-here:<channel>:<sender>: the same, in a shared chat
PERSON = "pair:"  # pair:<hash of the code>: a pending unknown sender
PLACE = "place:"  # place:<channel>:<entry>: a place that we were added to
TRIES = "tries:"  # tries:<decider>: recent wrong codes
QUOTA = "quota:"  # quota:<channel>:<user>: the caps of one person
CLAIM_TRIES = "claim-tries:"  # claim-tries:<channel>:<sender>: recent wrong claim codes


def format_time(at: datetime) -> str:
    """Return a time as notes have it."""
    return at.astimezone(UTC).isoformat()


def parse_time(text: object) -> datetime:
    """Undo `format_time`."""
    return datetime.fromisoformat(str(text))


def encode_note(value: Mapping[str, Any]) -> str:
    """Return the text of a note."""
    return json.dumps(value, sort_keys=True)


def derive_notice_id(*parts: str) -> str:
    """Return an id for what is said beside any turn, ``d`` and 16 base32 characters; of the same parts the same."""
    return "d" + short_id("\0".join(parts))


def derive_reply_id(*parts: str) -> str:
    """Return the same, beginning with ``s``: an undelivered reply to an unknown sender raises no alert."""
    return "s" + short_id("\0".join(parts))


class NoteStore:
    """Notes by name and by prefix. Hold `lock` to read, decide and write back."""

    def __init__(self, access: SqlAccess) -> None:
        self.access = access
        self.lock = asyncio.Lock()

    def text(self, name: str) -> str:
        """Return the value of a note, or an empty string."""
        return self.access.notes().get(name, "")

    def one(self, name: str) -> Mapping[str, Any] | None:
        """Return a note, or None."""
        text = self.text(name)
        value: Mapping[str, Any] | None = json.loads(text) if text else None
        return value

    def of(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the notes whose names begin with *prefix*."""
        for name, text in list(self.access.notes().items()):
            if name.startswith(prefix):
                yield name, json.loads(text)

    def outdated(self, now: datetime) -> dict[str, str]:
        """Return the notes whose time is over, as changes that remove them."""
        timed = (each for prefix in (TOLD, TOLD_HERE, PERSON, TRIES, CLAIM_TRIES) for each in self.of(prefix))
        return {name: "" for name, value in timed if parse_time(value["until"]) <= now}

    async def write(self, notes: Mapping[str, str]) -> None:
        """Write notes; an empty value removes one."""
        await self.access.change(AccessChange(notes=notes))


LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # none that are taken for one another
LENGTH = 8

_TYPED = re.compile(rf"\s*([{LETTERS}]{{4}})[\s\-\u2010-\u2015]?([{LETTERS}]{{4}})\s*\Z", re.IGNORECASE)


def new_code() -> str:
    """Return a fresh code of 8 characters, without the dash that it is shown with: 40 bits of chance, all but a few."""
    return "".join(secrets.choice(LETTERS) for _ in range(LENGTH))


def format_code(code: str) -> str:
    """Return *code* as people read and type it: ``ABCD-EFGH``."""
    return f"{code[:4]}-{code[4:]}"


def parse_code(text: str) -> str:
    """Return the code that *text* wholly is, "" for anything else. Case, a dash and blanks around do not matter."""
    found = _TYPED.match(text)
    return f"{found[1]}{found[2]}".upper() if found else ""


async def hash_code(code: str, salt: str) -> str:
    """Return the stored form of a code: a slow hash, computed off the event loop."""
    made = await asyncio.to_thread(hashlib.scrypt, code.encode(), salt=bytes.fromhex(salt), n=2**12, r=8, p=1, dklen=32)
    return made.hex()


def new_salt() -> str:
    """Return a salt for one code."""
    return secrets.token_hex(16)


def hashes_match(one: str, other: str) -> bool:
    """Compare two hashes in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())
