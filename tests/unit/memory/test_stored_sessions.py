"""What people saw, wherever it stands at the moment: inbox, journal or file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from agent.memory.scopes import transcript_path
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.transcript_projector import TranscriptProjector
from agent.memory.stored_sessions import StoredSessions
from gateway.events import InboundMessage, Sender, SessionKey
from gateway.ports import InboxRow, Journal, Line, MessageOutcome, Outbox, PendingDelivery, TurnRecord
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, CountingDisk, FakeRecords, exchange, talk, turn_name


class FakeInbox:
    """The part of the journal that is asked here."""

    def __init__(self, rows: Sequence[InboxRow] = ()) -> None:
        self.rows = tuple(rows)

    async def waiting_rows(self, key: SessionKey, *, sender: str = "") -> tuple[InboxRow, ...]:
        """Return the rows of *key*."""
        return tuple(row for row in self.rows if row.message.key == key)


class NothingSent:
    """The part of the outbox that is asked here."""

    async def messages_of_all(self, turns: Sequence[str]) -> dict[str, tuple[PendingDelivery, ...]]:
        """Return no messages."""
        return {}


def accepted_message(n: int, text: str = "waits") -> InboxRow:
    """Return an accepted message that has not ended."""
    message = InboundMessage(key=ANN, message_id=f"m{n}", sender=Sender(id="42", name="Ann"), text=text, sent_at=START)
    return InboxRow(seq=n, message=message, accepted_at=START)


def sessions(
    home: Path, records: FakeRecords, rows: Sequence[InboxRow] = (), disk: CountingDisk | None = None
) -> StoredSessions:
    """Return the port over fakes."""
    return StoredSessions(home, records, cast("Journal", FakeInbox(rows)), cast("Outbox", NothingSent()), disk=disk)


def command(n: int, *, new: str = "") -> TurnRecord:
    """Return the record of a command."""
    turn = turn_name(n)
    return TurnRecord(
        turn=turn,
        key=ANN,
        transcript=TRANSCRIPT,
        scope=SCOPE,
        outcome=MessageOutcome.ANSWERED,
        lines=(build.command(turn, "/status", "fine", START),),
        from_index=0,
        to_index=0,
        inbox=(n,),
        at=START,
        new_transcript=new,
    )


@pytest.mark.parametrize("projected", [0, 1, 2, 3])
async def test_the_same_lines_are_shown_wherever_they_stand(tmp_path: Path, projected: int) -> None:
    """Same texts, same ids, however much of it is in the file; a page that reloads shows nothing twice."""
    every = [exchange(0, 0, tools=2), command(1), *talk(1, first=2, start=6)]
    records = FakeRecords(*every[:projected])
    await TranscriptProjector(tmp_path, records).close()
    for record in every[projected:]:
        records.commit(record)
    shown = await sessions(tmp_path, records, [accepted_message(3)]).displayed_messages(ANN, limit=20)
    assert [(line.role, line.text, line.state) for line in shown] == [
        ("user", "question 0", "done"),
        ("assistant", "answer 0", "done"),
        ("user", "/status", "done"),
        ("command", "fine", "done"),
        ("user", "question 2", "done"),
        ("assistant", "answer 2", "done"),
        ("user", "waits", "waiting"),
    ]
    assert [line.id for line in shown[:4]] == [
        f"{turn_name(0)}/0",
        f"{turn_name(0)}/1",
        f"{turn_name(1)}/0",
        f"{turn_name(1)}/1",
    ]
    assert shown[0].message_id == "m0"
    assert shown[-1].name == "Ann"


@pytest.mark.parametrize("projected", [0, 1, 3])
async def test_recent_turns_are_whole_turns_wherever_they_are_stored(tmp_path: Path, projected: int) -> None:
    """The newest ones, tool lines and commands included."""
    every = [exchange(0, 0, tools=2), command(1), *talk(1, first=2, start=6)]
    records = FakeRecords(*every[:projected])
    await TranscriptProjector(tmp_path, records).close()
    for record in every[projected:]:
        records.commit(record)
    stored = sessions(tmp_path, records)
    turns = await stored.recent_turns(ANN, limit=20)
    assert [lines[0].get("turn") or lines[1]["turn"] for lines in turns] == [turn_name(n) for n in range(3)]
    assert [line["role"] for line in turns[0] if "role" in line].count("tool") == 2
    assert [lines[-1]["turn"] for lines in await stored.recent_turns(ANN, limit=2)] == [turn_name(1), turn_name(2)]


class RenamingDisk(CountingDisk):
    """A disk on which the transcript is archived between the look at its size and its reading, once."""

    def read(self, path: Path, start: int, length: int) -> bytes:
        """Rename the file, then read what is there."""
        if not self.calls["read"] and path.exists():
            path.rename(path.with_name("archived"))
        self.calls["read"] += 1
        return super().read(path, start, length)


async def test_a_transcript_that_is_archived_while_it_is_read_is_empty(tmp_path: Path) -> None:
    """The writer renames it after /new."""
    records = FakeRecords(exchange(0, 0))
    await TranscriptProjector(tmp_path, records).close()
    assert await sessions(tmp_path, records, disk=RenamingDisk()).displayed_messages(ANN, limit=20) == ()


async def test_a_row_whose_turn_was_just_committed_is_shown_once(tmp_path: Path) -> None:
    """The inbox was asked before the commit, the records after it."""
    records = FakeRecords(exchange(7, 0))
    shown = await sessions(tmp_path, records, [accepted_message(7)]).displayed_messages(ANN, limit=20)
    assert [line.state for line in shown] == ["done", "done"]


async def test_only_the_newest_lines_are_read(tmp_path: Path) -> None:
    """The limit is kept, and a long conversation costs its end."""
    records = FakeRecords(*talk(2_000))
    await TranscriptProjector(tmp_path, records).close()
    disk = CountingDisk()
    shown = await sessions(tmp_path, records, disk=disk).displayed_messages(ANN, limit=6)
    assert [line.text for line in shown] == [
        f"{word} {n}" for n in (1997, 1998, 1999) for word in ("question", "answer")
    ]
    assert disk.bytes_read < 40_000


async def test_new_shows_its_own_answer_and_what_follows(tmp_path: Path) -> None:
    """Before the file is renamed and after it, nothing of the old conversation is shown as the new one's."""
    records = FakeRecords(*talk(2), command(9, new="n" * 16), exchange(3, 0, transcript="n" * 16))
    shown = await sessions(tmp_path, records).displayed_messages(ANN, limit=20)
    assert [line.text for line in shown] == ["/status", "fine", "question 3", "answer 3"]


