"""Going back behind a change of Dream's: as it was before, and nobody else's change is lost."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.documents.version_keeper import VersionKeeper
from agent.memory.documents.version_store import TRACKED, VersionStore
from agent.memory.dream.dream_service import DreamService, RestoreConflict, RestoreDone
from agent.memory.storage.disk import Disk
from agent.memory.versioning.memory_service import MemoryService, UndoResult
from tests.fakes.dream_scene import DreamScene, add, edits, remove, swap
from tests.fakes.memory import START, killed_runs


class DreamedScope:
    """A scope that dreamed twice, and what people do there meanwhile."""

    def __init__(self, home: Path, *, is_new: bool = True) -> None:
        self.world = DreamScene(
            home,
            "study",
            edits(swap("- drinks coffee", "- drinks tea"), add("- lives in Bonn", document="USER.md")),
            "study",
            edits(add("- has a cat"), remove("- plays chess")),
        )
        if is_new:
            self.world.write("MEMORY.md", "- drinks coffee\n- plays chess\n")

    async def dream(self) -> str:
        """Dream of something new; return the version."""
        self.world.happened("Something.")
        self.world.now += timedelta(minutes=1)
        await self.world.dream()
        return self.world.commits()[0].sha

    def documents(self, disk: Disk | None = None) -> FileDocumentStore:
        """Return the documents, each change of which is a version."""
        disk = disk or Disk()
        keeper = VersionKeeper(self.world.home, disk, self.world.versions, now=lambda: START)
        return FileDocumentStore(self.world.home, disk=disk, keeper=keeper)

    def service(self, disk: Disk | None = None) -> DreamService:
        """Return what the commands ask."""
        return DreamService(self.documents(disk), self.world.versions, can_run=True)

    async def write(self, text: str, why: str, by: str = "ann") -> None:
        """Change MEMORY.md for a cause."""
        now = await self.documents().read(self.world.scope, "MEMORY.md")
        assert await self.documents().write(self.world.scope, "MEMORY.md", text, was=now.rev, why=why, by=by)

    @property
    def texts(self) -> dict[str, str]:
        """Return the documents that say something."""
        return {name: text for name in TRACKED if (text := self.world.text(name).strip())}


BEFORE = {"MEMORY.md": "- drinks coffee\n- plays chess"}


async def test_everything_goes_back_as_one_new_version(tmp_path: Path) -> None:
    """All documents, byte for byte, and what Dream did later as well; the versions in between are still there."""
    place = DreamedScope(tmp_path)
    first, _ = await place.dream(), await place.dream()
    assert place.texts == {"MEMORY.md": "- drinks tea\n- has a cat", "USER.md": "- lives in Bonn"}
    count = len(place.world.versions.log(place.world.scope))
    assert await place.service().restore(place.world.scope, first[:8], by="ann") == RestoreDone(kept=0)
    assert place.texts == BEFORE
    newest, *older = place.world.versions.log(place.world.scope)
    assert (newest.why, newest.by) == (f"dream restore {first[:8]}", "ann")
    assert set(newest.names) == {"USER.md", "MEMORY.md"}
    assert len(older) == count
    assert await place.service().restore(place.world.scope, first[:8], by="ann") == RestoreDone(kept=0, changed=False)


async def test_the_state_before_the_second_has_the_first(tmp_path: Path) -> None:
    """Only what was done since the named change goes."""
    place = DreamedScope(tmp_path)
    _, second = await place.dream(), await place.dream()
    await place.service().restore(place.world.scope, second, by="ann")
    assert place.texts == {"MEMORY.md": "- drinks tea\n- plays chess", "USER.md": "- lives in Bonn"}


async def test_what_people_and_consolidations_did_since_is_kept(tmp_path: Path) -> None:
    """An edit by hand, a fact that somebody had kept, a summary's fact: done again on top of the old state."""
    place = DreamedScope(tmp_path)
    first = await place.dream()
    place.world.write("MEMORY.md", place.world.text() + "- by hand\n")
    await place.write(place.world.text() + "- asked for\n", "remember:t1.0.0")
    await place.write(place.world.text() + "- summarised\n", "consolidation e1", by="")
    await place.dream()
    assert await place.service().restore(place.world.scope, first, by="ann") == RestoreDone(kept=3)
    assert place.texts["MEMORY.md"].splitlines() == [
        "- drinks coffee",
        "- plays chess",
        "- by hand",
        "- asked for",
        "- summarised",
    ]


