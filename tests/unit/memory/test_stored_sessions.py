"""What people saw, wherever it is at the moment: in the inbox or in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from agent.base import transcript_lines as build
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.storage.stored_sessions import StoredSessions
from gateway.events import InboundMessage, Sender, SessionKey
from gateway.ports.journal import InboxRow, Line, MessageOutcome, PendingDelivery, TurnRecord
from gateway.store.journal import SqlJournal
from gateway.store.outbox import SqlOutbox
from tests.fakes.memory import (
    ANN,
    SCOPE,
    START,
    TRANSCRIPT,
    CountingTranscripts,
    FakeRecords,
    exchange,
    talk,
    turn_name,
)


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


def sessions(records: FakeRecords, rows: Sequence[InboxRow] = ()) -> StoredSessions:
    """Return the port over fakes."""
    return StoredSessions(
        records, records.transcripts, cast("SqlJournal", FakeInbox(rows)), cast("SqlOutbox", NothingSent())
    )


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


@pytest.mark.parametrize("written", [0, 1, 2, 3])
async def test_the_same_lines_are_shown_wherever_they_stand(tmp_path: Path, written: int) -> None:
    """Same texts, same ids, however much of it is in the file; a page that reloads shows nothing twice."""
    every = [exchange(0, 0, tools=2), command(1), *talk(1, first=2, start=6)]
    records = FakeRecords(*every[:written])
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    for record in every[written:]:
        records.commit(record)
    shown = await sessions(records, [accepted_message(3)]).displayed_messages(ANN, limit=20)
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


@pytest.mark.parametrize("written", [0, 1, 3])
async def test_recent_turns_are_whole_turns_wherever_they_are_stored(tmp_path: Path, written: int) -> None:
    """The newest ones, tool lines and commands included."""
    every = [exchange(0, 0, tools=2), command(1), *talk(1, first=2, start=6)]
    records = FakeRecords(*every[:written])
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    for record in every[written:]:
        records.commit(record)
    stored = sessions(records)
    turns = await stored.recent_turns(ANN, limit=20)
    assert [lines[0].get("turn") or lines[1]["turn"] for lines in turns] == [turn_name(n) for n in range(3)]
    assert [line["role"] for line in turns[0] if "role" in line].count("tool") == 2
    assert [lines[-1]["turn"] for lines in await stored.recent_turns(ANN, limit=2)] == [turn_name(1), turn_name(2)]


async def test_pages_have_the_whole_conversation_while_new_archives_its_file(tmp_path: Path) -> None:
    """A reader at any moment of it, before the file is renamed, meanwhile and afterwards, misses nothing."""
    records = FakeRecords(*talk(3))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    for record in (command(9, new="n" * 16), exchange(4, 0, transcript="n" * 16)):
        records.commit(record)
    flushing, seen = asyncio.create_task(mirror.flush()), 0
    expected = [*(f"{word} {n}" for n in range(3) for word in ("question", "answer")), "/status", "fine", "-"]
    while not flushing.done() or not seen:
        [page] = await pages_of(sessions(records), turns=9)
        assert page == [*expected, "question 4", "answer 4"]
        seen += 1


async def test_a_row_whose_turn_was_just_committed_is_shown_once(tmp_path: Path) -> None:
    """The inbox was asked before the commit, the records after it."""
    records = FakeRecords(exchange(7, 0))
    shown = await sessions(records, [accepted_message(7)]).displayed_messages(ANN, limit=20)
    assert [line.state for line in shown] == ["done", "done"]


async def test_only_the_newest_lines_are_read(tmp_path: Path) -> None:
    """The limit is kept, and a long conversation costs its end."""
    records = FakeRecords(*talk(2_000))
    records.transcripts = counting = CountingTranscripts(records)
    shown = await sessions(records).displayed_messages(ANN, limit=6)
    assert [line.text for line in shown] == [
        f"{word} {n}" for n in (1997, 1998, 1999) for word in ("question", "answer")
    ]
    assert counting.bytes_read < 40_000


async def test_new_shows_its_own_answer_and_what_follows(tmp_path: Path) -> None:
    """Before the file is renamed and after it, nothing of the old conversation is shown as the new one's."""
    records = FakeRecords(*talk(2), command(9, new="n" * 16), exchange(3, 0, transcript="n" * 16))
    shown = await sessions(records).displayed_messages(ANN, limit=20)
    assert [line.text for line in shown] == ["/status", "fine", "question 3", "answer 3"]


async def test_what_was_taken_back_is_not_shown(tmp_path: Path) -> None:
    """A deleted message is `[forgotten]` to every reader."""
    records = FakeRecords(exchange(0, 0), exchange(1, 2, before=[build.forgotten_line("m0")]))
    shown = await sessions(records).displayed_messages(ANN, limit=20)
    assert [line.text for line in shown][:2] == ["[forgotten]", "answer 0"]


async def test_sessions_of_every_scope_are_read(tmp_path: Path) -> None:
    """Of a person, of a chat, and of a home without isolation, whose scope has no name; but no turns of another."""
    for scope in (SCOPE, "chats/slack%3ac1", ""):
        records = FakeRecords(exchange(0, 0, scope=scope))
        assert len(await sessions(records).displayed_messages(ANN, limit=5)) == 2
        records.rows[ANN] = replace(records.rows[ANN], scope="people/other")
        assert await sessions(records).displayed_messages(ANN, limit=5) == ()


