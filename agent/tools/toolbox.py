"""The toolbox: describes tools to the model and runs the calls it makes, valid or not."""

from __future__ import annotations

import asyncio
import difflib
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

import regex
import structlog
from pydantic import ValidationError

from agent.base.file_facts import clean
from agent.base.transcript_lines import estimate_messages
from agent.llm.chat_model import ToolCall
from agent.tools.deferred_tools import FIND_TOOLS, FINDERS, USE_TOOL, build_finder, inner_call, outer_call
from agent.tools.rights import CallVerdict, OperatorRights, RefusalRule, apply_rights, review_call
from agent.tools.tool import (
    LONGEST_RESULT,
    OUTCOME_UNKNOWN,
    STOPPED_RUNNING,
    AskRule,
    CallFacts,
    JsonArguments,
    ResultContent,
    ResultFile,
    ResultPicture,
    SkillTool,
    Tool,
    ToolContext,
    ToolKind,
    ToolResult,
)
from agent.tools.tool_questions import LONGEST_ATTACHED, LONGEST_SHOWN, digest_schema
from gateway.errors import NothingHappened, SettingsError, ToolFailed
from gateway.events import AnswerSource
from gateway.installation import load_entry_points
from gateway.ports.access import service_of
from gateway.ports.metrics import MetricsRecorder, TraceSpan
from gateway.text.message_text import show_json
from gateway.text.redaction import has_token

log = structlog.get_logger(__name__)

T = TypeVar("T")

GROUP = "parlour.tools"
RESULT_CHARS = 16_000
ARGUMENT_CHARS = 100_000
_REPEATS = 3
READ_RESULT = "read_result"
SKILL = "skill"
FILES_SEARCH = "files_search"  # only where there are files

_READING = frozenset({ToolKind.LOOK, ToolKind.WEB})
_GRACE = 5.0  # seconds that a cancelled call has to end
_LONG = 20_000  # characters; to clean more of them takes the loop too long
# Format characters hide text from people. Joiners stay inside words: scripts and emoji need them.
_INVISIBLE = regex.compile(
    r"(?<![\p{L}\p{M}\p{So}\ufe0f])[\u200c\u200d]|[\u200c\u200d](?![\p{L}\p{M}\p{So}])|(?![\u200c\u200d])\p{Cf}"
)
# A page that says so itself would pass for us.
# No bracket within: with one, each of many beginnings would be read to the end of its line.
_OUR_MARKERS = regex.compile(
    rf"{OUTCOME_UNKNOWN}|{STOPPED_RUNNING}|\[page \d+ of \d+: read_result\(|\[allowed by [^\[\]\n]*, asked ",
    regex.IGNORECASE,
)

