"""Profiles of users, from users.info."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from channels.kit.lookups import LookupCache
from channels.slack.api import SlackApi
from channels.slack.codec import SlackProfile
from gateway.errors import OutcomeUnknown
from gateway.text import sanitize

_TIMEOUT = 1.5  # seconds for one look-up; Slack wants its ack within three
_TOTAL_TIMEOUT = 3.0  # seconds for the look-ups of a whole conversation
_SIZE = 2_000


class SlackUsers:
    """The users of one workspace."""

    def __init__(self, api: SlackApi) -> None:
        self._api = api
        self._home = ""
        self.profiles: LookupCache[str, SlackProfile] = LookupCache(
            "slack user", self._fetch, size=_SIZE, timeout=_TIMEOUT
        )

    def names(self, users: Iterable[str]) -> Mapping[str, str]:
        """Return the display names of *users* that are known without a look-up."""
        profiles = {user: self.profiles.peek(user) for user in users}
        return {user: profile.name for user, profile in profiles.items() if profile is not None and profile.name}

    async def profile(self, user: str, home: str) -> SlackProfile:
        """Return the profile of *user* as the workspace *home* sees it; raise SendFailed if Slack does not answer."""
        self._home = home
        return await self.profiles.get(user)

    async def profiles_of(self, users: Iterable[str], home: str) -> Mapping[str, SlackProfile]:
        """Return the profiles of *users* that Slack returns within a few seconds."""
        self._home = home
        return await self.profiles.get_many(users, within=_TOTAL_TIMEOUT)

    async def _fetch(self, user: str) -> SlackProfile:
        user_object = (await self._api.get("users.info", user=user)).get("user")
        if not isinstance(user_object, dict):
            raise OutcomeUnknown("users.info: no user")
        return parse_user(user_object, self._home)


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
