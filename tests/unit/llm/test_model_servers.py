"""Model servers of this machine and at an address: what they list is bounded, cleaned, and told apart when it fails."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from gateway.app import model_trial
from gateway.app.model_trial import ListProblem, find_local_servers, list_models_at, list_provider_models
from tests.fakes.gateway import free_port
from tests.fakes.loopback import RequestHandler, serve_app

KEY = "sk-canary-of-a-list-0123456789"


def listing(*names: object, **more: Any) -> RequestHandler:
    """Return a server that lists *names* at every path."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": name, **more} for name in names]})

    return answer


def use_ports(monkeypatch: pytest.MonkeyPatch, servers: Mapping[str, str]) -> None:
    """Look for the local servers at these places instead of their usual ports."""
    monkeypatch.setattr(
        model_trial, "LOCAL_SERVERS", {name: int(at.rpartition(":")[2]) for name, at in servers.items()}
    )


async def test_the_usual_places_are_the_published_ports_of_loopback() -> None:
    """Nothing but these three ports is looked at."""
    assert model_trial.LOCAL_SERVERS == {"Ollama": 11434, "LM Studio": 1234, "llama.cpp": 8080}


async def test_servers_that_answer_are_found_beside_those_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lists models, one has none yet, one is a web page, one hangs and one is down: it takes about a second."""

    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>", content_type="text/html")

    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        serve_app(listing("qwen3:4b", "nomic-embed-text")) as ollama,
        serve_app(listing()) as empty,
        serve_app(page) as other,
        serve_app(hang, handler_cancellation=True) as slow,
    ):
        down = f"127.0.0.1:{free_port()}"
        places = {"Ollama": ollama, "LM Studio": empty, "llama.cpp": other, "slow": slow, "down": down}
        use_ports(monkeypatch, places)
        began = time.monotonic()
        found = await find_local_servers()
        assert time.monotonic() - began < 20  # a second, and a busy machine; the one that hangs never answers
    assert [(each.title, each.models.api_base, list(each.models.chat_names)) for each in found] == [
        ("Ollama", f"http://{ollama}/v1", ["qwen3:4b"]),
        ("LM Studio", f"http://{empty}/v1", []),
    ]


@pytest.mark.parametrize("is_contained", [True, False])
async def test_nothing_but_this_machine_is_asked(monkeypatch: pytest.MonkeyPatch, *, is_contained: bool) -> None:
    """Loopback, and in a container, whose loopback is its own, the host as well."""
    asked: list[str] = []

    async def fetch(base: str, *_: object, **__: object) -> model_trial.ModelList:
        asked.append(base)
        return model_trial.ModelList(base, problem=ListProblem.UNREACHABLE)

    monkeypatch.setattr(model_trial, "in_container", lambda _: is_contained)
    monkeypatch.setattr(model_trial, "_fetch_list", fetch)
    assert list(await find_local_servers()) == []
    hosts = ["host.docker.internal", "127.0.0.1"] if is_contained else ["127.0.0.1"]
    assert asked == [f"http://{host}:{port}/v1" for host in hosts for port in (11434, 1234, 8080)]


async def test_a_redirect_is_not_followed() -> None:
    """A server cannot make the gateway ask another one, or send it the key."""
    asked: list[str] = []

    async def target(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response({"data": [{"id": "stolen"}]})

    async with serve_app(target) as other:

        async def redirect(_: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"http://{other}/v1/models")

        async with serve_app(redirect) as place:
            found = await list_models_at(f"http://{place}/v1", KEY)
    assert (found.problem, list(found.names), asked) == (ListProblem.NO_LIST, [], [])


async def test_a_list_without_end_is_given_up() -> None:
    """The bytes are bounded, and the connection is closed."""
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        while sent < 100_000_000:
            await answer.write(b" " * 1_000_000)
            sent += 1_000_000
        return answer

    async with serve_app(flood, handler_cancellation=True) as place:
        found = await list_models_at(f"http://{place}/v1", "")
    assert found.problem is ListProblem.NO_LIST
    assert sent < 30_000_000


async def test_names_are_plain_text_of_chat_models() -> None:
    """Control characters, blanks, long names, duplicates, other types and models of another use are left out."""
    names = ["<img src=x>", "<img/src=x/onerror=alert(1)>", "a\x1b[31mb", "x" * 201, "ok", "ok", 7, None, ["list"]]
    names += ["text-embedding-3-small", "whisper-1", "gpt-4o-mini-tts", "dall-e-3", "gemini-2.5-flash-image"]
    async with serve_app(listing(*names)) as place:
        found = await list_models_at(f"http://{place}", "")
    assert list(found.chat_names) == ["<img/src=x/onerror=alert(1)>", "ok"]


async def test_at_most_a_thousand_names_come_the_newest_first() -> None:
    """The order is that of `created`; a list without it keeps its own."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": f"m{n}", "created": n} for n in range(1100)]})

    async with serve_app(answer) as place:
        found = await list_models_at(f"http://{place}", "")
    assert (len(found.names), found.names[0]) == (1000, "m1099")


@pytest.mark.parametrize(
    "body", ["[]", "7", "null", '{"data": 7}', '{"data": null}', "{", "[" * 100_000, '{"data": "text"}'], ids=str
)
async def test_another_body_is_no_list(body: str) -> None:
    """Whatever a server answers, there are names or a reason why there are none."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=body, content_type="application/json")

    async with serve_app(answer) as place:
        found = await list_models_at(f"http://{place}/v1", "")
    assert found.problem in (ListProblem.NO_LIST, ListProblem.EMPTY)


async def test_an_address_is_completed_and_a_key_is_sent_as_its_provider_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`/v1` is found where the address lacks it; Anthropic takes `x-api-key`; a wrong key is told from no server."""
    headers: list[Mapping[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        headers.append(dict(request.headers))
        if KEY not in (request.headers.get("x-api-key", ""), request.headers.get("Authorization", "")[7:]):
            return web.json_response({"error": "no"}, status=401)
        if request.path != "/v1/models":
            return web.json_response({"error": "not found"}, status=404)
        return web.json_response({"data": [{"id": "models/a"}, {"id": "b"}]})

    async with serve_app(answer) as place:
        found = await list_models_at(f"http://{place}/", KEY)
        assert (found.api_base, list(found.names)) == (f"http://{place}/v1", ["models/a", "b"])
        assert (await list_models_at(f"http://{place}/v1", "")).problem is ListProblem.KEY
        assert (await list_models_at(f"http://{place}/v1", "not a\nheader")).problem is ListProblem.UNREACHABLE
        for name in ("anthropic", "openai"):
            provider = model_trial.KnownProvider(name, name, f"http://{place}/v1", "")
            found = await list_provider_models(provider, KEY)
            assert (found.api_base, list(found.names)) == ("", [f"{name}/a", f"{name}/b"])
    assert headers[-2]["x-api-key"] == KEY
    assert "Authorization" not in headers[-2]
    assert json.dumps(headers[-1]).count(KEY) == 1
    assert (await list_models_at(f"http://127.0.0.1:{free_port()}/v1", "")).problem is ListProblem.UNREACHABLE
