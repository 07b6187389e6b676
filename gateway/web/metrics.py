"""`/metrics` for Prometheus, and the one table of what may be counted.

A label's values come from small fixed sets (an outcome, a channel block, a purpose), never from people.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.net.addresses import FORWARDING_HEADERS, is_loopback, is_system_account
from gateway.ports.metrics import TraceSpan
from gateway.web.origin_guard import is_known_host, refuse_name

log = structlog.get_logger(__name__)

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class MetricKind(StrEnum):
    """How a metric moves."""

    COUNT = "count"
    GAUGE = "gauge"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One row of the table."""

    name: str  # the internal name; Prometheus reads parlour_<name>, and _total after a counter
    kind: MetricKind
    labels: tuple[str, ...]
    text: str


# Name: its text, and its labels.
_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "accepted": ("Messages offered to the journal: new, duplicate, edited, noted, full.", "outcome"),
    "rejected": ("Messages that were not admitted.", "reason"),
    "quarantined": ("Platform events that could not be parsed, or that caused a crash.", "channel"),
    "turns": ("Turns by end state.", "outcome"),
    "turn_failures": ("Turns that ended with an error notice instead of an answer.", "failure"),
    "model_calls": ("Model calls by outcome.", "purpose", "outcome"),
    "model_tokens": ("Tokens: input, output, and the cached part of the input.", "direction"),
    "model_cost_dollars": ("Cost of model calls whose price is known, in US dollars.",),
    "model_unpriced": ("Model calls whose price is unknown.",),
    "cap_refusals": ("Messages that a cap left unanswered; tool calls that it refused.", "cap"),
    "model_cache_hits": ("Model calls whose prompt was found in the provider's cache.",),
    "tool_calls": ("Tool calls by tool and outcome.", "tool", "outcome"),
    "tool_questions": ("Questions about tool calls: allowed, denied, lapsed.", "state"),
    "reminders": ("Reminders: fired, late (over a day), paused.", "state"),
    "tasks": ("Background tasks: started, and how each ended.", "state"),
    "jobs": ("Background jobs: done, failed, put_off (postponed).", "kind", "outcome"),
    "delivered": ("Message parts delivered.", "channel"),
    "delivery_retries": ("Message parts sent again: later, unknown, format.", "channel", "reason"),
    "delivery_dead": ("Message parts dead-lettered.", "channel"),
    "preview_edits": ("Edits of streaming previews.", "channel"),
    "channel_restarts": ("Restarts of a channel.", "channel"),
    "channel_stalls": ("Times a running channel received nothing for five minutes.", "channel"),
    "alerts": ("Notices to owners: trouble, over, happened.", "cause", "news"),
    "alert_posts": ("Posts to the alert webhook: arrived, failed.", "outcome"),
}
_GAUGES: Mapping[str, tuple[str, ...]] = {
    "jobs_running": ("Background jobs that are running.", "kind"),
    "jobs_waiting": ("Background jobs that are due but not running.", "kind"),
    "jobs_lag_seconds": ("Time since the oldest of them was due.", "kind"),
    "jobs_scheduled": ("Background jobs that are not due yet: scheduled or postponed.", "kind"),
    "jobs_last_run_seconds": ("When the last one ended, successful or not, in seconds since 1970.", "kind"),
    "background_tokens": ("Tokens that background jobs have used today.",),
    "background_tokens_limit": ("Tokens that background jobs may use per day; 0 = no limit.",),
    "channel_ready": ("1 if the channel is connected.", "channel"),
    "store_writable": ("1 if the last write to the store succeeded in time.",),
    "queued": ("Accepted messages without an outcome yet.",),
    "queue_age_seconds": ("Age of the oldest of them.",),
    "undelivered": ("Message parts not delivered yet.",),
    "dead_letters": ("Dead letters kept.",),
    "transcripts_pending": ("Committed turns that are in no transcript file yet.",),
}
_TIMES: Mapping[str, tuple[str, ...]] = {
    "turn_seconds": ("From claim to commit.",),
    "model_seconds": ("From request to the end of the answer.", "purpose"),
    "model_first_token_seconds": ("From request to the first token.", "purpose"),
    "tool_seconds": ("Duration of tool calls.", "tool"),
    "delivery_seconds": ("From commit to the platform's delivery receipt.", "channel"),
}
METRICS = tuple(
    MetricDefinition(name, kind, tuple(labels), text)
    for kind, table in ((MetricKind.COUNT, _COUNTERS), (MetricKind.GAUGE, _GAUGES), (MetricKind.TIME, _TIMES))
    for name, (text, *labels) in table.items()
)
# What is unknown while the store does not answer.
OF_STORE = (
    *("queued", "queue_age_seconds", "undelivered", "dead_letters", "transcripts_pending", "background_tokens"),
    *("background_tokens_limit", "jobs_running", "jobs_waiting", "jobs_lag_seconds", "jobs_scheduled"),
)
# The journal's own words (SqlJournal.depth) and the gauges they are.
DEPTH = {
    "queued": "queued",
    "oldest_seconds": "queue_age_seconds",
    "undelivered": "undelivered",
    "dead": "dead_letters",
    "unwritten": "transcripts_pending",
}


