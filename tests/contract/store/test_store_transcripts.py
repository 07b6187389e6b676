"""Turns as they are stored: read by session, changed by compare-and-set, and never those of another scope."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from agent.base import transcript_lines as build
from agent.memory.prompt.conversation import window_state
from agent.memory.prompt.prompt_snapshot import digest_of
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.journal import TurnRecord
from gateway.ports.memory import ErasureFilter, FileKind, StoredEnd, StoredTurn
from gateway.store import transcripts as statements
from gateway.store.engine import StoreEngine
from gateway.store.sql_store import SqlStore
from gateway.store.transcripts import SqlTranscripts
from gateway.store.writer import Operation
from tests.contract.store.conftest import StoreBackend
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, FakeRecords, exchange, talk, turn_name

NEXT = "n" * 16
THREAD, BOB = SessionKey("telegram", "42/7"), SessionKey("telegram", "43")
OTHER = "people/telegram%3a43"


def as_it_is(raw: bytes) -> bytes:
    """Return a line that retention must keep."""
    return raw


def note(n: int | str, at: int, *lines: Any, **fields: Any) -> TurnRecord:
    """Return a record without messages, appended where the session stands: a pointer, a command."""
    record = exchange(0, at, name=n, **fields)
    turn = turn_name(n)
    return replace(record, turn=turn, lines=lines or (build.command(turn, "/x", "y", START),), to_index=at, inbox=())


async def commit(store: SqlStore, *records: TurnRecord) -> None:
    """Commit records in order."""
    for record in records:
        await store.records.append(record)


def turn_of(record: TurnRecord, **fields: Any) -> StoredTurn:
    """Return a turn as it is read from a file of an earlier release."""
    made = StoredTurn(
        seq=0,
        turn=record.turn,
        key=record.key,
        transcript=record.transcript,
        from_index=record.from_index,
        to_index=record.to_index,
        at=record.at,
        outcome=record.outcome.value,
        body=b"".join(map(build.encode, record.lines)),
        new_transcript=record.new_transcript,
        inbox=record.inbox,
    )
    return replace(made, **fields)


def names(*numbers: int | str) -> list[str]:
    """Return turn ids."""
    return [turn_name(n) for n in numbers]


def turns(found: Sequence[StoredTurn]) -> list[str]:
    """Return their ids."""
    return [each.turn for each in found]


def without(word: bytes, raw: bytes) -> bytes:
    """Return a line without a word."""
    return raw.replace(word, b"-")


async def all_of(store: SqlStore, scope: str = SCOPE, key: SessionKey = ANN) -> Sequence[StoredTurn]:
    """Return every turn of a session."""
    return await store.transcripts.newest(scope, key, 10_000)


async def stale(store: SqlStore, scope: str | None = SCOPE) -> list[str]:
    """Return the transcripts whose files are stale."""
    return sorted(each.transcript for each in await store.transcripts.stale_files(scope))


# -- what is stored ------------------------------------------------------------------------------------


async def test_turns_stay_as_they_were_committed(backend: StoreBackend) -> None:
    """The bytes of their lines with an `end` line, also when they are in their files, and after a kill."""
    store = await backend.open()
    await commit(store, *talk(2), note("p", 4, build.pointer(2)))
    unwritten = await store.records.unwritten(0, 10)
    store.records.mark_written([each.seq for each in unwritten])
    store = await backend.reopen()
    found = await all_of(store)
    assert [each.body for each in found] == [each.body for each in unwritten]
    assert found[0].body == b"".join(map(build.encode, talk(1)[0].lines))
    assert [line["kind"] for line in build.decode_lines(found[2].body)] == ["pointer", "end"]
    first = found[0]
    assert (first.turn, first.key, first.transcript, first.outcome) == (turn_name(0), ANN, TRANSCRIPT, "answered")
    assert (first.from_index, first.to_index, first.at, first.inbox) == (0, 2, START, (0,))
    assert await store.transcripts.find(SCOPE, ANN, turn_name(1)) == found[1]
    assert await store.transcripts.find(SCOPE, THREAD, turn_name(1)) is None
    assert await store.transcripts.find(SCOPE, ANN, "missing") is None


async def test_transcripts_are_listed_in_their_order(store: SqlStore) -> None:
    """A late pointer of an earlier one does not move it."""
    await commit(store, *talk(2), note("new", 4, new_transcript=NEXT), exchange(3, 0, transcript=NEXT), note("p", 4))
    assert await store.transcripts.transcripts(SCOPE, ANN) == [TRANSCRIPT, NEXT]
    assert await store.transcripts.transcripts(SCOPE, THREAD) == []


# -- the window ----------------------------------------------------------------------------------------


async def window(store: SqlStore, transcript: str = TRANSCRIPT) -> tuple[list[str], int]:
    """Return the turns of a window, and its first index."""
    found = await store.transcripts.window(SCOPE, ANN, transcript)
    return turns(found.turns), found.replay_from


async def test_a_window_without_a_pointer_has_every_turn_of_its_transcript(store: SqlStore) -> None:
    """Commands too, and nothing of the transcript before or after it."""
    assert await window(store) == ([], 0)
    await commit(store, *talk(2), note("c", 4), note("new", 4, new_transcript=NEXT), *talk(2, first=5, transcript=NEXT))
    assert await window(store) == (names(0, 1, "c", "new"), 0)
    assert await window(store, NEXT) == (names(5, 6), 0)
    assert await window(store, "z" * 16) == ([], 0)


async def test_a_window_starts_with_the_turn_that_holds_the_replay_start(store: SqlStore) -> None:
    """An index inside a turn is that of its first message; the highest pointer counts, however late a lower one is."""
    await commit(
        store, *talk(4), note("p", 8, build.pointer(5)), *talk(1, first=4, start=8), note("q", 10, build.mark(3))
    )
    assert await window(store) == (names(2, 3, "p", 4, "q"), 4)
    await commit(store, note("r", 10, build.pointer(8), build.mark(3)))
    assert await window(store) == (names(4, "q", "r"), 8)


async def test_a_window_behind_all_messages_has_what_comes_next(store: SqlStore) -> None:
    """Everything is summarised: no message of before, and those that follow."""
    await commit(store, *talk(3), note("p", 6, build.pointer(6)))
    assert await window(store) == (names("p"), 6)
    await commit(store, *talk(1, first=3, start=6))
    assert await window(store) == (names("p", 3), 6)
    state = window_state(await store.transcripts.window(SCOPE, ANN, TRANSCRIPT))
    assert (state.consolidated, state.anchor_at) == (6, 6)


async def test_a_pointer_of_another_transcript_moves_no_window(store: SqlStore) -> None:
    """A summary that ends after /new is about the transcript it names."""
    await commit(
        store,
        *talk(3),
        note("new", 6, new_transcript=NEXT),
        *talk(2, first=4, transcript=NEXT),
        note("p", 6, build.pointer(6)),
    )
    assert await window(store, NEXT) == (names(4, 5), 0)
    assert (await window(store))[1] == 6


async def test_a_window_has_the_newest_snapshot_and_its_texts(store: SqlStore) -> None:
    """From before the window if no turn in it has one. A text that an erasure has changed is not given out."""
    texts = [{digest_of(text): text} for text in ("first", "second")]
    for n, blobs in enumerate(texts):
        taken = build.snapshot(n, {"SOUL": next(iter(blobs))}, "UTC", 2 * n, replay_from=0, rev=str(n))
        await commit(store, exchange(n, 2 * n, before=[taken], blobs=blobs))
    await commit(store, *talk(2, first=2, start=4))
    found = await store.transcripts.window(SCOPE, ANN, TRANSCRIPT)
    assert found.snapshot == b""
    assert found.texts == texts[1]
    await commit(store, note("p", 8, build.pointer(4)))
    found = await store.transcripts.window(SCOPE, ANN, TRANSCRIPT)
    assert found.snapshot == (await all_of(store))[1].body
    state = window_state(found)
    assert state.snapshot is not None
    assert state.snapshot["rev"] == "1"
    assert found.texts == texts[1]
    await store.files.remove(SCOPE, FileKind.TEXT)
    assert (await store.transcripts.window(SCOPE, ANN, TRANSCRIPT)).texts == {}
    taken = build.snapshot(3, {"SOUL": "c" * 64}, "UTC", 8, replay_from=0, rev="3")
    await commit(store, exchange(9, 8, before=[taken], blobs={"c" * 64: "changed"}))
    assert (await store.transcripts.window(SCOPE, ANN, TRANSCRIPT)).texts == {}
    assert (await store.transcripts.window(SCOPE, ANN, NEXT)).snapshot == b""


async def test_a_window_goes_on_behind_turns_that_age_has_removed(store: SqlStore) -> None:
    """The turn of the replay start is gone: what is left from there on is the window."""
    await commit(store, *talk(4), note("p", 8, build.pointer(3)), *talk(1, first=60, start=8))
    store.records.mark_written([each.seq for each in await store.records.unwritten(0, 10)])
    assert await store.transcripts.lapse(SCOPE, START + timedelta(minutes=3), as_it_is) == 3
    found, start = await window(store)
    assert found == names(3, "p", 60)
    assert start <= 6


# -- pages ---------------------------------------------------------------------------------------------


async def test_pages_go_back_by_seq(store: SqlStore) -> None:
    """Also before the first turn that was ever committed: those of an earlier release have lower numbers."""
    await commit(store, *talk(3, first=10, start=20))
    assert await store.transcripts.adopt(SCOPE, ANN, [turn_of(each) for each in talk(10)]) == 10
    seen: list[str] = []
    before: int | None = None
    while page := await store.transcripts.newest(SCOPE, ANN, 4, before=before):
        assert [each.seq for each in page] == sorted(each.seq for each in page)
        seen = turns(page) + seen
        before = page[0].seq
    assert seen == names(*range(13))
    assert before is not None
    assert before < 0
    assert await store.transcripts.newest(SCOPE, ANN, 0) == []
    assert turns(await store.transcripts.newest(SCOPE, ANN, 2, before=page_of(await all_of(store), 3))) == names(1, 2)
    assert await store.transcripts.newest(SCOPE, ANN, 2, transcript=NEXT) == []


def page_of(found: Sequence[StoredTurn], n: int) -> int:
    """Return the position before turn *n*."""
    return found[n].seq


async def test_an_answer_is_bounded_in_bytes(store: SqlStore) -> None:
    """However large turns are: at least one, at most a few megabytes and the last one; nothing is passed over."""
    large = [turn_of(each, body=b'{"x":"' + b"x" * 1_500_000 + b'"}\n') for each in talk(8)]
    huge = turn_of(exchange(8, 16), body=b'{"x":"' + b"x" * 6_000_000 + b'"}\n')
    await store.transcripts.adopt(SCOPE, ANN, [*large, huge])
    assert turns(await store.transcripts.newest(SCOPE, ANN, 100)) == names(8)

    async def newest(before: StoredTurn | None) -> Sequence[StoredTurn]:
        return await store.transcripts.newest(SCOPE, ANN, 100, before=before.seq if before else None)

    async def since(last: StoredTurn | None) -> Sequence[StoredTurn]:
        return await store.transcripts.since(SCOPE, ANN, TRANSCRIPT, last.seq if last else -(2**62))

    async def scan(last: StoredTurn | None) -> Sequence[StoredTurn]:
        return await store.transcripts.scan(SCOPE, after=(str(last.key), last.seq) if last else None)

    for read, is_backwards in ((newest, True), (since, False), (scan, False)):
        seen: list[str] = []
        last: StoredTurn | None = None
        while page := await read(last):
            assert sum(len(each.body) for each in page[is_backwards : len(page) - (not is_backwards)]) <= 4_200_000
            seen = turns(page) + seen if is_backwards else seen + turns(page)
            last = page[0 if is_backwards else -1]
        assert seen == names(*range(9))


async def test_messages_are_read_by_their_indices(store: SqlStore) -> None:
    """The turns that have some of a range, and those behind them that have replaced or deleted messages."""
    await commit(store, *talk(5), note("d", 10, build.forgotten_line("m1")))

    async def found(low: int, high: int) -> list[str]:
        return turns(await store.transcripts.messages(SCOPE, ANN, TRANSCRIPT, low, high))

    assert await found(0, 10) == names(0, 1, 2, 3, 4, "d")
    assert await found(5, 6) == names(2, "d")
    assert await found(3, 5) == names(1, 2, "d")
    assert await found(9, 100) == names(4, "d")
    assert await found(10, 12) == []
    assert await found(4, 4) == []
    assert list(await store.transcripts.messages(SCOPE, ANN, NEXT, 0, 9)) == []


async def test_turns_since_are_those_of_one_transcript(store: SqlStore) -> None:
    """Page by page, with negative numbers too."""
    await commit(
        store, *talk(2, first=200, start=400), note("new", 404, new_transcript=NEXT), exchange(900, 0, transcript=NEXT)
    )
    await store.transcripts.adopt(SCOPE, ANN, [turn_of(each) for each in talk(200)])
    seen: list[str] = []
    last = -(2**62)
    while page := await store.transcripts.since(SCOPE, ANN, TRANSCRIPT, last):
        assert len(page) <= 130
        seen += turns(page)
        last = page[-1].seq
    assert seen == names(*range(202), "new")


async def test_a_scan_goes_by_session_and_number(store: SqlStore) -> None:
    """Every turn once, whatever was committed first; with keys, only theirs."""
    every = {key: talk(150, key=key, transcript="abc"[n] * 16) for n, key in enumerate((BOB, ANN, THREAD))}
    for n, (key, records) in enumerate(every.items()):
        await store.transcripts.adopt(
            SCOPE, key, [turn_of(each, turn=f"t{n}x{i:04d}") for i, each in enumerate(records)]
        )

    async def scanned(keys: frozenset[SessionKey] | None = None) -> list[tuple[str, str]]:
        seen: list[StoredTurn] = []
        after: tuple[str, int] | None = None
        while page := await store.transcripts.scan(SCOPE, keys=keys, after=after):
            seen += page
            after = (str(page[-1].key), page[-1].seq)
        assert [each.seq for each in seen if each.key == ANN] == sorted(each.seq for each in seen if each.key == ANN)
        return [(str(each.key), each.turn) for each in seen]

    found = await scanned()
    assert len(found) == len(set(found)) == 450
    sessions = [key for key, _ in found]
    assert sum(a != b for a, b in pairwise(sessions)) == 2
    assert [turn for key, turn in found if key == str(THREAD)] == [f"t2x{i:04d}" for i in range(150)]
    assert {key for key, _ in await scanned(frozenset({ANN, THREAD}))} == {str(ANN), str(THREAD)}
    assert await scanned(frozenset()) == []


# -- changes -------------------------------------------------------------------------------------------


async def test_every_turn_is_visited_until_enough_was_seen(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of a scan, across sessions and slices; no turn is read twice, and none after False."""
    monkeypatch.setattr(statements, "_SCANNED", 2)
    monkeypatch.setattr(statements, "_SEEN_BYTES", 1)
    await commit(store, *talk(5))
    thread = [turn_of(each, turn=f"thread{n}") for n, each in enumerate(talk(3))]
    await store.transcripts.adopt(SCOPE, THREAD, thread)
    expected = [each.body for key in (ANN, THREAD) for each in await all_of(store, key=key)]
    assert len(expected) == 8
    assert await visited(store.transcripts, SCOPE) == expected
    seen: list[bytes] = []

    def see(lines: bytes) -> bool:
        seen.append(lines)
        return len(seen) < 3

    await store.transcripts.visit(SCOPE, see)
    assert seen == expected[:3]
    monkeypatch.setattr(statements, "_SEEN_BYTES", 2**20)
    found = await visited(store.transcripts, SCOPE)
    assert b"".join(found) == b"".join(expected)
    assert len(found) < len(expected)


