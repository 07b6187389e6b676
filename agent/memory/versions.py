"""Versions of what a scope remembers: a git repository of its three documents, in ``memory/.git`` (seed 003).

Trees are built from exactly these documents, so nothing else of a scope ever gets into its history. Written
with dulwich: the image has no git, and needs none; any git can read what stands there. Everything here blocks.
"""

from __future__ import annotations

import difflib
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import structlog

from agent.memory.scopes import scope_folder

if TYPE_CHECKING:
    from dulwich.objects import Commit
    from dulwich.repo import Repo

log = structlog.get_logger(__name__)

TRACKED = ("SOUL.md", "USER.md", "MEMORY.md")
BY_HAND = "edited by hand"
# Causes that change several documents at once: each is of one run, never comes again, and is one version.
ONE_CHANGE = ("dream: ", "dream restore ", "undo ")
_BRANCH = b"refs/heads/main"
_WE = b"Parlour <parlour@localhost>"
_BY = "By: "
_SHORTEST = 4  # characters of a version's name that are taken for it
_FILE = 0o100644

Redact: TypeAlias = Callable[[bytes, Mapping[str, str]], bytes]  # a document, and who brought each line of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One change: the state after it is kept under its name."""

    sha: str
    at: datetime
    why: str  # the cause: a job's or an entry's id, a command, `edited by hand`
    by: str  # the person who wanted it, or ""
    names: tuple[str, ...]  # the documents that changed

    @property
    def short(self) -> str:
        """The name as people are shown it."""
        return self.sha[:8]


