"""Bytes of large files in a move between stores: from the home's folders to the database or the bucket, and back.

Each file is compared with its digest on the way. A place in the database has no hyphen (gateway/store/files.py).
`SqlEarlierFiles` reads files in pieces, as PostgreSQL had them in releases before files were rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.durable_files import sync_folder
from gateway.errors import ObjectDamaged, StoreUnavailable, UserError
from gateway.ports.memory import BYTES, EarlierFile
from gateway.store.database import Database
from gateway.store.engine import StoreEngine
from gateway.store.files import ADD_PIECE, split_pieces
from gateway.store.objects import DirectoryObjects, ObjectStore, make_folder
from gateway.store.row_codec import quote, unquote

TABLES = ("scope", "scope_file", "scope_piece", "scope_removal", "scope_state")
_READ_BYTES = 4 * 1024 * 1024  # in one operation, so that other operations need not wait longer
_EXISTS = "SELECT to_regclass('scope_file')"
_FILES = "SELECT path, size, modified, object FROM scope_file WHERE scope = ? ORDER BY path"
_READ = "SELECT start, data FROM scope_piece WHERE scope = ? AND path = ? AND start >= ? AND start < ? ORDER BY start"
_UNUSED = (
    "INSERT INTO unused_object (name, due) SELECT object, 0 FROM scope_file WHERE object != '' ON CONFLICT DO NOTHING"
)


class SqlEarlierFiles:
    """The files of every scope. Raises StoreUnavailable as the journal does."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def exists(self) -> bool:
        """Return False when they were dropped, or the database never had them."""
        return await self._engine.writer.submit(_exists)

    async def state(self) -> tuple[str, bool]:
        """Return the note about the files, and True if turns have been answered with this database.

        It is "" without files, `adopting:<id>` while the home with this id has more than the database, and then
        `stored:<id>`.
        """

        def look(database: Database) -> tuple[str, bool]:
            database.execute("LOCK TABLE unused_object IN SHARE MODE").close()  # no gateway drops them before the end
            if not _exists(database):  # another gateway has
                return "", False
            found = database.execute("SELECT value FROM scope_state WHERE name = 'memory'").fetchone()
            record = database.execute("SELECT 1 FROM record LIMIT 1").fetchone()
            return (str(found[0]) if found is not None else ""), record is not None

        return await self._engine.writer.submit(look)

    async def scopes(self) -> Sequence[str]:
        """Return the scopes that have files."""
        rows = await self._engine.fetch("SELECT scope FROM scope ORDER BY scope")
        return [unquote(scope) for (scope,) in rows]

    async def files(self, scope: str) -> Sequence[EarlierFile]:
        """Return the files of a scope."""
        rows = await self._engine.fetch(_FILES, quote(scope))
        return [
            EarlierFile(path=unquote(path), size=size, modified=modified, object=name)
            for path, size, modified, name in rows
        ]

    async def read(self, scope: str, file: EarlierFile) -> AsyncIterator[bytes]:
        """Yield the bytes of a file that the database has."""
        columns, start = (quote(scope), quote(file.path)), 0
        while start < file.size:
            rows = await self._engine.fetch(_READ, *columns, start, start + _READ_BYTES)
            if not rows:
                return
            for begin, data in rows:
                yield bytes(data)
                start = begin + len(data)

    async def drop(self) -> None:
        """Drop the tables; the objects that they name become unused."""
        await self._engine.writer.submit(drop_tables)


def has_files(database: Database) -> bool:
    """Return True if the database has files that were not taken over."""
    return _exists(database) and database.execute("SELECT 1 FROM scope_state LIMIT 1").fetchone() is not None


def drop_tables(database: Database) -> None:
    """Drop the tables if they exist; the objects that they name become unused."""
    database.execute("LOCK TABLE unused_object IN SHARE ROW EXCLUSIVE MODE").close()  # of gateways that start at once
    if _exists(database):
        database.execute(_UNUSED).close()
        database.execute(f"DROP TABLE {', '.join(TABLES)}").close()


