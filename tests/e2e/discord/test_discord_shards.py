"""Shards: Discord divides the servers of a bot over several connections, each of which exists once."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic import ValidationError

from channels.discord import plugin
from channels.discord.adapter import DiscordChannel
from channels.discord.shards import IdentifyLimit
from gateway.errors import UserError
from gateway.ports.channel import PlatformEvent
from gateway.ports.setup import FindingLevel
from gateway.supervisor import Supervisor
from tests.fakes.clock import VirtualClock
from tests.fakes.connection_claims import ClaimTable, GrantedClaims
from tests.fakes.discord_harness import block, connected, gateway_of
from tests.fakes.discord_records import ANN, BOT, GENERAL, GUILD, LOBBY, OTHER_GUILD, RANDOM
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.meter import FakeMeter
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"


@pytest.fixture
async def discord() -> AsyncIterator[DiscordServer]:
    """Give a Discord whose bot is in a server of each of two shards."""
    async with open_discord(DiscordServer(has_other=True)) as discord:
        yield discord


def texts(services: FakePageServices) -> list[str]:
    """Return what was accepted, in alphabetical order: shards are independent."""
    return sorted(each.text.removeprefix("@Parlour ") for each in services.accepted)


async def on_shards(discord: DiscordServer, *shards: tuple[int, int]) -> None:
    """Return when each of *shards* has a live session."""
    await discord.until(lambda: {each.shard for each in discord.gateway.sessions if each.line} >= set(shards))


async def in_state(supervisor: Supervisor, *, is_ready: bool) -> None:
    """Return when the channel is connected, or degraded."""
    while supervisor.states() != {"discord": is_ready}:  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0.005)


async def test_one_gateway_hears_every_shard(discord: DiscordServer, services: FakePageServices) -> None:
    """Servers come over their own shard, direct messages over the first; each identifies with its number."""
    direct = discord.direct(ANN)
    async with connected(services, discord, shards=2) as channel:
        await on_shards(discord, (0, 2), (1, 2))
        discord.say(GENERAL, ANN, f"{CALL} home")
        discord.say(LOBBY, ANN, f"{CALL} club")
        discord.say(direct, ANN, "direct")
        await services.wait_deliveries(3)
        first, second = sorted(discord.gateway.sessions, key=lambda session: session.shard)
        assert [each.connection for each in await channel.shards()] == [f"{BOT}/0", f"{BOT}/1"]
    assert sorted(discord.gateway.identifies) == [(0, 2), (1, 2)]
    assert texts(services) == ["club", "direct", "home"]
    channels = [{event["d"]["channel_id"] for event in each.sent if event["t"] == "MESSAGE_CREATE"}
                for each in (first, second)]  # fmt: skip
    assert channels == [{GENERAL, direct}, {LOBBY}]
    assert not services.places  # the servers of a first session are not new
    assert json.loads(services.state.notes["shard/0-2/guilds"]) == [GUILD]
    assert json.loads(services.state.notes["shard/1-2/guilds"]) == [OTHER_GUILD]


async def test_each_shard_resumes_its_own_session(discord: DiscordServer, services: FakePageServices) -> None:
    """The connection of one is cut: it resumes, the other goes on, and each message comes once."""
    async with connected(services, discord, shards=2):
        await on_shards(discord, (0, 2), (1, 2))
        for number, cut in enumerate((1, 0, 1)):
            await discord.gateway.drop(shard=cut)
            discord.say(GENERAL, ANN, f"{CALL} home {number}")
            discord.say(LOBBY, ANN, f"{CALL} club {number}")
            await services.wait_deliveries(2 * number + 2)
            await on_shards(discord, (0, 2), (1, 2))
    assert discord.gateway.resumed_shards == [1, 0, 1]
    assert discord.gateway.identified == 2
    assert texts(services) == ["club 0", "club 1", "club 2", "home 0", "home 1", "home 2"]
    assert len(services.deliveries) == 6


async def test_the_number_that_discord_recommends(discord: DiscordServer, services: FakePageServices) -> None:
    """It is asked for with `auto`, and the doctor tells of it where fewer are set."""
    discord.recommended_shards, discord.max_concurrency = 2, 16
    async with connected(services, discord, shards="auto") as channel:
        await on_shards(discord, (0, 2), (1, 2))
        assert channel._identify_limit.max_concurrency == 16
    for shards, level, text in (
        (1, FindingLevel.WARN, "recommends 2 shards"),
        ("auto", FindingLevel.OK, "shards 0 to 1"),
        (3, FindingLevel.OK, "shards 0 to 2"),
    ):
        findings = await plugin.verify(block(discord, shards=shards), {})
        assert [each.level for each in findings if text in each.text] == [level]


async def test_too_few_shards_are_refused_with_the_mend(discord: DiscordServer, services: FakePageServices) -> None:
    """Discord closes the connection of a bot with too many servers; the setting is named, and it is not tried on."""
    discord.gateway.needs_shards = True
    with pytest.raises(UserError, match="set `shards` to auto"):
        async with connected(services, discord):
            pass
    assert discord.gateway.identified == 1


async def test_a_session_that_began_too_early_is_begun_again(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """Another gateway identified just before: Discord answers with an invalid session, and the shard waits."""
    discord.gateway.invalid = 3
    async with connected(services, discord, shards=2):
        await on_shards(discord, (0, 2), (1, 2))
    assert len(discord.gateway.identifies) == 5


async def test_identifies_keep_to_discords_limit(clock: VirtualClock) -> None:
    """Of shards with the same remainder one begins every five seconds; one that gives up takes no place."""
    limit, begun = IdentifyLimit(), list[tuple[int, float]]()
    limit.max_concurrency = 2

    async def begin(shard: int) -> None:
        await limit.wait(shard)
        begun.append((shard, clock.seconds))

    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(begin(shard)) for shard in range(6)]
        await asyncio.sleep(1)
        started[2].cancel()
    assert begun == [(0, 0), (1, 0), (3, 5), (4, 5), (5, 10)]
    await limit.wait(0, is_repeated=True)
    assert clock.seconds == 15


async def test_identifies_keep_to_discords_limit_over_all_gateways(clock: VirtualClock) -> None:
    """Five seconds lie between two IDENTIFYs of a remainder, however long connecting takes and who gives up."""
    table, begun = ClaimTable(), list[tuple[int, float]]()
    limits = [IdentifyLimit(claims=GrantedClaims(table), bot="discord:1") for _ in range(2)]

    async def begin(gateway: int, shard: int, connecting: float) -> None:
        await limits[gateway].wait(shard)
        await asyncio.sleep(connecting)
        await limits[gateway].begin(shard)
        begun.append((shard, clock.seconds))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(begin(0, 0, 3))
        tasks.create_task(begin(1, 1, 6))  # longer than its place lasts
        gives_up = tasks.create_task(begin(0, 2, 0))
        await asyncio.sleep(1)
        tasks.create_task(begin(0, 3, 0))
        gives_up.cancel()
    times = sorted(at for _, at in begun)
    assert {shard for shard, _ in begun} == {0, 1, 3}
    assert times[0] == 3
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(times))
    await asyncio.sleep(5)
    assert not table.holders


async def test_another_number_of_shards_reads_on(discord: DiscordServer, services: FakePageServices) -> None:
    """No session of the old number is resumed, no message is lost or doubled, and no server is new or gone."""
    said = []
    for number, shards in enumerate((1, 2, 3, 2, 1)):
        for chat in (GENERAL, LOBBY):
            if number:
                discord.say(chat, ANN, f"{CALL} {chat} before {shards} shards at {number}")
                said.append(f"{chat} before {shards} shards at {number}")
        if number == 1:  # in a chat that has no cursor of its own
            discord.say(RANDOM, ANN, f"{CALL} somewhere new")
            said.append("somewhere new")
        async with connected(services, discord, shards=shards) as channel:
            await on_shards(discord, *((each, shards) for each in range(shards)))
            for chat in (GENERAL, LOBBY):
                discord.say(chat, ANN, f"{CALL} {chat} on {shards} shards at {number}")
                said.append(f"{chat} on {shards} shards at {number}")
            while len(services.accepted) < len(said):
                await services.wait_deliveries(len(services.deliveries) + 1)
            for each in await channel.shards():
                await each.gateway._cursors.save_account(discord.now())
    assert texts(services) == sorted(said)
    assert discord.gateway.resumed == 0
    assert services.places == []


async def test_a_recent_chat_of_another_shard_is_not_read(discord: DiscordServer, services: FakePageServices) -> None:
    """After the number changed every shard has the recent chats of all, and reads those of its own servers."""
    async with connected(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} home")
        await services.wait_deliveries(1)
    thread = discord.open_thread(GENERAL, "old", archived=True)
    services.state.notes |= {
        "used": json.dumps([GENERAL, thread]),
        f"mark/{thread}": services.state.notes[f"mark/{GENERAL}"],
    }
    discord.say(thread, ANN, f"{CALL} in the thread")
    discord.requests.clear()
    async with connected(services, discord, shards=2):
        await on_shards(discord, (0, 2), (1, 2))
        await services.wait_deliveries(2)
        while sum(each.path.endswith(f"/channels/{thread}") for each in discord.requests) < 2:
            await discord.until_changed()
    # Both shards ask where the thread is, and one reads its messages: edits, the new one, and the end.
    reads = [each for each in discord.requests if each.path.endswith(f"/channels/{thread}/messages")]
    assert len(reads) == 3
    assert texts(services) == ["home", "in the thread"]


class CautiousServices(FakePageServices):
    """A gateway after two crashes, which notes how many events are handled at a time."""

    running = most = 0

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Handle *event* while others come in."""
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(50):
            await asyncio.sleep(0)
        await super().handle(event, work)
        self.running -= 1


