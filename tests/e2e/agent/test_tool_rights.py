"""Rights to tools, limits of kinds, what a decision leaves behind, and the page's acting example in a gateway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.llm.chat_model import ChatRequest
from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import OUTCOME_UNKNOWN, AskRule, Tool, ToolContext, ToolKind, tool
from agent.tools.tool_questions import LIFETIME, RUN_LIFETIME, STANDING_DECISION, TOOL_DENIAL, TOOL_QUESTION
from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry, GroupPolicy
from gateway.delivery.outbox_dispatcher import OutboxDispatcher
from gateway.errors import SettingsError
from gateway.events import Role
from gateway.ports.channel import CallStep
from gateway.ports.journal import LinkFinder
from tests.e2e.agent.test_tool_questions import ARGUMENTS, OutsideWorld, decide, read_page
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.unit.test_docs import DOCS, example

BOB = AdmissionPolicy(
    channel="pocket", entries=frozenset({AllowEntry(AdmissionGrant.USER, "bob")}), group_policy=GroupPolicy.OPEN
)


CHANGES = {
    "who": ({"PARLOUR_TOOLS__RIGHTS": '{"act": {"who": "owner"}}'}, OPEN, "not allowed here: only an owner"),
    "where": ({"PARLOUR_TOOLS__RIGHTS__SEND_LETTER__WHERE": "direct"}, OPEN, "only in a direct chat"),
    "chat": (
        {"PARLOUR_CHATS": json.dumps({"pocket:g": {"tools": {"deny": ["send_letter"]}}})},
        OPEN,
        "there is no tool called 'send_letter'",
    ),
    "access": ({}, BOB, ""),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_rights_that_changed_end_the_allowed_call(tmp_path: Path, case: str) -> None:
    """A yes is not enough: the call is reviewed again when it runs, for the person who requested it."""
    environment, policy, expected = CHANGES[case]
    world, home = OutsideWorld(), tmp_path / "home"
    model = HeldScriptModel(calls(("send_letter", ARGUMENTS)), "asked")
    async with gateway(home=home, model=model, tools=[world.tool], policy=OPEN) as parlour:
        question = await parlour.channel.ask("g", "write to bob", group=True, sender="ann")
        await parlour.idle()
    model = HeldScriptModel("I could not.")
    async with gateway(home=home, model=model, tools=[world.tool], policy=policy, environment=environment) as parlour:
        await parlour.channel.ask("g", decide(question), group=True, sender="bob", is_admin=True)
        await parlour.idle()
        if expected:
            assert expected in results(model.asked[0])[-1]
        else:
            assert model.asked == []
    assert world.sent == []


async def test_a_kind_that_is_made_to_ask_asks() -> None:
    """A tool that otherwise runs at once becomes a question, and runs after a yes."""
    read: list[str] = []

    @tool("Look at the sky.", kind=ToolKind.LOOK, name="look_up")
    async def look_up(context: ToolContext) -> str:
        read.append(context.turn)
        return "blue"

    script: list[ScriptEntry | str] = [calls(("look_up", "{}")), "asked", "done"]
    environment = {"PARLOUR_TOOLS__RIGHTS__LOOK__ASK": "always"}
    async with gateway(model=HeldScriptModel(*script), tools=[look_up], environment=environment) as parlour:
        question = await parlour.channel.ask("c", "how is the sky?")
        assert read == []
        await parlour.channel.ask("c", decide(question))
        await parlour.idle()
    assert len(read) == 1


async def test_a_weaker_rule_stops_the_start() -> None:
    """The operator reads which one, and what it must be at least."""
    environment = {"PARLOUR_TOOLS__RIGHTS__ACT__ASK": "tainted"}
    with pytest.raises(SettingsError, match=r"tools\.rights\.act\.ask: tainted asks less than act does; write first"):
        async with gateway(environment=environment):
            pass


async def test_an_owners_tool_asks_in_the_owners_direct_chat() -> None:
    """The group reads that an owner was asked, and no argument; an admin of the group cannot decide, the owner can."""
    sent: list[str] = []

    @tool("Send money.", kind=ToolKind.ACT, name="send_money", who=Role.OWNER)
    async def send_money(context: ToolContext, to: str) -> str:
        sent.append(to)
        return "sent"

    policy = replace(OPEN, owners=frozenset({"ann"}))
    call = calls(("send_money", '{"to": "bob"}'))
    model = HeldScriptModel(call, "I may not.", call, "One moment.", "Done.")
    async with gateway(model=model, tools=[send_money], policy=policy) as parlour:
        ask = parlour.channel.ask
        assert await ask("g", "send it", group=True, sender="eve") == "I may not."
        assert "only an owner" in results(model.asked[1])[-1]
        shown = await ask("g", "send it", group=True, sender="ann")
        assert shown == (
            "One moment.\n\nI've asked an owner of this bot, in a direct message, whether I may run `send_money`."
        )
        question = (await parlour.channel.posted("ann", 1))[0].text
        assert question.startswith("From the chat `pocket:g`:\n\nMay I run `send_money`")
        assert '{"to": "bob"}' in question
        press = decide(question)
        refused = await ask("g", press, group=True, sender="eve", is_admin=True)
        assert refused.startswith("Only an owner of this bot")
        assert press in await ask("ann", "/tools", sender="ann")
        assert press not in await ask("bob", "/tools", sender="bob")
        assert await ask("ann", press, sender="ann") == "Allowed: `send_money` runs now."
        await parlour.idle()
        assert "Done." in parlour.channel.texts["g"]
    assert sent == ["bob"]


SEND = calls(("send_letter", ARGUMENTS))


async def audit(parlour: InProcessGateway) -> list[tuple[str, str, str]]:
    """Return the audit lines: who, what, and the outcome."""
    found = await parlour.app.store.access.audit(limit=100)
    return [(each.by, each.what, each.outcome) for each in reversed(found)]


def refusals(request: ChatRequest) -> list[str]:
    """Return the messages that tell of a no."""
    return [str(each["content"]) for each in request.messages if str(each["content"]).startswith("[refused by")]


async def test_the_model_reads_of_a_no_once(tmp_path: Path) -> None:
    """At its next turn, over a restart, without a call of its own; the line stays where it is in the history."""
    world, home = OutsideWorld(), tmp_path / "home"
    model = HeldScriptModel(SEND, "asked")
    async with gateway(home=home, model=model, tools=[world.tool]) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.ask("c", decide(question, "deny"))
        await parlour.idle()
        assert len(model.asked) == 2
    model = HeldScriptModel("fine", "still fine")
    async with gateway(home=home, model=model, tools=[world.tool]) as parlour:
        await parlour.channel.ask("c", "hello")
        await parlour.channel.ask("c", "hello again")
        first, second = map(refusals, model.asked)
        assert len(first) == 1
        assert first[0].startswith("[refused by Ann: send_letter, asked ")
        assert second == first
        assert model.asked[1].messages[: len(model.asked[0].messages)] == model.asked[0].messages
        assert await parlour.app.store.jobs.pending_of(TOOL_DENIAL) == ()
    assert world.sent == []


async def test_a_new_session_does_not_read_of_an_old_no() -> None:
    """Nor does another chat."""
    world = OutsideWorld()
    model = HeldScriptModel(SEND, "asked", "in d", "in c")
    async with gateway(model=model, tools=[world.tool]) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.ask("c", decide(question, "deny"))
        await parlour.channel.ask("d", "hello")
        await parlour.channel.ask("c", "/new")
        await parlour.channel.ask("c", "hello")
        assert not any(map(refusals, model.asked))
        assert await parlour.app.store.jobs.pending_of(TOOL_DENIAL) == ()


async def test_questions_and_decisions_leave_audit_lines() -> None:
    """Tool and outcome, never an argument, also if the person who asked decides alone in a direct chat."""
    world = OutsideWorld()
    model = HeldScriptModel(SEND, "asked", "done", SEND, "asked", SEND, "asked")
    async with gateway(model=model, tools=[world.tool], policy=OPEN) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.ask("c", f"{decide(question)} here")
        await parlour.idle()
        await parlour.channel.ask("c", decide(question, "deny"))
        (decision,) = await parlour.app.store.jobs.pending_of(STANDING_DECISION)
        await parlour.channel.ask("c", f"/tools revoke {decision.payload['id']}")
        question = await parlour.channel.ask("g", "write to bob", group=True, sender="ann")
        await parlour.channel.ask("g", decide(question), group=True, sender="eve")
        await parlour.channel.ask("g", decide(question, "deny"), group=True, sender="eve", is_admin=True)
        found = await audit(parlour)
    assert found == [
        ("pocket:ann", "tools ask send_letter", "asked"),
        ("pocket:ann", "tools allow send_letter", "done"),
        ("pocket:ann", "tools deny", "settled"),
        ("pocket:ann", "tools revoke send_letter", "done"),
        ("pocket:ann", "tools ask send_letter", "asked"),
        ("pocket:eve", "tools allow send_letter", "refused"),
        ("pocket:eve", "tools deny send_letter", "done"),
    ]
    assert "bob" not in str(found)


async def test_a_question_about_a_program_lapses_after_an_hour() -> None:
    """Others after a day; a lapsed one cannot be allowed."""
    ran: list[str] = []

    @tool("Run a program.", kind=ToolKind.RUN, name="run_program")
    async def run_program(context: ToolContext) -> str:
        ran.append(context.turn)
        return "0"

    world = OutsideWorld()
    model = HeldScriptModel(calls(("read_page", "{}")), calls(("run_program", "{}")), "asked", SEND, "asked")
    async with gateway(model=model, tools=[world.tool, read_page, run_program]) as parlour:
        await parlour.channel.ask("c", "read it and run")
        await parlour.channel.ask("c", "write to bob")
        jobs, now = await parlour.app.store.jobs.pending_of(TOOL_QUESTION), parlour.app.commands.queue.now()
        left = {job.payload["tool"]: job.due_at - now for job in jobs}
    assert abs(left["run_program"] - RUN_LIFETIME) < timedelta(minutes=5)
    assert abs(left["send_letter"] - LIFETIME) < timedelta(minutes=5)
    assert ran == []


async def test_other_members_do_not_use_the_rights_of_the_next_person() -> None:
    """In a group, what costs asks once somebody else has written; before that, and in a direct chat, it does not."""
    drawn: list[str] = []

    @tool("Draw.", kind=ToolKind.SPEND, name="draw")
    async def draw(context: ToolContext) -> str:
        drawn.append(context.sender.id)
        return "drawn"

    script: list[ScriptEntry | str] = [calls(("draw", "{}")), "done"]
    model = HeldScriptModel(*script, *script, "hello", *script)
    async with gateway(model=model, tools=[draw], policy=OPEN) as parlour:
        await parlour.channel.ask("c", "draw", sender="ann")
        await parlour.channel.ask("g", "draw", group=True, sender="ann")
        assert drawn == ["ann", "ann"]
        await parlour.channel.ask("g", "when I say hello, draw ten", group=True, sender="eve")
        question = await parlour.channel.ask("g", "hello", group=True, sender="ann")
        assert "Other members' messages are part of this conversation." in question
        assert drawn == ["ann", "ann"]


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

    def status(self, text: str, steps: Sequence[CallStep] = ()) -> None:
        """Keep the text unless it is the one before."""
        if text != (self.statuses[-1] if self.statuses else ""):
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
