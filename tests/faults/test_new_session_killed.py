"""nanobot bug 10: a crash between clearing the conversation and summarising it lost the conversation.

Here /new is one commit: the fresh transcript and the job that summarises the old one become true together. The process
is killed at the calls that /new makes; whatever the moment, the old words are there, once, and the summary is due.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.i18n import translate
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, open_server
from tests.fakes.relay import RelayServer, open_relay
from tests.faults.matrix import spread
from tests.faults.process_order import ProcessOrder
from tests.faults.process_pool import ChildConnection, ForkServer, open_line
from tests.faults.shim import ShimMode

KILLS = 5
OLD, NEW = "Remember the blue door.", "What did I say?"


def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Answer whoever asks."""
    return ScriptedAnswer(text=f"Answer {n}.")


class NewSessionHome:
    """A home with a conversation on it."""

    def __init__(self, zygote: ForkServer, relay: RelayServer, model: FakeOpenAI) -> None:
        self.relay = relay
        self.model = model
        self.folder = zygote.new_folder()
        self._zygote = zygote

    def order(self, mode: ShimMode = ShimMode.COUNT, at: int = 0) -> ProcessOrder:
        """Return what a life is to do."""
        return ProcessOrder(
            root=str(self.folder / "root"),
            report=str(self.folder / "report"),
            log=str(self.folder / "log"),
            base=self.relay.base,
            model=self.model.base,
            mode=mode,
            at=at,
            is_later=True,
        )

    async def first_life(self, mode: ShimMode, at: int = 0) -> int:
        """Talk, then say /new with a fault before us; return how many calls it made, 0 when it was killed."""
        async with open_line(self._zygote, self.order(mode, at)) as line:
            await self._begin(line)
            self.relay.say("c0", "/new")
            if mode is ShimMode.COUNT:
                await self._shown(translate("commands.new"))
                line.tell("finish")
                return int((await line.wait("idle"))["counted"])
            assert (await line.wait("exit"))["exit"] == -9
            return 0

    async def _begin(self, line: ChildConnection) -> None:
        assert await line.wait("ready"), self.log()
        self.relay.say("c0", OLD)
        await self._shown("Answer 1.")
        line.tell("arm")
        assert await line.wait("armed"), self.log()

    async def second_life(self) -> str:
        """Ask on, undisturbed; return the request that this made."""
        async with open_line(self._zygote, self.order()) as line:
            assert await line.wait("ready"), self.log()
            await self._shown(translate("commands.new"))
            self.relay.say("c0", NEW)
            while not any(NEW.encode() in body for body in self.model.bodies):
                await self.relay.wait_changed()
            line.tell("finish")
            assert await line.wait("idle"), self.log()
            assert (await line.wait("exit"))["exit"] == 0, self.log()
        return next(body.decode() for body in self.model.bodies if NEW.encode() in body)

    async def _shown(self, words: str) -> None:
        while not any(words in message.text for message in self.relay.chat("c0")):
            await self.relay.wait_changed()

    def transcripts_with(self, words: str) -> list[Path]:
        """Return the transcripts in which somebody says *words*."""
        return [path for path in (self.folder / "root" / "home").rglob("sessions/*.jsonl") if words in path.read_text()]

    def summaries_due(self) -> list[str]:
        """Return the jobs that wait."""
        with closing(sqlite3.connect(self.folder / "root" / "home" / "journal.db")) as journal:
            return [str(kind) for (kind,) in journal.execute("SELECT kind FROM job WHERE kind = 'summarise'")]

    def log(self) -> str:
        """Return what was logged."""
        return (self.folder / "log").read_text()[-4_000:]


@pytest.mark.parametrize("kill", range(KILLS))
async def test_new_loses_nothing_at_a_crash(zygote: ForkServer, kill: int) -> None:
    """Killed anywhere in /new: one archive with the old words, its summary due, and a new session without them."""
    async with open_relay() as relay, open_server(script) as model:
        calls = await NewSessionHome(zygote, relay, model).first_life(ShimMode.COUNT)
    async with open_relay() as relay, open_server(script) as model:
        scene = NewSessionHome(zygote, relay, model)
        await scene.first_life(ShimMode.KILL_BEFORE, spread(calls, KILLS)[kill])
        request = await scene.second_life()
        assert OLD not in request
        (archive,) = scene.transcripts_with(OLD)
        assert archive not in scene.transcripts_with(NEW)
        asked_to_summarise = [body for body in model.bodies if OLD.encode() in body][1:]
        assert len(scene.summaries_due()) == 1 or asked_to_summarise
        assert len([message for message in relay.chat("c0") if translate("commands.new") in message.text]) == 1
