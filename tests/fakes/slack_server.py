"""Slack as a bot sees it, over real HTTP and a real WebSocket: strict about scopes, limits, acks and metadata.

Written from docs.slack.dev: Web API methods answer 200 with `ok`, Socket Mode delivers an envelope again when it is not
acknowledged in time, history is newest first and holds no event ids, and what is posted stands whatever becomes of the
reply.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

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
from tests.fakes.slack_workspace import Fault as Fault
from tests.fakes.slack_workspace import Place as Place
from tests.fakes.slack_workspace import Workspace as Workspace

_NEEDS = {
    "chat.postMessage": "chat:write",
    "chat.postEphemeral": "chat:write",
    "chat.update": "chat:write",
    "users.info": "users:read",
    "reactions.add": "reactions:write",
    "reactions.remove": "reactions:write",
    "assistant.threads.setStatus": "assistant:write",
}
_HISTORY = {"im": "im:history", "channel": "channels:history", "group": "groups:history", "mpim": "mpim:history"}
_JSON = frozenset(("chat.postMessage", "chat.postEphemeral", "chat.update", "assistant.threads.setStatus"))
_RETRIES = 3
_TOO_LONG = 40_000
_TOO_LONG_TO_EDIT = 4_000


@dataclass(slots=True)
class _Envelope:
    frame: dict[str, Any]
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    deliveries: int = 0


class SlackError(Exception):
    """An answer with `ok: false`."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.answer = {"ok": False, "error": error, **more}


