"""Reading a store without opening it, as commands do: the journal's file, or the database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.errors import SettingsError
from gateway.installation import HOW_TO_INSTALL
from gateway.ports.journal import SessionRow
from gateway.store.database import Database
from gateway.store.inspection import read_identity
from gateway.store.session_queue import list_sessions
from gateway.store.sqlite.schema import read_journal

T = TypeVar("T")


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
    found = read_store(Path(), url, read_identity)
    return found[0] if found is not None else ""


def read_sessions(journal: Path, url: str) -> tuple[SessionRow, ...]:
    """Return the sessions of a closed store, the most recently used first. Raises as `read_store` does."""
    return read_store(journal, url, list_sessions) or ()
