"""Attacks 81 and 82 with kill -9: what was counted stands, and the rows are what the model was asked."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from gateway.access.usage_caps import FIRST_TURNS
from tests.fakes.openai_server import ModelFault, ScriptedAnswer, open_server
from tests.fakes.relay import open_relay
from tests.faults.platforms import RelaySide, SceneOptions
from tests.faults.process_pool import ForkServer
from tests.faults.scripted_peers import ScenarioPeers, request_of
from tests.faults.test_stop import StoppedGateway, texts, until_said

KILLED_AT = (3, 9, 15)  # requests; each kills the gateway that made it
_PATIENCE = 0.2  # seconds that the model thinks before: a request is in the rows once it took 50 ms


class KillingModel:
    """A model that answers in one word, and kills whoever asks at some of its requests."""

    def __init__(self) -> None:
        self.pid = 0
        self.asked = 0

    def __call__(self, _: Mapping[str, Any], n: int) -> ScriptedAnswer:
        self.asked += 1
        if self.asked in KILLED_AT:
            asyncio.get_running_loop().call_later(_PATIENCE, os.kill, self.pid, signal.SIGKILL)
            return ScriptedAnswer(fault=ModelFault.HANG)
        return ScriptedAnswer(text=f"Answer {n}.")


async def test_a_kill_gives_nobody_another_turn(zygote: ForkServer) -> None:
    """24 messages of one who came in with everybody, killed again and again: 20 turns, one line, a row a request."""
    killing = KillingModel()
    async with open_relay() as relay, open_server(killing) as model:
        gateway = StoppedGateway(zygote, ScenarioPeers(RelaySide(SceneOptions(), relay), model))
        for _ in range(FIRST_TURNS + 4):
            relay.say("c0", request_of("c0"))
        for _ in KILLED_AT:
            async with gateway.start(turns=None, merge="split") as line:
                killing.pid = line.pid
                assert (await line.wait("exit"))["exit"] == -signal.SIGKILL, gateway.log()
        async with gateway.start(turns=None, merge="split") as line:
            await until_said(relay, "c0", "in ten minutes")
            line.tell("finish")
            assert await line.wait("idle"), gateway.log()
            assert (await line.wait("exit"))["exit"] == 0, gateway.log()
        shown = texts(relay, "c0")
        assert sum(text.startswith("Answer") for text in shown) == FIRST_TURNS
        assert sum("in ten minutes" in text for text in shown) == 1
        assert killing.asked == FIRST_TURNS + len(KILLED_AT)
        with closing(sqlite3.connect(gateway.journal)) as journal:
            rows, turns = journal.execute("SELECT count(*), count(DISTINCT turn) FROM usage").fetchone()
            cut_off = journal.execute("SELECT count(*), min(tokens_in) > 0 FROM usage WHERE call != ''").fetchone()
            ends = dict(journal.execute("SELECT state, count(*) FROM inbox GROUP BY state").fetchall())
        assert (rows, turns) == (killing.asked, FIRST_TURNS)
        assert cut_off == (len(KILLED_AT), 1)
        assert ends == {"answered": FIRST_TURNS, "refused": 4}
