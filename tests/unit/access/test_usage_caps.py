"""Caps: who has which, what counts, when it ends, who is told, and what a restart knows of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from gateway.access.refusal_log import RefusalLog
from gateway.access.usage_caps import FIRST_TOKENS, FIRST_TURNS, CapLimits, UsageCapTracker
from gateway.events import ChatKind, InboundKind, InboundMessage, PlatformAccount, Sender, SessionKey
from gateway.ports.access import (
    CapAllowance,
    CapKind,
    CappedSender,
    CapReached,
    ExceededCap,
    PersonQuota,
    format_micro_dollars,
    micro_dollars,
)
from gateway.ports.journal import CapNotice
from gateway.store.usage import CapUsage, SpentTokens, SqlCapUsage, SqlUsage, StartedTurn
from tests.fakes.clock import at_once
from tests.fakes.meter import FakeMeter

NOON = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)  # in Berlin
MIDNIGHT = datetime(2026, 11, 21, 23, 0, tzinfo=UTC)
NONE_SET = CapLimits()
LINKED = {"slack:ann": ("telegram:ann", "slack:ann"), "telegram:ann": ("telegram:ann", "slack:ann")}


def build_message(
    by: str = "bob", chat: str = "slack:C1", kind: InboundKind = InboundKind.MESSAGE, number: str = "1"
) -> InboundMessage:
    """Return something that was said in a group."""
    return InboundMessage(
        key=SessionKey.parse(chat),
        message_id=number,
        sender=Sender(id=by),
        text="?",
        sent_at=NOON,
        kind=kind,
        chat_kind=ChatKind.GROUP,
    )


@dataclass
class CapScene:
    """A ledger, its clock, and the rows that the journal would hold."""

    limits: CapLimits = NONE_SET
    named: frozenset[str] = frozenset()
    now: datetime = NOON
    meter: FakeMeter = field(default_factory=FakeMeter)
    refusals: RefusalLog = field(default_factory=RefusalLog)
    begun: list[StartedTurn] = field(default_factory=list)
    spent: list[SpentTokens] = field(default_factory=list)
    told: list[CapNotice] = field(default_factory=list)
    turns: int = 0

    def __post_init__(self) -> None:
        self.ledger = self.open()

    def open(self) -> UsageCapTracker:
        """Return a ledger that knows nothing yet."""
        return UsageCapTracker(
            limits=lambda _: self.limits,
            zone="Europe/Berlin",
            now=lambda: self.now,
            meter=self.meter,
            refusals=self.refusals,
            tool_limits={},
            store_row=lambda _: None,
        )

    async def restart(self) -> None:
        """Begin anew with what the journal holds."""
        self.ledger = self.open()
        limits = {
            CapKind.HOUSE_TOKENS: self.limits.installation_tokens,
            CapKind.HOUSE_COST: self.limits.installation_cost,
        }
        await self.ledger.warm(cast("SqlCapUsage", self), cast("SqlUsage", self), installation_limits=limits)

    async def tool_calls(self, *, since: datetime) -> dict[tuple[str, str], int]:
        """Return no calls: these tests make none."""
        return {}

    async def interrupted_tool_calls(self) -> tuple[str, ...]:
        """Return no calls."""
        return ()

    async def load_usage(self, *, window: datetime, day: datetime, purposes: Iterable[str]) -> CapUsage:
        """Return what the journal holds."""
        begun = tuple(each for each in self.begun if each.at > window)
        return CapUsage(turns=begun, tokens=tuple(self.spent), notices=tuple(self.told))

    def ask(
        self,
        message: InboundMessage | None = None,
        *,
        turn: str = "",
        tokens: int = 0,
        cost: int = 0,
        person: str = "",
    ) -> ExceededCap | None:
        """Have a turn of one call, as far as the caps let it; what it leaves is in the rows."""
        self.turns += 1
        message, turn = message or build_message(), turn or f"t{self.turns}"
        person = person or f"{message.key.channel}:{message.sender.id}"
        past = at_once(self.ledger.admit_turn(message, turn, self.sender(message, person)))
        if past is None:
            self.call(message, turn, person, tokens, cost)
            self.ledger.end_turn(turn)
        elif past.notice:
            self.told.append(past.notice)
        return past

    def sender(self, message: InboundMessage, account: str) -> CappedSender:
        """Return what claim knows of the sender."""
        accounts = tuple(map(PlatformAccount.parse, LINKED.get(account, (account,))))
        return CappedSender(
            account=PlatformAccount.parse(account), accounts=accounts, is_named=message.sender.id in self.named
        )

    def call(self, message: InboundMessage, turn: str, person: str, tokens: int, cost: int = 0) -> None:
        """Make a call that takes what it reserved."""
        release = at_once(self.ledger.reserve(turn, tokens, cost))
        chat, is_own, person = str(message.key), self.ledger.is_own(turn), PlatformAccount.parse(person).name
        self.begun.append(StartedTurn(turn=turn, person=person, chat=chat, is_own=is_own, at=self.now))
        self.spent.append(SpentTokens(person=person, chat=chat, is_own=is_own, tokens=tokens, cost=cost))
        self.ledger.spend(turn=turn, person=person, chat=chat, purpose="answer", tokens=tokens, cost=cost)
        release()

    def wait(self, **span: float) -> None:
        """Let time pass."""
        self.now += timedelta(**span)

    def stands(self, message: InboundMessage | None = None) -> dict[CapKind, CapAllowance]:
        """Return how a sender stands, by cap."""
        message = message or build_message()
        sender = self.sender(message, f"{message.key.channel}:{message.sender.id}")
        found = at_once(self.ledger.allowances(message, sender))
        return {each.cap: each for each in found}


def test_who_came_in_by_a_place_has_twenty_turns_in_ten_minutes() -> None:
    """The 21st is refused and told when it ends; then there is silence, until half of the window is free again."""
    scene = CapScene()
    for _ in range(FIRST_TURNS):
        assert scene.ask() is None
        scene.wait(seconds=6)
    past = scene.ask()
    assert past is not None
    assert (past.cap, past.limit, past.until) == (CapKind.PERSON_TURNS, 20, NOON + timedelta(minutes=10, seconds=54))
    assert past.notice is not None
    silent = scene.ask()
    assert silent is not None
    assert silent.notice is None
    assert scene.ask(build_message("carl")) is None  # nobody else is meant
    scene.now = past.until
    assert [scene.ask() is None for _ in range(11)] == [True] * 10 + [False]


def test_never_more_than_the_cap_in_any_ten_minutes() -> None:
    """Whoever writes every second for an hour has at most 120 answers, and 20 in any ten minutes of it."""
    scene = CapScene()
    times, notices = [], 0
    for _ in range(3600):
        past = scene.ask()
        if past is None:
            times.append(scene.now)
        notices += past is not None and past.notice is not None
        scene.wait(seconds=1)
    assert len(times) <= 120
    for at in times:
        assert sum(at <= each < at + timedelta(minutes=10) for each in times) <= 20
    assert notices <= 7  # one for each time that they wrote themselves out of their turns


@pytest.mark.parametrize(("limits", "free"), [(CapLimits(), True), (CapLimits(person_turns=5), False)])
def test_who_is_named_has_no_cap_unless_one_is_set(limits: CapLimits, free: bool) -> None:
    """An owner, or who is let in by their own id, is counted for `/usage` alone; a cap that is set is everybody's."""
    scene = CapScene(limits=limits, named=frozenset({"bob"}))
    assert all(scene.ask(tokens=100_000) is None for _ in range(5))
    assert (scene.ask(tokens=100_000) is None) == free