async def test_what_was_taken_back_is_not_shown(tmp_path: Path) -> None:
    """A deleted message is `[forgotten]` to every reader."""
    records = FakeRecords(exchange(0, 0), exchange(1, 2, before=[build.forgotten_line("m0")]))
    shown = await sessions(tmp_path, records).displayed_messages(ANN, limit=20)
    assert [line.text for line in shown][:2] == ["[forgotten]", "answer 0"]


async def test_a_journal_that_names_no_scopes_still_finds_the_file(tmp_path: Path) -> None:
    """Sessions of an older journal, and of a home without isolation, are looked up where they stand."""
    for scope in (SCOPE, "chats/slack%3ac1", ""):
        records, home = FakeRecords(), tmp_path / (scope or "root")
        records.commit(exchange(0, 0, scope=scope))
        await TranscriptProjector(home, records).close()
        records.rows.clear()
        assert len(await sessions(home, records).displayed_messages(ANN, limit=5)) == 2


async def test_an_unknown_chat_is_empty(tmp_path: Path) -> None:
    """No session, no lines, no error."""
    assert await sessions(tmp_path, FakeRecords()).displayed_messages(ANN, limit=5) == ()


async def test_all_sessions_are_listed(tmp_path: Path) -> None:
    """The most recently used first, with their number of messages."""
    records = FakeRecords()
    other = SessionKey("web", "x")
    records.commit(exchange(0, 0))
    records.commit(exchange(0, 0, key=other, scope="people/web%3ax"))
    listed = await sessions(tmp_path, records).all()
    assert [(info.key, info.messages) for info in listed] == [(other, 2), (ANN, 2)]
    assert listed[0].updated_at - START < timedelta(days=1)


