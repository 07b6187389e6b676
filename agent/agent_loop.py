"""Stage think: ask the model and run its tools until there is one answer. Every step is stored as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

import structlog

from agent.attachments.image_inliner import ImageInliner
from agent.files.outgoing_files import BoundFileSender, OutgoingFiles
from agent.files.turn_files import FileServices, TurnFiles
from agent.llm.chat_model import ChatReply, ChatRequest, TokenUsage, ToolCall
from agent.memory.messages.token_estimate import estimate_message, estimate_messages
from agent.memory.prompt.compaction import PromptLimit
from agent.memory.prompt.conversation import Conversation
from agent.prompt_assembly import PromptAssembler, clean_name
from agent.reminders.reminder_access import ReminderAccess
from agent.tools.result_pages import ToolResultPages
from agent.tools.rights import CallVerdict, RefusalRule
from agent.tools.sources import encode_sources
from agent.tools.standing_decisions import StandingDecisions
from agent.tools.tool import OUTCOME_UNKNOWN, CallFacts, ToolContext, ToolKind, bind_recall
from agent.tools.tool_questions import LIFETIME, MOST_QUESTIONS, RUN_LIFETIME, ToolQuestion, question_id
from agent.tools.toolbox import LoopDetector, clean_result
from agent.turn import RunningTurn, Turn
from agent.turn_draft import StagedEffects, TurnDraft
from agent.turn_memory import TurnMemoryTools
from gateway.errors import ContextOverflow, ModelFailed, ToolFailed
from gateway.events import InboundKind
from gateway.i18n import command_prefix
from gateway.i18n.failures import BY_NAME, FailureMessage, failure_of
from gateway.ports import InboxRow, JobQueue, Line, Preview, SearchIndex, TurnLease, TurnStep
from gateway.ports.caps import CapReached, ExceededCap, ToolCallCaps

log = structlog.get_logger(__name__)

_NO_MORE = "not run: the limit of tool calls for this answer is reached; answer now with what you have"
_WAITING = "waiting for approval"
_KIND_LIMITS = {ToolKind.WEB: 10, ToolKind.ACT: 5}  # calls in one turn
_LONGEST_PROGRESS = 80  # characters
_AT_ONCE = 4  # calls that only read
_SHRINK_ATTEMPTS = 4  # for a prompt that the model refuses as too long
_IN_DOUBT = "not run: the same call was already made in this turn and may have happened; ask the person first"
_AGAIN = "not run: the same call with the same arguments was already made; answer now with what you have"


class StepStore(Protocol):
    """Stores turn steps; its calls wait while the store is unavailable."""

    async def step(self, lease: TurnLease, step: TurnStep) -> None:
        """Store one step."""
        ...

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:
        """Claim the messages that the sender wrote while the turn ran."""
        ...


class PromptFitter:
    """The prompt of a running turn, kept within the prompt limit."""

    def __init__(
        self, conversation: Conversation, draft: TurnDraft, assembled: Sequence[Mapping[str, Any]], *, overhead: int
    ) -> None:
        """*assembled* is the system prompt and the history; *overhead* is the weight of the tools' schemas."""
        self._conversation = conversation
        self._draft = draft
        self._system = assembled[0]
        self._fixed = estimate_message(assembled[0]) + overhead
        self._history = assembled[1:]
        self._history_weight = conversation.weight_with(draft.lines)

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The prompt; until it is shrunk, it begins with the bytes of the turn before."""
        return [self._system, *self._history, *self._draft.messages]

    @property
    def weight(self) -> int:
        """Estimated tokens of the prompt and the tools; takes the same time however long the conversation is."""
        return self._fixed + self._history_weight + self._draft.weight

    def shrinking_lines(self, token_limit: int) -> Sequence[Line]:
        """Return the lines that make the prompt fit *token_limit*, as far as possible; none if it fits already."""
        if self.weight <= token_limit:
            return ()
        return self._conversation.compacted(
            self._draft.lines_for_model,
            self._draft.first_index,
            after=self._draft.lines,
            prompt_limit=PromptLimit(tokens=token_limit, taken=self._fixed),
        ).lines

    def reload(self) -> None:
        """Read the history again after the draft has recorded shrinking lines."""
        self._history = self._conversation.messages_with(self._draft.lines)
        self._history_weight = estimate_messages(self._history)


@dataclass(frozen=True, slots=True)
class LoopResult:
    """An answer, or the failure or the usage cap that ended the loop without one."""

    text: str
    failure: FailureMessage | None = None
    is_cut: bool = False  # the model's limit or ours ended the text early
    exceeded_cap: ExceededCap | None = None  # no further call fits under it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopContext:
    """The turn that the loop works on, and what it changes while it does."""

    running: RunningTurn
    turn: Turn
    conversation: Conversation
    draft: TurnDraft
    prompt: PromptFitter
    preview: Preview
    is_watched: bool  # the answer is streamed only where a stream would be seen: it costs CPU
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)  # that run now: id to tool and progress

    def show_call(self, call: ToolCall, progress: str = "") -> None:
        """Show *call* and its progress in the status line."""
        self.calls[call.id] = (call.name, progress)
        self._show_status()

    def end_call(self, call: ToolCall) -> None:
        """Show another call that still runs instead of *call*, or none."""
        self.calls.pop(call.id, None)
        self._show_status()

    def _show_status(self) -> None:
        name, progress = next(reversed(self.calls.values()), ("", ""))
        self.running.tool = name
        self.preview.status(f"{name}: {progress}" if progress else name)


@dataclass(frozen=True, slots=True)
class _CallResult:
    text: str
    effects: StagedEffects | None = None
    is_untrusted: bool = False
    is_error: bool = False
    rule: RefusalRule | None = None


def _format_progress(text: str, step: int, of: int) -> str:
    """Return one short line; a page or a server may have chosen its text."""
    plain = " ".join(clean_result(text[: 2 * _LONGEST_PROGRESS]).split())[:_LONGEST_PROGRESS]
    return f"{plain} ({step}/{of})" if of > 0 else plain


def _is_untyped(turn: Turn) -> bool:
    """Return True if no message of the person led to the turn; a yes to a job's call does not change that."""
    if (allowed := turn.allowed) is not None:
        return allowed.is_untyped
    return turn.message.kind is InboundKind.JOB and not turn.retried


