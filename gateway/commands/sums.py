"""What usage adds up to, as operators read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def summarize_usage(lines: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, str]:
    """Return calls, tokens, the percentage read from a cache, and the cost in words, of lines of `parlour usage`."""
    calls, tokens_in = sum(line["calls"] for line in lines), sum(line["tokens_in"] for line in lines)
    tokens = tokens_in + sum(line["tokens_out"] for line in lines)
    cached = round(100 * sum(line["tokens_cached"] for line in lines) / tokens_in) if tokens_in else 0
    known, unpriced = sum(line["known_cost"] for line in lines), sum(line["unpriced_calls"] for line in lines)
    if calls and unpriced == calls:
        return calls, tokens, cached, "unknown"
    return calls, tokens, cached, f"${known:.4f}" + (f" and {unpriced} calls unknown" if unpriced else "")
