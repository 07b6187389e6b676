"""Limits and fading signs, on virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from channels.kit.background import BackgroundTasks
from channels.telegram.outbound import TelegramActivity
from channels.telegram.rate_limits import Decoration, TelegramRateLimits
from channels.telegram.render import OutgoingText
from gateway.events import SessionKey
from gateway.ports.channel import ChatActivity
from tests.fakes.clock import VirtualClock

ANN = SessionKey("telegram", "42")


def test_a_group_takes_twenty_a_minute_and_a_person_one_a_second() -> None:
    """A burst goes at once; from then on each chat has its own pace, and none waits for another."""
    now = [0.0]
    pace = TelegramRateLimits(lambda: now[0])
    for chat in ("-1001", "42"):
        assert [pace.chats.of(chat).try_acquire() for _ in range(20)] == [0.0] * 20
    assert (round(pace.chats.of("-1001").try_acquire(), 3), round(pace.chats.of("42").try_acquire(), 3)) == (3.0, 1.0)
    now[0] += 3.0
    assert (pace.chats.of("-1001").try_acquire(), pace.chats.of("42").try_acquire()) == (0.0, 0.0)
    assert pace.chats.of("-1001").try_acquire() > 0.0
    assert pace.chats.of("-1002").try_acquire() == 0.0


def test_chats_that_rest_are_forgotten() -> None:
    """The table of allowances does not grow with every chat there ever was."""
    now = [0.0]
    pace = TelegramRateLimits(lambda: now[0])
    for chat in range(1, 3000):
        pace.chats.of(str(chat)).try_acquire()
        now[0] += 1.0
    assert len(pace.chats._buckets) <= 1002


async def test_all_calls_of_a_bot_share_thirty_a_second(clock: VirtualClock) -> None:
    """The first second's worth goes at once; a hundred and twenty calls take three seconds more."""
    pace = TelegramRateLimits()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for chat in range(120):
        await pace.calls.acquire(str(chat))
    assert round(loop.time() - begun, 3) == 3.0


def test_what_decorates_leaves_calls_to_what_matters_more() -> None:
    """Typing is dropped first, then reactions, then previews; answers have the rest. A second gives back thirty."""
    now = [0.0]
    pace = TelegramRateLimits(lambda: now[0])
    assert [pace.calls.try_acquire(reserve=Decoration.TYPING) == 0 for _ in range(30)].count(True) == 14
    assert [pace.calls.try_acquire(reserve=Decoration.REACTION) == 0 for _ in range(30)].count(True) == 4
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

    async def answer(chat: str) -> None:
        nonlocal decorated
        await pace.calls.acquire(chat)
        decorated += not pace.calls.try_acquire(reserve=Decoration.REACTION)

    await asyncio.gather(*(answer(str(chat)) for chat in range(300)))
    assert loop.time() - begun < 9.7
    assert decorated <= 18


async def test_typing_and_draft_are_renewed_before_they_fade(clock: VirtualClock) -> None:
    """Typing lasts five seconds and a draft thirty: both are shown again in time, and never after the end."""
    loop = asyncio.get_running_loop()
    typed: list[float] = []
    drafted: list[float] = []

    async def typing(key: SessionKey) -> None:
        typed.append(loop.time())

    async def draft(key: SessionKey, ident: int, words: OutgoingText) -> bool:
        drafted.append(loop.time())
        return True

    activities = TelegramActivity(BackgroundTasks("telegram"), send_typing=typing, send_draft=draft)
    await activities.show(ChatActivity(key=ANN, on=True))
    await activities.show_draft(ANN, None, OutgoingText("so far"))
    await asyncio.sleep(100)
    await activities.show(ChatActivity(key=ANN, on=False))
    await asyncio.sleep(100)
    assert max(later - one for one, later in pairwise(typed)) < 5
    assert max(later - one for one, later in pairwise(drafted)) < 30
    assert len(typed) == 25
    assert 4 <= len(drafted) <= 6


