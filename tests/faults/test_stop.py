"""Stopping in the middle of a turn, and a tool that kills whoever runs it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_server import ModelFault, ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.relay import RelayServer, open_relay
from tests.faults import examine
from tests.faults.platforms import RelaySide, SceneOptions
from tests.faults.process_order import ProcessOrder, traces
from tests.faults.process_pool import ChildConnection, ForkServer, open_line
from tests.faults.scripted_peers import ModelRequest, ScenarioPeers, asked, request_of, script
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
        self, *, grace: float = 25.0, is_signalled: bool = False, turns: int | None = 0, merge: str = "burst"
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
            merge=merge,
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
