"""The seeds' MemoryStore ([000], [001]): a workspace's MEMORY.md and its history, without the losses of the originals.

For programs that use Parlour's memory as a library. It writes under the same locks as a gateway does, so that both
may be at work on one folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo

import structlog

from agent.memory.consolidation.consolidation_request import request_consolidation
from agent.memory.consolidation.consolidation_state import (
    FAILURES_BEFORE_RAW,
    ConsolidatedRange,
    ConsolidationState,
    ConsolidationStateStore,
    StoredAnswer,
    name_of,
)
from agent.memory.consolidation.memory_reviser import revise
from agent.memory.editing.memory_file import MEMORY_MD, MemoryFile
from agent.memory.editing.merge import BUDGET
from agent.memory.editing.staged_changes import stage_for_approval
from agent.memory.editing.three_way_merge import MergeConflict, three_way
from agent.memory.history.history_log import HistoryEntry, HistoryLog
from agent.memory.history.history_markdown import HISTORY_MD
from agent.memory.messages.message_range import (
    UNTRUSTED,
    KeepPolicy,
    Message,
    MessageRange,
    conversation,
    entry_id,
    next_range,
    origin_of,
)
from agent.memory.messages.taint import strip_untrusted
from agent.memory.model_calls import LlmProvider, UnusableAnswer
from agent.memory.session_manager import Session
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import utc_now

log = structlog.get_logger(__name__)

DEADLINE = timedelta(seconds=120)
_TRIES = 3  # of a compare-and-set before the rest waits
_TOO_LARGE = 8  # budgets: such a MEMORY.md is somebody's data; no model is sent it, and none rewrites it


class MemoryStore:
    """What a workspace remembers: `memory/MEMORY.md` and `memory/HISTORY.md`, the latter over `history.jsonl`.

    Everything but `consolidate` blocks. Times in the history are of *zone*; *budget* is that of MEMORY.md, in
    characters.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        zone: str = "UTC",
        budget: int = BUDGET,
        keep: KeepPolicy = KeepPolicy.HALF,
        deadline: timedelta = DEADLINE,
        disk: Disk | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.memory_dir = Path(workspace) / "memory"
        self.memory_file = self.memory_dir / MEMORY_MD
        self.history_file = self.memory_dir / HISTORY_MD
        self._disk = disk or Disk()
        self._zone, self._budget, self._keep, self._deadline, self._now = zone, budget, keep, deadline, now
        self._disk.make_folder(self.memory_dir)
        self._memory = MemoryFile(self.memory_dir, self._disk)
        self._history = HistoryLog(self.memory_dir, self._disk, now=self._local_now)
        self._pending = ConsolidationStateStore(self.memory_dir, self._disk)
        self._read: tuple[str, str] | None = None  # text and rev, as the last caller knew them
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- the methods of [001] ----------------------------------------------------------------------

    def read_long_term(self) -> str:
        """Return MEMORY.md, or an empty string."""
        self._read = self._memory.read()
        return self._read[0]

    def write_long_term(self, content: str) -> None:
        """Make *content* the whole of MEMORY.md; what somebody wrote since it was last read here survives beside it.

        Where both changed the same entry, theirs stays and ours goes to a conflict copy. Raises OSError.
        """
        while True:
            text, rev = self._memory.read_settled()
            made, conflicts = content, tuple[MergeConflict, ...]()
            if self._read is not None and self._read[1] != rev:
                both = three_way(self._read[0], content, text)
                made, conflicts = both.text, both.conflicts
            self._memory.keep_conflicts(conflicts)
            if (written := self._memory.write(made, was=rev)) is not None:
                self._read = (made, written)
                return

    def append_history(self, entry: str) -> None:
        """Add an entry to the history; one that does not begin with a time gets it. Raises OSError."""
        content = entry.strip()
        if content:
            now = self._now()
            made = entry_id(f"{content} {now.isoformat()}", 0, self._disk.size(self.history_file) or 0)
            self._history.append(HistoryEntry(timestamp=self._time(now), content=content, origin="owner", entry=made))

    def get_memory_context(self) -> str:
        """Return MEMORY.md under its heading, for a system prompt; an empty string when nothing is remembered."""
        long_term = self._memory.read()[0]
        return f"## Long-term Memory\n{long_term}" if long_term else ""

    async def consolidate(
        self,
        session: Session,
        provider: LlmProvider,
        model: str,
        *,
        archive_all: bool = False,
        memory_window: int = 50,
    ) -> bool:
        """Summarise the session's older messages; return whether they are safe outside of it now.

        False means that nothing was changed and it can be tried again; what was paid for is not paid for twice. After
        three failures the messages themselves go to a raw archive, which counts as safe. Messages that come
        meanwhile are not touched. The pointer moves in *session*; saving it is the caller's. One per session
        at a time.
        """
        lock = self._busy.setdefault(session.key, asyncio.Lock())
        async with lock:
            try:
                return await self._consolidate(session, provider, model, archive_all, memory_window)
            except OSError as error:
                log.warning("consolidation.cannot_write", session=session.key, error=error.strerror)
                return False

    # -- one consolidation -------------------------------------------------------------------------

    async def _consolidate(
        self, session: Session, provider: LlmProvider, model: str, archive_all: bool, window: int
    ) -> bool:
        state = await asyncio.to_thread(self._resume, session.key)
        if self._follow(session, state.done) and not archive_all:
            return True
        total = len(session.messages)
        taken = next_range(total, session.last_consolidated, window, self._keep, archive_all=archive_all)
        if taken is None:
            return True
        if state.waits(self._now(), total) and not archive_all:
            log.info("consolidation.waits", session=session.key, failures=state.failures)
            return False
        # Copied before the model is called: what comes meanwhile is not in it, and not behind the pointer.
        old = [dict(message) for message in session.messages[taken.start : taken.end]]
        lines = conversation(old, zone=self._zone)
        if not lines:  # tool results alone, or forgotten
            state = await asyncio.to_thread(self._keep_raw, session.key, taken, old)
            return self._follow(session, state.done)
        base = (await asyncio.to_thread(self._memory.read))[0]
        answer = await request_consolidation(
            provider, model, base[: _TOO_LARGE * self._budget], lines, deadline=self._deadline
        )
        if isinstance(answer, UnusableAnswer):
            return await self._failed(session, state, total, taken, old, answer)
        transcript = name_of(session.key, old)
        stored = StoredAnswer(
            entry=entry_id(transcript, taken.start, taken.end),
            transcript=transcript,
            start=taken.start,
            end=taken.end,
            timestamp=self._time(self._now()),
            origin=origin_of(strip_untrusted(old)),
            base=base,
            history_entry=answer.history_entry,
            memory_update=answer.memory_update,
        )
        state = await asyncio.to_thread(self._store_and_apply, session.key, stored)
        self._follow(session, state.done)
        log.info("consolidation.done", session=session.key, start=taken.start, end=taken.end)
        return True

    async def _failed(
        self,
        session: Session,
        state: ConsolidationState,
        total: int,
        taken: MessageRange,
        old: Sequence[Message],
        answer: UnusableAnswer,
    ) -> bool:
        state = state.failed(self._now(), total)
        log.warning("consolidation.failed", session=session.key, reason=answer.reason, failures=state.failures)
        if state.failures < FAILURES_BEFORE_RAW:
            await asyncio.to_thread(self._pending.save, session.key, state)
            return False
        state = await asyncio.to_thread(self._keep_raw, session.key, taken, old)
        return self._follow(session, state.done)

    @staticmethod
    def _follow(session: Session, done: ConsolidatedRange | None) -> bool:
        """Move the session's pointer behind what is done; say whether it moved. Another session's it never moves."""
        if done is None or session.last_consolidated != done.start or len(session.messages) < done.end:
            return False
        if name_of(session.key, session.messages[done.start : done.end]) != done.transcript:
            return False
        session.last_consolidated = done.end
        return True

    # -- in a thread -------------------------------------------------------------------------------

    def _resume(self, session: str) -> ConsolidationState:
        """Finish what a process that is gone had paid for; return how far the session has come."""
        state = self._pending.load(session)
        return self._apply(session, state.answer) if state.answer is not None else state

    def _store_and_apply(self, session: str, answer: StoredAnswer) -> ConsolidationState:
        self._pending.save(session, ConsolidationState(answer=answer))
        return self._apply(session, answer)

    def _apply(self, session: str, answer: StoredAnswer) -> ConsolidationState:
        """Do what the answer says; every step may be done twice."""
        self._history.append(
            HistoryEntry(
                timestamp=answer.timestamp,
                content=answer.history_entry,
                session=session,
                start=answer.start,
                end=answer.end,
                origin=answer.origin,
                entry=answer.entry,
            )
        )
        self._remember(answer)
        state = ConsolidationState(done=ConsolidatedRange(answer.transcript, answer.start, answer.end))
        self._pending.save(session, state)
        return state

    def _remember(self, answer: StoredAnswer) -> None:
        """Bring the answer into MEMORY.md; what may not go in without a yes, or has lost every race, is staged."""
        if answer.origin == UNTRUSTED:
            self._stage(answer, "untrusted")
            return
        if len(answer.base) > _TOO_LARGE * self._budget:
            self._stage(answer, "too large")
            return
        for _ in range(_TRIES):
            now, rev = self._memory.read_settled()
            revision = revise(answer.base, answer.memory_update, now, budget=self._budget)
            self._memory.keep_conflicts(revision.conflicts)
            if revision.text == now or self._memory.write(revision.text, was=rev) is not None:
                if (staged := revision.merged.staged) is not None:
                    stage_for_approval(self.memory_dir, self._disk, answer.entry, staged.why, self._now(), staged)
                return
        self._stage(answer, "busy")

    def _stage(self, answer: StoredAnswer, why: str) -> None:
        log.warning("consolidation.staged", entry=answer.entry, why=why)
        stage_for_approval(self.memory_dir, self._disk, answer.entry, why, self._now(), proposed=answer.memory_update)

    def _keep_raw(self, session: str, taken: MessageRange, old: Sequence[Message]) -> ConsolidationState:
        """Put the messages themselves away, and say so in the history."""
        transcript = name_of(session, old)
        self._history.keep_raw(
            HistoryEntry(
                timestamp=self._time(self._now()),
                content=f"[raw] {len(old)} messages ({taken.start} to {taken.end - 1}) are kept as they were: "
                "no summary could be made of them.",
                session=session,
                start=taken.start,
                end=taken.end,
                origin=origin_of(old),
                entry=entry_id(transcript, taken.start, taken.end),
            ),
            old,
        )
        state = ConsolidationState(done=ConsolidatedRange(transcript, taken.start, taken.end))
        self._pending.save(session, state)
        return state

    def _local_now(self) -> datetime:
        return self._now().astimezone(ZoneInfo(self._zone))

    def _time(self, at: datetime) -> str:
        return f"{at.astimezone(ZoneInfo(self._zone)):%Y-%m-%d %H:%M}"
