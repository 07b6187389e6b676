"""Discord's gateway, v10: hello, heartbeat, identify, resume, invalid session, reconnect, and events with numbers.

Strict as documented: a wrong token closes with 4004, an intent that is not allowed with 4014, events go only where
their intent was asked for, and content is empty without MESSAGE_CONTENT, but for direct messages and mentions.
"""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

if TYPE_CHECKING:
    from tests.fakes.discord_server import DiscordServer

GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15
_PRIVILEGED = (1 << 1) | (1 << 8) | MESSAGE_CONTENT


@dataclass(eq=False)
class DiscordSession:
    """What the gateway knows of one identified connection, for as long as it can be resumed."""

    id: str
    intents: int
    shard: tuple[int, int]
    sent: list[dict[str, Any]] = field(default_factory=list)
    line: DiscordSocket | None = None


class DiscordSocket:
    """One socket, compressed if the client asked for it."""

    def __init__(self, socket: web.WebSocketResponse, *, compressed: bool) -> None:
        self.socket = socket
        self._compressor = zlib.compressobj() if compressed else None

    async def send(self, frame: Any) -> None:
        """Send one frame; a line that is cut takes none."""
        if self.socket.closed:
            return
        text = frame if isinstance(frame, str) else json.dumps(frame)
        if self._compressor is None:
            await self.socket.send_str(text)
        else:
            data = self._compressor.compress(text.encode()) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
            await self.socket.send_bytes(data)


