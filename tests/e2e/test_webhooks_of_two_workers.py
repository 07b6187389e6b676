"""Webhooks with two workers on one database behind one address: each event may come to any, and again to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.channel import Channel
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.slack_http_events import SIGNING_SECRET
from tests.fakes.slack_server import ANN, BOT_TOKEN, DM, slack_server
from tests.fakes.telegram_server import open_telegram
from tests.faults.connection_worker import open_channel

_SECRET = "s" * 32
MESSAGES = 6


class FakeBalancer:
    """A proxy that gives each request to the next worker, and loses some of the answers."""

    def __init__(self) -> None:
        self.workers: list[ASGIApp] = []
        self.served: list[int] = []
        self.lost = 0  # so many of the next answers
        self._turns = cycle(range(2))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        number = next(self._turns)
        if not self.lost:
            await self.workers[number](scope, receive, send)
            self.served.append(number)
            return
        self.lost -= 1

        async def drop(_: Message) -> None:
            """Lose what the worker answers."""

        await self.workers[number](scope, receive, drop)
        await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def balanced() -> AsyncIterator[tuple[str, FakeBalancer]]:
    """Serve a balancer; give its address."""
    balancer = FakeBalancer()
    server = uvicorn.Server(uvicorn.Config(balancer, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve(), name="balancer")
    while not server.started:  # noqa: ASYNC110 - it does not notify
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", balancer
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def workers(
    server: PostgresServer, kind: str, block: dict[str, Any], balancer: FakeBalancer
) -> AsyncIterator[None]:
    """Run two workers that receive behind *balancer*."""
    server.empty()
    stores = [await open_database(server.url, StoreLimits(), shares=True) for _ in range(2)]
    opened = [open_channel(store, kind, block) for store in stores]
    balancer.workers = [Starlette(routes=routes) for _, routes in opened]
    running = [asyncio.create_task(channel.run(), name=f"{kind} channel") for channel, _ in opened]
    try:
        await ready([channel for channel, _ in opened])
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        for channel, _ in opened:
            await channel.close()
        for store in stores:
            await store.close()


async def ready(channels: Sequence[Channel]) -> None:
    """Return when all of *channels* receive."""
    while not all(channel.is_ready() for channel in channels):  # noqa: ASYNC110 - they do not notify
        await asyncio.sleep(0.02)


async def stored(server: PostgresServer, count: int) -> list[str]:
    """Return the texts in the inbox once there are *count*."""
    async with asyncio.timeout(30):
        while server.query("SELECT count(*) FROM inbox") < [(count,)]:  # noqa: ASYNC110 - rows are seen by looking
            await asyncio.sleep(0.02)
    return [text for (text,) in server.query("SELECT payload::json ->> 'text' FROM inbox ORDER BY seq")]


async def test_telegram_calls_any_worker(postgres: PostgresServer) -> None:
    """An update whose answer was lost comes to the other worker, which knows it."""
    async with open_telegram() as platform, balanced() as (address, balancer):
        block = {
            "token": platform.token, "base_url": f"{platform.base}/bot", "file_url": f"{platform.base}/file/bot",
            "mode": "webhook", "webhook_url": f"{address}/hooks/telegram", "webhook_secret": _SECRET,
        }  # fmt: skip
        async with workers(postgres, "telegram", block, balancer):
            balancer.lost = 3
            for number in range(MESSAGES):
                platform.say(f"m{number}")
            assert await stored(postgres, MESSAGES) == [f"m{number}" for number in range(MESSAGES)]
            await platform.until(lambda: not platform.updates)
            assert postgres.query("SELECT count(*) FROM inbox") == [(MESSAGES,)]
    assert set(balancer.served) == {0, 1}


async def test_slack_posts_to_any_worker(postgres: PostgresServer) -> None:
    """An event that is posted again to another worker is stored once."""
    async with slack_server() as platform, balanced() as (address, balancer):
        block = {"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET, "base_url": f"{platform.base}/api/"}
        platform.hook, platform.ack_within = f"{address}/hooks/slack", 0.1
        async with workers(postgres, "slack", block, balancer):
            balancer.lost = 3
            for number in range(MESSAGES):
                platform.say(DM, ANN, f"m{number}")
            assert sorted(await stored(postgres, MESSAGES)) == [f"m{number}" for number in range(MESSAGES)]
            await platform.until(lambda: len(platform.acks) == MESSAGES)
            assert postgres.query("SELECT count(*) FROM inbox") == [(MESSAGES,)]
    assert set(balancer.served) == {0, 1}
