"""What stands in a home, held against the inventory of the data that it may hold."""

from __future__ import annotations

from pathlib import Path

from agent.memory.privacy.export_jobs import kind_of


def unknown_files(home: Path) -> list[str]:
    """Return the files of a home that no rule of the inventory matches."""
    paths = [path for path in home.rglob("*") if not path.is_dir() or path.is_symlink()]
    names = [path.relative_to(home).as_posix() for path in paths]
    return sorted(name for name in names if kind_of(name) is None)
