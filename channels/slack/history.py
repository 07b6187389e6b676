"""Reading the history of conversations: the messages before a mention, and the catch-up after downtime."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog

from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.inbound import SlackInbound, number
from channels.slack.parse import ParsedEvent, SlackBotIdentity, SlackProfile, build_message, moment, parse_event
from channels.slack.render import named_ids
from gateway.channel import ChannelContext
from gateway.errors import RetryLater, SendFailed, StoreUnavailable, UnreadableEvent
from gateway.events import ChatKind, InboundKind, InboundMessage

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState


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
        profiles = await self._inbound.members.profiles_of(users, bot.team)
        unknown = SlackProfile(is_guest=True)  # without an answer of Slack: admitted only by name
        ids = [each for event in events for each in named_ids(event.whole_text)]
        names = await self._inbound.members.names(list(dict.fromkeys(ids)), bot.team)
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


# -- catchup ---------------------------------------------------------------------------------------
# Slack stops redelivering after minutes, so the history is read after downtime. Each conversation in use is read from
# its read cursor, oldest first, in order with live events. Messages that were edited since are found on the way;
# deletions are not, because the history no longer contains them. After a stop, mentions are also read in channels that
# the bot is a member of but never spoke in, which have no cursor.

_NOTE = "heard-until"
_MARGIN = 60  # seconds between an event's own time and our storing it
_NOTE_EVERY = 60
_LISTED = 200  # channels in a page; docs.slack.dev: users.conversations returns 999 at most
_LISTS = 5
_CALLS = 200  # for one stop; history allows about 50 a minute
_TYPES = {"public_channel": "channels", "private_channel": "groups"}  # and what their scopes begin with
_PLACES = 100
_EDITED_IN = 20  # conversations, the latest, that are searched for edits
_EDITED_OF = 50  # messages of each
_EDITED_FOR = 24 * 3_600  # seconds before the mark, in a thread
_SAVE_EVERY = 5.0
_GIVEN_UP = 600.0  # seconds after which Slack brings no event again
_AGAIN = 60.0  # seconds until channels that could not be read are tried again


class ReceivedUntil:
    """The time up to which every event was received, stored while the gateway runs: a kill needs no special case."""

    def __init__(self, state: SqlChannelState) -> None:
        self._state = state
        self._second: int | None = None

    async def load(self) -> None:
        """Load the time of an earlier run; raises StoreUnavailable."""
        stored = int(await self._state.load(_NOTE) or 0)
        self._second = max(self._second or 0, stored)  # another worker may have received since

    @property
    def second(self) -> int:
        """The time in seconds since 1970, never in the future; 0 before the first start."""
        return min(self._second or 0, int(time.time()))

    async def note(self) -> None:
        """Store that everything until now was received, at most once a minute. Raises StoreUnavailable."""
        until = int(time.time()) - _MARGIN
        if not self._second or abs(until - self._second) >= _NOTE_EVERY:
            await self._state.save(_NOTE, str(until))
            self._second = until


class JoinedChannels:
    """Reads these channels, within limits of age and messages for each (`HistoryPages`) and of calls for all."""

    def __init__(self, pages: HistoryPages, inbound: SlackInbound, scopes: Callable[[], Collection[str]]) -> None:
        self._pages = pages
        self._inbound = inbound
        self._scopes = scopes
        self._unread: deque[tuple[str, str]] | None = None  # chats and threads; None = not listed yet

    async def read_back(self, since: int, with_cursor: Collection[str], bot: SlackBotIdentity) -> bool:
        """Accept mentions in channels not *with_cursor* after the second *since*.

        Return False if not all could be read; the next call continues there.
        """
        calls = self._pages.calls
        try:
            if self._unread is None:
                self._unread = deque((chat, "") for chat in await self._list() if chat not in with_cursor)
            while self._unread and self._pages.calls - calls < _CALLS:
                await self._read(*self._unread[0], f"{since}.000000", bot)
                self._unread.popleft()
        except SendFailed as error:
            log.warning("slack.channels_wait", left=len(self._unread or ()), reason=str(error))
            return False
        if self._unread:
            log.warning("slack.channels_unread", channels=len({chat for chat, _ in self._unread}), calls=_CALLS)
        self._unread = None
        return True

    async def _list(self) -> Sequence[str]:
        scopes = self._scopes()
        can = {kind: not scopes or {f"{name}:read", f"{name}:history"} <= {*scopes} for kind, name in _TYPES.items()}
        if not all(can.values()):
            lacks = ", ".join(f"{name}:read, {name}:history" for kind, name in _TYPES.items() if not can[kind])
            log.info("slack.channels_not_listed", needs=lacks)
        chats: list[str] = []
        query: dict[str, Any] = {"types": ",".join(kind for kind in can if can[kind])}
        query |= {"exclude_archived": "true", "limit": _LISTED}
        for _ in range(_LISTS if query["types"] else 0):
            try:
                page = await self._pages.page("users.conversations", query)
            except SlackRefusal as error:
                log.warning("slack.channels_not_listed", reason=error.code, needs=error.needed)
                return chats
            chats += [str(each["id"]) for each in page.get("channels") or () if each.get("id")]
            query["cursor"] = next_cursor(page)
            if not query["cursor"]:
                return chats
        if chats:
            log.warning("slack.channels_not_listed", listed=len(chats), reason="the bot is a member of more")
        return chats

    async def _read(self, chat: str, thread: str, mark: str, bot: SlackBotIdentity) -> None:
        try:
            async with self._inbound.in_order.hold(chat):
                messages = await self._pages.since(chat, thread, mark)
                for message in messages:
                    if self._inbound.reads_all(chat) or f"<@{bot.user}" in str(message.get("text") or ""):
                        await self._inbound.accept(as_event(message, chat), bot)
        except SlackRefusal as error:
            log.info("slack.no_catch_up", place=chat, reason=error.code, needs=error.needed)
            return
        if not thread and self._unread is not None:
            # Threads of messages since the stop; threads of older messages are not in the history.
            self._unread.extend((chat, str(each["ts"])) for each in messages if _has_replies(each, mark))


def _has_replies(message: Mapping[str, Any], mark: str) -> bool:
    latest = str(message.get("latest_reply") or "")
    return bool(latest) and number(latest) > number(mark)


class SlackCatchUp:
    """Reads missed messages and saves the read cursors."""

    def __init__(
        self,
        pages: HistoryPages,
        inbound: SlackInbound,
        *,
        received_until: ReceivedUntil,
        joined_channels: JoinedChannels,
        is_receiving: Callable[[], bool],
    ) -> None:
        self._pages = pages
        self._inbound = inbound
        self._cursors = inbound.cursors
        self._received_until = received_until
        self._joined = joined_channels
        self._is_receiving = is_receiving
        self._stopped_at: int | None = None  # since when channels without a cursor are unread; None = they are read
        self._unmarked_but: frozenset[str] = frozenset()  # the conversations that had a cursor then
        self._tried_at = 0.0
        self._has_started = False
        self._requested = asyncio.Event()
        self._from: dict[str, str] = {}
        self.every = _SAVE_EVERY
        self.given_up_after = _GIVEN_UP
        self.passes = 0  # how often all conversations were read

    def request(self) -> None:
        """Request that all conversations are read soon: Slack may not redeliver something.

        They are read from the current cursors, because live events move the cursors past what is unread.
        """
        places = self._cursors.places()
        for place, mark in places:
            self._from[place] = min(mark, self._from.get(place, mark), key=number)
        stop = self._received_until.second
        # Slack redelivers the messages of a short gap, but nothing that was acknowledged before a kill.
        if stop and (not self._has_started or time.time() - stop > _GIVEN_UP):
            if self._stopped_at is None:
                self._unmarked_but = frozenset(place for place, _ in places)
            self._stopped_at = min(stop, self._stopped_at or stop)
            self._tried_at = 0.0
        self._has_started = True
        self._requested.set()

    async def run(self, bot: SlackBotIdentity) -> None:
        """Catch up when requested and save the cursors regularly, until cancelled."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.every):
                        await self._requested.wait()
                if self._cursors.is_overdue(self.given_up_after):
                    self.request()  # while the journal was down, say; Slack will not redeliver it
                is_requested = self._requested.is_set()
                if is_requested:
                    self._requested.clear()
                    await self._read_all(bot)
                if self._stopped_at is not None:
                    await self._read_joined(self._stopped_at, bot)
                self.passes += is_requested
                await self._save()
        finally:
            await self._save()

    async def _read_joined(self, stopped_at: int, bot: SlackBotIdentity) -> None:
        if self._tried_at and time.monotonic() - self._tried_at < _AGAIN:
            return
        self._tried_at = time.monotonic()
        if await self._joined.read_back(stopped_at, self._unmarked_but, bot):
            self._stopped_at = None

    async def _save(self) -> None:
        try:
            await self._cursors.save()
            if self._stopped_at is None and self._is_receiving():
                await self._received_until.note()
        except StoreUnavailable as error:
            log.info("slack.marks_wait", reason=str(error))

    async def _read_all(self, bot: SlackBotIdentity) -> None:
        places, unread, self._from = list(self._from.items())[:_PLACES], len(self._from) - _PLACES, {}
        if unread > 0:
            log.warning("slack.places_unread", places=unread)
        read = 0
        for turn, (place, mark) in enumerate(places):
            try:
                read += await self._read(place, mark, bot)
                if turn < _EDITED_IN:
                    await self._read_edits(place, mark, bot)
            except SlackRefusal as error:
                log.warning("slack.no_catch_up", place=place, reason=error.code, needs=error.needed)
            except (SendFailed, StoreUnavailable) as error:
                log.warning("slack.catch_up_failed", place=place, reason=str(error))
        log.info("slack.caught_up", places=len(places), messages=read)

    async def _read(self, place: str, mark: str, bot: SlackBotIdentity) -> int:
        chat, _, thread = place.partition("/")
        async with self._inbound.in_order.hold(chat):
            messages = await self._pages.since(chat, thread, mark)
            for message in messages:
                await self._inbound.accept(as_event(message, chat), bot)
        return len(messages)

    async def _read_edits(self, place: str, mark: str, bot: SlackBotIdentity) -> None:
        """Accept messages before the cursor that were edited after it; the journal ignores known edits."""
        chat, _, thread = place.partition("/")
        query: dict[str, Any] = {"channel": chat, "latest": mark, "inclusive": "true", "limit": _EDITED_OF}
        if thread:
            query |= {"ts": thread, "oldest": f"{max(number(mark)[0] - _EDITED_FOR, 0)}.000000"}
        async with self._inbound.in_order.hold(chat):
            page = await self._pages.page("conversations.replies" if thread else "conversations.history", query)
            for message in page.get("messages") or ():
                edited = str((message.get("edited") or {}).get("ts") or "")
                if number(str(message.get("ts") or "")) <= number(mark) < number(edited):
                    await self._inbound.accept(as_event(message, chat), bot, is_old=True)
