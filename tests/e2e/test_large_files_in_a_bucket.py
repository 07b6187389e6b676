"""A gateway on PostgreSQL with a bucket for large attachments: outages, a second home, a purge, a backup, a move."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.commands.recovery import fit_sessions
from gateway.commands.store import move_to_database, move_to_file
from gateway.preflight import open_home
from gateway.restore import restore
from gateway.settings import load_settings
from gateway.store.claims import WorkerIdentity
from gateway.store.objects import ObjectStore, open_objects
from gateway.store.postgres import schema
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.file_gateway import folders_with
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, open_s3_server
from tests.fakes.slack_gateway import transcripts
from tests.unit.ops.test_memory_cli import terminal as terminal

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


async def has_photo(parlour: InProcessGateway) -> bool:
    """Return True if a gateway can read the file."""
    files = parlour.app.store.files
    return PHOTO in [
        await files.load(scope, file) for scope in await files.scopes() for file in await files.files(scope)
    ]


async def test_a_large_attachment_survives_an_outage_and_is_purged_everywhere(
    tmp_path: Path, environment: Mapping[str, str], server: S3Server, postgres: PostgresServer
) -> None:
    """A turn waits for the bucket and is answered once; no home has the file; a purge empties the bucket."""
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
        assert PHOTO[:9_999] not in b"".join(bytes(data) for (data,) in postgres.query("SELECT data FROM file_piece"))
        assert not folders_with(tmp_path, PHOTO)
    async with gateway(home=tmp_path / "second", model=InstantModel(), environment=environment) as parlour:
        assert await has_photo(parlour)
        await parlour.channel.ask("ann", "/forget everything yes")
        await wait_until_purged(parlour)
        assert server.objects == {}
        assert not await has_photo(parlour)


async def test_a_purge_waits_for_the_bucket_and_nothing_else_waits_for_the_purge(
    tmp_path: Path, environment: Mapping[str, str], server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person is told that files are still being removed. Another's erasure is over meanwhile.

    The gateway stops before the bucket is back; the next one, with a home of its own, removes the object.
    """
    monkeypatch.setattr("agent.memory.jobs.job_runner._OBJECTS_DELAY", timedelta(seconds=0.1))
    sources = PlatformFiles()
    kind = InProcessFilePlugin(sources)
    async with gateway(home=tmp_path / "first", model=InstantModel(), environment=environment, kind=kind) as parlour:
        await parlour.channel.ask("ann", "look", attachments=[sources.put("a.bin", PHOTO)])
        await parlour.channel.ask("ben", "hello", sender="ben")
        await parlour.idle()
        server.is_away = True
        told = await parlour.channel.ask("ann", "/forget everything yes")
        assert "files are being removed in the background, even after a restart" in told
        async with asyncio.timeout(30):
            while not any(each.startswith("DELETE") for each in server.requests):  # noqa: ASYNC110 - the job tries
                await asyncio.sleep(0.01)
            await parlour.channel.ask("ben", "/forget everything yes", sender="ben")
            ben = tmp_path / "first" / "people" / "pocket%3aben"
            while [*ben.rglob("*.jsonl")]:  # noqa: ASYNC110 - the job erases them
                await asyncio.sleep(0.01)
        assert [job.kind for job in await parlour.app.store.jobs.pending_of("scrub")] != []
        assert [*server.objects.values()] == [PHOTO]
    server.is_away = False
    async with gateway(home=tmp_path / "second", model=InstantModel(), environment=environment) as parlour:
        async with asyncio.timeout(30):
            while await parlour.app.store.jobs.pending_of("scrub"):  # noqa: ASYNC110 - the job runs when it is due
                await asyncio.sleep(0.01)
        assert server.objects == {}


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
                move_to_file(own, connection, postgres.url, objects_of(environment))
            else:
                move_to_database(own, connection, objects_of(environment))

    await asyncio.to_thread(move, to_file=True)
    server.is_away = True
    async with gateway(home=home, model=InstantModel()) as parlour:
        assert await has_photo(parlour)
    server.is_away = False
    server.objects.clear()
    await asyncio.to_thread(move, to_file=False)
    async with gateway(home=home, model=InstantModel(), environment=environment) as parlour:
        assert await has_photo(parlour)
        await parlour.app.store.files.collect_garbage()
    assert list(server.objects.values()) == [PHOTO]


