"""Opening what strangers sent: each file in a child process with limits, which can do nothing but read it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from agent.attachments.file_types import decode_text
from agent.base.file_facts import clean
from gateway.errors import FileUnavailable

log = structlog.get_logger(__name__)

_CHILD = str(Path(__file__).with_name("reader_process.py"))
_AT_ONCE = 2  # children: each may take a core
_WALL = 20.0  # seconds for one file, however little CPU it takes
_MOST_OUT = 8_000_000  # bytes that a child may say
_PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PN": "image/png"}
_BROKEN = "it could not be read"


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """A picture as the model is shown it."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ExtractedText:
    """Text extracted from a document."""

    text: str
    is_cut: bool = False  # it is only the beginning
    pages: int = 0


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
        return ExtractedText(clean(text)[:chars], header.get("is_cut") is True, pages if isinstance(pages, int) else 0)

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
