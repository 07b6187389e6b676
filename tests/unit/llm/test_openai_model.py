"""What only the direct client decides: when it is used, what it sends, and odd answers of servers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.llm.chat_model import ANSWER_CHARS, ChatReply, ChatRequest, ModelConfig, ReplyEnding, Sink
from agent.llm.litellm_model import LitellmModel, close_litellm
from agent.llm.openai_http import MOST_BYTES
from agent.llm.openai_model import OpenAIModel, is_openai_compatible
from agent.llm.provider_model import ProviderModel
from gateway.errors import (
    ContextOverflow,
    EmptyModelReply,
    InvalidModelReply,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
    ModelUnreachable,
)
from tests.fakes.llm_context import NOW, memory_tools, request
from tests.fakes.loopback import serve_app
from tests.fakes.openai_server import ModelFault, ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.proxies import HostCertificate

pytestmark = pytest.mark.xdist_group("litellm")
OWN = "http://127.0.0.1:8000/v1"
BOTH = pytest.mark.parametrize("sink", [None, lambda _text: None], ids=["plain", "streamed"])


@pytest.mark.parametrize(
    ("model", "base", "variables", "is_direct"),
    [
        ("openai/anything", OWN, {}, True),
        ("openai/org/model:tag", OWN, {}, True),
        ("openai/gpt-6", OWN, {"OPENAI_BASE_URL": "x"}, True),
        ("hosted_vllm/qwen3", OWN, {}, False),
        ("lm_studio/qwen3", OWN, {}, True),
        ("lm_studio/qwen3", "", {}, False),  # litellm knows the variable with its address
        ("ollama/qwen3", OWN, {}, False),  # speaks a protocol of its own
        ("anthropic/claude-sonnet-4-5", OWN, {}, False),
        ("azure/gpt-5", OWN, {}, False),
        ("gpt-4o", OWN, {}, False),
        ("openai/", OWN, {}, False),
        ("openai/responses/x", OWN, {}, False),
        ("openai/anything", OWN, {"SSL_VERIFY": "False"}, False),
        ("openai/gpt-4o-mini", "", {}, True),
        ("openai/gpt-4o-mini", "https://api.openai.com/v1", {}, True),
        ("openai/ft:gpt-4o-2024-08-06:me::id", "", {}, True),
        ("openai/gpt-5-mini", "", {}, True),
        ("openai/gpt-5.1-chat-latest", "", {}, True),
        ("openai/gpt-5.4", "", {}, False),  # answers with tools at the Responses API alone
        ("openai/gpt-5.4", "https://eu.api.openai.com/v1", {}, False),
        ("openai/gpt-5-codex", "", {}, False),
        ("openai/gpt-5-pro", "", {}, False),
        ("openai/gpt-4o-search-preview", "", {}, False),
        ("openai/o3", "", {}, False),
        ("openai/gpt-6", "", {}, False),  # nobody knows yet
        ("openai/gpt-4o-mini", "", {"OPENAI_BASE_URL": "http://x/v1"}, False),
        ("openai/gpt-4o-mini", "", {"OPENAI_ORGANIZATION": "org"}, False),
    ],
)
def test_it_is_used_where_chat_completions_are_sure(
    model: str, base: str, variables: Mapping[str, str], is_direct: bool
) -> None:
    """Servers of the operator's, and OpenAI's older models; all others, and what a variable changes, are litellm's."""
    assert is_openai_compatible(ModelConfig(model=model, api_base=base), variables) is is_direct


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "remember", "arguments": '{"fact":"ü 🎂"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You are Parlour."},
    {"role": "user", "content": [{"type": "text", "text": "Merke dir: ü 🎂"}, PICTURE]},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "remember", "content": "ok"},
    {"role": "user", "content": "Danke"},
]
TOOLS = memory_tools().schemas
CHOICE = {"type": "function", "function": {"name": "remember"}}
REQUESTS: dict[str, ChatRequest] = {
    "bare": request("hello"),
    "tools": request("hello", tools=TOOLS),
    "choice": replace(request("hello", tools=TOOLS), tool_choice=CHOICE),
    "choice without tools": replace(request("hello"), tool_choice="required"),
    "history": replace(request(tools=TOOLS), messages=HISTORY),
    "limit": replace(request("hello"), max_tokens=16),
    "background": replace(request(), messages=HISTORY, purpose="consolidation"),
}


