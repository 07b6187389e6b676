"""Edits of memory documents that a person asks for in a turn, applied when the model calls its tool.

Each edit is a separate version, so that the answer can name it. The version's cause names the tool call: a repeated
turn finds it and does not apply the edit again. Edits from a tainted prompt, and more than a few removals, are staged
with the turn's commit instead.

Archives have no versions. So a line that was moved to one is first moved back, as a version of MEMORY.md, and then
edited there: `/memory undo` brings it back.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from cachetools import LRUCache

from agent.base.scopes import SHARED
from agent.memory.editing.memory_archive import ArchivedLine, find_archived_lines, plain_line, restore_lines
from agent.memory.editing.memory_entries import lost_entries
from agent.memory.editing.staged_changes import (
    MEMORY,
    MOST_ASKED,
    ReviewReason,
    StagedChange,
    StagedChangeStore,
    is_redacted,
)
from agent.memory.editing.text_operations import (
    AddLines,
    DocumentEdit,
    Operation,
    RemoveLines,
    ReplaceLines,
    apply,
    keys_of_lines,
    read_edit,
)
from agent.memory.history.history_files import add_keys, remove_lines
from agent.memory.jobs.job_runner import JobErasure, JobKind, JobPace, RetryJobLater
from agent.memory.prompt.due_jobs import EDIT
from agent.memory.storage.scope_documents import (
    UNARCHIVED,
    DocumentBusy,
    ScopeDocuments,
    change_document,
    line_fingerprint,
)
from gateway.errors import StoreUnavailable, ToolFailed, exponential_delay
from gateway.events import short_id
from gateway.ports.journal import REMEMBER, Job, SessionRow
from gateway.ports.memory import DocumentChange, DocumentStore, HistoryStore
from gateway.ports.metrics import MetricsRecorder

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
log = structlog.get_logger(__name__)

REMEMBER_JOBS = JobKind(name=REMEMBER, pace=JobPace.QUICK, erasure=JobErasure.ADMIN)
LONGEST_FACT = 1_000  # characters
_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(hours=1)
_REVIEW = timedelta(days=1)
_SCOPES_KNOWN = 10_000


def remember_job(
    fact: str,
    *,
    turn: str,
    scope: str,
    origin: str,
    by: str,
    at: datetime,
    place: str = "0.0",
    session: str = "",
    keys: str = "",
) -> Job:
    """Return the job that stores *fact* in *scope*, requested in *turn* by *by* as the fact number *place*.

    The fact is also found by *keys*.
    """
    payload = {"fact": fact, "origin": origin, "turn": turn, "by": by} | ({"keys": keys} if keys else {})
    return Job(
        id=f"{REMEMBER}:{turn}.{place}",
        kind=REMEMBER,
        scope=scope,
        payload=payload | ({"session": session} if session else {}),
        due_at=at,
    )


class MemoryJobs:
    """Applies memory operations of committed turns, before the scope's next turn."""

    def __init__(
        self,
        jobs: SqlJobs,
        documents: DocumentStore,
        *,
        history: HistoryStore,
        staging: StagedChangeStore | None = None,
        writing: asyncio.Lock | None = None,
        meter: MetricsRecorder | None = None,
    ) -> None:
        """Change memory below *home* under *writing*.

        Changes that need approval are staged in *staging*, or postponed without it.
        """
        self._jobs = jobs
        self._staging = staging
        self._meter = meter
        self._history = history
        self._documents = documents
        self.writing = writing or asyncio.Lock()  # held by every job that changes memory, and by a backup
        self._noted: LRUCache[str, None] = LRUCache(_SCOPES_KNOWN)  # scopes with a job that no claim may know of
        self._settling: dict[str, asyncio.Event] = {}  # set when the jobs of the scope are applied

    def note(self, job: Job) -> None:
        """Record that *job* was committed, behind the claims of turns that run now."""
        if job.kind == REMEMBER:
            self._noted[job.scope] = None

    async def settle_turn(self, session: SessionRow, scope: str) -> None:
        """Apply the jobs of *scope* and of what all share that the next prompt must know.

        *session* is that of the turn's claim, which has read whether there are any; without, this does no I/O.
        """
        may_have = session.has_facts or session.scope != scope
        for each in dict.fromkeys((scope, SHARED)):
            if not may_have and (other := self._settling.get(each)) is not None:
                await other.wait()  # it has the jobs that were noted before it began
            if may_have or each in self._noted:
                await self.settle(each)

    async def settle(self, scope: str) -> None:
        """Apply the pending jobs of *scope*, or wait until another caller has."""
        is_behind = False
        while (other := self._settling.get(scope)) is not None:
            await other.wait()
            # One that began before this call may not have found the caller's jobs. The next one has: all who waited
            # share it, or turns of all chats would ask one after the other.
            if is_behind and scope not in self._noted:
                return
            is_behind = True
        self._noted.pop(scope, None)  # before the first await: a job that is noted from here on may not be found
        settling = self._settling[scope] = asyncio.Event()
        try:
            pending = [job for job in await self._jobs.pending_in(scope) if job.kind == REMEMBER]
            for job in pending:
                if not _needs_review(job):
                    await self._settle_one(job)
        except StoreUnavailable:
            self._noted[scope] = None
            log.warning("memory.not_settled", scope=scope)
        except BaseException:
            self._noted[scope] = None
            raise
        finally:
            del self._settling[scope]
            settling.set()

    async def apply(self, job: Job) -> RetryJobLater | None:
        """Apply one job that is due; the handler of kind `REMEMBER`."""
        if _needs_review(job) and self._staging is None:
            return RetryJobLater(_REVIEW, "waits for a yes")
        async with self.writing:
            if all(each.id != job.id for each in await self._jobs.pending_in(job.scope)):
                return None  # it was forgotten before it was remembered
            if _needs_review(job) and self._staging is not None:
                return await self._hold(self._staging, job)
            return await self._apply(job)

    async def _hold(self, staging: StagedChangeStore, job: Job) -> RetryJobLater | None:
        """Stage the fact for approval by the person or the group."""
        bullet = as_bullet(str(job.payload.get("fact", "")))
        if bullet is not None:
            session, person = (str(job.payload.get(name, "")) for name in ("session", "by"))
            await staging.hold(job.scope, job.id, bullet, session=session, person=person)
        return None

    async def _settle_one(self, job: Job) -> None:
        later = await self.apply(job)
        if later is None:
            await self._jobs.finish(job)
        else:
            await self._jobs.put_off(job, later.delay, later.reason)
        if self._meter is not None:
            self._meter.count("jobs", kind=job.kind, outcome="done" if later is None else "put_off")

    async def _apply(self, job: Job) -> RetryJobLater | None:
        try:
            await self._remember(job)
        except OSError as error:
            log.warning("memory.cannot_write", scope=job.scope, job=job.id, error=error.strerror or str(error))
        else:
            return None
        return RetryJobLater(exponential_delay(job.attempts + 1, _PAUSE, _LONGEST_PAUSE), "MEMORY.md was not written")

    async def _remember(self, job: Job) -> None:
        bullet = as_bullet(str(job.payload.get("fact", "")))
        if bullet is None:
            return
        by, keys = (str(job.payload.get(name, "")) for name in ("by", "keys"))
        _, text = await change_document(
            self._documents, job.scope, MEMORY, lambda text: append_bullet(text, bullet), why=job.id, by=by
        )
        if keys:
            text = (await self._documents.read(job.scope, MEMORY)).text
            await add_keys(self._history, job.scope, {line_fingerprint(bullet): keys}, text)


