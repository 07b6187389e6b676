"""Cases on Telegram: what the model gets, and what people see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.i18n import translate
from tests.fakes.platform_cases import CaseModel, load_case
from tests.fakes.sample_files import png_of
from tests.fakes.telegram_gateway import TEAM, open_gateway
from tests.fakes.telegram_server import TelegramFault, TelegramServer


@asynccontextmanager
async def run_case(server: TelegramServer, case: dict[str, Any]) -> AsyncIterator[CaseModel]:
    """Run a gateway, let what the case holds arrive one after the other, and wait until all is done."""
    model = CaseModel()
    team = server.chat(TEAM)
    team.topics = set(case.get("topics", ()))
    server.privacy = False
    for ident in ("AgAC1", "AgAC4"):
        server.files.keep(png_of(8, 8), ident)
    for method, refusals in case.get("fail", {}).items():
        server.fail(method, *(TelegramFault("status", status, description=text) for status, text in refusals))
    async with open_gateway(server, model, **case.get("env", {})) as up:
        for update in case["updates"]:
            message = {**update["message"], "date": server.now()}
            place = server.chat(int(message["chat"]["id"]))
            place.known.add(int(message["message_id"]))
            place.last_id = max(place.last_id, int(message["message_id"]))
            if case.get("hold"):
                model.go_on.clear()
            server.push({"message": message})
            await server.until(lambda: not server.updates)
            if case.get("hold"):
                await model.asked.wait()
                team.topics = set(case["after"]["topics"])
                model.go_on.set()
            await up.idle()
        await up.idle()
        yield model
        await server.until(lambda: not has_reaction(server))


def has_reaction(server: TelegramServer) -> bool:
    """Return True if a message carries the bot's reaction."""
    last = {(each["chat_id"], each["message_id"]): each.get("reaction") for each in server.reactions}
    return any(last.values())


async def test_the_answer_of_a_topic_that_was_deleted_is_in_the_group(server: TelegramServer) -> None:
    """Below its question, once; and no reaction stays."""
    async with run_case(server, load_case("04_telegram_topic_deleted")):
        assert server.shown(TEAM) == ["Ann: @parlour_bot hi\n\nAnswer 1."]


async def test_where_topics_were_switched_off_the_answer_is_in_the_private_chat(server: TelegramServer) -> None:
    """Below its question, once."""
    async with run_case(server, load_case("04c_telegram_private_topics_switched_off")):
        assert server.shown(42) == ["Ann: hello\n\nAnswer 1."]


@pytest.mark.parametrize(
    "reason",
    [
        "Bad Request: not enough rights to send text messages to the chat",
        "Bad Request: CHAT_WRITE_FORBIDDEN",
        "Bad Request: TOPIC_CLOSED",
        "Bad Request: have no rights to send a message",
    ],
)
async def test_a_group_that_takes_no_message_costs_a_line_to_the_asker(server: TelegramServer, reason: str) -> None:
    """One line in their private chat, and no reaction stays."""
    case = load_case("08_telegram_not_enough_rights_eyes_stay")
    server.chat(42)
    case["fail"] = {"sendMessage": [[400, reason]]}
    async with run_case(server, case):
        assert server.shown(42) == [translate("delivery.place_gone")]
        assert server.shown(TEAM) == []


async def test_an_asker_who_cannot_be_written_to_has_no_reaction_left(server: TelegramServer) -> None:
    """The group takes nothing and the person has no chat with the bot: given up, without a sign that it works."""
    case = load_case("08_telegram_not_enough_rights_eyes_stay")
    refusal = case["fail"]["sendMessage"][0]
    case["fail"] = {"sendMessage": [refusal, [403, "Forbidden: bot can't initiate conversation with a user"]]}
    async with run_case(server, case):
        assert server.posts == []
