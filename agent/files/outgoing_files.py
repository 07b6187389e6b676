"""Files that go out with an answer: made of text, or sent again from what the scope has. The scope is the turn's."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import regex

from agent.base.file_facts import attachment_of, extension, format_size, safe_name
from agent.base.scopes import rebase_reference
from agent.files.file_workspace import RECEIVED, FileTooLarge, InvalidFileName, ReceivedFiles, ScopeWorkspaces
from gateway.errors import ToolFailed
from gateway.events import Attachment, SessionKey
from gateway.ports.journal import Line

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore


MOST_FILES = 10  # with one answer
_NAMED = 10  # files that the model is told of when it names one that is not there
_PICTURES = frozenset({"png", "jpg", "jpeg", "gif", "webp"})
# Pictures, sounds and films that hold all of themselves. What the system's table calls so includes lists for players.
_MEDIA = _PICTURES | frozenset(
    {"bmp", "avif", "heic", "tif", "tiff", "ico"}
    | {"mp3", "wav", "ogg", "oga", "opus", "m4a", "flac", "aac", "amr"}
    | {"mp4", "m4v", "webm", "mkv", "mov", "avi", "3gp"}
)
_ALWAYS_INERT = frozenset({"txt", "log", "json", "yaml", "yml"})
_TABLES = frozenset({"csv", "tsv"})
# A cell that begins like a formula: behind a separator, a quote or a blank. A number may have a sign.
_FORMULA = re.compile(r"""(?:^|[,;|\t\r\n"'])[ ]*+(?:[=@\t\r＝＠]|[-+－＋](?![\d.,\s%]*(?:$|[,;|\t\r\n"'])))""")
# Spreadsheets read a separator of the file's choice, and files in SYLK or HTML whatever their name is.
_OTHER_TABLE = re.compile(r"\s*+(?:sep=|ID|<)", re.IGNORECASE)
_SKIPPED = regex.compile(r"[\p{Cf}\x00-\x08\x0e-\x1f]+")  # before a cell's text
_LINE_ENDS = re.compile(r"[\x0b\x0c\x85\u2028\u2029]")
# Pictures, HTML, and what viewers of Markdown draw: diagrams and slides load pictures of their own.
_LOADS_IN_MARKDOWN = re.compile(r"!\[|<|mermaid|plantuml|!include|marp:|url\(", re.IGNORECASE)
_TYPES = {"md": "text/markdown", "csv": "text/csv", "json": "application/json", "yaml": "application/yaml"}


def can_load(name: str, text: str) -> bool:
    """Return True if a file *name* with *text* may load something from elsewhere when a person opens it.

    Text files cannot, nor can a table without formulas, or Markdown without pictures, HTML and diagrams.
    """
    last = extension(safe_name(name))
    if last in _TABLES:
        plain = _LINE_ENDS.sub("\n", _SKIPPED.sub("", text))
        return _OTHER_TABLE.match(plain) is not None or _FORMULA.search(plain) is not None
    return last not in _ALWAYS_INERT and not (last == "md" and _LOADS_IN_MARKDOWN.search(text) is None)


def is_medium(name: str) -> bool:
    """Return True if programs show a file *name* as a picture, sound or video, which loads nothing."""
    return extension(safe_name(name)) in _MEDIA


class OutgoingFiles:
    """Stages files for answers."""

    def __init__(
        self,
        workspaces: ScopeWorkspaces,
        received: ReceivedFiles,
        blobs: AttachmentStore,
        *,
        most: int,
        limit: Callable[[str], int],
        redact: Callable[[str], str],
    ) -> None:
        """Send at most *most* bytes, and no more than *limit* says for a channel's name; 0 is one that takes none.

        *redact* removes our secrets from what the model wrote.
        """
        self._workspaces = workspaces
        self._received = received
        self._blobs = blobs
        self._most = most
        self._limit = limit
        self.redact = redact

    def can_send(self, key: SessionKey) -> bool:
        """Return True if the chat takes files."""
        return min(self._limit(key.channel), self._most) > 0

    def bind(
        self,
        scope: str,
        key: SessionKey,
        lines: Callable[[], Iterable[Line]],
        attachments: list[Attachment],
        *,
        sent_count: int,
    ) -> BoundFileSender:
        """Return sending for one call in *scope*, whose conversation's *lines* name what was received."""
        limit = min(self._limit(key.channel), self._most)
        return BoundFileSender(self, scope, lines, attachments, limit, MOST_FILES - sent_count)

    async def stage_bytes(self, scope: str, name: str, data: bytes, limit: int, caption: str = "") -> Attachment:
        """Return a stored file of *data*."""
        return replace(await self._store(scope, safe_name(name), data, limit), caption=self.redact(caption))

    async def stage_existing(
        self, scope: str, name: str, lines: Iterable[Line], limit: int, *, must_be_inert: bool = False
    ) -> Attachment:
        """Return the workspace's file *name*, else the newest called so that was received.

        With *must_be_inert* a table with formulas, Markdown with pictures, and text that is called a picture, sound or
        film are refused, unless a person sent them.
        """
        data = await self._read_workspace(scope, name, limit)
        if data is not None and must_be_inert and await asyncio.to_thread(_loads, name, data):
            raise ToolFailed(
                f"{safe_name(name)} has formulas, pictures or HTML, or is not what its name says: it may load something"
                " when it is opened. Leave that out, or give its text, and the person is asked"
            )
        if data is not None:
            redacted = await asyncio.to_thread(self._redact_text, data)
            return await self._store(scope, safe_name(self.redact(name)), redacted, limit)
        fact = await self._received.find(scope, name.removeprefix(f"{RECEIVED}/"), lines)
        if fact is None:
            raise ToolFailed(await self._not_there(scope, name, lines))
        attachment = attachment_of(fact)
        _fits(attachment.name, attachment.size, limit)
        # A reference comes out of a transcript, which people can edit, and may name the scope that the transcript
        # stood in before two accounts were linked: it is looked for in this scope alone.
        attachment = replace(attachment, blob=rebase_reference(scope, attachment.blob))
        try:
            is_there = await self._blobs.measure(attachment.blob) is not None
        except ValueError:
            is_there = False
        if not is_there:
            raise ToolFailed(f"{attachment.name} is not kept here any more")
        return attachment

    def _redact_text(self, data: bytes) -> bytes:
        """Return *data*, which a tool wrote, without secrets; binary data is returned unchanged."""
        try:
            return self.redact(data.decode("utf-8")).encode("utf-8")
        except UnicodeDecodeError:
            return data

    async def _store(self, scope: str, name: str, data: bytes, limit: int) -> Attachment:
        _fits(name, len(data), limit)
        if not data:
            raise ToolFailed(f"{name} would be empty")
        last = extension(name)
        media_type = _TYPES.get(last) or mimetypes.types_map.get(f".{last}", "application/octet-stream")
        try:
            blob = await self._blobs.put(scope, data, is_medium=last in _PICTURES)
        except OSError:
            raise ToolFailed("the file could not be stored") from None
        kind = "image" if last in _PICTURES else "document"
        return Attachment(kind=kind, name=name, size=len(data), media_type=media_type, blob=blob)

    async def _read_workspace(self, scope: str, name: str, limit: int) -> bytes | None:
        try:
            content = await self._workspaces.of(scope).read(name, most=limit)
        except InvalidFileName:
            return None
        except FileTooLarge:
            raise ToolFailed(
                f"{safe_name(name)} is larger than the {format_size(limit)} that can be sent here"
            ) from None
        return None if content is None else content.data

    async def _not_there(self, scope: str, name: str, lines: Iterable[Line]) -> str:
        own = await self._workspaces.of(scope).list_files()
        received = await self._received.list_facts(scope, lines, most=_NAMED)
        names = [
            *(safe_name(str(each["name"])) for each in received),
            *(each.name for each in own if not each.is_untrusted),
        ][:_NAMED]
        there = f"there are: {', '.join(dict.fromkeys(names))}" if names else "there are none"
        return f"there is no file called {safe_name(name)} here; {there}. To make one, give its text"


@dataclass(frozen=True, slots=True)
class BoundFileSender:
    """Stages files for one tool call; they are sent with the turn's answer."""

    out: OutgoingFiles
    scope: str
    lines: Callable[[], Iterable[Line]]
    staged: list[Attachment]
    limit: int
    left: int

    async def __call__(self, name: str, text: str = "", *, must_be_inert: bool = False) -> Attachment:
        """Stage a file of *text*, or without any the file *name* of this scope; it is sent with the answer.

        With *must_be_inert* a stored table with formulas, and Markdown with pictures, is refused. Raises ToolFailed.
        """
        if text:
            redact = self.out.redact
            return await self.send_bytes(redact(name), redact(text).encode("utf-8", "replace"))
        self.require_room()
        found = await self.out.stage_existing(self.scope, name, self.lines(), self.limit, must_be_inert=must_be_inert)
        return self._stage(found)

    async def send_bytes(self, name: str, data: bytes, caption: str = "") -> Attachment:
        """Stage a file of *data* that shows *caption*. Raises ToolFailed."""
        self.require_room()
        return self._stage(await self.out.stage_bytes(self.scope, name, data, self.limit, caption))

    def require_room(self) -> None:
        """Raise ToolFailed if no further file can go with the answer."""
        if self.limit <= 0:
            raise ToolFailed("files cannot be sent in this chat; put what is in it into your answer")
        if len(self.staged) >= self.left:
            raise ToolFailed(f"at most {MOST_FILES} files go with one answer")

    def _stage(self, attachment: Attachment) -> Attachment:
        self.staged.append(attachment)
        return attachment


def _loads(name: str, data: bytes) -> bool:
    """Return True if a stored file that is sent unasked may load something: a table, Markdown, or a false medium."""
    if is_medium(name):
        # Players look at the bytes: a list of addresses is one under any name. Tools write text; real media are none.
        with suppress(UnicodeDecodeError):
            data.decode("utf-8")
            return True
        return False
    return extension(safe_name(name)) in (*_TABLES, "md") and can_load(name, data.decode("utf-8", "replace"))


def _fits(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise ToolFailed(f"{name} has {format_size(size)}, and only {format_size(limit)} can be sent here")
