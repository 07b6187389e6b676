"""Looking at what Dream changed, and going back behind one of its changes without losing what others did since."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.documents.version_store import CONSOLIDATION, DREAM_CAUSE, TRACKED, DocumentVersion, VersionStore
from agent.memory.dream.dream_state import DREAM
from agent.memory.editing.three_way_merge import three_way

RESTORE = f"{DREAM} restore "  # then the version that everything goes back behind
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

    version: DocumentVersion


class DreamService:
    """Implements /dream-log and /dream-restore for one scope, which comes from the event."""

    def __init__(self, documents: FileDocumentStore, versions: VersionStore, *, can_run: bool) -> None:
        self._documents = documents
        self._versions = versions
        self.can_run = can_run  # there is a model that can do it

    async def log(self, scope: str, *, limit: int = 10) -> list[DocumentVersion]:
        """Return Dream's newest changes, the newest first."""
        await self._documents.notice(scope)
        found = await asyncio.to_thread(self._versions.log, scope, limit=_LATER)
        return [each for each in found if each.why.startswith(DREAM_CAUSE)][:limit]

    async def restore(self, scope: str, sha: str, *, by: str) -> RestoreDone | RestoreConflict | None:
        """Restore the state before the change *sha* as a new version; return None if no version has this name.

        Later changes by Dream are dropped; those by people and consolidations are applied again. Raises OSError.
        """
        await self._documents.notice(scope)
        version = await asyncio.to_thread(self._versions.find, scope, sha)
        if version is None:
            return None
        for _ in range(_TRIES):
            now = {name: await self._documents.read(scope, name) for name in TRACKED}
            before_change = await asyncio.to_thread(self._texts_before, scope, version)
            if isinstance(before_change, RestoreConflict):
                return before_change
            texts, kept = before_change
            changing = [name for name in TRACKED if texts.get(name, "") != now[name].text]
            written = [
                await self._documents.write(
                    scope, name, texts.get(name, ""), was=now[name].rev, why=f"{RESTORE}{version.short}", by=by
                )
                for name in changing
            ]
            if all(written):
                return RestoreDone(kept, changed=bool(changing))
            await self._documents.notice(scope)  # a person saved in between; keep that version too
        raise OSError("memory is being written to all the time")

    def _texts_before(self, scope: str, version: DocumentVersion) -> tuple[Mapping[str, str], int] | RestoreConflict:
        """Return the texts before *version* with later changes by others, and the number of these changes. Blocks."""
        before_change = self._versions.documents_before(scope, version.sha) or {}
        texts = {name: data.decode("utf-8", "replace") for name, data in before_change.items()}
        kept = 0
        for each in self._since(scope, version):
            if each.why.startswith((DREAM_CAUSE, RESTORE)):
                continue
            if each.why.startswith(FORGET):  # another wording of what was forgotten may stand in the old text
                return RestoreConflict(each)
            for name, (before, after) in self._versions.changed_texts(scope, each).items():
                done = three_way(before, after, texts.get(name, ""))
                if done.conflicts and not each.why.startswith(CONSOLIDATION):
                    return RestoreConflict(each)
                texts[name] = done.text
            kept += 1
        return texts, kept

    def _since(self, scope: str, version: DocumentVersion) -> list[DocumentVersion]:
        """Return the versions after *version*, the oldest first."""
        since: list[DocumentVersion] = []
        for each in self._versions.log(scope, limit=_LATER):
            if each.sha == version.sha:
                break
            since.append(each)
        return since[::-1]
