"""Traces and metrics by OTLP, beside `/metrics`. Imported only where `otel.enabled` is set.

The trace id of a turn, and the ids of the spans that others are below, are derived from the turn's id: a turn that
another process takes over stays in its trace. Exporting happens in threads of the SDK, from bounded queues.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlsplit

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from requests import Response, Session
from requests.exceptions import ConnectionError as NoConnection

from gateway.installation import package_version
from gateway.net.addresses import ProxyAddress, is_direct, log_proxy_failure
from gateway.ports.metrics import TURN_SPAN, TraceSpan
from gateway.web.metrics import METRICS, SECONDS, MetricDefinition, MetricKind, PrometheusRecorder

log = structlog.get_logger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_THINK = "think"
_CHAT = "chat "
_IN_THINK = (_CHAT, "execute_tool ")  # beginnings of the names of spans below it
_LONGEST_TEXT = 64 * 1024  # characters of one attribute
_LAST_EXPORT = 2_000  # milliseconds at the stop


class OtlpRecorder(PrometheusRecorder):
    """Records metrics for `/metrics` and for OTLP alike, and spans for OTLP."""

    records_spans = True

    def __init__(self, *, has_content: bool, proxy: str = "", strict: bool = False) -> None:
        """Start the exporters, as OTEL_* variables configure them, through *proxy* ("" = none).

        *has_content* exports texts of people too.
        """
        super().__init__(strict=strict)
        self._has_content = has_content
        _report_failures_once()
        named = Resource.create({"service.name": "parlour", "service.version": package_version()})
        resource = named.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
        self._ids = _DerivedIds()
        self._traces = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(session=open_session(proxy))))
        self._tracer = self._traces.get_tracer("parlour", package_version())
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(session=open_session(proxy)))
        self._metrics = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._metrics.get_meter("parlour", package_version())
        self._instruments: Mapping[str, Any] = {each.name: _instrument(meter, each) for each in METRICS}
        self._model_calls = _ModelCallMetrics(meter)

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        super().count(name, amount, **labels)
        if self._knows(name, MetricKind.COUNT, labels):
            self._instruments[name].add(amount, labels)

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        super().gauge(name, value, **labels)
        if self._knows(name, MetricKind.GAUGE, labels):
            self._instruments[name].set(value, labels)

    def time(self, name: str, seconds: float, /, **labels: str) -> None:
        """Observe a duration."""
        super().time(name, seconds, **labels)
        if self._knows(name, MetricKind.TIME, labels):
            self._instruments[name].record(seconds, labels)

    def span(self, span: TraceSpan) -> None:
        """Record a span of a turn's trace, and the metrics of a model call."""
        if span.name.startswith(_CHAT):
            self._model_calls.record(span)
        if not span.turn:  # background work
            return
        trace, own = _trace_id(span.turn), _span_id(span.turn, span.name) if span.name in (TURN_SPAN, _THINK) else 0
        parent = _THINK if span.name.startswith(_IN_THINK) else TURN_SPAN
        # The sampler decides by the trace's id alone, so that each process decides alike.
        decision = self._traces.sampler.should_sample(None, trace, TURN_SPAN).decision
        is_sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)

        def context_of(turn: str, name: str) -> SpanContext:
            return SpanContext(_trace_id(turn), _span_id(turn, name), is_remote=True, trace_flags=flags)

        above = None
        if span.name != TURN_SPAN:
            above = set_span_in_context(NonRecordingSpan(context_of(span.turn, parent)))
        attributes = dict(span.attributes)
        if self._has_content and span.content is not None and is_sampled:
            attributes |= {name: _bounded(value) for name, value in span.content().items()}
        with self._ids.next_is(trace, own):
            started = self._tracer.start_span(
                span.name,
                above,
                SpanKind.CLIENT if span.name.startswith(_CHAT) else SpanKind.INTERNAL,
                attributes,
                [Link(context_of(each, TURN_SPAN)) for each in span.linked],
                _nanoseconds(span.began),
                record_exception=False,
                set_status_on_exception=False,
            )
        if span.error:
            started.set_attribute("error.type", span.error)
            started.set_status(Status(StatusCode.ERROR))
        started.end(_nanoseconds(span.ended))

    def close(self) -> None:
        """Export the rest. Blocks for as long as the receiver takes."""
        self._traces.force_flush(_LAST_EXPORT)
        self._traces.shutdown()
        self._metrics.shutdown(_LAST_EXPORT)

    def _knows(self, name: str, kind: MetricKind, labels: Mapping[str, str]) -> bool:
        metric = self._rows.get(name)
        return metric is not None and metric.kind is kind and set(labels) == set(metric.labels)


