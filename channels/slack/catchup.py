"""Catch-up after downtime: Slack stops redelivering after minutes, so the history is read.

Each conversation in use is read from its read cursor, oldest first, in order with live events. Messages that were
edited since are found on the way; deletions are not, because the history no longer contains them. After a stop,
mentions are also read in channels that the bot is a member of but never spoke in, which have no cursor.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from channels.slack.api import SlackRefusal
from channels.slack.codec import SlackBotIdentity
from channels.slack.history import HistoryPages, as_event, next_cursor
from channels.slack.inbound import SlackInbound
from channels.slack.read_cursors import number
from gateway.errors import SendFailed, StoreUnavailable
from gateway.ports import ChannelState

log = structlog.get_logger(__name__)

_NOTE = "heard-until"
_MARGIN = 60  # seconds between an event's own time and our storing it
_NOTE_EVERY = 60
_LISTED = 200  # channels in a page; docs.slack.dev: users.conversations returns 999 at most
_LISTS = 5
_CALLS = 200  # for one stop; history allows about 50 a minute
_TYPES = {"public_channel": "channels", "private_channel": "groups"}  # and what their scopes begin with
_PLACES = 100
_EDITED_IN = 20  # conversations, the latest, that are searched for edits
_EDITED_OF = 50  # messages of each
_EDITED_FOR = 24 * 3_600  # seconds before the mark, in a thread
_SAVE_EVERY = 5.0
_GIVEN_UP = 600.0  # seconds after which Slack brings no event again
_AGAIN = 60.0  # seconds until channels that could not be read are tried again


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
        if not self._second or abs(until - self._second) >= _NOTE_EVERY:
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
            async with self._inbound.in_order.hold(chat):
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


class SlackCatchUp:
    """Reads missed messages and saves the read cursors."""

    def __init__(
        self,
        pages: HistoryPages,
        inbound: SlackInbound,
        *,
        received_until: ReceivedUntil,
        joined_channels: JoinedChannels,
        is_receiving: Callable[[], bool],
    ) -> None:
        self._pages = pages
        self._inbound = inbound
        self._cursors = inbound.cursors
        self._received_until = received_until
        self._joined = joined_channels
        self._is_receiving = is_receiving
        self._stopped_at: int | None = None  # since when channels without a cursor are unread; None = they are read
        self._unmarked_but: frozenset[str] = frozenset()  # the conversations that had a cursor then
        self._tried_at = 0.0
        self._has_started = False
        self._requested = asyncio.Event()
        self._from: dict[str, str] = {}
        self.every = _SAVE_EVERY
        self.given_up_after = _GIVEN_UP
        self.passes = 0  # how often all conversations were read

    def request(self) -> None:
        """Request that all conversations are read soon: Slack may not redeliver something.

        They are read from the current cursors, because live events move the cursors past what is unread.
        """
        places = self._cursors.places()
        for place, mark in places:
            self._from[place] = min(mark, self._from.get(place, mark), key=number)
        stop = self._received_until.second
        # Slack redelivers the messages of a short gap, but nothing that was acknowledged before a kill.
        if stop and (not self._has_started or time.time() - stop > _GIVEN_UP):
            if self._stopped_at is None:
                self._unmarked_but = frozenset(place for place, _ in places)
            self._stopped_at = min(stop, self._stopped_at or stop)
            self._tried_at = 0.0
        self._has_started = True
        self._requested.set()

    async def run(self, bot: SlackBotIdentity) -> None:
        """Catch up when requested and save the cursors regularly, until cancelled."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.every):
                        await self._requested.wait()
                if self._cursors.is_overdue(self.given_up_after):
                    self.request()  # while the journal was down, say; Slack will not redeliver it
                is_requested = self._requested.is_set()
                if is_requested:
                    self._requested.clear()
                    await self._read_all(bot)
                if self._stopped_at is not None:
                    await self._read_joined(self._stopped_at, bot)
                self.passes += is_requested
                await self._save()
        finally:
            await self._save()

    async def _read_joined(self, stopped_at: int, bot: SlackBotIdentity) -> None:
        if self._tried_at and time.monotonic() - self._tried_at < _AGAIN:
            return
        self._tried_at = time.monotonic()
        if await self._joined.read_back(stopped_at, self._unmarked_but, bot):
            self._stopped_at = None

    async def _save(self) -> None:
        try:
            await self._cursors.save()
            if self._stopped_at is None and self._is_receiving():
                await self._received_until.note()
        except StoreUnavailable as error:
            log.info("slack.marks_wait", reason=str(error))

    async def _read_all(self, bot: SlackBotIdentity) -> None:
        places, unread, self._from = list(self._from.items())[:_PLACES], len(self._from) - _PLACES, {}
        if unread > 0:
            log.warning("slack.places_unread", places=unread)
        read = 0
        for turn, (place, mark) in enumerate(places):
            try:
                read += await self._read(place, mark, bot)
                if turn < _EDITED_IN:
                    await self._read_edits(place, mark, bot)
            except SlackRefusal as error:
                log.warning("slack.no_catch_up", place=place, reason=error.code, needs=error.needed)
            except (SendFailed, StoreUnavailable) as error:
                log.warning("slack.catch_up_failed", place=place, reason=str(error))
        log.info("slack.caught_up", places=len(places), messages=read)

    async def _read(self, place: str, mark: str, bot: SlackBotIdentity) -> int:
        chat, _, thread = place.partition("/")
        async with self._inbound.in_order.hold(chat):
            messages = await self._pages.since(chat, thread, mark)
            for message in messages:
                await self._inbound.accept(as_event(message, chat), bot)
        return len(messages)

    async def _read_edits(self, place: str, mark: str, bot: SlackBotIdentity) -> None:
        """Accept messages before the cursor that were edited after it; the journal ignores known edits."""
        chat, _, thread = place.partition("/")
        query: dict[str, Any] = {"channel": chat, "latest": mark, "inclusive": "true", "limit": _EDITED_OF}
        if thread:
            query |= {"ts": thread, "oldest": f"{max(number(mark)[0] - _EDITED_FOR, 0)}.000000"}
        async with self._inbound.in_order.hold(chat):
            page = await self._pages.page("conversations.replies" if thread else "conversations.history", query)
            for message in page.get("messages") or ():
                edited = str((message.get("edited") or {}).get("ts") or "")
                if number(str(message.get("ts") or "")) <= number(mark) < number(edited):
                    await self._inbound.accept(as_event(message, chat), bot, is_old=True)
