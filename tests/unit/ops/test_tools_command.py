"""`parlour tools`: each tool that is on, each that is off with the reason, and the questions of each chat."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent.tools.rights import effective_rule
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.events import ChatKind, Role
from gateway.operations.usage import _restrictions
from gateway.settings import settings_model
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.inprocess_gateway import gateway
from tests.unit.ops.test_memory_cli import CommandTerminal
from tests.unit.ops.test_memory_cli import terminal as terminal


@tool("Send a letter.", kind=ToolKind.ACT, name="send_letter")
async def send_letter(_: ToolContext, to: str) -> str:
    """Send nothing."""
    return to


async def test_tools_and_questions_are_listed_while_the_gateway_runs_and_afterwards(
    terminal: CommandTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat that denies a tool and a chat with a question are named; without a gateway the home is read."""
    team, block = {"tools": {"deny": ["file_read"]}}, {"tools": {"allow": ["file_read", "send_letter"]}}
    environment = {"PARLOUR_CHATS": json.dumps({"pocket:-team": team, "pocket:*": block})}
    model = HeldScriptModel(calls(("send_letter", '{"to": "secret"}')), "asked")
    async with gateway(home=terminal.home, model=model, tools=[send_letter], environment=environment) as parlour:
        await parlour.channel.ask("c", "write")
        found = {each.get("tool", ""): each for each in await asyncio.to_thread(terminal.lines, "tools")}
        assert found["send_letter"] == {
            "tool": "send_letter",
            "state": "on",
            "kind": "act",
            "package": "test_tools_command",  # its module; a tool with an entry point has a distribution
            "rights": "asks first",
            "off_in": [],
        }
        assert found["file_read"]["off_in"] == ["pocket:-team"]
        assert found["remember"]["off_in"] == ["pocket:-team", "pocket:*"]
        assert found[""] == {"chat": "pocket:c", "questions": 1}
        await parlour.idle()
    monkeypatch.setenv("PARLOUR_CHATS", json.dumps({"web:*": team}))
    rows = (await asyncio.to_thread(terminal.well, "tools")).splitlines()
    assert "on   file_read        look     parlour  off in web:*" in rows
    assert "off  web_search       no search engine is chosen: set PARLOUR_TOOLS__WEB__SEARCH" in rows
    assert rows[-1] == "1 question waits for approval in pocket:c"


def test_each_reason_is_named(terminal: CommandTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, a missing package, and a search engine without its key."""
    terminal.make_home()
    for name in ("FILES", "REMINDERS", "WEB__FETCH"):
        monkeypatch.setenv(f"PARLOUR_TOOLS__{name}", "false")
    monkeypatch.setenv("PARLOUR_TOOLS__WEB__SEARCH", "brave")
    monkeypatch.setattr(settings_model, "_INTERPRETER", "no_such_interpreter")
    off = {each["tool"]: each["reason"] for each in terminal.lines("tools") if each.get("state") == "off"}
    assert off["file_write"] == "PARLOUR_TOOLS__FILES is false"
    assert off["remind"] == "PARLOUR_TOOLS__REMINDERS is false"
    assert off["web_fetch"] == "PARLOUR_TOOLS__WEB__FETCH is false"
    assert "set tools.web.search_key" in off["web_search"]
    assert off["compute"].startswith("its package pydantic-monty is not installed: run `make install`")
    assert off["task"] == "PARLOUR_TOOLS__TASKS__ENABLED is false"
    assert len(off) == 11
    monkeypatch.setenv("PARLOUR_TOOLS__CODE__COMPUTE", "false")
    off = {each["tool"]: each["reason"] for each in terminal.lines("tools") if each.get("state") == "off"}
    assert off["compute"] == "PARLOUR_TOOLS__CODE__COMPUTE is false"


@pytest.mark.parametrize(
    ("kind", "who", "where", "expected"),
    [
        (ToolKind.LOOK, None, None, ""),
        (ToolKind.RUN, None, None, "owners only, direct chats only, asks after text from other sources"),
        (ToolKind.ACT, Role.ADMIN, {ChatKind.GROUP}, "admins only, shared chats only, asks first"),
        (ToolKind.WEB, None, set(), "in no chat"),
    ],
)
def test_rights_are_described(kind: ToolKind, who: Role | None, where: set[ChatKind] | None, expected: str) -> None:
    """What every member may use everywhere has no description."""

    @tool("x", kind=kind, who=who, where=where)
    async def work(context: ToolContext) -> str:
        return ""

    assert ", ".join(_restrictions(work)) == expected
    assert effective_rule(work).who is (who or (Role.OWNER if kind is ToolKind.RUN else Role.MEMBER))
