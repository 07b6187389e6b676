"""Daily token budget of background jobs.

The journal's usage rows are authoritative, so a restart counts nothing twice; later calls are added in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

import structlog

from gateway.ports import UsageStore

log = structlog.get_logger(__name__)

MEMORY_PURPOSES = frozenset({"consolidation", "note", "flush", "dream"})  # calls that write memory
FOREGROUND = frozenset({"answer", "transcription"})  # purposes that a user waits for; the rest is background
_FIRST_GUESS = 10_000  # tokens of a job, until one has been seen
_LEAST_GUESS = 2_000


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

    def __init__(self, usage: UsageStore, *, limit: int, zone: str, now: Callable[[], datetime]) -> None:
        """Allow *limit* tokens per day of *zone*; 0 = no limit."""
        self._usage = usage
        self._limit = limit
        self._zone = ZoneInfo(zone)
        self._now = now
        self._day: date | None = None
        self._stored = 0  # sum of the usage rows when they were read
        self._noted = 0  # added since
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

    async def startable_jobs(self, pending: int) -> int:
        """Return how many of *pending* jobs may start now. Raises StoreUnavailable."""
        if not self._limit:
            return pending
        await self._open_day()
        left = self._limit - self._reserved()
        # A limit below a single job's guess is still good for one job a day.
        fitting = min(pending, left // min(self._guess, self._limit)) if left > 0 else 0
        if not fitting and not self._held and self._told != self._day:
            self._told = self._day
            log.warning("background.budget_spent", limit=self._limit, spent=self._tokens_used, waits_until="tomorrow")
        return fitting

    def reserve(self, job: str) -> None:
        """Reserve what a job is likely to take."""
        self._held[job] = 0

    def settle(self, job: str) -> None:
        """End the reservation: record the tokens that the job used, and estimate the next job's use from them."""
        taken = self._held.pop(job, None)
        if taken is None:
            return
        self._guess = max(_LEAST_GUESS, taken, (3 * self._guess + taken) // 4)

    async def budget(self) -> BudgetStatus:
        """Return the budget's status. Raises StoreUnavailable."""
        await self._open_day()
        left = self._limit - self._tokens_used
        return BudgetStatus(
            limit=self._limit,
            spent=self._tokens_used,
            is_spent=bool(self._limit) and left < min(self._guess, self._limit),
        )

    @property
    def _tokens_used(self) -> int:
        return self._stored + self._noted

    def _reserved(self) -> int:
        """Return the tokens used plus those reserved by running jobs."""
        return self._tokens_used + sum(max(self._guess - taken, 0) for taken in self._held.values())

    async def _open_day(self) -> None:
        """Read the usage rows once a day of the zone."""
        local = self._now().astimezone(self._zone)
        if self._day == local.date():
            return
        # Rows noted from here on are queued behind the journal's read, so its sum does not contain them.
        self._noted = 0
        rows = await self._usage.totals(since=local.replace(hour=0, minute=0, second=0, microsecond=0))
        self._stored = sum(row["tokens_in"] + row["tokens_out"] for row in rows if row["purpose"] not in FOREGROUND)
        self._day = local.date()
