"""Content of a Slack message beside its text: files, messages shared in it, tables and other blocks, huddles.

Texts are as Slack escapes them. Shapes: docs.slack.dev/reference/block-kit/blocks and /messaging/unfurling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gateway.events import UNKNOWN, Attachment
from gateway.text import sanitize

_NO_BYTES = frozenset({"tombstone", "hidden_by_limit", "list", "lists"})  # deleted; lists are named in the text


def attachments(files: Sequence[Mapping[str, Any]]) -> tuple[Attachment, ...]:
    """Return the attachments of a message in order, without deleted files and lists."""
    return tuple(_attachment(file) for file in files if file.get("mode") not in _NO_BYTES)


def _attachment(file: Mapping[str, Any]) -> Attachment:
    media_type = str(file.get("mimetype") or "")
    return Attachment(
        kind=_kind(media_type, str(file.get("subtype") or "")),
        name=sanitize(str(file.get("name") or file.get("title") or file.get("id") or "file")),
        size=int(file.get("size") or 0),
        media_type=media_type,
        url=download_url(file) or str(file.get("id") or ""),
        caption=sanitize(str(file.get("alt_txt") or "")),
    )


def download_url(file: Mapping[str, Any]) -> str:
    """Return where the bytes are, "" where files.info has to be asked first."""
    if file.get("file_access") == "check_file_info":
        return ""
    return str(file.get("url_private_download") or file.get("url_private") or "")


def is_file_id(url: str) -> bool:
    """Return True if an attachment's url is a file id that must be looked up."""
    return url.startswith("F") and url.isalnum() and url.isascii()


def shared_at(file: Mapping[str, Any], chat: str, thread: str) -> str:
    """Return the ts of the message that shares *file* in a chat or *thread*, "" if none does."""
    shares = file.get("shares") or {}
    for places in shares.values():
        for share in places.get(chat) or ():
            if str(share.get("thread_ts") or "") == thread or share.get("ts") == thread:
                return str(share["ts"])
    return ""


def _kind(media_type: str, subtype: str) -> str:
    if subtype == "slack_audio":
        return "voice"
    family = media_type.partition("/")[0]
    return family if family in ("image", "audio", "video") else "document"


# -- shared ----------------------------------------------------------------------------------------
# Messages shared in a message, and its blocks.

Payload: TypeAlias = Mapping[str, Any]

_NO_PREVIEW = "[no preview available]"
_DEEPEST = 8  # elements within elements
_FOREIGN = ("from_url", "original_url", "app_unfurl_url", "bot_id")  # a preview of a link, or an app's
_LISTS = frozenset({"list", "lists"})  # modes of files that have no bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedContent:
    """Messages of others that a message shows: "Share message", or a pasted link to one."""

    text: str = ""
    by: str = ""  # the author's user id, UNKNOWN for apps and for several authors
    name: str = ""
    files: tuple[Attachment, ...] = ()
    chat: str = ""  # of the message that is shared, if it is one
    ts: str = ""


def own_text(message: Payload) -> str:
    """Return the content that the author added to the text of *message*: tables, blocks, a huddle, names of lists."""
    text = str(message.get("text") or "")
    blocks = [each for each in message.get("blocks") or () if not text or each.get("type") == "table"]
    pasted = [each for each in message.get("attachments") or () if not _is_share(each) and not _is_foreign(each)]
    names = [f"(a list: {_title(each)})" for each in message.get("files") or () if each.get("mode") in _LISTS]
    return "\n".join(each for each in (_block_text(blocks), *map(_content, pasted), *names, _huddle(message)) if each)


def shared_content(message: Payload) -> SharedContent:
    """Return the messages that *message* shares."""
    shares = [each for each in message.get("attachments") or () if _is_share(each)]
    authors = {UNKNOWN if each.get("bot_id") else str(each.get("author_id") or UNKNOWN) for each in shares}
    names = {str(each.get("author_name") or "") for each in shares}
    only = shares[0] if len(shares) == 1 else {}
    return SharedContent(
        text="\n\n".join(text for each in shares if (text := _content(each))),
        by=(authors.pop() if len(authors) == 1 else UNKNOWN) if shares else "",
        name=names.pop() if len(names) == 1 else "",
        files=tuple(file for each in shares for file in attachments(each.get("files") or ())),
        chat=str(only.get("channel_id") or ""),
        ts=str(only.get("ts") or ""),
    )


