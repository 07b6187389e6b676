"""The quarantine keeps the promises of Intake.handle (gateway/ports/channel.py), also against who writes the events."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
import structlog
from structlog.typing import Processor

from gateway.errors import ParlourError, RetryLater, StoreUnavailable, UnreadableEvent, UserError
from gateway.ports.channel import EventOrigin, PlatformEvent
from gateway.quarantine import CALM, KILLED, LONGEST, Quarantine, _name, count_events, list_events
from tests.fakes.clock import VirtualClock
from tests.fakes.meter import FakeMeter

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)


def event(number: int | str = 1, *, channel: str = "telegram", raw: str = '{"text": "canary"}') -> PlatformEvent:
    """Return an event; the same number is the same event come again."""
    return PlatformEvent(channel=channel, id=str(number), raw=raw)


def quarantine(
    folder: Path, *, unclean_stops: int = 0, meter: FakeMeter | None = None, clock: Callable[[], float] = lambda: 0.0
) -> Quarantine:
    """Open a quarantine as a start does."""
    return Quarantine(folder, unclean_stops=unclean_stops, meter=meter or FakeMeter(), now=lambda: NOW, clock=clock)


class EventHandling:
    """What an adapter does with an event: counted, and broken as a test wants."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.times = 0

    async def __call__(self) -> None:
        self.times += 1
        if self.error is not None:
            raise self.error


def names(folder: Path) -> list[str]:
    """Return what stands in the folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def test_what_cannot_be_read_is_set_aside_and_passed_over(tmp_path: Path) -> None:
    """The platform is told at once; come again, also after a restart, the event is not even looked at."""
    folder, meter = tmp_path / "quarantine", FakeMeter()
    work = EventHandling(UnreadableEvent("a message without a sender"))
    keeper = quarantine(folder, meter=meter)
    await keeper.handle(event(), work)
    await keeper.handle(event(), work)
    await quarantine(folder).handle(event(), work)
    assert work.times == 1
    (kept,) = list_events(folder)
    assert (kept.channel, kept.reason, kept.at) == ("telegram", "a message without a sender", NOW.isoformat())
    assert json.loads(kept.file.read_text())["raw"] == event().raw
    assert meter.total("quarantined") == count_events(folder) == 1
    fine = EventHandling()
    await keeper.handle(event(2), fine)
    assert fine.times == 1


async def test_a_bug_raises_twice_and_is_then_set_aside(tmp_path: Path) -> None:
    """So that it comes again twice: a bug may be one of the moment. What worked meanwhile clears the count."""
    keeper = quarantine(tmp_path)
    bug = EventHandling(KeyError("canary"))
    for _ in range(2):
        with pytest.raises(KeyError):
            await keeper.handle(event(), bug)
    await keeper.handle(event(), EventHandling())
    for _ in range(2):
        with pytest.raises(KeyError):
            await keeper.handle(event(), bug)
    assert names(tmp_path) == []
    await keeper.handle(event(), bug)
    (kept,) = list_events(tmp_path)
    assert kept.reason == "it failed 3 times: KeyError"


@pytest.mark.parametrize(
    "error", [StoreUnavailable("full"), RetryLater(timedelta(1)), ExceptionGroup("x", [StoreUnavailable("y")])]
)
async def test_what_is_not_the_events_fault_counts_for_nothing(error: Exception, tmp_path: Path) -> None:
    """A store that is down for a hundred tries passes through each time, and the event is taken when it is back."""
    keeper = quarantine(tmp_path)
    for _ in range(100):
        with pytest.raises((ParlourError, ExceptionGroup)):
            await keeper.handle(event(), EventHandling(error))
    fine = EventHandling()
    await keeper.handle(event(), fine)
    assert fine.times == 1
    assert names(tmp_path) == []


async def test_unreadable_out_of_a_task_group_is_unreadable(tmp_path: Path) -> None:
    """An adapter may work in a task group; only when other errors came too does the event come again."""
    keeper = quarantine(tmp_path)
    await keeper.handle(event(), EventHandling(ExceptionGroup("x", [UnreadableEvent("no text")])))
    assert [kept.reason for kept in list_events(tmp_path)] == ["no text"]
    with pytest.raises(ExceptionGroup):
        await keeper.handle(
            event(2), EventHandling(ExceptionGroup("x", [UnreadableEvent("no text"), StoreUnavailable("full")]))
        )


async def test_no_word_of_an_event_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its text nor an exception that quotes it: they stand in the file alone."""
    told = io.StringIO()
    # A logger of its own: what another test configured may be bound to the module's by now.
    processors: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()]
    logger = structlog.wrap_logger(structlog.PrintLogger(told), processors=processors)
    monkeypatch.setattr("gateway.quarantine.log", logger)
    keeper = quarantine(tmp_path)
    for number, error in enumerate((UnreadableEvent("odd"), KeyError("canary")), 1):
        for _ in range(3):
            try:
                await keeper.handle(event(number), EventHandling(error))
            except KeyError:
                continue
    assert count_events(tmp_path) == 2
    assert "set_aside" in told.getvalue()
    assert "canary" not in told.getvalue()


