"""A gateway in a process of its own, so that it can be killed while background work is under way.

    python -m tests.fakes.job_process HOME STAGE

It says on its standard output, a word a line, how far it has come; whoever started it kills it then. Stages:

    consolidate   talk until a window is full; the model never answers: says `asked consolidation`
    apply         the model answers; says `answered` when the answer is stored and waits to be applied
    note          wait for the work that is left, then /new; the model never answers for the note: says `asked note`

Every stage says `asked <purpose>` for each thing that the model is asked for in the background.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

SCOPE = "people/pocket%3aann"
WINDOW = {"PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "10", "PARLOUR_AGENTS__DEFAULTS__DREAM__ENABLED": "false"}


def tell(word: str) -> None:
    """Say how far it has come."""
    print(word, flush=True)


class HangingJobModel(FakeChatModel):
    """Answers at once; what is asked in the background hangs where the stage says so."""

    name = "test/model"

    def __init__(self, hangs: str = "") -> None:
        self._hangs = hangs
        self.asked: list[str] = []

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer, summarise, write a note, or never come back."""
        if request.purpose == "answer":
            return self._reply("yes", ())
        self.asked.append(request.purpose)
        tell(f"asked {request.purpose}")
        if request.purpose == self._hangs:
            await asyncio.Event().wait()
        if request.purpose == "note":
            said, name = {"slug": "roof", "summary": "They talked of the roof."}, "create_session_memory"
        else:
            said, name = {"history_entry": "[2026-11-22 10:00] They talked.", "memory_update": "- fact"}, "save_memory"
        return self._reply("", (ToolCall("c1", name, json.dumps(said)),))

    def _reply(self, text: str, calls: tuple[ToolCall, ...]) -> ChatReply:
        return ChatReply(text=text, tool_calls=calls, model=self.name, tokens=TokenUsage(1, 1), cost=0.0)


async def left(parlour: InProcessGateway, *, apply: bool) -> None:
    """Return when an answer waits to be applied, or when nothing is left to be done."""
    while True:
        kinds = {job.kind for job in await parlour.app.store.jobs.pending_in(SCOPE)}
        if "apply" in kinds if apply else not kinds:
            return
        await asyncio.sleep(0.01)


async def main(home: Path, stage: str) -> None:
    """Run one stage, then wait for the kill."""
    hangs = {"consolidate": "consolidation", "note": "note"}.get(stage, "")
    async with gateway(model=HangingJobModel(hangs), environment=WINDOW, home=home) as parlour:
        if stage == "consolidate":
            for n in range(5):
                await parlour.channel.ask("ann", f"thing {n}")
        elif stage == "apply":
            await left(parlour, apply=True)
            tell("answered")
        else:
            await left(parlour, apply=False)
            await parlour.channel.ask("ann", "/new")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
