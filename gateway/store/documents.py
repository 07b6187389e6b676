"""Documents over the writer: line by line, changed by compare-and-set.

Lines are compared outside the writer's thread; a change compares what it was made from with what is stored. Every
statement names the scope. The row of `memory_scope` is locked by each change, so that numbers rise in their order.
"""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, overload

from gateway.ports.journal import Job
from gateway.ports.memory import (
    REPOSITORY,
    DocumentChange,
    DocumentState,
    HistoryUpdate,
    ScopeDocument,
    ScopeHead,
    StalePath,
    TextChange,
    document_file,
    rev_of,
)
from gateway.store.database import LISTED, Database
from gateway.store.document_lines import (
    DocumentLine,
    LineDiff,
    build_lines,
    compare_lines,
    join_lines,
)
from gateway.store.engine import StoreEngine, StorePart
from gateway.store.erased_words import ErasedWords, ErasureRunning, check_erasures, clear_texts, erasure_ids_of
from gateway.store.history import clear_update, store_update
from gateway.store.row_codec import micros, moment, quote, read_json, sql, unquote, write_json

_CACHED = 256  # documents
_SHORTEST = 4  # characters of an id that are taken for it
_ID_BYTES = 4
_REV = "SELECT rev, changed FROM document WHERE scope = ? AND name = ?"
_LINE = "SELECT line, place, text, added, removed FROM document_line WHERE scope = ? AND document = ?"
_ALIVE = sql(_LINE, "AND removed IS NULL ORDER BY place")
_DEAD = sql(_LINE, "AND removed IS NOT NULL")
_NAMED = "SELECT document, line, place, text, added, removed FROM document_line WHERE scope = ?"
_ALIVE_AT = sql(_NAMED, "AND added <= ? AND (removed IS NULL OR removed >= ?) ORDER BY place")
_LINES_OF = sql(_NAMED, "AND added <= ? AND (removed IS NULL OR removed > ?) ORDER BY place")
_CHANGE = "SELECT number, id, at, why, author, names, undoes FROM document_change WHERE scope = ?"
_NEWEST = sql(_CHANGE, "AND number > ? ORDER BY number DESC LIMIT ?")
_NEXT = sql(_CHANGE, "AND number > ? ORDER BY number LIMIT ?")
_BY_ID = sql(_CHANGE, "AND id >= ? AND id < ? LIMIT 2")
_BY_NUMBER = sql(_CHANGE, "AND number = ?")
_FIRST_ADDED = "SELECT min(added) FROM document_line WHERE scope = ? AND document = ? AND line = ?"
_HEADS = sql("SELECT scope, number, epoch FROM memory_scope WHERE scope", LISTED)
_REVS = sql("SELECT scope, name, rev FROM document WHERE scope", LISTED)
_BEGIN = "INSERT INTO memory_scope (scope, number, epoch) VALUES (?, 0, '') ON CONFLICT DO NOTHING"
# Written although it stays: another gateway's change of the scope waits, or this batch is run again.
_LOCK = "UPDATE memory_scope SET number = number WHERE scope = ?"
_NUMBER = "SELECT number FROM memory_scope WHERE scope = ?"
_SET_NUMBER = "UPDATE memory_scope SET number = ? WHERE scope = ?"
_SET_EPOCH = (
    "INSERT INTO memory_scope (scope, number, epoch) VALUES (?, 0, ?) "
    "ON CONFLICT (scope) DO UPDATE SET epoch = excluded.epoch"
)
_EPOCH = "SELECT epoch FROM memory_scope WHERE scope = ?"
_SCOPES = "SELECT scope FROM memory_scope"
_SET_REV = (
    "INSERT INTO document (scope, name, rev, changed) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (scope, name) DO UPDATE SET rev = excluded.rev, changed = excluded.changed"
)
_END_LINE = "UPDATE document_line SET removed = ? WHERE scope = ? AND document = ? AND line = ? AND added = ?"
_ADD_LINE = (
    "INSERT INTO document_line (scope, document, line, place, text, added, removed) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_ADD_CHANGE = (
    "INSERT INTO document_change (scope, number, id, at, why, author, names, undoes) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_NAMES = "SELECT name FROM document WHERE scope = ?"
_TABLES = ("document_line", "document_change", "document")
# Numbers rise, also behind a debt that was paid: another flush may be about to drop that one.
_OWE = (
    "INSERT INTO stale_file (scope, key, transcript, changes) VALUES (?, '', ?, ?) "
    "ON CONFLICT (scope, key, transcript) DO UPDATE SET changes = "
    "CASE WHEN excluded.changes > stale_file.changes THEN excluded.changes ELSE stale_file.changes + 1 END"
)
_STALE = "SELECT scope, transcript, changes FROM stale_file WHERE key = ''"
_STALE_OF = sql(_STALE, "AND scope = ?")
_DROP_STALE = "DELETE FROM stale_file WHERE scope = ? AND key = '' AND transcript = ? AND changes = ?"


@dataclass(frozen=True, slots=True)
class _StoredDocument:
    """A document as a change found it."""

    rev: str
    changed: int  # number of its last change
    lines: list[DocumentLine]
    dead: list[DocumentLine]


class SqlDocuments(StorePart):
    """The documents of every scope with all their changes.

    Methods return when a write is durable, and raise StoreUnavailable otherwise. The files of the documents are a
    mirror: each write leaves a debt for them in its own transaction.
    """

    _adoption = "adopted_documents"

    def __init__(self, engine: StoreEngine) -> None:
        super().__init__(engine)
        self._texts: OrderedDict[tuple[str, str], ScopeDocument] = OrderedDict()

    async def read(self, scope: str, name: str) -> ScopeDocument:
        """Return the current text."""
        columns, known = (quote(scope), name), self._texts.get((scope, name))

        def read(database: Database) -> tuple[str, list[Any]]:
            rev, _ = database.execute(_REV, columns).fetchone() or ("", 0)
            if not rev or (known is not None and known.rev == rev):
                return rev, []
            return rev, database.execute(_ALIVE, columns).fetchall()

        rev, rows = await self._engine.read(read)
        if not rev:
            return ScopeDocument(name=name, text="", rev="")
        if rows:
            self._cache(scope, ScopeDocument(name=name, text=join_lines(list(map(_line, rows))), rev=rev))
        elif known is not None:
            self._cache(scope, known)
        return self._texts[scope, name]

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = "", beside: HistoryUpdate | None = None
    ) -> ScopeDocument | None:
        """Replace the text if its rev is still *was*, and store *beside* in the same transaction."""
        done = await self._change(scope, {name: TextChange(was, text)}, why=why, by=by, beside=beside)
        return ScopeDocument(name=name, text=done[1][name], rev=rev_of(done[1][name])) if done is not None else None

    async def epoch(self, scope: str) -> str:
        """Return the epoch."""
        found = await self._engine.read_rows(_EPOCH, quote(scope))
        return unquote(found[0][0]) if found else ""

    async def change(
        self,
        scope: str,
        texts: Mapping[str, TextChange],
        *,
        why: str,
        by: str = "",
        undoes: str = "",
        after: int | None = None,
        at: datetime | None = None,
    ) -> DocumentChange | None:
        """Replace several documents by one change; return None, with nothing changed, if one has another rev.

        With *after*, the same happens unless that is the number of the newest change: versions that the texts were made
        from are then as they were read.

        If no text differs, nothing is stored, and the change that is returned has no id. A line that moves, or that
        comes back by a change that *undoes* another, stays the same line for `source`.
        """
        done = await self._change(scope, texts, why=why, by=by, undoes=undoes, after=after, at=at)
        return done[0] if done is not None else None

    async def _change(
        self,
        scope: str,
        texts: Mapping[str, TextChange],
        *,
        why: str,
        by: str = "",
        undoes: str = "",
        after: int | None = None,
        at: datetime | None = None,
        beside: HistoryUpdate | None = None,
    ) -> tuple[DocumentChange, Mapping[str, str]] | None:
        """Return the change and the texts that it has stored, without words that are being erased."""
        wanted, erasure_ids = {name: _encodable(each.text) for name, each in texts.items()}, "[]"
        change = DocumentChange(id="", number=0, at=at or self._engine.clock(), why=why, by=by, undoes=undoes)
        while True:
            before, undone = await self._engine.writer.submit(
                lambda database: _read_documents(database, quote(scope), texts, undoes)
            )
            if any(before[name].rev != each.was for name, each in texts.items()):
                return None
            differing = {name: text for name, text in wanted.items() if rev_of(text) != texts[name].was}
            if not differing and beside is None:
                return change, wanted
            edits = await asyncio.to_thread(_compare, before, differing, undone)
            change = replace(change, id=secrets.token_hex(_ID_BYTES) if differing else "", names=tuple(differing))
            revs = {name: rev_of(text) for name, text in differing.items()}
            self._engine.path_changes += 1
            store = partial(
                _store_beside,
                beside=beside,
                engine=self._engine,
                scope=quote(scope),
                change=change,
                before=before,
                edits=edits,
                revs=revs,
                after=after,
                erasure_ids=erasure_ids,
            )
            try:
                number = await self._engine.writer.submit(store, self._count_change)
            except ErasureRunning as refusal:
                lines = {name: join_lines(each.lines) for name, each in before.items()}
                wanted = await clear_texts(self._engine, refusal, wanted, partial(_clear, before=lines, by=by))
                beside = await clear_texts(self._engine, refusal, beside, clear_update)
                erasure_ids = erasure_ids_of(refusal.erasures)
                continue
            if number is None:
                return None
            if number:
                return replace(change, number=number if differing else 0), wanted

    @property
    def change_count(self) -> int:
        """Number of changes and epochs that this process has stored; it rises before their callers go on."""
        return self._engine.document_changes

    def _count_change(self, _done: object) -> None:
        self._engine.document_changes += 1
        self._engine.recorded.set()  # a pointer that was stored beside it is in no file yet

    async def heads(self, scopes: Sequence[str]) -> Mapping[str, ScopeHead]:
        """Return the head of each of *scopes*, in one operation."""
        columns = (write_json([quote(each) for each in scopes]),)

        def read(database: Database) -> tuple[list[Any], list[Any]]:
            return database.execute(_HEADS, columns).fetchall(), database.execute(_REVS, columns).fetchall()

        rows, documents = await self._engine.read(read)
        found = {unquote(scope): (number, unquote(epoch)) for scope, number, epoch in rows}
        revs: dict[str, dict[str, str]] = {}
        for scope, name, rev in documents:
            if rev:
                revs.setdefault(unquote(scope), {})[name] = rev
        return {
            each: ScopeHead(
                number=found.get(each, (0, ""))[0], epoch=found.get(each, (0, ""))[1], revs=revs.get(each, {})
            )
            for each in scopes
        }

    async def texts(self, scope: str, number: int | None = None) -> Mapping[str, str]:
        """Return the documents after the change *number*, by default the newest one, without empty ones."""
        after = 2**62 if number is None else number
        return _texts(await self._engine.read_rows(_ALIVE_AT, quote(scope), after, after), after)

    async def log(self, scope: str, *, limit: int, since: int = 0) -> Sequence[DocumentChange]:
        """Return the newest changes with a higher number than *since*, the newest first."""
        return list(map(_change, await self._engine.read_rows(_NEWEST, quote(scope), since, limit)))

    async def find(self, scope: str, id_: str) -> DocumentChange | None:
        """Return the change whose id begins with *id_*; None when none or several do."""
        if len(id_) < _SHORTEST or not (id_.isascii() and id_.isalnum()):
            return None
        rows = await self._engine.read_rows(_BY_ID, quote(scope), *_beginning(id_.lower()))
        return _change(rows[0]) if len(rows) == 1 else None

    async def changed_texts(self, scope: str, change: DocumentChange) -> Mapping[str, tuple[str, str]]:
        """Return the texts of each document that *change* changed, before and after it; {} if it is not stored."""
        lines, by_id = (quote(scope), change.number, change.number), (quote(scope), *_beginning(change.id))

        def read(database: Database) -> list[Any]:
            found = database.execute(_BY_ID, by_id).fetchall()
            return (
                database.execute(_ALIVE_AT, lines).fetchall() if [each[0] for each in found] == [change.number] else []
            )

        rows = await self._engine.read(read)
        if not rows:
            return {}
        before, after = _texts(rows, change.number - 1), _texts(rows, change.number)
        return {name: (before.get(name, ""), after.get(name, "")) for name in change.names}

    async def source(self, scope: str, name: str, line: str) -> DocumentChange | None:
        """Return the change that added *line* to *name*; None if the document does not have the line now."""
        columns, wanted = (quote(scope), name), line.strip()

        def read(database: Database) -> Any:
            rows = map(_line, database.execute(_ALIVE, columns).fetchall())
            found = next((each.line for each in rows if each.text.strip() == wanted), None)
            if found is None:
                return None
            (added,) = database.execute(_FIRST_ADDED, (*columns, found)).fetchone()
            return database.execute(_BY_NUMBER, (columns[0], added)).fetchone()

        found = await self._engine.read(read)
        return _change(found) if found is not None else None

    async def states(self, scope: str, *, since: int = 0, limit: int | None = None) -> Sequence[DocumentState]:
        """Return the documents after every change with a higher number than *since*, the oldest first.

        With *limit*, after the first of these changes alone. A state's texts are put together when it is asked for,
        so that a caller who iterates has one state in memory.
        """
        columns = (quote(scope), since, 2**62 if limit is None else limit)

        def read(database: Database) -> tuple[list[Any], list[Any]]:
            changes = database.execute(_NEXT, columns).fetchall()
            if not changes:
                return [], []
            return changes, database.execute(_LINES_OF, (columns[0], changes[-1][0], since)).fetchall()

        changes, rows = await self._engine.read(read)
        return await asyncio.to_thread(_StoredStates, changes, rows, since)

    async def replace(
        self, states: Mapping[str, Iterable[DocumentState]], *, was: Mapping[str, int], epoch: str = ""
    ) -> bool:
        """Replace all that is stored of each scope by its states, the oldest first, in one transaction.

        Returns False, with nothing changed, if the newest change of a scope has not the number in *was* (0 = none). The
        states keep the ids of their changes, and get the numbers behind that one. A scope without states is removed,
        the others get *epoch*, unless it is empty.
        """
        rows = await asyncio.to_thread(
            lambda: {quote(scope): _write_states(quote(scope), each, was[scope]) for scope, each in states.items()}
        )
        numbers = {quote(scope): was[scope] for scope in states}
        self._engine.path_changes += 1

        def store(database: Database) -> bool:
            for scope, number in numbers.items():
                if _lock(database, scope) != number:
                    return False
            for scope, each in rows.items():
                _replace_scope(database, scope, each, numbers[scope] + len(each.changes))
                if epoch and each.changes:
                    database.execute(_SET_EPOCH, (scope, quote(epoch)))
            return True

        return await self._engine.writer.submit(store, self._count_change)

    async def set_epoch(self, scope: str, epoch: str) -> None:
        """Note that something of *scope* is erased: every conversation of it takes a new snapshot."""
        columns = (quote(scope), quote(epoch))
        await self._engine.writer.submit(
            lambda database: database.execute(_SET_EPOCH, columns).close(), self._count_change
        )

    async def scopes(self) -> Sequence[str]:
        """Return the scopes that have documents, changes or an epoch, sorted."""
        return sorted(unquote(scope) for (scope,) in await self._engine.fetch(_SCOPES))

    async def stale_paths(self, scope: str | None = None) -> Sequence[StalePath]:
        """Return the files beside transcripts that are to be written again, of *scope* or of all scopes."""
        engine = self._engine
        if scope is None and engine.path_changes_written == engine.path_changes and not engine.claims.is_shared:
            return ()
        changes = engine.path_changes  # those that are queued from here on are not seen
        rows = await (engine.fetch(_STALE) if scope is None else engine.fetch(_STALE_OF, quote(scope)))
        if scope is None and not rows:
            engine.path_changes_written = changes
        return [StalePath(scope=unquote(each), path=path, changes=count) for each, path, count in rows]

    async def drop_stale_path(self, file: StalePath) -> None:
        """Note that *file* was written again, unless it is stale once more since."""
        await self._engine.execute(_DROP_STALE, quote(file.scope), file.path, file.changes)

    async def owe_files(self, scope: str) -> None:
        """Have every file of the scope's documents, and their repository, written again."""

        def owe(database: Database) -> None:
            names = [name for (name,) in database.execute(_NAMES, (quote(scope),)).fetchall()]
            (number,) = database.execute(_NUMBER, (quote(scope),)).fetchone() or (0,)
            _owe_files(database, quote(scope), [*map(document_file, names), REPOSITORY], number)

        self._engine.path_changes += 1
        await self._engine.writer.submit(owe)

    def _cache(self, scope: str, document: ScopeDocument) -> None:
        self._texts[scope, document.name] = document
        self._texts.move_to_end((scope, document.name))
        while len(self._texts) > _CACHED:
            self._texts.popitem(last=False)


