"""Documents of memory scopes as turns, jobs and commands of a gateway change them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import structlog

from agent.memory.documents.document_changes import ARCHIVED
from gateway.ports.memory import DocumentChange, ScopeDocument, TextChange

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments


log = structlog.get_logger(__name__)

_MEMORY = "MEMORY.md"
FindCommit: TypeAlias = Callable[[str, str], Awaitable[str]]
Fit: TypeAlias = Callable[[str, str, str], Awaitable[str]]


async def _find_no_commit(*_: str) -> str:
    """Return "", since a plain folder has no commits."""
    return ""


async def _notice_nothing(*_: str) -> None:
    """Do nothing: no file of the documents is edited by hand."""


class ScopeDocuments:
    """Implements `DocumentStore` over rows; MEMORY.md stays within its ceiling with every change."""

    def __init__(
        self,
        changes: SqlDocuments,
        *,
        notice: Callable[..., Awaitable[None]] = _notice_nothing,
        find_commit: FindCommit = _find_no_commit,
        fit: Fit | None = None,
    ) -> None:
        """*notice* takes over edits by hand in the files of the given scopes.

        *find_commit* returns the id of the change that a commit, named by the beginning of its id, is of. *fit* returns
        a new MEMORY.md (scope, old text, new text) within its ceiling, which becomes another change.
        """
        self.changes = changes
        self.notice = notice
        self._find_commit = find_commit
        self._fit = fit

    async def read(self, scope: str, name: str) -> ScopeDocument:
        """Return the current text."""
        return await self.changes.read(scope, name)

    async def find(self, scope: str, id_: str) -> DocumentChange | None:
        """Return the change whose id, or whose commit's id, begins so; None when none or several do."""
        if (change := await self.changes.find(scope, id_)) is not None or not id_.isalnum():
            return change
        id_ = await self._find_commit(scope, id_)
        return await self.changes.find(scope, id_) if id_ else None

    async def epoch(self, scope: str) -> str:
        """Return the erasure epoch."""
        return await self.changes.epoch(scope)

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = ""
    ) -> ScopeDocument | None:
        """Replace the text if its rev is still *was*."""
        before = await self._before(scope, name)
        written = await self.changes.write(scope, name, text, was=was, why=why, by=by)
        if written is None:
            return None
        log.info("document.written", scope=scope, name=name, why=why)
        return await self._fitted(scope, before, written)

    async def change(
        self,
        scope: str,
        texts: Mapping[str, TextChange],
        *,
        why: str,
        by: str = "",
        undoes: str = "",
        after: int | None = None,
        at: datetime | None = None,
    ) -> DocumentChange | None:
        """Replace several documents by one change."""
        before = await self._before(scope, _MEMORY) if _MEMORY in texts else ""
        change = await self.changes.change(scope, texts, why=why, by=by, undoes=undoes, after=after, at=at)
        if change is not None:
            log.info("document.written", scope=scope, name=", ".join(change.names), why=why)
            if _MEMORY in change.names:
                await self._fitted(scope, before, await self.changes.read(scope, _MEMORY))
        return change

    async def _before(self, scope: str, name: str) -> str:
        return (await self.changes.read(scope, name)).text if self._fit is not None and name == _MEMORY else ""

    async def _fitted(self, scope: str, before: str, after: ScopeDocument) -> ScopeDocument:
        """Bring MEMORY.md within its ceiling."""
        if self._fit is None or after.name != _MEMORY:
            return after
        text = await self._fit(scope, before, after.text)
        if text == after.text:
            return after
        done = await self.changes.write(scope, _MEMORY, text, was=after.rev, why=ARCHIVED)
        return done or after  # a later change brings it within its ceiling