def at(seconds: float) -> datetime:
    """Return a moment."""
    return START + timedelta(seconds=seconds)


def seen_record(n: int, *, asked: float, began: float, ended: float, is_command: bool = False) -> TurnRecord:
    """Return the record of a turn whose question and answer were seen at these seconds."""
    turn = turn_name(n)
    typed: list[Line]
    if is_command:
        typed = [
            build.command(turn, f"/status {n}", f"fine {n}", at(began), mid=f"m{n}", seen=build.format_time(at(asked)))
        ]
    else:
        said = build.message(n, turn, "user", f"question {n}", START, mid=f"m{n}", seen=build.format_time(at(asked)))
        answer = build.message(n, turn, "assistant", f"answer {n}", at(ended), seen=build.format_time(at(began)))
        typed = [said, answer]
    end = build.end_line(turn, from_index=n, to_index=n, inbox=[str(n)], outcome="answered", at=at(ended))
    return TurnRecord(
        turn=turn,
        key=ANN,
        transcript=TRANSCRIPT,
        scope=SCOPE,
        outcome=MessageOutcome.ANSWERED,
        lines=(*typed, end),
        from_index=n,
        to_index=n,
        inbox=(n,),
        at=at(ended),
    )


SEEN: list[tuple[str, list[TurnRecord], list[str]]] = [
    (
        "a command during a turn",
        [seen_record(1, asked=2, began=3, ended=3, is_command=True), seen_record(0, asked=0, began=9, ended=9)],
        ["question 0", "/status 1", "fine 1", "answer 0"],
    ),
    (
        "a command behind the first words",
        [seen_record(1, asked=2, began=3, ended=3, is_command=True), seen_record(0, asked=0, began=1, ended=9)],
        ["question 0", "answer 0", "/status 1", "fine 1"],
    ),
    (
        "a question that waits",
        [seen_record(0, asked=0, began=5, ended=5), seen_record(1, asked=2, began=9, ended=9)],
        ["question 0", "question 1", "answer 0", "answer 1"],
    ),
    (
        "a clock that was set back by an hour",
        [seen_record(0, asked=3_600, began=3_605, ended=3_605), seen_record(1, asked=10, began=15, ended=15)],
        ["question 0", "answer 0", "question 1", "answer 1"],
    ),
]


@pytest.mark.parametrize(("records", "order"), [case[1:] for case in SEEN], ids=[case[0] for case in SEEN])
@pytest.mark.parametrize("is_projected", [False, True])
async def test_lines_stand_in_the_order_in_which_they_were_seen(
    tmp_path: Path, records: list[TurnRecord], order: list[str], is_projected: bool
) -> None:
    """Turns are stored in the order of their commits, and shown as they were seen, in the journal and in the file."""
    stored = FakeRecords()
    for record in records:
        stored.commit(record)
    if is_projected:
        await TranscriptProjector(tmp_path, stored).close()
    shown = await sessions(tmp_path, stored).displayed_messages(ANN, limit=20)
    assert [line.text for line in shown] == order
    assert len({line.id for line in shown}) == len(order)


async def test_a_message_that_waits_stands_where_it_was_said(tmp_path: Path) -> None:
    """A command was answered meanwhile: the question before it is still there before it."""
    records = FakeRecords(seen_record(1, asked=2, began=3, ended=3, is_command=True))
    shown = await sessions(tmp_path, records, [accepted_message(0)]).displayed_messages(ANN, limit=20)
    assert [line.text for line in shown] == ["waits", "/status 1", "fine 1"]


async def pages_of(stored: StoredSessions, *, turns: int) -> list[list[str]]:
    """Return the texts of every page of Ann's conversation, the newest page last; a divider is "-"."""
    pages: list[list[str]] = []
    before = ""
    while True:
        page = await stored.displayed_page(ANN, before, turns=turns)
        assert page is not None
        pages.insert(0, ["-" if line.role == "divider" else line.text for line in page.lines])
        before = page.before
        if not before:
            return pages


