"""The content of another bot's folder, as the readers return it, and the report of an import."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.ports.memory import MarkKind

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory


Message: TypeAlias = Mapping[str, Any]  # in OpenAI's chat format


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSession:
    """One conversation. Each `timestamp` includes a zone."""

    source: str  # the file, relative to the folder
    key: str  # the session key, converted to channel:chat_id
    messages: tuple[Message, ...]
    consolidated: int = 0  # number of messages that the source's summaries cover
    created: datetime | None = None
    bad: tuple[bytes, ...] = ()  # lines that are not JSON objects


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDocument:
    """MEMORY.md, USER.md, SOUL.md, or a note: `YYYY-MM-DD.md` or `YYYY-MM-DD-slug.md`."""

    source: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedHistory:
    """Summaries of consolidated conversations, oldest first."""

    source: str
    entries: tuple[tuple[str, str], ...]  # (`YYYY-MM-DD HH:MM`, summary)
    dreamt: int = 0  # number of entries that the source's Dream has processed
    bad: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """A file that is not imported."""

    source: str
    reason: str


@dataclass(slots=True, kw_only=True)
class ImportData:
    """Everything that was read from a folder."""

    sessions: list[ImportedSession] = field(default_factory=list)
    documents: list[ImportedDocument] = field(default_factory=list)
    notes: list[ImportedDocument] = field(default_factory=list)
    histories: list[ImportedHistory] = field(default_factory=list)
    skipped: list[SkippedItem] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReportItem:
    """One line of an import's report; the field names are those of `parlour import --json`."""

    what: str  # memory, voice, history, note, conversation, left
    source: str
    target: str = ""  # a file of the home, or the chat that continues the conversation
    new: int = 0  # statements, lines, entries or messages that are imported
    known: int = 0  # those that were imported before, or are in the target already
    bad: int = 0  # unreadable lines; they are saved in a `.corrupt` file
    unsummarised: int = 0  # imported messages that no summary of the source covers
    why: str = ""


# -- what was imported -------------------------------------------------------------------------------


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
