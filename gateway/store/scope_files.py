"""The ScopeFileStore port: files of memory scopes as rows, in pieces.

A file that grows gets one more piece, so that a turn writes its own lines only. A piece is never changed, and a version
that a cache has seen ends where a piece ends.

Each change of a scope has a number, its revision, and each file that of its last change. `scope.recent` names the
versions of the last ones: a cache that has one of them reads the newer files. Of a removed file, a digest of its path
is kept for as long.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from gateway.errors import StoreUnavailable
from gateway.ports.objects import ObjectStore
from gateway.ports.scope_files import SaveScopes, ScopeChange, ScopeDelta, ScopeLook, StoredFile, StoredFileChange
from gateway.store.database import LISTED, Database, upsert_sql
from gateway.store.engine import StoreEngine
from gateway.store.row_codec import quote, sql, unquote, write_json
from gateway.store.scope_objects import ObjectRemoved, ScopeObjects, release_objects, take_objects

# All of what this module stores, for those who copy a database; a home that is moved has the files themselves.
TABLES = ("scope", "scope_file", "scope_piece", "scope_removal", "scope_state", "unused_object")
PIECE_BYTES = 256 * 1024
_READ_BYTES = 4 * 1024 * 1024  # in one operation, so that other operations need not wait longer
_RECENT = 32  # versions of a scope that are known; a cache that is further behind lists all files
_GONE = -1  # the size of a removed file in `_CHANGES`
_STATE = "memory"
_SET_STATE = upsert_sql("scope_state", "name", "value")
_BEGIN_STATE = "INSERT INTO scope_state (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING"
_READ_STATE = "SELECT value FROM scope_state WHERE name = ?"
_BEGIN = "INSERT INTO scope (version, revision, recent, scope) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_MOVE = "UPDATE scope SET version = ?, revision = ?, recent = ? WHERE scope = ? AND version = ?"
_PUT_FILE = upsert_sql("scope_file", "scope", "path", "size", "replaced", "modified", "revision", keys=2)
_PUT_WHOLE = upsert_sql("scope_file", "scope", "path", "size", "replaced", "modified", "revision", "object", keys=2)
_PUT_REMOVAL = upsert_sql("scope_removal", "scope", "digest", "revision", keys=2)
_FORGET_REMOVALS = "DELETE FROM scope_removal WHERE scope = ?"
_OLD_REMOVALS = sql(_FORGET_REMOVALS, "AND revision <= ?")
_PUT_PIECE = "INSERT INTO scope_piece (scope, path, start, data) VALUES (?, ?, ?, ?)"
_LOOK = sql(
    "SELECT scope, version FROM scope WHERE scope",
    LISTED,
    "UNION ALL SELECT DISTINCT scope, NULL FROM job WHERE scope",
    LISTED,
)
_ROWS = sql("SELECT scope, version, revision, recent FROM scope WHERE scope", LISTED)
_ROW = "SELECT version, revision, recent FROM scope WHERE scope = ?"
_FILES = "SELECT path, size, replaced, modified, object FROM scope_file WHERE scope = ? ORDER BY path"
_HAS_FILES = "SELECT 1 FROM scope_file WHERE scope = ? LIMIT 1"
_CHANGES = sql(
    "SELECT path, size, replaced, modified, object FROM scope_file WHERE scope = ?1 AND revision > ?2 UNION ALL",
    "SELECT digest, -1, '', 0, '' FROM scope_removal WHERE scope = ?1 AND revision > ?2",
)
# With what the row of the file says at that moment: its content may be another's than was listed, of the same size.
_PIECES = "scope_file JOIN scope_piece USING (scope, path) WHERE scope = ? AND path"
_READ = sql("SELECT data FROM", _PIECES, "= ? AND replaced = ? AND start >= ? AND start < ? ORDER BY start")
_READ_SMALL = sql("SELECT path, replaced, data FROM", _PIECES, LISTED, "ORDER BY path, start")


_FileRow: TypeAlias = tuple[str, int, str, int, str]


class _ScopeRow(NamedTuple):
    version: str
    revision: int
    recent: str  # versions, the last one at the end

    def known_versions(self) -> Sequence[str]:
        """Return consecutive versions up to the scope's; none after a change by a gateway of the release before."""
        known = self.recent.split()
        return known if known[-1:] == [self.version] else ()

    def revision_of(self, version: str) -> int | None:
        """Return the revision of an earlier version; None if it is not known."""
        known = self.known_versions()
        return self.revision - (len(known) - 1 - known.index(version)) if version in known else None


_UNSTORED = _ScopeRow("", 0, "")


