"""Reporting of metrics and spans, independent of their exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeAlias

SpanAttributes: TypeAlias = Mapping[str, str | int | float | bool]
TURN_SPAN = "turn"  # the span that all others of a turn are below


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """A part of a turn that has ended. The spans of one turn are one trace, in whatever process each was made."""

    turn: str
    name: str  # `TURN_SPAN`, a stage, `chat <model>` or `execute_tool <tool>`
    began: datetime
    ended: datetime
    attributes: SpanAttributes = field(default_factory=dict)  # no text of people
    error: str = ""  # what kind of failure ended it; "" = none
    chunks: tuple[datetime, ...] = ()  # when each piece of a streamed answer arrived
    linked: tuple[str, ...] = ()  # other turn ids, of messages that were merged into this turn
    content: Callable[[], SpanAttributes] | None = None  # texts of people, asked for only where they are exported


class MetricsRecorder(Protocol):
    """Counters, gauges and timings by name; labels come from small fixed sets, never from people."""

    records_spans: bool  # False: `span` has no effect, and callers build none

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""

    def time(self, name: str, seconds: float, /, **labels: str) -> None:
        """Observe a duration."""

    def span(self, span: TraceSpan) -> None:
        """Record a span of a trace. Never blocks and never raises."""
