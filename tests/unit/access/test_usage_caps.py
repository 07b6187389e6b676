"""Caps: who has which, what counts, when it ends, who is told, and what a restart knows of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.access.refusal_log import RefusalLog
from gateway.access.usage_caps import FIRST_TOKENS, FIRST_TURNS, CapLimits, UsageCapTracker
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender, SessionKey
from gateway.ports.caps import (
    CapAllowance,
    CapKind,
    CapNotice,
    CappedSender,
    CapReached,
    CapUsage,
    ExceededCap,
    SpentTokens,
    StartedTurn,
)
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
        )

    async def restart(self) -> None:
        """Begin anew with what the journal holds."""
        self.ledger = self.open()
        await self.ledger.warm(self, installation_limit=self.limits.installation_tokens)

    async def load_usage(self, *, window: datetime, day: datetime, purposes: Iterable[str]) -> CapUsage:
        """Return what the journal holds."""
        begun = tuple(each for each in self.begun if each.at > window)
        return CapUsage(turns=begun, tokens=tuple(self.spent), notices=tuple(self.told))

    def ask(
        self, message: InboundMessage | None = None, *, turn: str = "", tokens: int = 0, person: str = ""
    ) -> ExceededCap | None:
        """Have a turn of one call, as far as the caps let it; what it leaves is in the rows."""
        self.turns += 1
        message, turn = message or build_message(), turn or f"t{self.turns}"
        person = person or f"{message.key.channel}:{message.sender.id}"
        past = self.ledger.admit_turn(message, turn, self.sender(message, person))
        if past is None:
            self.call(message, turn, person, tokens)
            self.ledger.end_turn(turn)
        elif past.notice:
            self.told.append(past.notice)
        return past

    def sender(self, message: InboundMessage, account: str) -> CappedSender:
        """Return what claim knows of the sender."""
        accounts = tuple(LINKED.get(account, (account,)))
        return CappedSender(account=account, accounts=accounts, is_named=message.sender.id in self.named)

    def call(self, message: InboundMessage, turn: str, person: str, tokens: int) -> None:
        """Make a call that takes what it reserved."""
        release = self.ledger.reserve(turn, tokens)
        chat, is_own = str(message.key), self.ledger.is_own(turn)
        self.begun.append(StartedTurn(turn=turn, person=person, chat=chat, is_own=is_own, at=self.now))
        self.spent.append(SpentTokens(person=person, chat=chat, is_own=is_own, tokens=tokens))
        self.ledger.spend(turn=turn, person=person, chat=chat, purpose="answer", tokens=tokens)
        release()

    def wait(self, **span: float) -> None:
        """Let time pass."""
        self.now += timedelta(**span)

    def stands(self, message: InboundMessage | None = None) -> dict[CapKind, CapAllowance]:
        """Return how a sender stands, by cap."""
        message = message or build_message()
        found = self.ledger.allowances(message, self.sender(message, f"{message.key.channel}:{message.sender.id}"))
        return {each.cap: each for each in found}


def test_who_came_in_by_a_place_has_twenty_turns_in_ten_minutes() -> None:
    """The 21st is refused and told when it ends; then there is silence, until half of the window is free again."""
    house = CapScene()
    for _ in range(FIRST_TURNS):
        assert house.ask() is None
        house.wait(seconds=6)
    past = house.ask()
    assert past is not None
    assert (past.cap, past.limit, past.until) == (CapKind.PERSON_TURNS, 20, NOON + timedelta(minutes=10, seconds=54))
    assert past.notice is not None
    silent = house.ask()
    assert silent is not None
    assert silent.notice is None
    assert house.ask(build_message("carl")) is None  # nobody else is meant
    house.now = past.until
    assert [house.ask() is None for _ in range(11)] == [True] * 10 + [False]


def test_never_more_than_the_cap_in_any_ten_minutes() -> None:
    """Whoever writes every second for an hour has at most 120 answers, and 20 in any ten minutes of it."""
    house = CapScene()
    times, notices = [], 0
    for _ in range(3600):
        past = house.ask()
        if past is None:
            times.append(house.now)
        notices += past is not None and past.notice is not None
        house.wait(seconds=1)
    assert len(times) <= 120
    for at in times:
        assert sum(at <= each < at + timedelta(minutes=10) for each in times) <= 20
    assert notices <= 7  # one for each time that they wrote themselves out of their turns


@pytest.mark.parametrize(("limits", "free"), [(CapLimits(), True), (CapLimits(person_turns=5), False)])
def test_who_is_named_has_no_cap_unless_one_is_set(limits: CapLimits, free: bool) -> None:
    """An owner, or who is let in by their own id, is counted for `/usage` alone; a cap that is set is everybody's."""
    house = CapScene(limits=limits, named=frozenset({"bob"}))
    assert all(house.ask(tokens=100_000) is None for _ in range(5))
    assert (house.ask(tokens=100_000) is None) == free


