"""A worker without the gateway connection: it answers, and knows rights and history, over REST alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from channels.discord.adapter import DiscordChannel
from gateway.events import InboundKind, MessagePart, OutboundKind, OutboundMessage, turn_id
from tests.fakes.connection_claims import GrantedClaims
from tests.fakes.discord_harness import block, connected
from tests.fakes.discord_records import ADMIN_ROLE, ANN, BEN, BOT, GENERAL
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices


@asynccontextmanager
async def sending(services: FakePageServices, discord: DiscordServer) -> AsyncIterator[DiscordChannel]:
    """Run a channel that waits for the connection which another worker has."""
    channel = DiscordChannel(replace(services.context("discord", block(discord)), connections=GrantedClaims()))
    running = asyncio.create_task(channel.run_sender(), name="discord sender")
    try:
        yield channel
    finally:
        running.cancel()
        await asyncio.wait({running})
        await channel.close()


def first_part(channel: DiscordChannel, message: OutboundMessage) -> MessagePart:
    """Return the first part of *message*."""
    return channel.render(message)[0]


async def test_a_native_command_is_answered_by_another_worker(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """The response that shows "is thinking" is replaced, although the command did not come here; once."""
    direct = discord.direct(ANN)
    async with connected(services, discord, commands="global"), sending(services, discord) as other:
        await discord.until(lambda: discord.interactions.registered)
        used = discord.interactions.use(direct, ANN, "usage")
        message = (await services.wait_deliveries(1))[-1]
        await discord.until(lambda: used.acknowledged)
        answer = OutboundMessage(id=f"{turn_id(message)}.1", key=message.key, text="Little.", kind=OutboundKind.NOTICE)
        assert (await other.send(first_part(other, answer))).message_id
        assert used.original == "Little."


async def test_rights_and_history_are_read_over_rest(discord: DiscordServer, services: FakePageServices) -> None:
    """An admin's command runs in the worker that has the chat; a guild is read once for many messages."""
    discord.members[BEN]["roles"] = [ADMIN_ROLE]
    async with connected(services, discord), sending(services, discord) as other:
        discord.say(GENERAL, ANN, "The roof is green.")
        discord.say(GENERAL, BEN, f"<@{BOT}> what did we decide?")
        asked = (await services.wait_deliveries(2))[-1]
        for kind in (InboundKind.BUTTON, InboundKind.COMMAND, InboundKind.MESSAGE):
            sender = await other.sender(replace(asked, kind=kind))
            assert (sender.is_admin, sender.roles) == (True, (ADMIN_ROLE,))
        assert not (await other.sender(replace(asked, sender=replace(asked.sender, id=ANN)))).is_admin
        before = await other.messages_before(asked, since=None, limit=10)
        assert [each.text for each in before] == ["The roof is green."]
    guild_reads = [each for each in discord.requests if each.kind == "guilds"]
    assert len(guild_reads) == 1
