"""The facts of one turn, derived once at claim, and the turns that run now.

The scope is locked from the claim to the commit, so the scope of a `Turn` is the one in which its record is stored. A
changed setting, choice or account link takes effect with the next turn.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from cachetools import LRUCache

from agent.attachments.transcription import UsageAttribution
from agent.chat_profiles import ChatProfile
from agent.task_group import task_group
from agent.tools.tool_questions import ToolQuestion, allowed_question
from agent.turn_draft import TurnDraft
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Role, SessionKey
from gateway.ports import InboxRow, TurnLease
from gateway.ports.caps import CappedSender

if TYPE_CHECKING:
    from gateway.store.journal import SqlJournal


RETRY_PREFIX = "job:retry/"  # of a message id; then the turn that is answered again, and the row of the command


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The sender, chat, memory scope and settings of a turn.

    A changed setting, choice, role or account link takes effect on the next turn.
    """

    lease: TurnLease
    account: PlatformAccount  # the sender, whichever bot they wrote to; usage is charged to it
    person: str  # the person the account belongs to: itself unless accounts are linked
    accounts: tuple[PlatformAccount, ...]  # all accounts of the person, the oldest first
    scope: str  # memory scope; locked against being moved while the turn runs
    role: Role
    is_admitted: bool  # False: the sender lost the right to write while the message waited
    is_named: bool  # an owner, or admitted by their own id
    language: str  # of the chat, for our own sentences
    zone: str  # IANA time zone of the memory scope
    profile: ChatProfile  # model, tools, persona and window that the chat's settings choose
    capped_sender: CappedSender  # the sender and the chat's caps, for the usage caps

    @property
    def id(self) -> str:
        """The turn's id."""
        return self.lease.turn

    @property
    def key(self) -> SessionKey:
        """The session."""
        return self.lease.key

    @property
    def row(self) -> InboxRow:
        """The first inbox row: its sender is the turn's one principal."""
        return self.lease.rows[0]

    @property
    def message(self) -> InboundMessage:
        """The first message."""
        return self.lease.rows[0].message

    @property
    def is_shared(self) -> bool:
        """True in a chat of several people."""
        return self.message.chat_kind is ChatKind.GROUP

    @property
    def allowed(self) -> ToolQuestion | None:
        """The call that a person allowed, in the turn that runs it."""
        return allowed_question(self.message)

    @property
    def retried(self) -> str:
        """The id of the turn that this one answers again; empty except for /retry."""
        return retried_turn(self.message.message_id)

    @property
    def attribution(self) -> UsageAttribution:
        """The account, chat and turn that model calls are charged to."""
        return UsageAttribution(self.id, self.account, str(self.key))


def retried_turn(message_id: str) -> str:
    """Return the turn that a retry's message answers again; empty for any other message."""
    return message_id.removeprefix(RETRY_PREFIX).split("/")[0] if message_id.startswith(RETRY_PREFIX) else ""


_MOST_STAGE_TIMES = 2_000  # turns
_STOP_WITHIN = 5.0  # seconds that /stop waits for the turn's end before it answers


