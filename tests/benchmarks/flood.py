"""Point 4: many chats against a slow model, and one chat that floods."""

from __future__ import annotations

import math
import time

from gateway.ports.channel import IntakeVerdict
from tests.benchmarks.harness import row
from tests.benchmarks.turns import burst
from tests.fakes.inprocess_gateway import InstantModel, gateway

CHATS, EACH, SECONDS = 100, 10, 0.5
FLOOD = 300


async def crowd(workers: int) -> None:
    """Time 100 chats × 10 messages against a model of 500 ms."""
    async with gateway(model=InstantModel(SECONDS), environment={"PARLOUR_AGENT__WORKERS": str(workers)}) as bench:
        begun = time.perf_counter()
        await burst(bench, CHATS, EACH)
        wall = time.perf_counter() - begun
        await bench.idle()
        # No chat has more than one turn at a time, so its own messages are a bound as well.
        ideal = max(math.ceil(CHATS * EACH / workers), EACH) * SECONDS
        order = bench.channel.order
        violations = sum(said != sorted(said) for said in order.values())
        answered = sum(len(said) for said in order.values())
        row(
            f"100 chats x 10, model 500 ms, {workers} workers",
            wall_s=wall,
            ideal_s=ideal,
            ratio=wall / ideal,
            answers=answered,
            order_violations=violations,
        )


async def flooded() -> None:
    """Time another chat's answer while one chat floods: its own work is one model call."""
    async with gateway(model=InstantModel(SECONDS)) as bench:
        await (await bench.channel.say("quiet", "the first message of a chat makes its folders"))[1]
        begun = time.perf_counter()
        _, answer = await bench.channel.say("quiet", "alone")
        alone = await answer - begun
        verdicts = [(await bench.channel.say("flood", f"flood {n}"))[0].verdict for n in range(FLOOD)]
        begun = time.perf_counter()
        _, answer = await bench.channel.say("quiet", "beside the flood")
        beside = await answer - begun
        row(
            f"one chat floods {FLOOD}",
            queued=verdicts.count(IntakeVerdict.ACCEPTED),
            refused=verdicts.count(IntakeVerdict.FULL),
            alone_ms=alone * 1e3,
            beside_ms=beside * 1e3,
            added_ms=(beside - alone) * 1e3,
        )
