"""Hearing Telegram: long polling whose offset follows what is durable with us.

The library's own updater confirms an update when it stands in a queue in memory; a kill there loses it. Here an
update is confirmed by the poll that comes after its row was committed, and by no other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import structlog
from telegram.error import Conflict, EndPointNotFound, InvalidToken, RetryAfter, TelegramError

from channels.telegram.wire import QuietRequest, asked_to_wait, described
from gateway.errors import SettingsMistake, StoreDown

log = structlog.get_logger(__name__)

T = TypeVar("T")
Take = Callable[[Mapping[str, Any]], Awaitable[None]]

POLL_SECONDS = 25
_BATCH = 100
_KINDS = json.dumps(["message", "edited_message", "callback_query", "my_chat_member"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds between one try and the next."""

    store: float = 1.0  # our journal cannot write
    first: float = 1.0  # Telegram is not reached; doubled each time
    longest: float = 30.0
    conflict: float = 60.0  # somebody else polls: one of us has to give way


class Poller:
    """Fetches updates and hands each to *take*, in order; it returns when one is durable, or no affair of ours."""

    def __init__(
        self,
        name: str,
        address: str,
        request: QuietRequest,
        take: Take,
        waits: Waits,
        *,
        is_cautious: Callable[[], bool],
    ) -> None:
        """Poll *address*, which holds the token, over *request*, which `close` closes; one by one while cautious."""
        self._is_cautious = is_cautious
        self._name = name
        self._address = address
        self._take = take
        self._waits = waits
        self._request = request
        self._offset: int | None = None
        self._heard_at: float | None = None
        self._failures = 0
        self._is_conflict_told = False

    def is_hearing(self) -> bool:
        """Say whether the last good poll is not longer ago than two polls take."""
        return self._heard_at is not None and time.monotonic() - self._heard_at < 2 * (POLL_SECONDS + 5)

    async def run(self) -> None:
        """Poll until cancelled; raise SettingsMistake when Telegram refuses the token."""
        await self._request.initialize()
        try:
            while True:
                updates = await self.patiently(self._poll)
                self._heard_at = time.monotonic()
                await self._take_all(updates)
        finally:
            self._heard_at = None

    async def close(self) -> None:
        """Release the connection."""
        await self._request.shutdown()

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat *call* until Telegram answers it; raise SettingsMistake when the token is refused."""
        while True:
            try:
                answer = await call()
            except (InvalidToken, EndPointNotFound):
                self._heard_at = None
                raise SettingsMistake(
                    f"Telegram refuses the token of channels.{self._name}; copy it again from @BotFather (/mybots,"
                    " API Token), or set `enabled` to false"
                ) from None
            except Conflict:
                pause = self._conflict()
            except RetryAfter as error:
                pause = asked_to_wait(error).total_seconds()
                log.info("telegram.asked_to_wait", channel=self._name, seconds=pause)
            except TelegramError as error:
                pause = self._unreachable(error)
            else:
                self._reached()
                return answer
            await asyncio.sleep(pause)

    def _conflict(self) -> float:
        """Somebody else polls with our token, or a webhook is set: said once, and no fight."""
        self._heard_at = None
        if not self._is_conflict_told:
            self._is_conflict_told = True
            log.error(
                "telegram.conflict",
                channel=self._name,
                mend="another program polls with this bot's token, or a webhook is set (deleteWebhook removes it);"
                " stop the other one, or give this bot a token of its own with @BotFather",
                seconds=self._waits.conflict,
            )
        return self._waits.conflict

    def _unreachable(self, error: TelegramError) -> float:
        self._failures += 1
        if self._failures > 1:  # one broken poll is everyday
            self._heard_at = None
        pause = min(self._waits.first * 2.0 ** min(self._failures - 1, 10), self._waits.longest)
        log.warning("telegram.unreachable", channel=self._name, reason=described(error), seconds=pause)
        return pause

    def _reached(self) -> None:
        if self._failures or self._is_conflict_told:
            log.info("telegram.reached", channel=self._name)
        self._failures, self._is_conflict_told = 0, False

    async def _poll(self) -> Sequence[Mapping[str, Any]]:
        """Ask for what is new. The raw objects: one that cannot be read must not cost those beside it."""
        asked: dict[str, Any] = {"timeout": POLL_SECONDS, "limit": self._batch(), "allowed_updates": _KINDS}
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
        for update in updates:
            try:
                await self._take(update)
            except StoreDown as error:
                log.warning("telegram.waits_for_store", channel=self._name, reason=str(error))
                await asyncio.sleep(self._waits.store)
                return
            except Exception:  # the channel boundary: it comes again, and the intake says how often
                log.exception("telegram.update_failed", channel=self._name, update=update["update_id"])
                await asyncio.sleep(self._waits.store)
                return
            self._offset = int(update["update_id"]) + 1


def _is_update(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("update_id"), int)
