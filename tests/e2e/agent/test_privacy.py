"""A person's rights through the whole gateway: /privacy tells what is so, /export brings it, and nobody else's."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.errors import UserError
from gateway.ports.channel import ChannelCapabilities
from gateway.ports.memory import FileKind
from tests.e2e.agent.test_consolidation import SCOPE, WINDOW, SummaryModel, quiet, talk
from tests.e2e.agent.test_purge import plant_canaries, use_canaries
from tests.fakes.home_files import unknown_files
from tests.fakes.inprocess_files import WITH_FILES, InProcessFileChannel, InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import OPEN, PLAIN, InProcessGateway, gateway
from tests.fakes.stored_files import stored_files


def unpack_exports(parlour: InProcessGateway) -> dict[str, bytes]:
    """Return what arrived in the chat, by name, the zips taken apart."""
    assert isinstance(parlour.channel, InProcessFileChannel)
    found: dict[str, bytes] = {}
    for sent in parlour.channel.arrived:
        assert sent.media_type == "application/zip"
        with zipfile.ZipFile(io.BytesIO(sent.data)) as archive:
            assert archive.testzip() is None
            found |= {name: archive.read(name) for name in archive.namelist()}
    return found


def names_in(folder: Path) -> list[str]:
    """Return what stands in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


async def wait_for_files(parlour: InProcessGateway, number: int) -> None:
    """Return when that many files stand in the chats."""
    assert isinstance(parlour.channel, InProcessFileChannel)
    while True:
        if len(parlour.channel.arrived) >= number:
            return
        await asyncio.sleep(0.01)


def kind(limits: ChannelCapabilities = WITH_FILES) -> InProcessFilePlugin:
    """Return a platform with files."""
    return InProcessFilePlugin(PlatformFiles(), limits)


async def test_a_person_gets_everything_of_theirs_and_nothing_else(tmp_path: Path) -> None:
    """Memory, history, conversations as data and as text, files by name, usage; Bob's words never."""
    home = tmp_path / "home"
    platform = kind()
    async with gateway(model=SummaryModel(), environment=WINDOW, kind=platform, home=home, policy=OPEN) as parlour:
        ask = parlour.channel.ask
        await ask("bob", "Bob's canary is yellow", sender="bob")
        await ask("bob", "/remember Bob has a canary", sender="bob")
        await ask("ann", "/remember my dog is Bello")
        await ask("ann", "look at this", attachments=[platform.sources.put("plan.txt", b"the plan of Ann")])
        await talk(parlour, 4)
        await quiet(parlour)
        assert "Preparing your export" in await ask("ann", "/export")
        await wait_for_files(parlour, 1)
        await wait_for_exports(parlour)
        found = unpack_exports(parlour)
        assert b"my dog is Bello" in found["memory/MEMORY.md"]
        assert b"Summary number 1." in found["memory/HISTORY.md"]
        [text] = [
            data.decode() for name, data in found.items() if name.startswith("conversations/") and name[-3:] == ".md"
        ]
        assert "**Ann**, 20" in text
        assert "thing 3" in text
        assert "document plan.txt" in text
        [lines] = [data for name, data in found.items() if name.startswith("conversations/") and name[-6:] == ".jsonl"]
        kinds = {json.loads(line).get("kind") for line in lines.splitlines()}
        assert kinds >= {"head", "end", "command"}
        assert [data for name, data in found.items() if name.endswith(" plan.txt")] == [b"the plan of Ann"]
        assert b"answer,test/model," in found["usage.csv"]
        assert "conversations/" in found["README.md"].decode()
        whole = b"\n".join(found.values())
        for foreign in (b"canary", b"Bob", str(home).encode()):
            assert foreign not in whole
        assert not list((home / SCOPE / "exports").glob("*"))
        modes = {path.stat().st_mode & 0o777 for path in (home / SCOPE).rglob("*") if path.is_file()}
        assert modes <= {0o600, 0o400}  # git keeps its objects read-only
        assert unknown_files(home) == []


async def wait_for_exports(parlour: InProcessGateway) -> None:
    """Return when no export is being made and everything is delivered and in its file."""
    while True:
        found = await parlour.app.store.jobs.pending_in(SCOPE)
        if all(job.kind != "export" or "digests" in job.payload for job in found):
            return await parlour.idle()
        await asyncio.sleep(0.01)


