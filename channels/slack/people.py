"""Who a sender is: users.info, kept for five minutes. What cannot be known is not made up."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from channels.slack.api import SlackApi
from channels.slack.codec import Person
from gateway.errors import SendFailed
from gateway.text import clean

_KEPT_FOR = 300.0  # seconds; PEOPLE.md: a right that was taken away is gone within five minutes
_KEPT = 2_000
_AT_ONCE = 8
_PATIENCE = 3.0  # seconds for a whole room


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

    async def known(self, users: Iterable[str], home: str) -> Mapping[str, Person]:
        """Return who *users* are, as far as Slack says it within a few seconds."""
        found: dict[str, Person] = {}
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(user: str) -> None:
            async with slots:
                with suppress(SendFailed):
                    found[user] = await self.person(user, home)

        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as tasks:
                for user in set(users):
                    tasks.create_task(ask(user), name=f"who is {user}")
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
        # Whoever was removed from the workspace is no member of it any more.
        is_guest=is_foreign or any(user.get(name) for name in ("is_restricted", "is_ultra_restricted", "deleted")),
        is_admin=not is_foreign and bool(user.get("is_admin") or user.get("is_owner")),
        is_bot=bool(user.get("is_bot")),
    )
