"""`parlour replay --model NAME --last N`: one's own history with another model, over HTTP, within a bound, undone."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, attach_usage
from agent.llm.model_client import ModelClient
from agent.turns.recorded_turn import CountedModel, ReplayBudget, ReplayStopped, UnrecordedCalls
from gateway.errors import EmptyModelReply, UserError
from gateway.operations.replays import replay_rows
from gateway.ports.access import ACTING, actor_outside
from tests.e2e.browser import take_picture
from tests.e2e.test_console import PHONE, WIDE
from tests.e2e.test_replay import look_tool, newest_turn, stored
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.gateway import COMMAND
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, ScriptedToolCall, open_server

ROOF = ScriptedToolCall(name="look", arguments=json.dumps({"place": "the roof"}))
CELLAR = ScriptedToolCall(name="look", arguments=json.dumps({"place": "the cellar"}))


def answer(body: Mapping[str, Any], _: int) -> ScriptedAnswer:
    """Answer as the usual model, which looks at the roof, or as the other, which also looks at the cellar."""
    said, results = str(body["messages"][-1]["content"]), [m for m in body["messages"] if m["role"] == "tool"]
    if body["model"] == "other":
        if "roof" in str(body["messages"]) and len(results) < 2:
            return ScriptedAnswer(calls=(ROOF if not results else CELLAR,), tokens=(1_000, 10, 500))
        return ScriptedAnswer(text=f"other: {said[-20:]}", tokens=(1_000, 10, 500))
    if "roof" in said and not results:
        return ScriptedAnswer(calls=(ROOF,), tokens=(100, 10, 0))
    return ScriptedAnswer(text="It is wet." if results else "Hello.", tokens=(100, 10, 60))


def environment(server: FakeOpenAI, **more: str) -> dict[str, str]:
    """Return the settings of a gateway with two priced models and one without a price at *server*."""
    price = {"usd_per_million_input": 1, "usd_per_million_output": 2}
    named = {"usual": price, "other": {**price, "usd_per_million_input": 10}, "unpriced": {}}
    models = {
        name: {"model": f"openai/{name}", "api_base": server.base, "api_key": "sk-test", **more}
        for name, more in named.items()
    }
    return {"PARLOUR_LLM__MODELS": json.dumps(models), "PARLOUR_LLM__MODEL": "usual", **more}


async def call(parlour: InProcessGateway, name: str, **arguments: Any) -> list[Mapping[str, Any]]:
    """Return the lines of an operation, as a program reads them."""
    lines = [line async for line in parlour.app.operations[name](arguments)]
    found: list[Mapping[str, Any]] = json.loads(json.dumps(lines))
    return found


def turns(lines: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those of turns."""
    return [line for line in lines if "turn" in line]


async def unchanged(parlour: InProcessGateway) -> tuple[object, ...]:
    """Return what a comparison must not change; commits of background work may come meanwhile."""
    *rest, depth = await stored(parlour)
    assert isinstance(depth, Mapping)
    return (*rest, {name: value for name, value in depth.items() if name != "commits"})


async def talk(parlour: InProcessGateway) -> None:
    """Have three turns in two chats, and a command that no model answers."""
    await parlour.channel.ask("a", "Hello")
    await parlour.channel.ask("b", "How is the roof?")
    await parlour.channel.ask("a", "/help")
    await parlour.channel.ask("a", "Hello again")
    await newest_turn(parlour)


