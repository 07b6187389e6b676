"""How long `/forget` takes to show what it would erase of a long past, and how long another chat waits meanwhile.

The question is asked in another chat: the past was not consolidated, so that a turn of its own would replay all of it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from gateway.commands.run import SWITCH_INTERVAL
from gateway.events import SessionKey
from tests.benchmarks.harness import ProcessMeter, median, row
from tests.benchmarks.long_conversations import open_past, stored_turn
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.memory import exchange

TURNS = 50_000  # of two messages each
CALM = 20
_CHAT, _SCOPE = SessionKey("pocket", "long"), "people/pocket%3aann"


async def measure() -> None:
    """Print a preview with a few matches, one without, and one with a match in each turn."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    with tempfile.TemporaryDirectory(prefix="parlour-forget-") as folder:
        home = Path(folder) / "home"
        records = (
            exchange(n, 2 * n, answered=f"about number {n} we said that it is even", key=_CHAT, scope=_SCOPE)
            for n in range(TURNS)
        )
        async with open_past(home) as store:
            await store.transcripts.adopt(_SCOPE, _CHAT, list(map(stored_turn, records)), in_files=True)
        async with gateway(home=home, model=InstantModel()) as bench:
            calm = [await _say(bench) for _ in range(CALM)]
            for words in ("number 4242", "Istanbul", "number"):
                meter, beside = ProcessMeter(), []
                preview = asyncio.create_task(bench.channel.ask("here", f"/forget {words}"))
                while not preview.done():
                    beside.append(await _say(bench))
                    await asyncio.sleep(0.02)
                used = meter.read()
                row(
                    f"/forget {words}, {2 * TURNS} messages",
                    seconds=used["wall"],
                    cpu_s=used["cpu"],
                    turns_beside=len(beside),
                    calm_ms=median(calm) * 1e3,
                    beside_ms=median(beside) * 1e3,
                    slowest_ms=max(beside) * 1e3,
                )


async def _say(bench: InProcessGateway) -> float:
    begun = time.perf_counter()
    _, answer = await bench.channel.say("other", "meanwhile", sender="zoe", name="Zoe")
    return await answer - begun
