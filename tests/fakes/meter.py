"""A meter that remembers."""

from __future__ import annotations

from collections import Counter

from gateway.ports.metrics import TraceSpan


class FakeMeter:
    """Counts by name and labels; gauges and timings are kept as they came."""

    records_spans = False

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, frozenset[tuple[str, str]]]] = Counter()
        self.gauges: dict[str, float] = {}
        self.times: list[tuple[str, float]] = []

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        self.counts[name, frozenset(labels.items())] += int(amount)

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge; labels are not kept apart."""
        self.gauges[name] = value

    def time(self, name: str, seconds: float, /, **labels: str) -> None:
        """Keep a timing."""
        self.times.append((name, seconds))

    def span(self, span: TraceSpan) -> None:
        """Keep no spans."""

    def total(self, name: str) -> int:
        """Return the sum of a counter over all labels."""
        return sum(amount for (counted, _), amount in self.counts.items() if counted == name)
