"""Updates of the Bot API into `InboundMessage`, read from the raw objects: unknown fields and kinds are passed over."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from channels.telegram.content import (
    attachments,
    author_name,
    display_name,
    is_service,
    iter_entities,
    message_text,
    typed_command,
)
from gateway.errors import UnreadableEvent
from gateway.events import UNKNOWN, ChatKind, InboundKind, InboundMessage, Sender, SessionKey, edit_revision
from gateway.ports.channel import EventOrigin, MembershipChange
from gateway.text import sanitize
from gateway.text.message_text import safe_display_name

KINDS = {"private": ChatKind.DIRECT, "group": ChatKind.GROUP, "supergroup": ChatKind.GROUP}
_NAMED = 64  # characters of a name
_ADDED = "added/"  # what the event id of our arrival begins with
_UNREADABLE = "(content of a kind that cannot be read)"
_QUOTED = 4_000  # characters of a quoted text


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramBotIdentity:
    """The bot's id, username and commands; a plain command in a group is for it if it is one of them."""

    id: str
    username: str
    commands: frozenset[str] = frozenset()


def parse_update(
    update: Mapping[str, Any], *, channel: str, bot: TelegramBotIdentity, now: datetime
) -> InboundMessage | None:
    """Return the message of an update, or None for kinds that are ignored; raise UnreadableEvent.

    An edit is the same message with the time of the edit as its revision. The user who adds the bot to a group sends
    /start there.
    """
    try:
        if "message" in update:
            return _message(update["message"], channel, bot)
        if "edited_message" in update:
            return _message(update["edited_message"], channel, bot)
        if "callback_query" in update:
            return _button(update["callback_query"], channel, bot, now)
        if "my_chat_member" in update:
            return _added(update["my_chat_member"], channel, bot)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise UnreadableEvent(f"{type(error).__name__} in {', '.join(sorted(map(str, update)))[:200]}") from None
    return None


def _message(message: Mapping[str, Any], channel: str, bot: TelegramBotIdentity) -> InboundMessage | None:
    chat_kind = KINDS.get(message["chat"]["type"])
    text, files = message_text(message), attachments(message)
    if chat_kind is None or is_service(message) or _is_for_another_bot(message, bot):
        return None  # a broadcast channel, or a service message
    if not (text or files) and "message_id" not in message:
        return None  # no shape of a message
    original = message.get("reply_to_message")
    if original is not None and is_service(original):
        original = None  # in a topic each message names the topic's creation, and answers nothing
    quoted = original or message.get("external_reply") or {}
    return InboundMessage(
        key=_key(message, channel),
        message_id=str(int(message["message_id"])),
        # A sender who speaks as a chat (an anonymous admin, a linked channel) has no id: Telegram hides who it was.
        sender=person_of(message["from"], bot) if "from" in message and "sender_chat" not in message else Sender(id=""),
        text=text,
        command=typed_command(message, bot.id, bot.username),
        # An edit of what we never heard (our name was added days later) is said now; of what we did, the journal knows.
        sent_at=_time(message.get("edit_date", message["date"])),
        chat_kind=chat_kind,
        bot=bot.username,
        revision=_revision(message),
        is_addressed=chat_kind is ChatKind.DIRECT or _is_for_us(message, original, bot),
        album=str(message.get("media_group_id", "")),
        reply_to=str(int(original["message_id"])) if original else "",
        mentioned=tuple(user for kind, _, user in iter_entities(message) if kind == "text_mention" and user != bot.id),
        quoted=_quoted(message, quoted),
        quoted_by=_quoted_by(message, quoted, bot),
        quoted_name=author_name(quoted)[:_NAMED],
        quoted_files=attachments(quoted),
        is_forwarded=_is_others(message, bot),
        forwarded_from=_forwarded_from(message, bot),
        attachments=files,
    )


