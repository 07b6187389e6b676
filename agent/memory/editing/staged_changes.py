"""Changes of memory that wait for approval, and the JSON they are stored as. An expired one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import structlog

from agent.base.one_line import show_escapes
from agent.base.transcript_lines import format_time, parse_time
from agent.memory.documents.scope_documents import TRACKED
from agent.memory.editing.text_operations import (
    AddLines,
    Operation,
    RemoveLines,
    ReplaceLines,
    apply,
    as_record,
    changed_texts,
    read_record,
)
from agent.memory.history.history_files import is_plain_file
from gateway.events import PlatformAccount, short_id
from gateway.ports.memory import MemoryProposal
from gateway.text.redaction import has_token

log = structlog.get_logger(__name__)

MEMORY = "MEMORY.md"
MOST_ASKED = 5  # lines that one question may offer to remove
LONGEST_CHANGE = 16_000  # characters that one question shows: what cannot be shown whole is not asked
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
    files: int = 0
    examples: tuple[str, ...] = ()
    decided: str = ""  # the turn that approved it; its job removes the change


class ReviewReason(StrEnum):
    """Why a change needs approval, as stored with it."""

    MANY = "many"  # it removes more than a quarter of the entries, and more than three
    EMPTY = "empty"  # it leaves nothing
    OVER_BUDGET = "over budget"
    MEANING = "meaning"  # it denies a fact, and no person said so
    UNTRUSTED = "untrusted"  # it comes from content written by third parties
    PERSONA = "soul"  # a group proposes a change of SOUL.md
    TOO_LARGE = "too large"  # the document is far over its budget
    BUSY = "busy"  # other writers won every compare-and-set


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChange:
    """One change that waits for approval. `name` identifies it; often it is a history entry's id."""

    name: str
    why: str
    at: datetime
    document: str = MEMORY
    operations: tuple[Operation, ...] = ()
    session: str = ""  # the session key where it arose; "" = none in particular
    person: str = ""  # whom to ask there
    cause: str = ""  # that the version would have had without approval
    asked: str = ""  # the turn that asks there, stored before the question is sent
    erasure: StagedErasure | None = None  # instead of a change of a document

    @property
    def account(self) -> PlatformAccount | None:
        """The account to ask."""
        return PlatformAccount.from_name(self.person) if self.person else None

    @property
    def expires_at(self) -> datetime:
        """The time from which on the change can no longer be approved."""
        return self.at + (EXPIRES_AFTER if self.erasure is None else ERASURE_EXPIRES_AFTER)

    @property
    def would_remove(self) -> tuple[str, ...]:
        """The lines that approval removes."""
        return tuple(each.old for each in self.operations if isinstance(each, RemoveLines))

    @property
    def would_reword(self) -> tuple[tuple[str, str], ...]:
        """The lines that approval replaces, and their new text."""
        return tuple((each.old, each.new) for each in self.operations if isinstance(each, ReplaceLines))

    @property
    def would_add(self) -> tuple[str, ...]:
        """The texts that approval adds."""
        return tuple(each.text for each in self.operations if isinstance(each, AddLines))

    @property
    def shown_length(self) -> int:
        """The number of characters that show it whole."""
        return sum(map(_shown_length, self.operations))

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of users and models in it."""
        if self.erasure is not None:
            return (self.erasure.words, *self.erasure.examples)
        return tuple(text for each in self.operations for text in _shown_texts(each))

    def to_proposal(self, body: Mapping[str, Any]) -> MemoryProposal:
        """Return the row that stores the change as *body*."""
        return MemoryProposal(name=self.name, at=self.at, expires_at=self.expires_at, body=body)

    def apply_to(self, text: str) -> str:
        """Return *text* with the change; operations whose lines no longer exist are skipped."""
        for operation in self.operations:
            applied = apply([operation], text)
            if applied.refused and isinstance(operation, RemoveLines):  # its heading may have been renamed
                applied = apply([RemoveLines(operation.old)], text)
            text = applied.text
        return text


def read_staged(body: Mapping[str, Any]) -> StagedChange | None:
    """Return the change stored as *body*, or None if it cannot be read."""
    at = parse_time(body.get("at"))
    if at is None or not isinstance(body.get("entry"), str):
        return None
    document = str(body.get("document", MEMORY))
    if document not in TRACKED and not is_plain_file(document):
        return None
    operations = map(read_record, body.get("operations") or [])
    texts = {name: str(body.get(name, "")) for name in ("why", "session", "person", "cause", "asked")}
    return StagedChange(
        name=body["entry"],
        at=at,
        document=document,
        operations=tuple(each for each in operations if each is not None),
        erasure=_read_erasure(body.get("erasure")),
        **texts,
    )


def _read_erasure(record: object) -> StagedErasure | None:
    if not isinstance(record, Mapping):
        return None
    try:
        return StagedErasure(**{**record, "examples": tuple(record.get("examples") or ())})
    except TypeError:  # written by a newer version
        return None


def proposals_of(change: StagedChange) -> Sequence[MemoryProposal]:
    """Return the rows of *change*: one for each group of operations that a question can show, or for the erasure."""
    groups: list[Sequence[Operation]] = list(_groups(change.operations)) if change.operations else [()]
    proposals: list[MemoryProposal] = []
    for n, group in enumerate(groups):
        name = f"s{short_id(f'{change.name} {n}')}" if n else change.name  # others in the letters that people type
        body: dict[str, Any] = {"v": 1, "entry": name, "why": change.why, "at": format_time(change.at)}
        known = {field: getattr(change, field) for field in ("document", "session", "person", "cause")}
        body |= {field: text for field, text in known.items() if text}
        body |= {"operations": [as_record(each) for each in group]} if group else {}
        body |= {"erasure": _erasure_record(change.erasure)} if change.erasure is not None else {}
        proposals.append(replace(change, name=name).to_proposal(body))
    return proposals


def with_erasure(proposal: MemoryProposal, erasure: StagedErasure) -> MemoryProposal:
    """Return *proposal* with another erasure."""
    return replace(proposal, body={**proposal.body, "erasure": _erasure_record(erasure)})


def _erasure_record(erasure: StagedErasure) -> dict[str, Any]:
    return {**asdict(erasure), "examples": list(erasure.examples)}


def _groups(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Yield the operations in groups that one question can show: five old lines and 16,000 characters at most."""
    group: list[Operation] = []
    lines = length = 0
    for each in operations:
        if _shown_length(each) > LONGEST_CHANGE:
            log.warning("approvals.operation_dropped", reason="it is too long to be shown", characters=LONGEST_CHANGE)
            continue
        if is_redacted(each):
            log.warning("approvals.operation_dropped", reason="it has text in the shape of a secret")
            continue
        old = 0 if isinstance(each, AddLines) else len(each.old.splitlines())
        if group and (lines + old > MOST_ASKED or length + _shown_length(each) > LONGEST_CHANGE):
            yield group
            group, lines, length = [], 0, 0
        group.append(each)
        lines += old
        length += _shown_length(each)
    if group:
        yield group


def _shown_length(operation: Operation) -> int:
    return sum(len(show_escapes(text)) for text in _shown_texts(operation))


def is_redacted(operation: Operation) -> bool:
    """Return True if a question would not show all of *operation*, because some of it has the shape of a secret."""
    return any(has_token(show_escapes(text)) for text in _shown_texts(operation))


def _shown_texts(operation: Operation) -> tuple[str, ...]:
    return (*changed_texts(operation), operation.under, operation.after if isinstance(operation, AddLines) else "")
