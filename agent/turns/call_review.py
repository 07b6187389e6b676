"""Reviews tool calls before they run: effects that may have happened, rights, daily caps, questions to a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from agent.files.outgoing_files import OutgoingFiles
from agent.llm.chat_model import ToolCall
from agent.tools.rights import CallVerdict, RefusalRule
from agent.tools.tool import OUTCOME_UNKNOWN, CallFacts, ToolKind
from agent.tools.tool_questions import LIFETIME, RUN_LIFETIME, StandingDecisions, ToolQuestion, question_id
from agent.turns.turn import Turn
from agent.turns.turn_draft import StagedEffects
from gateway.errors import ToolFailed
from gateway.events import InboundKind
from gateway.ports.access import ToolCallCaps
from gateway.text.message_text import clean_name

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs


WAITING = "waiting for approval"
_IN_DOUBT = "not run: the same call was already made in this turn and may have happened; ask the person first"


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call, for the model, and what the call staged."""

    text: str
    effects: StagedEffects | None = None
    is_untrusted: bool = False
    is_error: bool = False
    rule: RefusalRule | None = None  # that refused the call
    seconds: float = 0.0  # that it ran


class CallReviewer:
    """Lets calls run, refuses them, or asks a person."""

    def __init__(
        self, *, outgoing: OutgoingFiles, jobs: SqlJobs, caps: ToolCallCaps, now: Callable[[], datetime]
    ) -> None:
        self._outgoing = outgoing
        self._decisions = StandingDecisions(jobs)
        self._caps = caps
        self._now = now

    async def review(self, turn: Turn, call: ToolCall) -> CallResult | None:
        """Return the result of a call that must not run now; None for one that runs, which is counted."""
        draft, toolbox = turn.draft, turn.profile.toolbox
        if call.id in draft.intents:  # whatever the tool is now
            return CallResult(OUTCOME_UNKNOWN)
        if not toolbox.is_repeatable(call) and any(toolbox.is_same(call, each) for each in draft.doubtful_calls):
            return CallResult(_IN_DOUBT, rule=RefusalRule.DOUBT)
        decisions = await self._decisions_about(turn, call)
        # From here on nothing waits until the call is counted, where one gateway counts: calls that run side by side
        # stay below the cap. Of several gateways, the count itself says whether the call still may run.
        kind, facts = toolbox.capped_as(call), self._facts(turn, call, decisions)
        verdict = toolbox.review(call, facts)
        if kind is not None and not verdict.refusal and verdict.question is None:
            exceeded = await self._caps.count_tool_call(
                kind,
                turn=turn.id,
                call=draft.call_key(call),
                accounts=turn.accounts,
                account=turn.account,
                chat=str(turn.key),
            )
            if exceeded is not None:
                verdict = toolbox.review(call, replace(facts, exceeded_limit=exceeded.limit))
        if verdict.refusal:
            if verdict.rule is RefusalRule.CAP and kind is not None:
                self._caps.note_tool_refusal(kind)
            return CallResult(verdict.refusal, rule=verdict.rule)
        if verdict.question is not None:
            return await self._ask(turn, call, verdict)
        return None

    async def verdict(self, turn: Turn, call: ToolCall) -> CallVerdict:
        """Return whether *call* may run, without any effect: nothing is counted, staged or asked."""
        decisions = await self._decisions_about(turn, call)
        return turn.profile.toolbox.verdict(call, self._facts(turn, call, decisions))

    def _facts(self, turn: Turn, call: ToolCall, decisions: Mapping[tuple[str, str, str], bool]) -> CallFacts:
        allowed = turn.allowed
        kind = turn.profile.toolbox.capped_as(call)
        exceeded = (
            None if kind is None else self._caps.exceeded_tool_cap(kind, turn.accounts, call=turn.draft.call_key(call))
        )
        return CallFacts(
            role=turn.role,
            chat_kind=turn.message.chat_kind,
            is_untyped=_is_untyped(turn),
            is_tainted=turn.draft.is_tainted_call(call),
            turn=turn.id,
            call=call.id,
            sender=turn.message.sender.id,
            lines=turn.all_lines,
            can_attach=self._outgoing.can_send(turn.key),
            exceeded_limit=exceeded.limit if exceeded is not None else 0,
            decisions=decisions,
            allowed_schema=allowed.schema if allowed is not None and call.id == allowed.id else "",
        )

    async def _decisions_about(self, turn: Turn, call: ToolCall) -> Mapping[tuple[str, str, str], bool]:
        """Return the standing decisions of the turn's person here, if *call* could ask."""
        if turn.is_shared or not turn.profile.toolbox.can_ask(call):
            return {}
        return await self._decisions.verdicts(turn.scope, turn.key, turn.account.name)

    async def _ask(self, turn: Turn, call: ToolCall, verdict: CallVerdict) -> CallResult:
        """Stage the question about *call*, with a file if its arguments are long; return the call's result."""
        effects = StagedEffects()
        question = self._question(turn, call, verdict)
        if question.attached:
            try:
                await turn.bind_files(self._outgoing, effects)(question.file_name, question.attached)
            except ToolFailed as error:
                text = f"not run: a person must be shown the whole call, and {error}"
                return CallResult(text, effects, rule=RefusalRule.LENGTH)
        effects.ask = asdict(question)
        return CallResult(WAITING, effects)

    def _question(self, turn: Turn, call: ToolCall, verdict: CallVerdict) -> ToolQuestion:
        message, toolbox = turn.message, turn.profile.toolbox
        inner = toolbox.inner(call)
        is_program = toolbox.kind_of(call) is ToolKind.RUN
        lifetime = RUN_LIFETIME if is_program else LIFETIME
        return ToolQuestion(
            id=question_id(turn.id, call.id),
            key=str(turn.key),
            turn=turn.id,
            sender=message.sender.id,
            sender_name=clean_name(message.sender.name),
            team=message.sender.team,
            chat_kind=str(message.chat_kind),
            is_private=message.is_private,
            guild=message.guild,
            is_untyped=_is_untyped(turn),
            tool=inner.name,
            arguments=inner.arguments,
            schema=toolbox.schema_digest(call),
            why=str(verdict.question),
            subject=verdict.subject,
            can_last=verdict.can_last,
            is_for_owner=verdict.is_for_owner,
            is_personal=verdict.is_personal,
            costs=toolbox.costs_of(call),
            seconds=int(lifetime.total_seconds()),
            at=self._now().isoformat(timespec="seconds"),
        )


def _is_untyped(turn: Turn) -> bool:
    """Return True if no message of the person led to the turn; a yes to a job's call does not change that."""
    if (allowed := turn.allowed) is not None:
        return allowed.is_untyped
    return turn.message.kind is InboundKind.JOB and not turn.retried
