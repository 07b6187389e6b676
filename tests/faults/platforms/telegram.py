"""Telegram: a private chat, or a topic of a group. It has no send key and cannot be asked."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aiohttp import web

from channels.telegram.render import build_outgoing, render
from gateway.events import OutboundMessage, SessionKey
from gateway.i18n import translate
from tests.fakes.telegram_gateway import TEAM, mention
from tests.fakes.telegram_server import TelegramPost, TelegramServer, open_telegram
from tests.faults.platforms.port import PlatformSide, ReplyLosses, SceneOptions, SeenMessage, seen

_ANN, _TOPIC = 42, 7
_SENDS = frozenset(("sendMessage", "editMessageText", "sendMessageDraft", "sendDocument"))


class _LossyTelegram(TelegramServer):
    """Does as told, and may not say so."""

    def __init__(self, replies: ReplyLosses) -> None:
        super().__init__()
        self._replies = replies

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        response = await super()._handle(request)
        method = request.match_info["method"]
        if method in _SENDS and self._replies.is_lost(method) and request.transport is not None:
            request.transport.abort()
        return response


class TelegramSide(PlatformSide):
    """Ann and one bot."""

    name = "telegram"
    two_parts = 80

    def __init__(self, scene: SceneOptions) -> None:
        super().__init__(scene)
        self.may_mark = not scene.is_strict
        self.server = _LossyTelegram(self.replies)
        self.server.now = lambda: int(time.time())
        self.server.per_minute = 1_000  # limits are another test's; a full bucket here only costs a minute
        self.server.chat(TEAM).topics = {_TOPIC}

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with open_telegram(self.server):
            self.base = self.server.base
            yield

    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve the Bot API."""
        return self._open()

    def write(self, chat: str, text: str, sender: str) -> str:
        """Let Ann write."""
        if not self.scene.is_thread:
            self.server.say(text)
            return f"{self.name}:{_ANN}"
        text = f"@parlour_bot {text}"
        place = {"is_topic_message": True, "message_thread_id": _TOPIC, **mention(text)}
        self.server.say(text, chat=TEAM, sender=_ANN, **place)
        return f"{self.name}:{TEAM}/{_TOPIC}"

    def shown(self, chat: str) -> list[SeenMessage]:
        """Return what stands in the chat, or in the topic."""
        thread = _TOPIC if self.scene.is_thread else None
        place = TEAM if self.scene.is_thread else _ANN
        return [
            seen(post.text, post.file.data if post.file else b"")
            for post in self._said
            if (post.chat, post.thread) == (place, thread)
        ]

    @property
    def _said(self) -> list[TelegramPost]:
        return [post for post in self.server.posts if post.text != translate("delivery.placeholder")]

    def count_orphans(self) -> int:
        """Return how many placeholders nothing was put into."""
        return len(self.server.posts) - len(self._said)

    def count_shown(self) -> int:
        """Return how many there are."""
        return len(self._said)

    def parts(self, text: str) -> Sequence[str]:
        """Cut as the channel does."""
        key = SessionKey(self.name, str(_ANN))
        return [build_outgoing(part).text for part in render(OutboundMessage(id="t.1", key=key, text=text))]

    def is_told(self) -> bool:
        """Say whether an offset has confirmed the update."""
        return bool(self.server.confirmed)

    def is_settled(self) -> bool:
        """Say whether every update is confirmed."""
        return not self.server.updates

    async def wait_changed(self) -> None:
        """Return at the next thing that happens."""
        await self.server.wait_changed()
