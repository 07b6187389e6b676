"""Point 6: what the gateway adds to what litellm itself costs, over real HTTP to a server in another process."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

from agent.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelConfig, Sink
from agent.llm.model_registry import open_model
from tests.benchmarks.harness import ProcessMeter, row
from tests.benchmarks.turns import burst
from tests.fakes.inprocess_gateway import gateway

CHATS, EACH, ROUNDS = 8, 8, 8
CALLS = CHATS * EACH * 2


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


class _RecordingModel:
    """The real model, and what it was asked."""

    def __init__(self, model: ChatModel) -> None:
        self.name = model.name
        self.model = model
        self.asked: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Note and ask."""
        self.asked.append(request)
        return await self.model.complete(request, sink=sink)

    async def warm(self) -> None:
        """Warm the real one."""
        await self.model.warm()

    async def close(self) -> None:
        """Close the real one."""
        await self.model.close()


async def with_litellm() -> None:
    """Time full turns, and beside them litellm alone with the very requests that these turns made."""
    with scripted_server() as address:
        model = _RecordingModel(open_model(ModelConfig(model="openai/test", api_base=address, api_key="test")))
        await model.warm()
        await _replay([ChatRequest(messages=[{"role": "user", "content": "hello"}], turn="t")] * CHATS, address)
        short = [ChatRequest(messages=[{"role": "user", "content": f"message {n}"}], turn="t") for n in range(CALLS)]
        row("litellm alone, one short message", cpu_ms=await _replay(short, address))
        full, alone = 0.0, 0.0
        async with gateway(model=model) as bench:
            await burst(bench, CHATS, 1)
            await bench.idle()
            for _ in range(ROUNDS):
                model.asked.clear()
                meter = ProcessMeter()
                await burst(bench, CHATS, EACH)
                await bench.idle()
                full += meter.read()["cpu"] / (CHATS * EACH) * 1e3 / ROUNDS
                alone += await _replay(list(model.asked), address) / ROUNDS
        row("litellm alone, the same requests", cpu_ms=alone)
        row("full turn over litellm", cpu_ms=full, beyond_litellm_ms=full - alone)


async def _replay(requests: Sequence[ChatRequest], address: str) -> float:
    """Return the CPU milliseconds of one request, as many side by side as there are chats."""
    import litellm  # loaded by now; it must never be by importing this module

    async def some(mine: Sequence[ChatRequest]) -> None:
        for request in mine:
            tools = {"tools": [dict(tool) for tool in request.tools], "_skip_mcp_handler": True}
            await litellm.acompletion(
                model="openai/test",
                messages=[dict(message) for message in request.messages],
                api_base=address,
                api_key="test",
                max_retries=0,
                **(tools if request.tools else {}),
            )

    meter = ProcessMeter()
    await asyncio.gather(*(some(requests[n::CHATS]) for n in range(CHATS)))
    return meter.read()["cpu"] / len(requests) * 1e3
