"""From the journal to the files: once, in order, whatever fails in between."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.memory.scopes import blob_path, transcript_path
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain
from agent.memory.storage.text_blobs import digest_of
from agent.memory.storage.transcript_projector import FlushPolicy, TranscriptProjector
from agent.memory.storage.transcript_reader import read_all
from gateway.errors import ScopeBehind
from gateway.events import SessionKey
from gateway.ports import MessageOutcome, TurnRecord
from tests.fakes.clock import VirtualClock
from tests.fakes.memory import (
    ANN,
    SCOPE,
    START,
    TRANSCRIPT,
    CountingDisk,
    FakeRecords,
    FaultyDisk,
    ProcessCrash,
    exchange,
    talk,
    turn_name,
)

BOB = SessionKey("telegram", "43")
BOBS: dict[str, Any] = {"key": BOB, "scope": "people/telegram%3a43", "transcript": "bbbbbbbbbbbbbbbb"}
NEXT = "nnnnnnnnnnnnnnnn"


def path_of(home: Path, scope: str = SCOPE, key: SessionKey = ANN) -> Path:
    """Return where a transcript stands."""
    return transcript_path(home, scope, str(key))


def turns(path: Path) -> list[str]:
    """Return the turns that a file holds."""
    return [block.turn for block in read_all(SegmentChain(Disk(), path)).blocks]


def names(*numbers: int | str) -> list[str]:
    """Return turn ids."""
    return [turn_name(n) for n in numbers]


def command(n: int | str, *, transcript: str = TRANSCRIPT, new: str = "") -> TurnRecord:
    """Return the record of a command; *new* is the transcript that /new begins."""
    turn = turn_name(n)
    return TurnRecord(
        turn=turn,
        key=ANN,
        transcript=transcript,
        scope=SCOPE,
        outcome=MessageOutcome.ANSWERED,
        lines=(build.command(turn, "/x", "done", START),),
        from_index=0,
        to_index=0,
        inbox=(1,),
        at=START,
        new_transcript=new,
    )


async def test_records_reach_their_files_and_leave_the_journal(tmp_path: Path) -> None:
    """Each key has its own file in its own scope; nothing is pending afterwards."""
    records = FakeRecords(*talk(3), *talk(2, **BOBS))
    projector = TranscriptProjector(tmp_path, records)
    assert await projector.flush()
    assert turns(path_of(tmp_path)) == names(0, 1, 2)
    assert turns(path_of(tmp_path, "people/telegram%3a43", BOB)) == names(0, 1)
    assert records.stored == []
    await projector.close()


async def test_a_repeated_record_is_written_once(tmp_path: Path) -> None:
    """A crash after the file and before the journal: the next run finds the turns in the file."""
    records = FakeRecords(*talk(5))
    stored = list(records.stored)
    await TranscriptProjector(tmp_path, records).close()
    whole = path_of(tmp_path).read_bytes()
    records.stored = stored
    await TranscriptProjector(tmp_path, records).close()
    assert path_of(tmp_path).read_bytes() == whole
    assert records.stored == []


async def test_a_repeated_record_behind_a_pointer_is_written_once(tmp_path: Path) -> None:
    """Also when the crash was behind a pointer that left the earlier turns outside the window."""
    records = FakeRecords(*talk(3), exchange(3, 6, before=[build.pointer(8)]))
    stored = list(records.stored)
    await TranscriptProjector(tmp_path, records).close()
    records.stored = stored
    await TranscriptProjector(tmp_path, records).close()
    assert turns(path_of(tmp_path)) == names(0, 1, 2, 3)


async def test_what_was_found_in_the_file_is_synced_before_the_journal_lets_go(tmp_path: Path) -> None:
    """Bytes in a cache are no promise: a record that was found is fsynced like one that was written."""
    records = FakeRecords(talk(1)[0])
    stored = list(records.stored)
    await TranscriptProjector(tmp_path, records).close()
    records.stored = stored
    disk = CountingDisk()
    await TranscriptProjector(tmp_path, records, disk=disk).close()
    assert disk.calls["write"] == 0
    assert disk.calls["sync"] == 1


async def test_a_group_costs_one_fsync_per_file(tmp_path: Path) -> None:
    """Many turns of one chat in one group: many writes, one fsync, and no reading back."""
    records = FakeRecords()
    disk = CountingDisk()
    projector = TranscriptProjector(tmp_path, records, disk=disk)
    records.commit(talk(1)[0])
    await projector.flush()
    disk.reset()
    for record in talk(20, first=1, start=2):
        records.commit(record)
    await projector.flush()
    assert disk.calls["sync"] == 1
    assert disk.calls["write"] == 20
    assert disk.bytes_read == 0
    await projector.close()


async def test_texts_are_there_before_the_line_that_names_them(tmp_path: Path) -> None:
    """A snapshot line never names a blob that a crash could have kept from the disk."""
    digest = digest_of("soul")
    taken = build.snapshot(1, {"SOUL": digest}, "UTC", 0, replay_from=0, rev="r")
    record = exchange(0, 0, before=[taken], blobs={digest: "soul"})
    records = FakeRecords(record)
    with pytest.raises(ProcessCrash):
        await TranscriptProjector(
            tmp_path, records, disk=FaultyDisk(at=0, error=ProcessCrash(), only="sessions")
        ).flush()
    assert blob_path(tmp_path, SCOPE, digest).read_text() == "soul"
    assert blob_path(tmp_path, SCOPE, digest).stat().st_mode & 0o777 == 0o600
    assert not path_of(tmp_path).exists()


async def test_new_renames_the_transcript_and_begins_another(tmp_path: Path) -> None:
    """The archive is named by transcript and turn; what follows stands in a fresh file."""
    records = FakeRecords(*talk(2), command("new", new=NEXT), exchange(2, 0, transcript=NEXT))
    await TranscriptProjector(tmp_path, records).close()
    archive = path_of(tmp_path).with_name(f"{TRANSCRIPT}.{turn_name('new')}.jsonl")
    assert turns(archive) == names(0, 1, "new")
    assert turns(path_of(tmp_path)) == names(2)
    assert SegmentChain(Disk(), path_of(tmp_path)).transcript == NEXT


@pytest.mark.parametrize("survived", [0, 1, 2, 3, 4])
async def test_new_twice_is_new_once(tmp_path: Path, survived: int) -> None:
    """However many of the records around /new had reached the files before the crash."""
    every = [*talk(2), command("new", new=NEXT), exchange(2, 0, transcript=NEXT)]
    records = FakeRecords(*every)
    stored = list(records.stored)
    records.stored = stored[:survived]
    await TranscriptProjector(tmp_path, records).close()
    records.stored = list(stored)
    await TranscriptProjector(tmp_path, records).close()
    archive = path_of(tmp_path).with_name(f"{TRANSCRIPT}.{turn_name('new')}.jsonl")
    assert turns(archive) == names(0, 1, "new")
    assert turns(path_of(tmp_path)) == names(2)
    assert len(list(path_of(tmp_path).parent.iterdir())) == 2


@pytest.mark.parametrize("again", [1, 2])
async def test_a_repeated_new_never_overwrites_the_archive(tmp_path: Path, again: int) -> None:
    """Only the last records come again, and the file they belong to has its final name already."""
    records = FakeRecords(*talk(2), command("new", new=NEXT))
    stored = list(records.stored)
    await TranscriptProjector(tmp_path, records).close()
    records.stored = stored[-again:]
    await TranscriptProjector(tmp_path, records).close()
    archive = path_of(tmp_path).with_name(f"{TRANSCRIPT}.{turn_name('new')}.jsonl")
    assert turns(archive) == names(0, 1, "new")
    assert not path_of(tmp_path).exists()


async def test_a_crash_between_the_write_and_the_rename_is_mended(tmp_path: Path) -> None:
    """The file already holds /new, but stands under the old name."""
    records = FakeRecords(*talk(1), command("new", new=NEXT))
    stored = list(records.stored)
    disk = FaultyDisk(error=ProcessCrash(), only="sessions")
    with pytest.raises(ProcessCrash):
        await TranscriptProjector(tmp_path, records, disk=_dies_at_rename(disk)).flush()
    records.stored = stored
    await TranscriptProjector(tmp_path, records).close()
    assert not path_of(tmp_path).exists()
    assert turns(path_of(tmp_path).with_name(f"{TRANSCRIPT}.{turn_name('new')}.jsonl")) == names(0, "new")


def _dies_at_rename(disk: FaultyDisk) -> FaultyDisk:
    class CrashingDisk(FaultyDisk):
        def rename(self, old: Path, new: Path) -> None:
            raise self.error

    return CrashingDisk(error=disk.error)


async def test_a_command_beside_the_lane_joins_the_current_transcript(tmp_path: Path) -> None:
    """/status names no transcript; before the first turn, between turns and after /new it is kept."""
    records = FakeRecords()
    every = [
        command("a", transcript=""),
        *talk(1),
        command("b", transcript=""),
        command("new", new=NEXT),
        command("c", transcript=""),
        exchange(2, 0, transcript=NEXT),
    ]
    for record in every:
        records.commit(record)
    await TranscriptProjector(tmp_path, records).close()
    archive = path_of(tmp_path).with_name(f"{TRANSCRIPT}.{turn_name('new')}.jsonl")
    assert turns(archive) == names("a", 0, "b", "new")
    assert turns(path_of(tmp_path)) == names("c", 2)


async def test_a_transcript_the_journal_does_not_know_is_kept_beside(tmp_path: Path) -> None:
    """After an older journal was restored nothing is appended to a stranger, and nothing is thrown away."""
    records = FakeRecords(talk(1, transcript="zzzzzzzzzzzzzzzz")[0])
    await TranscriptProjector(tmp_path, records).close()
    records.commit(exchange(1, 0))
    await TranscriptProjector(tmp_path, records).close()
    assert turns(path_of(tmp_path)) == names(1)
    assert turns(path_of(tmp_path).with_name(f"zzzzzzzzzzzzzzzz.{turn_name(0)}.jsonl")) == names(0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_one_bad_file_never_stops_the_others(tmp_path: Path, code: int) -> None:
    """Ann's disk fails at every step in turn: Bob's turns are written, Ann's wait and are written later, once."""
    for at in range(6):
        home = tmp_path / str(at)
        records = FakeRecords()
        for ann, bob in zip(talk(2), talk(2, **BOBS), strict=True):
            records.commit(ann)
            records.commit(bob)
        disk = FaultyDisk(at=at, error=OSError(code, "no"), only="%3a42/sessions")
        projector = TranscriptProjector(home, records, disk=disk)
        is_clean = await projector.flush()
        assert turns(path_of(home, "people/telegram%3a43", BOB)) == names(0, 1)
        assert is_clean == (not records.stored)
        assert await projector.flush()
        assert turns(path_of(home)) == names(0, 1)
        assert records.stored == []
        await projector.close()


