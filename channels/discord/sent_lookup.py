"""Looks up parts of an uncertain delivery in the chat.

Discord forgets a nonce after minutes and stores none, so the texts are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from channels.discord import codec
from channels.discord.api import DiscordApi
from gateway.errors import OutcomeUnknown
from gateway.events import MessagePart

_PAGES = 5  # of a hundred messages
# Without the right to read the history Discord shows an empty chat, but the chat of an answer contains the question.
_NO_MESSAGES = "the chat shows nothing"
_RECENT = timedelta(hours=1)  # an older message with the same text may be another one


async def find_sent_part(api: DiscordApi, chat: str, part: MessagePart, now: datetime, *, size: int = 0) -> str:
    """Return the id of the message that is *part*, or ""; raise OutcomeUnknown if the chat does not show it.

    *size* is the number of bytes of its file.
    """
    if part.reply_to.isdigit() and not part.visible_to:
        return await _find_after(api, chat, part, int(part.reply_to), size)
    page = await api.history(chat)
    if not page and not part.visible_to:
        raise OutcomeUnknown(_NO_MESSAGES)
    same = [message for message in page if _matches(message, part, api.me, size)]
    if not same:
        if len(page) < 100 or now - codec.moment_of(page[0]["id"]) > _RECENT:
            return ""
        raise OutcomeUnknown("too much was said since")
    newest = str(same[-1]["id"])
    if now - codec.moment_of(newest) > _RECENT:
        raise OutcomeUnknown("the same words stand there, but from long ago")
    return newest


async def _find_after(api: DiscordApi, chat: str, part: MessagePart, after: int, size: int) -> str:
    for _ in range(_PAGES):
        page = await api.history(chat, after=after)
        for message in page:
            if _matches(message, part, api.me, size):
                return str(message["id"])
        if not page and not await api.history(chat, limit=1):
            raise OutcomeUnknown(_NO_MESSAGES)
        if len(page) < 100:
            return ""
        after = int(page[-1]["id"])
    raise OutcomeUnknown("too much was said since")


def _matches(message: Mapping[str, Any], part: MessagePart, bot: str, size: int) -> bool:
    if str((message.get("author") or {}).get("id")) != bot:
        return False
    if message.get("nonce") is not None:
        return str(message["nonce"]) == part.id
    if part.file is not None:
        # A caption may be empty, and Discord changes file names, so the size is compared.
        sizes = [int(each.get("size") or 0) for each in message.get("attachments") or ()]
        return sizes == [size]
    return codec.matches_part(str(message.get("content") or ""), part)