async def test_where_a_person_changed_the_same_line_it_is_refused(tmp_path: Path) -> None:
    """Nothing happens then; which change stands in the way is said."""
    place = DreamedScope(tmp_path)
    first = await place.dream()
    await place.write(place.world.text().replace("tea", "green tea"), "edited by hand")
    before = place.texts
    refused = await place.service().restore(place.world.scope, first, by="ann")
    assert isinstance(refused, RestoreConflict)
    assert refused.version.why == "edited by hand"
    assert place.texts == before


async def test_what_was_forgotten_does_not_come_back(tmp_path: Path) -> None:
    """Another wording of it may stand in the old text, so nobody goes back behind a /forget."""
    place = DreamedScope(tmp_path)
    first = await place.dream()
    await place.write("- plays chess\n", "forget")
    assert isinstance(await place.service().restore(place.world.scope, first, by="ann"), RestoreConflict)
    assert "coffee" not in place.world.text()


async def test_one_change_of_dreams_can_be_undone_alone(tmp_path: Path) -> None:
    """/memory undo takes back both documents of one Dream as one version, and keeps what the next one did."""
    place = DreamedScope(tmp_path)
    first, _ = await place.dream(), await place.dream()
    nothing: Any = None  # it asks neither journal nor sessions
    service = MemoryService(tmp_path, place.documents(), place.world.versions, nothing, nothing)
    assert await service.undo(place.world.scope, first, by="ann") == UndoResult.DONE
    assert place.texts == {"MEMORY.md": "- drinks coffee\n- has a cat"}
    newest = place.world.versions.log(place.world.scope)[0]
    assert set(newest.names) == {"USER.md", "MEMORY.md"}


async def copied(home: Path) -> DreamedScope:
    """Return a copy of the scope that has dreamed."""
    shutil.copytree(home.parent / "dreamed", home)
    return DreamedScope(home, is_new=False)


async def test_killed_at_every_write_an_undo_is_whole_when_it_runs_again(tmp_path: Path) -> None:
    """A change of two documents: both go back, as one version, wherever the first try died."""
    nothing: Any = None
    first = await DreamedScope(tmp_path / "dreamed").dream()

    async def undo(place: DreamedScope, disk: Disk | None) -> None:
        service = MemoryService(place.world.home, place.documents(disk), place.world.versions, nothing, nothing)
        await service.undo(place.world.scope, first, by="ann")

    async for at, place in killed_runs(tmp_path, copied, undo, more_than=6):
        assert place.texts == BEFORE, at
        assert [each.why[:5] for each in place.world.versions.log(place.world.scope)].count("undo ") == 1, at


async def test_killed_at_every_write_going_back_again_is_one_version(tmp_path: Path) -> None:
    """The command runs again after a crash; the state is the same, and so is the number of versions."""
    first = await DreamedScope(tmp_path / "dreamed").dream()

    async def restore(place: DreamedScope, disk: Disk | None) -> None:
        await place.service(disk).restore(place.world.scope, first, by="ann")

    async for at, place in killed_runs(tmp_path, copied, restore, more_than=6):
        assert place.texts == BEFORE, at
        versions = place.world.versions.log(place.world.scope)
        assert [each.why[:13] for each in versions].count("dream restore") == 1, at


async def test_there_is_nothing_to_go_back_behind(tmp_path: Path) -> None:
    """An unknown name is None, and a scope without versions has no log."""
    service = DreamService(FileDocumentStore(tmp_path), VersionStore(tmp_path), can_run=True)
    assert await service.restore("people/x", "abcdef12", by="ann") is None
    assert await service.log("people/x") == []
