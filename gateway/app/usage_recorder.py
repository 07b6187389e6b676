"""The house's books: each model call is reserved, counted and left in the journal as a row, however it ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count

from agent.llm.chat_model import ChatReply, ChatRequest, TokenUsage, estimate
from agent.memory.jobs.token_budget import TokenBudget
from gateway.access.usage_caps import ANSWER_TOKENS, COUNTED, UsageCapTracker
from gateway.ports import MetricsRecorder, Store, UsageRow
from gateway.ports.caps import Release

_NOTHING = TokenUsage()


def _keep() -> None:
    """Release nothing."""


class JournalUsageRecorder:
    """Implements `agent.llm.usage_recorder.UsageRecorder` over the journal, the caps and the background budget."""

    def __init__(
        self,
        store: Store,
        purse: TokenBudget,
        caps: UsageCapTracker,
        meter: MetricsRecorder,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._purse = purse
        self._caps = caps
        self._meter = meter
        self._now = now
        self._run = secrets.token_hex(4)  # so that no call is named as one of another run
        self._numbers = count(1)

    def begin_call(self, request: ChatRequest, model: str) -> JournalCallRecord:
        """Open a call; raises CapReached when a person who waits for it has no room left."""
        weight = request.weight or estimate(request).input
        tokens = weight + (request.max_tokens or ANSWER_TOKENS)
        release = self._caps.reserve(request.turn, tokens) if request.purpose in COUNTED else _keep
        row = UsageRow(
            turn=request.turn,
            person=request.person,
            chat=request.chat,
            purpose=request.purpose,
            model=model,
            tokens_in=weight,
            tokens_out=0,
            tokens_cached=0,
            cost=None,
            at=self._now(),
            call=f"{self._run}.{next(self._numbers)}",
            is_own=self._caps.is_own(request.turn),
        )
        self._store.journal.calling(row)
        return JournalCallRecord(self, row, release)

    def close(self, row: UsageRow, release: Release, spent: ChatReply | None, *, was_refused: bool) -> None:
        """Store what a call took, and count it in the place of its reservation."""
        tokens = _NOTHING if spent is None else spent.tokens
        cost = (0.0 if was_refused else None) if spent is None else spent.cost
        took = tokens.input + tokens.output
        self._caps.spend(turn=row.turn, person=row.person, chat=row.chat, purpose=row.purpose, tokens=took)
        self._purse.note(row.purpose, row.turn, took)
        release()
        if cost:
            self._meter.count("model_cost_dollars", cost)
        elif cost is None:
            self._meter.count("model_unpriced")
        self._store.journal.spend(
            replace(
                row,
                model=row.model if spent is None else spent.model,
                tokens_in=tokens.input,
                tokens_out=tokens.output,
                tokens_cached=tokens.cached,
                cost=cost,
                at=self._now(),
            )
        )


@dataclass(slots=True)
class JournalCallRecord:
    """A call under way."""

    books: JournalUsageRecorder
    row: UsageRow
    release: Release

    def end(self, spent: ChatReply | None, *, was_refused: bool = False) -> None:
        """Close it with what it took (see the port)."""
        self.books.close(self.row, self.release, spent, was_refused=was_refused)
