"""The REST v10 of the small Discord: limits by bucket, faults, and the channels' routes.

Strict where Discord is (docs.discord.com/developers): 2,000 characters, a nonce of 25 that is remembered for five
minutes, ten files of 10 MiB, limits told in headers, 429 with a Via header, rights and error codes.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.fakes.discord_interactions import FakeInteractions
from tests.fakes.discord_records import (
    ANN,
    BOT,
    GUILD,
    NONCE_LASTS,
    DiscordFault,
    DiscordRequest,
    FakeDiscordRefusal,
    checked,
    checked_components,
)

if TYPE_CHECKING:
    from tests.fakes.discord_server import DiscordServer

FILE_LIMIT = 10 << 20  # bytes of one file, in a server without boosts
_LONGEST_THREAD_NAME = 100
_ROUTES = re.compile(
    r"/(users|channels|guilds|messages|threads|typing|reactions|members|oauth2|applications|commands|gateway|bot"
    r"|callback|webhooks|@original)(?=/|\Z)",
    re.ASCII,
)


class DiscordRest:
    """Answers the bot's requests to one Discord."""

    def __init__(self, discord: DiscordServer) -> None:
        self._discord = discord
        self.interactions = FakeInteractions(discord)
        self._nonces: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._buckets: dict[str, list[float]] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, or fail as a fault says."""
        discord = self._discord
        body = await _body(request)
        kind = (_ROUTES.findall(request.path) or ["?"])[-1]
        discord.requests.append(DiscordRequest(request.method, request.path, kind, body))
        fault = self._next_fault(request.method, kind)
        what = fault.what if fault else ""
        if discord.on_request("before", request.method, kind) or what == "drop":
            return _abort(request)
        try:
            headers = self._count(request, fault)
            _refuse_as_told(what)
            answer = self._answer(request, body)
        except FakeDiscordRefusal as refusal:
            discord.change()
            return _json(refusal.body, refusal.status, _headers(refusal))
        discord.change()
        if discord.on_request("after", request.method, kind) or what == "lost":
            return _abort(request)
        if what.startswith("done "):
            return _json({"message": "bad gateway", "code": 0}, int(what.removeprefix("done ")), headers)
        if answer is None:
            return web.Response(status=204, headers=headers)
        return _json(answer, 200, headers)

    def _next_fault(self, method: str, kind: str) -> DiscordFault | None:
        for fault in self._discord.faults:
            if (fault.method, fault.kind) == (method, kind):
                self._discord.faults.remove(fault)
                return fault
        return None

    def _count(self, request: web.Request, fault: DiscordFault | None) -> dict[str, str]:
        """Keep the bucket of this route and channel; raise 429 when it is empty."""
        if fault is not None and fault.what in ("limit", "global", "cloudflare"):
            refusal = FakeDiscordRefusal(429, -1 if fault.what == "cloudflare" else 0, "You are being rate limited.")
            refusal.body |= {"retry_after": fault.seconds, "global": fault.what == "global"}
            raise refusal
        most, seconds = self._discord.limit
        major = re.sub(r"/(messages|reactions)/\d+", r"/\1", request.path)
        bucket = self._buckets.setdefault(f"{request.method} {major}", [])
        now = asyncio.get_running_loop().time()
        bucket[:] = [at for at in bucket if now - at < seconds]
        reset = max(seconds - (now - bucket[0]), 0.0) if bucket else seconds
        if len(bucket) >= most:
            refusal = FakeDiscordRefusal(429, 0, "You are being rate limited.")
            refusal.body |= {"retry_after": reset, "global": False}
            raise refusal
        bucket.append(now)
        return {
            "X-RateLimit-Limit": str(most), "X-RateLimit-Remaining": str(most - len(bucket)),
            "X-RateLimit-Reset-After": f"{reset:.3f}", "X-RateLimit-Bucket": str(abs(hash(request.method)) % 10**8),
        }  # fmt: skip

    def _answer(self, request: web.Request, body: dict[str, Any]) -> Any:
        words = request.path.removeprefix("/api/v10").strip("/").split("/")
        if words[0] in ("interactions", "webhooks"):  # their token stands in the address
            return self.interactions.answer(request.method, words, body)
        if request.headers.get("Authorization") != f"Bot {self._discord.token}":
            raise FakeDiscordRefusal(401, 0, "401: Unauthorized")
        match request.method, words:
            case _, ["channels", channel, *rest]:
                return self._in_channel(request, channel, rest, body)
            case "PUT", ["applications", app, *where, "commands"]:
                return self.interactions.register(app, where, body["list"])
            case "GET", _:
                return self._read(words)
            case "POST", ["users", "@me", "channels"]:
                return self._discord.channels[self._discord.direct(str(body["recipient_id"]))]
        raise FakeDiscordRefusal(404, 0, "404: Not Found")

    def _read(self, words: list[str]) -> Any:
        discord = self._discord
        match words:
            case ["users", "@me"]:
                return discord.users[BOT]
            case ["users", "@me", "guilds"]:
                return [{"id": GUILD, "name": "Home", "owner": False, "permissions": "0"}] if discord.has_joined else []
            case ["oauth2", "applications", "@me"] | ["applications", "@me"]:
                return {"id": BOT, "name": "Parlour", "description": "", "bot_public": False,
                        "flags": discord.application_flags, "icon": None,
                        "interactions_endpoint_url": discord.interactions_url,
                        "bot_require_code_grant": False, "verify_key": "", "owner": discord.users[ANN]}  # fmt: skip
            case ["gateway", "bot"]:
                limit = {"total": 1000, "remaining": discord.identifies_left, "reset_after": 3_600_000}
                return {"url": "wss://x.invalid", "shards": discord.recommended_shards,
                        "session_start_limit": limit | {"max_concurrency": discord.max_concurrency}}  # fmt: skip
            case ["guilds", ident, *rest] if rest[:1] != ["members"]:
                found = next((each for each in discord.guilds() if each["id"] == ident), None)
                if found is None:
                    raise FakeDiscordRefusal(403, 50001, "Missing Access")
                if rest == ["threads", "active"]:
                    return {"threads": found["threads"], "members": []}
                hidden = ("channels", "threads", "members", "joined_at")
                return found["channels"] if rest else {name: found[name] for name in found if name not in hidden}
            case ["guilds", _, "members", user]:
                if user not in discord.members:
                    raise FakeDiscordRefusal(404, 10007, "Unknown Member")
                always = {"joined_at": "2026-01-01T00:00:00+00:00", "deaf": False, "mute": False, "flags": 0}
                return {**always, "user": discord.users[user], **discord.members[user]}
        raise FakeDiscordRefusal(404, 0, "404: Not Found")

    def _in_channel(self, request: web.Request, channel: str, rest: list[str], body: dict[str, Any]) -> Any:
        discord = self._discord
        if channel not in discord.channels:
            raise FakeDiscordRefusal(404, 10003, "Unknown Channel")
        if channel in discord.closed:
            raise FakeDiscordRefusal(403, 50001, "Missing Access")
        if request.method == "GET":
            return self._read_channel(channel, rest, dict(request.query))
        match request.method, rest:
            case "POST", ["messages"]:
                return self._post(channel, body)
            case "PATCH", ["messages", ident]:
                return self._patch(channel, ident, body)
            case "POST", ["messages", ident, "threads"]:
                return self._start_thread(channel, ident, body)
            case "POST", ["typing"]:
                discord.typing.append((channel, asyncio.get_running_loop().time()))
                return None
            case "PUT" | "DELETE", ["messages", ident, "reactions", emoji, "@me"]:
                discord.reactions.append((ident, emoji, request.method == "PUT"))
                return None
        raise FakeDiscordRefusal(404, 0, "404: Not Found")

    def _read_channel(self, channel: str, rest: list[str], query: dict[str, str]) -> Any:
        match rest:
            case []:
                return self._discord.channels[channel]
            case ["messages"]:
                return self._history(channel, query)
            case ["messages", ident]:
                self._need(channel, "read_message_history")
                return self._discord.cdn.sign(self._message(channel, ident))
        raise FakeDiscordRefusal(404, 0, "404: Not Found")

    def _need(self, channel: str, right: str) -> None:
        if "guild_id" in self._discord.channels[channel] and right in self._discord.denied:
            raise FakeDiscordRefusal(403, 50013, "Missing Permissions")

    def _message(self, channel: str, ident: str) -> dict[str, Any]:
        message = next((each for each in self._discord.messages[channel] if each["id"] == ident), None)
        if message is None:
            raise FakeDiscordRefusal(404, 10008, "Unknown Message")
        return message

    def _history(self, channel: str, query: dict[str, str]) -> list[dict[str, Any]]:
        limit = int(query.get("limit", "50"))
        if not 1 <= limit <= 100:
            raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
        if "guild_id" in self._discord.channels[channel] and "read_message_history" in self._discord.denied:
            return []  # Discord says so: no error, no messages
        # What the gateway adds, history lacks; and no nonce is kept.
        found = [
            self._discord.cdn.sign({k: v for k, v in each.items() if k not in ("nonce", "was")})
            for each in self._discord.messages[channel]
        ]
        if "after" in query:
            return [each for each in found if int(each["id"]) > int(query["after"])][:limit][::-1]
        if "before" in query:
            found = [each for each in found if int(each["id"]) < int(query["before"])]
        return found[-limit:][::-1]

    def _post(self, channel: str, body: dict[str, Any]) -> dict[str, Any]:
        discord = self._discord
        files = self._files(channel, body)
        text = checked(body, may_be_empty=bool(files))
        nonce = str(body.get("nonce") or "")
        if len(nonce) > 25:
            raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
        if discord.channels[channel]["type"] == 1 and not discord.takes_direct:
            raise FakeDiscordRefusal(403, 50007, "Cannot send messages to this user")
        is_thread = discord.channels[channel]["type"] in (11, 12)
        self._need(channel, "send_messages_in_threads" if is_thread else "send_messages")
        if nonce and body.get("enforce_nonce") and nonce in self._nonces:
            at, message = self._nonces[nonce]
            if discord.now() - at < NONCE_LASTS:
                return message
        fields: dict[str, Any] = {"flags": body.get("flags", 0), "allowed_mentions": body.get("allowed_mentions")}
        reference = body.get("message_reference") or {}
        if reference:
            if "guild_id" in discord.channels[channel] and "read_message_history" in discord.denied:
                raise FakeDiscordRefusal(403, 160002, "Cannot reply without permission to read message history")
            if any(each["id"] == str(reference["message_id"]) for each in discord.messages[channel]):
                fields["reply_to"] = str(reference["message_id"])
            elif reference.get("fail_if_not_exists", True):
                raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
        message = discord.write(channel, BOT, text, attachments=files, **fields)
        message["nonce"] = nonce
        message["components"] = checked_components(body)
        self._nonces[nonce] = (discord.now(), message)
        if is_thread:
            discord.channels[channel]["thread_metadata"]["archived"] = False
        discord.store(channel, message)
        return message

    def _files(self, channel: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Keep what came as files[n]; their facts stand in `attachments`."""
        files: list[tuple[str, bytes]] = body.pop("files", [])
        if not files:
            return []
        self._need(channel, "attach_files")
        if len(files) > 10:
            raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
        if any(len(data) > FILE_LIMIT for _, data in files):
            raise FakeDiscordRefusal(413, 40005, "Request entity too large")
        return [self._discord.cdn.keep(name, data) for name, data in files]

    def _patch(self, channel: str, ident: str, body: dict[str, Any]) -> dict[str, Any]:
        message = self._message(channel, ident)
        if message["author"]["id"] != BOT:
            raise FakeDiscordRefusal(403, 50005, "Cannot edit a message authored by another user")
        if "components" in body:
            message["components"] = checked_components(body)
        message |= {"content": checked(body), "edited_timestamp": self._discord.now().isoformat()}
        message.setdefault("was", []).append(message["content"])
        self._discord.tell("MESSAGE_UPDATE", channel, message)
        return message

    def _start_thread(self, channel: str, ident: str, body: dict[str, Any]) -> dict[str, Any]:
        self._message(channel, ident)
        self._need(channel, "create_public_threads")
        if not 1 <= len(str(body["name"])) <= _LONGEST_THREAD_NAME:
            raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
        if ident in self._discord.channels:
            raise FakeDiscordRefusal(400, 160004, "A thread has already been created for this message")
        self._discord.open_thread(channel, body["name"], ident=ident, owner=BOT)
        return self._discord.channels[ident]


