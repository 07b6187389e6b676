"""The home of every program that was let go of starts here, is migrated, and can go back."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine

from gateway.backup import STAYS
from gateway.events import Role, SessionKey
from gateway.home import SCHEMA, Home
from gateway.ports.memory import FileKind
from gateway.restore import restore
from tests.fakes.inprocess_gateway import InstantModel, gateway
from tests.fakes.stored_files import stored_files

HOMES = Path(__file__).parents[1] / "payloads" / "homes"
SOON = datetime(2026, 11, 22, 8, 40, tzinfo=UTC)  # after the kill, while what was asked is still worth an answer
KINDS = {"attachments": FileKind.ATTACHMENT, "blobs": FileKind.TEXT, "results": FileKind.RESULT}
LAST = "Last one, and the lights go out."


@pytest.fixture(params=[file.name.removesuffix(".tar.gz") for file in sorted(HOMES.glob("*.tar.gz"))])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The home as its program left it."""
    with tarfile.open(HOMES / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path / "home", filter="data")
    return tmp_path / "home"


def files(home: Path) -> dict[str, bytes]:
    """Return what a restore brings back, by name; the journal's own files are left out."""
    every = (file for file in home.rglob("*") if file.is_file())
    names = {file.relative_to(home): file for file in every}
    return {
        str(name): file.read_bytes()
        for name, file in names.items()
        if name.parts[0] not in STAYS and not name.parts[0].startswith(("journal.db", "journal.stamp"))
    }


def journal(home: Path, query: str) -> list[tuple[Any, ...]]:
    """Ask the journal of a home that nobody runs."""
    with closing(sqlite3.connect(home / "journal.db")) as database:
        return database.execute(query).fetchall()


async def run_on(home: Path) -> list[str]:
    """Run today's gateway until nothing is open; return what the page's owner was told and said."""
    zone = {"PARLOUR_TIMEZONE": "Europe/Berlin"}
    async with gateway(home=home, model=InstantModel(), environment=zone) as scene:
        await scene.idle()
        return [
            line.text
            for line in await scene.app.memory.sessions.displayed_messages(SessionKey("web", "owner"), limit=100)
        ]


async def test_a_home_of_then_goes_on_today_and_back_again(old: Path) -> None:
    """What was said is there, what was open is answered once, and the snapshot is the home as it was."""
    before, schema = files(old), journal(old, "PRAGMA user_version")
    roles = journal(old, "SELECT role FROM inbox ORDER BY seq")
    with time_machine.travel(SOON, tick=True):
        texts = await run_on(old)
    assert [LAST in text for text in texts].count(True) == 2  # as it was said, and in the one answer
    assert any("The second conversation begins." in text for text in texts)
    assert (old / "schema").read_text() == f"{SCHEMA}\n"
    assert {Role(role) for (role,) in journal(old, "SELECT role FROM inbox")}
    stored = stored_files(old)
    for name, was in before.items():
        *scope, folder, digest = ["", *name.split("/")]
        if folder in KINDS:
            assert stored[f"{'/'.join(scope[1:])}/{KINDS[folder]}/{digest}"] == was, "a file is stored as it was"
            assert not (old / name).exists()
        if name.endswith(".jsonl") and "/sessions/" in name:
            assert (old / name).read_bytes().startswith(was), "a transcript only grows"

    (snapshot,) = Home(old).backups.glob(f"before-schema-{int(before['schema']) + 1}-*.tar.gz")
    restore(snapshot, old, force=True)
    assert files(old) == before
    assert journal(old, "PRAGMA user_version") == schema
    assert journal(old, "SELECT DISTINCT state FROM inbox WHERE ended_at IS NULL") == [("claimed",)]
    assert journal(old, "SELECT role FROM inbox ORDER BY seq") == roles

    with time_machine.travel(SOON + timedelta(minutes=5), tick=True):
        texts = await run_on(old)
    assert [LAST in text for text in texts].count(True) == 2
