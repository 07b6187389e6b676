"""Group manners chat by chat, over each platform's wire: where an answer stands, what is followed, when it listens."""

from __future__ import annotations

import json
import time
from typing import Any

from channels.kit.background import ChatRateLimits
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import BOT, GENERAL, GUILD, RANDOM, TOKEN
from tests.fakes.discord_server import open_discord
from tests.fakes.inprocess_gateway import InstantModel, gateway
from tests.fakes.slack_gateway import CALL
from tests.fakes.slack_gateway import open_gateway as open_slack_gateway
from tests.fakes.slack_server import ANN, BOT_USER, ROOM, FakeSlackChat, slack_server
from tests.fakes.telegram_gateway import TEAM, EchoModel, mention
from tests.fakes.telegram_gateway import open_gateway as open_telegram_gateway
from tests.fakes.telegram_server import open_telegram

OTHER, QUIET = -1005550001, -1005550002
THREAD = "1700000001.000100"
PLAIN = "C0PLAIN"


def chat_settings(**places: Any) -> dict[str, str]:
    """Return the variable that says all of `chats`."""
    return {"PARLOUR_CHATS": json.dumps(places)}


async def test_one_slack_channel_answers_at_its_top_level_and_leaves_one_thread_alone() -> None:
    """`reply_in: channel` holds there and nowhere else; `follow_threads: false` in one thread of it, not in others."""
    chats = chat_settings(
        **{f"slack:{ROOM}": {"reply_in": "channel"}, f"slack:{ROOM}/{THREAD}": {"follow_threads": False}}
    )
    async with slack_server() as server, open_slack_gateway(server, environment=chats) as parlour:
        parlour.app.channels["slack"]._outbound.posts = ChatRateLimits(1_000, lambda _: 0.001)  # type: ignore[attr-defined]
        server.places[PLAIN] = FakeSlackChat(PLAIN, "channel", {ANN, BOT_USER})
        server.say(ROOM, ANN, "a thread left alone", ts=THREAD, quiet=True)
        server.say(ROOM, ANN, f"{CALL} here")
        asked = server.say(PLAIN, ANN, f"{CALL} there")
        server.say(ROOM, ANN, f"{CALL} in the thread left alone", thread=THREAD)
        other = server.say(ROOM, ANN, "a thread of its own", quiet=True)
        server.say(ROOM, ANN, f"{CALL} in another", thread=other)
        await server.until(lambda: all(server.shown(*each) for each in ((ROOM,), (PLAIN, asked), (ROOM, THREAD))))
        await server.until(lambda: bool(server.shown(ROOM, other)))
        server.say(ROOM, ANN, "not for you", thread=THREAD)
        server.say(ROOM, ANN, "but this is", thread=other)
        await server.until(lambda: len(server.shown(ROOM, other)) == 2)
        await parlour.idle()
        sessions = {str(each.key) for each in await parlour.app.store.records.sessions()}
        assert server.shown(ROOM)[0].endswith("here")
        assert server.shown(PLAIN) == []
        assert len(server.shown(ROOM, THREAD)) == 1
        assert sessions == {
            f"slack:{each}" for each in (ROOM, f"{PLAIN}/{asked}", f"{ROOM}/{THREAD}", f"{ROOM}/{other}")
        }


async def test_one_discord_server_wants_a_mention_each_time_but_in_one_channel() -> None:
    """What is decided for a server holds in all of it; one of its channels says otherwise."""
    chats = {
        f"discord:guild:{GUILD}": {"follow_threads": False, "reply_in": "thread"},
        f"discord:{RANDOM}": {"follow_threads": True, "reply_in": "channel"},
    }
    async with open_discord() as discord:
        environment = {
            "PARLOUR_CHANNELS__DISCORD__TOKEN": TOKEN,
            "PARLOUR_CHANNELS__DISCORD__API_URL": f"http://{discord.base}/api/v10",
            "PARLOUR_CHANNELS__DISCORD__GATEWAY_URL": f"ws://{discord.base}/gateway",
            "PARLOUR_CHANNELS__DISCORD__ALLOW_FROM": DISCORD_ANN,
            **chat_settings(**chats),
        }
        async with gateway(model=InstantModel(), environment=environment) as parlour:
            await discord.until(lambda: discord.gateway.identified > 0)
            begun = discord.say(GENERAL, DISCORD_ANN, f"<@{BOT}> hello")
            inside = discord.open_thread(RANDOM, "plans")
            discord.say(inside, DISCORD_ANN, f"<@{BOT}> hello")
            discord.say(RANDOM, DISCORD_ANN, f"<@{BOT}> hello")
            await discord.until(lambda: begun in discord.messages)
            await discord.until(lambda: all(discord.chat(chat) for chat in (begun, inside, RANDOM)))
            discord.say(begun, DISCORD_ANN, "not for you")
            discord.say(inside, DISCORD_ANN, "for you")
            await discord.until(lambda: len(discord.chat(inside)) == 2)
            await parlour.idle()
            assert discord.chat(GENERAL) == []
            assert len(discord.chat(begun)) == 1
            assert parlour.app.refusals.recent("discord")[-1].reason == "not-addressed"


async def test_one_telegram_group_is_listened_to_and_another_is_not() -> None:
    """`open`, `off` and the block's `mention`, each in a group of its own; why it is silent names the right setting."""
    chats = chat_settings(
        **{f"telegram:{OTHER}": {"group_policy": "open"}, f"telegram:{QUIET}": {"group_policy": "off"}}
    )
    async with open_telegram() as server:
        server.now = lambda: int(time.time())
        server.privacy = False
        async with open_telegram_gateway(server, EchoModel(), None, ALLOW_FROM="42", **chats) as parlour:
            for group in (TEAM, OTHER, QUIET):
                server.say(f"said in {group}", chat=group)
            for group in (TEAM, QUIET):
                server.say(f"@parlour_bot called in {group}", chat=group, **mention("@parlour_bot"))
            await server.until(lambda: len(server.posts) == 2)
            await parlour.idle()
            refused = {(each.chat, each.reason): each.would_admit for each in parlour.app.refusals.recent("telegram")}
    assert server.shown(OTHER) == [f"You said: said in {OTHER}"]
    assert server.shown(TEAM) == [f"You said: @parlour_bot called in {TEAM}"]
    assert server.shown(QUIET) == []
    assert refused == {
        (str(TEAM), "not-addressed"): "a mention, or open in channels.telegram.group_policy",
        (str(QUIET), "groups-off"): f"mention or open in chats.telegram:{QUIET}.group_policy",
    }
