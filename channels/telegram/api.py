"""The Bot API: requests that log nothing, errors mapped to SendFailed, and retries for receiving.

The address of every call contains the token, so only errors with a text that Telegram wrote leave this module.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog
from telegram import Bot, MessageEntity
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    EndPointNotFound,
    Forbidden,
    InvalidToken,
    RetryAfter,
    TelegramError,
)

from channels.telegram.http_request import NEVER_SENT, AiohttpRequest
from gateway.backoff import exponential_delay
from gateway.errors import (
    FormatRefused,
    LoginRefused,
    OutcomeUnknown,
    PlaceGone,
    RetryLater,
    SendFailed,
    SendRefused,
    SettingsError,
)

# The library's switch for timedeltas, the default of its next release; without it, it warns at every 429.
os.environ.setdefault("PTB_TIMEDELTA", "true")

TELEGRAM = "https://api.telegram.org/bot"
_CONNECTIONS = 32
_UNREACHED = timedelta(seconds=2)
_TOKEN_REFUSED = timedelta(seconds=60)

# No list of these texts is published; they are as the Bot API and the MTProto errors behind it write them.
_PLACE_GONE = (
    *("thread not found", "topic_closed", "topic_deleted", "topic_id_invalid", "topic closed", "topic deleted"),
    *("chat not found", "chat was deactivated", "chat_write_forbidden", "chat_restricted", "channel_private"),
    *("not enough rights to send text", "have no rights to send", "need administrator rights", "chat_admin_required"),
    *("chat_send_plain_forbidden", "peer_id_invalid", "user_banned_in_channel", "channel_invalid"),
)
_FORMAT_WORDS = ("can't parse entities", "can't find end", "entity", "entities", "unsupported start tag")


def make_requests(proxy: str = "") -> tuple[AiohttpRequest, AiohttpRequest]:
    """Return the request objects of a bot: for calls and downloads, and with one connection for long polls."""
    return AiohttpRequest(_CONNECTIONS, proxy=proxy), AiohttpRequest(1, proxy=proxy)


def make_bot(token: str, base_url: str, file_url: str, calls: AiohttpRequest, polling: AiohttpRequest) -> Bot:
    """Return the library's bot, not connected."""
    return Bot(token, base_url=base_url, base_file_url=file_url, request=calls, get_updates_request=polling)


def entities_of(fields: tuple[dict[str, Any], ...]) -> list[MessageEntity] | None:
    """Return entities as the library's objects."""
    return [MessageEntity.de_json(dict(each)) for each in fields] or None


def retry_after(error: RetryAfter) -> timedelta:
    """Return the pause that Telegram asks for in that chat."""
    seconds = error.retry_after
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)


def is_unchanged(error: TelegramError) -> bool:
    """Return True if an edit was refused because the message has that text already."""
    return isinstance(error, BadRequest) and "not modified" in error.message.lower()


def is_token_refused(error: TelegramError) -> bool:
    """Return True if a Bot API refused the token; the library reports every 401 and 404 like that."""
    is_refusal = isinstance(error, InvalidToken | EndPointNotFound) and error.__cause__ is None  # the body is JSON
    # Where the body has no description, the library writes the status in its place.
    return is_refusal and not error.message.endswith(("(401)", "(404)"))


def copy_the_token(error: TelegramError, base_url: str) -> str:
    """Return the remedy for a refused token. At a self-hosted server a 404 can mean a wrong address."""
    mend = "copy it again from @BotFather (/mybots, the bot, API Token)"
    is_doubtful = base_url != TELEGRAM and "unauthorized" not in error.message.lower()
    return f"{mend}, or correct `base_url`, {_address(base_url)}" if is_doubtful else mend


def not_telegram(base_url: str) -> str:
    """Return the error text for another server at the configured address."""
    return f"the server at {_address(base_url)} is not Telegram's Bot API; correct `base_url`, or remove it"


def _address(base_url: str) -> str:
    """Return an address without its path, which may contain a secret."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.hostname}"


@contextmanager
def map_send_errors(*, is_formatted: bool = False) -> Iterator[None]:
    """Raise TelegramError as SendFailed; *is_formatted* says that the call carries formatting that can be refused."""
    try:
        yield
    except TelegramError as error:
        raise send_failure(error, is_formatted=is_formatted) from None


def send_failure(error: TelegramError, *, is_formatted: bool) -> SendFailed:
    """Return *error* of a call as delivery expects it."""
    if isinstance(error, RetryAfter):
        return RetryLater(retry_after(error))
    if isinstance(error, Forbidden):
        return PlaceGone(describe_error(error))
    if isinstance(error, ChatMigrated):
        return SendRefused("the group became a supergroup twice in a row")
    if isinstance(error, BadRequest):
        return _bad_request(error, is_formatted=is_formatted)
    if isinstance(error, InvalidToken | EndPointNotFound):
        # The token may be corrected; the poller logs how.
        return RetryLater(_TOKEN_REFUSED, "Telegram rejects the token")
    if "too large" in error.message.lower():  # Telegram, or a proxy: "Request Entity" or "Content Too Large (413)"
        return SendRefused("larger than Telegram allows")
    if "too many requests" in error.message.lower():  # asked to wait for 0 seconds: the library drops the number
        return RetryLater(timedelta(seconds=1))
    if isinstance(error.__cause__, NEVER_SENT):
        return RetryLater(_UNREACHED, f"Telegram cannot be reached: {type(error.__cause__).__name__}")
    return OutcomeUnknown(describe_error(error))


def _bad_request(error: BadRequest, *, is_formatted: bool) -> SendFailed:
    text, reason = error.message.lower(), describe_error(error)
    if is_formatted and any(word in text for word in _FORMAT_WORDS):
        return FormatRefused(reason)
    return PlaceGone(reason) if any(words in text for words in _PLACE_GONE) else SendRefused(reason)


def describe_error(error: TelegramError) -> str:
    """Return a loggable description of *error*: Telegram's own text or the type of failure."""
    cause = error.__cause__
    if isinstance(error, InvalidToken | EndPointNotFound) or cause is not None:
        return type(cause or error).__name__
    return error.message[:200]


log = structlog.get_logger(__name__)

T = TypeVar("T")

WEBHOOK_SET = (
    "Telegram delivers this bot's messages to a webhook, so that they cannot be fetched; open"
    " https://api.telegram.org/bot<token>/deleteWebhook in a browser, or set `mode` to webhook"
)
OTHER_POLLER = (
    "another program polls the messages of this bot; stop it, or give this bot a token of its own with @BotFather"
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
            f"Telegram rejects the token of channels.{self._name}; {copy_the_token(error, self._base_url)}, or set"
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
        pause = exponential_delay(self._failures, self._waits.first, self._waits.longest)
        log.warning("telegram.unreachable", channel=self._name, reason=describe_error(error), seconds=pause)
        return pause

    def _note_reached(self) -> None:
        if self._failures or self._is_conflict_logged:
            log.info("telegram.reached", channel=self._name)
        self._failures, self._is_conflict_logged = 0, False
