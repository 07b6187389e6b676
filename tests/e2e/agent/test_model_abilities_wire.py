"""A whole gateway before servers that lack something: the first message is answered, the next asks for less at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.llm.request_messages import NO_TOOLS
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.errors import ModelAbility
from gateway.events import Attachment
from gateway.health.doctor import fetch_status
from gateway.health.gateway_checks import read_stored_status, status_findings
from gateway.home import Home
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import STREAMING, InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ModelFault, ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.sample_files import picture
from tests.fakes.strict_requests import RequestRule, violations

pytestmark = pytest.mark.xdist_group("litellm")
R = RequestRule


def _openai(message: str, *, param: str = "", code: int | None = None) -> str:
    error = {"message": message, "type": "invalid_request_error", "param": param or None, "code": code}
    return json.dumps({"error": error})


# Refusals as servers send them; where they were seen is in agent/llm/provider_refusals.py.
REFUSALS: Mapping[RequestRule, tuple[int, str]] = {
    R.STREAM_OPTIONS: (
        422,
        json.dumps(
            {
                "detail": [
                    {
                        "type": "extra_forbidden",
                        "loc": ["body", "stream_options"],
                        "msg": "Extra inputs are not permitted",
                        "input": {"include_usage": True},
                    }
                ]
            }
        ),
    ),
    R.STREAM: (400, _openai("Streaming is not supported for this model", param="stream")),
    R.SYSTEM: (400, _openai("Developer instruction is not enabled for models/gemma-3-27b-it")),
    R.PICTURES: (400, _openai("image_url is not supported by this model")),
    R.TOOLS: (400, _openai("registry.ollama.ai/library/gemma3:4b does not support tools")),
}
ABILITIES = {
    R.STREAM_OPTIONS: ModelAbility.STREAM_OPTIONS,
    R.STREAM: ModelAbility.STREAM,
    R.SYSTEM: ModelAbility.SYSTEM,
    R.PICTURES: ModelAbility.PICTURES,
    R.TOOLS: ModelAbility.TOOLS,
}


class StrictServer:
    """The script of a server with *rules*: it refuses the first that a request breaks, and counts refusals."""

    def __init__(self, *rules: RequestRule) -> None:
        self.rules = set(rules)
        self.refused = 0

    def __call__(self, body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Refuse or answer."""
        for rule, refusal in REFUSALS.items():
            if rule in self.rules and violations(body, {rule}):
                self.refused += 1
                return ScriptedAnswer(refusal=refusal)
        return ScriptedAnswer(text=f"answer {n} is long enough to be shown while it grows")


def settings(server: FakeOpenAI, **more: str) -> dict[str, str]:
    """Return the environment of a gateway whose model is *server*; the model may be shown pictures."""
    return {
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": server.base,
        "PARLOUR_LLM__ATTEMPTS": "1",
        "PARLOUR_LLM__VISION": "on",
        **more,
    }


def streaming_plugin() -> InProcessFilePlugin:
    """Return a platform where an answer is seen growing, with pictures."""
    return InProcessFilePlugin(PlatformFiles(), replace(STREAMING, file_limit=1_000_000))


def photo(plugin: InProcessFilePlugin) -> Attachment:
    """Return a picture as a message carries it."""
    return plugin.sources.put("photo.jpg", picture(), kind="image", media_type="image/jpeg")


def facts(parlour: InProcessGateway) -> list[str]:
    """Return the names of the facts about all models."""
    return [each.name for each in parlour.app.models.default.facts.facts()]


@tool("Look.", kind=ToolKind.LOOK, name="look_around")
async def look_around(context: ToolContext) -> str:
    """Return what is there."""
    return "a chair"


@pytest.mark.parametrize("client", ["auto", "litellm"])
@pytest.mark.parametrize("rule", list(REFUSALS))
async def test_the_first_message_is_answered_and_the_second_asks_for_less(
    tmp_path: Path, rule: RequestRule, client: str
) -> None:
    """One refusal at all: not at the next message, nor after a restart on the same store."""
    script, home = StrictServer(rule), tmp_path / "home"
    async with open_server(script) as server:
        environment = settings(server, PARLOUR_LLM__CLIENT=client)
        plugin = streaming_plugin()
        async with gateway(home=home, environment=environment, kind=plugin) as parlour:
            await parlour.app.models.default.warm()
            answer = await parlour.channel.ask("c", "look", attachments=[photo(plugin)] if rule is R.PICTURES else [])
            assert answer.startswith("answer ")
            assert script.refused == 1
            assert facts(parlour) == [ABILITIES[rule]]
            assert (await parlour.channel.ask("c", "and now?")).startswith("answer ")
            await parlour.idle()
        async with gateway(home=home, environment=environment, capabilities=STREAMING) as parlour:
            assert (await parlour.channel.ask("c", "still there?")).startswith("answer ")
            rows = await parlour.app.store.usage.totals(since=datetime(2020, 1, 1, tzinfo=UTC))
    assert script.refused == 1
    assert sum(row["calls"] for row in rows) == len(server.bodies)