def _exists(database: Database) -> bool:
    return database.execute(_EXISTS).fetchone()[0] is not None


_PLACE = re.compile(r"[0-9a-f]{64}-[0-9a-f]{8}")
_LARGE = "SELECT scope, place, sha256, size FROM stored_file WHERE place LIKE '%-%' ORDER BY scope, place"
_SET_PLACE = "UPDATE stored_file SET place = ? WHERE scope = ? AND place = ?"


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file whose bytes are outside the database."""

    scope: str
    place: str  # also the name of its object
    digest: str
    size: int

    @property
    def path(self) -> str:
        """Return the path of the bytes in a home."""
        return f"{self.scope}/{BYTES}/{self.place}" if self.scope else f"{BYTES}/{self.place}"

    async def read(self, source: ObjectStore, name: str) -> bytes:
        """Return the bytes at *name* in *source*; raises StoreUnavailable if they are not the file's."""
        try:
            data = b"".join([piece async for piece in source.read(name)])
        except ObjectDamaged:
            data = b""
        if len(data) == self.size and hashlib.sha256(data).hexdigest() == self.digest:
            return data
        raise StoreUnavailable(
            f"{name} is lost or not what was stored; nothing was moved. `parlour store check` names such files, and"
            " removes them with --remove"
        )


def large_files(database: Database) -> Sequence[LargeFile]:
    """Return the files whose bytes are outside the database."""
    rows = database.execute(_LARGE).fetchall()
    return [LargeFile(unquote(scope), *rest) for scope, *rest in rows if _PLACE.fullmatch(rest[0])]


def store_bytes(database: Database, home: Path, objects: ObjectStore | None) -> None:
    """Copy the bytes in the folders of *home* to *objects*, or without them into *database*.

    It is a part of the caller's transaction. Raises StoreUnavailable.
    """
    files, folders = large_files(database), DirectoryObjects(home, is_home=True)
    if objects is not None:
        # A copy that this one replaces has released objects of the same names.
        database.executemany("DELETE FROM unused_object WHERE name = ?", [(file.place,) for file in files]).close()
        asyncio.run(_copy([(file, folders, file.path, objects, file.place) for file in files]))
        return
    for file in files:
        data, place, scope = asyncio.run(file.read(folders, file.path)), file.place.replace("-", ""), quote(file.scope)
        pieces = [(scope, place, n, piece) for n, piece in enumerate(split_pieces(data))]
        database.executemany(ADD_PIECE, pieces).close()
        database.execute(_SET_PLACE, (place, scope, file.place)).close()


def fetch_bytes(files: Sequence[LargeFile], home: Path, objects: ObjectStore | None) -> None:
    """Copy the bytes of *files* from *objects* into the folders of *home*, durably.

    Repeatable. Raises UserError without *objects*, and StoreUnavailable.
    """
    if files and objects is None:
        raise UserError("large files are in an object store: set PARLOUR_STORE__OBJECTS__URL, and run this again")
    if objects is not None:
        folders = DirectoryObjects(home, is_home=True)
        asyncio.run(_copy([(file, objects, file.place, folders, file.path) for file in files]))


def set_bytes_aside(home: Path, target: Path) -> None:
    """Move the folders of bytes of *home*, which another store has now, into *target*. Repeatable; raises OSError."""
    for folder in [
        home / BYTES,
        *home.glob(f"shared/{BYTES}"),
        *home.glob(f"people/*/{BYTES}"),
        *home.glob(f"chats/*/{BYTES}"),
    ]:
        if folder.is_dir():
            moved = target / folder.relative_to(home)
            make_folder(moved.parent)
            folder.rename(moved)
            for parent in (moved.parent, folder.parent):
                sync_folder(parent)


async def _copy(copies: Iterable[tuple[LargeFile, ObjectStore, str, ObjectStore, str]]) -> None:
    for file, source, name, target, new_name in copies:
        await target.put(new_name, await file.read(source, name))
