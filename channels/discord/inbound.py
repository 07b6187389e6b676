"""What comes from Discord, on its way to the intake: where it was said, by whom, and how far each chat is.

Live events and history pass here alike, behind the chat's gate.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog

from channels.discord import codec
from channels.discord.api import DiscordApi
from channels.discord.event_sequencer import SequencedEvent, SequencedEventKind, is_aside
from channels.discord.followed_threads import DiscordFollowedThreads
from channels.discord.gateway_client import DiscordGatewayClient
from channels.discord.guilds import DiscordGuilds
from channels.discord.history import DiscordHistory
from channels.discord.interactions import DiscordInteractions
from channels.discord.members import DiscordMembers
from channels.discord.read_cursors import OLDEST, DiscordReadCursors
from channels.discord.reply_threads import DiscordReplyThreads, try_to_begin
from gateway.errors import SendRefused, StoreUnavailable, UnreadableEvent
from gateway.events import InboundMessage
from gateway.ports import EventOrigin, Intake, IntakeResult, IntakeVerdict, PlatformEvent

log = structlog.get_logger(__name__)

MOST_READ = 500  # messages of one chat that are read back after an absence
_LOOKED_AT_AGAIN = 50  # messages before the mark, in case they were edited meanwhile
_MOST_CAUGHT_UP = 200  # chats whose last reading is remembered
_READS = 8  # chats that are read at once: after an absence all of them have news

_PLACES = frozenset({SequencedEventKind.LISTED, SequencedEventKind.CAME, SequencedEventKind.LEFT})

Answered = Callable[[str, InboundMessage, IntakeResult], None]  # told when something was taken in or refused


@dataclass(frozen=True, slots=True)
class _ParsedMessage:
    """A message as it is handed over, and whether it speaks to others."""

    message: InboundMessage
    turns_away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordState:
    """What a block remembers over restarts."""

    marks: DiscordReadCursors
    follows: DiscordFollowedThreads
    threads: DiscordReplyThreads
    interactions: DiscordInteractions
    guilds: DiscordGuilds


class DiscordInbound:
    """Implements `gates.House`."""

    def __init__(
        self,
        name: str,
        intake: Intake,
        rest: DiscordApi,
        notes: DiscordState,
        *,
        lookups: DiscordMembers,
        history: DiscordHistory,
        now: Callable[[], datetime],
        answered: Answered,
    ) -> None:
        self._name = name
        self._intake = intake
        self._rest = rest
        self._marks = notes.marks
        self._follows = notes.follows
        self._threads = notes.threads
        self._interactions = notes.interactions
        self._guilds = notes.guilds
        self._lookups = lookups
        self._history = history
        self._now = now
        self._answered = answered
        self._reading = asyncio.Semaphore(_READS)
        self._caught_up: OrderedDict[str, set[str]] = OrderedDict()  # what each chat's last reading handed over
        self._alone = asyncio.Lock()  # one event at a time, after two unclean stops
        self.client: DiscordGatewayClient | None = None  # the connection whose guilds are known

    async def save(self) -> None:
        """Write the marks and what else moved since the last time; raises StoreUnavailable."""
        await self._marks.save()
        await self._guilds.save()

    # The gates' house.

    async def backfill(self, chat: str) -> None:
        """Hand over what was said after the chat's mark: at most a day's worth, and not without end."""
        floor = 0 if is_aside(chat) else await self._marks.floor(chat)
        client = self.client
        if not floor or (client is not None and self._history.is_closed(client, chat)):
            return
        read, caught_up = 0, self._caught_up.setdefault(chat, set())
        caught_up.clear()
        self._caught_up.move_to_end(chat)
        while len(self._caught_up) > _MOST_CAUGHT_UP:
            self._caught_up.popitem(last=False)
        try:
            await self._look_for_edits(chat, floor)
            while page := await self._page(chat, floor):
                for payload in page:
                    await self._pass(chat, _event(payload))
                    caught_up.add(str(payload["id"]))
                read += len(page)
                floor = int(page[-1]["id"])
                if read >= MOST_READ:
                    await self._skip_to_newest(chat, floor)
                    return
        except SendRefused as error:
            log.info("discord.chat_closed", channel=self._name, chat=chat, reason=str(error))
        if read:
            log.info("discord.read_back", channel=self._name, chat=chat, messages=read)

    async def _look_for_edits(self, chat: str, floor: int) -> None:
        """Hand over what stands shortly before the mark and was changed since then."""
        async with self._reading:
            page = await self._rest.history(chat, before=floor + 1, limit=_LOOKED_AT_AGAIN)
        for payload in page:
            if not codec.changes_nothing(payload) and not self._is_no_edit(payload):
                await self._pass(chat, _event(payload))

    async def _page(self, chat: str, after: int) -> Sequence[Mapping[str, Any]]:
        async with self._reading:
            return await self._rest.history(chat, after=after)

    async def _skip_to_newest(self, chat: str, floor: int) -> None:
        log.warning("discord.backlog_cut", channel=self._name, chat=chat, read=MOST_READ)
        for payload in await self._rest.history(chat):
            if int(payload["id"]) > floor:
                await self._pass(chat, _event(payload))

    async def dispatch(self, chat: str, event: SequencedEvent) -> None:
        """Hand over what came live, unless it was read back just before. Whatever it raises: it is to come again."""
        if event.happening is not SequencedEventKind.SAID or event.ident not in self._caught_up.get(chat, ()):
            await self._pass(chat, event)

    async def _pass(self, chat: str, event: SequencedEvent) -> None:
        client = self.client
        if client is None:
            raise StoreUnavailable("no connection knows where this was said")
        is_taken = False

        async def work() -> None:
            nonlocal is_taken
            is_taken = await self._take(chat, event, client)

        raw = json.dumps(event.payload, default=str)
        seen = PlatformEvent(channel=self._name, id=event.name, raw=raw, origin=_origin(chat, event, client))
        if self._intake.is_cautious:
            async with self._alone:
                await self._intake.handle(seen, work)
        else:
            await self._intake.handle(seen, work)
        if event.happening is SequencedEventKind.SAID:
            self._marks.advance(chat, event.ident, durably=is_taken)
            await self._marks.settle(chat)

    async def replay(self, seen: PlatformEvent) -> None:
        """Take in a message that the quarantine kept. Raises Unreadable for anything else."""
        client = self.client
        if client is None:
            raise StoreUnavailable("no connection knows where this was said")
        if seen.origin is None:
            raise UnreadableEvent("only messages can be taken in again")
        payload = json.loads(seen.raw)
        is_edit = bool(payload.get("edited_timestamp"))
        event = replace(_event(payload), happening=SequencedEventKind.EDITED) if is_edit else _event(payload)
        await self._take(str(int(payload["channel_id"])), event, client)

    async def _take(self, chat: str, event: SequencedEvent, client: DiscordGatewayClient) -> bool:
        """Read *event* and hand it in; whether it is durable when this returns. Raises Unreadable."""
        if event.happening is SequencedEventKind.ODD:
            raise UnreadableEvent(f"{event.payload['t']}: {event.payload['error']}")
        try:
            if event.happening in _PLACES:
                await self._note_place(event)
                return True
            if event.happening is SequencedEventKind.USED:
                heard = self._use(event, client)
            else:
                heard = await self._read(chat, event, client)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableEvent(f"{event.happening}: {type(error).__name__}") from error
        return await self._receive(chat, event, heard) if heard else False

    async def _note_place(self, event: SequencedEvent) -> None:
        """Tell the house of a server that we were added to, or are gone from."""
        if event.happening is SequencedEventKind.LISTED:
            await self._guilds.list(event.payload["guilds"], event.payload["at"])
        elif event.happening is SequencedEventKind.CAME:
            await self._guilds.note_guild(event.payload)
        else:
            await self._guilds.note_removal(str(int(event.payload["id"])), event.payload["at"])

    def _use(self, event: SequencedEvent, client: DiscordGatewayClient) -> _ParsedMessage | None:
        message = codec.parse_interaction(self._name, event.payload, client.bot_member(""))
        if message is None:
            return None
        if message.guild:
            self._lookups.note(message.guild, message.sender.id, event.payload["member"], message.sent_at)
        return _ParsedMessage(message)

    async def _receive(self, chat: str, event: SequencedEvent, heard: _ParsedMessage) -> bool:
        message = heard.message
        accepted = await self._intake.receive(message)
        is_taken = accepted.verdict is not IntakeVerdict.REJECTED
        if event.happening is SequencedEventKind.USED:
            if is_taken:
                await self._interactions.take(event.payload, message)
            elif accepted.line:
                await self._interactions.tell(event.payload, accepted.line)
            return is_taken
        await self._follows.note(message, accepted, turns_away=heard.turns_away)
        if is_taken:
            self._marks.note_used(chat, is_direct=not message.guild)
            await try_to_begin(self._threads, message)
        self._answered(chat, message, accepted)
        return is_taken

    # Reading one event.

    async def _read(self, chat: str, event: SequencedEvent, client: DiscordGatewayClient) -> _ParsedMessage | None:
        payload = event.payload
        if event.happening is SequencedEventKind.EDITED and self._is_no_edit(payload):
            return None
        place = await self._lookups.place(chat, payload, client)
        if event.happening is SequencedEventKind.DELETED:
            deletion = codec.read_deletion(self._name, event.ident, place, self._now())
            return _ParsedMessage(await self._threads.settle(deletion, place))
        me = client.bot_member(place.guild)
        if codec.is_ours(payload, me):
            return None
        profile = await self._lookups.profile(place, payload, client) if place.guild else None
        message = codec.parse_message(self._name, payload, place, me, profile)
        if message is None:
            return None
        turns_away = codec.mentions_others(payload, me)
        message = await self._follows.judge(message, turns_away=turns_away)
        return _ParsedMessage(await self._threads.settle(message, place), turns_away)

    def _is_no_edit(self, payload: Mapping[str, Any]) -> bool:
        if codec.changes_nothing(payload):
            return True
        # What the journal may have forgotten would be taken for new.
        return self._now() - codec.moment_of(payload["id"]) > OLDEST


def _origin(chat: str, event: SequencedEvent, client: DiscordGatewayClient) -> EventOrigin | None:
    """Return where a message comes from, as far as that can be told without reading it; never raises."""
    author = event.payload.get("author")
    if event.happening not in (SequencedEventKind.SAID, SequencedEventKind.EDITED) or not isinstance(author, Mapping):
        return None
    place = None if is_aside(chat) else client.place(chat)  # history does not say a message's guild
    return EventOrigin(
        chat=place.chat if place else chat,
        sender=str(author.get("id", "")),
        message_id=event.ident,
        guild=place.guild if place else "",
        is_direct=place is None,
    )


def _event(payload: Mapping[str, Any]) -> SequencedEvent:
    return SequencedEvent(happening=SequencedEventKind.SAID, ident=str(payload["id"]), payload=payload)
