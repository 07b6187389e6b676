"""A scope's own folder: what is in it is read, and nothing else, whatever stands in a part's place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from agent.attachments.scope_folder import FileTooLarge, names_in, read_beneath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file, a file in a folder, and everything that leads out of it."""
    folder = tmp_path / "files"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "a.txt").write_text("a")
    (folder / "inner" / "b.txt").write_text("b")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "inside.txt").symlink_to(folder / "a.txt")
    (folder / "out").symlink_to(tmp_path)
    (folder / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe")
    return folder


def test_what_is_there_is_read(root: Path) -> None:
    """Files right in it and in folders of it."""
    assert read_beneath(root, "a.txt", 10) == b"a"
    assert read_beneath(root, "inner/b.txt", 10) == b"b"
    assert names_in(root, 10) == ["a.txt"]


@pytest.mark.parametrize(
    "name",
    [
        *("link.txt", "inside.txt", "out/secret.txt", "../secret.txt", "inner/../a.txt", "/etc/passwd", "pipe"),
        *("inner", "dangling", "", ".", "..", "a.txt/", "/proc/self/environ", "a\0.txt", "missing", "a.txt/b"),
        "x" * 300,
    ],
)
def test_nothing_else_is(root: Path, name: str) -> None:
    """No link (not even one that stays inside), no way up, no absolute path, no pipe, no folder."""
    assert read_beneath(root, name, 1_000) is None


def test_a_linked_root_is_none(root: Path, tmp_path: Path) -> None:
    """The folder itself may not be a link either; one that is not there is empty."""
    (tmp_path / "other").symlink_to(root)
    assert read_beneath(tmp_path / "other", "a.txt", 10) is None
    assert read_beneath(tmp_path / "nothing", "a.txt", 10) is None
    assert names_in(tmp_path / "nothing", 10) == []


def test_a_large_file_is_said_to_be_large(root: Path) -> None:
    """It is refused by its size, before it is read."""
    (root / "large").write_bytes(b"x" * 11)
    with pytest.raises(FileTooLarge):
        read_beneath(root, "large", 10)


def test_a_file_swapped_for_a_link_is_not_followed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who puts a link in a folder's place between two parts gains nothing: each is opened where the last one is."""
    real = os.open
    swapped: list[str] = []

    def swap(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "b.txt" and not swapped:
            swapped.append("now")
            (root / "inner").rename(root / "moved")
            (root / "inner").symlink_to(tmp_path)
            (tmp_path / "b.txt").write_text("secret")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    assert read_beneath(root, "inner/b.txt", 10) == b"b"
    assert swapped


@given(some.text(max_size=60))
def test_any_name_is_harmless(name: str) -> None:
    """Whatever a model calls a file, an empty folder holds none of it."""
    assert read_beneath(Path("/proc/self/fdinfo/none"), name, 10) is None
