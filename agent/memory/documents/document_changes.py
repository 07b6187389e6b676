"""Causes of changes of documents, and what is derived from a scope's changes: differences, authors, an erasure."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from gateway.ports.memory import DocumentChange, DocumentState

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments


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


def select_documents(states: Iterable[DocumentState], names: Collection[str]) -> list[DocumentState]:
    """Return the history of some documents alone, with the changes that changed one of them."""
    selected: list[DocumentState] = []
    before: Mapping[str, str] = {}
    for state in states:
        texts = {name: text for name, text in state.texts.items() if name in names}
        if texts != before:
            selected.append(DocumentState(change=state.change, texts=texts))
            before = texts
    return selected


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