# -- one change ----------------------------------------------------------------------------------------


def has_documents(database: Database, scope: str, change: str, texts: Mapping[str, str]) -> bool:
    """Return True if a change of a scope is stored, by its whole id, or with an id of "" its current *texts*."""
    if change:
        statement = "SELECT 1 FROM document_change WHERE scope = ? AND id = ?"
        return database.execute(statement, (quote(scope), change)).fetchone() is not None
    revs = {name: database.execute(_REV, (quote(scope), name)).fetchone() for name in texts}
    return all((revs[name] or ("",))[0] == rev_of(text) for name, text in texts.items())


def _read_documents(
    database: Database, scope: str, names: Iterable[str], undoes: str
) -> tuple[dict[str, _StoredDocument], int | None]:
    """Return documents with their lines, and the number of the change *undoes*."""
    undone: int | None = None
    if undoes:
        found = database.execute(_BY_ID, (scope, *_beginning(undoes))).fetchall()
        undone = found[0][0] if len(found) == 1 else None
    documents: dict[str, _StoredDocument] = {}
    for name in names:
        rev, changed = database.execute(_REV, (scope, name)).fetchone() or ("", 0)
        lines = list(map(_line, database.execute(_ALIVE, (scope, name)).fetchall()))
        dead = list(map(_line, database.execute(_DEAD, (scope, name)).fetchall())) if undone is not None else []
        documents[name] = _StoredDocument(rev, changed, lines, dead)
    return documents, undone