async def test_every_crash_point_of_a_batch_is_mended(tmp_path: Path) -> None:
    """The process dies at each write, fsync, truncate and rename: the next run leaves each turn once, in order."""
    every = [*talk(3), command("new", new=NEXT), *talk(2, first=3, transcript=NEXT)]
    points = 0
    for at in range(100):
        home = tmp_path / str(at)
        records = FakeRecords(*every)
        disk = FaultyDisk(at=at, error=ProcessCrash())
        try:
            await TranscriptProjector(home, records, disk=disk).flush()
        except ProcessCrash:
            points += 1
        else:
            break
        await TranscriptProjector(home, records).close()
        archive = path_of(home).with_name(f"{TRANSCRIPT}.{turn_name('new')}.jsonl")
        assert turns(archive) == names(0, 1, 2, "new"), at
        assert turns(path_of(home)) == names(3, 4), at
        assert records.stored == []
    assert points >= 10


async def test_an_outage_is_logged_once_and_its_end_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk does not fill the log as well; no text and no path of a person is in it."""
    records = FakeRecords(*talk(2, said="my secret"))
    disk = FaultyDisk(error=OSError(errno.ENOSPC, "No space left on device"))
    projector = TranscriptProjector(tmp_path, records, disk=disk)
    for _ in range(4):
        disk.at = disk.count
        assert not await projector.flush()
    disk.at = -1
    assert await projector.flush()
    said = capsys.readouterr().out
    assert said.count("projector.cannot_write") == 1
    assert said.count("projector.writes_again") == 1
    assert "secret" not in said


async def test_what_cannot_be_written_at_all_stops_nobody_else(tmp_path: Path) -> None:
    """A record with an impossible scope stays where it is and is named in the log; the rest goes on."""
    records = FakeRecords(exchange(0, 0, scope="../../etc"), exchange(0, 0, **BOBS))
    projector = TranscriptProjector(tmp_path, records)
    assert not await projector.flush()
    assert turns(path_of(tmp_path, "people/telegram%3a43", BOB)) == names(0)
    assert [each.record.scope for each in records.stored] == ["../../etc"]


async def test_run_projects_what_comes_and_what_was_left(tmp_path: Path, clock: VirtualClock) -> None:
    """The last run's records first, then groups: a burst within the wait is one hop."""
    records = FakeRecords(talk(1)[0])
    disk = CountingDisk()
    projector = TranscriptProjector(tmp_path, records, disk=disk, grouping=FlushPolicy(wait=timedelta(seconds=1)))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(projector.run())
        await asyncio.sleep(0.5)
        assert turns(path_of(tmp_path)) == names(0)
        disk.reset()
        for record in talk(10, first=1, start=2):
            records.commit(record)
            await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        assert turns(path_of(tmp_path)) == names(*range(11))
        assert disk.calls["sync"] == 1
        running.cancel()


