"""A checker that looks for words in every byte of a home: raw, escaped, and inflated out of whatever holds them.

It shares no code with what forgets: git's objects and packs are opened by dulwich, databases by SQLite and page by
page, the rest by the standard library.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import re
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from dulwich.object_format import SHA1
from dulwich.pack import Pack

ASCII, CYRILLIC, EMOJI = "quokkazeppelin", "дирижабльсекрет", "🦓🚁🛸🦑"
CANARIES = (ASCII, CYRILLIC, EMOJI)
_MOST_COMPRESSED = 4_096  # bytes: texts in an index are short


def forms(word: str) -> dict[str, bytes]:
    """Return the bytes that *word* can stand as, by name."""
    data = word.encode()
    escaped = json.dumps(word)[1:-1]
    found = {
        "raw": data,
        "utf-16-le": word.encode("utf-16-le"),
        "utf-16-be": word.encode("utf-16-be"),
        "json": escaped.encode(),
        "json in json": json.dumps(escaped)[1:-1].encode(),
        "json upper": "".join(f"\\u{unit:04X}" for unit in memoryview(word.encode("utf-16-le")).cast("H")).encode(),
        "python": ascii(word)[1:-1].encode(),
    }
    for shift in range(3):  # wherever in a base64 text it begins, these characters are its own
        whole = base64.b64encode(b"\0" * shift + data + b"\0\0\0").rstrip(b"=")
        start, end = -(-shift * 8 // 6), (shift + len(data)) * 8 // 6
        found[f"base64/{shift}"] = whole[start:end]
    return found


def where(home: Path, word: str) -> dict[str, set[str]]:
    """Return the files of *home* that hold *word*, and how: the wrappings, then the form."""
    wanted = forms(word)
    found: dict[str, set[str]] = {}
    for path in sorted(home.rglob("*")):
        if not path.is_file():
            continue
        for wrapping, data in layers(path):
            for form, needle in wanted.items():
                if needle in data:
                    found.setdefault(str(path.relative_to(home)), set()).add(f"{wrapping}{form}")
    return found


def layers(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what a file holds: its bytes, its name, and what can be got out of them."""
    data = path.read_bytes()
    yield "", data
    yield "name ", path.name.encode()
    if data.startswith(b"SQLite format 3\0"):
        for row in rows(path):
            yield "row ", row
    if ".db" in path.name:  # texts in an index, pages and write-ahead logs that nothing refers to included
        for start in re.finditer(b"\x78\xda", data):
            yield "zlib page ", _inflate_start(data[start.start() : start.start() + _MOST_COMPRESSED])
    if path.suffix == ".pack":
        with Pack(str(path.with_suffix("")), object_format=SHA1) as pack:
            for each in pack.iterobjects():
                yield "pack ", each.as_raw_string()
    yield from inflated(data)


def inflated(data: bytes, depth: int = 2) -> Iterator[tuple[str, bytes]]:
    """Yield what compression and archives hold, two deep."""
    pieces: list[tuple[str, bytes]] = []
    if data[:2] == b"\x1f\x8b":
        pieces.append(("gzip ", gzip.decompress(data)))
    if data[:1] == b"\x78":
        with contextlib.suppress(zlib.error):
            pieces.append(("zlib ", zlib.decompressobj().decompress(data)))
    if data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            pieces += [("zip ", archive.read(name)) for name in archive.namelist()]
    for wrapping, piece in pieces:
        yield wrapping, piece
        if depth:
            yield from ((f"{wrapping}{inner}", each) for inner, each in inflated(piece, depth - 1))


def _inflate_start(data: bytes) -> bytes:
    """Return what can be read of the compressed text that begins with *data*, as far as it is whole."""
    stream, text = zlib.decompressobj(), b""
    with contextlib.suppress(zlib.error):
        for byte in range(len(data)):
            text += stream.decompress(data[byte : byte + 1])
    return text


def rows(path: Path) -> Iterator[bytes]:
    """Yield every value of a database as it reads with its log: a text may run over several pages."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            side = path.with_name(path.name + suffix)
            if side.exists():
                Path(folder, f"copy{suffix}").write_bytes(side.read_bytes())
        database = sqlite3.connect(Path(folder, "copy"))
        try:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            # A full-text table without texts cannot be scanned; what it holds are its other tables.
            tables = [name for name in tables if f"{name}_data" not in tables]
            for table in tables:
                for row in database.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - the names are the file's own
                    for value in row:
                        yield value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
        finally:
            database.close()