@BOTH
@pytest.mark.parametrize("vision", ["on", "off"])
@pytest.mark.parametrize(
    "name",
    [
        "openai/test",
        "openai/claude-x",
        "openai/gpt-5-mini",
        "lm_studio/org/qwen",
        "llamafile/qwen",
        "custom_openai/qwen",
        "litellm_proxy/qwen",
    ],
)
async def test_the_request_is_what_litellm_sends(name: str, vision: str, sink: Sink | None) -> None:
    """The same model, messages, tools and limits, as bytes in the messages, whichever client sends them."""
    async with open_server(lambda _body, _n: "ok") as server:
        config = ModelConfig(model=name, api_base=server.base, api_key="k", vision=vision)
        models: list[ProviderModel] = [OpenAIModel(config), LitellmModel(config)]
        for case, asked in REQUESTS.items():
            server.bodies.clear()
            for model in models:
                await model.complete(asked, sink=sink)
            direct, through = ({**body, "stream": bool(body.get("stream"))} for body in server.requests)
            assert direct == through, case
            begin = [body.partition(b'],"model"')[0] for body in server.bodies]
            assert begin[0] == begin[1], case
        assert {headers["Authorization"] for headers in server.headers} == {"Bearer k"}
        await models[0].close()
        await close_litellm()


@asynccontextmanager
async def answering(
    data: bytes, *, kind: str = "text/event-stream", status: int = 200, **config: Any
) -> AsyncIterator[OpenAIModel]:
    """Connect a model to a server that answers anything with these bytes."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=data, status=status, headers={"Content-Type": kind} if kind else {})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", answer)
    async with serve_app(app) as place:
        settings = replace(ModelConfig(model="openai/test", api_base=f"http://{place}/v1/", timeout=30), **config)
        model = OpenAIModel(settings, now=lambda: NOW)
        try:
            yield model
        finally:
            await model.close()


def events(*chunks: Any, end: str = "data: [DONE]\n\n") -> bytes:
    """Return a stream of *chunks*."""
    return ("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end).encode()


def delta(text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk."""
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": finish}]}


async def ask(model: OpenAIModel, *, streamed: bool = True) -> ChatReply:
    """Ask once."""
    return await model.complete(request("hello"), sink=(lambda _text: None) if streamed else None)


@pytest.mark.parametrize(
    "data",
    [
        events(delta("Hi"), delta(finish="stop")),
        events(delta("Hi"), end="data:[DONE]"),  # no finish reason, no space, no blank line
        events(delta("Hi"), delta(finish="stop"), end=""),  # no [DONE]
        events(delta("Hi", "stop"), end="").removesuffix(b"\n\n"),  # no end of the last event
        events(delta("Hi", "stop")).replace(b"\n", b"\r\n"),
        b": waiting\n\nevent: ping\ndata: {}\n\n" + events(delta("Hi", "stop")),
        events({"choices": []}, {"choices": None}, delta("Hi", "stop"), {"choices": [], "usage": None}),
        events(delta("Hi", "stop", reasoning="hm", refusal=None, function_call=None)),
    ],
    ids=["usual", "done alone", "reason alone", "unended", "crlf", "comments", "empty chunks", "fields"],
)
@pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "text/plain"])
async def test_streams_as_servers_write_them(data: bytes, kind: str) -> None:
    """Line ends, comments, missing ends: each is the same answer."""
    async with answering(data, kind=kind) as model:
        assert (await ask(model)).text == "Hi"