def _needs_review(job: Job) -> bool:
    """Return True if the fact comes from untrusted content, which is never remembered without approval."""
    return job.payload.get("origin") == "untrusted"


def as_bullet(fact: str) -> str | None:
    """Return *fact* as one list item, or None if it is empty."""
    flat = " ".join(fact.split())
    while flat[:2] in ("- ", "* "):
        flat = flat[2:].lstrip()
    return f"- {flat}" if flat else None


def append_bullet(text: str, bullet: str) -> str:
    """Return *text* with *bullet* appended, or unchanged if it contains it."""
    if any(as_bullet(line) == bullet for line in text.splitlines() if line.lstrip()[:2] in ("- ", "* ")):
        return text
    if not text.strip():
        return f"{bullet}\n"
    lines = text.rstrip("\n")
    follows_list = lines.splitlines()[-1].lstrip()[:2] in ("- ", "* ")
    return f"{lines}\n{bullet}\n" if follows_list else f"{lines}\n\n{bullet}\n"


EDIT_JOBS = JobKind(name=EDIT, pace=JobPace.QUICK, erasure=JobErasure.ADMIN)
EDIT_CAUSE = "edit:"  # then the turn and the tool call: the cause of a version
_MAX_VERSIONS = 200  # of a scope that are searched for those of a turn
_MOST_CLOSEST = 3  # lines that are shown for a line that does not exist
_CLOSENESS = 0.4
_LIKENESS = 0.6  # of a line and the one that replaces it
_SHOWN = 300  # characters of a line that is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEditRequest:
    """The sender, scope and tool call of an edit. All of it comes from the turn."""

    scope: str
    account: str
    turn: str
    call: str
    may_all: bool  # an admin may change lines that other people added
    is_tainted: bool = False

    @property
    def cause(self) -> str:
        """The cause of the version; it is the same when the turn is repeated."""
        return f"{EDIT_CAUSE}{self.turn}.{short_id(self.call)}"


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line that was added (no *old*), removed (no *new*), or replaced."""

    old: str = ""
    new: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEditResult:
    """The changes of an edit and the versions that hold them, or the edits that wait for approval."""

    changes: tuple[LineChange, ...] = ()
    versions: tuple[str, ...] = ()
    held: tuple[DocumentEdit, ...] = ()
    why: str = ""  # the reason that edits are held


class ChatMemoryEditor:
    """Applies edits that a person asks for. Idempotent by tool call."""

    def __init__(
        self,
        history: SqlHistory,
        documents: ScopeDocuments,
        staging: StagedChangeStore,
        *,
        writing: asyncio.Lock,
        now: Callable[[], datetime],
    ) -> None:
        """Change documents under *writing*, which every job that changes memory holds."""
        self._history = history
        self._documents = documents
        self._changes = documents.changes
        self._staging = staging
        self._writing = writing
        self._now = now

    async def edit(self, request: ChatEditRequest, edits: Sequence[DocumentEdit]) -> ChatEditResult:
        """Apply *edits*, or none of them. Raises ToolFailed, with the closest lines for one that does not exist."""
        async with self._writing:
            earlier = await self._turn_changes(request)
            done = {name for each in earlier if each.why == request.cause for name in each.names}
            if not done:
                archived = await self._find_archived(request.scope, edits)
                resolved, lost = await self._check(request, edits, archived)
                lost += sum([await self._count_lost(request.scope, each) for each in earlier])
                is_held = request.is_tainted or lost > MOST_ASKED
                if is_held and any(is_redacted(each.operation) for each in resolved):
                    raise ToolFailed(
                        "nothing was changed: the person would have to be shown the change, and a part of it looks like"
                        " a secret, which is never shown; leave that out"
                    )
                await self._restore(request.scope, archived)
                if is_held:
                    return ChatEditResult(
                        held=tuple(resolved), why=ReviewReason.UNTRUSTED if request.is_tainted else ReviewReason.MANY
                    )
            written = [
                await self._write(request, name, [each for each in edits if each.document == name])
                for name in _names(edits)
                if name not in done
            ]
            text = (await self._documents.read(request.scope, MEMORY)).text
            await add_keys(self._history, request.scope, keys_of_lines(edits), text)
            return await self._report(request, written)

    async def earlier_result(self, request: ChatEditRequest) -> ChatEditResult | None:
        """Return the result of *request* if an earlier attempt of its turn has applied it."""
        async with self._writing:
            done = await self._report(request, ())
        return done if done.versions else None

    async def _find_archived(self, scope: str, edits: Sequence[DocumentEdit]) -> list[ArchivedLine]:
        """Return the lines that the edits replace or remove and that an archive has."""
        lines = [line for each in edits if each.document == MEMORY for line in _old(each.operation).splitlines()]
        return await find_archived_lines(self._history, scope, lines) if lines else []

    async def _restore(self, scope: str, archived: Sequence[ArchivedLine]) -> None:
        """Move archived lines back to MEMORY.md. After a crash between the two writes a line is in both; idempotent."""
        if archived:
            await self._change(scope, MEMORY, lambda text: restore_lines(text, archived), why=UNARCHIVED)
        for name in {each.name for each in archived}:
            lines = [each.text for each in archived if each.name == name]
            await remove_lines(self._history, scope, name, lines)

    async def _check(
        self, request: ChatEditRequest, edits: Sequence[DocumentEdit], archived: Sequence[ArchivedLine]
    ) -> tuple[list[DocumentEdit], int]:
        """Return the edits with their exact lines, and the number of lines that would be lost."""
        resolved: list[DocumentEdit] = []
        lost = 0
        for name in _names(edits):
            text = (await self._documents.read(request.scope, name)).text
            if name == MEMORY and archived:
                self._check_archived(request, text, archived)
                text = restore_lines(text, archived)
            mine = _resolve([each for each in edits if each.document == name], text)
            lost += _loss(text, _apply(mine, text))
            resolved += mine
        if not request.may_all:
            await self._check_authors(request, resolved)
        return resolved, lost

    def _check_archived(self, request: ChatEditRequest, text: str, archived: Sequence[ArchivedLine]) -> None:
        """Raise ToolFailed unless the requester may edit lines whose authors are not known."""
        known = set(map(plain_line, text.splitlines()))
        moved = [each for each in archived if plain_line(each.text) not in known]
        if moved and not request.may_all:
            raise ToolFailed(
                f"nothing was changed: this line was moved to {moved[0].name}, where only an admin of this chat may"
                f" change it: {moved[0].text[:_SHOWN]}"
            )

    async def _check_authors(self, request: ChatEditRequest, edits: Sequence[DocumentEdit]) -> None:
        for edit in edits:
            old = "" if isinstance(edit.operation, AddLines) else _old(edit.operation)
            for line in filter(str.strip, old.splitlines()):
                source = await self._changes.source(request.scope, edit.document, line)
                if source is None or source.by != request.account:
                    raise ToolFailed(
                        "nothing was changed: this line was added by other people, so only an admin of this chat may"
                        f" change it: {line[:_SHOWN]}"
                    )

    async def _write(self, request: ChatEditRequest, name: str, edits: Sequence[DocumentEdit]) -> tuple[str, str]:
        """Apply *edits* to the document *name*; return its text before and after."""

        def apply(text: str) -> str:
            return _apply(_resolve(edits, text), text)

        return await self._change(request.scope, name, apply, why=request.cause, by=request.account)

    async def _change(
        self, scope: str, name: str, make: Callable[[str], str], *, why: str, by: str = ""
    ) -> tuple[str, str]:
        try:
            return await change_document(self._documents, scope, name, make, why=why, by=by)
        except DocumentBusy as busy:
            raise ToolFailed(f"{busy}; try again") from None

    async def _report(self, request: ChatEditRequest, new_texts: Sequence[tuple[str, str]]) -> ChatEditResult:
        """Return the changed lines by their changes; without any (no line differs) by *new_texts*."""
        changes = [each for each in await self._turn_changes(request) if each.why == request.cause]
        known = [await self._changes.changed_texts(request.scope, each) for each in changes]
        texts = [pair for each in known for pair in each.values()] or new_texts
        lines = tuple(line for before, after in texts for line in _line_changes(before, after))
        return ChatEditResult(changes=lines, versions=tuple(each.short for each in changes))

    async def _turn_changes(self, request: ChatEditRequest) -> list[DocumentChange]:
        """Return the changes of the turn's edits, the oldest first."""
        beginning = f"{EDIT_CAUSE}{request.turn}."
        newest = await self._changes.log(request.scope, limit=_MAX_VERSIONS)
        return [each for each in reversed(newest) if each.why.startswith(beginning)]

    async def _count_lost(self, scope: str, change: DocumentChange) -> int:
        texts = await self._changes.changed_texts(scope, change)
        return sum(_loss(before, after) for before, after in texts.values())

    async def stage(self, job: Job) -> None:
        """Stage the edits of a committed turn: by document, with no more than five lines in one question."""
        payload = job.payload
        edits = [each for each in map(read_edit, payload["edits"]) if each is not None]
        for name in _names(edits):
            change = StagedChange(
                name=f"m{short_id(f'{job.id}.{name}.0')}",
                why=str(payload["why"]),
                at=self._now(),
                document=name,
                operations=tuple(each.operation for each in edits if each.document == name),
                session=str(payload["session"]),
                person=str(payload["by"]),
                cause=str(payload["cause"]),
            )
            await self._staging.stage(job.scope, change)


