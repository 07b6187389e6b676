"""The git repository of a scope's documents, ``memory/.git``: a mirror of their changes, for people and other programs.

Each change is a commit that names it in its message. A commit depends on the changes alone, so a repository that is
made again has the same commits. Written with dulwich, so no git is needed. Everything here blocks.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from agent.base.disk import Disk
from agent.base.scopes import scope_folder
from gateway.durable_files import sync_folder
from gateway.ports.memory import DocumentChange, DocumentState

if TYPE_CHECKING:
    from dulwich.objects import Commit, ObjectID, ShaFile
    from dulwich.repo import Repo

log = structlog.get_logger(__name__)

_SHORTEST = 4  # characters of a commit's id that are taken for it

_TRAILERS = re.compile(r"^Change: (\S+)\nNumber: (\d+)$", re.MULTILINE)
T = TypeVar("T")

_BRANCH = b"refs/heads/main"
_WE = b"Parlour <parlour@localhost>"
_FILE = 0o100644
_LOOSE = 8  # commits at once whose objects are files of their own; those of more are one pack
_LOOKS, _PAUSE = 3, 0.05  # before a repository is damaged, and seconds between them


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryCommit:
    """A state of the documents, and the message with the cause of the change."""

    texts: Mapping[str, bytes]  # by name
    message: str
    at: datetime
    sha: str = ""  # once it is written


@contextmanager
def open_repo(path: Path, *, make: bool) -> Iterator[Repo]:
    """Open the repository at *path*; with *make*, create it if missing. One that cannot be read is moved aside first.

    Another thread may be replacing it, so that a reader looks again before it takes the repository for damaged.
    """
    try:
        repo = _open_whole(path, make=make)
    except _damages():
        if path.exists():
            aside = path.with_name(f".git.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
            path.rename(aside)
            log.exception("versions.set_aside", folder=aside.name)
        repo = _init(path)
    try:
        yield repo
    finally:
        repo.close()


def _open_whole(path: Path, *, make: bool) -> Repo:
    from dulwich.repo import Repo

    looks = _LOOKS
    while True:
        looks -= 1
        try:
            repo = _init(path) if make and not path.exists() else Repo(str(path))
            read_tree(repo, head_of(repo))
        except _damages():
            if not looks:
                raise
        else:
            return repo
        time.sleep(_PAUSE)


def _init(path: Path) -> Repo:
    from dulwich.repo import Repo

    beside = path.with_name(f"{path.name}.tmp")  # readers find a whole repository, or none
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=0o700, parents=True)
    # git's setting for "owner only, whatever the umask is".
    repo = Repo.init_bare(str(beside), default_branch=b"main", shared_repository="0600")
    config = repo.get_config()
    config.set((b"core",), b"fsyncObjectFiles", True)
    config.write_to_path()
    repo.close()
    for file in beside.iterdir():
        file.chmod(0o700 if file.is_dir() else 0o600)
    beside.rename(path)
    return Repo(str(path))


def head_of(repo: Repo) -> bytes | None:
    """Return the newest version, or None."""
    from dulwich.refs import Ref

    return repo.refs.read_ref(Ref(_BRANCH))


def _read(repo: Repo, sha: bytes) -> Commit:
    from dulwich.objects import Commit, ObjectID

    found = repo[ObjectID(sha)]
    if not isinstance(found, Commit):
        raise ValueError(f"{sha.decode()} is no commit")  # noqa: TRY004 - the repository is wrong, not the caller
    return found


def parent_of(repo: Repo, commit: bytes) -> bytes | None:
    """Return the version before *commit*; None if a part of it is missing."""
    parents = _read(repo, commit).parents
    if not parents:
        return None
    try:
        read_tree(repo, parents[0])
    except _damages() as error:
        log.warning("versions.damaged", version=parents[0].decode(), reason=type(error).__name__)
        return None
    return parents[0]


def _damages() -> tuple[type[Exception], ...]:
    """Return the errors of reading a repository, or an object of it, that is lost or damaged."""
    from dulwich.errors import ChecksumMismatch, FileFormatException, NotGitRepository

    return NotGitRepository, FileFormatException, ChecksumMismatch, KeyError, ValueError, zlib.error


def read_tree(repo: Repo, commit: bytes | None) -> dict[str, bytes]:
    """Return the documents after *commit*, by name."""
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


def append_commits(repo: Repo, commits: Sequence[RepositoryCommit]) -> None:
    """Write *commits*, the oldest first, behind the newest one.

    One thread at a time may call for a repository. Raises OSError when the disk refuses it, or another process writes
    there.
    """
    from dulwich.objects import ObjectID
    from dulwich.refs import Ref

    newest = head_of(repo)
    before = after = ObjectID(newest) if newest else None
    objects: list[ShaFile] = []
    for each in commits:
        objects += _build_objects(each, after)
        after = objects[-1].id
    folder = Path(repo.controldir())
    if len(commits) > (_LOOSE if newest else 1):  # a repository that begins is one file, not several a commit
        repo.object_store.add_objects([(one, None) for one in {one.id: one for one in objects}.values()])
    else:
        for one in objects:
            _write(partial(repo.object_store.add_object, one))
    if after is not None and not _write(lambda: repo.refs.set_if_equals(Ref(_BRANCH), before, after)):
        raise OSError("another process has written a commit at the same moment")
    (folder / _BRANCH.decode()).chmod(0o600)  # the library leaves refs to the umask


def _build_objects(each: RepositoryCommit, parent: ObjectID | None) -> list[ShaFile]:
    """Return the texts, the tree and, last, the commit."""
    from dulwich.objects import Blob, Commit, Tree

    tree = Tree()
    objects: list[ShaFile] = []
    for name, text in each.texts.items():
        blob = Blob.from_string(text)
        objects.append(blob)
        tree.add(name.encode(), _FILE, blob.id)
    commit = Commit()
    commit.tree = tree.id
    commit.parents = [parent] if parent else []
    commit.author = commit.committer = _WE
    commit.author_time = commit.commit_time = int(each.at.timestamp())
    commit.author_timezone = commit.commit_timezone = 0
    commit.encoding = b"UTF-8"
    commit.message = each.message.encode("utf-8", "replace")
    return [*objects, tree, commit]


def _write(write: Callable[[], T]) -> T:
    """Do it; where a lock file is in the way it was left by a kill, for we hold the scope's lock, and it goes."""
    from dulwich.file import FileLocked

    try:
        return write()
    except FileLocked as left:
        log.warning("versions.unlocked", file=os.fsdecode(left.lockfilename).rpartition("/")[2])
        Path(os.fsdecode(left.lockfilename)).unlink(missing_ok=True)
    try:
        return write()
    except FileLocked as error:  # a person's own git, at this moment
        raise OSError("another process has written a commit at the same moment") from error


def walk(repo: Repo) -> Iterator[RepositoryCommit]:
    """Yield every commit, the newest first."""
    sha = head_of(repo)
    while sha is not None:
        commit = _read(repo, sha)
        at = datetime.fromtimestamp(commit.commit_time, UTC)
        message = read_message(repo, sha)
        yield RepositoryCommit(sha=sha.decode(), at=at, message=message, texts=read_tree(repo, sha))
        sha = parent_of(repo, sha)


def read_message(repo: Repo, commit: bytes) -> str:
    """Return the message of *commit*."""
    message: bytes = _read(repo, commit).message
    return message.decode("utf-8", "replace")


# -- the repositories of a home --------------------------------------------------------------------


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
