"""Looking at what Dream changed, and going back behind one of its changes without losing what others did since."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from agent.memory.documents.document_changes import CONSOLIDATION, DREAM_CAUSE, TRACKED
from agent.memory.documents.scope_documents import ScopeDocuments
from agent.memory.editing.three_way_merge import three_way
from agent.memory.update.dream_state import DREAM
from gateway.ports.memory import DocumentChange, TextChange

RESTORE = f"{DREAM} restore "  # then the version that everything goes back behind, and the turn that asked, if any
FORGET = "forget"
_LATER = 1_000  # versions behind the one that is gone back behind
_TRIES = 3


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
