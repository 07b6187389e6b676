"""Edits that a person asks for: all or none, once, beside other writers, and through a failure at every write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent.base.disk import Disk
from agent.base.transcript_lines import utc_now
from agent.memory.editing.text_operations import AddLines, DocumentEdit, RemoveLines, ReplaceLines
from agent.memory.jobs.chat_edits import ChatEditRequest, ChatMemoryEditor, LineChange
from agent.memory.prompt.due_jobs import EDIT
from agent.memory.storage.scope_documents import UNARCHIVED, ScopeDocuments
from gateway.errors import ToolFailed
from gateway.ports.journal import Job
from gateway.store.claims import WorkerIdentity
from gateway.store.database import Database
from gateway.store.engine import StoreEngine, StoreLimits
from gateway.store.history import SqlHistory
from tests.fakes.documents import FakeDocuments
from tests.fakes.histories import SyncHistory
from tests.fakes.proposals import open_staging
from tests.fakes.store import InlineWriter

T = TypeVar("T")

SCOPE = "people/telegram%3a42"
ANN, BEN = "telegram%3a42", "telegram%3a43"
BEFORE = {"MEMORY.md": "# Facts\n\n- Lives in Leipzig\n- Smokes\n", "USER.md": "- Is called Ann\n"}
EDITS = [
    DocumentEdit("MEMORY.md", ReplaceLines("Lives in Leipzig", "Lives in Dresden")),
    DocumentEdit("MEMORY.md", RemoveLines("- Smokes")),
    DocumentEdit("USER.md", AddLines("Speaks German")),
]
AFTER = {"MEMORY.md": "# Facts\n\n- Lives in Dresden\n", "USER.md": "- Is called Ann\n- Speaks German\n"}


class KilledProcess(BaseException):
    """The process ends here."""


class KillingDisk(Disk):
    """Ends the process at step number *at*, counted from 0: before or behind a change of a document or of a file."""

    def __init__(self, at: int = -1) -> None:
        self.left = at

    def step(self) -> None:
        """Count one more place to end in."""
        self.left -= 1
        if self.left == -1:
            raise KilledProcess

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a file, or end before or behind it."""
        self.step()
        super().replace(path, data)
        self.step()


class KillingHistory(SqlHistory):
    """Rows in whose change the process may end, before or behind it."""

    def __init__(self, changes: FakeDocuments) -> None:
        super().__init__(StoreEngine(InlineWriter(changes.connection), StoreLimits(), utc_now, WorkerIdentity()))
        self._documents = changes

    async def _change(self, operation: Callable[[Database], T]) -> T:
        self._documents.step()
        result = await super()._change(operation)
        self._documents.step()
        return result


@cache
def store_of(home: Path) -> FakeDocuments:
    """Return the documents of *home*."""
    return FakeDocuments()


def build_editor(home: Path, disk: KillingDisk | None = None) -> tuple[ChatMemoryEditor, ScopeDocuments]:
    """Return an editor of the documents of *home*."""
    disk, changes = disk or KillingDisk(-2), store_of(home)
    changes.step = disk.step
    documents = ScopeDocuments(changes)
    staging = open_staging(home, documents)
    history = KillingHistory(changes)
    editor = ChatMemoryEditor(history, documents, staging, writing=asyncio.Lock(), now=utc_now)
    return editor, documents


async def fill(home: Path, by: str = ANN) -> None:
    """Write the documents as *by* had them remembered."""
    _, documents = build_editor(home)
    for name, text in BEFORE.items():
        was = (await documents.read(SCOPE, name)).rev
        assert await documents.write(SCOPE, name, text, was=was, why="remember:t0.0.0", by=by)


async def texts(home: Path) -> dict[str, str]:
    """Return the documents."""
    _, documents = build_editor(home)
    return {name: (await documents.read(SCOPE, name)).text for name in BEFORE}


def request(**changes: Any) -> ChatEditRequest:
    """Return Ann's request in a direct chat."""
    known: dict[str, Any] = {"scope": SCOPE, "account": ANN, "turn": "t1", "call": "c1", "may_all": True}
    return ChatEditRequest(**{**known, **changes})


