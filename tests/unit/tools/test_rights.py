"""The rights table: which kinds of tools whose turns may call."""

from __future__ import annotations

import pytest

from agent.tools.rights import CallFacts, refuse_call
from agent.tools.tool import Tool, ToolContext, ToolKind, tool
from gateway.events import ChatKind, Role

DIRECT, GROUP = ChatKind.DIRECT, ChatKind.GROUP


def tool_of(kind: ToolKind, *, who: Role | None = None, where: set[ChatKind] | None = None) -> Tool:
    """Return a tool of *kind*."""

    @tool("x", kind=kind, who=who, where=where)
    async def work(context: ToolContext) -> str:
        return ""

    return work


def refusal(called: Tool, role: Role, chat_kind: ChatKind, *, is_untyped: bool = False) -> str:
    """Return the reason for the model."""
    return refuse_call(called, CallFacts(role=role, chat_kind=chat_kind, is_untyped=is_untyped))


@pytest.mark.parametrize("kind", [ToolKind.LOOK, ToolKind.KEEP, ToolKind.WEB, ToolKind.COMPUTE])
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("chat_kind", [DIRECT, GROUP])
def test_what_changes_nothing_elsewhere_is_allowed(kind: ToolKind, role: Role, chat_kind: ChatKind) -> None:
    """Everybody, everywhere, also in a turn that a job started."""
    assert refusal(tool_of(kind), role, chat_kind) == refusal(tool_of(kind), role, chat_kind, is_untyped=True) == ""


@pytest.mark.parametrize("kind", [ToolKind.ACT, ToolKind.SPEND, ToolKind.RUN])
def test_effects_need_a_message_of_a_person(kind: ToolKind) -> None:
    """A job's turn changes nothing outside, whoever its person is."""
    assert refusal(tool_of(kind), Role.OWNER, DIRECT) == ""
    assert "no message of a person" in refusal(tool_of(kind), Role.OWNER, DIRECT, is_untyped=True)


def test_programs_are_for_owners_in_direct_chats() -> None:
    """An admin, and a group, are refused with the reason."""
    run = tool_of(ToolKind.RUN)
    assert refusal(run, Role.ADMIN, DIRECT) == "not allowed here: only an owner"
    assert refusal(run, Role.OWNER, GROUP) == "not allowed here: only in a direct chat"


def test_a_tool_says_who_and_where() -> None:
    """Its own fields replace those of its kind."""
    run = tool_of(ToolKind.RUN, who=Role.ADMIN, where={DIRECT, GROUP})
    assert refusal(run, Role.ADMIN, GROUP) == ""
    assert refusal(run, Role.MEMBER, GROUP) == "not allowed here: only an admin of this chat"