async def test_our_copy_goes_after_a_day_and_is_in_no_later_export(tmp_path: Path) -> None:
    """The file is kept while the page may fetch it; the next export does not hold the last one."""
    async with gateway(model=SummaryModel(), kind=kind(), home=tmp_path / "home") as parlour:
        await talk(parlour, 1)
        await parlour.channel.ask("ann", "/export")
        await wait_for_files(parlour, 1)
        await wait_for_exports(parlour)
        await parlour.channel.ask("ann", "/export")
        await wait_for_files(parlour, 2)
        await wait_for_exports(parlour)
        assert not [name for name in unpack_exports(parlour) if name.startswith("files/")]
        assert len(stored_files(parlour.home, FileKind.ATTACHMENT)) == 2
        jobs = await parlour.app.store.jobs.pending_in(SCOPE)
        assert [await parlour.app.background.do(job) for job in jobs if "digests" in job.payload] == [None, None]
        assert not stored_files(parlour.home, FileKind.ATTACHMENT)


async def test_killed_while_it_is_packed_it_is_sent_once_and_leaves_nothing(tmp_path: Path) -> None:
    """Killed behind the half-made zip: the next start makes it anew, sends one, and the half of it is gone."""
    async with gateway(model=SummaryModel(), kind=kind(), home=tmp_path / "home") as parlour:
        await talk(parlour, 1)
        parlour.app.background._long = ()
        await parlour.channel.ask("ann", "/export")
        await parlour.idle()
        copy = parlour.kill(tmp_path / "copy")
    half = copy / SCOPE / "exports" / "export-1.zip"
    half.parent.mkdir()
    half.write_bytes(b"PK half of it")
    async with gateway(model=SummaryModel(), kind=kind(), home=copy) as parlour:
        await wait_for_files(parlour, 1)
        await wait_for_exports(parlour)
        assert "conversations/" in unpack_exports(parlour)["README.md"].decode()
        assert not half.exists()
        again = parlour.kill(tmp_path / "again")
    async with gateway(model=SummaryModel(), kind=kind(), home=again) as parlour:
        await talk(parlour, 1)
        await parlour.idle()
        assert isinstance(parlour.channel, InProcessFileChannel)
        assert parlour.channel.arrived == []


async def test_what_a_channel_takes_is_split_and_what_is_larger_is_named() -> None:
    """Three files of 60 KB and one of 200 KB where 100 KB are taken: several zips, and the large one is named."""
    platform = kind(replace(WITH_FILES, file_limit=100_000))
    async with gateway(model=SummaryModel(), kind=platform) as parlour:
        for n, size in enumerate((60_000, 60_000, 60_000, 200_000)):
            workspace = parlour.app.memory.workspaces.of(SCOPE)
            await workspace.create(f"own-{n}.bin", _noise(n, size), is_untrusted=False)
        await talk(parlour, 1)
        await parlour.channel.ask("ann", "/export")
        await wait_for_files(parlour, 3)
        await wait_for_exports(parlour)
        found = unpack_exports(parlour)
        assert isinstance(parlour.channel, InProcessFileChannel)
        assert all(len(sent.data) <= 100_000 for sent in parlour.channel.arrived)
        assert {f"files/own-{n}.bin" for n in range(3)} <= found.keys()
        assert "files/own-3.bin" not in found
        assert "- files/own-3.bin" in found["README.md"].decode()
        assert any("1 file is too large" in post.text for post in parlour.channel.posts["ann"])


def _noise(seed: int, size: int) -> bytes:
    """Return bytes that no packer makes smaller."""
    blocks = (hashlib.sha256(f"{seed}.{n}".encode()).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]


async def test_an_export_is_for_direct_chats_and_channels_with_files() -> None:
    """In a group a line says where; where no file can be sent, a line says so; nothing is made in either."""
    async with gateway(kind=kind(), policy=OPEN) as parlour:
        assert "only sent to direct chats" in await parlour.channel.ask("room", "/export", group=True)
        assert parlour.channel.posts["room"][-1].visible_to == "ann"
        assert await parlour.app.store.jobs.pending_in("chats/pocket%3aroom") == ()
    async with gateway(kind=kind(PLAIN)) as parlour:
        assert "cannot be sent in this chat" in await parlour.channel.ask("ann", "/export")
        assert await parlour.app.store.jobs.pending_in(SCOPE) == ()


