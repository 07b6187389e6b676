"""What the bot still owes a message of a platform, as durable notes: any worker, or the next run, can do it.

Acknowledging reactions are added to a message that was accepted, and removed when its turn has ended. Presses and
commands wait for their response.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import structlog

from channels.kit.background import BackgroundTasks, utc_now
from gateway.channel import ChannelContext
from gateway.errors import FormatRefused, RetryLater, SendFailed, SendRefused, StoreUnavailable
from gateway.events import InboundMessage, MessagePart, SessionKey, turn_id
from gateway.ports.channel import AcceptedMessage, IntakeResult

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")

_PRESSES = "press/"  # prefix of the notes of pressed buttons, of every platform
_SETTLED = "settled/"  # then a prefix and a turn: its answer was delivered before the press was stored
_MOST_RESPONSES = 500  # responses at once; the oldest is forgotten, and its buttons stay until they are pressed again


class PendingResponses(Generic[R]):
    """The data a platform needs to respond to a press or command, by the turn that answers it.

    A note is stored once the message is, removed with the response, and forgotten after *lifetime*. Methods that are
    awaited may raise StoreUnavailable.
    """

    def __init__(
        self,
        context: ChannelContext,
        data: type[R],
        prefix: str,
        *,
        lifetime: timedelta,
    ) -> None:
        """Keep instances of *data*, whose fields are strings and booleans, in notes that begin with *prefix*."""
        self._state = context.state
        self._is_shared = context.is_shared
        self._data = data
        self._prefix = prefix
        self._lifetime = lifetime
        self._known: dict[str, tuple[datetime, R | None]] = {}  # by name, oldest first; None = a mark
        self._is_loaded = False

    async def hold(self, message: InboundMessage, data: R) -> bool:
        """Store *data* of *message*, which was admitted and stored; return True if its answer settled it already."""
        await self._load()
        name, at = self._prefix + turn_id(message), utc_now()
        self._known.pop(name, None)
        self._known[name] = at, data
        self._forget_old()
        await self._state.save(name, json.dumps([at.isoformat(), asdict(data)]))
        self._known.pop(_SETTLED + name, None)
        return await self._state.take(_SETTLED + name) is not None

    def holds(self, part: MessagePart) -> bool:
        """Return True if this worker has the data of the message that *part* answers."""
        return self._prefix + part.turn in self._known

    async def get(self, part: MessagePart) -> R | None:
        """Return the data of the message that *part* answers, or None if nothing waits for it."""
        name = self._prefix + part.turn
        found: tuple[datetime, R | None] | None
        if self._is_shared:  # another worker may have received the message, or responded to it
            text = await self._state.load(name)
            found = None if text is None else self._decode(text)
        else:
            await self._load()
            found = self._known.get(name)
        return found[1] if found is not None and not self._is_old(found[0]) else None

    async def take(self, part: MessagePart) -> R | None:
        """Remove and return the data of the message that *part* answers; of several callers, one gets it.

        If *part* settles a press that is not stored yet, `hold` returns True when it is.
        """
        name = self._prefix + part.turn
        self._known.pop(name, None)
        text = await self._state.take(name)
        if text is None and part.settles:
            # A worker that was slow or killed stores the press later than another answers it. Each stores its note
            # first and looks for the other's then, so that one of them finds both.
            self._known[_SETTLED + name] = utc_now(), None
            await self._state.save(_SETTLED + name, utc_now().isoformat())
            text = await self._state.take(name)
        if text is None:
            return None
        at, data = self._decode(text)
        return None if self._is_old(at) else data

    async def _load(self) -> None:
        """Load the notes of an earlier run, once."""
        if self._is_loaded:
            return
        marks = await self._state.all(_SETTLED + self._prefix)
        notes = await self._state.all(self._prefix)
        self._is_loaded = True
        earlier: dict[str, tuple[datetime, R | None]] = {name: self._decode(text) for name, text in notes.items()}
        earlier |= {name: (datetime.fromisoformat(text), None) for name, text in marks.items()}
        self._known = {**earlier, **self._known}
        self._known = dict(sorted(self._known.items(), key=lambda each: each[1][0]))

    def _decode(self, text: str) -> tuple[datetime, R]:
        found = json.loads(text)
        # Version 0.2.0 kept a mapping, without the time: what waited at the upgrade is over.
        at, values = found if isinstance(found, list) else (datetime.fromtimestamp(0, UTC).isoformat(), found)
        known = {each.name for each in fields(self._data)}  # another version's may have others
        return datetime.fromisoformat(at), self._data(**{name: values[name] for name in known & values.keys()})

    def _is_old(self, at: datetime) -> bool:
        return utc_now() - at >= self._lifetime

    def _forget_old(self) -> None:
        for name, (at, _) in list(self._known.items()):
            if len(self._known) <= _MOST_RESPONSES and not self._is_old(at):
                break
            del self._known[name]
            self._state.forget(name)


class PendingPresses(PendingResponses[R]):
    """The presses of buttons that wait for their answer. `settle` returns at once; failures are logged."""

    def __init__(
        self,
        context: ChannelContext,
        data: type[R],
        *,
        lifetime: timedelta,
        tasks: BackgroundTasks,
        end: Callable[[R, bool], Awaitable[None]],
    ) -> None:
        """*end* is called with a press that was answered, and True if its buttons are to be removed."""
        super().__init__(context, data, _PRESSES, lifetime=lifetime)
        self._tasks = tasks
        self._end = end

    def settle(self, part: MessagePart) -> None:
        """Forget the press that *part*, which was delivered, answers; remove its buttons if *part* settles it."""
        if part.settles or self.holds(part):
            self._tasks.start(partial(self._settle, part), "buttons")

    async def _settle(self, part: MessagePart) -> None:
        press = await self.take(part)
        if press is not None:
            await self._end(press, part.settles)


log = structlog.get_logger(__name__)

_SWEEP_INTERVAL = 60.0  # seconds between two checks of what can be removed
_SHARED_SWEEP_INTERVAL = 5.0  # where another worker may send the answers
_LIFETIME = timedelta(days=7)  # a reaction that could not be removed for so long stays
_SAVE_WITHIN = 0.1  # seconds; the claim of the message's turn is stored sooner as a rule
_MOST_REACTIONS = 5_000  # reactions at once; a message beyond that gets none


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
        if reaction.message_id in self._added.get(reaction.key, {}) or len(self._rows) >= _MOST_REACTIONS:
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
        messages = await self._state.take_over_rows(_MOST_REACTIONS)
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
