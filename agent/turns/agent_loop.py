"""Stage think: ask the model and run its tools until there is one answer. Every step is stored as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from agent.attachments.attachment_loader import ImageInliner
from agent.base.file_facts import format_size
from agent.base.locks import task_group
from agent.files.outgoing_files import OutgoingFiles
from agent.files.turn_files import FileServices, TurnFiles
from agent.llm.chat_model import ChatReply, ChatRequest, ReplyEnding, TokenUsage, ToolCall
from agent.tasks.task_access import TaskServices
from agent.tools.rights import RefusalRule
from agent.tools.tool import ResultFile, ResultPicture, ScopedRecall, ToolContext, ToolKind, encode_sources
from agent.tools.tool_questions import MOST_QUESTIONS
from agent.tools.toolbox import LoopDetector, clean_result
from agent.turns.turn import Turn
from agent.turns.turn_draft import StagedEffects
from agent.turns.turn_tools import WAITING, CallResult, ToolResultPages, TurnMemoryTools
from gateway.errors import ContextOverflow, FailureCause, FileUnavailable, ModelFailed, ToolFailed
from gateway.events import InboundKind, InboundMessage, SessionKey
from gateway.i18n import command_prefix
from gateway.i18n.failures import BY_NAME, FailureMessage, failure_of
from gateway.ports.access import CapReached, ExceededCap
from gateway.ports.journal import InboxRow, Line, TurnLease, TurnStep

if TYPE_CHECKING:
    from agent.memory.search.scope_recall import ScopeRecall
    from agent.turns.recorded_turn import RecordedResults
    from gateway.store.jobs import SqlJobs


log = structlog.get_logger(__name__)

_NO_MORE = "not run: the limit of tool calls for this answer is reached; answer now with what you have"
_KIND_LIMITS = {ToolKind.WEB: 10, ToolKind.ACT: 5}  # calls in one turn
_WRITTEN = (
    "(Your last answer was a tool call written as text. It was not run, and nobody saw it. "
    "Answer in words, or make the call as the tools' interface has it.)"
)
_LONGEST_PROGRESS = 80  # characters
_AT_ONCE = 4  # calls that only read
_GROWS_FOR = 1.5  # seconds in which a turn takes in what its sender writes
_PAUSE_IN_TYPING = 0.4  # seconds after which it is asked with what there is
_MOST_TAKEN_IN = 100  # messages
_SHRINK_ATTEMPTS = 4  # for a prompt that the model refuses as too long
_AGAIN = "not run: the same call with the same arguments was already made; answer now with what you have"
MOST_PICTURES = 2  # of results that the model is shown in one turn

PictureStore = Callable[[str, SessionKey, bytes], Awaitable[Mapping[str, Any]]]


class StepStore(Protocol):
    """Stores turn steps; its calls wait while the store is unavailable."""

    async def step(self, lease: TurnLease, *steps: TurnStep) -> None:
        """Store steps in one transaction."""

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:
        """Claim the messages that the sender wrote while the turn ran."""

    def watch_messages(self, key: SessionKey, notify: Callable[[InboundMessage], None]) -> AbstractContextManager[None]:
        """Call *notify* with each message that is accepted in *key* from the claim to the end of the block."""


class CallReview(Protocol):
    """Decides about tool calls before they run."""

    async def review(self, turn: Turn, call: ToolCall) -> CallResult | None:
        """Return the result of a call that must not run now; None for one that runs, which is counted."""


class MessageRenderer(Protocol):
    """Renders messages that arrive during a turn."""

    async def render_messages(self, turn: Turn, rows: Sequence[InboxRow]) -> list[Line]:
        """Return the transcript lines of *rows*."""


@dataclass(frozen=True, slots=True)
class LoopResult:
    """An answer, or the failure or the usage cap that ended the loop without one."""

    text: str
    failure: FailureMessage | None = None
    cause: FailureCause | None = None  # of the failure, where a person can repair it
    ending: ReplyEnding = ReplyEnding.COMPLETE  # what ended the text
    exceeded_cap: ExceededCap | None = None  # no further call fits under it
    is_paused: bool = False  # a step is stored, and more are to come; only of a loop that pauses


def _format_progress(text: str, step: int, of: int) -> str:
    """Return one short line; a page or a server may have chosen its text."""
    plain = " ".join(clean_result(text[: 2 * _LONGEST_PROGRESS]).split())[:_LONGEST_PROGRESS]
    return f"{plain} ({step}/{of})" if of > 0 else plain


def _take_written(turn: Turn, reply: ChatReply) -> ChatReply | None:
    """Return *reply* with the calls that it wrote as text, if they may run; None if it must be asked for again.

    The author of any text that the model reads can have it repeat a call as text. So a call counts only from a model
    that is known to write its calls so, as the whole answer, before text of third parties is read, and only to look.
    """
    written, toolbox = reply.written, turn.profile.toolbox
    if written is None:
        return reply
    is_safe = written.is_expected and written.is_whole and not turn.draft.is_tainted
    if not is_safe or not all(toolbox.kind_of(call) is ToolKind.LOOK for call in written.calls):
        return None
    return replace(reply, text="", tool_calls=written.calls, written=None)


def _reached_limit(turn: Turn, batch: Sequence[ToolCall], call: ToolCall) -> str:
    """Return why *call* exceeds the limit of its kind in one turn, for the model to read; "" if it does not."""
    toolbox = turn.profile.toolbox
    kind = toolbox.kind_of(call)
    limit = _KIND_LIMITS.get(kind) if kind is not None else None
    if limit is None:
        return ""
    earlier = [*turn.draft.finished_calls, *batch[: batch.index(call)]]
    if sum(toolbox.kind_of(each) is kind for each in earlier) < limit:
        return ""
    return f"not run: the limit of {limit} calls of this kind for one answer is reached"


def _may_grow(turn: Turn) -> bool:
    """Return True if the turn may take in messages: not a job's, a suspect's, or another version of a message."""
    return turn.message.kind is InboundKind.MESSAGE and not turn.message.replaces and not turn.lease.is_lone


class AgentLoop:
    """The tool loop; holds no state between turns."""

    def __init__(
        self,
        *,
        max_calls: int,
        steer: bool,
        merges: bool,
        store: StepStore,
        redact: Callable[[str], str],
        assembler: MessageRenderer,
        images: ImageInliner,
        see: PictureStore,
        search: ScopeRecall,
        files: FileServices,
        outgoing: OutgoingFiles,
        memory_tools: TurnMemoryTools,
        pages: ToolResultPages,
        jobs: SqlJobs,
        tasks: TaskServices,
        reviewer: CallReview,
        now: Callable[[], datetime],
    ) -> None:
        """*steer* adds messages that arrive during a turn to it, *merges* those that arrive right behind its start.

        *redact* removes our secrets from answers.

        *see* stores a picture of a result as the chat's model is shown it (`AttachmentLoader.see`).
        """
        self._max_calls = max_calls
        self._steer = steer
        self._merges = merges
        self._store = store
        self._redact = redact
        self._assembler = assembler
        self._images = images
        self._see = see
        self._search = search
        self._files = files
        self._outgoing = outgoing
        self._memory_tools = memory_tools
        self._pages = pages
        self._jobs = jobs
        self._tasks = tasks
        self.reviewer = reviewer
        self._now = now
        self._pauses = False

    def with_recording(self, recording: RecordedResults) -> AgentLoop:
        """Return a loop with the same rules that stores nothing and runs no tool: *recording* has all results."""
        loop = copy(self)
        loop._store = recording  # noqa: SLF001 - a copy of this object
        loop.reviewer = recording
        loop._assembler = recording  # noqa: SLF001
        loop._steer = True  # noqa: SLF001
        return loop

    def pausing(self, store: StepStore, reviewer: CallReview) -> AgentLoop:
        """Return a loop that ends after each step, which *store* takes: a request, or the calls of its answer."""
        loop = copy(self)
        loop._store = store  # noqa: SLF001 - a copy of this object
        loop.reviewer = reviewer
        loop._steer = loop._merges = False  # noqa: SLF001
        loop._pauses = True  # noqa: SLF001
        return loop

    async def think(self, turn: Turn) -> LoopResult:
        """Return exactly one answer, failure or exceeded cap, whatever the model does."""
        detector = LoopDetector()
        was_repeated = [detector.is_repeated(call) for call in turn.draft.finished_calls]
        try:
            return await self._run_rounds(turn, detector, is_last=any(was_repeated))
        except ModelFailed as error:
            log.warning("turn.model_failed", turn=turn.id, error=type(error).__name__)
            return LoopResult("", failure_of(error), cause=error.cause)
        except CapReached as reached:
            log.info("turn.capped", turn=turn.id, cap=str(reached))
            return LoopResult("", exceeded_cap=reached.exceeded)

    async def _run_rounds(self, turn: Turn, detector: LoopDetector, *, is_last: bool) -> LoopResult:
        draft = turn.draft
        if (first := turn.first_call) is not None and not draft.has_calls:
            request = ChatReply(text="", tool_calls=(first,), model="", tokens=TokenUsage(), cost=None)
            await self._store.step(turn.lease, *draft.take_opening(), draft.model(request))
        was_open = bool(draft.open_calls)
        is_last = await self._run_calls(turn, detector) or is_last
        if was_open and self._pauses:
            return LoopResult("", is_paused=True)
        await self._add_messages(turn, draft.unseen_rows)
        while True:
            is_growing = self._merges and not draft.has_calls and _may_grow(turn)
            reply = await (self._request_while_growing(turn) if is_growing else self._request(turn))
            if reply.written is not None:
                reply = _take_written(turn, reply) or await self._request(turn, is_again=True)
                reply = _take_written(turn, reply) or reply
            if is_last or not reply.tool_calls:
                if reply.text.strip():
                    return LoopResult(reply.text, ending=reply.ending)
                name = "loop" if reply.tool_calls else "empty" if reply.written is None else "written_call"
                return LoopResult("", BY_NAME[name])
            await self._store.step(turn.lease, *draft.take_opening(), draft.model(reply))
            if self._pauses:
                return LoopResult("", is_paused=True)
            is_last = await self._run_calls(turn, detector)
            if self._steer and not is_last:
                await self._add_messages(turn, await self._store.steer(turn.lease))

    async def _request_while_growing(self, turn: Turn) -> ChatReply:
        """Ask, and ask again with what the sender writes within a moment of the turn's start.

        A thought in three messages, or a comment and a forward, is one question. Nothing is waited for where one
        message comes alone, and nothing is taken in once a part of the answer was shown.
        """
        loop = asyncio.get_running_loop()
        until, arrived = loop.time() + _GROWS_FOR, asyncio.Event()
        is_theirs = True  # everything that came behind the turn
        request: asyncio.Timeout | None = None  # that runs

        def note(message: InboundMessage) -> None:
            nonlocal is_theirs
            is_plain = message.kind is InboundKind.MESSAGE and not message.replaces
            # What comes behind a command or another sender's message is not taken in.
            is_theirs = is_theirs and is_plain and message.sender.id == turn.message.sender.id
            if not is_theirs:
                return
            arrived.set()
            # One that was cancelled takes a moment to end, in which more may be written.
            is_running = request is not None and not request.expired()
            if request is not None and is_running and loop.time() < until and not turn.draft.streamed:
                request.reschedule(loop.time())

        with self._store.watch_messages(turn.key, note):
            while loop.time() < until:
                is_asked = not arrived.is_set()  # else more came while the prompt was assembled
                if is_asked:
                    try:
                        async with asyncio.timeout(None) as request:
                            return await self._request(turn)
                    except TimeoutError:
                        if request is None or not request.expired():
                            raise
                    finally:
                        request = None
                if not await self._take_in(turn, arrived, until) and is_asked:
                    break  # it was deleted, or an edit has made it a command: asking again would gain nothing more
        return await self._request(turn)

    async def _take_in(self, turn: Turn, arrived: asyncio.Event, until: float) -> bool:
        """Add what the sender writes until they pause, or the time *until* comes; return False if there is nothing.

        The messages wait in the queue until then, so that a /stop, an edit or a deletion finds them there.
        """
        loop, rows = asyncio.get_running_loop(), list[InboxRow]()
        while (left := until - loop.time()) > 0:
            arrived.clear()
            try:
                async with asyncio.timeout(min(left, _PAUSE_IN_TYPING)):
                    await arrived.wait()
            except TimeoutError:
                break
        arrived.clear()
        while len(rows) < _MOST_TAKEN_IN and (taken := await self._store.steer(turn.lease)):
            rows += taken
        await self._add_messages(turn, rows)
        return bool(rows)

    async def _request(self, turn: Turn, *, is_again: bool = False) -> ChatReply:
        """Ask with a prompt that fits; shrink one that the model refuses as too long, up to a few times.

        A large prompt that is refused for no known reason is shrunk once. *is_again*: the last answer was a tool call
        written as text.
        """
        model = turn.profile.model
        # Read before each request: the last reply may have calibrated the estimate.
        token_limit = await model.prompt_limit()
        was_tried = False
        for attempt in range(_SHRINK_ATTEMPTS):
            await self._shrink(turn, token_limit)
            weight = turn.prompt.weight
            try:
                return await self._request_once(turn, is_again=is_again)
            except ContextOverflow:
                # The client has learned from it; a fallback model may take even less.
                smaller = weight * 3 // 4 if attempt == 0 else weight // 2
                token_limit = min(await model.prompt_limit(), smaller)
                if not await self._shrink(turn, token_limit):
                    raise
            except ModelFailed as error:
                if was_tried or not error.is_unexplained or 2 * weight <= token_limit:
                    raise
                was_tried, token_limit = True, weight // 2
                if not await self._shrink(turn, token_limit):
                    raise
        return await self._request_once(turn, is_again=is_again)

    async def _request_once(self, turn: Turn, *, is_again: bool) -> ChatReply:
        messages = turn.prompt.messages
        if is_again:
            messages = [*messages, {"role": "user", "content": _WRITTEN}]
        if turn.prompt.may_have_pictures:
            messages = await self._images.inline(messages, turn.scope)
        request = ChatRequest(
            messages=messages,
            tools=turn.profile.toolbox.schemas,
            turn=turn.id,
            account=turn.account,
            language=turn.language,
            chat=str(turn.key),
            weight=turn.prompt.weight,
            effort=turn.profile.effort,
        )

        turn.draft.find_links = links = turn.find_links()

        def show(text: str) -> None:
            turn.draft.streamed = text if text.strip() else turn.draft.streamed
            turn.preview.show(text, links)

        phases = turn.phases
        if phases is not None:  # others may do their work meanwhile
            await phases.end()
        try:
            reply = await turn.profile.model.complete(request, sink=show if turn.is_watched else None)
        finally:
            if phases is not None:
                await phases.begin()
        turn.model_calls += 1
        turn.tokens += reply.tokens.input + reply.tokens.output
        turn.dollars += reply.cost or 0.0
        text = self._redact(reply.text)
        return reply if text == reply.text else replace(reply, text=text)

    async def _shrink(self, turn: Turn, token_limit: int) -> bool:
        """Make the prompt fit and record how; return False if it fits already or cannot be made smaller."""
        prompt = turn.prompt
        before = prompt.weight
        lines = prompt.shrinking_lines(token_limit)
        if not lines:
            return False
        step = turn.draft.shrink(lines)
        prompt.reload()
        log.info("turn.prompt_shrunk", turn=turn.id, limit=token_limit, before=before, after=prompt.weight)
        if step is not None:
            await self._store.step(turn.lease, step)
        return prompt.weight < before

    async def _run_calls(self, turn: Turn, detector: LoopDetector) -> bool:
        """Run the tool calls that have no result yet; return True if the model must answer now."""
        draft, is_last = turn.draft, False
        toolbox = turn.profile.toolbox
        if draft.has_calls:
            turn.show_steps()
        for batch in toolbox.batches(draft.open_calls):
            results: dict[str, CallResult] = {}
            for n, call in enumerate(batch, len(draft.finished_calls)):
                if n >= self._max_calls:
                    results[call.id], is_last = CallResult(_NO_MORE, rule=RefusalRule.LIMIT), True
                elif detector.is_repeated(call):
                    results[call.id], is_last = CallResult(_AGAIN, rule=RefusalRule.REPEATED), True
                elif draft.questions and toolbox.has_effects(call):
                    results[call.id] = CallResult(f"not run: {WAITING}", rule=RefusalRule.WAITING)
                elif limit := _reached_limit(turn, batch, call):
                    results[call.id] = CallResult(limit, rule=RefusalRule.LIMIT)
            left = [call for call in batch if call.id not in results]
            results |= await self._run_batch(turn, left)
            steps: list[TurnStep] = []
            for call in batch:
                each = results[call.id]
                if each.effects is not None and each.effects.ask and len(draft.questions) >= MOST_QUESTIONS:
                    text = f"not run: at most {MOST_QUESTIONS} calls are asked about at once"
                    each = CallResult(text, rule=RefusalRule.QUESTIONS)
                step = draft.result(
                    call,
                    each.text,
                    each.effects,
                    is_untrusted=each.is_untrusted,
                    is_error=each.is_error,
                    rule=each.rule or "",
                    seconds=each.seconds,
                )
                steps.append(step)
            turn.show_steps()
            await self._store.step(turn.lease, *steps)
        return is_last or bool(draft.questions) or len(draft.finished_calls) >= self._max_calls

    async def _run_batch(self, turn: Turn, calls: Sequence[ToolCall]) -> Mapping[str, CallResult]:
        """Run *calls*, a few at once, and return their results by call id."""
        if len(calls) == 1:
            return {calls[0].id: await self._run_call(turn, calls[0])}
        permits = asyncio.Semaphore(_AT_ONCE)

        async def run(call: ToolCall) -> CallResult:
            async with permits:
                return await self._run_call(turn, call)

        async with task_group() as tasks:
            running = {call.id: tasks.create_task(run(call), name=f"tool {call.name}") for call in calls}
        return {name: task.result() for name, task in running.items()}

    async def _run_call(self, turn: Turn, call: ToolCall) -> CallResult:
        """Run *call*, unless it is refused or asked about, and return its result."""
        draft, toolbox = turn.draft, turn.profile.toolbox
        if (decided := await self.reviewer.review(turn, call)) is not None:
            return decided
        if not toolbox.is_repeatable(call):
            await self._store.step(turn.lease, draft.intent(call))
        effects, loop = StagedEffects(), asyncio.get_running_loop()
        began = loop.time()
        turn.show_call(toolbox.inner(call))
        try:
            outcome = await toolbox.run(call, self._tool_context(turn, call, effects))
        finally:
            turn.end_call(call)
        seconds = loop.time() - began
        effects.sources = encode_sources(outcome.sources)
        text = await self._pages.cut(turn.scope, outcome.text, outcome.page, effects, is_cut=outcome.is_cut)
        notes = await self._send_files(turn, outcome.files, effects)
        if outcome.picture is not None:
            notes.append(await self._show_picture(turn, call, outcome.picture, effects))
        text = "\n".join([text + effects.footer, *notes])
        is_untrusted = outcome.is_untrusted or effects.is_untrusted
        return CallResult(text, effects, is_untrusted=is_untrusted, is_error=outcome.is_error, seconds=seconds)

    async def _send_files(self, turn: Turn, files: Sequence[ResultFile], effects: StagedEffects) -> list[str]:
        """Stage the files of a result; return a line about each for the model."""
        send, notes = turn.bind_files(self._outgoing, effects), list[str]()
        for file in files:
            try:
                sent = await send.send_bytes(file.name, file.data, file.caption)
                notes.append(f"({sent.name}, {format_size(sent.size)}, will be sent with your answer)")
            except ToolFailed as error:
                notes.append(f"(a file of the result is not sent: {error})")
        return notes

    async def _show_picture(self, turn: Turn, call: ToolCall, picture: ResultPicture, effects: StagedEffects) -> str:
        """Store the picture of a result for the prompt; return a line about it for the model."""
        # Calls run side by side: each counts before it waits for anything.
        if len(turn.pictured | turn.draft.pictured_calls) >= MOST_PICTURES:
            return f"(not shown to you: at most {MOST_PICTURES} pictures of results in one turn)"
        turn.pictured.add(call.id)
        try:
            seen = await self._see(turn.scope, turn.key, picture.data)
        except FileUnavailable as error:
            note = str(error)
        except OSError as error:
            log.warning("tool.picture_not_stored", turn=turn.id, error=error.strerror)
            note = "it could not be stored"
        else:
            name = f"picture.{seen['seen']['media_type'].rpartition('/')[2]}"
            effects.pictures.append({"kind": "image", "name": name, "caption": picture.source, **seen})
            return "(the picture comes after the results)"
        turn.pictured.discard(call.id)
        return f"(the picture is not shown to you: {note})"

    def _tool_context(self, turn: Turn, call: ToolCall, effects: StagedEffects) -> ToolContext:
        draft = turn.draft
        is_tainted = draft.is_tainted_call(call)

        def progress(text: str, step: int = 0, of: int = 0) -> None:
            if turn.is_running(call):  # a call that was left behind after its timeout shows nothing
                turn.show_call(turn.profile.toolbox.inner(call), _format_progress(self._redact(text), step, of))

        return ToolContext(
            account=turn.account,
            sender=turn.message.sender,
            role=turn.role,
            chat_kind=turn.message.chat_kind,
            key=turn.key,
            scope=turn.scope,
            turn=turn.id,
            call=call.id,
            call_key=draft.call_key(call),
            now=self._now(),
            language=turn.language,
            progress=progress,
            recall=ScopedRecall(self._search, turn.scope, effects.taint, self._memory_tools.note_found),
            remember=effects.keep,
            is_tainted=is_tainted,
            edit=self._memory_tools.bind_edit(turn, call.id, effects, is_tainted=is_tainted),
            read_page=self._pages.bind(turn.scope, turn.all_lines, effects),
            ask_to_erase=self._memory_tools.bind_erasure(turn, effects),
            files=TurnFiles(
                services=self._files,
                scope=turn.scope,
                lines=turn.all_lines,
                key=f"{turn.id} {call.id}",
                zone=turn.zone,
                prefix=command_prefix(turn.language),
                taint=effects.taint,
                is_tainted=is_tainted,
            ),
            stage_job=effects.jobs.append,
            end_jobs=effects.ends.append,
            schedule=turn.bind_reminders(
                self._jobs,
                self._now,
                taint=effects.taint,
                staged_jobs=lambda: draft.jobs(turn.account.name, self._now(), turn.scope),
            ),
            tasks=turn.bind_tasks(
                self._tasks,
                self._now,
                staged_jobs=lambda: draft.jobs(turn.account.name, self._now(), turn.scope),
            ),
            send=turn.bind_files(self._outgoing, effects),
        )

    async def _add_messages(self, turn: Turn, rows: Sequence[InboxRow]) -> None:
        """Add messages of the sender to the running turn."""
        if rows:
            lines = await self._assembler.render_messages(turn, rows)
            await self._store.step(turn.lease, *turn.draft.take_opening(), turn.draft.steer(rows, lines))
