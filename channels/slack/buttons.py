"""Pressed buttons: their row is removed once the answer of the turn settles the question."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from cachetools import FIFOCache

from channels.kit.pending_responses import PendingPresses
from channels.slack.api import SlackApi
from channels.slack.codec import SlackButtonPress, without_row
from channels.slack.reactions import SlackReactions
from gateway.events import InboundMessage
from gateway.ports import ChannelContext

_LIFETIME = timedelta(days=1)
_MESSAGES = 100


@dataclass(frozen=True, slots=True)
class _SlackPress:
    """A press without its message's text, which is in no note: an erasure would not reach it there."""

    chat: str
    ts: str
    thread: str
    row: str
    response_url: str


class SlackButtons:
    """The pending presses of one workspace, by turn."""

    def __init__(self, context: ChannelContext, api: SlackApi, reactions: SlackReactions) -> None:
        self._api = api
        self._reactions = reactions
        self.presses = PendingPresses(context, _SlackPress, lifetime=_LIFETIME, tasks=reactions.tasks, end=self._end)
        self._messages: FIFOCache[tuple[str, str], SlackButtonPress] = FIFOCache(_MESSAGES)  # by chat and ts

    async def hold_press(self, press: SlackButtonPress, message: InboundMessage) -> None:
        """Hold a press that was accepted; raises StoreUnavailable."""
        self._messages[press.chat, press.ts] = press
        pending = _SlackPress(press.chat, press.ts, press.thread, press.row, press.response_url)
        if await self.presses.hold(message, pending):
            self._reactions.tasks.start(partial(self._remove, pending), "buttons")

    async def _end(self, press: _SlackPress, is_settled: bool) -> None:
        if is_settled:
            await self._remove(press)

    async def _remove(self, press: _SlackPress) -> None:
        """Remove the pressed row. Raises SendFailed."""
        if press.response_url:
            # Slack tells only one thing about a message that one user sees: the address at which to delete it.
            await self._api.respond(press.response_url, delete_original=True)
            return
        known = self._messages.pop((press.chat, press.ts), None)
        if known is not None:
            await self._reactions.redraw(press.chat, press.ts, known.text, without_row(known.blocks, press.row))
            return
        # Another worker received the press, or an earlier run.
        query = {"channel": press.chat, "oldest": press.ts, "latest": press.ts, "inclusive": "true", "limit": 1}
        method = "conversations.history"
        if press.thread:
            query["ts"], method = press.thread, "conversations.replies"
        page = await self._api.get(method, **query)
        for message in page.get("messages") or ():
            if message.get("ts") == press.ts:
                left = without_row(message.get("blocks") or (), press.row)
                await self._reactions.redraw(press.chat, press.ts, str(message.get("text") or ""), left)
