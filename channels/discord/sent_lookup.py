"""Whether a part whose outcome is unknown stands in its chat: read from the chat itself.

Discord forgets a nonce after minutes and stores none, so what is compared is what was said.
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
# Without the right to read the history Discord shows an empty chat. One in which we are spoken to is not empty.
_SHOWS_NOTHING = "the chat shows nothing"
_RECENT = timedelta(hours=1)  # the same words, said longer ago, may be another message


async def find_sent_part(rest: DiscordApi, chat: str, part: MessagePart, now: datetime, *, size: int = 0) -> str:
    """Return the id of the message that is *part*, or ""; raise OutcomeUnknown when the chat does not tell.

    *size* is how many bytes its file has, where it is one.
    """
    if part.reply_to.isdigit() and not part.visible_to:
        return await _after(rest, chat, part, int(part.reply_to), size)
    page = await rest.history(chat)
    if not page and not part.visible_to:
        raise OutcomeUnknown(_SHOWS_NOTHING)
    same = [message for message in page if _is_it(message, part, rest.me, size)]
    if not same:
        if len(page) < 100 or now - codec.moment_of(page[0]["id"]) > _RECENT:
            return ""
        raise OutcomeUnknown("too much was said since")
    newest = str(same[-1]["id"])
    if now - codec.moment_of(newest) > _RECENT:
        raise OutcomeUnknown("the same words stand there, but from long ago")
    return newest


async def _after(rest: DiscordApi, chat: str, part: MessagePart, after: int, size: int) -> str:
    for _ in range(_PAGES):
        page = await rest.history(chat, after=after)
        for message in page:
            if _is_it(message, part, rest.me, size):
                return str(message["id"])
        if not page and not await rest.history(chat, limit=1):
            raise OutcomeUnknown(_SHOWS_NOTHING)
        if len(page) < 100:
            return ""
        after = int(page[-1]["id"])
    raise OutcomeUnknown("too much was said since")


def _is_it(message: Mapping[str, Any], part: MessagePart, me: str, size: int) -> bool:
    if str((message.get("author") or {}).get("id")) != me:
        return False
    if message.get("nonce") is not None:
        return str(message["nonce"]) == part.id
    if part.file is not None:
        # A caption may be empty, and Discord changes names: what counts is the size.
        sizes = [int(each.get("size") or 0) for each in message.get("attachments") or ()]
        return sizes == [size]
    return codec.matches_part(str(message.get("content") or ""), part)