def test_nought_is_no_cap() -> None:
    """0 takes the caps of those who came in by a place away."""
    scene = CapScene(limits=CapLimits(person_turns=0, person_tokens=0))
    assert all(scene.ask(tokens=FIRST_TOKENS) is None for _ in range(50))
    assert scene.stands() == {}


def test_the_accounts_of_one_person_share() -> None:
    """Linked accounts are counted together, over all bots and platforms."""
    scene = CapScene(limits=CapLimits(person_turns=4))
    for n in range(4):
        assert scene.ask(build_message("ann", ("slack:C1", "telegram:9")[n % 2])) is None
    past = scene.ask(build_message("ann", "slack:C1"))
    assert past is not None
    assert past.notice is not None
    assert [where.notice is not None for where in refused(scene, "ann", "telegram:9", "slack:C1")] == [True, False]


def refused(scene: CapScene, who: str, *chats: str) -> list[ExceededCap]:
    """Return what somebody who is past a cap gets in each of *chats*."""
    found = [scene.ask(build_message(who, chat)) for chat in chats]
    assert None not in found
    return [past for past in found if past is not None]


async def test_who_is_past_a_cap_is_told_in_each_of_their_chats_and_in_five_at_most() -> None:
    """One line a window where they write, over a restart too; whoever tries everywhere is soon told nothing more."""
    scene = CapScene(limits=CapLimits(person_turns=1))
    assert scene.ask() is None
    here, there = refused(scene, "bob", "slack:C1", "slack:C2")
    assert here.notice is not None
    assert there.notice == replace(here.notice, chat="slack:C2")
    await scene.restart()
    asked = [f"slack:C{n}" for n in range(1, 10)]
    assert [past.notice is not None for past in refused(scene, "bob", *asked, *asked)] == [False] * 2 + [True] * 3 + [
        False
    ] * 13
    scene.now = here.until
    assert scene.ask() is None
    assert refused(scene, "bob", "slack:C1")[0].notice is not None


