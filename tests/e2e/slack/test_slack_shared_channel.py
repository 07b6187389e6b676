"""Several people in one channel: each is answered in their own thread; what was said before is known there alone."""

from __future__ import annotations

from tests.fakes.held_model import HeldModel
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_server import ANN, BOB, EVE, ROOM, slack_server

CANARY, STRANGE = "marmalade7731", "stranger5518"


async def test_two_people_at_once_get_two_answers_each_in_its_thread() -> None:
    """One sender a turn: neither waits for the other, and neither reads the other's answer."""
    model = HeldModel()
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        times = {who: server.say(ROOM, who, f"{CALL} {who} asks") for who in (ANN, BOB)}
        await server.until(lambda: len(model.prompts) == 2)  # at once: the model is still held
        model.go_on.set()
        await server.until(lambda: all(server.shown(ROOM, ts) for ts in times.values()))
        await parlour.idle()
        for who, ts in times.items():
            (answer,) = server.shown(ROOM, ts)
            assert answer.endswith(f"{who} asks")
        assert server.shown(ROOM) == []


async def test_what_was_said_before_is_known_to_the_turn_alone() -> None:
    """In the model's request, with names; not in the next one."""
    model = HeldModel(held=False)
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        root = server.say(ROOM, BOB, f"the word is {CANARY}", quiet=True)
        server.say(ROOM, EVE, f"and mine {STRANGE}", thread=root, quiet=True)
        server.say(ROOM, BOB, "remember it", thread=root, quiet=True)
        server.say(ROOM, ANN, f"{CALL} what do you think?", thread=root)
        await server.until(lambda: bool(server.shown(ROOM, root)))
        server.say(ROOM, ANN, "and now?", thread=root)
        await server.until(lambda: len(server.shown(ROOM, root)) == 2)
        await parlour.idle()

        first, second = model.prompts
        assert CANARY in first
        assert first.index(CANARY) < first.index("remember it") < first.index("what do you think?")
        assert "Bob" in first
        assert STRANGE not in first  # whom the chat does not admit is not read
        assert CANARY not in second  # said once, where it was asked for
