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
from channels.discord.client import GatewayClient
from channels.discord.follows import Follows
from channels.discord.gates import Event, Happening, is_aside
from channels.discord.guilds import Guilds
from channels.discord.history import History
from channels.discord.interactions import Interactions
from channels.discord.lookups import Lookups
from channels.discord.marks import OLDEST, Marks
from channels.discord.rest import Rest
from channels.discord.threads import Threads, try_to_begin
from gateway.errors import SendRefused, StoreDown, Unreadable
from gateway.events import InboundMessage
from gateway.ports import Accepted, EventOrigin, Intake, PlatformEvent, Verdict

log = structlog.get_logger(__name__)

MOST_READ = 500  # messages of one chat that are read back after an absence
_LOOKED_AT_AGAIN = 50  # messages before the mark, in case they were edited meanwhile
_MOST_CAUGHT_UP = 200  # chats whose last reading is remembered
_READS = 8  # chats that are read at once: after an absence all of them have news

_PLACES = frozenset({Happening.LISTED, Happening.CAME, Happening.LEFT})

Answered = Callable[[str, InboundMessage, Accepted], None]  # told when something was taken in or refused


@dataclass(frozen=True, slots=True)
class _Heard:
    """A message as it is handed over, and whether it speaks to others."""

    message: InboundMessage
    turns_away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What a block remembers over restarts."""

    marks: Marks
    follows: Follows
    threads: Threads
    interactions: Interactions
    guilds: Guilds


class Inbound:
    """Implements `gates.House`."""

    def __init__(
        self,
        name: str,
        intake: Intake,
        rest: Rest,
        notes: Notes,
        *,
        lookups: Lookups,
        history: History,
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
        self.client: GatewayClient | None = None  # the connection whose guilds are known

    async def save(self) -> None:
        """Write the marks and what else moved since the last time; raises StoreDown."""
        await self._marks.save()
        await self._guilds.save()

    # The gates' house.

    async def read_back(self, chat: str) -> None:
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

    async def hand_over(self, chat: str, event: Event) -> None:
        """Hand over what came live, unless it was read back just before. Whatever it raises: it is to come again."""
        if event.happening is not Happening.SAID or event.ident not in self._caught_up.get(chat, ()):
            await self._pass(chat, event)

    async def _pass(self, chat: str, event: Event) -> None:
        client = self.client
        if client is None:
            raise StoreDown("no connection knows where this was said")
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
        if event.happening is Happening.SAID:
            self._marks.advance(chat, event.ident, durably=is_taken)
            await self._marks.settle(chat)

    async def replay(self, seen: PlatformEvent) -> None:
        """Take in a message that the quarantine kept. Raises Unreadable for anything else."""
        client = self.client
        if client is None:
            raise StoreDown("no connection knows where this was said")
        if seen.origin is None:
            raise Unreadable("only messages can be taken in again")
        payload = json.loads(seen.raw)
        is_edit = bool(payload.get("edited_timestamp"))
        event = replace(_event(payload), happening=Happening.EDITED) if is_edit else _event(payload)
        await self._take(str(int(payload["channel_id"])), event, client)

    async def _take(self, chat: str, event: Event, client: GatewayClient) -> bool:
        """Read *event* and hand it in; whether it is durable when this returns. Raises Unreadable."""
        if event.happening is Happening.ODD:
            raise Unreadable(f"{event.payload['t']}: {event.payload['error']}")
        try:
            if event.happening in _PLACES:
                await self._note_place(event)
                return True
            if event.happening is Happening.USED:
                heard = self._use(event, client)
            else:
                heard = await self._read(chat, event, client)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Unreadable(f"{event.happening}: {type(error).__name__}") from error
        return await self._receive(chat, event, heard) if heard else False

    async def _note_place(self, event: Event) -> None:
        """Tell the house of a server that we were added to, or are gone from."""
        if event.happening is Happening.LISTED:
            await self._guilds.list(event.payload["guilds"], event.payload["at"])
        elif event.happening is Happening.CAME:
            await self._guilds.came(event.payload)
        else:
            await self._guilds.left(str(int(event.payload["id"])), event.payload["at"])

    def _use(self, event: Event, client: GatewayClient) -> _Heard | None:
        message = codec.read_interaction(self._name, event.payload, client.me_in(""))
        if message is None:
            return None
        if message.guild:
            self._lookups.note(message.guild, message.sender.id, event.payload["member"], message.sent_at)
        return _Heard(message)

    async def _receive(self, chat: str, event: Event, heard: _Heard) -> bool:
        message = heard.message
        accepted = await self._intake.receive(message)
        is_taken = accepted.verdict is not Verdict.REJECTED
        if event.happening is Happening.USED:
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

    async def _read(self, chat: str, event: Event, client: GatewayClient) -> _Heard | None:
        payload = event.payload
        if event.happening is Happening.EDITED and self._is_no_edit(payload):
            return None
        place = await self._lookups.place(chat, payload, client)
        if event.happening is Happening.DELETED:
            deletion = codec.read_deletion(self._name, event.ident, place, self._now())
            return _Heard(await self._threads.settle(deletion, place))
        me = client.me_in(place.guild)
        if codec.is_ours(payload, me):
            return None
        profile = await self._lookups.profile(place, payload, client) if place.guild else None
        message = codec.read_message(self._name, payload, place, me, profile)
        if message is None:
            return None
        turns_away = codec.turns_away(payload, me)
        message = await self._follows.judge(message, turns_away=turns_away)
        return _Heard(await self._threads.settle(message, place), turns_away)

    def _is_no_edit(self, payload: Mapping[str, Any]) -> bool:
        if codec.changes_nothing(payload):
            return True
        # What the journal may have forgotten would be taken for new.
        return self._now() - codec.moment_of(payload["id"]) > OLDEST


def _origin(chat: str, event: Event, client: GatewayClient) -> EventOrigin | None:
    """Return where a message comes from, as far as that can be told without reading it; never raises."""
    author = event.payload.get("author")
    if event.happening not in (Happening.SAID, Happening.EDITED) or not isinstance(author, Mapping):
        return None
    place = None if is_aside(chat) else client.place(chat)  # history does not say a message's guild
    return EventOrigin(
        chat=place.chat if place else chat,
        sender=str(author.get("id", "")),
        message_id=event.ident,
        guild=place.guild if place else "",
        is_direct=place is None,
    )


def _event(payload: Mapping[str, Any]) -> Event:
    return Event(happening=Happening.SAID, ident=str(payload["id"]), payload=payload)