async def test_both_answers_calls_and_costs_and_nothing_else_happens(tmp_path: Path) -> None:
    """Chat by chat from the oldest turn on; the same call has its recorded result, another is not run."""
    runs: list[str] = []
    async with (
        open_server(answer) as server,
        gateway(home=tmp_path / "home", environment=environment(server), tools=(look_tool(runs),)) as parlour,
    ):
        await talk(parlour)
        before, asked = await unchanged(parlour), len(server.requests)
        (plan,) = await call(parlour, "replay plan", model="other", last=10)
        assert len(server.requests) == asked
        assert (plan["turns"], plan["chats"], plan["skipped"], plan["max_tokens"]) == (3, 2, 0, 0)
        assert 0 < plan["cost"] <= plan["max_usd"] == max(0.01, round(2 * plan["cost"], 2))
        lines = await call(parlour, "replay", model="other", last=10, max_usd=1.0)
        assert runs == ["the roof"]
        assert await unchanged(parlour) == before
        compared, end = turns(lines), lines[-1]
        assert [each["key"] for each in compared] == ["pocket:a", "pocket:a", "pocket:b"]
        assert [each["answer"] for each in compared] == ["Hello.", "Hello.", "It is wet."]
        assert all(each["other"]["text"].startswith("other: ") for each in compared)
        roof = compared[2]
        assert (roof["question"], [each["name"] for each in roof["calls"]]) == ("How is the roof?", ["look"])
        assert [each["is_recorded"] for each in roof["other"]["calls"]] == [True, False]
        sent = [body for body in server.requests[asked:] if body["model"] == "other"]
        results = [m["content"] for body in sent for m in body["messages"] if m["role"] == "tool"]
        assert any("the roof is wet" in each for each in results)
        assert any("not run" in each for each in results)
        assert roof["recorded"] == {
            "tokens": {"input": 200, "output": 20, "cached": 60},
            "cost": pytest.approx(0.00024),
        }
        assert roof["other"]["tokens"] == {"input": 3_000, "output": 30, "cached": 1_500}
        assert (end["compared"], end["skipped"], end["failed"], end["stopped"]) == (3, 0, 0, "")
        assert end["other"]["tokens"]["input"] == 5_000
        assert [line["done"] for line in lines if "done" in line][-1] == 3
        rows = "\n".join(replay_rows(lines, {"last": 10}))
        assert "50% from the cache" in rows
        assert rows.index("recorded, openai/usual") < rows.index("now, ")
        (newest,) = turns(await call(parlour, "replay", model="other", last=1, max_usd=1.0))
        assert newest["question"] == "Hello again"
        only = turns(await call(parlour, "replay", model="other", last=9, chat="pocket:b", max_usd=1.0))
        assert [each["key"] for each in only] == ["pocket:b"]


async def test_it_stops_before_the_bound(tmp_path: Path) -> None:
    """Before the request that could exceed it; without a price in tokens, and dollars are refused."""
    async with (
        open_server(answer) as server,
        gateway(home=tmp_path / "home", environment=environment(server)) as parlour,
    ):
        for n in range(4):
            await parlour.channel.ask("a", f"Hello {n}")
        await newest_turn(parlour)
        (plan,) = await call(parlour, "replay plan", model="other", last=4)
        bound = plan["cost"] / 4 + 0.015
        asked = len(server.requests)
        end = (await call(parlour, "replay", model="other", last=4, max_usd=bound))[-1]
        assert f"bound of ${bound:.2f}" in end["stopped"]
        assert 0 < len(server.requests) - asked == end["compared"] < 4
        assert end["other"]["cost"] <= bound
        (plan,) = await call(parlour, "replay plan", model="unpriced", last=4)
        assert (plan["cost"], plan["max_usd"]) == (None, 0.0)
        assert plan["max_tokens"] == 2 * (plan["tokens_in"] + plan["tokens_out"])
        asked = len(server.requests)
        end = (await call(parlour, "replay", model="unpriced", last=4, max_tokens=10))[-1]
        assert ("bound of 10 tokens" in end["stopped"], len(server.requests)) == (True, asked)
        with pytest.raises(UserError, match="is not known, so dollars cannot bound it"):
            await call(parlour, "replay", model="unpriced", last=4, max_usd=1.0)
        end = (await call(parlour, "replay", model="unpriced", last=4))[-1]  # the bound of the estimate
        assert (end["compared"], end["other"]["cost"]) == (4, None)


