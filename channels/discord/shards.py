"""Shards: the connections over which Discord divides a bot's servers, with the order of their events and cursors."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import structlog

from channels.discord.parse import snowflake_at
from channels.kit.background import utc_now
from gateway.errors import RetryLater, SendFailed, StoreUnavailable, exponential_delay

if TYPE_CHECKING:
    from channels.discord.inbound import DiscordInbound
    from gateway.store.claims import WorkerConnections
    from gateway.store.records import SqlChannelState

log = structlog.get_logger(__name__)

_TOTAL = "shards"  # the note that holds the number of shards; without one it is 1


@dataclass(frozen=True, slots=True)
class BotShard:
    """One of *total* shards (docs.discord.com/developers/events/gateway, sharding)."""

    number: int = 0
    total: int = 1

    def has(self, guild: str) -> bool:
        """Return True if events of *guild* come over this shard; those of direct messages ("") come over the first."""
        return (int(guild or 0) >> 22) % self.total == self.number

    def note(self, name: str) -> str:
        """Return the name of this shard's own note *name*; a shard of another total has another."""
        return name if self.total == 1 else f"shard/{self.number}-{self.total}/{name}"


def list_shards(total: int) -> Sequence[BotShard]:
    """Return the *total* shards of a bot."""
    return [BotShard(number, total) for number in range(total)]


@dataclass(eq=False, slots=True)
class _IdentifySlot:
    """A remainder: the shard that had it last, and until when it is taken, by the loop's clock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    shard: int = -1
    free_at: float = 0.0
    release: asyncio.TimerHandle | None = None  # of the claim


class IdentifyLimit:
    """Discord's limit on new sessions: one every *pause* seconds for shards whose number has the same remainder.

    With *claims* it holds over all gateways that share them: a remainder is a claim, from before the connection until
    a pause after the IDENTIFY. No clocks are compared. The claim of a gateway that was killed is free at the takeover.
    """

    def __init__(self, pause: float = 5.0, claims: WorkerConnections | None = None, bot: str = "") -> None:
        """Claim as `<channel>:<bot>`, which is *bot*."""
        self.max_concurrency = 1  # remainders, as Discord's `max_concurrency` says
        self._pause = pause
        self._claims = claims
        self._bot = bot
        self._slots: defaultdict[int, _IdentifySlot] = defaultdict(_IdentifySlot)

    async def wait(self, shard: int, *, is_repeated: bool = False) -> None:
        """Return when *shard* may begin a session; after a session that became invalid at the earliest in a pause.

        A caller that is cancelled takes no place.
        """
        loop, slot = asyncio.get_running_loop(), self._slots[shard % self.max_concurrency]
        async with slot.lock:
            if is_repeated:
                await asyncio.sleep(self._pause)
            while (left := slot.free_at - loop.time()) > 0:  # noqa: ASYNC110 - an IDENTIFY meanwhile puts it off
                await asyncio.sleep(left)
            if self._claims is not None:
                try:
                    await self._claims.acquire(self._claim_name(shard))
                except asyncio.CancelledError:
                    self._claims.release(self._claim_name(shard))
                    raise
            self._hold(slot, shard)

    async def begin(self, shard: int) -> None:
        """Note that *shard* identifies now; if the connection took longer than a pause, wait for another place."""
        slot = self._slots[shard % self.max_concurrency]
        if slot.shard == shard and slot.free_at > asyncio.get_running_loop().time():
            self._hold(slot, shard)
        else:
            await self.wait(shard)

    def _hold(self, slot: _IdentifySlot, shard: int) -> None:
        loop = asyncio.get_running_loop()
        slot.shard, slot.free_at = shard, loop.time() + self._pause
        if self._claims is not None:
            if slot.release is not None:
                slot.release.cancel()
            slot.release = loop.call_at(slot.free_at, self._claims.release, self._claim_name(shard))

    def _claim_name(self, shard: int) -> str:
        return f"{self._bot}/identify-{shard % self.max_concurrency}"


async def carry_notes(state: SqlChannelState, total: int) -> None:
    """Hand the notes of shards of another number on to those of *total*, once. Raises StoreUnavailable.

    Each new shard reads on from the oldest cursor. Safe to repeat, also by several processes: older cursors only cost
    repeated reads, which the journal recognises.
    """
    before = int(await state.load(_TOTAL) or 1)
    if before == total:
        return
    notes = {
        name: [note for shard in list_shards(before) if (note := await state.load(shard.note(name))) is not None]
        for name in ("account", "guilds", "used", "commands")
    }
    accounts = min(notes["account"], key=int, default=None)
    guilds = [guild for note in notes["guilds"] for guild in json.loads(note)]
    used = [chat for note in notes["used"] for chat in json.loads(note)]
    commands = {place: mark for note in notes["commands"] for place, mark in json.loads(note).items()}
    for shard in list_shards(total):
        own_commands = {place: mark for place, mark in commands.items() if shard.has(place)}
        await state.save(shard.note("session"), None)  # of the time before the last change
        await state.save(shard.note("account"), accounts)
        # Without a note the servers of a first session are not reported as new.
        own_guilds = json.dumps([guild for guild in guilds if shard.has(guild)]) if notes["guilds"] else None
        await state.save(shard.note("guilds"), own_guilds)
        # Chats are not stored with their servers: every shard has all, and skips those of others when it reads them.
        await state.save(shard.note("used"), json.dumps(used) if used else None)
        await state.save(shard.note("commands"), json.dumps(own_commands) if own_commands else None)
    await state.save(_TOTAL, str(total))


# -- event sequencer -------------------------------------------------------------------------------
# One queue per chat: backfilled and live events are processed in order, and a failed event is read again.
#
# Discord has no acknowledgement: an event that could not be stored is lost for the gateway. So a chat with a failed
# event, and every chat after a new session, is *behind*: it is read over REST from its read cursor before any other
# event. Processing a message twice is harmless, because the journal deduplicates it.

QUEUE_LIMIT = 1_000  # live events of one chat; more are dropped here and backfilled
_ATTEMPTS = 10  # in a row that end in a bug; store and network failures are retried for ever
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class SequencedEventKind(StrEnum):
    """The kind of an event."""

    SAID = "said"  # a new message
    EDITED = "edited"
    DELETED = "deleted"
    USED = "used"  # a native command or a pressed button
    LISTED = "listed"  # a session started and lists the bot's guilds
    CAME = "came"  # a guild was announced
    LEFT = "left"  # a guild is gone
    ODD = "odd"  # cannot be parsed


_UNORDERED = "!"


def unordered_key(chat: str = "") -> str:
    """Return the queue for events of *chat* that have no history: they never wait for a backfill."""
    return f"{_UNORDERED}{chat}"


def is_unordered(chat: str) -> bool:
    """Return True if *chat* was returned by `unordered_key`."""
    return chat.startswith(_UNORDERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencedEvent:
    """A message that was created, edited or deleted, or another event of a chat."""

    kind: SequencedEventKind
    id: str
    payload: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The event's id, which is the same over the gateway and in the history."""
        if self.kind not in (SequencedEventKind.SAID, SequencedEventKind.EDITED):
            return f"{self.kind}/{self.id}"
        revision = self.payload.get("edited_timestamp") or ""
        return f"message/{self.id}/{revision}".rstrip("/")


