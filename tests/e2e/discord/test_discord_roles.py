"""Who is let in by a role, before the whole gateway: heard while they have it, and not a word longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.fakes.discord_records import ADMIN_ROLE, ANN, BEN, BOT, GENERAL, TEAM_ROLE
from tests.fakes.discord_server import DiscordServer
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

CALL = f"<@{BOT}>"
MANAGE_CHANNELS = 1 << 4
REFUSED = "Only an admin of this chat"


@asynccontextmanager
async def team(
    discord: DiscordServer, model: Any, allow_from: str = f"{ANN},role:{TEAM_ROLE}"
) -> AsyncIterator[InProcessGateway]:
    """Run the gateway for Ann and for whoever has the team's role."""
    environment = discord.settings(ALLOW_FROM=allow_from, REACTION="")
    async with gateway(model=model, environment=environment) as parlour:
        await discord.until(lambda: discord.gateway.identified and discord.interactions.registered)
        yield parlour


def reasons(parlour: InProcessGateway, who: str) -> list[str]:
    """Return why somebody was not heard."""
    return [str(each.reason) for each in parlour.app.refusals.recent("discord", who)]


async def test_what_waits_and_what_was_overheard_go_with_the_role(discord: DiscordServer) -> None:
    """Ben's row waits behind his first; his role goes; his next word says so. Neither is answered, nor is he quoted."""
    model = HeldModel(held=False)
    discord.members[BEN]["roles"] = [TEAM_ROLE]
    async with team(discord, model) as parlour:
        discord.say(GENERAL, BEN, "nothing for bots, at seven")
        model.go_on.clear()
        discord.say(GENERAL, BEN, f"{CALL} first")
        await model.wait_asked(1)
        discord.say(GENERAL, BEN, f"{CALL} second")
        discord.members[BEN]["roles"] = []
        discord.say(GENERAL, BEN, "that was all")
        while "stranger" not in reasons(parlour, BEN):  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
        model.go_on.set()
        await discord.until(lambda: len(discord.chat(GENERAL)) == 2)
        await parlour.idle()
        assert len(model.prompts) == 1
        discord.say(GENERAL, ANN, f"{CALL} what did he say?")
        await discord.until(lambda: len(discord.chat(GENERAL)) == 3)
        assert "at seven" not in model.prompts[-1]


async def test_who_decides_in_a_channel_is_judged_when_it_is_decided(discord: DiscordServer) -> None:
    """`/new` typed, chosen and mentioned: refused to a member, done for who manages the channel; unknown is refused."""
    model = HeldModel(held=False)
    discord.members[BEN]["roles"] = [TEAM_ROLE]
    async with team(discord, model):
        discord.say(GENERAL, BEN, f"{CALL} hello")
        await discord.until(lambda: bool(discord.chat(GENERAL)))

        async def decided(how: str) -> str:
            if how == "chosen":
                used = discord.interactions.use(GENERAL, BEN, "new")
                await discord.until(lambda: used.original is not None or used.is_deleted)
                return used.original or discord.chat(GENERAL)[-1]
            direct = discord.direct(BEN)
            before = len(discord.chat(GENERAL)), len(discord.chat(direct))
            discord.say(GENERAL, BEN, f"{CALL} /new" if how == "typed" else f"{CALL} new")
            await discord.until(lambda: (len(discord.chat(GENERAL)), len(discord.chat(direct))) != before)
            told = discord.chat(direct) if len(discord.chat(direct)) > before[1] else discord.chat(GENERAL)
            return told[-1]

        for how in ("typed", "mentioned", "chosen"):
            assert (await decided(how)).startswith(REFUSED), how
        discord.overwrite(GENERAL, TEAM_ROLE, allow=MANAGE_CHANNELS)
        for how in ("typed", "mentioned", "chosen"):
            assert not (await decided(how)).startswith(REFUSED), how
        discord.members[BEN]["roles"] = [TEAM_ROLE, ADMIN_ROLE]
        discord.overwrite(GENERAL, TEAM_ROLE)
        assert not (await decided("typed")).startswith(REFUSED)
