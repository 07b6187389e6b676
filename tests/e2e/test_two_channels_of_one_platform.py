"""Two bots of one platform in one gateway: apart in everything but the people who write to them."""

from __future__ import annotations

import time
from typing import Any

from channels.slack import plugin as slack_kind
from channels.telegram import plugin as telegram_kind
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import BOT as DISCORD_BOT
from tests.fakes.discord_records import GENERAL
from tests.fakes.discord_records import TOKEN as DISCORD_TOKEN
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.slack import settings as slack_block
from tests.fakes.slack_server import ANN, APP_TOKEN, BOT_TOKEN, DM, ROOM, SlackServer, slack_server
from tests.fakes.telegram_channel import block as telegram_block
from tests.fakes.telegram_gateway import TEAM, mention
from tests.fakes.telegram_server import TOKEN, TelegramServer, open_telegram
from tests.fakes.web_services import FakePageServices

WORK = {"id": 987654321, "is_bot": True, "first_name": "Work", "username": "work_bot"}


def blocks(kind: str, *fields: dict[str, str]) -> dict[str, str]:
    """Return the environment of a block named like its kind and of another one, `<kind>-work`."""
    names = (kind, f"{kind}_work")
    return {
        f"PARLOUR_CHANNELS__{name.upper()}__{field}": value
        for name, given in zip(names, fields, strict=True)
        for field, value in {"KIND": kind, "REACTION": "", **given}.items()
    }


async def scopes(parlour: InProcessGateway) -> dict[str, str]:
    """Return the scope of every session."""
    return {str(each.key): each.scope for each in await parlour.app.store.records.sessions()}


def telegram(server: TelegramServer) -> dict[str, str]:
    """Return the settings that lead to *server*."""
    where = {"BASE_URL": f"{server.base}/bot", "FILE_URL": f"{server.base}/file/bot"}
    return {"TOKEN": server.token, "ALLOW_FROM": f"42,chat:{TEAM}", **where}


async def test_two_telegram_bots_share_a_person_and_nothing_else() -> None:
    """One private chat id and message id under both: two sessions, one scope; in a group each minds its own name."""
    async with open_telegram() as one, open_telegram() as other:
        other.token, other.bot = f"987654321:{TOKEN.partition(':')[2]}", WORK
        for server in (one, other):
            server.now = lambda: int(time.time())
            server.privacy = False
        async with gateway(model=InstantModel(), environment=blocks("telegram", telegram(one), telegram(other))) as up:
            for server, text in ((one, "to one"), (other, "to the other")):
                assert server.say(text)["message_id"] == 1
            await one.until(lambda: len(one.posts) == 1)
            await other.until(lambda: len(other.posts) == 1)
            await up.idle()
            assert [each.text[-6:] for each in one.posts] == ["to one"]
            assert [each.text[-12:] for each in other.posts] == ["to the other"]
            assert await scopes(up) == {
                "telegram:42": "people/telegram%3a42",
                "telegram-work:42": "people/telegram%3a42",
            }
            await in_a_group(one, other)
            await up.idle()
            assert {(post.chat, post.text[-3:]) for post in one.posts[1:]} == {(TEAM, "one")}
            assert {(post.chat, post.text[-3:]) for post in other.posts[1:]} == {(TEAM, "two")}


async def in_a_group(one: TelegramServer, other: TelegramServer) -> None:
    """Let Ann name each of the bots once where both are, and each of them hear what the first one said."""
    for text in ("@parlour_bot and one", "@work_bot and two"):
        named: dict[str, Any] = {"entities": [{"type": "mention", "offset": 0, "length": text.index(" ")}]}
        said = one.message(TEAM, 42, text=text, **named)
        for server in (one, other):
            server.chat(TEAM)
            server.push({"message": said})
    await one.until(lambda: any(post.chat == TEAM for post in one.posts))
    await other.until(lambda: any(post.chat == TEAM for post in other.posts))
    ours = one.message_of(next(post for post in one.posts if post.chat == TEAM))
    other.push({"message": ours | {"text": "@work_bot hello", **mention("@work_bot")}})
    answer = one.message(TEAM, 42, text="thanks", reply_to_message=ours)
    other.push({"message": answer})
    await other.until(lambda: not other.updates)


