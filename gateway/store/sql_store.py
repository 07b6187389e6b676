"""A whole store over one writer, and what happens when it is opened and closed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import structlog

from gateway.errors import StoreUnavailable, UserError
from gateway.events import SessionKey
from gateway.journal_file import (
    JournalStamp,
    OpenChoice,
    StoreKind,
    read_stamp,
    write_stamp,
)
from gateway.ports.journal import InboxRow
from gateway.store import (
    access,
    account_links,
    adoption,
    claims,
    inbox,
    outbox,
    records,
    session_queue,
    upkeep,
)
from gateway.store.access import SqlAccess
from gateway.store.account_links import SqlAccountLinks
from gateway.store.alerts import SqlAlerts
from gateway.store.claims import ChatClaims, ConnectionBalance, WorkerConnections, WorkerIdentity, balance_connections
from gateway.store.database import SET_META, Database, SharedDatabase
from gateway.store.documents import SqlDocuments
from gateway.store.engine import Clock, StoreEngine, StoreLimits
from gateway.store.erasure import SqlErasure
from gateway.store.file_copies import SqlEarlierFiles
from gateway.store.files import SqlFiles
from gateway.store.history import SqlHistory
from gateway.store.inspection import missing_turns
from gateway.store.jobs import SqlJobs
from gateway.store.journal import SqlJournal
from gateway.store.outbox import SqlOutbox
from gateway.store.proposals import SqlProposals
from gateway.store.records import ChannelNotes, SqlChannelState, SqlPreferences, SqlTurnRecords
from gateway.store.row_codec import unquote
from gateway.store.shared_caches import (
    CachedSnapshot,
    FactsByName,
    SharedCaches,
    SqlModelFacts,
    load_choices,
    load_facts,
    load_notes,
    prune_facts,
)
from gateway.store.shared_windows import Watchers, WorkerWindows, forget_windows, watchers_of
from gateway.store.suspects import KilledJob, count_crash, end_trial, end_trials, forgive, free_controls, free_jobs
from gateway.store.tables import VERSION
from gateway.store.transcripts import SqlTranscripts
from gateway.store.usage import SqlCapUsage, SqlSharedCaps, SqlUsage
from gateway.store.writer import StoreWriter

if TYPE_CHECKING:
    from gateway.store.sqlite.connection import SqliteReader

log = structlog.get_logger(__name__)

Copy: TypeAlias = Callable[[Path], object]  # raises StoreUnavailable
ReadWhole: TypeAlias = Callable[[], Awaitable[str]]  # returns the error line of a damaged store, or ""

_FULL_SECONDS = 60.0
_OLDER = (
    "the store lacks turns that this gateway has stored, because an older copy is in its place: put the later copy"
    " back, or stop the gateway, run `parlour accept-loss` and start again"
)
_META = "SELECT name, value FROM meta WHERE name IN ('unclean_stops', 'adopted', 'store', 'stamps')"


@dataclass(slots=True)
class PendingWork:
    """Sessions, control rows and chats with work to do."""

    lanes: list[SessionKey]
    controls: list[InboxRow]
    chats: list[SessionKey]
    lost: list[SessionKey] = field(default_factory=list)  # lanes that are not held after all
    claimed: frozenset[SessionKey] = frozenset()  # chats, where the database is shared


@dataclass(frozen=True, slots=True)
class LostWork:
    """Work that dead workers did when they ended."""

    killed_jobs: Sequence[KilledJob] = ()
    charged: tuple[int, ...] = ()  # rows on trial, which have one attempt more


@dataclass(frozen=True, slots=True)
class SharedWork:
    """Claims and work of a worker that shares the database."""

    balance: claims.ClaimBalance
    connections: ConnectionBalance
    work: PendingWork
    dead: int  # workers taken over from
    watchers: Watchers
    lost: LostWork


@dataclass(slots=True)
class RecoveryState:
    """State found at the start: adopted rows, crashes and pending work."""

    backlog: PendingWork
    unclean_stops: int
    was_killed: bool  # the last process, or another one that had the store
    preferences: dict[str, dict[str, str]]
    choosers: dict[SessionKey, str]
    store_id: str  # random, of the journal
    stamps: int  # how often it was stamped
    adopted: adoption.AdoptedRange
    links: account_links.LinkSnapshot
    access: access.AccessSnapshot
    notes: dict[str, dict[str, str]]
    model_facts: FactsByName
    lost: LostWork


def count_unclean_stops(database: Database) -> int:
    """Return the number of unclean stops in a row up to now, of a closed journal; 0 for a restored one."""
    meta = dict(database.execute(_META).fetchall())
    (killed,) = database.execute(claims.COUNT_WORKERS).fetchone()
    return _count_stops(meta, killed)


def _count_stops(meta: Mapping[str, str], killed: int) -> int:
    return 0 if "adopted" in meta else int(meta.get("unclean_stops", "0")) + (killed > 0)


def begin_run(database: SharedDatabase, worker: WorkerIdentity, now: int) -> RecoveryState:
    """Take over from the process before: count its crash, free its lanes, find its backlog."""
    meta = dict(database.execute(_META).fetchall())
    claims.enlist(database, worker, now)
    if is_adopted := "adopted" in meta:
        forgive(database)
    dead = database.dead_workers(worker.name, shares=worker.shares)
    lost = take_over(database, worker, dead, now, charges=not is_adopted)
    unclean_stops = _count_stops(meta, len(dead))
    if is_adopted:
        adoption.settle(database, OpenChoice(meta["adopted"]), now)
    store_id, stamps = meta.get("store") or secrets.token_hex(8), int(meta.get("stamps", "0")) + 1
    _set_meta(database, unclean_stops=str(unclean_stops), store=store_id, stamps=str(stamps))
    preferences = load_choices(database)
    choosers = records.choosers(database) if any("language" in each for each in preferences.values()) else {}
    return RecoveryState(
        backlog=find_pending_work(database),
        unclean_stops=unclean_stops,
        was_killed=bool(dead),
        preferences=preferences,
        choosers=choosers,
        store_id=store_id,
        stamps=stamps,
        adopted=adoption.read_range(database),
        links=account_links.load(database),
        access=access.load(database),
        notes=load_notes(database),
        model_facts=load_facts(database),
        lost=lost,
    )


def take_over(
    database: Database, worker: WorkerIdentity, dead: Sequence[str], now: int, *, charges: bool = True
) -> LostWork:
    """Take over from the workers *dead*: remove them, give back their leases, free their chats.

    Return the work that they lost. With *charges*, rows in flight count a crash, and the row on trial an attempt.
    """
    is_lost = _chats_lost(database, worker, dead)
    for name in dead:
        claims.remove(database, name)
    killed_jobs = count_crash(database, now, is_lost) if dead and charges else []
    charged = end_trials(database, dead, charges=charges)
    _give_back(database, is_lost)
    return LostWork(killed_jobs, charged)


def _give_back(database: Database, is_lost: Callable[[SessionKey], bool] | None) -> None:
    """Give back every lease and claim of workers that are not listed; *is_lost* says of which chats, if not of all."""
    session_queue.recover(database)
    free_controls(database, is_lost)
    outbox.recover(database, is_lost)
    free_jobs(database)
    claims.forget_claims(database)
    if is_lost is not None:
        forget_windows(database)


def _is_of(chats: frozenset[SessionKey], key: SessionKey) -> bool:
    return key.parent in chats


def find_pending_work(database: Database) -> PendingWork:
    """Return the sessions, control rows and chats with work to do."""
    return PendingWork(inbox.ready_sessions(database), inbox.open_controls(database), outbox.open_chats(database))


def look_again(database: SharedDatabase, engine: StoreEngine) -> PendingWork:
    """Release the leases of a broken batch, and return the pending work.

    Another worker may have had the database while our session was lost, and have been killed. Raises StoreUnavailable
    if the store is older than it was, so that nothing is written over turns that this process has stored.
    """
    if missing_turns(database, {each.turn: each.at for each in engine.newest_turns.values()}):
        raise StoreUnavailable(_OLDER)
    if dead := database.dead_workers(engine.owner, shares=engine.worker.shares):
        take_over(database, engine.worker, dead, engine.now())
    lost = session_queue.free_orphans(database, engine.owner, engine.held)
    backlog = find_pending_work(database)
    backlog.lost = lost
    backlog.claimed = claims.held_chats(database, (engine.owner,))
    return backlog


def share_work(
    database: SharedDatabase,
    engine: StoreEngine,
    asked_for: frozenset[SessionKey],
    overdue: frozenset[SessionKey],
    connections: frozenset[str] = frozenset(),
    overdue_connections: frozenset[str] = frozenset(),
) -> SharedWork:
    """Take over from the dead, release idle chats, claim free ones; return the claims, and the work of our chats.

    If one of the chats *asked_for* is not ours, its worker is notified, or those who may take it. Our share of
    *connections* is claimed, with all *overdue_connections*; those that are not wanted any more are released, and
    those who wait for them are notified.
    """
    dead = database.dead_workers(engine.owner, shares=True)
    lost = take_over(database, engine.worker, dead, engine.now()) if dead else LostWork()
    balance = claims.balance_claims(database, engine.owner, engine.now(), overdue)
    lines = balance_connections(database, engine.owner, engine.now(), connections, overdue_connections)
    if dead or asked_for - balance.held or lines.has_released:
        database.notify()
    work = find_pending_work(database)
    ours = partial(_is_of, balance.held)
    work.lanes, work.chats = list(filter(ours, work.lanes)), list(filter(ours, work.chats))
    work.controls = [row for row in work.controls if ours(row.message.key)]
    watchers = watchers_of(database, engine.owner)
    return SharedWork(balance, lines, work, len(dead), watchers, lost)


def end_run(database: SharedDatabase, worker: WorkerIdentity) -> None:
    """Mark a worker's deliberate stop: rows in flight have caused no crash."""
    forgive(database, _chats_lost(database, worker, (worker.name,)))
    end_idle_run(database, worker)
    _set_meta(database, unclean_stops="0")


