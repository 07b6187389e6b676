"""Caps on tool calls: calls of a kind per person and day. Usage rows in the journal are the source of truth.

Several gateways on one database count in its tables (`SqlSharedCaps`). Memory then has the counts of the last call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from cachetools import LRUCache

from gateway.events import PlatformAccount
from gateway.i18n.formats import find_midnight
from gateway.ports.access import (
    TOOL_CALLS,
    CapChange,
    CapQuery,
    CountedEntry,
    SharedCapCounts,
    TokenCount,
    ToolAllowance,
)
from gateway.ports.journal import UsageRow
from gateway.ports.metrics import MetricsRecorder

if TYPE_CHECKING:
    from gateway.store.usage import SqlSharedCaps, SqlUsage


_MOST_CALLS = 10_000  # that are kept by their keys
_LONGEST_DAY = timedelta(days=2)  # a clock that was set back by less does not begin another day


class ToolCallTracker:
    """Implements `gateway.ports.access.ToolCallCaps`. Without a store of shared counts, no method waits."""

    def __init__(
        self,
        limits: Mapping[str, int],
        *,
        zone: str,
        now: Callable[[], datetime],
        store_row: Callable[[UsageRow], None],
        meter: MetricsRecorder,
        shared_caps: SqlSharedCaps | None = None,
    ) -> None:
        """*limits* are by kind of tool, 0 = no limit; a call's row is handed to *store_row*.

        *shared_caps* has the counts where several gateways run.
        """
        self._limits = {kind: limit for kind, limit in limits.items() if limit}
        self._zone = ZoneInfo(zone)
        self._now = now
        self._store_row = store_row
        self._meter = meter
        self._shared = shared_caps
        self._calls: Counter[tuple[str, str]] = Counter()  # since midnight, by account and kind
        self._counted: LRUCache[str, bool] = LRUCache(_MOST_CALLS)  # keys of calls
        self._until: datetime | None = None  # when the day ends

    async def warm(self, usage: SqlUsage) -> None:
        """Load today's counts; call it before the first turn. Raises StoreUnavailable."""
        self._until = find_midnight(self._now(), self._zone, days=1)
        self._calls.update(await usage.tool_calls(since=find_midnight(self._now(), self._zone)))
        self._counted.update(dict.fromkeys(await usage.interrupted_tool_calls(), True))

    def hand_over(self) -> CapChange:
        """Return the counts that `warm` has loaded, and keep none of them: the shared counts have them."""
        loaded, self._calls = self._calls, Counter()
        counts = tuple(TokenCount(_counter(kind, name), calls, 0) for (name, kind), calls in loaded.items())
        return CapChange(day=self._open_day(), tokens=counts)

    def exceeded(self, kind: str, accounts: Sequence[PlatformAccount], *, call: str) -> ToolAllowance | None:
        """Return the cap that a *call* of *kind* would exceed; None if it may run."""
        allowance = self._allowance(kind, accounts)
        is_free = allowance is None or allowance.used < allowance.limit or call in self._counted
        return None if is_free else allowance

    def note_refusal(self, kind: str) -> None:
        """Count a call of *kind* that its cap refused."""
        self._meter.count("cap_refusals", cap=f"{kind}-calls")

    async def count(
        self,
        kind: str,
        *,
        turn: str,
        call: str,
        accounts: Sequence[PlatformAccount],
        account: PlatformAccount,
        chat: str,
    ) -> ToolAllowance | None:
        """Count a call that runs now, once; its row is stored before any later commit."""
        if kind not in self._limits or call in self._counted:
            return None
        self._open_day()
        if self._shared is not None:
            entry = CountedEntry(_counter(kind, account.name), call, self._now())
            if not await self._count_shared(self._shared, kind, accounts, entry):
                return self._allowance(kind, accounts)
        self._counted[call] = True
        self._calls[account.name, kind] += 1
        self._store_row(
            UsageRow(
                turn=turn,
                person=account.name,
                chat=chat,
                purpose=f"{TOOL_CALLS}{kind}",
                model="",
                tokens_in=0,
                tokens_out=0,
                tokens_cached=0,
                cost=0.0,
                at=self._now(),
                call=call,
            )
        )
        return None

    async def _count_shared(
        self,
        shared_caps: SqlSharedCaps,
        kind: str,
        accounts: Sequence[PlatformAccount],
        entry: CountedEntry | None = None,
    ) -> bool:
        """Learn of the calls of all gateways, and count *entry* with them; False if the cap forbids it."""
        day, limit = self._open_day(), self._limits[kind]
        counters = {_counter(kind, each.name): each.name for each in accounts}

        def decide(counts: SharedCapCounts) -> tuple[CapChange | None, tuple[bool, Counter[str]]]:
            before = [each for each in counts.entries if entry is None or each.entry != entry.entry]
            used = Counter(counters[each.name] for each in before)
            used.update({counters[name]: count.spent for name, count in counts.elsewhere.items()})
            is_counted = len(before) < len(counts.entries)  # it runs again after a kill
            if entry is None or is_counted or used.total() >= limit:
                return None, (is_counted, used)
            return CapChange(day=day, entries=(entry,)), (True, used)

        query = CapQuery(names=tuple(counters), day=day, since=find_midnight(self._now(), self._zone))
        may_run, used = await shared_caps.judge(query, decide)
        for each in accounts:
            self._calls[each.name, kind] = used[each.name]
        return may_run

    async def allowances(self, accounts: Sequence[PlatformAccount]) -> tuple[ToolAllowance, ...]:
        """Return use and limit of each kind that has one."""
        if self._shared is not None:
            for kind in self._limits:
                await self._count_shared(self._shared, kind, accounts)
        found = (self._allowance(kind, accounts) for kind in self._limits)
        return tuple(each for each in found if each is not None)

    def _allowance(self, kind: str, accounts: Sequence[PlatformAccount]) -> ToolAllowance | None:
        if kind not in self._limits:
            return None
        until = self._open_day()
        used = sum(self._calls[each.name, kind] for each in accounts)
        return ToolAllowance(kind=kind, used=used, limit=self._limits[kind], until=until)

    def _open_day(self) -> datetime:
        now = self._now()
        if self._until is None or now >= self._until or self._until - now > _LONGEST_DAY:
            self._until = find_midnight(now, self._zone, days=1)
            self._calls.clear()
        return self._until


def _counter(kind: str, account: str) -> str:
    """Return the name of the shared count of an account's calls of *kind*."""
    return f"tool/{kind}/{account}"