class EventSequencer:
    """All queues of a channel. The gateway's callback calls `put`, which never waits and never raises."""

    def __init__(
        self, sink: DiscordInbound, tasks: asyncio.TaskGroup, *, name: str, on_idle: Callable[[], object]
    ) -> None:
        """*on_idle* is called when every event that was put has been processed."""
        self._sink = sink
        self._on_idle = on_idle
        self._tasks = tasks
        self._name = name
        self._session = 0
        self._read: dict[str, int] = {}  # the last session in which a chat was complete
        self._queues: dict[str, deque[SequencedEvent]] = {}  # of the chats with a running task

    @property
    def is_idle(self) -> bool:
        """True if no event is queued."""
        return not self._queues

    def begin_session(self) -> None:
        """Start a session: each chat is backfilled before its next event, because it may have missed some."""
        self._session += 1

    def mark_complete(self, chat: str) -> None:
        """Record that *chat* has no message after its cursor in this session."""
        if chat not in self._queues:
            self._read[chat] = self._session

    def put(self, chat: str, event: SequencedEvent | None = None) -> None:
        """Queue *event*; without one, only backfill the chat if it is behind."""
        queue = self._queues.get(chat)
        if queue is None:
            if event is None and self._read.get(chat) == self._session:
                return
            queue = self._queues[chat] = deque()
            self._tasks.create_task(self._work(chat, queue), name=f"{self._name} events {chat}")
        if event is not None:
            queue.append(event)
        if len(queue) > QUEUE_LIMIT:
            log.warning("discord.gate_flooded", channel=self._name, chat=chat, events=len(queue))
            queue.clear()
            self._read.pop(chat, None)

    async def _work(self, chat: str, queue: deque[SequencedEvent]) -> None:
        failures = 0
        try:
            while self._read.get(chat) != self._session or queue:
                if await self._step(chat, queue, failures):
                    failures = 0
                else:
                    failures += 1
                    self._read.pop(chat, None)
                    await asyncio.sleep(exponential_delay(failures, _FIRST_PAUSE, _LONGEST_PAUSE))
        finally:
            del self._queues[chat]
        if self.is_idle:
            self._on_idle()

    async def _step(self, chat: str, queue: deque[SequencedEvent], failures: int) -> bool:
        """Backfill or process one event; return False if it must be retried."""
        event: SequencedEvent | None = None
        try:
            if self._read.get(chat) != self._session:
                session = self._session
                await self._sink.backfill(chat)
                self._read[chat] = session
            elif queue:
                event = queue[0]
                await self._sink.dispatch(chat, event)
                self._drop(queue, event)
        except (StoreUnavailable, SendFailed) as error:
            reason = type(error).__name__
            log.warning("discord.behind", channel=self._name, chat=chat, reason=reason, failures=failures + 1)
            if isinstance(error, RetryLater):
                await asyncio.sleep(min(error.delay.total_seconds(), _LONGEST_PAUSE))
            return False
        except Exception:  # the channel boundary: one message with a bug does not block its chat
            log.exception("discord.event_failed", channel=self._name, chat=chat, attempt=failures + 1)
            if failures + 1 < _ATTEMPTS:
                return False
            self._drop(queue, event)
            self._read[chat] = self._session
        return True

    @staticmethod
    def _drop(queue: deque[SequencedEvent], event: SequencedEvent | None) -> None:
        """Remove *event* from the queue, unless a flood has emptied it."""
        if event is not None and queue and queue[0] is event:
            queue.popleft()


