"""Who decides in a channel and who is a member still, as Discord says it now; and which servers we were added to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.channel import SupportsSenderLookup
from gateway.errors import SendFailed
from gateway.events import InboundKind, InboundMessage, Sender
from gateway.ports.channel import MembershipChange
from tests.fakes.discord_harness import NotedChannel, connected
from tests.fakes.discord_records import ADMIN_ROLE, ANN, BEN, BOT, GENERAL, GUILD, RANDOM, TEAM_ROLE
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"
MANAGE_CHANNELS, ADMINISTRATOR = 1 << 4, 1 << 3


async def send_command(
    discord: DiscordServer, services: FakePageServices, user: str = BEN, channel: str = GENERAL
) -> InboundMessage:
    """Let somebody say a command; return it as the gateway judges it at claim."""
    ident = discord.say(channel, user, f"{CALL} /new")
    while not any(each.message_id == ident for each in services.deliveries):
        await services.wait_deliveries(len(services.deliveries) + 1)
    heard = next(each for each in services.deliveries if each.message_id == ident)
    return replace(heard, kind=InboundKind.COMMAND)


async def now(channel: NotedChannel, message: InboundMessage) -> Sender:
    """Return the sender as the channel knows them now."""
    assert isinstance(channel, SupportsSenderLookup)
    return await channel.sender(message)


def looked_up(discord: DiscordServer) -> int:
    """Return how often a member was asked for."""
    return sum(each.kind == "members" for each in discord.requests)


async def test_who_decides_is_who_could_do_away_with_the_channel(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """The owner, Administrator, Manage Server; Manage Channels there, by its overwrites, in its threads too."""
    async with connected(services, discord) as channel:
        message = await send_command(discord, services)
        other = replace(message, key=replace(message.key, chat=RANDOM))
        thread = replace(message, key=replace(message.key, chat=f"{GENERAL}/77"))

        async def decides() -> tuple[bool, bool, bool]:
            await discord.gateway.settle()
            heard = await send_command(discord, services)  # whatever was told before it is known now
            here, there, below = [(await now(channel, each)).is_admin for each in (message, other, thread)]
            assert heard.sender.is_admin is here
            return here, there, below

        assert await decides() == (False, False, False)
        discord.members[BEN]["roles"] = [TEAM_ROLE, ADMIN_ROLE]
        assert await decides() == (True, True, True)
        discord.grant(ADMIN_ROLE, 0)
        assert await decides() == (False, False, False)
        discord.overwrite(GENERAL, TEAM_ROLE, allow=MANAGE_CHANNELS)
        assert await decides() == (True, False, True)
        discord.overwrite(GENERAL, BEN, deny=MANAGE_CHANNELS, is_member=True)
        assert await decides() == (False, False, False)
        discord.grant(TEAM_ROLE, ADMINISTRATOR)
        assert await decides() == (True, True, True)
        discord.grant(TEAM_ROLE, None)
        assert await decides() == (False, False, False)
        assert looked_up(discord) == 0  # events say who has which role, and the server what roles may
    discord.owner = BEN
    async with connected(FakePageServices(), discord) as channel:
        assert (await now(channel, message)).is_admin
    assert looked_up(discord) == 1


async def test_a_role_that_is_taken_away_is_gone_at_the_next_word(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """In a message, a command, a press and an edit alike, and from then on for what waits already."""
    discord.members[BEN]["roles"] = [TEAM_ROLE]
    async with connected(services, discord) as channel:
        first = await send_command(discord, services)
        assert first.sender.roles == (await now(channel, first)).roles == (TEAM_ROLE,)
        discord.members[BEN]["roles"] = []
        discord.edit(first.message_id, f"{CALL} again")
        (edited,) = (await services.wait_deliveries(2))[1:]
        assert edited.sender.roles == ()
        assert (await send_command(discord, services)).sender.roles == ()
        assert (await now(channel, first)).roles == ()
        ours = discord.say(GENERAL, BOT, "an answer")
        discord.members[BEN]["roles"] = [TEAM_ROLE]
        discord.interactions.press(ours, BEN, "/memory pending")
        pressed = (await services.wait_deliveries(4))[-1]
        assert (pressed.kind, pressed.sender.roles) == (InboundKind.BUTTON, (TEAM_ROLE,))
        assert (await now(channel, first)).roles == (TEAM_ROLE,)
        assert looked_up(discord) == 0


FAULTS = ["500 0", "403 50001", "503 0", "limit", "drop"]


@pytest.mark.parametrize("what", FAULTS)
async def test_who_cannot_be_looked_up_has_no_role_and_decides_nothing(
    discord: DiscordServer, services: FakePageServices, what: str
) -> None:
    """After five minutes Discord is asked; refused is a stranger, and what is not known in time is an error."""
    discord.members[BEN]["roles"] = [ADMIN_ROLE]
    async with connected(services, discord) as channel:
        message = await send_command(discord, services)
        assert (await now(channel, message)).is_admin
        channel._members.members.expire()  # as five minutes do
        channel._members.members.timeout = 0.2
        discord.fail("GET", "members", what, times=5, seconds=5.0)
        if what.startswith("403"):
            sender = await now(channel, message)
            assert (sender.roles, sender.is_admin, sender.is_guest) == ((), False, True)
        else:
            with pytest.raises(SendFailed):
                await now(channel, message)


async def test_who_left_the_server_is_a_stranger(discord: DiscordServer, services: FakePageServices) -> None:
    """By `guild:` and `chat:` they would be let in for ever otherwise. In a direct message there is nothing to ask."""
    async with connected(services, discord) as channel:
        message = await send_command(discord, services)
        assert not (await now(channel, message)).is_guest
        channel._members.members.expire()
        del discord.members[BEN]
        assert (await now(channel, message)).is_guest
        direct = replace(message, guild="")
        assert await now(channel, direct) == direct.sender


async def test_being_added_to_a_server_is_told_once(discord: DiscordServer, services: FakePageServices) -> None:
    """Not at the first session ever, nor at each later one, nor after an outage; then when we are put out again."""
    async with connected(services, discord):
        await send_command(discord, services)
        discord.gateway.dispatch("GUILD_DELETE", {"id": GUILD, "unavailable": True}, guild=True)
        discord.gateway.dispatch("GUILD_CREATE", discord.guilds()[0], guild=True)
        await send_command(discord, services, ANN)
        assert services.places == []
        discord.join_server(is_in=False)
        (gone,) = await services.wait_places(1)
        discord.join_server(is_in=True)
        (_, here) = await services.wait_places(2)
    joined = MembershipChange(
        channel="discord", id=f"place/{GUILD}/2026-01-01T00:00:00+00:00", guild=GUILD, title="Home"
    )
    assert here == joined
    assert here.entry == f"guild:{GUILD}"
    assert gone == replace(joined, id=gone.id, title="", is_gone=True)
    async with connected(services, discord):
        await send_command(discord, services)
    assert len(services.places) == 2


async def test_what_happened_while_we_were_away_is_told_at_the_next_session(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """Put out, and added again, while nobody listened; and what could not be kept is tried again."""
    changes: list[tuple[bool, Any]] = [(False, True), (True, False)]
    async with connected(services, discord):
        await send_command(discord, services)
    for is_in, is_gone in changes:
        discord.has_joined = is_in
        services.is_down = True
        async with connected(services, discord):
            services.is_down = False
            place = (await services.wait_places(2 if is_in else 1))[-1]
            assert (place.guild, place.is_gone) == (GUILD, is_gone)
