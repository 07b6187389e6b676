"""Catch-up in channels that the bot is a member of but never spoke in: mentions since the last stop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import structlog

from channels.slack.api import SlackRefusal
from channels.slack.codec import SlackBotIdentity
from channels.slack.inbound import SlackInbound
from channels.slack.pages import HistoryPages, as_event, next_cursor
from channels.slack.read_cursors import number
from gateway.errors import SendFailed
from gateway.ports import ChannelState

log = structlog.get_logger(__name__)

_NOTE = "heard-until"
_MARGIN = 60  # seconds between an event's own time and our storing it
_SAVE_EVERY = 60
_LISTED = 200  # channels in a page; docs.slack.dev: users.conversations returns 999 at most
_LISTS = 5
_CALLS = 200  # for one stop; history allows about 50 a minute
_TYPES = {"public_channel": "channels", "private_channel": "groups"}  # and what their scopes begin with


class ReceivedUntil:
    """The time up to which every event was received, stored while the gateway runs: a kill needs no special case."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._second: int | None = None

    async def load(self) -> None:
        """Load the time of an earlier run; raises StoreUnavailable."""
        stored = int(await self._state.load(_NOTE) or 0)
        self._second = max(self._second or 0, stored)  # another worker may have received since

    @property
    def second(self) -> int:
        """The time in seconds since 1970, never in the future; 0 before the first start."""
        return min(self._second or 0, int(time.time()))

    async def note(self) -> None:
        """Store that everything until now was received, at most once a minute. Raises StoreUnavailable."""
        until = int(time.time()) - _MARGIN
        if not self._second or abs(until - self._second) >= _SAVE_EVERY:
            await self._state.save(_NOTE, str(until))
            self._second = until


class JoinedChannels:
    """Reads these channels, within limits of age and messages for each (`HistoryPages`) and of calls for all."""

    def __init__(self, pages: HistoryPages, inbound: SlackInbound, scopes: Callable[[], Collection[str]]) -> None:
        self._pages = pages
        self._inbound = inbound
        self._scopes = scopes
        self._unread: deque[tuple[str, str]] | None = None  # chats and threads; None = not listed yet

    async def read_back(self, since: int, with_cursor: Collection[str], bot: SlackBotIdentity) -> bool:
        """Accept mentions in channels not *with_cursor* after the second *since*.

        Return False if not all could be read; the next call continues there.
        """
        calls = self._pages.calls
        try:
            if self._unread is None:
                self._unread = deque((chat, "") for chat in await self._list() if chat not in with_cursor)
            while self._unread and self._pages.calls - calls < _CALLS:
                await self._read(*self._unread[0], f"{since}.000000", bot)
                self._unread.popleft()
        except SendFailed as error:
            log.warning("slack.channels_wait", left=len(self._unread or ()), reason=str(error))
            return False
        if self._unread:
            log.warning("slack.channels_unread", channels=len({chat for chat, _ in self._unread}), calls=_CALLS)
        self._unread = None
        return True

    async def _list(self) -> Sequence[str]:
        scopes = self._scopes()
        can = {kind: not scopes or {f"{name}:read", f"{name}:history"} <= {*scopes} for kind, name in _TYPES.items()}
        if not all(can.values()):
            lacks = ", ".join(f"{name}:read, {name}:history" for kind, name in _TYPES.items() if not can[kind])
            log.info("slack.channels_not_listed", needs=lacks)
        chats: list[str] = []
        query: dict[str, Any] = {"types": ",".join(kind for kind in can if can[kind])}
        query |= {"exclude_archived": "true", "limit": _LISTED}
        for _ in range(_LISTS if query["types"] else 0):
            try:
                page = await self._pages.page("users.conversations", query)
            except SlackRefusal as error:
                log.warning("slack.channels_not_listed", reason=error.code, needs=error.needed)
                return chats
            chats += [str(each["id"]) for each in page.get("channels") or () if each.get("id")]
            query["cursor"] = next_cursor(page)
            if not query["cursor"]:
                return chats
        if chats:
            log.warning("slack.channels_not_listed", listed=len(chats), reason="the bot is a member of more")
        return chats

    async def _read(self, chat: str, thread: str, mark: str, bot: SlackBotIdentity) -> None:
        try:
            async with self._inbound.chat_lock(chat):
                messages = await self._pages.since(chat, thread, mark)
                for message in messages:
                    if self._inbound.reads_all(chat) or f"<@{bot.user}" in str(message.get("text") or ""):
                        await self._inbound.accept(as_event(message, chat), bot)
        except SlackRefusal as error:
            log.info("slack.no_catch_up", place=chat, reason=error.code, needs=error.needed)
            return
        if not thread and self._unread is not None:
            # Threads of messages since the stop; threads of older messages are not in the history.
            self._unread.extend((chat, str(each["ts"])) for each in messages if _has_replies(each, mark))


def _has_replies(message: Mapping[str, Any], mark: str) -> bool:
    latest = str(message.get("latest_reply") or "")
    return bool(latest) and number(latest) > number(mark)
