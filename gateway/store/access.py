"""Access decisions over the writer: the roster in memory, its rows, and the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

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
