"""Acknowledging reactions, ephemeral lines, slash commands, and buttons with their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from cachetools import FIFOCache

from channels.kit.reactions import AckReaction, AckReactions, PendingPresses, PendingResponses
from channels.slack.api import SlackApi, SlackPlaceGone, SlackRefusal
from channels.slack.render import LINE, SlackButtonPress, without_row
from gateway.channel import ChannelContext
from gateway.events import InboundMessage, MessagePart, SessionKey
from gateway.ports.channel import IntakeResult

_ADD = "reactions.add"
_HARMLESS = frozenset({"already_reacted", "no_reaction", "message_not_found"})


class SlackReactions:
    """The reactions of one workspace. Its methods return at once; failures are logged."""

    def __init__(self, context: ChannelContext, api: SlackApi) -> None:
        self._api = api
        self._emoji: str = context.settings.reaction
        self._refused: set[str] = set()  # methods whose scope is missing; they are not called again
        self.acks = AckReactions(context, self._react)
        self.tasks = self.acks.tasks

    def acknowledge(self, key: SessionKey, chat: str, ts: str, result: IntakeResult) -> None:
        """React to a message that was accepted; has no effect if it has a reaction."""
        if self._emoji and _ADD not in self._refused:
            self.acks.add(key, chat, ts, result)

    def send_ephemeral(
        self,
        chat: str,
        thread: str,
        user: str,
        line: str,
        *,
        is_direct: bool,
        otherwise: Callable[[Mapping[str, object]], Awaitable[None]] | None = None,
    ) -> None:
        """Show *line* to one user; where the app may not write, by *otherwise*."""
        body: dict[str, object] = {"channel": chat, "text": line, "mrkdwn": False, "parse": "none"}
        if thread:
            body["thread_ts"] = thread
        if is_direct:
            self._start("chat.postMessage", otherwise, **body, metadata=LINE)
        else:
            self._start("chat.postEphemeral", otherwise, **body, user=user)

    async def redraw(self, chat: str, ts: str, text: str, blocks: Sequence[Mapping[str, object]]) -> None:
        """Replace the blocks of a message of the bot; raises SendFailed."""
        body: dict[str, object] = {"channel": chat, "ts": ts, "text": text, "blocks": list(blocks)}
        await self._call("chat.update", **body, parse="none", link_names=False)

    def _start(
        self, method: str, otherwise: Callable[[Mapping[str, object]], Awaitable[None]] | None, **body: object
    ) -> None:
        async def call() -> None:
            try:
                await self._call(method, **body)
            except SlackPlaceGone:
                if otherwise is None:
                    raise
                await otherwise(body)

        if method not in self._refused:
            self.tasks.start(call, method)

    async def _react(self, reaction: AckReaction, is_on: bool) -> None:
        method = _ADD if is_on else "reactions.remove"
        await self._call(method, channel=reaction.chat, timestamp=reaction.message_id, name=self._emoji)

    async def _call(self, method: str, **body: object) -> None:
        try:
            await self._api.post(method, **body)
        except SlackRefusal as error:
            if error.code == "missing_scope":
                self._refused.add(method)
            if error.code not in _HARMLESS:
                raise


# -- interactions ----------------------------------------------------------------------------------
# Slash commands are answered at their response address where the app may not write, as in chats that it left. The row
# of a pressed button is removed once the answer of the turn settles the question.

LIFETIME = timedelta(minutes=29)  # of a response address: of thirty minutes, and five uses
_PRESS_LIFETIME = timedelta(days=1)
_PREFIX = "slash/"
_MESSAGES = 100


@dataclass(frozen=True, slots=True)
class _PendingSlash:
    """A slash command and the address at which its sender can be shown an answer."""

    response_url: str


@dataclass(frozen=True, slots=True)
class _SlackPress:
    """A press without its message's text, which is in no note: an erasure would not reach it there."""

    chat: str
    ts: str
    thread: str
    row: str
    response_url: str


class SlackInteractions:
    """The slash commands and presses of one workspace that wait for their answer, by turn."""

    def __init__(self, context: ChannelContext, api: SlackApi, reactions: SlackReactions) -> None:
        self._api = api
        self._reactions = reactions
        self._slashes = PendingResponses(context, _PendingSlash, _PREFIX, lifetime=LIFETIME)
        self.presses = PendingPresses(
            context, _SlackPress, lifetime=_PRESS_LIFETIME, tasks=reactions.tasks, end=self._end
        )
        self._messages: FIFOCache[tuple[str, str], SlackButtonPress] = FIFOCache(_MESSAGES)  # by chat and ts

    async def hold_slash(self, message: InboundMessage, response_url: str) -> None:
        """Hold the address of *message*, which is durable; raises StoreUnavailable."""
        await self._slashes.hold(message, _PendingSlash(response_url))

    async def hold_press(self, message: InboundMessage, press: SlackButtonPress) -> None:
        """Hold a press that was accepted; raises StoreUnavailable."""
        self._messages[press.chat, press.ts] = press
        pending = _SlackPress(press.chat, press.ts, press.thread, press.row, press.response_url)
        if await self.presses.hold(message, pending):
            self._reactions.tasks.start(partial(self._remove, pending), "buttons")

    async def is_pending(self, part: MessagePart) -> bool:
        """Return True if *part* answers a slash command whose address is still good."""
        return await self._slashes.get(part) is not None

    async def respond(self, part: MessagePart, body: Mapping[str, Any]) -> bool:
        """Show *body* to the sender of the command that *part* answers; return False if it answers none.

        Raises SendFailed.
        """
        pending = await self._slashes.get(part)
        if pending is None:
            return False
        await self.show(pending.response_url, body)
        return True

    async def show(self, response_url: str, body: Mapping[str, Any]) -> None:
        """Show *body* to the one person to whom *response_url* leads; raises SendFailed."""
        shown = {name: body[name] for name in ("text", "mrkdwn", "blocks") if name in body}
        await self._api.respond(response_url, response_type="ephemeral", replace_original=False, **shown)

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
