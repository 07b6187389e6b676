"""/usage: tokens and cost of the sender's messages, and what their usage caps leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from agent.commands.command import CommandContext, CommandReply, command
from agent.memory.jobs.token_budget import MEMORY_PURPOSES
from gateway.i18n import translate
from gateway.i18n.formats import format_moment, format_time_of_day
from gateway.ports.caps import CapAllowance, ToolAllowance


@command("usage", is_control=True)
async def usage(context: CommandContext) -> CommandReply:
    """Show the sender's own usage today and in the last 30 days, and what is left of each cap."""
    service = context.services.usage
    accounts = tuple(each.name for each in context.turn.accounts)
    today = await service.totals(since=day_start(context), accounts=accounts)
    month = await service.totals(since=context.now - timedelta(days=30), accounts=accounts)
    lines = [
        context.translate("commands.usage_today", **usage_fields(today, context.language)),
        context.translate("commands.usage_month", **usage_fields(month, context.language)),
        *await _memory_line(context),
        *(
            _allowance_line(context, each)
            for each in await service.caps.allowances(context.message, context.turn.capped_sender)
        ),
        *(
            _tool_line(context, each)
            for each in await service.tool_calls.allowances(context.turn.accounts)
            if each.used
        ),
    ]
    return CommandReply(text="\n".join(lines), is_private=True)


async def _memory_line(context: CommandContext) -> list[str]:
    """Return the line about what the memory of this chat used in the last 30 days; none if it used nothing."""
    since = context.now - timedelta(days=30)
    rows = await context.services.usage.totals(since=since, chat=str(context.key))
    memory = [row for row in rows if row["purpose"] in MEMORY_PURPOSES]
    answers = sum(row["tokens_in"] + row["tokens_out"] for row in rows if row["purpose"] == "answer")
    if not memory:
        return []
    fields = usage_fields(memory, context.language)
    percent = round(100 * fields["tokens"] / answers) if answers else 100
    return [context.translate("commands.usage_memory", **fields, percent=percent)]


def _allowance_line(context: CommandContext, allowance: CapAllowance) -> str:
    write = format_moment if allowance.cap.is_daily else format_time_of_day
    until = write(allowance.until, context.turn.zone, context.language) if allowance.until else ""
    left = max(allowance.limit - allowance.used, 0)
    word = f"{'left' if left else 'spent'}_{allowance.cap.word}"
    return context.translate(f"usage.{word}", left=left, limit=allowance.limit, until=until)


def _tool_line(context: CommandContext, allowance: ToolAllowance) -> str:
    left = max(allowance.limit - allowance.used, 0)
    until = format_moment(allowance.until, context.turn.zone, context.language)
    return context.translate(f"usage.left_{allowance.kind}_calls", left=left, limit=allowance.limit, until=until)


def day_start(context: CommandContext) -> datetime:
    """Return the start of the day that caps and sums count, in the installation's time zone."""
    local = context.now.astimezone(ZoneInfo(context.services.usage.day_zone))
    return local.replace(hour=0, minute=0, second=0, microsecond=0)


def usage_fields(rows: Sequence[Mapping[str, Any]], language: str) -> dict[str, Any]:
    """Return the sums of *rows* as fields of catalogue sentences. A call of unknown price is not counted as free."""
    tokens_in = sum(row["tokens_in"] for row in rows)
    cached = sum(row["tokens_cached"] for row in rows)
    return {
        "calls": sum(row["calls"] for row in rows),
        "tokens": tokens_in + sum(row["tokens_out"] for row in rows),
        "cached_percent": round(100 * cached / tokens_in) if tokens_in else 0,
        "cost": _cost(rows, language),
    }


def _cost(rows: Sequence[Mapping[str, Any]], language: str) -> str:
    known, unpriced = sum(row["known_cost"] for row in rows), sum(row["unpriced_calls"] for row in rows)
    cost = f"${known:.4f}"
    if not unpriced:
        return cost
    return translate("commands.cost_part" if known else "commands.cost_unknown", language, cost=cost)