@pytest.mark.parametrize("projected", [0, 4, 6, 7, 11])
@pytest.mark.parametrize("turns", [1, 2, 3, 100])
async def test_pages_go_back_through_everything_that_was_said(tmp_path: Path, projected: int, turns: int) -> None:
    """Three transcripts, wherever they stand: every line once, in order, and a divider at each /new."""
    records = FakeRecords()
    second, third = "bbbbbbbbbbbbbbbb", "cccccccccccccccc"
    every = [
        *talk(5, first=0, start=0),
        command(100, new=second),
        *(replace(each, transcript=second) for each in talk(2, first=6, start=0)),
        replace(command(101, new=third), transcript=second),
        *(replace(each, transcript=third) for each in talk(2, first=9, start=0)),
    ]
    for n, record in enumerate(every):
        records.commit(replace(record, at=START + timedelta(minutes=n)))
        if n + 1 == projected:
            await TranscriptProjector(tmp_path, records).close()
    expected = [f"{word} {n}" for n in range(5) for word in ("question", "answer")]
    expected += ["/status", "fine", "-"]
    expected += [f"{word} {n}" for n in (6, 7) for word in ("question", "answer")]
    expected += ["/status", "fine", "-"]
    expected += [f"{word} {n}" for n in (9, 10) for word in ("question", "answer")]
    pages = await pages_of(sessions(tmp_path, records), turns=turns)
    assert [text for page in pages for text in page] == expected
    if projected == len(every) and turns < 100:
        assert len(pages) >= len(every) // turns


async def test_a_position_of_another_conversation_is_none(tmp_path: Path) -> None:
    """Bob's transcript lies in the same folder: a position in it, one that is gone, and nonsense open nothing."""
    records = FakeRecords()
    bob = SessionKey("telegram", "43")
    for record in talk(2, first=0, start=0):
        records.commit(record)
        records.commit(replace(record, key=bob, turn=turn_name(f"bob {record.turn}"), transcript="d" * 16))
    await TranscriptProjector(tmp_path, records).close()
    stored = sessions(tmp_path, records)
    assert (await stored.displayed_page(ANN, f"{TRANSCRIPT}:", turns=9)) is not None
    for before in (f"{'d' * 16}:", f"{'e' * 16}:99", f"{TRANSCRIPT}:-1", f"{TRANSCRIPT}:x", "../../x:1", ":"):
        assert await stored.displayed_page(ANN, before, turns=9) is None


async def test_a_page_reads_what_it_shows_and_not_the_whole_file(tmp_path: Path) -> None:
    """The cost of a page does not depend on the length of the conversation."""
    records, disk = FakeRecords(), CountingDisk()
    for record in talk(1_000, first=0, start=0):
        records.commit(record)
    await TranscriptProjector(tmp_path, records).close()
    size = transcript_path(tmp_path, SCOPE, str(ANN)).stat().st_size
    page = await sessions(tmp_path, records, disk=disk).displayed_page(ANN, turns=10)
    assert page is not None
    assert len(page.lines) == 20
    assert disk.bytes_read < size / 10


async def test_pages_go_on_where_age_has_removed_the_first_segments(tmp_path: Path) -> None:
    """Deletion by age takes whole segments: what is left is shown, every line once."""
    records = FakeRecords(*talk(300, first=0, start=0))
    await TranscriptProjector(tmp_path, records).close()
    path = transcript_path(tmp_path, SCOPE, str(ANN))
    lines = path.read_bytes().splitlines(keepends=True)
    ends = [n for n, line in enumerate(lines) if b'"kind":"end"' in line]
    cut = ends[99] + 1
    head = build.encode(build.head_line(TRANSCRIPT, str(ANN), START, segment=1, base=sum(map(len, lines[:cut]))))
    path.write_bytes(head + b"".join(lines[cut:]))
    pages = await pages_of(sessions(tmp_path, records), turns=64)
    expected = [f"{word} {n}" for n in range(100, 300) for word in ("question", "answer")]
    assert [text for page in pages for text in page] == expected
