"""The doctor about the web tools: address rules, the proxy, and the search engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.health.checks import CheckContext
from gateway.health.doctor import collect_findings
from gateway.health.network_checks import check_addresses
from gateway.net import public_http
from gateway.ports.setup import FindingLevel
from gateway.settings import check_settings


async def look(home: Path, **environment: str) -> dict[str, tuple[FindingLevel, str]]:
    """Return what the doctor finds about the web, by id."""
    variables = {
        "PARLOUR_HOME": str(home),
        **{f"PARLOUR_TOOLS__WEB__{name}": each for name, each in environment.items()},
    }
    found = [each async for each in collect_findings(variables, is_offline=False, asks_model=False)]
    return {each.id: (each.level, each.text) for each in found if each.name in ("web", "search")}


async def test_each_address_rule_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form is refused; one that is not is a failure that names it; a proxy is a warning."""
    assert await look(tmp_path) == {
        "web.addresses": (FindingLevel.OK, "web_fetch refuses private addresses (17 of 17 forms)")
    }
    assert await look(tmp_path, FETCH="false") == {}
    rule = public_http.is_public
    monkeypatch.setattr(public_http, "is_public", lambda address: address == "240.0.0.1" or rule(address))
    monkeypatch.setattr(public_http, "_FIRST_BYTE", 0.05)
    level, text = (await look(tmp_path))["web.addresses"]
    assert level is FindingLevel.FAIL
    assert "does not refuse 240.0.0.1 (a reserved address); set" in text
    monkeypatch.undo()
    environment = {"PARLOUR_HOME": str(tmp_path), "PARLOUR_PROXY": "http://127.0.0.1:9"}
    context = CheckContext(report=check_settings(environment), environment=environment)
    refused, warned = await check_addresses(context)
    assert (refused.level, warned.level, warned.id) == (FindingLevel.OK, FindingLevel.WARN, "web.proxy")
    assert "configure it so that it does not reach internal networks, or set PARLOUR_TOOLS__WEB__FETCH=" in warned.text


async def test_the_search_engine_is_asked(tmp_path: Path) -> None:
    """An engine that answers is well; one without its key, or that is down, is a failure that says so."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(
            {"results": [{"url": "https://a.example/", "title": "A"}] if request.query["q"] else []}
        )

    app = web.Application()
    app.router.add_get("/search", answer)
    server = TestServer(app)
    await server.start_server()
    address = f"http://127.0.0.1:{server.port}"
    found = await look(tmp_path, SEARCH="searxng", SEARCH_URL=address)
    assert found["search.answers"] == (FindingLevel.OK, "searxng answers with results")
    await server.close()
    level, text = (await look(tmp_path, SEARCH="searxng", SEARCH_URL=address))["search.answers"]
    assert (level, text) == (
        FindingLevel.FAIL,
        "searxng: the search engine cannot be used: the server cannot be reached; check PARLOUR_TOOLS__WEB__SEARCH_URL,"
        " its key and the engine itself",
    )
    level, text = (await look(tmp_path, SEARCH="brave"))["search.answers"]
    assert level is FindingLevel.FAIL
    assert "set tools.web.search_key" in text


async def test_an_engine_without_results_is_a_warning(tmp_path: Path) -> None:
    """It answers, but the bot finds nothing with it."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"results": []})

    app = web.Application()
    app.router.add_get("/search", answer)
    async with TestServer(app) as server:
        found = await look(tmp_path, SEARCH="searxng", SEARCH_URL=f"http://127.0.0.1:{server.port}")
    level, text = found["search.answers"]
    assert (level, text) == (FindingLevel.WARN, "searxng answers without a result; check the engines it uses")
