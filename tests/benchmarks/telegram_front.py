"""What users run: a gateway process between a Telegram server and a model server, each a process of its own.

Only the gateway's CPU, memory and bytes count. The Telegram server is strict and lives in the benchmark's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.harness import median, process_io, row
from tests.benchmarks.over_http import scripted_server
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import TelegramServer, open_telegram

CHATS, EACH = 100, 10
LONE_CHATS, LONE_EACH = 15, 10  # one message at a time; a person's chat takes twenty at once, then one a second
MODEL_SECONDS = 0.5
FLOOD_CHATS, FLOOD_RATE, FLOOD_SECONDS = 50, 50, 15  # messages a second
QUIET, CALM = 7, 5  # of a person's twenty answers; up to fourteen come beside the flood, and behind the cap none
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What a process has used so far."""

    cpu: float  # seconds
    written: int  # bytes, by system calls

    @classmethod
    def of(cls, pid: int) -> ProcessCost:
        """Read the counters of the process."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return cls((int(fields[11]) + int(fields[12])) / _TICK, process_io(pid)["wchar"])


def resident_mb(pid: int) -> float:
    """Return the resident memory of the process."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@contextlib.asynccontextmanager
async def front(latency: float) -> AsyncIterator[tuple[GatewayProcess, TelegramServer]]:
    """Run the three processes; the gateway is made, but not started."""
    folder = tempfile.TemporaryDirectory(prefix="parlour-front-")
    with folder as home, scripted_server("--latency", str(latency)) as base:
        async with open_telegram() as server:
            server.now = lambda: int(time.time())
            environment = settings_for(
                server,
                PARLOUR_LLM__MODEL="openai/test",
                PARLOUR_LLM__API_BASE=base,
                PARLOUR_LLM__API_KEY="sk-test",
                PARLOUR_ALLOW_EVERYONE="true",
                ALLOW_FROM="*",
            )
            gateway = GatewayProcess(Path(home) / "home", free_port(), None, XDG_RUNTIME_DIR=home, **environment)
            try:
                yield gateway, server
            finally:
                await gateway.close()


async def ask(server: TelegramServer, chat: int, text: str) -> float:
    """Say *text* and return the seconds until the chat's next finished answer."""
    before = answers(server, chat)
    begun = time.perf_counter()
    server.say(text, chat=chat, sender=chat)
    await server.until(lambda: answers(server, chat) > before)
    return time.perf_counter() - begun


def answers(server: TelegramServer, chat: int) -> int:
    """Return how many messages of the bot stand in *chat*."""
    return sum(post.chat == chat for post in server.posts)


async def measured() -> None:
    """Print what a message costs alone and in a crowd, and what an idle gateway holds."""
    async with front(0.0) as (gateway, server):
        server.say("the first message waits for the start", chat=1, sender=1)
        begun = time.perf_counter()
        await gateway.start()
        ready = time.perf_counter() - begun
        await server.until(lambda: answers(server, 1) > 0)
        row("Telegram and a model server: start", ready_s=ready, first_answer_s=time.perf_counter() - begun)
        await asyncio.sleep(10)  # what the start does in the background
        row("  idle memory", mb=resident_mb(gateway.pid))

        before = ProcessCost.of(gateway.pid)
        times = [await ask(server, 100 + n % LONE_CHATS, f"message {n}") for n in range(LONE_CHATS * LONE_EACH)]
        _print_cost("  one message at a time", gateway, before, times)

        before = ProcessCost.of(gateway.pid)
        times = await _crowd(server, range(1_000, 1_000 + CHATS), EACH)
        _print_cost(f"  {CHATS} chats x {EACH}, model 0 ms", gateway, before, times)


async def crowded() -> None:
    """Print how long a crowd waits for a model of half a second, within Telegram's 30 calls a second."""
    async with front(MODEL_SECONDS) as (gateway, server):
        await gateway.start()
        await ask(server, 1, "the first message of a gateway")
        before, begun = ProcessCost.of(gateway.pid), time.perf_counter()
        times = await _crowd(server, range(1_000, 1_000 + CHATS), EACH)
        row(f"Telegram, {CHATS} chats x {EACH}, model 500 ms", wall_s=time.perf_counter() - begun)
        _print_cost("  each", gateway, before, times)


async def flooded() -> None:
    """Print how much longer a quiet chat waits beside a flood."""
    async with front(0.0) as (gateway, server):
        await gateway.start()
        await ask(server, QUIET, "the first message of a gateway")
        calm: list[float] = []
        beside: list[float] = []
        for n in range(CALM):
            calm.append(await ask(server, QUIET, f"calm {n}"))
            await asyncio.sleep(1.0)  # a person's chat takes one message a second
        flood = asyncio.create_task(_flood(server))
        while not flood.done():
            beside.append(await ask(server, QUIET, f"beside {len(beside)}"))
            await asyncio.sleep(1.0)
        await flood
        row(
            f"Telegram, a quiet chat beside {FLOOD_RATE} messages a second",
            calm_p50_ms=median(calm) * 1e3,
            beside_p50_ms=median(beside) * 1e3,
            ratio=median(beside) / median(calm),
        )


async def _flood(server: TelegramServer) -> None:
    end, n = time.perf_counter() + FLOOD_SECONDS, 0
    while time.perf_counter() < end:
        chat = 5_000 + n % FLOOD_CHATS
        server.say(f"flood {n}", chat=chat, sender=chat)
        n += 1
        await asyncio.sleep(1 / FLOOD_RATE)


async def _crowd(server: TelegramServer, chats: Iterable[int], each: int) -> list[float]:
    async def talk(chat: int) -> list[float]:
        return [await ask(server, chat, f"message {n}") for n in range(each)]

    return [seconds for times in await asyncio.gather(*map(talk, chats)) for seconds in times]


def _print_cost(name: str, gateway: GatewayProcess, before: ProcessCost, times: list[float]) -> None:
    after = ProcessCost.of(gateway.pid)
    row(
        name,
        cpu_ms=(after.cpu - before.cpu) / len(times) * 1e3,
        p50_ms=median(times) * 1e3,
        written_kb=(after.written - before.written) / len(times) / 1e3,
    )
