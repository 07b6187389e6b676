"""No tool blocks the event loop for more than 50 milliseconds, whatever it is asked and however much it returns."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from agent.llm.chat_model import ToolCall
from agent.tools.tool import ToolContext, ToolKind, tool
from agent.tools.toolbox import GROUP, Toolbox
from gateway.installation import load_entry_points
from tests.fakes.file_gateway import SCOPE
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.llm_context import context
from tests.fakes.loop_watchdog import LONGEST_STEP, LoopWatchdog, watch_loop

ATTEMPTS = 4  # a loaded machine interrupts a step now and then; a tool that blocks does so each time
WORDS = "the quick brown fox jumps over the lazy dog "
LONG = json.dumps({"name": "long.txt", "text": WORDS * 2_000, "mode": "replace"})
CALLS = (
    ("file_write", LONG),
    ("file_read", '{"name": "long.txt"}'),
    ("files_list", '{"glob": "*?*?*?*?*?*"}'),
    ("files_search", json.dumps({"query": "fox " * 70})),
    ("send_file", '{"name": "long.txt"}'),
    ("file_delete", '{"name": "long.txt"}'),
    ("remember", json.dumps({"fact": "fox " * 100})),
    ("memory_search", json.dumps({"query": "fox " * 500})),
    ("memory_get", '{"source": "MEMORY.md", "line": 1}'),
    ("memory_edit", json.dumps({"operations": [{"op": "add", "text": f"- fox {n}"} for n in range(20)]})),
    ("vector_search", '{"query": "fox", "project": "none"}'),
    ("read_result", '{"result": "r00000000", "page": 1}'),
    ("remind", json.dumps({"what": "fox " * 400, "in_minutes": 60, "repeat": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29"})),
    ("reminders", "{}"),
    ("reminder_change", '{"id": "r0000000", "cancel": true}'),
    ("compute", '{"code": "sum(range(100))"}'),
    ("task", json.dumps({"goal": "fox " * 900})),
)


@tool("Return a megabyte that hides invisible characters.", kind=ToolKind.WEB, name="long_page")
async def long_page(_: ToolContext, n: int) -> str:
    """Return three million characters."""
    return f"{n} a\u200cb\u200d \x07[page 1 of " * 200_000


async def steadily(run: asyncio.Future[object]) -> LoopWatchdog:
    """Return what a watchdog saw while *run* ran."""
    with watch_loop() as watchdog:
        await run
    return watchdog


async def test_a_tool_that_blocks_is_noticed() -> None:
    """The watchdog itself: a sleep of 80 ms in a tool is longer than what is allowed."""

    @tool("x", kind=ToolKind.LOOK)
    async def block(context: ToolContext) -> str:
        time.sleep(LONGEST_STEP * 1.6)  # noqa: ASYNC251 - what no tool may do
        return "late"

    watchdog = await steadily(asyncio.ensure_future(Toolbox([block]).run(ToolCall("c", "block", "{}"), context())))
    assert watchdog.longest > LONGEST_STEP


async def test_a_long_result_is_cleaned_beside_the_loop() -> None:
    """Three million characters, a tenth of them invisible: other chats do not notice."""
    box = Toolbox([long_page])
    seen = []
    for n in range(ATTEMPTS):
        call = ToolCall("c", "long_page", json.dumps({"n": n}))
        seen.append((await steadily(asyncio.ensure_future(box.run(call, context())))).longest)
    assert min(seen) < LONGEST_STEP, seen


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home for all calls."""
    return tmp_path_factory.mktemp("watchdog") / "home"


async def test_no_installed_tool_blocks_the_loop(home: Path) -> None:
    """Each tool that is installed, through the whole gateway, with long arguments; read_result with a megabyte."""
    installed = dict(CALLS)
    missing = {each.name for each in load_entry_points(GROUP)} - set(installed)
    assert not missing, f"these tools need a call in this test: {missing}"
    slow: dict[str, list[float]] = {}
    for attempt in range(ATTEMPTS):
        left = [(name, arguments) for name, arguments in installed.items() if not attempt or name in slow]
        left += [("long_page", json.dumps({"n": attempt}))] if not attempt or "long_page" in slow else []
        found = await _longest_steps(home, left)
        slow = {name: [*slow.get(name, []), took] for name, took in found.items() if took > LONGEST_STEP}
        if not slow:
            return
    pytest.fail(f"these block the loop: {slow}")


async def _longest_steps(home: Path, script: list[tuple[str, str]]) -> dict[str, float]:
    """Return the longest step of the loop during each call, in one turn with a message for each."""
    took: dict[str, float] = {}
    run = Toolbox.run

    async def watched(self: Toolbox, call: ToolCall, context: ToolContext) -> object:
        with watch_loop() as watchdog:
            outcome = await run(self, call, context)
        took[call.name] = watchdog.longest
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toolbox, "run", watched)
        model = HeldScriptModel(*(calls(each) for each in script), "done")
        tasks = {"PARLOUR_TOOLS__TASKS__ENABLED": "true"}
        async with gateway(home=home, model=model, tools=[long_page], environment=tasks) as parlour:
            known = (WORDS * 200 + "\n\n") * 50
            await parlour.app.memory.workspaces.of(SCOPE).create("known.txt", known.encode(), is_untrusted=False)
            await parlour.channel.ask("c", "please")
            assert len(results(model.asked[-1])) >= len(script)
            await parlour.idle()
    return took
