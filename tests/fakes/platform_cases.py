"""Cases of tests/payloads/cases: what arrives on a platform, and a model that keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
from itertools import takewhile
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from tests.fakes.inprocess_gateway import InstantModel

_CASES = Path(__file__).parents[1] / "payloads" / "cases"
PICTURE = "[picture]"
SEES = {"PARLOUR_LLM__VISION": "on"}  # the environment of a gateway whose model takes pictures


def load_case(name: str) -> dict[str, Any]:
    """Return a case by the name of its file, without the ending."""
    case: dict[str, Any] = json.loads((_CASES / f"{name}.json").read_text("utf-8"))
    return case


class CaseModel(InstantModel):
    """Answers `Answer <n>.`; `prompts` has the messages of each turn, pictures as `PICTURE`."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.asked = asyncio.Event()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer, once it is let."""
        if request.purpose != "answer":
            return await super().complete(request, sink=sink)
        # Fillers may stand between messages of one turn, so that roles alternate.
        turn = takewhile(lambda each: not str(each["content"]).startswith("Answer "), reversed(request.messages))
        own = [flatten(each["content"]) for each in turn if each["role"] == "user"]
        self.prompts.append("\n".join(reversed(own)))
        self.asked.set()
        await self.go_on.wait()
        reply = await super().complete(request)
        return ChatReply(
            text=f"Answer {len(self.prompts)}.", tool_calls=(), model=self.name, tokens=reply.tokens, cost=0.0
        )


def flatten(content: Any) -> str:
    """Return a message's content as one text."""
    if isinstance(content, str):
        return content
    return "\n".join(each["text"] if each["type"] == "text" else PICTURE for each in content)
