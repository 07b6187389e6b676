"""discord.py at the configured addresses, with raw event payloads.

Raw payloads are parsed like the history over REST, and a malformed one cannot end the library's receive loop. Nothing
here is global: two channels can use two servers.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import aiohttp
import discord
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Ratelimit, Route
from discord.state import ConnectionState
from yarl import URL

from channels.discord.parse import DiscordBotIdentity, DiscordChat
from channels.discord.shards import BotShard, IdentifyLimit
from gateway.errors import SendRefused
from gateway.net.connector import connector

OnEvent = Callable[[str, Mapping[str, Any]], None]  # takes an event's name and payload; must not raise

INTENTS = discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True)
_RESUMABLE_FOR = timedelta(minutes=5)  # Discord says no time; one that it forgot costs more than it saves
# After 1000 Discord ends the session (docs.discord.com/developers/events/gateway, Initiating a Disconnect).
_GOING_ON = 4000
ODD = "ODD"  # the name of an event that the library could not parse
_ESSENTIAL = frozenset({"READY", "RESUMED"})  # without these there is no session, so the connection is restarted
_PASSED = _ESSENTIAL | {"GUILD_CREATE", "GUILD_DELETE"}  # which the library takes in first
_RAW = frozenset(
    {"MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE", "MESSAGE_DELETE_BULK", "INTERACTION_CREATE"}
)  # which it does not see


@dataclass(frozen=True, slots=True)
class ResumableSession:
    """A session with Discord that any process may go on with: events after *sequence* are sent to it again.

    Discord keeps one for some minutes after its connection broke. In place of another, one begins after five seconds.
    """

    id: str
    sequence: int
    url: str  # where Discord wants the resume
    intents: int = INTENTS.value  # another version may ask for others, which only a new session gets

    @classmethod
    def from_note(cls, note: str, now: datetime) -> ResumableSession | None:
        """Return the session of a note of `to_note`; None if this version cannot go on with it, or it is too old."""
        try:
            at, fields = json.loads(note)
            is_recent, session = now - datetime.fromisoformat(at) < _RESUMABLE_FOR, cls(**fields)
        except (TypeError, ValueError):
            return None
        return session if is_recent and session.intents == INTENTS.value else None

    def to_note(self, at: datetime) -> str:
        """Return the session, which was there *at* that time, as JSON."""
        return json.dumps([at.isoformat(), asdict(self)])

    @property
    def is_at_discord(self) -> bool:
        """True if the address is Discord's; the token is sent there."""
        url = URL(self.url)
        return url.scheme == "wss" and (url.host or "").endswith(".discord.gg")


class DiscordHttpClient(HTTPClient):
    """The library's REST client, at the addresses of one channel."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, api_url: str, gateway_url: str, proxy: str) -> None:
        super().__init__(loop, max_ratelimit_timeout=LONGEST_INLINE)
        self._proxy = proxy
        self._api_url = api_url.rstrip("/")
        self._gateway_url = URL(gateway_url)
        self.resumes: ResumableSession | None = None  # with the first connection

    async def static_login(self, token: str) -> Any:
        """Log in over the configured proxy; the library closes the connections."""
        self.connector = connector(self._proxy, limit=0)  # no limit, as the library has it
        return await super().static_login(token)

    def get_ratelimit(self, key: str) -> Ratelimit:
        """Return the bucket called *key*; a new one is a RateLimitBucket."""
        if key not in self._buckets:
            self._try_clear_expired_ratelimits()
            self._buckets[key] = RateLimitBucket()
        return self._buckets[key]

    async def request(self, route: Route, **kwargs: Any) -> Any:
        """Send a request to the configured API."""
        if route.url.startswith(Route.BASE):
            route.url = self._api_url + route.url[len(Route.BASE) :]
        return await super().request(route, **kwargs)

    async def ws_connect(self, url: str, *, compress: int = 0) -> Any:
        """Connect to the configured gateway; Discord's own address for a resume is used only at Discord itself."""
        if self._gateway_url != DiscordWebSocket.DEFAULT_GATEWAY:
            url = str(self._gateway_url.with_query(URL(url).query))
        elif self.resumes is not None and self.resumes.is_at_discord:
            url = str(URL(self.resumes.url).with_query(URL(url).query))
        self.resumes = None
        return await super().ws_connect(url, compress=compress)


