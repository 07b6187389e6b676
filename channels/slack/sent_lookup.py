"""Looks up parts of an uncertain delivery: Slack has no send key, but returns the metadata of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from channels.slack.api import SlackApi
from channels.slack.codec import SlackBotIdentity, part_of
from gateway.errors import OutcomeUnknown, RetryLater, SendFailed
from gateway.events import MessagePart

_METADATA = "metadata.message:read"
_HISTORY = {"C": ("channels:history", "groups:history"), "G": ("groups:history", "mpim:history"), "D": ("im:history",)}
_PAGE = 100
_PAGES = 10

Matches = Callable[[Mapping[str, Any]], bool]


def missing_scopes(chat: str, scopes: frozenset[str], *, metadata: bool = True) -> list[str]:
    """Return the scopes that the look-up in *chat* needs and the token lacks."""
    history = _HISTORY.get(chat[:1], ())
    missing = [] if not history or any(scope in scopes for scope in history) else [history[0]]
    return [*missing, _METADATA] if metadata and _METADATA not in scopes else missing


async def find_sent_part(
    api: SlackApi, part: MessagePart, bot: SlackBotIdentity, scopes: frozenset[str], *, streams: bool = False
) -> str:
    """Return the ts of the message that is *part*, or "" if it was not sent.

    *streams*: the part may be a stream, which carries no key: it is the bot's only message in the thread without one.
    Raises RetryLater, and OutcomeUnknown without scopes, for an ephemeral message, or after too many messages.
    """
    if part.visible_to:
        raise OutcomeUnknown("what only one person sees cannot be read back")
    _check_scopes(missing_scopes(part.key.parent.chat, scopes))

    def matches(message: Mapping[str, Any]) -> bool:
        if message.get("user") != bot.user:
            return False
        has_no_key = not message.get("metadata") and not message.get("files")
        return part_of(message) == part.id or (streams and has_no_key)

    return await _search_once(api, part, matches)


async def find_shared_file(api: SlackApi, part: MessagePart, file: str, scopes: frozenset[str]) -> str:
    """Return *file* if a message of the chat contains it, else ""; raises as `find_sent_part`."""
    _check_scopes(missing_scopes(part.key.parent.chat, scopes, metadata=False))

    def matches(message: Mapping[str, Any]) -> bool:
        return any(each.get("id") == file for each in message.get("files") or ())

    return file if await _search_once(api, part, matches) else ""


def _check_scopes(missing: list[str]) -> None:
    if missing:
        raise OutcomeUnknown(f"reading back needs {', '.join(missing)}")


async def _search_once(api: SlackApi, part: MessagePart, matches: Matches) -> str:
    try:
        return await _search(api, part, matches)
    except RetryLater:
        raise
    except SendFailed as error:
        raise OutcomeUnknown(f"reading back: {error}") from error


async def _search(api: SlackApi, part: MessagePart, matches: Matches) -> str:
    query: dict[str, Any] = {"channel": part.key.parent.chat, "limit": _PAGE, "include_all_metadata": "true"}
    if part.reply_to:
        query["oldest"] = part.reply_to  # an answer is younger than its question
    if part.key.thread:
        query["ts"] = part.key.thread
    method = "conversations.replies" if part.key.thread else "conversations.history"
    for _ in range(_PAGES):
        page = await api.get(method, **query)
        for message in page.get("messages") or ():
            if matches(message):
                return str(message["ts"])
        cursor = str((page.get("response_metadata") or {}).get("next_cursor") or "")
        if not cursor:
            return ""
        query["cursor"] = cursor
    raise OutcomeUnknown("too much was said since to read it all back")
