"""Calls of one model message: those that only read run side by side, and each kind has its limit."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent.tools.tool import AskRule, Tool, ToolContext, ToolKind, tool
from gateway.delivery.outbox_dispatcher import OutboxDispatcher
from gateway.ports.journal import LinkFinder
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import gateway

SIDE_BY_SIDE = 4


class CountingPages:
    """Pages that open when four calls are waiting, or when the last one begins."""

    def __init__(self, total: int) -> None:
        self.most = 0
        self.opened: list[str] = []
        self._total = total
        self._waiting: list[asyncio.Event] = []

        @tool("Read a page.", kind=ToolKind.WEB, name="read_page")
        async def read_page(_: ToolContext, page: str) -> str:
            self.opened.append(page)
            event = asyncio.Event()
            self._waiting.append(event)
            self.most = max(self.most, len(self._waiting))
            if len(self._waiting) == SIDE_BY_SIDE or len(self.opened) == self._total:
                for each in reversed(self._waiting):  # the first one asked for ends last
                    each.set()
                self._waiting = []
            await event.wait()
            return f"text of {page}"

        self.tool = read_page


def acting(name: str, done: list[str]) -> Tool:
    """Return a tool with effects that records its calls."""

    @tool("Do something.", kind=ToolKind.ACT, ask=AskRule.NEVER, name=name)
    async def act(_: ToolContext, what: str) -> str:
        done.append(what)
        return f"done: {what}"

    return act


def page(n: int) -> tuple[str, str]:
    """Return a call that reads page *n*."""
    return "read_page", json.dumps({"page": f"p{n}"})


async def test_reading_calls_run_side_by_side() -> None:
    """Four at once; the model gets the results in the order of its calls."""
    pages = CountingPages(6)
    model = HeldScriptModel(calls(*(page(n) for n in range(6))), "read")
    async with gateway(model=model, tools=[pages.tool]) as parlour:
        assert await parlour.channel.ask("c", "read six pages") == "read"
    assert pages.most == SIDE_BY_SIDE
    assert results(model.asked[1]) == [f"text of p{n}" for n in range(6)]


async def test_a_call_with_effects_runs_alone() -> None:
    """It begins when the calls before it have ended, and the ones after it wait."""
    done: list[str] = []
    pages = CountingPages(1)

    @tool("Look.", kind=ToolKind.LOOK, name="look")
    async def look(_: ToolContext, n: int) -> str:
        before = list(done)
        await asyncio.sleep(0)
        assert before == done
        return f"look {n} after {len(done)}"

    script = [("look", '{"n": 1}'), ("act", '{"what": "a"}'), ("look", '{"n": 2}'), ("look", '{"n": 3}')]
    model = HeldScriptModel(calls(*script), "ready")
    async with gateway(model=model, tools=[look, acting("act", done), pages.tool]) as parlour:
        await parlour.channel.ask("c", "look, act, look")
    assert results(model.asked[1]) == ["look 1 after 0", "done: a", "look 2 after 1", "look 3 after 1"]


async def test_each_kind_has_its_limit() -> None:
    """Ten pages and five acts in one turn; the rest is refused, and the model goes on."""
    done: list[str] = []
    pages = CountingPages(10)
    acts = [("act", json.dumps({"what": str(n)})) for n in range(6)]
    model = HeldScriptModel(calls(*(page(n) for n in range(11))), calls(*acts), "enough")
    async with gateway(model=model, tools=[pages.tool, acting("act", done)]) as parlour:
        assert await parlour.channel.ask("c", "read and act") == "enough"
    assert results(model.asked[1])[-1] == "not run: the limit of 10 calls of this kind for one answer is reached"
    assert len(pages.opened) == 10
    assert results(model.asked[2])[-1] == "not run: the limit of 5 calls of this kind for one answer is reached"
    assert done == ["0", "1", "2", "3", "4"]


class StatusList:
    """A preview that keeps the statuses."""

    shown_at = None

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self._changed = asyncio.Event()

    def show(self, text: str, links: LinkFinder | None = None) -> None:
        """Show no text."""

    def status(self, text: str) -> None:
        """Keep it unless it is the one before."""
        if self.statuses[-1:] != [text]:
            self.statuses.append(text)
            self._changed.set()

    async def wait_for(self, text: str) -> None:
        """Return when *text* is the status."""
        while self.statuses[-1:] != [text]:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Nothing to close."""


async def test_progress_is_shown_in_the_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest call that runs, with its progress in one clean line; when it ends, one that still runs."""
    statuses = StatusList()
    go = {name: asyncio.Event() for name in ("a", "b")}

    @tool("Load.", kind=ToolKind.WEB, name="load")
    async def load(context: ToolContext, name: str) -> str:
        assert context.deadline is not None
        assert 50 < context.deadline - asyncio.get_running_loop().time() <= 60
        context.progress(f"pages of\n\u202e{name}", 2, 7)
        await go[name].wait()
        context.progress("x" * 500)
        return name

    model = HeldScriptModel(calls(*(("load", json.dumps({"name": name})) for name in go)), "done")
    async with gateway(model=model, tools=[load]) as parlour:
        monkeypatch.setattr(OutboxDispatcher, "open", lambda *_: statuses)
        _, answer = await parlour.channel.say("c", "load both")
        await statuses.wait_for("load: pages of b (2/7)")
        go["b"].set()
        await statuses.wait_for("load: pages of a (2/7)")
        go["a"].set()
        await answer
    long = f"load: {'x' * 80}"
    assert statuses.statuses == ["load", "load: pages of b (2/7)", long, "load: pages of a (2/7)", long, ""]
