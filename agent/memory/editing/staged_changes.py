"""Changes of memory that wait for approval, and the JSON they are stored as. An expired one changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.disk import Disk
from agent.base.scopes import list_scopes, scope_folder
from agent.base.transcript_lines import decode, format_time, parse_time
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
from agent.memory.editing.three_way_merge import MergeConflict
from agent.memory.history.history_files import is_plain_file, remove_lines
from agent.memory.storage.scope_documents import APPROVED, TRACKED, change_document
from gateway.events import PlatformAccount, short_id
from gateway.ports.access import ScopeMove
from gateway.ports.memory import DocumentStore, MemoryProposal
from gateway.text.message_text import show_escapes
from gateway.text.redaction import has_token

if TYPE_CHECKING:
    from agent.memory.editing.edit_simulation import DocumentOutcome
    from gateway.store.history import SqlHistory
    from gateway.store.proposals import SqlProposals
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


_FOLDER = ".staged"  # in a scope's memory folder: the changes of an earlier release


class StagedChangeStore:
    """The staged changes of every scope."""

    def __init__(
        self,
        home: Path,
        proposals: SqlProposals,
        documents: DocumentStore,
        history: SqlHistory,
        *,
        now: Callable[[], datetime],
        writing: asyncio.Lock | None = None,
    ) -> None:
        """Approve under *writing*, which every job that changes memory holds."""
        self._home = home
        self._now = now
        self._disk = Disk()
        self._proposals = proposals
        self._documents = documents
        self._history = history
        self._writing = writing or asyncio.Lock()

    async def pending_changes(self, scope: str) -> list[StagedChange]:
        """Return the scope's staged changes, the oldest first, without erasures that were approved."""
        changes = [change for change, _ in await self._read(scope)]
        return [each for each in changes if each.erasure is None or not each.erasure.decided]

    async def stage(self, scope: str, change: StagedChange) -> None:
        """Store *change* unless one of its name exists. Without a session no question is sent.

        Operations that change more than five lines, or are longer than one question shows, are stored as several
        changes with different names. An operation that alone is longer is dropped, and so is one with text that has the
        shape of a secret: people would be shown a mark in its place.
        """
        await self._proposals.put(scope, proposals_of(change))

    async def stage_outcome(self, scope: str, result: DocumentOutcome, build: Callable[[str], StagedChange]) -> None:
        """Store what the outcome holds back for each reason, as the change without operations that *build* returns."""
        for why, operations in result.waiting.items():
            change = replace(build(why), operations=operations)
            log.info(
                "memory.change_staged", scope=scope, name=change.document, why=str(why), operations=len(operations)
            )
            await self.stage(scope, change)

    async def stage_erasure(
        self, scope: str, cause: str, erasure: StagedErasure, *, account: PlatformAccount, session: str = ""
    ) -> StagedChange:
        """Stage *erasure*, once per *cause*, and return it. With *session* a question is sent there."""
        change = StagedChange(
            name=f"f{short_id(cause)}",
            why="erasure",
            at=self._now(),
            session=session,
            person=account.name,
            cause=cause,
            erasure=erasure,
        )
        await self.stage(scope, change)
        return change

    async def claim_erasure(self, scope: str, name: str, turn: str) -> StagedChange | None:
        """Record that *turn* approves the one erasure whose name begins with *name*, and return it as it was before.

        Return None if no erasure has this name, or another turn approved it. A repeated turn gets it again.
        """
        while True:
            found = [each for each in await self._read(scope) if each[0].name.startswith(name)]
            if len(found) != 1 or (erasure := found[0][0].erasure) is None or erasure.decided not in ("", turn):
                return None
            change, proposal = found[0]
            if await self._proposals.replace(scope, proposal, with_erasure(proposal, replace(erasure, decided=turn))):
                return change

    async def find_group_erasure(
        self, name: str, accounts: Collection[PlatformAccount]
    ) -> tuple[str, StagedErasure] | None:
        """Return the scope of a group and the erasure *name* that one of *accounts* asked for there, or None."""
        for scope, proposal in await self._proposals.find_in_groups(name):
            change = read_staged(proposal.body)
            if change is not None and change.erasure is not None and change.account in accounts:
                return (scope, change.erasure) if self._now() <= change.expires_at else None
        return None

    async def release_erasure(self, scope: str, change: StagedChange) -> None:
        """Make an erasure that failed available for another approval."""

        def release(proposal: MemoryProposal) -> MemoryProposal:
            if proposal.name != change.name or change.erasure is None:
                return proposal
            return with_erasure(proposal, replace(change.erasure, decided=""))

        await self._proposals.rewrite(scope, release)

    async def discard(self, scope: str, name: str) -> None:
        """Delete the change *name*, if it exists."""
        await self._proposals.remove(scope, name)

    async def discard_all(self, scope: str) -> None:
        """Delete every change of *scope*."""
        await self._proposals.clear(scope)

    async def hold(self, scope: str, cause: str, line: str, *, session: str, person: str) -> None:
        """Stage the addition of *line* to MEMORY.md, once per *cause*."""
        change = StagedChange(
            name=f"r{short_id(cause)}",
            why=ReviewReason.UNTRUSTED,
            at=self._now(),
            operations=(AddLines(line),),
            session=session,
            person=person,
            cause=cause,
        )
        await self.stage(scope, change)

    async def note_asked(self, scope: str, names: Collection[str], turn: str) -> None:
        """Record that *turn* asks about the changes *names*; durable on return."""

        def note(proposal: MemoryProposal) -> MemoryProposal:
            is_meant = proposal.name in names and not proposal.body.get("asked")
            return replace(proposal, body={**proposal.body, "asked": turn}) if is_meant else proposal

        await self._proposals.rewrite(scope, note)

    async def approve(self, scope: str, name: str, *, by: str) -> StagedChange | None:
        """Apply the one change whose name begins with *name*; return None if there is not exactly one. Raises OSError.

        Lines that have changed since are left alone. Erasures are approved by `claim_erasure` instead.
        """
        async with self._writing:
            change = await self._find(scope, name)
            if change is None or change.erasure is not None:
                return None
            if is_plain_file(change.document):
                await remove_lines(self._history, scope, change.document, change.would_remove)
            else:
                await change_document(
                    self._documents,
                    scope,
                    change.document,
                    change.apply_to,
                    why=f"{APPROVED}{change.name} {change.cause}",
                    by=by,
                    inherits=True,
                )
            await self._proposals.remove(scope, change.name)
            return change

    async def reject(self, scope: str, name: str) -> StagedChange | None:
        """Delete the one change whose name begins with *name*; return None if there is not exactly one."""
        async with self._writing:
            change = await self._find(scope, name)
            if change is not None:
                await self._proposals.remove(scope, change.name)
        return change

    async def erase(
        self,
        scope: str,
        matches: Callable[[str], bool],
        *,
        account: PlatformAccount | None = None,
        spare: str = "",
        since: datetime | None = None,
    ) -> int:
        """Delete the changes with a text that *matches*; return the number of changed ones.

        A question about the erasure of other words loses only its examples. The change *spare* is kept, and so are
        erasures that were asked for after *since*. With *account*, only what that account would be asked is deleted.
        """

        def erase(proposal: MemoryProposal) -> MemoryProposal | None:
            if proposal.name == spare:
                return proposal
            is_later = since is not None and proposal.at > since
            return clear_proposal(proposal, matches, account=account, spares_erasures=is_later)

        return await self._proposals.rewrite(scope, erase)

    async def erase_members(self, scope: str, accounts: Collection[str]) -> int:
        """Delete what one of *accounts* would be asked; return the number of changes."""
        return await self._proposals.rewrite(
            scope, lambda proposal: None if proposal.body.get("person") in accounts else proposal
        )

    async def records(self, scope: str) -> Sequence[Mapping[str, Any]]:
        """Return the stored bodies of the scope's staged changes, the oldest first."""
        return [each.body for each in await self._proposals.pending(scope, self._now())]

    async def adopt_files(self, moves: Sequence[ScopeMove] = ()) -> None:
        """Store the changes that an earlier release has kept as files, and remove the files. Idempotent.

        *moves* are those that were interrupted: their files are not where their data belongs. The caller notes that
        it is done (`SqlProposals.mark_adopted`): a decision must not be undone by files that come back. Raises OSError
        and StoreUnavailable.
        """
        for scope in ["", *await asyncio.to_thread(list_scopes, self._home)]:
            folder = scope_folder(self._home, scope) / "memory" / _FOLDER
            records = await asyncio.to_thread(_read_files, folder, self._disk)
            for record in records:
                if (change := read_staged(record)) is not None:
                    await self._proposals.put(_owner(scope, change, moves), [change.to_proposal(record)])
            if records:
                log.info("memory.staged_changes_adopted", scope=scope, changes=len(records))
            if await asyncio.to_thread(folder.is_dir):
                await asyncio.to_thread(self._disk.remove_folder, folder)

    async def _find(self, scope: str, name: str) -> StagedChange | None:
        matches = [each for each in await self.pending_changes(scope) if name and each.name.startswith(name)]
        return matches[0] if len(matches) == 1 else None

    async def _read(self, scope: str) -> list[tuple[StagedChange, MemoryProposal]]:
        """Return every change that can be read, with its proposal."""
        found = [(read_staged(each.body), each) for each in await self._proposals.pending(scope, self._now())]
        return [(change, proposal) for change, proposal in found if change is not None]


