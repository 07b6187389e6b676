"""Slack's own streams as previews: text is appended to a message, and an edit sets the final text.

A stream cannot be read back and cannot shrink, so only stable plain text is appended. Any doubt ends it with
`chat.stopStream` and an ordinary edit. Without streams a preview is posted as a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import structlog
from cachetools import FIFOCache

from channels.slack.api import SlackApi, SlackRefusal
from gateway.errors import OutcomeUnknown, RetryLater, SendFailed
from gateway.events import MessagePart

log = structlog.get_logger(__name__)

_SIZE = 200  # open streams; each ends with its answer
_LIMIT = 3_500  # characters; a longer preview is cut
_MARKS = re.compile(r"[*_~`\[\]|#>\\]")
_MENTIONS = re.compile(r"<(?=[!@#])")
_NEVER = frozenset({"unknown_method", "method_deprecated", "not_allowed_token_type", "missing_scope"})

SenderOf = Callable[[str, str], tuple[str, str]]


class SlackStreams:
    """The open streams of one workspace."""

    def __init__(self, api: SlackApi, sender_of: SenderOf) -> None:
        self._api = api
        self._sender_of = sender_of
        self._open: FIFOCache[str, str] = FIFOCache(_SIZE)  # ts -> text so far
        self.is_off = False  # Slack refused streams for good

    async def begin(self, part: MessagePart) -> str:
        """Start a stream with the text of *part* and return its ts; "" if it must be posted as a message."""
        chat, thread = part.key.parent.chat, part.key.thread
        user, team = self._sender_of(chat, part.reply_to)
        text = stable_prefix(part.plain)
        if self.is_off or not thread or not text or (not chat.startswith("D") and not (user and team)):
            return ""
        body: dict[str, Any] = {"channel": chat, "thread_ts": thread, "markdown_text": text}
        if user and team:
            body |= {"recipient_user_id": user, "recipient_team_id": team}
        try:
            answer = await self._api.post("chat.startStream", **body)
        except SlackRefusal as error:
            self.is_off = error.code in _NEVER
            log.info("slack.no_stream", reason=error.code, for_good=self.is_off)
            return ""
        ts = str(answer["ts"])
        self._open[ts] = text
        return ts

    async def append(self, ts: str, part: MessagePart) -> bool:
        """Append the new text of *part*; return False if the stream is closed and the caller has to edit."""
        sent = self._open.get(ts)
        if sent is None:
            return False
        text = stable_prefix(part.plain)
        if len(text) <= len(sent) and sent.startswith(text):
            return True  # no stable text is new
        if text.startswith(sent):
            try:
                await self._api.post(
                    "chat.appendStream", channel=part.key.parent.chat, ts=ts, markdown_text=text[len(sent) :]
                )
            except RetryLater:
                raise
            except SendFailed as error:
                log.info("slack.stream_broke", reason=str(error))
            else:
                self._open[ts] = text
                return True
        await self.end(ts, part.key.parent.chat)
        return False

    async def end(self, ts: str, chat: str, *, surely: bool = False) -> None:
        """Close the stream of *ts* if it is open, or if *surely* in any case. Raises RetryLater."""
        sent = self._open.pop(ts, None)
        if sent is None and not surely:
            return
        try:
            await self._api.post("chat.stopStream", channel=chat, ts=ts)
        except RetryLater:
            self._open[ts] = sent or ""
            raise
        except (SlackRefusal, OutcomeUnknown) as error:
            log.info("slack.stream_end", reason=str(error))  # an edit follows


def stable_prefix(text: str) -> str:
    """Return the part of a growing answer that will not change: up to the last line's first mark, without mentions."""
    head, newline, last = text[:_LIMIT].rpartition("\n")
    mark = _MARKS.search(last)
    prefix = f"{head}{newline}{last[: mark.start()] if mark else last}"
    return _MENTIONS.sub("<\u200b", prefix.rstrip())
