"""Acknowledging reactions, ephemeral lines, and changes of messages with buttons."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from channels.kit.reactions import AckReaction, AckReactions
from channels.slack.api import SlackApi, SlackPlaceGone, SlackRefusal
from channels.slack.codec import LINE
from gateway.events import SessionKey
from gateway.ports import ChannelContext

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

    def acknowledge(self, key: SessionKey, chat: str, ts: str, *, is_repeated: bool) -> None:
        """React to a message that was accepted; has no effect if it has a reaction."""
        if self._emoji and _ADD not in self._refused:
            self.acks.add(key, chat, ts, is_repeated=is_repeated)

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
