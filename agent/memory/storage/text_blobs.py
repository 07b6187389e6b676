"""Content-addressed texts that snapshot lines refer to by sha256, stored next to the transcripts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from cachetools import LRUCache

from agent.memory.scopes import blob_path
from agent.memory.storage.disk import Disk


def digest_of(text: str) -> str:
    """Return the sha256 of *text*, which is its file name."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def put_blobs(disk: Disk, home: Path, scope: str, blobs: Mapping[str, str]) -> None:
    """Write the texts that are not stored yet, durably. Raises ValueError for a name that cannot be a sha256."""
    for digest, text in blobs.items():
        path = blob_path(home, scope, digest)
        if disk.size(path) is None:
            disk.replace(path, text.encode("utf-8", "surrogatepass"))


class TextBlobCache:
    """Least recently used cache of texts, which many conversations share."""

    def __init__(self, disk: Disk, home: Path, *, capacity: int = 256) -> None:
        self._disk = disk
        self._home = home
        self._texts: LRUCache[str, str] = LRUCache(capacity)

    def keep(self, blobs: Mapping[str, str]) -> None:
        """Add texts to the cache."""
        self._texts.update(blobs)

    def read(self, scope: str, digest: str) -> str | None:
        """Return the text, None if its file is missing or damaged. Blocks."""
        if digest in self._texts:
            return self._texts[digest]
        data = self._disk.load(blob_path(self._home, scope, digest))
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            return None
        text = data.decode("utf-8", "surrogatepass")
        self.keep({digest: text})
        return text

    def in_memory(self, digests: Iterable[str]) -> dict[str, str]:
        """Return the cached texts of *digests* without reading a file."""
        return {digest: self._texts[digest] for digest in digests if digest in self._texts}
