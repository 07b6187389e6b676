"""Slack's own streaming, as a setting: words are appended to a message, and the whole text is put in at the end.

A stream takes Markdown as it is and gives nothing back, so that only the plain words of a preview go into it, and
every doubt ends it: `chat.stopStream`, then an edit like any other. Where Slack has no streams a preview is posted.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import structlog

from channels.slack.api import SlackApi, SlackRefusal
from gateway.errors import OutcomeUnknown, RetryLater, SendFailed
from gateway.events import MessagePart

log = structlog.get_logger(__name__)

_KEPT = 200  # streams that were begun; each ends with its answer
_LONGEST = 3_500  # characters; what is longer than one message is the answer's affair
_SIGNS = re.compile(r"[*_~`\[\]|#>\\]")
_CALLS = re.compile(r"<(?=[!@#])")
_NEVER = frozenset({"unknown_method", "method_deprecated", "not_allowed_token_type", "missing_scope"})

Asker = Callable[[str, str], tuple[str, str]]


class SlackStreams:
    """The streams that are open, by the ts of their message."""

    def __init__(self, api: SlackApi, asker: Asker) -> None:
        self._api = api
        self._asker = asker
        self._open: OrderedDict[str, str] = OrderedDict()  # ts -> what was said in it
        self.is_off = False  # Slack does not know how

    async def begin(self, part: MessagePart) -> str:
        """Begin a stream with the words of *part* and return its ts; "" = post it like anything else."""
        chat, thread = part.key.parent.chat, part.key.thread
        user, team = self._asker(chat, part.reply_to)
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
        while len(self._open) > _KEPT:
            self._open.popitem(last=False)
        return ts

    async def append(self, ts: str, part: MessagePart) -> bool:
        """Append what *part* says beyond what stands; False = the stream is over, and the caller edits."""
        said = self._open.get(ts)
        if said is None:
            return False
        text = stable_prefix(part.plain)
        if len(text) <= len(said) and said.startswith(text):
            return True  # nothing certain is new
        if text.startswith(said):
            try:
                await self._api.post(
                    "chat.appendStream", channel=part.key.parent.chat, ts=ts, markdown_text=text[len(said) :]
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
        """Close the stream of *ts*, if there is one; *surely*: Slack says that there is. Raises RetryLater."""
        said = self._open.pop(ts, None)
        if said is None and not surely:
            return
        try:
            await self._api.post("chat.stopStream", channel=chat, ts=ts)
        except RetryLater:
            self._open[ts] = said or ""
            raise
        except (SlackRefusal, OutcomeUnknown) as error:
            log.info("slack.stream_end", reason=str(error))  # the edit that follows says the same


def stable_prefix(text: str) -> str:
    """Return the words of a growing answer that will not change: up to the last line's first mark, calling nobody."""
    head, newline, last = text[:_LONGEST].rpartition("\n")
    sign = _SIGNS.search(last)
    kept = f"{head}{newline}{last[: sign.start()] if sign else last}"
    return _CALLS.sub("<\u200b", kept.rstrip())