def _clear(
    words: ErasedWords, erasures: Sequence[Job], texts: dict[str, str], *, before: Mapping[str, str], by: str
) -> dict[str, str]:
    return dict(words.clear_texts(erasures, texts, before, by))


def _compare(
    before: Mapping[str, _StoredDocument], texts: Mapping[str, str], undone: int | None
) -> dict[str, LineDiff]:
    """Return the change of each document; its number is not known yet."""
    return {name: compare_lines(before[name].lines, text, 0, before[name].dead, undone) for name, text in texts.items()}


def _store_beside(
    database: Database, *, beside: HistoryUpdate | None, engine: StoreEngine, scope: str, **change: Any
) -> int | None:
    """Store a change as `_store` does, and what belongs to it."""
    number = _store(database, scope=scope, **change)
    if number and beside is not None:
        store_update(database, beside, engine, scope)
    return number


def _store(
    database: Database,
    *,
    scope: str,
    change: DocumentChange,
    before: Mapping[str, _StoredDocument],
    edits: Mapping[str, LineDiff],
    revs: Mapping[str, str],
    after: int | None,
    erasure_ids: str,
) -> int | None:
    """Store a change if its documents are as they were read; return its number, otherwise 0, or None behind *after*."""
    check_erasures(database, scope, erasure_ids)
    number = _lock(database, scope) + 1
    if after is not None and number != after + 1:
        return None
    if not edits:
        return number
    for name in edits:
        _, changed = database.execute(_REV, (scope, name)).fetchone() or ("", 0)
        if changed != before[name].changed:
            return 0
    for name, edit in edits.items():
        ended = [(number, scope, name, each.line, each.added) for each in edit.removed]
        database.executemany(_END_LINE, ended)
        # A line without an identity of its own is numbered by its change.
        added = [
            replace(each, line=each.line if each.line >> 32 else number << 32 | each.line, added=number)
            for each in edit.added
        ]
        database.executemany(_ADD_LINE, [_line_columns(scope, name, each) for each in added])
        database.execute(_SET_REV, (scope, name, revs[name], number))
    database.execute(_ADD_CHANGE, _change_columns(scope, replace(change, number=number)))
    database.execute(_SET_NUMBER, (number, scope))
    _owe_files(database, scope, map(document_file, edits), number)
    return number


