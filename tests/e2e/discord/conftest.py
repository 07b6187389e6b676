"""A Discord and a gateway for every test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.web_services import FakePageServices


@pytest.fixture
async def discord() -> AsyncIterator[DiscordServer]:
    """Give a Discord."""
    async with open_discord() as discord:
        yield discord


@pytest.fixture
async def services() -> FakePageServices:
    """Give a gateway that stores."""
    return FakePageServices()
