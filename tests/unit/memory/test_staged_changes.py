"""What waits for a yes may be about any tracked document, as line operations, and knows whom to ask."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.memory.documents.file_documents import FileDocumentStore, document_path
from agent.memory.documents.version_store import TRACKED
from agent.memory.editing.staged_change_store import StagedChangeStore
from agent.memory.editing.staged_changes import StagedChange, stage_for_approval
from agent.memory.editing.text_operations import (
    AddLines,
    Operation,
    RemoveLines,
    ReplaceLines,
    as_record,
    read_record,
)
from agent.memory.storage.disk import Disk
from gateway.events import PlatformAccount

SCOPE = "chats/slack%3ac1"
NOW = datetime(2026, 11, 22, 5, 0, tzinfo=UTC)
OPERATIONS: tuple[Operation, ...] = (
    AddLines("- speaks plainly"),
    ReplaceLines("- tea", "- green tea"),
    RemoveLines("- coffee", under="Drinks"),
)


@pytest.mark.parametrize("name", TRACKED)
async def test_operations_wait_for_a_yes_on_every_document(tmp_path: Path, name: str) -> None:
    """Nothing is done before the yes; with it, every line that still stands changes and the rest is left as it is."""
    path = document_path(tmp_path, SCOPE, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("- tea\n\n# Drinks\n\n- coffee\n- milk\n")
    folder = tmp_path / SCOPE / "memory"
    operations = (*OPERATIONS, RemoveLines("- long gone"))
    for _ in range(2):
        change = StagedChange(
            name="dream/7",
            why="soul",
            at=NOW,
            document=name,
            operations=operations,
            session="slack:c1/17.4",
            person="slack%3aann",
        )
        stage_for_approval(folder, Disk(), change)
    staging = StagedChangeStore(tmp_path, FileDocumentStore(tmp_path), now=lambda: NOW)
    [waiting] = await staging.pending_changes(SCOPE)
    assert (waiting.document, waiting.session) == (name, "slack:c1/17.4")
    assert waiting.account == PlatformAccount(kind="slack", id="ann")
    assert waiting.operations == operations
    assert waiting.would_remove == ("- coffee", "- long gone")
    assert waiting.would_reword == (("- tea", "- green tea"),)
    assert waiting.would_add == ("- speaks plainly",)
    assert "green" not in path.read_text()
    assert await staging.approve(SCOPE, "dream/7", by="eve") == waiting
    assert path.read_text() == "- green tea\n\n# Drinks\n\n- milk\n- speaks plainly\n"
    assert await staging.pending_changes(SCOPE) == []


async def test_a_first_change_of_the_voice_begins_with_the_one_in_force(tmp_path: Path) -> None:
    """A chat without a SOUL.md of its own speaks with the installation's; a line more does not silence the rest."""
    (tmp_path / "SOUL.md").write_text("Be kind.\n")
    change = StagedChange(name="d1", why="soul", at=NOW, document="SOUL.md", operations=(AddLines("Be brief."),))
    stage_for_approval(tmp_path / SCOPE / "memory", Disk(), change)
    staging = StagedChangeStore(tmp_path, FileDocumentStore(tmp_path), now=lambda: NOW)
    assert await staging.approve(SCOPE, "d1", by="eve")
    assert document_path(tmp_path, SCOPE, "SOUL.md").read_text() == "Be kind.\n\nBe brief.\n"
    assert (tmp_path / "SOUL.md").read_text() == "Be kind.\n"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_its_record(operation: Operation) -> None:
    """What a file holds of an operation is all of it."""
    assert read_record(as_record(operation)) == operation


@pytest.mark.parametrize("record", [None, 7, {}, {"op": "wipe"}, {"op": "add"}, {"op": "remove", "old": 3}])
def test_what_is_no_operation_is_none(record: object) -> None:
    """A damaged record is not guessed at."""
    assert read_record(record) is None
