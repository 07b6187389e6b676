"""A gateway on PostgreSQL with a bucket for large attachments: outages, a second home, a purge, a backup, a move."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from gateway.commands.store_migration import move_to_database, move_to_file
from gateway.home_migration import open_home
from gateway.store.postgres import schema
from gateway.store.workers import WorkerIdentity
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import InstantModel, gateway
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, open_s3_server

PHOTO = os.urandom(400_000)


@pytest.fixture
async def server() -> AsyncIterator[S3Server]:
    """Return a server with an empty bucket."""
    async with open_s3_server() as opened:
        yield opened


@pytest.fixture
def environment(postgres: PostgresServer, server: S3Server, tmp_path: Path) -> Mapping[str, str]:
    """Return the settings of a gateway on an empty database and bucket; a file has the secret key."""
    postgres.empty()
    (tmp_path / "key").write_text(SECRET_KEY + "\n")
    return {
        "PARLOUR_STORE__URL": postgres.address,
        "PARLOUR_STORE__OBJECTS__URL": f"s3://{BUCKET}/parlour",
        "PARLOUR_STORE__OBJECTS__ENDPOINT": server.address,
        "PARLOUR_STORE__OBJECTS__REGION": REGION,
        "PARLOUR_STORE__OBJECTS__ACCESS_KEY": ACCESS_KEY,
        "PARLOUR_STORE__OBJECTS__SECRET_KEY_FILE": str(tmp_path / "key"),
    }


def has_photo(home: Path) -> bool:
    """Return True if the file is in a home."""
    return PHOTO in [path.read_bytes() for path in home.rglob("attachments/*")]


async def test_a_large_attachment_survives_an_outage_and_is_purged_everywhere(
    tmp_path: Path, environment: Mapping[str, str], server: S3Server, postgres: PostgresServer
) -> None:
    """A turn waits for the bucket and is answered once; another home has the file; a purge empties the bucket."""
    sources = PlatformFiles()
    kind = InProcessFilePlugin(sources)
    async with gateway(home=tmp_path / "first", model=InstantModel(), environment=environment, kind=kind) as parlour:
        server.is_away = True
        asked = asyncio.create_task(parlour.channel.ask("ann", "look", attachments=[sources.put("a.bin", PHOTO)]))
        async with asyncio.timeout(30):
            while not any(each.startswith("PUT") for each in server.requests):  # noqa: ASYNC110 - the turn tries
                await asyncio.sleep(0.01)
        assert not asked.done()
        assert server.objects == {}
        server.is_away = False
        assert await asked
        await parlour.idle()
        assert [post.text for post in parlour.channel.posts["ann"]].count(asked.result()) == 1
        assert PHOTO in server.objects.values()
        assert PHOTO[:9_999] not in b"".join(bytes(data) for (data,) in postgres.query("SELECT data FROM scope_piece"))
    async with gateway(home=tmp_path / "second", model=InstantModel(), environment=environment) as parlour:
        assert has_photo(tmp_path / "second")
        await parlour.channel.ask("ann", "/forget everything yes")
        await wait_until_purged(parlour)
        assert server.objects == {}
        assert not has_photo(tmp_path / "second")
    async with gateway(home=tmp_path / "first", model=InstantModel(), environment=environment):
        assert not has_photo(tmp_path / "first")


async def test_a_home_that_is_moved_away_and_back_takes_its_objects_along(
    tmp_path: Path, environment: Mapping[str, str], server: S3Server, postgres: PostgresServer
) -> None:
    """A gateway without server and bucket has the file; moved back, the bucket has it once."""
    home, sources = tmp_path / "first", PlatformFiles()
    kind = InProcessFilePlugin(sources)
    async with gateway(home=home, model=InstantModel(), environment=environment, kind=kind) as parlour:
        await parlour.channel.ask("ann", "look", attachments=[sources.put("a.bin", PHOTO)])
        await parlour.idle()

    def move(*, to_file: bool) -> None:
        with (
            open_home(home) as own,
            closing(schema.connect(postgres.url, WorkerIdentity(), wait=schema.LOCK_SECONDS)) as connection,
        ):
            if to_file:
                move_to_file(own, connection, postgres.url)
            else:
                move_to_database(own, connection)

    await asyncio.to_thread(move, to_file=True)
    server.is_away = True
    async with gateway(home=home, model=InstantModel()) as parlour:
        assert has_photo(home)
    server.is_away = False
    before = set(server.objects)
    await asyncio.to_thread(move, to_file=False)
    async with gateway(home=home, model=InstantModel(), environment=environment) as parlour:
        assert parlour.app.store.scope_files is not None
        await parlour.app.store.scope_files.remove_unused()
    assert list(server.objects.values()) == [PHOTO]
    assert not before & set(server.objects)
