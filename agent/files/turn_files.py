"""The files of a turn's scope, as its tools list, read and change them."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Literal, TypeVar
from zoneinfo import ZoneInfo

import structlog
from cachetools import LRUCache

from agent.attachments.document_reader import ExtractedText, SandboxedReader, detect_kind
from agent.base.file_facts import Fact, format_size
from agent.base.scopes import rebase_reference
from agent.files.file_workspace import (
    RECEIVED,
    FileChange,
    FileWorkspace,
    ReceivedFiles,
    ScopeWorkspaces,
    WorkspaceFull,
)
from gateway.errors import FileUnavailable, StoreUnavailable, ToolFailed
from gateway.ports.journal import Line

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore


log = structlog.get_logger(__name__)

T = TypeVar("T")
Rows = Sequence[Sequence[str | int | float]]
WriteMode = Literal["new", "replace", "append"]

TEXT_CHARS = 1_000_000  # of one file that can be read, page by page
_PAGE = 11_000  # characters
_CACHED_CHARS = 4_000_000  # of documents that are being read, all scopes together
_MOST_RECEIVED = 200  # files that a listing names
_NAMED = 10  # files that an error names
# As cells of spreadsheets are written, too: 0.30000000000000004, 1e-07. A code such as 12E5 has no sign there.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?(?P<power>e[+-][0-9]{2,3})?")
_QUOTED = re.compile(r'"(?:[^"\n]|"")*"')
_NO_TEXT = {
    "picture": "a picture has no text",
    "sound": "a recording has no text",
    "film": "a film has no text",
    "svg": "drawings in SVG are not read",
}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as a listing names it."""

    name: str
    size: int
    changed_at: datetime | None = None  # None: a received file


class FileServices:
    """The services that the file tools of all turns share."""

    def __init__(
        self, workspaces: ScopeWorkspaces, received: ReceivedFiles, blobs: AttachmentStore, reader: SandboxedReader
    ) -> None:
        self.workspaces = workspaces
        self.received = received
        self.blobs = blobs
        self._reader = reader
        self._texts: LRUCache[tuple[str, str], ExtractedText] = LRUCache(
            _CACHED_CHARS, getsizeof=lambda text: len(text.text)
        )

    async def extract(self, data: bytes, *, kind: str) -> ExtractedText:
        """Return the text of a file. Raises FileUnavailable. A document that is read page by page is opened once."""
        if kind in _NO_TEXT:
            raise FileUnavailable(_NO_TEXT[kind])
        if kind == "text":
            return await self._reader.read_text(data, kind, TEXT_CHARS)
        key = (await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest()), kind)
        if (known := self._texts.get(key)) is not None:
            return known
        text = await self._reader.document(data, kind, TEXT_CHARS)
        self._texts[key] = text
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFiles:
    """The files of one tool call. Methods raise ToolFailed with what the model can do about it."""

    services: FileServices
    scope: str
    lines: Callable[[], Iterable[Line]]
    key: str  # of the call: the same after a restart
    zone: str
    prefix: str  # of commands in this chat
    taint: Callable[[], None]  # called when untrusted text is read
    is_tainted: bool  # untrusted text may have caused the call

    @property
    def workspace(self) -> FileWorkspace:
        """The scope's workspace."""
        return self.services.workspaces.of(self.scope)

    async def list_files(self, pattern: str) -> tuple[list[FileEntry], int]:
        """Return the files whose names match *pattern*, and the bytes of all files. Taints if one is marked."""
        own = await self.workspace.list_files()
        zone = ZoneInfo(self.zone)
        matching = [each for each in own if fnmatch(each.name, pattern)]
        if any(each.is_untrusted for each in matching):
            self.taint()  # a name may be an instruction too
        entries = [FileEntry(each.name, each.size, each.at.astimezone(zone)) for each in matching]
        received = await self.services.received.list_facts(self.scope, self.lines(), most=_MOST_RECEIVED)
        names = ((f"{RECEIVED}/{fact['name']}", fact) for fact in received)
        entries += [FileEntry(name, _size(fact)) for name, fact in names if fnmatch(name, pattern)]
        return entries, sum(each.size for each in own)

    async def read_text(self, name: str) -> ExtractedText:
        """Return the text of a file. Taints unless the bot wrote it as plain text."""
        if name.startswith(f"{RECEIVED}/"):
            data, kind = await self._read_received(name)
            self.taint()
        else:
            content = await self.workspace.read(name)
            if content is None:
                raise ToolFailed(await self._not_there())
            data, kind = content.data, detect_kind(content.data, kind="document", name=name, media_type="")
            if content.is_untrusted or kind != "text":
                self.taint()
        if not data:
            return ExtractedText("")
        try:
            return await self.services.extract(data, kind=kind)
        except FileUnavailable as error:
            raise ToolFailed(f"{name} cannot be read: {error}") from None

    async def read_tables(self, name: str) -> Mapping[str, Rows]:
        """Return the rows of each sheet of a file by its name, of CSV those of a sheet "". Taints as `read_text`.

        Other files than tables are refused, and those of which only the beginning can be read.
        """
        text = await self.read_text(name)
        is_csv = name.lower().endswith((".csv", ".tsv")) and not text.places
        if not is_csv and not any(each.kind == "sheet" for each in text.places):
            raise ToolFailed(f"{name} is no table: CSV files and spreadsheets have rows")
        if text.is_cut:
            raise ToolFailed(f"{name} is too large: a table has at most {TEXT_CHARS} characters and 100 sheets")
        return await asyncio.to_thread(_parse_tables, text)

    async def write(self, name: str, text: str, mode: WriteMode) -> FileChange:
        """Write a file; one that a tainted call writes is marked."""
        data = text.encode("utf-8", "replace")
        if mode == "append" and not data:
            raise ToolFailed("there is nothing to append in an empty text")
        workspace, mark = self.workspace, self.is_tainted
        if mode == "append":
            return await self._explain_failure(workspace.append(name, data, key=self.key, is_untrusted=mark))
        if mode == "replace":
            return await self._explain_failure(workspace.replace(name, data, key=self.key, is_untrusted=mark))
        change = await self._explain_failure(workspace.create(name, data, is_untrusted=mark))
        if change is None:
            raise ToolFailed(f"{name} exists; use mode replace or append, or another name")
        return change

    async def delete(self, name: str) -> FileChange:
        """Delete a file, which stays restorable for a week."""
        change = await self._explain_failure(self.workspace.delete(name, key=self.key))
        if change is None:
            raise ToolFailed(await self._not_there())
        return change

    async def _explain_failure(self, change: Awaitable[T]) -> T:
        try:
            return await change
        except WorkspaceFull as full:
            deleted = f"; deleted files have {format_size(full.trash)}, and the person can remove them for good with"
            raise ToolFailed(full.reason + (f"{deleted} `{self.prefix}files empty`" if full.trash else "")) from None
        except (OSError, StoreUnavailable) as error:
            log.warning("workspace.failed", error=type(error).__name__)
            raise ToolFailed("the file could not be stored") from None

    async def _read_received(self, name: str) -> tuple[bytes, str]:
        fact = await self.services.received.find(self.scope, name.removeprefix(f"{RECEIVED}/"), self.lines())
        if fact is None:
            raise ToolFailed(await self._not_there())
        # A reference comes out of a transcript, which people can edit: it is looked for in this scope alone.
        try:
            data = await self.services.blobs.get(rebase_reference(self.scope, str(fact["blob"])))
        except ValueError:
            data = None
        if data is None:
            raise ToolFailed(f"{name} is not kept here any more")
        kind = detect_kind(
            data, kind=str(fact.get("kind", "")), name=str(fact["name"]), media_type=str(fact.get("media_type", ""))
        )
        return data, kind

    async def _not_there(self) -> str:
        entries, _ = await self.list_files("*")
        names = ", ".join(each.name for each in entries[:_NAMED])
        return f"no such file; available: {names}" if names else "no such file: there are none here yet"