class Versions:
    """Every scope's repository, made when the first version is kept."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def keep(self, scope: str, texts: Mapping[str, bytes], *, why: str, by: str = "", at: datetime) -> str | None:
        """Keep *texts* (by name; what is not given stays) as a version; return its name, None when nothing changed.

        Raises ValueError for a document that is not tracked, OSError when the disk will not have it.
        """
        if unknown := set(texts) - set(TRACKED):
            raise ValueError(f"not tracked: {', '.join(sorted(unknown))}")
        with self._open(scope, make=True) as repo:
            assert repo is not None  # noqa: S101 - it was just made
            newest = _head(repo)
            before = _tree(repo, newest)
            after = {name: text for name, text in (before | dict(texts)).items() if text}
            if after == before:
                return None
            if newest is not None and _is_begun(_version(repo, newest), texts, why=why, by=by):
                return _commit(repo, after, _parent(repo, newest), why=why, by=by, at=at, instead=newest)
            return _commit(repo, after, newest, why=why, by=by, at=at)

    def texts(self, scope: str, sha: str = "") -> dict[str, bytes]:
        """Return the documents as they stood after the version *sha*, by default the newest; {} for none."""
        with self._open(scope) as repo:
            if repo is None:
                return {}
            return _tree(repo, _resolve(repo, sha) if sha else _head(repo))

    def before(self, scope: str, sha: str) -> dict[str, bytes] | None:
        """Return the documents as they stood before the version *sha*; None when there is no such version."""
        with self._open(scope) as repo:
            commit = _resolve(repo, sha) if repo is not None else None
            if repo is None or commit is None:
                return None
            return _tree(repo, _parent(repo, commit))

    def log(self, scope: str, *, limit: int = 20, name: str = "") -> list[Version]:
        """Return the newest versions, the newest first; of one document, if *name* is given."""
        with self._open(scope) as repo:
            found = (each for each in _history(repo) if not name or name in each.names) if repo is not None else ()
            return [each for _, each in zip(range(limit), found, strict=False)]

    def find(self, scope: str, sha: str) -> Version | None:
        """Return the version whose name begins with *sha*, None when none or several do."""
        with self._open(scope) as repo:
            commit = _resolve(repo, sha) if repo is not None else None
            return _version(repo, commit) if repo is not None and commit is not None else None

    def diff(self, scope: str, sha: str) -> str:
        """Return what the version *sha* changed, as a unified diff; "" when there is no such version."""
        with self._open(scope) as repo:
            commit = _resolve(repo, sha) if repo is not None else None
            if repo is None or commit is None:
                return ""
            before, after = _tree(repo, _parent(repo, commit)), _tree(repo, commit)
        return "\n".join(
            line
            for name in TRACKED
            for line in difflib.unified_diff(
                _lines(before.get(name)), _lines(after.get(name)), name, name, lineterm="", n=1
            )
        )

    def source(self, scope: str, name: str, line: str) -> Version | None:
        """Return the version that brought *line* into *name* as it stands now; None when it is not in there."""
        wanted = line.strip()
        with self._open(scope) as repo:
            found = None
            commit = _head(repo) if repo is not None else None
            while repo is not None and commit is not None:
                if wanted not in {each.strip() for each in _lines(_tree(repo, commit).get(name))}:
                    break
                found, commit = commit, _parent(repo, commit)
            return _version(repo, found) if repo is not None and found is not None else None

    def every(self, scope: str) -> list[tuple[Version, dict[str, bytes]]]:
        """Return every version with the documents as they stood after it, the oldest first."""
        with self._open(scope) as repo:
            found = [(each, _tree(repo, each.sha.encode())) for each in _history(repo)] if repo is not None else []
            return found[::-1]

    def rewrite(
        self, scope: str, redact: Redact, *, nobody: Collection[str] = (), change: Callable[[str], str] = str
    ) -> int:
        """Put every version through *redact* and forget the old ones for good; return how many documents changed.

        *change* is asked for what a version is called; the persons *nobody* are not named any more. Built beside and
        swapped in, so that a crash leaves the old history or the new one. Names change.
        """
        states: list[tuple[Mapping[str, bytes], str, str, datetime]] = []
        changed = 0
        for version, before, brought in self._traced(scope):
            after = {name: redact(text, brought[name]) for name, text in before.items()}
            changed += sum(after[name] != before[name] for name in before)
            states.append((after, change(version.why), "" if version.by in nobody else version.by, version.at))
        path = self._path(scope)
        if path.exists():
            beside = path.with_name(".git.new")
            shutil.rmtree(beside, ignore_errors=True)
            write_history(beside, states)
            self._swap(scope, beside)
        shutil.rmtree(path.with_name(".git.old"), ignore_errors=True)  # a crash came behind the swap
        return changed

    def brought(self, scope: str) -> Mapping[str, Mapping[str, str]]:
        """Return who brought each line of the documents as they were kept last, by document."""
        return next((brought for *_, brought in reversed(list(self._traced(scope)))), {})

    def _traced(self, scope: str) -> Iterator[tuple[Version, dict[str, bytes], dict[str, dict[str, str]]]]:
        """Yield every version, its documents, and who brought each of their lines."""
        brought: dict[str, dict[str, str]] = {}
        for version, texts in self.every(scope):
            brought = {
                name: {line: brought.get(name, {}).get(line, version.by) for line in _lines(text)}
                for name, text in texts.items()
            }
            yield version, texts, brought

    def drop_broken(self, scope: str) -> None:
        """Remove repositories that could not be read and were set aside."""
        for aside in self._path(scope).parent.glob(".git.corrupt-*"):
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
        _sync(path.parent)  # or a power cut could bring back what was to be gone
        shutil.rmtree(gone)

    @contextmanager
    def _open(self, scope: str, *, make: bool = False) -> Iterator[Repo | None]:
        path = self._path(scope)
        gone = path.with_name(".git.old")
        if not path.exists() and gone.exists():  # a crash between the two renames of a swap
            gone.rename(path)
        if not path.exists() and not make:
            yield None
            return
        with _made(path) as repo:
            yield repo


def write_history(path: Path, changes: Iterable[tuple[Mapping[str, bytes], str, str, datetime]]) -> None:
    """Make a repository at *path* of states (documents, cause, person, time), the oldest first; equal ones are one."""
    with _made(path) as repo:
        before: dict[str, bytes] = {}
        for texts, why, by, at in changes:
            after = {name: text for name, text in texts.items() if text}
            if after != before:
                _commit(repo, after, _head(repo), why=why, by=by, at=at)
                before = after


@contextmanager
def _made(path: Path) -> Iterator[Repo]:
    """Open the repository at *path*, made where it is missing, set aside and made anew where it cannot be read."""
    from dulwich.errors import ChecksumMismatch, FileFormatException, NotGitRepository
    from dulwich.repo import Repo

    try:
        repo = Repo(str(path)) if path.exists() else _init(path)
        _tree(repo, _head(repo))
    except (NotGitRepository, FileFormatException, ChecksumMismatch, KeyError, ValueError, zlib.error):
        aside = path.with_name(f".git.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
        path.rename(aside)
        log.exception("versions.set_aside", folder=aside.name)
        repo = _init(path)
    try:
        yield repo
    finally:
        repo.close()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _init(path: Path) -> Repo:
    from dulwich.repo import Repo

    path.mkdir(mode=0o700, parents=True)
    # git's own word for "whatever the umask says, nobody but the owner".
    repo = Repo.init_bare(str(path), default_branch=b"main", shared_repository="0600")
    config = repo.get_config()
    config.set((b"core",), b"fsyncObjectFiles", True)
    config.write_to_path()
    repo.close()
    for file in path.iterdir():
        file.chmod(0o700 if file.is_dir() else 0o600)
    return Repo(str(path))


def _head(repo: Repo) -> bytes | None:
    from dulwich.refs import Ref

    return repo.refs.read_ref(Ref(_BRANCH))


def _read(repo: Repo, sha: bytes) -> Commit:
    from dulwich.objects import Commit, ObjectID

    found = repo[ObjectID(sha)]
    if not isinstance(found, Commit):
        raise ValueError(f"{sha.decode()} is no commit")  # noqa: TRY004 - the repository is wrong, not the caller
    return found


def _parent(repo: Repo, commit: bytes) -> bytes | None:
    parents = _read(repo, commit).parents
    return parents[0] if parents else None


def _tree(repo: Repo, commit: bytes | None) -> dict[str, bytes]:
    from dulwich.objects import Blob, Tree

    if commit is None:
        return {}
    tree = repo[_read(repo, commit).tree]
    texts: dict[str, bytes] = {}
    for entry in tree.items() if isinstance(tree, Tree) else ():
        blob = repo[entry.sha] if entry.sha else None
        if isinstance(blob, Blob) and entry.path:
            texts[entry.path.decode()] = blob.data
    return texts


def _commit(
    repo: Repo,
    texts: Mapping[str, bytes],
    parent: bytes | None,
    *,
    why: str,
    by: str,
    at: datetime,
    instead: bytes | None = None,
) -> str:
    """Put a version behind *parent*, which is the newest, or the one before *instead*."""
    from dulwich.objects import Blob, Commit, ObjectID, Tree
    from dulwich.refs import Ref

    tree = Tree()
    for name, text in texts.items():
        blob = Blob.from_string(text)
        repo.object_store.add_object(blob)
        tree.add(name.encode(), _FILE, blob.id)
    repo.object_store.add_object(tree)
    commit = Commit()
    commit.tree = tree.id
    commit.parents = [ObjectID(parent)] if parent else []
    commit.author = commit.committer = _WE
    commit.author_time = commit.commit_time = int(at.timestamp())
    commit.author_timezone = commit.commit_timezone = 0
    commit.encoding = b"UTF-8"
    cause = " ".join(why.split()) or "changed"
    commit.message = (f"{cause}\n\n{_BY}{by}\n" if by else f"{cause}\n").encode("utf-8", "replace")
    repo.object_store.add_object(commit)
    newest = instead or parent
    if not repo.refs.set_if_equals(Ref(_BRANCH), ObjectID(newest) if newest else None, commit.id):
        raise OSError("somebody else kept a version at the same moment")
    Path(repo.controldir(), _BRANCH.decode()).chmod(0o600)  # the library leaves refs to the umask
    return commit.id.decode()


def _is_begun(newest: Version, texts: Mapping[str, bytes], *, why: str, by: str) -> bool:
    """Say whether the newest version is the first part of a change of which *texts* are another."""
    is_same = (newest.why, newest.by) == (" ".join(why.split()), by)
    return is_same and why.startswith(ONE_CHANGE) and not set(texts) & set(newest.names)


def _history(repo: Repo) -> Iterator[Version]:
    commit = _head(repo)
    while commit is not None:
        yield _version(repo, commit)
        commit = _parent(repo, commit)


def _version(repo: Repo, commit: bytes) -> Version:
    found = _read(repo, commit)
    why, _, rest = found.message.decode("utf-8", "replace").partition("\n")
    by = next((line.removeprefix(_BY) for line in rest.splitlines() if line.startswith(_BY)), "")
    before, after = _tree(repo, _parent(repo, commit)), _tree(repo, commit)
    return Version(
        sha=commit.decode(),
        at=datetime.fromtimestamp(found.commit_time, UTC),
        why=why,
        by=by,
        names=tuple(name for name in TRACKED if before.get(name) != after.get(name)),
    )


def _resolve(repo: Repo, sha: str) -> bytes | None:
    """Return the whole name of the version that *sha* begins; None when none or several do."""
    if len(sha) < _SHORTEST or not sha.isalnum():
        return None
    found = []
    commit = _head(repo)
    while commit is not None:
        if commit.startswith(sha.lower().encode()):
            found.append(commit)
        commit = _parent(repo, commit)
    return found[0] if len(found) == 1 else None


def _lines(text: bytes | None) -> list[str]:
    return (text or b"").decode("utf-8", "replace").splitlines()
