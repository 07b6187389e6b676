"""The trial of a model sends what a turn sends; the doctor names what ten broken servers lack, and never a secret."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.llm.model_abilities import CALLS_AS_TEXT, LearnedModels
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.app import model_trial
from gateway.app.model_trial import ModelTrial, try_model
from gateway.health.doctor import collect_findings
from gateway.ports.setup import Finding, FindingLevel
from gateway.settings.settings_model import LlmSettings
from tests.e2e.agent.test_model_abilities_wire import REFUSALS, StrictServer, settings
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.loopback import serve_app
from tests.fakes.openai_server import ModelFault, Script, ScriptedAnswer, open_server, with_calls
from tests.fakes.proxies import HostCertificate
from tests.fakes.strict_requests import RequestRule

R = RequestRule
KEY = "sk-canary-of-the-trial-0123456789"
PASSWORD = "canary-password"


@tool("Return the time.", kind=ToolKind.LOOK, name="a_clock")
async def clock(context: ToolContext) -> str:
    """Return the time."""
    return "12:00 by the clock"


async def trial_of(script: Script, **llm: str) -> tuple[ModelTrial, list[dict[str, Any]]]:
    """Return the trial of a server with *script*, and its requests."""
    async with open_server(script) as server:
        given = {"model": "openai/test", "api_base": server.base, "api_key": KEY, **llm}
        return await try_model(LlmSettings.model_validate(given)), server.requests


async def test_a_trial_sends_what_a_turn_sends() -> None:
    """Streamed and with a tool, then the call and its result; in few tokens, and without a picture."""
    trial, (first, second) = await trial_of(with_calls(StrictServer()))
    assert (trial.finding.level, trial.facts) == (FindingLevel.OK, {})
    assert trial.finding.text.startswith("openai/test answered in ")
    for body in (first, second):
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["max_tokens"] <= 256
        assert [each["function"]["name"] for each in body["tools"]] == ["current_time"]
        assert len(json.dumps(body)) < 1_500
    assert first["messages"][0]["role"] == "system"
    said, result = second["messages"][-2:]
    assert said["tool_calls"][0]["id"] == result["tool_call_id"]
    assert result["role"] == "tool"


@pytest.mark.parametrize("rule", [each for each in REFUSALS if each is not R.PICTURES])
async def test_a_lack_is_a_warning_and_is_kept(rule: RequestRule) -> None:
    """The model answers without it; the remedy for tools is in the line."""
    trial, requests = await trial_of(with_calls(StrictServer(rule)))
    assert trial.finding.level is FindingLevel.WARN
    assert ": its server refuses that" in trial.finding.text
    assert list(trial.facts) == [rule.value]
    assert len(requests) <= 3
    assert ("--enable-auto-tool-choice" in trial.finding.text) is (rule is R.TOOLS)


async def test_a_model_that_calls_no_tool_is_a_warning() -> None:
    """Its server takes tools, so nothing is lacking; a model that only thought is not judged."""
    trial, requests = await trial_of(StrictServer())
    assert trial.finding.level is FindingLevel.WARN
    assert "but called no tool when it was asked to" in trial.finding.text
    assert trial.facts == {}
    assert requests[1]["messages"][-1]["role"] == "tool"
    trial, _ = await trial_of(lambda *_: ScriptedAnswer(fault=ModelFault.EMPTY, reasoning="hm", finish="length"))
    assert trial.finding.level is FindingLevel.OK


async def test_a_model_that_writes_its_calls_as_text_is_found(tmp_path: Path) -> None:
    """Its gateway then takes such a call for one, where it only looks; without the trial it does not."""

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        name = body["tools"][0]["function"]["name"]
        is_asked = body["messages"][-1]["role"] == "user" and "time" in str(body["messages"][-1]["content"])
        call = f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
        return ScriptedAnswer(text=call if is_asked else "It is noon.")

    trial, _ = await trial_of(script)
    assert trial.finding.level is FindingLevel.WARN
    assert "wrote its tool call as text" in trial.finding.text
    assert trial.facts == {CALLS_AS_TEXT: ""}
    async with (
        open_server(script) as server,
        gateway(home=tmp_path / "home", environment=settings(server), tools=[clock]) as parlour,
    ):
        [(_, kept_as)] = parlour.app.models.default.names()
        await ModelTrial(trial.finding, kept_as, trial.facts).keep(parlour.app.models.default.facts)
        assert await parlour.channel.ask("c", "what time is it?") == "It is noon."
        assert "12:00 by the clock" in json.dumps(server.requests[-1]["messages"])


async def test_a_server_that_refuses_the_result_of_a_tool_is_found() -> None:
    """Plain answers and calls prove nothing of it."""
    calling = with_calls(StrictServer())

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        if body["messages"][-1]["role"] == "tool":
            return ScriptedAnswer(refusal=(400, '{"error": {"message": "unexpected role"}}'))
        return calling(body, n)

    trial, _ = await trial_of(script)
    assert trial.finding.level is FindingLevel.FAIL
    assert "takes tools, but refuses their results" in trial.finding.text
    assert (trial.model, trial.facts) == ("", {})


@pytest.mark.parametrize("is_call", [False, True], ids=["words", "a call"])
async def test_a_server_that_marks_no_ends_passes_its_trial(is_call: bool) -> None:
    """Neither [DONE] nor a finish reason: the first such end may be a broken one, so the question is asked again."""
    call = {"index": 0, "id": "a", "function": {"name": "current_time", "arguments": "{}"}}
    delta = {"tool_calls": [call]} if is_call else {"content": "It is noon."}

    async def answer(_: web.Request) -> web.Response:
        text = f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    async with answering(answer) as base:
        trial = await try_model(LlmSettings.model_validate({"model": "openai/test", "api_base": base}))
    assert "answered in" in trial.finding.text
    assert trial.finding.level is (FindingLevel.OK if is_call else FindingLevel.WARN)


async def test_a_trial_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly pieces come."""
    monkeypatch.setattr(model_trial, "_MOST_TIMES", 0.01)
    trial, _ = await trial_of(lambda *_: ScriptedAnswer(text="word " * 500, gap=0.05))
    assert "no complete answer" in trial.finding.text
    assert "within 0 s" in trial.finding.text


