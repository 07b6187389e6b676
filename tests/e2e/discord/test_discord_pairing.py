"""Letting in on Discord, over the wire: a server that waits, and a slash command that is answered at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.e2e.discord.test_discord_buttons import asked
from tests.fakes.discord_records import ANN, BEN, BOT, EVA, GENERAL, GUILD
from tests.fakes.discord_server import DiscordServer
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

CALL = f"<@{BOT}>"


@asynccontextmanager
async def owned(discord: DiscordServer, model: InstantModel) -> AsyncIterator[InProcessGateway]:
    """Run the gateway for Ann, who owns it, and for nobody else."""
    environment = {"PARLOUR_OWNERS": f"discord:{ANN}", **discord.settings(REACTION="")}
    async with gateway(model=model, environment=environment) as parlour:
        await discord.until(lambda: discord.gateway.identified and discord.interactions.registered)
        yield parlour


async def test_a_server_waits_in_silence_for_the_owners_yes(discord: DiscordServer) -> None:
    """Added to a server: Ann is asked with buttons; Ben, who calls, is told in private, and answered after her yes."""
    model = InstantModel()
    discord.has_joined = False
    async with owned(discord, model) as parlour:
        direct = discord.direct(ANN)
        discord.say(direct, ANN, "hello")
        await discord.until(lambda: bool(discord.chat(direct)))
        discord.join_server(is_in=True)
        question = await asked(discord, direct)
        (waiting,) = parlour.app.pairing.pending_requests()
        assert waiting.who == f"guild:{GUILD}"
        assert "Should I answer all members there?" in question["content"]
        discord.say(GENERAL, BEN, f"{CALL} hello?")
        private = discord.direct(BEN)
        await discord.until(lambda: bool(discord.chat(private)))
        assert "I'm new here" in discord.chat(private)[0]
        assert discord.chat(GENERAL) == []
        assert [str(each.reason) for each in parlour.app.refusals.recent("discord", BEN)] == ["place-pending"]
        discord.interactions.press(question["id"], ANN, f"/pair yes {waiting.ref}")
        await discord.until(lambda: len(discord.chat(direct)) == 3)
        discord.say(GENERAL, BEN, f"{CALL} and now?")
        await discord.until(lambda: bool(discord.chat(GENERAL)))
        await parlour.idle()
        assert model.calls == 2


async def test_a_strangers_slash_command_is_answered_at_once(discord: DiscordServer) -> None:
    """Discord waits three seconds for it: the line is there in time, for them alone, the server's one of the day.

    A direct message afterwards has a line of its own, with the code: notices in shared chats have a separate budget.
    """
    async with owned(discord, InstantModel()) as parlour:
        first = discord.interactions.use(GENERAL, EVA, "status")
        await discord.until(lambda: bool(first.acknowledged))
        discord.say(GENERAL, EVA, f"{CALL} hello?")
        discord.say(discord.direct(EVA), EVA, "and here?")
        discord.say(discord.direct(ANN), ANN, "hello")
        await discord.until(lambda: bool(discord.chat(discord.direct(ANN))))
        await discord.until(lambda: bool(discord.chat(discord.direct(EVA))))
        await parlour.idle()
        assert discord.chat(GENERAL) == []
        (line,) = discord.chat(discord.direct(EVA))
        assert "Your code is" in line
        assert [each.who for each in parlour.app.pairing.pending_requests()] == [str(EVA)]
