"""The effort of a request: the fields that go out to each provider, over HTTP and through litellm's real code."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agent.llm.chat_model import ModelConfig
from agent.llm.litellm_model import LitellmModel
from agent.llm.model_client import ModelClient
from agent.llm.openai_model import OpenAIModel
from agent.llm.request_messages import EFFORTS, NONE, fields_of_address
from gateway.errors import ModelAbility, ModelFailed
from tests.fakes.llm_context import FakeUsageRecorder, SummingMeter, request
from tests.fakes.openai_server import ScriptedAnswer, open_server

OFF_BY_TEMPLATE = {"chat_template_kwargs": {"enable_thinking": False}}
OWN = "http://127.0.0.1:8000/v1"
ADDRESSES = [
    ("", "gpt-5", NONE, {"reasoning_effort": "minimal"}),
    ("", "gpt-5-mini", "high", {"reasoning_effort": "high"}),
    ("", "gpt-5.1", NONE, {"reasoning_effort": NONE}),
    ("https://api.openai.com/v1", "o4-mini", NONE, {"reasoning_effort": "low"}),
    ("https://openrouter.ai/api/v1", "openai/gpt-5", "low", {"reasoning": {"effort": "low"}}),
    ("https://openrouter.ai/api/v1", "deepseek/deepseek-r1", NONE, {"reasoning": {"effort": NONE}}),
    ("https://api.deepseek.com/v1", "deepseek-chat", "high", {"thinking": {"type": "enabled"}}),
    ("https://api.deepseek.com/v1", "deepseek-chat", NONE, {"thinking": {"type": "disabled"}}),
    ("https://api.z.ai/api/paas/v4", "glm-4.6", NONE, {"thinking": {"type": "disabled"}}),
    ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "qwen-plus", NONE, {"enable_thinking": False}),
    ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "qwen-plus", "low", {"enable_thinking": True}),
    ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-flash", NONE, {"reasoning_effort": NONE}),
    ("https://api.groq.com/openai/v1", "qwen/qwen3-32b", "low", {"reasoning_effort": "default"}),
    ("https://api.groq.com/openai/v1", "qwen/qwen3-32b", NONE, {"reasoning_effort": NONE}),
    ("https://api.groq.com/openai/v1", "openai/gpt-oss-120b", NONE, {"reasoning_effort": "low"}),
    ("http://127.0.0.1:11434/v1", "qwen3", NONE, {"reasoning_effort": NONE}),
    (OWN, "Qwen/Qwen3-32B", NONE, OFF_BY_TEMPLATE),
    (OWN, "Qwen/Qwen3-32B", "medium", {"reasoning_effort": "medium"}),
    (OWN, "openai/gpt-oss-20b", NONE, {"reasoning_effort": "low"}),
    (OWN, "any", "", {}),
]


@pytest.mark.parametrize(("base", "model", "effort", "fields"), ADDRESSES)
def test_an_address_gets_its_own_field(base: str, model: str, effort: str, fields: Mapping[str, Any]) -> None:
    """Each provider names it differently; `none` is the least that the model takes."""
    assert fields_of_address(effort, base, model) == fields


@dataclass
class BodyServer:
    """Keeps the body of each POST, and refuses it."""

    base: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def keep_bodies() -> Iterator[BodyServer]:
    """Run the server in a thread: litellm may call it from the event loop."""
    kept = BodyServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if not self.path.endswith("/api/show"):
                kept.bodies.append(json.loads(data))
            answer = b'{"error": {"message": "no", "type": "invalid_request_error"}}'
            self.send_response(400)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    kept.base = f"http://127.0.0.1:{server.server_port}"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


BUDGETS = {"low": 1024, "medium": 2048, "high": 4096}
FIELDS = ("reasoning_effort", "reasoning", "thinking", "think", "enable_thinking", "chat_template_kwargs")
THROUGH_LITELLM = [
    ("anthropic/claude-sonnet-4-5", NONE, {}),
    *(
        ("anthropic/claude-sonnet-4-5", each, {"thinking": {"type": "enabled", "budget_tokens": tokens}})
        for each, tokens in BUDGETS.items()
    ),
    ("anthropic/claude-3-5-haiku-20241022", "high", {}),  # does not think: litellm drops the field
    ("deepseek/deepseek-reasoner", NONE, {"thinking": {"type": "disabled"}}),
    ("deepseek/deepseek-reasoner", "high", {"thinking": {"type": "enabled"}}),
    ("openrouter/openai/gpt-5", "low", {"reasoning": {"effort": "low"}}),
    ("openrouter/openai/gpt-5", NONE, {"reasoning": {"effort": NONE}}),
    ("ollama_chat/qwen3", NONE, {"think": False}),
    ("ollama_chat/qwen3", "high", {"think": True}),
    ("ollama_chat/gpt-oss:20b", NONE, {"think": "low"}),
    ("hosted_vllm/Qwen/Qwen3-32B", NONE, OFF_BY_TEMPLATE),
    ("hosted_vllm/Qwen/Qwen3-32B", "high", {"reasoning_effort": "high"}),
    ("dashscope/qwen-plus", NONE, {"enable_thinking": False}),
    ("mistral/magistral-medium-latest", "high", {}),
    ("openai/own", NONE, OFF_BY_TEMPLATE),
]


async def sent_fields(model: str, effort: str) -> tuple[dict[str, Any], bytes]:
    """Return the fields of effort in the body that litellm sends for *model*, and the messages in it."""
    with keep_bodies() as server:
        opened = LitellmModel(ModelConfig(model=model, api_base=server.base, api_key="k", timeout=20))
        with pytest.raises(ModelFailed):
            await opened.complete(replace(request("hello"), effort=effort))
        await opened.close()
    body = server.bodies[0]
    messages = json.dumps([body.get("system"), body.get("messages"), body.get("contents")]).encode()
    return {name: body[name] for name in FIELDS if name in body}, messages


@pytest.mark.parametrize(("model", "effort", "fields"), THROUGH_LITELLM)
async def test_litellm_sends_the_field_of_the_provider(model: str, effort: str, fields: Mapping[str, Any]) -> None:
    """What litellm makes of it is what the provider takes; a later version that changes this fails here."""
    found, messages = await sent_fields(model, effort)
    assert found == fields
    assert (await sent_fields(model, ""))[1] == messages  # the prompt does not depend on it


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini/gemini-2.5-flash", NONE, {"thinkingBudget": 0, "includeThoughts": False}),
        ("gemini/gemini-2.5-flash", "low", {"thinkingBudget": 1024, "includeThoughts": True}),
        ("gemini/gemini-2.5-pro", NONE, {"thinkingBudget": 128, "includeThoughts": True}),
        ("gemini/gemini-3-pro-preview", "high", {"thinkingLevel": "high", "includeThoughts": True}),
    ],
)
async def test_gemini_gets_a_budget_or_a_level(model: str, effort: str, thinking: Mapping[str, Any]) -> None:
    """Its models think by a budget of tokens, from the third on by a level; the larger ones always think."""
    with keep_bodies() as server:
        opened = LitellmModel(ModelConfig(model=model, api_base=server.base, api_key="k", timeout=20))
        with pytest.raises(ModelFailed):
            await opened.complete(replace(request("hello"), effort=effort))
        await opened.close()
    assert server.bodies[0]["generationConfig"]["thinkingConfig"] == thinking


async def test_the_field_stands_behind_the_messages() -> None:
    """Over HTTP, with every effort: the bodies are equal up to the end of the prompt, and without it there is none."""
    async with open_server() as server:
        model = OpenAIModel(ModelConfig(model="openai/own", api_base=server.base))
        for effort in ("", *EFFORTS):
            await model.complete(replace(request("hello"), effort=effort))
        await model.close()
    ends = [body.index(b'],"model"') for body in server.bodies]
    assert {body[:end] for body, end in zip(server.bodies, ends, strict=True)} == {server.bodies[0][: ends[0]]}
    sent = [{name: body[name] for name in FIELDS if name in body} for body in server.requests]
    assert sent == [{}, OFF_BY_TEMPLATE, *({"reasoning_effort": each} for each in EFFORTS[1:])]


async def test_a_refused_effort_is_left_out_from_then_on() -> None:
    """The same question follows without it, in the same call; the next one does not ask again."""

    def answer(body: Mapping[str, Any], _: int) -> ScriptedAnswer:
        if "reasoning_effort" in body:
            error = {"message": "Unsupported parameter: 'reasoning_effort' is not supported with this model."}
            return ScriptedAnswer(refusal=(400, json.dumps({"error": error})))
        return ScriptedAnswer(text="fine")

    async with open_server(answer) as server:
        model = OpenAIModel(ModelConfig(model="openai/own", api_base=server.base))
        client = ModelClient([model], recorder=FakeUsageRecorder(), meter=SummingMeter())
        for _ in range(2):
            assert (await client.complete(replace(request("hello"), effort="high"))).text == "fine"
        await client.close()
    assert ["reasoning_effort" in body for body in server.requests] == [True, False, False]
    assert client.lacks(ModelAbility.EFFORT)