async def test_what_a_trial_has_shown_is_there_for_the_gateway(tmp_path: Path) -> None:
    """From a doctor without a gateway at its next start, and at once from one beside it; also that tools are back."""
    home, script = tmp_path / "home", StrictServer(R.TOOLS)
    async with open_server(with_calls(script)) as server:
        environment = {"PARLOUR_HOME": str(home), **settings(server), "PARLOUR_WEB__PORT": "0"}

        async def run_doctor() -> list[str]:
            found = [each async for each in collect_findings(environment, is_offline=False, asks_model=True)]
            assert not [each for each in found if each.id == "model.lacks"], "what was believed before the trial"
            return [each.text for each in found if each.id == "model.answers"]

        home.mkdir(mode=0o700)
        assert "without tools" in (await run_doctor())[0]
        assert (home / model_trial.TRIALS).stat().st_mode & 0o777 == 0o600
        refused = script.refused
        async with gateway(home=home, environment=environment) as parlour:
            assert not (home / model_trial.TRIALS).exists()
            await parlour.channel.ask("c", "hi")
            assert script.refused == refused
            script.rules = set()
            assert (await run_doctor())[0].startswith("openai/test answered in ")
            await parlour.channel.ask("c", "hi")
            assert server.requests[-1]["tools"]


async def test_a_file_of_trials_that_is_damaged_stops_no_start(tmp_path: Path) -> None:
    """It is removed; what it had is learned again."""
    learned = LearnedModels()
    for text in ("[", "{}", "[1]", '[{"model": 1}]', '[{"model": "m", "facts": {"window": "x", "other": ""}}]'):
        (tmp_path / model_trial.TRIALS).write_text(text)
        await model_trial.take_over_trials(tmp_path, learned)
        assert learned.facts() == []
        assert not (tmp_path / model_trial.TRIALS).exists()


# -- ten broken servers ----------------------------------------------------------------------------


