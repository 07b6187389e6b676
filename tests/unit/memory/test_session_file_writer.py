"""From the store to the files: every turn once, in order, whatever fails in between."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from agent.base.scopes import transcript_path
from agent.memory.storage.session_file_writer import (
    FileWritePolicy,
    SessionFileWriter,
    list_session_files,
    read_session_file,
)
from agent.memory.storage.transcript_files import read_head, read_transcript, segment_path, transcript_of_archive
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports.journal import MessageOutcome, TurnRecord
from gateway.store.transcripts import SqlTranscripts
from tests.fakes.clock import VirtualClock
from tests.fakes.memory import (
    ANN,
    SCOPE,
    START,
    TRANSCRIPT,
    CountingDisk,
    DyingDisk,
    FakeRecords,
    FaultyDisk,
    ProcessCrash,
    exchange,
    talk,
    turn_name,
)
from tests.fakes.power_cut import PowerCut

BOB = SessionKey("telegram", "43")
BOBS_SCOPE = "people/telegram%3a43"
BOBS: dict[str, Any] = {"key": BOB, "scope": BOBS_SCOPE, "transcript": "bbbbbbbbbbbbbbbb"}
NEXT = "nnnnnnnnnnnnnnnn"
FOREIGN = b'{"kind":"note","content":"mine"}'
BLANK = b"x"  # what `without` puts into the place of a word


def path_of(home: Path, scope: str = SCOPE, key: SessionKey = ANN) -> Path:
    """Return where a transcript is."""
    return transcript_path(home, scope, str(key))


def archive(home: Path, turn: str = "new", transcript: str = TRANSCRIPT) -> Path:
    """Return where Ann's transcript is once the turn *turn* has ended it."""
    return path_of(home).with_name(f"{transcript}.{turn_name(turn)}.jsonl")


def turns(path: Path) -> list[str]:
    """Return the turns that a file has."""
    return [block.turn for block in read_transcript(Disk(), path).blocks]


def names(*numbers: int | str) -> list[str]:
    """Return turn ids."""
    return [turn_name(n) for n in numbers]


def mirror_of(
    home: Path, records: FakeRecords, disk: Disk | None = None, policy: FileWritePolicy | None = None
) -> SessionFileWriter:
    """Return a mirror as the next process has it."""
    return SessionFileWriter(home, records, records.transcripts, disk=disk, policy=policy)


async def bodies(
    records: FakeRecords, transcript: str = TRANSCRIPT, key: SessionKey = ANN, scope: str = SCOPE
) -> bytes:
    """Return what a transcript's file must have behind its head."""
    found, last = b"", -(2**62)
    while page := await records.transcripts.since(scope, key, transcript, last):
        found += b"".join(each.body for each in page)
        last = page[-1].seq
    return found


def behind_head(path: Path) -> bytes:
    """Return what a file has behind its head."""
    head, _, rest = path.read_bytes().partition(b"\n")
    assert b'"kind":"head"' in head
    return rest


def without(word: bytes, raw: bytes) -> bytes:
    """Return a line without a word, as an erasure does: of the same length."""
    return raw.replace(word, BLANK * len(word))


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


def pointer(n: int | str, to: int, *, transcript: str = TRANSCRIPT) -> TurnRecord:
    """Return a record that a summary appends, as a rule after /new."""
    return replace(command(n, transcript=transcript), lines=(build.pointer(to),), from_index=to, to_index=to, inbox=())


# -- turns reach their files ---------------------------------------------------------------------------


async def test_turns_reach_their_files(tmp_path: Path) -> None:
    """Each session has its own file in its own scope: a head and the bytes of the rows; nothing is left to write."""
    records = FakeRecords(*talk(3), *talk(2, first=10, **BOBS))
    mirror = mirror_of(tmp_path, records)
    assert await mirror.flush()
    assert turns(path_of(tmp_path)) == names(0, 1, 2)
    assert turns(path_of(tmp_path, BOBS_SCOPE, BOB)) == names(10, 11)
    assert behind_head(path_of(tmp_path)) == await bodies(records)
    assert not records.stored
    await mirror.close()


