"""Repositories from an untrusted archive: removes what git would run, include or follow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gateway.ports.durable_files import write_private

# As a scope's versions have it (agent/memory/versioning), and as a repository with a working tree needs it.
_BARE = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
\tlogallrefupdates = true
\tsharedRepository = 0600
\tfsyncObjectFiles = true
"""
_TREE = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
"""
_DATA = frozenset({"HEAD", "objects", "refs", "packed-refs", "logs", "index", "description", "shallow"})
_LEADING_ELSEWHERE = ("alternates", "http-alternates")  # in objects/info


def defuse_repositories(folder: Path) -> list[str]:
    """Rewrite the configuration of every repository below *folder*; return the names of what was removed.

    Only data remains. Hooks, includes, alternates, links to other folders and unknown files are deleted.
    """
    removed: list[str] = []
    for found in [*_repositories(folder)]:
        name = found.relative_to(folder)
        if not os.path.lexists(found):
            continue  # it was inside one that was removed
        if not found.is_dir():  # "gitdir: /elsewhere"
            found.unlink()
            removed.append(str(name))
            continue
        config = _TREE if found.name.lower() == ".git" and found.parent.name != "memory" else _BARE
        for entry in sorted(found.iterdir()):
            if entry.name not in _DATA and not _is_plain(entry, config):
                _remove(entry)
                removed.append(str(name / entry.name))
        for entry in (found / "objects" / "info" / each for each in _LEADING_ELSEWHERE):
            if entry.exists():
                _remove(entry)
                removed.append(str(entry.relative_to(folder)))
        write_private(found / "config", config)
    return removed


def _repositories(folder: Path) -> Iterator[Path]:
    """Yield what git takes for a repository: `.git`, and any folder that looks like a bare one."""
    for place, folders, files in os.walk(folder):
        yield from (Path(place) / name for name in (*folders, *files) if name.lower() == ".git")
        is_bare = "HEAD" in files and {"objects", "refs"} <= set(folders)
        if is_bare and Path(place).name.lower() != ".git":
            yield Path(place)


def _is_plain(entry: Path, config: str) -> bool:
    """Return True for our own configuration and for an ignore list, which runs nothing."""
    if entry.name == "config" and entry.is_file():
        return entry.read_bytes() == config.encode()
    if entry.name == "info" and entry.is_dir():
        return {each.name for each in entry.iterdir()} <= {"exclude", "refs"}
    return False


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink()
