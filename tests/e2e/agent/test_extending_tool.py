"""The acting tool of docs/extending.md, as it is written there, in the whole gateway with a real server."""

from __future__ import annotations

import re

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.tools.tool import OUTCOME_UNKNOWN
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import gateway
from tests.unit.test_docs import DOCS, example


class Lamps:
    """A server that switches lamps and refuses to answer about the broken one."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bool]] = []
        self.keys: list[str] = []

    async def put(self, request: web.Request) -> web.Response:
        """Switch a lamp."""
        asked = await request.json()
        self.requests.append((asked["name"], asked["on"]))
        self.keys.append(request.headers["Idempotency-Key"])
        return web.Response(status=500 if asked["name"] == "broken" else 204)


async def test_the_acting_example_asks_runs_once_and_fails_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent before a yes; 30 days cover the same lamp alone; a broken answer is an unknown outcome."""
    code = DOCS["docs/extending.md"].partition("# parlour_lamps.py\n")[2].partition("```")[0]
    assert len(code.partition("@tool")[2].splitlines()) <= 12
    tool, lamps = example("parlour_lamps.py", monkeypatch).switch_lamp, Lamps()
    app = web.Application()
    app.router.add_put("/lamp", lamps.put)
    on, off = ("switch_lamp", '{"lamp": "hall", "on": true}'), ("switch_lamp", '{"lamp": "hall", "on": false}')
    broken = ("switch_lamp", '{"lamp": "broken", "on": true}')
    model = HeldScriptModel(
        *(calls(on), "asked", "it is on", calls(off), "it is off"),
        *(calls(broken), "asked", "no idea", calls(on), "sorry"),
    )
    async with TestServer(app) as server, gateway(model=model, tools=[tool]) as parlour:
        monkeypatch.setenv("LAMPS_URL", str(server.make_url("/")))
        question = await parlour.channel.ask("c", "light, please")
        assert "May I run `switch_lamp` with exactly these arguments?" in question
        assert '{"lamp": "hall", "on": true}' in question
        assert lamps.requests == []
        here = re.search(r"/tools allow q[a-z2-7]{10} here", question)
        assert here, question
        await parlour.channel.ask("c", here[0])
        await parlour.idle()
        assert lamps.requests == [("hall", True)]
        assert results(model.asked[2])[-1] == "hall is on"
        assert await parlour.channel.ask("c", "dark again") == "it is off"
        assert lamps.requests == [("hall", True), ("hall", False)]
        question = await parlour.channel.ask("c", "the other one")
        assert len(lamps.requests) == 2
        await parlour.channel.ask("c", question[question.index("/tools allow q") :].partition("`")[0])
        await parlour.idle()
        assert results(model.asked[-1])[-1] == OUTCOME_UNKNOWN
        assert len(set(lamps.keys)) == 3
        monkeypatch.setenv("LAMPS_URL", "http://127.0.0.1:9")
        await parlour.channel.ask("c", "light again")
        assert results(model.asked[-1])[-1] == "error: the lamps cannot be reached"
        assert len(lamps.requests) == 3
