"""Channels that the bot is a member of and that have no mark: read from the last stop, for what calls the bot."""

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


class HeardUntil:
    """The time up to which everything was heard. Durable while the gateway runs: a kill is a stop like any other."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._second: int | None = None

    async def load(self) -> None:
        """Read what an earlier run left; raises StoreUnavailable."""
        if self._second is None:
            self._second = int(await self._state.load(_NOTE) or 0)

    @property
    def second(self) -> int:
        """Return it in seconds since 1970, never in the future; 0 before the very first start."""
        return min(self._second or 0, int(time.time()))

    async def note(self) -> None:
        """Note that everything said until now was heard; written once a minute. Raises StoreUnavailable."""
        until = int(time.time()) - _MARGIN
        if not self._second or abs(until - self._second) >= _SAVE_EVERY:
            await self._state.save(_NOTE, str(until))
            self._second = until


class JoinedChannels:
    """Reads them. Bounded in age and messages of each channel (HistoryPages), and in calls for all together."""

    def __init__(self, pages: HistoryPages, ears: SlackInbound, scopes: Callable[[], Collection[str]]) -> None:
        self._pages = pages
        self._ears = ears
        self._scopes = scopes
        self._left: deque[tuple[str, str]] | None = None  # chats and threads to read; None = not listed yet

    async def read_back(self, since: int, known: Collection[str], me: SlackBotIdentity) -> bool:
        """Hand in what calls us in channels not *known*, said after the second *since*.

        Return False when not all could be read now: the next call goes on from there.
        """
        calls = self._pages.calls
        try:
            if self._left is None:
                self._left = deque((chat, "") for chat in await self._list() if chat not in known)
            while self._left and self._pages.calls - calls < _CALLS:
                await self._read(*self._left[0], f"{since}.000000", me)
                self._left.popleft()
        except SendFailed as error:
            log.warning("slack.channels_wait", left=len(self._left or ()), reason=str(error))
            return False
        if self._left:
            log.warning("slack.channels_unread", channels=len({chat for chat, _ in self._left}), calls=_CALLS)
        self._left = None
        return True

    async def _list(self) -> Sequence[str]:
        scopes = self._scopes()
        can = {kind: not scopes or {f"{name}:read", f"{name}:history"} <= {*scopes} for kind, name in _TYPES.items()}
        if not all(can.values()):
            lacks = ", ".join(f"{name}:read, {name}:history" for kind, name in _TYPES.items() if not can[kind])
            log.info("slack.channels_not_listed", needs=lacks)
        found: list[str] = []
        query: dict[str, Any] = {"types": ",".join(kind for kind in can if can[kind])}
        query |= {"exclude_archived": "true", "limit": _LISTED}
        for _ in range(_LISTS if query["types"] else 0):
            try:
                page = await self._pages.page("users.conversations", query)
            except SlackRefusal as error:
                log.warning("slack.channels_not_listed", reason=error.code, needs=error.needed)
                return found
            found += [str(each["id"]) for each in page.get("channels") or () if each.get("id")]
            query["cursor"] = next_cursor(page)
            if not query["cursor"]:
                return found
        if found:
            log.warning("slack.channels_not_listed", listed=len(found), reason="the bot is a member of more")
        return found

    async def _read(self, chat: str, thread: str, mark: str, me: SlackBotIdentity) -> None:
        try:
            async with self._ears.gate(chat):
                messages = await self._pages.since(chat, thread, mark)
                for message in messages:
                    if self._ears.hears_all(chat) or f"<@{me.user}" in str(message.get("text") or ""):
                        await self._ears.accept_event(as_event(message, chat), me)
        except SlackRefusal as error:
            log.info("slack.no_catch_up", place=chat, reason=error.code, needs=error.needed)
            return
        if not thread and self._left is not None:
            # Below what was said since the stop; an older message's thread is in no history.
            self._left.extend((chat, str(each["ts"])) for each in messages if _has_replies(each, mark))


def _has_replies(message: Mapping[str, Any], mark: str) -> bool:
    latest = str(message.get("latest_reply") or "")
    return bool(latest) and number(latest) > number(mark)
