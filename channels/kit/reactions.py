"""Acknowledging reactions: added to a message that was accepted, removed when its turn has ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

import structlog

from channels.kit.background import BackgroundTasks
from gateway.channel import ChannelContext
from gateway.errors import FormatRefused, RetryLater, SendFailed, SendRefused, StoreUnavailable
from gateway.events import SessionKey
from gateway.ports.channel import AcceptedMessage, IntakeResult

log = structlog.get_logger(__name__)

_SWEEP_INTERVAL = 60.0  # seconds between two checks of what can be removed
_SHARED_SWEEP_INTERVAL = 5.0  # where another worker may send the answers
_LIFETIME = timedelta(days=7)  # a reaction that could not be removed for so long stays
_SAVE_WITHIN = 0.1  # seconds; the claim of the message's turn is stored sooner as a rule
_LIMIT = 5_000  # reactions at once; a message beyond that gets none


@dataclass(frozen=True, slots=True)
class AckReaction:
    """A reaction that may be on a message."""

    key: SessionKey  # the message's session
    chat: str  # the platform's id of the chat
    message_id: str
    row: int  # number of the message's inbox row


ReactionCall: TypeAlias = Callable[[AckReaction, bool], Awaitable[None]]  # adds (True) or removes; raises SendFailed


def _parent_chat(message: AcceptedMessage) -> str:
    return message.key.parent.chat


class AckReactions:
    """The reactions of one channel. Methods return at once and never raise.

    No reaction has a record of its own. Before the first is added, the number of its inbox row is stored; it rises
    with the reactions that are removed. After a kill the next run takes over from there: it removes the reactions of
    every message that has ended, and keeps those of the others until they end.
    """

    def __init__(
        self, context: ChannelContext, call: ReactionCall, chat_of: Callable[[AcceptedMessage], str] = _parent_chat
    ) -> None:
        """*chat_of* returns the platform's id of the chat of a message."""
        self._name = context.name
        self._state = context.state
        self._is_shared = context.is_shared
        self._call = call
        self._chat_of = chat_of
        self._added: dict[SessionKey, dict[str, AckReaction]] = {}
        self._rows: set[int] = set()  # of all of them
        self._first_row: int | None = None  # what is stored is not higher
        self._highest_row = 0  # of a message that got a reaction
        self._earlier_row = 0  # that at the sweep before: a message that was just accepted may get its reaction late
        self._steps: dict[SessionKey, deque[Callable[[], Awaitable[None]]]] = {}  # in order, or one could be added late
        self._not_before: dict[SessionKey, float] = {}  # the loop's time, where the platform asked us to wait
        self.tasks = BackgroundTasks(context.name)  # for other work beside turns too
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start removing the reactions of earlier runs and retrying failed removals; idempotent."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self.tasks.start(self._sweep, "reactions")

    def add(self, key: SessionKey, chat: str, message_id: str, result: IntakeResult) -> None:
        """Add a reaction to an accepted message; no effect if it has one, or if it came before and has ended."""
        reaction = AckReaction(key, chat, message_id, result.row)
        self._enqueue(key, partial(self._add, reaction, is_repeated=result.is_repeated))

    def settle(self, key: SessionKey) -> None:
        """Remove the reactions of the messages of *key* that have ended."""
        if key in self._added or key in self._steps:
            self._enqueue(key, partial(self._remove, key))

    async def close(self) -> None:
        """Cancel what is in flight; the next run removes the reactions that are left."""
        await self.tasks.close()
        if self._first_row is not None:
            try:
                await self._state.save_first_row(min(self._rows, default=None))
            except StoreUnavailable as error:
                log.info("reactions.not_saved", channel=self._name, reason=str(error))

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
        if reaction.message_id in self._added.get(reaction.key, {}) or len(self._rows) >= _LIMIT:
            return
        if is_repeated and await self._state.find_ended(reaction.key, (reaction.row,)):
            return  # nothing would remove it before the next sweep
        self._keep(reaction)
        self._highest_row = max(self._highest_row, reaction.row)
        if self._first_row is None or reaction.row < self._first_row:
            try:
                await self._save_first_row(within=_SAVE_WITHIN)
            except StoreUnavailable:
                self._forget(reaction)
                raise
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
        reactions = self._added.get(key, {})
        rows = {each.row for each in reactions.values()}
        ended = self._state.just_ended(rows) or await self._state.find_ended(key, rows)
        for reaction in [each for each in reactions.values() if each.row in ended]:
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
        reactions = self._added[reaction.key]
        del reactions[reaction.message_id]
        self._rows.discard(reaction.row)
        if not reactions:
            del self._added[reaction.key]

    def _keep(self, reaction: AckReaction) -> None:
        reactions = self._added.setdefault(reaction.key, {})
        if reaction.message_id not in reactions:
            reactions[reaction.message_id] = reaction
            self._rows.add(reaction.row)

    # -- reactions of earlier runs ----------------------------------------------------------------------

    async def _sweep(self) -> None:
        is_loaded = False
        while True:
            try:
                if not is_loaded:
                    await self._take_over()
                    is_loaded = not self._is_shared  # other workers may be killed later
                await self._raise_first_row()
            except StoreUnavailable as error:
                log.info("reactions.wait_for_store", channel=self._name, reason=str(error))
            for key in list(self._added):
                self.settle(key)
            await asyncio.sleep(_SHARED_SWEEP_INTERVAL if self._is_shared else _SWEEP_INTERVAL)

    async def _take_over(self) -> None:
        messages = await self._state.take_over_rows(_LIMIT)
        for each in messages:
            if datetime.now(UTC) - each.at <= _LIFETIME:
                self._keep(AckReaction(each.key, self._chat_of(each), each.message_id, each.row))
        if self._rows and messages:
            await self._save_first_row()  # what was added in the meantime may have saved a higher one

    async def _save_first_row(self, *, within: float = 0.0) -> None:
        """Store the first row that may have a reaction; a higher one than this is never stored while it may."""
        row = min(self._rows)
        await self._state.save_first_row(row, within=within)
        self._first_row = row

    async def _raise_first_row(self) -> None:
        row = min(min(self._rows, default=self._highest_row + 1), self._earlier_row + 1)
        self._earlier_row = self._highest_row
        if self._first_row is not None and row > self._first_row:
            self._first_row = row  # at once: a message before it that comes meanwhile saves its own
            await self._state.save_first_row(row)
