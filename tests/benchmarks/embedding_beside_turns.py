"""A home of 20,000 messages that was searched by words gets the installed model: how long, how much, and who waits.

``BENCH_MESSAGES`` makes a smaller run. The gateway is the whole one, with a scripted model.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.memory.search import embedding
from tests.benchmarks.harness import ProcessMeter, median, percentile, row
from tests.benchmarks.recall import twins
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

MESSAGES = 20_000
_ROUNDS, _ANSWERS = 6, 50  # that are timed
_PAUSE = 0.1  # seconds between them
_ALONE = 30.0  # seconds in which nothing but the embedding runs
_SCOPE = "people/pocket%3aann"
_INDEX = Path(_SCOPE) / "index.db"


async def measure() -> None:
    """Fill a home by words, then time answers and searches without the model and beside its work."""
    count = int(os.environ.get("BENCH_MESSAGES", MESSAGES))
    texts = [text for each in twins.rows() for text in (*each[0], *each[1])]
    with tempfile.TemporaryDirectory(prefix="parlour-bench-embedding-") as folder:
        home = Path(folder) / "home"
        async with _open(home, has_model=False) as bench:
            chance = random.Random(7)  # noqa: S311 - the same text each time
            for n in range(count // 2):
                await bench.channel.ask("ann", f"{' '.join(chance.sample(texts, 2))} {n}")
            await bench.idle()
            started = time.perf_counter()
            await bench.app.recall.rebuild(_SCOPE)
            row("index built by words", seconds=time.perf_counter() - started)
        size = (home / _INDEX).stat().st_size
        row("index by words", bytes_a_message=size / count)
        async with _open(home, has_model=True) as bench:
            await _search(bench, "first search after the start")
            started, meter = time.perf_counter(), ProcessMeter()
            await asyncio.sleep(_ALONE)
            figures = meter.read()
            row("embedding alone", cpu_share=figures["cpu"] / figures["wall"])
            beside, without = await _alternate(bench)
            _print("answers beside it", beside)
            _print("answers in between, with nothing beside", without)
            await _search(bench, "search meanwhile")
            await bench.app.recall._memory.wait_idle(home / _INDEX)
            row("embedded", messages=count, seconds=time.perf_counter() - started)
        async with _open(home, has_model=True) as bench:
            await _search(bench, "first search after a start, all embedded")
            await _search(bench, "the next one")
        row("index with vectors", bytes_a_message=(home / _INDEX).stat().st_size / count)


@asynccontextmanager
async def _open(home: Path, *, has_model: bool) -> AsyncIterator[InProcessGateway]:
    find = embedding.find_installed_model
    if not has_model:
        embedding.find_installed_model = lambda: None
    try:
        async with gateway(home=home, model=InstantModel()) as bench:
            yield bench
    finally:
        embedding.find_installed_model = find


async def _search(bench: InProcessGateway, name: str) -> None:
    started = time.perf_counter()
    await bench.channel.ask("ann", "/search Who looks after my teeth?")
    row(name, seconds=time.perf_counter() - started)


async def _alternate(bench: InProcessGateway) -> tuple[list[float], list[float]]:
    """Time answers while passages are embedded, and with the embedding ended, by turns: machines have moods."""
    beside: list[float] = []
    without: list[float] = []
    recall = bench.app.recall
    for _ in range(_ROUNDS):
        beside += await _answers(bench)
        for task in [*recall._memory._work_of(bench.home / _INDEX).tasks.values()]:
            task.cancel()
        await recall._memory.wait_idle(bench.home / _INDEX)
        without += await _answers(bench)
        recall._memory._embed_soon(recall._scope(_SCOPE))
    return beside, without


def _print(name: str, took: list[float]) -> None:
    row(name, answers=len(took), median_ms=median(took), p95_ms=percentile(took, 0.95))


async def _answers(bench: InProcessGateway) -> list[float]:
    took = []
    for n in range(_ANSWERS):
        started = time.perf_counter()
        await bench.channel.ask("ann", f"message {n} of a conversation")
        took.append(1e3 * (time.perf_counter() - started))
        await asyncio.sleep(_PAUSE)
    return took
