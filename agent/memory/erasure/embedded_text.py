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
from contextlib import suppress
from functools import lru_cache

MOST = 16 * 1024 * 1024  # bytes that one wrapping may hold
_PIECE = 512 * 1024  # bytes that are searched in one go
_SMALL = 64 * 1024  # bytes that are read as a text even if they are none
_DEPTH = 3  # wrappings inside one another
_ESCAPE = re.compile(r"\\+u([0-9a-fA-F]{4})")  # escaped once or again
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}={0,2}")
_STREAM = re.compile(rb"stream\r?\n")  # of a PDF; usually deflated
_WIDE = 8  # one in so many bytes is NUL in a UTF-16 text of European letters


def extract_texts(data: bytes, depth: int = _DEPTH) -> Iterator[str | bytes]:
    """Yield every text that *data* holds as it stands, escaped or wrapped; some twice, some that are none.

    What is large and no text is yielded as bytes: to read a picture as letters would take seconds.
    """
    plain = _text(data)
    if plain is None:
        yield data
    else:
        yield plain
        if "\\u" in plain:
            yield unescaped(plain)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield data.decode("utf-16", "replace")
    elif plain is not None and data[:4096].count(0) * _WIDE > len(data[:4096]):
        yield data.decode("utf-16-le", "replace")
        yield data.decode("utf-16-be", "replace")
    if depth:
        for inner in _unwrapped(data, is_text=plain is not None):
            yield from extract_texts(inner, depth - 1)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace") if len(data) <= _SMALL else None


def contains_text(data: bytes, folded: str) -> bool:
    """Say whether bytes that are no text hold a folded one: in UTF-8 or UTF-16, in small letters or capitals."""
    pattern = _pattern(folded)
    lap = 8 * len(folded) + 64
    # Nobody else runs beside one search, so it goes on in pieces.
    return any(pattern.search(data, at, at + _PIECE + lap) is not None for at in range(0, len(data), _PIECE))


@lru_cache(maxsize=64)
def _pattern(folded: str) -> re.Pattern[bytes]:
    codes = ("utf-8", "utf-16-le", "utf-16-be")
    return re.compile(b"|".join(b"".join(_sign(sign, code) for sign in folded) for code in codes))


def _sign(sign: str, code: str) -> bytes:
    if sign == " ":
        return b"(?:" + b"|".join(re.escape(each.encode(code)) for each in " \t\n\r\u00a0") + b")+"
    forms = {sign, sign.upper(), sign.title()}
    return b"(?:" + b"|".join(re.escape(each.encode(code, "surrogatepass")) for each in sorted(forms)) + b")"


def unescaped(text: str) -> str:
    r"""Return *text* with its ``\uXXXX`` as the characters they name, pairs of them as one."""
    spelt = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return spelt.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unwrapped(data: bytes, *, is_text: bool) -> Iterator[bytes]:
    if data[:2] == b"\x1f\x8b":
        yield _inflated(data, zlib.MAX_WBITS | 16)
    elif data[:1] == b"\x78":
        yield _inflated(data, zlib.MAX_WBITS)
    elif data[:4] == b"PK\x03\x04":
        yield from _members(data)
    elif data[:5] == b"%PDF-":
        for found in _STREAM.finditer(data):
            yield _inflated(data[found.end() :], zlib.MAX_WBITS)
    for found in _BASE64.finditer(data) if is_text else ():
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
    with suppress(zlib.error):
        while data and size < MOST and not worker.eof:
            piece = worker.decompress(data, MOST - size)
            data = worker.unconsumed_tail
            pieces.append(piece)
            size += len(piece)
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