async def test_a_draft_that_was_dropped_is_shown_as_soon_as_there_is_room(clock: VirtualClock) -> None:
    """What no one has seen does not count as shown: the next repeat shows it, not the one after twenty seconds."""
    loop = asyncio.get_running_loop()
    shown: list[tuple[float, str]] = []
    is_full = True

    async def typing(key: SessionKey) -> None:
        pass

    async def draft(key: SessionKey, ident: int, words: OutgoingText) -> bool:
        if not is_full:
            shown.append((loop.time(), words.text))
        return not is_full

    activities = TelegramActivity(BackgroundTasks("telegram"), send_typing=typing, send_draft=draft)
    await activities.show(ChatActivity(key=ANN, on=True))
    await asyncio.sleep(1)
    await activities.show_draft(ANN, None, OutgoingText("so far"))
    await asyncio.sleep(1)
    is_full = False
    await asyncio.sleep(3)
    await activities.show(ChatActivity(key=ANN, on=False))
    assert shown == [(4.0, "so far")]


class Calls:
    """Calls of chats, in the order in which they went."""

    def __init__(self) -> None:
        self.limits = TelegramRateLimits()
        self.went: list[tuple[float, str]] = []

    async def make(self, chat: str, name: str = "") -> float:
        """Make one call; return the seconds that it waited."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self.limits.calls.acquire(chat)
        self.went.append((loop.time(), name or chat))
        return loop.time() - begun

    async def flood(self, chat: str, seconds: float) -> None:
        """Have a chat want its next call as soon as it had one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await self.make(chat)

    def count(self, chat: str, since: float = 0.0) -> int:
        """Return how many calls a chat had."""
        return sum(each == chat and at >= since for at, each in self.went)


async def test_a_flood_of_one_chat_costs_another_nothing(clock: VirtualClock) -> None:
    """Two hundred calls of a chat wait; the first of another goes at once, and the flood keeps its order."""
    calls = Calls()
    flood = [asyncio.create_task(calls.make("1", f"flood {n}")) for n in range(200)]
    await asyncio.sleep(1)
    assert await calls.make("2") == 0.0
    await asyncio.gather(*flood)
    assert [name for _, name in calls.went if name != "2"] == [f"flood {n}" for n in range(200)]
    assert 5.6 < calls.went[-1][0] < 6.2  # thirty a second after the first burst: nothing is left unused


async def test_a_quiet_chat_waits_for_nothing_beside_fifty_that_flood(clock: VirtualClock) -> None:
    """Fifty chats want all that there is: each has the same; one that asks after Telegram's own pace never waits."""
    calls = Calls()
    floods = [asyncio.create_task(calls.flood(str(chat), 20)) for chat in range(1, 51)]
    await asyncio.sleep(3)
    waited = []
    for _ in range(15):
        waited.append(await calls.make("quiet"))
        await asyncio.sleep(1.01)
    assert waited == [0.0] * 15
    counts = [calls.count(str(chat), since=3) for chat in range(1, 51)]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) >= 14 * 30 - 15  # in fifteen seconds: the rest of the bot's calls
    await asyncio.gather(*floods)


async def test_chats_that_wait_are_served_in_turn_whatever_each_has(clock: VirtualClock) -> None:
    """Five chats, one with fifty calls: the four others have theirs while the first has as many."""
    calls = Calls()
    for chat in ("a", "b", "c", "d", "e"):
        await calls.make(chat)  # none of them is quiet any more
    waiting = [asyncio.create_task(calls.make("a")) for _ in range(50)]
    await asyncio.sleep(0)
    waiting += [asyncio.create_task(calls.make(chat)) for chat in "bcde" for _ in range(3)]
    await asyncio.gather(*waiting)
    order = [name for _, name in calls.went[5:]]
    behind = order[order.index("b") :]
    assert behind[:15] == ["b", "c", "d", "e", "a"] * 3