def test_threads_count_for_their_chat() -> None:
    """A chat's cap is that of its threads together, whoever writes there."""
    scene = CapScene(limits=CapLimits(chat_turns=3))
    for n in range(3):
        assert scene.ask(build_message(f"user{n}", f"slack:C1/{n}")) is None
    past = scene.ask(build_message("somebody", "slack:C1"))
    assert past is not None
    assert past.cap is CapKind.CHAT_TURNS
    assert scene.ask(build_message("somebody", "slack:C2")) is None


def test_tokens_of_a_day_end_at_the_houses_midnight() -> None:
    """Spent in Berlin at noon: silence until midnight there, and then the whole of it again."""
    scene = CapScene(limits=CapLimits(person_tokens=1_000))
    assert scene.ask(tokens=600) is None
    with pytest.raises(CapReached) as reached:
        scene.ask(tokens=600)
    assert (reached.value.exceeded.cap, reached.value.exceeded.until) == (CapKind.PERSON_TOKENS, MIDNIGHT)
    assert reached.value.exceeded.notice is not None
    past = scene.ask(tokens=1)
    assert past is not None
    assert past.notice is None  # one line a day
    assert scene.stands()[CapKind.PERSON_TOKENS].used == 1_000
    scene.now = MIDNIGHT
    assert scene.ask(tokens=1_000) is None
    assert scene.stands()[CapKind.PERSON_TOKENS] == CapAllowance(
        cap=CapKind.PERSON_TOKENS, used=1_000, limit=1_000, until=MIDNIGHT + timedelta(days=1)
    )


MONEY = {
    CapKind.PERSON_COST: CapLimits(person_cost=1_000),
    CapKind.CHAT_COST: CapLimits(chat_cost=1_000),
    CapKind.HOUSE_COST: CapLimits(installation_cost=1_000),
}


