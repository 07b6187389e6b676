"""The files of an earlier release become rows: every turn once, in order, whatever state they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.base import transcript_lines as build
from agent.base.scopes import transcript_path
from agent.memory.adoption import adopt_transcripts
from agent.memory.prompt.conversation import ConversationCache
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.storage.transcript_files import archive_path, segment_path
from gateway.events import SessionKey
from gateway.ports.journal import SessionRow, TurnRecord
from gateway.ports.memory import StoredTurn
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, FakeRecords, exchange, talk, turn_name

BOB, THREAD = SessionKey("telegram", "43"), SessionKey("telegram", "42/7")
BOBS_SCOPE = "people/telegram%3a43"
SECOND, THIRD, FOURTH = "b" * 16, "c" * 16, "d" * 16


def path_of(home: Path, key: SessionKey = ANN, scope: str = SCOPE) -> Path:
    """Return the path of a current transcript."""
    return transcript_path(home, scope, str(key))


def head(transcript: str = TRANSCRIPT, key: SessionKey = ANN, *, minute: int = 0, **fields: int) -> bytes:
    """Return the first line of a file."""
    return build.encode({**build.head_line(transcript, str(key), START + timedelta(minutes=minute)), **fields})


def body(record: TurnRecord) -> bytes:
    """Return a turn as an earlier release wrote it."""
    return b"".join(map(build.encode, record.lines))


def write(path: Path, *pieces: bytes) -> Path:
    """Write a file of an earlier release."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(pieces))
    return path


def names(*numbers: int | str) -> list[str]:
    """Return turn ids."""
    return [turn_name(n) for n in numbers]


async def stored(records: FakeRecords, key: SessionKey = ANN, scope: str = SCOPE) -> Sequence[StoredTurn]:
    """Return every turn of a session."""
    return await records.transcripts.newest(scope, key, 10_000)


async def adopt(home: Path, records: FakeRecords) -> int:
    """Adopt as the first start does."""
    return await adopt_transcripts(home, records.transcripts, await records.sessions())


def new(n: int | str, transcript: str = TRANSCRIPT, **fields: Any) -> TurnRecord:
    """Return a /new as an earlier release recorded it."""
    turn = turn_name(n)
    end = build.end_line(turn, from_index=0, to_index=0, inbox=["1"], outcome="answered", at=START)
    record = exchange(0, 0, transcript=transcript, **fields)
    return replace(record, turn=turn, lines=(build.command(turn, "/new", "done", START), end), to_index=0)


def session(transcript: str, next_index: int, key: SessionKey = ANN, scope: str = SCOPE) -> SessionRow:
    """Return a session as the store of an earlier release has it."""
    return SessionRow(key=key, transcript=transcript, next_index=next_index, created_at=START, scope=scope)