class TurnPhases:
    """The phases in which a turn does its own work, one after the other; see `WorkerSlots`."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        """*start* returns the context of one phase."""
        self._start = start
        self._running: AbstractAsyncContextManager[object] | None = None

    async def __aenter__(self) -> TurnPhases:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """End the phase for the block, and start another one behind it."""
        await self._end()
        try:
            yield
        finally:
            await self._begin()

    async def _begin(self) -> None:
        phase = self._start()
        await phase.__aenter__()
        self._running = phase

    async def _end(self) -> None:
        phase, self._running = self._running, None
        if phase is not None:
            await phase.__aexit__(None, None, None)


@dataclass(slots=True)
class RunningTurn:
    """The mutable state of a claimed turn."""

    lease: TurnLease
    stop_wanted: bool = False  # /stop: end as stopped
    is_committing: bool = False  # past this point /stop is "already answered"
    tool: str = ""  # the tool that is running
    draft: TurnDraft | None = field(default=None, repr=False)  # None until the prompt is assembled
    stage_times: dict[str, datetime] = field(default_factory=dict)  # when each stage began
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    phases: TurnPhases | None = field(default=None, repr=False)

    def pause(self) -> AbstractAsyncContextManager[None]:
        """Return the context in which the turn waits for a model."""
        return nullcontext() if self.phases is None else self.phases.pause()

    def is_told(self, sender: str, before: int) -> bool:
        """Return True if a /stop for *sender*, or for all if empty, in the inbox row *before* means this turn."""
        first = self.lease.rows[0]
        return first.seq < before and sender in ("", first.message.sender.id)

    def stop(self) -> bool:
        """Ask the turn to end as stopped; return False if its answer is already being stored."""
        if self.stop_wanted:  # a second cancel would hit the commit of the first
            return True
        if self.is_committing or self.task is None:
            return False
        self.stop_wanted = True
        self.task.cancel()
        return True


class RunningTurns:
    """Running turns by session, and stopping them."""

    def __init__(self, journal: SqlJournal) -> None:
        self._journal = journal
        self._running: dict[SessionKey, RunningTurn] = {}
        self._stop_when_claimed: set[str] = set()  # turn ids
        self.active: set[SessionKey] = set()  # sessions that a worker runs or will run a turn of
        self._stage_times: LRUCache[str, Mapping[str, datetime]] = LRUCache(_MOST_STAGE_TIMES)

    def add(self, running: RunningTurn) -> bool:
        """Register a claimed turn; return False if /stop asked for its end before it was claimed."""
        self._running[running.lease.key] = running
        if running.lease.turn not in self._stop_when_claimed:
            return True
        self._stop_when_claimed.discard(running.lease.turn)
        running.stop_wanted = True
        return False

    def remove(self, key: SessionKey) -> None:
        """Forget the turn of *key*, which has ended, but for the times of its stages."""
        running = self._running.pop(key, None)
        if running is not None:
            self._stage_times[running.lease.turn] = running.stage_times

    def stage_times(self, turn: str) -> Mapping[str, datetime]:
        """Return when each stage of *turn* began; empty for turns from before the start, and for old ones."""
        running = (each.stage_times for each in self._running.values() if each.lease.turn == turn)
        return next(running, self._stage_times.get(turn, {}))

    def get(self, key: SessionKey) -> RunningTurn | None:
        """Return the running turn of *key*."""
        return self._running.get(key)

    def __len__(self) -> int:
        return len(self._running)

    async def stop(self, key: SessionKey, *, sender: str = "", before: int = sys.maxsize) -> tuple[bool, int]:
        """Stop the running turn and the queue of *key*; with *sender* only that sender's.

        Messages from the inbox row *before* on go on: a kill repeats a /stop, after which people have written more.
        Return whether a turn was stopped, and the number of queued messages that were.
        """
        dropped = await self._journal.drop(key, sender=sender, before=before)
        if key not in self._running:
            # A turn that started before a crash and is not claimed again yet.
            queued = await self._journal.waiting_rows(key)
            told = (row for row in queued if row.seq < before and sender in ("", row.message.sender.id))
            interrupted = {row.turn for row in told if row.turn}
            if interrupted and key not in self._running:
                self._stop_when_claimed |= interrupted
                return True, dropped
        running = self._running.get(key)
        if running is None or not running.is_told(sender, before):
            return False, dropped
        if not running.stop() or running.task is None:
            return False, dropped
        # The answer to /stop is stored after the turn's end: a kill in between repeats /stop and does not lose it.
        await asyncio.wait({running.task}, timeout=_STOP_WITHIN)
        return True, dropped

    async def stop_in_threads(self, chat: SessionKey, *, sender: str, before: int) -> tuple[bool, int]:
        """Stop what *sender* has running and queued in the threads of *chat*; return as `stop` does."""
        threads = [key for key in {*self._running, *self.active} if key.parent == chat != key]
        async with task_group() as tasks:
            stops = [
                tasks.create_task(self.stop(key, sender=sender, before=before), name=f"stop {key}") for key in threads
            ]
        results = [each.result() for each in stops]
        return any(stopped for stopped, _ in results), sum(dropped for _, dropped in results)
