"""Stopping in the middle of a turn, and a message that kills whoever touches it."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_server import ModelFault, ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.relay import RelayServer, open_relay
from tests.faults import examine
from tests.faults.platforms import RelaySide, SceneOptions
from tests.faults.process_order import CHANNEL, ProcessOrder, traces
from tests.faults.process_pool import ChildConnection, ForkServer, open_line
from tests.faults.scripted_peers import LAST_WORD, ModelRequest, ScenarioPeers, asked, request_of, script
from tests.faults.shim import ShimMode

POISON = "c0"


class StoppedGateway:
    """A home, and the lives that a gateway leads on it."""

    def __init__(self, zygote: ForkServer, peers: ScenarioPeers) -> None:
        self.folder = zygote.new_folder()
        self.root = self.folder / "root"
        self._zygote = zygote
        self._peers = peers

    @asynccontextmanager
    async def start(
        self, *, grace: float = 25.0, is_signalled: bool = False, turns: int | None = 0
    ) -> AsyncIterator[ChildConnection]:
        """Start a life; the block begins when it is ready, unless it is gone before. *turns* None = the usual cap."""
        order = ProcessOrder(
            root=str(self.root),
            report=str(self.folder / "report"),
            log=str(self.folder / "log"),
            base=self._peers.stage.base,
            model=self._peers.model.base,
            grace=grace,
            is_signalled=is_signalled,
            turns=turns,
        )
        async with open_line(self._zygote, order) as line:
            yield line

    @property
    def journal(self) -> Path:
        """The home's journal."""
        return self.root / "home" / "journal.db"

    def log(self) -> str:
        """Return what it has written, for a failing assertion."""
        return (self.folder / "log").read_text()[-4_000:]


