"""Stage 7, think: ask the model, run its tools, until there is one answer. Every step is stored as it happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from agent.chat_profiles import ChatProfile
from agent.llm.chat_model import ChatReply, ChatRequest, ToolCall
from agent.prompt_fitter import PromptFitter
from agent.tools.tool import OUTCOME_UNKNOWN, ToolContext
from agent.tools.toolbox import LoopDetector
from agent.turn_draft import StagedEffects, TurnDraft
from gateway.errors import ContextOverflow, ModelFailed
from gateway.i18n.failures import BY_NAME, FailureMessage, failure_of
from gateway.ports import InboxRow, Preview, TurnLease, TurnStep
from gateway.ports.caps import CapReached, ExceededCap

log = structlog.get_logger(__name__)

_NO_MORE = "not run: the limit of tool calls for this answer is reached; answer now with what you have"
_SQUEEZES = 4  # times that a refused prompt is made smaller
_IN_DOUBT = "not run: the same call was already made in this turn and may have happened; ask the person first"
_AGAIN = "not run: the same call with the same arguments was already made; answer now with what you have"


class StepStore(Protocol):
    """Where steps become durable; waits for a store that is down instead of failing."""

    async def step(self, lease: TurnLease, step: TurnStep) -> None:
        """Store one step."""
        ...

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:
        """Take what the sender wrote meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What thinking came to: an answer, or the failure or the cap to tell of instead."""

    text: str
    failure: FailureMessage | None = None
    is_cut: bool = False  # the model's limit or ours ended the text early
    past: ExceededCap | None = None  # the cap that left no room for another call


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopContext:
    """What one turn thinks with."""

    lease: TurnLease
    person: str
    language: str  # of what we say ourselves in the chat
    manner: ChatProfile
    draft: TurnDraft
    fitting: PromptFitter  # the prompt
    preview: Preview
    is_watched: bool  # streaming costs CPU; only where somebody sees it
    context: Callable[[ToolCall, StagedEffects], ToolContext]
    render: Callable[[Sequence[InboxRow]], Awaitable[list[Mapping[str, Any]]]]  # steered rows as user lines
    show: Callable[[Sequence[Mapping[str, Any]]], Awaitable[Sequence[Mapping[str, Any]]]]  # puts pictures in
    doing: Callable[[str], None]


class AgentLoop:
    """The tool loop; holds no state between turns."""

    def __init__(self, *, max_calls: int, steer: bool, store: StepStore, redact: Callable[[str], str]) -> None:
        self._max_calls = max_calls
        self._steer = steer
        self._store = store
        self._redact = redact  # keeps our own secrets out of the transcript and of what is sent

    async def think(self, seat: LoopContext) -> LoopResult:
        """Return exactly one answer or failure, whatever the model does."""
        detector = LoopDetector()
        was_last = [detector.is_repeated(call) for call in seat.draft.finished_calls]
        try:
            return await self._rounds(seat, detector, is_last=any(was_last))
        except ModelFailed as error:
            log.warning("turn.model_failed", turn=seat.lease.turn, error=type(error).__name__)
            return LoopResult("", failure_of(error))
        except CapReached as reached:
            log.info("turn.capped", turn=seat.lease.turn, cap=str(reached))
            return LoopResult("", past=reached.past)

    async def _rounds(self, seat: LoopContext, detector: LoopDetector, *, is_last: bool) -> LoopResult:
        is_last = await self._run_calls(seat, detector) or is_last
        await self._take_in(seat, seat.draft.unseen_rows)
        while True:
            reply = await self._ask(seat)
            if is_last or not reply.tool_calls:
                nothing = BY_NAME["loop" if reply.tool_calls else "empty"]
                return LoopResult(reply.text, is_cut=reply.is_cut) if reply.text.strip() else LoopResult("", nothing)
            await self._store_opening(seat)
            await self._store.step(seat.lease, seat.draft.model(reply))
            is_last = await self._run_calls(seat, detector)
            if self._steer and not is_last:
                await self._take_in(seat, await self._store.steer(seat.lease))

    async def _ask(self, seat: LoopContext) -> ChatReply:
        """Ask with a prompt that fits; one that is refused as too long is made smaller, a few times."""
        room = await seat.manner.model.room()
        for _ in range(_SQUEEZES):
            await self._squeeze(seat, room)
            try:
                return await self._ask_once(seat)
            except ContextOverflow:
                # The client has learned from it; a fallback model may take even less.
                room = min(await seat.manner.model.room(), seat.fitting.weight * 3 // 4)
                if not await self._squeeze(seat, room):
                    raise
        return await self._ask_once(seat)

    async def _ask_once(self, seat: LoopContext) -> ChatReply:
        request = ChatRequest(
            messages=await seat.show(seat.fitting.messages),
            tools=seat.manner.toolbox.schemas,
            turn=seat.lease.turn,
            person=seat.person,
            language=seat.language,
            chat=str(seat.lease.key),
            weight=seat.fitting.weight,
        )

        def show(text: str) -> None:
            seat.draft.streamed = text if text.strip() else seat.draft.streamed
            seat.preview.show(text)

        reply = await seat.manner.model.complete(request, sink=show if seat.is_watched else None)
        return replace(reply, text=self._redact(reply.text))

    async def _squeeze(self, seat: LoopContext, room: int) -> bool:
        """Make the prompt fit and record how; False when it fits already, or nothing makes it smaller."""
        before = seat.fitting.weight
        lines = seat.fitting.squeeze(room)
        if not lines:
            return False
        step = seat.draft.shrink(lines)
        seat.fitting.was_shrunk()
        log.info("turn.squeezed", turn=seat.lease.turn, room=room, before=before, after=seat.fitting.weight)
        if step is not None:
            await self._store.step(seat.lease, step)
        return seat.fitting.weight < before

    async def _store_opening(self, seat: LoopContext) -> None:
        opening = seat.draft.take_opening()
        if opening is not None:
            await self._store.step(seat.lease, opening)

    async def _run_calls(self, seat: LoopContext, detector: LoopDetector) -> bool:
        """Run the calls that have no result yet; True when the model must answer now."""
        is_last = False
        for call in seat.draft.open_calls:
            if len(seat.draft.finished_calls) >= self._max_calls:
                text, is_last = _NO_MORE, True
            elif detector.is_repeated(call):
                text, is_last = _AGAIN, True
            else:
                await self._run_call(seat, call)
                continue
            await self._store.step(seat.lease, seat.draft.result(call, text))
        return is_last or len(seat.draft.finished_calls) >= self._max_calls

    async def _run_call(self, seat: LoopContext, call: ToolCall) -> None:
        staged, is_untrusted, toolbox = StagedEffects(), False, seat.manner.toolbox
        is_repeatable = toolbox.is_repeatable(call.name)
        if not is_repeatable and call.id in seat.draft.intents:
            text = OUTCOME_UNKNOWN
        elif not is_repeatable and any(toolbox.is_same(call, each) for each in seat.draft.doubtful_calls):
            text = _IN_DOUBT
        else:
            if not is_repeatable:
                await self._store.step(seat.lease, seat.draft.intent(call))
            seat.doing(call.name)
            seat.preview.status(call.name)
            try:
                outcome = await toolbox.run(call, seat.context(call, staged))
            finally:
                seat.doing("")
                seat.preview.status("")
            text, is_untrusted = outcome.text, outcome.is_untrusted or staged.is_untrusted
        await self._store.step(seat.lease, seat.draft.result(call, text, staged, is_untrusted=is_untrusted))

    async def _take_in(self, seat: LoopContext, rows: Sequence[InboxRow]) -> None:
        if rows:
            await self._store.step(seat.lease, seat.draft.steer(rows, await seat.render(rows)))
