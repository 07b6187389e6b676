"""The folder `files/` of an earlier release becomes rows: names, marks, deleted files and finished appends."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.files.file_workspace import FileWorkspace
from agent.memory.file_adoption import adopt_workspaces
from gateway.store.files import SqlFiles
from tests.fakes.store import open_inline_store

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
SCOPE = "people/ann"
OLD_HOME = {
    "%54rips/%52ome%202027.csv": b"a,b\n",
    "%54rips/%u%4eotes.md": b"theirs",
    "My Docs/Plan.TXT": b"an operator's",
    "large.bin": b"x" * 200_000,
    ".trash/20261120t080000z.fabcdefgh/%54rips/%u%52ome%202027.csv": b"older",
    ".trash/20261120t080000z.not-an-id/a.txt": b"no entry",
    ".appends/20261121t080000z.fhgfedcba.4": b"",
    ".lock": b"",
    ".new-0123456789abcdef": b"half of a fi",
    "twice.txt": b"before",
    "%utwice.txt": b"after a kill",
    "received/a.txt": b"hidden by what people sent",
    "a\nb.txt": b"two lines",
    "a\u202eb.txt": b"no name",
}


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[SqlFiles]:
    """The files of a store."""
    store = await open_inline_store(tmp_path / "journal.db")
    yield store.files
    await store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace as an earlier release left it, with links that lead out of it."""
    root = tmp_path / SCOPE / "files"
    for name, data in OLD_HOME.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (NOON.timestamp(), NOON.timestamp()))
    (root.parent / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "out").symlink_to(root.parent)
    os.mkfifo(root / "pipe")
    (root / ".trash/20261122t080000z.fcccccccc").mkdir()
    os.link(root / "large.bin", root / ".trash/20261122t080000z.fcccccccc/large.bin")  # it was restored
    return root


async def test_a_folder_becomes_a_workspace(files: SqlFiles, folder: Path, tmp_path: Path) -> None:
    """Everything that a person could see is there, under its name, and can be restored; links lead nowhere."""
    assert await adopt_workspaces(tmp_path, files) == 7
    workspace = FileWorkspace(files, SCOPE, most_bytes=10_000_000, now=lambda: NOON)
    listed = await workspace.list_files()
    found = {each.name: (await workspace.read(each.name), each.is_untrusted) for each in listed}
    assert {name: (content and content.data, mark) for name, (content, mark) in found.items()} == {
        "Trips/Rome 2027.csv": (b"a,b\n", False),
        "Trips/Notes.md": (b"theirs", True),
        "My Docs/Plan.TXT": (b"an operator's", False),
        "large.bin": (b"x" * 200_000, False),
        "twice.txt": (b"after a kill", True),
        "a b.txt": (b"two lines", False),
    }
    assert {each.at for each in listed} == {NOON}
    (deleted,) = await workspace.deleted_files()
    assert (deleted.name, deleted.at) == ("fabcdefgh", datetime(2026, 11, 20, 8, tzinfo=UTC))
    assert await workspace.restore("fabcdefgh") == "Trips/Rome 2027.csv"
    content = await workspace.read("Trips/Rome 2027.csv")
    assert content is not None
    assert (content.data, content.is_untrusted) == (b"older", True)
    assert not await asyncio.to_thread(folder.exists)
    aside = tmp_path / "backups" / "not-adopted" / SCOPE / "files"
    assert {path.relative_to(aside).as_posix() for path in aside.rglob("*") if path.is_symlink() or path.is_file()} == {
        ".trash/20261120t080000z.not-an-id/a.txt",
        "a\u202eb.txt",
        "link.txt",
        "out",
        "received/a.txt",
        "twice.txt",
    }


async def test_taking_over_again_changes_nothing(files: SqlFiles, folder: Path, tmp_path: Path) -> None:
    """Not after a kill in the middle, and not what was changed since."""
    shutil.copytree(
        folder, tmp_path / "again", copy_function=os.link, symlinks=True, ignore=shutil.ignore_patterns("pipe")
    )
    await adopt_workspaces(tmp_path, files)
    (tmp_path / "again").rename(folder)
    workspace = FileWorkspace(files, SCOPE, most_bytes=10_000_000, now=lambda: NOON)
    await workspace.append("large.bin", b"more", key="k", is_untrusted=False)
    before = await files.files(SCOPE)
    assert await adopt_workspaces(tmp_path, files) == 0
    assert await files.files(SCOPE) == before


async def test_a_link_in_the_place_of_the_folder_is_not_followed(files: SqlFiles, folder: Path, tmp_path: Path) -> None:
    """An operator or a backup could have put it there."""
    elsewhere = await asyncio.to_thread(folder.rename, tmp_path / "elsewhere")
    await asyncio.to_thread(folder.symlink_to, elsewhere)
    assert await adopt_workspaces(tmp_path, files) == 0
    assert sum(1 for each in await asyncio.to_thread(lambda: list(elsewhere.rglob("*.txt")))) > 3
