"""How long a question takes in a large scope, hot and cold; what one more message costs; if the event loop waits."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from agent.memory.search.embedding import Matrix, normalize_rows
from agent.memory.search.recall_engine import IndexedScope, RecallEngine
from agent.memory.search.search_unit import SearchUnit, SourceReading, UnitSource
from tests.benchmarks.harness import memory_mb, percentile
from tests.benchmarks.recall.sets import RecallSet

_DIMENSIONS = 384
_ASKED = 200
_ADDED = 300  # messages one by one, as somebody who searches after each has them written
_CALM_AFTER = 100  # messages until the scope has its rest
_TICK = 0.001  # seconds between two looks at the event loop
_COMMON_WORDS = ["time", "people", "work", "home", "week", "family", "friend", "day", "life", "year"]


class RandomEmbedder:
    """Vectors of no meaning, at once: what is measured is the search, not a model."""

    name = "random"

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Return random rows of length 1."""
        rows = self._random.standard_normal((len(texts), _DIMENSIONS)).astype(np.float32)
        return normalize_rows(rows)

    async def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class GrowingScope:
    """A scope that grows by a message at a time."""

    units: list[SearchUnit]

    async def marks(self) -> Mapping[UnitSource, str]:
        """Return one long conversation."""
        return {UnitSource(name="sessions/long.jsonl"): str(len(self.units))}

    async def read(self, source: UnitSource, since: str) -> SourceReading:
        """Return what came since."""
        start = int(since or 0)
        return SourceReading(units=self.units[start:], mark=str(len(self.units)), is_more=start > 0)


