"""The reaction on a Telegram message goes, whenever the gateway is killed between putting it and taking it away."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from tests.e2e.telegram.test_telegram_killed import copy_telegram
from tests.fakes.kill_snapshots import KillSnapshot, KillSnapshots
from tests.fakes.telegram_gateway import EchoModel, open_gateway
from tests.fakes.telegram_server import TelegramServer, open_telegram

# Killed when -> whether the reaction stands then.
MOMENTS = {
    "before setMessageReaction 1": False,
    "after setMessageReaction 1": True,
    "before sendMessage 1": True,  # the turn was committed
    "after sendMessage 1": True,  # the answer stands, and nobody heard
    "before setMessageReaction 2": True,  # the answer is delivered: nothing more is due for it
    "after setMessageReaction 2": False,
    "at the end": False,
}


def list_reactions(server: TelegramServer) -> set[int]:
    """Return the messages on which a reaction of ours stands."""
    last = {each["message_id"]: bool(each.get("reaction")) for each in server.reactions}
    return {message for message, is_on in last.items() if is_on}


async def test_no_reaction_stays_after_a_kill(tmp_path: Path) -> None:
    """At each moment the process dies; the next one leaves no reaction on what is answered."""
    async with open_telegram() as server:
        server.now = lambda: int(time.time())
        camera = KillSnapshots(partial(copy_telegram, server), tmp_path, MOMENTS)
        model = EchoModel()
        model.go_on.clear()
        server.on_call = camera.see
        async with open_gateway(server, model) as up:
            camera.parlour = up
            server.say("hello")
            await server.until(lambda: bool(list_reactions(server)))
            model.go_on.set()
            await server.until(lambda: bool(server.posts) and not list_reactions(server))
            await up.idle()
            camera.take("at the end")
    assert {name: bool(list_reactions(moment.server)) for name, moment in camera.moments.items()} == MOMENTS
    assert {name: await left_over(moment) for name, moment in camera.moments.items()} == dict.fromkeys(MOMENTS, 0)


async def left_over(moment: KillSnapshot[TelegramServer]) -> int:
    """Start again with what was left, and return how many reactions stand when everything is answered."""
    async with open_telegram(moment.server) as server, open_gateway(server, EchoModel(), home=moment.home) as up:
        await server.until(lambda: bool(server.posts) and not server.updates)
        await up.idle()
        try:
            async with asyncio.timeout(15):
                await server.until(lambda: not list_reactions(server))
        except TimeoutError:
            pass
        return len(list_reactions(server))
