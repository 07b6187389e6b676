"""Issue 4, point 10: ten thousand messages of any size never burst the budget, never wedge, and cost the same each."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from agent.base import transcript_lines as build
from agent.base.transcript_lines import estimate_message, estimate_messages
from agent.memory.prompt.conversation import Conversation, ConversationCache
from agent.memory.prompt.due_jobs import CONSOLIDATE, due_jobs, prompt_of
from agent.memory.prompt.prompt_snapshot import MemoryView, opening, system_prompt
from agent.memory.prompt.prompt_window import apply_trims
from agent.memory.prompt.turn_messages import turn_messages
from gateway.ports.journal import Line, MessageOutcome, SessionRow, TurnRecord
from gateway.text.json_lines import decode_lines
from tests.fakes.consolidation_scene import ConsolidationScene, LooseDisk
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, turn_name

ROOM = 16_000
TOOLS = 300  # tokens of the tools' schemas
VIEW = MemoryView(soul="", user="", memory="- tea", shared="", rev="1")


class WindowScene:
    """One chat over the real window, jobs and files; the model, the journal and the clock are scripted."""

    def __init__(self, home: Path, *, window: int = 10_000, room: int = ROOM) -> None:
        self.world = ConsolidationScene(home, turns=0)
        self.world.prompt_limit = self.prompt_limit = room
        self.world.disk = LooseDisk()
        self.window = window
        self.conversations = self.opened()
        self.prompts: list[Sequence[Any]] = []
        self.n = self.reckoned = 0

    def opened(self) -> ConversationCache:
        """Return conversations as a fresh process has them."""
        return ConversationCache(
            self.world.records.transcripts,
            window=self.window,
            consolidates=True,
            flush=4_000,
        )

    async def open(self, conversations: ConversationCache | None = None) -> Conversation:
        """Open the chat as a turn does."""
        fresh = SessionRow(key=ANN, transcript=TRANSCRIPT, next_index=0, created_at=START, scope=SCOPE)
        row = self.world.records.rows.get(ANN, fresh)
        conversation = await (conversations or self.conversations).open(row, SCOPE)
        conversation.set_limit(self.prompt_limit, TOOLS)
        return conversation

    async def turn(self, asked: str, answered: str, results: Sequence[str] = ()) -> None:
        """Have one turn: assemble, ask, run tools (the prompt is made to fit each time), commit."""
        conversation = await self.open()
        start = conversation.next_index
        self.n += 1
        turn = turn_name(self.n)
        own: list[Line] = [build.message(start, turn, "user", asked, START, head="Sat 21 Nov 22:20 CET, Ann")]
        fit = conversation.compacted(own, start)
        begun = opening(conversation, VIEW, "UTC", abilities="", at=start, replay_from=fit.replay_from)
        lines = [*begun.lines, *own, *fit.lines]
        self.prompt(conversation, lines, begun.blobs)
        for k, result in enumerate(results):
            call = {"id": f"c{self.n}.{k}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            i = start + 1 + 2 * k
            lines.append(build.message(i, turn, "assistant", "", START, tool_calls=[call]))
            lines.append(build.message(i + 1, turn, "tool", result, START, tool_call_id=call["id"], name="look"))
            lines += conversation.compacted(apply_trims(lines), start, after=lines).lines
            self.prompt(conversation, lines, begun.blobs)
        to = start + 2 + 2 * len(results)
        lines.append(build.message(to - 1, turn, "assistant", answered, START))
        lines.append(build.end_line(turn, from_index=start, to_index=to, inbox=[], outcome="answered", at=START))
        record = TurnRecord(
            turn=turn,
            key=ANN,
            transcript=TRANSCRIPT,
            scope=SCOPE,
            outcome=MessageOutcome.ANSWERED,
            lines=tuple(lines),
            from_index=start,
            to_index=to,
            inbox=(),
            at=START,
            blobs=begun.blobs,
        )
        record = conversation.with_mark(record)
        for job in due_jobs(conversation, record):
            await self.world.jobs.put(job)
        self.world.records.commit(record)
        conversation.adopt(record)

    def prompt(self, conversation: Conversation, lines: Sequence[Line], blobs: dict[str, str] | Any) -> None:
        """Note the prompt that the model is sent."""
        system = {"role": "system", "content": system_prompt(conversation.snapshot_with(lines, blobs))}
        own = turn_messages(apply_trims(lines), is_over=False)
        self.prompts = [[system, *conversation.messages_with(lines), *own]]
        self.reckoned = TOOLS + estimate_message(system) + conversation.weight_with(lines) + estimate_messages(own)

    def weight(self) -> int:
        """Return what the last prompt really weighs."""
        return TOOLS + estimate_messages(self.prompts[-1])

    async def summarise(self) -> None:
        """Do what is due beside the turns."""
        await self.world.run(self.world.updates())


def seeded(n: int) -> random.Random:
    """Return the same chances every time."""
    return random.Random(n)  # noqa: S311 - sizes, no secrets


def sizes(n: int, chance: random.Random) -> tuple[str, str, list[str]]:
    """Return what is said in turn *n*: mostly a line, now and then a giant of every kind."""
    asked, answered, results = "w" * chance.randrange(20, 400), "a" * chance.randrange(20, 600), list[str]()
    if n % 11 == 0:
        results = ["r" * chance.randrange(10, 5_000) for _ in range(chance.randrange(1, 5))]
    if n % 167 == 0:
        asked = "g" * 66_000
    if n % 181 == 0:
        results = ["t" * 66_000]
    if n % 197 == 0:
        answered = "л" * 40_000
    return asked, answered, results


@contextmanager
def count_calls(calls: Counter[str]) -> Iterator[None]:
    """Count every call of a function of ours: work, whatever the machine's mood."""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/agent/" in frame.f_code.co_filename:
            calls["agent"] += 1

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


