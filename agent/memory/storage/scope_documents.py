"""Documents of memory scopes as turns, jobs and commands of a gateway change them; their differences and authors."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import structlog

from gateway.ports.memory import DocumentChange, DocumentState, DocumentStore, HistoryUpdate, ScopeDocument, TextChange

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments

log = structlog.get_logger(__name__)

TRACKED = ("SOUL.md", "USER.md", "MEMORY.md")
# How the cause of a change begins.
BY_HAND = "edited by hand"
APPROVED = "approved "  # then the name of the staged change, and its cause
CONSOLIDATION = "consolidation "  # then the history entry
DREAM_CAUSE = "dream: "  # then the cursors, and the ids of the entries
ARCHIVED = "archived"  # lines moved to the archive document
UNARCHIVED = "unarchived"  # a line moved back from it, because it is edited
IMPORTED = "imported from "  # then the name of a system

Authors: TypeAlias = Mapping[str, str]  # of the lines of a document
Redact: TypeAlias = Callable[[str, Authors], str]
_MEMORY = "MEMORY.md"
SOUL = "SOUL.md"
DEFAULT_PERSONA = """You are a helpful assistant. You are friendly, precise and brief, and you answer in the language \
you are spoken to. You say so when you do not know something, and you never claim to have done what you have not \
done."""
_TRIES = 3  # of a compare-and-set
FindCommit: TypeAlias = Callable[[str, str], Awaitable[str]]
Fit: TypeAlias = Callable[[str, str, str], Awaitable[str]]


def line_fingerprint(line: str) -> str:
    """Return a short digest of a line of a document, without its list mark."""
    text = line.strip().lstrip("-*+ ")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


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
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = "", beside: HistoryUpdate | None = None
    ) -> ScopeDocument | None:
        """Replace the text if its rev is still *was*."""
        before = await self._before(scope, name)
        written = await self.changes.write(scope, name, text, was=was, why=why, by=by, beside=beside)
        if written is None or written.rev == was:
            return written
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


# -- causes, differences, authors, an erasure ------------------------------------------------------


def diff_texts(texts: Mapping[str, tuple[str, str]]) -> str:
    """Return the texts of documents before and after a change as a unified diff."""
    lines: list[str] = []
    for name in TRACKED:
        before, after = (each.splitlines() for each in texts.get(name, ("", "")))
        lines += difflib.unified_diff(before, after, name, name, lineterm="", n=1)
    return "\n".join(lines)


async def change_diff(changes: SqlDocuments, scope: str, change: DocumentChange) -> str:
    """Return the unified diff of a change."""
    return await asyncio.to_thread(diff_texts, await changes.changed_texts(scope, change))


async def rewrite_history(
    changes: SqlDocuments,
    scope: str,
    redact: Redact,
    *,
    anonymous: Collection[str] = (),
    cause: Callable[[str], str] = str,
) -> int:
    """Apply *redact* to every version of a scope's documents; return the number of texts that it changed.

    *cause* maps the cause of each change; the persons *anonymous* are removed from it. The changes keep their ids.
    """
    rewrite = partial(_redacted, redact=redact, anonymous=anonymous, cause=cause)
    while True:
        number = (await changes.heads([scope]))[scope].number
        states = await changes.states(scope)
        if not await asyncio.to_thread(lambda: any(old != new for old, new in rewrite(states))):  # noqa: B023
            return 0
        count = 0

        def cleared() -> Iterator[DocumentState]:
            nonlocal count
            count = 0
            for old, new in rewrite(states):  # noqa: B023 - stored within this round
                count += sum(text != new.texts.get(name, "") for name, text in old.texts.items())
                yield new

        if await changes.replace({scope: cleared()}, was={scope: number}):
            return count


def select_documents(states: Iterable[DocumentState], names: Collection[str]) -> Iterator[DocumentState]:
    """Yield the history of some documents alone, with the changes that changed one of them."""
    return map_documents(states, lambda name, text: text if name in names else "")


def map_documents(states: Iterable[DocumentState], change: Callable[[str, str], str]) -> Iterator[DocumentState]:
    """Yield the states with the texts that *change* returns (name, text), those that differ from the one before."""
    before: Mapping[str, str] = {}
    for state in states:
        texts = {name: changed for name, text in state.texts.items() if (changed := change(name, text))}
        if texts != before:
            yield DocumentState(change=state.change, texts=texts)
            before = texts


def _redacted(
    states: Iterable[DocumentState], redact: Redact, anonymous: Collection[str], cause: Callable[[str], str]
) -> Iterator[tuple[DocumentState, DocumentState]]:
    """Yield each state and what it becomes."""
    known: dict[str, tuple[str, str]] = {}  # the last text of each document, and what was made of it
    for state, authors in _trace_authors(states):
        texts: dict[str, str] = {}
        for name, text in state.texts.items():
            if known.get(name, ("", ""))[0] != text:
                known[name] = (text, redact(text, authors[name]))
            texts[name] = known[name][1]
        change = state.change
        by = "" if change.by in anonymous else change.by
        change = replace(change, why=cause(change.why), by=by)
        yield state, DocumentState(change=change, texts={name: text for name, text in texts.items() if text})


def _trace_authors(states: Iterable[DocumentState]) -> Iterator[tuple[DocumentState, dict[str, dict[str, str]]]]:
    """Yield every state with the author of each of its lines."""
    authors: dict[str, dict[str, str]] = {}
    for state in states:
        authors = {
            name: {line: authors.get(name, {}).get(line, state.change.by) for line in text.splitlines()}
            for name, text in state.texts.items()
        }
        yield state, authors


# -- changing a document -----------------------------------------------------------------------------


async def effective_persona(documents: DocumentStore, scope: str) -> str:
    """Return the text that a change of the scope's SOUL.md starts from: its own, else the installation's, or ours."""
    for place in dict.fromkeys((scope, "")):
        text = (await documents.read(place, SOUL)).text
        if text.strip():
            return text
    return f"{DEFAULT_PERSONA}\n"


class DocumentBusy(OSError):
    """Other writers changed a document before each of our tries."""


async def change_document(
    documents: DocumentStore,
    scope: str,
    name: str,
    make: Callable[[str], str],
    *,
    why: str,
    by: str = "",
    inherits: bool = False,
    beside: HistoryUpdate | None = None,
) -> tuple[str, str]:
    """Replace a document's text by what *make* returns for it; return both texts. Raises OSError, also DocumentBusy.

    *why* is the cause of the version, *by* the person who wanted it. *make* runs in a thread. With *inherits* it gets
    the effective persona as the text of SOUL.md. *beside* is stored with the change, also if the text stays.
    """
    for _ in range(_TRIES):
        document = await documents.read(scope, name)
        before = await effective_persona(documents, scope) if inherits and name == SOUL else document.text
        text = await asyncio.to_thread(make, before)
        if text == before and beside is None:
            return before, text
        if await documents.write(scope, name, text, was=document.rev, why=why, by=by, beside=beside):
            return before, text
    raise DocumentBusy(f"{name} is being written to all the time")
