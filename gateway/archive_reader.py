"""Reading an archive that may be hostile: one member after the other, in bounded memory; git repositories defused.

tarfile reads whatever length an extended header claims into memory, and follows headers that describe sparse files. A
backup has plain files with plain names, so that is all that is read here. From a repository is removed what git would
run, include or follow.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.durable_files import write_private

_BLOCK = 512
_LARGEST_HEADER = 64 * 1024  # bytes of an extended header: a long name, a large size
_STRANGE = "it contains names that no backup has"
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
