"""While the gateway is cautious nobody looks into an update before the gateway keeps it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from channels.telegram import inbound
from channels.telegram.parse import parse_update
from gateway.ports.channel import PlatformEvent
from tests.fakes.telegram_channel import open_line
from tests.fakes.telegram_server import open_telegram
from tests.fakes.web_services import FakePageServices


class CautiousServices(FakePageServices):
    """A gateway that knows whether it has an event in its keeping now."""

    keeps = False

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* with the event kept."""
        self.keeps = True
        await work()
        self.keeps = False


@pytest.mark.parametrize("is_cautious", [True, False])
async def test_an_update_is_read_in_the_houses_keeping(is_cautious: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kills the parser would kill again for ever if it were parsed before it is on disk."""
    services = CautiousServices(is_cautious=is_cautious)
    kept: list[bool] = []

    def noting(*arguments: Any, **more: Any) -> Any:
        kept.append(services.keeps)
        return parse_update(*arguments, **more)

    monkeypatch.setattr(inbound, "parse_update", noting)
    async with open_telegram() as server:
        for text in ("one", "two"):
            server.say(text)
        async with open_line(server, services):
            await server.until(lambda: not server.updates)
    assert len(kept) == 2
    assert all(kept)
    assert [heard.text for heard in services.accepted] == ["one", "two"]
