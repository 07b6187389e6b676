"""A running API with keys, and a model that repeats what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage
from channels.api.adapter import ApiChannel
from channels.api.keys import ApiKey
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

ON = {"PARLOUR_CHANNELS__API__ENABLED": "true"}


class EchoModel(FakeChatModel):
    """Repeats the last message, word by word, once it may; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "echo"
        self.asked: list[ChatRequest] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer."""
        self.asked.append(request)
        said = _text(request.messages[-1]["content"]).splitlines()[-1].rpartition("] ")[2]
        text = f"{len(self.asked)}: {said}"
        if sink is not None:
            sink(text[: len(text) // 2])
        await self.may_answer.wait()
        if sink is not None:
            sink(text)
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(100, 7, 40), cost=0.0)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


@dataclass
class Api:
    """A running API, and a person with a key."""

    gateway: InProcessGateway
    model: EchoModel
    person: str
    key: str
    record: ApiKey
    closing: AsyncExitStack

    @property
    def url(self) -> str:
        """Where it is."""
        return self.gateway.app.web.url

    @property
    def channel(self) -> ApiChannel:
        """The channel."""
        return self.gateway.app.apis[0]

    def client(self, key: str = "", **options: Any) -> AsyncOpenAI:
        """Return the official client; it is closed with the API."""
        client = AsyncOpenAI(base_url=f"{self.url}v1", api_key=key or self.key, max_retries=0, **options)
        self.closing.push_async_callback(client.close)
        return client


@asynccontextmanager
async def running(home: Path | None = None, **settings: str) -> AsyncIterator[Api]:
    """Run a gateway with the API and a key of Ann."""
    model = EchoModel()
    async with (
        gateway(home=home, model=model, environment={**ON, **settings}) as inside,
        another_person(inside, model, "ann") as api,
    ):
        yield api


@asynccontextmanager
async def another_person(inside: InProcessGateway, model: EchoModel, name: str) -> AsyncIterator[Api]:
    """Give *name* a key, and forget what *model* was asked before; at the end all that was said is answered."""
    model.asked.clear()
    secret, record = await inside.app.apis[0].create_key(name)
    assert isinstance(record, ApiKey)
    async with AsyncExitStack() as closing:
        yield Api(inside, model, name, secret, record, closing)
        model.may_answer.set()
    await inside.idle()
