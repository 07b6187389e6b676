"""The channel kit on virtual time: look-ups, followed threads, repeated activity, background tasks."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from functools import partial

import pytest

from channels.kit.background import BackgroundTasks, ChatRateLimits, RepeatedActivity
from channels.kit.bodies import read_file, require_file
from channels.kit.chat_facts import FollowedThreads, LookupCache
from gateway.errors import FileUnavailable, OutcomeUnknown, RetryLater, SendFailed, SendRefused
from gateway.events import Attachment, MessagePart, SessionKey
from gateway.ports.channel import IntakeResult, IntakeVerdict
from gateway.store.attachment_store import AttachmentStore
from tests.fakes.clock import VirtualClock
from tests.fakes.memory import FakeRecords
from tests.fakes.turns import START
from tests.fakes.web_services import FakeState

ACCEPTED = IntakeResult(verdict=IntakeVerdict.ACCEPTED)
OVERHEARD = IntakeResult(verdict=IntakeVerdict.REJECTED, reason="not-addressed")
UNKNOWN = IntakeResult(verdict=IntakeVerdict.REJECTED, reason="stranger")


class SlowDirectory:
    """A platform that answers when it is let."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failure: SendFailed | None = None
        self.seconds = 1.0

    async def fetch(self, user: str) -> str:
        """Answer with the number of calls so far."""
        self.calls.append(user)
        await asyncio.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return f"{user} {len(self.calls)}"


async def test_concurrent_callers_share_one_look_up_and_its_value_expires(clock: VirtualClock) -> None:
    """One call for all who ask at once; after five minutes another; the expired name can still be read."""
    directory = SlowDirectory()
    cache = LookupCache("user", directory.fetch, size=10, timeout=3.0)
    assert await asyncio.gather(*(cache.get("ann") for _ in range(3))) == ["ann 1"] * 3
    await asyncio.sleep(299)
    assert await cache.get("ann") == "ann 1"
    await asyncio.sleep(2)
    assert cache.peek("ann") == "ann 1"
    assert await cache.get("ann") == "ann 2"


async def test_a_failed_look_up_is_an_error_for_all_and_not_kept(clock: VirtualClock) -> None:
    """Refused, or no answer in time; the next caller asks again, unless failures have a lifetime."""
    directory = SlowDirectory()
    cache = LookupCache("user", directory.fetch, size=10, timeout=3.0)
    patient = LookupCache("user", directory.fetch, size=10, timeout=3.0, failure_lifetime=30.0)
    directory.failure = SendRefused("gone")
    for each in (cache, patient):
        results = await asyncio.gather(each.get("ann"), each.get("ann"), return_exceptions=True)
        assert [type(result) for result in results] == [SendRefused, SendRefused]
    assert await cache.get_many(["ann", "bob"], within=3.0) == {}
    directory.failure = None
    assert await cache.get("ann") == "ann 5"
    with pytest.raises(SendRefused):
        await patient.get("ann")
    await asyncio.sleep(30)
    directory.seconds = 60.0
    began = clock.seconds
    with pytest.raises(OutcomeUnknown):
        await patient.get("ann")
    assert clock.seconds - began == 3.0


async def test_a_value_from_before_a_change_is_not_kept(clock: VirtualClock) -> None:
    """A change while a look-up is in flight: its callers get the old value, later ones ask again."""
    directory = SlowDirectory()
    cache = LookupCache("user", directory.fetch, size=10, timeout=3.0)
    first = asyncio.create_task(cache.get("ann"))
    await asyncio.sleep(0.5)
    cache.forget("ann")
    assert await first == "ann 1"
    assert await cache.get("ann") == "ann 2"
    cache.put("bob", "from an event", age=299.0)
    assert await cache.get("bob") == "from an event"
    await asyncio.sleep(2)
    assert await cache.get("bob") == "bob 3"


async def test_a_thread_is_followed_until_a_member_mentions_another() -> None:
    """A mention follows it, also after a restart; unknown senders and refused mentions change nothing."""
    state = FakeState()
    threads = FollowedThreads(state, size=10)
    await threads.update("C1/1", UNKNOWN, mentions_us=True, mentions_others=False)
    assert not await threads.is_followed("C1/1")
    await threads.update("C1/1", ACCEPTED, mentions_us=True, mentions_others=False, message_id="7.1")
    await threads.update("C1/1", UNKNOWN, mentions_us=False, mentions_others=True)
    assert await FollowedThreads(state, size=10).since("C1/1") == "7.1"
    await threads.update("C1/1", OVERHEARD, mentions_us=False, mentions_others=True)
    assert not await FollowedThreads(state, size=10).is_followed("C1/1")
    assert state.notes == {}
    # A thread that the bot started is followed unless it was left, so that leaving it needs a note.
    await threads.update("C1/2", OVERHEARD, mentions_us=False, mentions_others=True, otherwise=True)
    assert not await FollowedThreads(state, size=10).is_followed("C1/2", otherwise=True)


