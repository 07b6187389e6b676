"""Operator commands for the use of caps: the sums of model calls, and access and quota of one person."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from agent.memory.scope_names import ScopeSelector
from gateway.app.access_operations import operator
from gateway.app.memory_operations import MemoryOperations
from gateway.app.operation_group import OperationGroup, by_owner, operation, plain
from gateway.control import Line
from gateway.errors import UserError
from gateway.events import PlatformAccount
from gateway.ports.access import NO_QUOTA, PersonAccess
from gateway.ports.caps import CappedSender
from gateway.web_console.console_routes import AuditRule

GROUPS = ("person", "chat", "purpose", "model", "day")
_DAYS = re.compile(r"(\d{1,5})d\Z")
_SUMMED = ("calls", "tokens_in", "tokens_out", "tokens_cached", "known_cost", "unpriced_calls")
_MOST = 10**12  # of a cap
_USD = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?\Z")
_DEFAULT = "default"


class UsageOperations(OperationGroup):
    """The operations `usage`, `people show`, `people quota` and `people quotas`."""

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

    @operation("people show", by_owner())
    async def show(self, who: str = "") -> AsyncIterator[Line]:
        """Yield the access of the person of account *who*, their quota, and use and limit of each of their caps."""
        yield await self._describe(self._app.access.decisions.find_person(who))

    @operation("people quota", by_owner(audit=AuditRule.OPERATION))
    async def set_quota(
        self, who: str = "", turns: object = None, tokens: object = None, usd: object = None
    ) -> AsyncIterator[Line]:
        """Set *turns*, *tokens* and *usd* of the person of account *who*, and yield them as `people show` does.

        Each is a number (0 = no cap) or "default"; a missing one stays. Raises UserError for anything else.
        """
        caps = {"turns": turns, "tokens": tokens, "usd": usd}
        given = {name: _limit(name, value) for name, value in caps.items() if value is not None}
        if not given:
            raise UserError("say turns, tokens or usd: a number, 0 for no cap, or default")
        person = self._app.access.decisions.find_person(who)
        decision = await self._app.access.decisions.set_quota(who, replace(person.quota, **given), operator())
        yield {**await self._describe(self._app.access.decisions.find_person(who)), "ruling": decision.ruling.value}

    @operation("people quotas", by_owner())
    async def list_quotas(self) -> AsyncIterator[Line]:
        """Yield a line per person with a quota: the account that it was set for, turns, tokens and dollars."""
        for whom, quota in self._app.access.decisions.list_quotas().items():
            yield {"whom": whom, **plain(quota)}

    async def _describe(self, person: PersonAccess) -> Line:
        accounts = await self._accounts(person)
        sender = CappedSender(account=accounts[0], accounts=accounts, is_named=person.is_named)
        caps = await self._app.usage.caps.allowances(None, sender)
        return {
            "whom": person.whom,
            "role": "owner" if person.is_owner else "member",
            "is_named": person.is_named,
            "blocked_as": person.blocked_as,
            "accounts": [str(each) for each in accounts],
            "quota": None if person.quota == NO_QUOTA else plain(person.quota),
            "caps": [plain(each) for each in caps],
        }

    async def _accounts(self, person: PersonAccess) -> tuple[PlatformAccount, ...]:
        """Return all accounts of the person with their teams, which decisions leave out and counts do not."""
        user = person.accounts[0]
        linked = tuple(each.account for each in self._app.store.links.accounts_of_user(user))
        if linked or not self._app.platforms.traits(person.whom.partition(":")[0]).has_teams:
            return linked or (user,)
        names = await MemoryOperations(self._app).names()
        try:
            scope = names.find(ScopeSelector(person=str(user)))
        except UserError:  # nothing is remembered, so the team is not known
            return (user,)
        return (PlatformAccount.from_name(scope.rpartition("/")[2]),)


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


def _limit(name: str, value: object) -> Any:
    """Return a cap as it was given; None = default."""
    text = str(value).strip().lower()
    if text == _DEFAULT:
        return None
    if name == "usd":
        if not _USD.match(text):
            raise UserError("usd is a number of dollars such as 2.50, 0 for no cap, or default")
        return float(text)
    if not (text.isascii() and text.isdecimal() and int(text) <= _MOST):
        raise UserError(f"{name} is a number up to {_MOST}, 0 for no cap, or default")
    return int(text)