def end_idle_run(database: SharedDatabase, worker: WorkerIdentity) -> None:
    """Mark the end of a worker that served no users. Crashes of earlier processes still count."""
    is_lost = _chats_lost(database, worker, (worker.name,))
    claims.remove(database, worker.name)
    end_trial(database, worker.name)
    _give_back(database, is_lost)
    if worker.shares:
        database.notify()


def _chats_lost(
    database: Database, worker: WorkerIdentity, names: Sequence[str]
) -> Callable[[SessionKey], bool] | None:
    """Return the test for chats that the workers *names* had claimed; None if *worker* has all chats."""
    return partial(_is_of, claims.held_chats(database, names)) if worker.shares else None


def _set_meta(database: Database, **values: str) -> None:
    database.executemany(SET_META, list(values.items()))


class SqlStore:
    """The ports over one engine; opened and closed by the composition root."""

    def __init__(
        self,
        engine: StoreEngine,
        state: RecoveryState,
        copy: Copy,
        *,
        journal_path: Path | None,
        kind: StoreKind,
        last_stamp: JournalStamp | None,
        read_whole: ReadWhole | None,
    ) -> None:
        self._engine = engine
        self._copy = copy
        self._journal_path = journal_path
        self._kind = kind
        self._read_whole = read_whole
        self._was_killed = state.was_killed
        self._is_damaged = False
        self._accepted_until = last_stamp.accepted_until if last_stamp is not None else 0
        if last_stamp is not None and last_stamp.store == state.store_id:
            engine.newest_turns |= last_stamp.turns or {}
        self._on_started: Callable[[], object] = lambda: None
        self._store_id, self._stamps = state.store_id, state.stamps
        self._stamped_at = engine.writer.commits
        self.journal = SqlJournal(engine)
        self.outbox = SqlOutbox(engine)
        self.records = SqlTurnRecords(engine, self.journal)
        self.transcripts = SqlTranscripts(engine)
        self.documents = SqlDocuments(engine)
        self.proposals = SqlProposals(engine)
        self.history = SqlHistory(engine)
        has_files = kind is StoreKind.SQLITE and journal_path is not None
        home = journal_path.parent if has_files and journal_path else None
        self.files = SqlFiles(engine, home, None if home else engine.limits.objects)
        self.jobs = SqlJobs(engine)
        self.people = SqlPreferences(engine, state.preferences, state.choosers)
        self.usage = SqlUsage(engine)
        self.caps = SqlCapUsage(engine)
        self.shared_caps: SqlSharedCaps | None = (
            None if engine.cap_writer is None else SqlSharedCaps(engine.cap_writer, engine.owner)
        )
        self.links = SqlAccountLinks(engine, state.links, state.preferences)
        self.access = SqlAccess(engine, state.access)
        self.alerts = SqlAlerts(engine)
        self.models = SqlModelFacts(engine, state.model_facts)
        self.erasing = SqlErasure(engine)
        self._cached = state
        self._notes = ChannelNotes(state.notes)
        self.earlier_files: SqlEarlierFiles | None = SqlEarlierFiles(engine) if kind is StoreKind.POSTGRESQL else None
        self.connections: WorkerConnections | None = engine.connections if engine.worker.shares else None
        self.windows: WorkerWindows | None = engine.windows
        self._sharing = asyncio.create_task(_share(engine), name="claims") if engine.worker.shares else None

    def adopt(self, snapshot: CachedSnapshot) -> None:
        """Take over what another worker has changed."""
        if snapshot.access is not None:
            self._cached.access.replace(snapshot.access)
        if snapshot.links is not None:
            self.links.replace(snapshot.links)
        if snapshot.choices is not None:
            self._cached.preferences.clear()
            self._cached.preferences.update(snapshot.choices)
        if snapshot.notes is not None:
            self._notes.replace(snapshot.notes)
        if snapshot.models is not None:
            self._cached.model_facts.clear()
            self._cached.model_facts.update(snapshot.models)

    def state(self, channel: str) -> SqlChannelState:
        """Return the notes of one channel block."""
        return SqlChannelState(self._engine, channel, self._notes)

    def when_started(self, call: Callable[[], object]) -> None:
        """Call *call* when the gateway has started."""
        self._on_started = call

    def note_started(self) -> None:
        """Note that the gateway has started: from here on it is dead to others when its event loop does not answer."""
        self._on_started()

    async def wait_replaced(self) -> None:
        """Return when other gateways have taken over the work of this one, which must end; otherwise never."""
        await self._engine.claims.replaced.wait()

    @property
    def store_id(self) -> str:
        """Return the random id of what is stored: of the journal's file, or of the database's tables."""
        return self._store_id

    async def check(self) -> None:
        """Do one durable write.

        Where a write has met a full disk within a minute, this one proves nothing, because it needs little space:
        StoreUnavailable is raised.
        """
        full = self._engine.writer.full_disk
        if full is not None and asyncio.get_running_loop().time() - full.at < _FULL_SECONDS:
            raise StoreUnavailable(f"the journal cannot be written: {full.error}")
        now = str(self._engine.now())
        await self._engine.writer.submit(lambda database: _set_meta(database, checked_at=now))

    async def find_damage(self) -> str:
        """Read the whole file beside the writer; return the error line if it is damaged, otherwise "".

        Each start reads a damaged file whole until it is restored.
        """
        line = "" if self._read_whole is None else await self._read_whole()
        if line:
            self._is_damaged = True
            await self.write_stamp()
        return line

    async def verify(self) -> None:
        """Read all data if the last process was killed, and raise UserError if they are damaged."""
        if not self._was_killed or self._read_whole is None:
            return
        if line := await self.find_damage():
            raise UserError(line)
        log.info("store.verified")

    async def stamp(self) -> None:
        """Note outside of the data how far it has come, so that a start notices older data. Raises StoreUnavailable."""
        if self._journal_path is None or self._engine.writer.commits == self._stamped_at:
            return
        if self._kind is StoreKind.SQLITE:  # a database has other gateways, which count as well
            stamps = self._stamps + 1
            await self._engine.writer.submit(lambda database: _set_meta(database, stamps=str(stamps)))
            self._stamps = stamps
        await self.write_stamp()

    async def write_stamp(self) -> None:
        """Write the stamp of the durable count and the newest turns. Errors of the disk are logged and ignored."""
        if self._journal_path is None:
            return
        self._stamped_at = self._engine.writer.commits
        stamp = JournalStamp(
            store=self._store_id,
            count=self._stamps,
            schema=VERSION,
            at=self._engine.clock().isoformat(timespec="seconds"),
            kind=self._kind,
            turns=dict(self._engine.newest_turns),
            accepted_until=self._accepted_until,
            is_damaged=self._is_damaged,
        )
        try:
            await asyncio.to_thread(write_stamp, self._journal_path, stamp)
        except OSError as error:
            log.warning("store.stamp_failed", error=error.strerror)

    async def backup(self, target: Path) -> None:
        """Write a copy of one instant to *target* (0600) while running; it is complete or not there.

        Raises StoreUnavailable when it cannot be written.
        """
        await asyncio.to_thread(self._copy, target)

    async def prune(self) -> int:
        """Remove what is past its time, in many short transactions; one that is interrupted is done again whole."""
        now, limits, submit = self._engine.now(), self._engine.limits, self._engine.writer.submit
        times = await submit(lambda database: upkeep.begin_prune(database, now, limits.blank_after))
        count = newest_gone = 0
        for span in upkeep.spans(times):
            pruned = await submit(partial(upkeep.prune_span, span=span, times=times))
            count, newest_gone = count + pruned.changed, max(newest_gone, pruned.newest_gone)
        name: str | None = "" if newest_gone else None
        while name is not None:
            name = await submit(partial(upkeep.prune_keys, after=name, newest_gone=newest_gone))
        count += await submit(lambda database: prune_facts(database, now))
        return count + await submit(lambda database: upkeep.finish_prune(database, times, zone=limits.zone))

    async def close(self, *, has_served: bool = True) -> None:
        """Write the queue, then close. A clean close resets the count of unclean stops.

        If the process has not *has_served* users, the count stays: reading a home proves nothing about crashes.
        """
        engine = self._engine
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.wait({self._sharing})
        with suppress(StoreUnavailable):
            await self.stamp()
        if engine.cap_writer is not None:  # before the worker's row goes, without which nothing is counted
            await engine.cap_writer.close(lambda _: None)
        if engine.reader is not None:  # or the log would stay behind a reader
            await engine.reader.close()
        try:
            await engine.writer.close(partial(_end, engine=engine, has_served=has_served))
        finally:
            for wakeups in (engine.lanes, engine.controls, engine.chats):
                wakeups.close()