TEXT = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
BUSY = {"error": {"message": "slow down", "code": "429"}}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (events(delta("Hi"), end=""), ModelServerFailed),
        (events(delta("Hi"), end='data: {"choices": [{"del'), ModelServerFailed),
        (events(delta("Hi"), end="data: {]\n\n"), InvalidModelReply),
        (events(delta("Hi"), end="data: 7\n\n"), ModelServerFailed),
        (events(delta("Hi"), {"choices": "none"}), InvalidModelReply),
        (events(delta("Hi"), {"choices": [{"delta": "Hi"}]}), InvalidModelReply),
        (events(delta("Hi"), BUSY), ModelRateLimited),
        (events(delta("Hi"), end='event: error\ndata: {"message": "gone"}\n\n'), ModelServerFailed),
        (events({"error": {"message": "x", "code": "context_length_exceeded"}}), ContextOverflow),
        (events({"error": "the server is overloaded"}), ModelRateLimited),
        (events(), EmptyModelReply),
        (b"", EmptyModelReply),
        (b"data: " + b"x" * 2_500_000, InvalidModelReply),
    ],
)
async def test_streams_that_are_none(data: bytes, error: type[ModelFailed]) -> None:
    """A cut stream is a broken connection, an error event is that error, and anything else is no answer."""
    async with answering(data) as model:
        with pytest.raises(ModelFailed) as raised:
            await ask(model)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("data", "kind", "status", "error"),
    [
        (b"<html>billing</html>", "text/html", 200, InvalidModelReply),
        (b"<html>overloaded</html>", "text/html", 500, ModelServerFailed),
        (b"not found", "text/plain", 404, ModelRefused),
        (b"", "", 403, ModelRefused),
        (b'{"detail": "too many input tokens"}', "application/json", 422, ContextOverflow),
        (b"x" * 1_000_000, "text/plain", 429, ModelRateLimited),
        (b"\xff\xfe", "application/json", 200, InvalidModelReply),
        (b"[" * 100_000, "application/json", 200, InvalidModelReply),
        (b'"Hi"', "application/json", 200, InvalidModelReply),
        (json.dumps(BUSY).encode(), "application/json", 200, ModelRateLimited),
        (b'{"choices": [7]}', "application/json", 200, InvalidModelReply),
        (b"", "application/json", 204, InvalidModelReply),
        (b"", "application/json", 304, ModelServerFailed),
    ],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_answers_that_are_none(
    data: bytes, kind: str, status: int, error: type[ModelFailed], streamed: bool
) -> None:
    """Web pages, other JSON, other statuses: one error each, the same with and without a stream."""
    async with answering(data, kind=kind, status=status) as model:
        with pytest.raises(ModelFailed) as raised:
            await ask(model, streamed=streamed)
    assert type(raised.value) is error
    assert not {"billing", "overloaded", "slow down"} & set(str(raised.value).split())


async def test_a_body_has_a_limit() -> None:
    """An answer of more than 32 MB is not read to its end."""
    text = "x" * MOST_BYTES
    async with answering(json.dumps({**TEXT, "padding": text}).encode(), kind="application/json") as model:
        with pytest.raises(InvalidModelReply, match="32,000,000"):
            await ask(model, streamed=False)


