"""A change of several documents is one version; nothing else is ever joined to another one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.memory.documents.version_store import VersionStore

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SCOPE = "people/ann"


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (("dream: 1-2 e1", "", "USER.md"), ("dream: 1-2 e1", "", "MEMORY.md"), 1),
        (("undo 1234abcd", "ann", "USER.md"), ("undo 1234abcd", "ann", "MEMORY.md"), 1),
        (("dream restore 1234abcd", "ann", "USER.md"), ("dream restore 1234abcd", "ann", "SOUL.md"), 1),
        (("dream: 1-2 e1", "", "USER.md"), ("dream: 3-4 e3", "", "MEMORY.md"), 2),
        (("dream: 1-2 e1", "", "USER.md"), ("dream: 1-2 e1", "", "USER.md"), 2),
        (("undo 1234abcd", "ann", "USER.md"), ("undo 1234abcd", "bob", "MEMORY.md"), 2),
        (("edited by hand", "", "USER.md"), ("edited by hand", "", "MEMORY.md"), 2),
        (("forget", "ann", "USER.md"), ("forget", "ann", "MEMORY.md"), 2),
    ],
)
def test_what_is_one_change(
    tmp_path: Path, first: tuple[str, str, str], second: tuple[str, str, str], count: int
) -> None:
    """The same run, other documents, nothing in between; else there are two."""
    versions = VersionStore(tmp_path)
    versions.save_version(SCOPE, {"SOUL.md": b"before"}, why="before", at=NOW)
    for n, (why, by, name) in enumerate((first, second)):
        versions.save_version(SCOPE, {name: b"text %d" % n}, why=why, by=by, at=NOW)
    log = versions.log(SCOPE)
    assert len(log) == count + 1
    assert versions.texts(SCOPE)[second[2]] == b"text 1"
    assert versions.documents_before(SCOPE, log[-2].sha) == {"SOUL.md": b"before"}
    if count == 1:
        assert set(log[0].names) == {first[2], second[2]}


def test_what_comes_in_between_parts_them(tmp_path: Path) -> None:
    """Somebody's edit between two halves of a change stands where it was made."""
    versions = VersionStore(tmp_path)
    for name, why in (("USER.md", "dream: 1-1 e1"), ("SOUL.md", "edited by hand"), ("MEMORY.md", "dream: 1-1 e1")):
        versions.save_version(SCOPE, {name: b"x"}, why=why, at=NOW)
    assert [each.names for each in versions.log(SCOPE)] == [("MEMORY.md",), ("SOUL.md",), ("USER.md",)]
