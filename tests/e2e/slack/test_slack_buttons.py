"""Buttons in Slack: what is asked, who may press, and what becomes of a press."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import StoreUnavailable
from tests.fakes.slack_buttons import buttons
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_http_events import SIGNING_SECRET
from tests.fakes.slack_server import ANN, BOT_USER, DM, ROOM, SlackServer, slack_server
from tests.fakes.staged_changes import FACT, memory, scope_in, staged


async def asked(server: SlackServer, place: str) -> dict[str, Any]:
    """Return the question once it stands in *place*, with its buttons."""

    def found() -> list[dict[str, Any]]:
        return [each for each in server.places[place].messages if each["user"] == BOT_USER and buttons(each)]

    await server.until(lambda: bool(found()))
    return found()[-1]


async def test_what_one_person_alone_sees_has_buttons_too() -> None:
    """`/memory pending` in a channel is ephemeral; a press there is done, and what was pressed is taken away."""
    async with slack_server() as server, open_gateway(server) as parlour:
        thread = server.say(ROOM, ANN, f"{CALL} hello")
        await server.until(lambda: bool(server.shown(ROOM, thread)))
        scope = await scope_in(parlour, f"slack:{ROOM}/{thread}")
        await staged(parlour, scope, f"slack:{ROOM}/{thread}")
        question = await asked(server, ROOM)
        server.slash(ROOM, ANN, "/parlour", "memory pending")
        whispers = server.places[ROOM].whispers
        await server.until(lambda: bool(whispers))
        listed = whispers[0]
        assert buttons(listed) == [["Yes", "No"]]
        server.press(ROOM, ANN, listed, "No")
        await server.until(
            lambda: (
                listed not in whispers
                and any(each["text"] == "Rejected. My memory stays unchanged." for each in whispers)
            )
        )
        server.press(ROOM, ANN, question, "Yes")
        await server.until(lambda: not buttons(question))
        assert any(each["text"].startswith("This was already decided") for each in whispers)
        assert memory(parlour, scope) == ""


async def test_a_press_that_is_not_stored_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal cannot write Slack gets no ack, and the press is done when it comes again."""
    async with slack_server() as server, open_gateway(server) as parlour:
        server.ack_within = 0.3
        server.say(DM, ANN, "hello")
        await server.until(lambda: bool(server.shown(DM)))
        scope = await scope_in(parlour, f"slack:{DM}")
        await staged(parlour, scope, f"slack:{DM}")
        question = await asked(server, DM)
        await parlour.idle()
        journal = parlour.app.store.journal
        accept = journal.accept
        failed: list[bool] = []

        async def full_once(*arguments: Any, **more: Any) -> Any:
            if not failed:
                failed.append(True)
                raise StoreUnavailable("the disk is full")
            return await accept(*arguments, **more)

        monkeypatch.setattr(journal, "accept", full_once)
        trigger = server.press(DM, ANN, question, "Yes")
        await server.until(lambda: not buttons(question))
        assert server.deliveries.count(trigger) == 2
        assert server.acks.count(trigger) == 1
        assert memory(parlour, scope) == f"- {FACT}\n"


async def test_presses_come_by_http_too() -> None:
    """Signed, in a form, acknowledged when stored; the same request twice has one effect."""
    async with slack_server() as server:
        environment = {
            "PARLOUR_CHANNELS__SLACK__APP_TOKEN": "",
            "PARLOUR_CHANNELS__SLACK__SIGNING_SECRET": SIGNING_SECRET,
            "PARLOUR_WEB__PUBLIC_URL": "https://parlour.example",
        }
        async with open_gateway(server, environment=environment) as parlour:
            server.hook = f"{parlour.app.web.url}hooks/slack"
            await asyncio.wait_for(_serving(parlour), 60)
            server.say(DM, ANN, "hello")
            await server.until(lambda: bool(server.shown(DM)))
            scope = await scope_in(parlour, f"slack:{DM}")
            await staged(parlour, scope, f"slack:{DM}")
            question = await asked(server, DM)
            server.press(DM, ANN, question, "Yes")
            await server.until(lambda: not buttons(question))
            assert memory(parlour, scope) == f"- {FACT}\n"


async def _serving(parlour: Any) -> None:
    channel = parlour.app.channels["slack"]
    while not channel.is_ready():  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0.005)
