"""History over the writer: entries and raw messages as the bytes of their lines, notes as their texts.

Every statement names the scope. The row in `history` has the last cursor and is locked before one is assigned, so that
cursors rise in the order in which their transactions commit, on PostgreSQL too.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from gateway.ports.journal import Job, Line, TurnCommit, TurnRecord
from gateway.ports.memory import (
    HISTORY_JSONL,
    HISTORY_MD,
    PRINTED_MARKS,
    RAW_JSONL,
    HistoryEntry,
    HistoryRevs,
    HistoryUpdate,
    MarkKind,
    Marks,
    NoteChange,
    ScopeHistory,
    StoredNote,
    mark_file,
)
from gateway.store.database import Database, upsert_sql
from gateway.store.engine import StoreEngine, StorePart
from gateway.store.erased_words import Clear, ErasedWords, store_cleared
from gateway.store.row_codec import quote, unquote
from gateway.store.transcripts import MAKE_STALE
from gateway.store.turn_commits import encode, store_pointer
from gateway.text.json_lines import decode_line, encode_entry, encode_raw, read_entry

T = TypeVar("T")
V = TypeVar("V")

FOLDER = "memory/"  # of a scope's, that the files are printed in
DREAM_CURSOR = ".dream_cursor"
_SLICE = 128  # rows read or changed in one operation
_MOST_BYTES = 4 * 1024 * 1024  # of them, but for the last
_LOCK = (
    "INSERT INTO history (scope, cursor, dream_cursor, entries, keys) VALUES (?, 0, 0, '', '') "
    "ON CONFLICT (scope) DO UPDATE SET cursor = history.cursor RETURNING cursor, dream_cursor"
)
_FIND = "SELECT cursor, body FROM history_entry WHERE scope = ? AND entry = ?"
_AFTER = "SELECT body FROM history_entry WHERE scope = ? AND cursor > ? ORDER BY cursor LIMIT ?"
_RAW_ENTRIES = "SELECT body FROM history_entry WHERE scope = ? AND is_raw = 1 ORDER BY cursor"
_PUT_ENTRY = upsert_sql("history_entry", "scope", "cursor", "entry", "is_raw", "body", keys=2)
_RAWS = "SELECT body FROM raw_message WHERE scope = ? AND entry = ? ORDER BY n"
_PUT_RAW = "INSERT INTO raw_message (scope, n, entry, body) VALUES (?, ?, ?, ?)"
_NEXT_RAW = "SELECT coalesce(max(n), 0) + 1 FROM raw_message WHERE scope = ?"
_NOTE = "SELECT body FROM note_file WHERE scope = ? AND name = ?"
_PUT_NOTE = upsert_sql("note_file", "scope", "name", "owner", "rev", "body", keys=2)
_SET_REV = "UPDATE note_file SET rev = ? WHERE scope = ? AND name = ?"
_PUT_MARK = upsert_sql("memory_mark", "scope", "kind", "name", "value", keys=3)
_DROP_MARK = "DELETE FROM memory_mark WHERE scope = ? AND kind = ? AND name = ?"
_SCOPES = "SELECT scope FROM history WHERE ? = 0 OR cursor > dream_cursor ORDER BY scope"
TABLES = ("history", "history_entry", "raw_message", "note_file", "memory_mark")


@dataclass(frozen=True, slots=True)
class _TextRows:
    """The rows of one table that have text. *key* orders them; *file* has them, or with "" each has its own."""

    table: str
    key: str
    file: str
    first: Any  # lower than every key

    @property
    def read(self) -> str:
        """Return the statement that reads the rows behind a key."""
        return (
            f"SELECT {self.key}, body FROM {self.table} WHERE scope = ? AND {self.key} > ? ORDER BY {self.key} LIMIT ?"  # noqa: S608 - our own words
        )

    @property
    def change(self) -> str:
        """Return the statement that replaces the body of a row, if it is what it was."""
        return f"UPDATE {self.table} SET body = ? WHERE scope = ? AND {self.key} = ? AND body = ?"  # noqa: S608

    @property
    def drop(self) -> str:
        """Return the statement that removes a row, if it is what it was."""
        return f"DELETE FROM {self.table} WHERE scope = ? AND {self.key} = ? AND body = ?"  # noqa: S608


_TEXT_ROWS = (
    _TextRows("history_entry", "cursor", HISTORY_JSONL, -1),
    _TextRows("raw_message", "n", RAW_JSONL, -1),
    _TextRows("note_file", "name", "", ""),
)


class SqlHistory(StorePart):
    """The history of every scope of a gateway.

    Its files are a mirror: each change leaves debts for them in its own transaction.
    """

    _adoption = "adopted_histories"

    async def append(self, scope: str, *entries: HistoryEntry) -> Sequence[HistoryEntry]:
        """Store the entries."""
        put: Callable[[Database, Sequence[HistoryEntry]], Sequence[HistoryEntry]] = partial(_append, scope=quote(scope))
        return await self._store_cleared(scope, entries, _clear, put)

    async def keep_raw(
        self, scope: str, entry: HistoryEntry, messages: Sequence[Any], *, pointer: TurnRecord | None = None
    ) -> HistoryEntry:
        """Store messages that no model could summarise."""
        column = quote(scope)

        def keep(database: Database, lines: Sequence[Any]) -> HistoryEntry:
            update = HistoryUpdate(entry=replace(entry, raw=RAW_JSONL), pointer=pointer)
            stored = store_update(database, update, self._engine, column)
            if stored.raw and database.execute(_RAWS, (column, quote(entry.entry))).fetchone() is None:
                _put_raws(database, column, encode_raw(entry, lines))
                _make_stale(database, column, (RAW_JSONL,))
            return stored

        stored = await self._store_cleared(scope, messages, _clear_messages, keep)
        if pointer is not None:
            self._engine.recorded.set()
        return stored

    async def after(self, scope: str, cursor: int = 0, limit: int | None = None) -> Sequence[HistoryEntry]:
        """Return the entries after a cursor."""
        return _entries(await self._engine.fetch(_AFTER, quote(scope), cursor, 2**31 if limit is None else limit))

    async def find(self, scope: str, entry: str) -> HistoryEntry | None:
        """Return an entry by its id."""
        found = await self._engine.fetch(_FIND, quote(scope), quote(entry)) if entry else []
        return read_entry(bytes(found[0][1])) if found else None

    async def revs(self, scope: str) -> HistoryRevs:
        """Return the revs."""
        found = await self._engine.fetch("SELECT entries, keys FROM history WHERE scope = ?", quote(scope))
        notes = await self._engine.fetch("SELECT name, rev FROM note_file WHERE scope = ?", quote(scope))
        entries, keys = found[0] if found else ("", "")
        return HistoryRevs(entries=entries, keys=keys, notes={unquote(name): rev for name, rev in notes})

    async def raw_entries(self, scope: str) -> Sequence[HistoryEntry]:
        """Return the entries whose messages no model has summarised yet."""
        return _entries(await self._engine.fetch(_RAW_ENTRIES, quote(scope)))

    async def raw_messages(self, scope: str, entry: str) -> Sequence[Line]:
        """Return the messages that are kept for this entry."""
        lines = [decode_line(bytes(body)) for (body,) in await self._engine.fetch(_RAWS, quote(scope), quote(entry))]
        return [line["message"] for line in lines if line and line.get("message")]

    async def dream_cursor(self, scope: str) -> int:
        """Return the cursor of the last entry that Dream has processed."""
        found = await self._engine.fetch("SELECT dream_cursor FROM history WHERE scope = ?", quote(scope))
        return found[0][0] if found else 0

    async def advance_dream(self, scope: str, cursor: int) -> None:
        """Note that Dream has processed the entries up to *cursor*; it never goes back."""
        column = quote(scope)

        def advance(database: Database) -> None:
            _, before = database.execute(_LOCK, (column,)).fetchone()
            if cursor > before:
                database.execute(
                    "UPDATE history SET dream_cursor = ?1, cursor = CASE WHEN cursor < ?1 THEN ?1 ELSE cursor END "
                    "WHERE scope = ?2",
                    (cursor, column),
                )
                _make_stale(database, column, (DREAM_CURSOR,))

        await self._change(advance)

    async def scopes(self, *, with_news: bool = False) -> Sequence[str]:
        """Return the scopes with a history; *with_news*: those with entries that Dream has not processed."""
        return [unquote(scope) for (scope,) in await self._engine.fetch(_SCOPES, int(with_news))]

    async def note_names(self, scope: str) -> Sequence[str]:
        """Return the names of the notes."""
        found = await self._engine.fetch("SELECT name FROM note_file WHERE scope = ? ORDER BY name", quote(scope))
        return [unquote(name) for (name,) in found]

    async def note(self, scope: str, name: str) -> bytes | None:
        """Return a note."""
        found = await self._engine.fetch(_NOTE, quote(scope), quote(name))
        return bytes(found[0][0]) if found else None

    async def marks(self, scope: str, kind: MarkKind) -> Mapping[str, str]:
        """Return the marks of a kind."""
        found = await self._engine.fetch(
            "SELECT name, value FROM memory_mark WHERE scope = ? AND kind = ?", quote(scope), kind
        )
        return {unquote(name): unquote(value) for name, value in found}

    async def write(
        self,
        scope: str,
        *,
        notes: Mapping[str, NoteChange] | None = None,
        marks: Mapping[MarkKind, Marks] | None = None,
    ) -> bool:
        """Change notes and marks."""
        write = partial(_write, scope=quote(scope), marks=marks or {})
        if not notes:
            return await self._change(partial(write, notes={}))
        return await self._store_cleared(scope, notes, _clear_notes, write)

    async def rewrite(self, scope: str, change: Callable[[str, bytes], bytes]) -> int:
        """Apply *change* to every entry, raw message and note; return the number of changed ones.

        It gets the name of the file and a line of it, or the whole text of a note. Returned empty, these are removed.
        *change* runs in a thread, and again for what was changed at the same time.
        """
        changed = 0
        for rows in _TEXT_ROWS:
            after = rows.first
            while found := await self._engine.writer.submit(
                partial(_slice, scope=quote(scope), rows=rows, after=after)
            ):
                changes = await asyncio.to_thread(_changed, rows, found, change)
                done = await self._change(partial(_store_changes, scope=quote(scope), rows=rows, changes=changes))
                changed += done
                if done == len(changes):  # else something was changed at the same time: this slice is read again
                    after = found[-1][0]
        return changed

    async def load(self, scope: str) -> ScopeHistory:
        """Return all that is stored of a scope."""
        return await self._engine.writer.submit(partial(_load, scope=quote(scope)))

    async def replace(self, contents: Mapping[str, ScopeHistory], *, was: Mapping[str, ScopeHistory]) -> bool:
        """Replace all that is stored of these scopes, in one transaction.

        Return False, with nothing changed, unless each has what *was* says, as `load` returned it.
        """

        def put(database: Database) -> bool:
            columns = {quote(scope): scope for scope in sorted(contents)}  # in one order: other workers lock them too
            for column, scope in columns.items():
                database.execute(_LOCK, (column,)).fetchone()
                if _load(database, column) != was[scope]:
                    return False
            for column, scope in columns.items():
                _remove(database, column)
                if contents[scope] != ScopeHistory():
                    _put(database, column, contents[scope])
            return True

        return await self._change(put)

    async def adopt(self, scope: str, contents: ScopeHistory) -> bool:
        """Store *contents* if nothing was ever stored of the scope; return True if it was stored now."""
        column = quote(scope)

        def adopt(database: Database) -> bool:
            if database.execute("SELECT 1 FROM history WHERE scope = ?", (column,)).fetchone() is not None:
                return False
            _put(database, column, contents)
            return True

        return await self._change(adopt)

    async def remove(self, scope: str) -> None:
        """Remove all that is stored of a scope."""
        await self._change(lambda database: _remove(database, quote(scope)))

    async def _change(self, operation: Callable[[Database], T]) -> T:
        self._engine.path_changes += 1
        return await self._engine.writer.submit(operation)

    async def _store_cleared(self, scope: str, value: V, clear: Clear[V], store: Callable[[Database, V], T]) -> T:
        self._engine.path_changes += 1
        return await store_cleared(self._engine, scope, value, clear, store)


def _clear(words: ErasedWords, erasures: Sequence[Job], entries: tuple[HistoryEntry, ...]) -> tuple[HistoryEntry, ...]:
    return tuple(words.clear_entry(erasures, each) for each in entries)


def _clear_notes(
    words: ErasedWords, erasures: Sequence[Job], notes: Mapping[str, NoteChange]
) -> Mapping[str, NoteChange]:
    texts = {name: (each.body or b"").decode("utf-8", "replace") for name, each in notes.items()}
    cleared = words.clear_texts(erasures, texts, {}, "")
    return {
        name: each if cleared[name] == texts[name] else replace(each, body=cleared[name].encode("utf-8", "replace"))
        for name, each in notes.items()
    }


def _clear_messages(words: ErasedWords, erasures: Sequence[Job], messages: Sequence[Any]) -> Sequence[Any]:
    return words.clear_messages(erasures, messages)


# -- in a transaction ----------------------------------------------------------------------------------


def store_update(database: Database, update: HistoryUpdate, engine: StoreEngine, scope: str) -> HistoryEntry:
    """Store an entry and the pointer of its conversation, each once; return the entry as it is stored.

    The caller has taken the words of every erasure of the scope out of the entry. A pointer has none.
    """
    (stored,) = _append(database, (update.entry,), scope=scope)
    if update.pointer is not None:
        commit = TurnCommit(record=update.pointer)
        store_pointer(database, encode(commit, engine.now(), is_mirrored=not engine.claims.is_shared))
    return stored


def clear_update(words: ErasedWords, erasures: Sequence[Job], update: HistoryUpdate | None) -> HistoryUpdate | None:
    """Return an update whose entry has none of the words."""
    return None if update is None else replace(update, entry=words.clear_entry(erasures, update.entry))


def _append(database: Database, entries: Sequence[HistoryEntry], *, scope: str) -> list[HistoryEntry]:
    cursor, _ = database.execute(_LOCK, (scope,)).fetchone()
    first = cursor
    stored: list[HistoryEntry] = []
    put: list[HistoryEntry] = []
    for entry in entries:
        found = database.execute(_FIND, (scope, quote(entry.entry))).fetchone() if entry.entry else None
        known = read_entry(bytes(found[1])) if found is not None else None
        if known is None:
            cursor += 1
            stored.append(replace(entry, cursor=cursor))
        elif known.raw and not entry.raw:
            stored.append(replace(entry, cursor=known.cursor, timestamp=known.timestamp))
        else:
            stored.append(known)
            continue
        put.append(stored[-1])
        database.execute(_PUT_ENTRY, _entry_columns(scope, encode_entry(stored[-1])))
    if cursor != first:
        database.execute("UPDATE history SET cursor = ? WHERE scope = ?", (cursor, scope))
    if put:
        is_longer = len(put) == cursor - first
        _make_stale(database, scope, (HISTORY_JSONL,) if is_longer else (HISTORY_JSONL, HISTORY_MD))
    return stored


def _write(database: Database, notes: Mapping[str, NoteChange], *, scope: str, marks: Mapping[MarkKind, Marks]) -> bool:
    database.execute(_LOCK, (scope,)).fetchone()
    for name, change in notes.items():
        found = database.execute(_NOTE, (scope, quote(name))).fetchone()
        if (bytes(found[0]) if found is not None else None) != change.was:
            return False
    for name, change in notes.items():
        if change.body is None:
            database.execute("DELETE FROM note_file WHERE scope = ? AND name = ?", (scope, quote(name)))
        elif change.was is None:
            database.execute(_PUT_NOTE, (scope, quote(name), "", rev_of_note(change.body), change.body))
        else:
            database.execute(
                "UPDATE note_file SET rev = ?, body = ? WHERE scope = ? AND name = ?",
                (rev_of_note(change.body), change.body, scope, quote(name)),
            )
    _make_stale(database, scope, [*notes, *(mark_file(kind) for kind in marks if kind in PRINTED_MARKS)])
    for kind, changes in marks.items():
        gone = [(scope, kind, quote(name)) for name, value in changes.items() if value is None]
        kept = [(scope, kind, quote(name), quote(value)) for name, value in changes.items() if value is not None]
        database.executemany(_DROP_MARK, gone)
        database.executemany(_PUT_MARK, kept)
    if MarkKind.KEYS in marks:
        database.execute("UPDATE history SET keys = ? WHERE scope = ?", (_new_rev(), scope))
    return True


def load_history(database: Database, scope: str) -> ScopeHistory:
    """Return all that is stored of a scope."""
    return _load(database, quote(scope))


def _load(database: Database, scope: str) -> ScopeHistory:
    def rows(statement: str) -> list[Any]:
        return database.execute(statement, (scope,)).fetchall()

    cursors = rows("SELECT cursor, dream_cursor FROM history WHERE scope = ?")
    marks: dict[MarkKind, dict[str, str]] = {}
    for kind, name, value in rows("SELECT kind, name, value FROM memory_mark WHERE scope = ? ORDER BY name"):
        marks.setdefault(MarkKind(kind), {})[unquote(name)] = unquote(value)
    return ScopeHistory(
        entries=_bodies(rows("SELECT body FROM history_entry WHERE scope = ? ORDER BY cursor")),
        raws=_bodies(rows("SELECT body FROM raw_message WHERE scope = ? ORDER BY n")),
        notes={
            unquote(name): StoredNote(owner=unquote(owner), body=bytes(body))
            for name, owner, body in rows("SELECT name, owner, body FROM note_file WHERE scope = ? ORDER BY name")
        },
        marks=marks,
        cursor=cursors[0][0] if cursors else 0,
        dream_cursor=cursors[0][1] if cursors else 0,
    )


def _put(database: Database, scope: str, contents: ScopeHistory) -> None:
    """Store the contents of a scope that has none."""
    entries = [_entry_columns(scope, body) for body in contents.entries]
    cursors = [each[1] for each in entries]
    highest = max([contents.cursor, contents.dream_cursor, *cursors])
    database.execute(
        "INSERT INTO history (scope, cursor, dream_cursor, entries, keys) VALUES (?, ?, ?, '', ?)",
        (scope, highest, contents.dream_cursor, _new_rev()),
    )
    database.executemany(_PUT_ENTRY, entries)
    _put_raws(database, scope, contents.raws)
    database.executemany(
        _PUT_NOTE,
        [
            (scope, quote(name), quote(each.owner), rev_of_note(each.body), each.body)
            for name, each in contents.notes.items()
        ],
    )
    database.executemany(
        _PUT_MARK,
        [
            (scope, kind, quote(name), quote(value))
            for kind, each in contents.marks.items()
            for name, value in each.items()
        ],
    )
    files = [HISTORY_JSONL, HISTORY_MD] if entries else []
    files += [DREAM_CURSOR] if contents.dream_cursor else []
    files += [*([RAW_JSONL] if contents.raws else ()), *contents.notes]
    files += [mark_file(kind) for kind in contents.marks if kind in PRINTED_MARKS]
    _make_stale(database, scope, files)


def _put_raws(database: Database, scope: str, bodies: Sequence[bytes]) -> None:
    (first,) = database.execute(_NEXT_RAW, (scope,)).fetchone()
    rows = [
        (scope, n, quote(str((decode_line(body) or {}).get("entry", ""))), body) for n, body in enumerate(bodies, first)
    ]
    database.executemany(_PUT_RAW, rows)


def _remove(database: Database, scope: str) -> None:
    names = database.execute("SELECT name FROM note_file WHERE scope = ?", (scope,)).fetchall()
    kinds = database.execute("SELECT DISTINCT kind FROM memory_mark WHERE scope = ?", (scope,)).fetchall()
    names += [(mark_file(kind),) for (kind,) in kinds if kind in PRINTED_MARKS]
    known = database.execute("SELECT 1 FROM history WHERE scope = ?", (scope,)).fetchone()
    if known is not None:
        _make_stale(
            database, scope, [HISTORY_JSONL, HISTORY_MD, RAW_JSONL, DREAM_CURSOR, *(unquote(name) for (name,) in names)]
        )
    for table in TABLES:
        database.execute(f"DELETE FROM {table} WHERE scope = ?", (scope,))  # noqa: S608 - our own names


def _slice(database: Database, scope: str, rows: _TextRows, after: Any) -> list[tuple[Any, bytes]]:
    """Return the first rows behind a key, until they are a few megabytes."""
    result = database.execute(rows.read, (scope, after, _SLICE))
    found: list[tuple[Any, bytes]] = []
    left = _MOST_BYTES
    for key, body in result:
        found.append((key, bytes(body)))
        left -= len(body)
        if left <= 0:
            break
    result.close()
    return found


def _changed(
    rows: _TextRows, page: Sequence[tuple[Any, bytes]], change: Callable[[str, bytes], bytes]
) -> list[tuple[Any, bytes, bytes]]:
    changes = ((key, body, change(rows.file or unquote(key), body)) for key, body in page)
    return [(key, before, after) for key, before, after in changes if before != after]


def _store_changes(database: Database, scope: str, rows: _TextRows, changes: Sequence[tuple[Any, bytes, bytes]]) -> int:
    """Store the changes of rows that are as they were read; return their number."""
    done = 0
    for key, before, after in changes:
        columns = (scope, key, before)
        if after:
            count = database.execute(rows.change, (after, *columns)).rowcount
        else:
            count = database.execute(rows.drop, columns).rowcount
        if count:
            names = (HISTORY_JSONL, HISTORY_MD) if rows.file == HISTORY_JSONL else (rows.file or unquote(key),)
            _make_stale(database, scope, names)
        if count and after and not rows.file:
            database.execute(_SET_REV, (rev_of_note(after), scope, key))
        done += count
    return done


def _make_stale(database: Database, scope: str, names: Collection[str]) -> None:
    if HISTORY_JSONL in names:
        database.execute("UPDATE history SET entries = ? WHERE scope = ?", (_new_rev(), scope))
    database.executemany(MAKE_STALE, [(scope, "", f"{FOLDER}{name}") for name in names])


def _entry_columns(scope: str, body: bytes) -> tuple[Any, ...]:
    """Return the columns of an entry's line. Raises ValueError for a line without a cursor."""
    entry = read_entry(body)
    if entry is None:
        raise ValueError("a line without a cursor is no history entry")
    return scope, entry.cursor, quote(entry.entry), int(bool(entry.raw)), body


def rev_of_note(body: bytes) -> str:
    """Return the rev of a note with this text."""
    return hashlib.sha256(body).hexdigest()[:32]


def _new_rev() -> str:
    return secrets.token_hex(8)


def _entries(rows: Sequence[tuple[Any]]) -> list[HistoryEntry]:
    return [entry for (body,) in rows if (entry := read_entry(bytes(body))) is not None]


def _bodies(rows: Sequence[tuple[Any]]) -> tuple[bytes, ...]:
    return tuple(bytes(body) for (body,) in rows)
