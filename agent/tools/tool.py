"""Tools: each is a typed async function of a context and arguments.

    @tool("Keep a fact for later conversations.", kind=ToolKind.KEEP)
    async def remember(context: ToolContext, fact: Annotated[str, "one sentence"]) -> str: ...

The schema a model sees and the check of its arguments both come from the signature, computed once. The sources
of a result are stored with its line, and listed below the answer as links.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from agent.files.turn_files import TurnFiles
from agent.memory.editing.text_operations import DocumentEdit
from agent.memory.search.search_unit import MEMORY, SEARCH_DEFAULTS, SearchHit, SearchHits, SearchOptions
from agent.reminders.reminder_access import ReminderAccess
from agent.tasks.task_access import TaskAccess
from gateway.errors import NothingHappened as NothingHappened
from gateway.errors import ToolFailed
from gateway.events import AnswerSource, ChatKind, PlatformAccount, Role, Sender, SessionKey
from gateway.ports.journal import Job, Line
from gateway.text.message_text import LONGEST_TITLE, MOST_SOURCES, file_place, is_source

if TYPE_CHECKING:
    from agent.files.outgoing_files import BoundFileSender
    from agent.memory.search.file_recall import FileHits
    from agent.memory.search.scope_recall import ScopeRecall


LONGEST_RESULT = 1_000_000  # bytes of a result's text


def encode_sources(sources: Iterable[AnswerSource]) -> Sequence[Mapping[str, str]]:
    """Return *sources* for a transcript line: pages by addresses of http and https, and files; others are left out."""
    kept = [{"url": each.url, "title": each.title[:LONGEST_TITLE]} for each in sources if is_source(each.url)]
    return kept[:MOST_SOURCES]


def collect_sources(lines: Iterable[Line], answer: str) -> tuple[AnswerSource, ...]:
    """Return the sources of the results among a turn's *lines*, each address once: of files those that *answer* cites.

    It cites a file by its name, and one of its places by the place's number or name; without one, the best place is
    listed.
    """
    found = {str(each.get("url", "")): str(each.get("title", "")) for line in lines for each in line.get("sources", ())}
    files: dict[str, list[str]] = {}
    for url in found:
        if (place := file_place(url)) is not None and _has_words(answer, place[0].rpartition("/")[2]):
            files.setdefault(place[0], []).append(url)
    cited: set[str] = set()
    for urls in files.values():
        named = [url for url in urls if (place := file_place(url)) is not None and _has_words(answer, place[1])]
        cited.update(named or urls[:1])
    kept = [
        AnswerSource(url, title[:LONGEST_TITLE])
        for url, title in found.items()
        if is_source(url) and (url in cited or file_place(url) is None)
    ]
    return tuple(kept[:MOST_SOURCES])


def _has_words(text: str, words: str) -> bool:
    """Return True if *text* has *words* that no letter or digit continues, in either case.

    Only those of ASCII: Chinese writes names and numbers without blanks around them.
    """
    found = rf"(?<![A-Za-z0-9]){re.escape(words)}(?![A-Za-z0-9])"
    return bool(words) and re.search(found, text, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file that a result brings to the person, with the answer."""

    name: str
    data: bytes = field(repr=False)
    caption: str = ""  # what it shows, for those who cannot see it


@dataclass(frozen=True, slots=True)
class ResultPicture:
    """A picture that a result brings to the model; it is not sent to the person."""

    source: str  # whose it is, such as a host
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool that returns more than a text."""

    text: str
    files: Sequence[ResultFile] = ()
    picture: ResultPicture | None = None
    sources: Sequence[AnswerSource] = ()
    is_error: bool = False


# Results that the program writes in a tool's place; transcripts hold them as they are.
OUTCOME_UNKNOWN = "outcome unknown: it may have happened"
STOPPED_RUNNING = "stopped while it ran: it may have happened"
STOPPED = "stopped by the user"

LONGEST_TIMEOUT = timedelta(minutes=10)


class ToolKind(StrEnum):
    """The effect of a call: the row of the rights table (`agent/tools/rights.py`)."""

    LOOK = "look"  # reads the turn's own memory scope
    KEEP = "keep"  # stages data that the turn's commit stores
    WEB = "web"  # reads public addresses
    COMPUTE = "compute"  # calculates without access to anything else
    RUN = "run"  # runs programs
    ACT = "act"  # changes another system at once
    SPEND = "spend"  # costs money beyond the answer

    @property
    def has_effects(self) -> bool:
        """True if a call changes something outside the turn's own commit."""
        return self in {ToolKind.RUN, ToolKind.ACT, ToolKind.SPEND}


