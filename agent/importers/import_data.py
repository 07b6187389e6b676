"""The content of another bot's folder, as the readers return it, and the report of an import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

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
