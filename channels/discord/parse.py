"""Discord's message payloads, of live events and of the history over REST alike, and interactions as messages.

Field names are Discord's (API v10, docs.discord.com/developers/resources/message). A payload of the wrong
shape raises KeyError, TypeError or ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from gateway.events import UNKNOWN, Attachment, ChatKind, InboundKind, InboundMessage, Sender, SessionKey
from gateway.text import as_one_word, find_command, sanitize

Payload: TypeAlias = Mapping[str, Any]

_EPOCH = datetime(2015, 1, 1, tzinfo=UTC)
_WORDS = (0, 19)  # message types that a person writes: default and reply
_DIRECT = 1  # channel type; a group of people (3) is no direct chat
_THREADS = (10, 11, 12)
_TEXTS = (0, 5)  # text and announcement channels
_PRIVATE_THREAD = 12
_VOICE_MESSAGE = 1 << 13
_UNREADABLE = "(content of a kind that cannot be read)"
_QUOTED = 1_000  # characters of what a message answers
_MENTION = re.compile(r"<@!?(\d+)>|<@&(\d+)>|<#(\d+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordChat:
    """A Discord channel: a direct message, a guild's channel, or a thread (a forum post is one)."""

    id: str
    guild: str = ""
    parent: str = ""  # of a thread
    is_direct: bool = False
    is_private: bool = False  # a thread that only the invited read
    has_threads: bool = False  # a message there can begin one

    @property
    def chat(self) -> str:
        """The chat part of the session key."""
        return f"{self.parent}/{self.id}" if self.parent else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordBotIdentity:
    """The bot's user id, name and roles in a guild."""

    id: str
    name: str = ""
    roles: frozenset[str] = frozenset()  # the roles that are ours alone: a mention of one is a mention of us
    # Returns the display name of a role or channel by id, "" for an unknown one.
    name_of: Callable[[str], str] = field(default=lambda _: "", compare=False, repr=False)

    @property
    def handle(self) -> str:
        """How people's texts name us; one word, since a command is recognised behind it."""
        return as_one_word(self.name) or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class GuildProfile:
    """A sender's roles, name and rights in a guild; looked up if the payload lacks them."""

    roles: tuple[str, ...] = ()
    name: str = ""
    is_admin: bool = False
    is_gone: bool = False  # no member any more


@dataclass(frozen=True, slots=True)
class DiscordFileRef:
    """The signed address of a file, and the message that contains a new one once it has expired."""

    chat: str
    message: str
    attachment: str
    url: str

    def to_line(self) -> str:
        """Return one line that `read` understands."""
        return f"{self.chat}/{self.message}/{self.attachment} {self.url}"

    @classmethod
    def read(cls, line: str) -> DiscordFileRef:
        """Return the reference of a line; the inverse of `to_line`. Raises ValueError."""
        place, blank, url = line.partition(" ")
        chat, message, attachment = place.split("/")
        if not (blank and chat.isdigit() and message.isdigit() and attachment.isdigit()):
            raise ValueError("no address of a file")
        return cls(chat, message, attachment, url)


def moment_of(snowflake: str | int) -> datetime:
    """Return when the thing with this id was made."""
    return _EPOCH + timedelta(milliseconds=int(snowflake) >> 22)


def snowflake_at(moment: datetime) -> int:
    """Return the smallest id that something made at *moment* could have."""
    return max(int((moment - _EPOCH) / timedelta(milliseconds=1)), 0) << 22


def place_of(payload: Payload) -> DiscordChat:
    """Read a channel object."""
    kind = payload["type"]
    is_thread = kind in _THREADS
    return DiscordChat(
        id=str(int(payload["id"])),
        guild=str(payload.get("guild_id") or ""),
        parent=str(payload.get("parent_id") or "") if is_thread else "",
        is_direct=kind == _DIRECT,
        is_private=kind == _PRIVATE_THREAD,
        has_threads=kind in _TEXTS,
    )