async def test_edits_of_two_documents_are_made_and_reported(tmp_path: Path) -> None:
    """Bullets that the model left out are added; the result pairs a line with the one that replaces it."""
    await fill(tmp_path)
    editor, documents = build_editor(tmp_path)
    done = await editor.edit(request(), EDITS)
    assert await texts(tmp_path) == AFTER
    assert done.changes == (
        LineChange("- Lives in Leipzig", "- Lives in Dresden"),
        LineChange(old="- Smokes"),
        LineChange(new="- Speaks German"),
    )
    assert len(done.versions) == 2
    assert {each.by for each in await documents.changes.log(SCOPE, limit=2)} == {ANN}
    assert await editor.edit(request(), EDITS) == done
    assert await texts(tmp_path) == AFTER


@pytest.mark.parametrize("at", range(4))
async def test_a_kill_at_any_write_is_completed_once(tmp_path: Path, at: int) -> None:
    """The same call, repeated after the crash, leaves every line once and one version a document."""
    await fill(tmp_path)
    editor, _ = build_editor(tmp_path, KillingDisk(at))
    with pytest.raises(KilledProcess):
        await editor.edit(request(), EDITS)
    editor, documents = build_editor(tmp_path)
    done = await editor.edit(request(), EDITS)
    assert await texts(tmp_path) == AFTER
    assert len(done.changes) == 3
    made = [each for each in await documents.changes.log(SCOPE, limit=20) if each.why == request().cause]
    assert sorted(name for each in made for name in each.names) == ["MEMORY.md", "USER.md"]


async def test_an_edit_by_hand_at_the_same_time_survives(tmp_path: Path) -> None:
    """The line that a person saves between reading and writing is there afterwards, and so is the edit."""
    await fill(tmp_path)
    editor, documents = build_editor(tmp_path)
    write = documents.write

    async def save_first(*args: Any, **more: Any) -> Any:
        now = store_of(tmp_path).text(SCOPE)
        if "By hand" not in now:
            store_of(tmp_path).put(SCOPE, MEMORY=f"{now}- By hand\n")
        return await write(*args, **more)

    documents.write = save_first  # type: ignore[method-assign]
    await editor.edit(request(), EDITS[:2])
    assert store_of(tmp_path).text(SCOPE) == "# Facts\n\n- Lives in Dresden\n- By hand\n"


async def test_a_wrong_line_in_one_document_changes_none(tmp_path: Path) -> None:
    """The other document is not touched either, and the closest lines are named."""
    await fill(tmp_path)
    editor, _ = build_editor(tmp_path)
    with pytest.raises(ToolFailed, match=r"no such line: Is called Anna\n.*\n- Is called Ann"):
        await editor.edit(request(), [*EDITS, DocumentEdit("USER.md", RemoveLines("Is called Anna"))])
    assert await texts(tmp_path) == BEFORE


async def test_a_member_changes_no_line_of_another_person(tmp_path: Path) -> None:
    """Adding is allowed; replacing and removing what somebody else had kept is not."""
    await fill(tmp_path, by=BEN)
    editor, _ = build_editor(tmp_path)
    for edit in EDITS[:2]:
        with pytest.raises(ToolFailed, match="only an admin of this chat"):
            await editor.edit(request(may_all=False), [edit])
    done = await editor.edit(request(may_all=False), EDITS[2:])
    assert done.changes == (LineChange(new="- Speaks German"),)


ARCHIVE = "2026-05-03.archive.md"
MOVED = [
    DocumentEdit("MEMORY.md", ReplaceLines("Drives a Golf", "Drives a Zoe")),
    DocumentEdit("MEMORY.md", RemoveLines("- Collects stamps")),
]


async def fill_archive(home: Path) -> SyncHistory:
    """Write the documents, and an archive of three more lines; return the history that has it."""
    await fill(home)
    history = SyncHistory(store_of(home).connection, SCOPE)
    text = "# Moved from MEMORY.md\n\n# Facts\n\n- Drives a Golf\n- Collects stamps\n- Likes tea\n"
    history.put_note(ARCHIVE, text)
    return history


