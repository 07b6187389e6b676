"""The connection to Discord's gateway: kept up, listened to, and every chat read after a gap."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import discord
import structlog

from channels.discord.event_sequencer import EventSequencer, SequencedEvent, SequencedEventKind, unordered_key
from channels.discord.gateway_client import DiscordGatewayClient
from channels.discord.inbound import DiscordInbound
from channels.discord.read_cursors import DiscordReadCursors
from channels.discord.setup import is_discord, not_discord
from gateway.errors import LoginRefused, OutcomeUnknown, ParlourError, SettingsError, StoreUnavailable, UserError

log = structlog.get_logger(__name__)

_SAVE_EVERY = 5.0  # seconds between two savings of what moved
_ACCOUNT_EVERY = 60.0
_PAUSES = (1.0, 120.0)  # between two connections: each costs one of the 1,000 IDENTIFYs of a day
_CALM_AFTER = 300.0  # a connection that held so long was a good one
_CLOSE_WITHIN = 5.0
_BAD_TOKEN = 4004
_HELLO = 1_000  # characters; a hello is short
_OF_A_GUILD = ("id", "name", "joined_at")
_HAPPENINGS = {
    "MESSAGE_CREATE": SequencedEventKind.SAID,
    "MESSAGE_UPDATE": SequencedEventKind.EDITED,
    "MESSAGE_DELETE": SequencedEventKind.DELETED,
    "MESSAGE_DELETE_BULK": SequencedEventKind.DELETED,
    "INTERACTION_CREATE": SequencedEventKind.USED,
}
_REFUSALS = {
    "token": "Discord refuses the token; make a new one in the developer portal (Bot, Reset Token) and set `token`",
    "intent": (
        "Discord refuses to show messages; switch on Message Content Intent in the developer portal"
        " (Bot, Privileged Gateway Intents)"
    ),
}


def credentials_message(name: str, what: str) -> UserError:
    """Return what is wrong with the block *name*, and how to mend it."""
    kind = LoginRefused if what == "token" else UserError
    return kind(f"channels.{name}: {_REFUSALS[what]}")


def not_let_in(name: str, api_url: str, error: Exception) -> ParlourError:
    """Return what a failed login means: Discord refuses the token, or something else answers at the address."""
    answer = error.__cause__ if isinstance(error, discord.LoginFailure) else None
    if isinstance(answer, discord.HTTPException) and "unauthorized" in answer.text.lower():
        return credentials_message(name, "token")
    if is_discord(api_url):  # a proxy's page, say
        return OutcomeUnknown("what answers the login is not Discord")
    return SettingsError(f"channels.{name}: {not_discord(api_url)}")


class DiscordGateway:
    """One block's ear. `run` uses a new client object for each try: the library ends on odd frames."""

    def __init__(
        self,
        name: str,
        inbound: DiscordInbound,
        marks: DiscordReadCursors,
        *,
        make: Callable[..., DiscordGatewayClient],
        now: Callable[[], datetime],
        on_ready: Callable[[Sequence[str]], None],
    ) -> None:
        self._name = name
        self._on_ready = on_ready
        self._awaited: set[str] = set()  # guilds of this session that have not come yet
        self._inbound = inbound
        self._marks = marks
        self._make = make
        self._now = now
        self._gates: EventSequencer | None = None
        self._connected = False
        self._heard_at = (0.0, now())  # the last frame: the loop's time, and the wall's
        self._interval = 41.25  # seconds between heartbeats, as Discord's hello last said

    def is_ready(self) -> bool:
        """Say whether Discord was heard within twice its heartbeat."""
        silence = asyncio.get_running_loop().time() - self._heard_at[0]
        return self._connected and silence < 2 * self._interval

    async def run(self, token: str) -> None:
        """Listen until cancelled. Raises UserError when Discord refuses us, and what kept a first connection away."""
        failure: Exception | None = None
        try:
            await self._marks.open()
            async with asyncio.TaskGroup() as tasks:
                self._gates = EventSequencer(self._inbound, tasks, name=self._name)
                keeping = tasks.create_task(self._keep_marks(), name=f"{self._name} marks")
                failure = await self._stay_connected(token)
                keeping.cancel()
        finally:
            self._connected, self._gates, self._inbound.client = False, None, None
            with suppress(StoreUnavailable):
                await self._inbound.save()
        if failure is not None:
            raise failure

    async def _stay_connected(self, token: str) -> Exception | None:
        """Connect again and again; return what makes that pointless."""
        loop, pause = asyncio.get_running_loop(), _PAUSES[0]
        was_connected = False
        while True:
            began = loop.time()
            client = self._make(tell=self._tell, heard=self._hear)
            failure: Exception | None = None
            self._inbound.client = client
            try:
                await client.start(token)
            except discord.LoginFailure:
                return credentials_message(self._name, "token")
            except discord.PrivilegedIntentsRequired:
                return credentials_message(self._name, "intent")
            except discord.ConnectionClosed as error:
                if error.code == _BAD_TOKEN:
                    return credentials_message(self._name, "token")
                failure = error
            except Exception as error:  # noqa: BLE001 - the channel boundary: the library ends on what it does not expect
                failure = error
            finally:
                was_connected = was_connected or self._connected
                self._connected = False
                await _close(client)
            if not was_connected:
                return failure
            log.warning("discord.disconnected", channel=self._name, error=type(failure).__name__, seconds=pause)
            pause = _PAUSES[0] if loop.time() - began > _CALM_AFTER else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    def _hear(self, frame: str) -> None:
        self._heard_at = (asyncio.get_running_loop().time(), self._now())
        if len(frame) < _HELLO and '"heartbeat_interval"' in frame:
            with suppress(ValueError, KeyError, TypeError):
                self._interval = float(json.loads(frame)["d"]["heartbeat_interval"]) / 1000

    def _tell(self, name: str, data: Mapping[str, Any]) -> None:
        """Take an event of the gateway. Called by the library, in order; must neither wait nor raise."""
        gates = self._gates
        if gates is None:
            return
        try:
            self._sort(gates, name, data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._put_odd(gates, {"t": name, "d": data, "error": type(error).__name__})

    @staticmethod
    def _put_odd(gates: EventSequencer, seen: Mapping[str, Any]) -> None:
        """Have an event set aside that nobody can read: it names neither its chat nor itself."""
        digest = hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()[:24]
        gates.put(unordered_key(), SequencedEvent(happening=SequencedEventKind.ODD, ident=digest, payload=seen))

    def _sort(self, gates: EventSequencer, name: str, data: Mapping[str, Any]) -> None:
        match name:
            case "READY":
                self._connected = True
                gates.begin_session()
                for chat in self._marks.direct:
                    gates.put(chat)
                guilds = [str(guild["id"]) for guild in data["guilds"]]
                self._awaited = set(guilds)
                self._put_place(gates, SequencedEventKind.LISTED, data["session_id"], {"guilds": guilds})
                self._on_ready(guilds)
                log.info("discord.ready", channel=self._name, guilds=len(guilds))
            case "DISCONNECTED":
                self._connected = False
            case "RESUMED":
                self._connected = True
            case "GUILD_CREATE":
                self._put_place(
                    gates, SequencedEventKind.CAME, str(data["id"]), {each: data.get(each) for each in _OF_A_GUILD}
                )
                self._look_for_news(gates, data)
            case "GUILD_DELETE" if not data.get("unavailable"):  # or else it is only out of order
                self._put_place(gates, SequencedEventKind.LEFT, str(data["id"]), {"id": data["id"]})
            case "ODD":
                self._put_odd(gates, data)
            case _ if name in _HAPPENINGS:
                for ident in data["ids"] if name == "MESSAGE_DELETE_BULK" else [data["id"]]:
                    event = SequencedEvent(happening=_HAPPENINGS[name], ident=str(int(ident)), payload=data)
                    chat = str(int(data["channel_id"]))
                    # A command is to be confirmed within three seconds, whatever is being read back.
                    gates.put(unordered_key(chat) if event.happening is SequencedEventKind.USED else chat, event)

    def _put_place(
        self, gates: EventSequencer, happening: SequencedEventKind, ident: str, said: Mapping[str, Any]
    ) -> None:
        """Have the house told of servers, in order; of their channels and people it need not know."""
        payload = {**said, "at": self._now().isoformat()}
        gates.put(unordered_key("guilds"), SequencedEvent(happening=happening, ident=ident, payload=payload))

    def _look_for_news(self, gates: EventSequencer, guild: Mapping[str, Any]) -> None:
        """Read the chats of a guild in which something was said since their marks, and those used of late."""
        for channel in [*(guild.get("channels") or ()), *(guild.get("threads") or ())]:
            chat, newest = str(channel["id"]), channel.get("last_message_id")
            if newest is None or (self._marks.covers(chat, int(newest)) and not self._marks.is_in_use(chat)):
                gates.is_known(chat)
            else:
                gates.put(chat)
        # Threads that were archived meanwhile stand in no guild's list.
        self._awaited.discard(str(guild.get("id")))
        if not self._awaited:
            for chat in self._marks.used:
                gates.put(chat)

    async def _keep_marks(self) -> None:
        """Save what moved, now and then. The account's mark moves only while nothing waits."""
        saved_at = -_ACCOUNT_EVERY
        while True:
            await asyncio.sleep(_SAVE_EVERY)
            now = asyncio.get_running_loop().time()
            try:
                await self._inbound.save()
                is_clear = self.is_ready() and self._gates is not None and self._gates.is_idle
                if is_clear and now - saved_at >= _ACCOUNT_EVERY:
                    await self._marks.save_account(self._heard_at[1])
                    saved_at = now
            except StoreUnavailable as error:
                log.warning("discord.marks_wait", channel=self._name, reason=str(error))


async def _close(client: discord.Client) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_WITHIN):
            await client.close()
