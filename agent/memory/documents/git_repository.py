"""One git repository of a scope's documents, as dulwich has it: trees, versions, and the line they stand in. Blocks."""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from agent.memory.storage.written_files import note_writes

if TYPE_CHECKING:
    from dulwich.objects import Commit
    from dulwich.repo import Repo

log = structlog.get_logger(__name__)

T = TypeVar("T")

TRACKED = ("SOUL.md", "USER.md", "MEMORY.md")
# Causes that change several documents at once: each is of one run, never comes again, and is one version.
ONE_CHANGE = ("dream: ", "dream restore ", "undo ")
_BRANCH = b"refs/heads/main"
_WE = b"Parlour <parlour@localhost>"
_BY = "By: "
_SHORTEST = 4  # characters of a version's name that are taken for it
_FILE = 0o100644
_LOOKS, _PAUSE = 3, 0.05  # before a repository is damaged, and seconds between them


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentVersion:
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
            with note_writes(path.parent, is_tree=True):
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
    with note_writes(path.parent, is_tree=True):
        return _init_bare(path)


def _init_bare(path: Path) -> Repo:
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
    """Return the version before *commit*; None if there is no whole one."""
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


def write_commit(
    repo: Repo,
    texts: Mapping[str, bytes],
    parent: bytes | None,
    *,
    why: str,
    by: str,
    at: datetime,
    instead: bytes | None = None,
    trailers: Sequence[str] = (),
) -> str:
    """Commit a version after *parent*: the newest one, or the one before *instead*, which this version replaces.

    *trailers* are lines that end its message. The caller holds the scope's lock. Raises OSError when the disk refuses
    it, or another process writes there.
    """
    from dulwich.objects import Blob, Commit, ObjectID, ShaFile, Tree
    from dulwich.refs import Ref

    folder = Path(repo.controldir())

    def put(each: ShaFile) -> None:
        name = each.id.decode()
        with note_writes(folder / "objects" / name[:2] / name[2:]):
            _write(lambda: repo.object_store.add_object(each))

    tree = Tree()
    for name, text in texts.items():
        blob = Blob.from_string(text)
        put(blob)
        tree.add(name.encode(), _FILE, blob.id)
    put(tree)
    commit = Commit()
    commit.tree = tree.id
    commit.parents = [ObjectID(parent)] if parent else []
    commit.author = commit.committer = _WE
    commit.author_time = commit.commit_time = int(at.timestamp())
    commit.author_timezone = commit.commit_timezone = 0
    commit.encoding = b"UTF-8"
    cause = " ".join(why.split()) or "changed"
    ending = [*([f"{_BY}{by}"] if by else []), *trailers]
    commit.message = "\n".join([cause, *(["", *ending] if ending else []), ""]).encode("utf-8", "replace")
    put(commit)
    newest = instead or parent
    before = ObjectID(newest) if newest else None
    branch = folder / _BRANCH.decode()
    with note_writes(branch):
        if not _write(lambda: repo.refs.set_if_equals(Ref(_BRANCH), before, commit.id)):
            raise OSError("somebody else kept a version at the same moment")
    branch.chmod(0o600)  # the library leaves refs to the umask
    return commit.id.decode()


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
        raise OSError("somebody else kept a version at the same moment") from error


def continues_change(newest: DocumentVersion, texts: Mapping[str, bytes], *, why: str, by: str) -> bool:
    """Return True if the newest version is the first part of the change that *texts* belong to."""
    is_same = (newest.why, newest.by) == (" ".join(why.split()), by)
    return is_same and why.startswith(ONE_CHANGE) and not set(texts) & set(newest.names)


def walk(repo: Repo) -> Iterator[DocumentVersion]:
    """Yield every version, the newest first."""
    commit = head_of(repo)
    while commit is not None:
        yield read_version(repo, commit)
        commit = parent_of(repo, commit)


def read_version(repo: Repo, commit: bytes) -> DocumentVersion:
    """Return the version that *commit* describes."""
    found = _read(repo, commit)
    why, _, rest = found.message.decode("utf-8", "replace").partition("\n")
    by = next((line.removeprefix(_BY) for line in rest.splitlines() if line.startswith(_BY)), "")
    before, after = read_tree(repo, parent_of(repo, commit)), read_tree(repo, commit)
    return DocumentVersion(
        sha=commit.decode(),
        at=datetime.fromtimestamp(found.commit_time, UTC),
        why=why,
        by=by,
        names=tuple(name for name in TRACKED if before.get(name) != after.get(name)),
    )


def read_message(repo: Repo, commit: bytes) -> str:
    """Return the message of *commit*."""
    message: bytes = _read(repo, commit).message
    return message.decode("utf-8", "replace")


def resolve(repo: Repo, sha: str) -> bytes | None:
    """Return the whole name of the version that *sha* begins; None when none or several do."""
    if len(sha) < _SHORTEST or not sha.isalnum():
        return None
    found = []
    commit = head_of(repo)
    while commit is not None:
        if commit.startswith(sha.lower().encode()):
            found.append(commit)
        commit = parent_of(repo, commit)
    return found[0] if len(found) == 1 else None


def lines_of(text: bytes | None) -> list[str]:
    """Return the lines of a document, whatever its bytes."""
    return (text or b"").decode("utf-8", "replace").splitlines()
