"""Files that came with messages: fetched when their turn begins, stored in the scope, read as far as they can be.

The conversation holds references to pictures, and requests have the same bytes each time.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import structlog
from cachetools import LRUCache

from agent.attachments.document_reader import ExtractedText, SandboxedReader, detect_kind
from agent.attachments.speech import LitellmTranscriber
from agent.base.file_facts import PICTURE, UNTRUSTED, Fact, clean, fact_of
from agent.base.locks import KeyLocks, task_group
from agent.base.scopes import rebase_reference
from agent.llm.media_model import UsageAttribution
from gateway.errors import FileUnavailable
from gateway.events import Attachment, SessionKey

if TYPE_CHECKING:
    from gateway.channel import ChannelAttachmentFetcher
    from gateway.store.attachment_store import AttachmentStore


log = structlog.get_logger(__name__)

MOST_FILES = 20  # of one message
MOST_PICTURES = 10  # of one message that the model is shown
MOST_TEXTS = 4  # times the characters of one file: what all documents of a message may take together
_AT_ONCE = 6  # files in memory, all chats together
_OF_ONE_CHAT = 2
_MEDIA = frozenset({"picture", "sound", "film", "svg"})


class AttachmentLoader:
    """Turns attachments into facts. A file that fails does not fail the turn: its fact describes the failure."""

    def __init__(
        self,
        files: ChannelAttachmentFetcher,
        blobs: AttachmentStore,
        *,
        text_chars: int,
        sees: Callable[[SessionKey], Awaitable[bool]],
        transcriber: LitellmTranscriber | None = None,
    ) -> None:
        """Fetch through *files*; *sees* returns True if a chat's model accepts pictures."""
        self._files = files
        self._blobs = blobs
        self._text_chars = text_chars
        self._sees = sees
        self._transcriber = transcriber
        self._reader = SandboxedReader()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._lanes = KeyLocks()
        self._next = count()

    async def load(
        self, scope: str, key: SessionKey, attachments: Sequence[Attachment], attribution: UsageAttribution
    ) -> tuple[Fact, ...]:
        """Return a fact for each attachment, in their order. Raises nothing but cancellation."""
        looked_at = attachments[:MOST_FILES]
        async with task_group() as tasks:
            taken = [
                tasks.create_task(self._take(scope, key, each, attribution), name="attachment") for each in looked_at
            ]
        facts = [task.result() for task in taken]
        too_many = f"not looked at: more than {MOST_FILES} files in one message"
        facts += [{**fact_of(each), "failed": too_many} for each in attachments[MOST_FILES:]]
        return tuple(_within(facts, MOST_TEXTS * self._text_chars))

    async def _take(
        self, scope: str, key: SessionKey, attachment: Attachment, attribution: UsageAttribution
    ) -> dict[str, Any]:
        fact = fact_of(attachment)
        # A chat's lane before a slot, or one chat's slow files keep all the others' waiting.
        async with self._lanes.hold((key, next(self._next) % _OF_ONE_CHAT)), self._slots:
            try:
                data = await self._bytes(scope, key, attachment)
                name, media_type = fact["name"], fact.get("media_type", "")
                what = detect_kind(data, kind=fact["kind"], name=name, media_type=media_type)
                blob = await self._blobs.put(scope, data, is_medium=what in _MEDIA)
                fact |= {"size": len(data), "blob": blob}
                return fact | await self._read(scope, key, data, what, fact, attribution)
            except FileUnavailable as error:
                return {**fact, "failed": " ".join(clean(str(error)).split())[:200]}
            except OSError as error:
                log.warning("attachments.not_stored", key=str(key), error=error.strerror)
                return {**fact, "failed": "it could not be stored"}

    async def _bytes(self, scope: str, key: SessionKey, attachment: Attachment) -> bytes:
        # What is asked again was stored the first time; a reference into another scope is nobody's to give.
        if attachment.blob:
            kept = await self._blobs.get(attachment.blob) if attachment.blob.rpartition("/")[0] == scope else None
            if kept is None:
                raise FileUnavailable("it is not kept here any more")
            return kept
        return await self._files.fetch(key, attachment)

    async def _read(
        self, scope: str, key: SessionKey, data: bytes, what: str, fact: Fact, attribution: UsageAttribution
    ) -> dict[str, Any]:
        if not data:
            raise FileUnavailable("it is empty")
        if what == "picture":
            return await self.see(scope, key, data)
        if what == "sound":
            return await self._transcribe(data, fact, attribution)
        if what in ("film", "svg"):
            raise FileUnavailable("films are not looked at" if what == "film" else "drawings in SVG are not looked at")
        return _document(await self._reader.read_text(data, what, self._text_chars))

    async def see(self, scope: str, key: SessionKey, data: bytes) -> dict[str, Any]:
        """Return the fields of a fact with the picture as the model is shown it, scaled and stored in *scope*.

        Raises FileUnavailable, also if the chat's model cannot see, and OSError if it could not be stored.
        """
        if not await self._sees(key):
            raise FileUnavailable("not looked at, for the model in use cannot see pictures")
        picture = await self._reader.picture(data)
        blob = await self._blobs.put(scope, picture.data, is_medium=True)
        seen = {"blob": blob, "media_type": picture.media_type}
        return {"seen": seen, "origin": UNTRUSTED}

    async def _transcribe(self, data: bytes, fact: Fact, attribution: UsageAttribution) -> dict[str, Any]:
        if self._transcriber is None:
            raise FileUnavailable("not listened to, for no transcription model is set")
        transcript = await self._transcriber.transcribe(
            data, name=fact["name"], media_type=fact.get("media_type", ""), attribution=attribution
        )
        found: dict[str, Any] = {"said": transcript.text[: self._text_chars]}
        if transcript.seconds is not None:
            found["seconds"] = transcript.seconds
        # A voice message is what its sender says; a recording may be anybody's.
        return found if fact["kind"] == "voice" else {**found, "origin": UNTRUSTED}