async def test_a_stream_that_stays_open_after_its_end_is_not_waited_for() -> None:
    """The connection is closed where the server does not close it after [DONE]."""

    async def answer(asked: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(asked)
        await response.write(events(delta("Hi", "stop")))
        await asyncio.Event().wait()
        return response

    async with serve_app(answer, handler_cancellation=True) as place:
        model = OpenAIModel(ModelConfig(model="openai/x", api_base=f"http://{place}"))
        assert (await ask(model)).text == "Hi"
        await model.close()


async def test_a_request_of_many_megabytes_is_sent() -> None:
    """Pictures make a request large; nothing warns of it, and all of it comes."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo" + "A" * 4_000_001}}
    asked = replace(request(), messages=[{"role": "user", "content": [picture]}])
    async with open_server(lambda _body, _n: "ok") as server:
        model = OpenAIModel(ModelConfig(model="openai/x", api_base=server.base, vision="on"))
        assert (await model.complete(asked)).text == "ok"
        assert server.requests[0]["messages"][0]["content"] == [picture]
        assert "Transfer-Encoding" not in server.headers[0]
        await model.close()


@pytest.mark.parametrize("client", [OpenAIModel, LitellmModel], ids=["direct", "litellm"])
async def test_a_redirect_is_followed_without_the_key(client: type[ProviderModel]) -> None:
    """The request goes to the new address, the key does not if that is another server."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": f"{server.base}/chat/completions"})

    async with open_server(lambda _body, _n: "ok") as server, serve_app(answer) as place:
        model = client(ModelConfig(model="openai/x", api_base=f"http://{place}/v1", api_key="k"))
        assert (await model.complete(request("hello"))).text == "ok"
        assert "Authorization" not in server.headers[0]
        await model.close()
        await close_litellm()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_stream_that_was_not_asked_for_is_an_answer(kind: str) -> None:
    """Servers that always stream: the chunks are put together, whatever they are called."""
    async with answering(events(delta("Hel"), delta("lo!"), delta(finish="length")), kind=kind) as model:
        reply = await ask(model, streamed=False)
    assert (reply.text, reply.is_cut) == ("Hello!", True)


async def test_an_answer_that_its_server_ends_with_an_error() -> None:
    """Words before it are an answer that broke off; without words, or with a call, it is that error."""
    failed = delta(finish="error")
    failed["choices"][0]["error"] = {"code": 429, "message": "x"}
    async with answering(events(delta("Half an ans"), failed)) as model:
        reply = await ask(model)
    assert (reply.text, reply.ending) == ("Half an ans", ReplyEnding.BROKEN)
    for begun in (delta(""), delta("Half", tool_calls=[{"index": 0, **CALL}])):
        async with answering(events(begun, failed)) as model:
            with pytest.raises(ModelRateLimited):
                await ask(model)


