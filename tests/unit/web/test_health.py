"""What /healthz, /readyz and /metrics say."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psycopg
import pytest
import structlog
from starlette.routing import Route

from gateway.errors import StoreUnavailable
from gateway.health.gateway_checks import readiness
from gateway.store_watcher import CALM, StoreState, StoreWatcher
from gateway.web.metrics import DEPTH, METRICS, OF_STORE, MetricKind, PrometheusRecorder, metrics_route, record_depth
from gateway.web.server import HealthEndpoints, WebServer
from tests.fakes.clock import VirtualClock


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
        return {"queued": 3, "oldest_seconds": 1.5, "undelivered": 0, "dead": 1, "unwritten": 2, "news": "ignored"}


def watch(journal: FillingJournal, meter: PrometheusRecorder | None = None) -> StoreWatcher:
    """Return a watcher of *journal* with the gauges of *meter*."""
    recorder = meter or PrometheusRecorder(strict=True)

    async def record_gauges() -> None:
        record_depth(recorder, await journal.depth())

    return StoreWatcher(
        journal.check,
        record_gauges,
        forget_gauges=lambda: recorder.forget(*OF_STORE),
        meter=recorder,
        now=lambda: datetime.now(UTC),
        deadline=timedelta(seconds=0.05),
    )


def watched(store: Any, channels: Mapping[str, bool | None]) -> Any:
    """Return as much of a gateway as /readyz reads."""
    return SimpleNamespace(store_watcher=store, supervisor=SimpleNamespace(shard_states=lambda: channels))


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
    watcher = watch(journal)
    await watcher.measure()
    health = HealthEndpoints(partial(readiness, watched(watcher, channels)))
    async with served(*health.routes()) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}readyz") as answer:
            assert (answer.status, await answer.json()) == (status, body)
        async with session.get(f"{url}healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"alive": True})


async def test_asking_writes_nothing() -> None:
    """A probe in a loop is no load on the disk: it reads the last measurement, and before the first is not ready."""
    journal = FillingJournal()
    watcher = watch(journal)
    app = watched(watcher, {})
    assert not readiness(app)[0]
    for is_full in (False, True, False):
        journal.is_full = is_full
        await watcher.measure()
        assert [readiness(app)[0] for _ in range(5)] == [not is_full] * 5
    assert journal.checks == 3


async def test_metrics_show_what_was_counted_and_what_waits() -> None:
    """Counters, timings and the journal's depth at the moment of the scrape, in Prometheus' text format."""
    meter, journal = PrometheusRecorder(strict=True), FillingJournal()
    meter.count("accepted", outcome="duplicate")
    meter.count("model_tokens", 120, direction="in")
    meter.time("turn_seconds", 0.2)
    watcher = watch(journal, meter)
    await watcher.measure()
    async with served(metrics_route(meter)) as url, aiohttp.ClientSession() as session:
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
            "parlour_store_writable 1.0",
        ):
            assert line in lines
        # When the journal is down, the rest is worth reading more than ever; what it holds is unknown, and is not 0.
        journal.is_full = True
        await watcher.measure()
        async with session.get(f"{url}metrics") as answer:
            assert answer.status == 200
            text = await answer.text()
        assert "parlour_store_writable 0.0" in text.splitlines()
        assert "parlour_turn_seconds_count 1.0" in text
        assert not re.search(r"parlour_(queue|undelivered|dead_letters|transcripts|jobs_(waiting|running))", text)
        journal.is_full = False
        await watcher.measure()
        async with session.get(f"{url}metrics") as answer:
            assert "parlour_queued 3.0" in (await answer.text()).splitlines()


async def test_a_store_that_hangs_is_known_within_the_deadline() -> None:
    """One write waits, however long it hangs; a line a minute names the cause; the outage is kept for the alert."""
    released, began, at = asyncio.Event(), 0, datetime(2026, 11, 28, tzinfo=UTC)

    async def hang() -> None:
        nonlocal began
        began += 1
        await released.wait()

    async def nothing() -> None:
        pass

    watcher = StoreWatcher(
        hang, nothing, meter=PrometheusRecorder(strict=True), now=lambda: at, deadline=timedelta(seconds=0.05)
    )
    with structlog.testing.capture_logs() as lines:
        assert not (await watcher.measure()).is_writable
        for _ in range(2):
            at += timedelta(seconds=40)
            state = await watcher.measure()
        assert (state.is_writable, "hangs" in state.cause, began) == (False, True, 1)
        released.set()
        at += timedelta(seconds=1)
        assert (await watcher.measure()).is_writable
        assert not watcher.outages  # it may go on
        at += CALM
        await watcher.measure()
    assert [each["event"] for each in lines] == ["store.unwritable"] * 2 + ["store.writable"]
    (outage,) = watcher.outages
    assert outage.until - outage.since == timedelta(seconds=81)


class SlowStore:
    """A store whose writes take *seconds*, and raise *error*."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds = seconds
        self.error = error

    async def check(self) -> None:
        """Write once."""
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error

    async def record_gauges(self) -> None:
        """Read what is stored."""


