"""What tells the operator while the database hangs, is locked or is away: in seconds, with the cause, and truly."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from aiohttp import web

from gateway.alerts import alert_sources, monitor
from gateway.store_watcher import DEADLINE
from tests.e2e.alerts.test_alerts_wire import within
from tests.e2e.test_postgres_gateway import settings
from tests.fakes.gateway import GatewayProcess, free_port, gateway
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.inprocess_gateway import gateway as inprocess
from tests.fakes.loopback import serve_app
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.telegram_server import open_telegram
from tests.faults.process_pool import ForkServer

TOLD = DEADLINE.total_seconds() + 30  # seconds until every signal says so
ANSWERED = 4.0  # seconds that a signal may take to answer, less than the store's deadline
STORE_GAUGES = r"^parlour_(queued|queue_age_seconds|undelivered|dead_letters|transcripts_pending|jobs_waiting)\b"


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server of our own with empty tables."""
    if not postgres.is_ours:
        pytest.skip("another server cannot be stopped")
    postgres.empty()
    return postgres


@contextmanager
def locked(server: PostgresServer) -> Any:
    """Hold a lock on the tables, as a DBA's maintenance does."""
    with closing(psycopg.connect(server.url)) as session:
        session.execute("LOCK TABLE meta, inbox, outbox, schema_version IN ACCESS EXCLUSIVE MODE")
        yield


@contextmanager
def away(server: PostgresServer) -> Any:
    """Kill the server, and start it again at the end."""
    server.kill()
    try:
        yield
    finally:
        server.start()


TROUBLES: dict[str, tuple[Callable[[PostgresServer], Any], str]] = {
    "hangs": (lambda server: server.hanging(), "has not answered"),
    "locked": (locked, "has not answered"),
    # At first the lost session, a second later the server that no new one reaches.
    "away": (away, "cannot be used|server closed the connection"),
}


@asynccontextmanager
async def asking(process: GatewayProcess) -> AsyncIterator[Callable[[str], Any]]:
    """Yield a call that returns status and text of a path, and fails if that takes long."""
    async with aiohttp.ClientSession(process.url) as session:

        async def ask(path: str) -> tuple[int, str]:
            async with asyncio.timeout(ANSWERED), session.get(path) as answer:
                return answer.status, await answer.text()

        yield ask


async def until(ask: Callable[[str], Any], path: str, is_told: Callable[[int, str], bool], within: float) -> float:
    """Return after how many seconds the answer was the wanted one."""
    began = time.monotonic()
    while not is_told(*(found := await ask(path))):
        assert time.monotonic() - began < within, found
        await asyncio.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_every_signal_tells_that_the_store_is_the_trouble(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer, trouble: str
) -> None:
    """`/readyz`, `/metrics`, `status`, `doctor` and the log answer at once and name the cause; afterwards all is well.

    What is stored is unknown then: no gauge says 0.
    """
    bring, cause = TROUBLES[trouble]
    figures: dict[str, float] = {}
    async with gateway(tmp_path / "home", zygote, **settings(server)) as process, asking(process) as ask:
        assert (await ask("/readyz"))[0] == 200
        assert re.search(STORE_GAUGES, (await ask("/metrics"))[1], re.MULTILINE)
        with bring(server):
            figures["readyz"] = await until(ask, "/readyz", lambda status, _: status == 503, TOLD)
            status, text = await ask("/metrics")
            assert (status, "parlour_store_writable 0.0" in text.splitlines()) == (200, True)
            assert not re.search(STORE_GAUGES, text, re.MULTILINE)
            assert (await ask("/healthz"))[0] == 200
            for words in (("status",), ("status", "--json")):
                began = time.monotonic()
                code, printed = await process.run_to_its_end(*words)
                figures["status"] = time.monotonic() - began
                assert (code, bool(re.search(cause, printed))) == (0, True), printed
            store = json.loads(printed)["store"]
            assert store["writable"] is False
            began = time.monotonic()
            code, printed = await process.run_to_its_end("doctor", "--json")
            figures["doctor"] = time.monotonic() - began
            assert code == 2
            found = [json.loads(line) for line in printed.splitlines()]
            assert any(line["id"] == "store.writable" and re.search(cause, line["text"]) for line in found), printed
            assert figures["doctor"] < 25, figures
            await process.wait_logged("store.unwritable")
        figures["back"] = await until(ask, "/readyz", lambda status, _: status == 200, 15)
        _, text = await ask("/metrics")
        assert "parlour_store_writable 1.0" in text.splitlines()
        assert re.search(STORE_GAUGES, text, re.MULTILINE)
        print(trouble, {name: round(value, 1) for name, value in figures.items()})
    lines = [json.loads(line) for line in process.log if "store.unwritable" in line]
    assert len(lines) == 1  # a line a minute
    assert re.search(cause, lines[0]["cause"])