async def test_files_and_folders_are_private_from_the_first_write(tmp_path: Path) -> None:
    """0600 and 0700, whatever the umask says."""
    before = os.umask(0)
    try:
        mirror = mirror_of(tmp_path, FakeRecords(*talk(1)))
        assert await mirror.flush()
        await mirror.close()
    finally:
        os.umask(before)
    path = path_of(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_more_turns_than_a_batch_are_written_in_order(tmp_path: Path) -> None:
    """Batches go on where the last one ended, also within one session."""
    records = FakeRecords()
    for ann, bob in zip(talk(7), talk(7, first=10, **BOBS), strict=True):
        records.commit(ann)
        records.commit(bob)
    assert await mirror_of(tmp_path, records, policy=FileWritePolicy(records=3)).flush()
    assert turns(path_of(tmp_path)) == names(*range(7))
    assert turns(path_of(tmp_path, BOBS_SCOPE, BOB)) == names(*range(10, 17))
    assert not records.stored


async def test_a_batch_is_one_write_and_reads_nothing(tmp_path: Path) -> None:
    """Many turns of one chat are appended at once, without an fsync: the rows are durable."""
    records = FakeRecords(talk(1)[0])
    disk = CountingDisk()
    mirror = mirror_of(tmp_path, records, disk)
    await mirror.flush()
    disk.reset()
    for record in talk(20, first=1, start=2):
        records.commit(record)
    await mirror.flush()
    assert (disk.calls["write"], disk.calls["sync"], disk.bytes_read) == (1, 0, 0)
    assert turns(path_of(tmp_path)) == names(*range(21))


async def test_a_turn_that_was_written_before_a_crash_is_written_once(tmp_path: Path) -> None:
    """A crash after the file and before the store noted it: the next run finds the turns in the file."""
    records = FakeRecords(*talk(3), exchange(3, 6, before=[build.pointer(4)]))

    class CrashingRecords(FakeRecords):
        def mark_written(self, seqs: Sequence[int]) -> None:
            raise ProcessCrash

    crashing = CrashingRecords(*talk(3), exchange(3, 6, before=[build.pointer(4)]))
    with pytest.raises(ProcessCrash):
        await mirror_of(tmp_path, crashing).flush()
    whole = path_of(tmp_path).read_bytes()
    await mirror_of(tmp_path, records).close()
    assert path_of(tmp_path).read_bytes() == whole
    assert turns(path_of(tmp_path)) == names(0, 1, 2, 3)
    assert not records.stored


async def test_a_record_without_an_end_gets_one(tmp_path: Path) -> None:
    """A pointer committed by itself is a record like any other: closed, and written once."""
    records = FakeRecords(talk(1)[0])
    await records.append(pointer("p", 2))
    await mirror_of(tmp_path, records).close()
    [_, block] = read_transcript(Disk(), path_of(tmp_path)).blocks
    assert [line["kind"] for line in block.lines] == ["pointer", "end"]


@pytest.mark.parametrize("is_new_run", [False, True], ids=["same run", "next run"])
async def test_a_record_of_no_transcript_is_in_no_file(tmp_path: Path, is_new_run: bool) -> None:
    """It stays in the store; the current file, which it does not belong to, is the rows of its transcript."""
    records = FakeRecords(command("a", transcript=""), *talk(1))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    records.commit(command("b", transcript=""))
    mirror = mirror_of(tmp_path, records) if is_new_run else mirror
    await mirror.flush()
    records.commit(exchange(1, 2))
    await mirror.flush()
    assert not records.stored
    assert behind_head(path_of(tmp_path)) == await bodies(records)
    assert [path_of(tmp_path)] == list(path_of(tmp_path).parent.iterdir())
    assert len(await records.transcripts.newest(SCOPE, ANN, 9)) == 4


async def test_two_chats_that_share_a_folder_keep_apart(tmp_path: Path) -> None:
    """The threads of a group are sessions of one scope; nothing of one is in the file of the other."""
    thread = SessionKey("telegram", "42/7")
    records = FakeRecords(*talk(2), *talk(3, first=10, key=thread, transcript="t" * 16))
    await mirror_of(tmp_path, records).close()
    assert turns(path_of(tmp_path)) == names(0, 1)
    assert turns(path_of(tmp_path, key=thread)) == names(10, 11, 12)


# -- /new ----------------------------------------------------------------------------------------------


async def test_new_archives_the_transcript_and_begins_another(tmp_path: Path) -> None:
    """The archive is named by transcript and turn; what follows is in a new file."""
    records = FakeRecords(*talk(2), command("new", new=NEXT), exchange(2, 0, transcript=NEXT))
    await mirror_of(tmp_path, records).close()
    assert turns(archive(tmp_path)) == names(0, 1, "new")
    assert turns(path_of(tmp_path)) == names(2)
    assert read_head(Disk(), path_of(tmp_path))["transcript"] == NEXT


@pytest.mark.parametrize("survived", [0, 1, 2, 3, 4])
async def test_new_in_any_two_runs_is_new_once(tmp_path: Path, survived: int) -> None:
    """However many of the turns around /new the first run wrote."""
    every = [*talk(2), command("new", new=NEXT), exchange(2, 0, transcript=NEXT)]
    records = FakeRecords(*every[:survived])
    await mirror_of(tmp_path, records).close()
    for record in every:
        records.commit(record)
    await mirror_of(tmp_path, records).close()
    assert turns(archive(tmp_path)) == names(0, 1, "new")
    assert turns(path_of(tmp_path)) == names(2)
    assert len(list(path_of(tmp_path).parent.iterdir())) == 2


async def test_a_late_pointer_goes_to_the_archive(tmp_path: Path) -> None:
    """What is appended to a transcript after /new, in the same run, in the next, and before the next turn."""
    records = FakeRecords(*talk(2), command("new", new=NEXT))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    records.commit(pointer("p", 2))
    await mirror.flush()
    assert turns(archive(tmp_path)) == names(0, 1, "new", "p")
    assert not path_of(tmp_path).exists()
    records.commit(exchange(2, 0, transcript=NEXT))
    records.commit(pointer("q", 4))
    await mirror_of(tmp_path, records).close()
    assert turns(archive(tmp_path)) == names(0, 1, "new", "p", "q")
    assert turns(path_of(tmp_path)) == names(2)


async def test_many_transcripts_of_one_chat_are_archived_in_one_batch(tmp_path: Path) -> None:
    """Three /new behind each other: each file has its own turns, and the newest is the current one."""
    ids = [TRANSCRIPT, "b" * 16, "c" * 16, "d" * 16]
    records = FakeRecords()
    for n, (own, following) in enumerate(pairwise(ids)):
        records.commit(exchange(n, 0, transcript=own))
        records.commit(command(f"new{n}", transcript=own, new=following))
    records.commit(exchange(9, 0, transcript=ids[-1]))
    await mirror_of(tmp_path, records).close()
    for n, own in enumerate(ids[:-1]):
        assert turns(archive(tmp_path, f"new{n}", own)) == names(n, f"new{n}")
    assert turns(path_of(tmp_path)) == names(9)
    assert len(list(path_of(tmp_path).parent.iterdir())) == 4


async def test_a_transcript_the_store_does_not_know_is_kept_beside(tmp_path: Path) -> None:
    """After an older store was restored nothing is appended to a stranger, and nothing is thrown away."""
    elsewhere = FakeRecords(talk(1, transcript="zzzzzzzzzzzzzzzz")[0])
    await mirror_of(tmp_path, elsewhere).close()
    records = FakeRecords(exchange(1, 0))
    await mirror_of(tmp_path, records).close()
    assert turns(path_of(tmp_path)) == names(1)
    [beside] = path_of(tmp_path).parent.glob("zzzzzzzzzzzzzzzz.t*.jsonl")
    assert turns(beside) == names(0)


# -- a file that is not what was written ---------------------------------------------------------------


def append_line(path: Path) -> None:
    """Append a line of one's own."""
    with path.open("ab") as file:
        file.write(FOREIGN + b"\n")


def insert_line(path: Path) -> None:
    """Put a line of one's own behind the head."""
    head, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(head + b"\n" + FOREIGN + b"\n" + rest)


def replace_line(path: Path) -> None:
    """Put a line of one's own in the place of another."""
    head, _, *rest = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([head, FOREIGN, *rest]))


