"""From events to the intake: receive, parse, accept, then show the sender the result.

Live events and backfilled history take the same path, in the order of the chat's queue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog
from cachetools import LRUCache

from channels.discord import parse
from channels.discord.api import DiscordApi
from channels.discord.chats import DiscordHistory, DiscordMembers, DiscordReplyThreads
from channels.discord.gateway_client import DiscordGatewayClient
from channels.discord.interactions import DiscordInteractions, DiscordReactions
from channels.discord.shards import (
    OLDEST,
    BotShard,
    DiscordReadCursors,
    SequencedEvent,
    SequencedEventKind,
    is_unordered,
)
from channels.kit.background import utc_now
from channels.kit.chat_facts import FollowedThreads
from gateway.channel import ChannelContext
from gateway.errors import SendRefused, StoreUnavailable, UnreadableEvent
from gateway.events import InboundMessage
from gateway.ports.channel import EventOrigin, IntakeVerdict, MembershipChange, PlatformEvent
from gateway.text import sanitize
from gateway.text.message_text import safe_display_name

if TYPE_CHECKING:
    from gateway.intake import Intake
    from gateway.store.records import SqlChannelState


log = structlog.get_logger(__name__)

BACKFILL_LIMIT = 500  # messages of one chat after an absence
_EDITS_LIMIT = 50  # messages before the cursor that are checked for edits
_BACKFILLED_CHATS = 200  # chats whose last backfill is remembered
_CONCURRENT_READS = 8

_GUILD_EVENTS = frozenset({SequencedEventKind.LISTED, SequencedEventKind.CAME, SequencedEventKind.LEFT})


@dataclass(frozen=True, slots=True)
class _ParsedMessage:
    """A message for the intake, and whether it mentions others."""

    message: InboundMessage
    mentions_others: bool = False


@dataclass(frozen=True, slots=True)
class InboundLimits:
    """Limits on concurrent work, for all shards of a channel together."""

    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT_READS))
    cautious: asyncio.Lock = field(default_factory=asyncio.Lock)


class DiscordInbound:
    """Takes the events of one shard in."""

    def __init__(
        self,
        context: ChannelContext,
        api: DiscordApi,
        shard: BotShard,
        *,
        limits: InboundLimits,
        members: DiscordMembers,
        history: DiscordHistory,
        threads: DiscordReplyThreads,
        followed: FollowedThreads,
        reactions: DiscordReactions,
        interactions: DiscordInteractions,
    ) -> None:
        self._name = context.name
        self._intake = context.intake
        self._reply_policy = context.reply_policy
        self._api = api
        self._shard = shard
        self.cursors = DiscordReadCursors(context.state, shard)
        self._guilds = DiscordGuilds(context.name, context.state, context.intake, shard)
        self._threads = threads
        self._followed = followed
        self._interactions = interactions
        self._members = members
        self._history = history
        self._reactions = reactions
        self._limits = limits
        self._backfilled: LRUCache[str, set[str]] = LRUCache(_BACKFILLED_CHATS)  # message ids of the last backfill
        self.client: DiscordGatewayClient | None = None  # the connection whose guilds are known

    async def open(self) -> Sequence[str]:
        """Load the read cursors and guilds of earlier runs; return the guilds. Raises StoreUnavailable."""
        await self.cursors.open()
        return await self._guilds.open()

    async def save(self) -> None:
        """Store the read cursors and guilds that changed; raises StoreUnavailable."""
        await self.cursors.save()
        await self._guilds.save()

    # -- of the event sequencer ---------------------------------------------------------------

    async def backfill(self, chat: str) -> None:
        """Process the messages after the chat's read cursor: at most a day's and BACKFILL_LIMIT."""
        floor = 0 if is_unordered(chat) else await self.cursors.floor(chat)
        client = self.client
        if not floor or (client is not None and self._history.is_closed(client, chat)):
            return
        count, backfilled = 0, set[str]()
        self._backfilled[chat] = backfilled
        try:
            if not await self._is_of_shard(chat, client):
                return
            await self._process_edits(chat, floor)
            while page := await self._page(chat, floor):
                for payload in page:
                    await self.receive(chat, _created(payload))
                    backfilled.add(str(payload["id"]))
                count += len(page)
                floor = int(page[-1]["id"])
                if count >= BACKFILL_LIMIT:
                    await self._skip_to_newest(chat, floor)
                    return
        except SendRefused as error:
            log.info("discord.chat_closed", channel=self._name, chat=chat, reason=str(error))
        if count:
            log.info("discord.read_back", channel=self._name, chat=chat, messages=count)

    async def dispatch(self, chat: str, event: SequencedEvent) -> None:
        """Process a live event unless the last backfill did; after an exception it must come again."""
        if event.kind is not SequencedEventKind.SAID or event.id not in self._backfilled.get(chat, ()):
            await self.receive(chat, event)

    async def _is_of_shard(self, chat: str, client: DiscordGatewayClient | None) -> bool:
        """Return False for a chat that the shard had while there were more or fewer of them."""
        if self._shard.total == 1 or (client is not None and client.chat(chat) is not None):
            return True
        return self._shard.has(str((await self._api.channel(chat)).get("guild_id") or ""))

    async def _process_edits(self, chat: str, floor: int) -> None:
        async with self._limits.reads:
            page = await self._api.history(chat, before=floor + 1, limit=_EDITS_LIMIT)
        for payload in page:
            if not parse.changes_nothing(payload) and not self._is_no_edit(payload):
                await self.receive(chat, _created(payload))

    async def _page(self, chat: str, after: int) -> Sequence[Mapping[str, Any]]:
        async with self._limits.reads:
            return await self._api.history(chat, after=after)

    async def _skip_to_newest(self, chat: str, floor: int) -> None:
        log.warning("discord.backlog_cut", channel=self._name, chat=chat, read=BACKFILL_LIMIT)
        for payload in await self._api.history(chat):
            if int(payload["id"]) > floor:
                await self.receive(chat, _created(payload))

    # -- receive, parse, accept ----------------------------------------------------------------

    async def receive(self, chat: str, event: SequencedEvent) -> None:
        """Take one event in and move the chat's read cursor."""
        client = self._connected_client()
        is_accepted = False

        async def work() -> None:
            nonlocal is_accepted
            is_accepted = await self.accept(chat, event, client)

        raw = json.dumps(event.payload, default=str)
        platform_event = PlatformEvent(
            channel=self._name, id=event.name, raw=raw, origin=_origin_of(chat, event, client)
        )
        if self._intake.is_cautious:
            async with self._limits.cautious:
                await self._intake.handle(platform_event, work)
        else:
            await self._intake.handle(platform_event, work)
        if event.kind is SequencedEventKind.SAID:
            self.cursors.advance(chat, event.id, durably=is_accepted)
            await self.cursors.settle(chat)

    async def replay(self, platform_event: PlatformEvent) -> None:
        """Take in a message that was quarantined; raise UnreadableEvent for other events."""
        client = self._connected_client()
        if platform_event.origin is None:
            raise UnreadableEvent("only messages can be taken in again")
        payload = json.loads(platform_event.raw)
        event = _created(payload)
        if payload.get("edited_timestamp"):
            event = replace(event, kind=SequencedEventKind.EDITED)
        await self.accept(str(int(payload["channel_id"])), event, client)

    async def accept(self, chat: str, event: SequencedEvent, client: DiscordGatewayClient) -> bool:
        """Parse *event* and hand it to the intake; return True if it is durable. Raises UnreadableEvent."""
        if event.kind is SequencedEventKind.ODD:
            raise UnreadableEvent(f"{event.payload['t']}: {event.payload['error']}")
        try:
            if event.kind in _GUILD_EVENTS:
                await self._update_guilds(event)
                return True
            parsed = await self.parse(chat, event, client)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableEvent(f"{event.kind}: {type(error).__name__}") from error
        return False if parsed is None else await self._hand_over(chat, event, parsed)

    async def parse(self, chat: str, event: SequencedEvent, client: DiscordGatewayClient) -> _ParsedMessage | None:
        """Return the message of *event*, or None if it has none for the bot. Raises KeyError and the like."""
        payload = event.payload
        if event.kind is SequencedEventKind.USED:
            if parse.is_among_others(payload):
                await self._interactions.refuse(payload)
                return None
            return self._parse_interaction(event, client)
        if event.kind is SequencedEventKind.EDITED and self._is_no_edit(payload):
            return None
        place = await self._members.chat(chat, payload, client)
        if event.kind is SequencedEventKind.DELETED:
            deletion = parse.read_deletion(self._name, event.id, place, utc_now())
            return _ParsedMessage(await self._threads.with_thread(deletion, place))
        await client.load_guild(place.guild, self._api.guild)
        bot = client.bot_member(place.guild)
        if parse.is_ours(payload, bot):
            return None
        profile = await self._members.profile(place, payload, client) if place.guild else None
        message = parse.parse_message(self._name, payload, place, bot, profile)
        if message is None:
            return None
        mentions_others = parse.mentions_others(payload, bot)
        if not message.is_addressed and not mentions_others and self._may_follow(message):
            message = replace(message, is_addressed=await self._followed.is_followed(message.key.thread))
        return _ParsedMessage(await self._threads.with_thread(message, place), mentions_others)

    def _parse_interaction(self, event: SequencedEvent, client: DiscordGatewayClient) -> _ParsedMessage | None:
        message = parse.parse_interaction(self._name, event.payload, client.bot_member(""))
        if message is None:
            return None
        if message.guild:
            self._members.record(message.guild, message.sender.id, event.payload["member"], message.sent_at)
        return _ParsedMessage(message)

    async def _hand_over(self, chat: str, event: SequencedEvent, parsed: _ParsedMessage) -> bool:
        message = parsed.message
        result = await self._intake.receive(message)
        is_accepted = result.verdict is not IntakeVerdict.REJECTED
        if event.kind is SequencedEventKind.USED:
            if is_accepted:
                await self._interactions.hold(event.payload, message)
            elif result.line:
                await self._interactions.respond_once(event.payload, result.line)
            return is_accepted
        if self._may_follow(message):
            await self._followed.update(
                message.key.thread, result, mentions_us=message.is_addressed, mentions_others=parsed.mentions_others
            )
        if is_accepted:
            self.cursors.note_used(chat, is_direct=not message.guild)
            await self._threads.start(message)
        self._reactions.show_result(chat, message, result)
        return is_accepted

    async def _update_guilds(self, event: SequencedEvent) -> None:
        if event.kind is SequencedEventKind.LISTED:
            await self._guilds.update_all(event.payload["guilds"], event.payload["at"])
        elif event.kind is SequencedEventKind.CAME:
            await self._guilds.note_guild(event.payload)
        else:
            await self._guilds.note_removal(str(int(event.payload["id"])), event.payload["at"])

    def _connected_client(self) -> DiscordGatewayClient:
        if self.client is None:
            raise StoreUnavailable("no connection knows where this was said")
        return self.client

    def _may_follow(self, message: InboundMessage) -> bool:
        return bool(message.key.thread) and self._reply_policy(message.key.chat, message.guild).follow_threads

    def _is_no_edit(self, payload: Mapping[str, Any]) -> bool:
        # The journal may have forgotten an older message, and would take its edit for a new one.
        return parse.changes_nothing(payload) or utc_now() - parse.moment_of(payload["id"]) > OLDEST


