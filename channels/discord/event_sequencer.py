"""One gate per chat: what is read back and what comes live passes it in order, and what fails is read again.

Discord has no acknowledgement: an event that could not be stored is gone from the gateway. So a chat whose event
failed, and every chat after a new session, is *behind*: it is read over REST from its mark before anything
else passes. Handing the same message in twice is harmless, the journal knows it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import structlog

from gateway.errors import RetryLater, SendFailed, StoreUnavailable

log = structlog.get_logger(__name__)

MOST_WAITING = 1_000  # live events of one chat; more are forgotten here and read back
_ATTEMPTS = 10  # in a row that end in a bug; what the store or the network cannot do now is tried for ever
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class SequencedEventKind(StrEnum):
    """What an event is."""

    SAID = "said"
    EDITED = "edited"
    DELETED = "deleted"
    USED = "used"  # a command was chosen, a button pressed
    LISTED = "listed"  # a session began, and names the servers that we are in
    CAME = "came"  # a server was told
    LEFT = "left"  # a server is gone
    ODD = "odd"  # nobody can read it


_ASIDE = "!"


def unordered_key(chat: str = "") -> str:
    """Return the gate for what happened in *chat* and has no history: it never waits for one to be read."""
    return f"{_ASIDE}{chat}"


def is_aside(gate: str) -> bool:
    """Say whether a gate is one of `aside`."""
    return gate.startswith(_ASIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencedEvent:
    """One message that came, changed or went; or what else happened in a chat."""

    happening: SequencedEventKind
    ident: str
    payload: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The same when Discord brings the event again, over the gateway or as history."""
        if self.happening not in (SequencedEventKind.SAID, SequencedEventKind.EDITED):
            return f"{self.happening}/{self.ident}"
        revision = self.payload.get("edited_timestamp") or ""
        return f"message/{self.ident}/{revision}".rstrip("/")


class EventSink(Protocol):
    """What a gate opens to."""

    async def backfill(self, chat: str) -> None:
        """Hand over what was said in *chat* after its mark."""
        ...

    async def dispatch(self, chat: str, event: SequencedEvent) -> None:
        """Hand one event over; it is durable, or refused for good, when this returns."""
        ...


class EventSequencer:
    """All gates of a channel. `put` is for the gateway's callback: it never waits and never raises."""

    def __init__(self, house: EventSink, tasks: asyncio.TaskGroup, *, name: str) -> None:
        self._house = house
        self._tasks = tasks
        self._name = name
        self._session = 0
        self._read: dict[str, int] = {}  # the session in which a chat was last known to miss nothing
        self._queues: dict[str, deque[SequencedEvent]] = {}  # of the chats that are at work

    @property
    def is_idle(self) -> bool:
        """Say whether nothing waits at any gate."""
        return not self._queues

    def begin_session(self) -> None:
        """Every chat may have missed something: it is read before its next event passes."""
        self._session += 1

    def is_known(self, chat: str) -> None:
        """Note that *chat* has nothing after its mark in this session."""
        if chat not in self._queues:
            self._read[chat] = self._session

    def put(self, chat: str, event: SequencedEvent | None = None) -> None:
        """Let *event* wait at its chat's gate; without one, only read the chat if it is behind."""
        queue = self._queues.get(chat)
        if queue is None:
            if event is None and self._read.get(chat) == self._session:
                return
            queue = self._queues[chat] = deque()
            self._tasks.create_task(self._work(chat, queue), name=f"{self._name} gate {chat}")
        if event is not None:
            queue.append(event)
        if len(queue) > MOST_WAITING:
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
                    await asyncio.sleep(min(_FIRST_PAUSE * 2.0 ** (failures - 1), _LONGEST_PAUSE))
        finally:
            del self._queues[chat]

    async def _step(self, chat: str, queue: deque[SequencedEvent], failures: int) -> bool:
        """Read back or hand one event over; False when it has to be tried again."""
        event: SequencedEvent | None = None
        try:
            if self._read.get(chat) != self._session:
                session = self._session
                await self._house.backfill(chat)
                self._read[chat] = session
            elif queue:
                event = queue[0]
                await self._house.dispatch(chat, event)
                self._forget(queue, event)
        except (StoreUnavailable, SendFailed) as error:
            reason = type(error).__name__
            log.warning("discord.behind", channel=self._name, chat=chat, reason=reason, failures=failures + 1)
            if isinstance(error, RetryLater):
                await asyncio.sleep(min(error.delay.total_seconds(), _LONGEST_PAUSE))
            return False
        except Exception:  # the channel boundary: one message that meets a bug does not close its chat
            log.exception("discord.event_failed", channel=self._name, chat=chat, attempt=failures + 1)
            if failures + 1 < _ATTEMPTS:
                return False
            self._forget(queue, event)
            self._read[chat] = self._session
        return True

    @staticmethod
    def _forget(queue: deque[SequencedEvent], event: SequencedEvent | None) -> None:
        """Take *event* from the queue, unless a flood has emptied it meanwhile."""
        if event is not None and queue and queue[0] is event:
            queue.popleft()
