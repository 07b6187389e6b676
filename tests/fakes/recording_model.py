"""A model that answers anything at once and keeps what it was asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from tests.fakes.chat_model import FakeChatModel


class RecordingModel(FakeChatModel):
    """Answers `re: …`; a summary is made of nothing new, unless *fails* is set: then it says nothing of use."""

    def __init__(self) -> None:
        self.name = "test/listening"
        self.prompts: list[Sequence[Any]] = []
        self.purposes: list[str] = []
        self.fails = False

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer."""
        self.purposes.append(request.purpose)
        if request.purpose == "answer":
            self.prompts.append(request.messages)
            return self._reply(f"re: {str(request.messages[-1]['content'])[-20:]}")
        if self.fails:
            return self._reply("I would rather not.")
        names = [tool["function"]["name"] for tool in request.tools or ()]
        if "create_session_memory" in names:
            return self._reply("", "create_session_memory", {"slug": "a-talk", "summary": "They talked."})
        if request.purpose == "dream":
            if "edit_memory" not in names:
                return self._reply("A boat.")
            add = {"document": "MEMORY.md", "op": "add", "text": "- Ann sails a boat"}
            return self._reply("", "edit_memory", {"operations": [add], "done": True})
        memory = {"history_entry": "[2026-11-22 10:00] They talked.", "memory_update": "- they talked"}
        return self._reply("", "save_memory", memory)

    def _reply(self, text: str, tool: str = "", arguments: dict[str, Any] | None = None) -> ChatReply:
        calls = (ToolCall("c1", tool, json.dumps(arguments)),) if tool else ()
        return ChatReply(text=text, tool_calls=calls, model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