def _parse_tables(text: ExtractedText) -> Mapping[str, Rows]:
    """Return the rows of each sheet. Blocks."""
    if not text.places:
        first = _QUOTED.sub("", text.text.partition("\n")[0])  # a separator in a name separates nothing
        return {"": _parse_rows(text.text, max(",;\t", key=first.count))}
    ends = [*(each.start for each in text.places[1:]), len(text.text)]
    found: dict[str, Rows] = {}
    for each, end in zip(text.places, ends, strict=True):
        name = each.name
        while name in found:  # two long names that begin alike
            name += "'"
        found[name] = _parse_rows(text.text[each.start : end].partition("\n\n")[2].removesuffix("\n"), ",")
    return found


def _parse_rows(text: str, delimiter: str) -> Rows:
    try:
        rows = csv.reader(io.StringIO(text), delimiter=delimiter)
        return [[_number(cell) for cell in row] for row in rows]
    except csv.Error as error:
        raise ToolFailed(f"the table is broken: {error}") from None


def _number(cell: str) -> str | int | float:
    """Return a plain number as one; everything else, such as 007 and 1.000,50, stays text."""
    found = _NUMBER.fullmatch(cell)
    if found is None:
        return cell
    value = float(cell) if "." in cell or found["power"] else int(cell)
    return value if math.isfinite(value) else cell


def split_pages(text: str) -> list[str]:
    """Return *text* in pages of at most 11,000 characters, cut at line ends where there are any."""
    pages: list[str] = []
    start = 0
    while len(text) - start > _PAGE:
        end = text.rfind("\n", start + _PAGE // 2, start + _PAGE) + 1 or start + _PAGE
        pages.append(text[start:end])
        start = end
    return [*pages, text[start:]]


def _size(fact: Fact) -> int:
    size = fact.get("size")
    return size if isinstance(size, int) else 0
