"""Who somebody is when their turn comes: a member still, an admin still. By Slack's word, never by theirs."""

from __future__ import annotations

from dataclasses import replace

from channels.slack.chats import SlackChats
from channels.slack.codec import SlackBotIdentity
from channels.slack.users import SlackUsers
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender
from gateway.ports import MembershipChange

_DECIDES = frozenset({InboundKind.COMMAND, InboundKind.BUTTON})


class SlackMembers:
    """The workspace's admins and owners, and in a channel whoever made it, unless they are a guest there."""

    def __init__(self, people: SlackUsers, rooms: SlackChats) -> None:
        self._people = people
        self.rooms = rooms

    async def sender(self, message: InboundMessage, me: SlackBotIdentity) -> Sender:
        """Return who sent *message*, with the facts of now. Raises SendFailed; see `SupportsSenderLookup`."""
        sender = message.sender
        person = await self._people.person(sender.id, me.team)
        is_guest = person.is_guest or (not person.team and sender.is_guest)
        is_admin = person.is_admin
        if not is_admin and not is_guest and message.chat_kind is ChatKind.GROUP and message.kind in _DECIDES:
            is_admin = (await self.rooms.room(message.key.parent.chat)).creator == sender.id
        return replace(sender, team=person.team or sender.team, is_guest=is_guest, is_admin=is_admin)

    async def with_names(self, place: MembershipChange, me: SlackBotIdentity) -> MembershipChange:
        """Return *place* with its name and its adder's, as far as Slack tells them now."""
        room = await self.rooms.room(place.chat)
        by = place.by
        if by is not None:
            found = (await self._people.look_up([by.id], me.team)).get(by.id)
            by = by if found is None else replace(by, name=found.name, team=found.team or by.team)
        return replace(place, title=room.name, by=by)
