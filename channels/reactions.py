"""Acknowledging reactions, shared by the platforms: put on a stored message, taken away when its turn has ended."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

import structlog

from gateway.errors import FormatRefused, RetryLater, SendFailed, SendRefused, StoreUnavailable
from gateway.events import SessionKey
from gateway.ports import ChannelContext

log = structlog.get_logger(__name__)

_PREFIX = "reaction/"
_SWEEP_EVERY = 60.0  # seconds between two looks at what may be taken away
_KEPT = timedelta(days=7)  # a reaction that could not be taken away for so long is left alone
_MOST = 5_000  # reactions that may stand at once; a message beyond that gets none


@dataclass(frozen=True, slots=True)
class AckReaction:
    """A reaction that may stand on a message."""

    key: SessionKey  # the message's session
    chat: str  # where the message stands on the platform
    message_id: str
    at: datetime

    @property
    def note(self) -> str:
        """Return the name of its durable note."""
        return f"{_PREFIX}{self.chat}/{self.message_id}"

    def encode(self) -> str:
        """Return it as the text of its note."""
        return json.dumps([str(self.key), self.chat, self.message_id, self.at.isoformat()])

    @classmethod
    def decode(cls, text: str) -> AckReaction:
        """Undo `encode`."""
        key, chat, message_id, at = json.loads(text)
        return cls(SessionKey.parse(key), chat, message_id, datetime.fromisoformat(at))


Call: TypeAlias = Callable[[AckReaction, bool], Awaitable[None]]  # puts it, or takes it away; raises SendFailed


class AckReactions:
    """The reactions of one channel; ended by `close`. Nothing here raises, and no message waits for it.

    Each has a durable note from before it is put until it is known to be gone. So a kill leaves none behind for ever:
    the next run takes away whatever is on a message that has ended.
    """

    def __init__(self, context: ChannelContext, call: Call) -> None:
        self._name = context.name
        self._state = context.state
        self._open = context.open_messages
        self._call = call
        self._standing: dict[SessionKey, dict[str, AckReaction]] = {}
        self._count = 0
        self._steps: dict[SessionKey, deque[Callable[[], Awaitable[None]]]] = {}  # in order, or one could be put late
        self._not_before: dict[SessionKey, float] = {}  # the loop's time, where the platform asked us to wait
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take away what an earlier run left, and what fails from now on; idempotent."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._begin(self._sweep(), "reactions")

    def add(self, key: SessionKey, chat: str, message_id: str) -> None:
        """Show that a message was stored; a redelivery shows nothing new."""
        self._then(key, partial(self._put, AckReaction(key, chat, message_id, datetime.now(UTC))))

    def settle(self, key: SessionKey) -> None:
        """Take away the reactions on the messages of *key* that have ended."""
        if key in self._standing or key in self._steps:
            self._then(key, partial(self._take_away, key))

    async def close(self) -> None:
        """End at once; what stands is taken away by the next run."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- one session's steps, in order -----------------------------------------------------------

    def _then(self, key: SessionKey, step: Callable[[], Awaitable[None]]) -> None:
        steps = self._steps.get(key)
        if steps is not None:
            steps.append(step)
            return
        self._steps[key] = deque([step])
        self._begin(self._run(key), f"reactions {key}")

    async def _run(self, key: SessionKey) -> None:
        steps = self._steps[key]
        try:
            while steps:
                try:
                    await steps.popleft()()
                except StoreUnavailable as error:
                    log.info("reactions.wait_for_store", channel=self._name, reason=str(error))
                except Exception:  # the channel boundary: a reaction is never worth a turn
                    log.exception("reactions.failed", channel=self._name)
        finally:
            del self._steps[key]

    def _begin(self, work: Awaitable[None], name: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        task.set_name(f"{self._name} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _put(self, reaction: AckReaction) -> None:
        if reaction.message_id in self._standing.get(reaction.key, {}) or self._count >= _MOST:
            return
        await self._state.save(reaction.note, reaction.encode())
        self._keep(reaction)
        try:
            await self._call(reaction, True)
        except (SendRefused, FormatRefused, RetryLater) as error:
            log.info("reactions.not_put", channel=self._name, reason=str(error))
            await self._forget(reaction)
        except SendFailed as error:
            log.info("reactions.unsure", channel=self._name, reason=str(error))

    async def _take_away(self, key: SessionKey) -> None:
        if asyncio.get_running_loop().time() < self._not_before.get(key, 0.0):
            return
        self._not_before.pop(key, None)
        still_open = await self._open(key)
        for reaction in [each for each in self._standing.get(key, {}).values() if each.message_id not in still_open]:
            try:
                await self._call(reaction, False)
            except RetryLater as error:
                self._not_before[key] = asyncio.get_running_loop().time() + error.delay.total_seconds()
                return
            except (SendRefused, FormatRefused) as error:
                log.info("reactions.gone", channel=self._name, reason=str(error))
            except SendFailed as error:
                log.info("reactions.not_taken_away", channel=self._name, reason=str(error))
                return
            await self._forget(reaction)

    async def _forget(self, reaction: AckReaction) -> None:
        await self._state.save(reaction.note, None)
        standing = self._standing[reaction.key]
        del standing[reaction.message_id]
        self._count -= 1
        if not standing:
            del self._standing[reaction.key]

    def _keep(self, reaction: AckReaction) -> None:
        standing = self._standing.setdefault(reaction.key, {})
        if reaction.message_id not in standing:
            standing[reaction.message_id] = reaction
            self._count += 1

    # -- what is left over ----------------------------------------------------------------------

    async def _sweep(self) -> None:
        is_loaded = False
        while True:
            try:
                if not is_loaded:
                    await self._load()
                    is_loaded = True
            except StoreUnavailable as error:
                log.info("reactions.wait_for_store", channel=self._name, reason=str(error))
            for key in list(self._standing):
                self.settle(key)
            await asyncio.sleep(_SWEEP_EVERY)

    async def _load(self) -> None:
        for note, text in (await self._state.all(_PREFIX)).items():
            reaction = AckReaction.decode(text)
            if datetime.now(UTC) - reaction.at > _KEPT:
                await self._state.save(note, None)
            else:
                self._keep(reaction)
