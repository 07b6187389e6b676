"""Looking into another program's SQLite database without changing it, also while that program is at work."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open it for reading, with what is in its log alone. Raises sqlite3.Error and OSError."""
    log = path.with_name(f"{path.name}-wal")
    if not log.is_file() or not log.stat().st_size:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            yield database
        return
    # To read a log is to write beside it, so that it is read in a copy.
    with tempfile.TemporaryDirectory(prefix="parlour-import-") as place:
        for part in (path, log):
            shutil.copyfile(part, Path(place) / part.name)
        with closing(sqlite3.connect(Path(place) / path.name)) as database:
            yield database