async def test_a_disk_that_will_not_have_it_is_a_store_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is confirmed that is not on disk: the event comes again, and no half file stays."""
    folder = tmp_path / "quarantine"

    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for stops in (0, 2):
        work = EventHandling(UnreadableEvent("odd"))
        keeper = quarantine(folder, unclean_stops=stops)
        with pytest.raises(StoreUnavailable, match="No space left"):
            await keeper.handle(event(), work)
        assert work.times == (1 if stops == 0 else 0)
        assert names(folder) == []
    monkeypatch.undo()
    await keeper.handle(event(), work)
    assert count_events(folder) == 1


async def test_while_cautious_the_event_is_on_disk_during_the_work(tmp_path: Path) -> None:
    """0600 in a 0700 folder under any umask, file and folder synced before the work begins, gone after it."""
    folder = tmp_path / "quarantine"
    folder.mkdir(mode=0o755)
    keeper = quarantine(folder, unclean_stops=2)
    seen: list[tuple[str, int, int]] = []

    async def work() -> None:
        (file,) = folder.iterdir()
        seen.append((file.suffix, stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(folder.stat().st_mode)))

    before = os.umask(0)
    try:
        await keeper.handle(event(), work)
    finally:
        os.umask(before)
    assert seen == [(".working", 0o600, 0o700)]
    assert names(folder) == []
    with pytest.raises(StoreUnavailable):
        await keeper.handle(event(), EventHandling(StoreUnavailable("full")))
    assert names(folder) == []


async def test_file_and_folder_are_synced_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut during the work finds the event's name and its bytes."""
    keeper = quarantine(tmp_path / "quarantine", unclean_stops=2)
    synced: list[bool] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)

    async def work() -> None:
        assert synced == [False, True]

    await keeper.handle(event(), work)
    assert synced == [False, True]


async def test_caution_ends_after_ten_calm_minutes(tmp_path: Path, clock: VirtualClock) -> None:
    """One unclean stop is no warning, two are; ten minutes alive, by the process's own clock, and it is over."""
    assert not quarantine(tmp_path, unclean_stops=1).is_cautious
    keeper = quarantine(tmp_path, unclean_stops=2, clock=lambda: clock.seconds)
    clock.set_wall(timedelta(days=1))
    await asyncio.sleep(CALM.total_seconds() - 1)
    assert keeper.is_cautious
    await asyncio.sleep(1)
    assert not keeper.is_cautious
    on_disk: list[str] = []

    async def work() -> None:
        on_disk.extend(names(tmp_path))

    await keeper.handle(event(), work)
    assert on_disk == []


async def test_two_channels_never_work_at_once_while_cautious(tmp_path: Path) -> None:
    """If they did, a kill would set aside both, and one of them did nothing."""
    keeper = quarantine(tmp_path, unclean_stops=2)
    at_work: list[str] = []
    gate, first = asyncio.Event(), asyncio.Event()

    def work_of(channel: str) -> Callable[[], asyncio.Future[None]]:
        async def work() -> None:
            assert [name.partition("-")[0] for name in names(tmp_path)] == [channel]
            at_work.append(channel)
            first.set()
            await gate.wait()

        return lambda: asyncio.ensure_future(work())

    async with asyncio.TaskGroup() as tasks:
        for channel in ("telegram", "slack"):
            tasks.create_task(keeper.handle(event(channel=channel), work_of(channel)))
        await first.wait()
        gate.set()
    assert at_work == ["telegram", "slack"]
    assert names(tmp_path) == []