async def test_turns_that_cannot_change_are_passed_over(store: SqlStore) -> None:
    """Their lines are not looked at one by one; those of the others are."""
    await commit(store, *talk(4))
    looked: list[bytes] = []

    def change(raw: bytes) -> bytes:
        looked.append(raw)
        return raw.replace(b"question 2", b"another")

    assert await store.transcripts.rewrite(SCOPE, change, may_change=lambda lines: b"question 2" in lines) == 1
    assert {turn for turn in map(turn_name, range(4)) if any(turn.encode() in raw for raw in looked)} == {turn_name(2)}


@pytest.mark.parametrize("limit", ["_SLICE", "_MOST_BYTES"])
async def test_a_long_window_is_read_in_slices_that_others_come_between(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """The window is the same, and what another chat stores does not wait for the end of it."""
    await commit(store, *talk(20), note("p", 40, build.pointer(4)))
    whole = await store.transcripts.window(SCOPE, ANN, TRANSCRIPT)
    assert [each.turn for each in whole.turns] == [*map(turn_name, range(2, 20)), turn_name("p")]
    monkeypatch.setattr(statements, limit, 3)
    read, slices = StoreEngine.read, 0

    async def read_and_let_another_commit(engine: StoreEngine, operation: Operation[Any]) -> Any:
        nonlocal slices
        found, slices = await read(engine, operation), slices + 1
        if slices == 1:  # the commit ends before the window does
            await commit(store, replace(exchange(0, 0, name="b"), key=BOB, scope=OTHER))
        return found

    monkeypatch.setattr(StoreEngine, "read", read_and_let_another_commit)
    assert await store.transcripts.window(SCOPE, ANN, TRANSCRIPT) == whole
    assert slices > 1


async def test_lines_are_changed_and_their_files_are_stale(store: SqlStore) -> None:
    """Only the transcripts that have a changed line; a second time nothing changes."""
    await commit(store, *talk(2, said="tea"), note("new", 4, new_transcript=NEXT), exchange(3, 0, transcript=NEXT))
    assert await store.transcripts.rewrite(SCOPE, partial(without, b"tea")) == 2
    assert await stale(store) == [TRANSCRIPT]
    assert all(b"tea" not in each.body for each in await all_of(store))
    assert await store.transcripts.rewrite(SCOPE, partial(without, b"tea")) == 0
    (file,) = await store.transcripts.stale_files(SCOPE)
    assert (file.key, file.changes) == (ANN, 1)
    assert await store.transcripts.rewrite(SCOPE, partial(without, b"answer"), keys=frozenset({THREAD})) == 0
    assert await store.transcripts.rewrite(SCOPE, partial(without, b"answer"), keys=frozenset({ANN})) > 0
    assert await stale(store) == sorted([TRANSCRIPT, NEXT])


async def test_changed_lines_are_what_the_mirror_and_the_next_prompt_read(store: SqlStore) -> None:
    """A turn that is in no file yet is redacted too."""
    await commit(store, *talk(1, said="tea"))
    await store.transcripts.rewrite(SCOPE, partial(without, b"tea"))
    (unwritten,) = await store.records.unwritten(0, 9)
    assert b"tea" not in unwritten.body
    assert build.decode_lines(unwritten.body)[0]["content"] == "-"
    assert b"tea" not in (await store.transcripts.window(SCOPE, ANN, TRANSCRIPT)).turns[0].body


async def test_an_erasure_makes_the_files_of_unwritten_turns_stale(store: SqlStore) -> None:
    """The mirror may hold the old bytes already, and append them behind the erasure."""
    await commit(store, *talk(2, said="tea"))

    def blank(value: Any) -> Any:
        is_line = isinstance(value, dict) and "role" in value
        return {name: "-" if each == "tea" else each for name, each in value.items()} if is_line else value

    await store.erasing.redact(ErasureFilter(keys=frozenset({ANN})), blank)
    assert all(b"tea" not in each.body for each in await all_of(store))
    assert await stale(store) == [TRANSCRIPT]


async def test_a_line_that_is_returned_empty_is_removed(store: SqlStore) -> None:
    """The others keep their bytes; a turn of which nothing is left is still one."""
    await commit(store, *talk(2))
    before = [each.body.split(b"\n") for each in await all_of(store)]
    assert await store.transcripts.rewrite(SCOPE, lambda raw: b"" if b"answer 0" in raw else raw) == 1
    assert [each.body.split(b"\n") for each in await all_of(store)] == [[before[0][0], *before[0][2:]], before[1]]
    assert await store.transcripts.rewrite(SCOPE, lambda raw: b"") == 5
    assert [each.body for each in await all_of(store)] == [b"", b""]


async def test_a_change_in_between_is_not_lost(store: SqlStore) -> None:
    """Two who rewrite the same turn at the same time: both changes are there, and each count has its own lines."""
    await commit(store, *talk(3, said="tea with milk"))
    loop, others = asyncio.get_running_loop(), list[int]()

    def change(raw: bytes) -> bytes:
        if not others:
            others.append(-1)
            beside = store.transcripts.rewrite(
                SCOPE, lambda each: each.replace(b"question", b"q").replace(b"milk", b"oat")
            )
            others[0] = asyncio.run_coroutine_threadsafe(beside, loop).result(60)
        return without(b"tea", raw)

    assert await store.transcripts.rewrite(SCOPE, change) == 3
    assert others == [3]
    for each in await all_of(store):
        assert b"- with oat" in each.body


async def test_a_turn_that_goes_meanwhile_is_not_brought_back(store: SqlStore) -> None:
    """It was read before it was removed, and its change is stored nowhere."""
    await commit(store, *talk(3, said="tea"))
    loop, removed = asyncio.get_running_loop(), list[int]()

    def change(raw: bytes) -> bytes:
        if not removed:
            removed.append(-1)
            removed[0] = asyncio.run_coroutine_threadsafe(store.transcripts.remove(SCOPE), loop).result(60)
        return without(b"tea", raw)

    assert await store.transcripts.rewrite(SCOPE, change) == 0
    assert removed == [3]
    assert await all_of(store) == []


async def test_removed_turns_are_gone_and_their_files_stale(store: SqlStore) -> None:
    """Of the named sessions; those that are in no file yet never get there."""
    await commit(store, *talk(2), *talk(1, first=10, key=THREAD, transcript="t" * 16))
    assert await store.transcripts.remove(SCOPE, keys=frozenset({ANN})) == 2
    assert await all_of(store) == []
    assert await stale(store) == [TRANSCRIPT]
    assert [each.key for each in await store.records.unwritten(0, 9)] == [THREAD]
    assert await store.transcripts.remove(SCOPE, keys=frozenset()) == 0
    assert await store.transcripts.remove(SCOPE) == 1
    assert await store.transcripts.scan(SCOPE) == []
    assert await store.transcripts.remove(SCOPE) == 0


@pytest.mark.parametrize("is_lapse", [False, True])
async def test_what_is_left_of_removed_turns_has_no_words(store: SqlStore, is_lapse: bool) -> None:
    """Only that there was a turn: a commit that is repeated, or a file of it, does not bring it back."""
    assert isinstance(store, SqlStore)
    given = [replace(each, failure="tea was cold") for each in talk(2, said="tea")]
    await commit(store, *given)
    store.records.mark_written([each.seq for each in await all_of(store)])
    remove = (
        store.transcripts.lapse(SCOPE, START + timedelta(days=1), as_it_is)
        if is_lapse
        else store.transcripts.remove(SCOPE)
    )
    assert await remove == 2
    rows = await store._engine.writer.submit(lambda database: database.execute("SELECT * FROM record").fetchall())
    assert "tea" not in str([[bytes(each) if isinstance(each, memoryview) else each for each in row] for row in rows])
    assert await store.transcripts.remove(SCOPE) == 0
    await commit(store, *given)
    assert await store.transcripts.adopt(SCOPE, ANN, [turn_of(each) for each in given]) == 0
    for read in ("newest", "since", "scan", "window", "transcripts", "end", "messages", "find"):
        assert turn_name(0) not in str(await READS[read](store.transcripts))
    assert await all_of(store) == []
    assert await store.records.unwritten(-(2**62), 9) == ()


async def test_old_turns_lapse(store: SqlStore) -> None:
    """Of a current transcript, those stay that hold its snapshots and replay starts; of an ended one, none."""
    taken = build.snapshot(1, {}, "UTC", 0, replay_from=0, rev="r")

    def conversation(first: int, transcript: str) -> list[TurnRecord]:
        return [
            exchange(first, 0, before=[taken], transcript=transcript),
            exchange(first + 1, 2, transcript=transcript),
            note(first + 2, 4, build.pointer(2), transcript=transcript),
        ]

    await commit(store, *conversation(0, TRANSCRIPT), note("new", 4, new_transcript=NEXT), *conversation(10, NEXT))
    await commit(store, exchange(900, 4, transcript=NEXT))
    assert await store.transcripts.lapse(SCOPE, START + timedelta(hours=1), as_it_is) == 0  # they are in no file yet
    store.records.mark_written([each.seq for each in await store.records.unwritten(0, 20)])
    assert await store.transcripts.lapse(SCOPE, START, as_it_is) == 0
    assert await store.transcripts.lapse(SCOPE, START + timedelta(hours=1), as_it_is) == 5
    assert turns(await all_of(store)) == names(10, 12, 900)
    assert await stale(store) == sorted([TRANSCRIPT, NEXT])
    assert await store.transcripts.lapse(SCOPE, START + timedelta(hours=1), as_it_is) == 0


async def test_the_end_of_a_transcript(store: SqlStore) -> None:
    """Its last turn, and what ended it; also of its turns before one of them."""
    assert await store.transcripts.end(SCOPE, ANN, TRANSCRIPT) == StoredEnd()
    await commit(store, *talk(3))
    first, second, third = await all_of(store)
    end = StoredEnd(last=third.body, last_turn=third.turn, last_at=third.at)
    assert await store.transcripts.end(SCOPE, ANN, TRANSCRIPT) == end
    end = StoredEnd(last=second.body, last_turn=second.turn, last_at=second.at)
    assert await store.transcripts.end(SCOPE, ANN, TRANSCRIPT, before=third.seq) == end
    sizes = [await store.transcripts.size(SCOPE, ANN, TRANSCRIPT, before=seq) for seq in (first.seq, third.seq)]
    assert sizes == [0, len(first.body) + len(second.body)]
    await commit(store, note("new", 6, new_transcript=NEXT))
    await commit(store, note("late", 6, build.pointer(6)))
    assert (await store.transcripts.end(SCOPE, ANN, TRANSCRIPT)).ended == turn_name("new")
    assert (await store.transcripts.end(SCOPE, ANN, TRANSCRIPT, before=first.seq)).ended == turn_name("new")
    assert (await store.transcripts.end(SCOPE, ANN, NEXT)).ended == ""


async def test_a_transcript_of_a_chat_without_a_session_has_ended_with_its_ending(store: SqlStore) -> None:
    """Conversations that are imported have none: an archive is one, also the newest; one that goes on is none."""
    ended = turn_of(note("new", 2), new_transcript=NEXT)
    await store.transcripts.adopt(SCOPE, ANN, [turn_of(talk(1)[0]), ended])
    await store.transcripts.adopt(SCOPE, THREAD, [turn_of(exchange(1, 0, key=THREAD))])
    assert (await store.transcripts.end(SCOPE, ANN, TRANSCRIPT)).ended == turn_name("new")
    assert (await store.transcripts.end(SCOPE, THREAD, TRANSCRIPT)).ended == ""


async def heads(store: SqlStore, after: Mapping[SessionKey, int]) -> dict[str, str]:
    """Return the last turn of each transcript with turns behind *after*."""
    return {each.transcript: each.turn for each in await store.transcripts.heads(SCOPE, after)}


async def test_followers_see_the_last_turns_behind_what_they_know(store: SqlStore) -> None:
    """Of every session and transcript; of what they know nothing, and of what was removed neither."""
    await commit(store, *talk(2), exchange(2, 4, new_transcript=NEXT), exchange(3, 0, transcript=NEXT))
    await commit(store, exchange(4, 0, key=THREAD, transcript="b" * 16), exchange(5, 0, key=BOB, scope=OTHER))
    found = await store.transcripts.heads(SCOPE, {})
    assert await heads(store, {}) == {TRANSCRIPT: turn_name(2), NEXT: turn_name(3), "b" * 16: turn_name(4)}
    seen = {key: max(each.seq for each in found if each.key == key) for key in (ANN, THREAD)}
    assert await heads(store, seen) == {}
    await commit(store, exchange(6, 2, transcript=NEXT))
    assert await heads(store, seen) == {NEXT: turn_name(6)}
    await store.transcripts.remove(SCOPE, keys={THREAD})
    assert await heads(store, {}) == {TRANSCRIPT: turn_name(2), NEXT: turn_name(6)}


async def test_every_change_of_stored_turns_is_counted(store: SqlStore) -> None:
    """A change, a removal, a deletion in the chat; not a turn that is added, nor a file that is written."""
    counted = (ANN, TRANSCRIPT)
    await commit(store, *talk(3))
    assert await store.transcripts.changes(SCOPE) == {}
    await store.transcripts.rewrite(SCOPE, partial(without, b"answer 1"))
    assert await store.transcripts.changes(SCOPE) == {counted: 1}
    for file in await store.transcripts.stale_files(SCOPE):
        await store.transcripts.drop_stale(file)
    assert await stale(store) == []
    await commit(store, note("d", 6, build.forgotten_line("m0")))
    assert await store.transcripts.changes(SCOPE) == {counted: 2}
    assert await stale(store) == [TRANSCRIPT]
    await store.transcripts.remove(SCOPE)
    assert await store.transcripts.changes(SCOPE) == {counted: 3}


async def test_conversations_are_counted(store: SqlStore) -> None:
    """With the time of the oldest turn; those that were removed are none."""
    assert await store.transcripts.count(SCOPE) == (0, None)
    await commit(store, exchange(1, 0, new_transcript=NEXT), exchange(2, 0, transcript=NEXT))
    await commit(store, exchange(3, 0, key=THREAD, transcript="b" * 16), exchange(0, 0, key=BOB, scope=OTHER))
    assert await store.transcripts.count(SCOPE) == (3, START + timedelta(minutes=1))
    await store.transcripts.remove(SCOPE, keys={ANN})
    assert await store.transcripts.count(SCOPE) == (1, START + timedelta(minutes=3))


async def test_another_mirror_has_every_file_stale(backend: StoreBackend) -> None:
    """One that is whole has none; neither is a change that search would follow."""
    store = await backend.open()
    await commit(store, *talk(2), exchange(2, 0, key=THREAD, transcript="b" * 16))
    await store.transcripts.rewrite(SCOPE, partial(without, b"answer 1"))
    assert await store.transcripts.mirror() == ""
    await store.transcripts.begin_mirror("first", is_whole=True)
    assert await stale(store) == [TRANSCRIPT]
    await store.transcripts.begin_mirror("second", is_whole=False)
    store = await backend.reopen()
    assert await store.transcripts.mirror() == "second"
    assert await stale(store) == sorted([TRANSCRIPT, "b" * 16])
    assert {count for count in (await store.transcripts.changes(SCOPE)).values() if count} == {1}
    for file in await store.transcripts.stale_files(SCOPE):
        await store.transcripts.drop_stale(file)
    assert await stale(store) == []


async def test_a_link_moves_the_newest_turns_and_the_rest_some_at_a_time(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other chat waits for all; the newest are there at once, and a repetition changes nothing."""
    monkeypatch.setattr(statements, "_NEWEST_MOVED", 2)
    monkeypatch.setattr(statements, "_MOVED", 3)
    await commit(store, *talk(9), *(exchange(n, n * 2, key=THREAD, transcript="b" * 16) for n in range(20, 24)))
    await commit(store, exchange(30, 0, key=BOB, scope=OTHER, transcript="c" * 16))
    everything = [turn_name(n) for n in range(9)]
    await store.links.link(ScopeMove(id="link:1", kind="link", source=SCOPE, target=OTHER, at=START))
    assert turns(await all_of(store, OTHER)) == everything[-2:]
    assert len(await all_of(store, OTHER, THREAD)) == 2
    counts = await store.transcripts.changes(OTHER)
    for _ in range(2):
        await store.transcripts.move(SCOPE, OTHER)
        assert turns(await all_of(store, OTHER)) == everything
        assert len(await all_of(store, OTHER, THREAD)) == 4
        assert not await store.transcripts.scan(SCOPE)
    after = await store.transcripts.changes(OTHER)
    assert all(after[each] > counts[each] for each in counts)
    assert sorted(each.transcript for each in await store.transcripts.stale_files(OTHER)) == sorted(
        [TRANSCRIPT, "b" * 16]
    )


async def test_of_a_conversation_that_is_removed_the_count_goes_with_its_turns(backend: StoreBackend) -> None:
    """Until then, those who follow the changes see it; afterwards the session is not listed any more."""
    store = await backend.open()
    await commit(store, *talk(3), exchange(9, 0, key=BOB, scope=OTHER))
    await store.transcripts.remove(SCOPE)
    (file,) = await store.transcripts.stale_files(SCOPE)
    await store.transcripts.drop_stale(file)
    assert await stale(store) == []
    assert await store.transcripts.changes(SCOPE) == {(ANN, TRANSCRIPT): 1}
    assert list(await store.transcripts.sessions(SCOPE)) == [ANN]
    backend.wall.advance(days=400)
    await store.prune()
    assert await store.transcripts.changes(SCOPE) == {}
    assert await store.transcripts.sessions(SCOPE) == {}


async def test_a_file_stays_stale_when_its_transcript_was_changed_since(store: SqlStore) -> None:
    """Who wrote it read older rows; only the note of the last change can be dropped."""
    await commit(store, *talk(2, said="one two"))
    await store.transcripts.rewrite(SCOPE, partial(without, b"one"))
    (before,) = await store.transcripts.stale_files(SCOPE)
    await store.transcripts.rewrite(SCOPE, partial(without, b"two"))
    await store.transcripts.drop_stale(before)
    (after,) = await store.transcripts.stale_files(SCOPE)
    assert after.changes > before.changes
    await store.transcripts.drop_stale(replace(after, scope=OTHER))
    await store.transcripts.drop_stale(replace(after, key=THREAD))
    assert await store.transcripts.stale_files() == [after]
    assert await store.transcripts.stale_files(OTHER) == []
    await store.transcripts.drop_stale(after)
    assert not await store.transcripts.stale_files()


@pytest.mark.parametrize("looks", [0, 1, 2])
async def test_stale_files_are_found_however_often_was_looked_in_vain(store: SqlStore, looks: int) -> None:
    """After every operation that makes some, and after a look that failed."""
    given = talk(3, said="tea")
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: store.transcripts.rewrite(SCOPE, partial(without, b"tea")),
        lambda: store.transcripts.lapse(SCOPE, START + timedelta(minutes=1), as_it_is),
        lambda: store.transcripts.remove(SCOPE),
        lambda: store.transcripts.adopt(SCOPE, ANN, [turn_of(each) for each in talk(2, first=10)]),
    ]
    await commit(store, *given)
    store.records.mark_written([each.seq for each in await all_of(store)])
    for operation in operations:
        for _ in range(looks):
            assert not await store.transcripts.stale_files()
        await operation()
        (file,) = await store.transcripts.stale_files()
        assert [file] == list(await store.transcripts.stale_files())
        await store.transcripts.drop_stale(file)


async def test_stale_files_are_found_after_an_outage() -> None:
    """A look that the store could not answer is no look."""
    records = FakeRecords(*talk(2, said="tea"))
    await records.transcripts.rewrite(SCOPE, partial(without, b"tea"))
    records.is_down = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await records.transcripts.stale_files()
    records.is_down = False
    assert len(await records.transcripts.stale_files()) == 1


async def test_stale_files_survive_a_kill(backend: StoreBackend) -> None:
    """The redaction and the note of it are one transaction."""
    store = await backend.open()
    await commit(store, *talk(2, said="tea"))
    await store.transcripts.rewrite(SCOPE, partial(without, b"tea"))
    store = await backend.reopen()
    assert await stale(store) == [TRANSCRIPT]
    assert all(b"tea" not in each.body for each in await all_of(store))


# -- taking over ---------------------------------------------------------------------------------------


async def test_turns_are_adopted_before_and_behind_those_that_are_stored(store: SqlStore) -> None:
    """In the order of the file; twice is once."""
    await commit(store, *talk(2, first=3, start=6))
    given = [turn_of(each) for each in talk(7)]
    assert await store.transcripts.adopt(SCOPE, ANN, given) == 5
    assert turns(await all_of(store)) == names(*range(7))
    assert [each.body for each in await all_of(store)][:3] == [each.body for each in given[:3]]
    assert await store.transcripts.adopt(SCOPE, ANN, given) == 0
    assert turns(await all_of(store)) == names(*range(7))
    assert await stale(store) == [TRANSCRIPT]
    assert await store.records.unwritten(-(2**62), 99) == await store.records.unwritten(0, 99)  # no adopted one


async def test_removed_turns_are_not_adopted_from_a_file_that_still_has_them(store: SqlStore) -> None:
    """A kill came between the erasure and the writing of the file; what the file has behind them is adopted."""
    await commit(store, *talk(5))
    store.records.mark_written([each.seq for each in await all_of(store)])
    assert await store.transcripts.lapse(SCOPE, START + timedelta(minutes=2), as_it_is) == 2
    given = [turn_of(each) for each in talk(7)]
    assert await store.transcripts.adopt(SCOPE, ANN, given, in_files=True) == 2
    assert turns(await all_of(store)) == names(2, 3, 4, 5, 6)
    assert await store.transcripts.remove(SCOPE) == 5
    assert await store.transcripts.adopt(SCOPE, ANN, given, in_files=True) == 0
    assert await all_of(store) == []


async def test_a_chat_without_a_session_goes_on_with_its_last_transcript(store: SqlStore) -> None:
    """At its next index, or behind it where the last one has ended; a session that is there stays."""
    await commit(store, *talk(1, first=50, key=BOB, transcript="b" * 16))
    before = await store.journal.session(BOB)
    ended = turn_of(note("new", 4, key=THREAD), new_transcript=NEXT)
    for key, given in {
        ANN: [turn_of(each) for each in talk(2)],
        THREAD: [*(turn_of(each, key=THREAD) for each in talk(2, first=10)), ended],
        BOB: [turn_of(each, key=BOB) for each in talk(2, first=20)],
    }.items():
        await store.transcripts.adopt(SCOPE, key, given, in_files=True)
    session = await store.journal.session(ANN)
    assert (session.transcript, session.next_index, session.scope) == (TRANSCRIPT, 4, SCOPE)
    session = await store.journal.session(THREAD)
    assert session.transcript not in (TRANSCRIPT, "")
    assert (session.next_index, session.scope) == (0, SCOPE)
    assert await store.journal.session(BOB) == before
    await commit(store, *talk(1, first=30, start=4))
    assert await window(store) == (names(0, 1, 30), 0)


async def test_turns_that_come_from_the_files_make_none_stale(store: SqlStore) -> None:
    """They are there already."""
    given = [turn_of(each) for each in talk(3)]
    assert await store.transcripts.adopt(SCOPE, ANN, given, in_files=True) == 3
    assert await stale(store) == []


async def test_several_sessions_are_adopted_beside_each_other(store: SqlStore) -> None:
    """Each in its own order, before what was committed since, whoever comes first."""
    await commit(store, *talk(1, first=50, start=6), *talk(1, first=51, start=6, key=THREAD, transcript="t" * 16))
    for n, key in enumerate((THREAD, ANN, BOB)):
        given = [turn_of(each, key=key, turn=f"t{n}x{i}") for i, each in enumerate(talk(3))]
        assert await store.transcripts.adopt(SCOPE, key, given) == 3
    assert turns(await all_of(store)) == ["t1x0", "t1x1", "t1x2", *names(50)]
    assert turns(await all_of(store, key=THREAD)) == ["t0x0", "t0x1", "t0x2", *names(51)]
    assert turns(await all_of(store, key=BOB)) == ["t2x0", "t2x1", "t2x2"]


async def test_rows_without_lines_are_filled(store: SqlStore) -> None:
    """A record of an earlier release, whose lines are in its file only, keeps its number and gets its lines."""
    assert isinstance(store, SqlStore)
    await commit(store, *talk(3), note("p", 6, build.pointer(2)))
    before = await all_of(store)
    store.records.mark_written([each.seq for each in before])
    await store._engine.writer.submit(
        lambda database: database.execute("UPDATE record SET body = NULL, anchor = NULL, scope = ?", (SCOPE,)).close()
    )
    assert await all_of(store) == []
    given = [replace(each, seq=0) for each in before]
    assert await store.transcripts.adopt(SCOPE, ANN, given, in_files=True) == 4
    assert await all_of(store) == before
    assert (await window(store))[1] == 2
    assert await store.transcripts.adopt(SCOPE, ANN, given, in_files=True) == 0


async def test_a_row_without_lines_is_filled_in_the_scope_of_its_file(store: SqlStore) -> None:
    """A link has moved the files of a chat without a session; nothing is lost, and a turn of another chat stays."""
    assert isinstance(store, SqlStore)
    await commit(store, *talk(2))
    before = await all_of(store)
    store.records.mark_written([each.seq for each in before])
    await store._engine.writer.submit(lambda database: database.execute("UPDATE record SET body = NULL").close())
    given = [turn_of(each) for each in talk(3)]
    assert await store.transcripts.adopt(OTHER, BOB, [replace(each, key=BOB) for each in given]) == 1
    given[2] = replace(given[2], turn="tmine")
    assert await store.transcripts.adopt(OTHER, ANN, given) == 3
    assert turns(await all_of(store, OTHER)) == [*names(0, 1), "tmine"]
    assert await all_of(store) == []
    assert await store.transcripts.adopt(OTHER, ANN, given) == 0


async def test_what_was_adopted_is_noted(backend: StoreBackend) -> None:
    """Once for all, after everything was."""
    store = await backend.open()
    assert not await store.transcripts.is_adopted()
    await store.transcripts.mark_adopted()
    await store.transcripts.mark_adopted()
    assert await store.transcripts.is_adopted()
    assert await (await backend.reopen()).transcripts.is_adopted()


# -- one scope -----------------------------------------------------------------------------------------

CANARY = "canary-of-another-scope"
READS: dict[str, Callable[[SqlTranscripts], Awaitable[object]]] = {
    "window": lambda store: store.window(SCOPE, ANN, TRANSCRIPT),
    "newest": lambda store: store.newest(SCOPE, ANN, 100),
    "messages": lambda store: store.messages(SCOPE, ANN, TRANSCRIPT, 0, 100),
    "since": lambda store: store.since(SCOPE, ANN, TRANSCRIPT, -(2**62)),
    "find": lambda store: store.find(SCOPE, ANN, "tcanary0"),
    "transcripts": lambda store: store.transcripts(SCOPE, ANN),
    "scan": lambda store: store.scan(SCOPE),
    "end": lambda store: store.end(SCOPE, ANN, TRANSCRIPT),
    "size": lambda store: store.size(SCOPE, ANN, TRANSCRIPT, before=2**62),
    "stale_files": lambda store: store.stale_files(SCOPE),
    "heads": lambda store: store.heads(SCOPE, {}),
    "sessions": lambda store: store.sessions(SCOPE),
    "changes": lambda store: store.changes(SCOPE),
    "count": lambda store: store.count(SCOPE),
    "visit": lambda store: visited(store, SCOPE),
}
WRITES: dict[str, Callable[[SqlTranscripts], Awaitable[object]]] = {
    "rewrite": lambda store: store.rewrite(SCOPE, lambda raw: raw.replace(b"canary", b"------")),
    "remove": lambda store: store.remove(SCOPE),
    "lapse": lambda store: store.lapse(SCOPE, START + timedelta(days=9), as_it_is),
    "move": lambda store: store.move(SCOPE, "people/telegram%3a44"),
    "adopt": lambda store: store.adopt(SCOPE, ANN, [turn_of(each) for each in talk(9)]),
}
NEITHER = {"drop_stale", "mirror", "begin_mirror"}


async def visited(store: SqlTranscripts, scope: str) -> Sequence[bytes]:
    """Return the lines of every turn of a scope, as they are visited."""
    found: list[bytes] = []

    def see(lines: bytes) -> bool:
        found.append(lines)
        return True

    await store.visit(scope, see)
    return found


async def with_canary(store: SqlStore) -> None:
    """Have turns of two scopes in one session, as while a chat changes hands, and a stale file of both."""
    digest = "c" * 64
    taken = build.snapshot(1, {"SOUL": digest}, "UTC", 0, replay_from=0, rev=CANARY)
    mine = talk(2)
    theirs = [replace(each, turn=f"tcanary{n}", scope=OTHER) for n, each in enumerate(talk(3, said=CANARY))]
    await commit(store, *mine)
    command = note("c", 4, taken, build.pointer(2), scope=OTHER, blobs={digest: CANARY})
    await commit(store, replace(command, turn="tcanary9"))
    await store.transcripts.adopt(OTHER, ANN, [turn_of(each) for each in theirs])
    secret = turn_of(note("new", 0, scope=OTHER, transcript=CANARY[:16], new_transcript=CANARY[-16:]), turn="tcanary8")
    await store.transcripts.adopt(OTHER, ANN, [secret])


@pytest.mark.parametrize("name", [*READS, *WRITES])
async def test_a_scope_has_nothing_of_another(store: SqlStore, name: str) -> None:
    """Not even of the same chat and transcript: neither is it read, nor changed."""
    await with_canary(store)
    theirs = await all_of(store, OTHER), await store.transcripts.stale_files(OTHER)
    assert len(theirs[0]) >= 4
    assert CANARY in str(theirs)
    found = await {**READS, **WRITES}[name](store.transcripts)
    assert "canary" not in str(found)
    assert (await all_of(store, OTHER), await store.transcripts.stale_files(OTHER)) == theirs
    assert found or name in ("find", "stale_files", "changes", "remove", "lapse", "move", "rewrite", "adopt")


def test_every_operation_is_tried_with_another_scope() -> None:
    """One that is added needs a line above."""
    assert {name for name in vars(SqlTranscripts) if not name.startswith("_")} == {*READS, *WRITES, *NEITHER}


def test_every_statement_names_the_scope() -> None:
    """What reads or changes turns, or files of turns, says whose."""
    found = {
        name: text
        for name, text in vars(statements).items()
        if isinstance(text, str) and re.search(r"\b(FROM|INTO|UPDATE) (record|unwritten|stale_file|session)\b", text)
    }
    assert len(found) > 20
    assert [name for name, text in found.items() if "scope" not in text] == []