def _end(database: SharedDatabase, engine: StoreEngine, *, has_served: bool) -> None:
    outbox.unmark(database, [each.message.id for each in engine.cut.values() if each.is_marked])
    (end_run if has_served else end_idle_run)(database, engine.worker)


async def assemble(
    writer: StoreWriter,
    limits: StoreLimits,
    clock: Clock,
    copy: Copy,
    *,
    journal: Path | None = None,
    kind: StoreKind = StoreKind.SQLITE,
    read_whole: ReadWhole | None = None,
    worker: WorkerIdentity | None = None,
    chat_claims: ChatClaims | None = None,
    caches: SharedCaches | None = None,
    cap_writer: StoreWriter | None = None,
    frame_arrival: asyncio.Event | None = None,
    reader: SqliteReader | None = None,
) -> SqlStore:
    """Build a store on an open writer, and wake what the last run left.

    The stamp is written beside *journal*, the path that a home's file has or would have. *read_whole* looks for damage;
    None = the database's server does. Rows that other workers change come through *caches*; *cap_writer* is for the
    caps of workers that share. If building fails, the writers are closed.
    """
    engine = StoreEngine(
        writer=writer,
        limits=limits,
        clock=clock,
        worker=worker or WorkerIdentity(),
        reader=reader,
        cap_writer=cap_writer,
        claims=chat_claims or ChatClaims(),
        frame_arrival=frame_arrival or asyncio.Event(),
    )
    try:
        last_stamp = None if journal is None else await asyncio.to_thread(read_stamp, journal)
        found = await _begin(engine)
        store = SqlStore(
            engine, found, copy, journal_path=journal, kind=kind, last_stamp=last_stamp, read_whole=read_whole
        )
        if caches is not None:
            caches.adopt = store.adopt
        await store.write_stamp()
    except BaseException:
        if cap_writer is not None:
            await cap_writer.close(lambda _: None)
        if reader is not None:
            await reader.close()
        await writer.close(lambda _: None)
        raise
    return store


