"""Caps on tool calls: counted per person and day, whatever chat and account."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

from gateway.access.refusal_log import RefusalLog
from gateway.access.usage_caps import CapLimits, UsageCapTracker
from gateway.events import PlatformAccount
from gateway.ports.journal import UsageRow
from tests.fakes.clock import at_once
from tests.fakes.meter import FakeMeter

ANN, BOB = (PlatformAccount(kind="telegram", id=each) for each in ("1", "2"))
MIDNIGHT = datetime(2026, 11, 23, 23, tzinfo=UTC)  # in Berlin


@dataclass
class ToolCallScene:
    """A tracker, its clock, and the rows that it stores."""

    now: datetime = datetime(2026, 11, 23, 12, tzinfo=UTC)
    meter: FakeMeter = field(default_factory=FakeMeter)
    rows: list[UsageRow] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.tracker = UsageCapTracker(
            limits=lambda _: CapLimits(),
            tool_limits={"web": 3, "act": 0},
            zone="Europe/Berlin",
            now=lambda: self.now,
            store_row=self.rows.append,
            meter=self.meter,
            refusals=RefusalLog(),
        )

    def call(
        self,
        account: PlatformAccount = ANN,
        kind: str = "web",
        *,
        linked: tuple[PlatformAccount, ...] = (),
        call: str = "",
    ) -> bool:
        """Call a tool; return False if a cap forbids it."""
        key = call or f"t1.{next(self.numbers)}"
        accounts = (account, *linked)
        if self.tracker.exceeded_tool_cap(kind, accounts, call=key) is not None:
            return False
        counted = self.tracker.count_tool_call(
            kind, turn="t1", call=key, accounts=accounts, account=account, chat="telegram:1"
        )
        return at_once(counted) is None


def test_the_fourth_call_of_three_is_refused_until_midnight() -> None:
    """Of that person alone; each call that ran left a row, the refused one is counted as refused."""
    scene = ToolCallScene()
    assert [scene.call() for _ in range(5)] == [True, True, True, False, False]
    assert scene.call(BOB)
    (allowance,) = at_once(scene.tracker.tool_allowances([ANN]))
    assert (allowance.used, allowance.limit, allowance.until) == (3, 3, MIDNIGHT)
    assert [(each.purpose, each.person) for each in scene.rows] == [
        *[("tool-web", ANN.name)] * 3,
        ("tool-web", BOB.name),
    ]
    scene.now = MIDNIGHT - timedelta(seconds=1)
    assert not scene.call()
    scene.now = MIDNIGHT
    assert scene.call()


def test_a_call_that_runs_again_counts_once() -> None:
    """The last one of the day, interrupted, is neither refused nor counted when it runs again."""
    scene = ToolCallScene()
    assert [scene.call(), scene.call(), scene.call(call="t9.1")] == [True, True, True]
    assert [scene.call(call="t9.1"), scene.call(call="t9.2")] == [True, False]
    assert [each.call for each in scene.rows] == ["t1.0", "t1.1", "t9.1"]


def test_linked_accounts_share_their_calls() -> None:
    """A person with two accounts has three calls, not six."""
    scene = ToolCallScene()
    assert [scene.call(), scene.call(), scene.call(BOB, linked=(ANN,)), scene.call(BOB, linked=(ANN,))] == [
        True,
        True,
        True,
        False,
    ]


def test_no_cap_and_kinds_without_one_are_not_counted() -> None:
    """0 turns a cap off; reading memory has none."""
    scene = ToolCallScene()
    assert all(scene.call(kind=kind) for kind in ("act", "look") for _ in range(300))
    assert scene.rows == []


def test_a_clock_that_is_set_back_does_not_reset_the_day() -> None:
    """Nor does it block calls for long."""
    scene = ToolCallScene()
    for _ in range(3):
        scene.call()
    scene.now -= timedelta(hours=13)
    assert not scene.call()
    scene.now -= timedelta(days=30)
    assert scene.call()
