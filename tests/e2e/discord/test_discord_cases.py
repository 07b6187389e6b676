"""Cases on Discord: what the model gets, and what people see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.i18n import translate
from tests.e2e.discord.test_gateway_discord import CALL, open_gateway
from tests.fakes.discord_records import ANN, GENERAL
from tests.fakes.discord_server import DiscordServer
from tests.fakes.platform_cases import CaseModel, load_case


@asynccontextmanager
async def run_case(discord: DiscordServer, case: dict[str, Any], *, answers: int = 1) -> AsyncIterator[CaseModel]:
    """Run a gateway, let what the case holds arrive one after the other, and wait until all is done."""
    model, named = CaseModel(), dict[str, str]()
    for method, kind, what in case.get("fail", ()):
        discord.fail(method, kind, what)
    async with open_gateway(discord, model=model) as up:
        for message in case["messages"]:
            fields = dict(message)
            where, user = fields.pop("where"), fields.pop("user")
            place = discord.direct(user) if where == "dm" else where
            name, reply = fields.pop("as", ""), fields.pop("reply", "")
            if reply:
                fields["reply_to"] = named[reply]
            named[name] = discord.say(place, user, fields.pop("content"), **fields)
        await discord.until(lambda: len(posts(discord)) >= answers)
        await up.idle()
        yield model
        await discord.until(
            lambda: sum(on for *_, on in discord.reactions) == sum(not on for *_, on in discord.reactions)
        )


def posts(discord: DiscordServer) -> list[str]:
    """Return what the bot's messages say, wherever they stand."""
    return [text for channel in discord.messages for text in discord.chat(channel)]


@pytest.mark.parametrize("code", ["400 50083", "400 160005", "403 50013", "403 50001", "404 10003"])
async def test_a_thread_that_takes_no_message_is_answered_in_its_channel(discord: DiscordServer, code: str) -> None:
    """Below its question, once; and no reaction stays."""
    thread = discord.open_thread(GENERAL, "plans")
    case = {"fail": [["POST", "messages", code]], "messages": [{"where": thread, "user": ANN, "content": f"{CALL} hi"}]}
    async with run_case(discord, case):
        assert discord.chat(GENERAL) == ["> Ann: @Parlour hi\n\nAnswer 1."]
        assert discord.chat(thread) == []


async def test_a_channel_that_takes_no_message_costs_a_line_to_the_asker(discord: DiscordServer) -> None:
    """One line in the direct chat, and no reaction stays."""
    async with run_case(discord, load_case("23_discord_thread_locked")):
        assert discord.chat(discord.direct(ANN)) == [translate("delivery.place_gone")]
