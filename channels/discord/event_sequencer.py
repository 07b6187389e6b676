"""One queue per chat: backfilled and live events are processed in order, and a failed event is read again.

Discord has no acknowledgement: an event that could not be stored is lost for the gateway. So a chat with a failed
event, and every chat after a new session, is *behind*: it is read over REST from its read cursor before any other
event. Processing a message twice is harmless, because the journal deduplicates it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import structlog

from gateway.backoff import exponential_delay
from gateway.errors import RetryLater, SendFailed, StoreUnavailable

log = structlog.get_logger(__name__)

QUEUE_LIMIT = 1_000  # live events of one chat; more are dropped here and backfilled
_ATTEMPTS = 10  # in a row that end in a bug; store and network failures are retried for ever
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class SequencedEventKind(StrEnum):
    """The kind of an event."""

    SAID = "said"  # a new message
    EDITED = "edited"
    DELETED = "deleted"
    USED = "used"  # a native command or a pressed button
    LISTED = "listed"  # a session started and lists the bot's guilds
    CAME = "came"  # a guild was announced
    LEFT = "left"  # a guild is gone
    ODD = "odd"  # cannot be parsed


_UNORDERED = "!"


def unordered_key(chat: str = "") -> str:
    """Return the queue for events of *chat* that have no history: they never wait for a backfill."""
    return f"{_UNORDERED}{chat}"


def is_unordered(chat: str) -> bool:
    """Return True if *chat* was returned by `unordered_key`."""
    return chat.startswith(_UNORDERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencedEvent:
    """A message that was created, edited or deleted, or another event of a chat."""

    kind: SequencedEventKind
    id: str
    payload: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The event's id, which is the same over the gateway and in the history."""
        if self.kind not in (SequencedEventKind.SAID, SequencedEventKind.EDITED):
            return f"{self.kind}/{self.id}"
        revision = self.payload.get("edited_timestamp") or ""
        return f"message/{self.id}/{revision}".rstrip("/")


class EventSink(Protocol):
    """The receiver of events."""

    async def backfill(self, chat: str) -> None:
        """Process the messages of *chat* after its read cursor."""

    async def dispatch(self, chat: str, event: SequencedEvent) -> None:
        """Process one event; on return it is durable or rejected for good."""


class EventSequencer:
    """All queues of a channel. The gateway's callback calls `put`, which never waits and never raises."""

    def __init__(
        self, sink: EventSink, tasks: asyncio.TaskGroup, *, name: str, on_idle: Callable[[], object] = lambda: None
    ) -> None:
        """*on_idle* is called when every event that was put has been processed."""
        self._sink = sink
        self._on_idle = on_idle
        self._tasks = tasks
        self._name = name
        self._session = 0
        self._read: dict[str, int] = {}  # the last session in which a chat was complete
        self._queues: dict[str, deque[SequencedEvent]] = {}  # of the chats with a running task

    @property
    def is_idle(self) -> bool:
        """True if no event is queued."""
        return not self._queues

    def begin_session(self) -> None:
        """Start a session: each chat is backfilled before its next event, because it may have missed some."""
        self._session += 1

    def mark_complete(self, chat: str) -> None:
        """Record that *chat* has no message after its cursor in this session."""
        if chat not in self._queues:
            self._read[chat] = self._session

    def put(self, chat: str, event: SequencedEvent | None = None) -> None:
        """Queue *event*; without one, only backfill the chat if it is behind."""
        queue = self._queues.get(chat)
        if queue is None:
            if event is None and self._read.get(chat) == self._session:
                return
            queue = self._queues[chat] = deque()
            self._tasks.create_task(self._work(chat, queue), name=f"{self._name} events {chat}")
        if event is not None:
            queue.append(event)
        if len(queue) > QUEUE_LIMIT:
            log.warning("discord.gate_flooded", channel=self._name, chat=chat, events=len(queue))
            queue.clear()
            self._read.pop(chat, None)

    async def _work(self, chat: str, queue: deque[SequencedEvent]) -> None:
        failures = 0
        try:
            while self._read.get(chat) != self._session or queue:
                if await self._step(chat, queue, failures):
                    failures = 0
                else:
                    failures += 1
                    self._read.pop(chat, None)
                    await asyncio.sleep(exponential_delay(failures, _FIRST_PAUSE, _LONGEST_PAUSE))
        finally:
            del self._queues[chat]
        if self.is_idle:
            self._on_idle()

    async def _step(self, chat: str, queue: deque[SequencedEvent], failures: int) -> bool:
        """Backfill or process one event; return False if it must be retried."""
        event: SequencedEvent | None = None
        try:
            if self._read.get(chat) != self._session:
                session = self._session
                await self._sink.backfill(chat)
                self._read[chat] = session
            elif queue:
                event = queue[0]
                await self._sink.dispatch(chat, event)
                self._drop(queue, event)
        except (StoreUnavailable, SendFailed) as error:
            reason = type(error).__name__
            log.warning("discord.behind", channel=self._name, chat=chat, reason=reason, failures=failures + 1)
            if isinstance(error, RetryLater):
                await asyncio.sleep(min(error.delay.total_seconds(), _LONGEST_PAUSE))
            return False
        except Exception:  # the channel boundary: one message with a bug does not block its chat
            log.exception("discord.event_failed", channel=self._name, chat=chat, attempt=failures + 1)
            if failures + 1 < _ATTEMPTS:
                return False
            self._drop(queue, event)
            self._read[chat] = self._session
        return True

    @staticmethod
    def _drop(queue: deque[SequencedEvent], event: SequencedEvent | None) -> None:
        """Remove *event* from the queue, unless a flood has emptied it."""
        if event is not None and queue and queue[0] is event:
            queue.popleft()
