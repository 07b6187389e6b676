"""What comes from Discord, on its way to the intake: where it was said, by whom, and how far each chat is.

Live events and history pass here alike, behind the chat's gate.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from channels.discord import codec
from channels.discord.client import GatewayClient
from channels.discord.codec import Place, Profile
from channels.discord.follows import Follows
from channels.discord.gates import Event, Happening
from channels.discord.marks import OLDEST, Marks
from channels.discord.rest import Rest
from gateway.errors import SendRefused, StoreDown
from gateway.events import InboundMessage
from gateway.ports import Accepted, Intake, Verdict

log = structlog.get_logger(__name__)

MOST_READ = 500  # messages of one chat that are read back after an absence
_READS = 8  # chats that are read at once: after an absence all of them have news
_KNOWN_FOR = 300.0  # seconds that a looked-up member counts (PEOPLE.md)
_MOST_KNOWN = 5_000  # places, members
_STRIKES = 3  # of one message that meets a bug

Answered = Callable[[str, InboundMessage, Accepted], None]  # told when something was taken in or refused


@dataclass(frozen=True, slots=True)
class _Heard:
    """A message as it is handed over, and whether it speaks to others."""

    message: InboundMessage
    turns_away: bool = False


class Inbound:
    """Implements `gates.House`."""

    def __init__(
        self,
        name: str,
        intake: Intake,
        rest: Rest,
        marks: Marks,
        follows: Follows,
        *,
        now: Callable[[], datetime],
        answered: Answered,
    ) -> None:
        self._name = name
        self._intake = intake
        self._rest = rest
        self._marks = marks
        self._follows = follows
        self._now = now
        self._answered = answered
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._members: OrderedDict[tuple[str, str], tuple[float, Profile]] = OrderedDict()
        self._strikes: dict[str, int] = {}
        self._reading = asyncio.Semaphore(_READS)
        self.client: GatewayClient | None = None  # the connection whose guilds are known

    # The gates' house.

    async def read_back(self, chat: str) -> None:
        """Hand over what was said after the chat's mark: at most a day's worth, and not without end."""
        floor = await self._marks.floor(chat)
        if not floor:
            return
        read = 0
        try:
            while page := await self._page(chat, floor):
                for payload in page:
                    await self.hand_over(chat, _event(payload))
                read += len(page)
                floor = int(page[-1]["id"])
                if read >= MOST_READ:
                    await self._skip_to_newest(chat, floor)
                    return
        except SendRefused as error:
            log.info("discord.chat_closed", channel=self._name, chat=chat, reason=str(error))
        if read:
            log.info("discord.read_back", channel=self._name, chat=chat, messages=read)

    async def _page(self, chat: str, after: int) -> Sequence[Mapping[str, Any]]:
        async with self._reading:
            return await self._rest.history(chat, after=after)

    async def _skip_to_newest(self, chat: str, floor: int) -> None:
        log.warning("discord.backlog_cut", channel=self._name, chat=chat, read=MOST_READ)
        for payload in await self._rest.history(chat):
            if int(payload["id"]) > floor:
                await self.hand_over(chat, _event(payload))

    async def hand_over(self, chat: str, event: Event) -> None:
        """Hand *event* to the intake. Raises StoreDown and SendFailed: then it is to come again."""
        client = self.client
        if client is None:
            raise StoreDown("no connection knows where this was said")
        heard: _Heard | None = None
        try:
            heard = await self._read(chat, event, client)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("discord.unreadable", channel=self._name, chat=chat, error=type(error).__name__)
        is_taken = await self._receive(chat, heard) if heard else False
        if event.happening is Happening.SAID:
            self._marks.advance(chat, event.ident, durably=is_taken)
            await self._marks.settle(chat)

    async def _receive(self, chat: str, heard: _Heard) -> bool:
        """Hand a message over; whether it is durable when this returns."""
        message = heard.message
        try:
            accepted = await self._intake.receive(message)
        except StoreDown:
            raise
        except Exception:  # the channel boundary: what meets a bug again and again is left behind
            strikes = self._strikes[message.message_id] = self._strikes.get(message.message_id, 0) + 1
            if strikes < _STRIKES:
                raise
            log.exception("discord.given_up", channel=self._name, chat=chat, message_id=message.message_id)
            del self._strikes[message.message_id]
            return True
        self._strikes.pop(message.message_id, None)
        is_taken = accepted.verdict is not Verdict.REJECTED
        await self._follows.note(message, accepted, turns_away=heard.turns_away)
        if is_taken and not message.guild:
            self._marks.note_direct(chat)
        self._answered(chat, message, accepted)
        return is_taken

    # Reading one event.

    async def _read(self, chat: str, event: Event, client: GatewayClient) -> _Heard | None:
        payload = event.payload
        if event.happening is Happening.EDITED and self._is_no_edit(payload):
            return None
        place = await self._place(chat, payload, client)
        if event.happening is Happening.DELETED:
            return _Heard(codec.read_deletion(self._name, event.ident, place, self._now()))
        me = client.me_in(place.guild)
        if codec.is_ours(payload, me):
            return None
        profile = await self._profile(place.guild, payload, client) if place.guild else None
        message = codec.read_message(self._name, payload, place, me, profile)
        if message is None:
            return None
        turns_away = codec.turns_away(payload, me)
        return _Heard(await self._follows.judge(message, turns_away=turns_away), turns_away)

    def _is_no_edit(self, payload: Mapping[str, Any]) -> bool:
        if codec.changes_nothing(payload):
            return True
        # What the journal may have forgotten would be taken for new.
        return self._now() - codec.moment_of(payload["id"]) > OLDEST

    async def _place(self, chat: str, payload: Mapping[str, Any], client: GatewayClient) -> Place:
        place = self._places.get(chat)
        if place is None:
            place = client.place(chat) or await self._fetch_place(chat, payload)
            self._places[chat] = place
            while len(self._places) > _MOST_KNOWN:
                self._places.popitem(last=False)
        return place

    async def _fetch_place(self, chat: str, payload: Mapping[str, Any]) -> Place:
        try:
            return codec.place_of(await self._rest.channel(chat))
        except SendRefused:
            # The channel is gone, or closed to us. The least that can be said is said.
            guild = str(payload.get("guild_id") or "")
            return Place(id=chat, guild=guild, is_direct=not guild)

    async def _profile(self, guild: str, payload: Mapping[str, Any], client: GatewayClient) -> Profile | None:
        """Return what the guild knows of the sender; looked up where the event does not say, as in history."""
        author = payload["author"]
        if author.get("bot") or "webhook_id" in payload:
            return None
        user, member = str(author["id"]), payload.get("member")
        if member is not None:
            return client.profile(guild, user, _roles(member), str(member.get("nick") or ""))
        now = asyncio.get_running_loop().time()
        at, known = self._members.get((guild, user), (now - _KNOWN_FOR, Profile()))
        if now - at < _KNOWN_FOR:
            return known
        try:
            member = await self._rest.member(guild, user)
        except SendRefused:  # no member any more: nothing of what roles once allowed holds
            known = Profile()
        else:
            known = client.profile(guild, user, _roles(member), str(member.get("nick") or ""))
        self._members[guild, user] = (now, known)
        self._members.move_to_end((guild, user))
        while len(self._members) > _MOST_KNOWN:
            self._members.popitem(last=False)
        return known


def _event(payload: Mapping[str, Any]) -> Event:
    return Event(happening=Happening.SAID, ident=str(payload["id"]), payload=payload)


def _roles(member: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(role) for role in member.get("roles") or ())
