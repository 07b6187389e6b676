"""Who a sender is: users.info, kept for five minutes. What cannot be known is not made up."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from channels.slack.api import SlackApi
from channels.slack.codec import SlackProfile
from gateway.errors import OutcomeUnknown, SendFailed
from gateway.text import sanitize

_LOOK_UP = 1.5  # seconds for one; Slack wants its ack within three
_KEPT_FOR = 300.0  # seconds; PEOPLE.md: a right that was taken away is gone within five minutes
_KEPT = 2_000
_AT_ONCE = 8
_PATIENCE = 3.0  # seconds for a whole room


class SlackUsers:
    """A cache before users.info. Whoever asks at the same moment shares one look-up."""

    def __init__(self, api: SlackApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self.patience = _LOOK_UP
        self._known: OrderedDict[str, tuple[float, SlackProfile]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[SlackProfile]] = {}

    def names(self, users: Iterable[str]) -> Mapping[str, str]:
        """Return the display names of *users*, as far as they are known without asking."""
        found = ((user, self._known[user][1].name) for user in users if user in self._known)
        return {user: name for user, name in found if name}

    async def person(self, user: str, home: str) -> SlackProfile:
        """Return who *user* is to the workspace *home*; raise SendFailed when Slack does not say, or not soon."""
        at, known = self._known.get(user, (0.0, None))
        if known is not None and self._clock() - at < _KEPT_FOR:
            return known
        asking = self._asking.get(user)
        if asking is None:
            asking = asyncio.create_task(self._ask(user, home), name=f"slack who is {user}")
            self._asking[user] = asking
            asking.add_done_callback(lambda done: self._asked(user, done))
        return await asyncio.shield(asking)

    def forget(self, user: str) -> None:
        """Ask anew next time: Slack says that *user* is somebody else now."""
        self._known.pop(user, None)
        self._asking.pop(user, None)  # what it is being told now is from before

    async def close(self) -> None:
        """End what is under way."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    async def _ask(self, user: str, home: str) -> SlackProfile:
        try:
            async with asyncio.timeout(self.patience):
                answer = await self._api.get("users.info", user=user)
        except TimeoutError:
            raise OutcomeUnknown(f"users.info: no answer in {self.patience} seconds") from None
        user_object = answer.get("user")
        if not isinstance(user_object, dict):
            raise OutcomeUnknown("users.info: no user")
        return parse_user(user_object, home)

    def _asked(self, user: str, done: asyncio.Task[SlackProfile]) -> None:
        is_latest = self._asking.get(user) is done
        if is_latest:
            del self._asking[user]
        if not done.cancelled() and done.exception() is None and is_latest:
            self._known[user] = (self._clock(), done.result())
            self._known.move_to_end(user)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)

    async def look_up(self, users: Iterable[str], home: str) -> Mapping[str, SlackProfile]:
        """Return who *users* are, as far as Slack says it within a few seconds."""
        found: dict[str, SlackProfile] = {}
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


def parse_user(user: Mapping[str, Any], home: str) -> SlackProfile:
    """Read a user object."""
    profile = user.get("profile") or {}
    team = str(user.get("team_id") or "")
    is_foreign = bool(user.get("is_stranger")) or bool(team and team != home)
    name = profile.get("display_name") or profile.get("real_name") or user.get("real_name") or user.get("name") or ""
    return SlackProfile(
        name=sanitize(str(name)),
        team=team,
        # Whoever was removed from the workspace is no member of it any more.
        is_guest=is_foreign or any(user.get(name) for name in ("is_restricted", "is_ultra_restricted", "deleted")),
        is_admin=not is_foreign and bool(user.get("is_admin") or user.get("is_owner")),
        is_bot=bool(user.get("is_bot")),
        timezone=sanitize(str(user.get("tz") or "")),
    )