@pytest.fixture
async def webhook() -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Serve a monitoring service; yield its address and what it gets."""
    bodies: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.Response()

    async with serve_app(take) as place:
        yield f"http://{place}/", bodies


async def test_owners_are_told_past_the_store(
    tmp_path: Path,
    server: PostgresServer,
    webhook: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each owner reads the cause in their own chat while it lasts, once, and that it is over; so does the webhook."""
    for module in (monitor, alert_sources):
        monkeypatch.setattr(module, "STORE_AFTER", timedelta(seconds=1))
    address, bodies = webhook
    async with open_telegram() as telegram:
        telegram.chat(42, "private")
        environment = settings(server) | {
            "PARLOUR_CHANNELS__TELEGRAM__TOKEN": telegram.token,
            "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": f"{telegram.base}/bot",
            "PARLOUR_CHANNELS__TELEGRAM__FILE_URL": f"{telegram.base}/file/bot",
            "PARLOUR_OWNERS": "telegram:42",
            "PARLOUR_ALERT_URL": address,
        }
        async with inprocess(home=tmp_path / "home", model=InstantModel(), environment=environment) as parlour:
            await within(20, lambda: bool(parlour.app.supervisor.states()["telegram"]))
            await within(20, lambda: bool(parlour.app.alerts.store_notifier.addresses))
            with server.hanging():
                await within(20, lambda: any("Nothing can be stored since" in line for line in telegram.shown(42)))
                await within(5, lambda: any(each.get("cause") == "store" for each in bodies))
                assert any("has not answered" in line for line in telegram.shown(42))
            await within(60, lambda: any("nothing could be stored" in line for line in telegram.shown(42)))
            await within(5, lambda: any(each.get("state") == "resolved" for each in bodies if "cause" in each))
        told = [line for line in telegram.shown(42) if "stored" in line]
    assert len(told) == 2
    firing, resolved = [each for each in bodies if each.get("cause") == "store" and each["kind"] == "alert"]
    assert (firing["state"], resolved["state"], firing["level"]) == ("firing", "resolved", "critical")
    assert "has not answered" in firing["text"]


@pytest.fixture
def small_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PostgresServer, Path]]:
    """Run a server whose data is on a small disk of its own."""
    disk = Path(tempfile.mkdtemp(prefix="parlour-disk-"))
    try:
        subprocess.run(("mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", disk), check=True, capture_output=True)  # noqa: S603, S607
    except (OSError, subprocess.CalledProcessError):
        disk.rmdir()
        pytest.skip("this test may mount nothing")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(disk))
            disk.chmod(0o755)
            server = PostgresServer()
        try:
            server.start()
            yield server, disk
        finally:
            server.close()
    finally:
        subprocess.run(("umount", "--lazy", disk), check=False)  # noqa: S603, S607
        disk.rmdir()


