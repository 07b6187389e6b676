"""A conversation that was given up and read again is the same conversation, byte for byte."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.base import transcript_lines as build
from agent.memory.prompt.compaction import PromptLimit
from agent.memory.prompt.conversation import Conversation, ConversationCache
from agent.memory.prompt.prompt_snapshot import MemoryView, opening, system_prompt
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.ports.journal import Line, MessageOutcome, SessionRow, TurnRecord
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, FakeRecords, exchange, turn_name

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 3)),
        st.tuples(st.just("unanswered"), st.integers(1, 2)),
        st.tuples(st.just("squeeze"), st.integers(0, 3)),
        st.tuples(st.just("learn"), st.integers(0, 9)),
        st.tuples(st.just("forget"), st.integers(0, 30)),
        st.tuples(st.just("pointer"), st.integers(0, 40)),
        st.tuples(st.just("project"), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 2)),
        st.tuples(st.just("command"), st.just(0)),
        st.tuples(st.just("new"), st.just(0)),
    ),
    max_size=40,
)


class ConversationScene:
    """Just enough of a gateway to hold a conversation."""

    def __init__(self, home: Path, window: int) -> None:
        self.home = home
        self.window = window
        self.records = FakeRecords()
        self.mirror = SessionFileWriter(home, self.records, self.records.transcripts)
        self.conversations = ConversationCache(self.records.transcripts, window=window)
        self.facts: list[str] = []
        self.zone = "Europe/Berlin"
        self.n = 0

    @property
    def row(self) -> SessionRow:
        row = self.records.rows.get(ANN)
        return row or SessionRow(key=ANN, transcript=TRANSCRIPT, next_index=0, created_at=START, scope=SCOPE)

    @property
    def view(self) -> MemoryView:
        text = "\n".join(self.facts)
        return MemoryView(soul="", user="", memory=text, shared="", rev=f"{len(self.facts)}{text}")

    async def step(self, what: str, number: int) -> None:
        """Do one thing that can happen in a chat."""
        self.n += 1
        if what == "project":
            await self.mirror.flush()
        elif what == "learn":
            self.facts.append(f"- fact {self.n}") if number else self.facts.clear()
        elif what == "move":
            self.zone = ("Europe/Berlin", "Asia/Tokyo", "UTC")[number]
        elif what == "new":
            await self.commit((), new="n" * 12 + f"{self.n:04d}".translate(str.maketrans("0189", "abcd")))
        elif what == "command":
            await self.commit((build.command(turn_name(self.n), "/status", "fine", START),))
        elif what == "pointer":
            await self.commit((build.pointer(min(number, self.row.next_index)),))
        else:
            await self.talk(what, number)

    async def talk(self, what: str, number: int) -> None:
        conversation = await self.conversations.open(self.row, SCOPE)
        row = self.row
        # A model that takes little now: bodies go, the window moves, texts are cut.
        room = PromptLimit(tokens=(0, 90, 60, 30)[number] if what == "squeeze" else 0, taken=0)
        fit = conversation.compacted([], row.next_index, prompt_limit=room)
        begun = opening(
            conversation, self.view, self.zone, abilities="tools", at=row.next_index, replay_from=fit.replay_from
        )
        before: list[Line] = [*begun.lines, *fit.lines]
        if what == "forget":
            before.append(build.forgotten_line(f"m{number}"))
        told = conversation.messages_with(before)
        record = exchange(
            self.n,
            row.next_index,
            tools=number if what in ("turn", "squeeze") else 0,
            answered="long words " * 80 if what == "squeeze" else "",
            before=before,
            blobs=begun.blobs,
            transcript=row.transcript,
        )
        if what == "unanswered":
            record = stopped_turn(record, number)
        record = conversation.with_mark(record)
        self.records.commit(record)
        conversation.adopt(record)
        conversation.adopt(record)
        if self.window and not any(line.get("kind") == "mark" for line in record.lines):
            # The body of the next turn begins with the body of this one.
            after = list(conversation.messages)
            assert after[: len(told)] == list(told)

    async def commit(self, lines: tuple[Line, ...], new: str = "") -> None:
        row = self.row
        record = TurnRecord(
            turn=turn_name(self.n),
            key=ANN,
            transcript=row.transcript,
            scope=SCOPE,
            outcome=MessageOutcome.ANSWERED,
            lines=lines,
            from_index=row.next_index,
            to_index=row.next_index,
            inbox=(),
            at=START,
            new_transcript=new,
        )
        conversation = await self.conversations.open(row, SCOPE)
        self.records.commit(record)
        conversation.adopt(record)
        if new:
            self.conversations.forget(ANN)


def stopped_turn(record: TurnRecord, calls: int) -> TurnRecord:
    """Return the turn as it stands when it was stopped while its tools ran."""
    asked = [{"id": f"x{k}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for k in range(calls)]
    line = dict(record.lines[-2])
    answer: dict[str, Any] = {**line, "content": "", "tool_calls": asked}
    return replace(record, lines=(*record.lines[:-2], answer, record.lines[-1]), outcome=MessageOutcome.STOPPED)


def picture(conversation: Conversation) -> str:
    """Return everything a prompt is made of."""
    prompt = system_prompt(conversation.snapshot) if conversation.snapshot else None
    state = [list(conversation.messages), prompt, conversation.replay_from, conversation.deltas]
    return json.dumps([*state, conversation.next_index, conversation.zone])


async def _play(home: Path, window: int, steps: list[tuple[str, int]]) -> None:
    scene = ConversationScene(home, window)
    for what, number in steps:
        await scene.step(what, number)
        hot = await scene.conversations.open(scene.row, SCOPE)
        cold = await ConversationCache(scene.records.transcripts, window=window).open(scene.row, SCOPE)
        assert cold is not hot
        assert picture(cold) == picture(hot), what
        messages = list(hot.messages)
        assert not messages or messages[0]["role"] == "user"
    await scene.mirror.close()


@given(STEPS, st.sampled_from([0, 1, 4, 10, 100]))
def test_reopening_changes_no_byte(steps: list[tuple[str, int]], window: int) -> None:
    """Through tools, deltas, snapshots, marks, pointers, trims, deletions, /new and turns in no file yet."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(Path(folder), window, steps))