class ResultContent(StrEnum):
    """The origin of the text in a tool's result."""

    TRUSTED = "trusted"  # ours, or what the scope's memory marks itself
    WORDS = "words"  # untrusted text: the turn is tainted from here on


class AskRule(StrEnum):
    """Conditions for asking a person before a call; each rule includes the ones before it."""

    NEVER = "never"
    TAINTED = "tainted"  # if untrusted text was in the prompt when the model requested the call
    FIRST = "first"  # also the first time for each subject
    ALWAYS = "always"

    def covers(self, other: AskRule) -> bool:
        """Return True if this rule asks whenever *other* does."""
        order = list(AskRule)
        return order.index(self) >= order.index(other)

    def or_stricter(self, other: AskRule) -> AskRule:
        """Return the one of both that asks more."""
        return self if self.covers(other) else other


ASK_BY_KIND: Mapping[ToolKind, AskRule] = {
    ToolKind.LOOK: AskRule.NEVER,
    ToolKind.KEEP: AskRule.NEVER,  # its tools stage what must be asked about, and the commit decides
    ToolKind.WEB: AskRule.NEVER,
    ToolKind.COMPUTE: AskRule.NEVER,
    ToolKind.RUN: AskRule.TAINTED,
    ToolKind.ACT: AskRule.FIRST,
    ToolKind.SPEND: AskRule.TAINTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """Facts that the right to a call depends on."""

    role: Role
    chat_kind: ChatKind
    is_untyped: bool  # a job started the turn, not a message of the person
    is_tainted: bool = False  # untrusted text was in the prompt when the model requested the call
    turn: str = ""
    call: str = ""  # the tool call's id
    sender: str = ""  # platform id of the turn's person
    lines: Callable[[], Sequence[Line]] = tuple  # of the conversation, this turn's included
    can_attach: bool = False  # the chat takes files: long arguments are shown as one
    exceeded_limit: int = 0  # calls of this kind that the person may make in a day, if they are used up
    decisions: Mapping[tuple[str, str, str], bool] = field(default_factory=dict)  # standing ones, see `review_call`
    allowed_schema: str = ""  # digest of the tool's schema when a person allowed this call; "" = it was not asked


CallReview = Callable[[Mapping[str, Any], CallFacts], AskRule]  # (checked arguments, facts)
FoundRecorder = Callable[[str, Sequence[SearchHit]], Awaitable[None]]  # (scope, hits of its memory)


class ScopedRecall:
    """Search and reading of one scope's memory and the shared memory."""

    __slots__ = ("_index", "_note_found", "_scope", "_taint")

    def __init__(self, index: ScopeRecall, scope: str, taint: Callable[[], None], note_found: FoundRecorder) -> None:
        self._index = index
        self._scope = scope
        self._taint = taint
        self._note_found = note_found

    async def search(self, query: str, options: SearchOptions = SEARCH_DEFAULTS) -> SearchHits:
        """Return the hits of a page, best first."""
        hits = await self._index.search(self._scope, query, options)
        self._note(hits)
        if options.project == MEMORY:
            await self._note_found(self._scope, hits)
        return hits

    async def read(self, source: str, line: int, *, project: str = MEMORY) -> Sequence[SearchHit]:
        """Return the passage at a place named by a search with its surroundings, in order."""
        hits = await self._index.read(self._scope, source, line, project=project)
        self._note(hits)
        return hits

    async def search_files(self, query: str, lines: Iterable[Line]) -> FileHits:
        """Return passages of the scope's files, best first; *lines* are those of the conversation."""
        found = await self._index.search_files(self._scope, query, lines)
        if any(hit.is_untrusted for hit in found.hits):
            self._taint()
        return found

    def _note(self, hits: Sequence[SearchHit]) -> None:
        if any(hit.origin for hit in hits):
            self._taint()

    async def projects(self) -> Sequence[str]:
        """Return the names of the projects with documents."""
        return await self._index.projects(self._scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Sender, chat and services of one tool call. A tool can reach only this memory scope."""

    account: PlatformAccount
    sender: Sender
    role: Role
    chat_kind: ChatKind
    key: SessionKey
    scope: str
    turn: str
    call: str  # the tool call's id
    call_key: str  # "<turn>.<n>", the same after a restart: the idempotency key
    now: datetime
    recall: ScopedRecall
    remember: Callable[..., None]  # (fact, keys=""): stages a fact and words that find it; the commit stores it
    edit: Callable[[Sequence[DocumentEdit]], Awaitable[str]]  # changes memory; returns what changed
    ask_to_erase: Callable[[str], Awaitable[str]]  # asks the person after the turn; returns what matches
    files: TurnFiles  # of this scope
    stage_job: Callable[[Job], None]  # stages a job; it is queued when the turn is committed
    end_jobs: Callable[[str], None]  # stages the removal of jobs by the prefix of their ids
    schedule: ReminderAccess  # reminders of the chat
    tasks: TaskAccess  # of the chat
    send: BoundFileSender  # stages a file; it is sent when the turn is committed
    read_page: Callable[[str, int], Awaitable[str]]  # (name, page) of a long result of the conversation
    progress: Callable[..., None]  # (text, step=0, of=0): shows how far the call is in its chat; the last one wins
    deadline: float | None = None  # when the call is cancelled, for `asyncio.timeout_at`
    language: str  # of the chat, as "de"
    is_tainted: bool  # words of others stand before the model: what it wants kept waits for a yes


class JsonArguments:
    """The arguments of a tool that another program describes, as one object called `arguments`.

    Only names are checked here. The values are checked where the tool runs, since patterns of others can take long.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        properties, required = schema.get("properties"), schema.get("required")
        self.names = tuple(properties) if isinstance(properties, dict) else ()
        self._required = [str(each) for each in required] if isinstance(required, list) else []
        self._is_closed = schema.get("additionalProperties") is False

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return *values* as the tool's function takes them. Raises ToolFailed."""
        missing = [name for name in self._required if name not in values]
        unknown = [name for name in values if name not in self.names] if self._is_closed else []
        if missing or unknown:
            wrong = f"{missing[0]} is missing" if missing else f"there is no {unknown[0][:64]}"
            raise ToolFailed(f"wrong arguments: {wrong}; expected: {', '.join(self.names) or 'no fields'}")
        return {"arguments": values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function with what the model, the loop, the prompt and the rights table have to know of it."""

    name: str
    description: str
    run: Callable[..., Awaitable[str | ToolResult]]  # (context, **arguments)
    arguments: type[BaseModel] | JsonArguments
    schema: Mapping[str, Any]  # the OpenAI function schema, its keys in a fixed order
    kind: ToolKind
    repeatable: bool  # idempotent
    brings: ResultContent
    ask: AskRule
    subject: Callable[..., str] | None  # (**arguments): what a standing approval would cover, such as a host
    review: CallReview | None  # when this call asks, where the arguments decide it; at least as `ask` says
    who: Role | None  # the least role; None = by kind
    where: frozenset[ChatKind] | None  # kinds of chat; None = by kind
    is_for_untyped: bool | None  # also in turns that a job started; None = by kind
    timeout: timedelta
    page: int  # characters of a result that the model sees at once
    gives: tuple[str, ...]  # which abilities of `toolbox.ABILITIES` somebody has through it
    uses: Callable[[Mapping[str, Any]], str] | None = None  # (arguments): a tool that must be allowed, too; "" = none
    is_personal: bool = False  # acts as the turn's person elsewhere: nobody else may allow a call
    capped_as: str = ""  # the daily cap on its calls; "" = that of its kind
    costs: str = ""  # US dollars of a call, as a question shows them; "?" = an unknown price, "" = no price of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillTool:
    """The tool that reads skills, with what the prompt says of them; another object once a skill has changed."""

    tool: Tool
    catalogue: str  # a line for each skill, in the list of abilities
    digests: Mapping[str, str]  # of each skill's text, by "skill <name>": another one starts a new snapshot


def tool(
    description: str,
    *,
    kind: ToolKind,
    repeatable: bool | None = None,
    brings: ResultContent = ResultContent.TRUSTED,
    ask: AskRule | None = None,
    subject: Callable[..., str] | None = None,
    review: CallReview | None = None,
    who: Role | None = None,
    where: Collection[ChatKind] | None = None,
    is_for_untyped: bool | None = None,
    timeout: timedelta = timedelta(seconds=60),
    page: int = 12_000,
    gives: Sequence[str] = (),
    uses: Callable[[Mapping[str, Any]], str] | None = None,
    name: str = "",
    capped_as: str = "",
    costs: str = "",
) -> Callable[[Callable[..., Awaitable[str | ToolResult]]], Tool]:
    """Make a tool of an async function; the fields are those of `Tool`.

    By default a tool is *repeatable* if its kind has no effects, and asks as `ASK_BY_KIND` says.

    Raises TypeError for a function that is not async, lacks the context, or has untyped parameters, and ValueError for
    a *timeout* above ten minutes.
    """
    if not timedelta(0) < timeout <= LONGEST_TIMEOUT:
        raise ValueError(f"a tool's timeout is at most {LONGEST_TIMEOUT}")

    def decorate(function: Callable[..., Awaitable[str | ToolResult]]) -> Tool:
        own = name or function.__name__
        arguments = _arguments(function, own)
        parameters = _plain(_without_references(arguments.model_json_schema()))
        schema = {"description": description, "name": own, "parameters": parameters}
        return Tool(
            name=own,
            description=description,
            run=function,
            arguments=arguments,
            schema={"type": "function", "function": schema},
            kind=kind,
            repeatable=not kind.has_effects if repeatable is None else repeatable,
            brings=brings,
            ask=ASK_BY_KIND[kind] if ask is None else ask,
            subject=subject,
            review=review,
            who=who,
            where=None if where is None else frozenset(where),
            is_for_untyped=is_for_untyped,
            timeout=timeout,
            page=page,
            gives=tuple(gives),
            capped_as=capped_as,
            costs=costs,
            uses=uses,
        )

    return decorate


def _arguments(function: Callable[..., Any], name: str) -> type[BaseModel]:
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"tool {name} must be an async function")
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or hints.get(parameters[0].name) is not ToolContext:
        raise TypeError(f"tool {name} takes a ToolContext first")
    fields: dict[str, Any] = {}
    for parameter in parameters[1:]:
        if parameter.name not in hints or parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}:
            raise TypeError(f"tool {name}: every parameter has a type, unlike {parameter.name!r}")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (_described(hints[parameter.name]), default)
    return create_model(name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)


def _described(hint: Any) -> Any:
    """Take a plain string in Annotated as the parameter's description."""
    if typing.get_origin(hint) is not Annotated:
        return hint
    kind, *notes = typing.get_args(hint)
    fields: list[FieldInfo | Any] = [Field(description=note) if isinstance(note, str) else note for note in notes]
    return Annotated[kind, *fields]


def _without_references(schema: Any, definitions: Mapping[str, Any] | None = None) -> Any:
    """Write the definitions of nested objects where they are used; not every provider resolves references."""
    if isinstance(schema, list):
        return [_without_references(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    known = schema.get("$defs", {}) if definitions is None else definitions
    if "$ref" in schema:
        definition = known[schema["$ref"].rpartition("/")[2]]
        # The description of a class is a docstring, for readers of the code.
        return _without_references({name: each for name, each in definition.items() if name != "description"}, known)
    return {name: _without_references(each, known) for name, each in schema.items() if name != "$defs"}


def _plain(schema: Any, *, is_named: bool = False) -> Any:
    """Drop what tells a model nothing, and sort keys, so that another pydantic gives the same bytes.

    That is: titles, empty defaults, and that there are no other parameters, which is checked when the tool is called.
    The names of parameters (*is_named*) keep their order, which is the signature's.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if is_named:
        return {name: _plain(schema[name]) for name in schema}
    return {
        name: _plain(schema[name], is_named=name in _NAMED)
        for name in sorted(schema)
        if name != "title" and not any(name == silent and schema[name] == value for silent, value in _SILENT)
    }


_NAMED = frozenset({"properties"})
_SILENT: Sequence[tuple[str, object]] = (("additionalProperties", False), ("default", ""), ("default", []))
