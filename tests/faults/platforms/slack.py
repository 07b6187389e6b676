"""Slack: a direct message, or a thread of a channel. Metadata is read back, so that nothing has to be marked."""

from __future__ import annotations

import html
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from aiohttp import web

from channels.slack.render import render
from gateway.events import OutboundMessage, SessionKey
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, ROOM, SlackServer, slack_server
from tests.faults.platforms.port import PlatformSide, ReplyLosses, SceneOptions, SeenMessage, seen

_ROOT = "1700000000.000100"
_SENDS = frozenset(("chat.postMessage", "chat.update", "files.completeUploadExternal"))
_AGAIN = 1.0  # seconds until an envelope comes again; Slack takes three


class _LossySlack(SlackServer):
    """Does as told, and may not say so."""

    def __init__(self, replies: ReplyLosses) -> None:
        super().__init__()
        self._replies = replies
        self.events: list[str] = []

    def event(self, event: Mapping[str, Any], *, event_id: str = "") -> str:
        """Deliver *event*, and note its id."""
        self.events.append(super().event(event, event_id=event_id))
        return self.events[-1]

    async def _api(self, request: web.Request) -> web.StreamResponse:
        response = await super()._api(request)
        method = request.match_info["method"]
        if method in _SENDS and self._replies.is_lost(method) and request.transport is not None:
            request.transport.abort()
        return response


class SlackSide(PlatformSide):
    """Ann, and Bob whose thread it is."""

    name = "slack"
    two_parts = 70
    may_mark = False

    def __init__(self, scene: SceneOptions) -> None:
        super().__init__(scene)
        self.server = _LossySlack(self.replies)
        self.server.ack_within = _AGAIN
        self.server.say(ROOM, BOB, "Where shall this stand?", ts=_ROOT, quiet=True)
        self._asked: frozenset[str] = frozenset()  # the events that Ann's message made; a mention makes two

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with slack_server(self.server):
            self.base = self.server.base
            yield

    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve the workspace."""
        return self._open()

    def write(self, chat: str, text: str, sender: str) -> str:
        """Let Ann write."""
        if self.scene.is_thread:
            self.server.say(ROOM, ANN, f"<@{BOT_USER}> {text}", thread=_ROOT)
        else:
            self.server.say(DM, ANN, text)
        self._asked = frozenset(self.server.events)
        return f"{self.name}:{ROOM}/{_ROOT}" if self.scene.is_thread else f"{self.name}:{DM}"

    def shown(self, chat: str) -> list[SeenMessage]:
        """Return what stands in the conversation, or in the thread."""
        place, thread = (ROOM, _ROOT) if self.scene.is_thread else (DM, "")
        ours = [m for m in self.server.places[place].messages if m["user"] == BOT_USER]
        return [
            seen(html.unescape(message["text"]), b"".join(self._data(file) for file in message.get("files", ())))
            for message in ours
            if message.get("thread_ts", "") == thread
        ]

    def _data(self, file: Mapping[str, Any]) -> bytes:
        return self.server.files[file["id"]].data

    def count_shown(self) -> int:
        """Return how many there are."""
        return sum(m["user"] == BOT_USER for place in self.server.places.values() for m in place.messages)

    def parts(self, text: str) -> Sequence[str]:
        """Cut as the channel does."""
        message = OutboundMessage(id="t.1", key=SessionKey(self.name, DM), text=text)
        return [html.unescape(part.payload) for part in render(message)]

    def is_told(self) -> bool:
        """Say whether an envelope with the message was acknowledged."""
        return not self._asked.isdisjoint(self.server.acks)

    def is_settled(self) -> bool:
        """Say whether Slack is done with every event of the message."""
        return self._asked <= {*self.server.acks, *self.server.given_up}

    async def wait_changed(self) -> None:
        """Return at the next thing that happens."""
        await self.server.wait_changed()
