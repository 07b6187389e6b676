"""Typing indicators, and in private chats a draft of the answer so far.

At Telegram typing fades after 5 seconds and a draft after 30, so both are shown again while the turn runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from telegram.error import TelegramError

from channels.kit.background import BackgroundTasks, RepeatedActivity
from channels.kit.rate_limit import loop_time
from channels.telegram.api import map_send_errors
from channels.telegram.codec import OutgoingText
from gateway.events import SessionKey

TYPING_INTERVAL = 4.0  # seconds
_DRAFT_INTERVAL = 20.0


@dataclass(slots=True)
class _ActiveChat:
    draft_id: int = field(default_factory=lambda: secrets.randbelow(2**31 - 1) + 1)
    draft: OutgoingText | None = None
    drafted_at: float = 0.0


class TelegramActivity:
    """The chats in which a turn runs."""

    def __init__(
        self,
        tasks: BackgroundTasks,
        *,
        send_typing: Callable[[SessionKey], Awaitable[object]],
        send_draft: Callable[[SessionKey, int, OutgoingText], Awaitable[object]],
        interval: float = TYPING_INTERVAL,
    ) -> None:
        """Repeat typing every *interval* seconds. *send_typing* and *send_draft* may raise TelegramError."""
        self._send_typing = send_typing
        self._send_draft = send_draft
        self._repeated = RepeatedActivity(tasks, interval)
        self._chats: dict[SessionKey, _ActiveChat] = {}

    def start(self, key: SessionKey) -> None:
        """Show typing in *key* until `stop`; idempotent."""
        self._repeated.start(key, partial(self._show, key, self._chats.setdefault(key, _ActiveChat())))

    async def stop(self, key: SessionKey) -> None:
        """Show nothing more; no call is in flight on return."""
        self._chats.pop(key, None)
        await self._repeated.stop(key)

    def is_active(self, key: SessionKey) -> bool:
        """Return True between `start` and `stop` of *key*."""
        return key in self._chats

    async def show_status(self, key: SessionKey, text: OutgoingText) -> None:
        """Show a status as a draft, unless the answer has begun."""
        chat = self._chats.get(key)
        if chat is not None and chat.draft is None:
            with suppress(TelegramError):
                await self._send_draft(key, chat.draft_id, text)

    async def show_draft(self, key: SessionKey, draft_id: int | None, text: OutgoingText) -> int:
        """Show the answer so far, repeat it while the turn runs, and return its draft id. Raises TelegramError."""
        chat = self._chats.get(key, _ActiveChat())
        chat.draft_id = draft_id or chat.draft_id
        await self._send_draft(key, chat.draft_id, text)
        chat.draft, chat.drafted_at = text, loop_time()
        return chat.draft_id

    async def _show(self, key: SessionKey, chat: _ActiveChat) -> None:
        with map_send_errors():
            await self._send_typing(key)
            if chat.draft is not None and loop_time() - chat.drafted_at > _DRAFT_INTERVAL:
                await self._send_draft(key, chat.draft_id, chat.draft)
                chat.drafted_at = loop_time()
