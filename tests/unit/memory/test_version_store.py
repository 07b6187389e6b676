"""What a scope remembers has a history that any git can read, and that nothing else of the scope gets into."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dulwich.objects import Commit, ObjectID, Tree
from dulwich.repo import Repo
from hypothesis import given
from hypothesis import strategies as st

from agent.memory.documents.version_store import VersionStore
from tests.fakes import killed_commits

SCOPE = "people/telegram%3a42"
AT = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


def keep(versions: VersionStore, n: int, text: str, name: str = "MEMORY.md", by: str = "") -> str:
    """Keep one text and return the version's name."""
    sha = versions.save_version(SCOPE, {name: text.encode()}, why=f"change {n}", by=by, at=AT + timedelta(minutes=n))
    assert sha is not None
    return sha


def test_a_version_can_be_read_compared_and_gone_back_to(tmp_path: Path) -> None:
    """The newest first; each with its cause, its person and what it changed."""
    versions = VersionStore(tmp_path)
    first = keep(versions, 1, "- tea\n")
    second = keep(versions, 2, "- tea\n- dog\n", by="telegram%3a42")
    third = keep(versions, 3, "friendly\n", name="SOUL.md")
    log = versions.log(SCOPE)
    assert [(each.sha, each.why, each.by, each.names) for each in log] == [
        (third, "change 3", "", ("SOUL.md",)),
        (second, "change 2", "telegram%3a42", ("MEMORY.md",)),
        (first, "change 1", "", ("MEMORY.md",)),
    ]
    assert log[0].at == AT + timedelta(minutes=3)
    assert [each.sha for each in versions.log(SCOPE, name="MEMORY.md", limit=1)] == [second]
    assert versions.texts(SCOPE) == {"MEMORY.md": b"- tea\n- dog\n", "SOUL.md": b"friendly\n"}
    assert versions.texts(SCOPE, first[:8]) == {"MEMORY.md": b"- tea\n"}
    assert versions.documents_before(SCOPE, second) == {"MEMORY.md": b"- tea\n"}
    assert versions.documents_before(SCOPE, first) == {}
    assert "+- dog" in versions.diff(SCOPE, second[:8])
    assert "tea" not in [line[1:] for line in versions.diff(SCOPE, second).splitlines() if line[0] in "+-"]


def test_nothing_changed_is_no_version(tmp_path: Path) -> None:
    """The same bytes again leave no trace; an emptied document does."""
    versions = VersionStore(tmp_path)
    keep(versions, 1, "- tea\n")
    assert versions.save_version(SCOPE, {"MEMORY.md": b"- tea\n"}, why="again", at=AT) is None
    keep(versions, 2, "")
    assert versions.texts(SCOPE) == {}
    assert len(versions.log(SCOPE)) == 2


def test_only_the_three_documents_are_tracked(tmp_path: Path) -> None:
    """History, notes and transcripts have their own form; they never get into a tree."""
    with pytest.raises(ValueError, match=r"history\.jsonl"):
        VersionStore(tmp_path).save_version(SCOPE, {"history.jsonl": b"{}"}, why="x", at=AT)
    assert not (tmp_path / "people").exists()


@pytest.mark.parametrize("sha", ["", "abc", "zzzz", "../..", "HEAD", "0000000000"])
def test_a_version_that_is_none_is_none(tmp_path: Path, sha: str) -> None:
    """Whatever somebody types after /dream-log."""
    versions = VersionStore(tmp_path)
    keep(versions, 1, "- tea\n")
    assert versions.find(SCOPE, sha) is None
    assert versions.documents_before(SCOPE, sha) is None
    assert versions.diff(SCOPE, sha) == ""
    assert VersionStore(tmp_path / "other").log(SCOPE) == []


def test_the_source_of_a_line_is_the_change_that_brought_it(tmp_path: Path) -> None:
    """Moving it about is no new source; taking it out and putting it in again is."""
    versions = VersionStore(tmp_path)
    keep(versions, 1, "- tea\n")
    dog = keep(versions, 2, "- tea\n- dog\n")
    keep(versions, 3, "- dog\n- tea\n- cat\n")
    found = versions.source(SCOPE, "MEMORY.md", "- dog")
    assert found is not None
    assert found.sha == dog
    keep(versions, 4, "- tea\n")
    assert versions.source(SCOPE, "MEMORY.md", "- dog") is None
    again = keep(versions, 5, "- dog\n")
    found = versions.source(SCOPE, "MEMORY.md", "- dog")
    assert found is not None
    assert found.sha == again


def test_a_purge_takes_a_text_out_of_every_version(tmp_path: Path) -> None:
    """No object of the old history is left; what was said about other things is still there."""
    versions = VersionStore(tmp_path)
    keep(versions, 1, "- secret\n")
    keep(versions, 2, "- secret\n- dog\n")
    keep(versions, 3, "- dog\n- cat\n")
    changed = versions.rewrite(SCOPE, lambda text, _: text.replace(b"- secret\n", b""))
    assert changed == 2
    assert [each.why for each in versions.log(SCOPE)] == ["change 3", "change 2"]
    assert versions.texts(SCOPE) == {"MEMORY.md": b"- dog\n- cat\n"}
    objects = (tmp_path / SCOPE / "memory" / ".git" / "objects").rglob("*")
    assert not any(b"secret" in zlib.decompress(each.read_bytes()) for each in objects if each.is_file())
    assert sorted(each.name for each in (tmp_path / SCOPE / "memory").iterdir()) == [".git"]


