"""discord.py, pointed at the configured addresses and listened to at its lowest level.

Message events are taken as the payloads they are: history over REST reads the same way, and a malformed one
cannot end the library's receive loop. Nothing here is global: two blocks may speak to two servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import discord
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Ratelimit, Route
from discord.state import ConnectionState
from yarl import URL

from channels.discord.codec import DiscordBotIdentity, DiscordChat
from channels.discord.ratelimit import LONGEST_INLINE, RateLimitBucket
from gateway.net.aiohttp_proxy import connector

Tell = Callable[[str, Mapping[str, Any]], None]  # an event's name and payload; must not raise

ODD = "ODD"  # what is told when the library breaks down on an event: its name and payload
_MUST_BE_READ = frozenset({"READY", "RESUMED"})  # without these there is no session: the connection is begun anew


class DiscordHttpClient(HTTPClient):
    """The library's REST client, at the addresses of one block."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, api_url: str, gateway_url: str, proxy: str) -> None:
        super().__init__(loop, max_ratelimit_timeout=LONGEST_INLINE)
        self._proxy = proxy
        self._api_url = api_url.rstrip("/")
        self._gateway_url = URL(gateway_url)

    async def static_login(self, token: str) -> Any:
        """Log in, with connections that are made our way; the library closes them."""
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
        """Connect to the configured gateway; to the address Discord names for a resume only at Discord itself."""
        if self._gateway_url != DiscordWebSocket.DEFAULT_GATEWAY:
            url = str(self._gateway_url.with_query(URL(url).query))
        return await super().ws_connect(url, compress=compress)


class RawEventState(ConnectionState["DiscordGatewayClient"]):
    """The library's state; what it would parse of messages is handed over as it came."""

    tell: Tell

    def guard(self) -> None:
        """Keep what the library cannot parse from ending it: such an event is told as odd, and passed over."""
        for name, parse in self.parsers.items():
            if name not in _MUST_BE_READ:
                self.parsers[name] = partial(self._parse, name, parse)

    def _parse(self, name: str, parse: Callable[[Any], None], data: Any) -> None:
        try:
            parse(data)
        except Exception as error:  # noqa: BLE001 - the channel boundary: whatever the library trips over
            self.tell(ODD, {"t": name, "d": data, "error": type(error).__name__})

    def parse_message_create(self, data: Any) -> None:
        """Hand over a new message."""
        self.tell("MESSAGE_CREATE", data)

    def parse_message_update(self, data: Any) -> None:
        """Hand over a changed message."""
        self.tell("MESSAGE_UPDATE", data)

    def parse_message_delete(self, data: Any) -> None:
        """Hand over a deletion."""
        self.tell("MESSAGE_DELETE", data)

    def parse_message_delete_bulk(self, data: Any) -> None:
        """Hand over many deletions."""
        self.tell("MESSAGE_DELETE_BULK", data)

    def parse_interaction_create(self, data: Any) -> None:
        """Hand over a command that was chosen, or a button that was pressed."""
        self.tell("INTERACTION_CREATE", data)

    def parse_ready(self, data: Any) -> None:
        """Begin a session that knows nothing of what came before."""
        super().parse_ready(data)
        self.tell("READY", data)

    def parse_resumed(self, data: Any) -> None:
        """Go on with a session; what was missed follows."""
        super().parse_resumed(data)
        self.tell("RESUMED", data)

    def parse_guild_create(self, data: Any) -> None:
        """Learn a guild, its channels and threads."""
        try:
            super().parse_guild_create(data)
        finally:
            self.tell("GUILD_CREATE", data)  # its chats are asked for one by one, where the library lost them

    def parse_guild_delete(self, data: Any) -> None:
        """Forget a guild that we are gone from, or that is out of order for now."""
        super().parse_guild_delete(data)
        self.tell("GUILD_DELETE", data)


