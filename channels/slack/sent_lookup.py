"""The answer to "does this part stand there?": Slack has no send key, but gives message metadata back."""

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

Is = Callable[[Mapping[str, Any]], bool]


def missing_scopes(chat: str, scopes: frozenset[str], *, metadata: bool = True) -> list[str]:
    """Return which scopes reading back in *chat* needs and the token has not."""
    history = _HISTORY.get(chat[:1], ())
    missing = [] if not history or any(scope in scopes for scope in history) else [history[0]]
    return [*missing, _METADATA] if metadata and _METADATA not in scopes else missing


async def find_sent_part(
    api: SlackApi, part: MessagePart, me: SlackBotIdentity, scopes: frozenset[str], *, streams: bool = False
) -> str:
    """Return the ts of the message that is *part*; "" = it certainly does not stand there.

    *streams*: a preview may have been begun as a stream, which carries no key: it is the one message of ours
    below the question that has none. Raises RetryLater, and OutcomeUnknown where it cannot be told: no scopes,
    a private line, or more messages than are worth reading.
    """
    if part.visible_to:
        raise OutcomeUnknown("what only one person sees cannot be read back")
    _allow(missing_scopes(part.key.parent.chat, scopes))

    def is_it(message: Mapping[str, Any]) -> bool:
        if message.get("user") != me.user:
            return False
        has_none = not message.get("metadata") and not message.get("files")
        return part_of(message) == part.id or (streams and has_none)

    return await _asked(api, part, is_it)


async def find_shared_file(api: SlackApi, part: MessagePart, file: str, scopes: frozenset[str]) -> str:
    """Return *file* if a message of the chat shows it, "" if none does; raises as `find`."""
    _allow(missing_scopes(part.key.parent.chat, scopes, metadata=False))

    def is_it(message: Mapping[str, Any]) -> bool:
        return any(each.get("id") == file for each in message.get("files") or ())

    return file if await _asked(api, part, is_it) else ""


def _allow(missing: list[str]) -> None:
    if missing:
        raise OutcomeUnknown(f"reading back needs {', '.join(missing)}")


async def _asked(api: SlackApi, part: MessagePart, is_it: Is) -> str:
    try:
        return await _search(api, part, is_it)
    except RetryLater:
        raise
    except SendFailed as error:
        raise OutcomeUnknown(f"reading back: {error}") from error


async def _search(api: SlackApi, part: MessagePart, is_it: Is) -> str:
    query: dict[str, Any] = {"channel": part.key.parent.chat, "limit": _PAGE, "include_all_metadata": "true"}
    if part.reply_to:
        query["oldest"] = part.reply_to  # an answer is younger than its question
    if part.key.thread:
        query["ts"] = part.key.thread
    method = "conversations.replies" if part.key.thread else "conversations.history"
    for _ in range(_PAGES):
        page = await api.get(method, **query)
        for message in page.get("messages") or ():
            if is_it(message):
                return str(message["ts"])
        cursor = str((page.get("response_metadata") or {}).get("next_cursor") or "")
        if not cursor:
            return ""
        query["cursor"] = cursor
    raise OutcomeUnknown("too much was said since to read it all back")