# -- read cursors ----------------------------------------------------------------------------------
# Read cursors: one per chat, and one for the account on each shard.
#
# A cursor is a message id: everything up to it was accepted or rejected. Cursors may lag behind, because the journal
# ignores repeated messages; they are never ahead.

OLDEST = timedelta(hours=24)  # older messages are not backfilled
_MARGIN = timedelta(minutes=1)  # between an event's own time and its arrival
_RECENT = 200  # chats of each kind that are read after a new session


class _RecentChats:
    """The most recently used chats of one kind, in order of use; saved when one is added."""

    def __init__(self, note: str) -> None:
        self.note = note
        self.chats: dict[str, None] = {}
        self.is_new = False

    def use(self, chat: str) -> None:
        if next(reversed(self.chats), None) == chat:
            return
        self.is_new = self.is_new or chat not in self.chats
        self.chats.pop(chat, None)
        self.chats[chat] = None
        while len(self.chats) > _RECENT:
            del self.chats[next(iter(self.chats))]


class DiscordReadCursors:
    """The read cursors of one shard."""

    def __init__(self, state: SqlChannelState, shard: BotShard) -> None:
        self._state = state
        self._shard = shard
        self._marks: dict[str, int] = {}
        self._unsaved: set[str] = set()
        self._stored: set[str] = set()  # chats with a stored cursor
        self._account = 0
        self._recents = (_RecentChats("direct"), _RecentChats(shard.note("used")))

    async def open(self) -> None:
        """Load the notes of an earlier run."""
        self._account = int(await self._state.load(self._shard.note("account")) or 0)
        for recent in self._recents:
            recent.chats = dict.fromkeys(json.loads(await self._state.load(recent.note) or "[]"))

    @property
    def direct(self) -> tuple[str, ...]:
        """The direct chats to read after a new session: Discord does not list them."""
        return tuple(self._recents[0].chats) if self._shard.has("") else ()

    @property
    def used(self) -> tuple[str, ...]:
        """The recently used chats of guilds, in which messages may have been edited."""
        return tuple(self._recents[1].chats)

    def is_in_use(self, chat: str) -> bool:
        """Return True if *chat* is in `used`."""
        return chat in self._recents[1].chats

    async def floor(self, chat: str) -> int:
        """Return the id after which to read *chat*; 0 on the very first start, which reads nothing."""
        if chat not in self._marks:
            noted = await self._state.load(f"mark/{chat}")
            self._marks[chat] = int(noted or 0)
            if noted:
                self._stored.add(chat)
        known = max(self._marks[chat], self._account)
        return max(known, snowflake_at(utc_now() - OLDEST)) if known else 0

    def covers(self, chat: str, newest: int) -> bool:
        """Return True if *chat*, whose newest message is *newest*, needs no reading as far as is known."""
        known = max(self._marks.get(chat, 0), self._account)
        return bool(known) and newest <= max(known, snowflake_at(utc_now() - OLDEST))

    def advance(self, chat: str, message_id: str, *, durably: bool) -> None:
        """Record that *chat* was processed up to *message_id*; *durably* False leaves no stored trace."""
        if int(message_id) > self._marks.get(chat, 0):
            self._marks[chat] = int(message_id)
            if durably:
                self._unsaved.add(chat)

    def note_used(self, chat: str, *, is_direct: bool) -> None:
        """Remember a chat in which a message was accepted."""
        self._recents[0 if is_direct else 1].use(chat)

    async def save(self) -> None:
        """Store what changed; raises StoreUnavailable."""
        await self._save_recents()
        for chat in list(self._unsaved):
            await self._save_one(chat)

    async def settle(self, chat: str) -> None:
        """Store a chat's first cursor at once: without one, a crash would lose the position."""
        if chat in self._unsaved and chat not in self._stored:
            await self._save_one(chat)
        await self._save_recents()

    async def _save_one(self, chat: str) -> None:
        mark = self._marks[chat]
        await self._state.save(f"mark/{chat}", str(mark))
        self._stored.add(chat)
        if self._marks[chat] == mark:
            self._unsaved.discard(chat)

    async def _save_recents(self) -> None:
        for recent in self._recents:
            if recent.is_new:
                await self._state.save(recent.note, json.dumps(list(recent.chats)))
                recent.is_new = False

    async def save_account(self, received_at: datetime) -> None:
        """Store that everything up to *received_at* was processed, in chats without a cursor too."""
        self._account = max(self._account, snowflake_at(received_at - _MARGIN))
        await self._state.save(self._shard.note("account"), str(self._account))
