"""Point 6: what the gateway adds to what litellm itself costs, over real HTTP to a server in another process."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator

from agent.llm.port import ChatModel, ChatRequest, ModelConfig
from agent.llm.registry import open_model
from tests.benchmarks.harness import Meter, row
from tests.fakes.pocket import Pocket, gateway

CHATS, EACH = 8, 25


@contextlib.contextmanager
def scripted_server() -> Iterator[str]:
    """Run the scripted OpenAI-compatible server in a process of its own; yield its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.openai_server", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SystemExit("the scripted server did not say where it listens")
        yield found[0]
    finally:
        process.terminate()
        process.wait(timeout=10)


async def with_litellm() -> None:
    """Time the same number of calls bare and inside full turns, as many side by side."""
    with scripted_server() as address:
        model = open_model(ModelConfig(model="openai/test", api_base=address, api_key="test"))
        await model.warm()
        await _calls(model, CHATS)
        meter = Meter()
        await _calls(model, CHATS * EACH)
        bare = meter.read()["cpu"] / (CHATS * EACH) * 1e3
        row("litellm alone, plain call", cpu_ms=bare)
        async with gateway(model=model) as bench:
            await _turns(bench, 1)
            meter = Meter()
            await _turns(bench, EACH)
            await bench.idle()
            full = meter.read()["cpu"] / (CHATS * EACH) * 1e3
        row("full turn over litellm", cpu_ms=full, beyond_litellm_ms=full - bare)


async def _calls(model: ChatModel, number: int) -> None:
    async def some() -> None:
        for n in range(number // CHATS):
            await model.complete(ChatRequest(messages=[{"role": "user", "content": f"message {n}"}], turn="t"))

    await asyncio.gather(*(some() for _ in range(CHATS)))


async def _turns(bench: Pocket, each: int) -> None:
    answers = [
        (await bench.channel.say(f"c{chat}", f"message {n}"))[1] for n in range(each) for chat in range(CHATS)
    ]
    await asyncio.gather(*answers)
