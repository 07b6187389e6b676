"""What is news, and to whom: begun, worse and over, at most hourly, and nothing that was told is told again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.alert_state import (
    EVERY,
    NotificationKind,
    Observation,
    due_notification,
    is_unnotified,
    mark_notified,
    update_alert,
)
from gateway.store.alerts import Alert

T0 = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    """Return a time of the morning."""
    return T0 + timedelta(minutes=minutes)


class NotifiedOwner:
    """One cause, and the owners who are told of it; `reachable` says whether there is a way to them."""

    def __init__(self) -> None:
        self.alert: Alert | None = None
        self.heard: list[tuple[float, NotificationKind, int]] = []
        self.reachable = True

    def see(self, minutes: float, stage: int | None = 0, *, happened: int = 0, ends_from: int = 1) -> None:
        """Let a source say what it sees."""
        seen = Observation(
            cause="disk", since=at(minutes), stage=stage, happened=happened, line="alerts.disk_low", ends_from=ends_from
        )
        alert = update_alert(self.alert, seen, at(minutes))
        what = due_notification(alert, alert.owners, at(minutes))
        self.alert = alert
        if what is None:
            return
        if self.reachable:
            self.heard.append(
                (minutes, what, alert.owners.waiting if what is NotificationKind.HAPPENED else alert.stage)
            )
        owners = mark_notified(alert, alert.owners, what, at(minutes), notices=["a1"] if self.reachable else [])
        self.alert = replace(alert, owners=owners)


def test_trouble_is_told_when_it_begins_when_it_is_worse_and_when_it_is_over() -> None:
    """Three lines for one outage, however often it is looked at; what gets better again says nothing."""
    owner = NotifiedOwner()
    for minute, stage in enumerate((0, 1, 1, 2, 2, 1, 2, 0, 0)):
        owner.see(minute, stage)
    assert owner.heard == [
        (1, NotificationKind.TROUBLE, 1),
        (3, NotificationKind.TROUBLE, 2),
        (7, NotificationKind.OVER, 0),
    ]


def test_what_comes_and_goes_is_told_once_an_hour() -> None:
    """A cause that flaps: its next beginning waits for the hour, and an end is told only of what was told."""
    owner = NotifiedOwner()
    for minute in range(0, 180, 2):
        owner.see(minute, 1)
        owner.see(minute + 1, 0)
    begun = [minute for minute, what, _ in owner.heard if what is NotificationKind.TROUBLE]
    assert begun == [0, 60, 120]
    assert [minute for minute, what, _ in owner.heard if what is NotificationKind.OVER] == [1, 61, 121]


def test_trouble_that_began_within_the_hour_and_stays_is_told_at_its_end() -> None:
    """Nothing that lasts is passed over in silence."""
    owner = NotifiedOwner()
    for minute, stage in ((0, 1), (5, 0), (20, 1), (40, 1), (60, 1), (61, 1)):
        owner.see(minute, stage)
    assert owner.heard == [
        (0, NotificationKind.TROUBLE, 1),
        (5, NotificationKind.OVER, 0),
        (60, NotificationKind.TROUBLE, 1),
    ]


def test_what_happens_is_counted_and_told_together() -> None:
    """The first at once, the others of the hour in one line."""
    owner = NotifiedOwner()
    for minute in (0, 10, 20, 30, 60):
        owner.see(minute, happened=2 if minute == 10 else 1)
    owner.see(200)
    assert owner.heard == [(0, NotificationKind.HAPPENED, 1), (60, NotificationKind.HAPPENED, 5)]


def test_who_could_not_be_reached_is_told_when_there_is_a_way() -> None:
    """Trouble that lasts is told late; of trouble that is over meanwhile one line says that it was there."""
    owner = NotifiedOwner()
    owner.reachable = False
    owner.see(0, 1)
    assert owner.alert is not None
    assert is_unnotified(owner.alert)
    owner.reachable = True
    owner.see(3, 1)
    owner.see(5, 0)
    assert owner.heard == [(3, NotificationKind.TROUBLE, 1), (5, NotificationKind.OVER, 0)]
    owner = NotifiedOwner()
    owner.reachable = False
    owner.see(0, 1)
    owner.see(5, 0)
    owner.reachable = True
    owner.see(6, 0)
    owner.see(7, 0)
    assert owner.heard == [(6, NotificationKind.OVER, 0)]


def test_what_nobody_could_be_told_for_a_day_is_no_news() -> None:
    """Whoever becomes the owner next week is not told of today."""
    owner = NotifiedOwner()
    owner.reachable = False
    owner.see(0, 1, happened=3)
    owner.see(5, 0)
    owner.reachable = True
    owner.see(25 * 60, 0)
    assert owner.heard == []


def test_an_end_that_interests_nobody_is_not_told_and_the_next_beginning_is() -> None:
    """Four fifths of a day's tokens: their end is midnight, which needs no line; tomorrow's are news again."""
    owner = NotifiedOwner()
    for minute, stage in ((0, 1), (100, 0), (200, 1), (300, 2), (400, 0)):
        owner.see(minute, stage, ends_from=2)
    assert [what for _, what, _ in owner.heard] == [
        NotificationKind.TROUBLE,
        NotificationKind.TROUBLE,
        NotificationKind.TROUBLE,
        NotificationKind.OVER,
    ]


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    """What was told in the future counts for nothing."""
    owner = NotifiedOwner()
    for minute, stage in ((600, 1), (601, 0), (0, 1)):
        owner.see(minute, stage)
    assert owner.heard[-1] == (0, NotificationKind.TROUBLE, 1)


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([None, 0, 1, 2]), st.integers(0, 2)), max_size=40))
def test_never_more_than_one_beginning_an_hour_and_no_end_without_one(steps: list[tuple[int, int | None, int]]) -> None:
    """Whatever a source sees: of one stage at most one line an hour, and an end only of what they know of."""
    owner, minute = NotifiedOwner(), 0
    for wait, stage, happened in steps:
        minute += wait
        owner.see(minute, stage, happened=happened)
    knows = False
    last: dict[int, float] = {}
    for when, what, stage in owner.heard:
        if what is NotificationKind.OVER:
            assert knows
            knows = False
        elif what is NotificationKind.TROUBLE:
            knows = True
            assert when - last.get(stage, -60) >= EVERY.total_seconds() / 60
            last[stage] = when