async def test_a_host_that_does_not_take_connections_is_given_up_early() -> None:
    """The time for a connection is its own, shorter than that of an answer."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]  # more than its queue holds: the next one hears nothing
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        config = ModelConfig(model="openai/x", api_base=f"http://127.0.0.1:{full.getsockname()[1]}/v1")
        model = OpenAIModel(config, connect_seconds=0.2)
        with pytest.raises(ModelUnreachable, match=r"0\.2 s"):
            await ask(model)
        await model.close()
        for each in waiting:
            each.close()


@BOTH
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_back_with_its_calls_alone(key: str, sink: Sink | None) -> None:
    """It is no part of the answer; that of a call is sent to the model again, as some require, and no other is."""
    answers = [
        ScriptedAnswer(reasoning="I think", reasoning_key=key, calls=(ScriptedToolCall(name="remember"),)),
        ScriptedAnswer(text="Hi", reasoning="I think", reasoning_key=key),
    ]
    async with open_server(answers) as server:
        model = OpenAIModel(ModelConfig(model="openai/x", api_base=server.base))
        called = await model.complete(request("hello", tools=TOOLS), sink=sink)
        assert called.thinking == {"model": "openai/x", "message": {key: "I think"}}
        message = {"role": "assistant", "content": "", "tool_calls": [CALL], "thinking": called.thinking}
        said = await model.complete(replace(request(tools=TOOLS), messages=[message]), sink=sink)
        assert server.requests[1]["messages"][0][key] == "I think"
        assert (said.text, said.thinking) == ("Hi", None)
        await model.close()


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"reasoning": "x", "reasoning_content": "x"}, {"reasoning_content": "x"}),
        ({"reasoning": "x" * (ANSWER_CHARS + 1)}, None),
        ({"reasoning": {"text": "x"}}, None),
    ],
    ids=["both keys", "too long", "no text"],
)
async def test_reasoning_is_kept_once_and_within_a_limit(fields: dict[str, Any], kept: dict[str, str] | None) -> None:
    """Two keys hold the same text; reasoning beyond the bound of an answer is dropped, and its call is not."""
    chunk = delta("", "tool_calls", tool_calls=[{"index": 0, **CALL}], **fields)
    async with answering(events(chunk)) as model:
        reply = await ask(model)
    assert (reply.thinking or {}).get("message") == kept
    assert len(reply.tool_calls) == 1


async def test_reasoning_alone_is_an_empty_answer() -> None:
    """A model that spent its tokens on thinking has said nothing."""
    async with open_server([ScriptedAnswer(reasoning="I think", finish="length")]) as server:
        model = OpenAIModel(ModelConfig(model="openai/x", api_base=server.base))
        with pytest.raises(EmptyModelReply, match="length"):
            await ask(model)
        await model.close()


async def test_odd_figures_and_arguments_are_read() -> None:
    """Arguments as an object, DeepSeek's name for cached tokens, and figures that are no numbers."""
    call = {"id": "a", "function": {"name": "remember", "arguments": {"fact": "ü"}}}
    usage = {"prompt_tokens": 10.0, "completion_tokens": "many", "prompt_cache_hit_tokens": 6}
    body = {"choices": [{"message": {"content": [{"text": "Hi"}], "tool_calls": [call]}}], "usage": usage}
    async with answering(json.dumps(body).encode(), kind="application/json") as model:
        reply = await ask(model, streamed=False)
    assert [(each.name, each.arguments) for each in reply.tool_calls] == [("remember", '{"fact": "ü"}')]
    assert (reply.tokens.input, reply.tokens.output, reply.tokens.cached) == (10, 0, 6)
    assert reply.text == "Hi"


async def test_a_variables_key_is_sent_to_its_own_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """LM_STUDIO_API_KEY is for that provider; OPENAI_API_KEY stays with OpenAI."""
    monkeypatch.setenv("LM_STUDIO_API_KEY", "studio")
    monkeypatch.setenv("OPENAI_API_KEY", "openai")
    async with open_server(lambda _body, _n: "ok") as server:
        for name in ("lm_studio/x", "openai/x"):
            model = OpenAIModel(ModelConfig(model=name, api_base=server.base))
            await ask(model)
            await model.close()
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer studio", "Bearer none"]
    assert OpenAIModel(ModelConfig(model="openai/gpt-5"))._key() == "openai"


@pytest.mark.parametrize("client", [OpenAIModel, LitellmModel], ids=["direct", "litellm"])
async def test_a_certificate_has_to_be_trusted(
    client: type[ProviderModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with an unknown certificate is not asked; SSL_CERT_FILE makes it known."""
    made = HostCertificate.of("127.0.0.1", tmp_path)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(TEXT)

    async with serve_app(answer, ssl_context=made.shown()) as place:
        config = ModelConfig(model="openai/x", api_base=f"https://{place}/v1", api_key="k")
        model = client(config)
        with pytest.raises(ModelUnreachable):
            await model.complete(request("hello"))
        await model.close()
        await close_litellm()
        monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
        model = client(config)
        assert (await model.complete(request("hello"))).text == "Hi"
        await model.close()
        await close_litellm()


async def test_faults_name_their_status() -> None:
    """`parlour init` reads the status out of the error, and the operator reads its words."""
    async with open_server([ScriptedAnswer(fault=ModelFault.UNAUTHORISED)]) as server:
        model = OpenAIModel(ModelConfig(model="openai/x", api_base=server.base))
        with pytest.raises(ModelRefused, match="openai/x: Unauthorized, HTTP 401") as raised:
            await ask(model)
        await model.close()
    assert raised.value.is_about_account
