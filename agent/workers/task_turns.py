"""Background tasks at work: each step of one, and the turn that brings its end into the chat.

A step asks the model once, or runs the calls of its last answer, with tools that only read. The result is what the
model answers at last, as it is: it costs no further request, and no usage cap can hold it back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import structlog

from agent.base import transcript_lines as build
from agent.base.file_facts import UNTRUSTED
from agent.llm.chat_model import ToolCall
from agent.memory.jobs.approval_questions import short
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.prompt_snapshot import opening, system_prompt
from agent.tasks.task import ANSWER_TOKENS, Task, TaskState, is_task_end, tasks_in
from agent.tools.rights import RefusalRule
from agent.tools.tool import ToolKind, collect_sources
from agent.turns.agent_loop import CallReview, LoopResult
from agent.turns.turn import Turn
from agent.turns.turn_tools import CallResult
from agent.workers.turn_services import TurnServices, build_reply, call_person
from gateway.events import InboundMessage, OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.ports.journal import InboxRow, Job, JobAdvance, MessageOutcome, SessionRow, TurnLease, TurnStep
from gateway.text.message_text import clean_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gateway.admission import Admitted
    from gateway.ports.access import MessageContext


log = structlog.get_logger(__name__)

TASK_KINDS = frozenset({ToolKind.LOOK, ToolKind.WEB, ToolKind.COMPUTE})  # MCP tools that only read are of kind WEB
_MOST_TRIES = 3  # of one step that breaks, or ends the process
_ONCE_MORE = timedelta(seconds=1)  # after which a stopped step looks whether its task is still there
_NOT_HERE = "not run: a task only looks up, reads and calculates; say in the result what else is to be done"
_NOBODY = "not run: it needs approval, and nobody can be asked in a task; say so in the result"
_BRIEF = (
    "You work on this task alone, beside the chat: you see nothing of the conversation, nobody reads along or can be"
    " asked, and nothing can be changed or sent. Use your tools, then write the result for the person, complete and in"
    " the language of the task. Say what you could not find out."
)


@dataclass(slots=True)
class StepCollector:
    """Implements `StepStore`: the steps of a task go into its next row."""

    steps: list[TurnStep] = field(default_factory=list)

    async def step(self, lease: TurnLease, *steps: TurnStep) -> None:  # noqa: ARG002 - the row is the lease
        """Take steps without the opening, which each step of a task writes again."""
        self.steps += [each for each in steps if each.n]

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:  # noqa: ARG002
        """Return no messages."""
        return ()

    def watch_messages(
        self,
        key: SessionKey,  # noqa: ARG002
        notify: Callable[[InboundMessage], None],  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """Nothing arrives."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class TaskReview:
    """Implements `CallReview`: calls of other kinds, and those that would ask a person, do not run."""

    inner: CallReview

    async def review(self, turn: Turn, call: ToolCall) -> CallResult | None:
        """Return the result of a call that must not run; None for one that runs, which is counted."""
        if turn.profile.toolbox.kind_of(call) not in (*TASK_KINDS, None):  # unknown ones fail
            return CallResult(_NOT_HERE, rule=RefusalRule.UNTYPED)
        decided = await self.inner.review(turn, call)
        is_question = decided is not None and decided.effects is not None and decided.effects.ask is not None
        return CallResult(_NOBODY, rule=RefusalRule.UNTYPED) if is_question else decided


