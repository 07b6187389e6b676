"""Point 5: a turn costs what is new, not what is stored: time, CPU, bytes written and bytes read, hot and cold.

``BENCH_CHATS`` and ``BENCH_MESSAGES`` make a smaller run of the cold one.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.store.sqlite import FILE
from tests.benchmarks.harness import ProcessMeter, row
from tests.benchmarks.long_conversations import BenchmarkChat, ConversationSizes, live
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

YOUNG, OLD = 50, 5_000
CHATS = 200
CACHE = 100
AT_ONCE = 20  # turns side by side in the cold run; fewer than the cache holds
PAIRS = 16  # of measured stretches, young and old by turns, so that the machine's moods and checkpoints hit both
STRETCH = 50  # turns

_FIGURES = (("time", "wall", 1e3, "ms"), ("cpu", "cpu", 1e3, "ms"), ("written", "written", 1e-3, "kb"))
_READ = ("read", "read", 1e-3, "kb")
Sums = dict[str, float]


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


# -- hot -------------------------------------------------------------------------------------------


async def hot() -> None:
    """Compare a session of 50 stored messages with one of 5,000, both at work; every turn through the gateway."""
    young: Sums = {}
    old: Sums = {}
    # Two messages more than a round number, so that both stretches hold as many new snapshots.
    before = YOUNG // 2 + 1
    async with gateway(model=InstantModel()) as bench:
        await _talk(bench, "old", OLD // 2 + 1)
        for n in range(PAIRS):
            await _talk(bench, f"young{n}", before)
        for n in range(PAIRS):
            pair = [(young, f"young{n}"), (old, "old")]
            for sums, chat in pair if n % 2 else reversed(pair):
                meter = ProcessMeter()
                await _talk(bench, chat, STRETCH)
                _add(sums, meter.read())
    _print("hot", {YOUNG: young, OLD: old}, PAIRS * STRETCH)


async def _talk(bench: InProcessGateway, chat: str, turns: int) -> None:
    for n in range(turns):
        await bench.channel.ask(chat, f"message {n} of a conversation")
    await bench.idle()


# -- cold ------------------------------------------------------------------------------------------


class _LastRequestsModel(InstantModel):
    """Keeps the last two requests of each chat."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: dict[str, list[list[Mapping[str, Any]]]] = {}

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Keep, then answer."""
        self.bodies[request.chat] = [*self.bodies.get(request.chat, [])[-1:], list(request.messages)]
        return await super().complete(request, sink=sink)


async def cold() -> None:
    """Compare 200 chats of 5,000 messages with 200 of 50, round robin with a cache of 20."""
    chats = _number("BENCH_CHATS", CHATS)
    pasts = {YOUNG: ConversationSizes(chats, YOUNG), OLD: ConversationSizes(chats, _number("BENCH_MESSAGES", OLD))}
    with tempfile.TemporaryDirectory(prefix="parlour-bench-cold-") as folder:
        homes = {stored: Path(folder) / str(stored) for stored in pasts}
        models = {stored: _LastRequestsModel() for stored in pasts}
        for stored, past in pasts.items():
            begun = time.perf_counter()
            await live(homes[stored], past)
            size = (homes[stored] / FILE).stat().st_size
            row(
                f"  a past of {past.chats} chats x {past.messages}",
                seconds=time.perf_counter() - begun,
                megabytes=size / 1e6,
            )
        sums: dict[int, Sums] = {stored: {} for stored in pasts}
        for n in range(3):
            for stored, past in pasts.items():
                figures = await _rounds(homes[stored], past, models[stored])
                if n:  # the first time, the mirror writes every file
                    _add(sums[stored], figures)
    _print("cold", sums, 2 * 2 * chats)
    for stored, model in models.items():
        _print_prompts(stored, model)


async def _rounds(home: Path, past: ConversationSizes, model: InstantModel) -> Sums:
    """Start the gateway on *home* and go twice around: every session is cold each time."""
    environment = {"PARLOUR_AGENT__SESSION_CACHE": str(min(CACHE, past.chats // 10))}
    async with gateway(home=home, model=model, environment=environment) as bench:
        meter = ProcessMeter()
        for n in range(2):
            chats = list(past.all())
            for start in range(0, len(chats), AT_ONCE):
                await asyncio.gather(*(_say(bench, chat, n) for chat in chats[start : start + AT_ONCE]))
        await bench.idle()
        return meter.read()


async def _say(bench: InProcessGateway, chat: BenchmarkChat, n: int) -> None:
    _, answer = await bench.channel.say(
        chat.name, f"round {n}", sender=chat.sender, number=f"{time.perf_counter_ns():015d}"
    )
    await answer


def _print_prompts(stored: int, model: _LastRequestsModel) -> None:
    """Say how many prompts begin with the one before their eviction, byte for byte."""
    same = 0
    longest = 0
    for before, after in model.bodies.values():
        longest = max(longest, len(after))
        same += json.dumps(after[: len(before)]) == json.dumps(before)
    row(
        f"  prompts after eviction, {stored} stored",
        begin_with_the_one_before=same,
        of=len(model.bodies),
        messages=longest,
    )


# -- figures ---------------------------------------------------------------------------------------


def _add(sums: Sums, more: Sums) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def _print(name: str, sums: Mapping[int, Sums], turns: int) -> None:
    young, old = sums[YOUNG], sums[OLD]
    for what, figure, factor, unit in (*_FIGURES, _READ):
        row(
            f"{name}: {what} per turn",
            **{
                f"at_{YOUNG}_{unit}": young[figure] / turns * factor,
                f"at_{OLD}_{unit}": old[figure] / turns * factor,
                "ratio": old[figure] / young[figure],
            },
        )
