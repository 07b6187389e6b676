"""Files of scopes: a row for each file, and its bytes in pieces, in the scope's folder or in the object store.

Each write of bytes has a new place, which is never written again. No reader meets half of a file, and removing a file
never takes the bytes of another one. Small files are pieces in the transaction of their row. Of larger ones the bytes
come first. Until the row refers to their place, and again when it no longer does, `unused_object` lists it. So bytes of
an interrupted change are found there, without listing a folder or a bucket.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gateway.errors import FileUnavailable, ObjectDamaged, ObjectsUnavailable, StoreUnavailable
from gateway.ports.journal import Job
from gateway.ports.memory import BYTES, MEDIUM, FileKind, FileLimit, FilesFull, FileTotal, ScopeFile, ScopeFileChange
from gateway.store.database import LISTED, SET_META, Database, upsert_sql
from gateway.store.engine import StoreEngine, StorePart
from gateway.store.erased_words import (
    ErasedWords,
    ErasureRunning,
    check_erasures,
    clear_texts,
    erasure_ids_of,
    store_cleared,
)
from gateway.store.objects import DirectoryObjects, ObjectStore
from gateway.store.row_codec import micros, moment, quote, sql, unquote, write_json

T = TypeVar("T")

SMALL_BYTES = 64 * 1024  # in the transaction of the row
PIECE_BYTES = 256 * 1024
_READ_BYTES, _IN_MEMORY = (
    1024 * 1024,
    4 * 1024 * 1024,
)  # read and stored in one operation, so that others wait no longer
_HASHED_AT_ONCE = 1024 * 1024  # bytes; more would hold the event loop
_AT_ONCE = 100  # files in one operation
_STORING_SECONDS = 300.0  # for the bytes of one change
KEPT_FOR = timedelta(hours=1)  # bytes that no row refers to yet; longer than that and the commit take
_OUTSIDE = "-"  # in a place that is not in the database: the digest, and random characters
_COLUMNS = "kind, name, at, is_untrusted, original, sha256, size, place"
_ADD = sql("INSERT INTO stored_file (scope,", _COLUMNS, ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
_PUT = sql(
    "INSERT INTO stored_file (scope,",
    _COLUMNS,
    ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (scope, kind, name) DO UPDATE SET",
    "at = CASE WHEN stored_file.at < excluded.at THEN excluded.at ELSE stored_file.at END RETURNING at, place",
)
_OF_NAME = "WHERE scope = ? AND kind = ? AND name = ?"
_USE = sql("UPDATE stored_file SET at = CASE WHEN at < ? THEN ? ELSE at END", _OF_NAME, "RETURNING", _COLUMNS)
_OF_SCOPE = sql("SELECT", _COLUMNS, "FROM stored_file WHERE scope = ?")
_LIST = sql(_OF_SCOPE, "ORDER BY kind, name")
_LIST_KINDS = sql(_OF_SCOPE, "AND kind", LISTED, "ORDER BY kind, name")
_FIND = sql(_OF_SCOPE, "AND kind = ? AND name = ?")
_OF_PLACE = sql(_OF_NAME, "AND place = ?")
_CHANGE = sql(
    "UPDATE stored_file SET kind = ?, name = ?, at = ?, is_untrusted = ?, original = ?, sha256 = ?, size = ?,",
    "place = ?",
    _OF_PLACE,
)
_GIVE = sql("UPDATE stored_file SET scope = ?, name = ?", _OF_PLACE)
_REMOVE = sql("DELETE FROM stored_file", _OF_PLACE)
_REMOVE_OLD = sql(_REMOVE, "AND at < ?")
_WITH_TEXT = "SELECT 1 FROM stored_file WHERE scope = ? AND kind IN (?, ?) AND original != ? LIMIT 1"
_TOTALS = "SELECT kind, count(*), sum(size) FROM stored_file WHERE scope = ? GROUP BY kind"
_SCOPES = "SELECT DISTINCT scope FROM stored_file ORDER BY scope"
_SCOPES_OF = sql("SELECT DISTINCT scope FROM stored_file WHERE kind", LISTED, "ORDER BY scope")
ADD_PIECE = "INSERT INTO file_piece (scope, place, n, data) VALUES (?, ?, ?, ?)"
_PIECES = "SELECT data FROM file_piece WHERE scope = ? AND place = ? AND n >= ? AND n < ? ORDER BY n"
_SMALL = sql(
    "SELECT f.name, f.sha256, p.data FROM stored_file f JOIN file_piece p ON p.scope = f.scope AND p.place = f.place",
    "WHERE f.scope = ? AND f.kind = ? AND f.name",
    LISTED,
    "ORDER BY f.name, p.n",
)
_REMOVE_PIECES = "DELETE FROM file_piece WHERE scope = ? AND place = ?"
_GIVE_PIECES = "UPDATE file_piece SET scope = ? WHERE scope = ? AND place = ?"
_UNUSED = upsert_sql("unused_object", "name", "due")
_TAKE = "DELETE FROM unused_object WHERE name = ? AND due > 0"
_DISCARD = "UPDATE unused_object SET due = 0 WHERE name = ? AND due > 0"
_MARK_DUE = "UPDATE unused_object SET due = 0 WHERE due > 0 AND due <= ?"
_DUE = sql("SELECT name FROM unused_object WHERE due = 0 ORDER BY name LIMIT", str(_AT_ONCE))
_REMOVED = "DELETE FROM unused_object WHERE name = ?"
_HOLD = "bytes_held."  # begins the names of rows of `meta` with the time until which a backup reads objects
_HOLDS = "SELECT name, value FROM meta WHERE name LIKE ?"
_END_HOLD = "DELETE FROM meta WHERE name = ?"
_HOLD_POLL = 1.0  # seconds


class _OtherThanRead(Exception):
    """A file is not as the author of a change has read it: nothing is changed."""


class _BytesRemoved(Exception):
    """Bytes were removed as unused before their row was stored, which took too long: nothing is stored."""


@contextmanager
def _explain_removed() -> Iterator[None]:
    try:
        yield
    except _BytesRemoved as error:
        raise StoreUnavailable("storing or moving large files took too long: try again") from error


@dataclass(frozen=True, slots=True)
class _NewBytes:
    """Bytes that a row is to refer to. They are in the database with the row, or at their place already."""

    place: str
    digest: str
    size: int
    pieces: Sequence[bytes] = ()  # to be stored with the row
    listed: str = ""  # their name in `unused_object`, if they are at their place


class SqlFiles(StorePart):
    """Files of scopes. A change is one transaction, and its bytes are durable before it.

    The bytes of a *home* are in the folders of its scopes; None = in the database, of large files in *objects*. Raises
    StoreUnavailable as the journal does, OSError where the disk of the home fails.
    """

    _adoption = "adopted_files"

    def __init__(self, engine: StoreEngine, home: Path | None, objects: ObjectStore | None = None) -> None:
        super().__init__(engine)
        self._folders = DirectoryObjects(home, is_home=True) if home is not None else None
        self._objects = objects
        self.change_count = 0  # of this process's changes of which files there are
        self._held = 0  # backups that read bytes
        self._released = asyncio.Event()
        self._released.set()
        engine.remove_objects = self.remove_unused

    # -- reading -----------------------------------------------------------------------------------

    async def files(self, scope: str, *kinds: FileKind) -> Sequence[ScopeFile]:
        """Return the files of *kinds*, by kind and name; without kinds all files."""
        fetch, column = self._engine.fetch, quote(scope)
        found = await (fetch(_LIST_KINDS, column, write_json(kinds)) if kinds else fetch(_LIST, column))
        return [_file(row) for row in found]

    async def has_texts(self, scope: str) -> bool:
        """Return True if *scope* has files in its workspace, or attachments that may have text."""
        columns = (quote(scope), FileKind.WORKSPACE, FileKind.ATTACHMENT, MEDIUM)
        return await self._engine.read(lambda database: database.execute(_WITH_TEXT, columns).fetchone() is not None)

    async def find(self, scope: str, kind: FileKind, name: str) -> ScopeFile | None:
        """Return one file; None if it does not exist."""
        found = await self._engine.fetch(_FIND, quote(scope), kind, quote(name))
        return _file(found[0]) if found else None

    async def load(self, scope: str, file: ScopeFile) -> bytes | None:
        """Return the bytes of a file as it was read; None if they are gone, or are not what was stored."""
        try:
            return b"".join([piece async for piece in self.stream(scope, file)])
        except FileUnavailable:
            return None

    async def load_small(self, scope: str, kind: FileKind, names: Collection[str]) -> Mapping[str, bytes]:
        """Return the verified bytes of those of *names* that exist, which fit in memory together, in one query."""
        return verified_contents(
            await self._engine.fetch(_SMALL, quote(scope), kind, write_json([quote(each) for each in names]))
        )

    async def stream(self, scope: str, file: ScopeFile) -> AsyncIterator[bytes]:
        """Yield the bytes of a file; raise FileUnavailable before the last of them if they are not what was stored."""
        digest, size, last = hashlib.sha256(), 0, b""
        async for data in self._read(scope, file):
            if last:  # the last one is held back: without it, nobody takes a damaged file for a whole one
                yield last
            size += len(data)
            if size > file.size:
                break
            digest.update(data)
            last = data
        if size != file.size or digest.hexdigest() != file.digest:
            raise FileUnavailable("it is lost")
        if last:
            yield last

    async def _read(self, scope: str, file: ScopeFile) -> AsyncIterator[bytes]:
        if _OUTSIDE in file.place:
            try:
                async for data in self._outside(file.place).read(self._name(scope, file.place)):
                    yield data
            except ObjectDamaged as error:
                raise FileUnavailable("it is lost") from error
            return
        columns, step = (quote(scope), file.place), _READ_BYTES // PIECE_BYTES
        for n in range(0, -(-file.size // PIECE_BYTES), step):
            for (data,) in await self._engine.fetch(_PIECES, *columns, n, n + step):
                yield bytes(data)

    async def totals(self, scope: str) -> Mapping[FileKind, FileTotal]:
        """Return number and size of the scope's files by kind."""
        return _totals(await self._engine.fetch(_TOTALS, quote(scope)))

    async def scopes(self, *kinds: FileKind) -> Sequence[str]:
        """Return the scopes with files of *kinds*; without kinds those with any."""
        found = await (self._engine.fetch(_SCOPES_OF, write_json(kinds)) if kinds else self._engine.fetch(_SCOPES))
        return [unquote(scope) for (scope,) in found]

    # -- changing ----------------------------------------------------------------------------------

    async def change(self, scope: str, *changes: ScopeFileChange, limit: FileLimit | None = None) -> bool:
        """Make all *changes* in their order, or none and return False if a file is not as it was read.

        Raises FilesFull if that would exceed *limit*.
        """
        erasure_ids = "[]"
        while True:
            try:
                return await self._change(scope, changes, limit, erasure_ids)
            except ErasureRunning as refusal:
                changes = await clear_texts(self._engine, refusal, changes, _clear)
                erasure_ids = erasure_ids_of(refusal.erasures)

    async def _change(
        self, scope: str, changes: Sequence[ScopeFileChange], limit: FileLimit | None, erasure_ids: str
    ) -> bool:
        column = quote(scope)
        new: list[_NewBytes | None] = []

        def change(database: Database) -> None:
            if any(map(_has_words, changes)):
                check_erasures(database, column, erasure_ids)
            if limit is not None:
                _require_room(_totals(database.execute(_TOTALS, (column,)).fetchall()), changes, new, limit)
            for each, data in zip(changes, new, strict=True):
                self._apply(database, scope, each, data)

        try:
            for each in changes:
                if each.now is not None and each.data is not None:
                    new.append(await self._store(scope, each.now.kind, each.data))
                else:
                    new.append(None)
            with _explain_removed():
                await self._engine.writer.submit(change)
        except BaseException as error:
            self._discard(new)
            if isinstance(error, _OtherThanRead):
                return False
            raise
        self.change_count += 1
        await self._remove_behind([each.was for each in changes if each.was is not None])
        return True

    async def put(
        self, scope: str, kind: FileKind, data: bytes, *, at: datetime, most: int = 0, original: str = ""
    ) -> ScopeFile:
        """Store a file that is named by its digest; one that is stored gets the later time.

        With *most*, the oldest files of the kind beyond that number are removed.
        """
        column, name = quote(scope), await _hash(data)
        gone: list[ScopeFile] = []

        def use(database: Database) -> ScopeFile | None:
            """Note the use of a file that is stored. A row of its own might refer to bytes that are being removed."""
            found = database.execute(_USE, (micros(at), micros(at), column, kind, name)).fetchone()
            return None if found is None else _file(found)

        def put(database: Database, files: Sequence[ScopeFileChange]) -> ScopeFile:
            gone.clear()
            file = _with_bytes(ScopeFile(kind=kind, name=name, at=at, original=original), new)
            if not files:  # it has words that are being erased
                return replace(file, place="")
            stored = replace(file, **_put_row(database, column, file, at))
            if stored.place == new.place:
                _add_pieces(database, column, new)
                _take(database, new)
            if most:
                rows = map(_file, database.execute(_LIST_KINDS, (column, write_json([kind]))).fetchall())
                others = sorted((each for each in rows if each.name != name), key=lambda each: each.at, reverse=True)
                gone.extend(each for each in others[most - 1 :] if self._drop(database, scope, each))
            return stored

        if (known := await self._engine.writer.submit(use)) is not None:
            return known
        new = await self._store(scope, kind, data)
        files: tuple[ScopeFileChange, ...] = (ScopeFileChange(now=ScopeFile(kind=kind, name=name, at=at), data=data),)
        try:
            with _explain_removed():
                if kind is FileKind.RESULT:
                    stored = await store_cleared(self._engine, scope, files, _clear, put)
                else:
                    stored = await self._engine.writer.submit(lambda database: put(database, files))
        except BaseException:
            self._discard([new])
            raise
        self.change_count += 1
        if stored.place != new.place:  # another call was first, or it is not to be stored
            self._discard([new])
        await self._remove_behind(gone)
        return stored

    async def remove(
        self,
        scope: str,
        *kinds: FileKind,
        names: Collection[str] | None = None,
        before: datetime | None = None,
    ) -> int:
        """Remove the files of *kinds*, without kinds of all; return their number.

        With *names* only those, and with *before* only those that are older. Their bytes are gone then, too. Those in
        an object store are removed before a purge ends, otherwise by `collect_garbage`.
        """
        conditions, columns = [_OF_SCOPE], list[Any]([quote(scope)])
        if kinds:
            conditions, columns = [*conditions, "AND kind", LISTED], [*columns, write_json(kinds)]
        if names is not None:
            listed = write_json([quote(each) for each in names])
            conditions, columns = [*conditions, "AND name", LISTED], [*columns, listed]
        if before is not None:
            conditions, columns = [*conditions, "AND at < ?"], [*columns, micros(before)]
        statement = sql(*conditions, "ORDER BY kind, name LIMIT", str(_AT_ONCE))
        removed: list[ScopeFile] = []

        def remove(database: Database) -> tuple[bool, list[ScopeFile]]:
            files = list(map(_file, database.execute(statement, columns).fetchall()))
            return bool(files), [each for each in files if self._drop(database, scope, each, before)]

        is_left = True
        while is_left:  # one that another gateway changes at the same time is read again
            is_left, some = await self._engine.writer.submit(remove)
            removed += some
        self.change_count += 1
        await self._remove_behind(removed)
        return len(removed)

    async def expire(self, *kinds: FileKind, before: datetime) -> int:
        """Remove the older files of *kinds* in every scope; return their number."""
        return sum([await self.remove(scope, *kinds, before=before) for scope in await self.scopes(*kinds)])

    async def move(self, source: str, target: str, files: Mapping[ScopeFile, str] | None = None) -> None:
        """Give *files* of *source* to *target*, under these names; None = all, under their names.

        A file that another one of the kind and name is in the place of is removed. Idempotent: those that *source*
        has no more are skipped. Files move in several transactions: hold the exclusive locks of both scopes.
        """
        given = dict(files) if files is not None else {each: each.name for each in await self.files(source)}
        every = list(given.items())

        def move(database: Database, some: Sequence[tuple[ScopeFile, str]]) -> None:
            for file, name in some:
                self._give(database, source, target, file, name)

        for n in range(0, len(every), _AT_ONCE):
            some = every[n : n + _AT_ONCE]
            if self._folders is not None:
                await self._link(self._folders, source, target, some)
            with _explain_removed():
                await self._engine.writer.submit(partial(move, some=some))
        self.change_count += 1
        await self._remove_behind(given)

    # -- bytes that are in use, and that are not ---------------------------------------------------

    @asynccontextmanager
    async def keep_bytes(self) -> AsyncIterator[None]:
        """Remove no bytes while the context is open: a backup reads them. Those who remove files do not wait.

        No gateway that shares the database removes objects then, for at most an hour.
        """
        self._held += 1
        self._released.clear()
        hold = f"{_HOLD}{secrets.token_hex(8)}"
        try:
            if self._objects is not None:  # other gateways remove them, too
                await self._engine.execute(SET_META, hold, str(self._due()))
            yield
        finally:
            self._held -= 1
            if not self._held:
                self._released.set()
            if self._objects is not None:
                self._engine.writer.submit_nowait(lambda database: database.execute(_END_HOLD, (hold,)).close())

    async def copy_objects(self, home: Path) -> Sequence[str]:
        """Write the bytes that are in an object store into the folders of a home; return a line for each lost file."""
        if self._folders is not None:
            return ()
        copies, lost = DirectoryObjects(home, is_home=True), []
        for scope in await self.scopes():
            for file in await self.files(scope):
                if _OUTSIDE not in file.place:
                    continue
                data = await self.load(scope, file)
                if data is None:
                    lost.append(f"a file of {scope}: an object is damaged, see `parlour store check`")
                else:
                    await copies.put(_name_in_home(scope, file.place), data)
        return lost

    async def collect_garbage(self) -> int:
        """Remove bytes that interrupted changes have left; return their number. Call it now and then.

        Has no effect during a backup.
        """
        return (await self._remove_unused() or 0) if not self._held else 0

    async def remove_unused(self) -> int:
        """Do the same after the backup."""
        await self._released.wait()
        while (removed := await self._remove_unused()) is None:  # noqa: ASYNC110 - the end of another gateway's backup
            await asyncio.sleep(_HOLD_POLL)
        return removed

    async def _remove_unused(self) -> int | None:
        """Return the number of removed bytes; None while the backup of another gateway reads them."""
        removed = 0

        def list_due(database: Database) -> list[tuple[str]] | None:
            now, holds = self._engine.now(), database.execute(_HOLDS, (f"{_HOLD}%",)).fetchall()
            if self._objects is not None and any(int(until) > now for _, until in holds):
                return None
            ended = [(name,) for name, until in holds if int(until) <= now]  # of killed processes
            database.executemany(_END_HOLD, ended).close()
            database.execute(_MARK_DUE, (now,)).close()
            return database.execute(_DUE).fetchall()

        def note(database: Database, names: Sequence[tuple[str]]) -> None:
            database.executemany(_REMOVED, names)
            for scope, place in (_read_name(name) for (name,) in names):
                if _OUTSIDE not in place:
                    database.execute(_REMOVE_PIECES, (quote(scope), place))

        while names := await self._engine.writer.submit(list_due):
            for (name,) in names:
                _, place = _read_name(name)
                if _OUTSIDE in place:
                    await self._outside(place).delete(unquote(name))
            await self._engine.writer.submit(partial(note, names=names))
            removed += len(names)
        return None if names is None else removed

    # -- inside ------------------------------------------------------------------------------------

    def _due(self) -> int:
        """Return when bytes may be removed that no row refers to until then."""
        return self._engine.now() + int(KEPT_FOR.total_seconds() * 1e6)

    @property
    def _has_outside(self) -> bool:
        return (self._folders or self._objects) is not None

    def _outside(self, place: str) -> ObjectStore:
        store = self._folders or self._objects
        if store is None:
            raise ObjectsUnavailable(f"{place} is in an object store: set PARLOUR_STORE__OBJECTS__URL again")
        return store

    def _name(self, scope: str, place: str) -> str:
        """Return the name of a place: a path in the home, or that of an object."""
        if self._folders is None and _OUTSIDE in place:
            return place  # a bucket's owner reads no names of people
        return _name_in_home(scope, place)

    async def _store(self, scope: str, kind: FileKind, data: bytes) -> _NewBytes:
        """Return the new bytes of a file; large ones are stored durably at a new place before."""
        digest, is_outside = await _hash(data), kind is not FileKind.TEXT and self._has_outside
        if len(data) <= SMALL_BYTES:
            return _NewBytes(_new_place(), digest, len(data), split_pieces(data))
        place = f"{digest}{_OUTSIDE}{secrets.token_hex(4)}" if is_outside else _new_place()
        name = self._name(scope, place)
        await self._engine.execute(_UNUSED, quote(name), self._due())
        new = _NewBytes(place, digest, len(data), listed=name)
        try:
            async with asyncio.timeout(_STORING_SECONDS):
                await (self._outside(place).put(name, data) if is_outside else self._store_pieces(scope, place, data))
        except TimeoutError:  # as after a cancellation, a thread may write on: the bytes stay listed for their hour
            raise ObjectsUnavailable("storing a large file took too long: nothing was stored") from None
        except Exception as error:
            self._discard([new])
            if isinstance(error.__cause__, OSError) and self._folders is not None:
                raise error.__cause__ from None
            raise
        return new

    async def _store_pieces(self, scope: str, place: str, data: bytes) -> None:
        """Store the pieces of a large file, a few at a time, so that turns are committed in between."""
        rows = [(quote(scope), place, n, piece) for n, piece in enumerate(split_pieces(data))]
        step = 4 * _READ_BYTES // PIECE_BYTES
        for n in range(0, len(rows), step):
            some = rows[n : n + step]
            await self._engine.writer.submit(lambda database, some=some: database.executemany(ADD_PIECE, some).close())  # type: ignore[misc]

    def _discard(self, new: Iterable[_NewBytes | None]) -> None:
        """Have the bytes of a change that was not made removed.

        A change that was made after all, behind a cancelled call or an error, has taken them from the list.
        """
        names = [(quote(each.listed),) for each in new if each is not None and each.listed]
        if names:
            self._engine.writer.submit_nowait(lambda database: database.executemany(_DISCARD, names).close())

    async def _remove_behind(self, files: Iterable[ScopeFile]) -> None:
        """Remove the bytes of files that are gone from the home. Only a purge waits for an object store."""
        if self._folders is not None and not self._held and any(_OUTSIDE in each.place for each in files):
            await self.remove_unused()

    async def _link(
        self, folders: DirectoryObjects, source: str, target: str, files: Iterable[tuple[ScopeFile, str]]
    ) -> None:
        """Give the bytes of *files* that are going to move a second name in the folder of *target*, durably."""
        due = self._due()

        def list_unused(database: Database) -> list[str]:
            places = [
                file.place
                for file, name in files
                if _OUTSIDE in file.place
                and _has_file(database, source, file.kind, file.name, file.place)
                and not _has_file(database, target, file.kind, name)
            ]
            database.executemany(_UNUSED, [(quote(self._name(target, each)), due) for each in places]).close()
            return places

        for place in await self._engine.writer.submit(list_unused):
            with suppress(ObjectDamaged):  # it was lost before
                await folders.link(self._name(source, place), self._name(target, place))

    # -- in a transaction --------------------------------------------------------------------------

    def _apply(self, database: Database, scope: str, change: ScopeFileChange, new: _NewBytes | None) -> None:
        column, was, now = quote(scope), change.was, change.now
        if was is None and now is not None and new is not None:
            if database.execute(_ADD, (column, *_columns(_with_bytes(now, new)))).rowcount != 1:
                raise _OtherThanRead
            _add_pieces(database, column, new)
            _take(database, new)
        elif was is not None and now is None:
            if not self._drop(database, scope, was):
                raise _OtherThanRead
        elif was is not None and now is not None:
            is_renamed = (was.kind, was.name) != (now.kind, now.name)
            if is_renamed and _has_file(database, scope, now.kind, now.name):
                raise _OtherThanRead
            file = replace(now, digest=was.digest, size=was.size, place=was.place)
            file = _with_bytes(now, new) if new is not None else file
            key = (column, was.kind, quote(was.name), was.place)
            if database.execute(_CHANGE, (*_columns(file), *key)).rowcount != 1:
                raise _OtherThanRead
            if new is not None:
                self._release(database, scope, was.place)
                _add_pieces(database, column, new)
                _take(database, new)
        else:
            raise ValueError("a change needs a file that was there, or a new one with its bytes")

    def _drop(self, database: Database, scope: str, file: ScopeFile, before: datetime | None = None) -> bool:
        """Remove a file if it is as it was read, and older; return True if it was."""
        key = (quote(scope), file.kind, quote(file.name), file.place)
        statement, columns = (_REMOVE, key) if before is None else (_REMOVE_OLD, (*key, micros(before)))
        if not database.execute(statement, columns).rowcount:
            return False
        self._release(database, scope, file.place)
        return True

    def _release(self, database: Database, scope: str, place: str) -> None:
        """Remove pieces; list a place outside as due."""
        if _OUTSIDE in place:
            database.execute(_UNUSED, (quote(self._name(scope, place)), 0)).close()
        else:
            database.execute(_REMOVE_PIECES, (quote(scope), place)).close()

    def _give(self, database: Database, source: str, target: str, file: ScopeFile, name: str) -> None:
        key = (quote(source), file.kind, quote(file.name), file.place)
        if _has_file(database, target, file.kind, name):
            self._drop(database, source, file)
        elif database.execute(_GIVE, (quote(target), quote(name), *key)).rowcount:
            if _OUTSIDE not in file.place:
                database.execute(_GIVE_PIECES, (quote(target), quote(source), file.place)).close()
            elif self._folders is not None:
                if database.execute(_TAKE, (quote(self._name(target, file.place)),)).rowcount != 1:
                    raise _BytesRemoved
                database.execute(_UNUSED, (quote(self._name(source, file.place)), 0)).close()


