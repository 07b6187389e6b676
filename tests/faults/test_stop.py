"""TRUST.md F25, F31: stopping in the middle of a turn, and a message that kills whoever touches it."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.fakes.openai_server import Answer, Call, Fault, open_server
from tests.fakes.relay import Relay, open_relay
from tests.faults import examine
from tests.faults.nursery import Line, Zygote, open_line
from tests.faults.order import Order, traces
from tests.faults.peers import LAST_WORD, Asked, Peers, asked, request_of, script
from tests.faults.shim import Mode

POISON = "c0"


class Gateway:
    """A home, and the lives that a gateway leads on it."""

    def __init__(self, zygote: Zygote, peers: Peers) -> None:
        self.room = zygote.room()
        self.root = self.room / "root"
        self._zygote = zygote
        self._peers = peers

    @asynccontextmanager
    async def start(self, *, grace: float = 25.0, is_signalled: bool = False) -> AsyncIterator[Line]:
        """Start a life; the block begins when it is ready, unless it is gone before."""
        order = Order(
            root=str(self.root),
            report=str(self.room / "report"),
            log=str(self.room / "log"),
            relay=self._peers.relay.base,
            model=self._peers.model.base,
            grace=grace,
            is_signalled=is_signalled,
        )
        async with open_line(self._zygote, order) as line:
            yield line

    def log(self) -> str:
        """Return what it has written, for a failing assertion."""
        return (self.room / "log").read_text()[-4_000:]


async def end_well(gateway: Gateway, peers: Peers, chats: list[str]) -> None:
    """Start undisturbed, wait for every answer, finish; nothing may be wrong with what is left."""
    async with gateway.start() as line:
        assert await line.wait("ready"), gateway.log()
        await peers.wait_answered(chats)
        line.tell("finish")
        assert await line.wait("idle"), gateway.log()
        assert (await line.wait("exit"))["exit"] == 0, gateway.log()


async def test_sigterm_lets_a_turn_finish_within_its_grace(zygote: Zygote) -> None:
    """SIGTERM during a model call: the turn ends, its answer is shown, the process exits with 0."""

    def slow(body: Mapping[str, Any], n: int) -> Answer:
        answer = script(body, n)
        return Answer(text=answer.text, calls=answer.calls, pieces=40, latency=0.3)

    async with open_relay() as relay, open_server(slow) as model:
        gateway = Gateway(zygote, Peers(relay, model))
        async with gateway.start(is_signalled=True) as line:
            assert await line.wait("ready"), gateway.log()
            relay.say("c0", request_of("c0"))
            await model.arrived.wait()
            os.kill(line.pid, signal.SIGTERM)
            assert (await line.wait("exit"))["exit"] == 0, gateway.log()
        assert Peers(relay, model).is_answered("c0"), gateway.log()
        assert len(model.bodies) == 2
        assert not examine.examine(gateway.root, ["c0"], Peers(relay, model), Mode.COUNT, send_key=True).wrong


async def test_sigterm_saves_the_steps_of_a_turn_that_does_not_end_in_time(zygote: Zygote) -> None:
    """SIGTERM while the model hangs: exit 0 when the grace is over; the next start goes on after the stored step."""
    is_hanging = True

    def hangs(body: Mapping[str, Any], n: int) -> Answer:
        return Answer(fault=Fault.HANG) if is_hanging and asked(body).results else script(body, n)

    async with open_relay() as relay, open_server(hangs) as model:
        peers = Peers(relay, model)
        gateway = Gateway(zygote, peers)
        async with gateway.start(is_signalled=True, grace=0.2) as line:
            assert await line.wait("ready"), gateway.log()
            relay.say("c0", request_of("c0"))
            while Asked("c0", 1) not in peers.asked():
                model.arrived.clear()
                await model.arrived.wait()
            os.kill(line.pid, signal.SIGTERM)
            assert (await line.wait("exit"))["exit"] == 0, gateway.log()
        is_hanging = False
        before = len(model.bodies)
        await end_well(gateway, peers, ["c0"])
        assert set(peers.asked(before)) == {Asked("c0", 1)}
        assert not examine.examine(gateway.root, ["c0"], peers, Mode.COUNT, send_key=True).wrong


class Poisoned:
    """A model that answers c0 with a tool call that kills the process, and keeps who asked while who was unanswered."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.hangs = True
        self.of_this_life: list[str] = []
        self.together: set[str] = set()  # who asked while another's turn of the same life was not over

    def __call__(self, body: Mapping[str, Any], n: int) -> Answer:
        chat = asked(body).chat
        others = set(self.of_this_life) - {chat}
        if any(not any(m.text.endswith(LAST_WORD) for m in self._relay.chat(other)) for other in others):
            self.together.add(chat)
        self.of_this_life.append(chat)
        if chat == POISON:
            # The second chat's turn is at work by the time the process dies.
            return Answer(text="Now.", calls=(Call(name="die", arguments="{}", id=f"call_{n}"),), latency=0.2)
        return Answer(fault=Fault.HANG) if self.hangs else script(body, n)

    def begin_life(self) -> None:
        """Forget who asked in the life before."""
        self.of_this_life.clear()
        self.together.clear()


async def test_a_message_that_kills_runs_alone_and_is_set_aside_after_three_lone_attempts(zygote: Zygote) -> None:
    """After two unclean stops what was in flight runs alone; the guilty one is set aside and told, the other answered.

    Two common deaths and three lone ones: the sixth start comes to rest, and the lane goes on.
    """
    relay = Relay()
    poisoned = Poisoned(relay)
    async with open_relay(relay), open_server(poisoned) as model:
        peers = Peers(relay, model)
        gateway = Gateway(zygote, peers)
        for life in range(1, 6):
            poisoned.begin_life()
            async with gateway.start() as line:
                if life == 1:
                    assert await line.wait("ready"), gateway.log()
                    relay.say("c1", request_of("c1"))
                    relay.say(POISON, request_of(POISON))
                assert (await line.wait("exit"))["exit"] == -signal.SIGKILL, gateway.log()
            if life <= 2:
                assert set(poisoned.of_this_life) == {POISON, "c1"}, f"life {life}: both were in flight"
            else:
                assert not poisoned.together, f"life {life}: somebody was not alone"
            poisoned.hangs = life < 2
        poisoned.begin_life()
        async with gateway.start() as line:
            assert await line.wait("ready"), gateway.log()
            await peers.wait_answered(["c1"])
            while not relay.chat(POISON) or "(ref " not in relay.chat(POISON)[-1].text:
                await relay.wait_changed()
            relay.say(POISON, request_of("c2"))  # another question in the same chat
            while not any("for c2" in message.text for message in relay.chat(POISON)):
                await relay.wait_changed()
            line.tell("finish")
            assert await line.wait("idle"), gateway.log()
            assert (await line.wait("exit"))["exit"] == 0, gateway.log()
        assert POISON not in poisoned.of_this_life
        died = Counter(json.loads(line).get("died", "") for line in traces(gateway.root).read_text().splitlines())
        assert sum(number for turn, number in died.items() if turn) == 5
