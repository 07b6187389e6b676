"""The usage rows against what a model server was asked, over HTTP: every ending of a call leaves one row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.events import SessionKey
from tests.fakes.inprocess_gateway import STREAMING, gateway
from tests.fakes.openai_server import ModelFault, ScriptedAnswer, ScriptedToolCall, open_server

KEY = SessionKey("pocket", "c")


@tool("Look.", kind=ToolKind.LOOK, name="look")
async def look(_: ToolContext) -> str:
    """Return the same for ever."""
    return "seen"


ASKED: Mapping[str, tuple[ScriptedAnswer, ...]] = {
    "plain": (ScriptedAnswer(text="fine"),),
    "busy, then fine": (ScriptedAnswer(fault=ModelFault.BUSY, retry_after="0"), ScriptedAnswer(text="fine")),
    "broken, then fine": (ScriptedAnswer(fault=ModelFault.ERROR), ScriptedAnswer(text="fine")),
    "gone, then fine": (ScriptedAnswer(fault=ModelFault.DROP), ScriptedAnswer(text="fine")),
    "a tool": (ScriptedAnswer(calls=(ScriptedToolCall(name="look"),)), ScriptedAnswer(text="seen it")),
    "refused": (ScriptedAnswer(fault=ModelFault.UNAUTHORISED),),
    "empty twice": (ScriptedAnswer(fault=ModelFault.EMPTY), ScriptedAnswer(fault=ModelFault.EMPTY)),
    "stopped": (ScriptedAnswer(text="a long story", fault=ModelFault.PAUSE),),
}
# What the server says it counted: all but what failed before it had anything to count.
COUNTED = {"plain": 1, "busy, then fine": 1, "broken, then fine": 1, "gone, then fine": 1, "a tool": 2}


async def test_the_rows_add_up_to_what_the_server_was_asked() -> None:
    """As many calls as came in, failed and stopped ones too, and exactly the tokens that it counted."""
    script = [answer for answers in ASKED.values() for answer in answers]
    async with open_server(script) as server:
        settings = {
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": server.base,
            "PARLOUR_LLM__ATTEMPTS": "2",
            "PARLOUR_LLM__STREAM_SILENCE_SECONDS": "20",
        }
        async with gateway(environment=settings, tools=[look], capabilities=STREAMING) as parlour:
            await parlour.app.models.default.warm()
            rows: dict[str, list[Any]] = {}
            asked = 0
            for what in ASKED:
                if what == "stopped":
                    server.arrived.clear()
                    _, answered = await parlour.channel.say("c", what)
                    await server.arrived.wait()
                    await parlour.channel.say("c", "/stop")
                    await answered
                else:
                    await parlour.channel.ask("c", what)
                await parlour.idle()
                line = [
                    each
                    for each in await parlour.app.memory.sessions.displayed_messages(KEY, limit=50)
                    if each.text == what
                ][-1]
                story = await parlour.app.store.journal.trace(line.turn)
                assert story is not None
                rows[what] = list(story.usage)
                asked += len(ASKED[what])
                assert len(server.requests) == asked
            assert {what: len(found) for what, found in rows.items()} == {what: len(ASKED[what]) for what in ASKED}
            for what, count in COUNTED.items():
                assert sum(row.tokens_in + row.tokens_out for row in rows[what]) == 120 * count, what
            assert [(row.tokens_in, row.cost) for row in rows["refused"]] == [(0, 0.0)]
            assert [(row.tokens_in, row.cost) for row in rows["gone, then fine"]] == [(0, None), (100, None)]
            [stopped] = rows["stopped"]
            assert stopped.tokens_in > 0  # it was read, and is billed
            assert stopped.cost is None
            sums = await parlour.app.store.usage.totals(since=datetime.now(UTC) - timedelta(hours=1))
            assert sum(each["calls"] for each in sums) == len(server.requests)