class _DerivedIds(RandomIdGenerator):
    """Random ids, except for the next span of this thread where they are given."""

    def __init__(self) -> None:
        self._given = threading.local()

    def next_is(self, trace: int, span: int) -> _DerivedIds:
        """Use these ids while the context is open; 0 = a random span id."""
        self._given.ids = (trace, span)
        return self

    def __enter__(self) -> None:
        """Open the context of `next_is`."""

    def __exit__(self, *_: object) -> None:
        """Return to random ids."""
        self._given.ids = (0, 0)

    def generate_trace_id(self) -> int:
        """Return the given trace id, or a random one."""
        return getattr(self._given, "ids", (0, 0))[0] or super().generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the given span id, or a random one."""
        return getattr(self._given, "ids", (0, 0))[1] or super().generate_span_id()


class _ModelCallMetrics:
    """The client metrics of OpenTelemetry's conventions for generative AI, with the buckets that they name.

    The model that a server says has answered is no attribute: it is the server's text, and without bound.
    """

    _SHARED = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "parlour.purpose")

    def __init__(self, meter: Any) -> None:
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=[4**power for power in range(14)],
        )
        self._duration, self._first, self._next = (
            meter.create_histogram(
                f"gen_ai.client.operation.{name}",
                unit="s",
                description=text,
                explicit_bucket_boundaries_advisory=[2**power / 100 for power in range(14)],
            )
            for name, text in (
                ("duration", "Duration of a model call."),
                ("time_to_first_chunk", "From request to the first piece of a streamed answer."),
                ("time_per_output_chunk", "From one piece of a streamed answer to the next."),
            )
        )

    def record(self, span: TraceSpan) -> None:
        """Record the model call of *span*."""
        call = {name: span.attributes[name] for name in self._SHARED}
        failed = {"error.type": span.error} if span.error else {}
        self._duration.record((span.ended - span.began).total_seconds(), call | failed)
        for kind in ("input", "output"):
            if (used := span.attributes.get(f"gen_ai.usage.{kind}_tokens")) is not None:
                self._tokens.record(used, call | {"gen_ai.token.type": kind})
        if (first := span.attributes.get("gen_ai.response.time_to_first_chunk")) is not None:
            self._first.record(first, call)
        for before, after in pairwise(span.chunks):
            self._next.record(max((after - before).total_seconds(), 0.0), call)


class _FailureLog(logging.Handler):
    """Logs the first problem of the SDK, and none of those that follow."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_reported = False

    def emit(self, record: logging.LogRecord) -> None:
        """Log *record* if it is the first."""
        if not self._is_reported:
            self._is_reported = True
            log.warning("otel.export_failed", source=record.name, problem=record.getMessage()[:200])


def _report_failures_once() -> None:
    """Replace the SDK's log lines, one for each failed export, by a single one."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers = [_FailureLog()]
    logger.propagate = False


def _instrument(meter: Any, metric: MetricDefinition) -> Any:
    name = f"parlour.{metric.name}"
    match metric.kind:
        case MetricKind.COUNT:
            return meter.create_counter(name, description=metric.text)
        case MetricKind.GAUGE:
            return meter.create_gauge(name, description=metric.text)
        case MetricKind.TIME:
            return meter.create_histogram(
                name, unit="s", description=metric.text, explicit_bucket_boundaries_advisory=SECONDS
            )


def _trace_id(turn: str) -> int:
    return int.from_bytes(hashlib.sha256(f"trace {turn}".encode()).digest()[:16], "big")


def _span_id(turn: str, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"span {name} {turn}".encode()).digest()[:8], "big")


def _nanoseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND * 1_000


def _bounded(value: str | float | bool) -> str | float | bool:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else value


def open_session(proxy: str) -> Session:
    """Return a session that goes through *proxy*, or direct if that is "". It ignores the environment's proxies."""
    return _ProxiedSession(ProxyAddress.parse(proxy)) if proxy else _DirectSession()


class _DirectSession(Session):
    """A session that reads no variable of the environment, nor ~/.netrc."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False


class _ProxiedSession(_DirectSession):
    """A session whose requests go through a proxy, except those to destinations that are near."""

    def __init__(self, way: ProxyAddress) -> None:
        super().__init__()
        self._way = way
        # The proxy resolves names with socks5 too. Without the colon, requests would send no user who has no password.
        login = f"{quote(way.user, safe='')}:{quote(way.password, safe='')}@" if way.user else ""
        address = str(replace(way, scheme="socks5h") if way.is_socks else way).replace("://", f"://{login}", 1)
        self._addresses = {"http": address, "https": address}

    def request(self, method: str, url: str | bytes, *args: Any, **options: Any) -> Response:
        """Send a request as the library does."""
        if is_direct(urlsplit(str(url)).hostname or ""):
            return super().request(method, url, *args, **options)
        try:
            return super().request(method, url, *args, **(options | {"proxies": self._addresses}))
        except NoConnection as error:
            log_proxy_failure(self._way, error)
            raise