def clear_proposal(
    proposal: MemoryProposal,
    matches: Callable[[str], bool],
    *,
    account: PlatformAccount | None = None,
    spares_erasures: bool = False,
) -> MemoryProposal | None:
    """Return a proposal without the texts that *matches* returns True for; None if it has them in what it changes.

    A question about the erasure of other words loses only its examples; with *spares_erasures*, one about the same
    words stays. With *account*, what another account would be asked stays.
    """
    change = read_staged(proposal.body)
    if change is None:  # of a newer version
        return None
    if account is not None and change.account != account:
        return proposal
    if (spares_erasures and change.erasure is not None) or not any(map(matches, change.texts)):
        return proposal
    if change.erasure is None or matches(change.erasure.words):
        return None
    left = tuple(each for each in change.erasure.examples if not matches(each))
    return with_erasure(proposal, replace(change.erasure, examples=left))


def _owner(scope: str, change: StagedChange, moves: Sequence[ScopeMove]) -> str:
    """Return the scope that a change in the folder of *scope* belongs to."""
    for move in moves:
        is_whole = move.kind != "unlink"
        is_theirs = change.session in move.keys or (not change.session and change.account == move.account)
        if move.source == scope and (is_whole or is_theirs):
            return move.target
    return scope


def _read_files(folder: Path, disk: Disk) -> list[Mapping[str, Any]]:
    records = (decode(disk.load(path) or b"") for path in sorted(folder.glob("*.json")))
    return [each for each in records if each is not None]


# -- what could not be merged -----------------------------------------------------------------------


def save_conflicts(folder: Path | None, disk: Disk, conflicts: Sequence[MergeConflict], name: str) -> None:
    """Write our side of the conflicts in the document *name* to a conflict copy in *folder*. Raises OSError."""
    if conflicts:
        write_conflict_copy(folder, disk, "\n\n".join(conflict.mine for conflict in conflicts) + "\n", name)


def write_conflict_copy(folder: Path | None, disk: Disk, text: str, name: str) -> None:
    """Write *text* beside the document *name* in *folder*, for a person to read. Raises OSError.

    Without *folder* nothing is written: other gateways erase words, too.
    """
    if folder is None:
        log.warning("memory.conflict_dropped", name=name)
        return
    data = text.encode("utf-8", "replace")
    path = folder / f"{name.removesuffix('.md')}.conflict-{hashlib.sha256(data).hexdigest()[:8]}.md"
    disk.replace(path, data)
    log.warning("memory.conflict_copied", file=path.name)
