"""Who may call which kind of tool, and where.

Checked at each call for the turn's person. The prompt, which is the same for all members of a chat, decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.tools.tool import CallFacts as CallFacts
from agent.tools.tool import Tool, ToolKind
from gateway.events import ChatKind, Role

_EVERYWHERE = frozenset(ChatKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsRule:
    """A row of the rights table."""

    who: Role = Role.MEMBER  # the least role
    where: frozenset[ChatKind] = _EVERYWHERE
    is_for_untyped: bool = True  # also in turns that a job started


RIGHTS: Mapping[ToolKind, RightsRule] = {
    ToolKind.LOOK: RightsRule(),
    ToolKind.KEEP: RightsRule(),
    ToolKind.WEB: RightsRule(),
    ToolKind.COMPUTE: RightsRule(),
    ToolKind.SPEND: RightsRule(is_for_untyped=False),
    ToolKind.ACT: RightsRule(is_for_untyped=False),
    ToolKind.RUN: RightsRule(who=Role.OWNER, where=frozenset({ChatKind.DIRECT}), is_for_untyped=False),
}
_ROLE_TEXT = {Role.ADMIN: "an admin of this chat", Role.OWNER: "an owner"}


def refuse_call(tool: Tool, facts: CallFacts) -> str:
    """Return why *tool* must not be called, for the model to read; "" if it may be."""
    rule = RIGHTS[tool.kind]
    who, where = tool.who or rule.who, tool.where if tool.where is not None else rule.where
    if facts.chat_kind not in where:
        return "not allowed here: only in a direct chat" if where else "not allowed here"
    if not facts.role.covers(who):
        return f"not allowed here: only {_ROLE_TEXT[who]}"
    if facts.is_untyped and not rule.is_for_untyped:
        return "not allowed here: no message of a person started this turn"
    return ""
