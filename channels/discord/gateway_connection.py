"""The connection to Discord's gateway: reconnects, receives events, and reads every chat after a gap."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import discord
import structlog

from channels.discord.gateway_client import DiscordGatewayClient, ResumableSession
from channels.discord.inbound import DiscordInbound
from channels.discord.setup import is_discord, not_discord
from channels.discord.shards import (
    BotShard,
    EventSequencer,
    IdentifyLimit,
    SequencedEvent,
    SequencedEventKind,
    unordered_key,
)
from channels.kit.background import utc_now
from gateway.errors import (
    LoginRefused,
    OutcomeUnknown,
    ParlourError,
    SettingsError,
    StoreUnavailable,
    UserError,
    exponential_delay,
)

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState


log = structlog.get_logger(__name__)

_SAVE_INTERVAL = 5.0  # seconds
_ACCOUNT_INTERVAL = 60.0
_SESSION_AGE = timedelta(minutes=1)  # of its note, while nothing happens
_PAUSES = (1.0, 120.0)  # between two connections: each costs one of the 1,000 IDENTIFYs of a day
_STABLE_AFTER = 300.0  # seconds after which the pauses start over
_CLOSE_WITHIN = 5.0
# docs.discord.com/developers/topics/opcodes-and-status-codes, close codes of the gateway
_CLOSE_REASONS = {4004: "token", 4010: "shards", 4011: "shards"}
_HELLO = 1_000  # characters; a hello is short
_OF_A_GUILD = ("id", "name", "joined_at")
_EVENT_KINDS = {
    "MESSAGE_CREATE": SequencedEventKind.SAID,
    "MESSAGE_UPDATE": SequencedEventKind.EDITED,
    "MESSAGE_DELETE": SequencedEventKind.DELETED,
    "MESSAGE_DELETE_BULK": SequencedEventKind.DELETED,
    "INTERACTION_CREATE": SequencedEventKind.USED,
}
_REFUSALS = {
    "token": "Discord rejects the token; make a new one in the developer portal (Bot, Reset Token) and set `token`",
    "intent": (
        "Discord refuses to show messages; switch on Message Content Intent in the developer portal"
        " (Bot, Privileged Gateway Intents)"
    ),
    "shards": "Discord refuses the number of shards, which is too small for the bot's servers; set `shards` to auto",
}


def credentials_message(name: str, kind: str) -> UserError:
    """Return the error for a refused token, intent or number of shards of the channel *name*, with the fix."""
    error = LoginRefused if kind == "token" else UserError
    return error(f"channels.{name}: {_REFUSALS[kind]}")


def login_error(name: str, api_url: str, error: Exception) -> ParlourError:
    """Return the error of a failed login: a refused token, or another server at the address."""
    answer = error.__cause__ if isinstance(error, discord.LoginFailure) else None
    if isinstance(answer, discord.HTTPException) and "unauthorized" in answer.text.lower():
        return credentials_message(name, "token")
    if is_discord(api_url):  # a proxy's page, say
        return OutcomeUnknown("the server that answered the login is not Discord")
    return SettingsError(f"channels.{name}: {not_discord(api_url)}")


class DiscordGateway:
    """Receives the events of one shard. Each attempt uses a new client: the library ends on malformed frames."""

    def __init__(
        self,
        name: str,
        inbound: DiscordInbound,
        state: SqlChannelState,
        *,
        shard: BotShard,
        identify_limit: IdentifyLimit,
        make: Callable[..., DiscordGatewayClient],
        on_ready: Callable[[Sequence[str]], None],
    ) -> None:
        self._name = name
        self._on_ready = on_ready
        self._awaited: set[str] = set()  # guilds of this session that were not announced yet
        self._inbound = inbound
        self._cursors = inbound.cursors
        self._state = state
        self._note = shard.note("session")
        self._client: DiscordGatewayClient | None = None
        self._session: ResumableSession | None = None  # as far as its events are processed
        self._saved: ResumableSession | None = None
        self._saved_at = utc_now()
        self._is_unsaved = asyncio.Event()  # another session, which is stored at once
        self._guilds: Sequence[str] = ()  # of earlier sessions
        self._shard = shard
        self._identify_limit = identify_limit
        self._make = make
        self._sequencer: EventSequencer | None = None
        self._connected = False
        self._received_at = (0.0, utc_now())  # of the last frame: loop time and wall clock
        self._interval = 41.25  # seconds between heartbeats, as Discord's hello last said

    def is_ready(self) -> bool:
        """Return True if a frame arrived within two heartbeat intervals."""
        silence = asyncio.get_running_loop().time() - self._received_at[0]
        return self._connected and silence < 2 * self._interval

    async def run(self, token: str) -> None:
        """Receive until cancelled. Raises UserError if Discord refuses, or the failure of a first connection."""
        failure: Exception | None = None
        try:
            self._guilds = await self._inbound.open()
            # A session that ends this process when it is resumed is not resumed again.
            note = await self._state.take(self._note)
            session = ResumableSession.from_note(note, utc_now()) if note else None
            self._session = self._saved = None
            async with asyncio.TaskGroup() as tasks:
                self._sequencer = EventSequencer(self._inbound, tasks, name=self._name, on_idle=self._note_session)
                saving = tasks.create_task(self._save_cursors(), name=f"{self._name} cursors")
                failure = await self._stay_connected(token, session)
                saving.cancel()
        finally:
            self._connected, self._sequencer, self._inbound.client = False, None, None
            with suppress(StoreUnavailable):
                await self._save()
        if failure is not None:
            raise failure

    async def _stay_connected(self, token: str, resumes: ResumableSession | None) -> Exception | None:
        """Reconnect with backoff, at first going on with *resumes*; return the error that makes it pointless."""
        loop, failures = asyncio.get_running_loop(), 0
        was_connected = False
        failure: Exception | None
        while True:
            if resumes is None:
                await self._identify_limit.wait(self._shard.number)
            began = loop.time()
            client = self._make(
                on_event=self._receive,
                on_frame=self._note_frame,
                shard=self._shard,
                identify_limit=self._identify_limit,
                resumes=resumes,
            )
            failure = None
            self._inbound.client = self._client = client
            try:
                await client.start(token)
            except asyncio.CancelledError:
                await _close(client.leave())
                self._note_session()
                raise
            except discord.LoginFailure:
                return credentials_message(self._name, "token")
            except discord.PrivilegedIntentsRequired:
                return credentials_message(self._name, "intent")
            except discord.ConnectionClosed as error:
                if error.code in _CLOSE_REASONS:
                    return credentials_message(self._name, _CLOSE_REASONS[error.code])
                failure = error
            except Exception as error:  # noqa: BLE001 - the channel boundary: the library ends on what it does not expect
                failure = error
            finally:
                was_connected = was_connected or self._connected
                self._connected, self._client = False, None
                await _close(client.close())
            if not was_connected:
                self._session = resumes if client.ws is None else None  # it may still be resumed
                return failure
            resumes = None
            failures = 1 if loop.time() - began > _STABLE_AFTER else failures + 1
            pause = exponential_delay(failures, *_PAUSES)
            log.warning(
                "discord.disconnected",
                channel=self._name,
                shard=self._shard.number,
                error=type(failure).__name__,
                seconds=pause,
            )
            await asyncio.sleep(pause)

    def _note_frame(self, frame: str) -> None:
        self._received_at = (asyncio.get_running_loop().time(), utc_now())
        if len(frame) < _HELLO and '"heartbeat_interval"' in frame:
            with suppress(ValueError, KeyError, TypeError):
                self._interval = float(json.loads(frame)["d"]["heartbeat_interval"]) / 1000

    def _receive(self, name: str, data: Mapping[str, Any]) -> None:
        """Receive an event. The library calls it in order; it must neither wait nor raise."""
        sequencer = self._sequencer
        if sequencer is None:
            return
        try:
            self._queue(sequencer, name, data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._put_odd(sequencer, {"t": name, "d": data, "error": type(error).__name__})

    @staticmethod
    def _put_odd(sequencer: EventSequencer, event: Mapping[str, Any]) -> None:
        """Queue an event that cannot be parsed for the quarantine: it has neither chat nor id."""
        digest = hashlib.sha256(json.dumps(event, sort_keys=True, default=str).encode()).hexdigest()[:24]
        sequencer.put(unordered_key(), SequencedEvent(kind=SequencedEventKind.ODD, id=digest, payload=event))

    def _queue(self, sequencer: EventSequencer, name: str, data: Mapping[str, Any]) -> None:
        match name:
            case "READY":
                self._begin_session(sequencer, data)
            case "DISCONNECTED":
                self._connected = False
            case "RESUMED":
                self._resume_session()
            case "GUILD_CREATE":
                self._put_guild_event(
                    sequencer, SequencedEventKind.CAME, str(data["id"]), {each: data.get(each) for each in _OF_A_GUILD}
                )
                self._backfill_guild(sequencer, data)
            case "GUILD_DELETE" if not data.get("unavailable"):  # or else it is only out of order
                self._put_guild_event(sequencer, SequencedEventKind.LEFT, str(data["id"]), {"id": data["id"]})
            case "ODD":
                self._put_odd(sequencer, data)
            case _ if name in _EVENT_KINDS:
                for ident in data["ids"] if name == "MESSAGE_DELETE_BULK" else [data["id"]]:
                    event = SequencedEvent(kind=_EVENT_KINDS[name], id=str(int(ident)), payload=data)
                    chat = str(int(data["channel_id"]))
                    # A command needs a response within three seconds, even during a backfill.
                    sequencer.put(unordered_key(chat) if event.kind is SequencedEventKind.USED else chat, event)

    def _begin_session(self, sequencer: EventSequencer, data: Mapping[str, Any]) -> None:
        """Read every chat that may have missed a message before this session."""
        guilds = [str(guild["id"]) for guild in data["guilds"]]
        self._connected, self._guilds, self._awaited = True, (), set(guilds)
        sequencer.begin_session()
        for chat in self._cursors.direct:
            sequencer.put(chat)
        self._put_guild_event(sequencer, SequencedEventKind.LISTED, data["session_id"], {"guilds": guilds})
        self._on_ready(guilds)
        log.info("discord.ready", channel=self._name, shard=self._shard.number, guilds=len(guilds))

    def _resume_session(self) -> None:
        """Go on: the events that were missed came before."""
        self._connected = True
        if self._guilds:  # another process had the session, and its version may have had other commands
            self._on_ready(self._guilds)
            self._guilds = ()
        log.info("discord.resumed", channel=self._name, shard=self._shard.number)

    def _put_guild_event(
        self, sequencer: EventSequencer, kind: SequencedEventKind, event_id: str, fields: Mapping[str, Any]
    ) -> None:
        """Queue an event of a guild, in order."""
        payload = {**fields, "at": utc_now().isoformat()}
        sequencer.put(unordered_key("guilds"), SequencedEvent(kind=kind, id=event_id, payload=payload))

    def _backfill_guild(self, sequencer: EventSequencer, guild: Mapping[str, Any]) -> None:
        """Backfill the chats of a guild with messages after their cursors, and the recently used ones."""
        for channel in [*(guild.get("channels") or ()), *(guild.get("threads") or ())]:
            chat, newest = str(channel["id"]), channel.get("last_message_id")
            if newest is None or (self._cursors.covers(chat, int(newest)) and not self._cursors.is_in_use(chat)):
                sequencer.mark_complete(chat)
            else:
                sequencer.put(chat)
        # Threads that were archived are in no guild's list.
        self._awaited.discard(str(guild.get("id")))
        if not self._awaited:
            for chat in self._cursors.used:
                sequencer.put(chat)

    def _note_session(self) -> None:
        """Note how far the session's events are processed, if none is queued."""
        if self._client is not None and self._sequencer is not None and self._sequencer.is_idle:
            self._session = session = self._client.session or self._session
            if session is not None and (self._saved is None or self._saved.id != session.id):
                self._is_unsaved.set()

    async def _save(self) -> None:
        """Store the cursors, guilds and session that changed; raises StoreUnavailable."""
        await self._inbound.save()
        session, now = self._session, utc_now()
        if session is not None and (session != self._saved or now - self._saved_at >= _SESSION_AGE):
            await self._state.save(self._note, session.to_note(now))
            self._saved, self._saved_at = session, now

    async def _save_cursors(self) -> None:
        """Save the cursors regularly. Those of the account and the session move only while no event is queued."""
        saved_at = -_ACCOUNT_INTERVAL
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SAVE_INTERVAL):
                    await self._is_unsaved.wait()
            is_at_once = self._is_unsaved.is_set()
            self._is_unsaved.clear()
            now = asyncio.get_running_loop().time()
            try:
                self._note_session()
                await self._save()
                is_clear = self.is_ready() and self._sequencer is not None and self._sequencer.is_idle
                if is_clear and not is_at_once and now - saved_at >= _ACCOUNT_INTERVAL:
                    await self._cursors.save_account(self._received_at[1])
                    saved_at = now
            except StoreUnavailable as error:
                log.warning("discord.marks_wait", channel=self._name, reason=str(error))


async def _close(closing: Coroutine[Any, Any, None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_WITHIN):
            await closing