@pytest.mark.parametrize("cap", MONEY)
async def test_money_of_a_day_ends_at_the_cap_and_returns_at_midnight(cap: CapKind) -> None:
    """A call that would exceed the cap is not made, over a restart too; tokens without a price count nothing."""
    scene = CapScene(limits=MONEY[cap], named=frozenset({"bob"}))
    assert scene.ask(tokens=10**9) is None  # of a model without a price
    assert scene.ask(tokens=1, cost=700) is None
    await scene.restart()
    with pytest.raises(CapReached) as reached:
        scene.ask(tokens=1, cost=301)
    exceeded = reached.value.exceeded
    assert (exceeded.cap, exceeded.limit, exceeded.until) == (cap, 1_000, MIDNIGHT)
    past = scene.ask(tokens=1, cost=1)
    assert past is not None
    assert past.notice is None  # one line a day
    scene.now = MIDNIGHT
    assert scene.ask(tokens=1, cost=1_000) is None
    used = scene.stands()[cap]
    assert (used.used, used.limit, used.until) == (1_000, 1_000, MIDNIGHT + timedelta(days=1))


@pytest.mark.parametrize("cap", MONEY)
def test_calls_side_by_side_cannot_pass_a_cap_in_money_together(cap: CapKind) -> None:
    """What is under way is reserved; what a call did not take is free again when it ends."""
    scene = CapScene(limits=MONEY[cap])
    message = build_message()
    for n in range(12):
        assert at_once(scene.ledger.admit_turn(message, f"p{n}", scene.sender(message, "slack:bob"))) is None
    releases = []
    for n in range(12):
        try:
            releases.append(at_once(scene.ledger.reserve(f"p{n}", 10, 300)))
        except CapReached:
            continue
    assert len(releases) == 3
    for n, release in enumerate(releases):
        scene.ledger.spend(
            turn=f"p{n}", person="slack%3abob", chat="slack:C1", purpose="answer", tokens=10, cost=[0, 100, 300][n]
        )
        release()
    at_once(scene.ledger.reserve("p9", 10, 600))
    with pytest.raises(CapReached):
        at_once(scene.ledger.reserve("p10", 10, 1))


def test_sums_of_money_do_not_drift() -> None:
    """Ten thousand calls of a tenth of a cent are exactly ten dollars, and one more is refused."""
    scene = CapScene(limits=CapLimits(installation_cost=micro_dollars(10)))
    message = build_message()
    assert at_once(scene.ledger.admit_turn(message, "t", scene.sender(message, "slack:bob"))) is None
    for _ in range(10_000):
        scene.ledger.spend(
            turn="t", person="slack%3abob", chat="slack:C1", purpose="answer", tokens=0, cost=micro_dollars(0.001)
        )
    assert scene.stands()[CapKind.HOUSE_COST].used == 10_000_000
    with pytest.raises(CapReached):
        at_once(scene.ledger.reserve("t", 0, 1))


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (150, "$0.00015"),
        (9_999, "$0.009999"),
        (55_950, "$0.0559"),
        (992_130, "$0.9921"),
        (2_500_000, "$2.50"),
        (1_234_567_891, "$1,234.5678"),
        (-5, "$0.00"),
    ],
)
def test_money_is_written_with_at_most_four_decimals(amount: int, text: str) -> None:
    """As /usage writes it; only less than a cent has more, so that no small cap reads as nothing."""
    assert format_micro_dollars(amount) == text


def test_a_quota_in_dollars_replaces_the_cap_of_persons() -> None:
    """An owner gives one person more or less than everybody has; 0 is no cap."""
    scene = CapScene(limits=CapLimits(person_cost=1_000, quota=PersonQuota(usd=0.0005)), named=frozenset({"bob"}))
    with pytest.raises(CapReached) as reached:
        scene.ask(cost=501)
    assert reached.value.exceeded.is_quota
    scene.limits = CapLimits(person_cost=1_000, quota=PersonQuota(usd=0))
    assert scene.ask(cost=10**9) is None