async def test_a_full_disk_of_the_database_does_not_flip(
    tmp_path: Path, small_server: tuple[PostgresServer, Path], zygote: ForkServer
) -> None:
    """A small write still succeeds there while messages are refused: `/readyz` stays at 503, with the cause."""
    server, disk = small_server
    async with gateway(tmp_path / "home", zygote, **settings(server)) as process, asking(process) as ask:
        assert (await ask("/readyz"))[0] == 200
        ballast = disk / "ballast"
        fill(ballast)
        text = secrets.token_hex(400_000)  # more than the tables have space for
        began = time.monotonic()
        while (await ask("/readyz"))[0] == 200:
            assert time.monotonic() - began < 60
            await process.run_to_its_end("send", "web:owner", text)
        seen = set()
        for _ in range(50):
            seen.add((await ask("/readyz"))[0])
            await asyncio.sleep(0.1)
        assert seen == {503}
        assert "No space left" in (await process.run_to_its_end("status"))[1]
        ballast.unlink()


def fill(ballast: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65_536))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda url: url.replace("user=parlour", "user=nobody_here"), 'role "nobody_here" does not exist'),
        (
            lambda url: re.sub(r"postgresql:///\w+", "postgresql:///none_such", url),
            'database "none_such" does not exist',
        ),
    ],
    ids=["role", "database"],
)
async def test_a_permanent_mistake_of_the_address_ends_with_2(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer, change: Callable[[str], str], told: str
) -> None:
    """A service manager must not start it again; a server that cannot be reached is another matter."""
    process = GatewayProcess(tmp_path / "home", free_port(), zygote, PARLOUR_STORE__URL=change(server.address))
    code, printed = await process.run_to_its_end("run")
    assert (code, told in printed, "Traceback" in printed) == (2, True, False), printed
    process.environment["PARLOUR_STORE__URL"] = "postgresql://127.0.0.1:1/none"
    assert (await process.run_to_its_end("run"))[0] == 1


async def test_a_changed_address_file_is_read_for_the_next_session(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """A password is rotated: after the sessions are cut, the gateway reconnects with what the file has now."""
    for role in ("first_one", "second_one"):
        server.query(f"DROP ROLE IF EXISTS {role}")
        server.query(f"CREATE ROLE {role} LOGIN SUPERUSER")
    file = tmp_path / "url"
    file.write_text(server.address.replace("user=parlour", "user=first_one"))
    async with gateway(tmp_path / "home", zygote, PARLOUR_STORE__URL_FILE=str(file)) as process, asking(process) as ask:
        server.query("ALTER ROLE first_one NOLOGIN")
        file.write_text(server.address.replace("user=parlour", "user=second_one"))
        server.cut()
        await process.wait_logged("store.reopened")
        await until(ask, "/readyz", lambda status, _: status == 200, 15)
        assert await process.stop() == 0


async def test_an_unreachable_platform_does_not_hold_the_others_up(tmp_path: Path, zygote: ForkServer) -> None:
    """A platform that takes connections and never answers is degraded after ten seconds, and `/readyz` is 200."""

    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(600)
        return web.Response()

    async with serve_app(hang) as place:
        block = "PARLOUR_CHANNELS__TELEGRAM__"
        environment = {f"{block}TOKEN": "123456789:" + "A" * 35, f"{block}BASE_URL": f"http://{place}/bot"}
        async with gateway(tmp_path / "home", zygote, **environment) as process, asking(process) as ask:
            assert (await ask("/readyz"))[0] == 503
            assert await until(ask, "/readyz", lambda status, _: status == 200, 60) > 3
            assert json.loads((await ask("/readyz"))[1])["degraded"] == ["telegram"]


async def test_workers_gives_up_on_a_locked_table(tmp_path: Path, server: PostgresServer, zygote: ForkServer) -> None:
    """`parlour workers` waits five seconds for an answer of the database, then ends with one line."""
    first = GatewayProcess(tmp_path / "first", free_port(), zygote, **settings(server))
    try:
        await first.start()
        with closing(psycopg.connect(server.url)) as session:
            session.execute("LOCK TABLE worker IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            code, printed = await first.run_to_its_end("workers")
            took = time.monotonic() - began
        (line,) = [each for each in printed.splitlines() if each.startswith("parlour: ")]
        assert (code, "Traceback" in printed) == (1, False), printed
        assert "statement timeout" in line
        assert 5 <= took < 60
    finally:
        await first.close()
