"""From a backup to a home: unpacked beside it, verified, and only then swapped in.

The archive may be hostile. It is read one member after the other, in bounded memory, and git repositories are defused:
what git would run, include or follow is removed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from gateway.backup import BLOCK, FORMAT, MANIFEST, STAYS, is_archived
from gateway.durable_files import sync_folder, write_private
from gateway.errors import SchemaTooNew, UserError
from gateway.home import SCHEMA, STAGING, Home, hold_lock, make_private, remove_staging
from gateway.journal_file import OpenChoice, accept_store, journal_fault
from gateway.ports.journal import SessionRow
from gateway.settings.sources import FILE_NAMES
from gateway.store.adoption import OpenWork
from gateway.store.sqlite.schema import mark_adopted

_STRANGE = "it contains names that no backup has"
_VERIFYING = ".verifying-"
_DEEPEST = 32  # folders; a home has eight


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreLimits:
    """Limits of an archive; the bytes of its files are limited by the disk."""

    files: int = 1_000_000
    manifest: int = 256 * 1024 * 1024  # bytes
    seconds: float = 6 * 3600
    spare: int = 256 * 1024 * 1024  # bytes that stay free on the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupContents:
    """The content of a verified backup."""

    created: str
    files: int
    size: int  # bytes
    parts: tuple[tuple[str, int], ...]  # names at the top of the home, each with its number of files
    settings: tuple[Path, ...]  # settings files that would be effective; they are deleted once the question is answered
    settings_kept: tuple[str, ...]  # files of the home that replace those of the backup
    defused: tuple[str, ...]  # removed from git repositories
    work: OpenWork


def restore(
    source: Path,
    path: Path,
    *,
    force: bool = False,
    choice: OpenChoice = OpenChoice.ANSWER,
    confirm: Callable[[BackupContents], None] = lambda _: None,
    fit: Callable[[Home], Iterable[SessionRow]] = lambda _: (),
    limits: RestoreLimits | None = None,
) -> int:
    """Restore a backup into the home *path*; return the number of files.

    The home must be empty, or *force* given: then its files move to backups/replaced-<time>/. Secrets, backups and an
    existing settings file remain. Everything is unpacked and verified first. Then *confirm* receives the contents and
    may raise; until then nothing is changed. *choice* decides about open messages and undelivered replies. *fit*
    returns the sessions of the unpacked journal, corrected from the transcripts, which may have newer turns.
    Raises UserError, HomeInUse or SchemaTooNew.
    """
    os.umask(0o077)
    home = Home(path)
    make_private(path)
    with hold_lock(home):
        if not force and any(_data_of(home)):
            raise UserError(
                f"{path} contains data; use --force to replace it (the current data is moved to {home.backups})"
            )
        remove_staging(path)
        staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=path))
        try:
            unpacked = _unpack(source, staging, limits or RestoreLimits())
            contents = _adopt(unpacked, home, staging, choice, fit)
            confirm(contents)
            os.sync()  # every file and folder that was unpacked, before it replaces another
            _swap(home, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return contents.files


def verify_backup(source: Path, folder: Path, *, limits: RestoreLimits | None = None) -> int:
    """Unpack a backup below *folder*, compare it with its own list and read its journal; return the number of files.

    The unpacked files are deleted again. Blocks. Raises UserError for a backup that could not be restored.
    """
    for left in folder.glob(f"{_VERIFYING}*"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=_VERIFYING, dir=folder))
    try:
        return len(_unpack(source, staging, limits or RestoreLimits()).found)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _data_of(home: Home) -> Iterator[Path]:
    """Yield what a restore replaces."""
    for entry in home.path.iterdir():
        stays = entry.name in STAYS or entry.name in FILE_NAMES or entry.name.startswith(STAGING)
        if not stays:
            yield entry


@dataclass(slots=True)
class _UnpackedArchive:
    """The files unpacked so far, and the remaining limits."""

    source: Path
    limits: RestoreLimits
    ends_at: float
    bytes_left: int
    found: dict[str, tuple[int, str]] = field(default_factory=dict)  # name -> size, hash
    manifest: dict[str, Any] | None = None

    def count(self, member: TarMember) -> None:
        """Count a member; raise UserError when it is one too many."""
        self.bytes_left -= member.size
        if self.bytes_left < 0:
            raise UserError(f"{self.source} needs more space than the disk has; nothing was changed, free some space")
        if len(self.found) >= self.limits.files:
            raise UserError(f"{self.source} contains more than {self.limits.files:,} files; nothing was changed")

    def check_time(self) -> None:
        """Raise UserError when it has taken too long."""
        if time.monotonic() > self.ends_at:
            hours = self.limits.seconds / 3600
            raise UserError(f"{self.source} took more than {hours:.0f} hours to unpack; nothing was changed")


def _unpack(source: Path, staging: Path, limits: RestoreLimits) -> _UnpackedArchive:
    bytes_left = shutil.disk_usage(staging).free - limits.spare
    unpacked = _UnpackedArchive(source, limits, time.monotonic() + limits.seconds, bytes_left)
    try:
        with open_archive(source) as members:
            for member in members:
                unpacked.check_time()
                if member.name == MANIFEST:
                    unpacked.manifest = _read_manifest(member, unpacked)
                    continue
                place = staging / _safe_name(member)
                unpacked.count(member)
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                unpacked.found[member.name] = _write_member(member, place, unpacked)
    except FileNotFoundError:
        raise UserError(f"{source} does not exist; name a file that `parlour backup` wrote") from None
    except (EOFError, ValueError, KeyError, RecursionError, OSError) as error:
        raise UserError(
            f"{source} cannot be restored ({_brief(error)}); nothing was changed, use another backup"
        ) from None
    _verify(unpacked, staging)
    return unpacked


def _brief(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).splitlines()[0][:120] or "it is damaged"


def _safe_name(member: TarMember) -> PurePosixPath:
    """Return where a member may stand: a regular file below the home, of a name that a backup takes."""
    name = PurePosixPath(member.name)
    is_plain = not name.is_absolute() and ".." not in name.parts and "\0" not in member.name
    if not is_plain or not 0 < len(name.parts) <= _DEEPEST or str(name) != member.name or not is_archived(name):
        raise ValueError(_STRANGE)
    return name


def _write_member(member: TarMember, place: Path, unpacked: _UnpackedArchive) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    # "x": a name that comes twice is refused; nothing in the staging folder can be a link.
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        while block := member.read(BLOCK):
            unpacked.check_time()
            out.write(block)
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _read_manifest(member: TarMember, unpacked: _UnpackedArchive) -> dict[str, Any]:
    """Return the list of files; it comes last, so that its size can be judged by the files that came."""
    names = unpacked.found
    largest = 64 * 1024 + sum(160 + 6 * len(name) for name in names)
    if unpacked.manifest is not None or member.size > min(largest, unpacked.limits.manifest):
        raise ValueError("its manifest is too large for its files")
    data = b"".join(iter(lambda: member.read(BLOCK), b""))
    # JSON takes up to 24 times its bytes in memory; ours has one object and three commas a file.
    for mark, usual in ((b"{", 1), (b"[", 0), (b",", 3)):
        if data.count(mark) > 1_000 + usual * len(names) + sum(name.count(mark.decode()) for name in names):
            raise ValueError("its manifest is not one that Parlour writes")
    manifest = json.loads(data)
    return manifest if isinstance(manifest, dict) else {}


def _verify(unpacked: _UnpackedArchive, staging: Path) -> None:
    source, manifest, again = unpacked.source, unpacked.manifest, "nothing was changed, use another backup"
    if manifest is None or manifest.get("format") != FORMAT:
        raise UserError(f"{source} is not a complete backup of Parlour; {again}")
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise SchemaTooNew(
            f"{source} was written by a newer Parlour (schema {schema}, this version supports {SCHEMA}); upgrade"
        )
    try:
        listed = {name: (entry["size"], entry["sha256"]) for name, entry in manifest.get("files", {}).items()}
    except (AttributeError, KeyError, TypeError):
        listed = {}
    if listed != unpacked.found:
        raise UserError(f"{source} is damaged: its files do not match its manifest; {again}")
    write_private(staging / "schema", f"{schema}\n")
    if journal_fault(staging / "journal.db"):
        raise UserError(f"{source} contains a damaged journal; {again}")


def _adopt(
    unpacked: _UnpackedArchive,
    home: Home,
    staging: Path,
    choice: OpenChoice,
    fit: Callable[[Home], Iterable[SessionRow]],
) -> BackupContents:
    """Make what was unpacked ours: nothing in it runs by itself, and its open work is of unknown outcome."""
    defused = defuse_repositories(staging)
    journal, work = staging / home.journal.name, OpenWork(0, 0)
    try:
        if journal.exists():
            work = mark_adopted(journal, choice, fit(Home(staging)))
    except sqlite3.Error as error:
        raise UserError(f"{unpacked.source} contains a damaged journal ({error}); nothing was changed") from None
    own = tuple(name for name in FILE_NAMES if (home.path / name).exists())
    found = unpacked.found
    return BackupContents(
        created=str((unpacked.manifest or {}).get("created", ""))[:20],
        files=len(found),
        size=sum(size for size, _ in found.values()),
        parts=tuple(sorted(Counter(name.partition("/")[0] for name in found).items())),
        settings=tuple(staging / name for name in FILE_NAMES if name in found and not own),
        settings_kept=own,
        defused=tuple(defused),
        work=work,
    )


def _swap(home: Home, staging: Path) -> None:
    """Replace the home's data. Killed in between, `.restoring` says so and the next start refuses."""
    write_private(home.restoring, f"{staging.name}\n")
    old = [*_data_of(home)]
    if old:
        home.backups.mkdir(mode=0o700, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        aside = Path(tempfile.mkdtemp(prefix=f"replaced-{stamp}-", dir=home.backups))
        for entry in old:
            if entry != home.restoring:
                entry.rename(aside / entry.name)
        for folder in (aside, home.backups):
            sync_folder(folder)
    has_settings = any((home.path / name).exists() for name in FILE_NAMES)
    for entry in sorted(staging.iterdir()):
        if not (has_settings and entry.name in FILE_NAMES):
            entry.rename(home.path / entry.name)
    sync_folder(home.path)
    accept_store(home.journal, datetime.now(UTC))  # transcripts may have turns that an earlier journal has lost
    home.restoring.unlink()
    sync_folder(home.path)


_BLOCK = 512
_LARGEST_HEADER = 64 * 1024  # bytes of an extended header: a long name, a large size
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


# tarfile reads whatever length an extended header claims into memory, and follows headers that describe sparse files.
# A backup has plain files with plain names, so that is all that is read here.
@dataclass(slots=True)
class TarMember:
    """A regular file of an archive; its bytes come from the archive's stream and have to be read in order."""

    name: str
    size: int
    _stream: gzip.GzipFile
    _left: int

    def read(self, count: int) -> bytes:
        """Return the next bytes, at most *count*; none at the end. Raises ValueError when the archive ends first."""
        if not self._left:
            return b""
        block = self._stream.read(min(count, self._left))
        if not block:
            raise ValueError("it is truncated")
        self._left -= len(block)
        return block

    def skip_rest(self) -> None:
        """Read to the end of the member and of its last block."""
        while self.read(1024 * 1024):
            pass
        self._stream.read(-self.size % _BLOCK)


@contextmanager
def open_archive(source: Path) -> Iterator[Iterator[TarMember]]:
    """Give the members of the .tar.gz at *source*. Raises OSError; iterating raises ValueError and OSError."""
    if source.exists() and not source.is_file():
        raise ValueError("it is not a file")
    with gzip.open(source, "rb") as stream:
        yield _members(stream)


def _members(stream: gzip.GzipFile) -> Iterator[TarMember]:
    extended: Mapping[str, str] = {}
    while any(header := stream.read(_BLOCK)):
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ValueError(str(error)) from None
        if info.type == tarfile.XHDTYPE and not extended:
            extended = _read_extended(stream, info.size)
            continue
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise ValueError(_STRANGE)
        size = int(extended.get("size", info.size))
        if size < 0:
            raise ValueError(_STRANGE)
        member = TarMember(extended.get("path", info.name), size, stream, size)
        yield member
        member.skip_rest()
        extended = {}
    if len(header) < _BLOCK:
        raise ValueError("it is truncated")


def _read_extended(stream: gzip.GzipFile, size: int) -> dict[str, str]:
    """Return the records `length name=value` of an extended header."""
    if not 0 <= size <= _LARGEST_HEADER:
        raise ValueError("it has a header of an invalid size")
    data = stream.read(size + -size % _BLOCK)[:size]
    found: dict[str, str] = {}
    while data:
        length = int(data.partition(b" ")[0])
        name, _, value = data[:length].partition(b" ")[2].rstrip(b"\n").partition(b"=")
        found[name.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        if length <= 0 or any(each.startswith(("GNU.sparse", "linkpath")) for each in found):
            raise ValueError(_STRANGE)
        data = data[length:]
    return found


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
