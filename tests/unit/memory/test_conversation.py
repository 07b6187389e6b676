"""The window: it moves by half, to the beginning of a turn, and a cold one costs its own size."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.base import transcript_lines as build
from agent.memory.prompt.conversation import Conversation, ConversationCache
from agent.memory.prompt.prompt_snapshot import MemoryView, opening
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.events import SessionKey
from gateway.ports.journal import SessionRow, TurnRecord
from tests.fakes.memory import (
    ANN,
    SCOPE,
    START,
    TRANSCRIPT,
    CountingTranscripts,
    FakeRecords,
    exchange,
    talk,
)

VIEW = MemoryView(soul="", user="", memory="- tea", shared="", rev="1")


def row(next_index: int = 0, transcript: str = TRANSCRIPT, key: SessionKey = ANN) -> SessionRow:
    """Return a session row."""
    return SessionRow(key=key, transcript=transcript, next_index=next_index, created_at=START, scope=SCOPE)


async def hold(conversation: Conversation, records: FakeRecords, count: int, *, tools: int = 0) -> list[TurnRecord]:
    """Have *count* turns, snapshots and marks as they come."""
    held = []
    for _ in range(count):
        start = conversation.next_index
        begun = opening(conversation, VIEW, "UTC", abilities="", at=start)
        record = exchange(start, start, tools=tools, before=begun.lines, blobs=begun.blobs)
        held.append(conversation.with_mark(record))
        records.commit(held[-1])
        conversation.adopt(held[-1])
    return held


def kinds(record: TurnRecord, kind: str) -> list[object]:
    """Return the lines of a kind in a record."""
    return [line for line in record.lines if line.get("kind") == kind]


async def test_the_window_moves_by_half_when_it_is_full(tmp_path: Path) -> None:
    """At 100 messages to 50, at 150 to 100; each move brings one new snapshot, with the next turn."""
    records = FakeRecords()
    conversation = await ConversationCache(records.transcripts, window=100).open(row(), SCOPE)
    held = await hold(conversation, records, 101)
    marks = {n: record for n, record in enumerate(held) if kinds(record, "mark")}
    assert list(marks) == [49, 74, 99]
    assert kinds(marks[49], "mark") == [build.mark(50)]
    assert [n for n, record in enumerate(held) if kinds(record, "snapshot")] == [0, 50, 75, 100]
    assert len(conversation.messages) == 52
    assert held[49].lines[-1]["kind"] == "end"


async def test_the_window_moves_to_the_beginning_of_a_turn(tmp_path: Path) -> None:
    """Never into the middle of a tool exchange, whatever the turns' sizes."""
    records = FakeRecords()
    conversation = await ConversationCache(records.transcripts, window=20).open(row(), SCOPE)
    for _ in range(30):
        await hold(conversation, records, 1, tools=3)
        assert conversation.replay_from % 8 == 0
        assert conversation.messages[0]["role"] == "user"
        assert conversation.next_index - conversation.replay_from <= 20 + 8


async def test_a_consolidation_that_does_not_come_lets_no_prompt_grow_for_ever(tmp_path: Path) -> None:
    """Twice the window, then a mark moves it; the pointer stays, so that nothing of it goes unsummarised."""
    records = FakeRecords()
    conversation = await ConversationCache(records.transcripts, window=20, consolidates=True).open(row(), SCOPE)
    for _ in range(100):
        await hold(conversation, records, 1)
        assert conversation.next_index - conversation.replay_from <= 40
    assert conversation.consolidated == 0
    due = conversation.due(conversation.next_index)
    assert due is not None
    assert (due.start, due.end) == (0, 190)
    cold = await ConversationCache(records.transcripts, window=20, consolidates=True).open(records.rows[ANN], SCOPE)
    assert (cold.consolidated, cold.replay_from) == (0, conversation.replay_from)


async def test_marks_keep_cold_reads_short_where_the_window_is_wide(tmp_path: Path) -> None:
    """A plain mark every 100 messages, which moves nothing and takes no snapshot."""
    records = FakeRecords()
    conversation = await ConversationCache(records.transcripts, window=1_000).open(row(), SCOPE)
    held = await hold(conversation, records, 120)
    assert [n for n, record in enumerate(held) if kinds(record, "mark")] == [49, 99]
    assert sum(len(kinds(record, "snapshot")) for record in held) == 1
    assert len(conversation.messages) == 240


async def test_without_a_window_the_last_ten_messages_are_sent(tmp_path: Path) -> None:
    """`memory_window: 0` of seed 004; from a user's message on, and a longer last turn whole."""
    records = FakeRecords()
    conversation = await ConversationCache(records.transcripts, window=0).open(row(), SCOPE)
    await hold(conversation, records, 80)
    assert len(conversation.messages) == 10
    assert conversation.messages[0]["content"].endswith("question 150")
    assert conversation.next_index - conversation.replay_from < 110
    await hold(conversation, records, 1, tools=8)
    assert len(conversation.messages) == 18


