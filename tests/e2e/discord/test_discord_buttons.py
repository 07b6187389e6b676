"""Buttons on Discord: what is asked, who may press, and what becomes of a press."""

from __future__ import annotations

from typing import Any

from tests.e2e.discord.test_gateway_discord import CALL, open_gateway
from tests.fakes.discord_records import ADMIN_ROLE, ANN, BEN, BOT, EVA, GENERAL, buttons
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.staged_changes import memory, scope_in, staged

YES, NO = "/memory approve eaaaaaaaaaaaaaaaa", "/memory reject eaaaaaaaaaaaaaaaa"


async def asked(discord: DiscordServer, chat: str) -> dict[str, Any]:
    """Return the question once it stands in *chat*, with its buttons."""

    def found() -> list[dict[str, Any]]:
        return [each for each in discord.messages[chat] if each["author"]["id"] == BOT and buttons(each)]

    await discord.until(lambda: bool(found()))
    return found()[-1]


async def test_in_a_channel_admins_decide_in_private_and_strangers_are_not_heard() -> None:
    """A stranger's press: nothing. A member's: refused to them alone, the buttons stay. An admin's: done."""
    async with open_discord() as discord, open_gateway(discord, model=InstantModel()) as parlour:
        discord.members[ANN]["roles"] = [ADMIN_ROLE]
        discord.say(GENERAL, ANN, f"{CALL} hello")
        await discord.until(lambda: bool(discord.chat(GENERAL)))
        scope = await scope_in(parlour, f"discord:{GENERAL}")
        await staged(parlour, scope, f"discord:{GENERAL}")
        question = await asked(discord, GENERAL)
        shown = list(discord.chat(GENERAL))
        stranger = discord.interactions.press(question["id"], EVA, YES)
        member = discord.interactions.press(question["id"], BEN, YES)
        await discord.until(lambda: bool(member.follow_ups))
        assert (stranger.acknowledged, stranger.follow_ups) == (0, [])
        assert member.follow_ups == [
            ("Only an admin of this chat or an owner of this bot can use /memory approve here.", True)
        ]
        assert buttons(question)
        assert memory(parlour, scope) == ""
        admin = discord.interactions.press(question["id"], ANN, NO)
        await discord.until(lambda: not buttons(question) and bool(admin.follow_ups))
        assert admin.follow_ups == [("Rejected. My memory stays unchanged.", True)]
        assert list(discord.chat(GENERAL)) == shown