def _names(edits: Sequence[DocumentEdit]) -> list[str]:
    return list(dict.fromkeys(each.document for each in edits))


def _resolve(edits: Sequence[DocumentEdit], text: str) -> list[DocumentEdit]:
    """Return the edits with lines as the document has them; models leave out the bullets."""
    lines = [line.rstrip() for line in text.splitlines()]
    resolved: list[DocumentEdit] = []
    for edit in edits:
        operation = edit.operation
        if isinstance(operation, AddLines):
            operation = replace(operation, text=as_bullet(operation.text) or "")
        elif isinstance(operation, ReplaceLines):
            old = _with_bullets(operation.old, lines)
            new = " ".join(operation.new.split())
            operation = replace(operation, old=old, new=(as_bullet(new) or "") if _is_bullet(old) else new)
        elif isinstance(operation, RemoveLines):
            # One by one, so that a question can offer a few of them.
            split = [_with_bullets(line, lines) for line in operation.old.splitlines() if line.strip()]
            resolved += [replace(edit, operation=replace(operation, old=line)) for line in split[:-1]]
            operation = replace(operation, old=split[-1] if split else "")
        resolved.append(replace(edit, operation=operation))
    return resolved


def _with_bullets(old: str, lines: Sequence[str]) -> str:
    if old.rstrip() in lines:
        return old
    found = [line for line in lines if _is_bullet(line) and as_bullet(line) == as_bullet(old)]
    return found[0] if len(found) == 1 else old