def empty(path: Path) -> None:
    """Leave nothing."""
    path.write_bytes(b"")


def cut_off(path: Path) -> None:
    """Cut within the last line."""
    path.write_bytes(path.read_bytes()[:-7])


def cut_head(path: Path) -> None:
    """Leave half of the head."""
    path.write_bytes(path.read_bytes()[:20])


def fill_with_bytes(path: Path) -> None:
    """Put bytes that are no text."""
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("is_new_run", [False, True], ids=["same run", "next run"])
@pytest.mark.parametrize(
    "edit", [append_line, insert_line, replace_line, empty, cut_off, cut_head, fill_with_bytes, Path.unlink]
)
async def test_a_file_that_a_person_changed_is_written_again(
    tmp_path: Path, edit: Callable[[Path], None], is_new_run: bool
) -> None:
    """With the next turn it is again the rows and nothing else; a line of the person's own is set aside."""
    records = FakeRecords(*talk(3))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    path = path_of(tmp_path)
    edit(path)
    records.commit(exchange(3, 6))
    mirror = mirror_of(tmp_path, records) if is_new_run else mirror
    assert await mirror.flush()
    assert behind_head(path) == await bodies(records)
    assert turns(path) == names(0, 1, 2, 3)
    aside = path.with_name(f"{path.name}.corrupt")
    if edit in (append_line, insert_line, replace_line):
        assert aside.read_bytes() == FOREIGN + b"\n"
    assert [path] == [each for each in path.parent.iterdir() if not each.name.endswith(".corrupt")]


async def test_a_file_that_is_written_again_has_the_same_bytes(tmp_path: Path) -> None:
    """Head included: the time in it is that of the first turn, whenever the file is written."""
    records = FakeRecords(*talk(3))
    await mirror_of(tmp_path, records).close()
    path = path_of(tmp_path)
    before = path.read_bytes()
    path.unlink()
    records.commit(exchange(3, 6))
    await mirror_of(tmp_path, records).close()
    assert path.read_bytes().startswith(before)


async def test_an_archive_that_a_person_changed_is_written_again(tmp_path: Path) -> None:
    """A late pointer finds an archive with a line more: it keeps its name, and the line is set aside."""
    records = FakeRecords(*talk(2), command("new", new=NEXT))
    await mirror_of(tmp_path, records).close()
    append_line(archive(tmp_path))
    records.commit(pointer("p", 2))
    await mirror_of(tmp_path, records).close()
    assert behind_head(archive(tmp_path)) == await bodies(records)
    assert archive(tmp_path).with_name(f"{archive(tmp_path).name}.corrupt").read_bytes() == FOREIGN + b"\n"


async def test_segments_of_an_earlier_release_are_removed(tmp_path: Path) -> None:
    """A file that began at a byte offset has every turn, and the full segments before it are gone."""
    records = FakeRecords(*talk(3))
    await mirror_of(tmp_path, records).close()
    path = path_of(tmp_path)
    for number in (1, 2):
        segment_path(path, TRANSCRIPT, number).write_bytes(build.encode(build.head_line(TRANSCRIPT, str(ANN), START)))
    last = {**build.head_line(TRANSCRIPT, str(ANN), START), "segment": 2, "base": 900}
    path.write_bytes(build.encode(last) + (await records.transcripts.newest(SCOPE, ANN, 1))[0].body)
    records.commit(exchange(3, 6))
    await mirror_of(tmp_path, records).close()
    assert [path] == list(path.parent.iterdir())
    assert b'"segment"' not in path.read_bytes()
    assert behind_head(path) == await bodies(records)


# -- kills ---------------------------------------------------------------------------------------------


class DyingRecords(FakeRecords):
    """Records whose operations behind the files are places to die too, before and after."""

    disk: DyingDisk | None = None

    def mark_written(self, seqs: Sequence[int]) -> None:
        """Note, or die."""
        self.step()
        super().mark_written(seqs)
        self.step()

    def step(self) -> None:
        """Count one more place to die in."""
        if self.disk is not None:
            self.disk.step("store")


