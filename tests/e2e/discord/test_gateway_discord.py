"""The whole gateway before a Discord: what people see, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.tools.tool import Tool
from gateway.i18n import translate
from tests.fakes.discord_records import ANN, BEN, BOT, EVA, GENERAL, RANDOM
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

CALL = f"<@{BOT}>"
TALE = "These are the first words of the answer, and these are the last ones."


@asynccontextmanager
async def open_gateway(
    discord: DiscordServer,
    *,
    home: Path | None = None,
    model: Any = None,
    tools: Sequence[Tool] = (),
    more: Mapping[str, str] | None = None,
    **block: str,
) -> AsyncIterator[InProcessGateway]:
    """Run the gateway with a Discord block for Ann and Ben and the variables *more*; it is connected on entry."""
    environment = {**discord.settings(**{"ALLOW_FROM": f"{ANN},{BEN}", **block}), **(more or {})}
    async with gateway(home=home, model=model or InstantModel(), environment=environment, tools=tools) as parlour:
        await discord.until(lambda: discord.gateway.line is not None)
        yield parlour


async def test_people_are_answered_where_they_wrote_and_a_stranger_is_not() -> None:
    """In a direct message, a channel and a thread; without a mention, and to a stranger, nothing."""
    async with open_discord() as discord, open_gateway(discord) as parlour:
        direct, thread = discord.direct(ANN), discord.open_thread(GENERAL, "plans")
        discord.say(direct, ANN, "good evening")
        discord.say(GENERAL, EVA, f"{CALL} stranger")
        discord.say(GENERAL, ANN, "not for you")
        discord.say(GENERAL, ANN, f"{CALL} to all")
        discord.say(thread, BEN, f"{CALL} in here")
        await discord.until(lambda: all(discord.chat(chat) for chat in (direct, GENERAL, thread)))
        await parlour.idle()
        for chat, end in ((direct, "good evening"), (GENERAL, "@Parlour to all"), (thread, "@Parlour in here")):
            (shown,) = discord.chat(chat)
            assert shown.endswith(end)
        await discord.until(lambda: sum(on for *_, on in discord.reactions) == 3)
        await discord.until(lambda: sum(not on for *_, on in discord.reactions) == 3)


async def test_an_answer_streams_and_survives_the_loss_of_its_connection() -> None:
    """The preview rings, the answer takes its place; a cut of the gateway in between costs nothing."""
    model = HeldModel(TALE, first=41)
    async with open_discord() as discord, open_gateway(discord, model=model) as parlour:
        discord.say(GENERAL, ANN, f"{CALL} tell me")
        await discord.until(lambda: discord.chat(GENERAL))
        assert discord.chat(GENERAL) == [TALE[:40].strip()]
        assert discord.is_typing(GENERAL)
        await discord.gateway.drop()
        model.go_on.set()
        await parlour.idle()
        (shown,) = discord.chat(GENERAL)
        assert shown == TALE


async def test_a_stopped_answer_keeps_its_words_and_no_reaction_stays() -> None:
    """One message: the words that had streamed, marked as stopped. 👀 goes from the question and from /stop."""
    model = HeldModel(TALE, first=41)
    async with open_discord() as discord, open_gateway(discord, model=model) as parlour:
        discord.say(GENERAL, ANN, f"{CALL} tell me")
        await discord.until(lambda: discord.chat(GENERAL))
        (words,) = discord.chat(GENERAL)
        discord.say(GENERAL, ANN, f"{CALL} !stop")
        await discord.until(lambda: discord.chat(GENERAL) != [words])
        await parlour.idle()
        assert discord.chat(GENERAL) == [f"{words}\n\n{translate('delivery.stopped_here')}"]
        await discord.until(lambda: _reactions(discord) == [])
        model.go_on.set()


def _reactions(discord: DiscordServer) -> list[Any]:
    """Return the reactions of ours that stand."""
    standing: list[Any] = []
    for *place, on in discord.reactions:
        (standing.append if on else standing.remove)(tuple(place))
    return standing


async def test_a_native_command_is_answered_to_its_sender_alone() -> None:
    """`/help` and `/status` in a channel: nobody else sees what was typed, and nobody else the answer."""
    async with open_discord() as discord, open_gateway(discord) as parlour:
        await discord.until(lambda: bool(discord.interactions.registered))
        used = [discord.interactions.use(GENERAL, ANN, name) for name in ("help", "status")]
        await discord.until(lambda: all(each.original for each in used))
        await parlour.idle()
        assert all(each.is_ephemeral for each in used)
        assert "`/stop`" in str(used[0].original)
        assert discord.chat(GENERAL) == []
        assert discord.chat(discord.direct(ANN)) == []


async def test_an_empty_bucket_of_a_day_delays_its_chat_and_is_seen() -> None:
    """One chat waits 15 minutes at most and its answer is kept; the next chat is answered, and says so in /status."""
    async with open_discord() as discord, open_gateway(discord) as parlour:
        discord.limit = (1, 102_737.0)
        discord.say(GENERAL, ANN, f"{CALL} one")
        await discord.until(lambda: discord.chat(GENERAL))
        discord.say(GENERAL, ANN, f"{CALL} two")
        while not parlour.app.dispatcher.delayed():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
        (delayed,) = parlour.app.dispatcher.delayed()
        assert (str(delayed.key), delayed.reason) == (f"discord:{GENERAL}", "rate limited by Discord")
        assert delayed.until - delayed.since <= timedelta(minutes=15)
        discord.say(RANDOM, BEN, f"{CALL} !status")
        await discord.until(lambda: discord.chat(RANDOM))
        assert translate("commands.status_delayed", chats=1) in discord.chat(RANDOM)[-1]
        assert len(discord.chat(GENERAL)) == 1


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "mention"])
async def test_stop_in_a_channel_finds_the_askers_turn_in_its_thread(*, is_native: bool) -> None:
    """With `reply_in: thread` the turn runs in a thread; `/stop` and `@bot stop` in the channel end it."""
    model = HeldModel()
    async with open_discord() as discord, open_gateway(discord, model=model, REPLY_IN="thread") as parlour:
        await discord.until(lambda: bool(discord.interactions.registered))
        thread = discord.say(GENERAL, ANN, f"{CALL} tell me")
        await model.asked.wait()
        known = set(discord.channels)
        if is_native:
            used = discord.interactions.use(GENERAL, ANN, "stop")
            await discord.until(lambda: used.original == translate("commands.stopped_turn"))
        else:
            discord.say(GENERAL, ANN, f"{CALL} stop")
            await discord.until(lambda: translate("commands.stopped_turn") in discord.chat(discord.direct(ANN)))
        model.go_on.set()
        await parlour.idle()
        assert model.calls == 0
        assert set(discord.channels) - {discord.direct(ANN)} <= known | {thread}
