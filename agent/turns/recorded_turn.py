"""A stored turn as it is replayed: recorded answers and results, in place of models, tools and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agent.base.transcript_lines import FORGOTTEN, kind_of
from agent.llm.chat_model import ChatReply, ChatRequest, Price, Sink, TokenUsage, ToolCall, estimate
from agent.llm.model_client import CallRecord, ModelClient
from agent.memory.prompt.prompt_window import is_trim
from agent.memory.storage.stored_sessions import RecordedTurn
from agent.turns.turn import Turn
from agent.turns.turn_draft import StagedEffects, TurnDraft
from agent.turns.turn_tools import CallResult, CallReviewer
from gateway.errors import NothingToReplay, ParlourError
from gateway.events import InboundMessage, SessionKey
from gateway.ports.access import ToolAllowance
from gateway.ports.journal import InboxRow, Line, TurnLease, TurnStep
from gateway.ports.metrics import TraceSpan

_NOT_RUN = "not run: this is a replay, and the recorded turn has no such call; answer with what you have"
_RAN, _ASKED = "ran", "a person was asked"
_ANSWER_TOKENS = 1_000  # that a request is expected to answer, as for caps
_UNBOUNDED = 1_000_000_000  # tokens: a recorded prompt is shortened as recorded only
# Refusals that are decided before a review, or that depend on what no longer is: the day's calls, a lost process.
_RULES_OF_LOOP = ("limit", "repeated", "waiting", "questions", "cap", "doubt")


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """Something that comes out otherwise today."""

    where: str  # "persona", "tool look", "call 2 (look)"
    then: str
    now: str


@dataclass(frozen=True, slots=True)
class OtherAnswer:
    """The answer of another model; of its calls only those that are recorded had a result."""

    model: str
    text: str
    calls: Sequence[tuple[ToolCall, bool]]  # with True for a recorded one
    tokens: TokenUsage
    cost: float | None  # US dollars; None = unknown
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayComparison:
    """A stored turn and the answer of another model."""

    question: str  # the messages that the turn answered
    model: str  # that was recorded; "" = unknown
    answer: str
    calls: Sequence[ToolCall]  # the recorded ones
    other: OtherAnswer


class ReplayStopped(ParlourError):
    """The next request could exceed the bound of a comparison."""


@dataclass(slots=True)
class ReplaySpending:
    """What requests to another model took, those that failed included."""

    tokens: TokenUsage = field(default_factory=TokenUsage)
    cost: float | None = 0.0  # US dollars; None = unknown

    def add(self, tokens: TokenUsage, cost: float | None) -> None:
        """Count a request that was made."""
        used = self.tokens
        self.tokens = TokenUsage(used.input + tokens.input, used.output + tokens.output, used.cached + tokens.cached)
        self.cost = None if self.cost is None or cost is None else self.cost + cost


@dataclass(slots=True, kw_only=True)
class ReplayBudget:
    """The bound of a comparison in US dollars or, without a known price, in tokens; 0 = none."""

    usd: float
    tokens: int
    spent: ReplaySpending = field(default_factory=ReplaySpending)

    def require(self, expected: TokenUsage, cost: float | None) -> None:
        """Raise ReplayStopped if a request of that size and cost would exceed the bound."""
        if self.usd and (self.spent.cost or 0.0) + (cost or 0.0) > self.usd:
            raise ReplayStopped(f"the next request could exceed the bound of ${self.usd:.2f}")
        used = self.spent.tokens
        if self.tokens and used.input + used.output + expected.input + expected.output > self.tokens:
            raise ReplayStopped(f"the next request could exceed the bound of {self.tokens:,} tokens")


@dataclass(slots=True)
class ReplayReport:
    """The result of a replay."""

    model: str  # that was recorded; "" = unknown
    answer: str
    replies: int  # recorded answers of the model, the ones with calls included
    differences: list[ReplayDifference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is not compared, and why
    other: OtherAnswer | None = None

    def compare(self, where: str, then: object, now: object) -> None:
        """Note a difference unless *then* and *now* are equal."""
        if then != now:
            self.differences.append(ReplayDifference(where, str(then), str(now)))


@dataclass(frozen=True, slots=True)
class RecordedLines:
    """The lines of a stored turn: its opening, and each answer of the model with the lines after it."""

    opening: Sequence[Line]
    replies: Sequence[Line]
    after: Sequence[Sequence[Line]]  # each reply: results, messages that arrived, lines that shortened the prompt

    @classmethod
    def read(cls, recorded: RecordedTurn) -> RecordedLines:
        """Sort the lines. Raises NothingToReplay for a turn without a model or with erased words."""
        block = recorded.block
        lines = [line for line in block.lines if kind_of(line) not in ("end", "notice", "cut")]
        if not any(kind_of(line) == "message" for line in lines):
            raise NothingToReplay(
                f"turn {block.turn} asked no model: it is a command or was ended before; there is nothing to replay"
            )
        said = [line for line in lines if kind_of(line) == "message"]
        if any(FORGOTTEN in str(line.get("content")) for line in said):
            raise NothingToReplay(
                f"words of turn {block.turn} were erased since (/forget, or a deleted message); it cannot be replayed"
            )
        opening: list[Line] = []
        replies: list[Line] = []
        after: list[list[Line]] = []
        for line in lines:
            if line.get("role") == "assistant":
                replies.append(line)
                after.append([])
            elif after:
                after[-1].append(line)
            else:
                opening.append(line)
        return cls(opening, replies, after)

    @property
    def is_answered(self) -> bool:
        """True if the last answer of the model was sent as it is."""
        last = self.replies[-1] if self.replies else None
        return last is not None and not any(last.get(name) for name in ("tool_calls", "stopped", "broken"))

    @property
    def question(self) -> str:
        """The messages that the turn answered."""
        said = [str(line.get("content") or "") for line in self.opening if line.get("role") == "user"]
        return "\n".join(filter(None, said))

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls of tools, in order."""
        return [
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for line in self.replies
            for call in line.get("tool_calls") or ()
        ]

    @property
    def answer(self) -> str:
        """The text of the last answer; "" without one."""
        return str(self.replies[-1].get("content") or "") if self.replies else ""


