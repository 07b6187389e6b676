"""docs/attacks.md, attacks 1 to 9, before the whole gateway: nothing is run, stored or shown for who is not let in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import BOT, TelegramServer, telegram_now

STRANGER = {"id": 666, "is_bot": False, "first_name": "42", "username": "42"}  # 7: a name like an allowed id


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram that lets the bot read along, and counts the seconds as they pass."""
    async with telegram_now() as server:
        server.privacy = False
        yield server


def attacks(server: TelegramServer) -> list[dict[str, Any]]:
    """Return every update that has to come to nothing."""
    at_us: dict[str, Any] = {"text": "@parlour_bot open up", **mention("@parlour_bot")}

    def said(place: int, **fields: Any) -> dict[str, Any]:
        return server.message(place, 666, **at_us) | {"from": STRANGER} | fields

    nobody = said(TEAM)
    del nobody["from"]
    anonymous = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}
    team = {"id": TEAM, "type": "supergroup", "title": "The team"}
    ann = {"id": 42, "is_bot": False, "first_name": "Ann"}
    button = {"id": "9", "from": STRANGER, "chat_instance": "1", "data": "/new", "message": said(TEAM)}
    arrival = {"chat": team, "from": STRANGER, "date": server.now()}
    arrival |= {"old_chat_member": {"status": "left"}, "new_chat_member": {"status": "member"}}
    reaction = {"chat": team, "message_id": 1, "user": STRANGER, "date": server.now()}
    reaction |= {"old_reaction": [], "new_reaction": [{"type": "emoji", "emoji": "x"}]}
    return [
        {"message": said(666)},  # 1
        {"message": said(TEAM)},  # 2
        {"edited_message": said(666, edit_date=server.now())},  # 3
        {"channel_post": said(-1007, chat={"id": -1007, "type": "channel", "title": "c"})},  # 4
        {"message": nobody},  # 5
        {"message": said(TEAM, **{"from": {**STRANGER, "id": 555, "is_bot": True}})},  # 6
        {"message": said(TEAM, **{"from": BOT})},
        {"callback_query": button},  # 8
        {"my_chat_member": arrival},
        {"message_reaction": reaction},
        {"poll_answer": {"poll_id": "1", "user": STRANGER, "option_ids": [0]}},
        {"message": said(TEAM, sender_chat=team, **{"from": anonymous})},  # 9
        {"message": said(666, forward_origin={"type": "user", "sender_user": ann, "date": 1}, forward_from=ann)},
    ]


async def test_what_strangers_do_comes_to_nothing(server: TelegramServer) -> None:
    """No model call, no message, no reaction, no typing, and no chat of theirs in the gateway; Ann is answered."""
    model = EchoModel()
    async with open_gateway(server, model, ALLOW_FROM="42") as up:
        for update in attacks(server):
            server.push(update)
        server.say("hello")
        await server.until(lambda: len(server.posts) == 1)
        await server.until(lambda: not server.ready({"allowed_updates": ["message", "callback_query"]}))
        await up.idle()
        sessions = await up.app.store.records.sessions()
    assert model.asked == ["hello"]
    assert server.shown(42) == ["You said: hello"]
    assert {each["chat_id"] for each in (*server.actions, *server.reactions)} == {42}
    assert server.answered == []
    assert [str(session.key) for session in sessions] == ["telegram:42"]