def test_nought_is_no_cap() -> None:
    """0 takes the caps of those who came in by a place away."""
    house = CapScene(limits=CapLimits(person_turns=0, person_tokens=0))
    assert all(house.ask(tokens=FIRST_TOKENS) is None for _ in range(50))
    assert house.stands() == {}


def test_the_accounts_of_one_person_share() -> None:
    """Linked accounts are counted together, over all bots and platforms."""
    house = CapScene(limits=CapLimits(person_turns=4))
    for n in range(4):
        assert house.ask(build_message("ann", ("slack:C1", "telegram:9")[n % 2])) is None
    past = house.ask(build_message("ann", "slack:C1"))
    assert past is not None
    assert past.notice is not None
    assert [where.notice is not None for where in refused(house, "ann", "telegram:9", "slack:C1")] == [True, False]


def refused(house: CapScene, who: str, *chats: str) -> list[ExceededCap]:
    """Return what somebody who is past a cap gets in each of *chats*."""
    found = [house.ask(build_message(who, chat)) for chat in chats]
    assert None not in found
    return [past for past in found if past is not None]


async def test_who_is_past_a_cap_is_told_in_each_of_their_chats_and_in_five_at_most() -> None:
    """One line a window where they write, over a restart too; whoever tries everywhere is soon told nothing more."""
    house = CapScene(limits=CapLimits(person_turns=1))
    assert house.ask() is None
    here, there = refused(house, "bob", "slack:C1", "slack:C2")
    assert here.notice is not None
    assert there.notice == replace(here.notice, chat="slack:C2")
    await house.restart()
    asked = [f"slack:C{n}" for n in range(1, 10)]
    assert [past.notice is not None for past in refused(house, "bob", *asked, *asked)] == [False] * 2 + [True] * 3 + [
        False
    ] * 13
    house.now = here.until
    assert house.ask() is None
    assert refused(house, "bob", "slack:C1")[0].notice is not None


def test_threads_count_for_their_chat() -> None:
    """A chat's cap is that of its threads together, whoever writes there."""
    house = CapScene(limits=CapLimits(chat_turns=3))
    for n in range(3):
        assert house.ask(build_message(f"user{n}", f"slack:C1/{n}")) is None
    past = house.ask(build_message("somebody", "slack:C1"))
    assert past is not None
    assert past.cap is CapKind.CHAT_TURNS
    assert house.ask(build_message("somebody", "slack:C2")) is None


