"""The entries of `chats`: the places that they can name, and the settings of one.

telegram-work:*          every chat of the block
discord:guild:811        every chat of a Discord server, written as in `allow_from`
slack:C042               a chat, and its threads
slack:C042/1712.34       one thread

None of the names of places can be the id of a chat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from gateway.events import SessionKey
from gateway.settings.setting_types import (
    Dollars,
    FrozenModel,
    GroupPolicy,
    Language,
    MaybeEffort,
    ReplyIn,
    TextList,
    TimeZone,
)

_ALL = "*"
_GUILD = "guild:"


def parse_selector(text: str) -> str:
    """Return *text* if it is a chat selector; raise a ValueError that explains the syntax."""
    try:
        key = SessionKey.parse(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a chat; write channel:chat_id, such as telegram:-100123") from None
    entry, colon, ident = key.chat.partition(":")
    if colon and entry == "team":
        raise ValueError(f"{text!r}: a Slack channel is a whole workspace; write {key.channel}:* for all of its chats")
    if colon and entry == "chat":
        raise ValueError(f"{text!r}: write {key.channel}:{ident or 'ID'}, without chat:")
    if colon and entry == "role":
        raise ValueError(
            f"{text!r} is a role, and only chats and guilds have settings; write {key.channel}:guild:ID or a chat"
        )
    rest = ident if key.chat.startswith(_GUILD) else key.chat
    is_whole = rest != "" and rest.isprintable() and not any(sign in rest for sign in " ,*")
    if key.chat != _ALL and not is_whole:
        raise ValueError(f"{text!r} is not a chat; write {key.channel}:chat_id, with the id and without spaces")
    return text


def guild_in(place: str) -> str:
    """Return the guild that *place* names, or ""."""
    chat = place.partition(":")[2]
    return chat.removeprefix(_GUILD) if chat.startswith(_GUILD) else ""


def is_block(place: str) -> bool:
    """Return True if *place* selects every chat of a block."""
    return place.partition(":")[2] == _ALL


def matching_selectors(key: SessionKey, guild: str) -> Iterator[str]:
    """Yield the places that a conversation is in, the most specific first."""
    yield str(key)
    if key.thread:
        yield str(key.parent)
    if guild:
        yield f"{key.channel}:{_GUILD}{guild}"
    yield f"{key.channel}:{_ALL}"


class ChatTools(FrozenModel):
    """Which tools the model has in one chat. A tool that both lists name is off."""

    allow: TextList | None = None  # these alone; None = all
    deny: TextList | None = None


class ChatCaps(FrozenModel):
    """The caps of one chat; None = the global value, 0 = no cap."""

    person_turns_per_10_min: Annotated[int, Field(ge=0)] | None = None
    chat_turns_per_10_min: Annotated[int, Field(ge=0)] | None = None
    person_tokens_per_day: Annotated[int, Field(ge=0)] | None = None
    chat_tokens_per_day: Annotated[int, Field(ge=0)] | None = None
    person_usd_per_day: Dollars | None = None
    chat_usd_per_day: Dollars | None = None


class ChatSettings(FrozenModel):
    """The operator's settings for one chat; None = the value of the block, then the global one."""

    timezone: TimeZone | None = None
    language: Language | None = None
    model: Annotated[str, Field(min_length=1)] | None = None  # an alias of llm.models, or as litellm names it
    effort: MaybeEffort = None
    soul: Annotated[str, Field(min_length=1)] | None = None  # a text, or the name of a file of the home
    group_policy: GroupPolicy | None = None
    reply_in: ReplyIn | None = None
    follow_threads: bool | None = None
    memory_window: Annotated[int, Field(ge=0, le=100_000)] | None = None
    tools: ChatTools = ChatTools()
    caps: ChatCaps = ChatCaps()