async def test_many_quiet_chats_do_not_starve_busy_ones(clock: VirtualClock) -> None:
    """More new chats than there are calls, for ten seconds: a chat with a backlog still has its share."""
    calls = Calls()
    floods = [asyncio.create_task(calls.flood(str(chat), 10)) for chat in range(10)]
    arrivals = []
    for n in range(600):
        arrivals.append(asyncio.create_task(calls.make(f"new {n}")))
        await asyncio.sleep(1 / 60)
    busy = sum(calls.count(str(chat), since=2) for chat in range(10))
    assert busy >= 8 * 30 / 3 - 10
    assert sum(at >= 2 for at, _ in calls.went) - busy >= 8 * 30 * 2 / 3 - 10
    for task in (*floods, *arrivals):
        task.cancel()


async def test_calls_that_wait_go_in_groups(clock: VirtualClock) -> None:
    """So that a crowd's receipts and next messages share transactions; nobody waits a third of a second more."""
    calls = Calls()
    waits = await asyncio.gather(*(calls.make(str(chat)) for chat in range(130)))
    moments = sorted({at for at, _ in calls.went})
    assert len(moments) <= 1 + 10 + 8  # at once, ten at a time, and fewer towards the end
    due = [max(0.0, (n - 29) / 30) for n in range(130)]
    assert all(wait <= at + 0.3 + 0.001 for wait, at in zip(waits, due, strict=True))
    assert round(max(waits), 3) == round(due[-1], 3)


async def test_nothing_is_decorated_while_an_answer_waits(clock: VirtualClock) -> None:
    """Also while calls gather for a group that more than one could have."""
    calls = Calls()
    waiting = [asyncio.create_task(calls.make(str(chat))) for chat in range(90)]
    while not all(task.done() for task in waiting):
        await asyncio.sleep(0.01)
        is_waiting = not all(task.done() for task in waiting)
        assert bool(calls.limits.calls.try_acquire(reserve=Decoration.PREVIEW)) or not is_waiting
    await asyncio.sleep(0.5)
    assert calls.limits.calls.try_acquire(reserve=Decoration.PREVIEW) == 0


async def test_a_caller_that_gives_up_leaves_its_place(clock: VirtualClock) -> None:
    """Whoever is behind moves up, and nothing is kept of chats that are gone."""
    calls = Calls()
    waiting = [asyncio.create_task(calls.make(str(chat))) for chat in range(60)]
    await asyncio.sleep(0)
    for task in waiting[30:59]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[59].result() < 0.04
    queue = calls.limits.calls
    assert not queue._quiet
    assert not queue._busy
    await asyncio.sleep(5)
    await calls.make("later")
    assert list(queue._served) == ["later"]


async def test_a_turn_that_was_waited_for_is_the_next_call(clock: VirtualClock) -> None:
    """Delivery waits before it notes that it sends; the send itself then waits for nothing and counts nothing."""
    limits = TelegramRateLimits()
    for chat in range(30):
        assert not await limits.wait_turn(SessionKey("telegram", str(chat)))
    assert await limits.wait_turn(ANN)
    assert not await limits.wait_turn(ANN)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await limits.acquire(ANN)
    assert loop.time() == begun
    await limits.acquire(ANN)
    assert loop.time() > begun


async def test_a_turn_is_tried_behind_those_who_wait(clock: VirtualClock) -> None:
    """It is taken only if it is now, and then is the next call; a busy chat leaves four calls to quiet ones."""
    limits = TelegramRateLimits()
    for _ in range(26):
        assert limits.try_turn(ANN)
        await limits.acquire(ANN)
    assert not limits.try_turn(ANN)
    for chat in range(4):
        assert limits.try_turn(SessionKey("telegram", str(chat)))
    waiting = asyncio.create_task(limits.wait_turn(SessionKey("telegram", "99")))
    await asyncio.sleep(0)
    assert not limits.try_turn(SessionKey("telegram", "100"))
    assert await waiting