async def test_thousands_of_messages_never_exceed_the_budget(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Summaries come late, and for a while not at all; every prompt fits, and nothing that was said is in no place."""
    talk = WindowScene(tmp_path)
    heaviest = 0
    work: dict[str, Counter[str]] = {"young": Counter(), "old": Counter()}
    while (await talk.open()).next_index < 4_000:
        stretch = "young" if 200 <= talk.n < 320 else "old" if 1_200 <= talk.n < 1_320 else ""
        with count_calls(work[stretch]) if stretch else nullcontext():
            await talk.turn(*sizes(talk.n % 500 + 1, seeded(talk.n % 500)))
        heaviest = max(heaviest, talk.reckoned)
        assert talk.reckoned <= ROOM, talk.n
        assert talk.n % 20 or talk.reckoned == talk.weight()  # what is carried along is what is there
        conversation = await talk.open()
        is_down = 600 <= talk.n < 900
        if talk.n % 25 == 0 and not is_down:
            await talk.summarise()
        if talk.n % 500 == 0:
            cold = await talk.open(talk.opened())
            assert json.dumps(list(cold.messages)) == json.dumps(list(conversation.messages))
    await talk.summarise()
    await talk.turn("and now", "fine")
    await talk.summarise()
    conversation = await talk.open()
    entries = talk.world.history.after(0)
    assert [each.start for each in entries] == [0, *(each.end for each in entries[:-1])]
    assert entries[-1].end == conversation.consolidated >= conversation.replay_from
    assert not talk.world.jobs.jobs
    ratio = work["old"]["agent"] / work["young"]["agent"]
    record_property("figure", f"4,000 messages: heaviest prompt {heaviest} of {ROOM}, work old/young {ratio:.2f}")
    assert ratio <= 1.15


async def test_tokens_fall_with_every_round_and_prompts_stay_the_same_in_between(tmp_path: Path) -> None:
    """The prefix changes when the window moved or something was cut, as a line says, and at no other time."""
    talk = WindowScene(tmp_path, room=3_000)
    last: Sequence[Any] = []
    breaks = moves = 0
    for n in range(300):
        asked, answered, results = sizes(n * 7 + 1, seeded(n))
        await talk.turn(asked, answered, results[:1])
        stored = talk.world.records.stored[-1]
        recorded = [line for line in decode_lines(stored.body) if line.get("kind") in ("trim", "mark", "snapshot")]
        breaks += talk.prompts[-1][: len(last)] != last
        moves += bool(recorded)
        assert talk.prompts[-1][: len(last)] == last or recorded, n
        last = talk.prompts[-1]
        if n % 5 == 0:
            await talk.summarise()
    assert breaks
    assert breaks <= moves < 150


async def test_a_reply_does_not_wait_for_its_summary(tmp_path: Path) -> None:
    """No summary ever comes: each prompt fits all the same, from the very next turn on."""
    talk = WindowScene(tmp_path, room=2_500)
    for n in range(400):
        await talk.turn(*sizes(n + 1, seeded(n)))
        assert talk.weight() <= 2_500
    due = [job for job in talk.world.jobs.jobs.values() if prompt_of(job) == CONSOLIDATE]
    assert len(due) == 1
    conversation = await talk.open()
    assert conversation.consolidated == 0 < conversation.replay_from
    # And when the model is back, all of it is summarised, in as many rounds and turns as that takes.
    for n in range(60):
        await talk.summarise()
        await talk.turn(f"again {n}", "yes")
    assert (await talk.open()).consolidated >= (await talk.open()).replay_from


async def test_without_a_summariser_the_window_moves_by_itself(tmp_path: Path) -> None:
    """The offline model, and `memory_window: 0`: no job, no model, and prompts that fit."""
    for window in (0, 20):
        talk = WindowScene(tmp_path / str(window), window=window, room=2_500)
        # With `memory_window: 0` nothing consolidates, whatever the model could do.
        talk.conversations = ConversationCache(
            talk.world.records.transcripts, window=window, consolidates=not window, flush=4_000
        )
        for n in range(200):
            await talk.turn(*sizes(n + 1, seeded(n)))
            assert talk.weight() <= 2_500
            assert len(talk.prompts[-1]) <= 1 + max(window, 10) + 12
        assert talk.world.jobs.jobs == {}
        assert (await talk.open()).next_index >= 400


async def test_a_memory_larger_than_the_model_does_not_fill_the_prompt(tmp_path: Path) -> None:
    """The system prompt takes half of the room at most, the longest texts are cut, and say so."""
    view = MemoryView(soul="be kind", user="- Ann", memory="- fact\n" * 20_000, shared="", rev="1")
    cut = view.within(ROOM)
    assert (cut.soul, cut.user) == ("be kind", "- Ann")
    assert estimate_message({"role": "system", "content": cut.memory}) <= ROOM // 2
    assert cut.memory.endswith("search memory for it)")
    assert view.within(ROOM) == view.within(ROOM + 300)  # the room changes a little with every answer
    assert view.within(0) is view
    assert VIEW.within(ROOM) is VIEW