class GarbledModel(FakeChatModel):
    """A model whose every *nth* request is answered, and whose others cost as much."""

    name = "garbled"

    def __init__(self, nth: int) -> None:
        self.nth, self.asked = nth, 0

    def price(self, tokens: TokenUsage) -> float | None:
        """Return a cent for each token."""
        return (tokens.input + tokens.output) / 100

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer, or raise the error of an empty answer with its usage."""
        self.asked += 1
        reply = ChatReply(text="Hello.", tool_calls=(), model=self.name, tokens=TokenUsage(40, 10), cost=0.5)
        if self.asked % self.nth:
            raise attach_usage(EmptyModelReply("no text"), reply)
        return reply


async def no_pause(_: float) -> None:
    """Go on at once."""


async def test_failed_requests_count_to_the_bound() -> None:
    """A provider bills an empty answer as any other: each attempt is within the bound, and in the sums."""
    nothing, request = UnrecordedCalls(), ChatRequest(turn="t1", messages=(), weight=40, max_tokens=10)
    model = GarbledModel(2)
    client = ModelClient([model], recorder=nothing, meter=nothing, pause=no_pause)
    budget = ReplayBudget(usd=1.5, tokens=0)
    counted = CountedModel(client, budget)
    assert (await counted.complete(request)).text == "Hello."
    assert (model.asked, counted.spent.cost, counted.spent.tokens) == (2, 1.0, TokenUsage(80, 20))
    again = CountedModel(client, budget)
    with pytest.raises(ReplayStopped, match=r"bound of \$1\.50"):
        await again.complete(request)
    assert (model.asked, again.spent.cost, budget.spent.cost) == (3, 0.5, 1.5)
    model.asked, by_tokens = 0, ReplayBudget(usd=0.0, tokens=99)
    with pytest.raises(ReplayStopped, match="bound of 99 tokens"):
        await CountedModel(client, by_tokens).complete(request)


async def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    """Wrong arguments, an empty history, a model that does not answer, and turns that are gone."""
    script: list[ScriptedAnswer] = []
    async with (
        open_server(lambda body, n: script[0] if body["model"] == "other" and script else answer(body, n)) as server,
        gateway(home=tmp_path / "home", environment=environment(server)) as parlour,
    ):
        for arguments, said in (
            ({"last": 5}, "name the model"),
            ({"model": "other", "last": 501}, "from 1 to 500"),
            ({"model": "other", "last": 5}, "no turn that a model answered"),
            ({"model": "other", "last": 5, "reference": "t0000"}, "not both"),
            ({}, "name a turn"),
            ({"model": "other", "last": 5, "chat": "nowhere"}, "is not a session key|parlour sessions list"),
        ):
            with pytest.raises(UserError, match=said):
                await call(parlour, "replay", **arguments)
        for n in range(5):
            await parlour.channel.ask("a", f"Hello {n}", number=f"m{n}")
        await newest_turn(parlour)
        script.append(ScriptedAnswer(refusal=(401, json.dumps({"error": {"message": "no such key"}}))))
        end = (await call(parlour, "replay", model="other", last=5))[-1]
        assert (end["compared"], end["failed"]) == (3, 3)
        assert "did not answer 3 turns in a row" in end["stopped"]
        script.clear()
        await parlour.channel.ask("a", "/forget Hello 4")
        await parlour.channel.ask("a", "/forget yes")
        lines = await call(parlour, "replay", model="other", last=5)
        assert lines[-1]["compared"] + lines[-1]["skipped"] == 5


async def test_at_the_console_everybody_has_their_own_history(tmp_path: Path) -> None:
    """An owner of the page gets no turn of other people, nor one by its reference."""
    async with (
        open_server(answer) as server,
        gateway(home=tmp_path / "home", environment=environment(server)) as parlour,
    ):
        await parlour.channel.ask("ann", "I am Ann", sender="ann")
        await parlour.channel.ask("bob", "I am Bob", sender="bob")
        await parlour.channel.ask("room", "I am in a group", sender="ann", group=True)
        reference = await newest_turn(parlour)
        token = ACTING.set(actor_outside("pocket:ann"))
        try:
            lines = await call(parlour, "replay", model="other", last=10)
            assert [each["question"] for each in turns(lines)] == ["I am Ann"]
            with pytest.raises(UserError, match="name a turn"):
                await call(parlour, "replay", reference=reference)
        finally:
            ACTING.reset(token)
        everything = turns(await call(parlour, "replay", model="other", last=10))
        assert len(everything) == 3


async def test_with_one_memory_for_all_the_console_says_why_not(tmp_path: Path) -> None:
    """The chats of one person cannot be told from others there; at the machine they are compared."""
    async with (
        open_server(answer) as server,
        gateway(home=tmp_path / "home", environment=environment(server, PARLOUR_MEMORY__ISOLATION="shared")) as parlour,
    ):
        await parlour.channel.ask("ann", "I am Ann", sender="ann")
        await newest_turn(parlour)
        token = ACTING.set(actor_outside("pocket:ann"))
        try:
            for name in ("replay plan", "replay"):
                with pytest.raises(UserError, match=r"memory\.isolation: shared.* on the gateway's machine"):
                    await call(parlour, name, model="other", last=10)
        finally:
            ACTING.reset(token)
        (line,) = turns(await call(parlour, "replay", model="other", last=10))
        assert line["question"] == "I am Ann"


async def test_a_caller_who_leaves_is_billed_no_more(tmp_path: Path) -> None:
    """The request that runs is cancelled, and none follows."""
    late = ScriptedAnswer(text="too late", latency=60.0)
    async with (
        open_server(lambda body, n: late if body["model"] == "other" else answer(body, n)) as server,
        gateway(home=tmp_path / "home", environment=environment(server)) as parlour,
    ):
        await talk(parlour)
        asked = len(server.requests)
        lines = parlour.app.operations["replay"]({"model": "other", "last": 3, "max_usd": 1.0})
        assert isinstance(lines, AsyncGenerator)
        assert await anext(lines) == {"done": 0, "of": 3}
        assert await anext(lines) == {"done": 0, "of": 3}  # within a second, while the model thinks
        await lines.aclose()
        await server.left.wait()
        assert len(server.requests) == asked + 1


async def test_the_command_asks_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """With the estimate on the terminal; a no sends nothing, and what was compared before Ctrl-C is printed."""
    home = tmp_path / "home"
    late = ScriptedAnswer(text="too late", latency=60.0)

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        return late if body["model"] == "other" and "again" in str(body["messages"]) else answer(body, n)

    async with open_server(script) as server:
        settings = environment(server)
        async with gateway(home=home, environment=settings) as parlour:
            await talk(parlour)
            reference = await newest_turn(parlour)
        asked = len(server.requests)

        async def run(*words: str, typed: str = "", until: int = 0) -> tuple[int | None, str, str]:
            process = await asyncio.create_subprocess_exec(
                COMMAND, "replay", "--model", "other", *words,
                env={"PARLOUR_HOME": str(home), "PATH": "/usr/bin:/bin", **settings},
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            if until:
                while len(server.requests) < until:
                    server.arrived.clear()
                    await server.arrived.wait()
                process.send_signal(signal.SIGINT)
            out, err = await process.communicate(typed.encode())
            return process.returncode, out.decode(), err.decode()

        code, out, _ = await run("--last", "3", typed="n\n")
        assert (code, len(server.requests)) == (1, asked)
        assert "3 turns of 2 chats are sent to" in out
        assert "Send them, and stop before $" in out
        code, out, err = await run("--last", "3", "--yes", until=asked + 2)
        assert (code, "Traceback" in err) == (130, False)
        assert "now, " in out
        assert "interrupted after 1 turns" in out
        code, out, err = await run(reference, until=len(server.requests) + 1)
        assert (code, out, "Traceback" in err) == (130, "", False)
        code, out, _ = await run("--last", "1", "--chat", "pocket:b", "--yes", "--json")
        first, end = map(json.loads, out.splitlines())
        assert (code, first["key"], end["compared"]) == (0, "pocket:b", 1)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_console_shows_them_side_by_side(chromium: Browser, tmp_path: Path) -> None:
    """The same lines of the same operation, after a question with the estimate; a no sends nothing."""
    async with (
        open_server(answer) as server,
        gateway(home=tmp_path / "home", environment=environment(server)) as parlour,
    ):
        page = await (await chromium.new_context(viewport=WIDE)).new_page()
        await page.goto(parlour.app.web.url)
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await page.locator("#text").fill("Hello <b>there</b>")
        await page.keyboard.press("Enter")
        await expect(page.locator(".line.assistant .body")).to_have_text("Hello.")
        await parlour.channel.ask("bob", "I am Bob", sender="bob")
        await newest_turn(parlour)
        await page.goto(f"{parlour.app.web.url}console#replay")
        await page.get_by_label("Model", exact=True).fill("other")
        asked = len(server.requests)
        await page.get_by_role("button", name="Compare").click()
        await expect(page.locator("#question-text")).to_contain_text("1 turns of 1 chats are sent to")
        await page.locator("#question [value=no]").click()
        await expect(page.locator("#spoken")).to_have_text("nothing was sent")
        assert len(server.requests) == asked
        await page.get_by_role("button", name="Compare").click()
        await page.locator("#question [value=yes]").click()
        article = page.locator(".comparisons article")
        await expect(article).to_have_count(1)
        await expect(article.locator("blockquote")).to_have_text("Hello <b>there</b>")
        await expect(article.locator(".answer")).to_have_text(["Hello.", "other: ] Hello <b>there</b>"])
        await expect(page.get_by_text("1 of 1 turns compared; 0 could not be replayed")).to_be_visible()
        await take_picture(page, "console-replay-wide")
        await page.set_viewport_size(PHONE)
        assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        await take_picture(page, "console-replay-phone")
