"""Opening what strangers sent: each file in a child process with limits, which can do nothing but read it.

The type of a file is what its first bytes and its name say. Texts are decoded here.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from agent.base.file_facts import clean, extension
from gateway.errors import FileUnavailable

_PICTURE_ENDINGS = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp"})
_PAGES = frozenset({"html", "htm", "xhtml"})
_SOUNDS = frozenset({"ogg", "oga", "opus", "mp3", "m4a", "wav", "flac", "aac", "amr"})
_FILMS = frozenset({"mp4", "mov", "mkv", "webm", "avi", "m4v", "3gp"})
_MAGIC = {
    b"\xff\xd8\xff": "picture",
    b"\x89PNG\r\n\x1a\n": "picture",
    b"GIF87a": "picture",
    b"GIF89a": "picture",
    b"PK\x03\x04": "archive",
    b"PK\x05\x06": "archive",
    b"OggS": "sound",
    b"ID3": "sound",
    b"fLaC": "sound",
}
_SNIFFED = 1_024
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def detect_kind(data: bytes, *, kind: str, name: str, media_type: str) -> str:
    """Return a file's kind: picture, sound, film, pdf, html, text or archive.

    Word documents, spreadsheets and books are archives. The file's bytes take precedence over the channel's media type,
    and that over its name.
    """
    by_name = _kind_by_name(kind, extension(name), media_type)
    if by_name in ("sound", "film") and not data.startswith((b"%PDF", b"PK\x03\x04")):
        return by_name
    for magic, found in _MAGIC.items():
        if data.startswith(magic):
            return found
    if data[:4] == b"RIFF" and data[8:12] in (b"WEBP", b"WAVE"):
        return "picture" if data[8:12] == b"WEBP" else "sound"
    start = data[:_SNIFFED]
    if b"%PDF-" in start:
        return "pdf"
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "html"
    return by_name


def _kind_by_name(kind: str, last: str, media_type: str) -> str:
    if kind in ("voice", "audio") or media_type.startswith("audio/") or last in _SOUNDS:
        return "sound"
    if kind == "video" or media_type.startswith("video/") or last in _FILMS:
        return "film"
    # SVG is a program more than a picture; it is never drawn, and as text it is harmless.
    if "svg" in media_type or last == "svg":
        return "svg"
    if kind == "image" or media_type.startswith("image/") or last in _PICTURE_ENDINGS:
        return "picture"
    if media_type in ("text/html", "application/xhtml+xml") or last in _PAGES:
        return "html"
    return "text"


def may_have_text(*, kind: str, name: str, media_type: str) -> bool:
    """Return True for a file that is no picture, recording or film by its name and what the platform says."""
    return _kind_by_name(kind, extension(name), media_type) in ("text", "html")


def decode_text(data: bytes, chars: int) -> tuple[str, bool] | None:
    """Return the first *chars* characters of a text file and True if it has more; None if the bytes are not text."""
    for mark, coding in _MARKS:
        if data.startswith(mark):
            return _first(data[len(mark) :], coding, chars)
    start = data[: 4 * chars + 4]
    if _is_utf16(start):
        return _first(data, "utf-16-le" if start[1:2] == b"\0" else "utf-16-be", chars)
    if b"\0" in start:
        return None
    try:
        # A character may be cut in two at the end, and only there.
        codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(data))
    except UnicodeDecodeError:
        return _first(data, "latin-1", chars) if _is_latin(start) else None
    return _first(data, "utf-8", chars)


def _first(data: bytes, coding: str, chars: int) -> tuple[str, bool]:
    start = data[: 4 * chars + 4]
    text = codecs.getincrementaldecoder(coding)("replace").decode(start, final=len(start) == len(data))
    return text[:chars], len(text) > chars or len(start) < len(data)


def _is_utf16(start: bytes) -> bool:
    """Return True if every second byte at the start is mostly zero, as in Western text without a byte-order mark."""
    sample = start[:512]
    if len(sample) < 4:
        return False
    half = len(sample) // 2
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    return (odd > half * 0.7 and even < half * 0.1) or (even > half * 0.7 and odd < half * 0.1)


def _is_latin(start: bytes) -> bool:
    """Return True if bytes that are not UTF-8 can be Latin-1 text: hardly any control characters."""
    odd = sum(1 for byte in start if (byte < 32 and byte not in b"\t\n\r\f\x1b") or 127 <= byte < 160)
    return odd * 50 <= len(start)


# -- reader ----------------------------------------------------------------------------------------

log = structlog.get_logger(__name__)

_CHILD = str(Path(__file__).with_name("reader_process.py"))
_AT_ONCE = 2  # children: each may take a core
_WALL = 20.0  # seconds for one file, however little CPU it takes
_MOST_OUT = 8_000_000  # bytes that a child may say
_PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PN": "image/png"}
_BROKEN = "it could not be read"
_LONGEST_PLACE = 40  # characters of a sheet's name


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """A picture as the model is shown it."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class DocumentPlace:
    """A page, chapter or sheet of a document. The name of a sheet is its author's text."""

    start: int  # in the text of the document
    kind: str  # page, chapter or sheet
    name: str  # its number, or what it is called


@dataclass(frozen=True, slots=True)
class ExtractedText:
    """Text extracted from a document."""

    text: str
    is_cut: bool = False  # it is only the beginning
    pages: int = 0
    places: Sequence[DocumentPlace] = ()  # in their order; a text without any has no pages


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPage:
    """A web page as text, in its own words: title, language and date are what it claims."""

    text: str
    is_main: bool  # the main part alone
    is_cut: bool
    title: str = ""
    language: str = ""
    date: str = ""


