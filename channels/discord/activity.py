"""Typing indicators; Discord has no status texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from channels.discord.api import DiscordApi
from channels.kit.background import BackgroundTasks, RepeatedActivity
from gateway.events import SessionKey

_TYPING_INTERVAL = 8.0  # seconds; Discord shows it for ten


class DiscordActivity:
    """The typing indicators of one channel. *chat_of* returns the Discord channel of a session."""

    def __init__(
        self, api: DiscordApi, tasks: BackgroundTasks, chat_of: Callable[[SessionKey], Awaitable[str]]
    ) -> None:
        self._api = api
        self._chat_of = chat_of
        self.repeated = RepeatedActivity(tasks, _TYPING_INTERVAL)

    def start(self, key: SessionKey) -> None:
        """Show typing in *key* until `stop`; idempotent."""
        self.repeated.start(key, partial(self._show, key))

    async def stop(self, key: SessionKey) -> None:
        """Stop typing; idempotent."""
        await self.repeated.stop(key)

    async def _show(self, key: SessionKey) -> None:
        await self._api.typing(await self._chat_of(key))
