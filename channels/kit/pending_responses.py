"""Presses and commands that wait for their response, as durable notes: any worker, or the next run, can give it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from channels.kit.background import BackgroundTasks, utc_now
from gateway.channel import ChannelContext
from gateway.events import InboundMessage, MessagePart, turn_id

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")

_PRESSES = "press/"  # prefix of the notes of pressed buttons, of every platform
_SETTLED = "settled/"  # then a prefix and a turn: its answer was delivered before the press was stored
_LIMIT = 500  # responses at once; the oldest is forgotten, and its buttons stay until they are pressed again


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
            if len(self._known) <= _LIMIT and not self._is_old(at):
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