def objects_of(environment: Mapping[str, str]) -> ObjectStore:
    """Return the bucket of the settings, as commands open it."""
    return open_objects(load_settings({"PARLOUR_HOME": "/nowhere", **environment}).store.objects)


def messages_of(home: Path) -> list[tuple[int, str]]:
    """Return number and text of each message of the person, in the transcripts of a home."""
    lines = map(json.loads, transcripts(home).splitlines())
    return [(line["i"], line["content"]) for line in lines if line.get("role") == "user"]


async def test_a_backup_has_the_objects_and_goes_into_an_empty_database(
    tmp_path: Path, environment: Mapping[str, str], server: S3Server, postgres: PostgresServer
) -> None:
    """Restored without the bucket, moved into a database without rows with a bucket of its own, and read from there."""
    sources, archive, restored = PlatformFiles(), tmp_path / "backup.tar.gz", tmp_path / "restored"
    kind = InProcessFilePlugin(sources)
    async with gateway(home=tmp_path / "first", model=InstantModel(), environment=environment, kind=kind) as parlour:
        await parlour.channel.ask("ann", "look", attachments=[sources.put("a.bin", PHOTO)])
        await parlour.app.backup(archive)
    server.is_away = True
    own = {**environment, "PARLOUR_STORE__OBJECTS__URL": f"s3://{BUCKET}/restored"}
    await asyncio.to_thread(restore, archive, restored, fit=fit_sessions)
    postgres.empty()
    with (
        open_home(restored) as home,
        closing(schema.connect(postgres.url, WorkerIdentity(), wait=schema.LOCK_SECONDS)) as connection,
    ):
        server.is_away = False
        earlier = dict(server.objects)
        await asyncio.to_thread(move_to_database, home, connection, objects_of(own))
    async with gateway(home=restored, model=InstantModel(), environment=own) as parlour:
        await parlour.channel.ask("ann", "afterwards")
        await parlour.idle()
    assert earlier.items() <= server.objects.items()
    assert [data for name, data in server.objects.items() if name.startswith("restored/")] == [PHOTO]
    async with gateway(home=tmp_path / "empty", model=InstantModel(), environment=own) as parlour:
        assert await has_photo(parlour)
        await parlour.app.session_files.flush()
        assert messages_of(tmp_path / "empty") == [(0, "look"), (2, "afterwards")]


async def test_a_dump_with_a_copy_of_the_bucket_is_a_whole_backup(
    tmp_path: Path, environment: Mapping[str, str], server: S3Server, postgres: PostgresServer
) -> None:
    """The bucket is copied after pg_dump; a gateway with an empty home has the conversation and the file.

    Without the objects it answers everybody, and has the file once they are back.
    """
    sources, dump = PlatformFiles(), tmp_path / "parlour.dump"
    kind = InProcessFilePlugin(sources)
    async with gateway(home=tmp_path / "first", model=InstantModel(), environment=environment, kind=kind) as parlour:
        await parlour.channel.ask("ann", "look", attachments=[sources.put("a.bin", PHOTO)])
        await asyncio.to_thread(postgres.dump, dump)
        await parlour.channel.ask("ann", "later", attachments=[sources.put("b.bin", PHOTO[::-1])])
        server.objects |= {name.replace("parlour/", "copy/"): data for name, data in server.objects.items()}
    address = await asyncio.to_thread(postgres.restore_dump, dump)
    copied = {**environment, "PARLOUR_STORE__URL": address, "PARLOUR_STORE__OBJECTS__URL": f"s3://{BUCKET}/copy"}
    async with gateway(home=tmp_path / "empty", model=InstantModel(), environment=copied) as parlour:
        assert await has_photo(parlour)
        await parlour.channel.ask("ann", "afterwards")
        await parlour.idle()
        assert messages_of(tmp_path / "empty") == [(0, "look"), (2, "afterwards")]
    kept = dict(server.objects)
    server.objects.clear()
    async with gateway(home=tmp_path / "late", model=InstantModel(), environment=copied) as parlour:
        assert "answer to" in await parlour.channel.ask("ann", "and me?")
        assert not await has_photo(parlour)
        server.objects |= {name.replace("parlour/", "copy/"): data for name, data in kept.items()}
        assert await has_photo(parlour)
