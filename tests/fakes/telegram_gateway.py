"""The whole gateway with a Telegram block, and a model that repeats what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.telegram_server import TelegramServer

TEAM = -1001234567890


class EchoModel(FakeChatModel):
    """Repeats what it is asked, in three pieces; waits before the last one while `hold` is on."""

    name = "parrot"

    def __init__(self, answer: Callable[[str], str] = lambda text: f"You said: {text}") -> None:
        self.asked: list[str] = []
        self.heard: list[str] = []  # what people said in each request, whole
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.thinks = asyncio.Event()
        self._answer = answer

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer the last line of the last message."""
        self.heard.append("\n".join(str(each["content"]) for each in request.messages if each["role"] == "user"))
        asked = str(request.messages[-1]["content"]).splitlines()[-1].rpartition("] ")[2]
        self.asked.append(asked)
        self.thinks.set()
        text = self._answer(asked)
        if sink is not None:
            sink(text[: len(text) * 2 // 3])
        await self.go_on.wait()
        if sink is not None:
            sink(text[len(text) * 2 // 3 :])
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(10, 10, 0), cost=0.0)


def open_gateway(
    server: TelegramServer, model: Any, home: Path | None = None, **more: str
) -> AbstractAsyncContextManager[InProcessGateway]:
    """Run the gateway with a Telegram block that lets Ann and the team in."""
    return gateway(home=home, model=model, environment=settings_for(server, **more))


def settings_for(server: TelegramServer, **more: str) -> dict[str, str]:
    """Return the settings of a Telegram block that lets Ann and the team in, as environment variables."""
    block = "PARLOUR_CHANNELS__TELEGRAM__"
    fields = {
        "TOKEN": server.token,
        "BASE_URL": f"{server.base}/bot",
        "FILE_URL": f"{server.base}/file/bot",
        "ALLOW_FROM": f"42,43,chat:{TEAM}",
        **more,
    }
    return {name if name.startswith("PARLOUR_") else f"{block}{name}": each for name, each in fields.items()}


def mention(text: str) -> dict[str, Any]:
    """Return the entities of a text that names the bot."""
    return {"entities": [{"type": "mention", "offset": text.index("@"), "length": 12}]}
