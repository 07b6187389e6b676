"""Record what was imported into each scope, so that nothing is imported twice even if it was edited or erased since."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gateway.ports.memory import MarkKind

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory


_DIGEST_LENGTH = 32  # hex digits


class ImportLedger:
    """Fingerprints of the items that were imported into one scope."""

    def __init__(self, history: SqlHistory, scope: str, digests: Iterable[str], *, is_dry: bool) -> None:
        self._history, self._scope, self._is_dry = history, scope, is_dry
        self._known = set(digests)

    def __contains__(self, digest: str) -> bool:
        return digest in self._known

    async def add(self, digests: Iterable[str]) -> None:
        """Store the fingerprints durably, all or none."""
        new = dict.fromkeys((digest for digest in digests if digest not in self._known), "")
        if new and not self._is_dry:
            await self._history.write(self._scope, marks={MarkKind.IMPORTED: new})
        self._known |= new.keys()


class ImportLedgers:
    """The ledgers of one run, by scope; a dry run stores nothing."""

    def __init__(self, history: SqlHistory, *, is_dry: bool) -> None:
        self._history, self._is_dry = history, is_dry
        self._open: dict[str, ImportLedger] = {}

    async def of(self, scope: str) -> ImportLedger:
        """Return the scope's ledger."""
        if scope not in self._open:
            digests = await self._history.marks(scope, MarkKind.IMPORTED)
            self._open[scope] = ImportLedger(self._history, scope, digests, is_dry=self._is_dry)
        return self._open[scope]

    async def scopes(self) -> Sequence[str]:
        """Return the scopes that something may have been imported into."""
        return await self._history.scopes()


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
