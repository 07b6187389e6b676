"""Usage caps: limits on turns, tokens, money and tool calls of people, chats and the installation.

**Counted.** Turns: those that call a model, once per turn id however often the turn is retried. Commands, approval
questions and refused turns do not count. Tokens: input and output, cached ones included, of the calls that a user
waits for (`COUNTED`). Background jobs (summaries, Dream, embeddings) have a separate token budget
(agent/memory/jobs/token_budget.py). Money: US dollars of the same calls, in micro-dollars. A call of a model without a
known price counts nothing, and owners get an alert. Tool calls: those of a kind, per person and day.

**Overrun.** Turns: none. Tokens: each call reserves the estimate of its prompt and `ANSWER_TOKENS` for its answer. It
starts only if all spent and reserved tokens fit under each cap with it. So a day's total is at most the cap and the
excess of the calls that were in flight when it was reached over their reservations. Money: the same, with the prices of
those tokens.

**Durability.** Usage rows and `cap_told` in the journal are the source of truth, read once at the start. This module
writes nothing and keeps no more than the turns of ten minutes per person and chat.

**Several gateways** on one database count in its tables (`SqlSharedCaps`). Memory then has the use
of this gateway alone. The rules are the same; they judge counts of all gateways, and are asked in the
transaction that stores the turn or the reservation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from cachetools import LRUCache

from gateway.access.refusal_log import OtherRefusal, RefusalLog
from gateway.access.usage_counters import HOUSE, WINDOW, UsageCounters, cost_names, counter_names
from gateway.events import InboundKind, InboundMessage, PlatformAccount
from gateway.i18n.formats import find_midnight
from gateway.installation import operator_command
from gateway.ports.access import (
    MICROS,
    NO_QUOTA,
    TOOL_CALLS,
    CapAllowance,
    CapChange,
    CapKind,
    CappedSender,
    CapQuery,
    CapReached,
    CountedEntry,
    ExceededCap,
    PersonQuota,
    Release,
    SharedCapCounts,
    TokenCount,
    ToolAllowance,
    micro_dollars,
)
from gateway.ports.journal import CapNotice, UsageRow
from gateway.ports.metrics import MetricsRecorder

if TYPE_CHECKING:
    from gateway.store.usage import SqlCapUsage, SqlSharedCaps, SqlUsage


COUNTED = frozenset({"answer", "transcription", "speech", "picture"})  # purposes of calls that a person waits for
ANSWER_TOKENS = 1_000  # reserved for an answer
FIRST_TURNS = 20  # in ten minutes, for senders admitted by a chat or by `*`
FIRST_TOKENS = 500_000  # a day, of the same: some fifty answers over a long conversation

_MOST_CALLS = 10_000  # tool calls that are kept by their keys
_OF_ALL = (HOUSE, *cost_names((HOUSE,)))
_DAY = timedelta(days=2)  # longer than any day, and than a clock is put right by without being noticed

_SETTINGS = {
    CapKind.PERSON_TURNS: "person_turns_per_10_min",
    CapKind.CHAT_TURNS: "chat_turns_per_10_min",
    CapKind.OWN_TURNS: "person_turns_per_10_min",
    CapKind.PERSON_TOKENS: "person_tokens_per_day",
    CapKind.CHAT_TOKENS: "chat_tokens_per_day",
    CapKind.OWN_TOKENS: "person_tokens_per_day",
    CapKind.HOUSE_TOKENS: "tokens_per_day",
    CapKind.PERSON_COST: "person_usd_per_day",
    CapKind.CHAT_COST: "chat_usd_per_day",
    CapKind.HOUSE_COST: "usd_per_day",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CapLimits:
    """Limits set by the operator; None = not set, 0 = no limit. A set limit applies to owners, too."""

    person_turns: int | None = None
    chat_turns: int | None = None
    person_tokens: int | None = None
    chat_tokens: int | None = None
    installation_tokens: int | None = None
    person_cost: int | None = None  # micro-dollars
    chat_cost: int | None = None
    installation_cost: int | None = None
    quota: PersonQuota = NO_QUOTA  # of the sender alone, over the caps of persons above


@dataclass(frozen=True, slots=True)
class CapRule:
    """A cap as it holds for one turn."""

    cap: CapKind
    limit: int
    names: tuple[str, ...]  # the counters that it adds up
    told_as: str  # name of the window
    told_in: str  # chat that a notice would be sent to
    is_quota: bool = False  # an owner set it for this person


@dataclass(slots=True)
class _ActiveTurn:
    tallies: tuple[str, ...]
    rules: tuple[CapRule, ...]
    users: int = 1  # the turn itself, and calls that follow it


class UsageCapTracker:
    """Counts turns, tokens, money and tool calls; durable counts are stored with the journal's commits.

    Implements `gateway.ports.access.ToolCallCaps`.

    A gateway that has the database for itself counts in memory, and no method waits. Of several, each asks the
    database (`SqlSharedCaps`); methods that do raise StoreUnavailable.
    """

    def __init__(
        self,
        *,
        limits: Callable[[CappedSender], CapLimits],
        zone: str,
        now: Callable[[], datetime],
        meter: MetricsRecorder,
        refusals: RefusalLog,
        tool_limits: Mapping[str, int],
        store_row: Callable[[UsageRow], None],
        shared_caps: SqlSharedCaps | None = None,
    ) -> None:
        """*limits* returns the limits of a sender in a chat; *shared_caps* has the counts of several gateways.

        *tool_limits* are by kind of tool, 0 = no limit; the row of a call is handed to *store_row*.
        """
        self._limits = limits
        self._zone = ZoneInfo(zone)
        self._now = now
        self._meter = meter
        self._refusals = refusals
        self._tool_limits = {kind: limit for kind, limit in tool_limits.items() if limit}
        self._store_row = store_row
        self._shared = shared_caps
        self._tallies = UsageCounters()
        self._tool_calls: Counter[tuple[str, str]] = Counter()  # since midnight, by account and kind
        self._counted_calls: LRUCache[str, bool] = LRUCache(_MOST_CALLS)  # by their keys
        self._entered: dict[str, _ActiveTurn] = {}
        self._installation_limits: Mapping[CapKind, int] = {}
        self._elsewhere: dict[str, int] = {}  # the installation's use at other gateways, as the last decision saw it

    async def warm(
        self, rows: SqlCapUsage, usage: SqlUsage, *, installation_limits: Mapping[CapKind, int | None]
    ) -> None:
        """Load the counts of the journal; call it before the first turn. Raises StoreUnavailable."""
        self._installation_limits = {cap: limit for cap, limit in installation_limits.items() if limit}
        now = self._open_day()
        start = find_midnight(now, self._zone)
        self._tallies.restore(await rows.load_usage(window=now - WINDOW, day=start, purposes=COUNTED))
        self._tool_calls.update(await usage.tool_calls(since=start))
        self._counted_calls.update(dict.fromkeys(await usage.interrupted_tool_calls(), True))

    def hand_over(self) -> CapChange:
        """Return the counts that `warm` has loaded, and keep none of them: the shared counts have them."""
        loaded, self._tallies = self._tallies, UsageCounters()
        calls = tuple(
            TokenCount(_call_counter(kind, name), number, 0) for (name, kind), number in self._tool_calls.items()
        )
        now = self._open_day()  # which forgets the calls
        tokens = (*loaded.all_tokens(), *calls)
        return CapChange(day=self._midnight(now), tokens=tokens, entries=loaded.all_turns())

    # -- the port ---------------------------------------------------------------------------------------

    async def admit_turn(self, message: InboundMessage, turn: str, sender: CappedSender) -> ExceededCap | None:
        """Count *turn*, once however often it is taken up, before anything is done for it; or say which cap forbids it.

        A turn that was admitted must `end_turn`.
        """
        now = self._open_day()
        rules = self._rules(message, sender)
        tallies = counter_names(sender.account.name, str(message.key), is_own=message.kind is InboundKind.JOB)
        if self._shared is None:
            exceeded = self._judge_turn(self._tallies, rules, turn, now)
            if exceeded is not None:
                return self._mark_notified(exceeded, turn, now)
            self._tallies.begin(tallies, turn, now)
        else:
            entries = tuple(CountedEntry(name, turn, now) for name in tallies if name != HOUSE)
            change = CapChange(day=self._midnight(now), entries=entries)
            exceeded = await self._judge_shared(
                self._shared, rules, turn, now, change, lambda counters: self._judge_turn(counters, rules, turn, now)
            )
            if exceeded is not None:
                return exceeded
        self._enter(turn, tallies, rules)
        return None

    def admit_calls(self, message: InboundMessage, turn: str, sender: CappedSender) -> None:
        """Apply the caps of *turn* to model calls that follow it; it is not counted again. `end_turn` ends that."""
        tallies = counter_names(sender.account.name, str(message.key), is_own=message.kind is InboundKind.JOB)
        self._enter(turn, tallies, self._rules(message, sender))

    def _enter(self, turn: str, tallies: tuple[str, ...], rules: tuple[CapRule, ...]) -> None:
        if (entered := self._entered.get(turn)) is None:
            self._entered[turn] = _ActiveTurn(tallies, rules)
        else:
            entered.users += 1

    def end_turn(self, turn: str) -> None:
        """End what `admit_turn` or `admit_calls` began; the turn stays counted."""
        if (entered := self._entered.get(turn)) is not None:
            entered.users -= 1
            if entered.users <= 0:
                del self._entered[turn]

    def has_cost_cap(self, turn: str) -> bool:
        """Return True if a cap in money applies to an admitted turn."""
        entered = self._entered.get(turn)
        return entered is not None and any(rule.cap.is_cost for rule in entered.rules)

    async def reserve(self, turn: str, tokens: int, cost: int = 0) -> Release:
        """Reserve *tokens* and micro-dollars for a model call of an admitted turn. The end of the call releases them.

        Raises CapReached if they exceed a cap of the turn. Calls outside such a turn are not capped: background jobs
        have a separate token budget.
        """
        entered = self._entered.get(turn)
        if entered is None:
            return lambda: None
        now, tallies = self._open_day(), entered.tallies
        rules = tuple(rule for rule in entered.rules if rule.cap.is_daily)

        def hold(factor: int) -> None:
            self._tallies.hold(tallies, factor * tokens)
            if cost:
                self._tallies.hold(cost_names(tallies), factor * cost)

        if self._shared is None:
            if (exceeded := self._judge_amounts(self._tallies, rules, tokens, cost, turn, now)) is not None:
                raise CapReached(self._mark_notified(exceeded, turn, now))
            hold(1)
            return lambda: hold(-1)
        shared_caps = self._shared

        def release() -> None:
            hold(-1)
            shared_caps.post(self._own_use_of(tallies))

        # Before the database is asked: whatever this gateway asks next counts it too.
        hold(1)
        try:
            exceeded = await self._judge_shared(
                shared_caps, rules, turn, now, self._own_use_of(tallies),
                lambda counters: self._judge_amounts(counters, rules, 0, 0, turn, now),
            )  # fmt: skip
        except BaseException:  # it may be stored, also when the caller is cancelled
            release()
            raise
        if exceeded is not None:
            release()
            raise CapReached(exceeded)
        return release

    def note_refusal(self, messages: Iterable[InboundMessage], exceeded: ExceededCap) -> None:
        """Note that *messages* end unanswered, so that metrics and `parlour why` can say so."""
        setting, ends = _SETTINGS[exceeded.cap].upper(), exceeded.until.astimezone(self._zone)
        is_cost = exceeded.cap.is_cost
        twice = f"{2 * exceeded.limit / MICROS:.15g}" if is_cost else str(2 * exceeded.limit)
        raised = f"PARLOUR_CAPS__{setting}={twice}"
        option = "--usd" if is_cost else "--tokens" if exceeded.cap.is_daily else "--turns"
        for message in messages:
            if exceeded.is_quota:
                who = f"{message.key.channel}:{message.sender.id}"
                raised = operator_command(f"people quota {who} {option} {twice}")
            mend = f"{raised}  # or wait until {ends:%Y-%m-%d %H:%M} {self._zone.key}"
            self._meter.count("cap_refusals", cap=exceeded.cap.value)
            self._refusals.note(message, OtherRefusal(reason=exceeded.cap, would_admit=mend), self._now())

    async def allowances(self, message: InboundMessage | None, sender: CappedSender) -> tuple[CapAllowance, ...]:
        """Return use and limit of each cap that applies to the sender of *message*; without one, of their person."""
        now, rules = self._open_day(), self._rules(message, sender)
        if self._shared is None:
            return self._allowances(self._tallies, rules, now)
        own_use = self._own_use(rules)
        return await self._shared.judge(
            self._query(rules, now),
            lambda counts: (None, self._allowances(_counters_of(counts, own_use), rules, now)),
        )

    # -- tool calls -------------------------------------------------------------------------------------

    def exceeded_tool_cap(self, kind: str, accounts: Sequence[PlatformAccount], *, call: str) -> ToolAllowance | None:
        """Return the cap that a *call* of *kind* would exceed; None if it may run."""
        allowance = self._tool_allowance(kind, accounts)
        is_free = allowance is None or allowance.used < allowance.limit or call in self._counted_calls
        return None if is_free else allowance

    def note_tool_refusal(self, kind: str) -> None:
        """Count a call of *kind* that its cap refused."""
        self._meter.count("cap_refusals", cap=f"{kind}-calls")

    async def count_tool_call(
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
        if kind not in self._tool_limits or call in self._counted_calls:
            return None
        now = self._open_day()
        if self._shared is not None:
            entry = CountedEntry(_call_counter(kind, account.name), call, now)
            if not await self._count_shared_call(self._shared, kind, accounts, entry):
                return self._tool_allowance(kind, accounts)
        self._counted_calls[call] = True
        self._tool_calls[account.name, kind] += 1
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
                at=now,
                call=call,
            )
        )
        return None

    async def _count_shared_call(
        self,
        shared_caps: SqlSharedCaps,
        kind: str,
        accounts: Sequence[PlatformAccount],
        entry: CountedEntry | None = None,
    ) -> bool:
        """Learn of the calls of all gateways, and count *entry* with them; False if the cap forbids it."""
        now, limit = self._open_day(), self._tool_limits[kind]
        day = self._midnight(now)
        counters = {_call_counter(kind, each.name): each.name for each in accounts}

        def decide(counts: SharedCapCounts) -> tuple[CapChange | None, tuple[bool, Counter[str]]]:
            before = [each for each in counts.entries if entry is None or each.entry != entry.entry]
            used = Counter(counters[each.name] for each in before)
            used.update({counters[name]: count.spent for name, count in counts.elsewhere.items()})
            is_counted = len(before) < len(counts.entries)  # it runs again after a kill
            if entry is None or is_counted or used.total() >= limit:
                return None, (is_counted, used)
            return CapChange(day=day, entries=(entry,)), (True, used)

        query = CapQuery(names=tuple(counters), day=day, since=find_midnight(now, self._zone))
        may_run, used = await shared_caps.judge(query, decide)
        for each in accounts:
            self._tool_calls[each.name, kind] = used[each.name]
        return may_run

    async def tool_allowances(self, accounts: Sequence[PlatformAccount]) -> tuple[ToolAllowance, ...]:
        """Return use and limit of each kind that has one."""
        if self._shared is not None:
            for kind in self._tool_limits:
                await self._count_shared_call(self._shared, kind, accounts)
        found = (self._tool_allowance(kind, accounts) for kind in self._tool_limits)
        return tuple(each for each in found if each is not None)

    def _tool_allowance(self, kind: str, accounts: Sequence[PlatformAccount]) -> ToolAllowance | None:
        if kind not in self._tool_limits:
            return None
        until = self._midnight(self._open_day())
        used = sum(self._tool_calls[each.name, kind] for each in accounts)
        return ToolAllowance(kind=kind, used=used, limit=self._tool_limits[kind], until=until)

    # -- the installation -------------------------------------------------------------------------------

    def spend(self, *, turn: str, person: str, chat: str, purpose: str, tokens: int, cost: int = 0) -> None:
        """Count what a call took, *cost* in micro-dollars. Of other purposes than `COUNTED`, nothing."""
        if purpose not in COUNTED:
            return
        self._open_day()
        tallies = counter_names(person, chat, is_own=self.is_own(turn))
        self._tallies.spend(tallies, tokens)
        if cost:
            self._tallies.spend(cost_names(tallies), cost)
        if self._shared is not None and turn not in self._entered:  # whose release stores it too
            self._shared.post(self._own_use_of(tallies))

    def is_own(self, turn: str) -> bool:
        """Return True if an admitted turn was started by a job."""
        entered = self._entered.get(turn)
        return entered is not None and any(name.startswith("own/") for name in entered.tallies)

    def installation_usage(self) -> CapAllowance | None:
        """Return the installation's use of its daily cap that is nearest to its limit, for alerts; None without caps.

        Cheap: an addition for each. Use never falls within a day, and `until`, the midnight of the next reset, names
        the day, so 80 and 100 % are each passed at most once a day. Use by other gateways is as of the last call of
        this one.
        """
        now, found = self._open_day(), list[CapAllowance]()
        for cap, limit in self._installation_limits.items():
            (name,) = cost_names((HOUSE,)) if cap.is_cost else (HOUSE,)
            used = self._tallies.amount((name,)) + self._elsewhere.get(name, 0)
            found.append(CapAllowance(cap=cap, used=used, limit=limit, until=self._midnight(now)))
        return max(found, key=lambda each: each.used / each.limit, default=None)

    # -- the counts of all gateways ---------------------------------------------------------------------

    async def _judge_shared(
        self,
        shared_caps: SqlSharedCaps,
        rules: tuple[CapRule, ...],
        turn: str,
        now: datetime,
        change: CapChange,
        judge: Callable[[UsageCounters], ExceededCap | None],
    ) -> ExceededCap | None:
        """Store *change* if *judge* finds no cap exceeded; otherwise claim the notice, and return the cap."""
        if not rules:  # counted for those who have caps elsewhere; nothing depends on it now
            shared_caps.post(change)
            return None
        own_use = self._own_use(rules)

        def decide(counts: SharedCapCounts) -> tuple[CapChange, tuple[ExceededCap | None, dict[str, int]]]:
            elsewhere = {name: counts.elsewhere[name].total for name in _OF_ALL if name in counts.elsewhere}
            exceeded = judge(_counters_of(counts, own_use))
            if exceeded is None:
                return change, (None, elsewhere)
            notices = () if exceeded.notice is None else ((exceeded.notice, turn),)
            return CapChange(day=change.day, notices=notices), (exceeded, elsewhere)

        exceeded, elsewhere = await shared_caps.judge(self._query(rules, now), decide)
        self._elsewhere |= elsewhere
        return exceeded

    def _query(self, rules: tuple[CapRule, ...], now: datetime) -> CapQuery:
        return CapQuery(
            names=tuple(dict.fromkeys(name for rule in rules for name in rule.names)),
            day=self._midnight(now),
            since=now - WINDOW,
            notices=tuple(rule.told_as for rule in rules),
        )

    def _own_use(self, rules: Iterable[CapRule]) -> Mapping[str, int]:
        return {name: self._tallies.amount((name,)) for rule in rules for name in rule.names}

    def _own_use_of(self, tallies: Sequence[str]) -> CapChange:
        names = (*tallies, *self._tallies.filter_used(cost_names(tallies)))
        return CapChange(day=self._midnight(self._open_day()), tokens=self._tallies.token_counts(names))

    # -- inside -----------------------------------------------------------------------------------------

    def _judge_turn(
        self, counters: UsageCounters, rules: Iterable[CapRule], turn: str, now: datetime
    ) -> ExceededCap | None:
        """Return the exceeded cap that lasts longest."""
        found = (self._find_exceeded(counters, rule, turn, now) for rule in rules)
        return max((each for each in found if each is not None), key=lambda each: each.until, default=None)

    def _judge_amounts(
        self, counters: UsageCounters, rules: Iterable[CapRule], tokens: int, cost: int, turn: str, now: datetime
    ) -> ExceededCap | None:
        """Return the first of *rules*, which are all daily, that *tokens* or *cost* more would exceed."""
        for rule in rules:
            if counters.amount(rule.names) + (cost if rule.cap.is_cost else tokens) > rule.limit:
                # The cap counts as reached: the rest is too small for a prompt, and retries would fail again.
                return self._exceeded_until(counters, rule, self._midnight(now), turn, now)
        return None

    def _rules(self, message: InboundMessage | None, sender: CappedSender) -> tuple[CapRule, ...]:
        """Return the caps of a turn, without a *message* those of its sender's person.

        Without settings, only senders admitted by a chat and turns of jobs have caps.
        """
        limits, chat = self._limits(sender), "" if message is None else str(message.key.parent)

        found: list[CapRule] = []

        def add(cap: CapKind, limit: int | None, names: tuple[str, ...], whose: str, *, is_quota: bool = False) -> None:
            if limit:
                counted = cost_names(names) if cap.is_cost else names
                found.append(CapRule(cap, limit, counted, f"{cap}/{whose}", chat, is_quota))

        own_turns = FIRST_TURNS if limits.person_turns is None else limits.person_turns
        own_tokens = FIRST_TOKENS if limits.person_tokens is None else limits.person_tokens
        if message is not None and message.kind is InboundKind.JOB:
            # A reminder that schedules the next one would never stop by itself.
            own = (f"own/{chat}",)
            add(CapKind.OWN_TURNS, own_turns, own, chat)
            add(CapKind.OWN_TOKENS, own_tokens, own, chat)
        accounts, quota = tuple(each.name for each in sender.accounts), limits.quota
        mine = tuple(f"person/{each}" for each in accounts)
        for cap, set_limit, setting, first in (
            (CapKind.PERSON_TURNS, quota.turns, limits.person_turns, own_turns),
            (CapKind.PERSON_TOKENS, quota.tokens, limits.person_tokens, own_tokens),
        ):
            usual = setting if sender.is_named else first
            has_quota = set_limit is not None
            add(cap, set_limit if has_quota else usual, mine, accounts[0], is_quota=has_quota)
        has_quota = quota.usd is not None
        person_cost = limits.person_cost if quota.usd is None else micro_dollars(quota.usd)
        add(CapKind.PERSON_COST, person_cost, mine, accounts[0], is_quota=has_quota)
        if message is not None:
            here = (f"chat/{chat}",)
            add(CapKind.CHAT_TURNS, limits.chat_turns, here, chat)
            add(CapKind.CHAT_TOKENS, limits.chat_tokens, here, chat)
            add(CapKind.CHAT_COST, limits.chat_cost, here, chat)
            add(CapKind.HOUSE_TOKENS, limits.installation_tokens, (HOUSE,), chat)
            add(CapKind.HOUSE_COST, limits.installation_cost, (HOUSE,), chat)
        return tuple(found)

    def _find_exceeded(self, counters: UsageCounters, rule: CapRule, turn: str, now: datetime) -> ExceededCap | None:
        notice = _notified_window(counters, rule, now)
        if rule.cap.is_daily:
            is_free = notice is None and counters.amount(rule.names) < rule.limit
            return (
                None
                if is_free
                else self._exceeded_until(counters, rule, notice.until if notice else self._midnight(now), turn, now)
            )
        before = counters.times_before(rule.names, turn, now)
        # An admitted turn is admitted again on retry, whatever notices were sent since.
        if len(before) < rule.limit and (notice is None or counters.is_counted(rule.names, turn)):
            return None
        until = notice.until if notice else _half_free(before, rule.limit)
        return self._exceeded_until(counters, rule, until, turn, now)

    def _exceeded_until(
        self, counters: UsageCounters, rule: CapRule, until: datetime, turn: str, now: datetime
    ) -> ExceededCap:
        notice = _notified_window(counters, rule, now)
        is_news = notice is None or counters.needs_notice(rule.told_as, rule.told_in, turn)
        mark = CapNotice(name=rule.told_as, chat=rule.told_in, until=until, limit=rule.limit) if is_news else None
        return ExceededCap(cap=rule.cap, limit=rule.limit, until=until, notice=mark, is_quota=rule.is_quota)

    def _mark_notified(self, exceeded: ExceededCap, turn: str, now: datetime) -> ExceededCap:
        if exceeded.notice is not None:
            self._tallies.mark_notified(exceeded.notice, turn, now)
        return exceeded

    def _allowances(self, counters: UsageCounters, rules: Iterable[CapRule], now: datetime) -> tuple[CapAllowance, ...]:
        return tuple(self._allowance_of(counters, rule, now) for rule in rules)

    def _allowance_of(self, counters: UsageCounters, rule: CapRule, now: datetime) -> CapAllowance:
        notice = _notified_window(counters, rule, now)
        if rule.cap.is_daily:
            used = counters.amount(rule.names)
            until = self._midnight(now) if used or notice else None
        else:
            before = counters.times_before(rule.names, "", now)
            used = len(before)
            until = _half_free(before, rule.limit) if used >= rule.limit else None
        if notice is not None:
            used, until = max(used, rule.limit), notice.until
        return CapAllowance(cap=rule.cap, used=used, limit=rule.limit, until=until)

    def _open_day(self) -> datetime:
        now = self._now()
        if self._tallies.day is None or now >= self._tallies.day or self._tallies.day - now > _DAY:
            self._tallies.open_day(self._midnight(now))
            self._elsewhere.clear()
            self._tool_calls.clear()
        return now

    def _midnight(self, now: datetime) -> datetime:
        return find_midnight(now, self._zone, days=1)


def _notified_window(counters: UsageCounters, rule: CapRule, now: datetime) -> CapNotice | None:
    longest = _DAY if rule.cap.is_daily else WINDOW
    return counters.notified_window(rule.told_as, rule.limit, now, longest=longest)


def _half_free(before: Sequence[datetime], limit: int) -> datetime:
    """Return when half of a full window is free: not before, or each turn that ends would bring another refusal."""
    return before[-limit:][(limit + 1) // 2 - 1] + WINDOW


def _counters_of(counts: SharedCapCounts, own_use: Mapping[str, int]) -> UsageCounters:
    """Return counters of all gateways; *own_use* is the use of this one, by name."""
    counters = UsageCounters()
    for each in counts.entries:
        counters.begin((each.name,), each.entry, each.at)
    for name, tokens in own_use.items():
        counters.spend((name,), tokens)
    for name, count in counts.elsewhere.items():
        counters.spend((name,), count.total)
    for notice, turn in counts.notices:
        counters.mark_notified(notice, turn, notice.until)
    return counters


def _call_counter(kind: str, account: str) -> str:
    """Return the name of the shared count of an account's calls of *kind*."""
    return f"tool/{kind}/{account}"