def test_a_broken_repository_is_set_aside(tmp_path: Path) -> None:
    """Versions begin anew; what can still be saved of the old ones is beside them."""
    versions = VersionStore(tmp_path)
    keep(versions, 1, "- tea\n")
    memory = tmp_path / SCOPE / "memory"
    for each in (memory / ".git" / "objects").rglob("*"):
        if each.is_file():
            each.chmod(0o600)
            each.write_bytes(b"")
    (memory / ".git" / "HEAD").unlink()
    keep(versions, 2, "- dog\n")
    assert [each.why for each in versions.log(SCOPE)] == ["change 2"]
    assert any(each.name.startswith(".git.corrupt-") for each in memory.iterdir())


def test_who_reads_during_a_change_of_the_repository_finds_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is made, swapped, or its branch moved: it was taken for damaged, and another begun in its place."""
    versions, git = VersionStore(tmp_path), tmp_path / SCOPE / "memory" / ".git"
    init_bare = Repo.init_bare

    def init(*arguments: Any, **options: Any) -> Repo:
        made = init_bare(*arguments, **options)
        assert versions.log(SCOPE) == []
        return made

    monkeypatch.setattr(Repo, "init_bare", init)
    sha = keep(versions, 1, "- tea\n")
    commit, old = git / "objects" / sha[:2] / sha[2:], git.with_name(".git.old")
    for there, away in ((git, git.with_name(".git.new")), (commit, tmp_path / "commit")):
        there.rename(away)
        if there == git:
            old.mkdir()
        monkeypatch.setattr("time.sleep", lambda _, back=away, to=there: back.rename(to))
        assert [each.sha for each in versions.log(SCOPE)] == [sha]
    assert sorted(each.name for each in git.parent.iterdir()) == [".git", ".git.old"]


@pytest.mark.parametrize("kind", ["commit", "tree", "blob"])
@pytest.mark.parametrize("data", [None, b"", b"\x78\x9c?"])
def test_a_damaged_version_costs_itself_and_those_before(tmp_path: Path, kind: str, data: bytes | None) -> None:
    """Later ones are listed, compared and added to; an erasure rewrites them, and leaves nothing of the others."""
    versions = VersionStore(tmp_path)
    for n in range(4):
        keep(versions, n, f"- fact {n}\n")
    folder = tmp_path / SCOPE / "memory" / ".git"
    with Repo(str(folder)) as repo:
        commit = versions.log(SCOPE)[2].sha.encode()
        found = repo[ObjectID(commit)]
        assert isinstance(found, Commit)
        tree = repo[found.tree]
        assert isinstance(tree, Tree)
        blob = tree.items()[0].sha
        assert blob is not None
        name = {"commit": commit, "tree": tree.id, "blob": blob}[kind].decode()
    path = folder / "objects" / name[:2] / name[2:]
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    assert [each.why for each in versions.log(SCOPE)] == ["change 3", "change 2"]
    assert "+- fact 3" in versions.diff(SCOPE, versions.log(SCOPE)[0].short)
    assert versions.find(SCOPE, commit.decode()) is None
    keep(versions, 4, "- fact 4\n")
    assert versions.rewrite(SCOPE, lambda text, _: text.replace(b"fact 2", b"")) == 1
    assert [each.why for each in versions.log(SCOPE)] == ["change 4", "change 3", "change 2"]
    left = [each.name for each in folder.parent.rglob("*") if each.is_file()]
    assert path.name not in left


@pytest.mark.parametrize("is_first", [True, False])
def test_killed_inside_a_commit_the_next_one_is_made(tmp_path: Path, is_first: bool) -> None:
    """Issue 4, "To show" 5: git's own lock files, objects and references too; once, and nothing earlier is lost."""
    if not is_first:
        keep(VersionStore(tmp_path / "base"), 0, "- tea\n")
    command = [sys.executable, "-m", "tests.fakes.killed_commits", str(tmp_path)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)  # noqa: S603 - our own module
    homes = sorted((each for each in tmp_path.iterdir() if each.name != "base"), key=lambda each: int(each.name))
    assert len(homes) > 10
    for home in homes:
        killed_commits.keep(home)
        versions = VersionStore(home)
        whys = [each.why for each in versions.log(SCOPE)]
        assert whys == (["second"] if is_first else ["second", "change 0"]), home.name
        assert versions.texts(SCOPE) == killed_commits.TEXTS


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """Folders 0700; files for nobody but their owner (seed 004, Permissions)."""
    versions = VersionStore(tmp_path)
    keep(versions, 1, "- tea\n")
    for each in (tmp_path / SCOPE / "memory").rglob("*"):
        assert each.stat().st_mode & 0o077 == 0, each


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_any_bytes_round_trip(texts: list[bytes]) -> None:
    """Whatever an editor saved comes back as it was."""
    with tempfile.TemporaryDirectory() as folder:
        versions = VersionStore(Path(folder))
        kept: list[tuple[str, bytes]] = []
        for n, text in enumerate(texts):
            sha = versions.save_version("", {"MEMORY.md": text}, why=str(n), at=AT)
            if sha is not None:
                kept.append((sha, text))
        assert [(each.sha, versions.texts("", each.sha).get("MEMORY.md", b"")) for each in versions.log("")] == kept[
            ::-1
        ]
