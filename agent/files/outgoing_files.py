"""Files that go out with an answer: made of text, or sent again from what the scope has. The scope is the turn's."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from agent.attachments.file_facts import attachment_of
from agent.attachments.file_names import extension, format_size, safe_name
from agent.files.received_files import ReceivedFiles
from agent.files.workspace_disk import FileTooLarge
from agent.files.workspace_names import RECEIVED, InvalidFileName
from agent.files.workspaces import ScopeWorkspaces
from agent.memory.scopes import rebase_reference
from gateway.errors import ToolFailed
from gateway.events import Attachment, SessionKey
from gateway.ports import BlobStore, Line

MOST_FILES = 10  # with one answer
_NAMED = 10  # files that the model is told of when it names one that is not there
_PICTURES = frozenset({"png", "jpg", "jpeg", "gif", "webp"})
# What systems disagree about, or do not know.
_ALWAYS_INERT = frozenset({"txt", "log", "json", "yaml", "yml"})
_TABLES = frozenset({"csv", "tsv"})
_FORMULA = re.compile(r"""(?:^|[,;|\t\r\n"'])[ "']*(?:[=@\t\r＝＠]|[-+－＋](?![\d.,\s%]*(?:$|[,;|\t\r\n"'])))""")
_TYPES = {"md": "text/markdown", "csv": "text/csv", "json": "application/json", "yaml": "application/yaml"}


def can_load(name: str, text: str) -> bool:
    """Return True if a file *name* with *text* may load something from elsewhere when a person opens it.

    Text files cannot, nor can a table without formulas, or Markdown without pictures and HTML.
    """
    last = extension(safe_name(name))
    if last in _TABLES:
        return _FORMULA.search(text) is not None
    return last not in _ALWAYS_INERT and not (last == "md" and "![" not in text and "<" not in text)


def is_medium(name: str) -> bool:
    """Return True if programs show a file *name* as a picture, sound or video, which loads nothing."""
    media_type = mimetypes.types_map.get(f".{extension(safe_name(name))}", "")
    return media_type.partition("/")[0] in ("image", "audio", "video") and not media_type.endswith("xml")


class OutgoingFiles:
    """Stages files for answers."""

    def __init__(
        self,
        workspaces: ScopeWorkspaces,
        received: ReceivedFiles,
        blobs: BlobStore,
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

    async def stage_bytes(self, scope: str, name: str, data: bytes, limit: int) -> Attachment:
        """Return a stored file of *data*."""
        return await self._store(scope, safe_name(name), data, limit)

    async def stage_existing(
        self, scope: str, name: str, lines: Iterable[Line], limit: int, *, must_be_inert: bool = False
    ) -> Attachment:
        """Return the workspace's file *name*, else the newest called so that was received.

        With *must_be_inert* a table with formulas and Markdown with pictures are refused, unless a person sent them.
        """
        data = await self._read_workspace(scope, name, limit)
        is_text = extension(safe_name(name)) in (*_TABLES, "md")
        if data is not None and must_be_inert and is_text and can_load(name, data.decode("utf-8", "replace")):
            raise ToolFailed(
                f"{safe_name(name)} has formulas, pictures or HTML, which load something when it is opened; leave them"
                " out, or give its text, and the person is asked"
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
            blob = await self._blobs.put(scope, data)
        except OSError:
            raise ToolFailed("the file could not be stored") from None
        kind = "image" if last in _PICTURES else "document"
        return Attachment(kind=kind, name=name, size=len(data), media_type=media_type, blob=blob)

    async def _read_workspace(self, scope: str, name: str, limit: int) -> bytes | None:
        try:
            content = await asyncio.to_thread(self._workspaces.of(scope).read, name, most=limit)
        except InvalidFileName:
            return None
        except FileTooLarge:
            raise ToolFailed(
                f"{safe_name(name)} is larger than the {format_size(limit)} that can be sent here"
            ) from None
        return None if content is None else content.data

    async def _not_there(self, scope: str, name: str, lines: Iterable[Line]) -> str:
        own = await asyncio.to_thread(self._workspaces.of(scope).list_files)
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
        """Stage a file of *text*, or without any the file *name* of this scope. Raises ToolFailed."""
        if text:
            redact = self.out.redact
            return await self.send_bytes(redact(name), redact(text).encode("utf-8", "replace"))
        self._require_room()
        found = await self.out.stage_existing(self.scope, name, self.lines(), self.limit, must_be_inert=must_be_inert)
        return self._stage(found)

    async def send_bytes(self, name: str, data: bytes) -> Attachment:
        """Stage a file of *data*. Raises ToolFailed."""
        self._require_room()
        return self._stage(await self.out.stage_bytes(self.scope, name, data, self.limit))

    def _require_room(self) -> None:
        if self.limit <= 0:
            raise ToolFailed("files cannot be sent in this chat; put what is in it into your answer")
        if len(self.staged) >= self.left:
            raise ToolFailed(f"at most {MOST_FILES} files go with one answer")

    def _stage(self, attachment: Attachment) -> Attachment:
        self.staged.append(attachment)
        return attachment


def _fits(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise ToolFailed(f"{name} has {format_size(size)}, and only {format_size(limit)} can be sent here")