def test_tokens_of_a_day_end_at_the_houses_midnight() -> None:
    """Spent in Berlin at noon: silence until midnight there, and then the whole of it again."""
    house = CapScene(limits=CapLimits(person_tokens=1_000))
    assert house.ask(tokens=600) is None
    with pytest.raises(CapReached) as reached:
        house.ask(tokens=600)
    assert (reached.value.exceeded.cap, reached.value.exceeded.until) == (CapKind.PERSON_TOKENS, MIDNIGHT)
    assert reached.value.exceeded.notice is not None
    past = house.ask(tokens=1)
    assert past is not None
    assert past.notice is None  # one line a day
    assert house.stands()[CapKind.PERSON_TOKENS].used == 1_000
    house.now = MIDNIGHT
    assert house.ask(tokens=1_000) is None
    assert house.stands()[CapKind.PERSON_TOKENS] == CapAllowance(
        cap=CapKind.PERSON_TOKENS, used=1_000, limit=1_000, until=MIDNIGHT + timedelta(days=1)
    )


def test_calls_side_by_side_cannot_pass_a_cap_together() -> None:
    """What is under way is reserved: the total is within the cap when no call takes more than it reserved."""
    house = CapScene(limits=CapLimits(person_tokens=1_000))
    under_way = []
    for n in range(5):
        assert (
            house.ledger.admit_turn(
                build_message(chat=f"slack:C{n}"), f"p{n}", house.sender(build_message(), "slack:bob")
            )
            is None
        )
        try:
            under_way.append(house.ledger.reserve(f"p{n}", 300))
        except CapReached:
            break
    assert len(under_way) == 3
    for release in under_way:
        house.ledger.spend(turn="p0", person="slack:bob", chat="slack:C0", purpose="answer", tokens=300)
        release()
    assert house.ledger.admit_turn(build_message(), "later", house.sender(build_message(), "slack:bob")) is not None


def test_every_step_of_a_turn_is_asked_for() -> None:
    """A loop of tools stops at the cap, not 25 calls behind it."""
    house = CapScene(limits=CapLimits(person_tokens=1_000))
    message = build_message()
    assert house.ledger.admit_turn(message, "t", house.sender(message, "slack:bob")) is None
    for _ in range(6):
        house.call(message, "t", "slack:bob", 150)
    with pytest.raises(CapReached):
        house.call(message, "t", "slack:bob", 150)


def test_the_house_tells_each_chat_once() -> None:
    """TOKENS_PER_DAY is everybody's together, and each chat hears of it once."""
    house = CapScene(limits=CapLimits(installation_tokens=1_000), named=frozenset({"bob"}))
    assert house.ask(tokens=1_000) is None
    told = [house.ask(build_message(chat=chat)) for chat in ("slack:C1", "slack:C1/7", "slack:C2")]
    assert [past is not None and past.notice is not None for past in told] == [True, False, True]


async def test_the_house_can_be_watched() -> None:
    """What alerts ask for: how much of the day's tokens is used, and when the next day begins."""
    house = CapScene(limits=CapLimits(installation_tokens=1_000))
    await house.restart()
    assert house.ask(tokens=800) is None
    day = CapAllowance(cap=CapKind.HOUSE_TOKENS, used=800, limit=1_000, until=MIDNIGHT)
    assert house.ledger.installation_usage() == day
    house.now = MIDNIGHT
    assert house.ledger.installation_usage() == replace(day, used=0, until=MIDNIGHT + timedelta(days=1))
    assert CapScene().ledger.installation_usage() is None


def test_what_nobody_typed_is_capped_too() -> None:
    """A job that asks for the next one, of somebody without caps, stops after twenty, and in the end for the day."""
    house = CapScene(named=frozenset({"bob"}))
    asked = 0
    while (past := house.ask(build_message(kind=InboundKind.JOB), tokens=1_000)) is None:
        asked += 1
    assert (asked, past.cap) == (20, CapKind.OWN_TURNS)
    assert house.ask(build_message()) is None  # the person is answered
    for _ in range(200):
        house.wait(minutes=5)
        try:
            past = house.ask(build_message(kind=InboundKind.JOB), tokens=100_000)
        except CapReached as reached:
            past = reached.exceeded
            break
    assert past is not None
    assert past.cap is CapKind.OWN_TOKENS


