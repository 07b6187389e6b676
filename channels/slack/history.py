"""What was said before somebody called us in: read from Slack, with who said it as admission needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.codec import (
    ParsedEvent,
    SlackBotIdentity,
    SlackProfile,
    build_message,
    mentions,
    moment,
    parse_event,
)
from channels.slack.inbound import SlackInbound
from channels.slack.read_cursors import number
from gateway.errors import UnreadableEvent
from gateway.events import ChatKind, InboundKind, InboundMessage
from gateway.ports import ChannelContext

log = structlog.get_logger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE = 200
_PAGES = 5  # of a thread: Slack gives it from its start, and the newest are what is wanted
_LATELY = timedelta(hours=1)
_MOST = 100  # of a channel's history, our own words among them
_TO_US = frozenset({"missing_scope", "not_in_channel", "channel_not_found", "thread_not_found"})


class SlackHistory:
    """Reads a place's past; what came to us anyway is not asked for."""

    def __init__(self, context: ChannelContext, api: SlackApi, ears: SlackInbound) -> None:
        self._name = context.name
        self._api = api
        self._ears = ears
        self._manners = context.reply_policy
        self._said: set[str] = set()

    async def messages_before(
        self, message: InboundMessage, me: SlackBotIdentity, *, since: datetime | None, limit: int
    ) -> list[InboundMessage]:
        """Return what people said in the place of *message* before it; see `gateway.ports.SupportsHistory`."""
        if await self._is_known(message):
            return []
        oldest = _ts(since) if since else "0"
        try:
            found = await self._read(message, oldest, limit)
        except SlackRefusal as error:
            if error.code not in _TO_US:
                raise
            if error.code not in self._said:
                self._said.add(error.code)
                log.warning("slack.no_history", channel=self._name, reason=str(error), lost="what was said before us")
            return []
        spoken = [heard for heard in self._spoken(message, found, me) if number(heard.ts) > number(oldest)]
        start = spoken[:1] if spoken and spoken[0].ts == message.key.thread else []
        return await self._composed(message, [*start, *spoken[len(start) :][-limit:]], me)

    async def _is_known(self, message: InboundMessage) -> bool:
        """Say whether every word before *message* was said to us, or whether there is nothing before it."""
        if message.chat_kind is ChatKind.DIRECT or message.kind is not InboundKind.MESSAGE:
            return True
        if self._manners(message.key.chat).group_policy == "open":
            return True
        try:
            moment(message.message_id)
        except ValueError:
            return True  # a job of ours: nobody wrote it there
        since = await self._ears.threads.since(message.key.chat)
        return bool(since) and number(since) < number(message.message_id)

    async def _read(self, message: InboundMessage, oldest: str, limit: int) -> Sequence[Mapping[str, Any]]:
        query = {"channel": message.key.parent.chat, "latest": message.message_id, "oldest": oldest}
        if message.key.thread in ("", message.message_id):
            answer = await self._api.get("conversations.history", **query, limit=min(2 * limit, _MOST))
            return list(reversed(answer.get("messages") or ()))
        start: list[Mapping[str, Any]] = []
        newest: deque[Mapping[str, Any]] = deque(maxlen=2 * limit)  # ours and joins among them
        query |= {"ts": message.key.thread, "limit": str(_PAGE)}
        for page in range(2 * _PAGES):
            answer = await self._api.get("conversations.replies", **query)
            for reply in answer.get("messages") or ():  # the thread's start comes with every page
                if reply.get("ts") == message.key.thread:
                    start = [reply]
                else:
                    newest.append(reply)
            query["cursor"] = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not query["cursor"]:
                break
            if page == _PAGES - 1:  # too long to be read through: its last hour, then
                newest.clear()
                query |= {"oldest": max(oldest, _ts(message.sent_at - _LATELY), key=number), "cursor": ""}
        return [*start, *newest]

    def _spoken(
        self, message: InboundMessage, found: Iterable[Mapping[str, Any]], me: SlackBotIdentity
    ) -> Iterable[ParsedEvent]:
        for said in found:
            event = {**said, "type": "message", "channel": message.key.parent.chat, "channel_type": "channel"}
            try:
                heard = parse_event(
                    {"type": "event_callback", "event": event}, me, in_threads=False, now=message.sent_at
                )
            except UnreadableEvent:
                continue  # nobody waits for an answer to it
            is_before = heard is not None and number(heard.ts) < number(message.message_id)
            if heard is not None and is_before and not heard.is_self:
                yield heard

    async def _composed(
        self, message: InboundMessage, spoken: Sequence[ParsedEvent], me: SlackBotIdentity
    ) -> list[InboundMessage]:
        users = {heard.user for heard in spoken if heard.user and not heard.is_bot}
        people = await self._ears.people.look_up(users, me.team)
        unknown = SlackProfile(is_guest=True)  # of whom Slack says nothing: a stranger unless named
        named = self._ears.people.names({user for heard in spoken for user in mentions(heard.text)})
        return [
            replace(
                build_message(heard, self._name, me, people.get(heard.user, unknown), is_followed=False, names=named),
                key=message.key,
            )
            for heard in spoken
        ]


def _ts(at: datetime) -> str:
    micros = (at - _EPOCH) // timedelta(microseconds=1)
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"
