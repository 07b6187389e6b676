"""Delivery of message parts to Slack: posts, edits, ephemeral messages, status. One attempt per call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import structlog

from channels.kit.background import ChatRateLimits, TokenBucket
from channels.slack import codec
from channels.slack.api import SlackApi, SlackPlaceGone, SlackRefusal
from channels.slack.buttons import SlackButtons
from channels.slack.interactions import SlackInteractions
from channels.slack.reactions import SlackReactions
from channels.slack.streams import SlackStreams
from gateway.errors import RetryLater, SendFailed
from gateway.events import MessagePart, OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.ports import ChatActivity

# Burst and seconds for each. chat.update is Tier 3 of the workspace; the edits of answers come on top of previews.
_PREVIEW_EDITS = (20, 1.25)
_POST_BURST, _POST_INTERVAL = 5, 1.0  # of one chat


class SlackOutbound:
    """Sends the parts of one workspace; *streams*, if not None, show previews."""

    def __init__(
        self,
        api: SlackApi,
        reactions: SlackReactions,
        streams: SlackStreams | None,
        buttons: SlackButtons,
        interactions: SlackInteractions,
        language: Callable[[SessionKey], str],
    ) -> None:
        self._language = language
        self._api = api
        self._reactions = reactions
        self._streams = streams
        self._buttons = buttons
        self._interactions = interactions
        self.posts = ChatRateLimits(_POST_BURST, lambda _: _POST_INTERVAL)
        self.preview_edits = TokenBucket(*_PREVIEW_EDITS)

    async def send(self, part: MessagePart, *, may_be_duplicate: bool) -> str:
        """Post *part* with its send key as metadata and return its ts.

        The answer to a slash command goes to its response address, which gives no ts, where the app may not write.
        """
        try:
            return await self._send(part, may_be_duplicate=may_be_duplicate)
        except SlackPlaceGone:
            body = self._body(part, may_be_duplicate=may_be_duplicate)
            if part.moved_to or not await self._interactions.respond(part, body):
                raise
        self._settle(part)
        return ""

    async def _send(self, part: MessagePart, *, may_be_duplicate: bool) -> str:
        await self.posts.of(part.key.parent.chat).acquire()
        if part.visible_to and part.visible_to != part.key.chat:
            # A message posted to a user's id goes to the direct chat, which only they read.
            return await self._send_ephemeral(part, may_be_duplicate=may_be_duplicate)
        is_preview = part.kind is OutboundKind.PREVIEW and not part.is_placed and not may_be_duplicate
        may_stream = self._streams if is_preview else None
        if may_stream is not None and (ts := await may_stream.begin(part)):
            return ts
        answer = await self._post(
            part, self._body(part, may_be_duplicate=may_be_duplicate), metadata=codec.metadata(part)
        )
        self._settle(part)
        return str(answer["ts"])

    async def edit(self, ts: str, part: MessagePart) -> None:
        """Replace the message *ts*; its send key becomes the part's."""
        chat = part.key.parent.chat
        if part.kind is OutboundKind.PREVIEW:
            if self._streams is not None and await self._streams.append(ts, part):
                return
            if delay := self.preview_edits.try_acquire():
                raise RetryLater(timedelta(seconds=delay), "the workspace's edits are used up for now")
        elif self._streams is not None:
            await self._streams.end(ts, chat)
        try:
            await self._update(ts, part)
        except SlackRefusal:
            if self._streams is None:
                raise
            # Perhaps a stream that an earlier run started and did not stop.
            await self._streams.end(ts, chat, surely=True)
            await self._update(ts, part)
        self._settle(part)

    async def post_replacement(self, part: MessagePart, line: str) -> str:
        """Post *line* instead of *part*, with its send key; return the ts."""
        await self.posts.of(part.key.parent.chat).acquire()
        plain = {"channel": part.key.parent.chat, "text": codec.escape(line), "mrkdwn": False, "parse": "none"}
        answer = await self._post(part, plain, metadata=codec.metadata(part))
        self._settle(part)
        return str(answer["ts"])

    async def refer_to_privacy(self, part: MessagePart) -> None:
        """Ask the user of a private part to write privately, in an ephemeral message."""
        line = {
            "channel": part.key.parent.chat,
            "text": translate("slack.write_privately", self._language(part.key)),
            "mrkdwn": False,
        }
        await self._api.post("chat.postEphemeral", **_in_thread(part, line), user=part.visible_to)

    def _body(self, part: MessagePart, *, may_be_duplicate: bool) -> dict[str, Any]:
        return codec.message_body(part, may_be_duplicate=may_be_duplicate, language=self._language)

    async def _update(self, ts: str, part: MessagePart) -> None:
        body = codec.message_body(part, may_be_duplicate=False)
        del body["mrkdwn"]  # chat.update has no such switch
        await self._api.post("chat.update", **body, ts=ts, metadata=codec.metadata(part))

    async def _post(self, part: MessagePart, body: dict[str, Any], **more: object) -> Any:
        return await self._api.post(
            "chat.postMessage", **_in_thread(part, body), unfurl_links=False, unfurl_media=False, **more
        )

    async def _send_ephemeral(self, part: MessagePart, *, may_be_duplicate: bool) -> str:
        """Show a part to one user; if Slack refuses, post a line that asks them to write privately."""
        body = _in_thread(part, self._body(part, may_be_duplicate=may_be_duplicate))
        try:
            answer = await self._api.post("chat.postEphemeral", **body, user=part.visible_to)
        except SlackRefusal as error:
            if isinstance(error, SlackPlaceGone) and await self._interactions.is_pending(part):
                raise
            if part.id.endswith(".1"):
                line = {**body, "text": translate("slack.write_privately", self._language(part.key)), "mrkdwn": False}
                await self._post(part, line, metadata=codec.LINE)
            raise SlackRefusal(f"chat.postEphemeral: {error.code}") from error
        self._settle(part)
        return str(answer["message_ts"])

    def _settle(self, part: MessagePart) -> None:
        """Remove the reaction and the buttons that the delivered part settles."""
        self._buttons.presses.settle(part)
        if part.kind is not OutboundKind.PREVIEW:
            self._reactions.acks.settle(part.key)


