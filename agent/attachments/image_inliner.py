"""Inlines pictures into model requests: the conversation holds references, requests the same bytes each time."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from agent.base.file_facts import PICTURE
from agent.base.scopes import rebase_reference

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore


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
