"""The reaction on a Slack message goes, whenever the gateway is killed between putting it and taking it away."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from tests.e2e.slack.test_slack_killed import copy_slack
from tests.fakes.kill_snapshots import KillSnapshot, KillSnapshots
from tests.fakes.slack_gateway import TwoPieceModel, open_gateway
from tests.fakes.slack_server import ANN, DM, SlackServer, slack_server

# Killed when -> whether the reaction stands then.
MOMENTS = {
    "before reactions.add 1": False,
    "after reactions.add 1": True,
    "before chat.postMessage 1": True,
    "after chat.postMessage 1": True,
    "before reactions.remove 1": True,  # the answer is delivered: nothing more is due for it
    "after reactions.remove 1": False,
    "at the end": False,
}


async def test_no_reaction_stays_after_a_kill(tmp_path: Path) -> None:
    """At each moment the process dies; the next one leaves no reaction on what is answered."""
    async with slack_server() as server:
        camera = KillSnapshots(partial(copy_slack, server), tmp_path, MOMENTS)
        model = TwoPieceModel("The answer.", held=True)
        async with open_gateway(server, model=model) as up:
            camera.parlour = up
            server.on_call = camera.see
            server.say(DM, ANN, "hello")
            await server.until(lambda: bool(server.reactions) and not server.pending)
            model.go_on.set()
            await server.until(lambda: bool(server.shown(DM)) and not server.reactions)
            await up.idle()
            camera.take("at the end")
            server.on_call = lambda method, when: None
    assert {name: bool(moment.server.reactions) for name, moment in camera.moments.items()} == MOMENTS
    assert {name: await left_over(moment) for name, moment in camera.moments.items()} == dict.fromkeys(MOMENTS, 0)


async def left_over(moment: KillSnapshot[SlackServer]) -> int:
    """Start again with what was left, and return how many reactions stand when everything is answered."""
    async with (
        slack_server(moment.server) as server,
        open_gateway(server, model=TwoPieceModel("The answer."), home=moment.home) as up,
    ):
        server.deliver_again()
        await server.until(lambda: not server.pending and bool(server.shown(DM)))
        await up.idle()
        return await count_reactions(server)


async def count_reactions(server: SlackServer) -> int:
    """Return how many reactions stand, once there are none or that takes too long."""
    try:
        async with asyncio.timeout(15):
            await server.until(lambda: not server.reactions)
    except TimeoutError:
        pass
    return len(server.reactions)
