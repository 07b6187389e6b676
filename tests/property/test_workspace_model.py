"""Any sequence of changes leaves a workspace equal to a plain mapping of names to texts and marks."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as some

from agent.files.file_workspace import FileWorkspace, WorkspaceFull
from agent.memory.storage.disk import Disk

LIMIT = 200
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


def change(at: FileWorkspace, model: WorkspaceModel, step: tuple[str, str, bytes, bool], key: str) -> None:
    """Apply one change to both."""
    kind, name, data, mark = step
    old = model.files.get(name)
    if kind == "create" and at.create(name, data, is_untrusted=mark) and old is None:
        model.files[name] = (data, mark)
    elif kind == "replace":
        done = at.replace(name, data, key=key, is_untrusted=mark)
        assert bool(done.trash_id) is (old is not None and old != (data, mark))
        if old is not None and done.trash_id:
            model.trash[done.trash_id] = (name, old)
        model.files[name] = (data, mark)
    elif kind == "append" and data:
        at.append(name, data, key=key, is_untrusted=mark)
        before, was = old or (b"", False)
        model.files[name] = (before + data, was or mark)
    elif kind == "delete":
        gone = at.delete(name, key=key)
        assert (gone is None) is (old is None)
        if gone is not None and old is not None:
            model.trash[gone.trash_id] = (name, old)
            del model.files[name]


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_a_workspace_is_a_mapping(steps: list[tuple[str, str, bytes, bool]]) -> None:
    """Contents and marks agree after each step, repeated calls change nothing, and no limit is exceeded."""
    with tempfile.TemporaryDirectory() as folder:
        root, now = Path(folder) / "files", datetime(2026, 11, 23, tzinfo=UTC)
        at, model = FileWorkspace(root, most_bytes=LIMIT, now=lambda: now), WorkspaceModel()
        for n, step in enumerate(steps):
            kind = step[0]
            try:
                if kind == "week":
                    now += timedelta(days=7)
                    at.expire_trash()
                    model.trash.clear()
                elif kind == "restore":
                    restore(at, model)
                elif kind == "again" and model.last is not None:
                    repeat(at, model.last)
                elif kind != "again":
                    change(at, model, step, f"{n}")
            except WorkspaceFull:
                model.last = None
                continue
            model.last = (*step, f"{n}") if kind in ("create", "replace", "append", "delete") else None
            compare(at, model)
            assert used(root) <= LIMIT


def repeat(at: FileWorkspace, last: tuple[str, str, bytes, bool, str]) -> None:
    """Run the last change again, as a turn does after a crash."""
    kind, name, data, mark, key = last
    if kind == "create":
        at.create(name, data, is_untrusted=mark)
    elif kind == "replace":
        at.replace(name, data, key=key, is_untrusted=mark)
    elif kind == "append" and data:
        at.append(name, data, key=key, is_untrusted=mark)
    elif kind == "delete":
        at.delete(name, key=key)


def restore(at: FileWorkspace, model: WorkspaceModel) -> None:
    """Restore the first of the deleted files in both."""
    for trash_id, (name, content) in sorted(model.trash.items())[:1]:
        assert at.restore(trash_id) == name
        model.files[name] = content


def compare(at: FileWorkspace, model: WorkspaceModel) -> None:
    """Fail unless a reader finds what the model has."""
    found = {}
    for each in at.list_files():
        content = at.read(each.name)
        assert content is not None
        found[each.name] = (content.data, content.is_untrusted)
        assert (each.size, each.is_untrusted) == (len(content.data), content.is_untrusted)
    assert found == model.files


def used(root: Path) -> int:
    """Return the bytes on the disk, each file once however many names it has."""
    files = [path.stat() for path in root.rglob("*") if path.is_file()] if Disk().size(root) is not None else []
    return sum({each.st_ino: each.st_size for each in files}.values())
