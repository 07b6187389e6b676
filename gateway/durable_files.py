"""Writes that are on the disk when they return."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Replace *file* by *text*, 0600, whole or not at all, durable when this returns."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make names in *folder* durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