@pytest.mark.parametrize("moment", ["writing", "working"])
async def test_a_cancelled_event_leaves_no_accusation(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop in mid-work, or while its file is being written, must not look like a kill at the next start."""
    keeper = quarantine(tmp_path, unclean_stops=2)
    loop = asyncio.get_running_loop()
    reached, release = asyncio.Event(), asyncio.Event()
    if moment == "writing":
        fsync = os.fsync

        def slow(descriptor: int) -> None:
            loop.call_soon_threadsafe(reached.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)

    async def work() -> None:
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keeper.handle(event(), work))
    await reached.wait()
    task.cancel()
    loop.call_soon(task.cancel)  # and once more, as an impatient shutdown does
    loop.call_soon(release.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert names(tmp_path) == []


async def test_an_event_is_kept_up_to_64_kb_whatever_it_is_made_of(tmp_path: Path) -> None:
    """Megabytes, emoji and half surrogate pairs: the file stays below 64 KB and a little, and can be read."""
    keeper = quarantine(tmp_path)
    for number, sign in enumerate(("a", "😀", "\ud800", "\x00", '"')):
        await keeper.handle(event(number, raw=sign * 1_000_000), EventHandling(UnreadableEvent("odd")))
    await keeper.handle(event("9" * 100_000), EventHandling(UnreadableEvent("odd")))
    assert count_events(tmp_path) == 6
    for kept in list_events(tmp_path):
        assert kept.reason == "odd"
        assert kept.file.stat().st_size < LONGEST + 2_000
    sizes = [len(json.loads(kept.file.read_text())["raw"]) for kept in list_events(tmp_path)]
    assert max(sizes) == LONGEST


async def test_the_newest_thousand_are_kept_without_reading_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood costs the same for every event; what leaves the folder leaves the memory, and after a restart too."""
    monkeypatch.setattr("gateway.quarantine.MOST", 5)
    keeper = quarantine(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda _: pytest.fail("the folder was read for an event"))
        for number in range(12):
            await keeper.handle(event(number), EventHandling(UnreadableEvent(str(number))))
            os.utime(keeper._folder.path / f"{list(keeper._kept)[-1]}.json", (number, number))
    assert [kept.reason for kept in list_events(tmp_path)] == ["11", "10", "9", "8", "7"]
    assert len(keeper._kept) == 5
    monkeypatch.setattr("gateway.quarantine.MOST", 3)
    quarantine(tmp_path)
    assert [kept.reason for kept in list_events(tmp_path)] == ["11", "10", "9"]


async def test_what_broke_us_once_is_forgotten_in_a_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that break us once and never come again do not fill the memory."""
    monkeypatch.setattr("gateway.quarantine.MOST", 5)
    keeper = quarantine(tmp_path)
    for number in range(50):
        with pytest.raises(KeyError):
            await keeper.handle(event(number), EventHandling(KeyError()))
    assert len(keeper._broken) == 5


async def test_events_without_an_id_do_not_silence_each_other(tmp_path: Path) -> None:
    """An event with an empty id is known by its text; a channel's name cannot pass for another's."""
    keeper = quarantine(tmp_path)
    await keeper.handle(event("", raw="one"), EventHandling(UnreadableEvent("odd")))
    for other in (event("", raw="two"), event("1", channel="telegram-work"), event("../../x\0", channel="telegram")):
        work = EventHandling()
        await keeper.handle(other, work)
        assert work.times == 1
    await keeper.handle(event("../../x\0"), EventHandling(UnreadableEvent("odd")))
    assert {kept.file.parent for kept in list_events(tmp_path)} == {tmp_path}
    assert len(names(tmp_path)) == 2


async def test_what_is_old_is_pruned_and_what_is_dropped_is_handled_again(tmp_path: Path) -> None:
    """90 days, as dead letters are; an operator who mended the bug drops the event, and its next coming counts."""
    keeper = quarantine(tmp_path)
    for number in (1, 2, 3):
        await keeper.handle(event(number), EventHandling(UnreadableEvent(str(number))))
    old, recent, dropped = list(keeper._kept)
    for name, days in ((old, 91), (recent, 89), (dropped, 1)):
        at = (NOW - timedelta(days=days)).timestamp()
        os.utime(tmp_path / f"{name}.json", (at, at))
    assert await keeper.prune() == 1
    assert await keeper.drop(dropped)
    assert not await keeper.drop("../schema")
    assert [kept.reason for kept in list_events(tmp_path)] == ["2"]
    for number, times in ((1, 1), (2, 0), (3, 1)):
        work = EventHandling()
        await keeper.handle(event(number), work)
        assert work.times == times


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    """A file in its place, or a broken name: the start says so instead of ending with a traceback."""
    folder = tmp_path / "quarantine"
    folder.mkdir()
    (folder / "x.working").mkdir()
    (folder / "x.json").mkdir()
    (folder / "x.json" / "y").touch()
    with pytest.raises(UserError, match="make the user who runs Parlour its owner"):
        quarantine(folder)


def test_a_file_that_cannot_be_read_is_still_counted(tmp_path: Path) -> None:
    """Somebody's editor left half a file: the operator is told, and the event stays passed over."""
    (tmp_path / "telegram-0123.json").write_text("{")
    (kept,) = list_events(tmp_path)
    assert (kept.channel, kept.reason) == ("telegram", "the file itself cannot be read")


async def test_a_struck_event_that_goes_well_is_innocent(tmp_path: Path) -> None:
    """It is handled on record even when caution is over, and one kill much later strikes it for the first time."""
    keeper = quarantine(tmp_path, unclean_stops=2)
    write_working(keeper, event())
    keeper = quarantine(tmp_path, clock=lambda: 10_000.0)
    keeper._cautious_until = 0.0
    (name,) = keeper.struck_names
    seen: list[list[str]] = []

    async def work() -> None:
        seen.append(names(tmp_path))

    await keeper.handle(event(), work)
    assert seen == [[f"{name}.struck", f"{name}.working"]]
    assert names(tmp_path) == []
    write_working(keeper, event())
    assert quarantine(tmp_path).struck_names == [name]
    assert count_events(tmp_path) == 0


def write_working(keeper: Quarantine, each: PlatformEvent) -> None:
    """Leave *each* as a kill leaves it."""
    keeper._folder.write(f"{_name(each)}.working", each, KILLED, NOW)


async def test_an_event_is_replayed_from_its_file(tmp_path: Path) -> None:
    """Struck or set aside, it is handed over as it came, on record, and is gone when that went well."""
    keeper = quarantine(tmp_path)
    origin = EventOrigin(chat="42", sender="ann", message_id="7", is_direct=True)
    first = replace(event(1), origin=origin)
    await keeper.handle(first, EventHandling(UnreadableEvent("odd")))
    write_working(keeper, event(2))
    await keeper.handle(event(3, raw="x" * 1_000_000), EventHandling(UnreadableEvent("long")))
    keeper = quarantine(tmp_path)
    taken: list[PlatformEvent] = []

    async def work(each: PlatformEvent) -> None:
        assert f"{_name(each)}.working" in names(tmp_path)
        taken.append(each)

    for each in (first, event(2)):
        assert await keeper.replay(_name(each), work)
    assert taken == [first, event(2)]
    assert names(tmp_path) == [f"{_name(event(3))}.json"]
    with pytest.raises(UserError, match="too long to keep"):
        await keeper.replay(_name(event(3)), work)
    assert not await keeper.replay("../schema", work)
    fine = EventHandling()
    await keeper.handle(first, fine)
    assert fine.times == 1


async def test_a_replay_that_fails_or_kills_leaves_it_set_aside(tmp_path: Path) -> None:
    """Nothing is lost by trying, and a replayed poison needs no second kill."""
    keeper = quarantine(tmp_path)
    await keeper.handle(event(), EventHandling(UnreadableEvent("odd")))

    async def break_down(_: PlatformEvent) -> None:
        raise KeyError("canary")

    with pytest.raises(KeyError):
        await keeper.replay(_name(event()), break_down)
    assert names(tmp_path) == [f"{_name(event())}.json"]
    write_working(keeper, event())
    assert quarantine(tmp_path).struck_names == []
    assert [kept.reason for kept in list_events(tmp_path)] == [KILLED]


async def test_who_is_to_be_told_is_known_until_they_were(tmp_path: Path) -> None:
    """Of an event that killed twice or broke us three times the origin is offered, after a restart too."""
    origin = EventOrigin(chat="42", sender="ann")
    keeper = quarantine(tmp_path)
    await keeper.handle(replace(event(1), origin=origin), EventHandling(UnreadableEvent("odd")))
    assert not keeper.news.is_set()
    broken = replace(event(2), origin=origin)
    for _ in range(2):
        with pytest.raises(KeyError):
            await keeper.handle(broken, EventHandling(KeyError()))
    await keeper.handle(broken, EventHandling(KeyError()))
    assert keeper.news.is_set()
    for _ in range(2):
        write_working(keeper, event(3))
        keeper = quarantine(tmp_path)
    assert keeper.news.is_set()
    told = {name: (channel, where) for name, channel, where in await keeper.list_unnotified()}
    assert told == {_name(broken): ("telegram", origin), _name(event(3)): ("", None)}
    for name in told:
        await keeper.mark_notified(name)
    assert not quarantine(tmp_path).news.is_set()