class SqlScopeFiles:
    """The port over the writer."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine
        self._objects: ScopeObjects | None = None

    def use_objects(self, objects: ObjectStore) -> None:
        """Keep large contents in *objects*; a purge waits until those that it has removed are gone."""
        self._objects = ScopeObjects(objects, self._engine.writer, self._engine.now)
        self._engine.remove_objects = self._objects.remove_unused

    async def remove_unused(self) -> None:
        """Remove objects that no file refers to any more."""
        await self._engine.remove_objects()

    async def versions(self) -> Mapping[str, str]:
        """Return the version of every stored scope."""
        _, versions = await self._engine.writer.submit(memory_of)
        return versions

    async def look(self, *scopes: str) -> Mapping[str, ScopeLook]:
        """Return the version of each scope, and whether it has jobs."""
        listed = write_json([quote(each) for each in scopes])
        found = await self._engine.writer.submit(
            lambda database: database.execute(_LOOK, (listed, listed)).fetchall(), group=scopes
        )
        versions = {unquote(scope): version for scope, version in found if version is not None}
        with_jobs = {unquote(scope) for scope, version in found if version is None}
        return {each: ScopeLook(versions.get(each, ""), each in with_jobs) for each in scopes}

    async def files(self, scope: str) -> tuple[str, Sequence[StoredFile]]:
        """Return the scope's version, and its files."""
        column = quote(scope)

        def look(database: Database) -> tuple[str, Sequence[StoredFile]]:
            version = database.execute("SELECT version FROM scope WHERE scope = ?", (column,)).fetchone()
            files = tuple(_read_file(row) for row in database.execute(_FILES, (column,)))
            return (version[0] if version is not None else ""), files

        return await self._engine.writer.submit(look, group=scope)

    async def changes(self, scope: str, since: str, paths: Collection[str]) -> ScopeDelta | None:
        """Return the changes since the version *since*."""
        column = quote(scope)

        def look(database: Database) -> tuple[str, list[_FileRow]] | None:
            row = _ScopeRow(*(database.execute(_ROW, (column,)).fetchone() or _UNSTORED))
            revision = row.revision_of(since)
            return (
                None if revision is None else (row.version, database.execute(_CHANGES, (column, revision)).fetchall())
            )

        found = await self._engine.writer.submit(look, group=scope)
        if found is None:
            return None
        version, rows = found
        gone = {path for path, size, *_ in rows if size == _GONE}
        files = [_read_file(row) for row in rows if row[1] != _GONE]
        removed = {path for path in paths if _digest(path) in gone} if gone else set()
        return ScopeDelta(version=version, files=files, removed=removed - {each.path for each in files})

    async def read(self, scope: str, file: StoredFile, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes of a file from *start*, which is 0 for one in the object store."""
        if file.object:
            if self._objects is None:
                raise StoreUnavailable(f"{file.path} is in an object store: set PARLOUR_STORE__OBJECTS__URL again")
            async for data in self._objects.read(file):
                yield data
            return
        columns = (quote(scope), quote(file.path), file.replaced)
        while start < file.size:
            low = start
            found = await self._engine.writer.submit(
                lambda database, low=low: database.execute(_READ, (*columns, low, low + _READ_BYTES)).fetchall()  # type: ignore[misc]
            )
            if not found:
                return
            data = b"".join(bytes(piece) for (piece,) in found)
            start += len(data)
            yield data

    async def read_small(self, scope: str, files: Sequence[StoredFile]) -> Mapping[str, bytes]:
        """Return the whole contents of files, b"" of those that were replaced."""
        columns = (quote(scope), write_json([quote(each.path) for each in files]))
        found = await self._engine.writer.submit(lambda database: database.execute(_READ_SMALL, columns).fetchall())
        pieces: dict[tuple[str, str], list[bytes]] = {(each.path, each.replaced): [] for each in files}
        for path, replaced, data in found:
            pieces.get((unquote(path), replaced), []).append(bytes(data))
        return {path: b"".join(parts) for (path, _), parts in pieces.items()}

    async def save(self, changes: Sequence[ScopeChange]) -> str | None:
        """Make all *changes*, or none."""
        if self._objects is None:
            group = changes[0].scope if len(changes) == 1 else None
            return await self._engine.writer.submit(lambda database: _save(database, changes), group=group)
        stored = await self._objects.store(changes)
        try:
            refused = await self._engine.writer.submit(lambda database: _save(database, stored, has_objects=True))
        except ObjectRemoved as error:
            await self._objects.discard(stored)
            raise StoreUnavailable("storing large files took too long: they are stored again") from error
        if refused is not None:
            await self._objects.discard(stored)
        return refused

    async def state(self) -> tuple[str, bool]:
        """Return the state, and True if turns have been answered."""

        def look(database: Database) -> tuple[str, bool]:
            found = database.execute(_READ_STATE, (_STATE,)).fetchone()
            record = database.execute("SELECT 1 FROM record LIMIT 1").fetchone()
            return (str(found[0]) if found is not None else ""), record is not None

        return await self._engine.writer.submit(look)

    async def begin_state(self, state: str) -> str:
        """Store the state unless one is stored; return the stored one."""

        def begin(database: Database) -> str:
            database.execute(_BEGIN_STATE, (_STATE, state))
            return str(database.execute(_READ_STATE, (_STATE,)).fetchone()[0])

        return await self._engine.writer.submit(begin)

    async def set_state(self, state: str) -> None:
        """Store the state."""
        await self._engine.writer.submit(lambda database: database.execute(_SET_STATE, (_STATE, state)).close())

    def save_first(self, save: SaveScopes) -> None:
        """Await *save* before every commit that promises something."""
        self._engine.save_files = save


def memory_of(database: Database) -> tuple[str, Mapping[str, str]]:
    """Return the state, and the version of every scope."""
    found = database.execute(_READ_STATE, (_STATE,)).fetchone()
    versions = database.execute("SELECT scope, version FROM scope").fetchall()
    return (str(found[0]) if found is not None else ""), {unquote(scope): version for scope, version in versions}


def _save(database: Database, changes: Sequence[ScopeChange], *, has_objects: bool = False) -> str | None:
    scopes = write_json([quote(each.scope) for each in changes])
    current = {scope: _ScopeRow(*row) for scope, *row in database.execute(_ROWS, (scopes,)).fetchall()}
    rows = {each.scope: current.get(quote(each.scope), _UNSTORED) for each in changes}
    for each in changes:
        if rows[each.scope].version != each.was:
            return each.scope
    for each in sorted(changes, key=lambda change: change.scope):  # one order of locks
        revision = _move(database, each, rows[each.scope])
        _write(database, each, revision, has_objects=has_objects)
    return None


def _move(database: Database, change: ScopeChange, row: _ScopeRow) -> int:
    """Give the scope its next version; return the revision of that."""
    scope, known = quote(change.scope), row.known_versions()
    if not known:  # what is stored of removed files is from before a gap
        database.execute(_FORGET_REMOVALS, (scope,))
    recent = " ".join((*known, change.version)[-_RECENT:])
    columns = (change.version, row.revision + 1, recent, scope)
    moved = database.execute(_MOVE, (*columns, change.was)) if change.was else database.execute(_BEGIN, columns)
    if moved.rowcount != 1:
        # Between the look and the change: another session, whose commit this transaction must not follow.
        raise RuntimeError(f"the scope {change.scope} was changed by another session")
    return row.revision + 1


def _write(database: Database, change: ScopeChange, revision: int, *, has_objects: bool) -> None:
    scope = quote(change.scope)
    whole = [each for each in change.changes if each.file.object or (each.data is not None and each.start == 0)]
    emptied = [(scope, quote(path)) for path in (*(each.file.path for each in whole), *change.removed)]
    if has_objects:
        release_objects(database, emptied)
        take_objects(database, (each.file.object for each in whole if each.file.object))
    database.executemany("DELETE FROM scope_piece WHERE scope = ? AND path = ?", emptied)
    rows = {
        each.file.path: (scope, quote(each.file.path), each.file.size, each.file.replaced, each.file.modified, revision)
        for each in change.changes
    }
    database.executemany(_PUT_WHOLE, [(*rows.pop(each.file.path), each.file.object) for each in whole])
    database.executemany(_PUT_FILE, rows.values())
    database.executemany(_PUT_PIECE, [row for each in change.changes for row in _pieces(scope, each)])
    if change.removed:
        _remove(database, scope, change.removed, revision)


def _remove(database: Database, scope: str, paths: Collection[str], revision: int) -> None:
    database.executemany(
        "DELETE FROM scope_file WHERE scope = ? AND path = ?", [(scope, quote(path)) for path in paths]
    )
    if database.execute(_HAS_FILES, (scope,)).fetchone() is None:
        # An erased scope leaves no name behind; a cache that still has it finds it missing.
        database.execute(_FORGET_REMOVALS, (scope,))
        database.execute("DELETE FROM scope WHERE scope = ?", (scope,))
    else:
        database.execute(_OLD_REMOVALS, (scope, revision - _RECENT))
        database.executemany(_PUT_REMOVAL, [(scope, _digest(path), revision) for path in paths])


def _digest(path: str) -> str:
    """Return the digest of a removed file's path: the path itself may quote what was forgotten."""
    return hashlib.sha256(quote(path).encode()).hexdigest()[:32]


def _pieces(scope: str, change: StoredFileChange) -> Iterator[tuple[str, str, int, bytes]]:
    data = change.data or b""
    for start in range(0, len(data), PIECE_BYTES):
        yield scope, quote(change.file.path), change.start + start, data[start : start + PIECE_BYTES]


def _read_file(row: _FileRow) -> StoredFile:
    path, size, replaced, modified, object_ = row
    return StoredFile(path=unquote(path), size=size, replaced=replaced, modified=modified, object=object_)
