"""What the gateway talks to in a scenario: people on a platform, a model that never answers the same twice."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, ScriptedToolCall, open_server
from tests.faults.platforms import PlatformSide, RelaySide

LAST_WORD = "The end."
_PIECES = 8  # that an answer is streamed in, unless it is short
_CHAT = re.compile(r"in chat (c\d+)")


def request_of(chat: str) -> str:
    """Return what a person writes in *chat*."""
    return f"Please put this on record in chat {chat}."


def sender_of(chat: str) -> str:
    """Return who writes there: one person in every other chat, so that a scope is shared; else their own."""
    return "ann" if int(chat[1:]) % 2 == 0 else f"p{chat}"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request that reached the model: whose it is, and how many tool results it already had."""

    chat: str
    results: int


def asked(body: Mapping[str, Any]) -> ModelRequest:
    """Read off a request whose turn it belongs to and how far that turn was."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    last = max(n for n, message in enumerate(messages) if message["role"] == "user")
    found = _CHAT.search(str(messages[last]["content"]))
    assert found is not None, f"a request without our question: {messages[last]}"
    return ModelRequest(found[1], sum(message["role"] == "tool" for message in messages[last:]))


def scripted(sentences: int) -> Callable[[Mapping[str, Any], int], ScriptedAnswer]:
    """Return a model that first calls the tool, then answers at that length, both saying which call they are."""

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        who = asked(body)
        if who.results == 0:
            call = ScriptedToolCall(name="put_on_record", arguments=json.dumps({"what": who.chat}), id=f"call_{n}")
            return ScriptedAnswer(
                text=f"Draft {n} for {who.chat}: I put it on record first.", calls=(call,), pieces=40, gap=0.01
            )
        said = " ".join(
            f"This is sentence {s} of answer {n}, which nobody has read before." for s in range(1, sentences + 1)
        )
        text = f"Answer {n} for {who.chat}. {said} {LAST_WORD}"
        return ScriptedAnswer(text=text, pieces=max(len(text) // _PIECES, 100), gap=0.01)

    return script


script = scripted(RelaySide.two_parts)


@dataclass(slots=True)
class ScenarioPeers:
    """Both servers of one scenario."""

    stage: PlatformSide
    model: FakeOpenAI

    def asked(self, since: int = 0) -> list[ModelRequest]:
        """Return the requests from number *since* on, in the order of arrival."""
        return [asked(json.loads(body)) for body in self.model.bodies[since:]]

    def is_answered(self, chat: str) -> bool:
        """Say whether the chat shows a whole answer."""
        return any(LAST_WORD in message.words for message in self.stage.shown(chat))

    async def wait_answered(self, chats: Sequence[str]) -> None:
        """Return when every chat shows a whole answer, and the platform holds nothing back."""
        for chat in chats:
            while not self.is_answered(chat):
                await self.stage.wait_changed()
        while not self.stage.is_settled():
            await self.stage.wait_changed()


@asynccontextmanager
async def open_peers(stage: PlatformSide) -> AsyncIterator[ScenarioPeers]:
    """Serve both until the block ends."""
    async with stage.open(), open_server(scripted(stage.sentences)) as model:
        yield ScenarioPeers(stage, model)
