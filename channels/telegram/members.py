"""Who the admins of groups are: asked of Telegram when somebody decides something, and of nobody else.

What could not be asked, or not in time, or is older than five minutes, makes nobody an admin.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import structlog
from telegram import Bot
from telegram.error import TelegramError

from channels.telegram.api import describe_error

log = structlog.get_logger(__name__)

_FRESH = 300.0  # seconds that a look-up counts (PEOPLE.md)
_FRESH_FAILURE = 30.0
_PATIENCE = 3.0  # seconds for a look-up; who asked for something waits for it
_KEPT = 1_000  # groups


class TelegramMembers:
    """The admins of one bot's groups. Whoever asks at the same moment shares one look-up."""

    def __init__(self, bot: Bot, *, patience: float = _PATIENCE) -> None:
        """Ask through *bot*; give a look-up *patience* seconds."""
        self._bot = bot
        self._patience = patience
        self._known: OrderedDict[int, tuple[float, frozenset[str]]] = OrderedDict()
        self._asking: dict[int, asyncio.Task[frozenset[str]]] = {}

    async def admins_of(self, chat: int) -> frozenset[str]:
        """Return the user ids of a group's owner and admins; empty when they cannot be known."""
        until, known = self._known.get(chat, (0.0, frozenset()))
        if asyncio.get_running_loop().time() < until:
            return known
        asking = self._asking.get(chat)
        if asking is None:
            asking = self._asking[chat] = asyncio.create_task(self._ask(chat), name=f"telegram admins {chat}")
        return await asyncio.shield(asking)

    def forget(self, chat: int) -> None:
        """Ask anew next time: Telegram says that somebody's rights changed."""
        self._known.pop(chat, None)
        self._asking.pop(chat, None)  # what it is being told now is from before

    async def close(self) -> None:
        """End what is under way."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    async def _ask(self, chat: int) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        fresh = _FRESH_FAILURE
        try:
            async with asyncio.timeout(self._patience):
                members = await self._bot.get_chat_administrators(chat, read_timeout=self._patience)
            found, fresh = frozenset(str(member.user.id) for member in members), _FRESH
        except TelegramError as error:
            log.info("telegram.admins_unknown", chat=str(chat), reason=describe_error(error))
        except TimeoutError:
            log.info("telegram.admins_unknown", chat=str(chat), reason=f"no answer in {self._patience} seconds")
        if self._asking.get(chat) is asyncio.current_task():
            del self._asking[chat]
            self._known[chat] = (asyncio.get_running_loop().time() + fresh, found)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found