async def test_the_installation_watches_the_cap_that_is_nearest() -> None:
    """Alerts ask for one cap: that of tokens or that of money, whichever is used up first."""
    scene = CapScene(limits=CapLimits(installation_tokens=1_000, installation_cost=1_000))
    await scene.restart()
    assert scene.ask(tokens=100, cost=800) is None
    found = scene.ledger.installation_usage()
    assert found is not None
    assert (found.cap, found.used) == (CapKind.HOUSE_COST, 800)
    assert scene.ask(tokens=850, cost=50) is None
    found = scene.ledger.installation_usage()
    assert found is not None
    assert (found.cap, found.used) == (CapKind.HOUSE_TOKENS, 950)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (1, "$0.000001"), (10_000, "$0.01"), (2_500_000, "$2.50"), (1_234_567_890_000, "$1,234,567.89")],
)
def test_money_is_written_with_cents_and_all_its_digits(amount: int, text: str) -> None:
    """A person reads dollars; nothing is rounded away."""
    assert CapKind.HOUSE_COST.format_amount(amount) == text
    assert CapKind.HOUSE_TOKENS.format_amount(amount) == amount


def test_the_house_tells_each_chat_once() -> None:
    """TOKENS_PER_DAY is everybody's together, and each chat hears of it once."""
    scene = CapScene(limits=CapLimits(installation_tokens=1_000), named=frozenset({"bob"}))
    assert scene.ask(tokens=1_000) is None
    told = [scene.ask(build_message(chat=chat)) for chat in ("slack:C1", "slack:C1/7", "slack:C2")]
    assert [past is not None and past.notice is not None for past in told] == [True, False, True]


async def test_the_house_can_be_watched() -> None:
    """What alerts ask for: how much of the day's tokens is used, and when the next day begins."""
    scene = CapScene(limits=CapLimits(installation_tokens=1_000))
    await scene.restart()
    assert scene.ask(tokens=800) is None
    day = CapAllowance(cap=CapKind.HOUSE_TOKENS, used=800, limit=1_000, until=MIDNIGHT)
    assert scene.ledger.installation_usage() == day
    scene.now = MIDNIGHT
    assert scene.ledger.installation_usage() == replace(day, used=0, until=MIDNIGHT + timedelta(days=1))
    assert CapScene().ledger.installation_usage() is None


def test_what_nobody_typed_is_capped_too() -> None:
    """A job that asks for the next one, of somebody without caps, stops after twenty, and in the end for the day."""
    scene = CapScene(named=frozenset({"bob"}))
    asked = 0
    while (past := scene.ask(build_message(kind=InboundKind.JOB), tokens=1_000)) is None:
        asked += 1
    assert (asked, past.cap) == (20, CapKind.OWN_TURNS)
    assert scene.ask(build_message()) is None  # the person is answered
    for _ in range(200):
        scene.wait(minutes=5)
        try:
            past = scene.ask(build_message(kind=InboundKind.JOB), tokens=100_000)
        except CapReached as reached:
            past = reached.exceeded
            break
    assert past is not None
    assert past.cap is CapKind.OWN_TOKENS


async def test_a_restart_knows_what_was_counted() -> None:
    """Turns, tokens and who was told stand in the journal; killed after each turn, twenty are twenty."""
    scene = CapScene()
    answered = notices = 0
    for _ in range(40):
        past = scene.ask(tokens=10)
        answered += past is None
        notices += past is not None and past.notice is not None
        await scene.restart()
    assert (answered, notices) == (20, 1)
    assert scene.stands()[CapKind.PERSON_TOKENS].used == 200


async def test_a_turn_that_is_taken_up_again_is_the_same_turn() -> None:
    """One that was let in is let in again and counts once, whoever was refused behind it meanwhile."""
    scene = CapScene(limits=CapLimits(person_turns=2))
    assert scene.ask(turn="first") is None
    scene.wait(seconds=1)
    assert scene.ask(turn="second") is None
    scene.wait(seconds=1)
    assert scene.ask(turn="third") is not None
    for _ in range(10):
        await scene.restart()
        assert scene.ask(turn="second") is None
    assert scene.ask(turn="fourth") is not None


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=400)])
async def test_a_clock_that_ran_ahead_locks_nobody_out(ahead: timedelta) -> None:
    """What was counted and told at a time that never was is forgotten when the clock is put right, restart or none."""
    scene = CapScene(limits=CapLimits(person_turns=2))
    scene.now += ahead
    assert [scene.ask() is None for _ in range(3)] == [True, True, False]
    for _ in range(2):
        scene.now = NOON
        assert [scene.ask() is None for _ in range(3)] == [True, True, False]
        scene.wait(hours=-3)
        await scene.restart()
        assert scene.ask() is None


