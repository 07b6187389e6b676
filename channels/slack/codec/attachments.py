"""Files in a message: kind, size and address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.events import Attachment
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