async def append_turns(records: FakeRecords, home: Path) -> None:
    """Have turns to append to a file."""
    for record in talk(3, first=2, start=4):
        records.commit(record)


async def redact_turns(records: FakeRecords, home: Path) -> None:
    """Have a word taken from two turns, and one to append."""
    await records.transcripts.rewrite(SCOPE, partial(without, b"answer"))
    records.commit(exchange(2, 4))


async def edit_file(records: FakeRecords, home: Path) -> None:
    """Have a file that is not what was written, and a turn to append."""
    append_line(path_of(home))
    records.commit(exchange(2, 4))


async def archive_file(records: FakeRecords, home: Path) -> None:
    """Have /new, a late pointer and turns of the next transcript."""
    records.commit(command("new", new=NEXT))
    records.commit(pointer("p", 2))
    for record in talk(2, first=2, transcript=NEXT):
        records.commit(record)


async def remove_turns(records: FakeRecords, home: Path) -> None:
    """Have no turns any more."""
    await records.transcripts.remove(SCOPE, keys=frozenset({ANN}))


async def redact_archive(records: FakeRecords, home: Path) -> None:
    """Have /new, and a word taken from both transcripts."""
    await archive_file(records, home)
    await records.transcripts.rewrite(SCOPE, partial(without, b"question"))


CHANGES = (append_turns, redact_turns, edit_file, archive_file, remove_turns, redact_archive)


@pytest.mark.parametrize("change", CHANGES)
async def test_killed_anywhere_the_next_run_leaves_the_bytes_of_the_rows(
    tmp_path: Path, change: Callable[[FakeRecords, Path], Awaitable[None]]
) -> None:
    """At each write, rename, replacement, removal and note: then each turn is in its file once, and nothing else."""
    points = 0
    for at in range(200):
        home = tmp_path / str(at)
        records = DyingRecords(*talk(2))
        await mirror_of(home, records).close()
        await change(records, home)
        disk = records.disk = DyingDisk(at=at, error=ProcessCrash())
        try:
            await mirror_of(home, records, disk).flush()
            is_killed = False
        except ProcessCrash:
            points += 1
            is_killed = True
        records.disk = None
        assert await mirror_of(home, records).flush()
        assert not records.stored
        assert not await records.transcripts.stale_files()
        expected = {path_of(home): await bodies(records)} if await bodies(records) else {}
        if (current := records.rows[ANN].transcript) != TRANSCRIPT:
            expected = {archive(home): await bodies(records), path_of(home): await bodies(records, current)}
        found = [each for each in path_of(home).parent.iterdir() if each.suffix != ".corrupt"]
        assert {path: behind_head(path) for path in found} == expected, at
        if not is_killed:
            break
    assert points >= 3


# -- redaction and removal -----------------------------------------------------------------------------


async def redact(mirror: SessionFileWriter, records: FakeRecords, scope: str = SCOPE) -> int:
    """Take the lines with the secret out of the rows, then out of the files; return their number."""
    count = await records.transcripts.rewrite(scope, partial(without, b"secret"))
    await mirror.write_scope(scope)
    return count


async def test_a_redaction_leaves_no_old_byte(tmp_path: Path) -> None:
    """In the current file, in the archive and in turns that are in no file yet; lines keep their places."""
    records = FakeRecords(*talk(2, said="my secret"), command("new", new=NEXT))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    for record in talk(2, first=2, said="a secret", transcript=NEXT):
        records.commit(record)
    assert await redact(mirror, records) == 4
    for path in (archive(tmp_path), path_of(tmp_path)):
        assert b"secret" not in path.read_bytes()
        assert len(turns(path)) >= 2
    assert len(list(path_of(tmp_path).parent.iterdir())) == 2
    assert not await records.transcripts.stale_files()
    assert await redact(mirror, records) == 0


@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
async def test_a_redaction_before_a_kill_leaves_no_old_byte(tmp_path: Path, is_written: bool) -> None:
    """The rows were redacted, and the process died before the files: the next run has the old words nowhere."""
    records = FakeRecords(*talk(2, said="my secret"))
    if is_written:
        await mirror_of(tmp_path, records).close()
    await records.transcripts.rewrite(SCOPE, lambda raw: raw.replace(b"secret", b"-"))  # of another length
    records.commit(exchange(2, 4))
    await mirror_of(tmp_path, records).close()
    for path in path_of(tmp_path).parent.iterdir():
        assert b"secret" not in path.read_bytes()
    assert behind_head(path_of(tmp_path)) == await bodies(records)


class RacingTranscripts(SqlTranscripts):
    """Transcripts that are changed by somebody else while the mirror has just read them."""

    race: Callable[[], Awaitable[object]] | None = None

    async def since(self, *args: Any, **kwargs: Any) -> Any:
        """Read, then be overtaken, once."""
        found = await super().since(*args, **kwargs)
        race, self.race = self.race, None
        if race is not None:
            await race()
        return found


async def test_a_redaction_between_commit_and_write_leaves_no_old_byte(tmp_path: Path) -> None:
    """The mirror holds the old bytes of a turn in its hands when the row is redacted."""
    records = FakeRecords(*talk(2, said="my secret"))

    class SlowRecords(FakeRecords):
        async def unwritten(self, after: int, limit: int) -> Any:
            found = await records.unwritten(after, limit)
            await records.transcripts.rewrite(SCOPE, lambda raw: raw.replace(b"secret", b"-"))
            return found

    slow = SlowRecords()
    slow.connection = records.connection
    await SessionFileWriter(tmp_path, slow, records.transcripts).flush()
    for path in path_of(tmp_path).parent.iterdir():
        assert b"secret" not in path.read_bytes()
    assert behind_head(path_of(tmp_path)) == await bodies(records)


