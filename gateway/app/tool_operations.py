"""Operator commands for the use of tools and of models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from agent.tools.rights import effective_rule
from agent.tools.tool import AskRule, Tool
from agent.tools.tool_questions import TOOL_QUESTION
from agent.tools.toolbox import GROUP, Toolbox
from gateway.app.chat_settings import list_disabled_tools
from gateway.app.operation_group import OperationGroup, by_owner, operation
from gateway.control import Line
from gateway.errors import UserError
from gateway.events import ChatKind, PlatformAccount, Role
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


GROUPS = ("person", "chat", "purpose", "model", "day")
_DAYS = re.compile(r"(\d{1,5})d\Z")
_SUMMED = ("calls", "tokens_in", "tokens_out", "tokens_cached", "known_cost", "unpriced_calls")


class UsageOperations(OperationGroup):
    """The operation `usage`."""

    @operation("usage", by_owner())
    async def usage(self, by: str = "day", since: str = "30d") -> AsyncIterator[Line]:
        """Yield calls, tokens and cost per person, chat, purpose, model or day of PARLOUR_TIMEZONE.

        Linked accounts are one person; usage without a person (embeddings, erased persons) has the name "". `cost` is
        None where the price of any call is unknown.
        """
        if by not in GROUPS:
            raise UserError(f"usage cannot be grouped by {by!r}; use one of: {', '.join(GROUPS)}")
        zone, now = self._app.settings.timezone, self._app.now()
        rows = await self._app.store.usage.by(by, since=_since(since, now, ZoneInfo(zone)), until=now, zone=zone)
        for line in self._by_person(rows) if by == "person" else rows:
            yield dict(line)

    def _by_person(self, rows: tuple[Mapping[str, Any], ...]) -> list[Mapping[str, Any]]:
        persons: dict[str, dict[str, Any]] = {}
        for line in rows:
            # No account has the file name "%": usage without a person must not pass for one's.
            name = self._label_of(line["person"]) if line["person"] else ""
            sums = persons.get(name)
            persons[name] = {**line, "person": name} if sums is None else _add(sums, line)
        return sorted(persons.values(), key=lambda line: (-line["tokens_in"] - line["tokens_out"], line["person"]))

    def _label_of(self, account: str) -> str:
        person = self._app.store.links.person(PlatformAccount.from_name(account))
        return PlatformAccount.from_name(person).label


def _add(first: dict[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    sums = {name: first[name] + second[name] for name in _SUMMED}
    return {**first, **sums, "cost": None if sums["unpriced_calls"] else sums["known_cost"]}


def _since(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the midnight of *zone* that *text* means: a day (2026-11-01), or a number of days ago (7d)."""
    today = now.astimezone(zone).date()
    days = _DAYS.match(text)
    try:
        day = today - timedelta(days=int(days[1])) if days else date.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UserError(
            f"{text!r} is not a date; write one such as 2026-11-01, or 7d for the last seven days"
        ) from None
    return datetime(day.year, day.month, day.day, tzinfo=zone)
