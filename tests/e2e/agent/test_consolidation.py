"""Consolidation through the whole gateway: a reply never waits for it, nothing falls between window and summary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.base.disk import Disk
from agent.base.transcript_lines import kind_of
from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from agent.memory.prompt.due_jobs import prompt_of
from agent.memory.storage.transcript_files import read_transcript
from gateway.operations.machine import usage_table
from gateway.ports.journal import Job
from gateway.ports.memory import HistoryEntry
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.documents import stored_text
from tests.fakes.histories import stored_entries
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

SCOPE = "people/pocket%3aann"
WINDOW = {"PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "10"}

Summarise = Callable[[int, str], dict[str, Any]]


def politely(n: int, memory: str) -> dict[str, str]:
    """Summarise as a good model does: what stands there stays, one fact comes to it."""
    return {
        "history_entry": f"[2026-11-22 10:00] Summary number {n}.",
        "memory_update": f"{memory}\n- fact {n}".strip(),
    }


class SummaryModel(FakeChatModel):
    """Answers at once; summarises when it is let, and as it is told."""

    def __init__(self, summarise: Summarise = politely) -> None:
        self.name = "test/model"
        self.summarise = summarise
        self.asked: list[str] = []  # what consolidations were shown
        self.bad_answers = 0  # requests that get prose
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.thinking = asyncio.Event()
        self.prompts: list[Sequence[Any]] = []

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer, or summarise."""
        if request.purpose == "answer":
            self.prompts.append(request.messages)
            said = str(request.messages[-1]["content"])
            return ChatReply(text=f"re {said[-20:]}", tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        self.thinking.set()
        await self.go_on.wait()
        if self.bad_answers:
            self.bad_answers -= 1
            return ChatReply(text="Sure!", tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        shown = str(request.messages[-1]["content"])
        self.asked.append(shown)
        memory = shown.partition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
        saved = self.summarise(len(self.asked), "" if memory == "(empty)" else memory)
        call = ToolCall("c1", "save_memory", json.dumps(saved))
        return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)


@asynccontextmanager
async def at_work(model: SummaryModel, home: Path | None = None) -> AsyncIterator[InProcessGateway]:
    """Run a gateway with a window of ten messages."""
    async with gateway(model=model, environment=WINDOW, home=home) as parlour:
        yield parlour


async def talk(parlour: InProcessGateway, turns: int, chat: str = "ann") -> None:
    """Say so many things, each answered before the next."""
    for n in range(turns):
        await parlour.channel.ask(chat, f"thing {n}")


async def jobs(parlour: InProcessGateway, wanted: Callable[[Sequence[Job]], bool]) -> Sequence[Job]:
    """Return the scope's jobs once they are as *wanted*."""
    while True:
        found = await parlour.app.store.jobs.pending_in(SCOPE)
        if wanted(found):
            return found
        await asyncio.sleep(0.01)


async def quiet(parlour: InProcessGateway) -> None:
    """Return when no job is left that is due within minutes, and every record is in its file."""
    await jobs(
        parlour, lambda found: all(job.kind == "dream" or prompt_of(job) == "summarise_raw" for job in found)
    )  # due in hours
    await parlour.idle()


def entries(home: Path) -> Sequence[HistoryEntry]:
    """Return the history of Ann's scope."""
    return stored_entries(home, SCOPE)


def pointers(home: Path, name: str = "pocket%3aann.jsonl") -> list[int]:
    """Return the pointers in a transcript."""
    blocks = read_transcript(Disk(), home / SCOPE / "sessions" / name).blocks
    return [line["last_consolidated"] for block in blocks for line in block.lines if kind_of(line) == "pointer"]


async def test_a_full_window_becomes_an_entry_a_fact_and_a_pointer() -> None:
    """Ten messages: the older five are summarised, the newer stay; the next turn's prompt begins after the pointer."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await talk(parlour, 5)
        await quiet(parlour)
        assert [(each.start, each.end, each.session) for each in entries(parlour.home)] == [(0, 5, "pocket:ann")]
        assert pointers(parlour.home) == [5]
        assert "] USER: thing 0\n" in model.asked[0]
        assert "thing 3" not in model.asked[0]
        memory = parlour.home / SCOPE / "memory"
        assert await parlour.document(SCOPE) == "- fact 1\n"
        await parlour.app.memory_files.flush()
        assert "Summary number 1." in (memory / "HISTORY.md").read_text()
        await parlour.channel.ask("ann", "and now")
        shown = str(model.prompts[-1])
        assert "fact 1" in str(model.prompts[-1][0])  # the system prompt, by a new snapshot
        # The turn that holds the pointer is replayed whole: nothing is in neither place.
        assert "thing 2" in shown
        assert "thing 1" not in shown


async def test_what_memory_spent_is_a_line_of_usage() -> None:
    """Of `/usage` for the chat, and of `parlour usage --by purpose` for the installation."""
    async with at_work(SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "hello")
        assert "Memory of this chat" not in await parlour.channel.ask("ann", "/usage")
        await talk(parlour, 4)
        await quiet(parlour)
        shown = await parlour.channel.ask("ann", "/usage")
        assert "Memory of this chat, last 30 days: 1 model call, 2 tokens (20% of the tokens of its answers)" in shown
        lines = [dict(line) async for line in parlour.app.operations["usage"]({"by": "purpose"})]
        rows = usage_table("purpose", lines)
        assert [row.split("  ")[0] for row in rows[1:]] == ["answer", "consolidation", "of it memory", "together"]
        assert rows[3].split()[3:5] == ["1", "2"]


async def test_another_model_writes_the_summaries(tmp_path: Path) -> None:
    """`memory.model`: answers come from `llm.model`, summaries from the other one, and usage says so."""
    saved = {"history_entry": "[2026-11-22 10:00] The small one.", "memory_update": "- a fact"}
    script = tmp_path / "small.json"
    script.write_text(json.dumps([{"calls": [{"name": "save_memory", "arguments": saved}]}]))
    model, other = SummaryModel(), f"scripted:{script}"
    async with gateway(model=model, environment={**WINDOW, "PARLOUR_MEMORY__MODEL": other}) as parlour:
        await talk(parlour, 5)
        await quiet(parlour)
        assert [each.content for each in entries(parlour.home)] == ["[2026-11-22 10:00] The small one."]
        assert (model.asked, len(model.prompts)) == ([], 5)
        rows = await parlour.app.store.usage.totals(since=datetime(2026, 1, 1, tzinfo=UTC))
        assert {row["purpose"]: row["model"] for row in rows} == {"answer": model.name, "consolidation": other}


async def test_a_reply_never_waits_for_a_consolidation() -> None:
    """While the model thinks about the past, people go on talking, and nothing of that is behind the pointer."""
    model = SummaryModel()
    model.go_on.clear()
    async with at_work(model) as parlour:
        await talk(parlour, 5)
        await model.thinking.wait()
        await talk(parlour, 4)
        await talk(parlour, 2, chat="bob")
        assert len(model.asked) == 0
        model.go_on.set()
        await quiet(parlour)
        ranges = [(each.start, each.end) for each in entries(parlour.home) if each.session == "pocket:ann"]
        assert ranges[0] == (0, 5)
        await parlour.channel.ask("ann", "and now")
        # Nothing that was said is in neither place.
        shown = str(model.prompts[-1])
        covered = ranges[-1][1]
        assert all(f"thing {n}" in shown for n in range(4) if 10 + 2 * n >= covered)


async def test_a_model_that_wipes_memory_wipes_nothing() -> None:
    """An answer that leaves out what was remembered adds what it adds; the rest stands (docs/guarantees.md)."""
    model = SummaryModel(lambda n, _: {"history_entry": f"[2026-11-22 10:00] {n}", "memory_update": f"- only fact {n}"})
    async with at_work(model) as parlour:
        for n in range(3):
            await parlour.channel.ask("ann", f"/remember keepsake {n}")
        await talk(parlour, 20)
        await quiet(parlour)
        text = stored_text(parlour.home, SCOPE)
        assert all(f"- keepsake {n}" in text for n in range(3))
        assert "- only fact " in text  # its number depends on whether a flush asked first


async def test_new_is_answered_at_once_and_its_archive_is_summarised() -> None:
    """The chat goes on while the old one is summarised; what consolidation had already is not in it twice."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await talk(parlour, 6)
        await quiet(parlour)
        model.go_on.clear()
        model.thinking.clear()
        assert await parlour.channel.ask("ann", "/new") == "New session started."
        await model.thinking.wait()
        await parlour.channel.ask("ann", "a fresh start")
        assert "thing" not in str(model.prompts[-1][1:])
        model.go_on.set()
        await quiet(parlour)
        assert [(each.start, each.end) for each in entries(parlour.home)] == [(0, 5), (5, 12)]
        [note] = (parlour.home / SCOPE / "memory").glob("20*.md")
        text = note.read_text()
        assert "- **Session**: pocket:ann\n" in text
        assert "user: thing 5" in text
        assert "a fresh start" not in text


async def test_a_version_of_memory_names_its_entry() -> None:
    """Each consolidation's change is in the log under the entry it came with, and can be taken back."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await talk(parlour, 5)
        await quiet(parlour)
        [entry] = entries(parlour.home)
        [change] = await parlour.app.commands.documents.log(SCOPE)
        assert change.why == f"consolidation {entry.entry}"
        why = await parlour.channel.ask("ann", "/memory why fact 1")
        assert "earlier messages were summarized" in why
        assert "Summary number 1." in why