async def test_a_line_of_the_archive_is_edited_in_memory(tmp_path: Path) -> None:
    """It moves back first, as a version, so that undoing the edit finds it; the rest of the archive stays."""
    archive = await fill_archive(tmp_path)
    editor, documents = build_editor(tmp_path)
    done = await editor.edit(request(), MOVED)
    assert (await texts(tmp_path))["MEMORY.md"] == "# Facts\n\n- Lives in Leipzig\n- Smokes\n- Drives a Zoe\n"
    assert done.changes == (LineChange("- Drives a Golf", "- Drives a Zoe"), LineChange(old="- Collects stamps"))
    assert archive.notes[ARCHIVE] == "# Moved from MEMORY.md\n\n# Facts\n\n- Likes tea\n"
    newest, before = await documents.changes.log(SCOPE, limit=2)
    assert [newest.why, before.why] == [request().cause, UNARCHIVED]
    texts_before = await documents.changes.texts(SCOPE, before.number)
    assert texts_before["MEMORY.md"].endswith("- Drives a Golf\n- Collects stamps\n")


@pytest.mark.parametrize("at", range(6))
async def test_a_kill_while_a_line_moves_back_loses_no_line(tmp_path: Path, at: int) -> None:
    """Between the restored document, the shortened archive and the edit: the same call completes all three, once."""
    archive = await fill_archive(tmp_path)
    editor, _ = build_editor(tmp_path, KillingDisk(at))
    with pytest.raises(KilledProcess):
        await editor.edit(request(), MOVED)
    everything = (await texts(tmp_path))["MEMORY.md"] + archive.notes[ARCHIVE]
    assert all(line in everything for line in ("- Drives a", "- Likes tea", "- Smokes"))
    editor, _ = build_editor(tmp_path)
    await editor.edit(request(), MOVED)
    assert (await texts(tmp_path))["MEMORY.md"] == "# Facts\n\n- Lives in Leipzig\n- Smokes\n- Drives a Zoe\n"
    assert archive.notes[ARCHIVE] == "# Moved from MEMORY.md\n\n# Facts\n\n- Likes tea\n"


async def test_a_member_is_told_which_archive_has_the_line(tmp_path: Path) -> None:
    """Archives do not name authors, so only an admin edits their lines; nothing moves."""
    archive = await fill_archive(tmp_path)
    before = archive.notes[ARCHIVE]
    editor, _ = build_editor(tmp_path)
    with pytest.raises(ToolFailed, match=rf"moved to {ARCHIVE}, where only an admin .*: - Drives a Golf"):
        await editor.edit(request(may_all=False), MOVED[:1])
    assert (archive.notes[ARCHIVE], await texts(tmp_path)) == (before, BEFORE)


async def test_a_tainted_edit_of_an_archived_line_waits_with_its_line_in_memory(tmp_path: Path) -> None:
    """An approval applies to MEMORY.md, so the line is there; nothing else has changed."""
    await fill_archive(tmp_path)
    editor, _ = build_editor(tmp_path)
    done = await editor.edit(request(is_tainted=True), MOVED[:1])
    assert (done.why, len(done.held), done.changes) == ("untrusted", 1, ())
    assert (await texts(tmp_path))["MEMORY.md"] == f"{BEFORE['MEMORY.md']}- Drives a Golf\n"


async def test_what_waits_is_staged_in_fives(tmp_path: Path) -> None:
    """Eleven removals are three questions; the job can run again."""
    editor, documents = build_editor(tmp_path)
    text = "".join(f"- Fact number {n}\n" for n in range(11))
    await documents.write(SCOPE, "MEMORY.md", text, was="", why="remember:t0.0.0", by=ANN)
    removal = DocumentEdit("MEMORY.md", RemoveLines(text.rstrip()))
    done = await editor.edit(request(), [removal])
    assert (done.why, len(done.held), done.changes) == ("many", 11, ())
    payload = {"edits": [each.record() for each in done.held], "why": done.why, "cause": request().cause}
    payload |= {"by": ANN, "session": "telegram:42", "turn": "t1"}
    job = Job(id="memory_edit:t1.2.0", kind=EDIT, scope=SCOPE, payload=payload, due_at=utc_now())
    for _ in range(2):
        await editor.stage(job)
    changes = await editor._staging.pending_changes(SCOPE)
    assert sorted(len(each.would_remove) for each in changes) == [1, 5, 5]
