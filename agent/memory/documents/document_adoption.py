"""Take over the documents of an earlier release, with every version in their git repositories, before any turn runs.

The same happens after `parlour accept-loss`: a lost store is filled from its mirror.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.memory.documents.document_changes import BY_HAND, TRACKED
from agent.memory.documents.document_commits import DocumentCommits, read_change
from agent.memory.documents.git_repository import open_repo, walk
from agent.memory.scopes import list_scopes, scope_folder
from agent.memory.storage.disk import Disk, read_text
from gateway.ports.memory import DocumentChange, DocumentState, document_file

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments


log = structlog.get_logger(__name__)

_EPOCH = "epoch.txt"
_LEFT = (_EPOCH, ".writing")  # files of earlier releases whose content is in the store then
_REPORT_EVERY = 50  # scopes


@dataclass(frozen=True, slots=True)
class _FoundDocuments:
    """The documents of a scope's folder, as every version had them, and the scope's epoch."""

    states: Sequence[DocumentState]
    epoch: str


async def adopt_documents(home: Path, documents: SqlDocuments, now: Callable[[], datetime]) -> int:
    """Store documents of scopes that the store has none of; return the number of their versions.

    The caller marks them as adopted. Idempotent; a kill interrupts it between two scopes. The mirror then writes the
    files again. Raises OSError and StoreUnavailable, and ValueError when the store does not return the versions that
    it was given.
    """
    disk, commits, count = Disk(), DocumentCommits(home), 0
    folders = await asyncio.to_thread(list_scopes, home)
    scopes = dict.fromkeys(["", *folders, *await documents.scopes()])
    for n, scope in enumerate(scopes, start=1):
        if (await documents.heads([scope]))[scope].number:
            count += await _compare_mirror(home, scope, documents, commits)
        else:
            found = await asyncio.to_thread(_read_scope, disk, scope_folder(home, scope), now)
            if found.epoch:
                await documents.set_epoch(scope, found.epoch)
            if found.states:
                await documents.replace({scope: found.states}, was={scope: 0})
                stored = await documents.states(scope)
                if [each.texts for each in stored] != [each.texts for each in found.states]:
                    raise ValueError(f"the versions of {scope or 'the home'} were not stored as they are")
                count += len(stored)
        await asyncio.to_thread(_remove_left, disk, scope_folder(home, scope) / "memory")
        if not n % _REPORT_EVERY:
            log.info("memory.adopting_documents", scopes=n, of=len(scopes), versions=count)
    if count:
        log.info("memory.documents_adopted", scopes=len(scopes), versions=count)
    return count


async def _compare_mirror(home: Path, scope: str, documents: SqlDocuments, commits: DocumentCommits) -> int:
    """Have the files of a store that was restored written; return the number of newer versions that it then has.

    Versions behind those of the store are stored. Files of others are merged, as edits are.
    """
    memory = scope_folder(home, scope) / "memory"
    newest, _ = await asyncio.to_thread(commits.newest, scope)
    stored = await documents.states(scope)
    files = await asyncio.to_thread(read_documents, Disk(), memory.parent)
    is_known = all(any(text == each.texts.get(name) for each in stored) for name, text in files.items())
    if await documents.find(scope, newest) is not None if newest else is_known:
        await documents.owe_files(scope)
        return 0
    log.warning("memory.mirror_is_newer", scope=scope)
    found = await asyncio.to_thread(_read_versions, memory)
    if found and [each.change.id for each in found[: len(stored)]] == [each.change.id for each in stored]:
        both = [*stored, *found[len(stored) :]]
        if await documents.replace({scope: both}, was={scope: stored[-1].change.number}):
            return len(both) - len(stored)
    await asyncio.to_thread(_forget_state, memory / ".mirror")
    return 0


def read_documents(disk: Disk, folder: Path) -> Mapping[str, str]:
    """Return the texts of a scope's documents as its files have them, without empty ones. Blocks."""
    files = {name: disk.load(folder / document_file(name)) for name in TRACKED}
    return {name: text for name, data in files.items() if (text := _text(data or b""))}


def _forget_state(folder: Path) -> None:
    if folder.exists():
        Disk().remove_folder(folder)


def _read_scope(disk: Disk, folder: Path, now: Callable[[], datetime]) -> _FoundDocuments:
    """Return every version of a scope's documents, the oldest first, and behind them the files if they differ."""
    states = _read_versions(folder / "memory")
    newest = states[-1].texts if states else {}
    texts = read_documents(disk, folder)
    if texts != newest:
        change = DocumentChange(id=secrets.token_hex(4), number=0, at=now(), why=BY_HAND)
        states.append(DocumentState(change=change, texts=texts))
    return _FoundDocuments(states, _text(disk.load(folder / "memory" / _EPOCH) or b"").strip())


def _read_versions(memory: Path) -> list[DocumentState]:
    repository, gone = memory / ".git", memory / ".git.old"
    if not repository.exists() and gone.exists():  # a crash came between two renames
        repository = gone
    if not repository.exists():
        return []
    states: list[DocumentState] = []
    with open_repo(repository, make=False) as repo:
        for version in walk(repo):
            change = read_change(version, version.sha)
            texts = {name: text for name, data in version.texts.items() if name in TRACKED and (text := _text(data))}
            states.append(DocumentState(change=change, texts=texts))
    return states[::-1]


def _text(data: bytes) -> str:
    return read_text(data).replace("\0", "\ufffd")


def _remove_left(disk: Disk, memory: Path) -> None:
    for name in _LEFT:
        disk.remove(memory / name)