async def _body(request: web.Request) -> dict[str, Any]:
    """Read JSON, or a form with `payload_json` and files."""
    if request.content_type != "multipart/form-data":
        found = json.loads(await request.read() or b"{}")
        return found if isinstance(found, dict) else {"list": found}
    body: dict[str, Any] = {}
    files: list[tuple[str, bytes]] = []
    reader = await request.multipart()
    while (field := await reader.next()) is not None:
        data = await field.read()  # type: ignore[union-attr]
        if field.name == "payload_json":  # type: ignore[union-attr]
            body = json.loads(data)
        else:
            files.append((str(field.filename), bytes(data)))  # type: ignore[union-attr]
    return body | {"files": files}


def _abort(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def _headers(refusal: FakeDiscordRefusal) -> dict[str, str]:
    if refusal.status != 429:
        return {}
    headers = {"Retry-After": str(refusal.body.get("retry_after", 1))}
    return headers if refusal.body["code"] == -1 else headers | {"Via": "1.1 google"}


def _json(body: Any, status: int, headers: dict[str, str]) -> web.Response:
    # Discord names no charset, and discord.py reads JSON only then.
    return web.Response(
        body=json.dumps(body).encode(), status=status, headers={**headers, "Content-Type": "application/json"}
    )


def _refuse_as_told(what: str) -> None:
    if what[:1].isdigit():
        status, _, code = what.partition(" ")
        raise FakeDiscordRefusal(int(status), int(code or 0))
