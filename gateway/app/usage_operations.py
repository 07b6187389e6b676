"""The operator command `usage`: the sums of model calls."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from gateway.app.operation_group import OperationGroup, by_owner, operation
from gateway.control import Line
from gateway.errors import UserError
from gateway.events import PlatformAccount

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
        zone, now = self._app.settings.timezone, datetime.now(UTC)
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