def _lock(database: Database, scope: str) -> int:
    """Return the number of a scope's newest change, after those that other gateways make now."""
    database.execute(_BEGIN, (scope,))
    database.execute(_LOCK, (scope,))
    (number,) = database.execute(_NUMBER, (scope,)).fetchone()
    return int(number)


def _owe_files(database: Database, scope: str, paths: Iterable[str], number: int) -> None:
    database.executemany(_OWE, [(scope, path, number) for path in paths])


# -- all changes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ScopeRows:
    """All rows of a scope, as columns."""

    lines: list[tuple[Any, ...]]
    changes: list[tuple[Any, ...]]
    documents: list[tuple[Any, ...]]


def _write_states(scope: str, states: Iterable[DocumentState], last: int) -> _ScopeRows:
    """Return the rows of a scope with the history *states*, whose changes get the numbers behind *last*.

    Of the texts, only those of two states are in memory.
    """
    documents: dict[str, tuple[Any, ...]] = {}
    changes: list[tuple[Any, ...]] = []

    def encode() -> Iterator[DocumentState]:
        before: Mapping[str, str] = {}
        for number, each in enumerate(states, last + 1):
            state = replace(each, texts={name: text for name, raw in each.texts.items() if (text := _encodable(raw))})
            every = dict.fromkeys((*before, *state.texts))
            names = tuple(name for name in every if before.get(name, "") != state.texts.get(name, ""))
            changes.append(_change_columns(scope, replace(state.change, number=number, names=names)))
            documents.update({name: (scope, name, rev_of(state.texts.get(name, "")), number) for name in names})
            before = state.texts
            yield state

    lines = build_lines(encode(), last + 1)
    columns = [_line_columns(scope, name, line) for name, each in lines.items() for line in each]
    return _ScopeRows(columns, changes, list(documents.values()))