async def test_two_slack_apps_share_a_person_and_nothing_else() -> None:
    """Each hears its own socket, speaks with its own token; what is said under one is no duplicate of the other's."""
    async with slack_server() as one, slack_server() as other:
        other.bot_token, other.app_token = f"{BOT_TOKEN}2", f"{APP_TOKEN}2"

        def fields(server: SlackServer) -> dict[str, str]:
            tokens = {"BOT_TOKEN": server.bot_token, "APP_TOKEN": server.app_token}
            return {**tokens, "BASE_URL": f"{server.base}/api/", "ALLOW_FROM": ANN}

        async with gateway(model=InstantModel(), environment=blocks("slack", fields(one), fields(other))) as up:
            for server, text in ((one, "to one"), (other, "to the other")):
                await server.until(lambda server=server: server.connections > 0)  # type: ignore[misc]
                server.say(DM, ANN, text, ts="1900000000.000100")
            for server in (one, other):
                await server.until(lambda server=server: len(server.shown(DM)) == 1)  # type: ignore[misc]
            other.say(ROOM, "U0ONE", "<@U0PARLOUR> hello, I am the other bot", bot_id="B0ONE")
            other.say(ROOM, ANN, "<@U0ONE> hello")
            await other.until(lambda: len(other.acks) >= 5)
            await up.idle()
            assert one.shown(DM)[0].endswith("to one")
            assert other.shown(DM)[0].endswith("to the other")
            assert other.shown(ROOM) == []
            found = await scopes(up)
            assert set(found) == {f"slack:{DM}", f"slack-work:{DM}"}
            assert set(found.values()) == {"people/slack%3a%540%48%4f%4d%45%3a%550%41%4e%4e"}


async def test_two_discord_bots_share_a_person_and_nothing_else() -> None:
    """Two connections, two sets of marks and commands; a nonce of one is none of the other's."""
    async with open_discord() as one, open_discord() as other:
        other.token = DISCORD_TOKEN.replace("GcanaR", "GcanaS")

        def fields(discord: DiscordServer) -> dict[str, str]:
            where = {"API_URL": f"http://{discord.base}/api/v10", "GATEWAY_URL": f"ws://{discord.base}/gateway"}
            return {"TOKEN": discord.token, "ALLOW_FROM": DISCORD_ANN, "COMMANDS": "off", **where}

        async with gateway(model=InstantModel(), environment=blocks("discord", fields(one), fields(other))) as up:
            for discord in (one, other):
                await discord.until(lambda discord=discord: discord.gateway.identified)  # type: ignore[misc]
            ident = one.snowflake()
            for discord, text in ((one, "to one"), (other, "to the other")):
                discord.say(discord.direct(DISCORD_ANN), DISCORD_ANN, text, id=ident)
            direct = one.direct(DISCORD_ANN)
            for discord in (one, other):
                await discord.until(lambda discord=discord: len(discord.chat(direct)) == 1)  # type: ignore[misc]
            robot = {**one.users[DISCORD_ANN], "id": "77", "bot": True}
            other.say(GENERAL, DISCORD_ANN, f"<@{DISCORD_BOT}> I am the other bot", author=robot)
            other.say(GENERAL, DISCORD_ANN, "<@77> hello", mentions=[robot])
            other.say(other.direct(DISCORD_ANN), DISCORD_ANN, "and the end")
            await other.until(lambda: len(other.chat(direct)) == 2)
            await up.idle()
            assert one.chat(direct)[0].endswith("to one")
            assert other.chat(direct)[0].endswith("to the other")
            assert other.chat(GENERAL) == []
            key = f"discord:{direct}", f"discord-work:{direct}"
            assert await scopes(up) == dict.fromkeys(key, f"people/discord%3a{DISCORD_ANN}")


def test_each_block_is_called_at_an_address_of_its_own() -> None:
    """`/hooks/<block>`: what Telegram or Slack brings for one bot never reaches another."""
    hooks: dict[str, Any] = {"mode": "webhook", "webhook_url": "https://a.example/hooks/x", "webhook_secret": "s" * 20}
    server, workspace = TelegramServer(), SlackServer()
    server.base = workspace.base = "http://127.0.0.1:1"
    built: list[tuple[Any, Any]] = [
        (telegram_kind, telegram_block(server, **hooks)),
        (slack_kind, slack_block(workspace, app_token=None, signing_secret="0" * 32)),
    ]
    for kind, block in built:
        for name in (kind.name, f"{kind.name}-work"):
            channel = kind.open(FakePageServices().context(name, block))
            (route,) = kind.routes(channel)
            assert route.path == f"/hooks/{name}"
