"""Point 6: what the gateway adds to what a client costs, litellm or our own, over real HTTP to another process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelConfig, Sink
from agent.llm.model_registry import open_model
from tests.benchmarks.harness import ProcessMeter, median, row
from tests.benchmarks.start import measure_start
from tests.benchmarks.turns import burst
from tests.fakes.inprocess_gateway import gateway

CHATS, EACH, ROUNDS = 8, 8, 8
CALLS = CHATS * EACH * 2
CLIENTS = {"direct": "auto", "litellm": "litellm"}  # as printed: as in `llm.client`
PROMPT = 60  # messages
CHUNKS = 400  # of a stream
STARTS = 3


@contextlib.contextmanager
def scripted_server(*options: str) -> Iterator[str]:
    """Run the scripted OpenAI-compatible server in a process of its own; yield its address."""
    words = [sys.executable, "-m", "tests.fakes.openai_server", "--port", "0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own interpreter
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
        model = _RecordingModel(_open(address, "litellm"))
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


async def with_each_client() -> None:
    """Compare the clients: a request of sixty messages, a chunk of a stream, a full turn, an idle gateway."""
    with tempfile.TemporaryDirectory(prefix="parlour-bench-") as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps([{"text": "word " * CHUNKS, "pieces": 5}]))
        with scripted_server() as address, scripted_server("--script", str(script)) as streaming:
            for name, client in CLIENTS.items():
                figures = await _cost_of(client, address, streaming)
                row(f"{name}: CPU of one call", **figures)
            for name, client in CLIENTS.items():
                variables = {"MODEL": "openai/test", "API_BASE": address, "API_KEY": "test", "CLIENT": client}
                starts = [
                    measure_start({f"PARLOUR_LLM__{key}": value for key, value in variables.items()})
                    for _ in range(STARTS)
                ]
                row(f"{name}: idle memory", median_mb=median([megabytes for _, megabytes in starts]))


def _open(address: str, client: str) -> ChatModel:
    return open_model(ModelConfig(model="openai/test", api_base=address, api_key="test", client=client))


async def _cost_of(client: str, address: str, streaming: str) -> dict[str, float]:
    """Return CPU milliseconds: of a plain call, of a chunk, of a full turn."""
    plain, streamed, whole = _open(address, client), _open(streaming, client), _open(address, client)
    messages = [
        {"role": "user" if n % 2 else "assistant", "content": f"message {n} of a conversation " * 8}
        for n in range(PROMPT)
    ]
    request = ChatRequest(messages=messages, turn="t")
    calls = await _cpu_of(plain, request, CALLS, is_streamed=False)
    chunks = await _cpu_of(streamed, request, CALLS // 16, is_streamed=True)
    async with gateway(model=whole) as bench:
        await burst(bench, CHATS, 1)
        await bench.idle()
        meter = ProcessMeter()
        for _ in range(ROUNDS):
            await burst(bench, CHATS, EACH)
        await bench.idle()
        turns = meter.read()["cpu"] / (CHATS * EACH * ROUNDS) * 1e3
    for model in (plain, streamed):
        await model.close()
    return {"of_60_messages_ms": calls, "of_a_chunk_ms": (chunks - calls) / CHUNKS, "in_a_full_turn_ms": turns}


async def _cpu_of(model: ChatModel, request: ChatRequest, count: int, *, is_streamed: bool) -> float:
    """Return the CPU milliseconds of one of *count* calls, one after the other."""
    sink: Sink | None = (lambda _text: None) if is_streamed else None
    for _ in range(CHATS):
        await model.complete(request, sink=sink)
    meter = ProcessMeter()
    for _ in range(count):
        await model.complete(request, sink=sink)
    return meter.read()["cpu"] / count * 1e3


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