async def test_a_thread_is_followed_by_every_worker() -> None:
    """One is mentioned, another gets the next message: each message may come to any of them."""
    state = FakeState()
    first, second = (FollowedThreads(state, size=10, old_note="threads", is_shared=True) for _ in range(2))
    assert not await second.is_followed("C1/1")
    await first.follow("C1/1", "7.1")
    assert await second.is_followed("C1/1")
    assert await second.since("C1/1") == "7.1"
    await second.update("C1/1", OVERHEARD, mentions_us=False, mentions_others=True)
    assert not await first.is_followed("C1/1")


async def test_threads_of_earlier_versions_are_still_followed() -> None:
    """Slack kept one note with all threads, at first with yes or no; Discord one note each, with a 1."""
    state = FakeState()
    state.notes = {"threads": json.dumps({"C1/1": "7.1", "C1/2": True, "C1/3": "", "C1/4": "8.1"}), "follows/9": "1"}
    threads = FollowedThreads(state, size=10, old_note="threads")
    assert [await threads.is_followed(f"C1/{n}") for n in range(1, 6)] == [True, True, False, True, False]
    assert await threads.since("C1/1") == "7.1"
    assert await FollowedThreads(state, size=10).is_followed("9")
    for thread, otherwise in (("C1/4", True), ("C1/1", False)):
        await threads.update(thread, OVERHEARD, mentions_us=False, mentions_others=True, otherwise=otherwise)
        restarted = FollowedThreads(state, size=10, old_note="threads")
        assert not await restarted.is_followed(thread, otherwise=otherwise)


async def test_activity_is_repeated_until_it_stops_and_a_refusal_ends_it(clock: VirtualClock) -> None:
    """A broken connection costs one repetition, and Retry-After is kept; what is refused is not shown again.

    An hour is enough, and a closed channel shows nothing more.
    """
    shown: list[float] = []
    failures: list[SendFailed] = [RetryLater(timedelta(seconds=11)), OutcomeUnknown("cut")]

    async def show() -> None:
        if failures:
            raise failures.pop()
        shown.append(clock.seconds)

    tasks = BackgroundTasks("test")
    activity = RepeatedActivity(tasks, 5.0)
    activity.start("a", show)
    activity.start("a", show)
    await asyncio.sleep(22)
    assert shown == [16.0, 21.0]
    assert await activity.stop("a")
    assert not await activity.stop("a")
    failures.append(SendRefused("closed"))
    activity.start("b", show)
    await asyncio.sleep(10)
    assert shown == [16.0, 21.0]
    shown.clear()
    activity.start("c", show)
    await asyncio.sleep(7_200)
    assert len(shown) == 720
    activity.start("c", show)
    await asyncio.sleep(1)
    await tasks.close()
    await asyncio.sleep(60)
    assert len(shown) == 721


async def test_background_work_never_raises(clock: VirtualClock) -> None:
    """A failure and a bug are logged; `close` cancels what is left."""
    tasks, done = BackgroundTasks("test"), asyncio.Event()

    async def fail(error: Exception) -> None:
        raise error

    for error in (SendRefused("no"), ValueError("a bug")):
        await tasks.start(partial(fail, error), "work")
    waiting = tasks.start(done.wait, "work")
    await tasks.close()
    assert waiting.cancelled()


def test_full_buckets_are_forgotten_and_others_are_not() -> None:
    """The table does not grow with every chat, and a chat that was just written to keeps its count."""
    now = [0.0]
    limits = ChatRateLimits(1, lambda _: 100.0, clock=lambda: now[0])
    for chat in range(1_500):
        assert limits.of(str(chat)).try_acquire() == 0.0
    assert limits.of("0").try_acquire() == 100.0
    now[0] = 100.0
    limits.of("new").try_acquire()
    assert limits.of("0").try_acquire() == 0.0
    assert len(limits._buckets) <= 3


async def test_a_file_that_cannot_be_read_now_is_sent_later() -> None:
    """While the store or its bucket is away, nothing was sent and nothing is given up; a lost file is reported."""
    records = FakeRecords()
    blobs = AttachmentStore(records.files, lambda: START)
    reference = await blobs.put("people/ann", b"a picture")
    file = Attachment(kind="image", name="a.png", size=9, blob=reference)
    part = MessagePart(id="t.1.1", key=SessionKey("web", "1"), payload="", plain="", file=file)
    assert await read_file(part, blobs) == b"a picture"
    records.is_down = True
    for read in (read_file(part, blobs), require_file(reference, blobs)):
        with pytest.raises(RetryLater):
            await read
    records.is_down = False
    await records.files.remove("people/ann")
    for read in (read_file(part, blobs), require_file(reference, blobs)):
        with pytest.raises(FileUnavailable):
            await read