def watch_slow(store: SlowStore, clock: VirtualClock) -> StoreWatcher:
    """Return a watcher of *store* in virtual time."""
    return StoreWatcher(store.check, store.record_gauges, meter=PrometheusRecorder(strict=True), now=clock.now)


async def test_a_store_that_answers_too_late_each_time_does_not_flip(clock: VirtualClock) -> None:
    """A write of six seconds is no sign that the store can be written: it stays unwritable, with one line a minute."""
    store = SlowStore(seconds=6)
    watcher = watch_slow(store, clock)
    seen = []
    with structlog.testing.capture_logs() as lines:
        watching = asyncio.create_task(watcher.run())
        for _ in range(55):
            await asyncio.sleep(1)
            seen.append(watcher.state is not None and watcher.state.is_writable)
        store.seconds = 0
        await asyncio.sleep(15)
        watching.cancel()
    assert not any(seen)
    assert [each["event"] for each in lines] == ["store.unwritable", "store.writable"]
    assert watcher.state is not None
    assert watcher.state.is_writable


async def test_a_store_that_flaps_is_one_outage_and_a_line_a_minute(clock: VirtualClock) -> None:
    """`/readyz` follows each change; the log and the alert do not."""
    store = SlowStore()
    watcher = watch_slow(store, clock)
    changes = set()
    with structlog.testing.capture_logs() as lines:
        watching = asyncio.create_task(watcher.run())
        for n in range(150):
            store.error = StoreUnavailable("the connection was lost") if n % 5 else None
            await asyncio.sleep(1)
            changes.add(watcher.state is not None and watcher.state.is_writable)
        store.error = None
        await asyncio.sleep(30)
        watching.cancel()
    assert changes == {True, False}
    assert sum(each["event"] == "store.unwritable" for each in lines) == 3
    (outage,) = watcher.outages
    assert 145 <= (outage.until - outage.since).total_seconds() <= 152


async def test_an_unforeseen_error_of_the_store_is_a_cause_and_not_the_end(clock: VirtualClock) -> None:
    """A database whose tables were taken from our role cannot be written; the watcher goes on."""
    store = SlowStore(error=psycopg.errors.InsufficientPrivilege("permission denied for table meta"))
    watcher = watch_slow(store, clock)
    watching = asyncio.create_task(watcher.run())
    await asyncio.sleep(3)
    assert watcher.state is not None
    assert (watcher.state.is_writable, watcher.state.cause) == (False, "permission denied for table meta")
    store.error = None
    await asyncio.sleep(3)
    assert watcher.state.is_writable
    watching.cancel()


FOREIGN = ["10.1.2.3:8787", "parlour:8787", "parlour.default.svc", "chat.evil.example", ""]


@pytest.mark.parametrize("host", FOREIGN)
async def test_probes_answer_to_any_name_with_a_bare_word(host: str) -> None:
    """A load balancer asks by an address or a service name; a foreign page that was pointed here learns nothing."""
    state = StoreState(is_writable=True, since=datetime.now(UTC))
    channels: dict[str, bool | None] = {"secret-name": False}
    health = HealthEndpoints(partial(readiness, watched(SimpleNamespace(state=state), channels)))
    routes = [*health.routes(), Route("/other", health.routes()[0].endpoint), metrics_route(PrometheusRecorder())]
    async with served(*routes) as url, aiohttp.ClientSession() as session:
        for path, word in (("healthz", "alive\n"), ("readyz", "ready\n")):
            async with session.get(f"{url}{path}", headers={"Host": host}) as answer:
                assert (answer.status, await answer.text(), answer.cookies) == (200, word, {})
                assert answer.headers["Content-Type"].startswith("text/plain")
            async with session.get(f"{url}{path}", headers={"Host": host, "Origin": "https://evil.example"}) as answer:
                assert answer.status == 403
            async with session.post(f"{url}{path}", headers={"Host": host}) as answer:
                assert answer.status == 421
        channels["secret-name"] = None
        async with session.get(f"{url}readyz", headers={"Host": host}) as answer:
            assert (answer.status, await answer.text()) == (503, "not ready\n")
        for path in ("other", "metrics"):
            async with session.get(f"{url}{path}", headers={"Host": host}) as answer:
                assert answer.status == 421


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_scraper_with_the_token_may_use_any_name(host: str) -> None:
    """Prometheus asks by the target's address; without the right token, rebinding is refused as before."""
    async with (
        served(metrics_route(PrometheusRecorder(), token=TOKEN)) as url,
        aiohttp.ClientSession() as session,
    ):
        for given, status in ((f"Bearer {TOKEN}", 200), (f"Bearer {TOKEN}s", 421), ("Bearer ", 421), ("", 421)):
            headers = {"Host": host, **({"Authorization": given} if given else {})}
            async with session.get(f"{url}metrics", headers=headers) as answer:
                assert answer.status == status, given


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
    route = metrics_route(PrometheusRecorder(), token=token)
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
