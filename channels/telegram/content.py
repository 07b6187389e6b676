"""Describe the content of a Telegram message: text, files, locations, contacts and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.events import Attachment
from gateway.text import as_one_word, find_command, sanitize

# Field of the message, our kind, a name where the platform gives none, the media type where it gives none.
_FILES = (
    ("photo", "image", "photo.jpg", "image/jpeg"),
    ("voice", "voice", "voice.ogg", "audio/ogg"),
    ("audio", "audio", "audio.mp3", "audio/mpeg"),
    ("video", "video", "video.mp4", "video/mp4"),
    ("live_photo", "video", "live-photo.mp4", "video/mp4"),
    ("video_note", "video", "video-note.mp4", "video/mp4"),
    ("animation", "video", "animation.mp4", "video/mp4"),
    ("document", "document", "document", ""),
)
# What stands under these is a name, a title or a quotation: nothing that its sender typed as a command.
_NOT_TYPED = frozenset({"text_mention", "text_link", "blockquote", "expandable_blockquote", "code", "pre"})
# The fields that the Bot API calls service messages, but gifts, checklists and data of web apps, which a person sends.
_SERVICE = frozenset(
    (
        *("new_chat_members", "left_chat_member", "new_chat_title", "new_chat_photo", "delete_chat_photo"),
        *("group_chat_created", "supergroup_chat_created", "channel_chat_created", "message_auto_delete_timer_changed"),
        *("migrate_to_chat_id", "migrate_from_chat_id", "pinned_message", "successful_payment", "refunded_payment"),
        *("users_shared", "chat_shared", "connected_website", "write_access_allowed", "passport_data"),
        *("proximity_alert_triggered", "boost_added", "chat_background_set", "forum_topic_created"),
        *("forum_topic_edited", "forum_topic_closed", "forum_topic_reopened", "general_forum_topic_hidden"),
        *("general_forum_topic_unhidden", "giveaway_created", "giveaway_completed", "paid_message_price_changed"),
        *("direct_message_price_changed", "video_chat_scheduled", "video_chat_started", "video_chat_ended"),
        *("video_chat_participants_invited", "suggested_post_approved", "suggested_post_approval_failed"),
        *("suggested_post_declined", "suggested_post_paid", "suggested_post_refunded", "chat_owner_left"),
        *("chat_owner_changed", "new_chat_member", "left_chat_participant", "new_chat_participant"),
        *("poll_option_added", "poll_option_deleted", "managed_bot_created"),
    )
)
FILE_SCHEME = "telegram-file:"  # the address that holds the token is asked for when the file is fetched


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, with hidden addresses, and a description of content without text; "" for none."""
    has_entities = "entities" in message or "caption_entities" in message
    text = _with_addresses(message) if has_entities else str(message.get("text", message.get("caption", "")))
    return sanitize("\n".join(each for each in (text, _describe(message)) if each))


def is_service(message: Mapping[str, Any]) -> bool:
    """Return True for a message of Telegram about the chat (a member joined, a title changed)."""
    return not _SERVICE.isdisjoint(message)


def author_name(message: Mapping[str, Any]) -> str:
    """Return the display name of the author of a message, or of a forward's original."""
    origin = message.get("forward_origin") or message.get("origin")
    if origin is None:
        return sanitize(display_name(message.get("sender_chat") or message.get("from") or {}))
    chat = origin.get("sender_user") or origin.get("sender_chat") or origin.get("chat") or {}
    return sanitize(str(origin.get("sender_user_name") or display_name(chat)))


def typed_command(message: Mapping[str, Any], user: str, handle: str) -> str:
    """Return the command in the text or caption, "" for none; *user* and *handle* are the bot's.

    Forwarded messages and results of inline bots contain no command: the sender did not write them.
    """
    if "forward_origin" in message or "via_bot" in message:
        return ""
    if not (entities := _entities(message)):
        return find_command(sanitize(str(message.get("text", message.get("caption", "")))), handle)
    units = _units(message)
    head = _head(units, message, user, handle)
    for entity in sorted(entities, key=lambda each: int(each["offset"]), reverse=True):
        kind, start, end = entity["type"], int(entity["offset"]), int(entity["offset"]) + int(entity["length"])
        if kind in _NOT_TYPED and start <= head < end:
            return ""
        if kind in ("text_mention", "text_link"):
            word = as_one_word(_decoded(units[2 * start : 2 * end]))
            if kind == "text_link":
                word = f"{word}_({entity['url']})"
            else:
                word = f"@{handle if _whose(entity) == user else word}"
            units = units[: 2 * start] + word.encode("utf-16-le", "surrogatepass") + units[2 * end :]
    return find_command(sanitize(_decoded(units)), handle)


