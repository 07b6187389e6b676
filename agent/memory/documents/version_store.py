"""Versions of a scope's documents: a git repository of SOUL.md, USER.md and MEMORY.md in ``memory/.git``.

Trees contain exactly these documents. Written with dulwich, so no git is needed; any git can read it. Methods block.
"""

from __future__ import annotations

import difflib
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from agent.memory.documents.git_repository import (
    TRACKED,
    DocumentVersion,
    continues_change,
    head_of,
    lines_of,
    open_repo,
    parent_of,
    read_tree,
    read_version,
    resolve,
    walk,
    write_commit,
)
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import read_text
from agent.memory.storage.written_files import note_writes
from gateway.ports.durable_files import sync_folder

if TYPE_CHECKING:
    from dulwich.repo import Repo

__all__ = [
    "APPROVED",
    "ARCHIVED",
    "BY_HAND",
    "CONSOLIDATION",
    "DREAM_CAUSE",
    "IMPORTED",
    "TRACKED",
    "UNARCHIVED",
    "DocumentVersion",
    "Redact",
    "VersionStore",
    "write_history",
]

# How the cause of a version begins.
BY_HAND = "edited by hand"
APPROVED = "approved "  # then the name of the staged change, and its cause
CONSOLIDATION = "consolidation "  # then the history entry
DREAM_CAUSE = "dream: "  # then the cursors, and the ids of the entries
ARCHIVED = "archived"  # lines moved to the archive document
UNARCHIVED = "unarchived"  # a line moved back from it, because it is edited
IMPORTED = "imported from "  # then the name of a system

_BETWEEN_RENAMES = 0.05  # seconds that another thread may take for the second rename of a swap
Redact: TypeAlias = Callable[[bytes, Mapping[str, str]], bytes]  # a document, and who brought each line of it


