"""What reaches the gateway from Telegram in odd times: poison, being called in, a webhook."""

from __future__ import annotations

from typing import Any

from gateway.quarantine import list_events
from tests.fakes.gateway import free_port
from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import TelegramServer

SECRET = "a-secret-that-is-hard-to-guess"


async def test_a_poison_update_is_set_aside_and_those_beside_it_are_answered(server: TelegramServer) -> None:
    """What cannot be read is quarantined, the offset goes on, and nobody else notices."""
    server.say("before")
    server.push({"message": {"message_id": 7, "chat": {"id": 42, "type": "private"}, "date": "never", "text": "x"}})
    server.say("after", chat=43, sender=43)
    async with open_gateway(server, EchoModel()) as up:
        await server.until(lambda: len(server.posts) == 2)
        await server.until(lambda: not server.updates)
        await up.idle()
        (kept,) = list_events(up.home / "quarantine")
    assert (kept.channel, kept.reason) == ("telegram", "ValueError in message, update_id")
    assert server.shown(42) + server.shown(43) == ["You said: before", "You said: after"]


async def test_called_into_a_conversation_it_has_read_along(server: TelegramServer) -> None:
    """What admitted people said before the mention is known to that turn alone; a stranger's words to none."""
    server.privacy = False
    model = EchoModel(lambda _: "At six.")
    async with open_gateway(server, model, ALLOW_FROM="42,43") as up:
        server.say("shall we meet at six?", chat=TEAM, sender=42)
        server.say("buy my coins", chat=TEAM, sender=666)
        server.say("@parlour_bot when do we meet?", chat=TEAM, sender=43, **mention("@parlour_bot"))
        await server.until(lambda: len(server.posts) == 1)
        await up.idle()
        server.say("and what did they say there?", chat=43, sender=43)
        await server.until(lambda: len(server.posts) == 2)
        await up.idle()
    assert "shall we meet at six?" in model.heard[0]
    assert "coins" not in model.heard[0]
    assert "meet at six" not in model.heard[1]


async def test_a_webhook_brings_what_polling_would(server: TelegramServer) -> None:
    """Called instead of polling: a message, a second delivery, a stranger; one answer, and Telegram keeps nothing."""
    port = free_port()
    settings: dict[str, Any] = {
        "MODE": "webhook",
        "WEBHOOK_URL": f"http://127.0.0.1:{port}/hooks/telegram",
        "WEBHOOK_SECRET": SECRET,
        "PARLOUR_WEB__PORT": str(port),
    }
    server.say("said while down")
    server.hooks.lost = 1
    async with open_gateway(server, EchoModel(), **settings) as up:
        await server.until(lambda: len(server.posts) == 1)
        server.say("let me in", chat=666, sender=666)
        server.say("hello")
        await server.until(lambda: len(server.posts) == 2)
        await server.until(lambda: not server.updates)
        await up.idle()
        assert up.app.supervisor.states()["telegram"]
    assert [post.text for post in server.posts] == ["You said: said while down", "You said: hello"]
    assert server.hooks.answers == [200, 200, 200, 200]
