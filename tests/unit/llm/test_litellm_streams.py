"""Streams of other protocols through litellm's real code: what a provider publishes, over HTTP, as one reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from agent.llm.chat_model import ChatReply, ModelConfig
from agent.llm.litellm_model import LitellmModel, close_litellm
from agent.memory.prompt.turn_messages import turn_messages
from gateway.errors import ModelFailed, ModelServerFailed
from tests.fakes.llm_context import NOW, memory_tools, request
from tests.fakes.loopback import serve_app

# litellm's own objects of an Ollama answer do not fit its models; a warning would be raised inside of it.
pytestmark = [pytest.mark.xdist_group("litellm"), pytest.mark.filterwarnings("ignore:.*:UserWarning")]


@dataclass(frozen=True, slots=True)
class Said:
    """What the model says: words in pieces, or calls, which Gemini's stream alone has here."""

    words: Sequence[str] = ()
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    is_cut: bool = False  # the stream has a proper end, and no mark of it


def gemini(said: Said) -> Iterator[bytes]:
    """`streamGenerateContent?alt=sse` (ai.google.dev/api/generate-content, "Text generation", "Streaming")."""
    parts: list[list[dict[str, Any]]] = [[{"text": words}] for words in said.words]
    if said.calls:
        calls = [{"functionCall": {"name": name, "args": args}} for name, args in said.calls]
        parts.append([{**calls[0], "thoughtSignature": "c2lnbmF0dXJl"}, *calls[1:]])
    for n, each in enumerate(parts, 1):
        candidate: dict[str, Any] = {"content": {"parts": each, "role": "model"}, "index": 0}
        usage = {"promptTokenCount": 11, "totalTokenCount": 11}
        if n == len(parts) and not said.is_cut:
            candidate["finishReason"] = "STOP"
            usage |= {"candidatesTokenCount": 7, "totalTokenCount": 18}
        chunk = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}
        yield b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n"


def anthropic(said: Said) -> Iterator[bytes]:
    """The events of Messages (docs.anthropic.com/en/docs/build-with-claude/streaming), with a ping."""

    def event(name: str, **data: Any) -> bytes:
        return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()

    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude-sonnet-4-5",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 1},
    }
    yield event("message_start", message=message)
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield event("ping")
    for words in said.words:
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": words})
    yield event("content_block_stop", index=0)
    if not said.is_cut:
        stop = {"stop_reason": "end_turn", "stop_sequence": None}
        yield event("message_delta", delta=stop, usage={"output_tokens": 7})
        yield event("message_stop")


def chat_completions(said: Said) -> Iterator[bytes]:
    """OpenAI's chunks as Mistral, DeepSeek and Groq document them: usage is in the last."""

    def chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        head = {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "m"}
        return b"data: " + json.dumps({**head, "choices": [choice], **more}).encode() + b"\n\n"

    yield chunk({"role": "assistant", "content": ""})
    for words in said.words:
        yield chunk({"content": words})
    if not said.is_cut:
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        yield chunk({"content": ""}, "stop", usage=usage)
        yield b"data: [DONE]\n\n"


def ollama_chat(said: Said) -> Iterator[bytes]:
    """`/api/chat` (github.com/ollama/ollama, docs/api.md, "Generate a chat completion"): one object a line."""
    head = {"model": "m", "created_at": "2026-11-28T12:00:00Z"}
    for words in said.words:
        yield json.dumps({**head, "message": {"role": "assistant", "content": words}, "done": False}).encode() + b"\n"
    if not said.is_cut:
        end = {"message": {"role": "assistant", "content": ""}, "done_reason": "stop", "done": True}
        yield json.dumps({**head, **end, "prompt_eval_count": 11, "eval_count": 7}).encode() + b"\n"


def ollama(said: Said) -> Iterator[bytes]:
    """`/api/generate` (docs/api.md, "Generate a completion")."""
    head = {"model": "m", "created_at": "2026-11-28T12:00:00Z"}
    for each in said.words:
        yield json.dumps({**head, "response": each, "done": False}).encode() + b"\n"
    if not said.is_cut:
        end = {"response": "", "done": True, "done_reason": "stop", "prompt_eval_count": 11, "eval_count": 7}
        yield json.dumps({**head, **end}).encode() + b"\n"


PROVIDERS: Mapping[str, tuple[Any, str, str]] = {  # the stream, its content type, and what follows the address
    "gemini/gemini-2.5-flash": (gemini, "text/event-stream", "/v1beta"),
    "anthropic/claude-sonnet-4-5": (anthropic, "text/event-stream", ""),
    "mistral/mistral-small-latest": (chat_completions, "text/event-stream", "/v1"),
    "deepseek/deepseek-chat": (chat_completions, "text/event-stream", "/v1"),
    "groq/llama-3.3-70b-versatile": (chat_completions, "text/event-stream", "/v1"),
    "ollama_chat/qwen3": (ollama_chat, "application/x-ndjson", ""),
    "ollama/qwen3": (ollama, "application/x-ndjson", ""),
}
EACH = pytest.mark.parametrize("name", PROVIDERS)