def place_beside(message: InboundMessage) -> DiscordChat:
    """Return the chat of the messages before *message*."""
    thread = message.key.thread
    return DiscordChat(
        id=thread or message.key.chat,
        guild=message.guild,
        parent=message.key.parent.chat if thread else "",
        is_direct=message.chat_kind is ChatKind.DIRECT,
        is_private=message.is_private,
    )


def is_ours(payload: Payload, bot: DiscordBotIdentity) -> bool:
    """Return True if the bot wrote this message."""
    return str(payload["author"]["id"]) == bot.id


def changes_nothing(update: Payload) -> bool:
    """Return True if a MESSAGE_UPDATE is not an edit by its author: an embed, a pin, a new thread."""
    return not update.get("edited_timestamp") or "content" not in update or "author" not in update


def parse_message(
    channel: str,
    payload: Payload,
    place: DiscordChat,
    bot: DiscordBotIdentity,
    profile: GuildProfile | None = None,
    *,
    starts_thread: bool = False,
) -> InboundMessage | None:
    """Return the message of a payload; None for the bot's own and for joins, pins and boosts.

    Messages of other bots and webhooks are returned, so that admission can reject and count them. The message that
    *starts_thread* is returned in any case.
    """
    if not starts_thread and (payload.get("type", 0) not in _WORDS or is_ours(payload, bot)):
        return None
    message_id = str(int(payload["id"]))
    answered = payload.get("referenced_message") or {}
    command = _command(payload, bot)
    forwarded = snapshots(payload)
    return InboundMessage(
        key=SessionKey(channel, place.chat),
        message_id=message_id,
        sender=_sender(payload, profile, bot),
        # "@bot /status" is shown as the command alone.
        text=command if command.startswith(("/", "!")) else _text(payload, forwarded, bot),
        command=command,
        sent_at=moment_of(message_id),
        chat_kind=ChatKind.DIRECT if place.is_direct else ChatKind.GROUP,
        bot=bot.handle,
        revision=str(payload.get("edited_timestamp") or ""),
        is_addressed=_addresses(payload, answered, bot),
        guild=place.guild,
        is_private=place.is_private,
        reply_to=str(answered.get("id") or ""),
        mentioned=_mentioned_users(payload, bot),
        quoted=_quoted(answered, bot),
        quoted_by=_quoted_by(answered, bot),
        quoted_name=sanitize(_name(answered["author"])) if answered.get("author") else "",
        quoted_files=_files(answered),
        is_forwarded=bool(forwarded),
        forwarded_from=UNKNOWN if forwarded else "",
        attachments=_files(payload),
    )


def read_deletion(channel: str, message_id: str, place: DiscordChat, at: datetime) -> InboundMessage:
    """Return the deletion of message *message_id*; Discord does not name its author."""
    return InboundMessage(
        key=SessionKey(channel, place.chat),
        message_id=str(int(message_id)),
        sender=Sender(id=""),
        text="",
        sent_at=at,
        kind=InboundKind.DELETION,
        chat_kind=ChatKind.DIRECT if place.is_direct else ChatKind.GROUP,
        guild=place.guild,
        is_private=place.is_private,
    )


def mentions_others(payload: Payload, bot: DiscordBotIdentity) -> bool:
    """Return True if the message mentions users but not the bot."""
    named = [str(user["id"]) for user in payload.get("mentions") or ()]
    answered = payload.get("referenced_message") or {}
    return bool(named) and bot.id not in named and not _addresses(payload, answered, bot)


def _sender(payload: Payload, profile: GuildProfile | None, bot: DiscordBotIdentity) -> Sender:
    author = payload["author"]
    member = payload.get("member") or {}
    known = profile or GuildProfile(roles=tuple(str(role) for role in member.get("roles") or ()))
    name = known.name or member.get("nick") or author.get("global_name") or author.get("username") or ""
    return Sender(
        id=str(int(author["id"])),
        name=sanitize(str(name)),
        is_bot=_is_program(payload),
        is_self=is_ours(payload, bot),
        is_admin=known.is_admin,
        is_guest=known.is_gone,
        roles=known.roles,
    )