async def test_turns_of_another_chat_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A turn is stored once: the log says how many turns of a copied file stay in it alone."""
    records = FakeRecords()
    for key, scope in ((ANN, SCOPE), (BOB, BOBS_SCOPE)):
        write(path_of(tmp_path, key, scope), head(key=key), *map(body, talk(3)))
    assert await adopt(tmp_path, records) == 3
    output = capsys.readouterr().out
    assert "transcripts.turns_of_other_chats" in output
    assert "turns=3" in output


async def test_a_file_becomes_rows_with_its_bytes(tmp_path: Path) -> None:
    """Each turn has exactly its lines; the file stays as it is, and the mirror goes on appending to it."""
    given = [*talk(3), exchange(3, 6, tools=2, before=[build.pointer(4)])]
    path = write(path_of(tmp_path), head(), *map(body, given))
    before = path.read_bytes(), path.stat().st_ino
    records = FakeRecords()
    records.rows[ANN] = session(TRANSCRIPT, given[-1].to_index)
    assert await adopt(tmp_path, records) == 4
    found = await stored(records)
    assert [each.body for each in found] == [body(each) for each in given]
    for turn, record in zip(found, given, strict=True):
        assert (turn.turn, turn.from_index, turn.to_index) == (record.turn, record.from_index, record.to_index)
        assert (turn.transcript, turn.at, turn.outcome, turn.inbox) == (TRANSCRIPT, record.at, "answered", record.inbox)
        assert turn.new_transcript == ""
    assert (path.read_bytes(), path.stat().st_ino) == before
    assert await records.transcripts.stale_files(SCOPE) == []
    records.commit(exchange(4, given[-1].to_index))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    assert path.read_bytes() == before[0] + (await stored(records))[-1].body
    assert path.stat().st_ino == before[1]


async def test_lines_that_an_erasure_filled_up_with_spaces_are_not_set_aside(tmp_path: Path) -> None:
    """The file is written again without the spaces, and nothing is beside it: no person wrote that line."""
    first, *rest = talk(3)
    lines = [build.encode(line) for line in first.lines]
    path = write(path_of(tmp_path), head(), lines[0][:-1] + b"     \n", *lines[1:], *map(body, rest))
    records = FakeRecords()
    records.rows[ANN] = session(TRANSCRIPT, rest[-1].to_index)
    await adopt(tmp_path, records)
    records.commit(exchange(3, rest[-1].to_index))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == head() + b"".join(each.body for each in await stored(records))


async def test_the_next_prompt_is_the_one_from_before(tmp_path: Path) -> None:
    """From the pointer on."""
    write(path_of(tmp_path), head(), *map(body, [*talk(3), exchange(3, 6, before=[build.pointer(4)])]))
    records = FakeRecords()
    records.rows[ANN] = session(TRANSCRIPT, 8)
    await adopt(tmp_path, records)
    conversation = await ConversationCache(records.transcripts).open(records.rows[ANN], SCOPE)
    said = [str(each["content"])[-10:] for each in conversation.messages]
    assert (len(said), said[0]) == (4, "question 2")


async def test_segments_are_one_transcript(tmp_path: Path) -> None:
    """Full ones with the newest, and full ones alone after a crash came before the next."""
    given = talk(6)
    path = path_of(tmp_path)
    first, second = head() + body(given[0]) + body(given[1]), body(given[2]) + body(given[3])
    write(segment_path(path, TRANSCRIPT, 1), first)
    write(segment_path(path, TRANSCRIPT, 2), head(segment=1, base=len(first)), second)
    size = len(first) + len(head(segment=1, base=len(first))) + len(second)
    write(path, head(segment=2, base=size), *map(body, given[4:]))
    rolled = path_of(tmp_path, BOB, BOBS_SCOPE)
    write(segment_path(rolled, SECOND, 1), head(SECOND, BOB), *map(body, talk(2, first=10, key=BOB)))
    records = FakeRecords()
    assert await adopt(tmp_path, records) == 8
    assert [each.turn for each in await stored(records)] == names(*range(6))
    assert [each.body for each in await stored(records)] == [body(each) for each in given]
    assert [each.turn for each in await stored(records, BOB, BOBS_SCOPE)] == names(10, 11)


async def test_archives_come_in_the_order_of_their_transcripts(tmp_path: Path) -> None:
    """However their names sort; each ends with the one that follows, a late pointer behind /new included."""
    path = path_of(tmp_path)
    late = exchange(9, 4)
    late = replace(late, turn="plate", lines=(build.pointer(4), build.end_line("plate", from_index=4, to_index=4,
                   inbox=[], outcome="answered", at=START)), to_index=4)  # fmt: skip
    files = {
        archive_path(path, THIRD, turn_name("n1")): (THIRD, 0, [*talk(2), new("n1"), late]),
        archive_path(path, TRANSCRIPT, turn_name("n2")): (TRANSCRIPT, 10, [*talk(2, first=10), new("n2")]),
        archive_path(path, SECOND, turn_name("n3")): (SECOND, 20, [*talk(1, first=20), new("n3")]),
        path: (FOURTH, 30, talk(2, first=30)),
    }
    for file, (transcript, minute, given) in files.items():
        write(file, head(transcript, minute=minute), *map(body, given))
    records = FakeRecords()
    records.rows[ANN] = session(FOURTH, 4)
    assert await adopt(tmp_path, records) == 11
    found = await stored(records)
    assert [each.turn for each in found] == [*names(0, 1, "n1"), "plate", *names(10, 11, "n2", 20, "n3", 30, 31)]
    assert await records.transcripts.transcripts(SCOPE, ANN) == [THIRD, TRANSCRIPT, SECOND, FOURTH]
    endings = {each.turn: each.new_transcript for each in found if each.new_transcript}
    assert endings == {turn_name("n1"): TRANSCRIPT, turn_name("n2"): SECOND, turn_name("n3"): FOURTH}


async def test_several_chats_of_one_folder_keep_apart(tmp_path: Path) -> None:
    """And those of several scopes; nothing of one is in the other."""
    write(path_of(tmp_path), head(), *map(body, talk(2)))
    write(path_of(tmp_path, THREAD), head(SECOND, THREAD), *map(body, talk(2, first=10, key=THREAD)))
    write(path_of(tmp_path, BOB, BOBS_SCOPE), head(THIRD, BOB), *map(body, talk(2, first=20, key=BOB)))
    records = FakeRecords()
    assert await adopt(tmp_path, records) == 6
    assert [each.turn for each in await stored(records)] == names(0, 1)
    assert [each.turn for each in await stored(records, THREAD)] == names(10, 11)
    assert [each.turn for each in await stored(records, BOB, BOBS_SCOPE)] == names(20, 21)
    assert await stored(records, BOB) == []


async def test_a_home_without_isolation_is_adopted(tmp_path: Path) -> None:
    """Its conversations are in the home itself, whether it remembers something or not."""
    write(path_of(tmp_path, scope=""), head(), *map(body, talk(2)))
    records = FakeRecords()
    assert await adopt(tmp_path, records) == 2
    assert [each.turn for each in await stored(records, scope="")] == names(0, 1)


DAMAGES: list[tuple[str, list[bytes], list[int]]] = [
    ("torn tail", [body(talk(1)[0]), body(exchange(1, 2))[:40]], [0]),
    ("turn without end", [body(talk(1)[0]), body(exchange(1, 2)).split(b"\n")[0] + b"\n"], [0]),
    ("bad line between turns", [body(talk(1)[0]), b"{bad\n", body(exchange(1, 2))], [0, 1]),
    ("bad line in a turn", [body(talk(1)[0]).replace(b"\n", b"\n{bad\n", 1), body(exchange(1, 2))], [0, 1]),
    ("bad end", [b"\n".join(body(talk(1)[0]).split(b"\n")[:-2]) + b"\n{bad\n", body(exchange(1, 2))], [0, 1]),
    ("bytes that are no text", [b"\xff\xfe\x00\n", body(talk(1)[0])], [0]),
    ("blank lines", [b"\n\n", body(talk(1)[0]), b"   \n", body(exchange(1, 2))], [0, 1]),
    ("head alone", [], []),
]


@pytest.mark.parametrize(("pieces", "expected"), [each[1:] for each in DAMAGES], ids=[each[0] for each in DAMAGES])
async def test_damage_costs_only_what_is_damaged(tmp_path: Path, pieces: list[bytes], expected: list[int]) -> None:
    """The other turns are there, what cannot be read is set aside, and the next turn leaves a file that is whole."""
    path = write(path_of(tmp_path), head(), *pieces)
    records = FakeRecords()
    records.rows[ANN] = session(TRANSCRIPT, 2 * len(expected))
    assert await adopt(tmp_path, records) == len(expected)
    found = await stored(records)
    assert [each.turn for each in found] == names(*expected)
    for each in found:
        assert all(build.decode(raw) is not None for raw in each.body.split(b"\n")[:-1])
        assert any(b"answer" in raw for raw in each.body.split(b"\n"))
    assert any(b"{bad" in each.read_bytes() for each in path.parent.glob("*.corrupt")) == any(
        b"{bad" in piece for piece in pieces
    )
    records.commit(exchange(5, 2 * len(expected)))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    assert path.read_bytes().partition(b"\n")[2] == b"".join(each.body for each in await stored(records))


HEADS = [b"", b"{bad\n", b"\xff\n", b'{"kind":"head"}\n', b'{"kind":"head","key":"nonsense"}\n']


@pytest.mark.parametrize("first", HEADS)
async def test_a_file_without_a_usable_head_stops_nothing(tmp_path: Path, first: bytes) -> None:
    """It belongs to no chat that is known: the others are adopted, and its lines stay on the disk."""
    path = write(path_of(tmp_path), first, *map(body, talk(1)))
    write(path_of(tmp_path, THREAD), head(SECOND, THREAD), *map(body, talk(1, first=10, key=THREAD)))
    records = FakeRecords()
    assert await adopt(tmp_path, records) >= 1
    assert [each.turn for each in await stored(records, THREAD)] == names(10)
    records.commit(exchange(5, 0))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    everything = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert b"question 0" in everything


async def test_turns_that_the_store_has_already_are_not_stored_twice(tmp_path: Path) -> None:
    """The newest ones are in the journal of the earlier release: what is in the file comes before them."""
    every = talk(5)
    records = FakeRecords(*every[3:])
    write(path_of(tmp_path), head(), *map(body, every[:4]))
    assert await adopt(tmp_path, records) == 3
    assert [each.turn for each in await stored(records)] == names(*range(5))
    assert len(records.stored) == 2
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    assert path_of(tmp_path).read_bytes().partition(b"\n")[2] == b"".join(map(body, every))


async def test_what_was_erased_comes_back_from_no_older_journal(tmp_path: Path) -> None:
    """A journal of before an erasure was accepted: its rows get the lines of the file, which is newer."""
    records = FakeRecords(*talk(3))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    older = [each.body for each in await stored(records)]
    await records.transcripts.rewrite(SCOPE, lambda raw: raw.replace(b"question 1", b"[forgotten]"))
    await mirror.write_scope(SCOPE)
    for each, was in zip(await stored(records), older, strict=True):
        records.connection.execute("UPDATE record SET body = ? WHERE seq = ?", (was, each.seq))
    await adopt(tmp_path, records)
    found = b"".join(each.body for each in await stored(records))
    assert (b"question 1" in found, b"question 2" in found) == (False, True)
    assert path_of(tmp_path).read_bytes().partition(b"\n")[2] == found


@pytest.mark.parametrize("is_stale", [True, False])
async def test_a_file_that_is_behind_its_rows_or_damaged_changes_none(tmp_path: Path, is_stale: bool) -> None:
    """An erasure has not reached it yet, or a part of a turn cannot be read."""
    records = FakeRecords(*talk(3))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    if is_stale:
        await records.transcripts.rewrite(SCOPE, lambda raw: raw.replace(b"question 1", b"[forgotten]"))
    else:
        path = path_of(tmp_path)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(each for each in lines if b"question 1" not in each))
    before = [each.body for each in await stored(records)]
    await adopt(tmp_path, records)
    assert [each.body for each in await stored(records)] == before


async def test_a_chat_without_a_session_goes_on(tmp_path: Path) -> None:
    """Its store was lost, or dropped it: the current transcript is gone on with, an archive alone has ended."""
    write(path_of(tmp_path), head(), *map(body, talk(2)))
    archive = archive_path(path_of(tmp_path, THREAD), SECOND, turn_name("n1"))
    write(archive, head(SECOND, THREAD), *map(body, [*talk(2, first=10, key=THREAD), new("n1", SECOND, key=THREAD)]))
    records = FakeRecords()
    assert await adopt(tmp_path, records) == 5
    [*_, last] = await stored(records)
    assert last.new_transcript == ""
    assert (await records.transcripts.end(SCOPE, ANN, TRANSCRIPT)).ended == ""
    [*_, last] = await stored(records, THREAD)
    assert (last.turn, bool(last.new_transcript)) == (turn_name("n1"), True)
    assert (await records.transcripts.end(SCOPE, THREAD, SECOND)).ended == turn_name("n1")


async def test_twice_is_once(tmp_path: Path) -> None:
    """Also when the note that everything was adopted has been lost; later files are left alone by the note."""
    write(path_of(tmp_path), head(), *map(body, talk(3)))
    records = FakeRecords()
    assert await adopt(tmp_path, records) == 3
    before = await stored(records)
    write(path_of(tmp_path, THREAD), head(SECOND, THREAD), *map(body, talk(1, first=10, key=THREAD)))
    assert await adopt(tmp_path, records) == 0
    assert await stored(records, THREAD) == []
    records.connection.execute("DELETE FROM meta WHERE name = 'adopted_turns'")
    assert await adopt(tmp_path, records) == 1
    assert await stored(records) == before


@pytest.mark.parametrize("name", ["*", "../../other", "a/b", "?" * 16])
async def test_a_head_names_no_other_files(tmp_path: Path, name: str) -> None:
    """The id in a head becomes a part of paths: one that is no id is not taken over, and all others are."""
    scope = tmp_path / SCOPE / "sessions"
    scope.mkdir(parents=True)
    head = {"v": 1, "kind": "head", "transcript": name, "key": "telegram:7", "created": "2026-11-21T21:00:00Z"}
    line = {"kind": "end", "turn": "tx", "from": 0, "to": 0, "inbox": [], "outcome": "answered"}
    (scope / "telegram%3a7.jsonl").write_bytes(build.encode(head) + build.encode(line))
    good = {**head, "transcript": "abcdefgh234567zz", "key": "telegram:8"}
    (scope / "telegram%3a8.jsonl").write_bytes(build.encode(good) + build.encode({**line, "turn": "ty"}))
    records = FakeRecords()
    assert await adopt_transcripts(tmp_path, records.transcripts, ()) == 1
    assert [each.turn for each in await records.transcripts.scan(SCOPE)] == ["ty"]
