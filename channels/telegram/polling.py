"""Long polling that confirms an update only after it is durable.

The library's own updater confirms an update once it is in a queue in memory, so a kill there loses it. Here the poll
after the commit confirms it, and waits for the next update.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import structlog
from telegram.error import TelegramError

from channels.telegram.api import ApiRetrier, RetryDelays
from channels.telegram.http_request import AiohttpRequest
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

Receive = Callable[[Mapping[str, Any]], Awaitable[None]]

POLL_SECONDS = 25
_BATCH = 100
KINDS = ("message", "edited_message", "callback_query", "my_chat_member", "chat_member")


class TelegramPoller:
    """Fetches updates and calls *receive* for each, in order; *receive* returns when Telegram may be acknowledged."""

    def __init__(
        self,
        name: str,
        address: str,
        request: AiohttpRequest,
        receive: Receive,
        retrier: ApiRetrier,
        *,
        waits: RetryDelays,
        is_cautious: Callable[[], bool],
    ) -> None:
        """Poll *address*, which contains the token, over *request*; fetch one update at a time if *is_cautious*."""
        self._is_cautious = is_cautious
        self._name = name
        self._address = address
        self._receive = receive
        self._waits = waits
        self._retrier = retrier
        self._request = request
        self._offset: int | None = None

    def is_receiving(self) -> bool:
        """Return True if the last good poll is at most as old as two polls take."""
        return self._retrier.had_contact_within(2 * (POLL_SECONDS + 5))

    async def run(self) -> None:
        """Poll until cancelled; raise SettingsError when Telegram rejects the token."""
        await self._request.initialize()
        try:
            while True:
                updates = await self._retrier.call_with_retry(self._poll)
                self._retrier.record_contact()
                await self._receive_all(updates)
        finally:
            self._retrier.contact_at = None
            self._offset = None  # another worker may poll until the next run

    async def close(self) -> None:
        """Release the connection."""
        await self._request.shutdown()

    async def _poll(self) -> Sequence[Mapping[str, Any]]:
        """Fetch new updates as raw objects: one that cannot be parsed must not cost the others."""
        limit = 1 if self._is_cautious() else _BATCH
        # The first poll of a run waits for nothing: its answer is what makes the channel ready.
        seconds = POLL_SECONDS if self._retrier.contact_at is not None else 0
        query: dict[str, Any] = {"timeout": seconds, "limit": limit, "allowed_updates": json.dumps(KINDS)}
        # An offset goes with one poll, answered or not. Update ids restart at random after a quiet week, and an old
        # offset would confirm updates that were never received. What was not confirmed comes again, and is known.
        offset, self._offset = self._offset, None
        if offset is not None:
            query["offset"] = offset
        updates = await self._request.post(f"{self._address}?{urlencode(query)}", read_timeout=POLL_SECONDS + 5.0)
        if not isinstance(updates, list) or not all(_is_update(each) for each in updates):
            raise TelegramError("the answer to getUpdates is no list of updates")
        return updates

    async def _receive_all(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """Receive a batch concurrently and in order, so that messages sent during downtime can merge into one turn.

        The offset stops at the first update that failed; later ones come again and are known by their ids.
        """
        results = await asyncio.gather(*(self._receive(update) for update in updates), return_exceptions=True)
        for update, error in zip(updates, results, strict=True):
            if error is not None:
                await self._handle_failure(update, error)
                return
            self._offset = int(update["update_id"]) + 1

    async def _handle_failure(self, update: Mapping[str, Any], error: BaseException) -> None:
        if isinstance(error, StoreUnavailable):
            log.warning("telegram.waits_for_store", channel=self._name, reason=str(error))
        elif isinstance(error, Exception):  # the channel boundary: it comes again, and the intake counts
            log.error("telegram.update_failed", channel=self._name, update=update["update_id"], exc_info=error)
        else:
            raise error
        await asyncio.sleep(self._waits.store)


def _is_update(update: Any) -> bool:
    return isinstance(update, dict) and isinstance(update.get("update_id"), int)
