"""How long `/forget` takes to show what it would erase of a long past, and how long another chat waits meanwhile.

The question is asked in another chat: the past was not consolidated, so that a turn of its own would replay all of it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
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


# What is said in each turn, and the words that a few turns, none and all of them have.
_PASTS = {
    "about number {n} we said that it is even": ("number 4242", "Istanbul", "number"),
    "о числе {n} мы говорили, что оно чётное": ("числе 4242", "Стамбул", "числе"),
    "关于数字 {n} 我们说过它是偶数": ("数字 4242", "伊斯坦布尔", "数字"),
}


async def measure() -> None:
    """Print previews with a few matches, without one, and with one in each turn, in three scripts."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    for said, requests in _PASTS.items():
        with tempfile.TemporaryDirectory(prefix="parlour-forget-") as folder:
            await _measure(Path(folder) / "home", said, requests)


async def _measure(home: Path, said: str, requests: Sequence[str]) -> None:
    records = (exchange(n, 2 * n, answered=said.format(n=n), key=_CHAT, scope=_SCOPE) for n in range(TURNS))
    async with open_past(home) as store:
        await store.transcripts.adopt(_SCOPE, _CHAT, list(map(stored_turn, records)), in_files=True)
    async with gateway(home=home, model=InstantModel()) as bench:
        calm = [await _say(bench) for _ in range(CALM)]
        for words in requests:
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
