"""The rights table: which kinds of tools whose turns may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.tools.rights import CallVerdict, OperatorRights, RefusalRule, apply_rights, review_call
from agent.tools.tool import AskRule, CallFacts, Tool, ToolContext, ToolKind, tool
from agent.tools.tool_questions import digest_schema
from agent.tools.toolbox import Toolbox
from gateway.errors import SettingsError
from gateway.events import ChatKind, Role
from gateway.settings.load import TOOL_KINDS

DIRECT, GROUP = ChatKind.DIRECT, ChatKind.GROUP


def tool_of(
    kind: ToolKind, *, who: Role | None = None, where: set[ChatKind] | None = None, ask: AskRule | None = None
) -> Tool:
    """Return a tool of *kind*."""

    @tool("x", kind=kind, who=who, where=where, ask=ask)
    async def work(context: ToolContext) -> str:
        return ""

    return work


def review(
    called: Tool,
    role: Role,
    chat_kind: ChatKind,
    *,
    arguments: Mapping[str, Any] | None = None,
    is_untyped: bool = False,
    is_tainted: bool = False,
    allowed_schema: str = "",
) -> CallVerdict:
    """Return the verdict."""
    facts = CallFacts(
        role=role,
        chat_kind=chat_kind,
        is_untyped=is_untyped,
        is_tainted=is_tainted,
        allowed_schema=allowed_schema,
    )
    return review_call(called, arguments or {}, facts)


@pytest.mark.parametrize("kind", [ToolKind.LOOK, ToolKind.WEB, ToolKind.COMPUTE])
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("chat_kind", [DIRECT, GROUP])
def test_what_changes_nothing_elsewhere_is_allowed(kind: ToolKind, role: Role, chat_kind: ChatKind) -> None:
    """Everybody, everywhere, also in a turn that a job started."""
    for is_untyped in (False, True):
        assert review(tool_of(kind), role, chat_kind, is_untyped=is_untyped) == CallVerdict()


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("chat_kind", [DIRECT, GROUP])
def test_a_job_keeps_files_alone(role: Role, chat_kind: ChatKind) -> None:
    """Its turn may have read what nobody sees: a fact or a reminder of it needs a message of the person."""
    keeping = {each.name: each for each in Toolbox.load().tools if each.kind is ToolKind.KEEP}
    named = {"name": "list.csv"}  # only calls whose arguments fit are reviewed
    verdicts = {name: review(each, role, chat_kind, arguments=named, is_untyped=True) for name, each in keeping.items()}
    found = {name for name, verdict in verdicts.items() if not verdict.refusal}
    assert all(verdicts[name] == CallVerdict() for name in found)
    assert found == {"file_write", "file_delete", "send_file", "reminder_change"}
    assert keeping.keys() - found == {"remember", "memory_edit", "remind"}
    assert review(keeping["remember"], role, chat_kind, is_untyped=True).rule is RefusalRule.UNTYPED
    assert review(keeping["remember"], role, chat_kind) == CallVerdict()


@pytest.mark.parametrize("kind", [ToolKind.SPEND, ToolKind.RUN])
def test_programs_and_spending_need_a_message_of_a_person(kind: ToolKind) -> None:
    """A job's turn does neither, whoever its person is; tainted words make them ask."""
    assert review(tool_of(kind), Role.OWNER, DIRECT) == CallVerdict()
    assert "no message of a person" in review(tool_of(kind), Role.OWNER, DIRECT, is_untyped=True).refusal
    assert review(tool_of(kind), Role.OWNER, DIRECT, is_tainted=True).question == "tools.why_tainted"


@pytest.mark.parametrize("is_untyped", [False, True])
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("chat_kind", [DIRECT, GROUP])
def test_acting_always_asks(role: Role, chat_kind: ChatKind, *, is_untyped: bool) -> None:
    """Whoever wants it and wherever; the reason says why."""
    act = tool_of(ToolKind.ACT)
    assert review(act, role, chat_kind, is_untyped=is_untyped).question == "tools.why_acts"
    assert review(act, role, chat_kind, is_untyped=is_untyped, is_tainted=True).question == "tools.why_tainted"


def test_an_allowed_call_runs_if_the_tool_is_the_same() -> None:
    """A tool that was changed since the question does not run; roles are checked again."""
    act = tool_of(ToolKind.ACT)
    assert review(act, Role.MEMBER, GROUP, allowed_schema=digest_schema(act.schema)) == CallVerdict()
    assert "has changed" in review(act, Role.MEMBER, GROUP, allowed_schema="another").refusal
    admins = tool_of(ToolKind.ACT, who=Role.ADMIN)
    assert "only an admin" in review(admins, Role.MEMBER, GROUP, allowed_schema=digest_schema(admins.schema)).refusal