def _is_bullet(line: str) -> bool:
    return line.lstrip()[:2] in ("- ", "* ")


def _old(operation: Operation) -> str:
    return operation.old if isinstance(operation, ReplaceLines | RemoveLines) else ""


def _apply(edits: Sequence[DocumentEdit], text: str) -> str:
    applied = apply([each.operation for each in edits], text)
    if not applied.refused:
        return applied.text
    refused = applied.refused[0]
    given = _old(refused.operation)[:_SHOWN]
    raise ToolFailed(f"nothing was changed: {refused.why}: {given}\n{_closest(refused.operation, text)}")


def _closest(operation: Operation, text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    near = difflib.get_close_matches(_old(operation), lines, n=_MOST_CLOSEST, cutoff=_CLOSENESS)
    if not near:
        return "No line is like it. `memory_search` finds facts that are remembered elsewhere."
    return "\n".join(["Give a line exactly as it is. The closest lines are:", *(line[:_SHOWN] for line in near)])


def _loss(before: str, after: str) -> int:
    """Return the number of lines of *before* that *after* has no successor for."""
    gone = len([each for each in _line_changes(before, after) if not each.new])
    return max(gone, len(lost_entries(before, after)))


def _line_changes(before: str, after: str) -> list[LineChange]:
    """Return the changed lines, without blank ones; a line and one like it in its place are a replacement."""
    old, new = ([line for line in text.splitlines() if line.strip()] for text in (before, after))
    changes: list[LineChange] = []
    for tag, low, high, start, stop in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        added = new[start:stop]
        for line in old[low:high]:
            successor = next(iter(difflib.get_close_matches(line, added, n=1, cutoff=_LIKENESS)), "")
            changes.append(LineChange(line, successor))
            if successor:
                added.remove(successor)
        changes += [LineChange(new=line) for line in added]
    return changes