def _document(text: ExtractedText) -> dict[str, Any]:
    if not text.text.strip():
        raise FileUnavailable("there is no text in it")
    found: dict[str, Any] = {"text": text.text, "origin": UNTRUSTED}
    if text.is_cut:
        found["is_cut"] = True
    if text.pages:
        found["pages"] = text.pages
    return found


def _within(facts: Sequence[dict[str, Any]], chars: int) -> list[dict[str, Any]]:
    """Return *facts* with no more text, and no more pictures, than one message may bring into the prompt."""
    kept: list[dict[str, Any]] = []
    pictures = 0
    for each in facts:
        fact = each
        if "seen" in fact:
            pictures += 1
            if pictures > MOST_PICTURES:
                fact = {name: value for name, value in fact.items() if name != "seen"}
                fact["failed"] = f"not looked at: more than {MOST_PICTURES} pictures in one message"
        if "text" in fact:
            if len(fact["text"]) > chars:
                fact = {**fact, "text": fact["text"][:chars], "is_cut": True}
            chars -= len(fact["text"])
            if not fact["text"]:
                fact = {name: value for name, value in fact.items() if name not in ("text", "is_cut")}
                fact["failed"] = "not read: the files before it were long enough"
        kept.append(fact)
    return kept


# -- pictures in requests --------------------------------------------------------------------------

MOST_BYTES = 32 << 20  # of encoded pictures kept in memory, all chats together
_GONE = {"type": "text", "text": "(the picture is not kept here any more)"}

Message = Mapping[str, Any]


class ImageInliner:
    """Replaces a message's picture references by their bytes. Recently used bytes are cached."""

    def __init__(self, blobs: AttachmentStore, *, most_bytes: int = MOST_BYTES) -> None:
        self._blobs = blobs
        self._kept: LRUCache[str, str] = LRUCache(most_bytes, getsizeof=len)

    async def inline(self, messages: Sequence[Message], scope: str) -> Sequence[Message]:
        """Return *messages* with every picture of *scope* as a data URL; those without any are returned as they are."""
        if not any(isinstance(each.get("content"), list) for each in messages):
            return messages
        return [await self._inline_message(each, scope) for each in messages]

    async def _inline_message(self, message: Message, scope: str) -> Message:
        content = message.get("content")
        if not isinstance(content, list):
            return message
        return {**message, "content": [await self._part(part, scope) for part in content]}

    async def _part(self, part: Any, scope: str) -> Any:
        address = _address(part)
        if not address.startswith(PICTURE):
            return part
        media_type, _, reference = address.removeprefix(PICTURE).partition(";")
        # A reference comes out of a transcript, which people can edit, and may name the scope that the transcript
        # stood in before two accounts were linked: it is looked for in this scope alone.
        url = await self._url(media_type, rebase_reference(scope, reference))
        return {"type": "image_url", "image_url": {"url": url}} if url else _GONE

    async def _url(self, media_type: str, reference: str) -> str | None:
        if (known := self._kept.get(reference)) is not None:
            return known
        try:
            data = await self._blobs.get(reference)
        except (OSError, ValueError):
            return None
        if data is None:
            return None
        url = await asyncio.to_thread(lambda: f"data:{media_type};base64,{base64.b64encode(data).decode()}")
        with suppress(ValueError):  # larger than the whole cache
            self._kept[reference] = url
        return url


def _address(part: Any) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "image_url":
        return ""
    image = part.get("image_url")
    return str(image.get("url", "")) if isinstance(image, Mapping) else ""
