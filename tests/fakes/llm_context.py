"""What tests of models and tools stand on: a meter that remembers, requests, a tool context over a list of hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from agent.llm.chat_model import ChatReply, ChatRequest, Price
from agent.memory.search.scope_recall import ScopeRecall
from agent.memory.search.search_unit import MEMORY, SEARCH_DEFAULTS, SearchHit, SearchHits, SearchOptions
from agent.tools.tool import ScopedRecall, ToolContext
from agent.tools.toolbox import Toolbox
from gateway.errors import ToolFailed
from gateway.events import ChatKind, PlatformAccount, Role, Sender, SessionKey
from gateway.ports.metrics import TraceSpan

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)


class SummingMeter:
    """A `Meter` that keeps sums by name and labels."""

    records_spans = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}
        self.gauges: dict[str, float] = {}

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add up."""
        self.counts[_key(name, labels)] += int(amount)

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Keep the last value."""
        self.gauges[_key(name, labels)] = value

    def time(self, name: str, seconds: float, /, **labels: str) -> None:
        """Keep every duration."""
        self.times.setdefault(_key(name, labels), []).append(seconds)

    def span(self, span: TraceSpan) -> None:
        """Keep no spans."""


def _key(name: str, labels: Mapping[str, str]) -> str:
    return " ".join([name, *(f"{label}={value}" for label, value in sorted(labels.items()))])


class FakeUsageRecorder:
    """`Books` that keep what calls took, and how many were opened and closed."""

    def __init__(self) -> None:
        self.replies: list[ChatReply] = []
        self.requests: list[ChatRequest] = []
        self.opened: list[str] = []  # models
        self.closed = 0

    async def begin_call(self, request: ChatRequest, model: str, price: Price | None = None) -> OpenUsageRecord:
        """Open a call."""
        self.opened.append(model)
        return OpenUsageRecord(self, request)

    def note_call(self, request: ChatRequest, model: str, usage: ChatReply) -> None:
        """Keep a call that has ended."""
        self.opened.append(model)
        OpenUsageRecord(self, request).end(usage)


@dataclass
class OpenUsageRecord:
    """A call under way."""

    usages: FakeUsageRecorder
    request: ChatRequest

    def end(self, spent: ChatReply | None, *, was_refused: bool = False) -> None:
        """Close it; what took nothing is only counted."""
        assert spent is None or not was_refused
        self.usages.closed += 1
        if spent is not None:
            self.usages.replies.append(spent)
            self.usages.requests.append(self.request)


class FakeSearchIndex(ScopeRecall):
    """A `SearchIndex` over hits by scope: everything whose text holds a word of the query."""

    def __init__(self, hits: Mapping[str, Sequence[SearchHit]] | None = None) -> None:
        self.hits = dict(hits or {})
        self.asked: list[tuple[str, str]] = []

    async def search(self, scope: str, query: str, options: SearchOptions = SEARCH_DEFAULTS) -> SearchHits:
        """Look through one scope."""
        self.asked.append((scope, query))
        self.bounds = (options.since, options.until)
        words = query.lower().split()
        found = [hit for hit in self._in(scope, options.project) if any(word in hit.text.lower() for word in words)]
        start, end = (options.page - 1) * options.limit, options.page * options.limit
        return SearchHits(found[start:end], has_more=len(found) > end)

    async def read(self, scope: str, source: str, line: int, *, project: str = MEMORY) -> Sequence[SearchHit]:
        """Return the lines of one place and the next."""
        return [hit for hit in self._in(scope, project) if hit.source == source and 0 <= hit.line - line <= 1]

    async def projects(self, scope: str) -> Sequence[str]:
        """Return the projects that hits name by their path."""
        return sorted({hit.source.split("/")[1] for hit in self.hits.get(scope, ()) if hit.source.startswith("docs/")})

    def note(self, scope: str) -> None:
        """Nothing is kept."""

    def _in(self, scope: str, project: str) -> Sequence[SearchHit]:
        folder = "" if project == MEMORY else f"docs/{project}/"
        return [hit for hit in self.hits.get(scope, ()) if hit.source.startswith(folder or hit.source)]


def request(
    *said: str, tools: Sequence[Mapping[str, Any]] = (), turn: str = "tabc", purpose: str = "answer"
) -> ChatRequest:
    """A request: a system prompt and user messages."""
    messages = [{"role": "system", "content": "You are Parlour."}]
    messages += [{"role": "user", "content": text} for text in said]
    return ChatRequest(messages=messages, tools=tools, turn=turn, purpose=purpose)


async def _refuse(*_: object, **__: object) -> Any:
    raise ToolFailed("not here")


def _pass_over(*_: object, **__: object) -> None:
    """Stage, record or show nothing."""


async def _record_nothing(scope: str, hits: Sequence[SearchHit]) -> None:
    """Record no use of memory."""


def recall(sources: FakeSearchIndex, scope: str) -> ScopedRecall:
    """Return the recall of *scope* in *sources*; nothing follows what is found."""
    return ScopedRecall(sources, scope, _pass_over, _record_nothing)


def context(
    sources: FakeSearchIndex | None = None, *, scope: str = "people/ann", staged: list[str] | None = None
) -> ToolContext:
    """A tool context of one person; *staged* collects what is to be remembered."""
    kept: list[str] = [] if staged is None else staged
    return ToolContext(
        account=PlatformAccount(kind="web", id="42"),
        sender=Sender(id="42", name="Ann"),
        role=Role.MEMBER,
        chat_kind=ChatKind.DIRECT,
        key=SessionKey("web", "42"),
        scope=scope,
        turn="tabc",
        call="call_0",
        call_key="tabc.1",
        now=NOW,
        recall=recall(sources or FakeSearchIndex(), scope),
        remember=lambda fact, keys="": kept.append(f"{fact} ({keys})" if keys else fact),
        edit=_refuse,
        ask_to_erase=_refuse,
        files=cast("Any", None),
        stage_job=_pass_over,
        end_jobs=_pass_over,
        schedule=cast("Any", None),
        tasks=cast("Any", None),
        send=cast("Any", _refuse),
        read_page=_refuse,
        progress=_pass_over,
        language="en",
        is_tainted=False,
    )


def memory_tools() -> Toolbox:
    """The box as it is installed."""
    return Toolbox.load()
