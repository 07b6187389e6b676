"""Any sequence of changes leaves a workspace equal to a plain mapping of names to texts and marks."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from agent.files.file_workspace import KEPT_FOR, FileWorkspace, ScopeWorkspaces, WorkspaceFull
from gateway.ports.memory import FileKind
from tests.fakes.store import open_inline_store

LIMIT = 200
SCOPE = "people/ann"
NAMES = some.sampled_from(["a.txt", "A.txt", "dir/b.md", "dir/Sub Dir/ü.csv", "%ua.txt", "%41.txt"])
TEXTS = some.binary(max_size=60)
STEPS = some.lists(
    some.tuples(
        some.sampled_from(["create", "replace", "append", "delete", "restore", "week", "again"]),
        NAMES,
        TEXTS,
        some.booleans(),
    ),
    max_size=25,
)


@dataclass
class WorkspaceModel:
    """What the workspace must hold, and the last change, which may run again."""

    files: dict[str, tuple[bytes, bool]] = field(default_factory=dict)
    trash: dict[str, tuple[str, tuple[bytes, bool]]] = field(default_factory=dict)
    last: tuple[str, str, bytes, bool, str] | None = None
    now: datetime = datetime(2026, 11, 23, tzinfo=UTC)


async def change(at: FileWorkspace, model: WorkspaceModel, step: tuple[str, str, bytes, bool], key: str) -> None:
    """Apply one change to both."""
    kind, name, data, mark = step
    old = model.files.get(name)
    if kind == "create" and await at.create(name, data, is_untrusted=mark) and old is None:
        model.files[name] = (data, mark)
    elif kind == "replace":
        done = await at.replace(name, data, key=key, is_untrusted=mark)
        assert bool(done.trash_id) is (old is not None and old != (data, mark))
        if old is not None and done.trash_id:
            model.trash[done.trash_id] = (name, old)
        model.files[name] = (data, mark)
    elif kind == "append" and data:
        await at.append(name, data, key=key, is_untrusted=mark)
        before, was = old or (b"", False)
        model.files[name] = (before + data, was or mark)
    elif kind == "delete":
        gone = await at.delete(name, key=key)
        assert (gone is None) is (old is None)
        if gone is not None and old is not None:
            model.trash[gone.trash_id] = (name, old)
            del model.files[name]


@given(STEPS)
def test_a_workspace_is_a_mapping(steps: list[tuple[str, str, bytes, bool]]) -> None:
    """Contents and marks agree after each step, repeated calls change nothing, and no limit is exceeded."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), steps))


async def play(home: Path, steps: list[tuple[str, str, bytes, bool]]) -> None:
    """Apply all steps to a workspace and to its model."""
    store, model = await open_inline_store(home / "journal.db"), WorkspaceModel()
    workspaces = ScopeWorkspaces(store.files, most_mb=1, now=lambda: model.now)
    at = FileWorkspace(store.files, SCOPE, most_bytes=LIMIT, now=lambda: model.now)
    for n, step in enumerate(steps):
        kind = step[0]
        model.now += timedelta(seconds=1)
        try:
            if kind == "week":
                model.now += KEPT_FOR
                await workspaces.expire_trash()
                model.trash.clear()
            elif kind == "restore":
                await restore(at, model)
            elif kind == "again" and model.last is not None:
                await repeat(at, model.last)
            elif kind != "again":
                await change(at, model, step, f"{n}")
        except WorkspaceFull:
            model.last = None
            continue
        model.last = (*step, f"{n}") if kind in ("create", "replace", "append", "delete") else None
        await compare(at, model)
        totals = await store.files.totals(SCOPE)
        assert sum(each.size for each in totals.values()) <= LIMIT
    await store.close()


async def repeat(at: FileWorkspace, last: tuple[str, str, bytes, bool, str]) -> None:
    """Run the last change again, as a turn does after a crash."""
    kind, name, data, mark, key = last
    if kind == "create":
        await at.create(name, data, is_untrusted=mark)
    elif kind == "replace":
        await at.replace(name, data, key=key, is_untrusted=mark)
    elif kind == "append" and data:
        await at.append(name, data, key=key, is_untrusted=mark)
    elif kind == "delete":
        await at.delete(name, key=key)


async def restore(at: FileWorkspace, model: WorkspaceModel) -> None:
    """Restore the first of the deleted files in both, twice; a file in its place is deleted."""
    for trash_id, (name, content) in sorted(model.trash.items())[:1]:
        assert await at.restore(trash_id) == name
        assert await at.restore(trash_id) == name
        old = model.files.get(name)
        del model.trash[trash_id]
        if old is not None:
            (new,) = {each.name for each in await at.deleted_files()} - model.trash.keys()
            model.trash[new] = (name, old)
        model.files[name] = content


async def compare(at: FileWorkspace, model: WorkspaceModel) -> None:
    """Fail unless a reader finds what the model has."""
    found = {}
    for each in await at.list_files():
        content = await at.read(each.name)
        assert content is not None
        found[each.name] = (content.data, content.is_untrusted)
        assert (each.size, each.is_untrusted) == (len(content.data), content.is_untrusted)
    assert found == model.files
    deleted = await at.store.files(SCOPE, FileKind.DELETED)
    assert {each.name: each.original for each in deleted} == {id_: name for id_, (name, _) in model.trash.items()}
