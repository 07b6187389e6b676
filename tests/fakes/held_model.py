"""A model on a stage: it says what the test wrote, and waits at the calls that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.llm.scripted_model import ScriptedModel, ScriptEntry
from agent.memory import conversations
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import InstantModel


class HeldModel(InstantModel):
    """Says *text*, or repeats the last message, once it is let; streams the first characters before."""

    def __init__(self, text: str = "", *, first: int = 0, held: bool = True) -> None:
        super().__init__()
        self.text = text
        self.first = first
        self.prompts: list[str] = []  # the last message of each request, as the model reads it
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        if not held:
            self.go_on.set()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Stream, wait, say."""
        self.prompts.append(str(request.messages[-1]["content"]))
        self.asked.set()
        if sink is not None and self.first:
            sink(self.text[: self.first])
        await self.go_on.wait()
        reply = await super().complete(request, sink=None if self.text else sink)
        return replace(reply, text=self.text or reply.text)

    async def wait_asked(self, times: int) -> None:
        """Return once it was asked so often."""
        while len(self.prompts) < times:
            self.asked.clear()
            await self.asked.wait()


class HeldScriptModel(FakeChatModel):
    """Says *script* in turn, then ``answer <n>`` for ever; call n waits for `go(n)` when it is in *held*."""

    def __init__(self, *script: ScriptEntry | str, held: Iterable[int] = (), in_turns: bool = False) -> None:
        """With *in_turns*, the script is for turns alone: requests of background jobs are answered beside it."""
        self.name = "stage"
        self._in_turns = in_turns
        self.title = ""  # of every conversation; "" keeps the beginning of the first message
        self.asked: list[ChatRequest] = []
        self.script = list(script)
        self._gates = {n: asyncio.Event() for n in held}
        self._came = asyncio.Condition()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Say the next entry; a title, which a background job asks for, is no entry."""
        if request.purpose == "title":
            return await ScriptedModel((ScriptEntry(text=self.title),), name=self.name).complete(request)
        if self._in_turns and request.purpose != "answer":
            return await ScriptedModel((ScriptEntry(text="answer"),), name=self.name).complete(request)
        self.asked.append(request)
        n = len(self.asked)
        async with self._came:
            self._came.notify_all()
        if n in self._gates:
            await self._gates[n].wait()
        entry = self.script[n - 1] if n <= len(self.script) else f"answer {n}"
        scripted = ScriptEntry(text=entry) if isinstance(entry, str) else entry
        return await ScriptedModel((scripted,), name=self.name).complete(request, sink=sink)

    async def called(self, n: int) -> ChatRequest:
        """Return the n-th request once it came."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.asked) >= n)
        return self.asked[n - 1]

    def go(self, n: int) -> None:
        """Let call n be answered."""
        self._gates[n].set()


def title_soon(patch: pytest.MonkeyPatch) -> None:
    """Let titles be asked for as soon as there is an answer, instead of after ten seconds."""
    patch.setattr(conversations, "TITLE_AFTER", timedelta(0))
    patch.setattr(conversations, "_NOT_YET", timedelta(milliseconds=20))
    patch.setattr(conversations, "_TRIES", 10_000)


def calls(*named: tuple[str, str], text: str = "") -> ScriptEntry:
    """An entry that calls tools: (name, raw arguments) each."""
    return ScriptEntry(text=text, calls=named)


def users(request: ChatRequest) -> list[str]:
    """Return what users say in a request, without the brackets that say when and who."""
    return [_said(message) for message in request.messages if message["role"] == "user"]


def results(request: ChatRequest) -> list[str]:
    """Return the results of tools in a request."""
    return [str(message["content"]) for message in request.messages if message["role"] == "tool"]


def _said(message: Any) -> str:
    content = str(message["content"])
    return content.partition("] ")[2] if content.startswith("[") and not content.startswith("[memory]") else content
