"""Usage caps, and the recorder that stores every model call."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import structlog

from agent.llm.chat_model import ChatReply, ChatRequest, Price, TokenUsage, estimate
from gateway.access.access_control import PersonQuotas
from gateway.access.usage_caps import ANSWER_TOKENS, COUNTED, CapLimits, UsageCapTracker
from gateway.ports.access import CapKind, CappedSender, Release, micro_dollars
from gateway.ports.journal import UsageRow

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime

log = structlog.get_logger(__name__)

T = TypeVar("T", int, float)
_NO_TOKENS = TokenUsage()
_ANSWER = "answer"  # transcriptions have no price before they are made


async def load_counts(app: Runtime) -> None:
    """Load what caps have counted until now; call it before the first turn. Raises StoreUnavailable."""
    store, caps = app.store, app.settings.caps
    limits = {CapKind.HOUSE_TOKENS: caps.tokens_per_day, CapKind.HOUSE_COST: _micros(caps.usd_per_day)}
    await app.caps.warm(store.caps, installation_limits=limits)
    await app.tool_calls.warm(store.usage)
    if store.shared_caps is not None:
        bases = (app.caps.hand_over(), app.tool_calls.hand_over(), await app.token_budget.hand_over())
        await store.shared_caps.start(bases)


def build_caps(app: Runtime) -> UsageCapTracker:
    """Build the tracker of caps, with the limits of the settings, chats and people."""
    settings = app.settings
    caps, quotas = settings.caps, PersonQuotas(app.store.access)

    def limits(sender: CappedSender) -> CapLimits:
        own, chat = sender.caps, sender.chat_caps
        return CapLimits(
            person_turns=_first(own.person_turns_per_10_min, caps.person_turns_per_10_min),
            person_tokens=_first(own.person_tokens_per_day, caps.person_tokens_per_day),
            chat_turns=_first(chat.chat_turns_per_10_min, caps.chat_turns_per_10_min),
            chat_tokens=_first(chat.chat_tokens_per_day, caps.chat_tokens_per_day),
            installation_tokens=caps.tokens_per_day,
            person_cost=_micros(_first(own.person_usd_per_day, caps.person_usd_per_day)),
            chat_cost=_micros(_first(chat.chat_usd_per_day, caps.chat_usd_per_day)),
            installation_cost=_micros(caps.usd_per_day),
            quota=quotas.of(sender.accounts),
        )

    return UsageCapTracker(
        limits=limits,
        zone=settings.timezone,
        now=app.now,
        meter=app.meter,
        refusals=app.refusals,
        shared_caps=app.store.shared_caps,
    )


def _first(chat_limit: T | None, installation_limit: T | None) -> T | None:
    return installation_limit if chat_limit is None else chat_limit


def _micros(usd: float | None) -> int | None:
    return None if usd is None else micro_dollars(usd)


class JournalUsageRecorder:
    """Implements `agent.llm.model_client.UsageRecorder` over the journal, the caps and the background budget.

    Each model call reserves its tokens, and its cost where a cap in money applies. It leaves one row in the journal
    however it ends.
    """

    def __init__(self, app: Runtime) -> None:
        self._app = app
        self.unpriced_models: set[str] = set()  # called under a cap in money, without a price
        self._run = secrets.token_hex(4)  # call ids of two runs differ
        self._numbers = count(1)

    async def begin_call(self, request: ChatRequest, model: str, price: Price | None = None) -> JournalCallRecord:
        """Open a call; raises CapReached when it exceeds a cap of the person who waits for it."""
        weight = request.weight or estimate(request).input
        tokens = TokenUsage(weight, request.max_tokens or ANSWER_TOKENS)
        if not (request.purpose in COUNTED and self._app.caps.has_cost_cap(request.turn)):
            price = None
        elif request.purpose == _ANSWER and (price is None or price(tokens) is None):
            self._note_unpriced(model)
        cost = price(tokens) if price is not None else None
        release: Release = _release_nothing
        if request.purpose in COUNTED:
            release = await self._app.caps.reserve(request.turn, tokens.input + tokens.output, micro_dollars(cost or 0))
        row = self._row(request, model, weight, cost)  # counted after a kill, like the tokens
        self._app.store.journal.calling(row)
        return JournalCallRecord(self, row, release, price)

    def _note_unpriced(self, model: str) -> None:
        if model not in self.unpriced_models:
            self.unpriced_models.add(model)
            log.warning("caps.model_without_price", model=model)

    def note_call(self, request: ChatRequest, model: str, usage: ChatReply) -> None:
        """Record a call that has ended and that no cap limits."""
        self.close(self._row(request, model, 0, None), _release_nothing, usage, was_refused=False)

    def _row(self, request: ChatRequest, model: str, weight: int, cost: float | None) -> UsageRow:
        return UsageRow(
            turn=request.turn,
            # An account without an id, as of a job, has a file name too ("%"), and is no person.
            person=request.account.name if request.account is not None and str(request.account) else "",
            chat=request.chat,
            purpose=request.purpose,
            model=model,
            tokens_in=weight,
            tokens_out=0,
            tokens_cached=0,
            cost=cost,
            at=self._app.now(),
            call=f"{self._run}.{next(self._numbers)}",
            is_own=self._app.caps.is_own(request.turn),
        )

    def close(
        self,
        row: UsageRow,
        release: Release,
        reply: ChatReply | None,
        *,
        was_refused: bool,
        price: Price | None = None,
    ) -> None:
        """Store the tokens of a finished call, and count them in place of its reservation.

        *price* is for calls under a cap in money that ended early: the cost of their tokens is estimated, too.
        """
        tokens = _NO_TOKENS if reply is None else reply.tokens
        cost = (0.0 if was_refused else None) if reply is None else reply.cost
        total = tokens.input + tokens.output
        if cost is None and total and price is not None:
            cost = price(tokens)
        self._app.caps.spend(
            turn=row.turn,
            person=row.person,
            chat=row.chat,
            purpose=row.purpose,
            tokens=total,
            cost=micro_dollars(cost or 0),
        )
        self._app.token_budget.note(row.purpose, row.turn, total)
        release()
        if cost:
            self._app.meter.count("model_cost_dollars", cost)
        elif cost is None:
            self._app.meter.count("model_unpriced")
        self._app.store.journal.spend(
            UsageRow(
                turn=row.turn,
                person=row.person,
                chat=row.chat,
                purpose=row.purpose,
                model=row.model if reply is None else reply.model,
                tokens_in=tokens.input,
                tokens_out=tokens.output,
                tokens_cached=tokens.cached,
                cost=cost,
                at=self._app.now(),
                call=row.call,
                is_own=row.is_own,
            )
        )


@dataclass(slots=True)
class JournalCallRecord:
    """An open model call."""

    recorder: JournalUsageRecorder
    row: UsageRow
    release: Release
    price: Price | None = None

    def end(self, usage: ChatReply | None, *, was_refused: bool = False) -> None:
        """Close the call with its reply, None where it failed (see the port)."""
        self.recorder.close(self.row, self.release, usage, was_refused=was_refused, price=self.price)


def _release_nothing() -> None:
    """Release a call that reserved nothing."""
