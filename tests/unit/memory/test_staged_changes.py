"""What waits for a yes may be about any tracked document, as line operations, and knows whom to ask."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.memory.editing.staged_changes import EXPIRES_AFTER, StagedChange, StagedErasure
from agent.memory.editing.text_operations import (
    AddLines,
    Operation,
    RemoveLines,
    ReplaceLines,
    as_record,
    read_record,
)
from agent.memory.erasure.word_match import ErasurePattern
from agent.memory.history.folder_store import document_path
from agent.memory.storage.scope_documents import TRACKED
from gateway.events import PlatformAccount
from gateway.ports.access import ScopeMove
from gateway.ports.memory import MemoryProposal
from gateway.store.proposals import SqlProposals
from tests.fakes.documents import open_documents
from tests.fakes.proposals import open_proposals, open_staging

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
    staging = open_staging(tmp_path, now=lambda: NOW)
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
        await staging.stage(SCOPE, change)
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
    documents, changes = open_documents()
    changes.put("", SOUL="Be kind.\n")
    change = StagedChange(name="d1", why="soul", at=NOW, document="SOUL.md", operations=(AddLines("Be brief."),))
    staging = open_staging(tmp_path, documents, now=lambda: NOW)
    await staging.stage(SCOPE, change)
    assert await staging.approve(SCOPE, "d1", by="eve")
    assert changes.text(SCOPE, "SOUL.md") == "Be kind.\n\nBe brief.\n"
    assert changes.text("", "SOUL.md") == "Be kind.\n"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_its_record(operation: Operation) -> None:
    """What a file holds of an operation is all of it."""
    assert read_record(as_record(operation)) == operation


@pytest.mark.parametrize("record", [None, 7, {}, {"op": "wipe"}, {"op": "add"}, {"op": "remove", "old": 3}])
def test_what_is_no_operation_is_none(record: object) -> None:
    """A damaged record is not guessed at."""
    assert read_record(record) is None


# -- rows ----------------------------------------------------------------------------------------------


def change(name: str, text: str = "- tea", **fields: Any) -> StagedChange:
    """Return a change that adds a line."""
    return replace(StagedChange(name=name, why="many", at=NOW, operations=(AddLines(text),)), **fields)


def names(changes: Sequence[StagedChange]) -> list[str]:
    """Return what the changes are called."""
    return [each.name for each in changes]


async def test_what_nobody_answers_lapses(tmp_path: Path) -> None:
    """After fourteen days it is as if it had never been proposed (docs/memory-growth.md)."""
    staging = open_staging(tmp_path, now=lambda: NOW)
    for name, age in (("old", EXPIRES_AFTER + timedelta(hours=1)), ("new", EXPIRES_AFTER - timedelta(hours=1))):
        await staging.stage(SCOPE, change(name, at=NOW - age))
    assert names(await staging.pending_changes(SCOPE)) == ["new"]
    assert await staging.approve(SCOPE, "old", by="eve") is None


async def test_an_erasure_takes_what_has_the_words_and_nothing_else(tmp_path: Path) -> None:
    """Wrapped, escaped and in base64; of a question about other words the examples; not the one that asks for it."""
    staging, now = open_staging(tmp_path, now=lambda: NOW), NOW
    wrapped, hidden = "- the green\n  tea is here", base64.b64encode(b"all about green tea, always").decode()
    await staging.stage(SCOPE, change("wrapped", wrapped))
    await staging.stage(SCOPE, change("hidden", f"- {hidden}"))
    await staging.stage(SCOPE, change("escaped", "- gr\\u0065en tea"))
    await staging.stage(SCOPE, change("other", "- coffee", why="meaning"))
    await staging.stage("people/bob", change("theirs", "- green tea"))
    about = {name: StagedErasure(words=words, examples=("green tea", "a cup")) for name, words in ASKED.items()}
    for name, erasure in about.items():
        await staging.stage(SCOPE, change(name, operations=(), erasure=erasure))
    late = change("late", operations=(), erasure=about["same"], at=now + timedelta(minutes=1))
    await staging.stage(SCOPE, late)
    matches = ErasurePattern("green tea").deep.in_text
    assert await staging.erase(SCOPE, matches, spare="asks", since=now) == 5
    left = {each.name: each for each in await staging.pending_changes(SCOPE)}
    assert set(left) == {"other", "asks", "cup", "late"}
    assert left["cup"].erasure == replace(about["cup"], examples=("a cup",))
    assert names(await staging.pending_changes("people/bob")) == ["theirs"]


ASKED = {"asks": "green tea", "same": "green tea", "cup": "cup"}


async def test_a_member_erases_only_what_they_would_be_asked(tmp_path: Path) -> None:
    """In a group the questions to others stay."""
    staging = open_staging(tmp_path, now=lambda: NOW)
    for person in ("slack%3aann", "slack%3abob"):
        await staging.stage(SCOPE, change(person, person=person))
    account = PlatformAccount(kind="slack", id="ann")
    assert await staging.erase(SCOPE, lambda _: True, account=account) == 1
    assert names(await staging.pending_changes(SCOPE)) == ["slack%3abob"]


class KilledStore(SqlProposals):
    """Proposals of a process that ends at operation number *at*, before or behind it."""

    def __init__(self, engine: Any, at: int, *, after: bool) -> None:
        super().__init__(engine)
        self.at, self.is_after = at, after

    def _step(self) -> bool:
        self.at -= 1
        return self.at < 0

    async def put(self, scope: str, proposals: Sequence[MemoryProposal]) -> None:
        """Store, or end."""
        is_end = self._step()
        if not is_end or self.is_after:
            await super().put(scope, proposals)
        if is_end:
            raise KilledProcess


class KilledProcess(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(3))
async def test_files_of_an_earlier_release_are_taken_over_once(tmp_path: Path, at: int, after: bool) -> None:
    """Killed at any step, each waits once, in its scope; a decision is not undone by a later start."""
    for scope, name in ((SCOPE, "e1"), (SCOPE, "e2"), ("people/bob", "e3")):
        folder = tmp_path / scope / "memory/.staged"
        folder.mkdir(parents=True, exist_ok=True)
        record = {"v": 1, "entry": name, "why": "many", "at": NOW.isoformat(), "asked": "t1"}
        record |= {"operations": [{"op": "add", "text": "- tea"}], "session": "slack:c1", "person": "slack%3aann"}
        (folder / f"{name}.json").write_text(json.dumps(record))
        (folder / "broken.json").write_text("{")
    engine = open_proposals()._engine
    killed = open_staging(tmp_path, proposals=KilledStore(engine, at, after=after), now=lambda: NOW)
    with suppress(KilledProcess):
        await killed.adopt_files()
    staging = open_staging(tmp_path, proposals=SqlProposals(engine), now=lambda: NOW)
    await staging.adopt_files()
    assert names(await staging.pending_changes(SCOPE)) == ["e1", "e2"]
    [theirs] = await staging.pending_changes("people/bob")
    assert (theirs.asked, theirs.would_add, theirs.session) == ("t1", ("- tea",), "slack:c1")
    assert not any((tmp_path / scope / "memory/.staged").exists() for scope in (SCOPE, "people/bob"))
    await staging.reject(SCOPE, "e1")
    await staging.adopt_files()
    assert names(await staging.pending_changes(SCOPE)) == ["e2"]


async def test_an_interrupted_move_takes_its_files_along(tmp_path: Path) -> None:
    """They are in the folder that the move has left, and belong to where the accounts are."""
    for name, session in (("mine", "telegram:1"), ("theirs", "telegram:2")):
        folder = tmp_path / "people/ann/memory/.staged"
        folder.mkdir(parents=True, exist_ok=True)
        record = {"entry": name, "why": "many", "at": NOW.isoformat(), "session": session}
        (folder / f"{name}.json").write_text(json.dumps(record))
    move = ScopeMove(id="m", kind="unlink", source="people/ann", target="people/bob", at=NOW, keys=("telegram:2",))
    staging = open_staging(tmp_path, now=lambda: NOW)
    await staging.adopt_files([move])
    assert names(await staging.pending_changes("people/ann")) == ["mine"]
    assert names(await staging.pending_changes("people/bob")) == ["theirs"]
