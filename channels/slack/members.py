"""Current rights of senders: membership and admin status by Slack's word."""

from __future__ import annotations

from dataclasses import replace

from channels.slack.chats import SlackChats
from channels.slack.codec import SlackBotIdentity
from channels.slack.users import SlackUsers
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender
from gateway.ports import MembershipChange

_DECISIONS = frozenset({InboundKind.COMMAND, InboundKind.BUTTON})


class SlackMembers:
    """Admins are the workspace's admins and owners, and in a channel its creator unless they are a guest."""

    def __init__(self, users: SlackUsers, chats: SlackChats) -> None:
        self._users = users
        self.chats = chats

    async def sender(self, message: InboundMessage, bot: SlackBotIdentity) -> Sender:
        """Return the sender of *message* with their current rights; see `SupportsSenderLookup`. Raises SendFailed."""
        sender = message.sender
        profile = await self._users.profile(sender.id, bot.team)
        is_guest = profile.is_guest or (not profile.team and sender.is_guest)
        is_admin = profile.is_admin
        if not is_admin and not is_guest and message.chat_kind is ChatKind.GROUP and message.kind in _DECISIONS:
            is_admin = (await self.chats.chat(message.key.parent.chat)).creator == sender.id
        return replace(sender, team=profile.team or sender.team, is_guest=is_guest, is_admin=is_admin)

    async def with_names(self, change: MembershipChange, bot: SlackBotIdentity) -> MembershipChange:
        """Return *change* with the names of the channel and of the user who made it, if Slack returns them."""
        chat = await self.chats.chat(change.chat)
        by = change.by
        if by is not None and (profile := (await self._users.profiles_of([by.id], bot.team)).get(by.id)):
            by = replace(by, name=profile.name, team=profile.team or by.team)
        return replace(change, title=chat.name, by=by)
