"""delivery.once: strict before Telegram's server: a silent placeholder, filled by an edit that can be repeated."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import TelegramFault, TelegramServer

STRICT: dict[str, Any] = {"PARLOUR_DELIVERY__ONCE": "strict", "REACTION": ""}
WHOLE = "Well, this is a long answer, with words that are worth a preview to everybody who reads them."
PLACES: dict[str, tuple[int, dict[str, Any]]] = {"private": (42, {}), "group": (TEAM, mention("@parlour_bot"))}


@pytest.mark.parametrize("place", PLACES)
async def test_the_placeholder_is_silent_and_becomes_the_answer(server: TelegramServer, place: str) -> None:
    """A real message, not a draft, that rings nobody; words grow in it, and it ends as the answer."""
    chat, fields = PLACES[place]
    model = EchoModel(lambda _: WHOLE)
    model.go_on.clear()
    async with open_gateway(server, model, **STRICT) as up:
        server.say("@parlour_bot hello", chat=chat, sender=42, **fields)
        await server.until(lambda: bool(server.posts) and len(server.posts[0].versions) > 1)
        model.go_on.set()
        await server.until(lambda: server.posts[0].text == WHOLE)
        await up.idle()
    (post,) = server.posts
    assert (post.is_silent, post.versions[0], post.text) == (True, "…", WHOLE)
    assert server.drafts == []


@pytest.mark.parametrize("place", PLACES)
async def test_replies_lost_after_placeholder_and_edit_leave_one_answer(server: TelegramServer, place: str) -> None:
    """Both replies lost: one answer, unmarked; what else stands there is an empty placeholder, not the words twice."""
    chat, fields = PLACES[place]
    server.fail("sendMessage", TelegramFault("lost"))
    server.fail("editMessageText", TelegramFault("lost"))
    async with open_gateway(server, EchoModel(lambda _: "Six."), **STRICT) as up:
        server.say("@parlour_bot when?", chat=chat, sender=42, **fields)
        await server.until(lambda: any(post.text == "Six." for post in server.posts))
        await up.idle()
    assert not server.faults["sendMessage"]
    assert not server.faults["editMessageText"]
    assert sorted(server.shown(chat)) in (["Six.", "…"], ["Six."])
    assert all(post.is_silent for post in server.posts)


async def test_a_long_answer_fills_a_placeholder_for_each_part(server: TelegramServer) -> None:
    """Every part of it once, in order and unmarked, though one edit's reply was lost."""
    text = "\n\n".join(f"Paragraph {n} " + "word " * 60 for n in range(30))
    server.fail("editMessageText", TelegramFault("lost"))
    async with open_gateway(server, EchoModel(lambda _: text), **STRICT) as up:
        server.say("tell me")
        await server.until(lambda: any("Paragraph 29" in post.text for post in server.posts))
        await up.idle()
    shown = "\n".join(server.shown(42))
    places = [shown.index(f"Paragraph {n} ") for n in range(30)]
    assert places == sorted(places)
    assert shown.count("Paragraph 7 ") == 1
    assert {post.versions[0] for post in server.posts} == {"…"}