def _origin_of(chat: str, event: SequencedEvent, client: DiscordGatewayClient) -> EventOrigin | None:
    """Return the origin of a message as far as it is known without parsing; never raises."""
    author = event.payload.get("author")
    if event.kind not in (SequencedEventKind.SAID, SequencedEventKind.EDITED) or not isinstance(author, Mapping):
        return None
    place = None if is_unordered(chat) else client.chat(chat)  # history does not contain a message's guild
    return EventOrigin(
        chat=place.chat if place else chat,
        sender=str(author.get("id", "")),
        message_id=event.id,
        guild=place.guild if place else "",
        is_direct=place is None,
    )


def _created(payload: Mapping[str, Any]) -> SequencedEvent:
    return SequencedEvent(kind=SequencedEventKind.SAID, id=str(payload["id"]), payload=payload)


# -- guilds ----------------------------------------------------------------------------------------
# The guilds the bot is in, stored so that a new one is distinguished from those that a session lists.

_NOTE = "guilds"  # the shard's note that holds their ids, as JSON


class DiscordGuilds:
    """The guilds of one shard. Those of the very first session are not reported as new.

    Discord does not name the user who added the bot. After downtime only the list of guilds is known.
    """

    def __init__(self, name: str, state: SqlChannelState, intake: Intake, shard: BotShard) -> None:
        self._name = name
        self._state = state
        self._intake = intake
        self._note = shard.note(_NOTE)
        self._known: dict[str, None] | None = None
        self._is_unsaved = False

    async def open(self) -> Sequence[str]:
        """Load the guilds of earlier sessions, which another worker may have had, and return them."""
        if not self._is_unsaved:
            self._known = None
        return list(await self._load() or ())

    async def update_all(self, guild_ids: Sequence[str], at: str) -> None:
        """Take a new session's list of the time *at*: the bot left guilds not in it. Raises StoreUnavailable."""
        known = await self._load()
        if known is None:
            # Saved with the read cursors; a restart before that finds the same.
            self._known, self._is_unsaved = dict.fromkeys(guild_ids), True
            return
        for guild_id in [each for each in known if each not in guild_ids]:
            await self.note_removal(guild_id, at)

    async def note_guild(self, guild: Mapping[str, Any]) -> None:
        """Take a guild that Discord announces: in a new session, after an outage, or after the bot was added."""
        guild_id, known = str(int(guild["id"])), await self._load()
        if known is None or guild_id in known:
            return
        change = MembershipChange(
            channel=self._name,
            id=f"place/{guild_id}/{guild.get('joined_at') or 'in'}",
            guild=guild_id,
            title=safe_display_name(sanitize(str(guild.get("name") or ""))),
        )
        await self._intake.membership_changed(change)  # before the note: a repetition has the same id
        await self._save({**known, guild_id: None})

    async def note_removal(self, guild_id: str, at: str) -> None:
        """Take that the bot was removed from a guild at the time *at*."""
        known = await self._load()
        if known is None or guild_id not in known:
            return
        await self._intake.membership_changed(
            MembershipChange(channel=self._name, id=f"place/{guild_id}/out/{at}", guild=guild_id, is_gone=True),
        )
        await self._save({each: None for each in known if each != guild_id})

    async def save(self) -> None:
        """Store the guilds of the first session if they are not stored; raises StoreUnavailable."""
        if self._is_unsaved and self._known is not None:
            await self._save(self._known)

    async def _load(self) -> dict[str, None] | None:
        if self._known is None:
            noted = await self._state.load(self._note)
            self._known = None if noted is None else dict.fromkeys(json.loads(noted))
        return self._known

    async def _save(self, names: dict[str, None]) -> None:
        await self._state.save(self._note, json.dumps(list(names)))
        self._known, self._is_unsaved = names, False
