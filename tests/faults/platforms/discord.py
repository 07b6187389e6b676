"""Discord: a direct chat that was used before, or a thread of a server's channel. The nonce and the chat itself tell.

Discord acknowledges nothing: what was said and not stored is read back from the chat's mark. A bot cannot list its
direct chats, so the one here is noted before the first life, as it is after the first message that was ever stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aiohttp import web

from channels.discord.render import message_content, render
from gateway.events import OutboundMessage, SessionKey
from tests.fakes.discord_records import ANN, BOT, GENERAL
from tests.fakes.discord_rest import DiscordRest
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.faults.platforms.port import PlatformSide, ReplyLosses, SceneOptions, SeenMessage, seen

_MESSAGE = re.compile(r"/messages(/\d+)?\Z", re.ASCII)


class _LossyRest(DiscordRest):
    """Does as told, and may not say so."""

    def __init__(self, discord: DiscordServer, replies: ReplyLosses) -> None:
        super().__init__(discord)
        self._replies = replies

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, unless its answer is to be lost."""
        response = await super().handle(request)
        is_send = request.method in ("POST", "PATCH") and _MESSAGE.search(request.path)
        if is_send and self._replies.is_lost(f"{request.method} message") and request.transport is not None:
            request.transport.abort()
        return response


class DiscordSide(PlatformSide):
    """Ann, in a direct chat or in a thread."""

    name = "discord"
    two_parts = 40
    may_mark = False

    def __init__(self, scene: SceneOptions) -> None:
        super().__init__(scene)
        self.server = DiscordServer()
        self.server.rest = _LossyRest(self.server, self.replies)
        self._chat = self.server.open_thread(GENERAL, "plans") if scene.is_thread else self.server.direct(ANN)
        self._before = self.server.snowflake()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with open_discord(self.server):
            self.base = self.server.base
            yield

    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve REST and the gateway."""
        return self._open()

    @property
    def notes(self) -> Mapping[str, str]:
        """Return the marks of an installation that knows the chat."""
        direct = [] if self.scene.is_thread else [self._chat]
        return {"account": self._before, f"mark/{self._chat}": self._before, "direct": json.dumps(direct)}

    def write(self, chat: str, text: str, sender: str) -> str:
        """Let Ann write."""
        if not self.scene.is_thread:
            self.server.say(self._chat, ANN, text)
            return f"{self.name}:{self._chat}"
        self.server.say(self._chat, ANN, f"<@{BOT}> {text}")
        return f"{self.name}:{GENERAL}/{self._chat}"

    def shown(self, chat: str) -> list[SeenMessage]:
        """Return what stands in the chat."""
        ours = [m for m in self.server.messages[self._chat] if m["author"]["id"] == BOT]
        files = self.server.cdn.files
        return [seen(m["content"], b"".join(files[each["id"]][1] for each in m["attachments"])) for m in ours]

    def count_shown(self) -> int:
        """Return how many there are."""
        return sum(m["author"]["id"] == BOT for messages in self.server.messages.values() for m in messages)

    def parts(self, text: str) -> Sequence[str]:
        """Cut as the channel does."""
        message = OutboundMessage(id="t.1", key=SessionKey(self.name, self._chat), text=text)
        return [message_content(part) for part in render(message)]

    def is_told(self) -> bool:
        """Discord is told nothing."""
        return False

    def is_settled(self) -> bool:
        """Discord holds nothing back."""
        return True

    async def wait_changed(self) -> None:
        """Return at the next thing that happens."""
        await self.server.until_changed()
