"""`/tools last`: each call of the last turn with its outcome and reference, read from what is stored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.commands import tools
from agent.tools.rights import RefusalRule
from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from gateway.errors import ToolFailed
from gateway.i18n import translate
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.inprocess_gateway import OPEN, gateway

NOTHING = "There is no earlier answer here."


@tool("Look something up.", kind=ToolKind.LOOK, name="look_up")
async def look_up(_: ToolContext, what: str) -> str:
    """Find everything but the moon."""
    if what == "the moon":
        raise ToolFailed("too far away")
    return what


@tool("Run a program.", kind=ToolKind.RUN, name="run_it", ask=AskRule.NEVER)
async def run_it(_: ToolContext, what: str) -> str:
    """Break while it runs."""
    raise RuntimeError(what)


@tool("Send a letter.", kind=ToolKind.ACT, name="send_letter")
async def send_letter(_: ToolContext, to: str) -> str:
    """Send nothing."""
    return f"sent to {to}"


def rows(listed: str) -> list[str]:
    """Return the rows of the list, without references."""
    assert re.match(r"Tool calls of the last answer \(.+\):\n\n1\. ", listed), listed
    found = listed.splitlines()[2:]
    assert all(re.search(r" \(`(t[a-z2-7]{7}\.\d+|q[a-z2-7]{10})`\)$", each) for each in found), found
    return [each.rpartition(" (")[0].partition(". ")[2] for each in found]


async def test_each_outcome_is_listed_and_survives_a_restart(tmp_path: Path) -> None:
    """Done, failed, unknown, asked, and not run because of the question; also after commands and a restart."""
    home = tmp_path / "home"
    acts = [("send_letter", '{"to": "bob\\u202e"}'), ("send_letter", '{"to": "eve"}')]
    looks = [("look_up", '{"what": "tea"}'), ("look_up", '{"what": "the moon"}')]
    model = HeldScriptModel(calls(*looks, ("run_it", '{"what": "x"}'), ("no_such", "{}"), *acts), "asked")
    tools = [look_up, run_it, send_letter]
    async with gateway(home=home, model=model, tools=tools) as parlour:
        assert await parlour.channel.ask("c", "/tools last") == NOTHING
        question = await parlour.channel.ask("c", "look, run, send")
        await parlour.channel.ask("c", "/usage")
        listed = await parlour.channel.ask("c", "/tools last")
        assert rows(listed) == [
            "`look_up` `what=tea`: done",
            "`look_up` `what=the moon`: failed",
            "`run_it` `what=x`: it may have happened",
            "`no_such`: failed",
            "`send_letter` `to=bob\\u202e`: waiting for approval",
            "`send_letter` `to=eve`: not run: another call waits for approval",
        ]
        await parlour.idle()
        reference = re.search(r"`(t[a-z2-7]{7}\.1)`", listed)
        assert reference
        (trace,) = [each async for each in parlour.app.operations["turn"]({"reference": reference[1]})]
        assert trace["turn"].startswith(reference[1].partition(".")[0])
    async with gateway(home=home, model=HeldScriptModel("tea, as I said"), tools=tools) as parlour:
        assert await parlour.channel.ask("c", "/tools last") == listed
        denial = re.search(r"/tools deny q\w+", question)
        assert denial
        await parlour.channel.ask("c", denial[0])
        assert rows(await parlour.channel.ask("c", "/tools last"))[4].endswith(": asked, decided or expired since")
        await parlour.channel.ask("c", "thanks")
        assert await parlour.channel.ask("c", "/tools last") == "The last answer used no tools."
        await parlour.channel.ask("c", "/new")
        assert await parlour.channel.ask("c", "/tools last") == NOTHING


async def test_a_refused_call_says_why_in_the_language_of_the_chat() -> None:
    """A program in a group, a tool that the chat's settings turn off, and calls beyond the limit."""
    many = [("look_up", f'{{"what": "{n}"}}') for n in range(25)]
    model = HeldScriptModel(calls(("run_it", '{"what": "x"}'), ("send_letter", '{"to": "bob"}'), *many), "no")
    environment = {"PARLOUR_CHATS": '{"pocket:-team": {"tools": {"deny": ["send_letter"]}}}'}
    async with gateway(model=model, tools=[look_up, run_it, send_letter], policy=OPEN, environment=environment) as p:
        await p.channel.ask("-team", "run it", group=True)
        await p.channel.ask("-team", "/language de", group=True, is_admin=True)
        found = (await p.channel.ask("-team", "/tools last", group=True)).splitlines()[2:]
    german = {rule: translate(f"tools.refused_{rule}", "de") for rule in RefusalRule}
    assert f": {german[RefusalRule.WHERE]} (" in found[0]
    assert f": {german[RefusalRule.CHAT]} (" in found[1]
    assert f": {german[RefusalRule.LIMIT]} (" in found[-1]
    assert len(set(german.values())) == len(RefusalRule)


async def test_an_allowed_call_is_a_call_of_its_own_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done there; and no more turns are looked through than the limit."""
    model = HeldScriptModel(calls(("send_letter", '{"to": "bob"}')), "asked", "sent")
    async with gateway(model=model, tools=[send_letter], policy=OPEN) as parlour:
        question = await parlour.channel.ask("-team", "write", sender="ann", group=True)
        allow = re.search(r"/tools allow q[a-z2-7]{10}", question)
        assert allow
        await parlour.channel.ask("-team", allow[0], sender="ann", group=True)
        await parlour.idle()
        listed = await parlour.channel.ask("-team", "/tools last", sender="ann", group=True)
        assert rows(listed) == ["`send_letter` `to=bob`: done"]
        monkeypatch.setattr(tools, "_LOOK_BACK", 1)  # the command before this one
        assert await parlour.channel.ask("-team", "/tools last", sender="ann", group=True) == NOTHING


async def test_a_member_sees_their_own_calls_and_an_admin_the_last_ones() -> None:
    """In a group the reply is for its reader alone; the calls of others are not listed for a member."""
    model = HeldScriptModel(calls(("look_up", '{"what": "tea"}')), "1", calls(("look_up", '{"what": "cake"}')), "2")
    async with gateway(model=model, tools=[look_up], policy=OPEN) as parlour:

        async def ask(text: str, sender: str, *, is_admin: bool = False) -> str:
            return await parlour.channel.ask("-team", text, sender=sender, name=sender, group=True, is_admin=is_admin)

        await ask("tea?", "ann")
        await ask("cake?", "bob")
        assert rows(await ask("/tools last", "ann")) == ["`look_up` `what=tea`: done"]
        assert rows(await ask("/tools last", "bob")) == ["`look_up` `what=cake`: done"]
        assert await ask("/tools last", "eve") == NOTHING
        assert rows(await ask("/tools last", "zoe", is_admin=True)) == ["`look_up` `what=cake`: done"]
        replies = [each for each in parlour.channel.posts["-team"] if "cake" in each.text and "`" in each.text]
        assert {each.visible_to for each in replies} == {"bob", "zoe"}
