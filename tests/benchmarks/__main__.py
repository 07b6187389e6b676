"""`make bench`, or `python -m tests.benchmarks [name ...]` for some of them."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import sys
from collections.abc import Callable

from gateway.logs import configure_logs
from tests.benchmarks import (
    attacks,
    embedding_beside_turns,
    flood,
    forget_preview,
    hand_edits,
    message_path,
    over_http,
    page_speed,
    reminders,
    shared_turns,
    start,
    sync_calls,
    telegram_front,
    turn_growth,
    turns,
)
from tests.benchmarks.harness import cores, memory_mb, row


def _crowds() -> None:
    for workers in (16, 64):
        asyncio.run(flood.crowd(workers))


BENCHMARKS: dict[str, Callable[[], None]] = {
    "bare": lambda: asyncio.run(turns.bare()),
    "turns": lambda: asyncio.run(turns.throughput()),
    "postgresql": lambda: asyncio.run(turns.on_postgresql()),
    "gateways": lambda: asyncio.run(shared_turns.compare()),
    "honest": sync_calls.honest,
    "latency": lambda: asyncio.run(turns.latency()),
    "tools": lambda: asyncio.run(turns.tool_calls()),
    "mcp": lambda: asyncio.run(turns.mcp_reads()),
    "litellm": lambda: asyncio.run(over_http.with_litellm()),
    "clients": lambda: asyncio.run(over_http.with_each_client()),
    "start": start.start,
    "start-many": start.start_of_many,
    "embedding": lambda: asyncio.run(embedding_beside_turns.measure()),
    "crowd": _crowds,
    "flood": lambda: asyncio.run(flood.flooded()),
    "forget": lambda: asyncio.run(forget_preview.measure()),
    "hand-edits": lambda: asyncio.run(hand_edits.measure()),
    "tools-start": start.compare_tools,
    "reminders": lambda: asyncio.run(reminders.due_at_once()),
    "path": lambda: asyncio.run(message_path.measure()),
    "telegram": lambda: asyncio.run(telegram_front.measured()),
    "telegram-crowd": lambda: asyncio.run(telegram_front.crowded()),
    "telegram-flood": lambda: asyncio.run(telegram_front.flooded()),
    "attacks": lambda: asyncio.run(attacks.attacked()),
    "page": lambda: asyncio.run(page_speed.measure()),
    "flat": lambda: asyncio.run(turn_growth.hot()),
    "cold": lambda: asyncio.run(turn_growth.cold()),
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all of them."""
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        raise SystemExit(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {', '.join(BENCHMARKS)}")
    configure_logs(level="error", form="text", secrets=())
    gc.disable()  # as `parlour run` does: the gateway enables it once it has loaded everything
    row("this machine", cores=cores(), python=sys.version.split()[0], sqlite=sqlite3.sqlite_version)
    for name in names or BENCHMARKS:
        # What else the machine does is part of every figure.
        row(f"[{name}]", load=os.getloadavg()[0])
        BENCHMARKS[name]()
    row("peak memory of the benchmark", mb=memory_mb())


if __name__ == "__main__":
    main(sys.argv[1:])