class RawEventState(ConnectionState["DiscordGatewayClient"]):
    """The library's state, which passes message events on as raw payloads."""

    on_event: OnEvent
    resumes: ResumableSession | None = None  # with the first connection
    guild_changes: Counter[str]  # events of each guild; of one that is not known the library drops them

    def _update_references(self, ws: DiscordWebSocket) -> None:
        """Have the first connection go on with the session of another client: the library begins with a new one."""
        super()._update_references(ws)
        session, self.resumes = self.resumes, None
        if session is not None:
            ws.session_id, ws.sequence = session.id, session.sequence
            ws.identify = ws.resume  # type: ignore[method-assign]

    def guard(self) -> None:
        """Pass events on, and make the library skip one that it cannot parse, which is passed on as ODD."""
        self.guild_changes = Counter()
        for name, parse in self.parsers.items():
            self.parsers[name] = self._guarded(name, parse)

    def _guarded(self, name: str, parse: Callable[[Any], None]) -> Callable[[Any], None]:
        if name in _RAW:
            parse = partial(self.on_event, name)
        elif name in _PASSED:
            parse = partial(self._parse_and_pass, name, parse)
        return parse if name in _ESSENTIAL else partial(self._parse, name, parse)

    def _parse(self, name: str, parse: Callable[[Any], None], data: Any) -> None:
        try:
            if name.startswith(("GUILD_", "CHANNEL_", "THREAD_")):
                self.guild_changes[str(data.get("guild_id") or data.get("id"))] += 1
            parse(data)
        except Exception as error:  # noqa: BLE001 - the channel boundary: whatever the library trips over
            self.on_event(ODD, {"t": name, "d": data, "error": type(error).__name__})

    def _parse_and_pass(self, name: str, parse: Callable[[Any], None], data: Any) -> None:
        try:
            parse(data)
        except Exception:
            if name == "GUILD_CREATE":  # chats that the library failed to load are fetched one by one
                self.on_event(name, data)
            raise
        self.on_event(name, data)


