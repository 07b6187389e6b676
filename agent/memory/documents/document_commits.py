"""The git repository of a scope's documents, ``memory/.git``: a mirror of their changes, for people and other programs.

Each change is a commit that names it in its message. A commit depends on the changes alone, so a repository that is
made again has the same commits. Written with dulwich, so no git is needed. Methods block.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.memory.documents.git_repository import head_of, open_repo, read_message, write_commit
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.written_files import note_writes
from gateway.ports.documents import DocumentState
from gateway.ports.durable_files import sync_folder

log = structlog.get_logger(__name__)

_TRAILERS = re.compile(r"^Change: (\S+)\nNumber: (\d+)$", re.MULTILINE)


class DocumentCommits:
    """The repositories of a home, each created with its first commit. One thread at a time may call for a scope."""

    def __init__(self, home: Path, disk: Disk | None = None) -> None:
        self._home = home
        self._disk = disk or Disk()

    def newest(self, scope: str) -> tuple[str, int]:
        """Return id and number of the newest change that is committed; an empty id before the first one.

        A repository of other commits is set aside, and so is one that cannot be read.
        """
        path = self._path(scope)
        if not path.exists():
            return "", 0
        with open_repo(path, make=False) as repo:
            head = head_of(repo)
            found = _TRAILERS.findall(read_message(repo, head)) if head is not None else []
        if head is not None and not found:
            self.set_aside(scope)
        return (found[-1][0], int(found[-1][1])) if found else ("", 0)

    def add(self, scope: str, states: Sequence[DocumentState]) -> None:
        """Commit *states*, the oldest first, behind the newest commit. Raises OSError."""
        self._disk.make_folder(self._path(scope).parent)
        with open_repo(self._path(scope), make=True) as repo:
            for state in states:
                change = state.change
                write_commit(
                    repo,
                    {name: text.encode() for name, text in sorted(state.texts.items()) if text},
                    head_of(repo),
                    why=change.why,
                    by=change.by,
                    at=change.at,
                    trailers=(f"Change: {change.id}", f"Number: {change.number}"),
                )

    def set_aside(self, scope: str) -> None:
        """Give the repository another name: it has commits that no change is known of."""
        path = self._path(scope)
        aside = path.with_name(f".git.unknown-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
        self._disk.rename(path, aside)
        log.warning("document_files.repository_set_aside", scope=scope, folder=aside.name)

    def remove(self, scope: str) -> None:
        """Remove the repository, and those that were set aside, durably: something of their texts is erased."""
        folder = self._path(scope).parent
        found = [self._path(scope), *folder.glob(".git.*")]
        with note_writes(folder, is_tree=True):
            for path in found:
                if path.exists():
                    shutil.rmtree(path)
        if folder.exists():
            sync_folder(folder)

    def _path(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / "memory" / ".git"
