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

from agent.memory.documents.git_repository import (
    RepositoryCommit,
    append_commits,
    head_of,
    open_repo,
    read_message,
    walk,
)
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from gateway.durable_files import sync_folder
from gateway.ports.memory import DocumentChange, DocumentState

log = structlog.get_logger(__name__)

_SHORTEST = 4  # characters of a commit's id that are taken for it

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
            found = read_trailers(read_message(repo, head)) if head is not None else None
        if head is not None and found is None:
            self.set_aside(scope)
        return found or ("", 0)

    def find_change(self, scope: str, beginning: str) -> str:
        """Return the id of the change that the one commit whose id begins so is of; "" otherwise."""
        path = self._path(scope)
        if len(beginning) < _SHORTEST or not path.exists():
            return ""
        with open_repo(path, make=False) as repo:
            found = [each.message for each in walk(repo) if each.sha.startswith(beginning.lower())]
        trailers = read_trailers(found[0]) if len(found) == 1 else None
        return trailers[0] if trailers is not None else ""

    def add(self, scope: str, states: Sequence[DocumentState]) -> None:
        """Commit *states*, the oldest first, behind the newest commit. Raises OSError."""
        self._disk.make_folder(self._path(scope).parent)
        with open_repo(self._path(scope), make=True) as repo:
            append_commits(repo, list(map(_to_commit, states)))

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
        for path in found:
            if path.exists():
                shutil.rmtree(path)
        if folder.exists():
            sync_folder(folder)

    def _path(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / "memory" / ".git"


def read_trailers(message: str) -> tuple[str, int] | None:
    """Return id and number of the change that a commit's message names; None if it names none."""
    found = _TRAILERS.findall(message)
    return (found[-1][0], int(found[-1][1])) if found else None


def read_change(commit: RepositoryCommit, id_: str) -> DocumentChange:
    """Return the change that a commit is of; *id_* is its id if the commit's message names none."""
    why, _, rest = commit.message.partition("\n")
    fields = dict(line.split(": ", 1) for line in rest.splitlines() if ": " in line)
    trailers = read_trailers(commit.message)
    return DocumentChange(
        id=trailers[0] if trailers else id_,
        number=0,
        at=commit.at,
        why=why,
        by=fields.get("By", ""),
        undoes=fields.get("Undoes", ""),
    )


def _to_commit(state: DocumentState) -> RepositoryCommit:
    change = state.change
    cause = " ".join(change.why.split()) or "changed"
    fields = {"By": change.by, "Undoes": change.undoes, "Change": change.id, "Number": str(change.number)}
    lines = [f"{name}: {value}" for name, value in fields.items() if value]
    texts = {name: text.encode() for name, text in sorted(state.texts.items()) if text}
    return RepositoryCommit(texts=texts, message="\n".join([cause, "", *lines, ""]), at=change.at)
