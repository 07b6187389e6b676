"""Bring a finished Dream into the documents, as one version that keeps a person's edits, and report it to its chat.

`DreamService` shows Dream's changes, and goes back behind one of them without losing what others did since.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.disk import Disk
from agent.base.scopes import scope_folder
from agent.memory.documents.scope_documents import (
    CONSOLIDATION,
    DREAM_CAUSE,
    SOUL,
    TRACKED,
    ScopeDocuments,
    effective_persona,
)
from agent.memory.editing.document_edits import keys_of_lines
from agent.memory.editing.edit_simulation import DocumentOutcome, EditSimulation, outcome
from agent.memory.editing.staged_change_store import StagedChangeStore, save_conflicts
from agent.memory.editing.staged_changes import MEMORY, ReviewReason, StagedChange
from agent.memory.editing.text_operations import Operation
from agent.memory.editing.three_way_merge import MergeConflict, three_way
from agent.memory.history.history_files import add_keys
from agent.memory.jobs.job_runner import send_job_report
from agent.memory.update.dream_phases import DREAM, DreamPass, DreamRun
from gateway.events import ChatKind, SessionKey
from gateway.i18n import SLASH, ChatLanguage, translate
from gateway.ports.journal import Job, SessionRow
from gateway.ports.memory import DocumentChange, HistoryEntry, TextChange

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory
    from gateway.store.records import SqlTurnRecords

log = structlog.get_logger(__name__)

RESTORE = f"{DREAM} restore "  # then the version that everything goes back behind, and the turn that asked, if any
FORGET = "forget"
_LATER = 1_000  # versions behind the one that is gone back behind
DOCUMENTS = ("USER.md", "MEMORY.md", SOUL)
_PEOPLE = "people/"  # the scopes of people
_ASKED = "asked"  # field of a job
_LOOK_BACK = 50  # changes in which our own is looked for after a crash
_TRIES = 3  # of a compare-and-set


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamReport:
    """Result of a Dream, for its requester; all zero if it failed or found no new entries."""

    entries: int = 0
    changes: int = 0
    waits: int = 0  # operations that wait for a yes
    sha: str = ""  # of its version
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamApplier:
    """Changes the documents of any scope. Doing it twice is doing it once."""

    home: Path | None  # where conflict copies are written
    documents: ScopeDocuments
    history: SqlHistory
    staging: StagedChangeStore
    now: Callable[[], datetime]
    disk: Disk = field(default_factory=Disk)

    async def texts(self, scope: str) -> dict[str, str]:
        """Return the documents that a Dream starts from."""
        return {name: await self._text(scope, name) for name in DOCUMENTS}

    async def apply(
        self, scope: str, run: DreamRun, entries: Sequence[HistoryEntry], *, stages: bool = True
    ) -> DreamReport:
        """Write the outcome of *run* as one version that names its entries; if *stages*, stage what needs approval.

        Raises OSError.
        """
        cause = run.cause(entries)
        outcomes: list[tuple[str, DocumentOutcome]] = []
        for dream_pass in run.passes:
            simulation = await asyncio.to_thread(_simulate_pass, run, dream_pass)
            for name in DOCUMENTS:
                only = _only_propose(scope, name, dream_pass.is_untrusted)
                result = await asyncio.to_thread(outcome, simulation, name, only_propose=only)
                outcomes.append((name, result))
        changed = {name: result.text for name, result in outcomes if result.text != run.base[name]}
        change = await self._write(scope, run.base, changed, cause)
        changes = waits = 0
        waiting: list[Operation] = []
        for name, result in outcomes:
            is_busy = change is None and name in changed
            left = replace(result, waiting={**result.waiting, ReviewReason.BUSY: result.done}) if is_busy else result
            changes += 0 if is_busy else len(left.done)
            waits += sum(map(len, left.waiting.values()))
            waiting += left.waiting_operations
            if stages:
                build = functools.partial(self._build_change, scope, run, entries, name)
                await self.staging.stage_outcome(scope, left, build)
        edits = (edit for each in run.passes for answer in each.answers for edit in answer)
        keys = keys_of_lines(edits, pending_operations=waiting)
        await add_keys(self.history, scope, keys, (await self.documents.read(scope, MEMORY)).text)
        return DreamReport(entries=len(entries), changes=changes, waits=waits, sha=change.short if change else "")

    async def _write(
        self, scope: str, base: Mapping[str, str], texts: Mapping[str, str], cause: str
    ) -> DocumentChange | None:
        """Merge the changes from *base* to *texts* into the documents, as one change; return it.

        It has no id if nothing differs. None if other writers won every try.
        """
        await self.documents.notice(scope)
        for _ in range(_TRIES):
            earlier = await self.documents.changes.log(scope, limit=_LOOK_BACK)
            if written := next((each for each in earlier if each.why == cause), None):
                return written  # before a crash; later changes were a person's decision
            merged: dict[str, TextChange] = {}
            conflicts: dict[str, Sequence[MergeConflict]] = {}
            for name, text in texts.items():
                now = await self._text(scope, name)
                result = await asyncio.to_thread(three_way, base[name], text, now)
                if result.text != now:
                    merged[name] = TextChange((await self.documents.read(scope, name)).rev, result.text)
                conflicts[name] = result.conflicts
            change = await self.documents.change(scope, merged, why=cause, after=earlier[0].number if earlier else None)
            if change is not None:
                for name, each in conflicts.items():
                    folder = scope_folder(self.home, scope) / "memory" if self.home is not None else None
                    await asyncio.to_thread(save_conflicts, folder, self.disk, each, name)
                return change
        log.warning("memory.write_contended", scope=scope, name=", ".join(texts))
        return None

    def _build_change(
        self, scope: str, run: DreamRun, entries: Sequence[HistoryEntry], document: str, why: str
    ) -> StagedChange:
        return StagedChange(
            name=run.name(document, why),
            why=why,
            at=self.now(),
            document=document,
            session=entries[-1].session if entries else "",
            cause=run.cause(entries),
            person=scope.removeprefix(_PEOPLE) if scope.startswith(_PEOPLE) else "",
        )

    async def _text(self, scope: str, name: str) -> str:
        """Return the text that a change of the document starts from; of SOUL.md, the effective persona."""
        if name == SOUL:
            return await effective_persona(self.documents, scope)
        return (await self.documents.read(scope, name)).text


def _only_propose(scope: str, name: str, is_untrusted: bool) -> str:
    """Return why the changes of a document wait for a yes; "" when they may be made."""
    if is_untrusted:
        return ReviewReason.UNTRUSTED
    return ReviewReason.PERSONA if name == SOUL and scope.startswith("chats/") else ""


def _simulate_pass(run: DreamRun, dream_pass: DreamPass) -> EditSimulation:
    simulation = EditSimulation(run.base)
    for answer in dream_pass.answers:
        simulation.do(answer)
    return simulation


# -- the report --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamRequester:
    """The chat and message to answer when a requested Dream finishes."""

    key: str
    reply_to: str = ""
    visible_to: str = ""  # in a shared chat its asker alone
    chat_kind: str = ChatKind.DIRECT.value
    language: str = "en"

    def payload(self) -> dict[str, Any]:
        """Return it as a job carries it."""
        return {_ASKED: asdict(self)}

    @classmethod
    def of(cls, job: Job) -> DreamRequester | None:
        """Return the requester stored in a job, or None if the job was scheduled."""
        requester = job.payload.get(_ASKED)
        return cls(**requester) if isinstance(requester, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamNotifier:
    """Puts a report into the outbox; the job's id makes that once."""

    records: SqlTurnRecords
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    now: Callable[[], datetime]
    sign: Callable[[SessionKey], str] = lambda _: SLASH  # before a command's name in a chat

    async def send_report(self, job: Job, requester: DreamRequester | None, report: DreamReport) -> None:
        """Send the result of the job to its requester, if it has one."""
        if requester is None:
            return
        key = SessionKey.parse(requester.key)
        session = await self.session(key)
        await send_job_report(
            self.records,
            job,
            session,
            sentence(report, ChatLanguage(requester.language, self.sign(key))),
            at=self.now(),
            reply_to=requester.reply_to,
            visible_to=requester.visible_to,
            chat_kind=ChatKind(requester.chat_kind),
        )


