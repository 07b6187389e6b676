"""Forum posts, strangers and limits of Discord, over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.events import OutboundMessage, SessionKey
from tests.fakes.discord_harness import connected
from tests.fakes.discord_records import ANN, BOT, EVA, GENERAL, RANDOM
from tests.fakes.discord_server import DiscordServer
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(64)


@asynccontextmanager
async def open_gateway_of(discord: DiscordServer, model: Any) -> AsyncIterator[InProcessGateway]:
    """Run the gateway with a Discord block for Ann."""
    async with gateway(model=model, environment=discord.settings(ALLOW_FROM=ANN)) as parlour:
        await discord.until(lambda: discord.gateway.identified and discord.interactions.registered)
        yield parlour


async def test_a_forum_post_is_a_session_of_its_own(discord: DiscordServer, services: FakePageServices) -> None:
    """`<forum>/<post>`, from its first message on."""
    async with connected(services, discord):
        discord.add_channel("4009", "ideas", kind=15)
        discord.gateway.dispatch("CHANNEL_CREATE", discord.channels["4009"], guild=True)
        post = discord.open_forum_post("4009", "a garden", ANN, f"{CALL} what grows here?")
        (message,) = await services.wait_deliveries(1)
    assert (str(message.key), message.message_id) == (f"discord:4009/{post}", post)


async def test_a_stranger_with_a_file_costs_nothing(discord: DiscordServer) -> None:
    """Nanobot bug 8: no download, no typing, no reaction, no model, no word; in a direct chat and by our name."""
    model = HeldModel("never")
    async with open_gateway_of(discord, model) as parlour:
        before = len(discord.requests)
        file = discord.cdn.keep("a.png", PICTURE, content_type="image/png")
        direct = discord.direct(EVA)
        for _ in range(2):
            discord.say(direct, EVA, "let me in", attachments=[file])
            discord.say(GENERAL, EVA, f"{CALL} let me in", attachments=[file])
        model.go_on.set()
        discord.say(RANDOM, ANN, f"{CALL} hello")
        await discord.until(lambda: discord.chat(RANDOM))
        await parlour.idle()
        done = [each for each in discord.requests[before:] if each.method != "GET"]
        assert {each.path.split("/")[4] for each in done} == {RANDOM}
        assert discord.cdn.served == []
        assert len(model.prompts) == 1


@pytest.mark.parametrize("how", ["limit", "global"])
async def test_a_global_limit_is_waited_out(discord: DiscordServer, services: FakePageServices, how: str) -> None:
    """A 429 for one chat or for all: what waits goes out afterwards, in order and once, other chats beside it."""
    async with connected(services, discord) as channel:
        discord.fail("POST", "messages", how, seconds=0.3)
        parts = [
            channel.render(
                OutboundMessage(id=f"tabcdefghijklmn{n}p.1", key=SessionKey("discord", chat), text=f"to {chat}")
            )[0]
            for n, chat in enumerate((GENERAL, RANDOM))
        ]
        first = asyncio.create_task(channel.send(parts[0]))
        await discord.until(lambda: any(each.method == "POST" for each in discord.requests))
        second = asyncio.create_task(channel.send(parts[1]))
        if how == "limit":
            await discord.until(lambda: discord.chat(RANDOM))
            assert discord.chat(GENERAL) == []
        await asyncio.gather(first, second)
    assert (discord.chat(GENERAL), discord.chat(RANDOM)) == ([f"to {GENERAL}"], [f"to {RANDOM}"])