class RecordedResults:
    """The results of a stored turn instead of tools, and nothing stored."""

    def __init__(self, lines: RecordedLines, reviewer: CallReviewer | None, report: ReplayReport | None) -> None:
        """Compare decisions about calls with those of *reviewer*, in *report*; None = another model is asked."""
        self._lines = lines
        self._reviewer = reviewer
        self._report = report
        self._results = {
            str(line.get("tool_call_id")): line for each in lines.after for line in each if line.get("role") == "tool"
        }
        self._requests = lines.calls
        self._rounds = 0
        self.calls: list[tuple[ToolCall, bool]] = []
        self.failure = ""

    def start(self, turn: Turn) -> None:
        """Begin a run of the loop on *turn*."""
        self._turn = turn

    @property
    def draft(self) -> TurnDraft:
        """The draft that the loop made."""
        return self._turn.draft

    async def step(self, lease: TurnLease, *steps: TurnStep) -> None:  # noqa: ARG002 - nothing is stored
        """Shorten the prompt where it was shortened then."""
        if steps[-1].kind == "model":
            self._rounds += 1
        trims = [line for line in self._following if is_trim(line)]
        if steps[-1].kind == "result" and trims:
            self.draft.shrink(trims)
            self._turn.prompt.reload()

    def watch_messages(
        self,
        key: SessionKey,  # noqa: ARG002
        notify: Callable[[InboundMessage], None],  # noqa: ARG002 - what came then is in the opening
    ) -> AbstractContextManager[None]:
        """Nothing arrives."""
        return nullcontext()

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:
        """Return the messages that arrived at this point of the turn."""
        is_any = any(line.get("role") == "user" for line in self._following)
        return lease.rows[:1] if is_any else ()

    async def render_messages(
        self,
        turn: Turn,  # noqa: ARG002
        rows: Sequence[InboxRow],  # noqa: ARG002
    ) -> list[Line]:
        """Return these messages as they were rendered then."""
        return [line for line in self._following if line.get("role") == "user"]

    @property
    def _following(self) -> Sequence[Line]:
        return self._lines.after[self._rounds - 1] if 0 < self._rounds <= len(self._lines.after) else ()

    async def review(self, turn: Turn, call: ToolCall) -> CallResult:
        """Return the recorded result of *call*; no tool runs."""
        toolbox = turn.profile.toolbox
        name = (
            call.id
            if self._report is not None
            else next((each.id for each in self._requests if toolbox.is_same(each, call)), "")
        )
        line = self._results.get(name)
        self.calls.append((call, line is not None))
        if self._reviewer is not None and self._report is not None:
            verdict = await self._reviewer.verdict(turn, call)
            now = f"refused: {verdict.rule}" if verdict.refusal else _ASKED if verdict.question else _RAN
            problem = toolbox.problem(call)
            place = f"call {len(self.calls)} ({call.name})"
            if problem and line is not None and not line.get("error"):
                self._report.compare(place, _decision(line), f"would fail: {problem}")
            elif line is not None and line.get("refused") not in _RULES_OF_LOOP:
                self._report.compare(place, _decision(line), now)
        if line is None:
            return CallResult(_NOT_RUN)
        effects = StagedEffects(ask=line.get("ask"), pictures=list(line.get("files") or ()))
        return CallResult(
            str(line.get("content")),
            effects,
            is_untrusted=bool(line.get("origin")),
            is_error=bool(line.get("error")),
            rule=line.get("refused"),
        )


