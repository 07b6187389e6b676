"""Threads the bot was called into: there it needs no second mention, until somebody else is addressed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.events import InboundMessage
from gateway.ports import ChannelState, IntakeResult, IntakeVerdict

_MOST_KNOWN = 5_000
_OVERHEARD = "not-addressed"  # admission's word for somebody who may speak and did not speak to us


class DiscordFollowedThreads:
    """Which threads of a block are followed, durably."""

    def __init__(self, state: ChannelState, *, is_on: Callable[[InboundMessage], bool]) -> None:
        """*is_on* says whether threads are followed where a message stands."""
        self._state = state
        self._is_on = is_on
        self._known: dict[str, bool] = {}

    async def judge(self, message: InboundMessage, *, turns_away: bool) -> InboundMessage:
        """Return *message*, addressed to us if its thread is followed and it speaks to nobody else."""
        thread = message.key.thread
        if not thread or message.is_addressed or turns_away or not self._is_on(message):
            return message
        return replace(message, is_addressed=await self._is_followed(thread))

    async def note(self, message: InboundMessage, accepted: IntakeResult, *, turns_away: bool) -> None:
        """Learn from what became of *message*: a mention begins it, speaking to others ends it, strangers neither."""
        thread = message.key.thread
        if not thread or not self._is_on(message):
            return
        if accepted.verdict is not IntakeVerdict.REJECTED and message.is_addressed:
            await self._set(thread, on=True)
        elif turns_away and (accepted.verdict is not IntakeVerdict.REJECTED or accepted.reason == _OVERHEARD):
            await self._set(thread, on=False)

    async def _is_followed(self, thread: str) -> bool:
        if thread not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[thread] = await self._state.load(f"follows/{thread}") is not None
        return self._known[thread]

    async def _set(self, thread: str, *, on: bool) -> None:
        if await self._is_followed(thread) != on:
            await self._state.save(f"follows/{thread}", "1" if on else None)
            self._known[thread] = on
