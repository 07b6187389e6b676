"""Asking Telegram until it answers: what each failure means for when to ask again, and who is told."""

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
    """Seconds between one try and the next."""

    store: float = 1.0  # our journal cannot write
    first: float = 1.0  # Telegram is not reached; doubled each time
    longest: float = 30.0
    conflict: float = 60.0  # somebody else polls: one of us has to give way
    watch: float = 30.0  # how often Telegram is asked whether its webhook works
    press: float = 3.0  # how long a pressed button may turn until Telegram is told that it was heard


class ApiRetrier:
    """What is known of Telegram's end, call by call."""

    def __init__(self, name: str, waits: RetryDelays, *, base_url: str) -> None:
        self._name = name
        self._base_url = base_url
        self._waits = waits
        self._failures = 0
        self._is_conflict_told = False
        self.heard_at: float | None = None  # of the last good answer that says that we hear

    def has_heard_within(self, seconds: float) -> bool:
        """Say whether the last good answer is not older than *seconds*."""
        return self.heard_at is not None and time.monotonic() - self.heard_at < seconds

    def record_contact(self) -> None:
        """Note that we hear Telegram now."""
        self.heard_at = time.monotonic()

    async def call_with_retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat *call* until Telegram answers it; raise LoginRefused for the token, SettingsError for base_url."""
        while True:
            try:
                answer = await call()
            except (InvalidToken, EndPointNotFound) as error:
                if not is_token_refused(error) and self._base_url == TELEGRAM:
                    pause = self._unreachable(error)  # a proxy's page, say: no word of Telegram's
                else:
                    self.heard_at = None
                    raise self._refusal(error) from None
            except Conflict as error:
                pause = self._conflict(error)
            except RetryAfter as error:
                pause = retry_after(error).total_seconds()
                log.info("telegram.asked_to_wait", channel=self._name, seconds=pause)
            except TelegramError as error:
                pause = self._unreachable(error)
            else:
                self._reached()
                return answer
            await asyncio.sleep(pause)

    def _refusal(self, error: TelegramError) -> SettingsError:
        if not is_token_refused(error):
            return SettingsError(f"channels.{self._name}: {not_telegram(self._base_url)}")
        return LoginRefused(
            f"Telegram refuses the token of channels.{self._name}; {copy_the_token(error, self._base_url)}, or set"
            " `enabled` to false"
        )

    def _conflict(self, error: Conflict) -> float:
        """Somebody else polls with our token, or a webhook is set: said once, and no fight."""
        self.heard_at = None
        if not self._is_conflict_told:
            self._is_conflict_told = True
            mend = WEBHOOK_SET if "webhook" in error.message.lower() else OTHER_POLLER
            log.error("telegram.conflict", channel=self._name, mend=mend, seconds=self._waits.conflict)
        return self._waits.conflict

    def _unreachable(self, error: TelegramError) -> float:
        self._failures += 1
        if self._failures > 1:  # one broken poll is everyday
            self.heard_at = None
        pause = min(self._waits.first * 2.0 ** min(self._failures - 1, 10), self._waits.longest)
        log.warning("telegram.unreachable", channel=self._name, reason=describe_error(error), seconds=pause)
        return pause

    def _reached(self) -> None:
        if self._failures or self._is_conflict_told:
            log.info("telegram.reached", channel=self._name)
        self._failures, self._is_conflict_told = 0, False
