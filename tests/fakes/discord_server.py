"""A small Discord: what people write in servers, threads and direct messages, and the REST v10 a bot uses.

Strict where Discord is (docs.discord.com/developers): 2,000 characters, a nonce of 25 that is remembered for five
minutes, limits by bucket told in headers, 429 with a Via header, error codes, roles that count when they are
asked for. Faults are switched on one request at a time. The gateway's half is discord_gateway.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from aiohttp import web

from tests.fakes.discord_gateway import Gateway

TOKEN = "MTA0MjAwMDAwMDAwMDAwMDAwMQ.GcanaR.y-canary_canary-canary_canary-canary01"
BOT = "1042000000000000001"
ANN, BEN, EVA = "2001", "2002", "2003"
GUILD, GENERAL, RANDOM = "3001", "4001", "4002"
BOT_ROLE, TEAM_ROLE, ADMIN_ROLE = "5001", "5002", "5003"

NONCE_LASTS = timedelta(minutes=5)
_EPOCH = datetime(2015, 1, 1, tzinfo=UTC)
_SUPPRESS_EMBEDS = 1 << 2
_ROUTES = re.compile(
    r"/(users|channels|guilds|messages|typing|reactions|members|oauth2|applications|gateway)(?=/|\Z)", re.ASCII
)


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: int, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message or f"error {code}", "code": code}


@dataclass(slots=True)
class Fault:
    """What happens to the next request of a kind, instead of or after its effect."""

    method: str
    kind: str  # the last word of the route: messages, typing, reactions, members, channels, @me
    what: str  # one of
    # lost: done, and the answer is lost · "done 502": done, and that is the answer · drop: not done ·
    # limit, cloudflare: 429 · "403 50013": a status and a code
    seconds: float = 0.05


@dataclass(slots=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    kind: str
    body: dict[str, Any]


@dataclass
class Discord:
    """The platform's state."""

    base: str = ""
    limit: tuple[int, float] = (1_000, 1.0)  # requests per bucket and seconds
    allows_content: bool = True  # the portal's switch: Message Content Intent
    takes_direct: bool = True  # whether people take direct messages of the bot
    skew: timedelta = timedelta()
    typing_lasts: float = 10.0
    channels: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    members: dict[str, dict[str, Any]] = field(default_factory=dict)  # of GUILD, by user
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)  # channels the bot may not see any more
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    typing: list[tuple[str, float]] = field(default_factory=list)  # where, and when by the loop's clock
    reactions: list[tuple[str, str, bool]] = field(default_factory=list)  # message, emoji, added
    gateway: Gateway = field(init=False)
    _nonces: dict[str, tuple[datetime, dict[str, Any]]] = field(default_factory=dict)
    _buckets: dict[str, list[float]] = field(default_factory=dict)
    _serial: Any = field(default_factory=count)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _sending: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.gateway = Gateway(self)
        for ident, name in ((BOT, "Parlour"), (ANN, "ann"), (BEN, "ben"), (EVA, "eva")):
            self.users[ident] = {"id": ident, "username": name, "discriminator": "0", "global_name": name.title()}
            self.users[ident] |= {"avatar": None, "bot": True} if ident == BOT else {"avatar": None}
            self.members[ident] = {"roles": [BOT_ROLE] if ident == BOT else [], "nick": None}
        for ident, name in ((GENERAL, "general"), (RANDOM, "random")):
            self.add_channel(ident, name)

    # What people do.

    def add_channel(self, ident: str, name: str, kind: int = 0, **fields: Any) -> str:
        """Add a channel or a thread to the server."""
        self.channels[ident] = {
            "id": ident, "type": kind, "guild_id": GUILD, "name": name, "parent_id": None, "position": 0,
            "permission_overwrites": [], "nsfw": False, "topic": None, "rate_limit_per_user": 0,
            "last_message_id": None, **fields,
        }  # fmt: skip
        self.messages[ident] = []
        return ident

    def open_thread(self, parent: str, name: str, *, private: bool = False) -> str:
        """Begin a thread; the gateway tells who may see it."""
        ident = self.snowflake()
        now = self.now().isoformat()
        meta = {"archived": False, "auto_archive_duration": 1440, "archive_timestamp": now, "locked": False}
        self.add_channel(
            ident, name, 12 if private else 11, parent_id=parent, owner_id=ANN, message_count=0, member_count=1,
            thread_metadata=meta,
        )  # fmt: skip
        self.gateway.dispatch("THREAD_CREATE", self.channels[ident], guild=True)
        return ident

    def direct(self, user: str) -> str:
        """Return the direct chat between *user* and the bot."""
        ident = f"9{user}"
        if ident not in self.channels:
            self.channels[ident] = {
                "id": ident, "type": 1, "last_message_id": None, "recipients": [self.users[user]],
            }  # fmt: skip
            self.messages[ident] = []
        return ident

    def say(self, channel: str, user: str, text: str, **fields: Any) -> str:
        """Let *user* write; return the message's id."""
        message = self._message(channel, self.users[user], text, fields)
        self._store(channel, message)
        return str(message["id"])

    def repeat(self, ident: str) -> None:
        """Deliver the same MESSAGE_CREATE once more."""
        channel, message = self.find(ident)
        self._tell("MESSAGE_CREATE", channel, message)

    def edit(self, ident: str, text: str) -> None:
        """Let the author edit a message."""
        channel, message = self.find(ident)
        message |= {"content": text, "edited_timestamp": self.now().isoformat(), **self._mentions(text)}
        self._tell("MESSAGE_UPDATE", channel, message)

    def resolve_embed(self, ident: str) -> None:
        """Let a link's preview resolve: an update that is no edit."""
        channel, message = self.find(ident)
        message["embeds"] = [{"type": "link", "url": "https://example.com"}]
        self._tell("MESSAGE_UPDATE", channel, message)

    def delete(self, *idents: str) -> None:
        """Delete one message, or several at once."""
        channel, _ = self.find(idents[0])
        self.messages[channel] = [each for each in self.messages[channel] if each["id"] not in idents]
        place = {"channel_id": channel} | self._guild_of(channel)
        if len(idents) == 1:
            self.gateway.dispatch("MESSAGE_DELETE", {"id": idents[0], **place}, guild="guild_id" in place)
        else:
            self.gateway.dispatch("MESSAGE_DELETE_BULK", {"ids": [*idents], **place}, guild="guild_id" in place)
        self.change()

    # What a test looks at.

    def chat(self, channel: str) -> list[str]:
        """Return what the bot's messages in a channel say, oldest first."""
        return [each["content"] for each in self.messages[channel] if each["author"]["id"] == BOT]

    def find(self, ident: str) -> tuple[str, dict[str, Any]]:
        """Return a message and its channel."""
        for channel, messages in self.messages.items():
            for message in messages:
                if message["id"] == ident:
                    return channel, message
        raise KeyError(ident)

    token: str = TOKEN

    @property
    def me(self) -> dict[str, Any]:
        """The bot."""
        return self.users[BOT]

    def guilds(self) -> list[dict[str, Any]]:
        """Return the server as GUILD_CREATE tells it."""
        shown = [each for each in self.channels.values() if each.get("guild_id") and each["id"] not in self.closed]
        rights = {GUILD: "104324673", BOT_ROLE: "0", TEAM_ROLE: "0", ADMIN_ROLE: "32"}
        roles = [
            {
                "id": ident, "name": f"role {ident}", "permissions": right, "position": place, "color": 0,
                "hoist": False, "managed": ident == BOT_ROLE, "mentionable": True, "flags": 0,
                "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
                **({"tags": {"bot_id": BOT}} if ident == BOT_ROLE else {}),
            }
            for place, (ident, right) in enumerate(rights.items())
        ]  # fmt: skip
        me = {
            "user": self.users[BOT],
            "joined_at": "2026-01-01T00:00:00+00:00",
            "deaf": False,
            "mute": False,
            "flags": 0,
        }
        return [
            {
                "id": GUILD, "name": "Home", "owner_id": "1", "unavailable": False, "member_count": 4, "roles": roles,
                "channels": [each for each in shown if each["type"] not in (11, 12)],
                "threads": [each for each in shown if each["type"] == 11],
                "members": [me | self.members[BOT]], "emojis": [], "stickers": [], "features": [], "presences": [],
                "voice_states": [], "stage_instances": [], "guild_scheduled_events": [], "soundboard_sounds": [],
                "verification_level": 0, "default_message_notifications": 0, "explicit_content_filter": 0,
                "mfa_level": 0, "nsfw_level": 0, "premium_tier": 0, "preferred_locale": "en-US", "large": False,
                "system_channel_flags": 0, "afk_timeout": 300, "icon": None, "splash": None, "banner": None,
                "premium_progress_bar_enabled": False, "description": None, "vanity_url_code": None,
            }
        ]  # fmt: skip

    def wake(self) -> None:
        """Have what was dispatched sent soon."""
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self.gateway.settle(), name="discord dispatch")

    async def until(self, holds: Callable[[], Any]) -> None:
        """Return when *holds* holds; it is looked at after every change here."""
        while not holds():
            await self._changed.wait()

    async def until_changed(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    def is_typing(self, channel: str) -> bool:
        """Say whether people see the bot type."""
        now = asyncio.get_running_loop().time()
        return any(where == channel and now - at < self.typing_lasts for where, at in self.typing)

    def change(self) -> None:
        """Wake who waits."""
        self._changed.set()
        self._changed = asyncio.Event()

    def fail(self, method: str, kind: str, what: str, *, times: int = 1, seconds: float = 0.05) -> None:
        """Let the next requests of a kind fail."""
        self.faults.extend(Fault(method, kind, what, seconds) for _ in range(times))

    def now(self) -> datetime:
        """Return the platform's time."""
        return datetime.now(UTC) + self.skew

    def snowflake(self) -> str:
        """Return a fresh id."""
        milliseconds = int((self.now() - _EPOCH) / timedelta(milliseconds=1))
        return str((milliseconds << 22) + next(self._serial) % (1 << 22))

    # Messages.

    def _message(self, channel: str, author: dict[str, Any], text: str, fields: dict[str, Any]) -> dict[str, Any]:
        ident = self.snowflake()
        message = {
            "id": ident, "type": 0, "channel_id": channel, "author": author, "content": text,
            "timestamp": self.now().isoformat(), "edited_timestamp": None, "tts": False, "mention_everyone": False,
            "attachments": [], "embeds": [], "pinned": False, "flags": 0, "components": [],
            **self._mentions(text), **fields,
        }  # fmt: skip
        if reply_to := message.pop("reply_to", ""):
            message["type"] = 19
            message["message_reference"] = {"type": 0, "message_id": reply_to, "channel_id": channel}
            message["referenced_message"] = next((m for m in self.messages[channel] if m["id"] == reply_to), None)
        return message

    def _mentions(self, text: str) -> dict[str, Any]:
        users = [self.users[ident] for ident in re.findall(r"<@!?(\d+)>", text) if ident in self.users]
        return {"mentions": users, "mention_roles": re.findall(r"<@&(\d+)>", text)}

    def _store(self, channel: str, message: dict[str, Any]) -> None:
        self.messages[channel].append(message)
        self.channels[channel]["last_message_id"] = message["id"]
        self._tell("MESSAGE_CREATE", channel, message)
        self.change()

    def _guild_of(self, channel: str) -> dict[str, Any]:
        guild = self.channels[channel].get("guild_id")
        return {"guild_id": guild} if guild else {}

    def _tell(self, name: str, channel: str, message: dict[str, Any]) -> None:
        if channel in self.closed:
            return
        place = self._guild_of(channel)
        author = message["author"]["id"]
        member = {"member": self.members[author]} if place and author in self.members else {}
        self.gateway.dispatch(name, {**message, **place, **member}, guild=bool(place))

    # REST.

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, or fail as a fault says."""
        body = json.loads(await request.read() or b"{}")
        kind = (_ROUTES.findall(request.path) or ["?"])[-1]
        self.requests.append(Request(request.method, request.path, kind, body))
        fault = self._next_fault(request.method, kind)
        what = fault.what if fault else ""
        if what == "drop":
            return self._abort(request)
        try:
            headers = self._count(request, fault)
            _refuse_as_told(what)
            answer = self._answer(request, body)
        except Refusal as refusal:
            self.change()
            return _json(refusal.body, refusal.status, self._headers(refusal))
        if what == "lost":
            self.change()
            return self._abort(request)
        if what.startswith("done "):
            return _json({"message": "bad gateway", "code": 0}, int(what.removeprefix("done ")), headers)
        self.change()
        if answer is None:
            return web.Response(status=204, headers=headers)
        return _json(answer, 200, headers)

    def _next_fault(self, method: str, kind: str) -> Fault | None:
        for fault in self.faults:
            if (fault.method, fault.kind) == (method, kind):
                self.faults.remove(fault)
                return fault
        return None

    @staticmethod
    def _abort(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _headers(self, refusal: Refusal) -> dict[str, str]:
        if refusal.status != 429:
            return {}
        headers = {"Retry-After": str(refusal.body.get("retry_after", 1))}
        return headers if refusal.body["code"] == -1 else headers | {"Via": "1.1 google"}

    def _count(self, request: web.Request, fault: Fault | None) -> dict[str, str]:
        """Keep the bucket of this route and channel; raise 429 when it is empty."""
        if fault is not None and fault.what in ("limit", "cloudflare"):
            refusal = Refusal(429, -1 if fault.what == "cloudflare" else 0, "You are being rate limited.")
            refusal.body |= {"retry_after": fault.seconds, "global": False}
            raise refusal
        most, seconds = self.limit
        major = re.sub(r"/(messages|reactions)/\d+", r"/\1", request.path)
        bucket = self._buckets.setdefault(f"{request.method} {major}", [])
        now = asyncio.get_running_loop().time()
        bucket[:] = [at for at in bucket if now - at < seconds]
        reset = max(seconds - (now - bucket[0]), 0.0) if bucket else seconds
        if len(bucket) >= most:
            refusal = Refusal(429, 0, "You are being rate limited.")
            refusal.body |= {"retry_after": reset, "global": False}
            raise refusal
        bucket.append(now)
        return {
            "X-RateLimit-Limit": str(most), "X-RateLimit-Remaining": str(most - len(bucket)),
            "X-RateLimit-Reset-After": f"{reset:.3f}", "X-RateLimit-Bucket": str(abs(hash(request.method)) % 10**8),
        }  # fmt: skip

    def _answer(self, request: web.Request, body: dict[str, Any]) -> Any:
        if request.headers.get("Authorization") != f"Bot {self.token}":
            raise Refusal(401, 0, "401: Unauthorized")
        words = request.path.removeprefix("/api/v10").strip("/").split("/")
        match request.method, words:
            case "GET", ["users", "@me"]:
                return self.users[BOT]
            case "GET", ["oauth2", "applications", "@me"]:
                return {"id": BOT, "name": "Parlour", "description": "", "bot_public": False, "flags": 0, "icon": None,
                        "bot_require_code_grant": False, "verify_key": "", "owner": self.users[ANN]}  # fmt: skip
            case "POST", ["users", "@me", "channels"]:
                return self.channels[self.direct(str(body["recipient_id"]))]
            case "GET", ["guilds", _, "members", user]:
                if user not in self.members:
                    raise Refusal(404, 10007, "Unknown Member")
                return {"user": self.users[user], **self.members[user]}
            case _, ["channels", channel, *rest]:
                return self._in_channel(request, channel, rest, body)
        raise Refusal(404, 0, "404: Not Found")

    def _in_channel(self, request: web.Request, channel: str, rest: list[str], body: dict[str, Any]) -> Any:
        if channel not in self.channels:
            raise Refusal(404, 10003, "Unknown Channel")
        if channel in self.closed:
            raise Refusal(403, 50001, "Missing Access")
        match request.method, rest:
            case "GET", []:
                return self.channels[channel]
            case "GET", ["messages"]:
                return self._history(channel, dict(request.query))
            case "POST", ["messages"]:
                return self._post(channel, body)
            case "PATCH", ["messages", ident]:
                return self._patch(channel, ident, body)
            case "POST", ["typing"]:
                self.typing.append((channel, asyncio.get_running_loop().time()))
                return None
            case "PUT" | "DELETE", ["messages", ident, "reactions", emoji, "@me"]:
                self.reactions.append((ident, emoji, request.method == "PUT"))
                return None
        raise Refusal(404, 0, "404: Not Found")

    def _history(self, channel: str, query: dict[str, str]) -> list[dict[str, Any]]:
        limit = int(query.get("limit", "50"))
        if not 1 <= limit <= 100:
            raise Refusal(400, 50035, "Invalid Form Body")
        # What the gateway adds, history lacks; and no nonce is kept.
        found = [{k: v for k, v in each.items() if k != "nonce"} for each in self.messages[channel]]
        if "after" in query:
            return [each for each in found if int(each["id"]) > int(query["after"])][:limit][::-1]
        if "before" in query:
            found = [each for each in found if int(each["id"]) < int(query["before"])]
        return found[-limit:][::-1]

    def _post(self, channel: str, body: dict[str, Any]) -> dict[str, Any]:
        text = self._text(body)
        nonce = str(body.get("nonce") or "")
        if len(nonce) > 25:
            raise Refusal(400, 50035, "Invalid Form Body")
        if self.channels[channel]["type"] == 1 and not self.takes_direct:
            raise Refusal(403, 50007, "Cannot send messages to this user")
        if nonce and body.get("enforce_nonce") and nonce in self._nonces:
            at, message = self._nonces[nonce]
            if self.now() - at < NONCE_LASTS:
                return message
        fields: dict[str, Any] = {"flags": body.get("flags", 0), "allowed_mentions": body.get("allowed_mentions")}
        reference = body.get("message_reference") or {}
        if reference:
            if any(each["id"] == str(reference["message_id"]) for each in self.messages[channel]):
                fields["reply_to"] = str(reference["message_id"])
            elif reference.get("fail_if_not_exists", True):
                raise Refusal(400, 50035, "Invalid Form Body")
        message = self._message(channel, self.users[BOT], text, fields)
        message["nonce"] = nonce
        self._nonces[nonce] = (self.now(), message)
        self._store(channel, message)
        return message

    def _patch(self, channel: str, ident: str, body: dict[str, Any]) -> dict[str, Any]:
        message = next((each for each in self.messages[channel] if each["id"] == ident), None)
        if message is None:
            raise Refusal(404, 10008, "Unknown Message")
        if message["author"]["id"] != BOT:
            raise Refusal(403, 50005, "Cannot edit a message authored by another user")
        message |= {"content": self._text(body), "edited_timestamp": self.now().isoformat()}
        message.setdefault("was", []).append(message["content"])
        self._tell("MESSAGE_UPDATE", channel, message)
        return message

    @staticmethod
    def _text(body: dict[str, Any]) -> str:
        text = str(body.get("content") or "").strip()
        if not text:
            raise Refusal(400, 50006, "Cannot send an empty message")
        if len(text) > 2_000:
            raise Refusal(400, 50035, "Invalid Form Body")
        return text


def _json(body: Any, status: int, headers: dict[str, str]) -> web.Response:
    # Discord names no charset, and discord.py reads JSON only then.
    return web.Response(
        body=json.dumps(body).encode(), status=status, headers={**headers, "Content-Type": "application/json"}
    )


def _refuse_as_told(what: str) -> None:
    if what[:1].isdigit():
        status, _, code = what.partition(" ")
        raise Refusal(int(status), int(code or 0))


@asynccontextmanager
async def open_discord(discord: Discord | None = None, *, port: int = 0) -> AsyncIterator[Discord]:
    """Serve the platform on loopback until the block ends."""
    discord = discord or Discord()
    app = web.Application()
    app.router.add_get("/gateway", discord.gateway.serve)
    app.router.add_route("*", "/api/v10/{tail:.*}", discord.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        discord.base = f"127.0.0.1:{runner.addresses[0][1]}"
        yield discord
    finally:
        await runner.cleanup()
