"""The archive of MEMORY.md belongs to its scope: it is found, forgotten, purged, exported, and in the inventory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from zipfile import ZipFile

from agent.base.disk import Disk
from agent.memory.history.history_files import printed_files
from agent.memory.privacy import members, write_archives
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.documents import stored_text
from tests.fakes.home_files import unknown_files
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.recording_model import RecordingModel
from tests.fakes.staged_changes import erase

SCOPE = "people/pocket%3aann"
SMALL = {"PARLOUR_MEMORY__MAX_CHARS": "2000"}
FACT = "The zeppelin of uncle Gregor landed in Friedrichshafen"


async def remember_much(parlour: InProcessGateway) -> Path:
    """Remember a fact and then so much more that it moves to an archive; return the scope's `memory/`."""
    await parlour.channel.ask("ann", f"/remember {FACT}")
    memory = parlour.home / SCOPE / "memory"
    n = 0
    while not list(memory.glob("*.archive.md")):
        await parlour.channel.ask(
            "ann", f"/remember Item {n} of the long inventory is kept in drawer {n} of the cellar"
        )
        await parlour.channel.ask("ann", "hello")
        n += 1
    return memory


async def test_an_archived_fact_is_found_exported_and_forgotten() -> None:
    """It left MEMORY.md, which names the archive; every way to data of the scope leads to it."""
    async with gateway(model=RecordingModel(), environment=SMALL) as parlour:
        memory = await remember_much(parlour)
        [archive] = memory.glob("*.archive.md")
        text = stored_text(parlour.home, SCOPE)
        assert len(text) <= 2_000
        assert FACT not in text
        assert FACT in archive.read_text()
        assert f"Older facts: {archive.name} (search finds them)" in text
        assert FACT in await parlour.channel.ask("ann", "/search zeppelin of Gregor")
        await parlour.idle()
        assert unknown_files(parlour.home) == []
        path = parlour.home / "export.zip"
        printed = printed_files(await parlour.app.store.history.load(SCOPE))
        files = members(parlour.home, SCOPE, [], documents=printed, zone="UTC", disk=Disk())
        await asyncio.to_thread(write_archives, files, lambda _: path, limit=10_000_000, about=lambda _: "")
        with ZipFile(path) as exported:
            assert FACT in exported.read(f"memory/{archive.name}").decode()
        path.unlink()
        await erase(parlour.channel.ask, "ann", "/forget zeppelin --purge")
        await wait_until_purged(parlour)
        assert not any(b"zeppelin" in each.read_bytes() for each in memory.rglob("*") if each.is_file())
        assert "No matching" in await parlour.channel.ask("ann", "/search zeppelin")
