"""The operator command `tools`: tools that are on and off, with reasons, and the calls that wait for approval."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping

from agent.tools.rights import effective_rule
from agent.tools.tool import AskRule, Tool
from agent.tools.tool_questions import TOOL_QUESTION
from agent.tools.toolbox import GROUP, Toolbox
from gateway.app.chat_settings import list_disabled_tools
from gateway.app.operation_group import OperationGroup, operation
from gateway.control import Line
from gateway.events import ChatKind, Role
from gateway.ports.entry_points import load_entry_points
from gateway.settings.chat_overrides import ChatOverrides

_OURS = frozenset({"agent", "gateway"})
_ASKS = {
    AskRule.TAINTED: "asks after text from other sources",
    AskRule.FIRST: "asks first",
    AskRule.ALWAYS: "always asks",
}


class ToolOperations(OperationGroup):
    """The operation `tools`."""

    @operation("tools")
    async def tools(self) -> AsyncIterator[Line]:
        """Yield one line per tool, those that are on first, then one per chat with calls that wait for approval."""
        settings, toolbox = self._app.settings, self._app.commands.profiles.toolbox
        left_out = _left_out(ChatOverrides(settings.chats), toolbox)
        packages = {entry.name: entry.dist.name for entry in load_entry_points(GROUP) if entry.dist is not None}
        for tool in toolbox.tools:
            yield {
                "tool": tool.name,
                "state": "on",
                "kind": tool.kind.value,
                "package": packages.get(tool.name) or _package(tool),
                "rights": ", ".join(_restrictions(tool)),
                "off_in": left_out.get(tool.name, []),
            }
        for name, reason in sorted(list_disabled_tools(settings).items()):
            if name not in toolbox.names:
                yield {"tool": name, "state": "off", "reason": reason}
        waiting = Counter(str(job.payload["key"]) for job in await self._app.store.jobs.pending_of(TOOL_QUESTION))
        for key, count in sorted(waiting.items()):
            yield {"chat": key, "questions": count}


def _left_out(overrides: ChatOverrides, toolbox: Toolbox) -> Mapping[str, list[str]]:
    """Return the chat selectors whose settings turn a tool off, by tool."""
    found: dict[str, list[str]] = {}
    for selector, rules in overrides.by_selector():
        offered = toolbox.only(rules.allow, rules.deny).names
        for name in toolbox.names:
            if name not in offered:
                found.setdefault(name, []).append(selector)
    return found


def _package(tool: Tool) -> str:
    """Return the distribution of a tool without an entry point: ours, or the top-level package of a plugin."""
    module = tool.run.__module__.partition(".")[0]
    return "parlour" if module in _OURS else module


def _restrictions(tool: Tool) -> Iterator[str]:
    """Yield roles, chats and approvals that restrict a tool, in words; nothing for one that every member may call."""
    rule = effective_rule(tool)
    if rule.who is not Role.MEMBER:
        yield f"{rule.who}s only"
    if rule.where == {ChatKind.DIRECT}:
        yield "direct chats only"
    elif rule.where == {ChatKind.GROUP}:
        yield "shared chats only"
    elif not rule.where:
        yield "in no chat"
    if asks := "asks about some calls" if tool.review is not None else _ASKS.get(tool.ask):
        yield asks
