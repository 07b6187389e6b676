"""Limits and fading signs, on virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from channels.kit.background import BackgroundTasks
from channels.telegram.api import Decoration, TelegramRateLimits
from channels.telegram.codec import OutgoingText
from channels.telegram.outbound import TelegramActivity
from gateway.events import SessionKey
from tests.fakes.clock import VirtualClock

ANN = SessionKey("telegram", "42")


def test_a_group_takes_twenty_a_minute_and_a_person_one_a_second() -> None:
    """A burst goes at once; from then on each chat has its own pace, and none waits for another."""
    now = [0.0]
    pace = TelegramRateLimits(lambda: now[0])
    for chat in ("-1001", "42"):
        assert [pace.try_acquire(chat) for _ in range(20)] == [0.0] * 20
    assert (round(pace.try_acquire("-1001"), 3), round(pace.try_acquire("42"), 3)) == (3.0, 1.0)
    now[0] += 3.0
    assert (pace.try_acquire("-1001"), pace.try_acquire("42")) == (0.0, 0.0)
    assert pace.try_acquire("-1001") > 0.0
    assert pace.try_acquire("-1002") == 0.0


def test_previews_stop_before_the_wall() -> None:
    """Of a group's twenty, previews leave six to messages."""
    pace = TelegramRateLimits(lambda: 0.0)
    assert [pace.try_acquire_preview("-1001") for _ in range(20)].count(True) == 14
    assert [pace.try_acquire("-1001") for _ in range(6)] == [0.0] * 6
    assert pace.try_acquire("-1001") > 0.0


def test_chats_that_rest_are_forgotten() -> None:
    """The table of allowances does not grow with every chat there ever was."""
    now = [0.0]
    pace = TelegramRateLimits(lambda: now[0])
    for chat in range(1, 3000):
        pace.try_acquire(str(chat))
        now[0] += 1.0
    assert len(pace.chats._buckets) <= 1002


async def test_all_calls_of_a_bot_share_thirty_a_second(clock: VirtualClock) -> None:
    """The first second's worth goes at once; a hundred and twenty calls take three seconds more."""
    pace = TelegramRateLimits()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for _ in range(120):
        await pace.calls.acquire()
    assert round(loop.time() - begun, 3) == 3.0


def test_what_decorates_leaves_calls_to_what_matters_more() -> None:
    """Typing is dropped first, then reactions, then previews; answers have the rest. A second gives back thirty."""
    now = [0.0]
    pace = TelegramRateLimits(lambda: now[0])
    assert [pace.try_acquire_call(Decoration.TYPING) == 0 for _ in range(30)].count(True) == 14
    assert [pace.try_acquire_call(Decoration.REACTION) == 0 for _ in range(30)].count(True) == 4
    assert [pace.try_acquire_preview(str(chat)) for chat in range(30)].count(True) == 4
    assert [pace.calls.try_acquire() == 0 for _ in range(30)].count(True) == 8
    now[0] += 2.0
    assert [pace.calls.try_acquire() == 0 for _ in range(40)].count(True) == 30


def test_a_preview_that_the_bot_cannot_show_counts_for_no_chat() -> None:
    """Else a crowd elsewhere would use up the previews of a quiet chat."""
    now = [0.0]
    pace = TelegramRateLimits(lambda: now[0])
    for _ in range(30):
        pace.calls.try_acquire()
    assert not any(pace.try_acquire_preview("42") for _ in range(100))
    now[0] += 1.0
    assert [pace.try_acquire_preview("42") for _ in range(20)].count(True) == 14


async def test_a_crowd_of_answers_has_every_call(clock: VirtualClock) -> None:
    """While three hundred answers wait, nothing is decorated beyond the first burst: they take nine seconds."""
    pace = TelegramRateLimits()
    loop, decorated = asyncio.get_running_loop(), 0
    begun = loop.time()

    async def answer() -> None:
        nonlocal decorated
        await pace.calls.acquire()
        decorated += not pace.try_acquire_call(Decoration.REACTION)

    await asyncio.gather(*(answer() for _ in range(300)))
    assert loop.time() - begun < 9.7
    assert decorated <= 18


async def test_typing_and_draft_are_renewed_before_they_fade(clock: VirtualClock) -> None:
    """Typing lasts five seconds and a draft thirty: both are shown again in time, and never after the end."""
    loop = asyncio.get_running_loop()
    typed: list[float] = []
    drafted: list[float] = []

    async def typing(key: SessionKey) -> None:
        typed.append(loop.time())

    async def draft(key: SessionKey, ident: int, words: OutgoingText) -> None:
        drafted.append(loop.time())

    activities = TelegramActivity(BackgroundTasks("telegram"), send_typing=typing, send_draft=draft)
    activities.start(ANN)
    await activities.show_draft(ANN, None, OutgoingText("so far"))
    await asyncio.sleep(100)
    await activities.stop(ANN)
    await asyncio.sleep(100)
    assert max(later - one for one, later in pairwise(typed)) < 5
    assert max(later - one for one, later in pairwise(drafted)) < 30
    assert len(typed) == 25
    assert 4 <= len(drafted) <= 6