def _head(units: bytes, message: Mapping[str, Any], user: str, handle: str) -> int:
    """Return where a command would begin: behind our own mention, if the text begins with it."""
    mention = 0
    if _decoded(units[: 2 * len(handle) + 2]).lower() == f"@{handle.lower()}":
        mention = len(handle) + 1
    for entity in _entities(message):
        if entity["type"] == "text_mention" and int(entity["offset"]) == 0 and _whose(entity) == user:
            mention = int(entity["length"])
    rest = _decoded(units[2 * mention :])
    return mention + len(rest) - len(rest.lstrip())


def iter_entities(message: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each entity of a message: its type, its text, and the id of the user it names, or ""."""
    entities = _entities(message)
    units = _units(message) if entities else b""
    for entity in entities:
        start = 2 * int(entity["offset"])
        word = _decoded(units[start : start + 2 * int(entity["length"])])
        yield str(entity["type"]), word, _whose(entity)


def attachments(message: Mapping[str, Any]) -> tuple[Attachment, ...]:
    """Return the files of a message; nothing is fetched. Their caption is the message's text."""
    if "sticker" in message:
        sticker = message["sticker"]
        return (_attachment(sticker, *_sticker(sticker), str(sticker.get("emoji", ""))),)
    paid = (message.get("paid_media") or {}).get("paid_media") or ()
    files = [file for each in paid for file in _first_file(each)]
    return tuple(files or _first_file(message))


def _first_file(message: Mapping[str, Any]) -> Iterator[Attachment]:
    if stills := (message.get("live_photo") or {}).get("photo"):
        message = {"photo": stills}  # its moment of video is not looked at
    for field, kind, name, media_type in _FILES:
        # An animation comes with a `document` of the same file, for old clients; the first that fits counts.
        if field in message:
            found = message[field]
            file = max(found, key=lambda size: int(size["width"])) if field == "photo" else found
            yield _attachment(file, kind, name, media_type)
            return


def _sticker(sticker: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return kind, name and media type: a still one is an image, of the moving ones some are video."""
    if sticker.get("is_video"):
        return "video", "sticker.webm", "video/webm"
    if sticker.get("is_animated"):
        return "document", "sticker.tgs", "application/x-tgsticker"
    return "image", "sticker.webp", "image/webp"


def _attachment(file: Mapping[str, Any], kind: str, name: str, media_type: str, caption: str = "") -> Attachment:
    media_type = sanitize(str(file.get("mime_type") or media_type))
    if kind == "document" and media_type.partition("/")[0] in ("image", "audio", "video"):
        kind = media_type.partition("/")[0]  # sent "as a file", to keep it as it is
    return Attachment(
        kind=kind,
        name=sanitize(str(file.get("file_name") or name)),
        size=int(file.get("file_size", 0)),
        media_type=media_type,
        url=f"{FILE_SCHEME}{file['file_id']}",
        caption=caption,
    )


def _units(message: Mapping[str, Any]) -> bytes:
    """Return the text or caption of a message in the units that its entities count, two bytes each."""
    return str(message.get("text", message.get("caption", ""))).encode("utf-16-le", "surrogatepass")


def _entities(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = message.get("entities", message.get("caption_entities", ()))
    return found


def _whose(entity: Mapping[str, Any]) -> str:
    return str(entity.get("user", {}).get("id", ""))


def _decoded(units: bytes) -> str:
    return units.decode("utf-16-le", "surrogatepass")


def _with_addresses(message: Mapping[str, Any]) -> str:
    """Return the text with the address of each text_link behind its words: they are said, though not seen."""
    units = _units(message)
    links = [entity for entity in _entities(message) if entity["type"] == "text_link"]
    for entity in sorted(links, key=lambda each: int(each["offset"]), reverse=True):
        end = 2 * (int(entity["offset"]) + int(entity["length"]))
        units = units[:end] + f" ({entity['url']})".encode("utf-16-le", "surrogatepass") + units[end:]
    return _decoded(units)


def _describe(message: Mapping[str, Any]) -> str:
    """Return a description of content that is neither text nor a file; "" for messages without any."""
    for name, describe in _DESCRIBED:
        if name in message:
            return describe(message[name])
    return ""


def _venue(venue: Mapping[str, Any]) -> str:
    return f"(a place: {venue['title']}, {venue['address']})"


def _location(place: Mapping[str, Any]) -> str:
    return f"(a location: {float(place['latitude']):.5f}, {float(place['longitude']):.5f})"


def _contact(contact: Mapping[str, Any]) -> str:
    return f"(a contact: {display_name(contact)}, {contact['phone_number']})"


def _poll(poll: Mapping[str, Any]) -> str:
    options = " / ".join(str(option["text"]) for option in poll["options"])
    return f"(a poll: {poll['question']} {options})"


def _dice(dice: Mapping[str, Any]) -> str:
    return f"({dice['emoji']} {int(dice['value'])})"


def _checklist(checklist: Mapping[str, Any]) -> str:
    return "\n".join([f"(a checklist: {checklist['title']})", *map(_task, checklist["tasks"])])


def _task(task: Mapping[str, Any]) -> str:
    is_done = bool(task.get("completion_date") or task.get("completed_by_user") or task.get("completed_by_chat"))
    return f"- [{'x' if is_done else ' '}] {task['text']}"


def _tasks_done(change: Mapping[str, Any]) -> str:
    checklist = (change.get("checklist_message") or {}).get("checklist") or {}
    texts = {task["id"]: str(task["text"]) for task in checklist.get("tasks") or ()}
    lines = []
    for name, verb in (("marked_as_done_task_ids", "done"), ("marked_as_not_done_task_ids", "not done")):
        if tasks := [texts.get(each, f"task {each}") for each in change.get(name) or ()]:
            lines.append(f"({_of(checklist)} marked as {verb}: {', '.join(tasks)})")
    return "\n".join(lines)


def _tasks_added(change: Mapping[str, Any]) -> str:
    checklist = (change.get("checklist_message") or {}).get("checklist") or {}
    return "\n".join([f"({_of(checklist)} added:)", *map(_task, change["tasks"])])


def _of(checklist: Mapping[str, Any]) -> str:
    return f"in the checklist {checklist['title']}" if checklist.get("title") else "in a checklist"


def _story(story: Mapping[str, Any]) -> str:
    return f"(a story of {name})" if (name := display_name(story.get("chat") or {})) else "(a story)"


def _paid_media(media: Mapping[str, Any]) -> str:
    kinds = ", ".join(str(each.get("type", "")) for each in media.get("paid_media") or ())
    return f"(paid media for {int(media.get('star_count', 0))} stars: {kinds})"


def _invoice(invoice: Mapping[str, Any]) -> str:
    amount = f"{int(invoice['total_amount'])} {invoice['currency']} in its smallest unit"
    return f"(an invoice: {invoice['title']}, {invoice.get('description', '')}, {amount})"


def _game(game: Mapping[str, Any]) -> str:
    return f"(a game: {game['title']}, {game.get('description', '')})"


def _gift(info: Mapping[str, Any]) -> str:
    gift = info.get("gift") or {}
    emoji = str((gift.get("sticker") or {}).get("emoji", ""))
    stars = f" of {int(gift['star_count'])} stars" if gift.get("star_count") else ""
    text = f": {info['text']}" if info.get("text") else ""
    return f"(a gift{' ' * bool(emoji)}{emoji}{stars}{text})"


def _unique_gift(info: Mapping[str, Any]) -> str:
    gift = info.get("gift") or {}
    return f"(a gift: {gift.get('base_name', 'unique')} #{gift.get('number', '?')})"


def _giveaway(giveaway: Mapping[str, Any]) -> str:
    chats = ", ".join(filter(None, map(display_name, giveaway.get("chats") or ())))
    prize = f", {giveaway['prize_description']}" if giveaway.get("prize_description") else ""
    return f"(a giveaway for {int(giveaway['winner_count'])} winners{prize}{', of ' * bool(chats)}{chats})"


def _giveaway_winners(giveaway: Mapping[str, Any]) -> str:
    names = ", ".join(filter(None, map(display_name, giveaway.get("winners") or ())))
    return f"(a giveaway ended with {int(giveaway['winner_count'])} winners{': ' * bool(names)}{names})"


def _web_app_data(data: Mapping[str, Any]) -> str:
    return f"(from the web app {data.get('button_text', '')}: {data['data']})"


def display_name(chat: Mapping[str, Any]) -> str:
    """Return the display name of a chat, user or contact."""
    names = " ".join(str(chat[name]) for name in ("first_name", "last_name") if chat.get(name))
    return str(chat.get("title") or names or chat.get("username") or "")


# Field of the message and its description. A venue comes with a `location` of its own.
_DESCRIBED: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("venue", _venue),
    ("location", _location),
    ("contact", _contact),
    ("poll", _poll),
    ("dice", _dice),
    ("checklist", _checklist),
    ("checklist_tasks_done", _tasks_done),
    ("checklist_tasks_added", _tasks_added),
    ("story", _story),
    ("paid_media", _paid_media),
    ("invoice", _invoice),
    ("game", _game),
    ("gift", _gift),
    ("gift_upgrade_sent", _gift),
    ("unique_gift", _unique_gift),
    ("giveaway", _giveaway),
    ("giveaway_winners", _giveaway_winners),
    ("web_app_data", _web_app_data),
)
