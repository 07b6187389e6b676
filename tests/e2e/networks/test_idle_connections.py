"""A real gateway whose address is flooded with connections that ask for nothing, or take for ever to ask."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.gateway import GatewayProcess, free_port

CONNECTIONS = 1_000
SLOW_HEADER = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
SLOW_BODY = (
    "POST /login HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
    "Content-Type: application/json\r\nContent-Length: 4000\r\n\r\n{{"
)


@asynccontextmanager
async def flood(port: int, count: int) -> AsyncIterator[None]:
    """Hold *count* connections open: idle ones, half a header each, and one byte of a body each."""
    openings = (b"", SLOW_HEADER, SLOW_BODY.format(port=port).encode())
    async with AsyncExitStack() as stack:
        for n in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(openings[n % len(openings)])
        yield


async def answer_to(session: aiohttp.ClientSession, url: str, text: str) -> str:
    """Open the page's socket, say *text*, and return the last thing the page shows for it."""
    async with session.ws_connect(f"{url}ws", origin=url.rstrip("/")) as socket:
        await socket.receive_json()
        await socket.send_json({"type": "say", "id": secrets.token_hex(8), "text": text})
        while True:
            frame = await socket.receive_json()
            if frame["type"] == "message":
                return str(frame["text"])


@pytest.mark.parametrize("hard", [256, 4_096])
async def test_a_thousand_idle_connections_delay_nobody(tmp_path: Path, hard: int) -> None:
    """The page answers, the journal can be written and the log stays short, even where 256 open files are all."""
    process = GatewayProcess(tmp_path / "home", free_port())
    process.open_files = (256, hard)
    try:
        await process.start()
        async with aiohttp.ClientSession() as session, flood(process.port, CONNECTIONS):
            async with asyncio.timeout(60):
                assert await answer_to(session, process.url, "beside the flood")
            async with asyncio.timeout(60), session.get(f"{process.url}readyz") as ready:
                assert (ready.status, (await ready.json())["journal"]) == (200, True)
        assert await process.stop() == 0
    finally:
        await process.close()
    assert sum("out of system resource" in line for line in process.log) == 0
    assert len(process.log) < 40