async def end_well(gateway: StoppedGateway, peers: ScenarioPeers, chats: list[str]) -> None:
    """Start undisturbed, wait for every answer, finish; nothing may be wrong with what is left."""
    async with gateway.start() as line:
        assert await line.wait("ready"), gateway.log()
        await peers.wait_answered(chats)
        line.tell("finish")
        assert await line.wait("idle"), gateway.log()
        assert (await line.wait("exit"))["exit"] == 0, gateway.log()


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
async def test_sigterm_lets_a_turn_finish_within_its_grace(zygote: ForkServer, name: signal.Signals) -> None:
    """SIGTERM, or a terminal that closes, during a model call: the turn ends, its answer is shown, the exit is 0."""

    def slow(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        answer = script(body, n)
        return ScriptedAnswer(text=answer.text, calls=answer.calls, pieces=40, latency=0.3)

    async with open_relay() as relay, open_server(slow) as model:
        gateway = StoppedGateway(zygote, ScenarioPeers(RelaySide(SceneOptions(), relay), model))
        async with gateway.start(is_signalled=True) as line:
            assert await line.wait("ready"), gateway.log()
            relay.say("c0", request_of("c0"))
            await model.arrived.wait()
            os.kill(line.pid, name)
            assert (await line.wait("exit"))["exit"] == 0, gateway.log()
        assert ScenarioPeers(RelaySide(SceneOptions(), relay), model).is_answered("c0"), gateway.log()
        assert len(model.bodies) == 2
        assert not examine.examine(
            gateway.root, ["c0"], ScenarioPeers(RelaySide(SceneOptions(), relay), model), ShimMode.COUNT
        ).wrong


async def test_sigterm_saves_the_steps_of_a_turn_that_does_not_end_in_time(zygote: ForkServer) -> None:
    """SIGTERM while the model hangs: exit 0 when the grace is over; the next start goes on after the stored step."""
    is_hanging = True

    def hangs(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        return ScriptedAnswer(fault=ModelFault.HANG) if is_hanging and asked(body).results else script(body, n)

    async with open_relay() as relay, open_server(hangs) as model:
        peers = ScenarioPeers(RelaySide(SceneOptions(), relay), model)
        gateway = StoppedGateway(zygote, peers)
        async with gateway.start(is_signalled=True, grace=0.2) as line:
            assert await line.wait("ready"), gateway.log()
            relay.say("c0", request_of("c0"))
            while ModelRequest("c0", 1) not in peers.asked():
                model.arrived.clear()
                await model.arrived.wait()
            os.kill(line.pid, signal.SIGTERM)
            assert (await line.wait("exit"))["exit"] == 0, gateway.log()
        is_hanging = False
        before = len(model.bodies)
        await end_well(gateway, peers, ["c0"])
        assert set(peers.asked(before)) == {ModelRequest("c0", 1)}
        assert not examine.examine(gateway.root, ["c0"], peers, ShimMode.COUNT).wrong


class PoisonedModel:
    """A model that kills the gateway that asks for c0; in the common lives only when c1 is in flight as well."""

    def __init__(self) -> None:
        self._journal = Path()
        self._pid = 0
        self._is_common = True
        self.asked: list[str] = []
        self.is_anybody_beside = False  # somebody asked while another's turn of the same life was not over

    def begin_life(self, pid: int, journal: Path, *, is_common: bool) -> None:
        """Forget who asked in the life before."""
        self._pid, self._journal, self._is_common = pid, journal, is_common
        self.asked.clear()
        self.is_anybody_beside = False

    def __call__(self, body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        chat = asked(body).chat
        others = set(self.asked) - {chat}
        self.asked.append(chat)
        self.is_anybody_beside |= not all(self._is_over(other) for other in others)
        if POISON in self.asked and ("c1" in self.asked or not self._is_common):
            os.kill(self._pid, signal.SIGKILL)
        is_held = self._is_common or chat == POISON
        return ScriptedAnswer(fault=ModelFault.HANG) if is_held else script(body, n)

    def _is_over(self, chat: str) -> bool:
        with closing(sqlite3.connect(f"file:{self._journal}?mode=ro", uri=True)) as journal:
            return bool(journal.execute("SELECT 1 FROM record WHERE key = ?", (f"{CHANNEL}:{chat}",)).fetchone())


async def test_a_message_that_kills_runs_alone_and_is_set_aside_after_three_lone_attempts(zygote: ForkServer) -> None:
    """After two unclean stops what was in flight runs alone; the guilty one is set aside and told, the other answered.

    Two common deaths and three lone ones: the sixth start comes to rest, and the lane goes on.
    """
    relay = RelayServer()
    poisoned = PoisonedModel()
    async with open_relay(relay), open_server(poisoned) as model:
        peers = ScenarioPeers(RelaySide(SceneOptions(), relay), model)
        gateway = StoppedGateway(zygote, peers)
        relay.say("c1", request_of("c1"))
        relay.say(POISON, request_of(POISON))
        for life in range(1, 6):
            async with gateway.start() as line:
                poisoned.begin_life(line.pid, gateway.journal, is_common=life <= 2)
                assert (await line.wait("exit"))["exit"] == -signal.SIGKILL, gateway.log()
            assert poisoned.is_anybody_beside == (life <= 2), f"life {life}: {poisoned.asked}"
        async with gateway.start() as line:
            poisoned.begin_life(line.pid, gateway.journal, is_common=False)
            await peers.wait_answered(["c1"])
            await until_said(relay, POISON, "(ref ")
            relay.say(POISON, request_of("c2"))  # another question in the same chat
            await until_said(relay, POISON, "for c2")
            line.tell("finish")
            assert await line.wait("idle"), gateway.log()
            assert (await line.wait("exit"))["exit"] == 0, gateway.log()
        assert POISON not in poisoned.asked
        assert len([text for text in texts(relay, POISON) if "(ref " in text]) == 1
        assert len([text for text in texts(relay, "c1") if text.endswith(LAST_WORD)]) == 1


async def test_a_tool_that_kills_is_the_end_of_its_message_only(zygote: ForkServer) -> None:
    """A repeatable tool that takes the process with it is tried five times in all, then its message is set aside."""

    def murderous(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        return ScriptedAnswer(text="Now.", calls=(ScriptedToolCall(name="die", id=f"call_{n}"),))

    async with open_relay() as relay, open_server(murderous) as model:
        gateway = StoppedGateway(zygote, ScenarioPeers(RelaySide(SceneOptions(), relay), model))
        relay.say(POISON, request_of(POISON))
        for _ in range(5):
            async with gateway.start() as line:
                assert (await line.wait("exit"))["exit"] == -signal.SIGKILL, gateway.log()
        async with gateway.start() as line:
            await until_said(relay, POISON, "(ref ")
            line.tell("finish")
            assert await line.wait("idle"), gateway.log()
            assert (await line.wait("exit"))["exit"] == 0, gateway.log()
        assert len(model.bodies) == 1, "the model's call for the tool was stored, and never asked for again"
        assert len(traces(gateway.root).read_text().splitlines()) == 5


async def until_said(relay: RelayServer, chat: str, words: str) -> None:
    """Return when some message of *chat* holds *words*."""
    while not any(words in text for text in texts(relay, chat)):
        await relay.wait_changed()


def texts(relay: RelayServer, chat: str) -> list[str]:
    """Return what the chat shows."""
    return [message.text for message in relay.chat(chat)]