async def test_a_change_during_the_rewriting_is_not_lost(tmp_path: Path) -> None:
    """A file that was written from older rows stays stale, and is written again."""
    records = FakeRecords(*talk(2, said="one two"))
    racing = RacingTranscripts(records.engine)
    mirror = SessionFileWriter(tmp_path, records, racing)
    await mirror.flush()
    await records.transcripts.rewrite(SCOPE, partial(without, b"one"))
    racing.race = partial(records.transcripts.rewrite, SCOPE, partial(without, b"two"))
    await mirror.flush()
    assert [each.transcript for each in await records.transcripts.stale_files()] == [TRANSCRIPT]
    await mirror.flush()
    assert not await records.transcripts.stale_files()
    assert behind_head(path_of(tmp_path)) == await bodies(records)
    assert b"two" not in path_of(tmp_path).read_bytes()


async def test_a_message_deleted_in_the_chat_is_blank_in_every_file(tmp_path: Path) -> None:
    """In an archive too; the line keeps its index."""
    records = FakeRecords(*talk(2), command("new", new=NEXT), exchange(5, 0, transcript=NEXT))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    records.commit(
        replace(
            pointer("d", 2, transcript=NEXT),
            lines=(build.forgotten_line("m1"), build.forgotten_line("m5")),
        )
    )
    assert await mirror.flush()
    for path, word in ((archive(tmp_path), b"question 1"), (path_of(tmp_path), b"question 5")):
        assert word not in path.read_bytes()
        assert build.FORGOTTEN.encode() in path.read_bytes()
    assert behind_head(archive(tmp_path)) == await bodies(records)
    assert b"question 0" in archive(tmp_path).read_bytes()


async def test_a_message_deleted_before_it_was_written_reaches_no_file(tmp_path: Path) -> None:
    """The message and its deletion are in one batch."""
    records = FakeRecords(*talk(2), replace(pointer("d", 4), lines=(build.forgotten_line("m1"),)))
    await mirror_of(tmp_path, records).close()
    assert b"question 1" not in path_of(tmp_path).read_bytes()
    assert behind_head(path_of(tmp_path)) == await bodies(records)


@pytest.mark.parametrize("last", ["p123", "d123", "t123.cut", "T1/../x"])
async def test_an_archive_is_found_whatever_its_last_turn_is(tmp_path: Path, last: str) -> None:
    """A link ends a transcript at a pointer or another note: its file is an archive to every reader."""
    records = FakeRecords(*talk(2), replace(pointer("p", 4), turn=last, new_transcript=NEXT))
    await mirror_of(tmp_path, records).close()
    [found] = path_of(tmp_path).parent.iterdir()
    assert transcript_of_archive(found) == TRANSCRIPT
    records.commit(pointer("q", 4))
    await mirror_of(tmp_path, records).close()
    assert [found] == list(path_of(tmp_path).parent.iterdir())
    assert behind_head(found) == await bodies(records)


async def test_a_home_that_was_restored_gets_its_files(tmp_path: Path) -> None:
    """It has the store and no mirror; one that has a mirror of this store keeps it as it is."""
    records = FakeRecords(*talk(2), exchange(2, 4, new_transcript=NEXT), exchange(3, 0, transcript=NEXT))
    first, second = tmp_path / "first", tmp_path / "second"
    mirror = SessionFileWriter(first, records, records.transcripts)
    await mirror.begin(is_shared=False)
    await mirror.flush()
    written = contents(first)
    await SessionFileWriter(first, records, records.transcripts).begin(is_shared=False)
    assert not await records.transcripts.stale_files(SCOPE)
    restored = SessionFileWriter(second, records, records.transcripts)
    await restored.begin(is_shared=False)
    await restored.flush()
    assert contents(second) == written
    assert len(written) == 2


async def test_files_of_another_homes_time_are_written_again(tmp_path: Path) -> None:
    """Another home may have erased words meanwhile: here they are gone with the start, and lines of a person stay."""
    records = FakeRecords(*talk(2))
    for name in ("first", "second"):
        mirror = SessionFileWriter(tmp_path / name, records, records.transcripts)
        await mirror.begin(is_shared=True)
        await mirror.flush()
    await records.transcripts.remove(SCOPE)
    await mirror.write_scope(SCOPE)
    path = path_of(tmp_path / "first")
    aside = path.with_name(f"{path.name}.corrupt")
    aside.write_bytes(FOREIGN)
    assert path.exists()
    await SessionFileWriter(tmp_path / "first", records, records.transcripts).begin(is_shared=True)
    assert not path.exists()
    assert aside.exists()


async def test_export_and_mirror_have_the_same_files(tmp_path: Path) -> None:
    """Names and bytes, of archives too, though the export reads the store."""
    records = FakeRecords(*talk(2), exchange(2, 4, new_transcript=NEXT), exchange(3, 0, transcript=NEXT))
    await SessionFileWriter(tmp_path, records, records.transcripts).flush()
    files = await list_session_files(tmp_path, SCOPE, records.transcripts)
    exported = {file.name: await read_session_file(file, records.transcripts) for file in files}
    assert exported == contents(tmp_path)


