"""Commands on Slack: what people are told to type works there, /stop finds their turn, a slash command is theirs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.errors import InvalidModelReply
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_server import ANN, BOB, DM, ROOM, SlackServer, slack_server


class FailingModel(InstantModel):
    """Answers nothing that can be read."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Fail."""
        raise InvalidModelReply("no")


def whispers(server: SlackServer) -> list[str]:
    """Return what Ann alone was shown in the channel."""
    return [each["text"] for each in server.places[ROOM].whispers if each["user"] == ANN]


async def test_hints_name_what_works_where_they_are_read() -> None:
    """In a thread and in a direct message `!new`, at the top of a channel `/parlour new`: never a bare slash."""
    async with slack_server() as server, open_gateway(server):
        server.say(ROOM, ANN, f"{CALL} /nwe")
        await server.until(lambda: len(whispers(server)) == 1)
        server.slash(ROOM, ANN, "/parlour", "nwe")
        await server.until(lambda: len(whispers(server)) == 2)
        server.say(DM, ANN, "!start")
        await server.until(lambda: len(server.shown(DM)) == 1)
        server.say(DM, ANN, "!help")
        await server.until(lambda: len(server.shown(DM)) == 2)
        assert whispers(server) == [
            "Unknown command: !nwe. Did you mean !new?",
            "Unknown command: /parlour nwe. Did you mean /parlour new?",
        ]
        start, help_ = server.shown(DM)
        assert "`!help`" in start
        assert "`!stop`" in help_
        assert "`!search the address of the dentist`" in help_
        assert not any(f"/{name}" in start + help_ for name in ("help", "new", "stop", "search", "retry"))


async def test_a_failure_says_how_to_try_again_there() -> None:
    """The line below a failed question names `!retry`, and that works in its thread."""
    async with slack_server() as server, open_gateway(server, model=FailingModel()):
        ts = server.say(ROOM, ANN, f"{CALL} hello")
        await server.until(lambda: len(server.shown(ROOM, ts)) == 1)
        assert "!retry tries your last message again" in server.shown(ROOM, ts)[0]
        server.say(ROOM, ANN, "!retry", thread=ts)
        await server.until(lambda: len(server.shown(ROOM, ts)) >= 2)


def by_slash(server: SlackServer) -> None:
    """Let Ann use the slash command."""
    server.slash(ROOM, ANN, "/parlour", "stop")


def by_mention(server: SlackServer) -> None:
    """Let Ann mention us at the top of the channel."""
    server.say(ROOM, ANN, f"{CALL} stop")


@pytest.mark.parametrize("stop", [by_slash, by_mention])
async def test_stop_at_the_top_of_a_channel_finds_the_askers_turn(stop: Callable[[SlackServer], None]) -> None:
    """Ann's turn stands in its thread: it stops, she alone is told, and Bob's goes on."""
    model = HeldModel()
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        bobs = server.say(ROOM, BOB, f"{CALL} Bob asks")
        anns = server.say(ROOM, ANN, f"{CALL} Ann asks")
        await model.wait_asked(2)
        stop(server)
        await server.until(lambda: bool(whispers(server)))
        assert whispers(server) == ["Stopped."]
        model.go_on.set()
        await server.until(lambda: bool(server.shown(ROOM, bobs)))
        await parlour.idle()
        assert server.shown(ROOM, bobs)[0].endswith("Bob asks")
        assert not any("Ann asks" in each for each in server.shown(ROOM, anns))


async def test_stop_in_a_thread_is_about_that_thread() -> None:
    """In another thread there is nothing to stop, and what runs elsewhere goes on."""
    model = HeldModel()
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        other = server.say(ROOM, BOB, "talk of others")
        anns = server.say(ROOM, ANN, f"{CALL} Ann asks")
        await model.asked.wait()
        server.say(ROOM, ANN, f"{CALL} stop", thread=other)
        await server.until(lambda: bool(server.shown(ROOM, other)) or bool(whispers(server)))
        model.go_on.set()
        await server.until(lambda: bool(server.shown(ROOM, anns)))
        await parlour.idle()
        assert server.shown(ROOM, anns)[0].endswith("Ann asks")


@pytest.mark.parametrize("command", ["help", "status", "queue", "start", "nonsense"])
async def test_a_slash_command_is_answered_to_its_sender_alone(command: str) -> None:
    """Nobody saw it typed, and nobody else sees what came of it."""
    async with slack_server() as server, open_gateway(server) as parlour:
        server.slash(ROOM, ANN, "/parlour", command)
        await server.until(lambda: len(whispers(server)) == 1)
        await parlour.idle()
        assert server.shown(ROOM) == []
        assert len(server.places[ROOM].whispers) == 1
