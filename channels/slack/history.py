"""The history of conversations: its pages, within Slack's rate limits, and the messages before a mention.

Messages before a mention come with the senders' profiles that admission needs.
"""

from __future__ import annotations

import asyncio
import time
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
    moment,
    named_ids,
    parse_event,
)
from channels.slack.inbound import SlackInbound
from channels.slack.read_cursors import number
from gateway.errors import RetryLater, UnreadableEvent
from gateway.events import ChatKind, InboundKind, InboundMessage
from gateway.ports import ChannelContext

log = structlog.get_logger(__name__)

_OLDEST = 7 * 24 * 3_600  # seconds; older than that is no conversation any more
_CATCH_UP_PAGE = 100
_CATCH_UP_PAGES = 3  # of one place; what is older stays unread, and that is said
_LONGEST_WAIT = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE = 200
_PAGES = 5  # of a thread: Slack returns the oldest first, and the newest are needed
_RECENT = timedelta(hours=1)
_LIMIT = 100  # messages of a channel's history, the bot's among them
_EXPECTED = frozenset({"missing_scope", "not_in_channel", "channel_not_found", "thread_not_found"})


class HistoryPages:
    """Reads the history of one workspace. Every method raises SendFailed."""

    def __init__(self, api: SlackApi) -> None:
        self._api = api
        self.calls = 0

    async def since(self, chat: str, thread: str, mark: str) -> list[Mapping[str, Any]]:
        """Return the messages of a chat or *thread* after the ts *mark*, oldest first.

        They are at most a week old, and at most 300, the newest.
        """
        oldest = max(mark, f"{int(time.time()) - _OLDEST}.000000", key=number)
        query: dict[str, Any] = {"channel": chat, "oldest": oldest, "limit": _CATCH_UP_PAGE}
        if thread:
            query["ts"] = thread
        messages: list[Mapping[str, Any]] = []
        for _ in range(_CATCH_UP_PAGES):
            page = await self.page("conversations.replies" if thread else "conversations.history", query)
            # The parent of a thread comes with every page.
            messages += [m for m in page.get("messages") or () if number(str(m.get("ts") or "")) > number(oldest)]
            query["cursor"] = next_cursor(page)
            if not query["cursor"]:
                break
        else:
            log.warning("slack.too_much_was_said", chat=chat, read=len(messages))
        return sorted(messages, key=lambda message: number(str(message["ts"])))

    async def page(self, method: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return one page; wait once for a rate limit, a minute at most."""
        self.calls += 1
        arguments = {name: value for name, value in query.items() if value}
        try:
            answer = await self._api.get(method, **arguments)
        except RetryLater as error:
            await asyncio.sleep(min(error.delay.total_seconds(), _LONGEST_WAIT))
            answer = await self._api.get(method, **arguments)
        data: Mapping[str, Any] = answer.data if isinstance(answer.data, dict) else {}
        return data


def next_cursor(page: Mapping[str, Any]) -> str:
    """Return the cursor of the page after *page*, "" after the last."""
    return str((page.get("response_metadata") or {}).get("next_cursor") or "")


def as_event(message: Mapping[str, Any], chat: str) -> dict[str, Any]:
    """Return *message* of a history in the shape of an event without id."""
    kind = "im" if chat.startswith("D") else "channel"
    return {"type": "event_callback", "event": {**message, "type": "message", "channel": chat, "channel_type": kind}}


class SlackHistory:
    """Reads the history of a chat or thread, except where the bot receives every message anyway."""

    def __init__(self, context: ChannelContext, api: SlackApi, inbound: SlackInbound) -> None:
        self._name = context.name
        self._api = api
        self._inbound = inbound
        self._reply_policy = context.reply_policy
        self._logged: set[str] = set()

    async def messages_before(
        self, message: InboundMessage, bot: SlackBotIdentity, *, since: datetime | None, limit: int
    ) -> list[InboundMessage]:
        """Return the messages before *message* in its chat or thread; see `SupportsHistory`."""
        is_known, thread = await self._is_known(message), message.key.thread
        if is_known and (since is not None or thread in ("", message.message_id) or not _is_typed(message)):
            return []
        oldest = _ts(since) if since else "0"
        try:
            messages = await (self._read_start(message) if is_known else self._read(message, oldest, limit))
        except SlackRefusal as error:
            if error.code not in _EXPECTED:
                raise
            if error.code not in self._logged:
                self._logged.add(error.code)
                log.warning("slack.no_history", channel=self._name, reason=str(error), lost="what was said before us")
            return []
        events = [each for each in self._parse(message, messages, bot) if number(each.ts) > number(oldest)]
        start = events[:1] if events and events[0].ts == message.key.thread else []
        return await self._build(message, [*start, *events[len(start) :][-limit:]], bot)

    async def _is_known(self, message: InboundMessage) -> bool:
        """Return True if every message before *message* was received, or if the chat has no others."""
        if message.chat_kind is ChatKind.DIRECT or not _is_typed(message):
            return True
        if self._reply_policy(message.key.chat).group_policy == "open":
            return True
        since = await self._inbound.threads.since(message.key.chat)
        return bool(since) and number(since) < number(message.message_id)

    async def _read_start(self, message: InboundMessage) -> Sequence[Mapping[str, Any]]:
        query = {"channel": message.key.parent.chat, "ts": message.key.thread, "limit": "1"}
        answer = await self._api.get("conversations.replies", **query)
        return [each for each in answer.get("messages") or () if each.get("ts") == message.key.thread]

    async def _read(self, message: InboundMessage, oldest: str, limit: int) -> Sequence[Mapping[str, Any]]:
        query = {"channel": message.key.parent.chat, "latest": message.message_id, "oldest": oldest}
        if message.key.thread in ("", message.message_id):
            answer = await self._api.get("conversations.history", **query, limit=min(2 * limit, _LIMIT))
            return list(reversed(answer.get("messages") or ()))
        start: list[Mapping[str, Any]] = []
        newest: deque[Mapping[str, Any]] = deque(maxlen=2 * limit)  # the bot's and joins among them
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
            if page == _PAGES - 1:  # too long: only its last hour
                newest.clear()
                query |= {"oldest": max(oldest, _ts(message.sent_at - _RECENT), key=number), "cursor": ""}
        return [*start, *newest]

    def _parse(
        self, message: InboundMessage, payloads: Iterable[Mapping[str, Any]], bot: SlackBotIdentity
    ) -> Iterable[ParsedEvent]:
        for payload in payloads:
            event = {**payload, "type": "message", "channel": message.key.parent.chat, "channel_type": "channel"}
            try:
                parsed = parse_event(
                    {"type": "event_callback", "event": event}, bot, in_threads=False, now=message.sent_at
                )
            except UnreadableEvent:
                continue  # it is context only
            is_before = parsed is not None and number(parsed.ts) < number(message.message_id)
            if parsed is not None and is_before and (not parsed.is_self or parsed.ts == message.key.thread):
                yield parsed

    async def _build(
        self, message: InboundMessage, events: Sequence[ParsedEvent], bot: SlackBotIdentity
    ) -> list[InboundMessage]:
        users = {event.user for event in events if event.user and not event.is_bot}
        profiles = await self._inbound.users.profiles_of(users, bot.team)
        unknown = SlackProfile(is_guest=True)  # without an answer of Slack: admitted only by name
        ids = [each for event in events for each in named_ids(event.whole_text)]
        names = await self._inbound.names.names(list(dict.fromkeys(ids)), bot.team)
        return [
            replace(
                build_message(
                    event, self._name, bot, profiles.get(event.user, unknown), is_followed=False, names=names
                ),
                key=message.key,
            )
            for event in events
        ]


def _is_typed(message: InboundMessage) -> bool:
    """Return True for a message that a user wrote, which has a ts for its id; False for one of a job or a command."""
    try:
        moment(message.message_id)
    except ValueError:
        return False
    return message.kind is InboundKind.MESSAGE


def _ts(at: datetime) -> str:
    micros = (at - _EPOCH) // timedelta(microseconds=1)
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"