class SlackServer(Workspace):
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
        self._tickets: set[str] = set()
        self._envelopes: dict[str, _Envelope] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- Socket Mode ---------------------------------------------------------------------------

    def _send(self, kind: str, payload: dict[str, Any]) -> None:
        task = asyncio.create_task(self._deliver(kind, payload), name="slack delivers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, kind: str, payload: dict[str, Any]) -> None:
        ident = payload.get("event_id") or payload["trigger_id"]
        for attempt in range(_RETRIES + 1):
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
                self.acks.append(ident)
                self._change()
                return
        self.given_up.append(ident)
        self._change()

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
        hello = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A0PARLOUR"}}
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
        envelope = self._envelopes.pop(frame["envelope_id"], None)
        if envelope is not None:
            envelope.acked.set()

    # -- the Web API ---------------------------------------------------------------------------

    async def _api(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        arguments = await _arguments(request)
        self.calls.append((method, arguments))
        fault = self._fault(method)
        answer: dict[str, Any] = {"ok": True}
        if fault is None or fault.does:
            try:
                answer |= self._do(method, arguments, request)
            except SlackError as error:
                answer = error.answer
        self._change()
        return await self._answer(request, answer, fault)

    def _fault(self, method: str) -> Fault | None:
        waiting = self.faults.get(method)
        return waiting.pop(0) if waiting else None

    async def _answer(self, request: web.Request, answer: dict[str, Any], fault: Fault | None) -> web.StreamResponse:
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
        self._require(_NEEDS.get(method, ""))
        found: dict[str, Any] = handler(arguments)
        return found

    def _require(self, scope: str) -> None:
        if scope and scope not in self.scopes:
            raise SlackError("missing_scope", needed=scope, provided=",".join(sorted(self.scopes)))

    def _place(self, arguments: Mapping[str, Any], *, writes: bool = False) -> Place:
        place = self.places.get(str(arguments.get("channel") or arguments.get("channel_id")))
        if place is None:
            raise SlackError("channel_not_found")
        if BOT_USER not in place.members:
            raise SlackError("not_in_channel" if place.kind == "channel" else "channel_not_found")
        if writes and place.is_archived:
            raise SlackError("is_archived")
        return place

    def _apps_connections_open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        ticket = f"ticket-{next(self._numbers)}"
        self._tickets.add(ticket)
        return {"url": f"{self.base.replace('http', 'ws', 1)}/link?ticket={ticket}"}

    def _auth_test(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"user_id": BOT_USER, "user": "parlour", "bot_id": BOT_ID, "team_id": TEAM, "team": "Home"}

    def _users_info(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments["user"] not in self.users:
            raise SlackError("user_not_found")
        return {"user": self.users[arguments["user"]]}

    def _chat_postmessage(self, arguments: dict[str, Any]) -> dict[str, Any]:
        place = self._place(arguments, writes=True)
        message = {
            "type": "message",
            "user": BOT_USER,
            "bot_id": BOT_ID,
            "ts": self._ts(),
            **_text(arguments, _TOO_LONG),
        }
        if thread := arguments.get("thread_ts"):
            if not any(known["ts"] == thread for known in place.messages):
                raise SlackError("thread_not_found")
            message["thread_ts"] = thread
        message["preview"] = bool(arguments.get("unfurl_links", True)) or bool(arguments.get("unfurl_media", True))
        place.messages.append(message)
        # Our own words come back as events, as every bot's do.
        self.tell(place.id, {key: value for key, value in message.items() if key != "metadata"})
        return {"channel": place.id, "ts": message["ts"], "message": message}

    def _chat_postephemeral(self, arguments: dict[str, Any]) -> dict[str, Any]:
        place = self._place(arguments, writes=True)
        if arguments["user"] not in place.members:
            raise SlackError("user_not_in_channel")
        if "metadata" in arguments:
            raise SlackError("invalid_arguments")
        ts = self._ts()
        place.whispers.append({"user": arguments["user"], "ts": ts, **_text(arguments, _TOO_LONG)})
        return {"message_ts": ts}

    def _chat_update(self, arguments: dict[str, Any]) -> dict[str, Any]:
        place = self._place(arguments, writes=True)
        message = next((known for known in place.messages if known["ts"] == arguments["ts"]), None)
        if message is None:
            raise SlackError("message_not_found")
        if message["user"] != BOT_USER:
            raise SlackError("cant_update_message")
        before = dict(message)
        message.setdefault("was", []).append(message["text"])
        message.update(_text(arguments, _TOO_LONG_TO_EDIT), edited={"user": BOT_USER, "ts": self._ts()})
        self._changed_event(place.id, message, before)
        return {"channel": place.id, "ts": message["ts"], "text": message["text"]}

    def _conversations_history(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        place = self._place(arguments)
        self._require(_HISTORY[place.kind])
        top = [known for known in place.messages if known.get("thread_ts", known["ts"]) == known["ts"]]
        return self._page(list(reversed(top)), arguments)

    def _conversations_replies(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        place = self._place(arguments)
        self._require(_HISTORY[place.kind])
        thread = [known for known in place.messages if arguments["ts"] in (known["ts"], known.get("thread_ts"))]
        if not thread:
            raise SlackError("thread_not_found")
        return self._page(thread, arguments)

    def _page(self, messages: list[dict[str, Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
        oldest, start, limit = arguments.get("oldest", "0"), int(arguments.get("cursor") or 0), int(arguments["limit"])
        found = [message for message in messages if _number(message["ts"]) > _number(oldest)]
        page = [dict(message) for message in found[start : start + limit]]
        reads = arguments.get("include_all_metadata") in ("1", "true") and "metadata.message:read" in self.scopes
        for message in page:
            if not reads:
                message.pop("metadata", None)
        more = str(start + limit) if start + limit < len(found) else ""
        return {"messages": page, "has_more": bool(more), "response_metadata": {"next_cursor": more}}

    def _reactions_add(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        key = (arguments["channel"], arguments["timestamp"], arguments["name"])
        self._message(key[0], key[1])
        if key in self.reactions:
            raise SlackError("already_reacted")
        self.reactions.add(key)
        return {}

    def _reactions_remove(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        key = (arguments["channel"], arguments["timestamp"], arguments["name"])
        if key not in self.reactions:
            raise SlackError("no_reaction")
        self.reactions.discard(key)
        return {}

    def _assistant_threads_setstatus(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._place(arguments)
        self.statuses[(arguments["channel_id"], arguments["thread_ts"])] = arguments["status"]
        return {}

    # -- up and down ---------------------------------------------------------------------------

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._tasks):
            task.cancel()
        for socket in list(self.sockets):
            await socket.close()


def _number(ts: str) -> tuple[int, int]:
    seconds, _, rest = str(ts).partition(".")
    return int(seconds), int((rest or "0").ljust(6, "0"))


async def _arguments(request: web.Request) -> dict[str, Any]:
    if request.content_type == "application/json":
        found: dict[str, Any] = await request.json()
        return found
    return {**request.query, **{key: str(value) for key, value in (await request.post()).items()}}


def _text(arguments: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return what is kept of a text, or refuse it as Slack does."""
    text = arguments.get("text") or ""
    if not text.strip():
        raise SlackError("no_text")
    if len(text) > limit:
        raise SlackError("msg_too_long")
    kept: dict[str, Any] = {"text": text}
    if metadata := arguments.get("metadata"):
        if set(metadata) != {"event_type", "event_payload"} or not isinstance(metadata["event_payload"], dict):
            raise SlackError("invalid_metadata_format")
        kept["metadata"] = metadata
    return kept


@asynccontextmanager
async def slack_server(server: SlackServer | None = None, *, port: int = 0) -> AsyncIterator[SlackServer]:
    """Run a workspace on this machine."""
    server = server or SlackServer()
    app = web.Application()
    app.router.add_route("*", "/api/{method}", server._api)
    app.router.add_get("/link", server._link)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    server.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await server.close()
        await runner.cleanup()
