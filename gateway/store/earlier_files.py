"""Earlier files: files in pieces, as PostgreSQL had them in releases before files were rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from gateway.ports.memory import EarlierFile
from gateway.store.database import Database
from gateway.store.engine import StoreEngine
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
