"""Telegram's limits, kept before Telegram refuses: a bot's calls, shared by its chats, and messages of a chat."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from enum import IntEnum
from typing import TypeAlias

from channels.kit.background import ChatRateLimits, Clock, TokenBucket, loop_time
from gateway.events import SessionKey

_CALLS_PER_SECOND = 30
_CHAT_BURST = 20  # messages that a quiet chat takes at once
_DIRECT_INTERVAL = 1.0  # seconds
_GROUP_INTERVAL = 3.0
_RESERVE = 6  # messages of a chat's burst that previews leave to answers
_QUIET_RESERVE = 4  # the bot's calls that busy chats leave to quiet ones
_GROUP = 10  # waiting calls that go together, at most: what follows them shares transactions


class Decoration(IntEnum):
    """Calls that may be dropped; the value is the number of the bot's calls that each leaves to what matters more."""

    PREVIEW = 8
    REACTION = 12
    TYPING = 16


_Line: TypeAlias = "OrderedDict[str, deque[asyncio.Future[None]]]"  # by chat, next first; in order within a chat


class TelegramCallQueue:
    """The calls of one bot: 30 a second, a call for each waiting chat in turn.

    A chat is busy while it wants calls faster than Telegram takes messages from it for long; others are quiet. Quiet
    chats go first, and busy ones leave them `_QUIET_RESERVE` calls. While both wait, busy chats have a third at least.
    """

    def __init__(self, clock: Clock = loop_time) -> None:
        self._bucket = TokenBucket(_CALLS_PER_SECOND, 1 / _CALLS_PER_SECOND, clock=clock)
        self._clock = clock
        self._quiet: _Line = OrderedDict()
        self._busy: _Line = OrderedDict()
        self._served: OrderedDict[str, float] = OrderedDict()  # when each chat had its last call; the recent ones
        self._passes = 0  # calls of quiet chats since the last of a busy one that waits
        self._timer: asyncio.TimerHandle | None = None

    def delay(self, *, reserve: int = 0) -> float:
        """Return the seconds until a call may go that waits for no turn and leaves *reserve* others; 0 = now."""
        waiting = sum(map(len, self._quiet.values())) + sum(map(len, self._busy.values()))
        return max(self._bucket.delay(reserve=reserve), waiting / _CALLS_PER_SECOND)

    def try_acquire(self, *, reserve: int = 0) -> float:
        """Count one call and return 0 if it may go now; else count nothing and return `delay`."""
        return self.delay(reserve=reserve) or self._bucket.try_acquire(reserve=reserve)

    async def acquire(self, chat: str) -> bool:
        """Count one call of *chat* and return when it may go: True if it had to wait."""
        turn = asyncio.get_running_loop().create_future()
        line = self._quiet if chat in self._quiet or not self._is_busy(chat) else self._busy
        line.setdefault(chat, deque()).append(turn)
        self._serve()
        if turn.done():
            return False
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(chat, turn)
            raise
        return True

    def try_acquire_turn(self, chat: str) -> bool:
        """Count one call of *chat* if it may go now: no other chat waits, and it leaves what it has to leave."""
        if self._quiet or self._busy or self._bucket.try_acquire(reserve=_QUIET_RESERVE if self._is_busy(chat) else 0):
            return False
        self._note_call(chat)
        return True

    def _is_busy(self, chat: str) -> bool:
        served = self._served.get(chat)
        return chat in self._busy or (served is not None and self._clock() - served < _chat_interval(chat))

    def _serve(self) -> None:
        """Let go who may go now, and come back when the next may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._quiet or self._busy:
            line, reserve = self._next_line()
            size = _group_size(line)
            delay = self._bucket.delay(reserve=reserve + size - 1)
            if delay:
                self._timer = asyncio.get_running_loop().call_later(delay, self._serve)
                return
            for _ in range(size):
                self._bucket.try_acquire(reserve=reserve)
                self._let_go(line)
            self._passes = self._passes + size if line is self._quiet and self._busy else 0

    def _next_line(self) -> tuple[_Line, int]:
        is_due = bool(self._busy) and self._passes >= 2 * _group_size(self._busy)
        if self._quiet and not is_due:
            return self._quiet, 0
        return self._busy, 0 if is_due else _QUIET_RESERVE

    def _let_go(self, line: _Line) -> None:
        chat, turns = line.popitem(last=False)
        turn = turns.popleft()
        if not turn.cancelled():  # its caller has not noticed yet
            turn.set_result(None)
        if turns:  # behind the others
            self._busy[chat] = turns
        self._note_call(chat)

    def _note_call(self, chat: str) -> None:
        now = self._clock()
        self._served.pop(chat, None)
        self._served[chat] = now
        while now - next(iter(self._served.values())) > _GROUP_INTERVAL:
            self._served.popitem(last=False)

    def _leave(self, chat: str, turn: asyncio.Future[None]) -> None:
        """Remove a turn whose caller was cancelled."""
        for line in (self._quiet, self._busy):
            turns = line.get(chat, deque())
            if turn in turns:
                turns.remove(turn)
                if not turns:
                    del line[chat]
        self._serve()


def _group_size(line: _Line) -> int:
    """Return the number of calls of a line that go together: in a long one, the first waits 0.3 s for company."""
    return min(-(-len(line) // 3), _GROUP)


class TelegramRateLimits:
    """The limits of one bot: `calls` for every call, and one bucket in `chats` for the messages of each chat.

    Answers wait for their call. A `Decoration` has one only while no answer waits and enough calls are left. It can
    still delay answers by a moment: those that come at once, beyond what it left them.
    """

    def __init__(self, clock: Clock = loop_time) -> None:
        self.calls = TelegramCallQueue(clock)
        self.chats = ChatRateLimits(_CHAT_BURST, _chat_interval, clock=clock)
        self._turns: set[SessionKey] = set()  # calls that were waited for and not made yet

    async def wait_turn(self, key: SessionKey) -> bool:
        """Count a call for the next message to *key*, which the next `acquire` is; return True if it had to wait."""
        if key in self._turns:
            return False
        is_late = await self.calls.acquire(key.parent.chat)
        self._turns.add(key)
        return is_late

    def try_turn(self, key: SessionKey) -> bool:
        """Count a call for the next message to *key*, as `wait_turn` does, if it may go now."""
        if key not in self._turns and self.calls.try_acquire_turn(key.parent.chat):
            self._turns.add(key)
        return key in self._turns

    async def acquire(self, key: SessionKey) -> None:
        """Count a call for a message to *key* and return when it may go: at once after `wait_turn`."""
        if key in self._turns:
            self._turns.discard(key)
        else:
            await self.calls.acquire(key.parent.chat)

    def try_acquire_preview(self, chat: str) -> bool:
        """Count one preview edit and return True if the chat and the bot have enough left; a preview can be dropped."""
        return (
            self.calls.delay(reserve=Decoration.PREVIEW) == 0
            and self.chats.of(chat).try_acquire(reserve=_RESERVE) == 0
            and self.calls.try_acquire(reserve=Decoration.PREVIEW) == 0
        )


def _chat_interval(chat: str) -> float:
    return _GROUP_INTERVAL if chat.startswith("-") else _DIRECT_INTERVAL
