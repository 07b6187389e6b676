"""Interactions as messages: a native command as the equivalent text, a button as its value.

Field names are Discord's (docs.discord.com/developers/interactions/receiving-and-responding).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.discord.codec.parse import DiscordBotIdentity, DiscordChat, GuildProfile, moment_of, place_of
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender, SessionKey
from gateway.text import find_command, sanitize

_COMMAND, _BUTTON = 2, 3  # interaction types
_CHAT_INPUT = 1
_ADMINISTRATOR, _MANAGE_CHANNELS, _MANAGE_GUILD = 1 << 3, 1 << 4, 1 << 5
_ANSWER, _DEFERRED_ANSWER, _DEFERRED_UPDATE = 4, 5, 6  # callback types
_EPHEMERAL = 1 << 6
_DIRECT, _OWN_CHAT = 1, 1  # a channel type, and the context of a direct chat with the bot


def parse_interaction(channel: str, payload: Mapping[str, Any], bot: DiscordBotIdentity) -> InboundMessage | None:
    """Read an interaction object; None for the kinds we never asked for. It speaks to us by what it is."""
    data, kind = payload["data"], payload["type"]
    if kind == _COMMAND and data.get("type", _CHAT_INPUT) == _CHAT_INPUT:
        values = [str(option["value"]) for option in data.get("options") or () if "value" in option]
        text, of_kind = " ".join([f"/{data['name']}", *values]), InboundKind.MESSAGE
    elif kind == _BUTTON:
        text, of_kind = str(data["custom_id"]), InboundKind.BUTTON
    else:
        return None
    place = _place(payload)
    interaction_id = str(int(payload["id"]))
    return InboundMessage(
        key=SessionKey(channel, place.chat),
        message_id="",
        sender=_sender(payload),
        text=sanitize(text),
        command=sanitize(text) if of_kind is InboundKind.BUTTON else find_command(sanitize(text), bot.handle),
        sent_at=moment_of(interaction_id),
        kind=of_kind,
        chat_kind=ChatKind.DIRECT if place.is_direct else ChatKind.GROUP,
        bot=bot.handle,
        event_ids=(interaction_id,),
        is_ephemeral=of_kind is InboundKind.MESSAGE,
        is_addressed=True,
        guild=place.guild,
        is_private=place.is_private,
        reply_to=str(payload["message"]["id"]) if of_kind is InboundKind.BUTTON else "",
    )


def is_among_others(payload: Mapping[str, Any]) -> bool:
    """Return True if an interaction comes from a chat of people that the bot is not in: a group or a direct one.

    All of them would see the answer, although the bot takes such a chat for the sender's own.
    """
    if payload.get("guild_id"):
        return False
    kind = (payload.get("channel") or {}).get("type", _DIRECT)
    return bool(kind != _DIRECT or payload.get("context", _OWN_CHAT) != _OWN_CHAT)


def initial_response(message: InboundMessage) -> Mapping[str, Any]:
    """Return the response that Discord expects within three seconds.

    In a shared chat only the sender sees "is thinking", because the answer may be for them alone.
    """
    if message.kind is InboundKind.BUTTON:
        return {"type": _DEFERRED_UPDATE}
    flags = {} if message.chat_kind is ChatKind.DIRECT else {"data": {"flags": _EPHEMERAL}}
    return {"type": _DEFERRED_ANSWER, **flags}


def final_response(line: str) -> Mapping[str, Any]:
    """Return an answer that is one line, for the sender alone."""
    return {"type": _ANSWER, "data": {"content": line, "flags": _EPHEMERAL, "allowed_mentions": {"parse": []}}}


def _place(payload: Mapping[str, Any]) -> DiscordChat:
    guild = str(payload.get("guild_id") or "")
    channel = {"guild_id": guild, **(payload.get("channel") or {}), "id": payload["channel_id"]}
    return place_of({"type": 0 if guild else 1, **channel})


def _sender(payload: Mapping[str, Any]) -> Sender:
    member = payload.get("member") or {}
    user = member.get("user") or payload["user"]
    rights = int(member.get("permissions") or 0)  # in that channel, its overwrites counted in
    profile = GuildProfile(
        roles=tuple(str(role) for role in member.get("roles") or ()),
        name=str(member.get("nick") or user.get("global_name") or user.get("username") or ""),
        is_admin=bool(rights & (_ADMINISTRATOR | _MANAGE_CHANNELS | _MANAGE_GUILD)),
    )
    return Sender(
        id=str(int(user["id"])),
        name=sanitize(profile.name),
        is_bot=bool(user.get("bot")),
        is_admin=profile.is_admin,
        roles=profile.roles,
    )