class SandboxedReader:
    """Runs the children. Safe to share between turns."""

    def __init__(self, *, wall: float = _WALL) -> None:
        self._wall = wall
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def picture(self, data: bytes) -> DecodedImage:
        """Return the picture scaled and stripped to its pixels. Raises FileUnavailable in a person's words."""
        _, body = await self._ask(data, "picture")
        media_type = _PICTURES.get(body[:3])
        if media_type is None:
            raise FileUnavailable(_BROKEN)
        return DecodedImage(body, media_type)

    async def measure_picture(self, data: bytes) -> str:
        """Return format and size of a picture as ``PNG, 1200 × 800 pixels``. Raises FileUnavailable."""
        header, _ = await self._ask(data, "measure")
        form, width, height = (header.get(name) for name in ("form", "width", "height"))
        if not (isinstance(form, str) and form.isalpha() and isinstance(width, int) and isinstance(height, int)):
            raise FileUnavailable(_BROKEN)
        return f"{form[:8]}, {width} × {height} pixels"

    async def read_text(self, data: bytes, kind: str, chars: int) -> ExtractedText:
        """Return at most *chars* characters of a file of a *kind* of `detect_kind`. Raises FileUnavailable."""
        if kind == "text":
            return await asyncio.to_thread(_decode, data, chars)
        return await self.document(data, kind, chars)

    async def document(self, data: bytes, form: str, chars: int) -> ExtractedText:
        """Return at most *chars* characters of a pdf, docx, html or archive file. Raises FileUnavailable."""
        header, _ = await self._ask(data, "document", str(chars), form)
        text, pages = header.get("text"), header.get("pages")
        if not isinstance(text, str):
            raise FileUnavailable(_BROKEN)
        is_cut, count = header.get("is_cut") is True, pages if isinstance(pages, int) else 0
        # A long text is cleaned beside the loop.
        cleaned, places = await asyncio.to_thread(_clean_places, text[:chars], header.get("places"))
        return ExtractedText(cleaned, is_cut, count, places)

    async def page(self, data: bytes, *, charset: str, address: str, is_whole: bool, chars: int) -> ReadPage:
        """Return at most *chars* characters of the HTML page that came from *address*. Raises FileUnavailable."""
        part = "all" if is_whole else "main"
        header, _ = await self._ask(data, "page", str(chars), charset, address, part)
        if not isinstance(header.get("text"), str):
            raise FileUnavailable(_BROKEN)
        return ReadPage(
            text=clean(header["text"])[:chars],
            is_main=header.get("is_main") is True,
            is_cut=header.get("is_cut") is True,
            title=_one_line(header.get("title")),
            language=_one_line(header.get("language")),
            date=_one_line(header.get("date")),
        )

    async def _ask(self, data: bytes, *arguments: str) -> tuple[Mapping[str, Any], bytes]:
        async with self._slots:
            try:
                async with asyncio.timeout(self._wall):
                    out = await _run(data, arguments)
            except TimeoutError:
                raise FileUnavailable("it takes too long to read") from None
            except OSError as error:
                log.warning("attachments.no_child", error=error.strerror)
                raise FileUnavailable(_BROKEN) from error
        line, _, body = out.partition(b"\n")
        try:
            header = json.loads(line)
        except ValueError:  # it was killed: by the system for its memory or its time, or by a bug in a decoder
            raise FileUnavailable("it is too large inside, or broken") from None
        if not isinstance(header, dict):
            raise FileUnavailable(_BROKEN)
        if header.get("failed"):
            raise FileUnavailable(clean(str(header["failed"]))[:200])
        return header, body


def _clean_places(text: str, value: object) -> tuple[str, Sequence[DocumentPlace]]:
    """Return the cleaned *text*, and its places, as the child lists them in *value*, where they begin in that.

    Those that are out of order are left out.
    """
    parts: list[str] = []
    places: list[DocumentPlace] = []
    end = length = 0
    for each in value if isinstance(value, list) else ():
        match each:
            case [int(start), "page" | "chapter" | "sheet" as kind, str(name)] if end <= start < len(text):
                parts.append(clean(text[end:start]))
                length += len(parts[-1])
                places.append(DocumentPlace(length, kind, _one_line(name)[:_LONGEST_PLACE]))
                end = start
    parts.append(clean(text[end:]))
    return "".join(parts), tuple(places)


def _one_line(value: object) -> str:
    return " ".join(clean(value).split())[:300] if isinstance(value, str) else ""


def _decode(data: bytes, chars: int) -> ExtractedText:
    found = decode_text(data, chars)
    if found is None:
        raise FileUnavailable("this kind of file cannot be read here")
    return ExtractedText(clean(found[0]), found[1])


async def _run(data: bytes, arguments: tuple[str, ...]) -> bytes:
    """Return the child process's output for *data*. The child has ended when this returns or raises."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-B",
        _CHILD,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},  # no key, no path, no setting
        cwd="/",
        start_new_session=True,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_feed(child, data), name="file to the reader")
            output = tasks.create_task(_read_output(child), name="what the reader says")
        return output.result()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await asyncio.shield(child.wait())


async def _feed(child: asyncio.subprocess.Process, data: bytes) -> None:
    assert child.stdin is not None  # noqa: S101 - it was asked for
    with contextlib.suppress(OSError):  # it ended before it had read everything; what it output tells why
        child.stdin.write(data)
        await child.stdin.drain()
        child.stdin.close()
        await child.stdin.wait_closed()


async def _read_output(child: asyncio.subprocess.Process) -> bytes:
    assert child.stdout is not None  # noqa: S101 - it was asked for
    out = bytearray()
    while piece := await child.stdout.read(1 << 16):
        out += piece
        if len(out) > _MOST_OUT:
            return b""
    return bytes(out)
