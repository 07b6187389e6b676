"""What /healthz, /readyz and /metrics say."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.routing import Route

from gateway.errors import StoreUnavailable
from gateway.web.health import HealthEndpoints
from gateway.web.metrics import DEPTH, METRICS, MetricKind, PrometheusRecorder, metrics_route
from gateway.web.server import WebServer


class FillingJournal:
    """A journal whose disk can fill up; it counts how often it was asked."""

    def __init__(self) -> None:
        self.is_full = False
        self.checks = 0

    async def check(self) -> None:
        """Write once."""
        self.checks += 1
        if self.is_full:
            raise StoreUnavailable("no space left")

    async def depth(self) -> Mapping[str, Any]:
        """Return what waits."""
        if self.is_full:
            raise StoreUnavailable("no space left")
        return {"queued": 3, "oldest_seconds": 1.5, "undelivered": 0, "dead": 1, "unprojected": 2, "news": "ignored"}


@asynccontextmanager
async def served(*routes: Route, public_url: str | None = None) -> AsyncIterator[str]:
    """Serve *routes* and give their address; with a *public_url* there is a proxy on this machine."""
    proxies = ["127.0.0.1"] if public_url else []
    server = WebServer("127.0.0.1", 0, routes, public_url=public_url, trusted_proxies=proxies)
    serving = asyncio.create_task(server.serve())
    await server.wait_started()
    try:
        yield server.url
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


READY: list[tuple[dict[str, bool | None], bool, int, dict[str, Any]]] = [
    ({}, False, 200, {"ready": True, "journal": True, "untried": [], "degraded": []}),
    ({"web": True, "slack": False}, False, 200, {"ready": True, "journal": True, "untried": [], "degraded": ["slack"]}),
    ({"web": True, "slack": None}, False, 503, {"ready": False, "journal": True, "untried": ["slack"], "degraded": []}),
    ({"web": True}, True, 503, {"ready": False, "journal": False, "untried": [], "degraded": []}),
]


@pytest.mark.parametrize(("channels", "is_full", "status", "body"), READY, ids=["none", "degraded", "untried", "full"])
async def test_ready_is_a_writable_journal_and_every_channel_tried(
    channels: dict[str, bool | None], is_full: bool, status: int, body: dict[str, Any]
) -> None:
    """A degraded channel is named and takes no traffic away; an unwritable journal does."""
    journal = FillingJournal()
    journal.is_full = is_full
    health = HealthEndpoints(check=journal.check, channels=lambda: channels)
    async with served(*health.routes()) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}readyz") as answer:
            assert (answer.status, await answer.json()) == (status, body)
        async with session.get(f"{url}healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"alive": True})


async def test_asking_often_writes_once_a_second() -> None:
    """A probe in a loop is no load on the disk; after a second the truth is asked for again."""
    journal, seconds = FillingJournal(), [0.0]
    health = HealthEndpoints(check=journal.check, channels=dict, clock=lambda: seconds[0])
    answers = await asyncio.gather(*(health.readiness() for _ in range(50)))
    assert all(ready for ready, _ in answers)
    assert journal.checks == 1
    journal.is_full = True
    seconds[0] = 1.0
    assert not (await health.readiness())[0]
    journal.is_full = False
    seconds[0] = 2.0
    assert (await health.readiness())[0]


async def test_metrics_show_what_was_counted_and_what_waits() -> None:
    """Counters, timings and the journal's depth at the moment of the scrape, in Prometheus' text format."""
    meter, journal = PrometheusRecorder(strict=True), FillingJournal()
    meter.count("accepted", outcome="duplicate")
    meter.count("model_tokens", 120, direction="in")
    meter.time("turn_seconds", 0.2)
    async with served(metrics_route(meter, journal.depth)) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = (await answer.text()).splitlines()
        for line in (
            'parlour_accepted_total{outcome="duplicate"} 1.0',
            'parlour_model_tokens_total{direction="in"} 120.0',
            "parlour_turn_seconds_count 1.0",
            "parlour_queue_age_seconds 1.5",
            "parlour_queued 3.0",
            "parlour_dead_letters 1.0",
        ):
            assert line in lines
        # When the journal is down, the rest is worth reading more than ever.
        journal.is_full = True
        async with session.get(f"{url}metrics") as answer:
            assert answer.status == 200


TOKEN = "a-token-for-prometheus"
SCRAPES = [
    ("this machine", {}, 200),
    ("this machine, by a name", {"Host": "localhost:8787"}, 200),
    ("through a proxy", {"Host": "chat.example.org", "X-Forwarded-For": "203.0.113.9"}, 401),
    ("through a proxy that names nobody", {"Host": "chat.example.org"}, 401),
    ("through a proxy that keeps the name to itself", {"Via": "1.1 front"}, 401),
    ("forged", {"Host": "chat.example.org", "X-Forwarded-For": "127.0.0.1"}, 401),
    ("with the token", {"Host": "chat.example.org", "Authorization": f"Bearer {TOKEN}"}, 200),
    ("with another token", {"Host": "chat.example.org", "Authorization": f"Bearer {TOKEN}s"}, 401),
    ("with none", {"Host": "chat.example.org", "Authorization": "Bearer "}, 401),
]


@pytest.mark.parametrize(("name", "headers", "status"), SCRAPES)
@pytest.mark.parametrize("token", [TOKEN, ""])
async def test_metrics_are_for_this_machine_and_for_the_token(
    name: str, headers: dict[str, str], status: int, token: str
) -> None:
    """With a public address, nobody from elsewhere reads how much is said here; without a token none is right."""
    route = metrics_route(PrometheusRecorder(), FillingJournal().depth, token=token)
    async with (
        served(route, public_url="https://chat.example.org") as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}metrics", headers=headers) as answer,
    ):
        assert answer.status == (status if token or "Authorization" not in headers else 401), name


def reported_figures() -> set[tuple[str, str, frozenset[str]]]:
    """Return kind, name and labels of every figure that the three packages report."""
    found = set()
    for package in ("gateway", "channels", "agent"):
        for path in (Path(__file__).resolve().parents[3] / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=kind),
                        args=[ast.Constant(value=str(name)), *_],
                        keywords=labels,
                    ) if owner.endswith("meter") and hasattr(PrometheusRecorder, kind):  # not the SDK's meter
                        found.add((kind, name, frozenset(str(label.arg) for label in labels)))
    return found


def test_what_is_reported_is_what_the_table_holds() -> None:
    """A figure nobody listed would be dropped, and one nobody reports would stand at nought for ever."""
    listed = {(str(metric.kind), metric.name, frozenset(metric.labels)) for metric in METRICS}
    reported = reported_figures()
    assert reported - listed == set()
    assert {name for _, name, _ in listed - reported} == set(DEPTH.values())


def test_every_metric_of_the_table_works() -> None:
    """Each row can be counted as its kind, with its labels; names are the gateway's, once each."""
    meter = PrometheusRecorder(strict=True)
    methods = {MetricKind.COUNT: meter.count, MetricKind.GAUGE: meter.gauge, MetricKind.TIME: meter.time}
    for metric in METRICS:
        methods[metric.kind](metric.name, 1, **dict.fromkeys(metric.labels, "x"))
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert meter.text()


@pytest.mark.parametrize(
    ("name", "labels"), [("no_such", {}), ("turns", {}), ("turns", {"chat": "42"}), ("queued", {})]
)
def test_an_unknown_name_is_a_bug_in_tests_and_no_failure_in_a_turn(name: str, labels: dict[str, str]) -> None:
    """Wrong name, labels or kind: KeyError where we look, dropped where people wait."""
    with pytest.raises(KeyError):
        PrometheusRecorder(strict=True).count(name, **labels)
    PrometheusRecorder().count(name, **labels)
