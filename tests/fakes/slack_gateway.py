"""The whole gateway before a workspace, and models that a test can hold back or look into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.tools.tool import Tool
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.slack_server import ANN, APP_TOKEN, BOB, BOT_TOKEN, BOT_USER, SlackServer

CALL = f"<@{BOT_USER}>"
_APP = "PARLOUR_CHANNELS__SLACK__APP_TOKEN"


class HeldModel(InstantModel):
    """Repeats the last message once it is let; keeps what it was asked."""

    def __init__(self, *, held: bool = True) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.asked = asyncio.Event()
        self.prompts: list[str] = []  # the last message of each request, as the model reads it
        if not held:
            self.go_on.set()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Wait, then repeat the last message."""
        self.prompts.append(str(request.messages[-1]["content"]))
        self.asked.set()
        await self.go_on.wait()
        return await super().complete(request, sink=sink)


class TwoPieceModel(InstantModel):
    """Says what it is given: a first piece at once, the whole when it is let."""

    def __init__(self, text: str, *, first: int = 0, held: bool = False) -> None:
        super().__init__()
        self.text = text
        self.first = first
        self.go_on = asyncio.Event()
        if not held:
            self.go_on.set()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Stream, wait, say."""
        if sink is not None and self.first:
            sink(self.text[: self.first])
        await self.go_on.wait()
        reply = await super().complete(request)
        return ChatReply(text=self.text, tool_calls=(), model=self.name, tokens=reply.tokens, cost=0.0)


def variables(server: SlackServer) -> dict[str, str]:
    """Return the environment of a gateway with a Slack block for Ann and Bob."""
    return {
        "PARLOUR_CHANNELS__SLACK__BOT_TOKEN": BOT_TOKEN,
        "PARLOUR_CHANNELS__SLACK__APP_TOKEN": APP_TOKEN,
        "PARLOUR_CHANNELS__SLACK__BASE_URL": f"{server.base}/api/",
        "PARLOUR_CHANNELS__SLACK__ALLOW_FROM": f"{ANN},{BOB}",
    }


@asynccontextmanager
async def open_gateway(
    server: SlackServer,
    *,
    home: Path | None = None,
    model: Any = None,
    environment: Mapping[str, str] | None = None,
    tools: Sequence[Tool] = (),
) -> AsyncIterator[InProcessGateway]:
    """Run the gateway; it is connected, and has read what it missed, when the block begins."""
    before = server.connections
    found = {**variables(server), **(environment or {})}
    if not found[_APP]:
        del found[_APP]
    async with gateway(home=home, model=model or InstantModel(), environment=found, tools=tools) as parlour:
        if _APP in found:
            await server.until(lambda: server.connections > before)
        yield parlour


def transcripts(home: Path) -> str:
    """Return every transcript of *home*, one after the other."""
    return "".join(path.read_text("utf-8") for path in sorted(home.rglob("*.jsonl")))
