"""Daily token budget of background jobs.

The journal's usage rows are authoritative, so a restart counts nothing twice; later calls are added in memory.
Several gateways on one database share the budget (`SqlSharedCaps`): each stores what it has spent and reserved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import structlog

from gateway.ports.access import CapChange, CapQuery, SharedCapCounts, TokenCount

if TYPE_CHECKING:
    from gateway.store.usage import SqlSharedCaps, SqlUsage


log = structlog.get_logger(__name__)

MEMORY_PURPOSES = frozenset({"consolidation", "note", "flush", "dream"})  # calls that write memory
# Purposes that a user waits for; the rest is background.
FOREGROUND = frozenset({"answer", "transcription", "speech", "picture"})
_FIRST_GUESS = 10_000  # tokens of a job, until one has been seen
_LEAST_GUESS = 2_000
_COUNTER = "background"  # name of the shared count
_NOTHING = TokenCount(_COUNTER, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """Status of the day's token budget."""

    limit: int  # tokens a day; 0 = no limit
    spent: int
    is_spent: bool  # nothing more begins before tomorrow


class TokenBudget:
    """A day's tokens for jobs: reserved when a job starts, settled by what its calls used.

    A job that has started is finished, so the budget is exceeded at most by the underestimated use of running jobs.
    """

    def __init__(
        self,
        usage: SqlUsage,
        *,
        limit: int,
        zone: str,
        now: Callable[[], datetime],
        shared_caps: SqlSharedCaps | None = None,
    ) -> None:
        """Allow *limit* tokens per day of *zone*; 0 = no limit. *shared_caps* has the counts of several gateways."""
        self._usage = usage
        self._shared = shared_caps
        self._limit = limit
        self._zone = ZoneInfo(zone)
        self._now = now
        self._day: date | None = None
        self._stored = 0  # sum of the usage rows when they were read
        self._noted = 0  # added since
        self._elsewhere = _NOTHING  # of other gateways, as it was last read
        self._offered = 0  # jobs that may start, and have no name yet
        self._held: dict[str, int] = {}  # job -> what it has taken so far
        self._guess = _FIRST_GUESS
        self._told: date | None = None

    def note(self, purpose: str, turn: str, tokens: int) -> None:
        """Take notice of a model call: its *tokens*, in and out, and what it was for."""
        if purpose in FOREGROUND:
            return
        self._noted += tokens
        if turn in self._held:
            self._held[turn] += tokens
        self._post()

    async def hand_over(self) -> CapChange:
        """Return the sum of the day's usage rows, for the shared counts, and keep none of it.

        Raises StoreUnavailable.
        """
        await self._open_day(reads=True)
        stored, self._stored = self._stored, 0
        return CapChange(day=self._midnight(), tokens=(TokenCount(_COUNTER, stored, 0),))

    @property
    def is_shared(self) -> bool:
        """True if asking for startable jobs reserves for them, in the database."""
        return self._shared is not None and self._limit > 0

    async def startable_jobs(self, pending: int) -> int:
        """Return the number of *pending* jobs that may start now; `reserve` is to follow. Raises StoreUnavailable."""
        if not self._limit:
            return pending
        await self._open_day()
        fitting = self._fitting(pending) if self._shared is None else await self._offer(self._shared, pending)
        if not fitting and not self._held and self._told != self._day:
            self._told = self._day
            log.warning("background.budget_spent", limit=self._limit, spent=self._tokens_used, waits_until="tomorrow")
        return fitting

    def _fitting(self, pending: int) -> int:
        left = self._limit - self._reserved()
        # A limit below a single job's guess is still good for one job a day.
        return min(pending, left // min(self._guess, self._limit)) if left > 0 else 0

    async def _offer(self, shared_caps: SqlSharedCaps, pending: int) -> int:
        """Reserve for as many of *pending* jobs as all gateways together may start."""
        guess, own = self._guess, self._own_count()
        left = self._limit - own.total

        def decide(counts: SharedCapCounts) -> tuple[CapChange | None, tuple[int, TokenCount]]:
            elsewhere = counts.elsewhere.get(_COUNTER, _NOTHING)
            free = left - elsewhere.total
            fitting = min(pending, free // min(guess, self._limit)) if free > 0 else 0
            reserved = TokenCount(_COUNTER, own.spent, own.held + fitting * guess)
            return CapChange(day=day, tokens=(reserved,)) if fitting else None, (fitting, elsewhere)

        day = self._midnight()
        self._offered = pending  # what is stored meanwhile contains it
        fitting = 0
        try:
            fitting, self._elsewhere = await shared_caps.judge(self._query(), decide)
        finally:
            self._offered = fitting
            if not fitting:
                self._post()
        return fitting

    def reserve(self, *jobs: str) -> None:
        """Reserve what each of the starting *jobs* is likely to take; others that could start are free again."""
        self._held.update(dict.fromkeys(jobs, 0))
        if self._offered:
            self._offered = 0
            self._post()

    def settle(self, job: str) -> None:
        """End the reservation: record the tokens that the job used, and estimate the next job's use from them."""
        taken = self._held.pop(job, None)
        if taken is None:
            return
        self._guess = max(_LEAST_GUESS, taken, (3 * self._guess + taken) // 4)
        self._post()

    async def budget(self) -> BudgetStatus:
        """Return the budget's status. Raises StoreUnavailable."""
        await self._open_day()
        if self._shared is not None:
            self._elsewhere = await self._shared.judge(
                self._query(), lambda counts: (None, counts.elsewhere.get(_COUNTER, _NOTHING))
            )
        left = self._limit - self._tokens_used
        return BudgetStatus(
            limit=self._limit,
            spent=self._tokens_used,
            is_spent=bool(self._limit) and left < min(self._guess, self._limit),
        )

    @property
    def _tokens_used(self) -> int:
        return self._stored + self._noted + self._elsewhere.spent

    def _reserved(self) -> int:
        """Return the tokens used plus those reserved by running jobs."""
        return self._stored + self._own_count().total

    def _own_count(self) -> TokenCount:
        held = sum(max(self._guess - taken, 0) for taken in self._held.values())
        return TokenCount(_COUNTER, self._noted, held + self._offered * self._guess)

    def _post(self) -> None:
        """Store what this gateway has spent and reserved, where others count it."""
        if self._shared is not None and self._limit:
            self._shared.post(CapChange(day=self._midnight(), tokens=(self._own_count(),)))

    def _query(self) -> CapQuery:
        return CapQuery(names=(_COUNTER,), day=self._midnight(), since=self._now())

    def _midnight(self) -> datetime:
        local = self._now().astimezone(self._zone)
        return (local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0) + timedelta(days=1)).astimezone(UTC)

    async def _open_day(self, *, reads: bool = False) -> None:
        """Read the usage rows once a day of the zone; not where the shared counts have them, unless it *reads*."""
        local = self._now().astimezone(self._zone)
        if self._day == local.date():
            return
        # Rows noted from here on are queued behind the journal's read, so its sum does not contain them.
        self._noted, self._elsewhere = 0, _NOTHING
        if self._shared is not None and not reads:
            self._day = local.date()
            return
        rows = await self._usage.totals(since=local.replace(hour=0, minute=0, second=0, microsecond=0))
        self._stored = sum(row["tokens_in"] + row["tokens_out"] for row in rows if row["purpose"] not in FOREGROUND)
        self._day = local.date()