def test_programs_are_for_owners_in_direct_chats() -> None:
    """An admin, and a group, are refused with the reason."""
    run = tool_of(ToolKind.RUN)
    assert review(run, Role.ADMIN, DIRECT).refusal == "not allowed here: only an owner"
    assert review(run, Role.OWNER, GROUP).refusal == "not allowed here: only in a direct chat"


def test_a_tool_says_who_and_where() -> None:
    """Its own fields replace those of its kind."""
    run = tool_of(ToolKind.RUN, who=Role.ADMIN, where={DIRECT, GROUP})
    assert review(run, Role.ADMIN, GROUP) == CallVerdict()
    assert review(run, Role.MEMBER, GROUP).refusal == "not allowed here: only an admin of this chat"


def test_a_refusal_names_its_rule() -> None:
    """The rule is stored with the result, for people and operators who ask why."""
    run, act = tool_of(ToolKind.RUN), tool_of(ToolKind.ACT)
    assert review(run, Role.OWNER, GROUP).rule is RefusalRule.WHERE
    assert review(run, Role.ADMIN, DIRECT).rule is RefusalRule.ROLE
    assert review(run, Role.OWNER, DIRECT, is_untyped=True).rule is RefusalRule.UNTYPED
    assert review(act, Role.OWNER, DIRECT, allowed_schema="another").rule is RefusalRule.CHANGED
    assert review(act, Role.OWNER, DIRECT).rule is None


def test_settings_know_every_kind() -> None:
    """The names of kinds that `tools.rights` accepts are those of tools."""
    assert set(TOOL_KINDS) == set(ToolKind)


def test_the_operator_decides_who_and_where() -> None:
    """By kind and by tool; what the tool's entry leaves out is the kind's. Other tools keep their own."""
    run, act = tool_of(ToolKind.RUN), tool_of(ToolKind.ACT)
    by_kind = {"run": OperatorRights(who=Role.ADMIN, where=frozenset({DIRECT, GROUP}))}
    (changed,) = apply_rights([run], by_kind)
    assert review(changed, Role.ADMIN, GROUP) == CallVerdict()
    (shared,) = apply_rights([act], {"act": OperatorRights(where=frozenset({GROUP}))})
    assert review(shared, Role.OWNER, DIRECT).refusal == "not allowed here: only in a shared chat"
    assert "only an admin" in review(changed, Role.MEMBER, GROUP).refusal
    (changed,) = apply_rights([run], {**by_kind, "work": OperatorRights(who=Role.MEMBER)})
    assert review(changed, Role.MEMBER, GROUP) == CallVerdict()
    assert apply_rights([act], by_kind) == [act]


def test_the_operator_makes_tools_ask_more() -> None:
    """Also a tool that decides by its arguments; what asks more by itself keeps asking."""
    look = tool_of(ToolKind.LOOK)
    (changed,) = apply_rights([look], {"look": OperatorRights(ask=AskRule.ALWAYS)})
    assert review(changed, Role.OWNER, DIRECT).question == "tools.why_acts"
    by_arguments = replace(tool_of(ToolKind.WEB), review=lambda arguments, facts: AskRule.NEVER)
    (changed,) = apply_rights([by_arguments], {"work": OperatorRights(ask=AskRule.TAINTED)})
    assert review(changed, Role.OWNER, DIRECT) == CallVerdict()
    assert review(changed, Role.OWNER, DIRECT, is_tainted=True).question == "tools.why_tainted"
    careful = tool_of(ToolKind.LOOK, ask=AskRule.ALWAYS)
    (changed,) = apply_rights([careful], {"look": OperatorRights(ask=AskRule.TAINTED)})
    assert review(changed, Role.OWNER, DIRECT).question == "tools.why_acts"


@pytest.mark.parametrize("name", ["act", "work"])
def test_a_rule_that_asks_less_is_a_mistake(name: str) -> None:
    """It is named with what may be written instead."""
    with pytest.raises(SettingsError, match=rf"tools\.rights\.{name}\.ask: tainted asks less .* write first"):
        apply_rights([tool_of(ToolKind.ACT)], {name: OperatorRights(ask=AskRule.TAINTED)})