def contents(home: Path) -> dict[str, bytes]:
    """Return the files of Ann's conversations by name."""
    return {path.name: path.read_bytes() for path in path_of(home).parent.glob("*.jsonl")}


async def test_removed_turns_leave_no_file(tmp_path: Path) -> None:
    """Neither the current file nor archives, segments and lines set aside; other sessions keep theirs."""
    thread = SessionKey("telegram", "42/7")
    beside = exchange(10, 0, key=thread, transcript="t" * 16)
    records = FakeRecords(*talk(2), command("new", new=NEXT), exchange(2, 0, transcript=NEXT), beside)
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    segment_path(path_of(tmp_path), TRANSCRIPT, 1).write_bytes(b"{}\n")
    archive(tmp_path).with_name(f"{archive(tmp_path).name}.corrupt").write_bytes(FOREIGN)
    assert await records.transcripts.remove(SCOPE, keys=frozenset({ANN})) == 4
    await mirror.write_scope(SCOPE)
    assert [path_of(tmp_path, key=thread)] == list(path_of(tmp_path).parent.iterdir())
    records.commit(exchange(3, 2, transcript=NEXT))
    await mirror.flush()
    assert turns(path_of(tmp_path)) == names(3)


async def test_turns_that_lapse_leave_their_file(tmp_path: Path) -> None:
    """Old turns go, the newer ones stay in order, and an archive of which nothing is left is removed."""
    records = FakeRecords(*talk(2), command("new", new=NEXT), *talk(3, first=60, transcript=NEXT))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    assert await records.transcripts.lapse(SCOPE, START + timedelta(minutes=61), lambda raw: raw) == 4
    await mirror.write_scope(SCOPE)
    assert [path_of(tmp_path)] == list(path_of(tmp_path).parent.iterdir())
    assert turns(path_of(tmp_path)) == names(61, 62)


async def test_files_that_an_earlier_run_left_stale_are_written_with_the_next_redaction(tmp_path: Path) -> None:
    """Also if that changes nothing itself: after a kill, and after a link has moved turns to another scope."""
    records = FakeRecords(*talk(2, said="my secret"))
    await mirror_of(tmp_path, records).close()
    await records.transcripts.rewrite(SCOPE, partial(without, b"secret"))
    assert await redact(mirror_of(tmp_path, records), records) == 0
    assert b"secret" not in path_of(tmp_path).read_bytes()


async def test_an_erasure_is_not_held_up_by_a_file_of_somebody_else(tmp_path: Path) -> None:
    """Bob's folder cannot be written: Ann's words are erased all the same."""
    records = FakeRecords(*talk(2, said="my secret"), *talk(2, first=10, **BOBS))
    disk = DyingDisk(at=0, error=OSError(errno.EIO, "no"), only="%3a43/sessions")
    assert await redact(mirror_of(tmp_path, records, disk), records) == 2
    assert b"secret" not in path_of(tmp_path).read_bytes()


async def test_an_erasure_says_that_a_file_could_not_be_written(tmp_path: Path) -> None:
    """The rows are redacted, the caller knows that the file is not, and the next run writes it."""
    records = FakeRecords(*talk(2, said="my secret"))
    await mirror_of(tmp_path, records).close()
    disk = DyingDisk(at=0, error=OSError(errno.ENOSPC, "No space left on device"), only="sessions")
    mirror = mirror_of(tmp_path, records, disk)
    with pytest.raises(OSError, match="No space left on device"):
        await redact(mirror, records)
    assert b"secret" not in await bodies(records)
    assert await mirror.flush()
    assert b"secret" not in path_of(tmp_path).read_bytes()


async def test_an_erasure_that_the_store_puts_off_does_not_blame_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller sees the error that it waits for and tries again: an OSError ended the turn of a /forget for good."""
    records = FakeRecords(*talk(2, said="my secret"))
    mirror = mirror_of(tmp_path, records)
    read, errors = records.unwritten, [StoreUnavailable("full")]

    async def unwritten(after: int, limit: int) -> Sequence[object]:
        if errors:
            raise errors.pop()
        return await read(after, limit)

    monkeypatch.setattr(records, "unwritten", unwritten)
    with pytest.raises(StoreUnavailable, match="full"):
        await redact(mirror, records)
    assert await redact(mirror, records) == 0
    assert b"secret" not in path_of(tmp_path).read_bytes()


async def test_a_stale_file_is_told_from_one_of_another_scope(tmp_path: Path) -> None:
    """Redacting one person's lines writes no file of another, and changes none of its bytes."""
    records = FakeRecords(*talk(2, said="secret"), *talk(2, first=10, said="secret", **BOBS))
    disk = CountingDisk()
    mirror = mirror_of(tmp_path, records, disk)
    await mirror.flush()
    bobs = path_of(tmp_path, BOBS_SCOPE, BOB)
    before = bobs.read_bytes(), bobs.stat().st_ino
    await redact(mirror, records)
    assert (bobs.read_bytes(), bobs.stat().st_ino) == before
    assert b"secret" in before[0]


# -- other people at the files -------------------------------------------------------------------------


async def test_nothing_is_written_while_writes_are_paused(tmp_path: Path) -> None:
    """What was committed before is in the files; what comes during the pause is there afterwards."""
    records = FakeRecords(*talk(2))
    mirror = mirror_of(tmp_path, records)
    async with mirror.pause_writes():
        assert turns(path_of(tmp_path)) == names(0, 1)
        records.commit(exchange(2, 4))
        flushing = asyncio.create_task(mirror.flush())
        await asyncio.sleep(0.05)
        assert turns(path_of(tmp_path)) == names(0, 1)
    assert await flushing
    assert turns(path_of(tmp_path)) == names(0, 1, 2)