class VersionStore:
    """The repositories of every scope, each created with its first version."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def save_version(
        self, scope: str, texts: Mapping[str, bytes], *, why: str, by: str = "", at: datetime
    ) -> str | None:
        """Save *texts* (by name; other documents stay) as a version; return its name, or None if nothing changed.

        Raises ValueError for a document that is not tracked, OSError when the disk refuses the write.
        """
        if unknown := set(texts) - set(TRACKED):
            raise ValueError(f"not tracked: {', '.join(sorted(unknown))}")
        with self._open(scope, make=True) as repo:
            assert repo is not None  # noqa: S101 - it was just made
            newest = head_of(repo)
            before = read_tree(repo, newest)
            after = {name: text for name, text in (before | dict(texts)).items() if text}
            if after == before:
                return None
            if newest is not None and continues_change(read_version(repo, newest), texts, why=why, by=by):
                return write_commit(repo, after, parent_of(repo, newest), why=why, by=by, at=at, instead=newest)
            return write_commit(repo, after, newest, why=why, by=by, at=at)

    def texts(self, scope: str, sha: str = "") -> dict[str, bytes]:
        """Return the documents after the version *sha*, by default the newest; {} if none exists."""
        with self._open(scope) as repo:
            if repo is None:
                return {}
            return read_tree(repo, resolve(repo, sha) if sha else head_of(repo))

    def documents_before(self, scope: str, sha: str) -> dict[str, bytes] | None:
        """Return the documents before the version *sha*, or None if it does not exist."""
        with self._open_at(scope, sha) as found:
            return read_tree(found[0], parent_of(*found)) if found is not None else None

    def changed_texts(self, scope: str, version: DocumentVersion) -> dict[str, tuple[str, str]]:
        """Return the texts of each document that *version* changed, before and after it; {} if it does not exist."""
        with self._open_at(scope, version.sha) as found:
            if found is None:
                return {}
            before, after = read_tree(found[0], parent_of(*found)), read_tree(*found)
        return {name: (read_text(before.get(name, b"")), read_text(after.get(name, b""))) for name in version.names}

    def log(self, scope: str, *, limit: int = 20, name: str = "") -> list[DocumentVersion]:
        """Return the newest versions, the newest first; of one document, if *name* is given."""
        with self._open(scope) as repo:
            found = (each for each in walk(repo) if not name or name in each.names) if repo is not None else ()
            return [each for _, each in zip(range(limit), found, strict=False)]

    def find(self, scope: str, sha: str) -> DocumentVersion | None:
        """Return the version whose name begins with *sha*, None when none or several do."""
        with self._open_at(scope, sha) as found:
            return read_version(*found) if found is not None else None

    def diff(self, scope: str, sha: str) -> str:
        """Return the changes of the version *sha* as a unified diff, or "" if it does not exist."""
        with self._open_at(scope, sha) as found:
            if found is None:
                return ""
            before, after = read_tree(found[0], parent_of(*found)), read_tree(*found)
        return "\n".join(
            line
            for name in TRACKED
            for line in difflib.unified_diff(
                lines_of(before.get(name)), lines_of(after.get(name)), name, name, lineterm="", n=1
            )
        )

    def source(self, scope: str, name: str, line: str) -> DocumentVersion | None:
        """Return the version that added *line* to *name*, or None if the document does not contain it now."""
        wanted = line.strip()
        with self._open(scope) as repo:
            found = None
            commit = head_of(repo) if repo is not None else None
            while repo is not None and commit is not None:
                if wanted not in {each.strip() for each in lines_of(read_tree(repo, commit).get(name))}:
                    break
                found, commit = commit, parent_of(repo, commit)
            return read_version(repo, found) if repo is not None and found is not None else None

    def every(self, scope: str) -> list[tuple[DocumentVersion, dict[str, bytes]]]:
        """Return every version with the documents after it, the oldest first."""
        with self._open(scope) as repo:
            found = [(each, read_tree(repo, each.sha.encode())) for each in walk(repo)] if repo is not None else []
            return found[::-1]

    def rewrite(
        self, scope: str, redact: Redact, *, anonymous: Collection[str] = (), change: Callable[[str], str] = str
    ) -> int:
        """Apply *redact* to every version and delete the old ones; return the number of documents changed.

        *change* maps the cause of each version; the persons *anonymous* are removed from it. The repository is built
        aside and swapped in, so a crash leaves the old or the new one. Version names change.
        """
        states: list[tuple[Mapping[str, bytes], str, str, datetime]] = []
        changed = 0
        for version, before, brought in self._traced(scope):
            after = {name: redact(text, brought[name]) for name, text in before.items()}
            changed += sum(after[name] != before[name] for name in before)
            states.append((after, change(version.why), "" if version.by in anonymous else version.by, version.at))
        path = self._path(scope)
        with note_writes(path.parent, is_tree=True):
            if path.exists():
                beside = path.with_name(".git.new")
                shutil.rmtree(beside, ignore_errors=True)
                write_history(beside, states)
                self._swap(scope, beside)
            shutil.rmtree(path.with_name(".git.old"), ignore_errors=True)  # a crash came behind the swap
        return changed

    def line_authors(self, scope: str) -> Mapping[str, Mapping[str, str]]:
        """Return the author of each line of the last saved documents, by document."""
        return next((brought for *_, brought in reversed(list(self._traced(scope)))), {})

    def _traced(self, scope: str) -> Iterator[tuple[DocumentVersion, dict[str, bytes], dict[str, dict[str, str]]]]:
        """Yield every version, its documents, and who brought each of their lines."""
        brought: dict[str, dict[str, str]] = {}
        for version, texts in self.every(scope):
            brought = {
                name: {line: brought.get(name, {}).get(line, version.by) for line in lines_of(text)}
                for name, text in texts.items()
            }
            yield version, texts, brought

    def drop_broken(self, scope: str) -> None:
        """Remove repositories that could not be read and were set aside."""
        memory = self._path(scope).parent
        with note_writes(memory, is_tree=True):
            for aside in memory.glob(".git.corrupt-*"):
                shutil.rmtree(aside)

    # -- inside ------------------------------------------------------------------------------------

    def _path(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / "memory" / ".git"

    def _swap(self, scope: str, beside: Path) -> None:
        path = self._path(scope)
        gone = path.with_name(".git.old")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        beside.rename(path)
        sync_folder(path.parent)  # or a power cut could bring back what was to be gone
        shutil.rmtree(gone)

    @contextmanager
    def _open(self, scope: str, *, make: bool = False) -> Iterator[Repo | None]:
        path = self._path(scope)
        gone = path.with_name(".git.old")
        if not path.exists() and gone.exists():
            time.sleep(_BETWEEN_RENAMES)
        if not path.exists() and gone.exists():  # a crash between the two renames of a swap
            with note_writes(path.parent, is_tree=True):
                gone.rename(path)
        if not path.exists() and not make:
            yield None
            return
        with open_repo(path, make=make) as repo:
            yield repo

    @contextmanager
    def _open_at(self, scope: str, sha: str) -> Iterator[tuple[Repo, bytes] | None]:
        """Open a scope's repository and find a version; None if there is no such version, or several are."""
        with self._open(scope) as repo:
            commit = resolve(repo, sha) if repo is not None else None
            yield (repo, commit) if repo is not None and commit is not None else None


def write_history(path: Path, changes: Iterable[tuple[Mapping[str, bytes], str, str, datetime]]) -> None:
    """Make a repository at *path* of states (documents, cause, person, time), the oldest first; equal ones are one."""
    with open_repo(path, make=True) as repo:
        before: dict[str, bytes] = {}
        for texts, why, by, at in changes:
            after = {name: text for name, text in texts.items() if text}
            if after != before:
                write_commit(repo, after, head_of(repo), why=why, by=by, at=at)
                before = after
