"""Whatever happens in chats and to the disk, in the end the files are the rows, and a window is what they say."""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from agent.base.scopes import scope_folder, transcript_path
from agent.base.transcript_lines import decode, decode_lines
from agent.memory.prompt.conversation import window_state
from agent.memory.prompt.prompt_window import PromptWindow, fold, move_start
from agent.memory.storage.session_file_writer import FileWritePolicy, SessionFileWriter
from agent.memory.storage.transcript_files import transcript_of_archive
from gateway.events import SessionKey
from gateway.ports.journal import Line, TurnRecord
from tests.fakes.memory import ANN, SCOPE, START, DyingDisk, FakeRecords, ProcessCrash, exchange, turn_name

THREAD, BOB = SessionKey("telegram", "42/7"), SessionKey("telegram", "43")
SCOPES = {ANN: SCOPE, THREAD: SCOPE, BOB: "people/telegram%3a43"}
CHATS = tuple(SCOPES)
_FOREIGN = b'{"kind":"note","content":"a person wrote this"}\n'
_OF_FILES = ("forget everything", "edit", "killed", "full")
_FULL = OSError(errno.ENOSPC, "No space left on device")


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(_FOREIGN)


def _insert(path: Path) -> None:
    head, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(head + b"\n" + _FOREIGN + rest)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


EDITS: tuple[Callable[[Path], None], ...] = (_append, _insert, _cut, Path.unlink)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["turn", "turn", "turn", "new", "pointer", "late pointer"]), st.integers(0, 8)),
        st.tuples(
            st.sampled_from(["delete", "redact", "redact rows", "forget everything", "edit"]), st.integers(0, 30)
        ),
        st.tuples(st.sampled_from(["flush", "restart", "killed", "full"]), st.integers(0, 12)),
    ),
    max_size=30,
)


class Chats:
    """Three conversations in two scopes, the store and the mirror that writes them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.records = FakeRecords()
        self.erased: set[bytes] = set()
        self.deleted: set[bytes] = set()
        self.transcripts: dict[SessionKey, list[str]] = {key: [self._fresh(n)] for n, key in enumerate(CHATS)}
        self.summarised: dict[str, int] = {}
        self.n = 0
        self.mirror = self._start()

    @staticmethod
    def _fresh(n: int) -> str:
        return "transcript" + "".join("abcdefghij"[int(digit)] for digit in f"{n:06d}")

    def _start(self, disk: Disk | None = None) -> SessionFileWriter:
        return SessionFileWriter(
            self.home, self.records, self.records.transcripts, disk=disk, policy=FileWritePolicy(records=3)
        )

    async def step(self, what: str, number: int) -> None:
        """Do one thing."""
        self.n += 1
        key = CHATS[number % 3]
        if what in ("turn", "new", "pointer", "late pointer"):
            self._commit(what, key, number)
        elif what == "delete":
            self._delete(number % self.n)
        elif what in ("redact", "redact rows"):
            await self._redact(number % self.n, in_files=what == "redact")
        elif what == "forget everything":
            await self.records.transcripts.remove(SCOPES[key], keys=frozenset({key}))
            await self.mirror.write_scope(SCOPES[key])
        elif what == "edit":
            self._edit(SCOPES[key], number)
        else:
            await self._write(what, number)

    def _delete(self, n: int) -> None:
        """Have the messages of turn *n* deleted, in whichever chat it was."""
        self.deleted.add(b"question %d." % n)
        for key, own in self.transcripts.items():
            self._append(key, own[-1], build.forgotten_line(f"m{n}"))

    async def _redact(self, n: int, *, in_files: bool) -> None:
        word = b"answer %d." % n
        self.erased.add(word)
        for scope in set(SCOPES.values()):
            with suppress(OSError):  # a full disk: it is retried
                await self.records.transcripts.rewrite(scope, partial(_without, word))
                if in_files:
                    await self.mirror.write_scope(scope)
            for aside in scope_folder(self.home, scope).glob("sessions/*.corrupt"):
                aside.unlink()  # as an erasure does

    def _edit(self, scope: str, n: int) -> None:
        files = sorted(scope_folder(self.home, scope).glob("sessions/*.jsonl"))
        if files:
            EDITS[n % len(EDITS)](files[n % len(files)])

    async def _write(self, what: str, n: int) -> None:
        if what == "full":
            self.mirror = self._start(DyingDisk(at=n, error=_FULL))
        if what in ("full", "flush"):
            await self.mirror.flush()
            return
        if what == "killed":
            with suppress(ProcessCrash):
                await self._start(DyingDisk(at=n, error=ProcessCrash())).flush()
        self.mirror = self._start()

    def _commit(self, what: str, key: SessionKey, number: int) -> None:
        own = self.transcripts[key]
        row = self.records.rows.get(key)
        at = row.next_index if row is not None else 0
        if what == "turn":
            said, answered = f"question {self.n}.", f"answer {self.n}."
            turn = exchange(self.n, at, said=said, answered=answered, key=key, scope=SCOPES[key], transcript=own[-1])
            self.records.commit(turn)
        elif what == "new":
            own.append(self._fresh(100 + self.n))
            self._append(key, own[-2], new=own[-1])
        elif what == "pointer":
            self._append(key, own[-1], build.pointer(self._summarise(own[-1], min(number, at))))
        else:  # as a rule, of a transcript that has ended
            of = own[number % len(own)]
            self._append(key, of, build.mark(number // 2, self._summarise(of, number // 3)))

    def _summarise(self, transcript: str, index: int) -> int:
        """Return the number of messages that are summarised then: it never falls."""
        self.summarised[transcript] = max(index, self.summarised.get(transcript, 0))
        return self.summarised[transcript]

    def _append(self, key: SessionKey, transcript: str, *lines: Line, new: str = "") -> None:
        self.n += 1
        row = self.records.rows.get(key)
        at = row.next_index if row is not None else 0
        turn = turn_name(f"note {self.n}")
        record = exchange(self.n, at, key=key, scope=SCOPES[key], transcript=transcript)
        noted = lines or (build.command(turn, "/new", "done", START),)
        self._store(replace(record, turn=turn, lines=noted, to_index=at, inbox=(), new_transcript=new))

    def _store(self, record: TurnRecord) -> None:
        row = self.records.rows.get(record.key)
        self.records.commit(record)
        if row is not None and not record.new_transcript:
            self.records.rows[record.key] = row  # a late pointer does not move the session

    async def settle(self) -> None:
        """Have every transcript written to once more, on a disk that works."""
        for key, own in self.transcripts.items():
            for transcript in own:
                found = await self.records.transcripts.since(SCOPES[key], key, transcript, -(2**62))
                if found:
                    self._append(key, transcript, build.pointer(self._summarise(transcript, 1)))
        self.mirror = self._start()
        assert await self.mirror.flush()

    async def rows(self, key: SessionKey, transcript: str) -> bytes:
        """Return the bytes of a transcript's rows."""
        found, last = b"", -(2**62)
        while page := await self.records.transcripts.since(SCOPES[key], key, transcript, last):
            found += b"".join(each.body for each in page)
            last = page[-1].seq
        return found