@asynccontextmanager
async def answering(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve *handle* at every path and yield the address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with serve_app(app, ssl_context=context) as place:
        yield f"http{'s' if context else ''}://{place}/v1"


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """Serve *script* and yield the address."""
    async with open_server(script) as server:
        yield server.base


@asynccontextmanager
async def nothing() -> AsyncIterator[str]:
    """Yield the address of a port where nothing listens."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    yield f"http://127.0.0.1:{port}/v1"


async def not_found(_: web.Request) -> web.StreamResponse:
    """Answer as a server whose API is at another path."""
    return web.Response(status=404, text="404 page not found")


async def web_page(_: web.Request) -> web.StreamResponse:
    """Answer as a web site."""
    return web.Response(text="<html>Welcome</html>", content_type="text/html")


async def hang(_: web.Request) -> web.StreamResponse:
    """Take a request and never answer it."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def break_off(request: web.Request) -> web.StreamResponse:
    """Begin an answer, and close the connection in the middle of it."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "It is"}}]}\n\n')
    assert request.transport is not None
    request.transport.abort()
    return response


def refusing(status: int, message: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return a server that refuses every request with *message*, in which it quotes the key."""

    async def handle(request: web.Request) -> web.StreamResponse:
        sent = request.headers.get("Authorization", "")
        error = {"message": f"{message} ({sent})", "type": "invalid_request_error", "code": None}
        return web.json_response({"error": error}, status=status, headers={"Retry-After": "7"})

    return handle


@asynccontextmanager
async def with_password() -> AsyncIterator[str]:
    """Serve a model behind a proxy that wants a password, and yield the address with it."""
    wanted = f"Basic {base64.b64encode(f'ann:{PASSWORD}'.encode()).decode()}"

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != wanted:
            return web.Response(status=401, text="who are you?")
        return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")

    async with answering(handle) as base:
        yield base.replace("http://", f"http://ann:{PASSWORD}@")


async def findings_of(base: str, home: Path, *, key: str = KEY) -> list[Finding]:
    """Return what the doctor finds of the model at *base*."""
    await asyncio.to_thread(home.mkdir, mode=0o700, exist_ok=True)
    environment = {
        "PARLOUR_HOME": str(home),
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": base,
        "PARLOUR_WEB__PORT": "0",
        **({"PARLOUR_LLM__API_KEY": key} if key else {}),
    }
    found = [each async for each in collect_findings(environment, is_offline=False, asks_model=True)]
    said = " ".join(each.text for each in found)
    assert KEY not in said
    assert PASSWORD not in said
    return found


OVERFLOW = "This model's maximum context length is 100 tokens. However, your messages resulted in 180 tokens."
BROKEN = {
    "nothing listens": (nothing, FindingLevel.FAIL, "nothing answers at http://127.0.0.1:"),
    "bad key": (lambda: answering(refusing(401, "Incorrect API key")), FindingLevel.FAIL, "the key was rejected"),
    "wrong path": (lambda: answering(not_found), FindingLevel.FAIL, "most addresses end in /v1"),
    "web page": (lambda: answering(web_page), FindingLevel.FAIL, "does not answer as a model API does"),
    "no tools": (lambda: scripted(StrictServer(R.TOOLS)), FindingLevel.WARN, "without tools"),
    "no stream": (
        lambda: scripted(with_calls(StrictServer(R.STREAM))),
        FindingLevel.WARN,
        "without streamed answers",
    ),
    "no stream options": (
        lambda: scripted(with_calls(StrictServer(R.STREAM_OPTIONS))),
        FindingLevel.WARN,
        "without token counts",
    ),
    "no system role": (
        lambda: scripted(with_calls(StrictServer(R.SYSTEM))),
        FindingLevel.WARN,
        "without system messages",
    ),
    "a tiny window": (lambda: answering(refusing(400, OVERFLOW)), FindingLevel.FAIL, "its context window"),
    "rate limited": (lambda: answering(refusing(429, "Slow down")), FindingLevel.WARN, "too busy to answer"),
    "hangs": (lambda: answering(hang), FindingLevel.FAIL, "if it is still loading the model, try again"),
    "breaks off": (lambda: answering(break_off), FindingLevel.FAIL, "broke off before its answer was complete"),
    "everything lacks": (
        lambda: scripted(StrictServer(*REFUSALS)),
        FindingLevel.WARN,
        "without streamed answers, token counts of streamed answers, system messages, tools",
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
async def test_the_doctor_names_the_fault_of_a_broken_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In one line with the remedy; the server's own words, which quote the key, are not in it."""
    monkeypatch.setattr(model_trial, "_SECONDS", 1.0 if name == "hangs" else 30.0)
    server, level, words = BROKEN[name]
    async with server() as base:
        found = [each for each in await findings_of(base, tmp_path / "home") if each.id == "model.answers"]
    assert [(each.level, words in each.text) for each in found] == [(level, True)], found


async def test_the_doctor_names_a_certificate_that_signed_itself(tmp_path: Path) -> None:
    """And what makes it trusted."""
    certificate = HostCertificate.of("127.0.0.1", tmp_path)
    async with answering(web_page, certificate.shown()) as base:
        found = {each.id: each for each in await findings_of(base, tmp_path / "home")}
    assert found["model.answers"].level is FindingLevel.FAIL
    assert "self-signed. Set SSL_CERT_FILE" in found["model.answers"].text


async def test_a_password_in_an_address_is_used_and_never_printed(tmp_path: Path) -> None:
    """A server behind a proxy with a password is called with it."""
    async with with_password() as base:
        found = {each.id: each for each in await findings_of(base, tmp_path / "home", key="")}
        assert "HTTP 401" not in found["model.answers"].text
        assert f"at {base.replace(PASSWORD, '***')} fails (HTTP 502)" in found["model.answers"].text
