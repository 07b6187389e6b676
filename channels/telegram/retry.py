"""Retries of calls that receiving depends on: backoff, conflicts with another poller, refused tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from telegram.error import Conflict, EndPointNotFound, InvalidToken, RetryAfter, TelegramError

from channels.telegram.api import TELEGRAM, copy_the_token, describe_error, is_token_refused, not_telegram, retry_after
from gateway.errors import LoginRefused, SettingsError

log = structlog.get_logger(__name__)

T = TypeVar("T")

WEBHOOK_SET = (
    "Telegram delivers this bot's messages to a webhook, so that they cannot be fetched; open"
    " https://api.telegram.org/bot<token>/deleteWebhook in a browser, or set `mode` to webhook"
)
OTHER_POLLER = (
    "another program fetches the messages of this bot; stop it, or give this bot a token of its own with @BotFather"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDelays:
    """Seconds between one attempt and the next."""

    store: float = 1.0  # the journal cannot write
    first: float = 1.0  # Telegram is unreachable; doubled each time
    longest: float = 30.0
    conflict: float = 60.0  # another program polls: one of the two has to stop
    watch: float = 30.0  # between two looks at the webhook's status
    press: float = 3.0  # until a press is answered without the turn's own answer


class ApiRetrier:
    """Repeats calls and remembers when Telegram last answered."""

    def __init__(self, name: str, waits: RetryDelays, *, base_url: str) -> None:
        self._name = name
        self._base_url = base_url
        self._waits = waits
        self._failures = 0
        self._is_conflict_logged = False
        self.contact_at: float | None = None  # the last answer that proves that updates are received

    def had_contact_within(self, seconds: float) -> bool:
        """Return True if the last contact is not older than *seconds*."""
        return self.contact_at is not None and time.monotonic() - self.contact_at < seconds

    def record_contact(self) -> None:
        """Record that updates are received now."""
        self.contact_at = time.monotonic()

    async def call_with_retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat *call* until Telegram answers it.

        Raises LoginRefused for a refused token, SettingsError if another server answers at base_url.
        """
        while True:
            try:
                answer = await call()
            except (InvalidToken, EndPointNotFound) as error:
                if not is_token_refused(error) and self._base_url == TELEGRAM:
                    pause = self._note_unreachable(error)  # a proxy's page, say: not Telegram's answer
                else:
                    self.contact_at = None
                    raise self._refusal(error) from None
            except Conflict as error:
                pause = self._note_conflict(error)
            except RetryAfter as error:
                pause = retry_after(error).total_seconds()
                log.info("telegram.asked_to_wait", channel=self._name, seconds=pause)
            except TelegramError as error:
                pause = self._note_unreachable(error)
            else:
                self._note_reached()
                return answer
            await asyncio.sleep(pause)

    def _refusal(self, error: TelegramError) -> SettingsError:
        if not is_token_refused(error):
            return SettingsError(f"channels.{self._name}: {not_telegram(self._base_url)}")
        return LoginRefused(
            f"Telegram refuses the token of channels.{self._name}; {copy_the_token(error, self._base_url)}, or set"
            " `enabled` to false"
        )

    def _note_conflict(self, error: Conflict) -> float:
        """Return the pause after a conflict with another poller or a webhook; log it once."""
        self.contact_at = None
        if not self._is_conflict_logged:
            self._is_conflict_logged = True
            mend = WEBHOOK_SET if "webhook" in error.message.lower() else OTHER_POLLER
            log.error("telegram.conflict", channel=self._name, mend=mend, seconds=self._waits.conflict)
        return self._waits.conflict

    def _note_unreachable(self, error: TelegramError) -> float:
        self._failures += 1
        if self._failures > 1:  # one broken poll is common
            self.contact_at = None
        pause = min(self._waits.first * 2.0 ** min(self._failures - 1, 10), self._waits.longest)
        log.warning("telegram.unreachable", channel=self._name, reason=describe_error(error), seconds=pause)
        return pause

    def _note_reached(self) -> None:
        if self._failures or self._is_conflict_logged:
            log.info("telegram.reached", channel=self._name)
        self._failures, self._is_conflict_logged = 0, False
