"""A crash loop sets the guilty message aside and answers everybody who was in flight beside it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.fakes.openai_server import ModelFault, ScriptedAnswer, open_server
from tests.fakes.relay import RelayServer, open_relay
from tests.faults.platforms import RelaySide, SceneOptions
from tests.faults.process_pool import ForkServer
from tests.faults.scripted_peers import ScenarioPeers, asked, request_of, script
from tests.faults.test_stop import StoppedGateway, texts

POISON = "c0"
SET_ASIDE = "(ref "


class CrashingModel:
    """A model at whose calls the gateway is killed: by one chat's request, or when so many chats have asked."""

    def __init__(self, *, poison: str = "") -> None:
        self._poison = poison
        self._pid = 0
        self._kill_at = 0
        self.asked: set[str] = set()  # chats, in this life

    def begin_life(self, pid: int, *, kill_at: int) -> None:
        """Kill *pid* as soon as *kill_at* chats have asked; 0 = only a call of the poison kills."""
        self._pid, self._kill_at = pid, kill_at
        self.asked.clear()

    def __call__(self, body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Answer, hang or kill."""
        chat = asked(body).chat
        self.asked.add(chat)
        is_doomed = len(self.asked) >= self._kill_at if self._kill_at else chat == self._poison
        if is_doomed:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        return ScriptedAnswer(fault=ModelFault.HANG) if is_doomed or self._kill_at else script(body, n)


def set_aside(relay: RelayServer, chats: Sequence[str]) -> list[str]:
    """Return the chats that were told that their message was set aside."""
    return [chat for chat in chats if any(SET_ASIDE in text for text in texts(relay, chat))]


async def run_until_idle(
    gateway: StoppedGateway, model_calls: CrashingModel, *, kill_at: int = 0, relay: RelayServer | None = None
) -> int:
    """Lead one life, to its kill or until nothing waits any more, at *relay* neither; return its exit status."""
    async with gateway.start() as line:
        model_calls.begin_life(line.pid, kill_at=kill_at)
        while (news := await line.read()) is not None:
            if "ready" in news and not kill_at:
                while relay is not None and relay.confirmed < len(relay.updates):
                    await relay.wait_changed()
                line.tell("finish")
            if "exit" in news:
                return int(news["exit"])
    raise AssertionError(f"the life has no end: {gateway.log()}")


async def test_one_poison_beside_ten_innocents_is_set_aside_alone(zygote: ForkServer) -> None:
    """Eleven chats are in flight at two unclean stops; ten are answered, the one that kills is set aside."""
    relay, model_calls = RelayServer(), CrashingModel(poison=POISON)
    chats = [f"c{n}" for n in range(11)]
    async with open_relay(relay), open_server(model_calls) as model:
        peers = ScenarioPeers(RelaySide(SceneOptions(), relay), model)
        gateway = StoppedGateway(zygote, peers)
        for chat in chats:
            relay.say(chat, request_of(chat))
        lives = [await run_until_idle(gateway, model_calls, kill_at=len(chats)) for _ in range(2)]
        while lives[-1] == -signal.SIGKILL:
            assert len(lives) < 12, gateway.log()
            lives.append(await run_until_idle(gateway, model_calls))
        answered = [chat for chat in chats if peers.is_answered(chat)]
        assert (len(answered), set_aside(relay, chats)) == (10, [POISON]), gateway.log()
        assert lives == [-signal.SIGKILL] * 6 + [0], "two common attempts, one side by side, three on trial"
        relay.say(POISON, request_of("c20"))
        assert await run_until_idle(gateway, model_calls, relay=relay) == 0
        assert any("for c20" in text for text in texts(relay, POISON)), "its chat goes on"


async def test_waiting_messages_outlive_five_kills(zygote: ForkServer) -> None:
    """The gateway is killed five times in the middle of its work and no message is to blame: each is answered."""
    relay, model_calls = RelayServer(), CrashingModel()
    chats = [f"c{n}" for n in range(20)]
    async with open_relay(relay), open_server(model_calls) as model:
        peers = ScenarioPeers(RelaySide(SceneOptions(), relay), model)
        gateway = StoppedGateway(zygote, peers)
        for chat in chats:
            relay.say(chat, request_of(chat))
        lives = [await run_until_idle(gateway, model_calls, kill_at=len(chats)) for _ in range(2)]
        lives += [await run_until_idle(gateway, model_calls, kill_at=1) for _ in range(3)]
        assert lives == [-signal.SIGKILL] * 5, gateway.log()
        assert await run_until_idle(gateway, model_calls) == 0, gateway.log()
        answered = [chat for chat in chats if peers.is_answered(chat)]
        assert (len(answered), set_aside(relay, chats)) == (20, []), gateway.log()
