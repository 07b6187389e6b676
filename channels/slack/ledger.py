"""The answer to "does this part stand there?": Slack has no send key, but gives message metadata back."""

from __future__ import annotations

from typing import Any

from channels.slack.api import SlackApi
from channels.slack.codec import Me, part_of
from gateway.errors import OutcomeUnknown, RetryLater, SendFailed
from gateway.events import Part

_METADATA = "metadata.message:read"
_HISTORY = {"C": ("channels:history", "groups:history"), "G": ("groups:history", "mpim:history"), "D": ("im:history",)}
_PAGE = 100
_PAGES = 10


def missing_scopes(chat: str, scopes: frozenset[str]) -> list[str]:
    """Return which scopes reading back in *chat* needs and the token has not."""
    history = _HISTORY.get(chat[:1], ())
    missing = [] if not history or any(scope in scopes for scope in history) else [history[0]]
    return missing if _METADATA in scopes else [*missing, _METADATA]


async def find(api: SlackApi, part: Part, me: Me, scopes: frozenset[str]) -> str:
    """Return the ts of the message that is *part*; "" = it certainly does not stand there.

    Raises RetryLater, and OutcomeUnknown where it cannot be told: no scopes, a private line, or more
    messages than are worth reading.
    """
    chat = part.key.parent.chat
    if part.visible_to:
        raise OutcomeUnknown("what only one person sees cannot be read back")
    if missing := missing_scopes(chat, scopes):
        raise OutcomeUnknown(f"reading back needs {', '.join(missing)}")
    try:
        return await _search(api, part, me, chat)
    except RetryLater:
        raise
    except SendFailed as error:
        raise OutcomeUnknown(f"reading back: {error}") from error


async def _search(api: SlackApi, part: Part, me: Me, chat: str) -> str:
    query: dict[str, Any] = {"channel": chat, "limit": _PAGE, "include_all_metadata": "true"}
    if part.reply_to:
        query["oldest"] = part.reply_to  # an answer is younger than its question
    if part.key.thread:
        query["ts"] = part.key.thread
    method = "conversations.replies" if part.key.thread else "conversations.history"
    for _ in range(_PAGES):
        page = await api.get(method, **query)
        for message in page.get("messages") or ():
            if message.get("user") == me.user and part_of(message) == part.id:
                return str(message["ts"])
        cursor = str((page.get("response_metadata") or {}).get("next_cursor") or "")
        if not cursor:
            return ""
        query["cursor"] = cursor
    raise OutcomeUnknown("too much was said since to read it all back")
