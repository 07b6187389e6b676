"""What a chat shows while a turn runs: typing, and in private chats a draft of the text so far.

Both fade by themselves at Telegram (typing after 5 seconds, a draft after 30), so one task per chat keeps them up.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from telegram.error import Forbidden, RetryAfter, TelegramError

from channels.telegram.api import describe_error, retry_after
from channels.telegram.codec import OutgoingText
from gateway.events import SessionKey

log = structlog.get_logger(__name__)

TYPING_EVERY = 4.0  # seconds
_DRAFT_EVERY = 20.0

Type = Callable[[SessionKey], Awaitable[object]]
Draft = Callable[[SessionKey, int, OutgoingText], Awaitable[object]]


@dataclass(slots=True)
class _ActiveChat:
    draft_id: int
    task: asyncio.Task[None] | None = None
    draft: OutgoingText | None = None
    drafted_at: float = 0.0


class TelegramActivity:
    """The chats in which something goes on."""

    def __init__(
        self, *, typing: Type, draft: Draft, every: float = TYPING_EVERY, draft_every: float = _DRAFT_EVERY
    ) -> None:
        """Keep typing up by *typing* and drafts by *draft*, each so many seconds after the last."""
        self._type = typing
        self._draft = draft
        self._every = every
        self._draft_every = draft_every
        self._live: dict[SessionKey, _ActiveChat] = {}

    def begin(self, key: SessionKey) -> None:
        """Show typing in *key* until `end`; again is harmless."""
        live = self._live.setdefault(key, _ActiveChat(_new_draft_id()))
        if live.task is None:
            live.task = asyncio.create_task(self._keep(key, live), name=f"telegram typing {key}")

    async def end(self, key: SessionKey) -> None:
        """Show nothing more; return when nothing more is under way."""
        live = self._live.pop(key, None)
        if live is not None and live.task is not None:
            live.task.cancel()
            await asyncio.wait({live.task})

    async def close(self) -> None:
        """End it in every chat."""
        for key in list(self._live):
            await self.end(key)

    async def status(self, key: SessionKey, words: OutgoingText) -> None:
        """Show what is being done as a draft, until the answer's own words are there."""
        live = self._live.get(key)
        if live is not None and live.draft is None:
            with suppress(TelegramError):
                await self._draft(key, live.draft_id, words)

    async def draft(self, key: SessionKey, draft_id: int | None, words: OutgoingText) -> int:
        """Show the text so far, and keep it up while the turn runs; return the draft's id. Raises TelegramError."""
        live = self._live.get(key)
        ident = draft_id or (live.draft_id if live else _new_draft_id())
        await self._draft(key, ident, words)
        if live is not None:
            live.draft_id, live.draft, live.drafted_at = ident, words, _now()
        return ident

    def is_live(self, key: SessionKey) -> bool:
        """Say whether something is shown in *key*."""
        return key in self._live

    async def _keep(self, key: SessionKey, live: _ActiveChat) -> None:
        while True:
            pause = self._every
            try:
                await self._type(key)
                if live.draft is not None and _now() - live.drafted_at > self._draft_every:
                    await self._draft(key, live.draft_id, live.draft)
                    live.drafted_at = _now()
            except RetryAfter as error:
                pause = max(pause, retry_after(error).total_seconds())
            except Forbidden:
                return  # blocked, or put out of the group: the answer's own send will say so
            except TelegramError as error:
                log.debug("telegram.typing_failed", reason=describe_error(error))
            await asyncio.sleep(pause)


def _new_draft_id() -> int:
    return secrets.randbelow(2**31 - 1) + 1


def _now() -> float:
    return asyncio.get_running_loop().time()
