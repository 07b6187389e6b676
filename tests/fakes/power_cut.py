"""A disk after a power cut: whatever no fsync has reached is lost, the entries of folders included."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import pytest

Tree: TypeAlias = "dict[str, Tree | bytes]"
_Entries: TypeAlias = "dict[str, int]"  # inodes by name


class PowerCut:
    """Watches the syncs of a folder. All that is in it at first is durable.

    Number *left_out* of its syncs is left out, for a test that is to notice. `syncs` is how many there were.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, left_out: int = 0) -> None:
        self._root = root
        self._left_out = left_out
        self.syncs = 0
        self._files: dict[int, bytes] = {}  # contents that were synced, by inode
        self._folders: dict[int, _Entries] = {}  # entries that were synced
        self._used: list[int] = []  # descriptors: an inode that was seen is not given to another file
        self._note_all()
        sync, sync_all = os.fsync, os.sync

        def fsync(descriptor: int) -> None:
            sync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.is_relative_to(root) and not self._leaves_out():
                self._note(path)

        def sync_everything() -> None:
            sync_all()
            if not self._leaves_out():
                self._note_all()

        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "fdatasync", fsync)
        patch.setattr(os, "sync", sync_everything)

    def close(self) -> None:
        """Release the inodes."""
        for descriptor in self._used:
            os.close(descriptor)

    def image(self) -> Tree:
        """Return what a power cut leaves now."""
        return self._read(self._root.stat().st_ino)

    def now(self) -> Tree:
        """Return what is there without one."""
        return _tree(self._root)

    def _leaves_out(self) -> bool:
        self.syncs += 1
        return self.syncs == self._left_out

    def _note_all(self) -> None:
        for path in (self._root, *self._root.rglob("*")):
            self._note(path)

    def _note(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        self._used.append(descriptor)
        inode = os.fstat(descriptor).st_ino
        if path.is_dir():
            self._folders[inode] = {each.name: each.lstat().st_ino for each in path.iterdir()}
            for each in path.iterdir():
                if each.is_dir():  # it is there with its name, and empty
                    self._folders.setdefault(each.lstat().st_ino, {})
        else:
            self._files[inode] = path.read_bytes()

    def _read(self, folder: int) -> Tree:
        found: Tree = {}
        for name, inode in self._folders.get(folder, {}).items():
            found[name] = self._read(inode) if inode in self._folders else self._files.get(inode, b"")
        return found


def _tree(folder: Path) -> Tree:
    return {each.name: _tree(each) if each.is_dir() else each.read_bytes() for each in folder.iterdir()}