def _has_words(change: ScopeFileChange) -> bool:
    """Return True if a change stores new text of a turn."""
    return change.now is not None and change.data is not None and change.now.kind is FileKind.WORKSPACE


def _clear(
    words: ErasedWords, erasures: Sequence[Job], changes: tuple[ScopeFileChange, ...]
) -> tuple[ScopeFileChange, ...]:
    """Return changes without the words; a file that cannot be cleared is removed, or not stored."""
    cleared = []
    for each in changes:
        data = each.data
        if each.now is not None and data is not None and each.now.kind in (FileKind.WORKSPACE, FileKind.RESULT):
            data = words.clear_file(erasures, each.now.kind, each.now.name, data)
            if data is None and each.was is None:
                continue
        cleared.append(replace(each, data=data, now=each.now if data is not None or each.data is None else None))
    return tuple(cleared)


def _has_file(database: Database, scope: str, kind: FileKind, name: str, place: str = "") -> bool:
    """Return True if a file has the name, and with *place* its bytes there."""
    found = database.execute(_FIND, (quote(scope), kind, quote(name))).fetchone()
    return found is not None and place in ("", _file(found).place)


# -- rows ----------------------------------------------------------------------------------------------


def encode_texts(texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return the bytes of texts by digest; one that an erasure has changed is left out."""
    encoded = {digest: text.encode("utf-8", "surrogatepass") for digest, text in texts.items()}
    return {digest: data for digest, data in encoded.items() if hashlib.sha256(data).hexdigest() == digest}


def put_texts(database: Database, scope: str, texts: Mapping[str, bytes], at: datetime) -> None:
    """Store texts of a prompt snapshot, by digest, in the transaction of the turn; *scope* is a column."""
    for digest, data in texts.items():
        new = _NewBytes(_new_place(), digest, len(data), split_pieces(data))
        file = _with_bytes(ScopeFile(kind=FileKind.TEXT, name=digest, at=at), new)
        if _put_row(database, scope, file, at)["place"] == new.place:
            _add_pieces(database, scope, new)


def read_texts(database: Database, scope: str, digests: Collection[str]) -> dict[str, str]:
    """Return those texts of a prompt snapshot that are stored; *scope* is a column."""
    found = database.execute(_SMALL, (scope, FileKind.TEXT, write_json([*digests]))).fetchall()
    return {name: data.decode("utf-8", "surrogatepass") for name, data in verified_contents(found).items()}


def _put_row(database: Database, scope: str, file: ScopeFile, at: datetime) -> dict[str, Any]:
    """Store the row of a file that is named by its bytes; return time and place of the one that is stored then."""
    stored_at, place = database.execute(_PUT, (scope, *_columns(replace(file, at=at)))).fetchone()
    return {"at": moment(stored_at), "place": place}


def verified_contents(rows: Iterable[tuple[str, str, bytes]]) -> dict[str, bytes]:
    """Return the bytes of files by name, from their names, digests and pieces; damaged ones are left out."""
    parts: dict[tuple[str, str], list[bytes]] = {}
    for name, digest, data in rows:
        parts.setdefault((name, digest), []).append(bytes(data))
    contents = {key: b"".join(pieces) for key, pieces in parts.items()}
    return {
        unquote(name): data for (name, digest), data in contents.items() if hashlib.sha256(data).hexdigest() == digest
    }


def _new_place() -> str:
    """Return a place in the database that no bytes have had."""
    return secrets.token_hex(12)


def split_pieces(data: bytes) -> Sequence[bytes]:
    """Return *data* in pieces; none of no bytes."""
    return [data[n : n + PIECE_BYTES] for n in range(0, len(data), PIECE_BYTES)]


def _add_pieces(database: Database, scope: str, new: _NewBytes) -> None:
    database.executemany(ADD_PIECE, [(scope, new.place, n, piece) for n, piece in enumerate(new.pieces)]).close()


def _take(database: Database, new: _NewBytes) -> None:
    """Take bytes from the list of unused ones, as a part of the change that refers to them."""
    if new.listed and database.execute(_TAKE, (quote(new.listed),)).rowcount != 1:
        raise _BytesRemoved


def _require_room(
    totals: Mapping[FileKind, FileTotal],
    changes: Sequence[ScopeFileChange],
    new: Sequence[_NewBytes | None],
    limit: FileLimit,
) -> None:
    """Raise FilesFull if *changes* add bytes beyond *limit*, or leave a kind beyond it without making it smaller."""
    counts, sizes = dict.fromkeys(limit.kinds, 0), dict.fromkeys(limit.kinds, 0)
    for change, data in zip(changes, new, strict=True):
        if change.was is not None and change.was.kind in counts:
            counts[change.was.kind] -= 1
            sizes[change.was.kind] -= change.was.size
        if change.now is not None and change.now.kind in counts:
            counts[change.now.kind] += 1
            sizes[change.now.kind] += data.size if data is not None else change.was.size if change.was else 0
    kept = {kind: totals.get(kind, FileTotal()) for kind in limit.kinds}
    is_crowded = any(counts[kind] >= 0 and kept[kind].count + counts[kind] > limit.count for kind in limit.kinds)
    grown = sum(sizes.values())
    if is_crowded or (grown > 0 and sum(each.size for each in kept.values()) + grown > limit.size):
        raise FilesFull(kept)


def _with_bytes(file: ScopeFile, new: _NewBytes) -> ScopeFile:
    return replace(file, digest=new.digest, size=new.size, place=new.place)


def _file(row: Sequence[Any]) -> ScopeFile:
    kind, name, at, is_untrusted, original, digest, size, place = row
    return ScopeFile(
        kind=FileKind(kind),
        name=unquote(name),
        at=moment(at),
        is_untrusted=bool(is_untrusted),
        original=unquote(original),
        digest=digest,
        size=size,
        place=place,
    )


def _columns(file: ScopeFile) -> tuple[Any, ...]:
    return (
        *(file.kind, quote(file.name), micros(file.at), int(file.is_untrusted), quote(file.original)),
        *(file.digest, file.size, file.place),
    )


def _totals(rows: Iterable[Sequence[Any]]) -> dict[FileKind, FileTotal]:
    return {FileKind(kind): FileTotal(count=count, size=size) for kind, count, size in rows}


def _name_in_home(scope: str, place: str) -> str:
    return f"{scope}/{BYTES}/{place}" if scope else f"{BYTES}/{place}"


def _read_name(name: str) -> tuple[str, str]:
    """Return scope and place of a name in `unused_object`; of an object the scope is not known."""
    folder, _, place = unquote(name).rpartition("/")
    return folder.removesuffix(BYTES).rstrip("/"), place


async def _hash(data: bytes) -> str:
    if len(data) <= _HASHED_AT_ONCE:
        return hashlib.sha256(data).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
