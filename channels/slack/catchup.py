"""What was said while nobody listened: Slack gives up after minutes, history does not.

Each place in use is read from its mark, oldest first, through the gate that live events pass as well. What was taken
before and edited since is found on the way; what was deleted since cannot be: history does not hold it any more.
Channels without a mark are read after a stop (`joined`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from channels.slack.api import SlackRefusal
from channels.slack.codec import SlackBotIdentity
from channels.slack.inbound import SlackInbound
from channels.slack.joined import HeardUntil, JoinedChannels
from channels.slack.pages import HistoryPages, as_event
from channels.slack.read_cursors import number
from gateway.errors import SendFailed, StoreUnavailable

log = structlog.get_logger(__name__)

_PLACES = 100
_EDITED_IN = 20  # places, the latest, of which older words are looked at once more
_EDITED_OF = 50  # words of each
_EDITED_FOR = 24 * 3_600  # seconds before the mark, in a thread
_SAVE_EVERY = 5.0
_GIVEN_UP = 600.0  # seconds after which Slack brings no event again
_AGAIN = 60.0  # seconds until channels that could not be read are tried again


class SlackCatchUp:
    """Reads on after a silence, and keeps the marks."""

    def __init__(
        self,
        pages: HistoryPages,
        ears: SlackInbound,
        *,
        heard_until: HeardUntil,
        joined: JoinedChannels,
        is_hearing: Callable[[], bool],
    ) -> None:
        self._pages = pages
        self._ears = ears
        self._marks = ears.marks
        self._heard_until = heard_until
        self._joined = joined
        self._is_hearing = is_hearing
        self._stopped_at: int | None = None  # from when channels without a mark are to be read; None = they were
        self._unmarked_but: frozenset[str] = frozenset()  # the places that had a mark then
        self._tried_at = 0.0
        self._has_started = False
        self._wanted = asyncio.Event()
        self._from: dict[str, str] = {}
        self.every = _SAVE_EVERY
        self.given_up_after = _GIVEN_UP
        self.passes = 0  # how often all places were read

    def request(self) -> None:
        """Read all places soon: there may be something that Slack will not deliver.

        From the marks of now: what comes from here on moves them past what is still unread.
        """
        places = self._marks.places()
        for place, mark in places:
            self._from[place] = min(mark, self._from.get(place, mark), key=number)
        stop = self._heard_until.second
        # Slack itself brings again what was said in a short gap, but nothing that was acknowledged before a kill.
        if stop and (not self._has_started or time.time() - stop > _GIVEN_UP):
            if self._stopped_at is None:
                self._unmarked_but = frozenset(place for place, _ in places)
            self._stopped_at = min(stop, self._stopped_at or stop)
            self._tried_at = 0.0
        self._has_started = True
        self._wanted.set()

    async def run(self, me: SlackBotIdentity) -> None:
        """Catch up when wanted and save the marks now and then, until cancelled."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.every):
                        await self._wanted.wait()
                if self._marks.is_overdue(self.given_up_after):
                    self.request()  # while the journal was down, say, and nobody else will bring it
                is_wanted = self._wanted.is_set()
                if is_wanted:
                    self._wanted.clear()
                    await self._read_all(me)
                if self._stopped_at is not None:
                    await self._read_joined(self._stopped_at, me)
                self.passes += is_wanted
                await self._save()
        finally:
            await self._save()

    async def _read_joined(self, stopped_at: int, me: SlackBotIdentity) -> None:
        if self._tried_at and time.monotonic() - self._tried_at < _AGAIN:
            return
        self._tried_at = time.monotonic()
        if await self._joined.read_back(stopped_at, self._unmarked_but, me):
            self._stopped_at = None

    async def _save(self) -> None:
        try:
            await self._marks.save()
            if self._stopped_at is None and self._is_hearing():
                await self._heard_until.note()
        except StoreUnavailable as error:
            log.info("slack.marks_wait", reason=str(error))

    async def _read_all(self, me: SlackBotIdentity) -> None:
        places, unread, self._from = list(self._from.items())[:_PLACES], len(self._from) - _PLACES, {}
        if unread > 0:
            log.warning("slack.places_unread", places=unread)
        taken = 0
        for turn, (place, mark) in enumerate(places):
            try:
                taken += await self._read(place, mark, me)
                if turn < _EDITED_IN:
                    await self._read_edits(place, mark, me)
            except SlackRefusal as error:
                log.warning("slack.no_catch_up", place=place, reason=error.code, needs=error.needed)
            except (SendFailed, StoreUnavailable) as error:
                log.warning("slack.catch_up_failed", place=place, reason=str(error))
        log.info("slack.caught_up", places=len(places), messages=taken)

    async def _read(self, place: str, mark: str, me: SlackBotIdentity) -> int:
        chat, _, thread = place.partition("/")
        async with self._ears.gate(chat):
            messages = await self._pages.since(chat, thread, mark)
            for message in messages:
                await self._ears.accept_event(as_event(message, chat), me)
        return len(messages)

    async def _read_edits(self, place: str, mark: str, me: SlackBotIdentity) -> None:
        """Hand in what was taken before the mark and edited after it; whoever knows the edit takes it for a repeat."""
        chat, _, thread = place.partition("/")
        query: dict[str, Any] = {"channel": chat, "latest": mark, "inclusive": "true", "limit": _EDITED_OF}
        if thread:
            query |= {"ts": thread, "oldest": f"{max(number(mark)[0] - _EDITED_FOR, 0)}.000000"}
        async with self._ears.gate(chat):
            page = await self._pages.page("conversations.replies" if thread else "conversations.history", query)
            for message in page.get("messages") or ():
                edited = str((message.get("edited") or {}).get("ts") or "")
                if number(str(message.get("ts") or "")) <= number(mark) < number(edited):
                    await self._ears.accept_event(as_event(message, chat), me, is_old=True)