@pytest.mark.parametrize(
    ("day", "hours"), [(datetime(2026, 3, 29, 12, tzinfo=UTC), 10), (datetime(2026, 10, 25, 0, 30, tzinfo=UTC), 22.5)]
)
def test_a_day_whose_clock_is_changed_ends_at_its_midnight(day: datetime, hours: float) -> None:
    """23 hours in spring and 25 in autumn: the day's tokens end at the midnight that people see."""
    scene = CapScene(limits=CapLimits(person_tokens=100), now=day)
    assert scene.ask(tokens=100) is None
    (past,) = refused(scene, "bob", "slack:C1")
    assert past.until == day + timedelta(hours=hours)
    scene.now = past.until - timedelta(seconds=1)
    assert scene.ask(tokens=1) is not None
    scene.now = past.until
    assert scene.ask(tokens=100) is None


async def test_another_limit_is_another_window() -> None:
    """Whoever is locked out until midnight is not when the operator has given them more."""
    scene = CapScene(limits=CapLimits(person_tokens=1_000))
    assert scene.ask(tokens=1_000) is None
    assert scene.ask() is not None
    scene.limits = CapLimits(person_tokens=2_000)
    await scene.restart()
    assert scene.ask(tokens=1_000) is None


def test_a_refusal_can_be_explained() -> None:
    """It is counted by cap, and `parlour why` says what would have let it through."""
    scene = CapScene(limits=CapLimits(person_turns=1))
    assert scene.ask() is None
    past = scene.ask()
    assert past is not None
    scene.ledger.note_refusal([build_message(), build_message(number="2")], past)
    [refused] = scene.refusals.recent()
    assert (refused.reason, refused.times) == (CapKind.PERSON_TURNS, 2)
    more = "PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN=2"
    assert refused.would_admit == f"{more}  # or wait until 2026-11-21 12:10 Europe/Berlin"


def test_background_work_has_a_purse_of_its_own() -> None:
    """Tokens of summaries and Dream are nobody's, and a call without a turn is not capped here."""
    scene = CapScene(limits=CapLimits(installation_tokens=100))
    scene.ledger.spend(turn="job", person="slack%3abob", chat="slack:C1", purpose="dream", tokens=10_000)
    at_once(scene.ledger.reserve("job", 10_000))()
    assert scene.ask(tokens=100) is None


def test_a_quota_is_over_the_caps_of_chats_and_settings() -> None:
    """It caps a person who has none, frees one who has; a raised one counts at once; `why` names the command."""
    scene = CapScene(limits=CapLimits(quota=PersonQuota(turns=2)), named=frozenset({"bob"}))
    assert [scene.ask() is None for _ in range(3)] == [True, True, False]
    past = scene.ask()
    assert past is not None
    scene.ledger.note_refusal([build_message()], past)
    (noted,) = scene.refusals.recent()
    assert "parlour people quota slack:bob --turns 4" in noted.would_admit
    scene.limits = CapLimits(person_turns=1, quota=PersonQuota(turns=0, tokens=5))
    assert scene.ask(tokens=5) is None
    last = scene.ask(tokens=1)
    assert last is not None
    assert (last.cap, last.is_quota) == (CapKind.PERSON_TOKENS, True)


def test_a_quota_is_not_for_turns_that_nobody_started() -> None:
    """A person without a cap has no reminders without one: a chain of them would never end by itself."""
    scene = CapScene(limits=CapLimits(quota=PersonQuota(turns=0, tokens=0)))
    message = build_message(kind=InboundKind.JOB)
    assert all(scene.ask(message) is None for _ in range(FIRST_TURNS))
    past = scene.ask(message)
    assert past is not None
    assert past.cap is CapKind.OWN_TURNS
