"""Reading a store without opening it, as commands do: the journal's file, or the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from gateway.errors import SettingsError
from gateway.ports.entry_points import HOW_TO_INSTALL
from gateway.ports.journal import SessionRow
from gateway.store.database import Database
from gateway.store.inspection import missing_turns
from gateway.store.row_codec import unquote
from gateway.store.session_queue import ALL, list_sessions
from gateway.store.sqlite.closed_journal import read_journal

T = TypeVar("T")

_COUNT = "SELECT name, value FROM meta WHERE name IN ('store', 'stamps')"
# Of turns whose lines are in a transcript.
_NEWEST = "SELECT turn FROM record WHERE inbox != '[]' AND seq NOT IN (SELECT seq FROM body) ORDER BY seq DESC LIMIT 1"


def read_store(journal: Path, url: str, read: Callable[[Database], T]) -> T | None:
    """Return the result of *read* on the database at *url*, or on *journal* if that is empty. Changes nothing. Blocks.

    None where the tables are missing or older than *read* expects, and for a file that cannot be read. Raises
    StoreUnavailable for a database that cannot be used, SettingsError for one whose messages are elsewhere.
    """
    if not url:
        return read_journal(journal, read)
    try:
        from gateway.store.postgres.schema import read_database
    except ModuleNotFoundError as missing:
        raise SettingsError(f"store.url needs {missing.name}: {HOW_TO_INSTALL}") from missing
    return read_database(url, read)


def read_store_id(url: str) -> str:
    """Return the random id of the store in a database; "" before its first start. Raises as `read_store` does."""

    def read(database: Database) -> str:
        found = database.execute("SELECT value FROM meta WHERE name = 'store'").fetchone()
        return str(found[0]) if found is not None else ""

    return read_store(Path(), url, read) or ""


def read_sessions(journal: Path, url: str, limit: int = ALL) -> tuple[SessionRow, ...]:
    """Return the sessions of a closed store, the most recently used first. Raises as `read_store` does."""
    return read_store(journal, url, lambda database: list_sessions(database, limit)) or ()


def read_stamp_count(journal: Path, url: str, store: str) -> int | None:
    """Return the count of stamps in a closed store; None if its id is not *store*. Raises as `read_store` does."""
    meta = read_store(journal, url, lambda database: dict(database.execute(_COUNT).fetchall())) or {}
    return int(meta.get("stamps", "0")) if meta.get("store") == store else None


def find_missing(journal: Path, url: str, turns: Mapping[str, int]) -> Collection[str]:
    """Return those of *turns* that a closed store lacks (see `missing_turns`). Raises as `read_store` does."""
    return (read_store(journal, url, partial(missing_turns, turns=turns)) or ()) if turns else ()


def read_newest_turn(journal: Path, url: str) -> str:
    """Return the newest turn of a closed store whose lines are in a transcript; "" without one."""

    def read(database: Database) -> str:
        found = database.execute(_NEWEST).fetchone()
        return unquote(found[0]) if found is not None else ""

    return read_store(journal, url, read) or ""