async def test_a_pointer_moves_the_window_and_asks_for_a_snapshot(tmp_path: Path) -> None:
    """Consolidation decides where replay starts; the turn that holds the pointer is replayed whole."""
    records = FakeRecords()
    conversation = await ConversationCache(records.transcripts).open(row(), SCOPE)
    await hold(conversation, records, 10)
    conversation.adopt(exchange(20, 20, before=[build.pointer(11)]))
    assert conversation.replay_from == 10
    assert conversation.messages[0]["content"].endswith("question 10")
    assert [line["kind"] for line in opening(conversation, VIEW, "UTC", abilities="", at=22).lines] == ["snapshot"]


async def test_hot_conversations_cost_nothing(tmp_path: Path) -> None:
    """The very object, without the journal; a stranger's commit makes it cold."""
    records = FakeRecords()
    conversations = ConversationCache(records.transcripts)
    conversation = await conversations.open(row(), SCOPE)
    await hold(conversation, records, 3)
    records.is_down = True
    assert await conversations.open(row(6), SCOPE) is conversation
    records.is_down = False
    records.commit(exchange(99, 6))
    other = await conversations.open(row(8), SCOPE)
    assert len(other.messages) == 8


async def test_few_are_kept(tmp_path: Path) -> None:
    """Beyond the capacity the least recently used goes; `forget` lets one go at once."""
    records = FakeRecords()
    conversations = ConversationCache(records.transcripts, capacity=2)
    keys = [SessionKey("web", str(n)) for n in range(3)]
    first, second, _ = [await conversations.open(row(key=key), SCOPE) for key in keys]
    assert await conversations.open(row(key=keys[1]), SCOPE) is second
    assert await conversations.open(row(key=keys[0]), SCOPE) is not first
    conversations.forget(keys[0])
    assert len(conversations._open) == 1


@pytest.mark.parametrize("written", [False, True])
async def test_new_is_a_fresh_window_before_and_after_the_rename(tmp_path: Path, written: bool) -> None:
    """Nothing of the old transcript is in the new one's prompt, whether or not the file was renamed yet."""
    records = FakeRecords(*talk(3))
    await SessionFileWriter(tmp_path, records, records.transcripts).close()
    records.commit(exchange(3, 6, new_transcript="n" * 16))
    records.commit(exchange(4, 0, transcript="n" * 16))
    if written:
        await SessionFileWriter(tmp_path, records, records.transcripts).close()
    conversation = await ConversationCache(records.transcripts).open(row(2, "n" * 16), SCOPE)
    assert [message["content"][-10:] for message in conversation.messages] == ["question 4", "answer 4"]


async def test_a_repeated_or_foreign_record_changes_nothing(tmp_path: Path) -> None:
    """A commit that was answered twice, a control command, a record of the transcript before."""
    records = FakeRecords()
    conversation = await ConversationCache(records.transcripts).open(row(), SCOPE)
    held = await hold(conversation, records, 2)
    before = list(conversation.messages)
    conversation.adopt(held[1])
    conversation.adopt(exchange(7, 4, transcript="z" * 16))
    conversation.adopt(exchange(8, 4, transcript=""))
    assert list(conversation.messages) == before
    assert conversation.next_index == 4


async def test_lost_texts_take_a_new_snapshot(tmp_path: Path) -> None:
    """A text that is gone or damaged costs a cached prompt, never a turn."""
    records = FakeRecords()
    conversation = await ConversationCache(records.transcripts).open(row(), SCOPE)
    await hold(conversation, records, 2)
    records.connection.execute("UPDATE file_piece SET data = ?", (b"damaged",))
    cold = await ConversationCache(records.transcripts).open(row(4), SCOPE)
    assert cold.snapshot is None
    assert len(cold.messages) == 4
    assert [line["kind"] for line in opening(cold, VIEW, "UTC", abilities="", at=4).lines] == ["snapshot"]


@pytest.mark.parametrize("tools", [0, 2])
async def test_opening_a_cold_session_costs_its_window_not_its_age(tmp_path: Path, tools: int) -> None:
    """Bytes of turns at 2,000 stored messages are at most 1.2 times those at 50 (and a window)."""
    costs = []
    for count in (60, 1_000):
        home = tmp_path / str(count)
        records = FakeRecords()
        conversations = ConversationCache(records.transcripts)
        conversation = await conversations.open(row(), SCOPE)
        mirror = SessionFileWriter(home, records, records.transcripts)
        await hold(conversation, records, count, tools=tools)
        await mirror.close()
        counting = CountingTranscripts(records)
        cold = await ConversationCache(counting).open(row(conversation.next_index), SCOPE)
        assert list(cold.messages) == list(conversation.messages)
        costs.append(counting.bytes_read / max(len(cold.messages), 50))
    assert costs[1] <= costs[0] * 1.2
