"""A pooler between the gateway and PostgreSQL: one line where it breaks sessions, nothing where it keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_postgres_gateway import KEY, settings, until_answered
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.pgbouncer import PROGRAM, open_pooler
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is missing: apt install pgbouncer")


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server of our own with empty tables."""
    if not postgres.is_ours:
        pytest.skip("a pooler needs a server without a password")
    postgres.empty()
    return postgres


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_that_loses_sessions_is_refused_in_one_line(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer, mode: str
) -> None:
    """At the start and by the doctor, whether another gateway runs on the database or not; that one keeps it."""
    first = GatewayProcess(tmp_path / "first", free_port(), zygote, **settings(server))
    with open_pooler(server, mode) as address:
        second = GatewayProcess(tmp_path / "second", free_port(), zygote, PARLOUR_STORE__URL=address)
        for is_running in (False, True):
            if is_running:
                await first.start()
            code, printed = await second.run_to_its_end("run")
            lines = [line for line in printed.splitlines() if line.startswith("parlour: ")]
            assert (code, len(lines), "Traceback" in printed) == (2, 1, False), printed
            assert "pooler in transaction mode" in lines[0]
            code, printed = await second.run_to_its_end("doctor")
            assert (code, printed.count("pooler in transaction mode")) == (2, 1), printed
        try:
            await first.command("send", KEY, "hello")
            await until_answered(first, 1)
            assert await first.stop() == 0
        finally:
            await first.close()


async def test_a_pooler_in_session_mode_is_as_good_as_the_server(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """The gateway starts, answers and stops."""
    with open_pooler(server, "session") as address:
        gateway = GatewayProcess(tmp_path / "home", free_port(), zygote, PARLOUR_STORE__URL=address)
        try:
            await gateway.start()
            await gateway.command("send", KEY, "hello")
            await until_answered(gateway, 1)
            assert await gateway.stop() == 0
        finally:
            await gateway.close()
