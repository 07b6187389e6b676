"""Files of scopes in a database, as releases before files were rows have kept them. They are read once, and dropped."""

from __future__ import annotations

from dataclasses import dataclass

CACHE = "memory-cache.db"  # begins the names of the files that said how a home's copy compared with the database


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFile:
    """A file of a scope."""

    path: str  # within the scope's folder
    size: int  # bytes
    modified: int  # nanoseconds since 1970
    object: str = ""  # the object that has the content; empty = the database has it