def sentence(report: DreamReport, language: str) -> str:
    """Return the text of the report."""
    if report.failed:
        return translate("dream.failed", language)
    if not report.entries:
        return translate("dream.nothing_new", language)
    word = "dream.done" if report.sha else "dream.no_change"
    lines = [translate(word, language, entries=report.entries, changes=report.changes, sha=report.sha)]
    lines += [translate("dream.waits", language, waits=report.waits)] if report.waits else []
    return " ".join(lines)


# -- Dream's changes, and a way back behind them ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestoreDone:
    """Memory is as it was before the change, what others changed since kept."""

    kept: int = 0  # versions of others that were kept
    changed: bool = True  # else it was so already


@dataclass(frozen=True, slots=True)
class RestoreConflict:
    """A person changed the same lines since, or had something forgotten: going back would undo that."""

    version: DocumentChange


class DreamService:
    """Implements /dream-log and /dream-restore for one scope, which comes from the event."""

    def __init__(self, documents: ScopeDocuments, *, can_run: bool) -> None:
        self._documents = documents
        self._changes = documents.changes
        self.can_run = can_run  # there is a model that can do it

    async def log(self, scope: str, *, limit: int = 10) -> list[DocumentChange]:
        """Return Dream's newest changes, the newest first."""
        await self._documents.notice(scope)
        found = await self._changes.log(scope, limit=_LATER)
        return [each for each in found if each.why.startswith(DREAM_CAUSE)][:limit]

    async def restore(self, scope: str, id_: str, *, by: str, turn: str = "") -> RestoreDone | RestoreConflict | None:
        """Restore the state before a change by a new one; return None if no change has this id.

        Later changes by Dream are dropped; those by people and consolidations are applied again. A repeated *turn*
        finds what it has restored. Raises OSError.
        """
        await self._documents.notice(scope)
        for _ in range(_TRIES):
            # Another change, or an erasure of the texts that are read here, gives the scope another number.
            number = (await self._changes.heads([scope]))[scope].number
            change = await self._documents.find(scope, id_)
            if change is None:
                return None
            before_change = await self._texts_before(scope, change)
            if isinstance(before_change, RestoreConflict):
                return before_change
            texts, kept = before_change
            why = f"{RESTORE}{change.short} {turn}".rstrip()
            later = await self._changes.log(scope, limit=_LATER, since=change.number) if turn else ()
            if any(each.why == why for each in later):
                return RestoreDone(kept)
            now = {name: await self._documents.read(scope, name) for name in TRACKED}
            restored = {name: TextChange(now[name].rev, texts.get(name, "")) for name in TRACKED}
            done = await self._documents.change(scope, restored, why=why, by=by, undoes=change.id, after=number)
            if done is not None:
                return RestoreDone(kept, changed=bool(done.names))
        raise OSError("memory is being written to all the time")

    async def _texts_before(
        self, scope: str, change: DocumentChange
    ) -> tuple[Mapping[str, str], int] | RestoreConflict:
        """Return the texts before *change* with later changes by others, and the number of these changes."""
        texts = dict(await self._changes.texts(scope, change.number - 1))
        kept = 0
        for each in reversed(await self._changes.log(scope, limit=_LATER, since=change.number)):
            if each.why.startswith((DREAM_CAUSE, RESTORE)):
                continue
            if each.why.startswith(FORGET):  # another wording of what was forgotten may stand in the old text
                return RestoreConflict(each)
            for name, (before, after) in (await self._changes.changed_texts(scope, each)).items():
                done = await asyncio.to_thread(three_way, before, after, texts.get(name, ""))
                if done.conflicts and not each.why.startswith(CONSOLIDATION):
                    return RestoreConflict(each)
                texts[name] = done.text
            kept += 1
        return texts, kept
