"""Record what was imported into each scope, so that nothing is imported twice even if it was edited or erased since."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from agent.memory.history.jsonl_file import JsonlFile
from agent.memory.scopes import AREAS, scope_folder
from agent.memory.storage.disk import Disk

NAME = ".imported"
_DIGEST_LENGTH = 32  # hex digits


class ImportLedger:
    """Fingerprints of the imported items, in a scope's `memory/` folder. Blocks."""

    def __init__(self, folder: Path, disk: Disk, *, is_dry: bool = False) -> None:
        self._is_dry = is_dry
        self._file = JsonlFile(folder / NAME, disk)
        self._known: set[str] = set()
        for path in folder.glob(f"*{NAME}"):  # merged scopes have a ledger each
            data = disk.load(path) or b""
            text = data[: data.rfind(b"\n") + 1].decode("ascii", "replace")
            self._known |= {word for word in text.split() if len(word) == _DIGEST_LENGTH}

    def __contains__(self, digest: str) -> bool:
        return digest in self._known

    def add(self, digests: Iterable[str]) -> None:
        """Store the fingerprints durably, all or none. Raises OSError."""
        new = [digest for digest in dict.fromkeys(digests) if digest not in self._known]
        if new and not self._is_dry:
            self._file.append(f"{' '.join(new)}\n".encode())  # one line: a torn one is ignored
        self._known |= set(new)


class ImportLedgers:
    """The ledgers of one run, by scope; a dry run writes no file. Blocks."""

    def __init__(self, home: Path, disk: Disk, *, is_dry: bool) -> None:
        self._home, self._disk, self._is_dry = home, disk, is_dry
        self._open: dict[str, ImportLedger] = {}

    def of(self, scope: str) -> ImportLedger:
        """Return the scope's ledger."""
        if scope not in self._open:
            folder = scope_folder(self._home, scope) / "memory"
            self._open[scope] = ImportLedger(folder, self._disk, is_dry=self._is_dry)
        return self._open[scope]

    def scopes(self) -> list[str]:
        """Return the scopes that something was imported into."""
        paths = [path for area in AREAS for path in self._home.glob(f"{area}/*/memory/{NAME}")]
        shared = [""] if (self._home / "memory" / NAME).is_file() else []  # with shared isolation
        return shared + sorted(f"{path.parts[-4]}/{path.parts[-3]}" for path in paths)


class ItemDigests:
    """Fingerprints of the items of one source; equal items get different fingerprints, by their count."""

    def __init__(self, *source: str) -> None:
        self._source = source
        self._counts: Counter[str] = Counter()

    def of(self, *item: object) -> str:
        """Return the fingerprint of the next occurrence of *item*."""
        text = json.dumps([*self._source, *item], sort_keys=True, default=str)
        self._counts[text] += 1
        data = f"{self._counts[text]} {text}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(data).hexdigest()[:_DIGEST_LENGTH]
