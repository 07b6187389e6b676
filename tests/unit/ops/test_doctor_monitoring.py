"""The doctor about what watches the gateway: the alert webhook and the collector of OpenTelemetry."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from gateway.health.checks import CheckContext
from gateway.health.network_checks import check_collector, check_webhook
from gateway.ports.setup import FindingLevel
from gateway.settings import check_settings
from tests.fakes.loopback import serve_app
from tests.fakes.otlp_receiver import open_receiver

OK, WARN = FindingLevel.OK, FindingLevel.WARN


async def look(home: Path, **environment: str) -> tuple[FindingLevel, str, str]:
    """Return the one line that the doctor says."""
    variables = {"PARLOUR_HOME": str(home), **environment}
    ours = {name: value for name, value in variables.items() if name.startswith("PARLOUR_")}
    context = CheckContext(report=check_settings(ours), environment=variables)
    (found,) = [*await check_webhook(context), *await check_collector(context)]
    return found.level, found.id, found.text


async def test_the_webhook_is_asked_for_nothing(tmp_path: Path) -> None:
    """Any answer will do; no alert and no sign of life arrives."""
    methods: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        methods.append(request.method)
        raise web.HTTPMethodNotAllowed(request.method, ["POST"])

    app = web.Application()
    app.router.add_route("*", "/hook", answer)
    async with serve_app(app) as place:
        level, ident, _ = await look(tmp_path, PARLOUR_ALERT_URL=f"http://{place}/hook")
    assert (level, ident, methods) == (OK, "alerts.webhook", ["OPTIONS"])


@pytest.mark.parametrize("place", ["127.0.0.1:9", "nowhere.invalid"])
async def test_a_webhook_that_is_not_there_is_named_without_its_address(tmp_path: Path, place: str) -> None:
    """The address is a secret."""
    level, ident, text = await look(tmp_path, PARLOUR_ALERT_URL=f"http://{place}/secret")
    assert (level, ident) == (WARN, "alerts.webhook")
    assert "PARLOUR_ALERT_URL cannot be reached (ClientConnector" in text
    assert "secret" not in text
    assert place not in text


@pytest.mark.parametrize("address", ["hooks.example/x", "https://", "https://a:99999/", "https://a b/"])
def test_a_webhook_that_is_no_address_is_a_mistake_of_the_settings(tmp_path: Path, address: str) -> None:
    """A start ends with the same line."""
    report = check_settings({"PARLOUR_HOME": str(tmp_path), "PARLOUR_ALERT_URL": address})
    assert report.mistakes == ("PARLOUR_ALERT_URL must be a complete address starting with https:// or http://",)


async def test_the_collector_is_sent_nothing_and_accepts_it(tmp_path: Path) -> None:
    """By either variable, with the headers that are set."""
    async with open_receiver() as receiver:
        for name, end in ("OTEL_EXPORTER_OTLP_ENDPOINT", "/"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/v1/traces"):
            level, ident, text = await look(tmp_path, PARLOUR_OTEL__ENABLED="true", **{name: f"{receiver.base}{end}"})
            assert (level, ident) == (OK, "otel.collector"), text
        assert receiver.spans == []
        assert receiver.bytes == b""


async def test_a_wrong_collector_is_named(tmp_path: Path) -> None:
    """One that is no address, one that is not there, one with another path, one that wants a key."""

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers.get("x-key") == "a b" else 401)

    app = web.Application()
    app.router.add_post("/v1/traces", refuse)
    async with serve_app(app) as place:
        for endpoint, wrong, mend in (
            ("localhost:4318", "is not an address", "http://localhost:4318"),
            ("http://127.0.0.1:9", "cannot be reached (ClientConnectorError)", "by default port 4318"),
            (f"http://{place}/v1/traces", "answers with status 404", "correct OTEL_EXPORTER_OTLP_ENDPOINT"),
            (f"http://u:hidden@{place}", "answers with status 401", "correct OTEL_EXPORTER_OTLP_HEADERS"),
        ):
            level, ident, text = await look(
                tmp_path, PARLOUR_OTEL__ENABLED="true", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint
            )
            assert (level, ident) == (WARN, "otel.collector")
            assert wrong in text
            assert mend in text
            assert "hidden" not in text
        right = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{place}", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"}
        assert (await look(tmp_path, PARLOUR_OTEL__ENABLED="true", **right))[0] is OK