# What people expect of an assistant. What no tool gives is said plainly in the prompt.
ABILITIES: Mapping[str, str] = {
    "memory": "look anything up in or add to a memory of earlier conversations",
    "web": "open web pages",
    "search": "search the web or know today's news",
    "files": "read or write files",
    "commands": "run programs",
    "compute": "calculate with code",
    "reminders": "do anything later by yourself, such as reminders",
    "messages": "write to other chats or people",
}


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The result of a tool call for the model."""

    text: str
    is_error: bool = False
    is_untrusted: bool = False  # holds words of strangers
    page: int = RESULT_CHARS  # characters that the model sees at once
    is_cut: bool = False  # the text is the beginning of a longer one
    files: Sequence[ResultFile] = ()
    picture: ResultPicture | None = None
    sources: Sequence[AnswerSource] = ()


class Toolbox:
    """The tools of one gateway. Immutable; safe to share between turns."""

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        result_chars: int = RESULT_CHARS,
        meter: MetricsRecorder | None = None,
        once: Collection[str] = (),
        left_out: Collection[str] = (),
        deferred: Mapping[str, Tool] | None = None,
        skills: SkillTool | None = None,
    ) -> None:
        """Hold *tools*; *once* are those that are off here, but were at work before and must not be twice.

        *left_out* are the installation's other tools, which the chat's settings leave out. *deferred* are those that
        are not in the prompt (`deferred_tools.py`). *skills* has the tool `skill`; None without skills.
        """
        self._tools: dict[str, Tool] = {}
        self._deferred = deferred or {}
        self._skills = skills
        self._result_chars = result_chars
        self._meter = meter
        self._left_out = frozenset(left_out)
        finders = build_finder(self._deferred) if self._deferred else ()
        readers = () if skills is None else (skills.tool,)
        for each in sorted([*tools, *finders, *readers], key=lambda item: item.name):
            if each.name in self._tools:
                raise SettingsError(f"two tools are called {each.name}; remove one of the packages that bring them")
            self._tools[each.name] = each
        self._once = frozenset(once) | {each.name for each in self._tools.values() if not each.repeatable}
        self._parts: dict[frozenset[str], Toolbox] = {}
        # What stands in every prompt is reckoned once.
        self.schemas: tuple[Mapping[str, Any], ...] = tuple(each.schema for each in self._tools.values())
        self.overhead = estimate_messages(self.schemas)  # tokens
        self.abilities = _abilities(self._tools.values(), self._deferred, skills)
        self.digests: Mapping[str, str] = {
            **{name: digest_schema(each.schema) for name, each in self._tools.items()},
            **({} if skills is None else skills.digests),
        }

    @classmethod
    def load(
        cls,
        *tools: Tool,
        entries: Iterable[EntryPoint] | None = None,
        result_chars: int = RESULT_CHARS,
        meter: MetricsRecorder | None = None,
        rights: Mapping[str, OperatorRights] | None = None,
    ) -> Toolbox:
        """Collect the installed tools (entry points `parlour.tools`) and *tools*, with the operator's *rights*."""
        found = load_entry_points(GROUP) if entries is None else entries
        every = [*(_loaded(entry) for entry in found), *tools]
        if any(each.name == SKILL for each in every):  # at the start, and not once there are skills
            raise SettingsError(f"a tool is called {SKILL}, as Parlour's own is; remove the package that brings it")
        return cls(apply_rights(every, rights or {}), result_chars=result_chars, meter=meter)

    def only(self, allow: Collection[str] | None, deny: Collection[str] = ()) -> Toolbox:
        """Return the toolbox of the tools in *allow* (None = all) and not in *deny*; the same object each time.

        Other tools are neither offered nor run.
        """
        if allow is None and not deny:
            return self
        left = frozenset(name for name in self._tools if (allow is None or name in allow) and name not in deny)
        if left and READ_RESULT in self._tools:  # whatever is allowed, its results are read whole
            left |= {READ_RESULT}
        kept = {name: each for name, each in self._deferred.items() if _is_kept(name, allow, deny)}
        if len(left) == len(self._tools) and len(kept) == len(self._deferred):
            return self
        part = frozenset((*left, *kept))
        if part not in self._parts:
            self._parts[part] = Toolbox(
                [each for name, each in self._tools.items() if name in left and name not in (*FINDERS, SKILL)],
                result_chars=self._result_chars,
                meter=self._meter,
                once=self._once,
                left_out=self._left_out | ((self._tools.keys() | self._deferred.keys()) - part),
                deferred=kept,
                skills=self._skills if SKILL in left else None,
            )
        return self._parts[part]

    def of_kinds(self, kinds: Collection[ToolKind]) -> Toolbox:
        """Return the toolbox of the tools of these kinds."""
        every = {**self._tools, **self._deferred}
        return self.only([name for name, each in every.items() if each.kind in kinds])

    def extended(
        self, deferred: Iterable[Tool], skills: SkillTool | None, rights: Mapping[str, OperatorRights]
    ) -> Toolbox:
        """Return the toolbox that has *deferred* tools and *skills* besides, with the operator's *rights*."""
        if skills is not None:
            skills = replace(skills, tool=apply_rights([skills.tool], rights, is_checked=False)[0])
        return Toolbox(
            self._tools.values(),
            result_chars=self._result_chars,
            meter=self._meter,
            once=self._once,
            deferred={each.name: each for each in apply_rights(deferred, rights, is_checked=False)},
            skills=skills,
        )

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, sorted by name."""
        return tuple(self._tools.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names, sorted."""
        return tuple(self._tools)

    def inner(self, call: ToolCall) -> ToolCall:
        """Return the call that *call* is: through `use_tool`, that of the tool which it names."""
        return inner_call(call) if self._deferred else call

    def requested(self, call: ToolCall) -> ToolCall:
        """Return *call* as a model makes it: of a tool that is not in the prompt through `use_tool`."""
        return outer_call(call) if call.name in self._deferred else call

    def _find(self, call: ToolCall) -> Tool | None:
        """Return the tool that *call*, as a model makes it, runs: `use_tool` runs those that are not in the prompt."""
        inner = self.inner(call)
        return self._tools.get(call.name) if inner is call else self._deferred.get(inner.name)

    def is_repeatable(self, call: ToolCall) -> bool:
        """Return True if the called tool may run again without harm. Unknown tools do nothing.

        Tools that are switched off count too: one may have run before. So may one that was deferred and is gone.
        """
        if (found := self._find(call)) is not None:
            return found.repeatable
        return call.name not in self._once and call.name != USE_TOOL

    def kind_of(self, call: ToolCall) -> ToolKind | None:
        """Return the kind of the called tool; None for an unknown one."""
        found = self._find(call)
        return None if found is None else found.kind

    def capped_as(self, call: ToolCall) -> str | None:
        """Return the name of the daily cap on the called tool; None for an unknown one."""
        found = self._find(call)
        return None if found is None else found.capped_as or found.kind

    def costs_of(self, call: ToolCall) -> str:
        """Return what a call of the tool costs, as `Tool.costs`."""
        found = self._find(call)
        return "" if found is None else found.costs

    def batches(self, calls: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
        """Yield *calls* in order: those that only read as one batch, which may run side by side, others alone."""
        for is_reading, group in itertools.groupby(calls, key=self._is_reading):
            found = list(group)
            yield from [found] if is_reading else ([each] for each in found)

    def can_ask(self, call: ToolCall) -> bool:
        """Return True if a person may have to allow a call of the tool."""
        found = self._find(call)
        return found is not None and (found.review is not None or found.ask is not AskRule.NEVER)

    def has_effects(self, call: ToolCall) -> bool:
        """Return True if the called tool changes something outside the turn's own commit."""
        kind = self.kind_of(call)
        return kind is not None and kind.has_effects

    def _is_reading(self, call: ToolCall) -> bool:
        return self.is_repeatable(call) and self.kind_of(call) in _READING

    def review(self, call: ToolCall, facts: CallFacts) -> CallVerdict:
        """Return whether *call* may run, and count one that may not."""
        verdict = self.verdict(call, facts)
        if verdict.refusal or verdict.question:
            self._count(call, "refused" if verdict.refusal else "asked")
        return verdict

    def verdict(self, call: ToolCall, facts: CallFacts) -> CallVerdict:
        """Return whether *call* may run. Calls that cannot run are passed: they fail with what is wrong."""
        found, call = self._find(call), self.inner(call)
        if call.name in self._left_out:
            return CallVerdict(_error(self._unknown(call.name)).text, RefusalRule.CHAT)
        if found is None:
            return CallVerdict()
        try:
            arguments = _read(found, call.arguments)
        except ToolFailed:
            return CallVerdict()
        if found.uses is not None and (refusal := self._refuse_use(found.uses(arguments), facts)):
            return CallVerdict(refusal, RefusalRule.CHAT)
        verdict = review_call(found, arguments, facts)
        # A file would go to the chat, which does not see a question for an owner.
        limit = LONGEST_ATTACHED if facts.can_attach and not verdict.is_for_owner else LONGEST_SHOWN
        if not verdict.question:
            return verdict
        shown = call.arguments if len(call.arguments) > limit else show_json(call.arguments)
        if len(shown) > limit:
            text = f"not run: a person must be shown the whole call, and it is longer than {limit} characters"
            return CallVerdict(text, RefusalRule.LENGTH)
        if has_token(shown):  # people would be shown a mark in its place
            text = "not run: a person must be shown the whole call, and text like a secret is never shown"
            return CallVerdict(text, RefusalRule.LENGTH)
        return verdict

    def _refuse_use(self, name: str, facts: CallFacts) -> str:
        """Return why a call cannot use the tool *name*, which is not there, refused, or asks; "" if it can."""
        if not name:
            return ""
        if (other := self._tools.get(name)) is None:
            return _error(self._unknown(name)).text
        verdict = review_call(other, {}, replace(facts, allowed_schema=""))
        return verdict.refusal or (
            f"not run: {name} asks a person first; call it by itself" if verdict.question else ""
        )

    def problem(self, call: ToolCall) -> str:
        """Return the error of *call*: its tool is unknown, or the arguments do not fit; "" if it can run."""
        found, call = self._find(call), self.inner(call)
        if found is None:
            return self._unknown(call.name)
        try:
            _read(found, call.arguments)
        except ToolFailed as error:
            return str(error)
        return ""

    def schema_digest(self, call: ToolCall) -> str:
        """Return the digest of the called tool's schema; "" for an unknown one."""
        found = self._find(call)
        return "" if found is None else self.digests.get(found.name) or digest_schema(found.schema)

    def _count(self, call: ToolCall, outcome: str) -> None:
        if self._meter is not None:
            self._meter.count("tool_calls", tool=self._label(call), outcome=outcome)

    def _label(self, call: ToolCall) -> str:
        """Return the tool's name for metrics: a model can invent any number of names."""
        name = self.inner(call).name
        if name in self._deferred:  # the tools of one service may be many
            return service_of(name)
        return name if name in self._tools or name in self._left_out else "unknown"

    async def run(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run *call* and return its bounded result, or what was wrong with it, for the model to read.

        Raises nothing but cancellation.
        """
        loop = asyncio.get_running_loop()
        begun, began = loop.time(), datetime.now(UTC)
        counted = "stopped"
        outcome: ToolOutcome | None = None
        try:
            outcome = await self._outcome(call, context)
            is_unknown = outcome.is_error and outcome.text == OUTCOME_UNKNOWN
            counted = "unknown" if is_unknown else "error" if outcome.is_error else "done"
        finally:
            if self._meter is not None:
                self._meter.time("tool_seconds", loop.time() - begun, tool=self._label(call))
                if self._meter.records_spans:
                    self._meter.span(_span_of(call, self._label(call), context.turn, began, counted, outcome))
            self._count(call, counted)
        return outcome

    async def _outcome(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        found, call = self._find(call), self.inner(call)
        if found is None:
            return _error(self._unknown(call.name))
        try:
            arguments = _read(found, call.arguments)
        except ToolFailed as error:
            return _error(str(error), untrusted=found.brings is ResultContent.WORDS)
        try:
            deadline = asyncio.get_running_loop().time() + found.timeout.total_seconds()
            work = found.run(replace(context, deadline=deadline), **arguments)
            result, text = await _run_bounded(found, _finish(work))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._failed(found, error, context)  # cancelled by itself: nobody stopped the turn
        except Exception as error:  # noqa: BLE001 - the tool's boundary: the model is told, the turn goes on
            return self._failed(found, error, context)
        is_untrusted = found.brings is ResultContent.WORDS
        return ToolOutcome(
            text,
            is_error=result.is_error,
            is_untrusted=is_untrusted,
            page=min(found.page, self._result_chars),
            files=result.files,
            picture=result.picture,
            sources=result.sources,
            is_cut=len(result.text) > LONGEST_RESULT,
        )

    def _failed(self, called: Tool, error: BaseException, context: ToolContext) -> ToolOutcome:
        """Return the outcome of a call that raised: an error, or, where it must not be repeated, an unknown outcome."""
        if isinstance(error, TimeoutError):
            log.warning("tool.timeout", tool=called.name, turn=context.turn)
            text = f"{called.name} did not finish in {called.timeout.total_seconds():.0f} seconds"
        elif isinstance(error, ToolFailed):
            text = str(error)
        else:
            # Neither message nor traceback: both may quote what a person wrote.
            log.warning(
                "tool.failed", tool=called.name, turn=context.turn, error=type(error).__name__, at=_place(error)
            )
            text = f"{called.name} failed inside ({type(error).__name__}); it is not your arguments' fault"
        if not (called.repeatable or isinstance(error, NothingHappened)):
            return ToolOutcome(OUTCOME_UNKNOWN, is_error=True)
        return _error(text, untrusted=called.brings is ResultContent.WORDS and isinstance(error, ToolFailed))

    def is_same(self, call: ToolCall, other: ToolCall) -> bool:
        """Return True if both calls ask one tool for the same thing, however their arguments are written."""
        return self.inner(call).name == self.inner(other).name and self._meaning(call) == self._meaning(other)

    def _meaning(self, call: ToolCall) -> object:
        """Return the arguments as the tool would get them, defaults filled in; as text where they cannot be read."""
        called, call = self._find(call), self.inner(call)
        try:
            return _read(called, call.arguments) if called is not None else _canonical(call.arguments)
        except ToolFailed:
            return _canonical(call.arguments)

    def _unknown(self, name: str) -> str:
        if name in self._deferred:
            return f"{name[:64]} is not called by itself; call {USE_TOOL} with its name and its arguments"
        near = difflib.get_close_matches(name, self._tools, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(self._tools) or 'none'}"
        return f"there is no tool called {name[:64]!r}; {hint}"


def _is_kept(name: str, allow: Collection[str] | None, deny: Collection[str]) -> bool:
    """Return True if a chat's lists leave the deferred tool *name*, which they may name by its service, too."""
    names = {name, service_of(name)}
    return (allow is None or not names.isdisjoint(allow)) and names.isdisjoint(deny) and USE_TOOL not in deny


def _abilities(tools: Collection[Tool], deferred: Collection[str], skills: SkillTool | None) -> str:
    """Return the prompt's list: each tool, then plainly what is missing. The same tools give the same bytes."""
    given = {ability for each in tools for ability in each.gives}
    can = [f"- {each.name}: {each.description}" for each in tools]
    cannot = [f"- {text}" for ability, text in ABILITIES.items() if ability not in given]
    parts = ["Your tools:", *can] if can else ["You have no tools."]
    if services := Counter(service_of(name).partition("_")[2] for name in deferred):
        counts = (f"{name} ({count} {'tool' if count == 1 else 'tools'})" for name, count in sorted(services.items()))
        parts.append(f"Connected services, whose tools {FIND_TOOLS} returns: {', '.join(counts)}")
    if skills is not None:
        parts.append(skills.catalogue)
    if cannot:
        parts += ["You cannot do the following, and say so when you are asked to:", *cannot]
    return "\n".join(parts)


def _span_of(
    call: ToolCall, tool: str, turn: str, began: datetime, status: str, outcome: ToolOutcome | None
) -> TraceSpan:
    """Return the span of a call, with the names of OpenTelemetry's conventions for generative AI."""
    result = outcome.text if outcome is not None else ""
    return TraceSpan(
        turn=turn,
        name=f"execute_tool {tool}",
        began=began,
        ended=max(datetime.now(UTC), began),
        attributes={"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool, "gen_ai.tool.call.id": call.id},
        error="" if status == "done" else status,
        content=lambda: {"gen_ai.tool.call.arguments": call.arguments, "gen_ai.tool.call.result": result},
    )


async def _finish(work: Awaitable[object]) -> tuple[ToolResult, str]:
    """Return the result of *work* and its cleaned text; raise TypeError for anything else than a result or a text."""
    found = await work
    result = ToolResult(text=found) if isinstance(found, str) else found
    if not isinstance(result, ToolResult):
        raise TypeError("no text")
    return result, await _clean_long_result(result.text)


async def _run_bounded(called: Tool, work: Awaitable[T]) -> T:
    """Return the result of *work*; raise TimeoutError after the tool's timeout.

    A call that ignores its cancellation is left behind after a few seconds: the turn must end.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=called.timeout.total_seconds())
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            _, left = await asyncio.wait({task}, timeout=_GRACE)
            if left:
                log.error("tool.ignores_cancellation", tool=called.name)


def clean_result(text: str) -> str:
    """Return *text* without controls and invisible characters, and without what only the program writes in results."""
    # `concurrent`: a long text is cleaned in a thread, which must not hold the interpreter.
    visible = _INVISIBLE.sub("", clean(text), concurrent=True)
    return str(_OUR_MARKERS.sub("(removed)", visible, concurrent=True))


async def _clean_long_result(text: str) -> str:
    """Return the cleaned beginning of *text*, as much of it as can be stored; a long one does not block the loop."""
    if len(text) <= _LONG:
        return clean_result(text)
    return await asyncio.to_thread(clean_result, text[:LONGEST_RESULT])


class LoopDetector:
    """Counts equal calls of one turn."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def is_repeated(self, call: ToolCall) -> bool:
        """Count *call*; True from the third time on that the same tool gets the same arguments."""
        call = inner_call(call)
        key = (call.name, _canonical(call.arguments))
        self._seen[key] += 1
        return self._seen[key] >= _REPEATS


def _loaded(entry: EntryPoint) -> Tool:
    try:
        found = entry.load()
    except ImportError as error:
        raise SettingsError(f"tool {entry.name} needs a package that is not installed: {error.name}") from error
    if not isinstance(found, Tool):
        raise SettingsError(f"tool {entry.name} ({entry.value}) is not made with @tool")
    return found


def _read(value: Tool, raw: str) -> dict[str, Any]:
    """Return the checked arguments; raise ToolFailed with what the model has to change."""
    if len(raw) > ARGUMENT_CHARS:
        raise ToolFailed(f"the arguments are longer than {ARGUMENT_CHARS} characters")
    try:
        given = json.loads(raw or "{}")
        # Some models wrap the object once more, in a string or in a list.
        given = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ToolFailed(f"the arguments are no valid JSON: {error}") from None
    except RecursionError:
        raise ToolFailed("the arguments are nested too deeply") from None
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise ToolFailed(f"the arguments must be a JSON object with {_fields(value)}")
    try:
        if isinstance(value.arguments, JsonArguments):
            return value.arguments.check(given)
        checked = value.arguments.model_validate(given)
    except ValidationError as error:
        raise ToolFailed(f"wrong arguments: {_validation_text(error)}; expected: {_fields(value)}") from None
    return {name: getattr(checked, name) for name in type(checked).model_fields}


def _validation_text(error: ValidationError) -> str:
    each = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, one['loc']))[:64] or 'all'}: {one['msg'][:200]}" for one in each[:5])


def _fields(value: Tool) -> str:
    arguments = value.arguments
    names = arguments.names if isinstance(arguments, JsonArguments) else arguments.model_fields
    return ", ".join(names) or "no fields"


def _canonical(raw: str) -> str:
    """Return equal text for arguments that mean the same."""
    try:
        return json.dumps(json.loads(raw or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return raw


def _error(text: str, *, untrusted: bool = False) -> ToolOutcome:
    """Return *text* as an error; it has no pages, and only what is shown of it is cleaned."""
    text = f"error: {text}"
    shown = clean_result(text[:_LONG])
    if len(shown) > RESULT_CHARS or len(text) > _LONG:
        note = f"\n[cut: the result has {len(text)} characters, this is its beginning]"
        shown = shown[: RESULT_CHARS - len(note)] + note
    return ToolOutcome(shown, is_error=True, is_untrusted=untrusted)


def _place(error: BaseException) -> str:
    """Return file and line where *error* was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
