"""Reading an archive that may be hostile: one member after the other, in bounded memory.

tarfile reads whatever length an extended header claims into memory, and follows headers that describe sparse files. A
backup has plain files with plain names, so that is all that is read here.
"""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 512
_LARGEST_HEADER = 64 * 1024  # bytes of an extended header: a long name, a large size
_STRANGE = "it contains names that no backup has"


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