async def test_a_restart_knows_what_was_counted() -> None:
    """Turns, tokens and who was told stand in the journal; killed after each turn, twenty are twenty."""
    house = CapScene()
    answered = notices = 0
    for _ in range(40):
        past = house.ask(tokens=10)
        answered += past is None
        notices += past is not None and past.notice is not None
        await house.restart()
    assert (answered, notices) == (20, 1)
    assert house.stands()[CapKind.PERSON_TOKENS].used == 200


async def test_a_turn_that_is_taken_up_again_is_the_same_turn() -> None:
    """One that was let in is let in again and counts once, whoever was refused behind it meanwhile."""
    house = CapScene(limits=CapLimits(person_turns=2))
    assert house.ask(turn="first") is None
    house.wait(seconds=1)
    assert house.ask(turn="second") is None
    house.wait(seconds=1)
    assert house.ask(turn="third") is not None
    for _ in range(10):
        await house.restart()
        assert house.ask(turn="second") is None
    assert house.ask(turn="fourth") is not None


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=400)])
async def test_a_clock_that_ran_ahead_locks_nobody_out(ahead: timedelta) -> None:
    """What was counted and told at a time that never was is forgotten when the clock is put right, restart or none."""
    house = CapScene(limits=CapLimits(person_turns=2))
    house.now += ahead
    assert [house.ask() is None for _ in range(3)] == [True, True, False]
    for _ in range(2):
        house.now = NOON
        assert [house.ask() is None for _ in range(3)] == [True, True, False]
        house.wait(hours=-3)
        await house.restart()
        assert house.ask() is None


@pytest.mark.parametrize(
    ("day", "hours"), [(datetime(2026, 3, 29, 12, tzinfo=UTC), 10), (datetime(2026, 10, 25, 0, 30, tzinfo=UTC), 22.5)]
)
def test_a_day_whose_clock_is_changed_ends_at_its_midnight(day: datetime, hours: float) -> None:
    """23 hours in spring and 25 in autumn: the day's tokens end at the midnight that people see."""
    house = CapScene(limits=CapLimits(person_tokens=100), now=day)
    assert house.ask(tokens=100) is None
    (past,) = refused(house, "bob", "slack:C1")
    assert past.until == day + timedelta(hours=hours)
    house.now = past.until - timedelta(seconds=1)
    assert house.ask(tokens=1) is not None
    house.now = past.until
    assert house.ask(tokens=100) is None


async def test_another_limit_is_another_window() -> None:
    """Whoever is locked out until midnight is not when the operator has given them more."""
    house = CapScene(limits=CapLimits(person_tokens=1_000))
    assert house.ask(tokens=1_000) is None
    assert house.ask() is not None
    house.limits = CapLimits(person_tokens=2_000)
    await house.restart()
    assert house.ask(tokens=1_000) is None


def test_a_refusal_can_be_explained() -> None:
    """It is counted by cap, and `parlour why` says what would have let it through."""
    house = CapScene(limits=CapLimits(person_turns=1))
    assert house.ask() is None
    past = house.ask()
    assert past is not None
    house.ledger.note_refusal([build_message(), build_message(number="2")], past)
    [refused] = house.refusals.recent()
    assert (refused.reason, refused.times) == (CapKind.PERSON_TURNS, 2)
    more = "PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN=2"
    assert refused.would_admit == f"{more}  # or wait until 2026-11-21 12:10 Europe/Berlin"


def test_background_work_has_a_purse_of_its_own() -> None:
    """Tokens of summaries and Dream are nobody's, and a call without a turn is not capped here."""
    house = CapScene(limits=CapLimits(installation_tokens=100))
    house.ledger.spend(turn="job", person="slack:bob", chat="slack:C1", purpose="dream", tokens=10_000)
    house.ledger.reserve("job", 10_000)()
    assert house.ask(tokens=100) is None
