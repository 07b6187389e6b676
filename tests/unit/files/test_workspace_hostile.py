"""Attacks on the workspace's paths: whatever stands in a part's place, nothing outside is read, written or removed.

Every test runs with openat2 and with the parts opened one by one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from agent.files import path_resolution
from agent.files.file_workspace import FileWorkspace
from agent.files.workspace_disk import FileTooLarge
from agent.files.workspace_names import InvalidFileName

OUTSIDE = {"secret.txt": "secret", "MEMORY.md": "- a fact\n", "parlour.yaml": "llm: {}", ".env": "KEY=1"}
HOSTILE = [
    *("link.txt", "inside.txt", "out/secret.txt", "../secret.txt", "inner/../a.txt", "/etc/passwd", "pipe"),
    *("inner", "dangling", "", ".", "..", "a.txt/", "/proc/self/environ", "/proc/self/root/etc/passwd", "a\0.txt"),
    *("missing", "a.txt/b", "x" * 300, "//a.txt", "./a.txt", "..\\secret.txt", "out", "../MEMORY.md", "~/secret.txt"),
    *("%2e%2e/secret.txt", "%ua.txt", ".lock", ".trash/x", ".new-1", "inner\n/b.txt/..", "a.txt\u202e"),
]

CHANGES: list[Callable[[FileWorkspace, str], object]] = [
    lambda at, name: at.create(name, b"planted", is_untrusted=False),
    lambda at, name: at.replace(name, b"planted too", key=name, is_untrusted=True),
    lambda at, name: at.append(name, b"planted", key=name, is_untrusted=False),
    lambda at, name: at.delete(name, key=name),
]


@pytest.fixture(params=["openat2", "part by part"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a file, a file in a folder, and everything that leads out of it."""
    if request.param == "part by part":
        monkeypatch.setattr(path_resolution, "_find_openat2", lambda: None)
    elif path_resolution._find_openat2() is None:
        pytest.skip("this kernel has no openat2, or a sandbox forbids it")
    folder = tmp_path / "scope" / "files"
    (folder / "inner").mkdir(parents=True)
    for name, text in OUTSIDE.items():
        (folder.parent / name).write_text(text)
    (folder / "a.txt").write_text("a")
    (folder / "inner" / "b.txt").write_text("b")
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "inside.txt").symlink_to(folder / "a.txt")
    (folder / "out").symlink_to(folder.parent)
    (folder / "dangling").symlink_to(folder.parent / "nothing")
    os.mkfifo(folder / "pipe")
    return folder


def build(root: Path) -> FileWorkspace:
    """Return the workspace at *root*."""
    return FileWorkspace(root, most_bytes=1_000_000, now=lambda: datetime(2026, 11, 23, tzinfo=UTC))


def read(root: Path, name: str) -> bytes | None:
    """Return the bytes of a file, None for a name that is refused or names nothing."""
    with suppress(InvalidFileName):
        content = build(root).read(name, most=1_000)
        return None if content is None else content.data
    return None


def outside(root: Path) -> dict[str, str]:
    """Return everything beside the workspace."""
    return {path.name: path.read_text() for path in root.parent.iterdir() if path.is_file()}


def test_what_is_there_is_read(root: Path) -> None:
    """Files right in it and in folders of it."""
    assert read(root, "a.txt") == b"a"
    assert read(root, "inner/b.txt") == b"b"
    assert sorted(each.name for each in build(root).list_files()) == ["a.txt", "inner/b.txt"]


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_else_is_read(root: Path, name: str) -> None:
    """No link (not even one that stays inside), no way up, no absolute path, no pipe, no folder, no file of ours."""
    build(root).delete("nothing", key="makes the lock")
    assert read(root, name) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_outside_is_written(root: Path, name: str) -> None:
    """Every change by every hostile name is refused or stays inside, and links are replaced, never followed."""
    workspace = build(root)
    for change in CHANGES:
        with suppress(InvalidFileName, OSError):
            change(workspace, name)
    assert outside(root) == OUTSIDE
    assert not (root.parent / "nothing").exists()
    assert {path.name for path in root.parent.iterdir()} == {*OUTSIDE, "files"}


def test_a_linked_root_is_empty(root: Path) -> None:
    """The workspace itself may not be a link: nothing is read there, and nothing is written."""
    linked = root.parent / "linked"
    linked.symlink_to(root)
    assert read(linked, "a.txt") is None
    assert build(linked).list_files() == []
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        build(linked).create("b.txt", b"x", is_untrusted=False)


@pytest.mark.parametrize("hidden", [".trash", ".appends", ".lock"])
def test_our_own_folders_may_not_be_links_either(root: Path, hidden: str) -> None:
    """A backup or an operator could bring them; deleting and appending then fail, and change nothing outside."""
    (root / hidden).symlink_to(root.parent / ("secret.txt" if hidden == ".lock" else "."))
    workspace = build(root)
    for change in CHANGES:
        with suppress(OSError):
            change(workspace, "a.txt")
    with suppress(OSError):
        workspace.restore("faaaaaaaa")
    with suppress(OSError):
        workspace.expire_trash()
    assert outside(root) == OUTSIDE
    assert {path.name for path in root.parent.iterdir()} == {*OUTSIDE, "files"}


def test_a_large_file_is_said_to_be_large(root: Path) -> None:
    """It is refused while it is read, whatever its size was before."""
    (root / "large").write_bytes(b"x" * 11)
    with pytest.raises(FileTooLarge):
        build(root).read("large", most=10)


def test_a_folder_swapped_for_a_link_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Attack 55: a link in a folder's place just before an open is refused, for reading and for writing."""
    (root.parent / "b.txt").write_text("secret")
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        if not (root / "inner").is_symlink():
            swaps += 1
            (root / "inner").rename(root / f"moved{swaps}")
            (root / "inner").symlink_to(root.parent)

    real = path_resolution.open_beneath

    def hostile(folder: int, parts: Sequence[str], flags: int) -> int:
        if parts[0] == "inner":
            swap()
        return real(folder, parts, flags)

    monkeypatch.setattr(path_resolution, "open_beneath", hostile)
    assert read(root, "inner/b.txt") is None
    for change in CHANGES:
        with suppress(OSError):
            change(build(root), "inner/c.txt")
            change(build(root), "inner/b.txt")
    assert swaps
    assert outside(root) == {**OUTSIDE, "b.txt": "secret"}


def test_between_two_parts_a_link_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where parts are opened one by one, each is opened in the folder that the last one was; then a link is met."""
    monkeypatch.setattr(path_resolution, "_find_openat2", lambda: None)
    real = os.open
    swapped: list[str] = []

    def swap(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "b.txt" and not swapped:
            swapped.append("now")
            (root / "inner").rename(root / "moved")
            (root / "inner").symlink_to(root.parent)
            (root.parent / "b.txt").write_text("secret")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    assert read(root, "inner/b.txt") in (b"b", None)
    assert swapped


PARTS = some.one_of(
    some.sampled_from(["..", ".", "", "out", "link.txt", "inner", "a.txt", "%2e%2e", "~", "files", ".trash", "%u"]),
    some.text(max_size=12),
)


@given(parts=some.lists(PARTS, min_size=1, max_size=5), change=some.sampled_from(CHANGES))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_stays_inside(root: Path, parts: list[str], change: Callable[[FileWorkspace, str], object]) -> None:
    """Whatever a model calls a file, reading it tells nothing from outside, and changing it changes nothing there."""
    name = "/".join(parts)
    with suppress(InvalidFileName, OSError):
        change(build(root), name)
    assert read(root, name) != b"secret"
    assert outside(root) == OUTSIDE
