"""Acknowledging reactions: added to a message that was accepted, removed when its turn has ended."""

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

from channels.kit.background import BackgroundTasks
from gateway.errors import FormatRefused, RetryLater, SendFailed, SendRefused, StoreUnavailable
from gateway.events import SessionKey
from gateway.ports import ChannelContext

log = structlog.get_logger(__name__)

_PREFIX = "reaction/"
_SWEEP_INTERVAL = 60.0  # seconds between two checks of what can be removed
_SHARED_SWEEP_INTERVAL = 5.0  # where another worker may send the answers
_LIFETIME = timedelta(days=7)  # a reaction that could not be removed for so long stays
_NOTE_WITHIN = 0.1  # seconds; the claim of the message's turn is stored sooner as a rule
_LIMIT = 5_000  # reactions at once; a message beyond that gets none


@dataclass(frozen=True, slots=True)
class AckReaction:
    """A reaction that may be on a message."""

    key: SessionKey  # the message's session
    chat: str  # the platform's id of the chat
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
        """Return the reaction of a note; the inverse of `encode`."""
        key, chat, message_id, at = json.loads(text)
        return cls(SessionKey.parse(key), chat, message_id, datetime.fromisoformat(at))


ReactionCall: TypeAlias = Callable[[AckReaction, bool], Awaitable[None]]  # adds (True) or removes; raises SendFailed


class AckReactions:
    """The reactions of one channel. Methods return at once and never raise.

    Each reaction has a durable note from before it is added until it is known to be removed. After a kill the next
    run removes the reactions of every message that has ended.
    """

    def __init__(self, context: ChannelContext, call: ReactionCall) -> None:
        self._name = context.name
        self._state = context.state
        self._open = context.open_messages
        self._is_shared = context.is_shared
        self._call = call
        self._added: dict[SessionKey, dict[str, AckReaction]] = {}
        self._count = 0
        self._steps: dict[SessionKey, deque[Callable[[], Awaitable[None]]]] = {}  # in order, or one could be added late
        self._not_before: dict[SessionKey, float] = {}  # the loop's time, where the platform asked us to wait
        self.tasks = BackgroundTasks(context.name)  # for other work beside turns too
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start removing the reactions of earlier runs and retrying failed removals; idempotent."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self.tasks.start(self._sweep, "reactions")

    def add(self, key: SessionKey, chat: str, message_id: str, *, is_repeated: bool = False) -> None:
        """Add a reaction; has no effect if the message has one, or *is_repeated* and has ended."""
        reaction = AckReaction(key, chat, message_id, datetime.now(UTC))
        self._enqueue(key, partial(self._add, reaction, is_repeated=is_repeated))

    def settle(self, key: SessionKey) -> None:
        """Remove the reactions of the messages of *key* that have ended."""
        if key in self._added or key in self._steps:
            self._enqueue(key, partial(self._remove, key))

    async def close(self) -> None:
        """Cancel what is in flight; the next run removes the reactions that are left."""
        await self.tasks.close()

    # -- one session's steps, in order -----------------------------------------------------------

    def _enqueue(self, key: SessionKey, step: Callable[[], Awaitable[None]]) -> None:
        steps = self._steps.get(key)
        if steps is not None:
            steps.append(step)
            return
        self._steps[key] = deque([step])
        self.tasks.start(partial(self._run, key), "reactions")

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

    async def _add(self, reaction: AckReaction, *, is_repeated: bool) -> None:
        if reaction.message_id in self._added.get(reaction.key, {}) or self._count >= _LIMIT:
            return
        if is_repeated and reaction.message_id not in await self._open(reaction.key):
            return  # nothing would remove it before the next sweep
        await self._state.save(reaction.note, reaction.encode(), within=_NOTE_WITHIN)
        self._keep(reaction)
        try:
            await self._call(reaction, True)
        except (SendRefused, FormatRefused, RetryLater) as error:
            log.info("reactions.not_added", channel=self._name, reason=str(error))
            self._forget(reaction)
        except SendFailed as error:
            log.info("reactions.unsure", channel=self._name, reason=str(error))

    async def _remove(self, key: SessionKey) -> None:
        if asyncio.get_running_loop().time() < self._not_before.get(key, 0.0):
            return
        self._not_before.pop(key, None)
        still_open = await self._open(key)
        for reaction in [each for each in self._added.get(key, {}).values() if each.message_id not in still_open]:
            try:
                await self._call(reaction, False)
            except RetryLater as error:
                self._not_before[key] = asyncio.get_running_loop().time() + error.delay.total_seconds()
                return
            except (SendRefused, FormatRefused) as error:
                log.info("reactions.gone", channel=self._name, reason=str(error))
            except SendFailed as error:
                log.info("reactions.not_removed", channel=self._name, reason=str(error))
                return
            self._forget(reaction)

    def _forget(self, reaction: AckReaction) -> None:
        self._state.forget(reaction.note)
        reactions = self._added[reaction.key]
        del reactions[reaction.message_id]
        self._count -= 1
        if not reactions:
            del self._added[reaction.key]

    def _keep(self, reaction: AckReaction) -> None:
        reactions = self._added.setdefault(reaction.key, {})
        if reaction.message_id not in reactions:
            reactions[reaction.message_id] = reaction
            self._count += 1

    # -- reactions of earlier runs ----------------------------------------------------------------------

    async def _sweep(self) -> None:
        is_loaded = False
        while True:
            try:
                if not is_loaded:
                    await self._load()
                    is_loaded = not self._is_shared  # those of a worker that was killed come later
            except StoreUnavailable as error:
                log.info("reactions.wait_for_store", channel=self._name, reason=str(error))
            for key in list(self._added):
                self.settle(key)
            await asyncio.sleep(_SHARED_SWEEP_INTERVAL if self._is_shared else _SWEEP_INTERVAL)

    async def _load(self) -> None:
        for note, text in (await self._state.all(_PREFIX)).items():
            reaction = AckReaction.decode(text)
            if datetime.now(UTC) - reaction.at > _LIFETIME:
                self._state.forget(note)
            else:
                self._keep(reaction)
