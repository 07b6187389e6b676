"""Facts that an event does not carry: users, their rights, and the names and creators of channels.

A failed look-up grants nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from channels.kit.lookups import LookupCache
from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.parse import SlackBotIdentity, SlackProfile
from gateway.errors import OutcomeUnknown, SendFailed
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender
from gateway.ports.channel import MembershipChange
from gateway.text import sanitize
from gateway.text.text_units import safe_display_name

log = structlog.get_logger(__name__)

_TIMEOUT = 1.5  # seconds for one look-up; Slack wants its ack within three
_TOTAL_TIMEOUT = 3.0  # seconds for the look-ups of a whole conversation
_CHATS = 1_000
_USERS = 2_000
_MOST_NAMES = 20  # looked up for one message
_DECISIONS = frozenset({InboundKind.COMMAND, InboundKind.BUTTON})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackChat:
    """A channel; fields are empty if Slack does not return them."""

    name: str = ""  # for display only
    creator: str = ""  # a user id


class SlackMembers:
    """The users, channels and groups of one workspace. Slack demands the scopes channels:read and groups:read.

    Admins are the workspace's admins and owners, and in a channel its creator unless they are a guest.
    """

    def __init__(self, api: SlackApi) -> None:
        self._api = api
        self._home = ""
        self.profiles: LookupCache[str, SlackProfile] = LookupCache(
            "slack user", self._fetch_user, size=_USERS, timeout=_TIMEOUT
        )
        self.chats: LookupCache[str, SlackChat] = LookupCache(
            "slack chat", self._fetch_chat, size=_CHATS, timeout=_TIMEOUT
        )
        self._groups: LookupCache[str, Mapping[str, str]] = LookupCache(
            "slack groups", self._fetch_groups, size=1, timeout=_TIMEOUT
        )

    async def profile(self, user: str, home: str) -> SlackProfile:
        """Return the profile of *user* as the workspace *home* sees it; raise SendFailed if Slack does not answer."""
        self._home = home
        return await self.profiles.get(user)

    async def profiles_of(
        self, users: Iterable[str], home: str, *, within: float = _TOTAL_TIMEOUT
    ) -> Mapping[str, SlackProfile]:
        """Return the profiles of *users* that Slack returns *within* so many seconds."""
        self._home = home
        return await self.profiles.get_many(users, within=within)

    async def names(self, ids: Sequence[str], home: str) -> Mapping[str, str]:
        """Return the names that Slack returns within a moment; the first twenty *ids* are looked up."""
        ids = ids[:_MOST_NAMES]
        profiles, chats, groups = await asyncio.gather(
            self.profiles_of([each for each in ids if each[0] in "UW"], home, within=_TIMEOUT),
            self.chats.get_many([each for each in ids if each[0] in "CG"], within=_TIMEOUT),
            self._groups.get_many([""] if any(each[0] == "S" for each in ids) else [], within=_TIMEOUT),
        )
        known = {user: profile.name for user, profile in profiles.items()}
        return {**known, **{chat: found.name for chat, found in chats.items()}, **groups.get("", {})}

    async def sender(self, message: InboundMessage, bot: SlackBotIdentity) -> Sender:
        """Return the sender of *message* with their current rights; see `SupportsSenderLookup`. Raises SendFailed."""
        sender = message.sender
        profile = await self.profile(sender.id, bot.team)
        is_guest = profile.is_guest or (not profile.team and sender.is_guest)
        is_admin = profile.is_admin
        if not is_admin and not is_guest and message.chat_kind is ChatKind.GROUP and message.kind in _DECISIONS:
            is_admin = (await self._chat(message.key.parent.chat)).creator == sender.id
        return replace(sender, team=profile.team or sender.team, is_guest=is_guest, is_admin=is_admin)

    async def with_names(self, change: MembershipChange, bot: SlackBotIdentity) -> MembershipChange:
        """Return *change* with the names of the channel and of the user who made it, if Slack returns them."""
        chat = await self._chat(change.chat)
        by = change.by
        if by is not None and (profile := (await self.profiles_of([by.id], bot.team)).get(by.id)):
            by = replace(by, name=profile.name, team=profile.team or by.team)
        return replace(change, title=chat.name, by=by)

    async def close(self) -> None:
        """Cancel the look-ups in flight."""
        for lookups in (self.profiles, self.chats, self._groups):
            await lookups.close()

    async def _chat(self, chat: str) -> SlackChat:
        """Return the facts about a channel; never raises."""
        try:
            return await self.chats.get(chat)
        except SendFailed as error:
            log.info("slack.chat_unknown", chat=chat, reason=type(error).__name__)
            return SlackChat()

    async def _fetch_chat(self, chat: str) -> SlackChat:
        try:
            answer = await self._api.get("conversations.info", channel=chat)
        except SlackRefusal as error:  # kept, so that a missing scope does not cost a call at every command
            log.info("slack.chat_unknown", chat=chat, reason=str(error))
            return SlackChat()
        channel = answer.get("channel")
        fields = channel if isinstance(channel, dict) else {}
        name = safe_display_name(sanitize(str(fields.get("name") or "")))
        return SlackChat(name=name, creator=str(fields.get("creator") or ""))

    async def _fetch_user(self, user: str) -> SlackProfile:
        user_object = (await self._api.get("users.info", user=user)).get("user")
        if not isinstance(user_object, dict):
            raise OutcomeUnknown("users.info: no user")
        return parse_user(user_object, self._home)

    async def _fetch_groups(self, _: str) -> Mapping[str, str]:
        try:
            answer = await self._api.get("usergroups.list")
        except SlackRefusal as error:  # kept, so that a missing scope does not cost a call at every mention
            log.info("slack.groups_unknown", reason=str(error))
            return {}
        groups = answer.get("usergroups") or ()
        return {str(each["id"]): safe_display_name(sanitize(str(each.get("handle") or ""))) for each in groups}


def parse_user(user: Mapping[str, Any], home: str) -> SlackProfile:
    """Return the profile of a user object."""
    profile = user.get("profile") or {}
    team = str(user.get("team_id") or "")
    is_foreign = bool(user.get("is_stranger")) or bool(team and team != home)
    name = profile.get("display_name") or profile.get("real_name") or user.get("real_name") or user.get("name") or ""
    return SlackProfile(
        name=sanitize(str(name)),
        team=team,
        # A user who was removed from the workspace is not a member any more.
        is_guest=is_foreign or any(user.get(name) for name in ("is_restricted", "is_ultra_restricted", "deleted")),
        is_admin=not is_foreign and bool(user.get("is_admin") or user.get("is_owner")),
        is_bot=bool(user.get("is_bot")),
        timezone=sanitize(str(user.get("tz") or "")),
    )