def _in_thread(part: MessagePart, body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "thread_ts": part.key.thread} if part.key.thread else body


log = structlog.get_logger(__name__)

_INTERVAL = 90.0  # seconds; Slack removes a status after about two minutes
_REFUSED_FOR = 3_600.0  # seconds without a call after a refusal
_LIMIT = 50  # characters
_REFUSALS = frozenset(
    {"missing_scope", "unknown_method", "not_allowed_token_type", "no_permission", "method_deprecated"}
)


class SlackActivity:
    """The statuses of one workspace's threads."""

    def __init__(self, api: SlackApi, language: Callable[[SessionKey], str]) -> None:
        self._api = api
        self._language = language
        self._shown: dict[SessionKey, tuple[float, str]] = {}
        self._refused_until = 0.0

    async def show(self, activity: ChatActivity) -> None:
        """Show or clear a status; never raises."""
        key = activity.key
        if not key.thread:
            return
        if activity.on:
            await self._set(key, (activity.text or translate("slack.thinking", self._language(key)))[:_LIMIT])
        elif self._shown.pop(key, None):
            await self._set(key, "")

    async def run(self) -> None:
        """Repeat statuses before they fade, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL / 3)
            now = asyncio.get_running_loop().time()
            for key, (at, text) in list(self._shown.items()):
                if now - at >= _INTERVAL and key in self._shown:
                    await self._set(key, text)

    async def _set(self, key: SessionKey, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._refused_until:
            return
        if text:
            self._shown[key] = (now, text)
        try:
            await self._api.post(
                "assistant.threads.setStatus", channel_id=key.parent.chat, thread_ts=key.thread, status=text
            )
        except SlackRefusal as error:
            self._shown.pop(key, None)
            if error.code in _REFUSALS:
                self._refused_until = now + _REFUSED_FOR
                log.info("slack.no_status", reason=error.code, mend="the scope assistant:write shows that we work")
        except SendFailed as error:
            log.debug("slack.status_failed", reason=str(error))
