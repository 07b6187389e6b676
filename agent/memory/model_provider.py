"""A chat model as the seeds' memory asks it: an async `chat` that returns `.content` and `.tool_calls` ([001])."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent.llm.chat_model import ChatModel, ChatRequest, TokenUsage, ToolCall

_NONE = TokenUsage()


@dataclass(frozen=True, slots=True)
class ProviderReply:
    """What a provider of [001] returns."""

    content: str
    tool_calls: tuple[ToolCall, ...]
    tokens: TokenUsage = _NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProvider:
    """One model, for one purpose, on one chat's account."""

    model: ChatModel
    purpose: str
    turn: str
    key: str = ""

    async def chat(self, **asked: Any) -> ProviderReply:
        """Take `messages`, `tools`, `tool_choice` and `max_tokens`; which model it is, is configured.

        Retries and fallbacks are the model's own affair. Raises ModelFailed.
        """
        request = ChatRequest(
            messages=asked["messages"],
            tools=asked.get("tools") or (),
            tool_choice=asked.get("tool_choice") or "",
            turn=self.turn,
            purpose=self.purpose,
            chat=self.key,
            max_tokens=asked.get("max_tokens"),
        )
        reply = await self.model.complete(request)
        return ProviderReply(reply.text, reply.tool_calls, reply.tokens)
