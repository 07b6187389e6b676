"""Shared parts of the store: the writer, the limits, the clock and the wake-ups."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from cachetools import FIFOCache

from gateway.events import InboundMessage, SessionKey
from gateway.journal_file import STAMPED_SESSIONS, StampedTurn
from gateway.ports.journal import EXPIRES, InboxRow, PendingDelivery
from gateway.store.adoption import AdoptedRange
from gateway.store.claims import ChatClaims, WorkerConnections, WorkerIdentity, held_chats, is_held
from gateway.store.database import FIND_META, SET_META, Database
from gateway.store.inbox import BacklogLimit
from gateway.store.row_codec import micros
from gateway.store.shared_windows import WorkerWindows
from gateway.store.writer import Operation, StoreWriter

if TYPE_CHECKING:
    from gateway.store.erased_words import ErasedWords
    from gateway.store.objects import ObjectStore
    from gateway.store.sqlite.connection import SqliteReader

Clock: TypeAlias = Callable[[], datetime]
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_ENDED = 10_000  # rows
BLANK_AFTER = timedelta(days=7)  # texts of ended rows are blanked


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """The settings that a store needs, and what it works with beside its database."""

    queued_per_chat: int = 100
    queued: int = 10_000
    merge: str = "split"  # split, burst or off; a gateway has the setting's
    burst: int = 20  # rows that may merge under `burst`
    split_length: int = 4_000  # a message this long, followed by another within `split_seconds`, is half of a paste
    split_seconds: float = 2.0
    backlog_minutes: float = 10.0  # older messages are answered in one turn per chat and sender
    expires: timedelta = EXPIRES
    blank_after: timedelta = BLANK_AFTER
    zone: str = "UTC"  # IANA; days of this zone sum old usage
    is_shared: bool = False  # with other gateways: the chats are divided among them
    objects: ObjectStore | None = None  # for the bytes of large files, where they are not in the home
    erased_words: ErasedWords | None = None  # which texts pass while they are erased from their scope; None = no memory


def utc_now() -> datetime:
    """Return the time of this machine's clock."""
    return datetime.now(UTC)


def new_transcript() -> str:
    """Return a fresh transcript id: 16 random base32 characters."""
    return base64.b32encode(secrets.token_bytes(10)).decode("ascii").lower()


async def _remove_nothing() -> None:
    """Do nothing: there is no object store."""


