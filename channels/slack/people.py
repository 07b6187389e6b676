"""Who a sender is: users.info, kept for five minutes. What cannot be known is not made up."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from channels.slack.api import SlackApi
from channels.slack.codec import Person
from gateway.text import clean

_KEPT_FOR = 300.0  # seconds; PEOPLE.md: a right that was taken away is gone within five minutes
_KEPT = 2_000


class People:
    """A cache before users.info."""

    def __init__(self, api: SlackApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, Person]] = OrderedDict()

    def names(self, users: Iterable[str]) -> Mapping[str, str]:
        """Return the display names of *users*, as far as they are known without asking."""
        found = ((user, self._known[user][1].name) for user in users if user in self._known)
        return {user: name for user, name in found if name}

    async def person(self, user: str, home: str) -> Person:
        """Return who *user* is to the workspace *home*; raise SendFailed when Slack does not say."""
        at, known = self._known.get(user, (0.0, None))
        if known is not None and self._clock() - at < _KEPT_FOR:
            return known
        found = person_of((await self._api.get("users.info", user=user))["user"], home)
        self._known[user] = (self._clock(), found)
        self._known.move_to_end(user)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found


def person_of(user: Mapping[str, Any], home: str) -> Person:
    """Read a user object."""
    profile = user.get("profile") or {}
    team = str(user.get("team_id") or "")
    is_foreign = bool(user.get("is_stranger")) or bool(team and team != home)
    name = profile.get("display_name") or profile.get("real_name") or user.get("real_name") or user.get("name") or ""
    return Person(
        name=clean(str(name)),
        team=team,
        is_guest=is_foreign or bool(user.get("is_restricted") or user.get("is_ultra_restricted")),
        is_admin=not is_foreign and bool(user.get("is_admin") or user.get("is_owner")),
        is_bot=bool(user.get("is_bot")),
    )