def _is_share(attachment: Payload) -> bool:
    return bool(attachment.get("is_share") or attachment.get("is_msg_unfurl"))


def _is_foreign(attachment: Payload) -> bool:
    return any(attachment.get(name) for name in _FOREIGN)


def _content(attachment: Payload) -> str:
    """Return the text of an attachment: its own, else its blocks, else what Slack shows in their place."""
    blocks = [each for part in attachment.get("message_blocks") or () for each in _blocks_of(part)]
    body = str(attachment.get("text") or "") or _block_text(attachment.get("blocks") or blocks)
    tables = _block_text([each for each in blocks if each.get("type") == "table"]) if attachment.get("text") else ""
    fields = [f"{each.get('title', '')}: {each.get('value', '')}" for each in attachment.get("fields") or ()]
    parts = [str(attachment.get("pretext") or ""), str(attachment.get("title") or ""), body, tables, *fields]
    names = [f"(a list: {_title(each)})" for each in attachment.get("files") or () if each.get("mode") in _LISTS]
    found = "\n".join(part for part in (*parts, *names, _huddle(attachment)) if part)
    fallback = str(attachment.get("fallback") or "")
    return found or ("" if fallback == _NO_PREVIEW or attachment.get("files") else fallback)


def _blocks_of(part: Payload) -> Sequence[Payload]:
    return (part.get("message") or {}).get("blocks") or ()


def _huddle(message: Payload) -> str:
    room = message.get("room")
    return f"(a huddle{': ' * bool(room.get('name'))}{room.get('name') or ''})" if isinstance(room, Mapping) else ""


def _title(file: Payload) -> str:
    return str(file.get("title") or file.get("name") or file.get("id") or "")


def _block_text(blocks: Sequence[Payload]) -> str:
    return "\n".join(text for each in blocks if (text := _block(each)))


def _block(block: Payload) -> str:
    kind = block.get("type")
    if kind == "table":
        rows = [" | ".join(_inline(cell).replace("\n", " ") for cell in row) for row in block.get("rows") or ()]
        return "\n".join(f"| {row} |" for row in rows)
    if kind in ("rich_text", "context", "actions"):
        return "\n".join(text for each in block.get("elements") or () if (text := _inline(each)))
    if kind == "image":
        return f"(image: {block.get('alt_text') or (block.get('title') or {}).get('text') or ''})"
    texts = [block.get("text"), block.get("title"), *(block.get("fields") or ())]
    return "\n".join(text for each in texts if each and (text := _inline(each)))


def _inline(element: object, depth: int = 0) -> str:
    """Return the text of an element of rich text, a text object or a cell."""
    if isinstance(element, str):
        return element
    if not isinstance(element, Mapping) or depth > _DEEPEST:
        return ""
    kind = element.get("type")
    if (spell := _SPELLED.get(kind or "")) is not None:
        return spell(element)
    if kind == "rich_text_list":
        return "\n".join(f"• {each}" for each in _inlines(element.get("elements") or (), depth))
    if "elements" in element:
        return "".join(_inlines(element["elements"], depth))
    return _inline(element.get("text") or "", depth + 1)


def _link(element: Payload) -> str:
    url, text = str(element.get("url") or ""), str(element.get("text") or "")
    return f"<{url}|{text}>" if text and text != url else f"<{url}>"


# As the text of a message has them.
_SPELLED: Mapping[str, Callable[[Payload], str]] = {
    "link": _link,
    "user": lambda each: f"<@{each.get('user_id', '')}>",
    "usergroup": lambda each: f"<!subteam^{each.get('usergroup_id', '')}>",
    "channel": lambda each: f"<#{each.get('channel_id', '')}>",
    "emoji": lambda each: f":{each.get('name', '')}:",
    "broadcast": lambda each: f"<!{each.get('range', '')}>",
    "date": lambda each: str(each.get("fallback") or ""),
}


def _inlines(elements: Sequence[object], depth: int) -> Iterator[str]:
    return (_inline(each, depth + 1) for each in elements)
