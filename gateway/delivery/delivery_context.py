"""The context shared by delivery workers and previews: ports, back-off and waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import SystemRandom
from typing import TYPE_CHECKING, TypeVar

import structlog

from gateway.backoff import exponential_delay
from gateway.channel import Channel
from gateway.errors import FileUnavailable, OutcomeUnknown, SendFailed, SendRefused, StoreUnavailable
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.ports.channel import in_english
from gateway.ports.metrics import MetricsRecorder
from gateway.text import weight
from gateway.text.redaction import SecretRedactor

if TYPE_CHECKING:
    from gateway.delivery.turn_preview import TurnPreview
    from gateway.store.outbox import SqlOutbox


log = structlog.get_logger(__name__)

T = TypeVar("T")

FIRST_DELAY = 2.0  # seconds before a failed send is tried again; doubled each time
LONGEST_DELAY = 900.0
_STORE_PAUSES = (0.5, 30.0)
_KEPT = 256  # turns whose preview is remembered until their answer is cut
_CHEAP = (4_000, 250)  # characters and signs that are formatted on the event loop: a few milliseconds
_FILE_TIMEOUT = timedelta(minutes=5)  # an upload takes longer than a text
_dice = SystemRandom()


def backoff(failures: int) -> float:
    """Return the seconds to wait after *failures*, with a jitter of one fifth."""
    return exponential_delay(failures, FIRST_DELAY, LONGEST_DELAY) * _dice.uniform(0.8, 1.2)


def is_cheap(text: str) -> bool:
    """Return True if *text* is formatted on the event loop."""
    longest, heaviest = _CHEAP
    return len(text) <= longest and weight(text) <= heaviest


class AttachmentLost(SendRefused):
    """The bytes of a part that is a file are not there any more."""


class ChatBackoff:
    """Back-off of each chat as demanded by its platform; threads share their chat's."""

    def __init__(self) -> None:
        self._until: dict[SessionKey, tuple[float, str]] = {}

    def add(self, key: SessionKey, seconds: float, reason: str) -> None:
        """Say nothing in this chat for *seconds*."""
        until = asyncio.get_running_loop().time() + seconds
        self._until[key.parent] = max((until, reason), self._until.get(key.parent, (until, reason)))

    def remaining(self, key: SessionKey) -> tuple[float, str]:
        """Return the remaining seconds of the chat's back-off, or 0, and its reason."""
        if (found := self._until.get(key.parent)) is None:
            return 0.0, ""
        left = found[0] - asyncio.get_running_loop().time()
        if left <= 0:
            del self._until[key.parent]
            return 0.0, ""
        return left, found[1]


async def say_no_more(part: MessagePart) -> str:  # noqa: ARG001 - the signature of `on_missing_file`
    """Return "": the file has no meaning beyond itself."""
    return ""


@dataclass(slots=True, kw_only=True)
class DeliveryContext:
    """The ports, options and shared state of all deliveries; one per gateway."""

    outbox: SqlOutbox
    meter: MetricsRecorder
    now: Callable[[], datetime]
    language: Callable[[SessionKey], str] = in_english  # of a chat
    per_channel: int = 16  # sends at once in one channel
    call_timeout: timedelta = timedelta(seconds=60)  # a platform that says nothing for so long has an unknown outcome
    # delivery.once: where a platform can neither be asked nor takes a send key, texts go by edit into placeholders.
    is_strict: bool = False
    redactor: SecretRedactor = field(default_factory=SecretRedactor)  # keeps secrets out of whatever is sent
    # Called with the part of a file that the platform does not take, before the line that says so; returns another
    # sentence of it.
    on_missing_file: Callable[[MessagePart], Awaitable[str]] = say_no_more
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    quieter: asyncio.Event = field(default_factory=asyncio.Event)  # a delivery worker ended or paused
    pauses: ChatBackoff = field(default_factory=ChatBackoff)
    previews: dict[str, TurnPreview] = field(default_factory=dict)  # the open ones, by turn
    previewed: dict[str, str] = field(default_factory=dict)  # what the preview of a turn showed, as Markdown
    working: set[SessionKey] = field(default_factory=set)  # chats with something undelivered
    slots: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    formatting: asyncio.Lock = field(default_factory=asyncio.Lock)  # of long texts: one at a time

    def slot(self, channel: str) -> asyncio.Semaphore:
        """Return the semaphore that bounds a channel's sends."""
        return self.slots.setdefault(channel, asyncio.Semaphore(self.per_channel))

    async def formatted(self, text: str, call: Callable[[], T]) -> T:
        """Return the result of *call*, which formats *text*; long texts are formatted in a thread.

        One at a time, followed by a pause of the same length: however many long answers there are, half
        of the time is left to other chats.
        """
        if is_cheap(text):
            return call()
        await self.formatting.acquire()
        begun = time.perf_counter()
        try:
            return await asyncio.to_thread(call)
        finally:
            asyncio.get_running_loop().call_later(time.perf_counter() - begun, self.formatting.release)

    def remember_preview(self, turn: str, text: str) -> None:
        """Record the text that the preview of *turn* shows, for planning its parts; the oldest entry is dropped."""
        self.previewed.pop(turn, None)
        self.previewed[turn] = text
        if len(self.previewed) > _KEPT:
            del self.previewed[next(iter(self.previewed))]

    def without_secrets(self, part: MessagePart) -> MessagePart:
        """Return *part*, as plain text if its formatting hid a secret from the redaction of the Markdown."""
        plain = self.redactor.redact(part.plain)
        return part if plain == part.plain else replace(part, payload="", plain=plain)

    def uses_placeholders(self, channel: Channel, message: OutboundMessage) -> bool:
        """Return True if the texts of *message* are edited into placeholders because lost sends cannot be looked up.

        Not for messages that one person alone sees: they may be shown in another chat than their key's.
        """
        able = channel.capabilities
        return self.is_strict and able.edits and not able.send_key and not able.finds and not message.visible_to

    async def backoff_sleep(self, seconds: float) -> None:
        """Wait *seconds*, or until the gateway stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    async def retry_store(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call of the outbox until it is stored; raise StoreUnavailable only when the gateway stops."""
        pause, longest = _STORE_PAUSES
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                if self.stopping.is_set():
                    raise
                log.warning("delivery.waits_for_store", reason=str(error), seconds=pause)
                await self.backoff_sleep(pause)
                pause = min(2 * pause, longest)

    async def call_channel(self, channel: Channel, part: MessagePart, call: Awaitable[T]) -> T:
        """Await a call of *channel* about *part*; whatever it raises comes out as SendFailed."""
        timeout = self.call_timeout if part.file is None else max(self.call_timeout, _FILE_TIMEOUT)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                return await call
        except SendFailed:
            raise
        except FileUnavailable as error:
            raise AttachmentLost(str(error)) from error
        except TimeoutError as error:
            raise OutcomeUnknown("the platform said nothing in time") from error
        except Exception as error:  # the channel boundary: its bug must not lose what it was to send
            log.exception("delivery.channel_failed", channel=channel.name, chat=str(part.key))
            raise OutcomeUnknown(type(error).__name__) from error