async def _begin(engine: StoreEngine) -> RecoveryState:
    """Take over from the last run; wake what it left."""
    writer = engine.writer
    now = engine.now()
    found = await writer.submit(lambda database: begin_run(database, engine.worker, now))
    engine.unclean_stops, engine.adopted = found.unclean_stops, found.adopted
    engine.last_charged = found.lost.charged
    if not engine.worker.shares:  # or they may be a live worker's
        earlier = {row.seq: row.message.key.parent for row in found.backlog.controls if not row.is_lone}
        engine.earlier_controls |= earlier
    _wake(engine, found.backlog)
    writer.when_reopened(lambda database: look_again(database, engine), lambda backlog: _reopened(engine, backlog))
    log.info(
        "store.opened",
        lanes=len(found.backlog.lanes),
        controls=len(found.backlog.controls),
        chats=len(found.backlog.chats),
        unclean_stops=found.unclean_stops,
    )
    for job in found.lost.killed_jobs:
        log.warning("store.job_killed", job=unquote(job.id), kind=job.kind, attempts=job.attempts)
    return found


def _wake(engine: StoreEngine, backlog: PendingWork) -> None:
    for key in backlog.lost:
        engine.free_lane(key, has_more=False)
    for key in backlog.lanes:
        engine.wake_session(key)
    for row in backlog.controls:
        engine.offer_control(row)
    for key in backlog.chats:
        engine.wake_chat(key)
    engine.recorded.set()
    engine.queued_job.set()


