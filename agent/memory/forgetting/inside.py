"""What bytes say, whatever they are wrapped in: escapes, compression, archives, base64. Bounded in what it opens."""

from __future__ import annotations

import base64
import binascii
import codecs
import io
import re
import zipfile
import zlib
from collections.abc import Iterator

MOST = 64 * 1024 * 1024  # bytes that one wrapping may hold
_DEPTH = 3  # wrappings inside one another
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}={0,2}")
_STREAM = re.compile(rb"stream\r?\n")  # of a PDF; usually deflated
_WIDE = 8  # one in so many bytes is NUL in a UTF-16 text of European letters


def texts_in(data: bytes, depth: int = _DEPTH) -> Iterator[str]:
    """Yield every text that *data* holds as it stands, escaped or wrapped; some twice, some that are none."""
    plain = data.decode("utf-8", "replace")
    yield plain
    if "\\u" in plain:
        yield unescaped(plain)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield data.decode("utf-16", "replace")
    elif data[:4096].count(0) * _WIDE > len(data[:4096]):
        yield data.decode("utf-16-le", "replace")
        yield data.decode("utf-16-be", "replace")
    if depth:
        for inner in _unwrapped(data):
            yield from texts_in(inner, depth - 1)


def unescaped(text: str) -> str:
    r"""Return *text* with its ``\uXXXX`` as the characters they name, pairs of them as one."""
    spelt = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return spelt.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unwrapped(data: bytes) -> Iterator[bytes]:
    if data[:2] == b"\x1f\x8b":
        yield _inflated(data, zlib.MAX_WBITS | 16)
    elif data[:1] == b"\x78":
        yield _inflated(data, zlib.MAX_WBITS)
    elif data[:4] == b"PK\x03\x04":
        yield from _members(data)
    elif data[:5] == b"%PDF-":
        for found in _STREAM.finditer(data):
            yield _inflated(data[found.end() :], zlib.MAX_WBITS)
    for found in _BASE64.finditer(data):
        run = found[0].rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
        # What stands before it may look like part of it, so every place that it can begin at is tried.
        for start in range(min(4, len(run))):
            piece = run[start:]
            piece = piece[: len(piece) - (len(piece) % 4 == 1)]
            try:
                yield base64.b64decode(piece + b"=" * (-len(piece) % 4))
            except (binascii.Error, ValueError):
                continue


def _inflated(data: bytes, wbits: int) -> bytes:
    """Return what can be inflated of *data*; a stream that breaks off gives its beginning."""
    worker = zlib.decompressobj(wbits)
    pieces: list[bytes] = []
    size = 0
    try:
        while data and size < MOST and not worker.eof:
            piece = worker.decompress(data, MOST - size)
            data = worker.unconsumed_tail
            pieces.append(piece)
            size += len(piece)
    except zlib.error:
        pass
    return b"".join(pieces)


def _members(data: bytes) -> Iterator[bytes]:
    left = MOST
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    inner = file.read(left)
                left -= len(inner)
                yield inner
                if left <= 0:
                    return
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError, zlib.error, EOFError):
        return
