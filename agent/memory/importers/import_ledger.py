"""What was taken over into a scope once: it is not taken a second time, also when it was changed or forgotten since."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from agent.memory.history.jsonl_file import JsonlFile
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk

NAME = ".imported"
_LENGTH = 32  # hex digits


class ImportLedger:
    """Fingerprints of everything taken, in a scope's `memory/`; no word of it. Blocks."""

    def __init__(self, folder: Path, disk: Disk, *, is_dry: bool = False) -> None:
        self._is_dry = is_dry
        self._file = JsonlFile(folder / NAME, disk)
        self._known: set[str] = set()
        for path in folder.glob(f"*{NAME}"):  # of two scopes that became one, each has brought its own
            data = disk.load(path) or b""
            whole = data[: data.rfind(b"\n") + 1].decode("ascii", "replace")
            self._known |= {word for word in whole.split() if len(word) == _LENGTH}

    def __contains__(self, digest: str) -> bool:
        return digest in self._known

    def add(self, digests: Iterable[str]) -> None:
        """Note them, durably, all or none. Raises OSError."""
        new = [digest for digest in dict.fromkeys(digests) if digest not in self._known]
        if new and not self._is_dry:
            self._file.append(f"{' '.join(new)}\n".encode())  # one line, so that a torn one is none
        self._known |= set(new)


class ImportLedgers:
    """The ledgers of a run, by scope; those of a dry run keep what they are told to themselves. Blocks."""

    def __init__(self, home: Path, disk: Disk, *, is_dry: bool) -> None:
        self._home, self._disk, self._is_dry = home, disk, is_dry
        self._open: dict[str, ImportLedger] = {}

    def of(self, scope: str) -> ImportLedger:
        """Return the scope's."""
        if scope not in self._open:
            folder = scope_folder(self._home, scope) / "memory"
            self._open[scope] = ImportLedger(folder, self._disk, is_dry=self._is_dry)
        return self._open[scope]

    def scopes(self) -> list[str]:
        """Return the scopes that something was taken over into."""
        found = [path for area in ("people", "chats") for path in self._home.glob(f"{area}/*/memory/{NAME}")]
        alone = [""] if (self._home / "memory" / NAME).is_file() else []  # a home of one person
        return alone + sorted(f"{path.parts[-4]}/{path.parts[-3]}" for path in found)


class ItemDigests:
    """Fingerprints of things of one kind in one place; what is said twice there is two things."""

    def __init__(self, *place: str) -> None:
        self._place = place
        self._seen: Counter[str] = Counter()

    def of(self, *thing: object) -> str:
        """Return the fingerprint of the next such thing."""
        said = json.dumps([*self._place, *thing], sort_keys=True, default=str)
        self._seen[said] += 1
        whole = f"{self._seen[said]} {said}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(whole).hexdigest()[:_LENGTH]
