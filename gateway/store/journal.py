"""The journal makes messages durable and commits each turn as one record: encode, queue, wake.

Methods that write return when the write is durable, and raise StoreUnavailable, without effect, otherwise. Every
method may be called again with the same arguments.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import structlog

from gateway.errors import LeaseLost, StoreUnavailable
from gateway.events import InboundMessage, OutboundMessage, Role, SessionKey
from gateway.ports.journal import (
    AcceptResult,
    InboxRow,
    Job,
    JobAdvance,
    OutboxPart,
    PartState,
    PendingDelivery,
    SessionRow,
    Suspect,
    TurnCommit,
    TurnLease,
    TurnRecord,
    TurnStep,
    UsageRow,
)
from gateway.store import inbox, inspection, session_queue, suspects, turn_commits
from gateway.store.database import Database
from gateway.store.engine import StoreEngine, new_transcript
from gateway.store.erased_words import ErasedWords, ErasureRunning, clear_texts, erasure_ids_of
from gateway.store.inspection import (
    HourSummary,
    LatePromises,
    Promise,
    ScheduledRun,
    TurnQuery,
    TurnSummary,
    TurnTrace,
)
from gateway.store.row_codec import advance_job, encode_advance, micros, moment, quote, write_key, write_lines
from gateway.store.session_queue import MergeDelay
from gateway.store.suspects import SuspectHead
from gateway.store.turn_commits import CommitEffect, EncodedCommit, find_deleted_turns
from gateway.store.usage import encode_usage, insert_usage, settle_usage

log = structlog.get_logger(__name__)

T = TypeVar("T")

_USAGE_WITHIN = 0.1  # seconds; a turn's commit follows the end of its last call within a few milliseconds
_NOTE_WITHIN = 0.25  # seconds; a kill before that loses an estimate, as it does in a call's first moment
# Answers of models end by the dozen where many turns run: a commit waits for others, less than an answer takes to send.
_MANY_TURNS, _COMMIT_WITHIN = 4, 0.005  # seconds
_RETRY_SECONDS = 1.0  # delay before a session whose claim failed is offered again
CALL_NOTED_AFTER = timedelta(milliseconds=50)  # shorter calls leave no row if killed


def _group_of(commit: TurnCommit) -> SessionKey | None:
    """Return the chat of *commit*; None if it has more than rows of a chat, which must not be changed side by side."""
    is_more = commit.jobs or commit.advances or commit.ends or commit.audit or commit.cap_notices
    return None if is_more else commit.record.key.parent


def _clear(words: ErasedWords, erasures: Sequence[Job], commit: TurnCommit) -> TurnCommit:
    return words.clear_commit(erasures, commit)


class SqlJournal:
    """Inbox, lanes, tool steps and the commit. One writer; many operations per transaction."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine
        self._calls: dict[str, asyncio.TimerHandle | None] = {}  # running calls; None = the estimate is stored

    def now(self) -> datetime:
        """Return the time by the clock that all gateways of the store go by."""
        return self._engine.clock()

    async def accept(
        self, message: InboundMessage, *, role: Role, is_control: bool, language: str = "en"
    ) -> AcceptResult:
        """Make *message* durable, once.

        Dedupe as docs/formats.md says: the logical key decides, event ids only where there is no
        message id. A full backlog stores the row as refused and enqueues the one polite line, in *language*.
        Raises UnreadableEvent for a message with an id of more than 512 bytes.
        """
        engine = self._engine
        sent_at = micros(message.sent_at)
        new = inbox.encode(
            message, role=role, is_control=is_control, at=engine.now(), sent_at=sent_at, language=language
        )
        accepted: inbox.AcceptEffect = await engine.writer.submit(
            lambda database: inbox.accept(database, new, engine.limits.queued_per_chat, engine.backlog_limit),
            partial(self._accepted, message),
            group=message.key.parent,
        )
        return accepted.acceptance

    def _accepted(self, message: InboundMessage, accepted: inbox.AcceptEffect) -> None:
        if accepted.lane is not None:
            self._engine.wake_session(accepted.lane)
            self._engine.note_behind(accepted.lane, message)
        if accepted.control is not None:
            self._engine.offer_control(accepted.control)
        if accepted.chat is not None:
            self._engine.wake_chat(accepted.chat)
        if accepted.has_job:
            self._engine.queued_job.set()

    @contextmanager
    def watch_messages(self, key: SessionKey, notify: Callable[[InboundMessage], None]) -> Iterator[None]:
        """Call *notify* with each message for the queue of *key* that this gateway accepts during the block.

        It is first called with those that were accepted between the claim and the block. One block per session at a
        time. Messages that other gateways accept are not among them. *notify* must not raise.
        """
        for message in self._engine.behind.get(key, ()):
            notify(message)
        self._engine.behind_turns[key] = notify
        try:
            yield
        finally:
            del self._engine.behind_turns[key]

    def ready_sessions(self) -> AsyncIterator[SessionKey]:
        """Yield each key that has unclaimed lane rows: the backlog of the last run first, then as they come.

        A key may be yielded again while it is being worked on; claim then returns None.
        """
        return self._engine.lanes.stream()

    @property
    def earlier_controls(self) -> Mapping[int, SessionKey]:
        """The control rows that the last run left open: chats by row number. They are the first of `control_rows`."""
        return self._engine.earlier_controls

    def control_rows(self) -> AsyncIterator[InboxRow]:
        """Yield each control row (commands, buttons) as it is accepted, the last run's first."""
        return self._engine.controls.stream()

    async def claim(self, key: SessionKey) -> TurnLease | None:
        """Claim the session's next turn. Return None if it has none, is leased, or the turn is a suspect.

        Rows are stamped with the turn id before the call returns. Rows stamped by an earlier attempt are claimed again
        with their steps. Merging follows `settings.agent.merge`: one sender's album, split paste or burst.
        """
        engine = self._engine
        column, now = write_key(key), engine.now()
        future = engine.writer.submit(
            lambda database: session_queue.claim(
                database,
                key,
                column,
                engine.owner,
                engine.limits,
                now,
                new_transcript,
                shares=engine.claims.is_shared,
            ),
            partial(self._claimed, key),
            group=key.parent,
        )
        try:
            found = await self._unless_cancelled(future)
        except StoreUnavailable:
            engine.wake_at(_RETRY_SECONDS, partial(engine.wake_session, key))
            raise
        return self._with_doubt(found) if isinstance(found, TurnLease) else None

    def _claimed(self, key: SessionKey, claim: TurnLease | MergeDelay | SuspectHead | None) -> None:
        if isinstance(claim, TurnLease):
            self._engine.hold_lane(key, claim.epoch)
        elif isinstance(claim, MergeDelay):
            self._engine.wake_at(claim.seconds, partial(self._engine.wake_session, key))
        elif claim is not None:
            self._engine.suspected.set()

    async def wait_suspect(self) -> None:
        """Return when there may be a suspect to claim: a turn or control row in flight at two unclean stops."""
        await self._engine.suspected.wait()
        self._engine.suspected.clear()

    async def claim_suspect(self, *, beside: int) -> Suspect | None:
        """Claim the suspect with the fewest attempts, of all session queues and control rows.

        Return None without suspects, or if the next one may not be in flight with *beside* other suspects.
        """
        engine, now = self._engine, self._engine.now()
        future = engine.writer.submit(
            lambda database: session_queue.claim_suspect(
                database,
                engine.owner,
                now,
                new_transcript,
                beside=beside,
                is_ours=partial(engine.has_chat, database),
            ),
            self._claimed_suspect,
        )
        try:
            found = await self._unless_cancelled(future)
        except StoreUnavailable:
            engine.wake_at(_RETRY_SECONDS, engine.suspected.set)
            raise
        if found is not None and isinstance(found.work, TurnLease):
            return replace(found, work=self._with_doubt(found.work))
        return found

    def _claimed_suspect(self, suspect: Suspect | None) -> None:
        if suspect is not None and isinstance(suspect.work, TurnLease):
            self._claimed(suspect.work.key, suspect.work)

    async def begin_trial(self, suspect: Suspect, answered: Collection[str]) -> bool:
        """Store that *suspect* is on trial, in place of any other: a crash from now on is charged to it.

        Return False, and store nothing, while an answer of the turns *answered* is being delivered.
        """
        turns, owner = tuple(answered), self._engine.owner
        return await self._engine.writer.submit(
            lambda database: suspects.begin_trial(database, owner, suspect.trial, turns)
        )

    async def end_trial(self) -> None:
        """Store that nothing is on trial. Has no effect the second time."""
        owner = self._engine.owner
        await self._engine.writer.submit(lambda database: suspects.end_trial(database, owner))

    def _with_doubt(self, lease: TurnLease) -> TurnLease:
        """Return *lease* with what is known of its answer: rows of before a restore may have had theirs."""
        is_uncertain = self._engine.adopted.covers(row.seq for row in lease.rows)
        return replace(lease, is_uncertain=True) if is_uncertain else lease

    async def acquit(self) -> None:
        """Give back the attempt that was running when the process before was killed: something else was in hand."""
        rows, self._engine.last_charged = self._engine.last_charged, ()
        if rows:
            await self._engine.writer.submit(lambda database: suspects.acquit(database, rows))

    async def _unless_cancelled(self, claim: asyncio.Future[T]) -> T:
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            claim.add_done_callback(self._give_back)
            raise

    def _give_back(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        found = future.result()
        lease = found.work if isinstance(found, Suspect) else found
        if isinstance(lease, TurnLease):
            returned = self._release(lease)
            returned.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:
        """Add the sender's new messages to the running turn, stamped as in `claim`.

        Returns () for a suspect.
        """
        engine, column = self._engine, write_key(lease.key)
        return await engine.writer.submit(
            lambda database: session_queue.steer(database, lease, column, engine.owner, engine.limits),
            group=lease.key.parent,
        )

    async def step(self, lease: TurnLease, *steps: TurnStep) -> None:
        """Store *steps* in one transaction; storing the same `n` again changes nothing. Raises LeaseLost."""
        engine, column = self._engine, write_key(lease.key)
        bodies = [(step, write_lines(step.lines, step.blobs)) for step in steps]
        await engine.writer.submit(
            lambda database: session_queue.store_steps(database, lease, column, engine.owner, bodies),
            group=lease.key.parent,
        )

    async def commit(self, lease: TurnLease, commit: TurnCommit) -> TurnRecord:
        """Store the record, end its rows, enqueue outbound and jobs: one transaction, fenced by the lease.

        Shielded from cancellation. Committing a turn that is committed returns the stored record
        and changes nothing else. Raises LeaseLost when the lane has another owner.
        """
        engine = self._engine

        def submit(new: EncodedCommit) -> asyncio.Future[CommitEffect]:
            self._note_cut(lease.key, new)
            return engine.writer.submit(
                lambda database: turn_commits.commit_turn(database, lease, new, engine.owner),
                partial(self._committed, lease, new),
                group=_group_of(commit),
                within=_COMMIT_WITHIN if len(engine.held) >= _MANY_TURNS else 0.0,
            )

        try:
            committed = await self._store(commit, submit)
        except LeaseLost:
            engine.cut.pop(lease.key, None)
            raise
        if committed.fault:
            raise LeaseLost(committed.fault)
        return committed.record

    def _note_cut(self, key: SessionKey, new: EncodedCommit) -> None:
        """Note the reply that *new* stores with its parts, before it is known whether that is durable."""
        cut, commit = self._engine.cut, new.commit
        if not new.parts:
            cut.pop(key, None)
        elif (before := cut.get(key)) is None or before.message.id != commit.outbound[0].id:
            parts = tuple(
                OutboxPart(part=part, state=PartState.PENDING if n else PartState.SENDING, attempts=int(not n))
                for n, part in enumerate(commit.parts)
            )
            cut[key] = PendingDelivery(message=commit.outbound[0], parts=parts, preview=None)
        # else: it is stored again because a result was lost, and delivery may have found it in the database.

    async def _store(self, commit: TurnCommit, store: Callable[[EncodedCommit], Awaitable[T]]) -> T:
        """Call *store* with *commit*, without the words of every erasure that its scope has in the transaction."""
        erasure_ids = "[]"
        while True:
            try:
                return await store(await self._encode(commit, erasure_ids))
            except ErasureRunning as refusal:
                commit = await clear_texts(self._engine, refusal, commit, _clear)
                erasure_ids = erasure_ids_of(refusal.erasures)

    async def _encode(self, commit: TurnCommit, erasure_ids: str) -> EncodedCommit:
        """Encode *commit*, and find the messages that it deletes."""
        new = turn_commits.encode(
            commit, self._engine.now(), erasure_ids, is_mirrored=not self._engine.claims.is_shared
        )
        deletion = new.deletion
        while deletion is not None:
            new = replace(new, deletion=deletion)
            deletion = await self._engine.writer.submit(
                partial(find_deleted_turns, record=commit.record, deletion=deletion)
            )
        return new

    def _committed(self, lease: TurnLease, new: EncodedCommit, committed: CommitEffect) -> None:
        if committed.fault:
            log.warning("journal.commit_refused", key=str(lease.key), turn=lease.turn, reason=committed.fault)
        cut = self._engine.cut.get(lease.key)
        if committed.is_marked and cut is not None:
            self._engine.cut[lease.key] = PendingDelivery(
                message=cut.message, parts=cut.parts, preview=cut.preview, is_marked=True
            )
        elif committed.is_new or committed.fault or (cut is not None and not cut.parts):
            self._engine.cut.pop(lease.key, None)
        if committed.is_new or committed.fault:
            self._engine.free_lane(lease.key, has_more=committed.more)
        self._recorded(new, committed)

    def _recorded(self, new: EncodedCommit, committed: CommitEffect) -> None:
        if not committed.is_new:
            return
        engine, record = self._engine, new.commit.record
        if new.deletion is not None:
            engine.may_have_stale = True
        engine.recorded.set()
        if record.inbox:
            engine.ended.update(dict.fromkeys(record.inbox))
            engine.note_turn(record.key, record.turn, record.at)
        for key in {message.key for message in new.commit.outbound}:
            engine.wake_chat(key)
        if new.jobs or new.advances or new.deletion is not None:
            engine.queued_job.set()

    async def settle(self, row: InboxRow, commit: TurnCommit) -> TurnRecord:
        """Commit a control row's record outside the lane; idempotent by turn like commit."""
        committed: CommitEffect = await self._store(
            commit,
            lambda new: self._engine.writer.submit(
                lambda database: turn_commits.settle_row(database, new, row.seq),
                partial(self._recorded, new),
                group=_group_of(commit),
            ),
        )
        self._engine.offered_controls.discard(row.seq)
        return committed.record

    async def append(self, record: TurnRecord, outbound: Sequence[OutboundMessage] = ()) -> None:
        """Commit lines that belong to no inbox row, and what is said beside them (the Records port's)."""
        await self._store(
            TurnCommit(record=record, outbound=tuple(outbound)),
            lambda new: self._engine.writer.submit(
                lambda database: turn_commits.settle_row(database, new), partial(self._recorded, new)
            ),
        )

    async def append_from(self, job: Job, record: TurnRecord, outbound: Sequence[OutboundMessage]) -> bool:
        """Commit lines that end the *job* behind them (the Records port's)."""
        ended = encode_advance(JobAdvance(job))

        def settle(database: Database, new: EncodedCommit) -> CommitEffect | None:
            return turn_commits.settle_row(database, new) if advance_job(database, ended) else None

        committed = await self._store(
            TurnCommit(record=record, outbound=tuple(outbound)),
            lambda new: self._engine.writer.submit(
                partial(settle, new=new),
                lambda done: self._recorded(new, done) if done is not None else None,
            ),
        )
        return committed is not None

    async def append_for(self, note: int, record: TurnRecord) -> bool:
        """Commit lines that end a note which no turn has taken up (the Records port's)."""
        committed = await self._store(
            TurnCommit(record=record),
            lambda new: self._engine.writer.submit(
                lambda database: turn_commits.settle_note(database, new, note),
                lambda done: self._recorded(new, done) if done is not None else None,
            ),
        )
        return committed is not None

    async def release(self, lease: TurnLease) -> None:
        """Give the rows back to the lane, steps kept; a chosen stop does not count as an attempt."""
        await self._release(lease)

    def _release(self, lease: TurnLease) -> asyncio.Future[None]:
        engine, column = self._engine, write_key(lease.key)
        return engine.writer.submit(
            lambda database: session_queue.release(database, lease, column, engine.owner),
            lambda _: engine.free_lane(lease.key, has_more=True),
            group=lease.key.parent,
        )

    async def last_message_at(self, key: SessionKey) -> datetime | None:
        """Return when the last message of a user was accepted in *key*; None if that was over 30 days ago."""
        ((at,),) = await self._engine.fetch(inbox.LAST_MESSAGE, write_key(key), group=key.parent)
        return moment(at) if at is not None else None

    async def session(self, key: SessionKey) -> SessionRow:
        """Return the key's session, created if missing, for records outside the session queue."""
        column, now = write_key(key), self._engine.now()
        return await self._engine.writer.submit(
            lambda database: session_queue.open_session(database, key, column, now, new_transcript), group=key.parent
        )

    async def waiting_rows(self, key: SessionKey, *, sender: str = "") -> tuple[InboxRow, ...]:
        """Return the accepted lane rows of *key* that have not ended, in order, running ones included."""
        return await self._engine.writer.submit(
            lambda database: inbox.waiting_rows(database, write_key(key), quote(sender)), group=key.parent
        )

    async def drop(self, key: SessionKey, *, sender: str = "", before: int = sys.maxsize) -> int:
        """End the unclaimed rows of *key*, or those of one sender, as stopped; return their number.

        Rows from the seq *before* on stay: those of messages that came after the one that stops others.
        An unclaimed turn that had begun is not among them: it gets the step STOP_WANTED.
        """
        now = self._engine.now()
        return await self._engine.writer.submit(
            lambda database: inbox.drop(database, write_key(key), quote(sender), before, now)
        )

    def calling(self, usage: UsageRow) -> None:
        """Note a running model call: *usage* is an estimate, its `call` a unique name. Returns at once.

        The note remains if a kill interrupts the call. It is written if the call takes longer than
        `CALL_NOTED_AFTER`, and waits for another transaction for at most a quarter of a second.
        """

        def note() -> None:
            columns = encode_usage(usage)
            self._calls[usage.call] = None
            self._engine.writer.submit_nowait(
                lambda database: insert_usage(database, columns), group=usage.turn, within=_NOTE_WITHIN
            )

        timer = asyncio.get_running_loop().call_later(CALL_NOTED_AFTER.total_seconds(), note)
        self._calls[usage.call] = timer

    def spend(self, usage: UsageRow) -> None:
        """Store a usage row with the next batch, before any later commit; returns at once.

        One with a `call` takes the place of the estimate that `calling` may have stored.
        """
        columns = encode_usage(usage)
        timer = self._calls.pop(usage.call, None)
        if timer is not None:  # nothing is stored yet that this row would replace
            timer.cancel()
            columns = (*columns[:10], "", columns[11])
        self._engine.writer.submit_nowait(
            lambda database: settle_usage(database, columns), group=usage.turn, within=_USAGE_WITHIN
        )

    async def trace(self, reference: str) -> TurnTrace | None:
        """Return the trace of the turn whose id begins with *reference*."""
        return await self._engine.writer.submit(lambda database: inspection.trace_turn(database, quote(reference)))

    async def find_turns(self, query: TurnQuery) -> tuple[TurnSummary, ...]:
        """Return the turns that *query* names among the newest 20,000, the newest first, running ones before."""
        return await self._engine.writer.submit(lambda database: inspection.find_turns(database, query))

    async def failed_turns(self, since: datetime, *, limit: int) -> tuple[TurnSummary, ...]:
        """Return the turns that failed since *since*, the newest first, among the newest 20,000."""
        return await self._engine.writer.submit(
            lambda database: inspection.failed_turns(database, micros(since), limit)
        )

    async def summarise_hours(self, since: datetime, until: datetime) -> tuple[HourSummary, ...]:
        """Return every hour from that of *since* to that of *until*, the oldest first."""
        span = (micros(since), micros(until))
        return await self._engine.writer.submit(lambda database: inspection.summarise_hours(database, *span))

    async def due_promises(self, key: SessionKey, scope: str, *, sender: str, limit: int) -> tuple[Promise, ...]:
        """Return the due promises in *key* and the chats of *scope*, of *sender* or ("") of all, the oldest first."""
        place = (quote(scope), write_key(key), quote(sender))
        return await self._engine.writer.submit(lambda database: inspection.due_promises(database, *place, limit))

    async def ended_promises(self, key: SessionKey, scope: str, *, sender: str, limit: int) -> tuple[Promise, ...]:
        """Return the ended promises in *key*, of *sender* or ("") of all, the newest first."""
        place = (quote(scope), write_key(key), quote(sender))
        return await self._engine.writer.submit(lambda database: inspection.ended_promises(database, *place, limit))

    async def all_due_promises(self, limit: int) -> tuple[Promise, ...]:
        """Return the due promises of all chats, the oldest first."""
        return await self._engine.writer.submit(lambda database: inspection.all_due_promises(database, limit))

    async def scheduled_runs(
        self, keys: Collection[SessionKey], message_prefix: str, *, limit: int
    ) -> tuple[ScheduledRun, ...]:
        """Return the runs in the sessions *keys* of what fires as messages with ids that begin with *message_prefix*.

        The newest comes first.
        """
        names = {inbox.job_name(key, message_prefix) for key in keys}
        return await self._engine.writer.submit(lambda database: inspection.scheduled_runs(database, names, limit))

    async def late_promises(self, before: datetime) -> LatePromises:
        """Return the promises that were accepted, or due, before *before* and have not ended."""
        return await self._engine.writer.submit(lambda database: inspection.late_promises(database, micros(before)))

    async def depth(self) -> Mapping[str, Any]:
        """Return counters for /status, /readyz and metrics: queued, oldest_seconds, undelivered, dead, unwritten.

        `commits` counts the transactions that were made durable since the start.
        """
        now = self._engine.now()
        counted = await self._engine.writer.submit(lambda database: inspection.queue_depth(database, now))
        return counted | {"unclean_stops": self._engine.unclean_stops, "commits": self._engine.writer.commits}
