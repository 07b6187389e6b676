"""Going back behind a change of Dream's: as it was before, and nobody else's change is lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.memory.editing.memory_versions import MemoryService, UndoResult
from agent.memory.storage.scope_documents import TRACKED, ScopeDocuments, rewrite_history
from agent.memory.update.dreamer import DreamService, RestoreConflict, RestoreDone
from gateway.ports.memory import ScopeDocument
from tests.fakes.dream_scene import DreamScene, add, edits, remove, swap
from tests.fakes.histories import open_history
from tests.fakes.memory import SCOPE


class DreamedScope:
    """A scope that dreamed twice, and what people do there meanwhile."""

    def __init__(self, home: Path) -> None:
        self.world = DreamScene(
            home,
            "study",
            edits(swap("- drinks coffee", "- drinks tea"), add("- lives in Bonn", document="USER.md")),
            "study",
            edits(add("- has a cat"), remove("- plays chess")),
        )
        self.world.write("MEMORY.md", "- drinks coffee\n- plays chess\n")

    async def dream(self) -> str:
        """Dream of something new; return the version."""
        self.world.happened("Something.")
        self.world.now += timedelta(minutes=1)
        await self.world.dream()
        return self.world.commits()[0].id

    def service(self) -> DreamService:
        """Return what the commands ask."""
        return DreamService(self.world.documents, can_run=True)

    async def undo(self, change: str) -> UndoResult:
        """Do what /memory undo does."""
        nothing: Any = None  # it asks neither journal nor sessions
        service = MemoryService(open_history(), self.world.documents, nothing, nothing)
        return await service.undo(self.world.scope, change, by="ann")

    async def write(self, text: str, why: str, by: str = "ann") -> None:
        """Change MEMORY.md for a cause."""
        now = await self.world.documents.read(self.world.scope, "MEMORY.md")
        assert await self.world.documents.write(self.world.scope, "MEMORY.md", text, was=now.rev, why=why, by=by)

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
    count = len(place.world.changes.changes(place.world.scope))
    assert await place.service().restore(place.world.scope, first[:8], by="ann") == RestoreDone(kept=0)
    assert place.texts == BEFORE
    newest, *older = place.world.changes.changes(place.world.scope)
    assert (newest.why, newest.by) == (f"dream restore {first[:8]}", "ann")
    assert set(newest.names) == {"USER.md", "MEMORY.md"}
    assert len(older) == count
    assert await place.service().restore(place.world.scope, first[:8], by="ann") == RestoreDone(kept=0, changed=False)


async def test_a_turn_that_is_repeated_finds_what_it_restored(tmp_path: Path) -> None:
    """Killed between the change and its reply, the command says again what it did, and changes nothing."""
    place = DreamedScope(tmp_path)
    first = await place.dream()
    for _ in range(2):
        done = await place.service().restore(place.world.scope, first, by="ann", turn="t1")
        assert done == RestoreDone(kept=0)
    assert await place.service().restore(place.world.scope, first, by="ann", turn="t2") == RestoreDone(0, changed=False)


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
    assert await place.undo(first) == UndoResult.DONE
    assert place.texts == {"MEMORY.md": "- drinks coffee\n- has a cat"}
    newest = place.world.changes.changes(place.world.scope)[0]
    assert set(newest.names) == {"USER.md", "MEMORY.md"}


@pytest.mark.parametrize("name", ["undo", "dream-restore"])
async def test_what_is_purged_while_it_goes_back_does_not_come_back(tmp_path: Path, name: str) -> None:
    """The texts that it has read are from before the purge; what was not purged goes back."""
    place = DreamedScope(tmp_path)
    first = await place.dream()
    purges = [True]

    async def purge() -> None:
        """Rewrite the versions between the read of them and the change."""
        if purges:
            purges.pop()
            await rewrite_history(place.world.changes, SCOPE, lambda text, _: text.replace("- plays chess\n", ""))

    class PurgedDocuments(ScopeDocuments):
        async def read(self, scope: str, name: str) -> ScopeDocument:
            """Read, behind which a purge comes."""
            found = await super().read(scope, name)
            await purge()
            return found

    place.world.documents = PurgedDocuments(place.world.changes)
    if name == "undo":
        assert await place.undo(first) == UndoResult.DONE
    else:
        assert await place.service().restore(SCOPE, first, by="ann") == RestoreDone()
    assert not purges
    assert place.texts == {"MEMORY.md": "- drinks coffee"}
    found = await place.world.changes.find(SCOPE, first[:8])  # the id that the chat has shown
    assert found is not None
    states = await place.world.changes.states(SCOPE)
    assert "chess" not in str(states)


async def test_there_is_nothing_to_go_back_behind(tmp_path: Path) -> None:
    """An unknown name is None, and a scope without versions has no log."""
    service = DreamService(DreamScene(tmp_path).documents, can_run=True)
    assert await service.restore("people/x", "abcdef12", by="ann") is None
    assert await service.log("people/x") == []