def _addresses(payload: Payload, answered: Payload, bot: DiscordBotIdentity) -> bool:
    if any(str(user["id"]) == bot.id for user in payload.get("mentions") or ()):
        return True
    if any(str(role) in bot.roles for role in payload.get("mention_roles") or ()):
        return True
    return str((answered.get("author") or {}).get("id")) == bot.id


def _command(payload: Payload, bot: DiscordBotIdentity) -> str:
    """Return the command of a message, from the raw content, which contains no display names."""

    def own_mention(mention: re.Match[str]) -> str:
        user, role, _ = mention.groups()
        return f"@{bot.handle}" if user == bot.id or role in bot.roles else mention[0]

    typed = _MENTION.sub(own_mention, str(payload.get("content") or ""))
    return find_command(sanitize(typed), bot.handle, lambda text: _readable(text, payload, bot))


def _readable(text: str, payload: Payload, bot: DiscordBotIdentity) -> str:
    """Write mentions as people read them."""
    names = {str(user["id"]): as_one_word(_name(user)) for user in payload.get("mentions") or ()}
    names[bot.id] = bot.handle

    def replace_mention(mention: re.Match[str]) -> str:
        user, role, channel = mention.groups()
        if role in bot.roles:
            return f"@{bot.handle}"
        if user in names:
            return f"@{names[user]}"
        name = as_one_word(bot.name_of(channel or role or ""))
        if channel:
            return f"#{name or channel}"
        return f"@{name}" if name else mention[0]

    return sanitize(_MENTION.sub(replace_mention, text)).strip()


def _mentioned_users(payload: Payload, bot: DiscordBotIdentity) -> tuple[str, ...]:
    """Return the users that the text mentions; the author of a replied message is not among them."""
    text = str(payload.get("content") or "")
    return tuple(dict.fromkeys(found[1] for found in _MENTION.finditer(text) if found[1] not in (None, bot.id)))


def _name(user: Payload) -> str:
    member = user.get("member") or {}
    return str(member.get("nick") or user.get("global_name") or user.get("username") or user["id"])


def _text(payload: Payload, forwarded: Sequence[Payload], bot: DiscordBotIdentity) -> str:
    """Return the text of a message and of what it forwards, with descriptions of stickers, polls and the like."""
    # The embeds of a person's message are previews of web pages, which nobody said.
    parts = [
        _described(payload, bot, is_own=not _is_program(payload)),
        *(_described(each, bot, is_own=False) for each in forwarded),
    ]
    return "\n\n".join(each for each in parts if each)


def _described(payload: Payload, bot: DiscordBotIdentity, *, is_own: bool) -> str:
    text = _readable(str(payload.get("content") or ""), payload, bot)
    return "\n".join(each for each in (text, sanitize(describe(payload, has_embeds=not is_own))) if each)


def _is_program(payload: Payload) -> bool:
    """Return True if a bot, a webhook or Discord itself wrote this message."""
    author = payload.get("author") or {}
    return bool(author.get("bot")) or bool(author.get("system")) or "webhook_id" in payload


def _quoted(answered: Payload, bot: DiscordBotIdentity) -> str:
    parts = [_described(answered, bot, is_own=not _is_program(answered))]
    parts += [_described(each, bot, is_own=False) for each in snapshots(answered)]
    text = "\n\n".join(each for each in parts if each)
    if answered and not text and not _files(answered):
        return _UNREADABLE
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 1]}…"


def _quoted_by(answered: Payload, bot: DiscordBotIdentity) -> str:
    """Return the author of the quoted message, "" for the bot itself.

    UNKNOWN stands for a webhook, another bot, and a forward, whose author Discord omits.
    """
    author = answered.get("author") or {}
    said = str(author.get("id") or "")
    if said == bot.id and not snapshots(answered):
        return ""
    return UNKNOWN if snapshots(answered) or not said or _is_program(answered) else said


def _files(payload: Payload) -> tuple[Attachment, ...]:
    """Return the files of a message and of what it forwards; it alone leads to a fresh address of either."""
    several = [payload, *snapshots(payload)]
    return tuple(_attachment(each, payload) for part in several for each in part.get("attachments") or ())