class DiscordGatewayServer:
    """All sessions of the one bot."""

    def __init__(self, discord: DiscordServer) -> None:
        self._discord = discord
        self.heartbeat = 41_250  # milliseconds
        self.is_mute = False  # answers no heartbeat any more
        self.sessions: list[DiscordSession] = []
        self.identified = 0
        self.resumed = 0
        self.refuses = 0  # connections that are cut before a hello
        self.invalid = 0  # identifies that are answered by op 9, as one that came too early
        self.identify_period = 0.0  # seconds between two identifies of shards with one remainder; a real one has 5
        self.too_early = 0  # identifies that came sooner, and were answered by op 9
        self.has_outage = False  # no server is announced
        self.needs_shards = False  # one shard has too many servers
        self.identifies: list[tuple[int, int]] = []  # the shard of each, and how many there are
        self.resumed_shards: list[int] = []
        self._identified_at: dict[int, float] = {}  # by remainder and the loop's clock
        self._pending: list[Any] = []
        self._order = asyncio.Lock()

    # What a test does.

    @property
    def line(self) -> DiscordSocket | None:
        """The live connection."""
        return next((each.line for each in reversed(self.sessions) if each.line is not None), None)

    async def drop(self, code: int = 4000, *, shard: int | None = None) -> None:
        """Cut the connection, or that of a shard alone; the session can be resumed."""
        for session in self.sessions:
            if shard not in (None, session.shard[0]):
                continue
            line, session.line = session.line, None
            if line is not None:
                await line.socket.close(code=code)

    async def ask_reconnect(self) -> None:
        """Send op 7."""
        assert self.line is not None
        await self.line.send({"op": 7, "d": None, "s": None, "t": None})

    async def invalidate(self) -> None:
        """Send op 9, d false: what comes until the next identify reaches nobody."""
        line = self.line
        assert line is not None
        self.sessions.clear()
        await line.send({"op": 9, "d": False, "s": None, "t": None})

    async def send_raw(self, frame: str) -> None:
        """Send a frame as it stands."""
        assert self.line is not None
        await self.line.send(frame)

    async def settle(self) -> None:
        """Send what was dispatched from outside of a task."""
        async with self._order:
            while self._pending:
                session, frame = self._pending.pop(0)
                if session.line is not None:
                    await session.line.send(frame)

    def dispatch(self, name: str, data: dict[str, Any], *, guild: bool, needs: int | None = None) -> None:
        """Queue an event for every session that asked for its kind; interactions need no intent."""
        needed = GUILDS if name.startswith(("THREAD", "CHANNEL", "GUILD")) else GUILD_MESSAGES
        needed = needs if needs is not None else needed if guild else DIRECT_MESSAGES
        for session in self.sessions:
            if (not needed or session.intents & needed) and _is_of(session.shard, _guild_of(name, data)):
                self._queue(session, name, self._seen_by(session, name, data, guild=guild))

    def _seen_by(self, session: DiscordSession, name: str, data: dict[str, Any], *, guild: bool) -> dict[str, Any]:
        data = json.loads(json.dumps(data))
        if name not in ("MESSAGE_CREATE", "MESSAGE_UPDATE") or not guild or session.intents & MESSAGE_CONTENT:
            return data
        me = self._discord.me["id"]
        if data["author"]["id"] == me or any(user["id"] == me for user in data["mentions"]):
            return data
        return data | {"content": "", "attachments": [], "embeds": [], "components": []}

    def _queue(self, session: DiscordSession, name: str, data: dict[str, Any]) -> None:
        frame = {"op": 0, "t": name, "s": len(session.sent) + 1, "d": data}
        session.sent.append(frame)
        self._pending.append((session, frame))
        self._discord.wake()

    # One connection.

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Speak to one client until it goes."""
        if self.refuses:
            self.refuses -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        assert request.query["v"] == "10"
        socket = web.WebSocketResponse(autoping=True, timeout=0.1)
        await socket.prepare(request)
        line = DiscordSocket(socket, compressed=request.query.get("compress") == "zlib-stream")
        await line.send({"op": 10, "d": {"heartbeat_interval": self.heartbeat}, "s": None, "t": None})
        session: DiscordSession | None = None
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                assert len(message.data) <= 4096
                session = await self._take(line, session, json.loads(message.data))
                await self.settle()
        finally:
            if session is not None and session.line is line:
                session.line = None
                if socket.close_code == 1000:
                    # A client that says goodbye ends its session.
                    self.sessions = [each for each in self.sessions if each is not session]
            self._discord.change()
        return socket

    async def _take(
        self, line: DiscordSocket, session: DiscordSession | None, frame: dict[str, Any]
    ) -> DiscordSession | None:
        match frame["op"]:
            case 1 if not self.is_mute:
                await line.send({"op": 11, "d": None, "s": None, "t": None})
            case 2:
                return await self._identify(line, frame["d"])
            case 6:
                return await self._resume(line, frame["d"])
        return session

    async def _identify(self, line: DiscordSocket, wish: dict[str, Any]) -> DiscordSession | None:
        self.identified += 1
        if wish["token"] != self._discord.token:
            await line.socket.close(code=4004)
            return None
        allowed = MESSAGE_CONTENT if self._discord.allows_content else 0
        if wish["intents"] & _PRIVILEGED & ~allowed:
            await line.socket.close(code=4014)
            return None
        shard = (int(wish["shard"][0]), int(wish["shard"][1]))
        self.identifies.append(shard)
        if self.needs_shards and shard[1] == 1:
            await line.socket.close(code=4011)
            return None
        if self._is_too_early(shard[0] % self._discord.max_concurrency) or self.invalid:
            self.invalid = max(self.invalid - 1, 0)
            await line.send({"op": 9, "d": False, "s": None, "t": None})
            return None
        session = DiscordSession(id=f"s{self.identified}", intents=wish["intents"], shard=shard, line=line)
        guilds = [each for each in self._discord.guilds() if _is_of(shard, each["id"])]
        self.sessions.append(session)
        ready = {
            "v": 10,
            "user": self._discord.me,
            "session_id": session.id,
            "resume_gateway_url": "wss://gateway.example.invalid",
            "guilds": [{"id": each["id"], "unavailable": True} for each in guilds],
            "shard": list(shard),
            "private_channels": [],
            "application": {"id": self._discord.me["id"], "flags": 0},
        }
        self._queue(session, "READY", ready)
        for guild in [] if self.has_outage else guilds:
            self._queue(session, "GUILD_CREATE", guild)
        self._discord.change()
        return session

    def _is_too_early(self, remainder: int) -> bool:
        now, before = asyncio.get_running_loop().time(), self._identified_at.get(remainder, -math.inf)
        self._identified_at[remainder] = now
        is_early = now - before < self.identify_period
        self.too_early += is_early
        return is_early

    async def _resume(self, line: DiscordSocket, wish: dict[str, Any]) -> DiscordSession | None:
        session = next((each for each in self.sessions if each.id == wish["session_id"]), None)
        if session is None:
            await line.send({"op": 9, "d": False, "s": None, "t": None})
            return None
        self.resumed += 1
        self.resumed_shards.append(session.shard[0])
        before, session.line = session.line, line
        if before is not None:
            await before.socket.close(code=4000)
        self._pending = [(each, frame) for each, frame in self._pending if each is not session]
        for frame in session.sent[wish["seq"] or 0 :]:
            await line.send(frame)
        self._queue(session, "RESUMED", {})
        self._discord.change()
        return session


def _guild_of(name: str, data: dict[str, Any]) -> str:
    """Return the server of an event, "" for one of direct messages."""
    return str(data["id"] if name.startswith("GUILD_") and "guild_id" not in data else data.get("guild_id") or "")


def _is_of(shard: tuple[int, int], guild: str) -> bool:
    """Say whether a shard hears of a server; direct messages are the first one's."""
    return (int(guild or 0) >> 22) % shard[1] == shard[0]