@dataclass
class Provider:
    """A model, and the requests that its server got."""

    model: LitellmModel
    paths: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    async def ask(self, *, tools: bool = True, after: Sequence[Mapping[str, Any]] = ()) -> ChatReply:
        """Ask as a turn that is watched does."""
        asked = request("hello", tools=memory_tools().schemas if tools else ())
        asked = replace(asked, messages=[*asked.messages, *after])
        return await self.model.complete(asked, sink=lambda _text: None)


@asynccontextmanager
async def provider(like: str, *said: Said, name: str = "") -> AsyncIterator[Provider]:
    """Serve what was *said* in the format of *like*, one answer a request; the last one repeats.

    The model's *name* is that of *like* unless it is given.
    """
    write, kind, path = PROVIDERS[like]
    answers = list(said)

    async def answer(asked: web.Request) -> web.StreamResponse:
        to.paths.append(asked.path)
        to.bodies.append(await asked.json())
        if asked.path == "/api/show":
            return web.json_response({"template": "{{ .Tools }}", "model_info": {"qwen3.context_length": 40_960}})
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(asked)
        for piece in write(answers.pop(0) if len(answers) > 1 else answers[0]):
            await response.write(piece)
        await response.write_eof()
        return response

    async with serve_app(answer) as place:
        config = ModelConfig(
            model=name or like, api_base=f"http://{place}{path}", api_key="k", timeout=20, vision="off"
        )
        to = Provider(LitellmModel(config, now=lambda: NOW))
        await to.model.warm()
        try:
            yield to
        finally:
            await close_litellm()


@EACH
async def test_a_streamed_answer(name: str) -> None:
    """The words of every provider come with its own count of tokens."""
    async with provider(name, Said(("Hello", " there", "!"))) as to:
        reply = await to.ask(tools=False)
    assert (reply.text, reply.is_cut, reply.tool_calls) == ("Hello there!", False, ())
    assert (reply.tokens.input, reply.tokens.output) == (11, 7)
    assert len(to.paths) == 1  # litellm would ask Ollama about the model for each call, and the event loop would wait


async def test_ollama_is_asked_about_a_model_in_a_thread() -> None:
    """The context window comes from the server of the settings, and its answer blocks nobody."""
    async with provider("ollama/qwen3", Said(("Hi",))) as to:
        assert await asyncio.wait_for(to.model.window(), 60) == 40_960
    assert to.paths == ["/api/show"]


CALLS = (("memory_search", {"query": "cats"}), ("memory_search", {"query": "dogs"}))


@pytest.mark.parametrize("name", ["gemini/gemini-2.5-flash", "gemini/gemini-3-pro-preview"])
@pytest.mark.parametrize("other", [False, True], ids=["own", "of another model"])
async def test_a_signature_goes_back_with_its_call(name: str, other: bool) -> None:
    """It is in data beside the call: the id in which litellm hides it is sent as another. Other models have none."""
    async with provider("gemini/gemini-2.5-flash", Said(calls=CALLS), Said(("Found.",)), name=name) as to:
        reply = await to.ask()
        calls = [{"id": each.id, "type": "function", "function": asdict(each)} for each in reply.tool_calls]
        thinking = {**(reply.thinking or {}), "model": "gemini/other" if other else name}
        results = [{"role": "tool", "tool_call_id": each.id, "content": "nothing"} for each in reply.tool_calls]
        said = {"role": "assistant", "content": "", "tool_calls": calls, "thinking": thinking}
        lines: list[dict[str, Any]] = [said, *results]
        await to.ask(after=turn_messages([{"i": n, **each} for n, each in enumerate(lines)], is_over=False)[1:])
    parts = [part for each in to.bodies[-1]["contents"] for part in each["parts"] if "function_call" in part]
    assert [part["function_call"]["args"]["query"] for part in parts] == ["cats", "dogs"]
    assert (parts[0].get("thoughtSignature") == "c2lnbmF0dXJl") is not other
    assert "thoughtSignature" not in parts[1]


@EACH
async def test_a_stream_without_its_end_is_an_error(name: str) -> None:
    """A proxy that ends half a stream properly does not make an answer of the half."""
    async with provider(name, Said(("Hello", " th"), is_cut=True)) as to:
        with pytest.raises(ModelFailed) as raised:
            await to.ask(tools=False)
    assert type(raised.value) is ModelServerFailed
