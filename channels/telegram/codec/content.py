"""The content of a Telegram message: text, files, locations, contacts and so on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.events import Attachment
from gateway.text import as_one_word, find_command, sanitize

# Field of the message, our kind, a name where the platform gives none, the media type where it gives none.
_FILES = (
    ("photo", "image", "photo.jpg", "image/jpeg"),
    ("voice", "voice", "voice.ogg", "audio/ogg"),
    ("audio", "audio", "audio.mp3", "audio/mpeg"),
    ("video", "video", "video.mp4", "video/mp4"),
    ("video_note", "video", "video-note.mp4", "video/mp4"),
    ("animation", "video", "animation.mp4", "video/mp4"),
    ("document", "document", "document", ""),
)
# What stands under these is a name, a title or a quotation: nothing that its sender typed as a command.
_NOT_TYPED = frozenset({"text_mention", "text_link", "blockquote", "expandable_blockquote", "code", "pre"})
FILE_SCHEME = "telegram-file:"  # the address that holds the token is asked for when the file is fetched


def message_text(message: Mapping[str, Any]) -> str:
    """Return the words of a message, hidden addresses written out, or what stands for them; "" for none."""
    if "text" in message or "caption" in message:
        has_entities = "entities" in message or "caption_entities" in message
        return sanitize(_with_addresses(message) if has_entities else str(message.get("text", message.get("caption"))))
    return sanitize(_other(message))


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
    """Return the file of a message, as a fact: nothing is fetched. Its caption is the message's text (`spoken`)."""
    if "sticker" in message:
        sticker = message["sticker"]
        return (_attachment(sticker, *_sticker(sticker), str(sticker.get("emoji", ""))),)
    for field, kind, name, media_type in _FILES:
        # An animation comes with a `document` of the same file, for old clients; the first that fits counts.
        if field in message:
            found = message[field]
            file = max(found, key=lambda size: int(size["width"])) if field == "photo" else found
            return (_attachment(file, kind, name, media_type),)
    return ()


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


def _other(message: Mapping[str, Any]) -> str:
    """Return a description of a message without text for the model; "" for service messages."""
    if "venue" in message:
        venue = message["venue"]
        return f"(a place: {venue['title']}, {venue['address']})"
    if "location" in message:
        place = message["location"]
        return f"(a location: {float(place['latitude']):.5f}, {float(place['longitude']):.5f})"
    if "contact" in message:
        contact = message["contact"]
        names = " ".join(str(contact[name]) for name in ("first_name", "last_name") if contact.get(name))
        return f"(a contact: {names}, {contact['phone_number']})"
    if "poll" in message:
        poll = message["poll"]
        options = " / ".join(str(option["text"]) for option in poll["options"])
        return f"(a poll: {poll['question']} {options})"
    if "dice" in message:
        return f"({message['dice']['emoji']} {int(message['dice']['value'])})"
    return ""
