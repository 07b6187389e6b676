"""Small signs beside the words: typing that lasts as long as the work, and chores that nothing waits for.

A sign that fails costs nobody anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import structlog

from channels.discord.api import DiscordApi
from gateway.errors import RetryLater, SendFailed

log = structlog.get_logger(__name__)

Chore: TypeAlias = Callable[[], Awaitable[object]]

_TYPING_EVERY = 8.0  # Discord shows it for ten seconds
_LONGEST_TYPING = 3600.0  # whoever began it has died, by then


class DiscordActivity:
    """Of one channel; ended by `close`."""

    def __init__(self, rest: DiscordApi, *, name: str) -> None:
        self._rest = rest
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._typing: dict[str, asyncio.Task[None]] = {}

    def typing(self, name: str, where: Callable[[], Awaitable[str]], *, on: bool) -> None:
        """Begin or end typing for the session *name*, in the chat that *where* finds; either may be asked for twice."""
        task = self._typing.get(name)
        if not on and task is not None:
            task.cancel()
            del self._typing[name]
        elif on and (task is None or task.done()):
            self._typing[name] = self.begin(partial(self._keep_typing, where), f"typing {name}")

    def begin(self, chore: Chore, name: str) -> asyncio.Task[None]:
        """Do *chore* beside everything else."""
        task = asyncio.create_task(self._do(chore, name), name=f"{self._name} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End everything at once."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _do(self, chore: Chore, name: str) -> None:
        try:
            await chore()
        except SendFailed as error:
            log.debug("discord.sign_failed", channel=self._name, sign=name.split()[0], reason=str(error))
        except Exception:  # the channel boundary: a sign is never worth a turn
            log.exception("discord.sign_broken", channel=self._name, sign=name.split()[0])

    async def _keep_typing(self, where: Callable[[], Awaitable[str]]) -> None:
        end = asyncio.get_running_loop().time() + _LONGEST_TYPING
        while asyncio.get_running_loop().time() < end:
            try:
                await self._rest.typing(await where())
            except RetryLater as error:
                await asyncio.sleep(error.delay.total_seconds())
            await asyncio.sleep(_TYPING_EVERY)
