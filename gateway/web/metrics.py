"""`/metrics` for Prometheus, and the one table of what may be counted.

A label's values come from small fixed sets (an outcome, a channel block, a purpose), never from people.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import StoreDown
from gateway.net.addresses import FORWARDING_HEADERS
from gateway.net.neighbour import is_service
from gateway.web.guard import is_loopback

log = structlog.get_logger(__name__)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Kind(StrEnum):
    """How a metric moves."""

    COUNT = "count"
    GAUGE = "gauge"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str  # as the house says it; Prometheus reads parlour_<name>, and _total after a counter
    kind: Kind
    labels: tuple[str, ...]
    text: str


METRICS = (
    Metric("accepted", Kind.COUNT, ("outcome",), "Messages at the journal: new, duplicate, edited, noted, full."),
    Metric("rejected", Kind.COUNT, ("reason",), "Messages that were not admitted."),
    Metric("quarantined", Kind.COUNT, ("channel",), "Platform events that could not be read, or that broke us."),
    Metric("turns", Kind.COUNT, ("outcome",), "Turns by end state."),
    Metric("turn_failures", Kind.COUNT, ("failure",), "Turns that ended with a line of ours instead of an answer."),
    Metric("turn_seconds", Kind.TIME, (), "From claim to commit."),
    Metric("model_calls", Kind.COUNT, ("purpose", "outcome"), "Model calls by what became of them."),
    Metric("model_seconds", Kind.TIME, ("purpose",), "From request to the end of the answer."),
    Metric("model_first_seconds", Kind.TIME, ("purpose",), "From request to the first words."),
    Metric("model_tokens", Kind.COUNT, ("direction",), "Tokens: in, out, and cached among those in."),
    Metric("model_cost_dollars", Kind.COUNT, (), "Cost of model calls whose price is known, in US dollars."),
    Metric("model_unpriced", Kind.COUNT, (), "Model calls whose price is unknown."),
    Metric("capped", Kind.COUNT, ("cap",), "Messages that a cap left unanswered."),
    Metric("model_cache_hits", Kind.COUNT, (), "Model calls whose prompt was found in the provider's cache."),
    Metric("tool_calls", Kind.COUNT, ("outcome",), "Tool calls by what became of them."),
    Metric("tool_seconds", Kind.TIME, (), "Duration of tool calls."),
    Metric("jobs", Kind.COUNT, ("kind", "outcome"), "Background jobs: done, failed, put_off (waits for its turn)."),
    Metric("jobs_running", Kind.GAUGE, ("kind",), "Background jobs under way."),
    Metric("jobs_waiting", Kind.GAUGE, ("kind",), "Background jobs that are due and not taken up."),
    Metric("jobs_lag_seconds", Kind.GAUGE, ("kind",), "How long the oldest of them has been due."),
    Metric("jobs_later", Kind.GAUGE, ("kind",), "Background jobs that are not due yet: planned, or put off."),
    Metric("jobs_last_run_seconds", Kind.GAUGE, ("kind",), "When one last ended, well or not, in seconds since 1970."),
    Metric("background_tokens", Kind.GAUGE, (), "Tokens that background work has taken today."),
    Metric("background_tokens_limit", Kind.GAUGE, (), "Tokens that it may take a day; 0 = no limit."),
    Metric("delivered", Kind.COUNT, ("channel",), "Parts that stand in their chat."),
    Metric("delivery_retries", Kind.COUNT, ("channel", "reason"), "Parts tried again: later, unknown, format."),
    Metric("delivery_dead", Kind.COUNT, ("channel",), "Parts that were dead-lettered."),
    Metric("delivery_seconds", Kind.TIME, ("channel",), "From commit to the platform's receipt."),
    Metric("preview_edits", Kind.COUNT, ("channel",), "Edits of streaming previews."),
    Metric("channel_restarts", Kind.COUNT, ("channel",), "Times a channel was begun anew."),
    Metric("channel_deaf", Kind.COUNT, ("channel",), "Times a channel ran and heard nothing for five minutes."),
    Metric("channel_ready", Kind.GAUGE, ("channel",), "1 when the channel hears its platform."),
    Metric("alerts", Kind.COUNT, ("cause", "news"), "What owners were to be told: trouble, over, happened."),
    Metric("alert_posts", Kind.COUNT, ("outcome",), "Posts to the alert webhook: arrived, failed."),
    Metric("queued", Kind.GAUGE, (), "Accepted messages that have not ended."),
    Metric("queue_age_seconds", Kind.GAUGE, (), "Age of the oldest of them."),
    Metric("undelivered", Kind.GAUGE, (), "Parts that have not reached their chat."),
    Metric("dead_letters", Kind.GAUGE, (), "Dead letters kept."),
    Metric("unprojected", Kind.GAUGE, (), "Committed turns that are in no transcript file yet."),
)
# The journal's own words (Journal.depth) and the gauges they are.
DEPTH = {
    "queued": "queued",
    "oldest_seconds": "queue_age_seconds",
    "undelivered": "undelivered",
    "dead": "dead_letters",
    "unprojected": "unprojected",
}


class PrometheusMeter:
    """The `Meter` port over one registry of our own.

    A name or label that is not in the table is a bug: `strict` (tests) raises KeyError, otherwise it is
    logged once and dropped, since no turn may fail over a figure.
    """

    def __init__(self, *, strict: bool = False, metrics: tuple[Metric, ...] = METRICS) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="parlour", registry=self.registry)
        self._strict = strict
        self._rows = {metric.name: metric for metric in metrics}
        self._collectors = {metric.name: self._collector(metric) for metric in metrics}
        self._complained: set[str] = set()
        self._children: dict[tuple[object, ...], Any] = {}

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        if (child := self._child(name, Kind.COUNT, labels)) is not None:
            child.inc(amount)

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        if (child := self._child(name, Kind.GAUGE, labels)) is not None:
            child.set(value)

    def time(self, name: str, seconds: float, /, **labels: str) -> None:
        """Observe a duration."""
        if (child := self._child(name, Kind.TIME, labels)) is not None:
            child.observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _child(self, name: str, kind: Kind, labels: Mapping[str, str]) -> Any:
        # Every turn counts a dozen times, and prometheus_client checks the labels anew each time.
        key = (name, kind, *labels.items())
        child = self._children.get(key)
        if child is None:
            child = self._find(name, kind, labels)
            if child is not None:
                self._children[key] = child
        return child

    def _find(self, name: str, kind: Kind, labels: Mapping[str, str]) -> Any:
        metric = self._rows.get(name)
        if metric is None or metric.kind is not kind or set(labels) != set(metric.labels):
            self._complain(name, labels)
            return None
        collector = self._collectors[name]
        return collector.labels(**labels) if labels else collector

    def _complain(self, name: str, labels: Mapping[str, str]) -> None:
        if self._strict:
            raise KeyError(f"{name}({', '.join(sorted(labels))}) is not in gateway/web/metrics.py")
        if name not in self._complained:
            self._complained.add(name)
            log.error("metrics.unknown", name=name, labels=sorted(labels))

    def _collector(self, metric: Metric) -> Any:
        name, labels = f"parlour_{metric.name}", metric.labels
        match metric.kind:
            case Kind.COUNT:
                return Counter(name, metric.text, labels, registry=self.registry)
            case Kind.GAUGE:
                return Gauge(name, metric.text, labels, registry=self.registry)
            case Kind.TIME:
                return Histogram(name, metric.text, labels, registry=self.registry, buckets=_SECONDS)


def metrics_route(
    meter: PrometheusMeter, depth: Callable[[], Awaitable[Mapping[str, Any]]], *, token: str = ""
) -> Route:
    """Return `/metrics`, for requests from this machine and for those with the bearer *token*, if there is one.

    *depth* (Journal.depth) is asked at each scrape.
    """

    async def metrics(request: Request) -> Response:
        if not (_has_token(request, token) or await _is_from_this_machine(request)):
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        try:
            counters = await depth()
        except StoreDown:
            counters = {}  # the rest is still worth reading, now more than ever
        for word, gauge in DEPTH.items():
            if counters.get(word) is not None:
                meter.gauge(gauge, float(counters[word]))
        return Response(meter.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return Route("/metrics", metrics, methods=["GET"])


def _has_token(request: Request, token: str) -> bool:
    given = request.headers.getlist("authorization")
    wanted = f"Bearer {token}".encode()
    return bool(token) and len(given) == 1 and hmac.compare_digest(given[0].encode(), wanted)


async def _is_from_this_machine(request: Request) -> bool:
    """Return True if a program of this machine asks for itself, and not a proxy for somebody elsewhere."""
    if request.client is None or any(name in request.headers for name in FORWARDING_HEADERS):
        return False
    if not (is_loopback(request.client.host) and is_loopback(request.url.hostname or "")):
        return False
    return not await is_service(request.client.host, request.client.port)