def _request_of(allowed: ToolQuestion) -> ChatReply:
    """Return the model's message with the allowed call, as if the model had just requested it."""
    return ChatReply(text="", tool_calls=(allowed.call,), model="", tokens=TokenUsage(), cost=None)


def _reached_limit(context: LoopContext, batch: Sequence[ToolCall], call: ToolCall) -> str:
    """Return why *call* exceeds the limit of its kind in one turn, for the model to read; "" if it does not."""
    toolbox = context.turn.profile.toolbox
    kind = toolbox.kind_of(call)
    limit = _KIND_LIMITS.get(kind) if kind is not None else None
    if limit is None:
        return ""
    earlier = [*context.draft.finished_calls, *batch[: batch.index(call)]]
    if sum(toolbox.kind_of(each) is kind for each in earlier) < limit:
        return ""
    return f"not run: the limit of {limit} calls of this kind for one answer is reached"


class AgentLoop:
    """The tool loop; holds no state between turns."""

    def __init__(
        self,
        *,
        max_calls: int,
        steer: bool,
        store: StepStore,
        redact: Callable[[str], str],
        assembler: PromptAssembler,
        images: ImageInliner,
        search: SearchIndex,
        files: FileServices,
        outgoing: OutgoingFiles,
        memory_tools: TurnMemoryTools,
        pages: ToolResultPages,
        jobs: JobQueue,
        caps: ToolCallCaps,
        now: Callable[[], datetime],
    ) -> None:
        """*steer* adds messages that arrive during a turn to it; *redact* removes our secrets from answers."""
        self._max_calls = max_calls
        self._steer = steer
        self._store = store
        self._redact = redact
        self._assembler = assembler
        self._images = images
        self._search = search
        self._files = files
        self._outgoing = outgoing
        self._memory_tools = memory_tools
        self._pages = pages
        self._jobs = jobs
        self._decisions = StandingDecisions(jobs)
        self._caps = caps
        self._now = now

    async def think(self, context: LoopContext) -> LoopResult:
        """Return exactly one answer, failure or exceeded cap, whatever the model does."""
        detector = LoopDetector()
        was_repeated = [detector.is_repeated(call) for call in context.draft.finished_calls]
        try:
            return await self._run_rounds(context, detector, is_last=any(was_repeated))
        except ModelFailed as error:
            log.warning("turn.model_failed", turn=context.turn.id, error=type(error).__name__)
            return LoopResult("", failure_of(error))
        except CapReached as reached:
            log.info("turn.capped", turn=context.turn.id, cap=str(reached))
            return LoopResult("", exceeded_cap=reached.exceeded)

    async def _run_rounds(self, context: LoopContext, detector: LoopDetector, *, is_last: bool) -> LoopResult:
        turn, draft = context.turn, context.draft
        if (allowed := turn.allowed) is not None and not draft.has_calls:  # the turn begins with the stored call
            if (opening := draft.take_opening()) is not None:
                await self._store.step(turn.lease, opening)
            await self._store.step(turn.lease, draft.model(_request_of(allowed)))
        is_last = await self._run_calls(context, detector) or is_last
        await self._add_messages(context, draft.unseen_rows)
        while True:
            reply = await self._request(context)
            if is_last or not reply.tool_calls:
                if reply.text.strip():
                    return LoopResult(reply.text, is_cut=reply.is_cut)
                return LoopResult("", BY_NAME["loop" if reply.tool_calls else "empty"])
            if (opening := draft.take_opening()) is not None:
                await self._store.step(turn.lease, opening)
            await self._store.step(turn.lease, draft.model(reply))
            is_last = await self._run_calls(context, detector)
            if self._steer and not is_last:
                await self._add_messages(context, await self._store.steer(turn.lease))

    async def _request(self, context: LoopContext) -> ChatReply:
        """Ask with a prompt that fits; shrink one that the model refuses as too long, up to a few times."""
        model = context.turn.profile.model
        # Read before each request: the last reply may have calibrated the estimate.
        token_limit = await model.prompt_limit()
        for _ in range(_SHRINK_ATTEMPTS):
            await self._shrink(context, token_limit)
            try:
                return await self._request_once(context)
            except ContextOverflow:
                # The client has learned from it; a fallback model may take even less.
                token_limit = min(await model.prompt_limit(), context.prompt.weight * 3 // 4)
                if not await self._shrink(context, token_limit):
                    raise
        return await self._request_once(context)

    async def _request_once(self, context: LoopContext) -> ChatReply:
        turn = context.turn
        request = ChatRequest(
            messages=await self._images.inline(context.prompt.messages, turn.scope),
            tools=turn.profile.toolbox.schemas,
            turn=turn.id,
            account=turn.account,
            language=turn.language,
            chat=str(turn.key),
            weight=context.prompt.weight,
        )

        def show(text: str) -> None:
            context.draft.streamed = text if text.strip() else context.draft.streamed
            context.preview.show(text)

        reply = await turn.profile.model.complete(request, sink=show if context.is_watched else None)
        return replace(reply, text=self._redact(reply.text))

    async def _shrink(self, context: LoopContext, token_limit: int) -> bool:
        """Make the prompt fit and record how; return False if it fits already or cannot be made smaller."""
        prompt = context.prompt
        before = prompt.weight
        lines = prompt.shrinking_lines(token_limit)
        if not lines:
            return False
        step = context.draft.shrink(lines)
        prompt.reload()
        log.info("turn.prompt_shrunk", turn=context.turn.id, limit=token_limit, before=before, after=prompt.weight)
        if step is not None:
            await self._store.step(context.turn.lease, step)
        return prompt.weight < before

    async def _run_calls(self, context: LoopContext, detector: LoopDetector) -> bool:
        """Run the tool calls that have no result yet; return True if the model must answer now."""
        draft, is_last = context.draft, False
        toolbox = context.turn.profile.toolbox
        for batch in toolbox.batches(draft.open_calls):
            results: dict[str, _CallResult] = {}
            for n, call in enumerate(batch, len(draft.finished_calls)):
                if n >= self._max_calls:
                    results[call.id], is_last = _CallResult(_NO_MORE, rule=RefusalRule.LIMIT), True
                elif detector.is_repeated(call):
                    results[call.id], is_last = _CallResult(_AGAIN, rule=RefusalRule.REPEATED), True
                elif draft.questions and toolbox.has_effects(call):
                    results[call.id] = _CallResult(f"not run: {_WAITING}", rule=RefusalRule.WAITING)
                elif limit := _reached_limit(context, batch, call):
                    results[call.id] = _CallResult(limit, rule=RefusalRule.LIMIT)
            left = [call for call in batch if call.id not in results]
            results |= await self._run_batch(context, left)
            for call in batch:
                each = results[call.id]
                if each.effects is not None and each.effects.ask and len(draft.questions) >= MOST_QUESTIONS:
                    text = f"not run: at most {MOST_QUESTIONS} calls are asked about at once"
                    each = _CallResult(text, rule=RefusalRule.QUESTIONS)
                step = draft.result(
                    call,
                    each.text,
                    each.effects,
                    is_untrusted=each.is_untrusted,
                    is_error=each.is_error,
                    rule=each.rule or "",
                )
                await self._store.step(context.turn.lease, step)
        return is_last or bool(draft.questions) or len(draft.finished_calls) >= self._max_calls

    async def _run_batch(self, context: LoopContext, calls: Sequence[ToolCall]) -> Mapping[str, _CallResult]:
        """Run *calls*, a few at once, and return their results by call id."""
        if len(calls) == 1:
            return {calls[0].id: await self._run_call(context, calls[0])}
        permits = asyncio.Semaphore(_AT_ONCE)

        async def run(call: ToolCall) -> _CallResult:
            async with permits:
                return await self._run_call(context, call)

        async with asyncio.TaskGroup() as tasks:
            running = {call.id: tasks.create_task(run(call), name=f"tool {call.name}") for call in calls}
        return {name: task.result() for name, task in running.items()}

    async def _run_call(self, context: LoopContext, call: ToolCall) -> _CallResult:
        turn, draft, toolbox = context.turn, context.draft, context.turn.profile.toolbox
        effects, is_untrusted, is_error = StagedEffects(), False, False
        rule: RefusalRule | None = None
        is_repeatable = toolbox.is_repeatable(call.name)
        facts = await self._call_facts(context, call)
        if not is_repeatable and call.id in draft.intents:
            text = OUTCOME_UNKNOWN
        elif not is_repeatable and any(toolbox.is_same(call, each) for each in draft.doubtful_calls):
            text, rule = _IN_DOUBT, RefusalRule.DOUBT
        elif (verdict := toolbox.review(call, facts)).refusal:
            text, rule = verdict.refusal, verdict.rule
        elif verdict.question:
            text, rule = await self._ask(context, call, verdict, effects)
        else:
            if (kind := toolbox.kind_of(call)) is not None:
                self._caps.count(kind, turn=turn.id, account=turn.account, chat=str(turn.key))
            if not is_repeatable:
                await self._store.step(turn.lease, draft.intent(call))
            context.show_call(call)
            try:
                outcome = await toolbox.run(call, self._tool_context(context, call, effects))
            finally:
                context.end_call(call)
            effects.sources = encode_sources(outcome.sources)
            text = await self._pages.cut(turn.scope, outcome.text, outcome.page, effects, is_cut=outcome.is_cut)
            text += effects.footer
            is_untrusted, is_error = outcome.is_untrusted or effects.is_untrusted, outcome.is_error
        return _CallResult(text, effects, is_untrusted=is_untrusted, is_error=is_error, rule=rule)

    async def _ask(
        self, context: LoopContext, call: ToolCall, verdict: CallVerdict, effects: StagedEffects
    ) -> tuple[str, RefusalRule | None]:
        """Stage the question about *call*, with a file if its arguments are long; return the call's result."""
        turn, toolbox = context.turn, context.turn.profile.toolbox
        question = self._question(turn, call, toolbox.schema_digest(call), verdict)
        if question.attached:
            try:
                await self._bind_files(context, effects)(question.file_name, question.attached)
            except ToolFailed as error:
                return f"not run: a person must be shown the whole call, and {error}", RefusalRule.LENGTH
        effects.ask = asdict(question)
        return _WAITING, None

    def _bind_files(self, context: LoopContext, effects: StagedEffects) -> BoundFileSender:
        """Return the sender of files that go with the turn's answer."""
        turn, draft = context.turn, context.draft

        def lines() -> list[Line]:
            return [*context.conversation.lines, *draft.lines]

        return self._outgoing.bind(turn.scope, turn.key, lines, effects.send, sent_count=len(draft.attachments))

    async def _call_facts(self, context: LoopContext, call: ToolCall) -> CallFacts:
        turn, draft, allowed = context.turn, context.draft, context.turn.allowed
        decisions = await self._decisions_about(turn, call)
        # From here on nothing waits until the call is counted: calls that run side by side stay below the cap.
        kind = turn.profile.toolbox.kind_of(call)
        exceeded = None if kind is None else self._caps.exceeded(kind, turn.accounts)
        return CallFacts(
            role=turn.role,
            chat_kind=turn.message.chat_kind,
            is_untyped=_is_untyped(turn),
            is_tainted=draft.is_tainted_call(call),
            turn=turn.id,
            call=call.id,
            sender=turn.message.sender.id,
            lines=lambda: [*context.conversation.lines, *draft.lines],
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

    def _question(self, turn: Turn, call: ToolCall, schema: str, verdict: CallVerdict) -> ToolQuestion:
        message = turn.message
        is_program = turn.profile.toolbox.kind_of(call) is ToolKind.RUN
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
            tool=call.name,
            arguments=call.arguments,
            schema=schema,
            why=verdict.question,
            subject=verdict.subject,
            can_last=verdict.can_last,
            is_for_owner=verdict.is_for_owner,
            seconds=int(lifetime.total_seconds()),
            at=self._now().isoformat(timespec="seconds"),
        )

    def _tool_context(self, context: LoopContext, call: ToolCall, effects: StagedEffects) -> ToolContext:
        turn, draft = context.turn, context.draft
        is_tainted = draft.is_tainted_call(call)

        def progress(text: str, step: int = 0, of: int = 0) -> None:
            if call.id in context.calls:  # a call that was left behind after its timeout shows nothing
                context.show_call(call, _format_progress(text, step, of))

        def lines() -> list[Line]:
            return [*context.conversation.lines, *draft.lines]

        return ToolContext(
            account=turn.account,
            sender=turn.message.sender,
            role=turn.role,
            chat_kind=turn.message.chat_kind,
            key=turn.key,
            scope=turn.scope,
            turn=turn.id,
            call=call.id,
            call_key=f"{turn.id}.{draft.call_number(call)}",
            now=self._now(),
            language=turn.language,
            progress=progress,
            recall=bind_recall(self._search, turn.scope, effects.taint, self._memory_tools.note_found),
            remember=effects.remember.append,
            is_tainted=is_tainted,
            edit=self._memory_tools.bind_edit(turn, call.id, effects, is_tainted=is_tainted),
            read_page=self._pages.bind(turn.scope, lines, effects),
            ask_to_erase=self._memory_tools.bind_erasure(turn, effects),
            files=TurnFiles(
                services=self._files,
                scope=turn.scope,
                lines=lines,
                key=f"{turn.id} {call.id}",
                zone=turn.zone,
                prefix=command_prefix(turn.language),
                taint=effects.taint,
                is_tainted=is_tainted,
            ),
            stage_job=effects.jobs.append,
            end_jobs=effects.ends.append,
            schedule=ReminderAccess(
                self._jobs,
                turn,
                self._now,
                effects.taint,
                lambda: draft.jobs(turn.account.name, self._now(), turn.scope),
            ),
            send=self._bind_files(context, effects),
        )

    async def _add_messages(self, context: LoopContext, rows: Sequence[InboxRow]) -> None:
        """Add messages of the sender to the running turn."""
        if rows:
            lines = await self._assembler.render_messages(context.draft, rows, context.turn, context.conversation)
            await self._store.step(context.turn.lease, context.draft.steer(rows, lines))
