"""The files of a home's scopes, as its journal and its folders have them, read without the gateway."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.ports.memory import BYTES, FileKind

_ROWS = "SELECT scope, kind, name, place FROM stored_file WHERE ? IN ('', kind) ORDER BY at, scope, kind, name"
_PIECES = "SELECT data FROM file_piece WHERE scope = ? AND place = ? ORDER BY n"


def stored_files(home: Path, kind: FileKind | None = None) -> dict[str, bytes]:
    """Return the bytes of files by scope, kind and name, with slashes between them; the oldest first."""
    with closing(sqlite3.connect(f"file:{home / 'journal.db'}?mode=ro", uri=True)) as journal:
        found: dict[str, bytes] = {}
        for scope, each, name, place in journal.execute(_ROWS, (kind or "",)).fetchall():
            if "-" in place:
                data = (home / scope / BYTES / place).read_bytes()
            else:
                data = b"".join(piece for (piece,) in journal.execute(_PIECES, (scope, place)))
            found[f"{scope}/{each}/{name}"] = data
        return found


def plant_file(home: Path, scope: str, kind: FileKind, data: bytes, *, is_outside: bool = False) -> str:
    """Store a file that is named by its digest in a home that no gateway has; return its name."""
    digest = hashlib.sha256(data).hexdigest()
    place = f"{digest}-{digest[:8]}" if is_outside else digest[:24]
    with closing(sqlite3.connect(home / "journal.db")) as journal:
        row = (scope, kind, digest, 1, 0, "", digest, len(data), place)
        journal.execute("INSERT INTO stored_file VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        if is_outside:
            path = home / scope / BYTES / place
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(data)
        else:
            journal.execute("INSERT INTO file_piece VALUES (?, ?, 0, ?)", (scope, place, data))
        journal.commit()
    return digest
