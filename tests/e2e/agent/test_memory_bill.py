"""What memory costs beside the answers: with 1, 10 and 29 kB of MEMORY.md, consolidation, Dream and notes together."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall, estimate
from agent.memory.history.folder_store import document_path
from agent.memory.jobs.token_budget import MEMORY_PURPOSES
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

SCOPE = "people/pocket%3aann"
TURNS = 100
ANSWER = "word " * 115  # 144 tokens
ENTRY = f"[2026-11-22 10:00] {'They talked about boats and decided to buy one. ' * 10}"
LARGEST_SHARE = 0.25  # of the answers' tokens, at 10 kB


class BillModel(FakeChatModel):
    """Answers and remembers as a model does, and counts the tokens of each purpose: (in, out)."""

    def __init__(self) -> None:
        self.name = "test/model"
        self.spent: dict[str, list[int]] = {}
        self.facts = 0

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer, or call the tool that is asked for."""
        text, calls = self._answer(request)
        counted = estimate(request, text + "".join(call.arguments for call in calls))
        row = self.spent.setdefault(request.purpose, [0, 0])
        row[0] += counted.input
        row[1] += counted.output
        tokens = TokenUsage(counted.input, counted.output)
        return ChatReply(text=text, tool_calls=calls, model=self.name, tokens=tokens, cost=0.0)

    def _answer(self, request: ChatRequest) -> tuple[str, tuple[ToolCall, ...]]:
        if request.purpose == "answer":
            return ANSWER, ()
        if not request.tools:
            return "Nothing but the boat is new. " * 10, ()
        name = request.tools[0]["function"]["name"]
        self.facts += 5
        adds = [{"op": "add", "text": f"- fact {self.facts + n} about the boat", "under": ""} for n in range(5)]
        arguments = {
            "save_memory": {"history_entry": ENTRY, "operations": adds},
            "create_session_memory": {"slug": "boat", "summary": ENTRY},
        }.get(name, {"operations": []})
        return "", (ToolCall("c", name, json.dumps(arguments)),)


async def settle(parlour: InProcessGateway) -> None:
    """Return when no job is left but Dream's."""
    while True:
        if all(job.kind == "dream" for job in await parlour.app.store.jobs.pending_in(SCOPE)):
            break
        await asyncio.sleep(0.01)
    await parlour.idle()


@pytest.mark.parametrize("size", [1_000, 10_000, 29_000])
async def test_memory_is_a_fraction_of_the_bill(size: int) -> None:
    """100 turns, a consolidation each time the window is full, a Dream, /new with its summary and its note."""
    model = BillModel()
    async with gateway(model=model) as parlour:
        path = document_path(parlour.home, SCOPE, "MEMORY.md")
        path.parent.mkdir(parents=True)
        line = "- remembered line {:04} about glass, tea and Bello the dog\n"
        path.write_text("".join(map(line.format, range(size // len(line)))))
        for n in range(TURNS):
            await parlour.channel.ask("ann", f"thing {n}: {'what do you think of it? ' * 6}")
            if n % 10 == 9:
                await settle(parlour)  # on a busy machine, a late consolidation would need a flush
        await settle(parlour)
        await parlour.channel.ask("ann", "/dream")
        await settle(parlour)
        await parlour.channel.ask("ann", "/new")
        await settle(parlour)
    memory = [sum(row[n] for purpose, row in model.spent.items() if purpose in MEMORY_PURPOSES) for n in (0, 1)]
    answers = model.spent["answer"]
    print(f"{size}: {model.spent}, output per 100 messages {memory[1] * 50 // TURNS} of {answers[1] * 50 // TURNS}")
    assert set(model.spent) == {"answer", "consolidation", "dream", "note"}
    assert sum(memory) <= LARGEST_SHARE * sum(answers)
    assert memory[1] <= LARGEST_SHARE * answers[1]
