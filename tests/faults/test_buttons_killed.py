"""A gateway is killed with its questions on every platform: each press is answered once, by another gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from tests.e2e.test_postgres_gateway import settings
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import buttons as discord_buttons
from tests.fakes.discord_server import open_discord
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.slack_buttons import buttons as slack_buttons
from tests.fakes.slack_gateway import variables
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import DM, slack_server
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import open_telegram
from tests.faults.process_pool import ForkServer
from tests.faults.test_gateways_shared import until
from tests.faults.test_pages_shared import browsers, issue_code, say, shown, until_answered

_REMEMBERED = "I will remember that."
_QUESTION = "I would erase 1 remembered line"
_ERASED = "Erased: 1 remembered line"
_CONNECTIONS = (
    "SELECT count(*) FROM claim JOIN worker ON worker = worker.name WHERE claim.name LIKE 'conn:%' AND process = {}"
)
_OPEN = "SELECT 1 FROM inbox WHERE ended_at IS NULL UNION ALL SELECT 1 FROM outbox WHERE open IS NOT NULL"


async def holds(is_met: Callable[[], object]) -> None:
    """Return when *is_met* says so."""
    async with asyncio.timeout(60):
        while not is_met():  # noqa: ASYNC110 - three platforms, each with news of its own
            await asyncio.sleep(0.02)


async def test_questions_of_a_killed_gateway_are_answered_by_another(
    tmp_path: Path, postgres: PostgresServer, zygote: ForkServer
) -> None:
    """On Telegram, Slack, Discord and the page: a yes erases, that is said once, and the buttons go."""
    postgres.empty()
    async with AsyncExitStack() as stack:
        telegram = await stack.enter_async_context(open_telegram())
        telegram.now = lambda: int(time.time())
        slack = await stack.enter_async_context(slack_server())
        discord = await stack.enter_async_context(open_discord())
        direct = discord.direct(DISCORD_ANN)
        environment = {
            **settings(postgres), "PARLOUR_STORE__SHARED": "true", "PARLOUR_WEB__LOGIN": "always",
            **settings_for(telegram), **variables(slack), **discord.settings(ALLOW_FROM=DISCORD_ANN, COMMANDS="off"),
        }  # fmt: skip
        killed, other = (
            GatewayProcess(tmp_path / name, free_port(), zygote, **environment) for name in ("killed", "other")
        )
        for gateway in (killed, other):
            stack.push_async_callback(gateway.close)

        def chats() -> list[list[str]]:
            return [telegram.shown(42), slack.shown(DM), discord.chat(direct)]

        async def connected(gateway: GatewayProcess) -> None:
            await until(postgres, _CONNECTIONS.format(gateway.pid), [(3,)])
            lines = discord.gateway.sessions
            await holds(lambda: telegram._poll and slack.sockets and any(each.line is not None for each in lines))

        async def tell(text: str, answer: str) -> None:
            telegram.say(f"/{text}")
            slack.say(DM, SLACK_ANN, f"!{text}")
            discord.say(direct, DISCORD_ANN, f"!{text}")
            await holds(lambda: all(chat and answer in chat[-1] for chat in chats()))

        await killed.start()
        await connected(killed)
        await tell("remember Likes tea", _REMEMBERED)
        await tell("forget tea", _QUESTION)
        (ann,) = await stack.enter_async_context(browsers())
        assert await ann.log_in(killed, await issue_code(killed, "ann")) == 204
        async with ann.window(killed) as window:
            for text in ("/remember Likes tea", "/forget tea"):
                await say(window, text)
                answer = await until_answered(window)
            assert _QUESTION in shown(answer)[-1]
        await until(postgres, _OPEN, [])  # a part whose outcome is unknown would be sent again, marked
        await other.start()
        await killed.kill()
        await connected(other)
        # Whoever presses sees the buttons of a gateway that is no more.
        (post,) = [each for each in telegram.posts if each.buttons]
        (message,) = [each for each in slack.places[DM].messages if slack_buttons(each)]
        (record,) = [each for each in discord.messages[direct] if discord_buttons(each)]
        telegram.buttons.press(post, post.markup["inline_keyboard"][0][0]["callback_data"])
        slack.press(DM, SLACK_ANN, message, "Yes")
        discord.interactions.press(record["id"], DISCORD_ANN, record["components"][0]["components"][0]["custom_id"])
        async with ann.window(other) as window:
            line = ann.history["lines"][-1]
            await window.send_json(
                {"type": "press", "id": "1" * 16, "part": line["part"], "command": line["buttons"][0][0]["command"]}
            )
            assert _ERASED in shown(await until_answered(window))[-1]
        await holds(lambda: all(_ERASED in chat[-1] for chat in chats()))
        await holds(lambda: not (post.buttons or slack_buttons(message) or discord_buttons(record)))
        await until(postgres, _OPEN, [])
        assert [sum(_ERASED in text for text in chat) for chat in chats()] == [1, 1, 1]
        async with ann.window(other):
            lines = ann.history["lines"]
            assert [_ERASED in each["text"] for each in lines].count(True) == 1
            assert not any(each.get("buttons") for each in lines)