async def test_files_that_are_moved_are_found_where_they_are(tmp_path: Path) -> None:
    """A folder that was moved and moved back is appended to as it is."""
    records = FakeRecords(*talk(2))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    path = path_of(tmp_path)
    await mirror.rearrange([tmp_path / SCOPE], path.unlink)
    assert not path.exists()
    records.commit(exchange(2, 4))
    await mirror.flush()
    assert turns(path) == names(0, 1, 2)


async def test_removed_folders_are_made_again(tmp_path: Path) -> None:
    """A person's folder is erased; what they say next begins another file."""
    records = FakeRecords(*talk(2))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    await records.transcripts.remove(SCOPE)
    await mirror.remove([tmp_path / SCOPE, tmp_path / "missing"])
    assert not (tmp_path / SCOPE).exists()
    records.commit(exchange(2, 4))
    await mirror.flush()
    assert turns(path_of(tmp_path)) == names(2)


# -- outages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_one_bad_file_never_stops_the_others(tmp_path: Path, code: int) -> None:
    """Ann's disk fails at every step in turn: Bob's turns are written, Ann's wait and are written later, once."""
    for at in range(8):
        home = tmp_path / str(at)
        records = FakeRecords()
        for ann, bob in zip(talk(2), talk(2, first=10, **BOBS), strict=True):
            records.commit(ann)
            records.commit(bob)
        disk = DyingDisk(at=at, error=OSError(code, "no"), only="%3a42/sessions")
        mirror = mirror_of(home, records, disk)
        is_clean = await mirror.flush()
        assert turns(path_of(home, BOBS_SCOPE, BOB)) == names(10, 11)
        assert is_clean == (not records.stored)
        assert await mirror.flush()
        assert behind_head(path_of(home)) == await bodies(records)
        assert not records.stored
        await mirror.close()


async def test_a_write_that_fails_in_the_middle_leaves_no_half_turn(tmp_path: Path) -> None:
    """What a full disk has taken of an append is cut off; the turn is there once when the disk has room."""
    records = FakeRecords(*talk(2))
    disk = DyingDisk(error=OSError(errno.ENOSPC, "No space left on device"))
    mirror = mirror_of(tmp_path, records, disk)
    await mirror.flush()
    before = path_of(tmp_path).read_bytes()
    records.commit(exchange(2, 4))
    disk.at = disk.count + 1  # after the file is open
    assert not await mirror.flush()
    assert path_of(tmp_path).read_bytes() == before
    assert await mirror.flush()
    assert behind_head(path_of(tmp_path)) == await bodies(records)


async def test_an_outage_is_logged_once_and_its_end_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk does not fill the log as well; no text and no path of a person is in it."""
    records = FakeRecords(*talk(2, said="my secret"))
    disk = FaultyDisk(error=OSError(errno.ENOSPC, "No space left on device"))
    mirror = mirror_of(tmp_path, records, disk)
    for _ in range(4):
        disk.at = disk.count
        assert not await mirror.flush()
    disk.at = -1
    assert await mirror.flush()
    said = capsys.readouterr().out
    assert said.count("session_files.cannot_write") == 1
    assert said.count("session_files.writes_again") == 1
    assert "secret" not in said
    assert str(tmp_path) not in said


async def test_an_outage_of_one_scope_is_not_over_because_another_is_erased(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writing the files of one scope again says nothing about a stale file of another."""
    records = FakeRecords(*talk(2, said="secret"), *talk(2, first=10, said="secret", **BOBS))
    await mirror_of(tmp_path, records).close()
    disk = DyingDisk(error=OSError(errno.ENOSPC, "No space left on device"), only="%3a42/sessions")
    mirror = mirror_of(tmp_path, records, disk)
    await records.transcripts.rewrite(SCOPE, partial(without, b"secret"))
    disk.at = disk.count
    assert not await mirror.flush()
    await redact(mirror, records, BOBS_SCOPE)
    assert "session_files.writes_again" not in capsys.readouterr().out
    assert await mirror.flush()
    assert capsys.readouterr().out.count("session_files.writes_again") == 1


async def test_what_cannot_be_written_at_all_stops_nobody_else(tmp_path: Path) -> None:
    """A record with an impossible scope stays where it is and is named in the log; the rest goes on."""
    records = FakeRecords(exchange(0, 0, scope="../../etc"), exchange(0, 0, **BOBS, name="bobs"))
    mirror = mirror_of(tmp_path, records)
    assert not await mirror.flush()
    assert turns(path_of(tmp_path, BOBS_SCOPE, BOB)) == names("bobs")
    assert [each.scope for each in records.stored] == ["../../etc"]


async def test_run_writes_what_comes_and_what_was_left(tmp_path: Path, clock: VirtualClock) -> None:
    """The last run's turns first, then groups: a burst within the wait is one write."""
    records = FakeRecords(talk(1)[0])
    disk = CountingDisk()
    mirror = mirror_of(tmp_path, records, disk, FileWritePolicy(wait=timedelta(seconds=1)))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mirror.run())
        await asyncio.sleep(0.5)
        assert turns(path_of(tmp_path)) == names(0)
        disk.reset()
        for record in talk(10, first=1, start=2):
            records.commit(record)
            await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        assert turns(path_of(tmp_path)) == names(*range(11))
        assert disk.calls["write"] == 1
        running.cancel()


