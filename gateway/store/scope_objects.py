"""Contents of large files in an object store, by their SHA-256; the database has what refers to them.

An object is written before the change that refers to it, and removed after the one that no longer does. `unused_object`
lists those that no file refers to: an object that is being written is in it until the change is committed, so that the
objects of an interrupted gateway are removed without listing the bucket. An object has one file: no name is used twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from gateway.errors import ObjectDamaged, ObjectsUnavailable
from gateway.ports.objects import ObjectStore
from gateway.ports.scope_files import ScopeChange, StoredFile, StoredFileChange
from gateway.store.database import Database, upsert_sql
from gateway.store.row_codec import sql
from gateway.store.writer import StoreWriter

LARGER = 256 * 1024  # bytes: smaller files are in the database
_STORING_SECONDS = 300.0  # of all objects of one change
_KEPT = timedelta(minutes=15)  # an object that is being written; longer than that and the commit take
_AT_ONCE = 100
_LIST = upsert_sql("unused_object", "name", "due")
_TAKE = "DELETE FROM unused_object WHERE name = ? AND due > 0"
_MARK_DUE = "UPDATE unused_object SET due = 0 WHERE due > 0 AND due <= ?"
_DUE = sql("SELECT name FROM unused_object WHERE due = 0 ORDER BY name LIMIT", str(_AT_ONCE))
_REMOVED = "DELETE FROM unused_object WHERE name = ?"
_RELEASE = (
    "INSERT INTO unused_object (name, due) SELECT object, 0 FROM scope_file "
    "WHERE scope = ? AND path = ? AND object != '' ON CONFLICT DO NOTHING"
)


class ObjectRemoved(Exception):
    """An object was removed as unused before its change was committed, which took too long: nothing is stored."""


class ScopeObjects:
    """Stores, reads and removes the objects of one database."""

    def __init__(self, objects: ObjectStore, writer: StoreWriter, now: Callable[[], int]) -> None:
        """*now* is the time in microseconds."""
        self._objects = objects
        self._writer = writer
        self._now = now

    async def store(self, changes: Sequence[ScopeChange]) -> Sequence[ScopeChange]:
        """Write the contents of large files; return *changes* with the objects' names. Raises ObjectsUnavailable."""
        names = await asyncio.to_thread(_name_objects, changes)
        if not names:
            return changes
        due = self._now() + int(_KEPT.total_seconds() * 1e6)
        rows = [(name, due) for name in names.values()]
        await self._writer.submit(lambda database: database.executemany(_LIST, rows).close())
        try:
            async with asyncio.timeout(_STORING_SECONDS):
                for change in changes:
                    for each in change.changes:
                        if (name := names.get((change.scope, each.file.path))) is not None:
                            await self._objects.put(name, each.data or b"")
        except TimeoutError:
            raise ObjectsUnavailable("the object store of store.objects.url is too slow: nothing was stored") from None
        return [
            replace(
                change,
                changes=[_with_object(each, names.get((change.scope, each.file.path))) for each in change.changes],
            )
            for change in changes
        ]

    async def discard(self, changes: Iterable[ScopeChange]) -> None:
        """List the objects of *changes*, which were not made, as due."""
        names = [(each.file.object, 0) for change in changes for each in change.changes if each.file.object]
        if names:
            await self._writer.submit(lambda database: database.executemany(_LIST, names).close())

    async def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yield the bytes of a file; raises ObjectDamaged after them if they are not those that were stored."""
        digest, size = hashlib.sha256(), 0
        try:
            async for data in self._objects.read(file.object):
                digest.update(data)
                size += len(data)
                if size > file.size:
                    break
                yield data
        except ObjectDamaged as error:
            raise ObjectDamaged(f"the object {file.object} ({file.path}) is lost: {error}") from error
        if size != file.size or digest.hexdigest() != file.object.partition("-")[0]:
            raise ObjectDamaged(
                f"the object {file.object} ({file.path}) is not what was stored: bring it back from a backup of it"
            )

    async def remove_unused(self) -> None:
        """Remove the objects that no file refers to any more. Raises ObjectsUnavailable if some remain."""
        now = self._now()

        def list_due(database: Database) -> list[tuple[str]]:
            database.execute(_MARK_DUE, (now,)).close()
            return database.execute(_DUE).fetchall()

        while names := await self._writer.submit(list_due):
            for (name,) in names:
                await self._objects.delete(name)
            await self._writer.submit(lambda database, names=names: database.executemany(_REMOVED, names).close())  # type: ignore[misc]


def take_objects(database: Database, names: Iterable[str]) -> None:
    """Take objects from the list, as a part of the change that refers to them. Raises ObjectRemoved."""
    for name in names:
        if database.execute(_TAKE, (name,)).rowcount != 1:
            raise ObjectRemoved


def release_objects(database: Database, files: Collection[tuple[str, str]]) -> None:
    """List the objects of *files*, by the columns of scope and path, as due: they are removed or replaced."""
    database.executemany(_RELEASE, files)


def _name_objects(changes: Sequence[ScopeChange]) -> dict[tuple[str, str], str]:
    return {
        (change.scope, each.file.path): f"{hashlib.sha256(each.data).hexdigest()}-{secrets.token_hex(4)}"
        for change in changes
        for each in change.changes
        if each.is_standalone and each.data is not None and len(each.data) > LARGER
    }


def _with_object(change: StoredFileChange, name: str | None) -> StoredFileChange:
    return change if name is None else replace(change, file=replace(change.file, object=name), data=None)