def _without(word: bytes, raw: bytes) -> bytes:
    return raw.replace(word, b"-")


@given(STEPS)
def test_in_the_end_the_files_are_the_rows(steps: list[tuple[str, int]]) -> None:
    """One file for each transcript with turns, with its head and its rows, and no word that was erased anywhere."""
    asyncio.run(_check_files(steps))


async def _check_files(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        chats = Chats(Path(folder))
        for what, number in steps:
            await chats.step(what, number)
        await chats.settle()
        assert not chats.records.stored
        assert not await chats.records.transcripts.stale_files()
        expected: dict[str, bytes] = {}
        for key, own in chats.transcripts.items():
            for transcript in own:
                if rows := await chats.rows(key, transcript):
                    expected[transcript] = rows
        found: dict[str, bytes] = {}
        paths = await asyncio.to_thread(lambda: sorted(Path(folder).rglob("*")))
        for path in paths:
            if path.suffix != ".jsonl":
                assert path.is_dir() or path.suffix == ".corrupt", path
                continue
            head, _, rows = path.read_bytes().partition(b"\n")
            line = decode(head) or {}
            transcript, key = str(line["transcript"]), SessionKey.parse(str(line["key"]))
            assert transcript not in found
            assert rows == expected.get(transcript), path.name
            found[transcript] = rows
            if transcript == chats.transcripts[key][-1]:
                assert path == transcript_path(Path(folder), SCOPES[key], str(key))
            else:
                assert transcript_of_archive(path) == transcript
        assert found.keys() == expected.keys()
        everything = b"".join(path.read_bytes() for path in paths if path.is_file())
        assert [word for word in chats.erased if word in everything] == []
        assert [word for word in chats.deleted if word in b"".join(found.values())] == []


@given(STEPS)
def test_a_window_is_what_all_turns_say(steps: list[tuple[str, int]]) -> None:
    """Reading it from its start on gives what folding every turn of the transcript gives."""
    asyncio.run(
        _check_windows([step for step in steps if step[0] not in ("forget everything", "edit", "killed", "full")])
    )


async def _check_windows(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        chats = Chats(Path(folder))
        for what, number in steps:
            await chats.step(what, number)
        for key, own in chats.transcripts.items():
            for transcript in own:
                whole = PromptWindow()
                for each in await chats.records.transcripts.newest(SCOPES[key], key, 1_000, transcript=transcript):
                    fold(whole, each.from_index, each.to_index, decode_lines(each.body))
                move_start(whole, 0)
                read = window_state(await chats.records.transcripts.window(SCOPES[key], key, transcript))
                assert (read.replay_from, read.turns) == (whole.replay_from, whole.turns)
                assert (read.consolidated, read.snapshot) == (whole.consolidated, whole.snapshot)
