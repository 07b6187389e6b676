"""Turn records, preferences and the notes of channels, over the writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from gateway.events import OutboundMessage, SessionKey
from gateway.ports.channel import CACHED_NOTES, AcceptedMessage
from gateway.ports.journal import InboxRow, Job, SessionRow, TurnRecord, UnwrittenTurn
from gateway.store import session_queue, turn_commits
from gateway.store.claims import LISTED_WORKERS
from gateway.store.database import CachedRows, Database, SharedDatabase, upsert_sql
from gateway.store.engine import StoreEngine
from gateway.store.journal import SqlJournal
from gateway.store.row_codec import moment, quote, read_key, sql, unquote, write_key

_CHOOSERS = sql(
    "SELECT key, scope FROM session WHERE scope IN (SELECT subject FROM preference WHERE name = 'language')"
)
_PUT_PREFERENCE = upsert_sql("preference", "subject", "name", "value", keys=2)
_NOTE = "SELECT value FROM note WHERE channel = ? AND name = ?"
_NOTES = "SELECT name, value FROM note WHERE channel = ? AND name >= ? AND name < ?"
_PUT_NOTE = upsert_sql("note", "channel", "name", "value", keys=2)
_DROP_NOTE = "DELETE FROM note WHERE channel = ? AND name = ?"
_ADD_NOTE = "INSERT INTO note (channel, name, value) VALUES (?, ?, ?) ON CONFLICT (channel, name) DO NOTHING"
_REPLACE_NOTE = "UPDATE note SET value = ? WHERE channel = ? AND name = ? AND value = ?"
_DROP_NOTE_AS_IT_IS = "DELETE FROM note WHERE channel = ? AND name = ? AND value = ?"
_TAKE_NOTE = "DELETE FROM note WHERE channel = ? AND name = ? RETURNING value"
_WRITTEN_WITHIN = 2.0  # seconds: until the next message, or the next look at whether the store can be written
_FORGET_WITHIN = 5.0  # seconds: until the chat's next message, as a rule
_FIRST_ROW = "first_row/"  # and the name of a worker
_LEFT_ROWS = sql(
    "SELECT name, value FROM note WHERE channel = ? AND name >= 'first_row/' AND name < 'first_row0'",
    "AND substr(name, 11) NOT IN",  # what is behind the prefix
    LISTED_WORKERS,
)
_ROWS_FROM = (
    "SELECT seq, key, message_id, accepted_at FROM inbox WHERE seq >= ? AND key > ? AND key < ? AND state != 'control' "
    "AND message_id != '' AND message_id NOT LIKE 'job:%' ORDER BY seq DESC LIMIT ?"
)
_OPEN_ROWS = "SELECT seq FROM inbox WHERE key = ? AND ended_at IS NULL"


def choosers(database: Database) -> dict[SessionKey, str]:
    """Return the chats of every subject that has chosen a language, and whose each is. One pass over the sessions."""
    return {read_key(key): unquote(scope) for key, scope in database.execute(_CHOOSERS)}


class SqlTurnRecords:
    """Committed turn records, and which of them are in no file yet."""

    def __init__(self, engine: StoreEngine, journal: SqlJournal) -> None:
        self._engine = engine
        self._journal = journal

    async def unwritten(self, after: int, limit: int) -> tuple[UnwrittenTurn, ...]:
        """Return committed turns that are in no file yet, in commit order, seq > *after*."""
        return await self._engine.writer.submit(
            lambda database: turn_commits.unwritten(database, after, limit, self._engine.has_chats(database))
        )

    async def wait_unwritten(self) -> None:
        """Return when a record was committed since the last call (or since start)."""
        await self._engine.recorded.wait()
        self._engine.recorded.clear()

    def mark_written(self, seqs: Sequence[int]) -> None:
        """Note that these records are in their files: every later operation sees it, and a kill may undo it.

        It is stored with the next transaction, which is a message's as a rule.
        """
        gone = [(seq,) for seq in seqs]
        self._engine.writer.submit_nowait(
            lambda database: database.executemany("DELETE FROM unwritten WHERE seq = ?", gone).close(),
            group=self,
            within=_WRITTEN_WITHIN,
        )

    async def append(self, record: TurnRecord, *, outbound: Sequence[OutboundMessage] = ()) -> None:
        """Commit lines that belong to no inbox row (pointer, mark, snapshot, delta, cut), and what is said beside them.

        A record of this turn that is there already changes nothing.
        """
        await self._journal.append(record, outbound)

    async def append_from(self, job: Job, record: TurnRecord, *, outbound: Sequence[OutboundMessage] = ()) -> bool:
        """Do the same and end the *job* behind it; False, and nothing, when the job was removed before."""
        return await self._journal.append_from(job, record, outbound)

    async def pending_notes(self, key: SessionKey, note: int) -> InboxRow | None:
        """Return the note (an edit or deletion that came after its turn) while no turn has taken it up."""
        return await self._engine.writer.submit(
            lambda database: session_queue.pending_note(database, write_key(key), note)
        )

    async def append_for(self, note: int, record: TurnRecord) -> bool:
        """Commit lines and end the note that they come of; False, and nothing, when a turn has taken it up."""
        return await self._journal.append_for(note, record)

    async def sessions(self, scope: str = "") -> tuple[SessionRow, ...]:
        """Return every session (of *scope*), the most recently used first."""
        return await self._engine.writer.submit(partial(session_queue.list_sessions, scope=scope))

    async def scope_of(self, key: SessionKey) -> str | None:
        """Return the scope of the session *key*; None if it has no session."""
        found = await self._engine.fetch("SELECT scope FROM session WHERE key = ?", write_key(key))
        return unquote(found[0][0]) if found else None

    async def has_session(self, chat: SessionKey, scope: str) -> bool:
        """Return True if *chat* or one of its threads has a session of *scope*. Reads the sessions of *chat* alone."""
        return await self._engine.writer.submit(lambda database: session_queue.has_session(database, chat, scope))


class SqlPreferences:
    """Choices of people and chats (time zone, language, model, owner), by subject."""

    def __init__(
        self, engine: StoreEngine, preferences: dict[str, dict[str, str]], choosers: Mapping[SessionKey, str]
    ) -> None:
        self._engine = engine
        self._preferences = preferences
        self._choosers = choosers

    def choosers(self) -> Mapping[SessionKey, str]:
        """Return the chats of every subject that had chosen a language when the store was opened, and whose each is."""
        return self._choosers

    def preferences(self, subject: str) -> Mapping[str, str]:
        """Return the choices of *subject* (a scope name); served from memory."""
        return MappingProxyType(self._preferences.get(subject, {}))

    async def prefer(self, subject: str, name: str, value: str) -> None:
        """Store one choice; an empty value removes it."""
        columns = (quote(subject), quote(name))

        def store(database: SharedDatabase) -> None:
            if value:
                database.execute(_PUT_PREFERENCE, (*columns, quote(value)))
            else:
                database.execute("DELETE FROM preference WHERE subject = ? AND name = ?", columns)
            database.changes_cached(CachedRows.CHOICES)

        def change(_: object) -> None:
            chosen = {key: old for key, old in self._preferences.get(subject, {}).items() if key != name}
            self._preferences[subject] = chosen | ({name: value} if value else {})

        await self._engine.writer.submit(store, change)


@dataclass(slots=True)
class ChannelNotes:
    """The notes of every channel that are served from memory, and what is called when another worker changes some."""

    by_channel: dict[str, dict[str, str]]
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def replace(self, notes: dict[str, dict[str, str]]) -> None:
        """Take over *notes* as another worker has left them."""
        self.by_channel = notes
        for call in self.listeners:
            call()

    def set_note(self, channel: str, name: str, value: str | None) -> None:
        """Set one note as it was stored; None removes it."""
        notes = {each: old for each, old in self.by_channel.get(channel, {}).items() if each != name}
        self.by_channel[channel] = notes if value is None else {**notes, name: value}


class SqlChannelState:
    """A channel's own small durable notes (high-water marks, login sessions), by name, and its accepted messages."""

    def __init__(self, engine: StoreEngine, channel: str, cached: ChannelNotes) -> None:
        self._engine = engine
        self._channel = channel
        self._cached = cached

    async def load(self, name: str) -> str | None:
        """Return a note, or None."""
        columns = (self._channel, quote(name))
        found = await self._engine.fetch(_NOTE, *columns, group=columns)
        return unquote(found[0][0]) if found else None

    async def all(self, prefix: str) -> Mapping[str, str]:
        """Return the notes whose names begin with *prefix*, which is not empty, by name."""
        found = await self._engine.fetch(_NOTES, self._channel, prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))
        return {unquote(name): unquote(value) for name, value in found}

    async def save(self, name: str, value: str | None, *, within: float = 0.0) -> None:
        """Store a note durably; None removes it. It may wait *within* seconds for a write that is needed anyway."""
        columns = (self._channel, quote(name))

        def store(database: SharedDatabase) -> None:
            if value is None:
                database.execute(_DROP_NOTE, columns).close()
            else:
                database.execute(_PUT_NOTE, (*columns, quote(value))).close()
            if name.startswith(CACHED_NOTES):
                database.changes_cached(CachedRows.NOTES)

        def change(_: object) -> None:
            if name.startswith(CACHED_NOTES):
                self._cached.set_note(self._channel, name, value)

        group = None if name.startswith(CACHED_NOTES) else columns
        await self._engine.writer.submit(store, change, group=group, within=within)

    async def replace(self, name: str, before: str | None, value: str | None) -> bool:
        """Store a note if it is still *before*; None is a note that does not exist. Return False if it is another."""
        columns = (self._channel, quote(name))
        values: tuple[str, ...]
        if before is None:
            statement, values = _ADD_NOTE, (*columns, quote(value or ""))
        elif value is None:
            statement, values = _DROP_NOTE_AS_IT_IS, (*columns, quote(before))
        else:
            statement, values = _REPLACE_NOTE, (quote(value), *columns, quote(before))

        def store(database: SharedDatabase) -> bool:
            is_stored = database.execute(statement, values).rowcount == 1
            if is_stored and name.startswith(CACHED_NOTES):
                database.changes_cached(CachedRows.NOTES)
            return is_stored

        def change(is_stored: bool) -> None:
            if is_stored and name.startswith(CACHED_NOTES):
                self._cached.set_note(self._channel, name, value)

        return await self._engine.writer.submit(store, change)

    async def take(self, name: str) -> str | None:
        """Remove a note durably and return it. Of several callers, at any worker, one gets it; the others get None."""
        columns = (self._channel, quote(name))
        found = await self._engine.fetch(_TAKE_NOTE, *columns, group=columns)
        return unquote(found[0][0]) if found else None

    def forget(self, name: str) -> None:
        """Remove a note within some seconds, with other writes; after a kill it may still be there."""
        columns = (self._channel, quote(name))
        self._engine.writer.submit_nowait(
            lambda database: database.execute(_DROP_NOTE, columns).close(), group=columns, within=_FORGET_WITHIN
        )

    def save_soon(self, name: str, value: str) -> None:
        """Store a note within some seconds, with other writes; a kill before that loses it."""
        columns = (self._channel, quote(name))
        self._engine.writer.submit_nowait(
            lambda database: database.execute(_PUT_NOTE, (*columns, quote(value))).close(),
            group=columns,
            within=_FORGET_WITHIN,
        )

    def just_ended(self, rows: Collection[int]) -> frozenset[int]:
        """Return those of *rows* that a turn of this worker has ended a short time ago. Does not ask the store."""
        return frozenset(row for row in rows if row in self._engine.ended)

    async def find_ended(self, key: SessionKey, rows: Collection[int]) -> frozenset[int]:
        """Return those of *rows*, which are of *key*, that have ended, or do not exist any more."""
        found = await self._engine.fetch(_OPEN_ROWS, write_key(key), group=key.parent)
        return frozenset(rows) - {row for (row,) in found}

    async def save_first_row(self, row: int | None, *, within: float = 0.0) -> None:
        """Note durably that this worker is not done with the messages from *row* on; None: it is done with all."""
        await self.save(f"{_FIRST_ROW}{self._engine.worker.name}", None if row is None else str(row), within=within)

    async def take_over_rows(self, limit: int) -> Sequence[AcceptedMessage]:
        """Return the messages with which killed workers were not done, the newest *limit*.

        The first of them becomes this worker's own first row, in the same transaction.
        """
        channel, own = self._channel, f"{_FIRST_ROW}{self._engine.worker.name}"

        def take_over(database: SharedDatabase) -> Sequence[tuple[Any, ...]]:
            left = database.execute(_LEFT_ROWS, (channel,)).fetchall()
            if not left:
                return ()
            mine = database.execute(_NOTE, (channel, own)).fetchall()
            first = min(int(value) for value, *_ in (*mine, *((value,) for _, value in left)))
            database.executemany(_DROP_NOTE, [(channel, name) for name, _ in left]).close()
            database.execute(_PUT_NOTE, (channel, own, str(first))).close()
            return database.execute(_ROWS_FROM, (first, f"{channel}:", f"{channel};", limit)).fetchall()

        found = await self._engine.writer.submit(take_over)
        return tuple(AcceptedMessage(row, read_key(key), unquote(id_), moment(at)) for row, key, id_, at in found)

    def cached(self) -> Mapping[str, str]:
        """Return the notes that are served from memory."""
        return self._cached.by_channel.get(self._channel, {})

    def when_cached_changed(self, call: Callable[[], None]) -> None:
        """Call *call* when another worker has changed one of them."""
        self._cached.listeners.append(call)