class DiscordGatewayClient(discord.Client):
    """One connection to Discord; each attempt needs a new object."""

    def __init__(
        self,
        *,
        api_url: str,
        gateway_url: str,
        proxy: str = "",
        on_event: OnEvent = lambda _name, _data: None,
        on_frame: Callable[[str], None] = lambda _frame: None,
        shard: BotShard = BotShard(),  # noqa: B008 - immutable
        identify_limit: IdentifyLimit | None = None,
        resumes: ResumableSession | None = None,
    ) -> None:
        """Connect as *shard*, and go on with the session *resumes*.

        Without one the *identify_limit*, which the shards of a bot share, is waited for before `start`.
        """
        self._http = partial(DiscordHttpClient, api_url=api_url, gateway_url=gateway_url, proxy=proxy)
        self._on_event = on_event
        self._on_frame = on_frame
        self._identify_limit = identify_limit or IdentifyLimit()
        self._resumes = resumes
        self._odd_guilds: set[str] = set()  # which cannot be read; each is tried once
        super().__init__(
            intents=INTENTS,
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            enable_debug_events=True,
            shard_id=shard.number,
            shard_count=shard.total,
        )

    def _get_state(self, **options: Any) -> ConnectionState[DiscordGatewayClient]:
        """Install the REST client and state of this module before the library uses its own."""
        self.http = self._http(self.loop)
        state = RawEventState(
            dispatch=self.dispatch, handlers=self._handlers, hooks=self._hooks, http=self.http, **options
        )
        state.on_event = self._on_event
        state.resumes = self.http.resumes = self._resumes
        state.guard()
        return state

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Report each received frame; pass everything else to the library."""
        if event == "socket_raw_receive":
            self._on_frame(args[0])
        elif event == "disconnect":
            self._on_event("DISCONNECTED", {})
        elif event != "socket_raw_send":
            super().dispatch(event, *args, **kwargs)

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Wait between two IDENTIFYs, as Discord demands; the first was waited for before the connection."""
        if initial:
            await self._identify_limit.begin(shard_id or 0)
        else:
            await self._identify_limit.wait(shard_id or 0, is_repeated=True)

    @property
    def session(self) -> ResumableSession | None:
        """The session as far as its events were passed on; None without one."""
        ws = self.ws
        if ws is None or not ws.session_id or ws.sequence is None:
            return None
        return ResumableSession(ws.session_id, ws.sequence, str(ws.gateway))

    async def leave(self) -> None:
        """Close the connection so that another client may resume the session."""
        if self.ws is not None:
            await self.ws.close(_GOING_ON)
        await self.close()

    # Facts about guilds.

    async def load_guild(self, guild: str, read: Callable[[str], Awaitable[Mapping[str, Any]]]) -> None:
        """Have the client know *guild*, by *read* unless Discord announced it, as it does not in a resumed session.

        It is read again if it changed while it was read. A guild that cannot be read stays unknown. Raises SendFailed.
        """
        state: Any = self._connection
        while guild and guild not in self._odd_guilds and self._known_guild(guild) is None:
            changes, found = state.guild_changes[guild], dict[str, Any]()
            with suppress(SendRefused):
                found.update(await read(guild))
            if state.guild_changes[guild] == changes and self._known_guild(guild) is None:
                with suppress(KeyError, TypeError, ValueError, AttributeError):  # the library expects many fields
                    self.add_guild(found)
                if self._known_guild(guild) is None:
                    self._odd_guilds.add(guild)

    def _known_guild(self, guild: str) -> discord.Guild | None:
        """Return a guild that was announced or read; a session begins with the ids of its guilds alone."""
        found = self.get_guild(int(guild))
        return found if found is not None and found.get_role(found.id) is not None else None

    def add_guild(self, guild: Mapping[str, Any]) -> None:
        """Add a guild that was read over REST, with its channels, threads and our member, or replace it."""
        self._connection._add_guild_from_data(guild)  # type: ignore[arg-type]  # a complete payload  # noqa: SLF001 - the library has no public way

    def chat(self, chat: str) -> DiscordChat | None:
        """Return the facts about a channel or an active thread; None if no guild of the bot has it."""
        channel = self.get_channel(int(chat))
        if isinstance(channel, discord.Thread):
            guild, parent = str(channel.guild.id), str(channel.parent_id)
            return DiscordChat(id=chat, guild=guild, parent=parent, is_private=channel.is_private())
        if isinstance(channel, discord.abc.GuildChannel):
            has_threads = isinstance(channel, discord.TextChannel)
            return DiscordChat(id=chat, guild=str(channel.guild.id), has_threads=has_threads)
        return None

    def may(self, chat: str, right: str) -> bool:
        """Return True if the bot has a permission (by its library name) in a chat, or if the chat is unknown."""
        channel = self.get_channel(int(chat))
        if isinstance(channel, discord.abc.GuildChannel | discord.Thread) and channel.guild.me is not None:
            try:
                return bool(getattr(channel.permissions_for(channel.guild.me), right))
            except discord.ClientException:  # a thread with an unknown parent
                return True
        return True

    def file_limit(self, chat: str) -> int:
        """Return the size limit of files in a chat, in bytes."""
        channel = self.get_channel(int(chat))
        if isinstance(channel, discord.abc.GuildChannel | discord.Thread):
            return channel.guild.filesize_limit
        return discord.utils.DEFAULT_FILE_SIZE_LIMIT_BYTES

    def bot_member(self, guild_id: str) -> DiscordBotIdentity:
        """Return the bot's identity in a guild; "" means in direct messages."""
        user = self.user
        if user is None:
            return DiscordBotIdentity(id="")
        guild = self.get_guild(int(guild_id)) if guild_id else None
        role = guild.self_role if guild else None
        roles = frozenset({str(role.id)} if role else ())
        return DiscordBotIdentity(id=str(user.id), name=user.name, roles=roles, name_of=partial(self._name_of, guild))

    def _name_of(self, guild: discord.Guild | None, ident: str) -> str:
        """Return the name of a role of *guild* or of a channel; "" for an unknown one."""
        if not ident:
            return ""
        found = (guild.get_role(int(ident)) if guild else None) or self.get_channel(int(ident))
        return str(getattr(found, "name", ""))

    def may_decide(self, guild_id: str, chat: str, user_id: str, roles: tuple[str, ...]) -> bool:
        """Return True if a user with these *roles* is currently an admin in a chat.

        Admins are the guild's owner, users with Administrator or Manage Server, and in a channel and its threads users
        with Manage Channels there after overwrites. An unknown guild has no admins.
        """
        guild = self._known_guild(guild_id)
        if guild is None:
            return False
        held = [role for role in (guild.get_role(int(each)) for each in roles) if role is not None]
        rights = discord.Permissions(guild.default_role.permissions.value)
        for role in held:
            rights.value |= role.permissions.value
        if guild.owner_id == int(user_id) or rights.administrator or rights.manage_guild:
            return True
        channel = guild.get_channel_or_thread(int(chat))
        if isinstance(channel, discord.Thread):
            channel = channel.parent
        return channel is not None and _has_manage_channels(rights, channel, guild.default_role, held, int(user_id))


