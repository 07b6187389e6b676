"""Hearing Telegram: long polling whose offset follows what is durable with us.

The library's own updater confirms an update when it stands in a queue in memory; a kill there loses it. Here an
update is confirmed by the poll that comes after its row was committed, and by no other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import structlog
from telegram.error import TelegramError

from channels.telegram.api import RedactedRequest
from channels.telegram.retry import ApiRetrier, RetryDelays
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

Take = Callable[[Mapping[str, Any]], Awaitable[None]]

POLL_SECONDS = 25
_BATCH = 100
KINDS = ("message", "edited_message", "callback_query", "my_chat_member", "chat_member")


class TelegramPoller:
    """Fetches updates and hands each to *take*, in order; *take* returns when Telegram may be told."""

    def __init__(
        self,
        name: str,
        address: str,
        request: RedactedRequest,
        take: Take,
        patience: ApiRetrier,
        *,
        waits: RetryDelays,
        is_cautious: Callable[[], bool],
    ) -> None:
        """Poll *address*, which holds the token, over *request*, which `close` closes; one by one while cautious."""
        self._is_cautious = is_cautious
        self._name = name
        self._address = address
        self._take = take
        self._waits = waits
        self._patience = patience
        self._request = request
        self._offset: int | None = None

    def is_receiving(self) -> bool:
        """Say whether the last good poll is not longer ago than two polls take."""
        return self._patience.has_heard_within(2 * (POLL_SECONDS + 5))

    async def run(self) -> None:
        """Poll until cancelled; raise SettingsError when Telegram refuses the token."""
        await self._request.initialize()
        try:
            while True:
                updates = await self._patience.call_with_retry(self._poll)
                self._patience.record_contact()
                await self._take_all(updates)
        finally:
            self._patience.heard_at = None

    async def close(self) -> None:
        """Release the connection."""
        await self._request.shutdown()

    async def _poll(self) -> Sequence[Mapping[str, Any]]:
        """Ask for what is new. The raw objects: one that cannot be read must not cost those beside it."""
        asked: dict[str, Any] = {"timeout": POLL_SECONDS, "limit": self._batch(), "allowed_updates": json.dumps(KINDS)}
        if self._offset is not None:
            # Only to confirm what was just stored: a short poll, and without an offset from then on. Update ids
            # restart at random after a quiet week, and an old offset would confirm what nobody has heard.
            asked |= {"offset": self._offset, "timeout": 0}
        seconds = float(asked["timeout"]) + 5.0
        found = await self._request.post(f"{self._address}?{urlencode(asked)}", read_timeout=seconds)
        self._offset = None
        if not isinstance(found, list) or not all(_is_update(each) for each in found):
            raise TelegramError("the answer to getUpdates is no list of updates")
        return found

    def _batch(self) -> int:
        return 1 if self._is_cautious() else _BATCH

    async def _take_all(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """Hand a batch over at once, in its order: what waited for us is in the journal together, and merges there.

        The offset goes up to the first that could not be taken; what comes again behind it is known by its id.
        """
        results = await asyncio.gather(*(self._take(update) for update in updates), return_exceptions=True)
        for update, wrong in zip(updates, results, strict=True):
            if wrong is not None:
                await self._not_taken(update, wrong)
                return
            self._offset = int(update["update_id"]) + 1

    async def _not_taken(self, update: Mapping[str, Any], wrong: BaseException) -> None:
        if isinstance(wrong, StoreUnavailable):
            log.warning("telegram.waits_for_store", channel=self._name, reason=str(wrong))
        elif isinstance(wrong, Exception):  # the channel boundary: it comes again, and the intake says how often
            log.error("telegram.update_failed", channel=self._name, update=update["update_id"], exc_info=wrong)
        else:
            raise wrong
        await asyncio.sleep(self._waits.store)


def _is_update(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("update_id"), int)
