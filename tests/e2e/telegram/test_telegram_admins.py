"""Who may decide in a group, before the whole gateway: whichever way a command comes, and whatever Telegram answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel
from tests.fakes.telegram_gateway import TEAM, mention, open_gateway
from tests.fakes.telegram_server import TelegramServer, telegram_now

REFUSED = "Only an admin of this chat"
ADMIN, MEMBER = 42, 43
SLASH: dict[str, Any] = {"entities": [{"type": "bot_command", "offset": 0, "length": 4}]}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "slash": ("/new", SLASH),
    "slash-named": ("/new@parlour_bot", SLASH),
    "exclamation": ("!new", {}),
    "mention": ("@parlour_bot new", mention("@parlour_bot new")),
}


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram whose group has one admin; both people have pressed Start in private."""
    async with telegram_now() as server:
        server.privacy = False
        server.per_minute = 100
        server.chat(TEAM).admins = {ADMIN}
        for person in (ADMIN, MEMBER):
            server.chat(person)
        yield server


def team(server: TelegramServer) -> AbstractAsyncContextManager[InProcessGateway]:
    """Run the gateway for everybody in the group."""
    return open_gateway(server, InstantModel(), ALLOW_FROM=f"chat:{TEAM}", GROUP_POLICY="open", REACTION="")


async def send_command(server: TelegramServer, sender: int, text: str = "/new", **fields: Any) -> str:
    """Let somebody say a command in the group; return what comes of it."""
    before = len(server.posts)
    server.say(text, chat=TEAM, sender=sender, **(fields or SLASH))
    await server.until(lambda: len(server.posts) > before)
    post = server.posts[before]
    assert post.chat in (TEAM, sender)
    return post.text


async def test_every_way_a_command_comes_is_judged_by_the_group_s_admins(server: TelegramServer) -> None:
    """A member is refused, an admin is obeyed; an edit of what nobody heard is as good as a message."""
    async with team(server) as up:
        for text, more in WAYS.values():
            assert (await send_command(server, MEMBER, text, **more)).startswith(REFUSED), text
            assert not (await send_command(server, ADMIN, text, **more)).startswith(REFUSED), text
        for sender in (MEMBER, ADMIN):
            before = len(server.posts)
            server.edit(server.message(TEAM, sender, text="so", **SLASH), "/new", at=int(time.time()))
            await server.until(lambda before=before: len(server.posts) > before)  # type: ignore[misc]
            assert server.posts[before].text.startswith(REFUSED) is (sender == MEMBER)
        await up.idle()
    assert [name for name, _ in server.calls].count("getChatAdministrators") == 1
