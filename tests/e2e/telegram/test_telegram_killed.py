"""Killed at every call that an answer makes to Telegram: the table in docs/telegram.md is what happens."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from gateway.words import say
from tests.fakes.pocket import Pocket
from tests.fakes.telegram_gateway import Parrot, house
from tests.fakes.telegram_server import TelegramServer, open_telegram

WORDS = "hello, and tell me something that is long enough for a draft"
ANSWER = f"You said: {WORDS}"
MARKED = f"{ANSWER}\n\n{say('delivery.may_repeat')}"

# Killed before or after which call, of those that have a message's way in them -> what stands in the chat in the end.
EXPECTED = {
    "after getUpdates 1": [ANSWER],  # handed out, not stored
    "before getUpdates 2": [ANSWER],  # stored, not confirmed
    "after getUpdates 2": [ANSWER],  # confirmed, not answered
    "before sendMessageDraft 1": [ANSWER],
    "after sendMessageDraft 1": [ANSWER],
    "before sendMessage 1": [MARKED],  # we were about to: nobody can tell whether it left
    "after sendMessage 1": [ANSWER, MARKED],  # it did, and we never heard
    "at the end": [ANSWER],
}


@dataclass
class Moment:
    """Everything that outlives a kill at one moment: our home, and Telegram."""

    home: Path
    server: TelegramServer


class Camera:
    """Takes a copy of home and Telegram at each call."""

    def __init__(self, server: TelegramServer, folder: Path) -> None:
        self.moments: dict[str, Moment] = {}
        self.pocket: Pocket | None = None
        self._server = server
        self._folder = folder
        self._counts: dict[tuple[str, str], int] = {}

    def see(self, method: str, when: str) -> None:
        """Note a call."""
        number = self._counts[method, when] = self._counts.get((method, when), 0) + 1
        if f"{when} {method} {number}" in EXPECTED:
            self.take(f"{when} {method} {number}")

    def take(self, name: str) -> None:
        """Keep what a kill now would leave."""
        assert self.pocket is not None
        there = TelegramServer()
        for field in ("chats", "posts", "updates"):
            setattr(there, field, deepcopy(getattr(self._server, field)))
        there.now = self._server.now
        self.moments[name] = Moment(self.pocket.kill(self._folder / name.replace(" ", "-")), there)


async def test_what_the_table_says_is_what_happens(tmp_path: Path) -> None:
    """At every moment of an answer's way: nothing is lost, and nothing is there twice without a mark."""
    async with open_telegram() as server:
        server.now = lambda: int(time.time())
        camera = Camera(server, tmp_path)
        model = Parrot()
        model.go_on.clear()
        server.on_call = camera.see
        async with house(server, model, REACTION="") as up:
            camera.pocket = up
            server.say(WORDS)
            await server.until(lambda: bool(server.drafts))
            await server.until(lambda: not server.updates)
            model.go_on.set()
            await server.until(lambda: bool(server.posts))
            await up.idle()
            camera.take("at the end")
    assert sorted(camera.moments) == sorted(EXPECTED)
    assert camera.moments["before getUpdates 2"].server.updates  # else it says nothing about what is not confirmed
    stands = {name: await what_stands_after(moment, len(EXPECTED[name])) for name, moment in camera.moments.items()}
    assert stands == EXPECTED


async def what_stands_after(moment: Moment, posts: int) -> list[str]:
    """Start again with what was left, and return what stands in the chat when everything is quiet."""
    async with open_telegram(moment.server) as server, house(server, Parrot(), home=moment.home, REACTION="") as up:
        await server.until(lambda: len(server.posts) >= posts and not server.updates)
        await up.idle()
        return server.shown(42)