def _button(query: Mapping[str, Any], channel: str, bot: TelegramBotIdentity, now: datetime) -> InboundMessage | None:
    message, data = query.get("message"), query.get("data")
    if not message or not data or message["chat"]["type"] not in KINDS:
        return None
    return InboundMessage(
        key=_key(message, channel),
        message_id="",
        event_ids=(f"button/{query['id']}",),
        sender=person_of(query["from"], bot),
        text=sanitize(data),
        command=sanitize(data),
        sent_at=now,
        kind=InboundKind.BUTTON,
        chat_kind=KINDS[message["chat"]["type"]],
        bot=bot.username,
        is_addressed=True,
        reply_to=str(int(message["message_id"])),
    )


def callback_query_id(update: Mapping[str, Any]) -> str:
    """Return under which id Telegram waits for the answer to a press."""
    return str(update["callback_query"]["id"])


def remaining_rows(update: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    """Return the rows of buttons that stay below a message when the pressed one's row is done with; ours alone."""
    query = update["callback_query"]
    markup = query["message"].get("reply_markup") or {}
    rows = [[each for each in row if "callback_data" in each] for row in markup.get("inline_keyboard") or ()]
    return [row for row in rows if row and all(each["callback_data"] != query["data"] for each in row)]


def _added(change: Mapping[str, Any], channel: str, bot: TelegramBotIdentity) -> InboundMessage | None:
    old, new = change["old_chat_member"]["status"], change["new_chat_member"]["status"]
    is_group = KINDS.get(change["chat"]["type"]) is ChatKind.GROUP
    if not is_group or old not in ("left", "kicked") or new not in ("member", "administrator"):
        return None
    chat = str(int(change["chat"]["id"]))
    return InboundMessage(
        key=SessionKey(channel, chat),
        message_id="",
        event_ids=(f"{_ADDED}{chat}/{int(change['date'])}",),
        sender=person_of(change["from"], bot),
        text="/start",
        command="/start",
        sent_at=_time(change["date"]),
        chat_kind=ChatKind.GROUP,
        bot=bot.username,
        is_addressed=True,
    )


def _revision(message: Mapping[str, Any]) -> str:
    """Return the revision of an edited message, "" of another one. Telegram's clock of edits counts seconds."""
    if "edit_date" not in message:
        return ""
    return edit_revision(str(int(message["edit_date"])), str(message.get("text") or message.get("caption") or ""))


def event_id(update: Mapping[str, Any]) -> str:
    """Return an id that is the same when *update* is redelivered; update ids restart after a quiet week."""
    for field in ("message", "edited_message"):
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            message = update[field]
            revision = _revision(message) or 0
            return f"{field}/{int(message['chat']['id'])}/{int(message['message_id'])}/{revision}"
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        return f"button/{int(update['callback_query']['id'])}"
    # What is said by somebody, or cannot be read: the same words are the same event.
    content = {name: value for name, value in update.items() if name != "update_id"}
    return f"content/{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"


def origin_of(update: Mapping[str, Any]) -> EventOrigin | None:
    """Return where a message or its edit comes from, without reading what it says; None for any other update."""
    for field in ("message", "edited_message"):
        with suppress(KeyError, TypeError, ValueError, OverflowError, AttributeError):
            message = update[field]
            return EventOrigin(
                chat=_key(message, "telegram").chat,
                sender=str(int(message["from"]["id"])),
                message_id=str(int(message["message_id"])),
                is_direct=message["chat"].get("type") == "private",
            )
    return None


def is_bot_added(message: InboundMessage) -> bool:
    """Return True if *message* represents the bot being added to a group."""
    return any(event.startswith(_ADDED) for event in message.event_ids)


def _key(message: Mapping[str, Any], channel: str) -> SessionKey:
    """Return the session: a topic is a thread, the General topic and plain reply threads are the chat itself."""
    chat = str(int(message["chat"]["id"]))
    topic = message.get("message_thread_id") if message.get("is_topic_message") else None
    return SessionKey(channel, f"{chat}/{int(topic)}" if topic else chat)


def person_of(user: Mapping[str, Any], bot: TelegramBotIdentity) -> Sender:
    """Return the sender of a user object; raise KeyError and the like for other values."""
    ident = str(int(user["id"]))
    name = sanitize(display_name(user))[:_NAMED]
    return Sender(id=ident, name=name, is_bot=bool(user.get("is_bot", False)), is_self=bool(ident == bot.id))


def _quoted(message: Mapping[str, Any], original: Mapping[str, Any]) -> str:
    """Return the text that is answered: the part or the task that a person picked, else the whole."""
    if picked := message.get("quote"):
        return sanitize(picked["text"])[:_QUOTED]
    task = message.get("reply_to_checklist_task_id")
    if task is not None and "checklist" in original:
        checklist = original["checklist"]
        tasks = [each for each in checklist["tasks"] if each["id"] == task]
        original = {"checklist": {**checklist, "tasks": tasks or checklist["tasks"]}}
    option = message.get("reply_to_poll_option_id")
    if option is not None and "poll" in original:
        poll = original["poll"]
        options = [each for each in poll["options"] if each.get("persistent_id") == option]
        original = {"poll": {**poll, "options": options or poll["options"]}}
    if not original:
        original = {"story": message["reply_to_story"]} if "reply_to_story" in message else {}
    text = message_text(original)[:_QUOTED]
    return text if text or not original or attachments(original) else _UNREADABLE


def _quoted_by(message: Mapping[str, Any], original: Mapping[str, Any], bot: TelegramBotIdentity) -> str:
    """Return the author of what is quoted, "" for the bot itself.

    UNKNOWN stands for a forward, a chat, a story, another bot, the result of an inline bot and a list that others edit.
    """
    if not original:
        return UNKNOWN if "quote" in message or "reply_to_story" in message else ""
    if _is_others(original, bot) or "sender_chat" in original or _takes_words_of_others(original):
        return UNKNOWN
    author = original.get("origin", {}).get("sender_user", {}) if "origin" in original else original.get("from", {})
    said = str(author.get("id", UNKNOWN))
    if said == bot.id:
        return ""
    return UNKNOWN if author.get("is_bot") else said


def _is_others(message: Mapping[str, Any], bot: TelegramBotIdentity) -> bool:
    """Return True if another author wrote the text: a forward, the result of an inline bot, a list that others edit."""
    if (via := message.get("via_bot")) is not None and str(via.get("id")) != bot.id:
        return True
    origin = message.get("forward_origin")
    if origin is None:
        return "edit_date" in message and _takes_words_of_others(message)
    own = origin.get("sender_user", {}).get("id")
    return own is None or own != message.get("from", {}).get("id")


def _takes_words_of_others(message: Mapping[str, Any]) -> bool:
    """Return True if other people may have added to *message*: tasks of a checklist, options of a poll."""
    poll = message.get("poll") or {}
    is_open = poll.get("allows_adding_options") or any(
        "added_by_user" in each or "added_by_chat" in each for each in poll.get("options") or ()
    )
    return bool((message.get("checklist") or {}).get("others_can_add_tasks") or is_open)


def _forwarded_from(message: Mapping[str, Any], bot: TelegramBotIdentity) -> str:
    """Return the name of the author of a text that the sender did not write; "" for their own."""
    if not _is_others(message, bot):
        return ""
    if "via_bot" in message and "forward_origin" not in message:
        return f"the inline bot {sanitize(str(message['via_bot'].get('username', '')))}".strip()[:_NAMED]
    if "forward_origin" not in message:
        return UNKNOWN
    return author_name(message)[:_NAMED] or UNKNOWN


def _is_for_another_bot(message: Mapping[str, Any], bot: TelegramBotIdentity) -> bool:
    """Return True if a message is a command with the name of another bot behind it."""
    entities = message.get("entities", message.get("caption_entities", ()))
    if not any(each["type"] == "bot_command" and int(each["offset"]) == 0 for each in entities):
        return False
    words = (word for kind, word, _ in iter_entities(message) if kind == "bot_command")
    _, at, whose = next(words, "").partition("@")
    return bool(at) and whose.lower() != bot.username.lower()


def _is_for_us(message: Mapping[str, Any], original: Mapping[str, Any] | None, bot: TelegramBotIdentity) -> bool:
    if original and str(original.get("from", {}).get("id")) == bot.id:
        return True
    return any(_names_us(kind, word, user, bot) for kind, word, user in iter_entities(message))


def _names_us(kind: str, word: str, user: str, bot: TelegramBotIdentity) -> bool:
    handle = f"@{bot.username}".lower()
    match kind:
        case "mention":
            return word.lower() == handle
        case "text_mention":
            return user == bot.id
        case "bot_command":  # /stop@us; without a name only what is known to be ours
            name, at, whose = word.lower().partition("@")
            return f"@{whose}" == handle if at else name.removeprefix("/") in bot.commands
        case _:
            return False


def _time(seconds: Any) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


_AWAY = frozenset({"left", "kicked"})
_DECIDES = frozenset({"administrator", "creator"})


def parse_membership(update: Mapping[str, Any], *, channel: str, bot: TelegramBotIdentity) -> MembershipChange | None:
    """Return the group that the bot joined or left; None for any other update. Raises UnreadableEvent.

    A restricted member may be in the group or not (`is_member`). A group that became a supergroup is another one.
    """
    change = update.get("my_chat_member")
    if change is None:
        return _moved_place(update["message"], channel) if parse_migration(update) is not None else None
    try:
        before, after = _is_in(change["old_chat_member"]), _is_in(change["new_chat_member"])
        if KINDS.get(change["chat"]["type"]) is not ChatKind.GROUP or before == after:
            return None
        chat = str(int(change["chat"]["id"]))
        return MembershipChange(
            channel=channel,
            id=f"place/{chat}/{int(change['date'])}/{'in' if after else 'out'}",
            chat=chat,
            title=safe_display_name(sanitize(str(change["chat"].get("title") or ""))),
            by=person_of(change["from"], bot),
            is_gone=not after,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableEvent(f"{type(error).__name__} in my_chat_member") from None


def parse_migration(update: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the old id and the new one of a group that became a supergroup, or None. Never raises.

    Telegram says it in both of them, though not surely before the next message.
    """
    message: Any = update.get("message")
    try:
        here = int(message["chat"]["id"])
        if "migrate_to_chat_id" in message:
            return here, int(message["migrate_to_chat_id"])
        return int(message["migrate_from_chat_id"]), here
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _moved_place(message: Mapping[str, Any], channel: str) -> MembershipChange:
    """Return the old group as left, or the new one as joined; no user caused it."""
    chat, is_gone = str(int(message["chat"]["id"])), "migrate_to_chat_id" in message
    return MembershipChange(
        channel=channel,
        id=f"place/{chat}/moved",
        chat=chat,
        title=safe_display_name(sanitize(str(message["chat"].get("title") or ""))),
        is_gone=is_gone,
    )


def rights_changed(update: Mapping[str, Any]) -> int | None:
    """Return the chat in which a user became or ceased to be an admin, or None. Never raises."""
    change: Any = update.get("my_chat_member") or update.get("chat_member")
    try:
        members = [change[name] for name in ("old_chat_member", "new_chat_member")]
        # An admin may have been given other rights, too: that is no change of who decides.
        is_new = len({each["status"] in _DECIDES for each in members}) > 1
        return int(change["chat"]["id"]) if is_new else None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _is_in(member: Mapping[str, Any]) -> bool:
    status = str(member["status"])
    return bool(member.get("is_member", False)) if status == "restricted" else status not in _AWAY
