"""The real Telegram channel, over the real library and real HTTP, in front of a gateway that behaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from channels.telegram import TelegramSettings
from channels.telegram.adapter import TelegramChannel
from channels.telegram.api import RetryDelays
from gateway.settings.channel_blocks import combine_models
from tests.fakes.telegram_server import TelegramServer
from tests.fakes.web_services import FakePageServices

QUICK = RetryDelays(store=0.01, first=0.01, longest=0.02, conflict=0.05, watch=0.05, press=0.05)


@dataclass
class TelegramConnection:
    """A channel that is up, with both its ends."""

    channel: TelegramChannel
    server: TelegramServer
    services: FakePageServices


def block(server: TelegramServer, **fields: Any) -> Any:
    """Return a channel block that leads to *server*."""
    model = combine_models(TelegramSettings)
    return model(
        **{
            "kind": "telegram",
            "token": SecretStr(server.token),
            "base_url": f"{server.base}/bot",
            "file_url": f"{server.base}/file/bot",
        }
        | fields
    )


@asynccontextmanager
async def open_line(
    server: TelegramServer,
    services: FakePageServices | None = None,
    *,
    runs: bool = True,
    typing: float = 0.05,
    first: str = "getUpdates",
    **fields: Any,
) -> AsyncIterator[TelegramConnection]:
    """Run the channel until the block ends, from its *first* call on; with *runs* False it only sends."""
    services = services or FakePageServices()
    channel = TelegramChannel(services.context("telegram", block(server, **fields)), waits=QUICK, typing=typing)
    services.channel = channel
    running = asyncio.create_task(channel.run(), name="telegram channel") if runs else None
    try:
        if running is not None:
            polled = server.until(lambda: any(name == first for name, _ in server.calls))
            polling = asyncio.create_task(polled, name="first poll")
            await asyncio.wait({polling, running}, return_when=asyncio.FIRST_COMPLETED)
            polling.cancel()
            if running.done():
                await running
        yield TelegramConnection(channel, server, services)
    finally:
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
        await channel.close()