async def test_a_server_that_lacks_everything_answers_in_the_first_turn() -> None:
    """Each refusal names another thing; the person sees one answer."""
    script, plugin = StrictServer(*REFUSALS), streaming_plugin()
    async with (
        open_server(script) as server,
        gateway(environment=settings(server), tools=[look_around], kind=plugin) as parlour,
    ):
        assert (await parlour.channel.ask("c", "look", attachments=[photo(plugin)])).startswith("answer ")
        assert script.refused == len(REFUSALS)
        assert len(parlour.channel.posts["c"]) == 1
        assert (await parlour.channel.ask("c", "again")).startswith("answer ")
        assert script.refused == len(REFUSALS)


async def test_a_model_without_tools_is_promised_none() -> None:
    """In the turn of the refusal a line takes the tools back; later prompts name none and begin with the same bytes.

    `/tools` says why there are none.
    """
    script = StrictServer(R.TOOLS)
    async with open_server(script) as server, gateway(environment=settings(server), tools=[look_around]) as parlour:
        for text in ("one", "two", "three"):
            assert (await parlour.channel.ask("c", text)).startswith("answer ")
        assert "because the model's server refuses them" in await parlour.channel.ask("c", "/tools")
        refused, first, second, third = server.requests
    assert "look_around" in json.dumps(refused["tools"])
    assert "tools" not in first
    assert first["messages"][0]["content"].endswith(NO_TOOLS)
    assert NO_TOOLS not in second["messages"][0]["content"]
    assert "open web pages" in second["messages"][0]["content"]  # among what it cannot do
    assert third["messages"][: len(second["messages"])] == second["messages"]


async def test_a_conversation_with_calls_goes_on_at_a_server_without_tools() -> None:
    """A server that has lost its tools, as after a restart with another flag, reads what was called as text."""
    script = StrictServer()

    def answers(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        return ScriptedAnswer(calls=(ScriptedToolCall(name="look_around", id="a"),)) if n == 1 else script(body, n)

    async with open_server(answers) as server, gateway(environment=settings(server), tools=[look_around]) as parlour:
        assert (await parlour.channel.ask("c", "look around")).startswith("answer ")
        script.rules = {R.TOOLS}
        assert (await parlour.channel.ask("c", "what was there?")).startswith("answer ")
        sent = server.requests[-1]
    assert script.refused == 1
    assert "look_around({}):\\n  a chair" in json.dumps(sent["messages"])


async def test_the_error_of_the_smaller_request_is_the_one_that_is_told() -> None:
    """Nothing is learned from a refusal that was not the reason; when the server is well again, tools are offered."""
    script = StrictServer(R.TOOLS)
    is_ill = True

    def answers(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        answer = script(body, n)
        return ScriptedAnswer(fault=ModelFault.UNAUTHORISED) if is_ill and answer.refusal is None else answer

    async with open_server(answers) as server, gateway(environment=settings(server), tools=[look_around]) as parlour:
        said = await parlour.channel.ask("c", "hi")
        assert "answer" not in said
        assert facts(parlour) == []
        is_ill, script.rules = False, set()
        assert (await parlour.channel.ask("c", "hi")).startswith("answer ")
        assert "tools" in server.requests[-1]


async def test_what_a_model_lacks_is_shown_in_words_with_since_when(tmp_path: Path) -> None:
    """/status, `parlour status` and the doctor say it, with the gateway running and without."""
    home = tmp_path / "home"
    async with open_server(StrictServer(R.TOOLS, R.SYSTEM)) as server:
        async with gateway(home=home, environment=settings(server), tools=[look_around]) as parlour:
            assert "refuses" not in await parlour.channel.ask("c", "/status")
            await parlour.channel.ask("c", "one")
            said = await parlour.channel.ask("c", "/status")
            assert re.search(r"left out: system messages \(since .*\), tools \(since .*\)\.", said)
            [status] = [line async for line in parlour.app.operations["status"]({})]
            [lacks] = status["models"].values()
            assert lacks.startswith("system messages (since ")
            [setup] = [line async for line in parlour.app.operations["setup status"]({})]
            assert setup["lacks"] == lacks
            statuses = [await fetch_status(Home(home))]
        statuses.append(await asyncio.to_thread(read_stored_status, Home(home)))
    running, stopped = ([each.text for each in status_findings(line) if each.id == "model.lacks"] for line in statuses)
    assert running == stopped
    assert running[0].startswith(f"openai/test lacks {lacks}; it is asked without. After a change of its server")
