"""A model client of a few lines, for fifty turns at once: litellm would take most of the time, and has its own turn."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from gateway.errors import ModelUnreachable


class ThinModel:
    """Implements `ChatModel` over the scripted server, always streaming."""

    name = "thin"

    def __init__(self, api_base: str) -> None:
        self._url = f"{api_base}/chat/completions"
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Ask once."""
        body = {"model": self.name, "messages": [*request.messages], "tools": [*request.tools], "stream": True}
        self._session = self._session or aiohttp.ClientSession()
        text, calls = "", dict[int, dict[str, Any]]()
        try:
            async with self._session.post(self._url, json=body) as response:
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
                        for piece in choice["delta"].get("tool_calls") or ():
                            _add(calls, piece)
                    if sink is not None and text:
                        sink(text)
        except (aiohttp.ClientError, OSError) as error:
            raise ModelUnreachable(type(error).__name__) from error
        return ChatReply(
            text=text,
            tool_calls=tuple(ToolCall(call["id"], call["name"], call["arguments"]) for call in calls.values()),
            model=self.name,
            tokens=TokenUsage(),
            cost=None,
        )

    async def warm(self) -> None:
        """There is nothing to load."""

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _add(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
    call["id"] += piece.get("id") or ""
    call["name"] += piece["function"].get("name") or ""
    call["arguments"] += piece["function"].get("arguments") or ""
