"""Changes of memory that wait for approval, as files in a scope's `memory/.staged/`. An expired one changes nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from agent.memory.documents.version_store import TRACKED
from agent.memory.editing.merge import StagedRemoval
from agent.memory.editing.text_operations import (
    AddLines,
    MergeText,
    Operation,
    RemoveLines,
    ReplaceLines,
    apply,
    as_record,
    read_record,
)
from agent.memory.history.plain_files import is_plain_file
from agent.memory.scopes import quote
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import format_time, parse_time

PENDING = ".pending"  # in a scope's memory folder: work that a restart resumes
STAGED = ".staged"  # in a scope's memory folder: changes that wait for approval
MEMORY = "MEMORY.md"
EXPIRES_AFTER = timedelta(days=14)
ERASURE_EXPIRES_AFTER = timedelta(days=1)  # more matches are stored meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedErasure:
    """Words to erase, within the rights of the requester, and what would have been erased when they asked."""

    words: str
    language: str = ""  # of the chat
    sender: str = ""  # the requester's id on the platform
    may_all: bool = False  # also other people's messages
    is_purge: bool = False
    turn: str = ""  # the turn of the request, whose own messages are kept
    remembered: int = 0
    summaries: int = 0
    messages: int = 0
    examples: tuple[str, ...] = ()
    decided: str = ""  # the turn that approved it; its job removes the file


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChange:
    """One change that waits for approval. `name` identifies it; often it is a history entry's id."""

    name: str
    why: str
    at: datetime
    document: str = MEMORY
    removals: tuple[RemoveLines, ...] = ()  # entries that a merge put back
    operations: tuple[Operation, ...] = ()
    session: str = ""  # the session key where it arose; "" = none in particular
    person: str = ""  # the account to ask there
    cause: str = ""  # goes into the cause of the version
    asked: str = ""  # the turn that asks there, stored before the question is sent
    erasure: StagedErasure | None = None  # instead of a change of a document

    @property
    def expires_at(self) -> datetime:
        """The time from which on the change can no longer be approved."""
        return self.at + (EXPIRES_AFTER if self.erasure is None else ERASURE_EXPIRES_AFTER)

    @property
    def would_remove(self) -> tuple[str, ...]:
        """The lines that approval removes."""
        return tuple(each.old for each in (*self.removals, *self.operations) if isinstance(each, RemoveLines))

    @property
    def would_reword(self) -> tuple[tuple[str, str], ...]:
        """The lines that approval replaces, and their new text."""
        return tuple((each.old, each.new) for each in self.operations if isinstance(each, ReplaceLines))

    @property
    def would_add(self) -> tuple[str, ...]:
        """The texts that approval adds."""
        return tuple(each.text for each in self.operations if isinstance(each, AddLines | MergeText))

    def apply_to(self, text: str) -> str:
        """Return *text* with the change; operations whose lines no longer exist are skipped."""
        merges = [each for each in self.operations if isinstance(each, MergeText)]
        text = apply(merges, text).text
        for removal in self.removals:
            for each in (removal, RemoveLines(removal.old)):  # its heading may have been renamed
                applied = apply([each], text)
                if not applied.refused:
                    text = applied.text
                    break
        return apply([each for each in self.operations if not isinstance(each, MergeText)], text).text


def read_staged(data: bytes) -> StagedChange | None:
    """Return the change stored as *data*, or None if it cannot be read."""
    try:
        stored = json.loads(data)
    except ValueError:
        return None
    at = parse_time(stored.get("at")) if isinstance(stored, dict) else None
    if at is None or not isinstance(stored.get("entry"), str):
        return None
    document = str(stored.get("document", MEMORY))
    if document not in TRACKED and not is_plain_file(document):
        return None
    removals = [each for each in stored.get("removals") or [] if isinstance(each, Mapping)]
    merged = [str(stored.get("proposed", "")), *map(str, stored.get("additions") or [])]
    operations = (read_record(each) for each in stored.get("operations") or [])
    texts = {name: str(stored.get(name, "")) for name in ("why", "session", "person", "cause", "asked")}
    return StagedChange(
        name=stored["entry"],
        at=at,
        document=document,
        removals=tuple(RemoveLines(str(each.get("raw", "")), _heading(each.get("context"))) for each in removals),
        operations=(
            *(MergeText(text) for text in merged if text.strip()),
            *(each for each in operations if each is not None),
        ),
        erasure=_read_erasure(stored.get("erasure")),
        **texts,
    )


def _read_erasure(record: object) -> StagedErasure | None:
    if not isinstance(record, Mapping):
        return None
    try:
        return StagedErasure(**{**record, "examples": tuple(record.get("examples") or ())})
    except TypeError:  # written by a newer version
        return None


def _heading(context: Any) -> str:
    return str(context[-1]) if isinstance(context, list | tuple) and context else ""


def stage_for_approval(
    folder: Path,
    disk: Disk,
    entry: str,
    why: str,
    at: datetime,
    removal: StagedRemoval | None = None,
    *,
    document: str = "",
    operations: Sequence[Operation] = (),
    session: str = "",
    person: str = "",
    cause: str = "",
    erasure: StagedErasure | None = None,
) -> None:
    """Store a change under the name *entry*, unless one exists. Raises OSError.

    It changes *document* (MEMORY.md by default): by what a merge held back, or by *operations*; or it is an *erasure*.
    *session* is where it arose and *person* the account to ask there; without them no question is sent. *cause* is the
    cause that the version would have had without approval.
    """
    record: dict[str, Any] = {"v": 1, "entry": entry, "why": why, "at": format_time(at)}
    known = {"document": document, "session": session, "person": person, "cause": cause}
    record |= {name: text for name, text in known.items() if text}
    proposed = "\n".join(each.text for each in operations if isinstance(each, MergeText))
    if edits := [as_record(each) for each in operations if not isinstance(each, MergeText)]:
        record["operations"] = edits
    if removal is not None:
        record["removals"] = [dataclasses.asdict(omitted) for omitted in removal.removals]
        record["additions"] = list(removal.additions)
    if proposed:
        record["proposed"] = proposed
    if erasure is not None:
        record["erasure"] = dataclasses.asdict(erasure)
    path = folder / STAGED / f"{quote(entry)}.json"
    if disk.size(path) is None:
        disk.replace(path, json.dumps(record, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n")
