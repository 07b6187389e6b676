"""Files of earlier releases become rows: whole, once, and whatever interrupts it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from agent.memory.file_adoption import adopt_files, adopt_workspaces
from gateway.ports.memory import BYTES, FileKind
from gateway.store.engine import StoreLimits
from gateway.store.files import SMALL_BYTES, SqlFiles
from gateway.store.sqlite import open_file
from tests.fakes.stored_files import stored_files

ANN, GROUP = "people/telegram%3a42", "chats/telegram%3a-7"
THEN = datetime(2026, 11, 1, 9, 0, tzinfo=UTC)
KINDS = {"attachments": FileKind.ATTACHMENT, "blobs": FileKind.TEXT, "results": FileKind.RESULT}
CONTENTS = {
    ANN: {"attachments": [b"photo" * SMALL_BYTES, b"note", b""], "blobs": [b"soul", b"s" * (SMALL_BYTES + 1)]},
    GROUP: {"results": [b"a long result"], "attachments": [b"note"]},
    "": {"blobs": [b"of one memory for everything"]},
}
LEFT = "backups/not-adopted"


def old_home(folder: Path) -> Path:
    """Return a home as an earlier release left it."""
    for scope, areas in CONTENTS.items():
        for area, contents in areas.items():
            for data in contents:
                path = folder / scope / area / hashlib.sha256(data).hexdigest()
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                os.utime(path, (THEN.timestamp(),) * 2)
    (folder / ANN / "attachments" / ("0" * 64)).write_bytes(b"damaged")
    (folder / ANN / "exports").mkdir()
    (folder / ANN / "exports" / "export-1.zip").write_bytes(b"half")
    (folder / ANN / "files" / "trips").mkdir(parents=True)
    (folder / ANN / "files" / "trips" / "%52ome.csv").write_bytes(b"rome")
    (folder / ANN / "files" / "%uweb.txt").write_bytes(b"untrusted")
    return folder


def expected() -> dict[str, bytes]:
    """Return what is stored of the old home."""
    found = {
        f"{scope}/{KINDS[area]}/{hashlib.sha256(data).hexdigest()}": data
        for scope, areas in CONTENTS.items()
        for area, contents in areas.items()
        for data in contents
    }
    return found | {f"{ANN}/workspace/trips/Rome.csv": b"rome", f"{ANN}/workspace/web.txt": b"untrusted"}


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[SqlFiles]:
    """Open the store of a home, its bytes in the folders of the home."""
    store = await open_file(home / "journal.db", StoreLimits())
    try:
        yield store.files
    finally:
        await store.close()


async def adopt(home: Path, files: SqlFiles) -> int:
    """Do what a start does."""
    return await adopt_files(home, files) + await adopt_workspaces(home, files)


def leftovers(home: Path) -> set[str]:
    """Return the files that are neither the journal's nor bytes of rows."""
    every = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    return {name for name in every if not name.startswith("journal.") and f"{BYTES}/" not in name}


async def test_every_file_is_stored_as_it_was_and_leaves_its_folder(tmp_path: Path) -> None:
    """Digest, kind, scope, time and mark; one that is not what its name says is set aside; an export is dropped."""
    home = old_home(tmp_path)
    async with opened(home) as files:
        assert await adopt(home, files) == len(expected())
        assert await adopt(home, files) == 0
        assert {each.at for each in await files.files(ANN, FileKind.ATTACHMENT, FileKind.TEXT)} == {THEN}
        marks = {each.name: each.is_untrusted for each in await files.files(ANN, FileKind.WORKSPACE)}
        assert marks == {"trips/Rome.csv": False, "web.txt": True}
    assert stored_files(home) == expected()
    assert leftovers(home) == {f"{LEFT}/{ANN}/attachments/{'0' * 64}"}


async def test_what_an_operator_puts_there_is_taken_over_by_the_next_start(tmp_path: Path) -> None:
    """A file of the workspace is not replaced by one of its name; that one, links and hidden files are set aside."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"outside")
    home = tmp_path / "home"
    folder = home / ANN / "files"
    folder.mkdir(parents=True)
    (folder / "new.txt").write_bytes(b"new")
    async with opened(home) as files:
        assert await adopt_workspaces(home, files) == 1
        folder.mkdir()
        for name, data in {"new.txt": b"another", "more.txt": b"more", ".hidden": b"hidden"}.items():
            (folder / name).write_bytes(data)
        (folder / "link").symlink_to(outside)
        assert await adopt_workspaces(home, files) == 1
    assert stored_files(home) == {f"{ANN}/workspace/new.txt": b"new", f"{ANN}/workspace/more.txt": b"more"}
    assert {name for name in leftovers(home) if "link" not in name} == {
        f"{LEFT}/{ANN}/files/new.txt",
        f"{LEFT}/{ANN}/files/.hidden",
    }
    async with opened(home) as files:
        folder.mkdir()
        (folder / "new.txt").write_bytes(b"a third")
        await adopt_workspaces(home, files)
    assert (home / LEFT / ANN / "files" / "new.txt").read_bytes() == b"another"
    assert (home / LEFT / ANN / "files" / "new.txt.2").read_bytes() == b"a third"
    assert outside.read_bytes() == b"outside"
    assert not await asyncio.to_thread(folder.exists)


async def test_large_files_of_a_lost_store_are_attachments_again(tmp_path: Path) -> None:
    """Those of no row, by their digest; those that a row has stay as they are."""
    home, lost, kept = tmp_path, b"lost" * SMALL_BYTES, b"kept" * SMALL_BYTES
    async with opened(home) as files:
        await files.put(ANN, FileKind.ATTACHMENT, lost, at=THEN)
    for path in home.glob("journal.db*"):
        path.unlink()
    async with opened(home) as files:
        await files.put(ANN, FileKind.RESULT, kept, at=THEN)
        assert await adopt_files(home, files) == 1
        assert len(list((home / ANN / BYTES).iterdir())) == 2
    digests = [hashlib.sha256(data).hexdigest() for data in (lost, kept)]
    assert stored_files(home) == {f"{ANN}/attachment/{digests[0]}": lost, f"{ANN}/result/{digests[1]}": kept}