class WakeupQueue(Generic[K]):
    """Keys with pending work, each queued once, in order. They are hints: the file decides."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[K | None] = asyncio.Queue()
        self._queued: set[K] = set()

    def put(self, item: K) -> None:
        """Queue *item* unless it is queued."""
        if item not in self._queued:
            self._queued.add(item)
            self._queue.put_nowait(item)

    def close(self) -> None:
        """End every stream."""
        self._queue.put_nowait(None)

    async def stream(self) -> AsyncIterator[K]:
        """Yield items in order, until closed."""
        while (item := await self._queue.get()) is not None:
            self._queued.discard(item)
            yield item
        self._queue.put_nowait(None)  # the next reader ends too


@dataclass(slots=True)
class StoreEngine:
    """One open store, as its ports see it. Wake-ups are fed on the loop, by results, in commit order."""

    writer: StoreWriter
    limits: StoreLimits
    clock: Clock
    worker: WorkerIdentity
    reader: SqliteReader | None = None  # beside the writer; None = what is read waits for its transactions
    cap_writer: StoreWriter | None = None  # whose transactions are exclusive over all workers, where they share
    claims: ChatClaims = field(default_factory=ChatClaims)
    lanes: WakeupQueue[SessionKey] = field(default_factory=WakeupQueue)
    controls: WakeupQueue[InboxRow] = field(default_factory=WakeupQueue)
    chats: WakeupQueue[SessionKey] = field(default_factory=WakeupQueue)
    held: dict[SessionKey, int] = field(default_factory=dict)  # lanes that are being worked on, with their epochs
    behind: dict[SessionKey, list[InboundMessage]] = field(default_factory=dict)  # accepted since a held lane's claim
    # Called in place of that with each message that is accepted behind the turn that runs in a session.
    behind_turns: dict[SessionKey, Callable[[InboundMessage], None]] = field(default_factory=dict)
    # Replies that a commit stores with their parts, until delivery takes them; marked once that is durable.
    cut: dict[SessionKey, PendingDelivery] = field(default_factory=dict)
    # Inbox rows that commits of this worker have ended, the last ones.
    ended: FIFOCache[int, None] = field(default_factory=lambda: FIFOCache(_ENDED))
    offered_controls: set[int] = field(default_factory=set)  # open rows
    earlier_controls: dict[int, SessionKey] = field(default_factory=dict)  # that the last run left: row, chat
    recorded: asyncio.Event = field(default_factory=asyncio.Event)
    may_have_stale: bool = True  # files of turns that have changed; a look that finds none need not be repeated
    document_changes: int = 0  # that this process has stored
    path_changes: int = 0  # operations that may leave stale other files
    path_changes_written: int = -1  # of these, those that a look behind them has found no stale file of
    queued_job: asyncio.Event = field(default_factory=asyncio.Event)
    suspected: asyncio.Event = field(default_factory=asyncio.Event)  # there is, or was, a suspect to claim
    unclean_stops: int = 0  # in a row, before this start
    adopted: AdoptedRange = field(default_factory=AdoptedRange)  # rows from before an adoption
    newest_turns: dict[str, StampedTurn] = field(default_factory=dict)  # by session, the most recently used last
    last_charged: tuple[int, ...] = ()  # rows whose isolated attempt crashed the last run
    remove_objects: Callable[[], Awaitable[object]] = _remove_nothing  # that no file refers to; awaited before a scrub
    backlog_limit: BacklogLimit = field(init=False)
    connections: WorkerConnections = field(init=False)
    frame_arrival: asyncio.Event = field(default_factory=asyncio.Event)  # another worker has frames for our windows
    windows: WorkerWindows | None = field(init=False)  # None = this worker serves all

    def __post_init__(self) -> None:
        self.backlog_limit = BacklogLimit(self.limits.queued)
        self.connections = WorkerConnections(self.claims.changed)
        self.windows = WorkerWindows(self.writer, self.owner, self.frame_arrival) if self.worker.shares else None

    @property
    def owner(self) -> str:
        """Return the name that our leases carry."""
        return self.worker.name

    async def read(self, operation: Operation[T]) -> T:
        """Return the result of *operation*, which reads committed rows and changes nothing."""
        return await (self.writer.submit(operation) if self.reader is None else self.reader.read(operation))

    async def read_rows(self, statement: str, *columns: Any) -> list[Any]:
        """Return the committed rows of a statement that changes nothing."""
        return await self.read(lambda database: database.execute(statement, columns).fetchall())

    async def fetch(self, statement: str, *columns: Any, group: Hashable | None = None) -> list[Any]:
        """Return the rows of a statement, behind the writes that were queued before."""
        return await self.writer.submit(partial(_fetch, statement=statement, columns=columns), group=group)

    async def execute(self, statement: str, *columns: Any) -> None:
        """Run one statement durably."""
        await self.writer.submit(lambda database: database.execute(statement, columns).close())

    def note_turn(self, key: SessionKey, turn: str, at: datetime) -> None:
        """Note a stored turn for the next stamp."""
        self.newest_turns.pop(str(key), None)
        self.newest_turns[str(key)] = StampedTurn(turn, micros(at))
        if len(self.newest_turns) > STAMPED_SESSIONS:
            del self.newest_turns[next(iter(self.newest_turns))]

    def now(self) -> int:
        """Return the time as columns have it."""
        return micros(self.clock())

    def has_chat(self, database: Database, key: SessionKey) -> bool:
        """Return True if the chat of *key* is ours, as of this transaction."""
        return not self.claims.is_shared or is_held(database, key, self.owner)

    def has_chats(self, database: Database) -> Callable[[SessionKey], bool]:
        """Return `has_chat` for many keys."""
        if not self.claims.is_shared:
            return lambda _: True
        held = held_chats(database, (self.owner,))
        return lambda key: key.parent in held

    def wake_session(self, key: SessionKey) -> None:
        """Say that *key* may have a turn to claim, unless its owner will say so when it is done."""
        if key not in self.held and self.claims.covers(key):
            self.lanes.put(key)

    def note_behind(self, key: SessionKey, message: InboundMessage) -> None:
        """Note a message that was accepted in *key*, if this worker runs a turn there."""
        if (notify := self.behind_turns.get(key)) is not None:
            notify(message)
        elif key in self.behind:
            self.behind[key].append(message)

    def hold_lane(self, key: SessionKey, epoch: int) -> None:
        """Note that this worker holds the lane of *key*, at *epoch*."""
        self.held[key], self.behind[key] = epoch, []

    def wake_chat(self, key: SessionKey) -> None:
        """Say that there is something to deliver in *key*."""
        if self.claims.covers(key):
            self.chats.put(key)

    def free_lane(self, key: SessionKey, *, has_more: bool) -> None:
        """Say that *key* has no owner any more."""
        self.held.pop(key, None)
        self.behind.pop(key, None)
        if has_more:
            self.lanes.put(key)

    def offer_control(self, row: InboxRow) -> None:
        """Offer a control row, once in this run; a suspect is claimed instead."""
        if not self.claims.covers(row.message.key):
            return
        if row.is_lone:
            self.suspected.set()
        elif row.seq not in self.offered_controls:
            self.offered_controls.add(row.seq)
            self.controls.put(row)

    def wake_at(self, delay: float, wake: Callable[[], None]) -> None:
        """Call *wake* after *delay* seconds."""
        asyncio.get_running_loop().call_later(delay, wake)


class StorePart:
    """Rows of one kind over the engine, which earlier releases have kept in files.

    Methods return when a write is durable, and raise StoreUnavailable otherwise.
    """

    _adoption: ClassVar[str]  # row of `meta` that says that the files are stored

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def is_adopted(self) -> bool:
        """Return True if the files of an earlier release are stored."""
        return bool(await self._engine.fetch(FIND_META, self._adoption))

    async def mark_adopted(self) -> None:
        """Note that the files of an earlier release are stored."""
        await self._engine.execute(SET_META, self._adoption, "1")


def _fetch(database: Database, *, statement: str, columns: Sequence[Any]) -> list[Any]:
    return database.execute(statement, columns).fetchall()
