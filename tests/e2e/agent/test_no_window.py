"""`memory_window: 0`: nothing is consolidated, and no model is called for memory, whatever ends or fills up."""

from __future__ import annotations

from agent.base.disk import Disk
from agent.base.transcript_lines import kind_of
from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage
from agent.memory.storage.transcript_files import read_transcript
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import gateway

SCOPE = "people/pocket%3aann"
WINDOW = {"PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "0", "PARLOUR_LLM__CONTEXT_WINDOW": "20000"}


class PurposeModel(FakeChatModel):
    """Answers at length, and records what it was called for."""

    def __init__(self) -> None:
        self.name = "test/model"
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer."""
        self.requests.append(request)
        text = f"answer {len(self.requests)} {'word ' * 1_000}"
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)


async def test_nothing_is_consolidated_without_a_window() -> None:
    """60 turns and /new: answers only, ten messages in a prompt, the transcript whole, no file of memory, no job."""
    model = PurposeModel()
    async with gateway(model=model, environment=WINDOW) as parlour:
        for n in range(60):
            await parlour.channel.ask("ann", f"thing {n}")
        assert "thing 55" in str(model.requests[-1].messages)
        assert "thing 53" not in str(model.requests[-1].messages)
        assert len(model.requests[-1].messages) <= 12  # the system prompt, ten of before, and this one
        assert "New session started." in await parlour.channel.ask("ann", "/new")
        await parlour.channel.ask("ann", "and now")
        await parlour.idle()
        assert {each.purpose for each in model.requests} == {"answer"}
        assert await parlour.app.store.jobs.pending_in(SCOPE) == ()
        memory = parlour.home / SCOPE / "memory"
        assert not [each.name for each in memory.glob("*") if each.suffix in (".md", ".jsonl")]
        sessions = (parlour.home / SCOPE / "sessions").glob("*.jsonl")
        archive = next(each for each in sessions if "ann.jsonl" not in each.name)
        blocks = read_transcript(Disk(), archive).blocks
        said = [line["content"] for block in blocks for line in block.lines if kind_of(line) == "message"]
        assert len(said) == 120
        assert said[0].startswith("thing 0")
