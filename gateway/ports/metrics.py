"""Reporting of metrics, independent of their exporter."""

from __future__ import annotations

from typing import Protocol


class MetricsRecorder(Protocol):
    """Counters, gauges and timings by name; labels come from small fixed sets, never from people."""

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        ...

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        ...

    def time(self, name: str, seconds: float, /, **labels: str) -> None:
        """Observe a duration."""
        ...