def _reopened(engine: StoreEngine, backlog: PendingWork) -> None:
    engine.claims.held = backlog.claimed
    _wake(engine, backlog)


async def _share(engine: StoreEngine) -> None:
    """Look for work until cancelled, and carry frames between windows."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_look_for_work(engine), name="look for work")
        if engine.windows is not None:
            tasks.create_task(engine.windows.run(), name="windows")


async def _look_for_work(engine: StoreEngine) -> None:
    """Look for work until cancelled: when there may be some, and as often as `claims.POLL` says."""
    held, connections, loop = engine.claims, engine.connections, asyncio.get_running_loop()

    def note(result: SharedWork, looked_at: float) -> None:
        held.note(result.balance, loop.time())
        if engine.windows is not None:
            engine.windows.note_watchers(result.watchers)
        connections.note(result.connections, looked_at)
        _wake(engine, result.work)
        if result.dead:
            log.warning("store.taken_over", workers=result.dead, chats=len(result.balance.held))
        for job in result.lost.killed_jobs:
            log.warning("store.job_killed", job=unquote(job.id), kind=job.kind, attempts=job.attempts)

    while True:
        held.changed.clear()
        look = partial(
            share_work,
            engine=engine,
            asked_for=held.take_wanted(),
            overdue=held.overdue(loop.time()),
            connections=frozenset(connections.wanted),
            overdue_connections=connections.overdue(loop.time()),
        )
        with suppress(StoreUnavailable):  # the writer logs it
            result = await engine.writer.submit(look, partial(note, looked_at=loop.time()))
            if result.dead:  # the takeover does not see frames that were stored for them meanwhile
                await engine.writer.submit(forget_windows)
        with suppress(TimeoutError):
            async with asyncio.timeout(claims.POLL.total_seconds()):
                await held.changed.wait()
