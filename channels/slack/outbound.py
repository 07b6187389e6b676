"""What we say: posts, edits, lines for one person alone. One try per call; what it came to is the ledger's to know."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from channels.slack import codec
from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.buttons import SlackButtons
from channels.slack.rate_limit import SlackRateLimit, SlackRateLimits
from channels.slack.reactions import SlackReactions
from channels.slack.streams import SlackStreams
from gateway.errors import RetryLater
from gateway.events import MessagePart, OutboundKind, SessionKey
from gateway.i18n import translate

_EDITS = (20, 1.25)  # of previews in the workspace: chat.update is Tier 3, the answers' own edits come on top
_POSTS = (5, 1.0)  # of one chat: a short burst, then one a second


class SlackOutbound:
    """Speaks in one workspace. *streams*, where they are wanted, show previews."""

    def __init__(
        self,
        api: SlackApi,
        errands: SlackReactions,
        streams: SlackStreams | None,
        presses: SlackButtons,
        language: Callable[[SessionKey], str],
    ) -> None:
        self._language = language
        self._api = api
        self._errands = errands
        self._streams = streams
        self._presses = presses
        self.posts = SlackRateLimits(*_POSTS)
        self.edits = SlackRateLimit(*_EDITS)

    async def post(self, part: MessagePart, *, marked: bool) -> str:
        """Post *part* and return its ts; its send key rides in the metadata."""
        await self.posts.turn(part.key.parent.chat)
        if part.visible_to and part.visible_to != part.key.chat:
            # Posted to a person's id, a message stands in our direct chat with them, which only they read.
            return await self._whisper(part, marked=marked)
        shows_words = part.kind is OutboundKind.PREVIEW and not part.is_placed and not marked
        may_stream = self._streams if shows_words else None
        if may_stream is not None and (ts := await may_stream.begin(part)):
            return ts
        answer = await self._post(part, self._body(part, marked=marked), metadata=codec.metadata(part))
        self._settle(part)
        return str(answer["ts"])

    async def edit(self, ts: str, part: MessagePart) -> None:
        """Replace what stands under *ts*; its key becomes the part's."""
        chat = part.key.parent.chat
        if part.kind is OutboundKind.PREVIEW:
            if self._streams is not None and await self._streams.append(ts, part):
                return
            if wait := self.edits.wait():
                raise RetryLater(timedelta(seconds=wait), "the workspace's edits are used up for now")
            self.edits.take()
        elif self._streams is not None:
            await self._streams.end(ts, chat)
        try:
            await self._update(ts, part)
        except SlackRefusal:
            if self._streams is None:
                raise
            # Perhaps a stream that an earlier run began and did not live to end.
            await self._streams.end(ts, chat, surely=True)
            await self._update(ts, part)
        self._settle(part)

    async def post_replacement(self, part: MessagePart, line: str) -> str:
        """Post *line* in the place of *part*, under its key; return the ts."""
        await self.posts.turn(part.key.parent.chat)
        plain = {"channel": part.key.parent.chat, "text": codec.escape(line), "mrkdwn": False, "parse": "none"}
        answer = await self._post(part, plain, metadata=codec.metadata(part))
        self._settle(part)
        return str(answer["ts"])

    async def refer_to_privacy(self, part: MessagePart) -> None:
        """Tell the one person of a private part to write privately; nobody else sees even that."""
        line = {
            "channel": part.key.parent.chat,
            "text": translate("slack.write_privately", self._language(part.key)),
            "mrkdwn": False,
        }
        await self._api.post("chat.postEphemeral", **_placed(part, line), user=part.visible_to)

    def _body(self, part: MessagePart, *, marked: bool) -> dict[str, Any]:
        return codec.message_body(part, marked=marked, language=self._language(part.key))

    async def _update(self, ts: str, part: MessagePart) -> None:
        body = codec.message_body(part, marked=False)
        del body["mrkdwn"]  # chat.update has no such switch
        await self._api.post("chat.update", **body, ts=ts, metadata=codec.metadata(part))

    async def _post(self, part: MessagePart, body: dict[str, Any], **more: object) -> Any:
        return await self._api.post(
            "chat.postMessage", **_placed(part, body), unfurl_links=False, unfurl_media=False, **more
        )

    async def _whisper(self, part: MessagePart, *, marked: bool) -> str:
        """Show a part to one person alone; where Slack will not, everybody is told where to ask, and nothing else."""
        body = _placed(part, self._body(part, marked=marked))
        try:
            answer = await self._api.post("chat.postEphemeral", **body, user=part.visible_to)
        except SlackRefusal as error:
            if part.id.endswith(".1"):
                line = {**body, "text": translate("slack.write_privately", self._language(part.key)), "mrkdwn": False}
                await self._post(part, line, metadata=codec.LINE)
            raise SlackRefusal(f"chat.postEphemeral: {error.code}") from error
        self._settle(part)
        return str(answer["message_ts"])

    def _settle(self, part: MessagePart) -> None:
        """Take the acknowledging reaction back once the answer stands, and the buttons that it settles."""
        self._presses.answered(part)
        if part.kind is not OutboundKind.PREVIEW:
            self._errands.reactions.settle(part.key)


def _placed(part: MessagePart, body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "thread_ts": part.key.thread} if part.key.thread else body
