"""Whoever changes a document, the change is a version: ours with its cause, a person's as theirs."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest

from agent.memory.documents.file_documents import FileDocumentStore, document_path
from agent.memory.documents.version_keeper import VersionKeeper
from agent.memory.documents.version_store import BY_HAND, VersionStore
from agent.memory.storage.disk import Disk
from tests.fakes.memory import SCOPE, START, FaultyDisk, ProcessCrash


def documents(home: Path, disk: Disk | None = None) -> FileDocumentStore:
    """Return versioned documents of *home*."""
    disk = disk or Disk()
    return FileDocumentStore(home, disk=disk, keeper=VersionKeeper(home, disk, VersionStore(home), now=lambda: START))


async def put(home: Path, text: str, why: str, disk: Disk | None = None, by: str = "") -> None:
    """Write MEMORY.md over whatever stands there."""
    files = documents(home, disk)
    was = (await files.read(SCOPE, "MEMORY.md")).rev
    assert await files.write(SCOPE, "MEMORY.md", text, was=was, why=why, by=by) is not None


def causes(home: Path) -> list[tuple[str, str]]:
    """Return cause and person of each version, the oldest first."""
    return [(each.why, each.by) for each in reversed(VersionStore(home).log(SCOPE))]


async def test_a_persons_edit_is_kept_as_theirs_before_ours(tmp_path: Path) -> None:
    """Somebody saves MEMORY.md in an editor; our next change comes on top of it, as a change of its own."""
    await put(tmp_path, "- tea\n", "e1", by="telegram%3a42")
    document_path(tmp_path, SCOPE, "MEMORY.md").write_text("- green tea\n")
    await put(tmp_path, "- green tea\n- dog\n", "e2")
    assert causes(tmp_path) == [("e1", "telegram%3a42"), (BY_HAND, ""), ("e2", "")]
    assert "+- dog" in VersionStore(tmp_path).diff(SCOPE, VersionStore(tmp_path).log(SCOPE)[0].sha)


async def test_an_edit_by_hand_is_noticed_when_asked(tmp_path: Path) -> None:
    """A look at the history shows it, although nothing of ours was written since."""
    await put(tmp_path, "- tea\n", "e1")
    document_path(tmp_path, SCOPE, "USER.md").write_text("Ann\n")
    document_path(tmp_path, SCOPE, "MEMORY.md").unlink()
    files = documents(tmp_path)
    await files.notice(SCOPE)
    await files.notice(SCOPE)
    assert causes(tmp_path) == [("e1", ""), (BY_HAND, ""), (BY_HAND, "")]
    assert VersionStore(tmp_path).texts(SCOPE) == {"USER.md": b"Ann\n"}
    await files.notice("people/nobody")
    assert not (tmp_path / "people" / "nobody").exists()


class KilledVersions(VersionStore):
    """The process is gone before the version is kept."""

    def save_version(
        self, scope: str, texts: Mapping[str, bytes], *, why: str, by: str = "", at: datetime
    ) -> str | None:
        """Die."""
        raise ProcessCrash


async def test_a_crash_at_any_write_makes_our_change_nobody_elses(tmp_path: Path) -> None:
    """Whatever was written by then, after the rerun there is the text, and one version with its cause."""
    for at in range(100):
        home = tmp_path / str(at)
        await put(home, "- tea\n", "e1")
        disk = FaultyDisk(at=at, error=ProcessCrash())
        try:
            await put(home, "- tea\n- dog\n", "e2", disk)
        except ProcessCrash:
            await put(home, "- tea\n- dog\n", "e2")
        else:
            assert at > 3
            break
        assert causes(home) == [("e1", ""), ("e2", "")], at


async def test_a_crash_before_the_version_is_kept(tmp_path: Path) -> None:
    """The file is written, its version is not: the next look keeps it, with the cause it had."""
    await put(tmp_path, "- tea\n", "e1")
    keeper = VersionKeeper(tmp_path, Disk(), KilledVersions(tmp_path), now=lambda: START)
    files = FileDocumentStore(tmp_path, keeper=keeper)
    was = (await files.read(SCOPE, "MEMORY.md")).rev
    with pytest.raises(ProcessCrash):
        await files.write(SCOPE, "MEMORY.md", "- tea\n- dog\n", was=was, why="e2", by="ann")
    await documents(tmp_path).notice(SCOPE)
    assert causes(tmp_path) == [("e1", ""), ("e2", "ann")]


async def test_a_disk_that_has_no_room_for_versions_costs_no_memory(tmp_path: Path) -> None:
    """The change stands; the version comes with the next one."""
    await put(tmp_path, "- tea\n", "e1")

    class FullDiskVersions(VersionStore):
        """No room."""

        def save_version(
            self, scope: str, texts: Mapping[str, bytes], *, why: str, by: str = "", at: datetime
        ) -> str | None:
            """Fail."""
            raise OSError(errno.ENOSPC, "full")

    files = FileDocumentStore(
        tmp_path, keeper=VersionKeeper(tmp_path, Disk(), FullDiskVersions(tmp_path), now=lambda: START)
    )
    was = (await files.read(SCOPE, "MEMORY.md")).rev
    assert await files.write(SCOPE, "MEMORY.md", "- dog\n", was=was, why="e2") is not None
    assert (await files.read(SCOPE, "MEMORY.md")).text == "- dog\n"
    await put(tmp_path, "- cat\n", "e3")
    assert causes(tmp_path) == [("e1", ""), ("e2", ""), ("e3", "")]