async def test_after_crashes_shards_handle_one_event_at_a_time(discord: DiscordServer) -> None:
    """All together: the event that crashes the gateway is the one that is on the disk."""
    services = CautiousServices(is_cautious=True)
    async with connected(services, discord, shards=2):
        await on_shards(discord, (0, 2), (1, 2))
        for number in range(3):
            discord.say(GENERAL, ANN, f"{CALL} home {number}")
            discord.say(LOBBY, ANN, f"{CALL} club {number}")
        await services.wait_deliveries(6)
    assert services.most == 1


@pytest.mark.parametrize("where", ["global", "guild"])
async def test_commands_are_registered_once(discord: DiscordServer, services: FakePageServices, where: str) -> None:
    """Those for everywhere by the first shard, those of a server by its own, which removes no other's."""
    places = {"global": {""}, "guild": {GUILD, OTHER_GUILD}}[where]
    for shards in (2, 3, 1):
        async with connected(services, discord, shards=shards, commands=where) as channel:
            await on_shards(discord, *((each, shards) for each in range(shards)))
            for each in await channel.shards():
                guilds = [guild for guild in (GUILD, OTHER_GUILD) if each.shard.has(guild)]
                await channel._commands.register(guilds, each.shard)
    assert {place for place, commands in discord.interactions.registered.items() if commands} == places
    assert discord.interactions.registrations == len(places)


