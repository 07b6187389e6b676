"""/usage: what somebody's messages cost, and what is left of what they may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import command
from gateway.i18n import translate
from gateway.i18n.formats import format_moment, format_time_of_day
from gateway.ports.caps import CapAllowance


@command("usage", is_control=True)
async def usage(context: CommandContext) -> CommandReply:
    """Tell the sender what their messages cost today and in the last 30 days, and what is left; nobody else's."""
    service = context.services.usage
    today = await service.totals(since=day_start(context), account=context.account)
    month = await service.totals(since=context.now - timedelta(days=30), account=context.account)
    lines = [
        translate("commands.usage_today", context.language, **usage_fields(today, context.language)),
        translate("commands.usage_month", context.language, **usage_fields(month, context.language)),
        *(_left(context, each) for each in service.allowances(context.message, context.account)),
    ]
    return CommandReply(text="\n".join(lines), is_private=True)


def _left(context: CommandContext, allowance: CapAllowance) -> str:
    zone = context.turn.zone
    write = format_moment if allowance.cap.is_daily else format_time_of_day
    until = write(allowance.until, zone, context.language) if allowance.until else ""
    left = max(allowance.limit - allowance.used, 0)
    word = f"{'left' if left else 'spent'}_{allowance.cap.word}"
    return translate(f"usage.{word}", context.language, left=left, limit=allowance.limit, until=until)


def day_start(context: CommandContext) -> datetime:
    """Return the start of the day that caps and sums count, in the installation's time zone."""
    local = context.now.astimezone(ZoneInfo(context.services.usage.day_zone))
    return local.replace(hour=0, minute=0, second=0, microsecond=0)


def usage_fields(rows: Sequence[Mapping[str, Any]], language: str) -> dict[str, Any]:
    """Fold usage rows into the fields that the sentences take. What has no known price is not called free."""
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
    return (
        translate("commands.cost_part", language, cost=cost) if known else translate("commands.cost_unknown", language)
    )