def _decision(line: Line) -> str:
    refused = line.get("refused")
    return f"refused: {refused}" if refused else _ASKED if line.get("ask") else _RAN


class RecordedModel:
    """A model that gives its recorded answers."""

    def __init__(self, replies: Sequence[Line], name: str) -> None:
        self.name = self.sized_as = name or "recorded"
        self._replies = list(replies)
        self.asked = 0

    @property
    def unused(self) -> int:
        """The number of answers that nothing asked for."""
        return max(len(self._replies) - self.asked, 0)

    async def window(self) -> int | None:
        """Return a window that nothing exceeds."""
        return _UNBOUNDED

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:  # noqa: ARG002
        """Return the next answer; an empty one after the last."""
        self.asked += 1
        line: Line = self._replies[self.asked - 1] if self.asked <= len(self._replies) else {}
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in line.get("tool_calls") or ()
        )
        return ChatReply(
            text=str(line.get("content") or ""),
            tool_calls=calls,
            model=self.name,
            tokens=TokenUsage(is_estimate=True),
            cost=0.0,
            thinking=line.get("thinking"),
        )

    async def warm(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class CountedModel(RecordedModel):
    """Another model, whose tokens and cost are summed and kept within a bound."""

    def __init__(self, model: ModelClient, budget: ReplayBudget | None = None) -> None:
        super().__init__((), model.name)
        self.spent = ReplaySpending()
        self._model = model.with_recorder(_CountedCalls(budget or ReplayBudget(usd=0.0, tokens=0), self.spent))

    async def window(self) -> int | None:
        """Return the prompt limit of the model."""
        return await self._model.prompt_limit()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Ask it. Raises ReplayStopped instead of a request that could exceed the bound."""
        return await self._model.complete(request, sink=sink)


class UnrecordedCalls:
    """Implements `UsageRecorder` and `MetricsRecorder` for calls that leave no row and no figure."""

    records_spans = False

    async def begin_call(self, request: ChatRequest, model: str, price: Price | None = None) -> CallRecord:  # noqa: ARG002
        """Return a record that is not kept."""
        return self

    def note_call(self, request: ChatRequest, model: str, usage: ChatReply) -> None:
        """Keep nothing."""

    def end(self, usage: ChatReply | None, *, was_refused: bool = False) -> None:
        """Keep nothing."""

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Count nothing."""

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set nothing."""

    def time(self, name: str, seconds: float, /, **labels: str) -> None:
        """Observe nothing."""

    def span(self, span: TraceSpan) -> None:
        """Record nothing."""


class _CountedCalls(UnrecordedCalls):
    """The attempts of one turn: a client makes several, and a provider bills those with unusable answers, too."""

    def __init__(self, budget: ReplayBudget, sums: ReplaySpending) -> None:
        self._budget = budget
        self._sums = sums
        self._price: Price | None = None

    async def begin_call(self, request: ChatRequest, model: str, price: Price | None = None) -> CallRecord:  # noqa: ARG002
        """Return the record of an attempt, one at a time. Raises ReplayStopped if it could exceed the bound."""
        expected = TokenUsage(request.weight or estimate(request).input, request.max_tokens or _ANSWER_TOKENS)
        self._budget.require(expected, None if price is None else price(expected))
        self._price = price
        return self

    def end(self, usage: ChatReply | None, *, was_refused: bool = False) -> None:  # noqa: ARG002
        """Count the attempt. One without a usage was refused, or never answered: no tokens are known of it."""
        if usage is None:
            return
        cost = self._price(usage.tokens) if usage.cost is None and self._price is not None else usage.cost
        for each in (self._budget.spent, self._sums):
            each.add(usage.tokens, cost)


class UncountedToolCalls:
    """Implements `ToolCallCaps` without a limit: the calls of the day of a stored turn are not those of today."""

    def exceeded_tool_cap(self, kind: str, accounts: Sequence[Any], *, call: str) -> ToolAllowance | None:  # noqa: ARG002
        """Return None."""
        return None

    def note_tool_refusal(self, kind: str) -> None:
        """Count nothing."""

    async def count_tool_call(
        self, kind: str, *, turn: str, call: str, accounts: Sequence[Any], account: Any, chat: str
    ) -> None:
        """Count nothing."""

    async def tool_allowances(self, accounts: Sequence[Any]) -> tuple[ToolAllowance, ...]:  # noqa: ARG002
        """Return none."""
        return ()


def replay_client(model: RecordedModel) -> ModelClient:
    """Return a client that asks *model* once per request, and leaves no row."""
    nothing = UnrecordedCalls()
    return ModelClient([model], attempts=1, recorder=nothing, meter=nothing)