def _replace_scope(database: Database, scope: str, rows: _ScopeRows, number: int) -> None:
    names = [name for (name,) in database.execute(_NAMES, (scope,)).fetchall()]
    for table in _TABLES:
        database.execute(sql("DELETE FROM", table, "WHERE scope = ?"), (scope,))
    database.executemany(_ADD_LINE, rows.lines)
    database.executemany(_ADD_CHANGE, rows.changes)
    database.executemany(_SET_REV, rows.documents)
    if rows.changes:
        database.execute(_SET_NUMBER, (number, scope))
    else:
        database.execute("DELETE FROM memory_scope WHERE scope = ?", (scope,))
    changed = dict.fromkeys((*names, *(each[1] for each in rows.documents)))
    _owe_files(database, scope, [*map(document_file, changed), REPOSITORY], number)


class _StoredStates(Sequence[DocumentState]):
    """The documents after each change behind *since*, put together when they are asked for.

    A history of ten thousand changes of a long text is gigabytes of texts, and few lines.
    """

    def __init__(self, changes: Sequence[Any], rows: Sequence[Any], since: int) -> None:
        """*rows* are in the order of their places."""
        self._changes = list(map(_change, changes))
        self._first: dict[str, list[tuple[str, int, str]]] = {}  # lines that are alive at first
        self._added: dict[tuple[str, int], list[tuple[str, int, str]]] = {}
        self._removed: dict[tuple[str, int], list[tuple[str, int, str]]] = {}
        for name, *columns in rows:
            line = _line(columns)
            entry = (line.place, line.line, line.text)
            if line.is_alive(since):
                self._first.setdefault(name, []).append(entry)
            else:
                self._added.setdefault((name, line.added), []).append(entry)
            if line.removed is not None:
                self._removed.setdefault((name, line.removed), []).append(entry)

    def __len__(self) -> int:
        return len(self._changes)

    def __repr__(self) -> str:
        return repr(list(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __iter__(self) -> Iterator[DocumentState]:
        alive = {name: list(entries) for name, entries in self._first.items()}
        texts = {name: _join(entries) for name, entries in alive.items()}
        for change in self._changes:
            for name in change.names:
                entries = alive.setdefault(name, [])
                for entry in self._removed.get((name, change.number), ()):
                    del entries[bisect_left(entries, entry)]
                for entry in self._added.get((name, change.number), ()):
                    insort(entries, entry)
                texts[name] = _join(entries)
            yield DocumentState(change=change, texts={name: text for name, text in texts.items() if text})

    @overload
    def __getitem__(self, place: int) -> DocumentState: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[DocumentState]: ...
    def __getitem__(self, place: int | slice) -> DocumentState | Sequence[DocumentState]:
        if isinstance(place, slice):
            return list(self)[place]
        wanted = range(len(self))[place]
        return next(islice(self, wanted, None))


def _join(entries: Sequence[tuple[str, int, str]]) -> str:
    return "\n".join([text for _, _, text in entries])


# -- columns -------------------------------------------------------------------------------------------


def _line(columns: Sequence[Any]) -> DocumentLine:
    line, place, text, added, removed = columns
    return DocumentLine(line, place, unquote(text), added, removed)


def _line_columns(scope: str, name: str, line: DocumentLine) -> tuple[Any, ...]:
    return (scope, name, line.line, line.place, quote(line.text), line.added, line.removed)


def _change(columns: Sequence[Any]) -> DocumentChange:
    number, id_, at, why, author, names, undoes = columns
    return DocumentChange(
        id=id_,
        number=number,
        at=moment(at),
        why=unquote(why),
        by=unquote(author),
        names=tuple(read_json(names)),
        undoes=undoes,
    )


def _change_columns(scope: str, change: DocumentChange) -> tuple[Any, ...]:
    return (
        *(scope, change.number, change.id, micros(change.at), quote(change.why), quote(change.by)),
        *(write_json(list(change.names)), change.undoes),
    )


def _texts(rows: Sequence[Any], number: int) -> dict[str, str]:
    """Return the documents after a change; *rows* are in the order of their places."""
    lines: dict[str, list[DocumentLine]] = {}
    for name, *columns in rows:
        if (line := _line(columns)).is_alive(number):
            lines.setdefault(name, []).append(line)
    return {name: join_lines(each) for name, each in lines.items()}


def _beginning(id_: str) -> tuple[str, str]:
    """Return the bounds of ids that begin so."""
    return id_, f"{id_}~"


def _encodable(text: str) -> str:
    """Return *text* as UTF-8 can hold it."""
    return text.encode("utf-8", "replace").decode()
