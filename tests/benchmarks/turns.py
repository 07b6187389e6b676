"""Point 6: what a full durable turn costs beside a bare poll → model → send loop, in one run."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from tests.benchmarks.harness import ProcessMeter, median, percentile, row
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.mcp_server import mcp_server

CHATS, EACH = 100, 30
ALONE = 300
ROUND = 60  # turns


async def bare() -> None:
    """Time the loop that keeps no promise: take a message, ask the model, append to a list."""
    model, sent = InstantModel(), []
    queue: asyncio.Queue[str] = asyncio.Queue()
    for n in range(CHATS * EACH):
        queue.put_nowait(f"message {n}")
    meter = ProcessMeter()
    while not queue.empty():
        text = await queue.get()
        reply = await model.complete(ChatRequest(messages=[{"role": "user", "content": text}], turn="t"))
        sent.append(reply.text)
    used = meter.read()
    turns = CHATS * EACH
    row("bare poll-model-send loop", turns_per_s=turns / used["wall"], cpu_ms=used["cpu"] / turns * 1e3)


async def throughput(environment: Mapping[str, str] | None = None) -> None:
    """Time 100 chats at once."""
    async with gateway(model=InstantModel(), environment=environment) as bench:
        await burst(bench, 20, 2)
        await bench.idle()
        meter = ProcessMeter()
        await burst(bench, CHATS, EACH)
        await bench.idle()
        used = meter.read()
        turns = CHATS * EACH
        row(
            "full durable turns, 100 chats",
            turns_per_s=turns / used["wall"],
            cpu_ms=used["cpu"] / turns * 1e3,
            written_kb=used["written"] / turns / 1e3,
        )
        row("  transcripts complete and closed", turns=closed_turns(bench), expected=turns + 40)


async def on_postgresql() -> None:
    """Time the same with the store on a PostgreSQL server of this machine."""
    from tests.fakes.postgres_server import open_server

    server = open_server()
    try:
        before = server.cpu_seconds()
        await throughput({"PARLOUR_STORE__URL": server.address})
        row("  processor time of the server", cpu_ms=(server.cpu_seconds() - before) / (CHATS * EACH) * 1e3)
    finally:
        server.close()


async def burst(bench: InProcessGateway, chats: int, each: int) -> None:
    """Let so many chats send *each* messages side by side; return when all are answered."""
    await asyncio.gather(*(_chatter(bench, f"c{chat}", each) for chat in range(chats)))


async def _chatter(bench: InProcessGateway, chat: str, each: int) -> None:
    # As a platform's connection does: the next message once this one is accepted, whether answered or not.
    answers = [(await bench.channel.say(chat, f"message {n}"))[1] for n in range(each)]
    await asyncio.gather(*answers)


def closed_turns(bench: InProcessGateway) -> int:
    """Count `end` lines over all transcripts, and fail on a message line whose turn has none."""
    closed = 0
    for path in bench.home.rglob("sessions/*.jsonl"):
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        ends = {line["turn"] for line in lines if line.get("kind") == "end"}
        said = {line["turn"] for line in lines if "role" in line}
        if not said <= ends:
            raise SystemExit(f"{path} holds turns without their end")
        closed += len(ends)
    return closed


async def latency() -> None:
    """Time one chat, one message after the other: what the gateway adds."""
    async with gateway(model=InstantModel()) as bench:
        added, meter = [], ProcessMeter()
        for n in range(ALONE):
            begun = time.perf_counter()
            _, answer = await bench.channel.say("alone", f"message {n}")
            added.append((await answer - begun) * 1e3)
        row(
            "added latency, one chat",
            p50_ms=median(added),
            p99_ms=percentile(added, 0.99),
            written_kb=meter.read()["written"] / ALONE / 1e3,
            at=str(datetime.now(UTC))[:19],
        )


class CallingModel(InstantModel):
    """Calls a tool for each message if *tool* names one, then answers."""

    tool = ""
    arguments: Mapping[str, object] | None = None  # of each call; None: its number

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Return a call, or the answer once it has a result."""
        if not self.tool or request.purpose != "answer" or request.messages[-1]["role"] == "tool":
            return await super().complete(request, sink=sink)
        self.calls += 1
        call = ToolCall(f"call_{self.calls}", self.tool, json.dumps(self.arguments or {"n": self.calls}))
        return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(10, 10, 0), cost=0.0)


