"""Pages of a conversation's history, within Slack's rate limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog

from channels.slack.api import SlackApi
from channels.slack.read_cursors import number
from gateway.errors import RetryLater

log = structlog.get_logger(__name__)

_OLDEST = 7 * 24 * 3_600  # seconds; older than that is no conversation any more
_PAGE = 100
_PAGES = 3  # of one place; what is older stays unread, and that is said
_LONGEST_WAIT = 60.0


class HistoryPages:
    """Reads the history of one workspace. Every method raises SendFailed."""

    def __init__(self, api: SlackApi) -> None:
        self._api = api
        self.calls = 0

    async def since(self, chat: str, thread: str, mark: str) -> list[Mapping[str, Any]]:
        """Return the messages of a chat or *thread* after the ts *mark*, oldest first.

        They are at most a week old, and at most 300, the newest.
        """
        oldest = max(mark, f"{int(time.time()) - _OLDEST}.000000", key=number)
        query: dict[str, Any] = {"channel": chat, "oldest": oldest, "limit": _PAGE}
        if thread:
            query["ts"] = thread
        messages: list[Mapping[str, Any]] = []
        for _ in range(_PAGES):
            page = await self.page("conversations.replies" if thread else "conversations.history", query)
            # The parent of a thread comes with every page.
            messages += [m for m in page.get("messages") or () if number(str(m.get("ts") or "")) > number(oldest)]
            query["cursor"] = next_cursor(page)
            if not query["cursor"]:
                break
        else:
            log.warning("slack.too_much_was_said", chat=chat, read=len(messages))
        return sorted(messages, key=lambda message: number(str(message["ts"])))

    async def page(self, method: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return one page; wait once for a rate limit, a minute at most."""
        self.calls += 1
        arguments = {name: value for name, value in query.items() if value}
        try:
            answer = await self._api.get(method, **arguments)
        except RetryLater as error:
            await asyncio.sleep(min(error.delay.total_seconds(), _LONGEST_WAIT))
            answer = await self._api.get(method, **arguments)
        data: Mapping[str, Any] = answer.data if isinstance(answer.data, dict) else {}
        return data


def next_cursor(page: Mapping[str, Any]) -> str:
    """Return the cursor of the page after *page*, "" after the last."""
    return str((page.get("response_metadata") or {}).get("next_cursor") or "")


def as_event(message: Mapping[str, Any], chat: str) -> dict[str, Any]:
    """Return *message* of a history in the shape of an event without id."""
    kind = "im" if chat.startswith("D") else "channel"
    return {"type": "event_callback", "event": {**message, "type": "message", "channel": chat, "channel_type": kind}}
