"""What stands in another bot's folder, whoever wrote it: the readers fill it in, the importer takes it over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]  # in the chat format of [000]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSession:
    """One conversation. A `timestamp` names a moment, with its zone."""

    source: str  # the file, relative to the folder
    key: str  # as it was named there, in our form: channel:chat_id
    messages: tuple[Message, ...]
    consolidated: int = 0  # how many of them their summaries hold
    created: datetime | None = None
    bad: tuple[bytes, ...] = ()  # lines that are none


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDocument:
    """MEMORY.md, USER.md or SOUL.md."""

    source: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedNote:
    """A dated file: `YYYY-MM-DD.md` or `YYYY-MM-DD-slug.md`."""

    source: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedHistory:
    """A record of consolidations, the oldest first."""

    source: str
    entries: tuple[tuple[str, str], ...]  # (`YYYY-MM-DD HH:MM`, what happened)
    dreamt: int = 0  # how many of them their Dream has studied
    bad: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """Something that is not taken over, and why."""

    source: str
    why: str


@dataclass(slots=True, kw_only=True)
class ImportData:
    """Everything in the folder."""

    sessions: list[ImportedSession] = field(default_factory=list)
    documents: list[ImportedDocument] = field(default_factory=list)
    notes: list[ImportedNote] = field(default_factory=list)
    histories: list[ImportedHistory] = field(default_factory=list)
    left: list[SkippedItem] = field(default_factory=list)