async def test_privacy_is_true_to_the_scope_and_to_the_settings() -> None:
    """Counts of this chat, the model by its name, who reads; another scope's counts are not in it, and no path is."""
    platform = kind()
    async with gateway(model=SummaryModel(), environment=WINDOW, kind=platform, policy=OPEN) as parlour:
        ask = parlour.channel.ask
        await ask("ann", "/remember my dog is Bello")
        await ask("ann", "look", attachments=[platform.sources.put("plan.txt", b"x" * 1_500)])
        await talk(parlour, 4)
        await quiet(parlour)
        await ask("ann", "/new")
        await quiet(parlour)
        await talk(parlour, 1)
        told = await ask("ann", "/privacy")
        assert "3 lines, 2 summary lines, 1 note" in told
        assert "2 conversations since 20" in told
        assert re.search(r": 1, [12](\.\d)? kB\.", told)
        assert "The provider of test/model receives" in told
        assert "no other user" in told
        assert str(parlour.home) not in told
        group = await ask("room", "/privacy", group=True)
        assert "0 lines, 0 summary lines, 0 notes" in group
        assert "All members of this chat." in group
        assert parlour.channel.posts["room"][-1].visible_to == "ann"
        assert unknown_files(parlour.home) == []
    async with gateway(kind=kind(), environment={"PARLOUR_MEMORY__RETENTION_DAYS": "30"}) as parlour:
        told = await parlour.channel.ask("ann", "/privacy")
        assert "the data does not leave this server" in told
        # What was said and sent lapses; what is remembered of it does not.
        assert told.count("Kept for 30 days") == 2
        assert told.count("Kept until it is erased") == 1


async def test_the_operator_can_make_one_where_a_channel_cannot(tmp_path: Path) -> None:
    """`parlour people export`: one zip, 0600, whole, of that person alone; a file that is there is left as it is."""
    target = tmp_path / "ann.zip"
    async with gateway(model=SummaryModel(), policy=OPEN, kind=kind(PLAIN)) as parlour:
        await parlour.channel.ask("ann", "/remember my dog is Bello")
        await parlour.channel.ask("bob", "/remember Bob has a canary", sender="bob")
        export = parlour.app.operations["people export"]
        arguments = {"person": "pocket:ann", "file": str(target)}
        [line] = [line async for line in export(arguments)]
        with zipfile.ZipFile(target) as archive:
            assert b"Bello" in archive.read("memory/MEMORY.md")
            assert line["files"] == len(archive.namelist()) - 1  # beside README.md
            assert not any(b"canary" in archive.read(name) for name in archive.namelist())
        assert target.stat().st_mode & 0o777 == 0o600
        before = target.read_bytes()
        with pytest.raises(UserError, match="already exists"):
            [_ async for _ in export(arguments)]
        with pytest.raises(UserError):
            [_ async for _ in export({"person": "pocket:nobody", "file": str(tmp_path / "b.zip")})]
        assert target.read_bytes() == before
    assert names_in(tmp_path) == ["ann.zip"]


def test_the_inventory_knows_every_file_of_a_home_that_has_lived(tmp_path: Path) -> None:
    """Each place that a purge has to reach, and whatever is new since: what is kept is known by kind, or this fails."""
    home = tmp_path / "home"
    asyncio.run(use_canaries(home))
    plant_canaries(home)
    assert unknown_files(home) == []


async def test_the_page_fetches_its_export_at_once_and_after_a_reload() -> None:
    """Asked for on the page: the file is a link to its bytes in the open window, and in one that is opened later."""
    async with gateway(model=SummaryModel()) as parlour, aiohttp.ClientSession() as session:
        url = parlour.app.web.url
        origin = {"Origin": url.rstrip("/")}
        async with session.ws_connect(f"{url}ws", headers=origin) as socket:
            assert (await socket.receive_json())["type"] == "history"
            await socket.send_json({"type": "say", "id": "window-1-message-1", "text": "/export"})
            live = await a_file(socket)
        async with session.ws_connect(f"{url}ws", headers=origin) as socket:
            lines = (await socket.receive_json())["lines"]
        [again] = [file for line in lines for file in line.get("files", ())]
        for found in (live, again):
            assert str(found["name"]).endswith(".zip")
            async with session.get(f"{url}{found['href']}") as answer:
                with zipfile.ZipFile(io.BytesIO(await answer.read())) as archive:
                    assert "usage.csv" in archive.namelist()


async def a_file(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    """Return the first file that a window is sent."""
    while True:
        frame = await socket.receive_json(timeout=60)
        if frame.get("file"):
            found: dict[str, Any] = frame["file"]
            return found