def _messages(count: int, chats: Sequence[RecallSet]) -> Iterator[SearchUnit]:
    """Yield real turns again and again with other rare words, or words by Zipf's law where there is no set."""
    chance = random.Random(7)  # noqa: S311 - the same text each time
    at = datetime(2020, 1, 1, tzinfo=UTC)
    turns = [turn for chat in chats for units in chat.units.values() for turn in units]
    ranks = np.random.default_rng(7).zipf(1.2, size=(1 if turns else count, 20)) % 50_000
    for n in range(count):
        if turns:
            turn = turns[n % len(turns)]
            words = [f"w{chance.randrange(50_000)}" if chance.random() < 0.05 else word for word in turn.text.split()]
            text, who = " ".join(words), turn.who
        else:
            text, who = " ".join(f"w{rank}" if rank > 10 else _COMMON_WORDS[rank - 1] for rank in ranks[n]), "Ann"
        yield SearchUnit(
            text=text, line=n + 1, at=at + timedelta(minutes=3 * n), who=who, role="user", group=str(n // 30)
        )


def _questions(chats: Sequence[RecallSet]) -> list[str]:
    asked = [asked.text for chat in chats for asked in chat.questions] or [
        f"when did w{n} and w{n * 7} talk of w{n * 31}" for n in range(11, 11 + _ASKED)
    ]
    random.Random(7).shuffle(asked)  # noqa: S311 - the same questions each time
    # Every third has a word that stands everywhere.
    return [text if n % 3 else f"{text} {_COMMON_WORDS[n % 10]}" for n, text in enumerate(asked[:_ASKED])]


def print_table(count: int, chats: Sequence[RecallSet]) -> None:
    """Build a scope of *count* units and print what it costs."""
    print(
        f"\n**{count:,} units in one scope**\n\n| what | p50 ms | p99 ms | CPU p50 ms | CPU p99 ms |",
        "|---|---|---|---|---|",
        sep="\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        units = list(_messages(count, chats))
        gc.collect()
        gc.freeze()  # no gateway holds all texts in memory: collecting ours would stand in the loop's lateness
        asyncio.run(_measure(Path(folder) / "index.db", units, _questions(chats)))


async def _measure(path: Path, units: list[SearchUnit], questions: Sequence[str]) -> None:
    grown = GrowingScope(units)
    scope = IndexedScope(path, grown)
    engine = RecallEngine(embedder=RandomEmbedder())
    started, cpu = time.perf_counter(), time.process_time()
    await engine.sync(scope)
    built, built_cpu = time.perf_counter() - started, time.process_time() - cpu
    await engine.wait_idle(path)
    embedded = time.perf_counter() - started - built
    await engine.close()

    engine = RecallEngine(embedder=RandomEmbedder())
    await _row("first question after a start", engine, [scope], questions[:1])
    await engine.wait_idle(path)
    await _row("with vectors, hot", engine, [scope], questions)
    idle = await _lag_beside(asyncio.sleep(2))
    worst = await _lag_beside(_row("with vectors, two at once", engine, [scope], questions, at_once=2))
    await engine.close()
    engine = RecallEngine()
    await _row("words alone", engine, [scope], questions)
    await _grow(engine, scope, grown)
    await engine.close()
    size = (await asyncio.to_thread(path.stat)).st_size / 1e6
    print(f"\nbuilt in {built:.1f} s ({built_cpu:.1f} s CPU), vectors kept in {embedded:.1f} s; {size:.0f} MB on disk;")
    for name, late in (("with nothing to do", idle), ("beside two searches", worst)):
        p50, p99 = (1e3 * percentile(late, share) for share in (0.5, 0.99))
        print(f"the event loop {name} came late by {p50:.1f} ms (p50), {p99:.1f} (p99), {1e3 * max(late):.1f} (most);")
    print(f"peak memory {memory_mb():.0f} MB; load {os.getloadavg()[0]:.1f}", flush=True)
    server = multiprocessing.get_context("spawn").Process(target=_print_serving_memory, args=(path, questions))
    server.start()
    await asyncio.to_thread(server.join)


def _print_serving_memory(path: Path, questions: Sequence[str]) -> None:
    """Print the peak memory of this process, which only opens the index and answers *questions*."""

    async def serve() -> None:
        engine = RecallEngine(embedder=RandomEmbedder())
        scope = IndexedScope(path, GrowingScope([]))
        await engine.search([scope], questions[0])
        await engine.wait_idle(path)
        await _row("with vectors, in a process that only serves", engine, [scope], questions)
        await engine.close()

    asyncio.run(serve())
    # Not `ru_maxrss`, which a new process inherits from the one that started it.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(f"peak memory of a process that only serves {int(peak.split()[1]) / 1024:.0f} MB")


async def _row(
    name: str, engine: RecallEngine, scopes: Sequence[IndexedScope], questions: Sequence[str], *, at_once: int = 1
) -> None:
    times: list[float] = []
    processor: list[float] = []

    async def ask(part: Sequence[str]) -> None:
        for text in part:
            started, cpu = time.perf_counter(), time.process_time()
            await engine.search(scopes, text)
            times.append(time.perf_counter() - started)
            processor.append(time.process_time() - cpu)

    await asyncio.gather(*(ask(questions[n::at_once]) for n in range(at_once)))
    _print(name, times, processor)


async def _grow(engine: RecallEngine, scope: IndexedScope, grown: GrowingScope) -> None:
    times: list[float] = []
    processor: list[float] = []
    rests: list[float] = []
    for n in range(_ADDED):
        if n % _CALM_AFTER == 0:
            started = time.perf_counter()
            await engine.compact(scope)
            rests.append(time.perf_counter() - started)
        last = grown.units[-1]
        grown.units.append(SearchUnit(text=f"{last.text} {n}", line=last.line + 1, at=last.at, who="Ann", role="user"))
        started, cpu = time.perf_counter(), time.process_time()
        await engine.sync(scope)
        times.append(time.perf_counter() - started)
        processor.append(time.process_time() - cpu)
    _print("one more message", times, processor)
    _print(f"merging when calm, after {_CALM_AFTER}", rests[1:], rests[1:])


async def _lag_beside(work: Coroutine[object, object, None]) -> Sequence[float]:
    """Return by how much the event loop came late beside *work*, every time."""
    late: list[float] = []
    task = asyncio.ensure_future(work)
    while not task.done():
        started = time.perf_counter()
        await asyncio.sleep(_TICK)
        late.append(time.perf_counter() - started - _TICK)
    await task
    return late


def _print(name: str, times: Sequence[float], processor: Sequence[float]) -> None:
    cells = [1e3 * percentile(each, share) for each in (times, processor) for share in (0.5, 0.99)]
    print(f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)