class PrometheusRecorder:
    """The `Meter` port over one registry of our own.

    A name or label that is not in the table is a bug: `strict` (tests) raises KeyError, otherwise it is
    logged once and dropped, since no turn may fail over a figure.
    """

    records_spans = False

    def __init__(self, *, strict: bool = False) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="parlour", registry=self.registry)
        self._strict = strict
        self._rows = {metric.name: metric for metric in METRICS}
        self._collectors = {metric.name: self._collector(metric) for metric in METRICS}
        self._registered = {metric.name: metric.name not in OF_STORE for metric in METRICS}
        self._complained: set[str] = set()
        self._children: dict[tuple[object, ...], Any] = {}

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        if (child := self._child(name, MetricKind.COUNT, labels)) is not None:
            child.inc(amount)

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        if (child := self._child(name, MetricKind.GAUGE, labels)) is not None:
            child.set(value)

    def forget(self, *names: str) -> None:
        """Leave out these gauges until they are set again: their values are unknown."""
        for name in names:
            if self._registered.get(name):
                self.registry.unregister(self._collectors[name])
                self._registered[name] = False
            if self._rows[name].labels:
                self._collectors[name].clear()
        self._children = {key: child for key, child in self._children.items() if key[0] not in names}

    def time(self, name: str, seconds: float, /, **labels: str) -> None:
        """Observe a duration."""
        if (child := self._child(name, MetricKind.TIME, labels)) is not None:
            child.observe(seconds)

    def span(self, span: TraceSpan) -> None:
        """Do nothing: Prometheus has no traces."""

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _child(self, name: str, kind: MetricKind, labels: Mapping[str, str]) -> Any:
        # Every turn counts a dozen times, and prometheus_client checks the labels anew each time.
        key = (name, kind, *labels.items())
        child = self._children.get(key)
        if child is None:
            child = self._find(name, kind, labels)
            if child is not None:
                self._children[key] = child
        return child

    def _find(self, name: str, kind: MetricKind, labels: Mapping[str, str]) -> Any:
        metric = self._rows.get(name)
        if metric is None or metric.kind is not kind or set(labels) != set(metric.labels):
            self._complain(name, labels)
            return None
        collector = self._collectors[name]
        if not self._registered[name]:
            self.registry.register(collector)
            self._registered[name] = True
        return collector.labels(**labels) if labels else collector

    def _complain(self, name: str, labels: Mapping[str, str]) -> None:
        if self._strict:
            raise KeyError(f"{name}({', '.join(sorted(labels))}) is not in gateway/web/metrics.py")
        if name not in self._complained:
            self._complained.add(name)
            log.error("metrics.unknown", name=name, labels=sorted(labels))

    def _collector(self, metric: MetricDefinition) -> Any:
        name, labels = f"parlour_{metric.name}", metric.labels
        is_unknown = metric.name in OF_STORE  # registered with its first value
        match metric.kind:
            case MetricKind.COUNT:
                return Counter(name, metric.text, labels, registry=self.registry)
            case MetricKind.GAUGE:
                return Gauge(name, metric.text, labels, registry=None if is_unknown else self.registry)
            case MetricKind.TIME:
                return Histogram(name, metric.text, labels, registry=self.registry, buckets=SECONDS)


def record_depth(meter: PrometheusRecorder, depth: Mapping[str, Any]) -> None:
    """Set the gauges of queues from *depth* (SqlJournal.depth)."""
    for word, gauge in DEPTH.items():
        if depth.get(word) is not None:
            meter.gauge(gauge, float(depth[word]))


def metrics_route(meter: PrometheusRecorder, *, observe: Callable[[], object] = lambda: None, token: str = "") -> Route:
    """Return `/metrics`, for requests from this machine and for those with the bearer *token*, if there is one.

    With the token any Host header will do; without it, only our own names. *observe* is called before each scrape, and
    waits for nothing.
    """

    async def metrics(request: Request) -> Response:
        if not _has_token(request, token):
            if not is_known_host(request):
                return refuse_name()
            if not await _is_from_this_machine(request):
                return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        observe()
        return Response(meter.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return Route("/metrics", metrics, methods=["GET"])


def _has_token(request: Request, token: str) -> bool:
    given = request.headers.getlist("authorization")
    wanted = f"Bearer {token}".encode()
    return bool(token) and len(given) == 1 and hmac.compare_digest(given[0].encode(), wanted)


async def _is_from_this_machine(request: Request) -> bool:
    """Return True for a request from a program on this machine that is not a proxy."""
    if request.client is None or any(name in request.headers for name in FORWARDING_HEADERS):
        return False
    if not (is_loopback(request.client.host) and is_loopback(request.url.hostname or "")):
        return False
    return not await is_system_account(request.client, request.scope["server"])
