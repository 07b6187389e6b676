"""What nobody can read: set aside once, and everything else goes on (docs/formats.md, Session queues)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from gateway.ports.channel import PlatformEvent
from tests.fakes.discord_harness import connected
from tests.fakes.discord_records import ANN, BEN, BOT, GENERAL, RANDOM
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"


@dataclass
class QuarantineSkippingServices(FakePageServices):
    """Passes over what is set aside, as the gateway does, and counts how many events it holds at once."""

    passed_over: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*."""
        self.names.append(event.id)
        if event.id in self.quarantined:
            self.passed_over.append(event.id)
            return
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            await super().handle(event, work)
        finally:
            self.at_once -= 1


async def test_a_message_of_another_shape_is_set_aside_and_the_chat_goes_on(discord: DiscordServer) -> None:
    """Set aside under its message id; after a restart history brings it again, and it is passed over."""
    services = QuarantineSkippingServices()
    async with connected(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} one")
        await services.wait_deliveries(1)
        discord.say(GENERAL, ANN, f"{CALL} bad", mentions=[{"id": None}, 5])
        discord.say(GENERAL, ANN, f"{CALL} two")
        await services.wait_deliveries(2)
        notes = dict(services.state.notes)
        poison = discord.say(GENERAL, ANN, f"{CALL} poison", mentions=[{"id": None}, 5])
        while len(services.quarantined) < 2:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
    services.state.notes = notes  # as a kill would leave them: marks are saved now and then
    async with connected(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} three")
        await discord.until(lambda: any(each.text == "@Parlour three" for each in services.accepted))
    assert services.passed_over.count(f"message/{poison}") >= 1
    assert [each.text for each in services.accepted] == ["@Parlour one", "@Parlour two", "@Parlour three"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("CHANNEL_UPDATE", {"id": "x", "guild_id": "3001"}),
        ("THREAD_CREATE", {"id": [], "guild_id": "3001"}),
        ("GUILD_ROLE_UPDATE", {"guild_id": "3001", "role": 7}),
        ("MESSAGE_DELETE", {"id": "no number", "channel_id": GENERAL}),
        ("INTERACTION_CREATE", {"id": "77", "channel_id": GENERAL, "type": 2}),
    ],
)
async def test_an_event_that_the_library_trips_over_does_not_end_it(
    discord: DiscordServer, name: str, data: dict[str, object]
) -> None:
    """discord.py dies on a malformed dispatch; here it is set aside, and the connection stays."""
    services = QuarantineSkippingServices()
    async with connected(services, discord):
        discord.gateway.dispatch(name, dict(data), guild=True)
        discord.say(GENERAL, ANN, f"{CALL} still here")
        await services.wait_deliveries(1)
        while not services.quarantined:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
    assert discord.gateway.identified == 1
    assert len(services.quarantined) == 1


async def test_after_two_kills_events_are_handled_one_at_a_time(discord: DiscordServer) -> None:
    """What kills us is then known: no other event is in anybody's hands."""
    services = QuarantineSkippingServices(is_cautious=True)
    async with connected(services, discord):
        for number in range(4):
            discord.say(GENERAL, ANN, f"{CALL} {number}")
            discord.say(RANDOM, BEN, f"{CALL} {number}")
        await services.wait_deliveries(8)
    assert services.most_at_once == 1
    services = QuarantineSkippingServices()
    async with connected(services, discord):
        for number in range(4):
            discord.say(GENERAL, ANN, f"{CALL} {number}")
            discord.say(RANDOM, BEN, f"{CALL} {number}")
        await services.wait_deliveries(8)
    assert services.most_at_once == 2  # else it says nothing about caution


async def test_an_event_has_one_name_live_and_as_history(discord: DiscordServer, services: FakePageServices) -> None:
    """So that what was set aside live is known when history brings it; an edit has another."""
    careful = QuarantineSkippingServices()
    async with connected(careful, discord) as channel:
        discord.say(GENERAL, ANN, f"{CALL} zero")
        await careful.wait_deliveries(1)
        ident = discord.say(GENERAL, ANN, f"{CALL} one")
        await careful.wait_deliveries(2)
        await channel._shards[0].gateway._cursors.save_account(discord.now())
        await discord.gateway.invalidate()
        discord.edit(ident, f"{CALL} one!")
        discord.say(GENERAL, ANN, f"{CALL} later")
        await discord.until(lambda: any(each.revision for each in careful.deliveries))
    edited = discord.find(ident)[1]["edited_timestamp"]
    assert f"message/{ident}" in careful.names
    assert f"message/{ident}/{edited}" in careful.names