async def test_run_tries_again_by_itself_and_less_and_less_often(tmp_path: Path, clock: VirtualClock) -> None:
    """A full disk and a journal that is down are both waited for, without anybody committing meanwhile."""
    records = FakeRecords(talk(1)[0])
    disk = FaultyDisk(at=0, error=OSError(errno.ENOSPC, "full"))
    projector = TranscriptProjector(tmp_path, records, disk=disk)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(projector.run())
        await asyncio.sleep(0.1)
        assert records.stored
        records.is_down = True
        await asyncio.sleep(60)
        records.is_down = False
        await asyncio.sleep(60)
        assert not records.stored
        running.cancel()
    assert turns(path_of(tmp_path)) == names(0)


async def test_run_tries_again_at_once_when_another_gateway_was_faster(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its change is fetched by then: lines of two busy gateways waited for half a minute in the end, as for a disk."""
    records = FakeRecords(talk(1)[0])
    projected, behind = records.projected, [ScopeBehind("another gateway has changed the memory")] * 9

    async def project(seqs: Sequence[int]) -> None:
        if behind:
            raise behind.pop()
        await projected(seqs)

    monkeypatch.setattr(records, "projected", project)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(TranscriptProjector(tmp_path, records).run())
        await asyncio.sleep(2)
        assert not records.stored
        running.cancel()
    assert turns(path_of(tmp_path)) == names(0)


async def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    """A thousand chats do not need a thousand descriptors, and coming back reads nothing again."""
    records = FakeRecords()
    disk = CountingDisk()
    projector = TranscriptProjector(tmp_path, records, disk=disk, grouping=FlushPolicy(open_files=3))
    keys = [SessionKey("web", str(n)) for n in range(10)]
    for round_ in range(2):
        for n, key in enumerate(keys):
            records.commit(exchange(round_, 2 * round_, key=key, scope=f"people/web%3a{n}"))
        disk.reset()
        await projector.flush()
        assert len([file for file in projector._files.values() if file.is_open]) <= 3
    assert disk.bytes_read == 0
    for n, key in enumerate(keys):
        assert turns(path_of(tmp_path, f"people/web%3a{n}", key)) == names(0, 1)
    await projector.close()


async def test_a_cancelled_flush_finishes_what_its_thread_began(tmp_path: Path) -> None:
    """Two threads never write one file: cancelling waits for the one that is at work."""
    records = FakeRecords(*talk(3))
    projector = TranscriptProjector(tmp_path, records)
    flushing = asyncio.create_task(projector.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait([flushing])
    await projector.close()
    assert turns(path_of(tmp_path)) == names(0, 1, 2)


async def test_a_record_without_an_end_gets_one(tmp_path: Path) -> None:
    """A pointer committed by itself is a record like any other: closed, and projected once."""
    records = FakeRecords(talk(1)[0])
    alone = replace(command("p"), lines=(build.pointer(2),), from_index=2, to_index=2, inbox=())
    await records.append(alone)
    await TranscriptProjector(tmp_path, records).close()
    [_, block] = read_all(SegmentChain(Disk(), path_of(tmp_path))).blocks
    assert [line["kind"] for line in block.lines] == ["pointer", "end"]