async def test_run_tries_again_by_itself_and_less_and_less_often(tmp_path: Path, clock: VirtualClock) -> None:
    """A full disk and a store that is down are both waited for, without anybody committing meanwhile."""
    records = FakeRecords(talk(1)[0])
    disk = FaultyDisk(at=0, error=OSError(errno.ENOSPC, "full"))
    mirror = mirror_of(tmp_path, records, disk)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mirror.run())
        await asyncio.sleep(0.1)
        assert records.stored
        records.is_down = True
        await asyncio.sleep(60)
        records.is_down = False
        await asyncio.sleep(60)
        assert not records.stored
        running.cancel()
    assert turns(path_of(tmp_path)) == names(0)


async def test_run_writes_a_stale_file_that_an_erasure_could_not(tmp_path: Path, clock: VirtualClock) -> None:
    """Nobody commits anything, and the file is written all the same once the disk has room."""
    records = FakeRecords(*talk(2, said="my secret"))
    disk = DyingDisk(error=OSError(errno.ENOSPC, "full"), only="sessions")
    mirror = mirror_of(tmp_path, records, disk)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mirror.run())
        await asyncio.sleep(1)
        disk.at = disk.count
        with pytest.raises(OSError, match="full"):
            await redact(mirror, records)
        await asyncio.sleep(60)
        assert b"secret" not in path_of(tmp_path).read_bytes()
        running.cancel()


async def test_a_cancelled_flush_finishes_what_its_thread_began(tmp_path: Path) -> None:
    """Two threads never write one file: cancelling waits for the one that is at work."""
    records = FakeRecords(*talk(3))
    mirror = mirror_of(tmp_path, records)
    flushing = asyncio.create_task(mirror.flush())
    for _ in range(5):
        await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait([flushing])
    await mirror.close()
    assert turns(path_of(tmp_path)) == names(0, 1, 2)


# -- power cuts ----------------------------------------------------------------------------------------


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerCut]:
    """Return the disk below the home."""
    cut = PowerCut(tmp_path, monkeypatch)
    yield cut
    cut.close()


async def test_files_are_durable_once_nobody_writes(tmp_path: Path, clock: VirtualClock, power: PowerCut) -> None:
    """A second after the last turn, a power cut leaves every file as it is; a close does the same at once."""
    records = FakeRecords(*talk(2))
    mirror = mirror_of(tmp_path, records)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mirror.run())
        await asyncio.sleep(0.5)
        assert turns(path_of(tmp_path)) == names(0, 1)
        assert power.image() != power.now()
        await asyncio.sleep(1)
        assert power.image() == power.now()
        running.cancel()
    records.commit(exchange(2, 4))
    await mirror.close()
    assert power.image() == power.now()


async def test_a_file_is_durable_soon_although_turns_never_cease(
    tmp_path: Path, clock: VirtualClock, power: PowerCut
) -> None:
    """A busy chat keeps nobody's turns from the disk for more than a few seconds."""
    records = FakeRecords(exchange(0, 0, **BOBS, name="bobs"))
    mirror = mirror_of(tmp_path, records)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mirror.run())
        for n in range(20):
            records.commit(exchange(n, 2 * n))
            await asyncio.sleep(0.4)
        bobs = path_of(tmp_path, BOBS_SCOPE, BOB)
        tree: Any = power.image()
        for part in bobs.relative_to(tmp_path).parts:
            tree = tree[part]
        assert tree == bobs.read_bytes()
        running.cancel()


async def test_an_archive_is_durable_with_its_name(tmp_path: Path, power: PowerCut) -> None:
    """/new renames a file that a power cut then leaves whole."""
    records = FakeRecords(*talk(2))
    mirror = mirror_of(tmp_path, records)
    await mirror.flush()
    records.commit(command("new", new=NEXT))
    await mirror.flush()
    assert archive(tmp_path).exists()
    assert power.image() == power.now()


async def test_a_file_that_a_power_cut_has_shortened_is_written_again(tmp_path: Path, clock: VirtualClock) -> None:
    """At the next start, without another turn; a file of before that is whole stays as it is."""
    records = FakeRecords(*talk(3), exchange(0, 0, **BOBS, name="bobs"))
    await mirror_of(tmp_path, records).close()
    whole = path_of(tmp_path).read_bytes()
    path_of(tmp_path).write_bytes(whole[:-40])
    bobs = path_of(tmp_path, BOBS_SCOPE, BOB).stat().st_ino
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mirror_of(tmp_path, records).run())
        await asyncio.sleep(1)
        running.cancel()
    assert path_of(tmp_path).read_bytes() == whole
    assert path_of(tmp_path, BOBS_SCOPE, BOB).stat().st_ino == bobs


async def test_a_file_whose_sync_fails_is_written_again(tmp_path: Path) -> None:
    """Its cached bytes may be lost, and the next fsync would not tell."""
    records = FakeRecords(*talk(2))
    disk = FaultyDisk(error=OSError(errno.EIO, "lost"), only="sessions")
    mirror = mirror_of(tmp_path, records, disk)
    await mirror.flush()
    before = path_of(tmp_path).stat().st_ino
    disk.at = disk.count + 1  # after the file is opened
    await mirror.sync()
    assert path_of(tmp_path).stat().st_ino != before
    assert turns(path_of(tmp_path)) == names(0, 1)