class DiscordGatewayClient(discord.Client):
    """One connection to Discord; a new object for each try."""

    def __init__(
        self,
        *,
        api_url: str,
        gateway_url: str,
        proxy: str = "",
        tell: Tell = lambda _name, _data: None,
        heard: Callable[[str], None] = lambda _frame: None,
        identify_pause: float = 5.0,
    ) -> None:
        self._http = partial(DiscordHttpClient, api_url=api_url, gateway_url=gateway_url, proxy=proxy)
        self._tell = tell
        self._heard = heard
        self._identify_pause = identify_pause
        intents = discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True)
        super().__init__(
            intents=intents,
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            enable_debug_events=True,
        )

    def _get_state(self, **options: Any) -> ConnectionState[DiscordGatewayClient]:
        """Bring our REST client and our state in before anything uses the library's."""
        self.http = self._http(self.loop)
        state = RawEventState(
            dispatch=self.dispatch, handlers=self._handlers, hooks=self._hooks, http=self.http, **options
        )
        state.tell = self._tell
        state.guard()
        return state

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Note each frame as it comes; everything else goes the library's way."""
        if event == "socket_raw_receive":
            self._heard(args[0])
        elif event == "disconnect":
            self._tell("DISCONNECTED", {})
        elif event != "socket_raw_send":
            super().dispatch(event, *args, **kwargs)

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:  # noqa: ARG002 - the library's signature
        """Keep the pause that Discord asks for between two IDENTIFYs."""
        if not initial:
            await asyncio.sleep(self._identify_pause)

    # What a guild knows.

    def place(self, chat: str) -> DiscordChat | None:
        """Return where a channel or an active thread is; None when no guild of ours has it."""
        channel = self.get_channel(int(chat))
        if isinstance(channel, discord.Thread):
            guild, parent = str(channel.guild.id), str(channel.parent_id)
            return DiscordChat(id=chat, guild=guild, parent=parent, is_private=channel.is_private())
        if isinstance(channel, discord.abc.GuildChannel):
            has_threads = isinstance(channel, discord.TextChannel)
            return DiscordChat(id=chat, guild=str(channel.guild.id), has_threads=has_threads)
        return None

    def may(self, chat: str, right: str) -> bool:
        """Say whether we have a permission (its name in the library) in a chat; yes where nothing is known."""
        channel = self.get_channel(int(chat))
        if isinstance(channel, discord.abc.GuildChannel | discord.Thread) and channel.guild.me is not None:
            try:
                return bool(getattr(channel.permissions_for(channel.guild.me), right))
            except discord.ClientException:  # a thread whose parent we were not told of
                return True
        return True

    def file_limit(self, chat: str) -> int:
        """Return how many bytes a file may have in a chat."""
        channel = self.get_channel(int(chat))
        if isinstance(channel, discord.abc.GuildChannel | discord.Thread):
            return channel.guild.filesize_limit
        return discord.utils.DEFAULT_FILE_SIZE_LIMIT_BYTES

    def bot_member(self, guild_id: str) -> DiscordBotIdentity:
        """Say who we are in a guild; "" = in direct messages."""
        user = self.user
        if user is None:
            return DiscordBotIdentity(id="")
        guild = self.get_guild(int(guild_id)) if guild_id else None
        role = guild.self_role if guild else None
        return DiscordBotIdentity(id=str(user.id), name=user.name, roles=frozenset({str(role.id)} if role else ()))

    def may_decide(self, guild_id: str, chat: str, user_id: str, roles: tuple[str, ...]) -> bool:
        """Say whether somebody with these *roles* is an admin in a chat, as the guild stands now.

        That is its owner, whoever has Administrator or Manage Server, and in a channel (and its threads) whoever has
        Manage Channels there, its overwrites counted in. An unknown guild makes nobody an admin.
        """
        guild = self.get_guild(int(guild_id))
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
        return channel is not None and _overwritten(rights, channel, guild.default_role, held, int(user_id))


def _overwritten(
    rights: discord.Permissions,
    channel: discord.abc.GuildChannel,
    everyone: discord.Role,
    held: list[discord.Role],
    user: int,
) -> bool:
    """Say whether Manage Channels is left of *rights* in *channel* (docs.discord.com/developers/topics/permissions).

    A refusal and then a grant: for everyone, for all of the roles together, for the person.
    """
    may = rights.manage_channels
    said = [[channel.overwrites_for(everyone)], [channel.overwrites_for(role) for role in held]]
    for overwrites in (*said, [channel.overwrites_for(discord.Object(user, type=discord.Member))]):
        words = {each.manage_channels for each in overwrites}
        may = True if True in words else False if False in words else may
    return bool(may)