async def test_an_unknown_chat_is_empty(tmp_path: Path) -> None:
    """No session, no lines, no error."""
    assert await sessions(FakeRecords()).displayed_messages(ANN, limit=5) == ()


async def test_all_sessions_are_listed(tmp_path: Path) -> None:
    """The most recently used first, with their number of messages."""
    records = FakeRecords()
    other = SessionKey("web", "x")
    records.commit(exchange(0, 0))
    records.commit(exchange(0, 0, key=other, scope="people/web%3ax", name="other"))
    listed = await sessions(records).all()
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
@pytest.mark.parametrize("is_written", [False, True])
async def test_lines_stand_in_the_order_in_which_they_were_seen(
    tmp_path: Path, records: list[TurnRecord], order: list[str], is_written: bool
) -> None:
    """Turns are stored in the order of their commits, and shown as they were seen, in the journal and in the file."""
    stored = FakeRecords()
    for record in records:
        stored.commit(record)
    if is_written:
        await SessionFileWriter(tmp_path, stored, stored.transcripts).close()
    shown = await sessions(stored).displayed_messages(ANN, limit=20)
    assert [line.text for line in shown] == order
    assert len({line.id for line in shown}) == len(order)


async def test_a_message_that_waits_stands_where_it_was_said(tmp_path: Path) -> None:
    """A command was answered meanwhile: the question before it is still there before it."""
    records = FakeRecords(seen_record(1, asked=2, began=3, ended=3, is_command=True))
    shown = await sessions(records, [accepted_message(0)]).displayed_messages(ANN, limit=20)
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


@pytest.mark.parametrize("written", [0, 4, 6, 7, 11])
@pytest.mark.parametrize("turns", [1, 2, 3, 100])
async def test_pages_go_back_through_everything_that_was_said(tmp_path: Path, written: int, turns: int) -> None:
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
        if n + 1 == written:
            await SessionFileWriter(tmp_path, records, records.transcripts).close()
    expected = [f"{word} {n}" for n in range(5) for word in ("question", "answer")]
    expected += ["/status", "fine", "-"]
    expected += [f"{word} {n}" for n in (6, 7) for word in ("question", "answer")]
    expected += ["/status", "fine", "-"]
    expected += [f"{word} {n}" for n in (9, 10) for word in ("question", "answer")]
    pages = await pages_of(sessions(records), turns=turns)
    assert [text for page in pages for text in page] == expected
    if written == len(every) and turns < 100:
        assert len(pages) >= len(every) // turns


async def test_a_position_of_another_conversation_shows_nothing_of_it(tmp_path: Path) -> None:
    """Bob's turns are in the same scope: a position among them shows Ann's own, and nonsense opens nothing."""
    records = FakeRecords()
    bob = SessionKey("telegram", "43")
    for record in talk(2, first=0, start=0):
        records.commit(record)
        records.commit(replace(record, key=bob, turn=turn_name(f"bob {record.turn}"), transcript="d" * 16))
    stored = sessions(records)
    [_, bobs] = await records.transcripts.newest(SCOPE, bob, 2)
    page = await stored.displayed_page(ANN, str(bobs.seq), turns=9)
    assert page is not None
    assert [line.text for line in page.lines] == ["question 0", "answer 0", "question 1", "answer 1"]
    for before in (f"{TRANSCRIPT}:", "--1", "-", "x", "../../x:1", ":", "1" * 19, "\u0661", "1.0", " 1"):
        assert await stored.displayed_page(ANN, before, turns=9) is None
    for before in ("0", "-9", "9" * 18):
        page = await stored.displayed_page(ANN, before, turns=9)
        assert page is not None
        assert all(line.text.split()[1] in ("0", "1") for line in page.lines)


async def test_a_page_reads_what_it_shows_and_not_the_whole_file(tmp_path: Path) -> None:
    """The cost of a page does not depend on the length of the conversation."""
    records = FakeRecords(*talk(1_000))
    records.transcripts = counting = CountingTranscripts(records)
    page = await sessions(records).displayed_page(ANN, turns=10)
    assert page is not None
    assert len(page.lines) == 20
    assert counting.bytes_read < 11 * 1_000


@pytest.mark.parametrize("turns", [2, 50])
async def test_pages_of_long_turns_go_back_to_the_first(tmp_path: Path, turns: int) -> None:
    """A page is bounded in bytes too: one that has fewer turns than were asked for is not the last."""
    records = FakeRecords(*talk(20, answered="x" * 400_000))
    pages = await pages_of(sessions(records), turns=turns)
    assert [text for page in pages for text in page if text.startswith("q")] == [f"question {n}" for n in range(20)]


async def test_pages_go_on_where_age_has_removed_the_first_turns(tmp_path: Path) -> None:
    """What is left is shown, every line once."""
    records = FakeRecords(*talk(300, first=0, start=0))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    assert await records.transcripts.lapse(SCOPE, START + timedelta(minutes=100), lambda raw: raw) == 100
    pages = await pages_of(sessions(records), turns=64)
    expected = [f"{word} {n}" for n in range(100, 300) for word in ("question", "answer")]
    assert [text for page in pages for text in page] == expected