def _attachment(payload: Payload, message: Payload) -> Attachment:
    media = str(payload.get("content_type") or "").partition(";")[0].strip().lower()
    return Attachment(
        kind=_kind(media, message),
        name=sanitize(str(payload.get("filename") or "file")),
        size=int(payload.get("size") or 0),
        media_type=media,
        url=DiscordFileRef(
            str(message["channel_id"]), str(message["id"]), str(payload.get("id") or ""), str(payload.get("url") or "")
        ).to_line(),
        caption=sanitize(str(payload.get("description") or "")),
    )


def _kind(media: str, message: Payload) -> str:
    family = media.partition("/")[0]
    if family == "audio" and int(message.get("flags") or 0) & _VOICE_MESSAGE:
        return "voice"
    return family if family in ("image", "audio", "video") else "document"


# -- content ---------------------------------------------------------------------------------------
# Descriptions of Discord content that is neither text nor a file: stickers, polls, embeds, components, forwards.

_FORWARD = 1  # message_reference.type
_TEXT_DISPLAY = 10  # component type: docs.discord.com/developers/components/reference
_DEEPEST = 5  # components within components
_EMBED_LIMIT = 4_000  # characters of all embeds together


def snapshots(payload: Payload) -> Sequence[Payload]:
    """Return the messages that a message forwards, which have no author."""
    if (payload.get("message_reference") or {}).get("type") != _FORWARD:
        return ()
    return [each.get("message") or {} for each in payload.get("message_snapshots") or ()]


def describe(payload: Payload, *, has_embeds: bool) -> str:
    """Return lines for stickers, a poll and text components; with *has_embeds* also the text of embeds."""
    lines = [f"(sticker: {each['name']})" for each in payload.get("sticker_items") or payload.get("stickers") or ()]
    if poll := payload.get("poll"):
        answers = [str((each.get("poll_media") or {}).get("text") or "") for each in poll.get("answers") or ()]
        lines.append(f"(a poll: {poll['question'].get('text', '')} {' / '.join(answers)})")
    if has_embeds:
        lines += _component_texts(payload.get("components") or ())
        lines.append("\n".join(_embed_texts(payload.get("embeds") or ()))[:_EMBED_LIMIT])
    return "\n".join(line for line in lines if line)


def _component_texts(components: Sequence[Payload], depth: int = 0) -> Iterator[str]:
    for each in components if depth < _DEEPEST else ():
        if each.get("type") == _TEXT_DISPLAY:
            yield str(each.get("content") or "")
        yield from _component_texts(each.get("components") or (), depth + 1)


def _embed_texts(embeds: Sequence[Payload]) -> Iterator[str]:
    for each in embeds:
        author = (each.get("author") or {}).get("name")
        yield from (str(text) for text in (author, each.get("title"), each.get("description")) if text)
        yield from (f"{field.get('name', '')}: {field.get('value', '')}" for field in each.get("fields") or ())
        yield from (f"({name})" for name in ("image", "video") if each.get(name))
        yield from (str(text) for text in ((each.get("footer") or {}).get("text"), each.get("url")) if text)


# -- interactions ----------------------------------------------------------------------------------
# Interactions as messages: a native command as the equivalent text, a button as its value.
#
# Field names are Discord's (docs.discord.com/developers/interactions/receiving-and-responding).

_COMMAND, _BUTTON = 2, 3  # interaction types
_CHAT_INPUT = 1
_ADMINISTRATOR, _MANAGE_CHANNELS, _MANAGE_GUILD = 1 << 3, 1 << 4, 1 << 5
_ANSWER, _DEFERRED_ANSWER, _DEFERRED_UPDATE = 4, 5, 6  # callback types
_EPHEMERAL = 1 << 6
_DIRECT_CHANNEL, _OWN_CHAT = 1, 1  # a channel type, and the context of a direct chat with the bot


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
        sender=_interaction_sender(payload),
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
    kind = (payload.get("channel") or {}).get("type", _DIRECT_CHANNEL)
    return bool(kind != _DIRECT_CHANNEL or payload.get("context", _OWN_CHAT) != _OWN_CHAT)


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


def _interaction_sender(payload: Mapping[str, Any]) -> Sender:
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
