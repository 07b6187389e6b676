"""What a turn leaves to the garbage collector, which a running gateway calls seldom (gateway/app/composition.py)."""

from __future__ import annotations

import gc

from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

TURNS = 50


async def test_a_turn_leaves_no_reference_cycle() -> None:
    """Answered turns are freed as they end, so that memory does not grow between two rare collections."""
    async with gateway(model=InstantModel()) as bench:
        await _answer(bench, 5)
        gc.collect()
        gc.disable()
        try:
            await _answer(bench, TURNS)
            found = gc.collect()
        finally:
            gc.enable()
        assert found < TURNS


async def _answer(bench: InProcessGateway, turns: int) -> None:
    for n in range(turns):
        await bench.channel.ask("c", f"message {n}")
    await bench.idle()
