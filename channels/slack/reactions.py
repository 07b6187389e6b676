"""Small things that nobody waits for: the acknowledging reaction, and a line to somebody who was not heard."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from channels.reactions import AckReaction, AckReactions
from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.codec import LINE
from gateway.errors import SendFailed
from gateway.events import SessionKey
from gateway.ports import ChannelContext

log = structlog.get_logger(__name__)

_RESPOND = "response_url"  # the address of one message, in the place of a method
_ADD = "reactions.add"
_WAITING = 500
_FINE = frozenset({"already_reacted", "no_reaction", "message_not_found"})


class SlackReactions:
    """Runs them one after the other; what does not fit or fails is dropped."""

    def __init__(self, context: ChannelContext, api: SlackApi) -> None:
        self._api = api
        self._reaction: str = context.settings.reaction
        self.reactions = AckReactions(context, self._react)
        self._queue: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue(_WAITING)
        self._refused: set[str] = set()

    def acknowledge(self, key: SessionKey, chat: str, ts: str) -> None:
        """Show that a message was heard; a redelivery shows nothing new."""
        if self._reaction and _ADD not in self._refused:
            self.reactions.add(key, chat, ts)

    async def _react(self, reaction: AckReaction, is_on: bool) -> None:
        method = _ADD if is_on else "reactions.remove"
        try:
            await self._api.post(method, channel=reaction.chat, timestamp=reaction.message_id, name=self._reaction)
        except SlackRefusal as error:
            if error.code == "missing_scope":
                self._refused.add(method)
            if error.code not in _FINE:
                raise

    def send_ephemeral(self, chat: str, thread: str, user: str, line: str, *, is_direct: bool) -> None:
        """Say *line* to one person."""
        body: dict[str, object] = {"channel": chat, "text": line, "mrkdwn": False, "parse": "none"}
        if thread:
            body["thread_ts"] = thread
        if is_direct:
            self._put("chat.postMessage", **body, metadata=LINE)
        else:
            self._put("chat.postEphemeral", **body, user=user)

    def redraw(self, chat: str, ts: str, text: str, blocks: Sequence[Mapping[str, object]]) -> None:
        """Show a message of ours with other blocks."""
        self._put("chat.update", channel=chat, ts=ts, text=text, blocks=list(blocks), parse="none", link_names=False)

    def delete_ephemeral(self, response_url: str) -> None:
        """Take away a message that one person alone sees."""
        self._put(_RESPOND, url=response_url, delete_original=True)

    def _put(self, method: str, **body: object) -> None:
        if method in self._refused or self._queue.full():
            return
        self._queue.put_nowait((method, body))

    async def run(self) -> None:
        """Run errands until cancelled."""
        self.reactions.start()
        while True:
            method, body = await self._queue.get()
            try:
                await (self._api.respond(**body) if method == _RESPOND else self._api.post(method, **body))
            except SlackRefusal as error:
                if error.code == "missing_scope":
                    self._refused.add(method)
                if error.code not in _FINE:
                    log.info("slack.errand_refused", method=method, reason=str(error))
            except SendFailed as error:
                log.debug("slack.errand_failed", method=method, reason=str(error))
