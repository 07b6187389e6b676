"""Notes of which files of a home this process writes, so that a save looks at these and at no others.

`Disk` notes every file that it changes. Code that changes files of a scope without it does so inside `note_writes`, or
with the scope's exclusive lock, after which all of its files are looked at
(docs/adr/0120-writes-are-noted.md).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from agent.memory.scopes import AREAS, SHARED


class WrittenFiles:
    """Files of one home that may have changed since they were last stored, by scope. Any thread may call.

    A note is a path within the scope's folder; with a slash at its end, of all files beneath that folder, and empty, of
    all files of the scope.
    """

    def __init__(self, home: Path) -> None:
        """Note what is written in *home* for as long as this object is referred to."""
        self._root = f"{home}/"
        self._lock = threading.Lock()
        self._count = 0  # of writes
        self._written: dict[str, dict[str, int]] = {}  # the number of the last write of each
        self._running: dict[str, Counter[str]] = {}  # writes that have begun and not ended
        _homes[self._root] = self

    def scopes(self) -> Collection[str]:
        """Return the scopes of which files were written."""
        with self._lock:
            return list(self._written)

    def has(self, scope: str) -> bool:
        """Return True if files of *scope* were written."""
        return scope in self._written

    def count(self) -> int:
        """Return the number of writes that have ended: with it, `forget` forgets what is noted now."""
        return self._count

    def notes(self, scope: str) -> set[str]:
        """Return the notes of *scope*, those of running writes too."""
        with self._lock:
            return self._written.get(scope, {}).keys() | self._running.get(scope, {}).keys()

    def forget(self, scope: str, count: int) -> None:
        """Forget the notes of the first *count* writes: their files are stored."""
        with self._lock:
            left = {note: number for note, number in self._written.pop(scope, {}).items() if number > count}
            if left:
                self._written[scope] = left

    def add(self, scope: str, note: str) -> None:
        """Note a file that has changed."""
        with self._lock:
            self._count += 1
            self._written.setdefault(scope, {})[note] = self._count

    def begin(self, path: str) -> None:
        """Note that a file of the home is being written, until `end`."""
        scope, note = self._split(path)
        with self._lock:
            self._running.setdefault(scope, Counter())[note] += 1

    def end(self, path: str) -> None:
        """Note that it was written."""
        scope, note = self._split(path)
        self.add(scope, note)
        with self._lock:
            running = self._running[scope]
            running[note] -= 1
            if not running[note]:
                del running[note]
            if not running:
                del self._running[scope]

    def _split(self, path: str) -> tuple[str, str]:
        """Return the scope of a file of the home, and its path there."""
        parts = path[len(self._root) :].split("/", 2)
        if len(parts) > 1 and parts[0] in AREAS:
            return f"{parts[0]}/{parts[1]}", parts[2] if len(parts) > 2 else ""
        if parts[0] == SHARED:
            return SHARED, "/".join(parts[1:])
        return "", "/".join(parts)

    def has_note_of(self, path: str) -> bool:
        """Return True if *path* is in this home; files of conversations are a mirror of rows."""
        return path.startswith(self._root) and not self._split(path)[1].startswith("sessions/")


_homes: WeakValueDictionary[str, WrittenFiles] = WeakValueDictionary()


@contextmanager
def note_writes(*paths: Path, is_tree: bool = False) -> Iterator[None]:
    """Note that *paths* are written inside the context; with *is_tree*, files beneath them.

    They are noted from the beginning, and once more at the end, also after an error: a save may have looked in between.
    """
    if not _homes:  # files of the home are what is true
        yield
        return
    texts = [f"{path}/" if is_tree else str(path) for path in paths]
    # Copied by one call: other threads open homes, and end others, while the values themselves are gone through.
    homes = [home for reference in _homes.valuerefs() if (home := reference()) is not None]
    noted = [(home, text) for home in homes for text in texts if home.has_note_of(text)]
    for home, text in noted:
        home.begin(text)
    try:
        yield
    finally:
        for home, text in noted:
            home.end(text)