class TaskRunner:
    """Runs the steps of tasks, and the turns of their ends."""

    def __init__(self, services: TurnServices) -> None:
        self._services = services
        self._jobs = services.tasks.jobs
        self._running: dict[str, asyncio.Timeout] = {}  # steps of this gateway, by task

    def interrupt(self, task: str) -> None:
        """End the step that runs of a task: its row is removed, or the step is made again."""
        if (limit := self._running.get(task)) is not None:
            limit.reschedule(asyncio.get_running_loop().time())

    # -- steps -------------------------------------------------------------------------------------

    async def run(self, job: Job) -> RetryJobLater | None:
        """Make one step of the job's task, and replace its row by the next. Raises StoreUnavailable."""
        found = tasks_in([job])
        if not found:
            log.warning("task.unreadable", job=job.id)
            return None
        following = await self._follow(job, found[0])
        if isinstance(following, RetryJobLater):
            return following
        is_stored = await self._jobs.advance(job, following.to_job(job.scope))
        if is_stored and (following.state.is_over or not following.model_calls):
            self._services.meter.count("tasks", state=str(following.state))
            log.info("task.state", task=following.id, state=str(following.state), tokens=following.tokens)
        return None

    async def _follow(self, job: Job, task: Task) -> Task | RetryJobLater:
        """Return the task after its next step."""
        services, now = self._services, self._services.now()
        if job.attempts >= _MOST_TRIES:
            return task.end(TaskState.FAILED, now)
        row = InboxRow(seq=0, message=task.message(now), accepted_at=now)
        context = services.context_of(row.message)
        if context.scope != job.scope:
            return RetryJobLater(_ONCE_MORE, "its memory is another one now")
        admission = await services.current_admission(row, context)
        if admission is None:
            return task.end(TaskState.REVOKED, now)
        if task.state is TaskState.WAITING:
            return task.start(now)
        limits = services.tasks.limits
        seconds = ((task.started_at or now) + limits.duration - now).total_seconds()
        turn = await self._open(task, row, context, admission) if seconds > 0 else None
        if turn is None:  # no time is left, or another request exceeds the budget
            return task.end(TaskState.EXHAUSTED, now)
        if await services.caps.admit_turn(row.message, task.id, turn.capped_sender) is not None:
            return task.end(TaskState.CAPPED, now)
        try:
            return await self._step(task, turn, seconds)
        finally:
            services.caps.end_turn(task.id)

    async def _step(self, task: Task, turn: Turn, seconds: float) -> Task | RetryJobLater:
        """Make a step within *seconds*."""
        collector, loop_time = StepCollector(), asyncio.get_running_loop().time
        loop = self._services.loop.pausing(collector, TaskReview(self._services.loop.reviewer))
        until = loop_time() + seconds
        try:
            async with asyncio.timeout_at(until) as limit:
                self._running[task.id] = limit
                result = await loop.think(turn)
        except TimeoutError:
            if not limit.expired():  # the model's own, which counts as an attempt
                raise
            if loop_time() < until:
                return RetryJobLater(_ONCE_MORE, "it was interrupted", counts=False)
            return task.end(TaskState.EXHAUSTED, self._services.now())
        finally:
            self._running.pop(task.id, None)
        return await self._after(task, turn, result, collector.steps)

    async def _after(self, task: Task, turn: Turn, result: LoopResult, steps: Sequence[TurnStep]) -> Task:
        """Return the task after a step."""
        now = self._services.now()
        used = replace(
            task,
            slices=task.slices + 1,
            steps=(*task.steps, *steps),
            model_calls=task.model_calls + turn.model_calls,
            tokens=task.tokens + turn.tokens,
            dollars=task.dollars + turn.dollars,
            is_tainted=turn.draft.is_tainted,
        )
        if result.is_paused:
            return used
        if result.exceeded_cap is not None:
            return used.end(TaskState.CAPPED, now)
        if not result.text:
            return used.end(TaskState.FAILED, now)
        find_links = turn.find_links()
        links = None if find_links is None else await asyncio.to_thread(find_links, result.text)
        sources = collect_sources(turn.draft.lines, result.text)
        return replace(used.end(TaskState.DONE, now, result.text), links=links, sources=sources)

    async def _open(self, task: Task, row: InboxRow, context: MessageContext, admission: Admitted) -> Turn | None:
        """Return the turn of the next step with its prompt; None if its request exceeds the budget."""
        limits = self._services.tasks.limits
        turn = await self._assemble(task, row, context, admission)
        if turn.draft.open_calls:  # nothing is asked in this step
            return turn
        if task.model_calls >= limits.model_calls:
            return None
        room = limits.tokens - task.tokens - ANSWER_TOKENS
        # Where what another call brings would not fit, the model answers with what it has.
        is_last = task.model_calls + 1 >= limits.model_calls or (task.model_calls and 2 * turn.prompt.weight > room)
        if is_last:
            turn = await self._assemble(task, row, context, admission, has_tools=False)
        is_spent = bool(limits.dollars) and task.dollars >= limits.dollars
        return None if is_spent or turn.prompt.weight > room else turn

    async def _assemble(
        self, task: Task, row: InboxRow, context: MessageContext, admission: Admitted, *, has_tools: bool = True
    ) -> Turn:
        services = self._services
        profile = await services.profile_of((row,), context)
        toolbox = profile.toolbox.of_kinds(TASK_KINDS) if has_tools else profile.toolbox.only(())
        profile = replace(profile, toolbox=toolbox)
        session = SessionRow(
            key=task.key, transcript="", next_index=0, created_at=task.set_at, scope=context.scope
        )  # of its own: no turn of the chat sees it
        lease = TurnLease(key=task.key, turn=task.id, epoch=0, rows=(row,), session=session)
        conversation = Conversation(task.key, context.scope, "", next_index=0, window=0)
        limit = await profile.model.prompt_limit()
        conversation.set_limit(limit, toolbox.overhead)
        language, zone = services.locales.language(task.key), services.locales.zone(context.scope)
        line = build.message(
            0, task.id, "user", _words(task, zone), task.set_at, origin=UNTRUSTED if task.is_tainted else "user"
        )
        view = (await services.assembler.memory.view(context.scope)).spoken_as(profile.persona)
        begun = opening(
            conversation,
            view.within(conversation.prompt_limit.tokens),
            zone,
            abilities=toolbox.abilities,
            model=profile.model.name,
            tools=toolbox.digests,
            at=0,
        )
        first = TurnStep(n=0, kind="opening", lines=(*begun.lines, line), call=json.dumps([row.seq]), blobs=begun.blobs)
        turn = Turn(lease=replace(lease, steps=(first, *task.steps)))
        turn.identify(context, role=admission.role, is_admitted=True, is_named=admission.is_named, profile=profile)
        turn.language, turn.zone = language, zone
        turn.use(conversation)
        system = system_prompt(conversation.snapshot_with(turn.draft.lines, turn.draft.blobs))
        turn.set_prompt([{"role": "system", "content": system}, *conversation.messages_with(turn.draft.lines)])
        return turn

    # -- ends --------------------------------------------------------------------------------------

    async def run_end(self, turn: Turn) -> bool:
        """Commit the end of a task as the bot's message, once; return False for any other turn.

        A task that was stopped or forgotten since says nothing. One that waited behind other turns for so long that its
        job looks for it no more still has its result.
        """
        if not is_task_end(turn.message):
            return False
        services, draft = self._services, turn.draft
        ended: tuple[Task, Job] | None = None
        for job in await self._jobs.pending_in(turn.scope):
            for task in tasks_in([job]):
                is_it = task.message(task.set_at).message_id == turn.message.message_id
                if is_it and task.state.is_over and task.state is not TaskState.STOPPED:
                    ended = (task, job)
        await services.load_conversation(turn)
        services.add_notes(turn)
        if ended is None:
            await services.finish(turn, MessageOutcome.ANSWERED)
            return True
        task, job = ended
        draft.begins_tainted = turn.conversation.is_tainted or task.is_tainted
        text = _end_words(task, turn.language)
        shown = {"links": list(task.links)} if task.links else {}
        draft.add(draft.message("assistant", text, services.now(), **shown))
        links = (task.links or ()) if draft.is_tainted else None
        reply = build_reply(turn, text, OutboundKind.ANSWER, links=links, sources=task.sources)
        if turn.is_shared:
            reply = tuple(call_person(turn, each) for each in reply)
        kept = replace(task, is_delivered=True)
        advances = (JobAdvance(job, kept.to_job(job.scope)),)
        await services.finish(turn, MessageOutcome.ANSWERED, reply, advances=advances)
        return True


def _words(task: Task, zone: str) -> str:
    """Return the one message that a task's model reads."""
    at = f"{task.set_at.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M} {zone}"
    by = f" by {name}" if (name := clean_name(task.name)) else ""
    return f"[task {task.id}, set {at}{by}] {_BRIEF}\n\n{task.goal}"


def _end_words(task: Task, language: str) -> str:
    """Return the text about the end of a task for its chat."""
    head = translate(f"tasks.end_{task.state}", language, what=short(task.goal))
    return f"{head}\n\n{task.result}" if task.result else head
