"""Write the outcome of edits into a scope's documents by compare-and-set, and stage what needs approval.

Consolidation, Dream, approvals and `/remember` all change documents here. An edit that a person saves at the same time
is merged, never overwritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from agent.memory.documents.file_documents import SOUL, DocumentBusy, change_document, effective_persona
from agent.memory.editing.edit_simulation import DocumentOutcome
from agent.memory.editing.staged_change_store import StagedChangeStore
from agent.memory.editing.staged_changes import ReviewReason, StagedChange
from agent.memory.editing.text_operations import changed_texts
from agent.memory.editing.three_way_merge import MergeConflict, three_way
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from gateway.ports.memory import DocumentStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentEditor:
    """Changes documents of any scope. Every method is idempotent."""

    home: Path | None  # where conflict copies are written; None = nowhere, since other gateways erase words, too
    documents: DocumentStore
    staging: StagedChangeStore | None  # None = no question can be asked
    disk: Disk = field(default_factory=Disk)

    async def text(self, scope: str, name: str) -> str:
        """Return the text that a change of the document starts from; of SOUL.md, the effective persona."""
        if name == SOUL:
            return await effective_persona(self.documents, scope)
        return (await self.documents.read(scope, name)).text

    async def write(self, scope: str, name: str, base: str, result: DocumentOutcome, *, why: str) -> DocumentOutcome:
        """Merge the change from *base* to the outcome's text into the document; return the outcome still to stage.

        If other writers won every try, all operations are to be staged, as `ReviewReason.BUSY`. Raises OSError.
        """
        folder = self._folder(scope)

        def reconcile(now: str) -> str:
            reconciled = three_way(base, result.text, now)
            save_conflicts(folder, self.disk, reconciled.conflicts, name)
            return reconciled.text

        try:
            if result.text != base:
                await change_document(self.documents, scope, name, reconcile, why=why, inherits=True)
        except DocumentBusy:
            log.warning("memory.write_contended", scope=scope, name=name)
        else:
            return result
        return replace(result, waiting={**result.waiting, ReviewReason.BUSY: result.done})

    async def stage(self, scope: str, result: DocumentOutcome, build: Callable[[str], StagedChange]) -> None:
        """Store what the outcome holds back for each reason, as the change that *build* returns for it.

        *build* leaves the operations out. Without *staging*, the new lines go to a conflict copy. Raises
        OSError.
        """
        for why, operations in result.waiting.items():
            change = replace(build(why), operations=operations)
            log.info(
                "memory.change_staged", scope=scope, name=change.document, why=str(why), operations=len(operations)
            )
            if self.staging is not None:
                await self.staging.stage(scope, change)
            elif added := "\n".join(new for each in operations if (new := changed_texts(each)[1])):
                write_conflict_copy(self._folder(scope), self.disk, f"{added}\n", change.document)

    def _folder(self, scope: str) -> Path | None:
        return scope_folder(self.home, scope) / "memory" if self.home is not None else None


def save_conflicts(folder: Path | None, disk: Disk, conflicts: Sequence[MergeConflict], name: str) -> None:
    """Write our side of the conflicts in the document *name* to a conflict copy in *folder*. Raises OSError."""
    if conflicts:
        write_conflict_copy(folder, disk, "\n\n".join(conflict.mine for conflict in conflicts) + "\n", name)


def write_conflict_copy(folder: Path | None, disk: Disk, text: str, name: str) -> None:
    """Write *text* beside the document *name* in *folder*, for a person to read. Raises OSError."""
    if folder is None:
        log.warning("memory.conflict_dropped", name=name)
        return
    data = text.encode("utf-8", "replace")
    path = folder / f"{name.removesuffix('.md')}.conflict-{hashlib.sha256(data).hexdigest()[:8]}.md"
    disk.replace(path, data)
    log.warning("memory.conflict_copied", file=path.name)
