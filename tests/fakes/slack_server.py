"""Slack as a bot sees it, over real HTTP and a real WebSocket: strict about scopes, limits, acks and metadata.

Written from docs.slack.dev: Web API methods answer 200 with `ok`, Socket Mode delivers an envelope again when it is not
acknowledged in time, history is newest first and holds no event ids, and what is posted stands whatever becomes of the
reply.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from tests.fakes.loopback import serve_app
from tests.fakes.slack_http_events import push
from tests.fakes.slack_methods import SlackMethods
from tests.fakes.slack_workspace import ALL_SCOPES as ALL_SCOPES
from tests.fakes.slack_workspace import ANN as ANN
from tests.fakes.slack_workspace import APP_TOKEN as APP_TOKEN
from tests.fakes.slack_workspace import BOB as BOB
from tests.fakes.slack_workspace import BOT_ID as BOT_ID
from tests.fakes.slack_workspace import BOT_TOKEN as BOT_TOKEN
from tests.fakes.slack_workspace import BOT_USER as BOT_USER
from tests.fakes.slack_workspace import DM as DM
from tests.fakes.slack_workspace import EVE as EVE
from tests.fakes.slack_workspace import ROOM as ROOM
from tests.fakes.slack_workspace import SECRET as SECRET
from tests.fakes.slack_workspace import TEAM as TEAM
from tests.fakes.slack_workspace import FakeSlackChat as FakeSlackChat
from tests.fakes.slack_workspace import SlackError as SlackError
from tests.fakes.slack_workspace import SlackFault as SlackFault

NEEDS = {
    "chat.postMessage": "chat:write",
    "chat.postEphemeral": "chat:write",
    "chat.update": "chat:write",
    "users.info": "users:read",
    "reactions.add": "reactions:write",
    "reactions.remove": "reactions:write",
    "assistant.threads.setStatus": "assistant:write",
    "chat.startStream": "chat:write",
    "chat.appendStream": "chat:write",
    "chat.stopStream": "chat:write",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
    "files.info": "files:read",
    "bots.info": "users:read",
    "usergroups.list": "usergroups:read",
}
_JSON = frozenset(
    (
        *("chat.postMessage", "chat.postEphemeral", "chat.update", "assistant.threads.setStatus"),
        *("chat.startStream", "chat.appendStream", "chat.stopStream", "files.completeUploadExternal"),
    )
)
_NO_JSON = frozenset(("files.getUploadURLExternal", "files.info", "users.info", "bots.info", "conversations.info"))
# Calls a minute: https://docs.slack.dev/apis/web-api/rate-limits, Tiers 2 to 4. Messages are counted for each chat.
_TIERS = {
    **dict.fromkeys(("chat.startStream", "chat.stopStream", "reactions.remove"), 20),
    **dict.fromkeys(("conversations.history", "conversations.replies", "chat.update", "reactions.add"), 50),
    **dict.fromkeys(("conversations.info", "users.conversations"), 50),
    **dict.fromkeys(("users.info", "files.info", "chat.appendStream", "files.completeUploadExternal"), 100),
    "chat.postMessage": 60,
}
_MINUTE = 60.0
_RETRIES = 3


@dataclass(slots=True)
class _Envelope:
    frame: dict[str, Any]
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    deliveries: int = 0


class SlackServer(SlackMethods):
    """One workspace with one app, served."""

    def __init__(self) -> None:
        super().__init__()
        self.is_mute = False  # takes connections and says nothing, not even a pong
        self.ack_within = 3.0  # seconds until an envelope is delivered again
        self.acks: list[str] = []  # event ids (or trigger ids), in the order of their acks
        self.given_up: list[str] = []
        self.deliveries: list[str] = []  # event ids as they were delivered, repeats included
        self.sockets: list[web.WebSocketResponse] = []
        self.connections = 0
        self.on_call: Callable[[str, str], None] = lambda method, when: None  # "before" and "after" each is done
        self.holds: dict[str, asyncio.Event] = {}  # "after <method>": it is done, and the answer waits for ever
        self.pending: dict[str, tuple[str, dict[str, Any]]] = {}  # what was not acknowledged
        self.hook = ""  # where events are brought by HTTP, instead of over a socket
        self.is_socket_mode = True
        self._tickets: set[str] = set()
        self._recent: dict[tuple[str, str], deque[float]] = {}
        self._envelopes: dict[str, _Envelope] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- Socket Mode ---------------------------------------------------------------------------

    def _send(self, kind: str, payload: dict[str, Any]) -> None:
        task = asyncio.create_task(self._deliver(kind, payload), name="slack delivers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, kind: str, payload: dict[str, Any]) -> None:
        ident = payload.get("event_id") or payload["trigger_id"]
        self.pending[ident] = (kind, payload)
        for attempt in range(_RETRIES + 1):
            if self.hook:
                self.deliveries.append(ident)
                if await push(self.hook, kind, payload, attempt):
                    self._acked(ident)
                    return
                await asyncio.sleep(self.ack_within)
                continue
            await self.until(lambda: bool(self.sockets))
            envelope = _Envelope({"type": kind, "envelope_id": f"env-{next(self._numbers)}", "payload": payload})
            envelope.frame["accepts_response_payload"] = kind != "events_api"
            if attempt:
                envelope.frame |= {"retry_attempt": attempt, "retry_reason": "timeout"}
            self._envelopes[envelope.frame["envelope_id"]] = envelope
            self.deliveries.append(ident)
            self._change()
            with suppress(ConnectionError):
                await self.sockets[-1].send_str(json.dumps(envelope.frame))
            with suppress(TimeoutError):
                async with asyncio.timeout(self.ack_within):
                    await envelope.acked.wait()
                self._acked(ident)
                return
        self.given_up.append(ident)
        self._change()

    def _acked(self, ident: str) -> None:
        self.acks.append(ident)
        self.pending.pop(ident, None)
        self._change()

    def deliver_again(self) -> None:
        """Bring what nobody acknowledged, as after the app came back."""
        for kind, payload in list(self.pending.values()):
            self._send(kind, payload)

    async def refresh(self, reason: str = "refresh_requested") -> None:
        """Ask every connection to come again, and close it, as Slack does every few hours."""
        for socket in list(self.sockets):
            await socket.send_str(json.dumps({"type": "disconnect", "reason": reason, "debug_info": {}}))

    async def cut(self) -> None:
        """Break every connection without a word."""
        for socket in list(self.sockets):
            self.sockets.remove(socket)
            transport = socket._req.transport if socket._req else None
            if transport is not None:
                transport.abort()

    def mute(self) -> None:
        """Keep every connection and answer nothing more on it, not even pings; later ones neither."""
        self.is_mute = True
        for socket in self.sockets:
            socket._autoping = False

    async def garble(self, text: str) -> None:
        """Send a frame as it is."""
        for socket in self.sockets:
            await socket.send_str(text)

    async def _link(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("ticket") not in self._tickets:
            return web.Response(status=403)
        self._tickets.discard(request.query["ticket"])  # an address is good for one connection
        socket = web.WebSocketResponse(autoping=not self.is_mute)
        await socket.prepare(request)
        if self.is_mute:
            self.connections += 1
            async for _ in socket:
                pass
            return socket
        if not self.is_socket_mode:
            await socket.send_str(json.dumps({"type": "disconnect", "reason": "link_disabled", "debug_info": {}}))
            await socket.close()
            return socket
        hello = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": self.app_id}}
        await socket.send_str(json.dumps({**hello, "debug_info": {"approximate_connection_time": 18_060}}))
        self.sockets.append(socket)
        self.connections += 1
        self._change()
        try:
            async for frame in socket:
                if frame.type is WSMsgType.TEXT:
                    self._ack(json.loads(frame.data))
        finally:
            if socket in self.sockets:
                self.sockets.remove(socket)
            self._change()
        return socket

    def _ack(self, frame: Mapping[str, Any]) -> None:
        assert set(frame) <= {"envelope_id", "payload"}, f"no ack: {frame}"
        self.on_call("ack", "before")
        if held := self.holds.get("before ack"):
            held.set()
            return
        envelope = self._envelopes.pop(frame["envelope_id"], None)
        if envelope is not None:
            envelope.acked.set()

    # -- the Web API ---------------------------------------------------------------------------

    async def _api(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        arguments = await _arguments(request)
        self.calls.append((method, arguments))
        self.on_call(method, "before")
        await self._hold(f"before {method}")
        fault = self._fault(method) or self._overrun(method, arguments)
        answer: dict[str, Any] = {"ok": True}
        if fault is None or fault.does:
            try:
                answer |= self._do(method, arguments, request)
            except SlackError as error:
                answer = error.answer
        self._change()
        self.on_call(method, "after")
        await self._hold(f"after {method}")
        return await self._answer(request, answer, fault)

    async def _hold(self, when: str) -> None:
        """Say that a call came so far, and never answer it, where a test wants to kill the caller right there."""
        if when in self.holds:
            self.holds[when].set()
            await asyncio.Event().wait()

    def _fault(self, method: str) -> SlackFault | None:
        waiting = self.faults.get(method)
        return waiting.pop(0) if waiting else None

    def _overrun(self, method: str, arguments: Mapping[str, Any]) -> SlackFault | None:
        """Count a call in its bucket; past the limit it is a 429 that says how long to wait."""
        limit = _TIERS.get(method)
        if limit is None:
            return None
        chat = str(arguments.get("channel")) if method == "chat.postMessage" else ""
        recent, now = self._recent.setdefault((method, chat), deque()), time.monotonic()
        while recent and now - recent[0] > _MINUTE:
            recent.popleft()
        if len(recent) >= limit:
            return SlackFault(status=429, error="ratelimited", retry_after=math.ceil(_MINUTE - now + recent[0]))
        recent.append(now)
        return None

    async def _answer(
        self, request: web.Request, answer: dict[str, Any], fault: SlackFault | None
    ) -> web.StreamResponse:
        headers = {"x-oauth-scopes": ",".join(sorted(self.scopes))}
        if fault is None:
            return web.json_response(answer, headers=headers)
        if fault.drops:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        if fault.retry_after:
            headers["Retry-After"] = str(fault.retry_after)
        if fault.status >= 500:
            return web.Response(status=fault.status, text="upstream", headers=headers)
        return web.json_response({"ok": False, "error": fault.error}, status=fault.status, headers=headers)

    def _do(self, method: str, arguments: dict[str, Any], request: web.Request) -> dict[str, Any]:
        handler = getattr(self, "_" + re.sub(r"\W", "_", method).lower(), None)
        if handler is None:
            raise SlackError("unknown_method")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token:
            raise SlackError("not_authed")
        if token != (self.app_token if method == "apps.connections.open" else self.bot_token):
            raise SlackError("invalid_auth")
        if method in _JSON and not request.content_type == "application/json":
            raise SlackError("invalid_post_type")
        if method in _NO_JSON and request.content_type == "application/json":
            raise SlackError("invalid_arguments")
        self._require(NEEDS.get(method, ""))
        found: dict[str, Any] = handler(arguments)
        return found

    def _apps_connections_open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        ticket = f"ticket-{next(self._numbers)}"
        self._tickets.add(ticket)
        return {"url": f"{self.base.replace('http', 'ws', 1)}/link?ticket={ticket}"}

    async def _action(self, request: web.Request) -> web.StreamResponse:
        place, ts = request.match_info["place"], request.match_info["ts"]
        return web.Response(status=200 if self.respond(place, ts, await request.json()) else 404)

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        """Show an answer to a slash command to its sender; five times at most."""
        shown = self.responses.setdefault(request.match_info["trigger"], [])
        if len(shown) >= 5:
            return web.Response(status=404, text="used_url")
        shown.append(await request.json())
        self._change()
        return web.Response(text="ok")

    # -- up and down ---------------------------------------------------------------------------

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._tasks):
            task.cancel()
        for socket in list(self.sockets):
            await socket.close()


async def _arguments(request: web.Request) -> dict[str, Any]:
    if request.content_type == "application/json":
        found: dict[str, Any] = await request.json()
        return found
    return {**request.query, **{key: str(value) for key, value in (await request.post()).items()}}


@asynccontextmanager
async def slack_server(server: SlackServer | None = None, *, port: int = 0) -> AsyncIterator[SlackServer]:
    """Run a workspace on this machine."""
    server = server or SlackServer()
    app = web.Application(client_max_size=1 << 27)
    app.router.add_route("*", "/api/{method}", server._api)
    app.router.add_get("/", server._login)
    app.router.add_get("/files-pri/{file}/{how}", server._download)
    app.router.add_post("/upload/{file}", server._upload)
    app.router.add_get("/link", server._link)
    app.router.add_post("/actions/{place}/{ts}", server._action)
    app.router.add_post("/respond/{trigger}", server._respond)
    async with serve_app(app, port=port) as place:
        server.base = f"http://{place}"
        try:
            yield server
        finally:
            await server.close()
