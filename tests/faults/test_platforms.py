"""Crashes on Telegram, Slack and Discord: the real channel and library, killed on a message's way.

A person writes in a direct chat, and in a thread of a group; the answer streams and makes two parts, or is so long
that it becomes a file. Whatever the call at which the gateway dies, and whichever reply of the platform is lost: after
the restart there is one answer. On Slack and Discord nothing is marked, since they can be asked; on Telegram what may
be there twice says so. The platform was never told of what is not stored. A spread of the points is played here; all
of them: `python -m tests.faults --platform telegram slack discord --mode kill_before reply_lost`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.matrix import count, losses, places, play_all, play_until, summary, verdict
from tests.faults.platforms import PLATFORMS
from tests.faults.process_pool import ForkServer
from tests.faults.scenario import FaultCase
from tests.faults.shim import ShimMode

PLACES = [place for platform in PLATFORMS for place in places(platform)]
# The call of its kind that each place is killed before: what has left or is durable. Places of a platform are killed at
# different shares of their way; where a turn makes fewer calls than that, half of the number is played.
KILLED_AT = {
    "telegram direct": ("fsync", 4), "telegram thread": ("send", 4), "telegram file in a thread": ("fsync", 18),
    "slack direct": ("send", 2), "slack thread": ("fsync", 12), "slack file in a thread": ("send", 8),
    "discord direct": ("fsync", 6), "discord thread": ("send", 3), "discord file in a thread": ("fsync", 20),
}  # fmt: skip
LOST = {"direct": (1,), "thread": (2,), "file in a thread": (6,)}  # sends whose reply never comes
RECEIPT = (8,)  # a point between a message's arrival and its being durable

Record = Callable[[str, object], None]


@pytest.mark.parametrize("place", PLACES, ids=[place.place for place in PLACES])
async def test_killed_on_the_way(zygote: ForkServer, place: FaultCase, record_property: Record) -> None:
    """Killed at any step between the message's arrival and its answer's end: one answer, nothing doubled unmarked."""
    of, at = KILLED_AT[place.place]
    while True:
        (outcome,) = await play_all(zygote, [replace(place, mode=ShimMode.KILL_BEFORE, of=of, at=at)])
        if outcome.struck or outcome.wrong or at == 1:
            break
        at //= 2
    record_property("figure", f"{place.place}, kill_before {of} {at}: {summary([outcome])}")
    assert not verdict([outcome]), verdict([outcome])
    assert outcome.struck


@pytest.mark.parametrize("place", PLACES, ids=[place.place for place in PLACES])
async def test_a_reply_is_lost(zygote: ForkServer, place: FaultCase, record_property: Record) -> None:
    """Posted or edited, and the reply never came: one answer, and only Telegram may show a part twice, marked."""
    lost = LOST[place.place.partition(" ")[2]]
    outcomes = await play_all(zygote, losses(place, lost))
    if not outcomes[0].struck:  # an answer with fewer previews makes fewer sends
        outcomes += await play_all(zygote, losses(place, [outcomes[0].sends]))
    record_property("figure", f"{place.place}, reply_lost: {summary(outcomes)}")
    assert not verdict(outcomes), verdict(outcomes)
    assert outcomes[0].struck or outcomes[-1].struck


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_killed_during_receipt_after_two_unclean_stops(
    zygote: ForkServer, platform: str, record_property: Record
) -> None:
    """One kill more is no proof: the event that was in hand then is handled once more, and answered once."""
    place = FaultCase(platform=platform, unclean_stops=2, mode=ShimMode.KILL_BEFORE)
    outcomes = await play_all(zygote, [replace(place, at=at) for at in RECEIPT])
    record_property("figure", f"{place.place}, kill_before, after two unclean stops: {summary(outcomes)}")
    assert not verdict(outcomes), verdict(outcomes)
    assert all(outcome.struck for outcome in outcomes)


def _first_writes(points: list[str]) -> list[int]:
    """Return the first write of each of the first commits: one of them stores the message."""
    starts = [n for n, point in enumerate(points, 1) if point == "write journal.db-wal" and points[n - 2] != point]
    return starts[:5]  # a start has up to four of its own


def _around_the_last_send(points: list[str]) -> list[int]:
    """Return every sixth point from shortly before the last send until behind the commit that stores it, nearest first.

    Two runs differ by a preview or two, which is fewer points than that commit has on either side.
    """
    last = max(n for n, point in enumerate(points, 1) if point.startswith("send"))
    return sorted(range(last - 24, last + 37, 6), key=lambda n: abs(n - last - 6))


# Who breaks which promise on which platform, the points at which it shows, and a word of what is then said.
SABOTEURS = [
    ("stores_later", "telegram", _first_writes, "told of a message that is not stored"),
    ("telegram_marks_nothing", "telegram", _around_the_last_send, "messages, 0 of them marked"),
    ("asks_nobody", "slack", _around_the_last_send, "messages, 0 of them marked"),
]


@pytest.mark.parametrize(("sabotage", "platform", "where", "said"), SABOTEURS)
async def test_a_channel_that_breaks_a_promise_is_found_out(
    zygote: ForkServer, sabotage: str, platform: str, where: Callable[[list[str]], list[int]], said: str
) -> None:
    """The examination of a platform is worth something: each of these fails it, and for the right reason."""
    base = FaultCase(platform=platform, sabotage=sabotage)
    points = await count(zygote, base)
    # What is lost is never answered: only so long is it waited for.
    hasty = replace(base, mode=ShimMode.KILL_BEFORE, lives=2, patience=8.0)
    outcomes = await play_until(zygote, [replace(hasty, at=n) for n in where(points)], said)
    assert said in verdict(outcomes), summary(outcomes)