def _has_manage_channels(
    rights: discord.Permissions,
    channel: discord.abc.GuildChannel,
    everyone: discord.Role,
    roles: list[discord.Role],
    user: int,
) -> bool:
    """Return True if *rights* in *channel* include Manage Channels (docs.discord.com/developers/topics/permissions).

    Overwrites apply for everyone, then for all roles together, then for the user; in each a grant beats a denial.
    """
    may = rights.manage_channels
    overwrites_of = [[channel.overwrites_for(everyone)], [channel.overwrites_for(role) for role in roles]]
    for overwrites in (*overwrites_of, [channel.overwrites_for(discord.Object(user, type=discord.Member))]):
        values = {each.manage_channels for each in overwrites}
        may = True if True in values else False if False in values else may
    return bool(may)


LONGEST_INLINE = 30.0  # seconds that a request waits by itself; a longer wait is discord.RateLimited
# Discord has named windows of more than a day. Asking again every 15 minutes costs 96 requests a day, against
# the 10,000 refused ones in ten minutes that it bans for.
LONGEST_WINDOW = timedelta(minutes=15)


class RateLimitBucket(Ratelimit):
    """One bucket of the library's REST client.

    discord.py's own bucket refuses a request whenever more than the inline wait is left of the window, however many
    requests are left in it, and keeps the request that empties the bucket waiting for the next window.
    """

    __slots__ = ("_changed",)

    def __init__(self) -> None:
        super().__init__(LONGEST_INLINE)
        self._changed = asyncio.Event()

    def update(self, response: aiohttp.ClientResponse, *, use_clock: bool = False) -> None:
        """Take over what *response* says of the bucket; no window is trusted for more than LONGEST_WINDOW."""
        super().update(response, use_clock=use_clock)
        self.limit = max(self.limit, 1)
        self.reset_after = min(self.reset_after, LONGEST_WINDOW.total_seconds())
        self.expires = self._loop.time() + self.reset_after

    def reset(self) -> None:
        """Forget the window: of the next one nothing is known but its size."""
        self.remaining = self.limit - self.outgoing
        self.expires = None
        self.reset_after = 0.0
        self.dirty = False

    async def acquire(self) -> None:
        """Take one request; wait for it up to LONGEST_INLINE. Raises discord.RateLimited when that is too short."""
        self._last_request = self._loop.time()
        while self._is_empty():
            # Before the first answer nothing is known of the bucket: one request is on its way to find out.
            left = None if self.expires is None else self.expires - self._loop.time()
            if left is not None and left > LONGEST_INLINE:
                raise discord.RateLimited(left)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
        self.remaining -= 1
        self.outgoing += 1

    def _is_empty(self) -> bool:
        if self.is_expired():
            self.reset()
        return self.remaining <= 0

    async def __aexit__(self, *_: object) -> None:
        """Give the request back, and let those that wait look at what is left."""
        self.outgoing -= 1
        if self.expires is None and self.remaining <= 0:
            self.reset()  # no answer, or one without the headers of a bucket
        self._changed.set()
