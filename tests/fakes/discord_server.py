"""A small Discord: what people write in servers, threads and direct messages, and what they see.

The bot's REST is discord_rest.py, the gateway discord_gateway.py, files discord_cdn.py, native commands
discord_interactions.py. Faults are switched on one request at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from aiohttp import web

from tests.fakes.conditions import wait_for_news
from tests.fakes.discord_cdn import DiscordCdn
from tests.fakes.discord_gateway import DiscordGatewayServer
from tests.fakes.discord_interactions import FakeInteractions
from tests.fakes.discord_records import (
    ADMIN_ROLE,
    ANN,
    BEN,
    BOT,
    BOT_ROLE,
    EPOCH,
    EVA,
    GENERAL,
    GUILD,
    LOBBY,
    OTHER_GUILD,
    RANDOM,
    RIGHTS,
    TEAM_ROLE,
    TOKEN,
    DiscordFault,
    DiscordRequest,
    guild,
    role,
)
from tests.fakes.discord_rest import DiscordRest
from tests.fakes.loopback import serve_app

CONTENT_INTENT, CONTENT_INTENT_LIMITED = 1 << 18, 1 << 19  # flags of the application


@dataclass
class DiscordServer:
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
    granted: dict[str, int] = field(default_factory=lambda: {TEAM_ROLE: 0, ADMIN_ROLE: 1 << 5})  # rights of roles
    owner: str = "1"
    closed: set[str] = field(default_factory=set)  # channels the bot may not see any more
    denied: set[str] = field(default_factory=set)  # rights (RIGHTS) that the bot lacks in the server
    has_joined: bool = True  # the bot is in the server
    has_other: bool = False  # it is in OTHER_GUILD too, whose channel is LOBBY
    recommended_shards: int = 1
    max_concurrency: int = 1
    identifies_left: int = 1_000  # of the day
    application_flags: int = CONTENT_INTENT_LIMITED
    interactions_url: str | None = None  # where interactions are posted, instead of over the gateway
    on_request: Callable[[str, str, str], bool] = lambda _when, _method, _kind: False  # True = the line is cut
    faults: list[DiscordFault] = field(default_factory=list)
    requests: list[DiscordRequest] = field(default_factory=list)
    typing: list[tuple[str, float]] = field(default_factory=list)  # where, and when by the loop's clock
    reactions: list[tuple[str, str, bool]] = field(default_factory=list)  # message, emoji, added
    gateway: DiscordGatewayServer = field(init=False)
    cdn: DiscordCdn = field(init=False)
    rest: DiscordRest = field(init=False)
    token: str = TOKEN
    _serial: Any = field(default_factory=count)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _sending: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.gateway, self.cdn, self.rest = DiscordGatewayServer(self), DiscordCdn(self), DiscordRest(self)
        for ident, name in ((BOT, "Parlour"), (ANN, "ann"), (BEN, "ben"), (EVA, "eva")):
            self.users[ident] = {"id": ident, "username": name, "discriminator": "0", "global_name": name.title()}
            self.users[ident] |= {"avatar": None, "bot": True} if ident == BOT else {"avatar": None}
            self.members[ident] = {"roles": [BOT_ROLE] if ident == BOT else [], "nick": None}
        for ident, name in ((GENERAL, "general"), (RANDOM, "random")):
            self.add_channel(ident, name)
        if self.has_other:
            self.add_channel(LOBBY, "lobby", guild_id=OTHER_GUILD)

    # What people do.

    def settings(self, **block: str) -> dict[str, str]:
        """Return the environment of a gateway whose Discord this is; *block* has further settings of the channel."""
        fields = {
            "TOKEN": self.token,
            "API_URL": f"http://{self.base}/api/v10",
            "GATEWAY_URL": f"ws://{self.base}/gateway",
            **block,
        }
        return {f"PARLOUR_CHANNELS__DISCORD__{name}": value for name, value in fields.items()}

    def add_channel(self, ident: str, name: str, kind: int = 0, **fields: Any) -> str:
        """Add a channel or a thread to the server."""
        self.channels[ident] = {
            "id": ident, "type": kind, "guild_id": GUILD, "name": name, "parent_id": None, "position": 0,
            "permission_overwrites": [], "nsfw": False, "topic": None, "rate_limit_per_user": 0,
            "last_message_id": None, **fields,
        }  # fmt: skip
        self.messages[ident] = []
        return ident

    def open_thread(
        self,
        parent: str,
        name: str,
        *,
        private: bool = False,
        archived: bool = False,
        ident: str = "",
        owner: str = ANN,
    ) -> str:
        """Begin a thread, from the message *ident* if given; the gateway tells who may see it."""
        ident = ident or self.snowflake()
        now = self.now().isoformat()
        meta = {"archived": archived, "auto_archive_duration": 1440, "archive_timestamp": now, "locked": False}
        self.add_channel(
            ident, name, 12 if private else 11, parent_id=parent, owner_id=owner, message_count=0, member_count=1,
            thread_metadata=meta,
        )  # fmt: skip
        start = next((each for each in self.messages.get(parent, ()) if each["id"] == ident), None)
        if start is not None:  # then a system message in the thread points at it
            self.store(ident, self.write(ident, start["author"]["id"], "", type=21))
        if not archived:
            self.gateway.dispatch("THREAD_CREATE", self.channels[ident], guild=True)
        return ident

    def open_forum_post(self, forum: str, name: str, user: str, text: str) -> str:
        """Begin a forum post: a thread whose first message has the thread's id."""
        ident = self.open_thread(forum, name)
        self.say(ident, user, text, id=ident)
        return ident

    def grant(self, ident: str, rights: int | None) -> None:
        """Change what a role may; None deletes it."""
        if rights is None:
            del self.granted[ident]
            self.gateway.dispatch("GUILD_ROLE_DELETE", {"guild_id": GUILD, "role_id": ident}, guild=True)
        else:
            self.granted[ident] = rights
            self.gateway.dispatch("GUILD_ROLE_UPDATE", {"guild_id": GUILD, "role": role(ident, rights)}, guild=True)

    def overwrite(self, channel: str, ident: str, *, allow: int = 0, deny: int = 0, is_member: bool = False) -> None:
        """Grant or refuse a role or a person something in one channel."""
        said = {"id": ident, "type": int(is_member), "allow": str(allow), "deny": str(deny)}
        kept = [each for each in self.channels[channel]["permission_overwrites"] if each["id"] != ident]
        self.channels[channel]["permission_overwrites"] = [*kept, said]
        self.gateway.dispatch("CHANNEL_UPDATE", self.channels[channel], guild=True)

    def join_server(self, *, is_in: bool) -> None:
        """Let somebody add the bot to the server, or put it out."""
        self.has_joined = is_in
        if is_in:
            self.gateway.dispatch("GUILD_CREATE", self.guilds()[0], guild=True)
        else:
            self.gateway.dispatch("GUILD_DELETE", {"id": GUILD}, guild=True)

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
        message = self.write(channel, user, text, **fields)
        self.store(channel, message)
        return str(message["id"])

    def repeat(self, ident: str) -> None:
        """Deliver the same MESSAGE_CREATE once more."""
        channel, message = self.find(ident)
        self.tell("MESSAGE_CREATE", channel, message)

    def edit(self, ident: str, text: str) -> None:
        """Let the author edit a message."""
        channel, message = self.find(ident)
        message |= {"content": text, "edited_timestamp": self.now().isoformat(), **self._mentions(text)}
        self.tell("MESSAGE_UPDATE", channel, message)

    def resolve_embed(self, ident: str) -> None:
        """Let a link's preview resolve: an update that is no edit."""
        channel, message = self.find(ident)
        message["embeds"] = [{"type": "link", "url": "https://example.com"}]
        self.tell("MESSAGE_UPDATE", channel, message)

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

    @property
    def interactions(self) -> FakeInteractions:
        """Commands and buttons."""
        return self.rest.interactions

    @property
    def me(self) -> dict[str, Any]:
        """The bot."""
        return self.users[BOT]

    def guilds(self) -> list[dict[str, Any]]:
        """Return the servers as GUILD_CREATE tells them."""
        rights = sum(right for name, right in RIGHTS.items() if name not in self.denied)
        found = []
        for ident in [GUILD] * self.has_joined + [OTHER_GUILD] * self.has_other:
            shown = [each for each in self.channels.values() if each.get("guild_id") == ident]
            shown = [each for each in shown if each["id"] not in self.closed]
            me = {"user": self.users[BOT], **self.members[BOT]}
            found.append(guild(rights, shown, me, self.granted, self.owner, ident))
        return found

    def wake(self) -> None:
        """Have what was dispatched sent soon."""
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self.gateway.settle(), name="discord dispatch")

    async def until(self, holds: Callable[[], Any]) -> None:
        """Return when *holds* holds; it is looked at after every change here."""
        while not holds():
            await wait_for_news(self._changed)

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
        self.faults.extend(DiscordFault(method, kind, what, seconds) for _ in range(times))

    def now(self) -> datetime:
        """Return the platform's time."""
        return datetime.now(UTC) + self.skew

    def snowflake(self) -> str:
        """Return a fresh id."""
        milliseconds = int((self.now() - EPOCH) / timedelta(milliseconds=1))
        return str((milliseconds << 22) + next(self._serial) % (1 << 22))

    # Messages.

    def write(self, channel: str, user: str, text: str, **fields: Any) -> dict[str, Any]:
        """Return a message object that stands nowhere yet."""
        ident = self.snowflake()
        message = {
            "id": ident, "type": 0, "channel_id": channel, "author": self.users[user], "content": text,
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

    def store(self, channel: str, message: dict[str, Any]) -> None:
        """Put a message into its channel and tell it."""
        self.messages[channel].append(message)
        self.channels[channel]["last_message_id"] = message["id"]
        self.tell("MESSAGE_CREATE", channel, message)
        self.change()

    def _guild_of(self, channel: str) -> dict[str, Any]:
        guild = self.channels[channel].get("guild_id")
        return {"guild_id": guild} if guild else {}

    def tell(self, name: str, channel: str, message: dict[str, Any]) -> None:
        """Dispatch an event about a message."""
        if channel in self.closed:
            return
        place = self._guild_of(channel)
        author = message["author"]["id"]
        member = {"member": self.members[author]} if place and author in self.members else {}
        self.gateway.dispatch(name, {**message, **place, **member}, guild=bool(place))


@asynccontextmanager
async def open_discord(discord: DiscordServer | None = None, *, port: int = 0) -> AsyncIterator[DiscordServer]:
    """Serve the platform on loopback until the block ends."""
    discord = discord or DiscordServer()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/gateway", discord.gateway.serve)
    app.router.add_get("/attachments/1/{ident}/{name}", discord.cdn.serve)
    app.router.add_route("*", "/api/v10/{tail:.*}", discord.rest.handle)
    async with serve_app(app, port=port, handler_cancellation=True) as discord.base:
        yield discord
