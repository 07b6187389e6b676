"""Rights to tools: the operator's settings, and rights that change while a question waits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry, GroupPolicy
from gateway.errors import SettingsError
from gateway.events import Role
from tests.e2e.agent.test_tool_questions import ARGUMENTS, OutsideWorld, decide
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import OPEN, gateway

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
