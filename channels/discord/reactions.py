"""Acknowledging reactions, and single lines to a sender."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from channels.discord.api import DiscordApi
from channels.kit.background import utc_now
from channels.kit.reactions import AckReaction, AckReactions
from gateway.events import InboundKind, InboundMessage
from gateway.ports import ChannelContext, IntakeResult, IntakeVerdict

_FRESH = timedelta(minutes=10)  # a reaction on an older message would only surprise


class DiscordReactions:
    """The reactions of one channel. Its methods return at once; failures are logged."""

    def __init__(self, context: ChannelContext, api: DiscordApi) -> None:
        self._api = api
        self._emoji: str = context.settings.reaction
        self.acks = AckReactions(context, self._react)
        self.tasks = self.acks.tasks

    def show_result(self, chat: str, message: InboundMessage, result: IntakeResult) -> None:
        """React to an accepted message in *chat*, and send the sender the line of *result*."""
        if result.line:
            nonce = f"line{message.message_id}"
            post = partial(self._api.post, chat, result.line, nonce=nonce, reply_to=message.message_id)
            self.tasks.start(post, "line")
        is_new = message.kind is InboundKind.MESSAGE and not message.revision
        is_fresh = utc_now() - message.sent_at < _FRESH
        if self._emoji and result.verdict is IntakeVerdict.ACCEPTED and is_new and is_fresh:
            self.acks.add(message.key, chat, message.message_id, is_repeated=result.is_repeated)

    async def _react(self, reaction: AckReaction, is_on: bool) -> None:
        await self._api.react(reaction.chat, reaction.message_id, self._emoji, on=is_on)
