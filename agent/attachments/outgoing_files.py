"""Files that go out with an answer: made of text, or sent again from what the scope has. The scope is the turn's."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agent.attachments.file_facts import Fact, attachment_of, facts_in
from agent.attachments.file_names import extension, format_size, safe_name
from agent.attachments.scope_folder import FileTooLarge, names_in, read_beneath
from agent.memory.scopes import rebase_reference, scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode
from gateway.errors import ToolFailed
from gateway.events import Attachment, SessionKey
from gateway.ports import BlobStore, Line

MOST_FILES = 10  # with one answer
_NAMED = 10  # files that the model is told of when it names one that is not there
_LOOKED_THROUGH = 32 << 20  # bytes of older conversations that a name is looked for in
_PICTURES = frozenset({"png", "jpg", "jpeg", "gif", "webp"})
# What systems disagree about, or do not know.
_TYPES = {"md": "text/markdown", "csv": "text/csv", "json": "application/json", "yaml": "application/yaml"}


class OutgoingFiles:
    """Stages files for answers."""

    def __init__(self, home: Path, blobs: BlobStore, *, most: int, limit: Callable[[str], int]) -> None:
        """Send at most *most* bytes, and no more than *limit* says for a channel's name; 0 is one that takes none."""
        self._home = home
        self._blobs = blobs
        self._most = most
        self._limit = limit
        self._disk = Disk()

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

    async def stage_text(self, scope: str, name: str, text: str, limit: int) -> Attachment:
        """Return a stored file of *text*."""
        data = text.encode("utf-8", "replace")
        return await self._store(scope, safe_name(name), data, limit)

    async def stage_existing(self, scope: str, name: str, lines: Iterable[Line], limit: int) -> Attachment:
        """Return the newest file called *name* that was received, else that of the scope's folder."""
        received = list(_received(reversed(list(lines))))
        fact = _called(name, received)
        if fact is None:
            try:
                data = await asyncio.to_thread(read_beneath, self._folder(scope), name, limit)
            except FileTooLarge:
                raise ToolFailed(
                    f"{safe_name(name)} is larger than the {format_size(limit)} that can be sent here"
                ) from None
            if data is not None:
                return await self._store(scope, safe_name(name), data, limit)
            fact = await asyncio.to_thread(self._older, scope, name)
        if fact is None:
            raise ToolFailed(await self._not_there(scope, name, received))
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

    def _folder(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / "files"

    def _older(self, scope: str, name: str) -> Fact | None:
        """Look through the scope's conversations, the newest first. Blocks."""
        left = _LOOKED_THROUGH
        found: list[tuple[float, Path]] = []
        for path in (scope_folder(self._home, scope) / "sessions").glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):  # archived under our hands
                found.append((path.stat().st_mtime, path))
        for _, path in sorted(found, reverse=True):
            if left <= 0:
                return None
            data = self._disk.load(path) or b""
            left -= len(data)
            raws = (raw for raw in reversed(data.splitlines()) if b'"files"' in raw)
            lines = (line for raw in raws if (line := decode(raw)) is not None)
            fact = _called(name, _received(lines))
            if fact is not None:
                return fact
        return None

    async def _not_there(self, scope: str, name: str, received: Iterable[Fact]) -> str:
        folder = await asyncio.to_thread(names_in, self._folder(scope), _NAMED)
        names = list(dict.fromkeys([*(str(each["name"]) for each in received), *folder]))[:_NAMED]
        there = f"there are: {', '.join(map(safe_name, names))}" if names else "there are none"
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

    async def __call__(self, name: str, text: str = "") -> Attachment:
        """Stage a file of *text*, or without any the file *name* of this scope. Raises ToolFailed."""
        if self.limit <= 0:
            raise ToolFailed("files cannot be sent in this chat; put what is in it into your answer")
        if len(self.staged) >= self.left:
            raise ToolFailed(f"at most {MOST_FILES} files go with one answer")
        if text:
            attachment = await self.out.stage_text(self.scope, name, text, self.limit)
        else:
            attachment = await self.out.stage_existing(self.scope, name, self.lines(), self.limit)
        self.staged.append(attachment)
        return attachment


def _received(lines: Iterable[Line]) -> Iterator[Fact]:
    """Yield the stored files that lines name, in the lines' order."""
    for line in lines:
        yield from (fact for fact in facts_in(line) if fact.get("blob") and fact.get("name"))


def _called(name: str, facts: Iterable[Fact]) -> Fact | None:
    wanted = safe_name(name).casefold()
    return next((fact for fact in facts if str(fact["name"]).casefold() == wanted), None)


def _fits(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise ToolFailed(f"{name} has {format_size(size)}, and only {format_size(limit)} can be sent here")