async def test_two_gateways_share_the_shards(discord: DiscordServer, services: FakePageServices) -> None:
    """One ends: the other goes on with the session of its shard; no message is lost or doubled."""
    first, second = f"discord:{BOT}/0", f"discord:{BOT}/1"
    async with (
        gateway_of(services, discord, first) as (supervisor, claims, running),
        gateway_of(services, discord, second) as (other, other_claims, _),
    ):
        await on_shards(discord, (0, 2), (1, 2))
        assert sorted(discord.gateway.identifies) == [(0, 2), (1, 2)]
        await in_state(supervisor, is_ready=True)
        assert supervisor.shard_states() == {"discord/0": True, "discord/1": True}  # the other's counts as up
        for chat in (GENERAL, LOBBY):
            discord.say(chat, ANN, f"{CALL} {chat} both")
        await services.wait_deliveries(2)
        running.cancel()
        await asyncio.wait({running})
        assert not {name for name in claims.own if "identify" not in name}
        for chat in (GENERAL, LOBBY):
            discord.say(chat, ANN, f"{CALL} {chat} one ended")
        await services.wait_deliveries(3)
        assert len(services.accepted) == 3
        other_claims.grant(first)
        await services.wait_deliveries(4)
        for chat in (GENERAL, LOBBY):
            discord.say(chat, ANN, f"{CALL} {chat} one has both")
        await services.wait_deliveries(6)
        assert other.shard_states() == {"discord/0": True, "discord/1": True}
    assert texts(services) == sorted(f"{chat} {when}" for chat in (GENERAL, LOBBY)
                                     for when in ("both", "one ended", "one has both"))  # fmt: skip
    assert sorted(discord.gateway.identifies) == [(0, 2), (1, 2)]
    assert discord.gateway.resumed_shards == [0]


@pytest.mark.parametrize("shards", [-1, 65, "many"])
async def test_a_number_of_shards_that_cannot_be_is_refused(discord: DiscordServer, shards: object) -> None:
    """The setting takes 1 to 64, or auto."""
    with pytest.raises(ValidationError, match="shards"):
        block(discord, shards=shards)


@pytest.mark.parametrize("recommended", [0, 65])
async def test_an_odd_recommendation_is_no_reason_to_connect(
    discord: DiscordServer, services: FakePageServices, recommended: int
) -> None:
    """The gateway degrades and asks again with backoff."""
    discord.recommended_shards = recommended
    channel = DiscordChannel(services.context("discord", block(discord, shards=0)))
    supervisor = Supervisor({"discord": channel}, meter=FakeMeter())
    running = asyncio.create_task(supervisor.run(), name="gateway")
    await in_state(supervisor, is_ready=False)
    running.cancel()
    await asyncio.wait({running})
    await channel.close()
    assert discord.gateway.identified == 0