@tool("Look.", kind=ToolKind.LOOK)
async def look(context: ToolContext, n: int) -> str:
    """Return a line."""
    return f"seen {n}"


@tool("Act.", kind=ToolKind.ACT, ask=AskRule.NEVER)
async def act(context: ToolContext, n: int) -> str:
    """Return a line."""
    return f"acted {n}"


async def tool_calls() -> None:
    """Compare turns with one tool call, repeatable and with an intent, to turns without; the three take turns."""
    model = CallingModel()
    used: dict[str, list[float]] = {"": [], "look": [], "act": []}
    environment = {"PARLOUR_CAPS__TOOLS__ACT": "0"}
    async with gateway(model=model, tools=[look, act], environment=environment) as bench:
        for message in range(5 * ROUND):
            for model.tool, spent in used.items():
                meter = ProcessMeter()
                await bench.channel.ask(f"{model.tool}{message // ROUND}", f"message {message}")
                await bench.idle()
                spent.append(meter.read()["cpu"] * 1e3)
    plain, *more = (spent[ROUND:] for spent in used.values())
    row("turn without a call, one chat", cpu_ms=median(plain), least_tenth_ms=percentile(plain, 0.1))
    for name, spent in zip(("look", "act"), more, strict=True):
        tenth = percentile(spent, 0.1) - percentile(plain, 0.1)
        row(f"  more with one call ({name})", cpu_ms=median(spent) - median(plain), least_tenth_ms=tenth)


async def mcp_reads() -> None:
    """Measure turns with one read of an MCP server: the gateway's CPU and that of its child, without the server's.

    Turns without a call are played in between; the server is a process of its own. The goal is 5 ms for the whole turn.
    """
    model, children = CallingModel(), list[float]()
    used: dict[str, list[float]] = {"": [], "use_tool": []}
    with tempfile.TemporaryDirectory() as folder, mcp_server(Path(folder)) as url:
        async with gateway(model=model) as bench:
            operations = bench.app.operations
            _ = [each async for each in operations["mcp add"]({"name": "tracker", "url": url, "private": True})]
            allowed = {"name": "tracker", "tools": "search_issues", "as": "read"}
            _ = [each async for each in operations["mcp allow"](allowed)]
            model.arguments = {"name": "mcp_tracker_search_issues", "arguments": {"query": "roof"}}
            for message in range(5 * ROUND):
                for model.tool, spent in used.items():
                    meter, child = ProcessMeter(), _children_cpu()
                    await bench.channel.ask(f"{model.tool}{message}", f"message {message}")
                    await bench.idle()
                    children.append((_children_cpu() - child) * 1e3)
                    spent.append(meter.read()["cpu"] * 1e3 + children[-1])
    plain, read = (spent[ROUND:] for spent in used.values())
    row("turn without a call, a chat each", cpu_ms=median(plain), least_tenth_ms=percentile(plain, 0.1))
    row("turn with one MCP read", cpu_ms=median(read), least_tenth_ms=percentile(read, 0.1))
    tenth = percentile(read, 0.1) - percentile(plain, 0.1)
    child_ms = median(children[2 * ROUND + 1 :: 2])
    row("  more with the read", cpu_ms=median(read) - median(plain), least_tenth_ms=tenth, of_the_child_ms=child_ms)


def _children_cpu() -> float:
    """Return the CPU seconds of the processes that speak MCP for this one."""
    nanoseconds = 0
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split():
        if b"client_process.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
            nanoseconds += sum(int(each.read_text("ascii").split()[0]) for each in tasks)
    return nanoseconds / 1e9
