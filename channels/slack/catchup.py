"""What was said while nobody listened: Slack gives up after minutes, history does not.

Each place in use is read from its mark, oldest first, through the gate that live events pass as well. What was taken
before and edited since is found on the way; what was deleted since cannot be: history does not hold it any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import structlog

from channels.slack.api import Refused, SlackApi
from channels.slack.codec import Me
from channels.slack.ears import Ears
from channels.slack.marks import Marks, number
from gateway.errors import RetryLater, SendFailed, StoreDown

log = structlog.get_logger(__name__)

_OLDEST = 7 * 24 * 3_600  # seconds; older than that is no conversation any more
_PLACES = 100
_PAGE = 100
_PAGES = 3  # of one place; what is older stays unread, and that is said
_EDITED_IN = 20  # places, the latest, of which older words are looked at once more
_EDITED_OF = 50  # words of each
_EDITED_FOR = 24 * 3_600  # seconds before the mark, in a thread
_SAVE_EVERY = 5.0
_GIVEN_UP = 600.0  # seconds after which Slack brings no event again
_LONGEST_WAIT = 60.0


class CatchUp:
    """Reads on after a silence, and keeps the marks."""

    def __init__(self, api: SlackApi, ears: Ears, marks: Marks) -> None:
        self._api = api
        self._ears = ears
        self._marks = marks
        self._wanted = asyncio.Event()
        self._from: dict[str, str] = {}
        self.every = _SAVE_EVERY
        self.given_up_after = _GIVEN_UP
        self.passes = 0  # how often all places were read

    def want(self) -> None:
        """Read all places soon: there may be something that Slack will not deliver.

        From the marks of now: what comes from here on moves them past what is still unread.
        """
        for place, mark in self._marks.places():
            self._from[place] = min(mark, self._from.get(place, mark), key=number)
        self._wanted.set()

    async def run(self, me: Me) -> None:
        """Catch up when wanted and save the marks now and then, until cancelled."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.every):
                        await self._wanted.wait()
                if self._marks.is_overdue(self.given_up_after):
                    self.want()  # while the journal was down, say, and nobody else will bring it
                if self._wanted.is_set():
                    self._wanted.clear()
                    await self._read_all(me)
                await self._save()
        finally:
            await self._save()

    async def _save(self) -> None:
        try:
            await self._marks.save()
        except StoreDown as error:
            log.info("slack.marks_wait", reason=str(error))

    async def _read_all(self, me: Me) -> None:
        places, self._from = list(self._from.items())[:_PLACES], {}
        taken = 0
        for turn, (place, mark) in enumerate(places):
            try:
                taken += await self._read(place, mark, me)
                if turn < _EDITED_IN:
                    await self._read_edits(place, mark, me)
            except Refused as error:
                log.warning("slack.no_catch_up", place=place, reason=error.code, needs=error.needed)
            except (SendFailed, StoreDown) as error:
                log.warning("slack.catch_up_failed", place=place, reason=str(error))
        self.passes += 1
        log.info("slack.caught_up", places=len(places), messages=taken)

    async def _read(self, place: str, mark: str, me: Me) -> int:
        chat, _, thread = place.partition("/")
        async with self._ears.gate(chat):
            messages = await self._messages(chat, thread, mark)
            for message in messages:
                await self._ears.take(_event(message, chat), me)
        return len(messages)

    async def _read_edits(self, place: str, mark: str, me: Me) -> None:
        """Hand in what was taken before the mark and edited after it; whoever knows the edit takes it for a repeat."""
        chat, _, thread = place.partition("/")
        query: dict[str, Any] = {"channel": chat, "latest": mark, "inclusive": "true", "limit": _EDITED_OF}
        if thread:
            query |= {"ts": thread, "oldest": f"{max(number(mark)[0] - _EDITED_FOR, 0)}.000000"}
        async with self._ears.gate(chat):
            page = await self._page("conversations.replies" if thread else "conversations.history", query)
            for message in page.get("messages") or ():
                edited = str((message.get("edited") or {}).get("ts") or "")
                if number(str(message.get("ts") or "")) <= number(mark) < number(edited):
                    await self._ears.take(_event(message, chat), me, is_old=True)

    async def _messages(self, chat: str, thread: str, mark: str) -> list[Mapping[str, Any]]:
        oldest = max(mark, f"{int(time.time()) - _OLDEST}.000000", key=number)
        query: dict[str, Any] = {"channel": chat, "oldest": oldest, "limit": _PAGE}
        if thread:
            query["ts"] = thread
        found: list[Mapping[str, Any]] = []
        for _ in range(_PAGES):
            page = await self._page("conversations.replies" if thread else "conversations.history", query)
            # The parent of a thread comes with every page.
            found += [m for m in page.get("messages") or () if number(str(m.get("ts") or "")) > number(oldest)]
            query["cursor"] = str((page.get("response_metadata") or {}).get("next_cursor") or "")
            if not query["cursor"]:
                break
        else:
            log.warning("slack.too_much_was_said", chat=chat, read=len(found))
        return sorted(found, key=lambda message: number(str(message["ts"])))

    async def _page(self, method: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        arguments = {name: value for name, value in query.items() if value}
        try:
            answer = await self._api.get(method, **arguments)
        except RetryLater as error:
            await asyncio.sleep(min(error.delay.total_seconds(), _LONGEST_WAIT))
            answer = await self._api.get(method, **arguments)
        data: Mapping[str, Any] = answer.data if isinstance(answer.data, dict) else {}
        return data


def _event(message: Mapping[str, Any], chat: str) -> dict[str, Any]:
    """Return *message* of a history in the shape of an event, which has no id."""
    kind = "im" if chat.startswith("D") else "channel"
    return {"type": "event_callback", "event": {**message, "type": "message", "channel": chat, "channel_type": kind}}
