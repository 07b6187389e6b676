"""Operations on the use of models, and the list of tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

from gateway.control import Line
from gateway.control.registry import operation, option
from gateway.errors import UserError
from gateway.events import ChatKind, PlatformAccount, Role
from gateway.i18n.formats import format_usage
from gateway.installation import load_entry_points
from gateway.operations.group import OperationGroup
from gateway.settings.chat_settings import ChatOverrides

if TYPE_CHECKING:
    from agent.tools.tool import Tool
    from agent.tools.toolbox import Toolbox

_OURS = frozenset({"agent", "gateway"})
_MEMORY = "of it memory"  # the sum of the purposes that write memory
_NOBODY = "(nobody)"  # embeddings, and persons who were erased
_GROUPS = ("person", "chat", "purpose", "model", "day")
_DAYS = re.compile(r"(\d{1,5})d\Z")
_SUMMED = ("calls", "tokens_in", "tokens_out", "tokens_cached", "known_cost", "unpriced_calls")


def usage_table(by: str, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of *lines*, which are sums by *by*: a header, a row each, of it what memory used, the total."""
    from agent.memory.jobs.token_budget import MEMORY_PURPOSES  # which other commands do without

    names = [str(line[by]) or _NOBODY for line in lines]
    width = max(len(name) for name in (*names, by, "together", _MEMORY))
    rows = [f"{by:{width}}  {'calls':>8}  {'tokens':>12}  {'cached':>6}  cost"]
    rows += [_usage_row(name, width, [line]) for name, line in zip(names, lines, strict=True)]
    memory = [line for line in lines if by == "purpose" and line[by] in MEMORY_PURPOSES]
    if memory:
        rows.append(_usage_row(_MEMORY, width, memory))
    return [*rows, _usage_row("together", width, lines)]


def _usage_row(name: str, width: int, lines: Sequence[Mapping[str, Any]]) -> str:
    sums = format_usage(lines)
    return f"{name:{width}}  {sums['calls']:>8,}  {sums['tokens']:>12,}  {sums['cached_percent']:>5}%  {sums['cost']}"


def _usage_rows(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
    return usage_table(arguments["by"], lines) if lines else [f"no model was called since {arguments['since']}"]


def _tool_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    width = max((len(line["tool"]) for line in lines if "tool" in line), default=0)
    return [_tool_row(line, width) for line in lines]


def _tool_row(line: Line, width: int) -> str:
    if "questions" in line:
        count = line["questions"]
        return f"{count} {'question waits' if count == 1 else 'questions wait'} for approval in {line['chat']}"
    name = f"{line['state']:3}  {line['tool']:{width}}"
    if line["state"] == "off":
        return f"{name}  {line['reason']}"
    off_in = f"off in {', '.join(line['off_in'])}" if line["off_in"] else ""
    return "  ".join(filter(None, (name, f"{line['kind']:7}", line["package"], line["rights"], off_in)))


class UsageOperations(OperationGroup):
    """The operations `tools` and `usage`."""

    @operation("tools", show=_tool_rows)
    async def tools(self) -> AsyncIterator[Line]:
        """List the tools that are on and off, with the reasons, and the calls that wait for approval."""
        from agent.tools.tool_questions import TOOL_QUESTION
        from agent.tools.toolbox import GROUP
        from gateway.app.chat_settings import list_disabled_tools

        settings, toolbox = self._app.settings, self._app.commands.profiles.toolbox
        left_out = _left_out(ChatOverrides(settings.chats, profiles=settings.profiles), toolbox)
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

    @operation("usage", Role.OWNER, show=_usage_rows)
    async def usage(
        self,
        by: Annotated[str, option("person, chat, purpose, model or day.")] = "day",
        since: Annotated[str, option("A day, such as 2026-11-01, or 7d for the last seven.")] = "30d",
    ) -> AsyncIterator[Line]:
        """Show model calls, tokens and cost.

        Days are those of PARLOUR_TIMEZONE. Linked accounts are one person; usage without a person (embeddings, erased
        persons) has the name "". `cost` is null where the price of any call is unknown.
        """
        if by not in _GROUPS:
            raise UserError(f"usage cannot be grouped by {by!r}; use one of: {', '.join(_GROUPS)}")
        zone, now = self._app.settings.timezone, self._app.now()
        found = await self._app.store.usage.by(by, since=_since(since, now, ZoneInfo(zone)), until=now, zone=zone)
        for line in self._by_person(found) if by == "person" else found:
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


def _left_out(overrides: ChatOverrides, toolbox: Toolbox) -> Mapping[str, list[str]]:
    """Return the chat selectors whose settings turn a tool off, by tool."""
    found: dict[str, list[str]] = {}
    for selector, rules in overrides.by_selector():
        console_arguments = toolbox.only(rules.allow, rules.deny).names
        for name in toolbox.names:
            if name not in console_arguments:
                found.setdefault(name, []).append(selector)
    return found


def _package(tool: Tool) -> str:
    """Return the distribution of a tool without an entry point: ours, or the top-level package of a plugin."""
    module = tool.run.__module__.partition(".")[0]
    return "parlour" if module in _OURS else module


def _restrictions(tool: Tool) -> Iterator[str]:
    """Yield roles, chats and approvals that restrict a tool, in words; nothing for one that every member may call."""
    from agent.tools.rights import effective_rule
    from agent.tools.tool import AskRule

    asks = {
        AskRule.TAINTED: "asks after text from other sources",
        AskRule.FIRST: "asks first",
        AskRule.ALWAYS: "always asks",
    }
    rule = effective_rule(tool)
    if rule.who is not Role.MEMBER:
        yield f"{rule.who}s only"
    if rule.where == {ChatKind.DIRECT}:
        yield "direct chats only"
    elif rule.where == {ChatKind.GROUP}:
        yield "shared chats only"
    elif not rule.where:
        yield "in no chat"
    if words := "asks about some calls" if tool.review is not None else asks.get(tool.ask):
        yield words
