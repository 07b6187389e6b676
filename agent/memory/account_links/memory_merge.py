"""Merge the `memory/` folders of two scopes, and split one: a new folder is built, then renamed over the old one.

A crash leaves the old folder or the new one, and building is repeatable. Everything here blocks; the caller holds the
exclusive locks of both scopes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.memory.account_links import version_merge
from agent.memory.account_links.document_merge import EntryOwnership
from agent.memory.documents.document_changes import TRACKED, select_documents
from agent.memory.documents.file_documents import SOUL
from agent.memory.history.history_files import is_history_file
from agent.memory.history.history_log import LOCK
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode
from gateway.ports import DocumentChangeStore, DocumentState

MOVE_FILE = ".move"  # the id of the move that built this folder
_OWNERS_FILE = ".of.json"  # accounts of the files that have no session or author
_NEW, _OLD = ".memory-new", ".memory-old"
_MIRRORED = ("MEMORY.md", ".git", ".mirror")  # written from the rows of the documents
# Files that are built, not copied; those of the history are printed from its rows.
_BUILT = frozenset({"MEMORY.md", LOCK, "epoch.txt", MOVE_FILE, _OWNERS_FILE, ".git", ".mirror"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMerger:
    """Merges and splits the memory of two scopes: documents as rows, and the files of their folders."""

    home: Path
    changes: DocumentChangeStore
    disk: Disk

    # -- documents ---------------------------------------------------------------------------------

    async def merge_documents(
        self, move: str, source: str, target: str, *, source_account: str, target_account: str
    ) -> None:
        """Merge the documents of *source*, with every version, into those of *target*. Idempotent.

        The accounts are "" for scopes that have several. Of the home itself the persona stays.
        """
        names = set(TRACKED) if source else set(TRACKED) - {SOUL}  # every scope uses the home's own persona
        while moving := select_documents(every := await self.changes.states(source), names):
            staying = [] if source else select_documents(every, {SOUL})
            own = await self.changes.states(target)
            was = await self._numbers(source, target)
            merged = await asyncio.to_thread(
                version_merge.interleave_versions,
                own,
                moving,
                first_account=target_account,
                second_account=source_account,
            )
            is_current = _is_newest(own, was[target]) and _is_newest(every, was[source])
            if is_current and await self.changes.replace({source: staying, target: merged}, was=was):
                break
        await self.changes.set_epoch(target, move)

    async def owners_of(self, scope: str, account_of_entry: Callable[[str], str], survivor: str) -> EntryOwnership:
        """Return the owners of the lines of a scope's documents; *account_of_entry* is called with a summary's id."""
        states = await self.changes.states(scope)
        return await asyncio.to_thread(version_merge.entry_owners, states, account_of_entry, survivor)

    async def split(
        self,
        move: str,
        source: str,
        target: str,
        account_name: str,
        account_of: Callable[[str], str],
        account_of_entry: Callable[[str], str],
        survivor: str,
    ) -> None:
        """Move the entries that belong only to *account_name* from *source* to *target*; mixed entries stay.

        *account_of* returns the account of a session key, "" for the account that stays, and *account_of_entry* that of
        a summary. Idempotent: documents are split last, because the owners of files are found in them.
        """
        while await self.changes.epoch(source) != move:
            states = await self.changes.states(source)
            was = await self._numbers(source, target)
            ownership = await asyncio.to_thread(version_merge.entry_owners, states, account_of_entry, survivor)
            staying, moving = await asyncio.to_thread(
                self._split_files, move, states, source, target, account_name, account_of, ownership
            )
            if not states or (
                _is_newest(states, was[source])
                and await self.changes.replace({source: staying, target: moving}, was=was, epoch=move)
            ):
                for scope in (source, target):
                    await self.changes.set_epoch(scope, move)

    async def _numbers(self, *scopes: str) -> dict[str, int]:
        return {scope: head.number for scope, head in (await self.changes.heads(scopes)).items()}

    # -- files; these block ------------------------------------------------------------------------

    def merge_files(self, move: str, source: str, target: str, *, accounts: tuple[str, str]) -> None:
        """Merge the folder of *source* into that of *target*.

        *accounts* are those of the two scopes. The source's folder is not changed; the caller removes it with the
        scope's other files.
        """
        source_account, target_account = accounts
        source_folder, target_folder = (scope_folder(self.home, scope) for scope in (source, target))
        if not (source_folder / "memory").is_dir() or self._is_swapped(target_folder, move):
            return
        new = self._create_new(target_folder)
        old, other = target_folder / "memory", source_folder / "memory"
        self._copy_files(old, new, target_account)
        self._copy_files(other, new, source_account)
        self._copy_mirror(old, new)
        self._complete(new, move)
        self._swap(target_folder)

    def _copy_files(self, old: Path, new: Path, account_name: str) -> None:
        """Copy the files beside documents and history: pending work, corrupt lines. Never overwrites another file."""
        owners = self.file_owners(new) | self.file_owners(old)
        for path in _files(old):
            name = path.relative_to(old)
            data = self.disk.load(path) or b""
            existing = self.disk.load(new / name)
            if existing is not None and existing != data:
                name = _free_name(new, name)
            self.disk.replace(new / name, data)
            if account_name:
                owners.setdefault(str(name), account_name)
        if owners:
            self.disk.replace(new / _OWNERS_FILE, json.dumps(owners).encode())

    def _split_files(
        self,
        move: str,
        states: Sequence[DocumentState],
        source: str,
        target: str,
        account_name: str,
        account_of: Callable[[str], str],
        ownership: EntryOwnership,
    ) -> tuple[list[DocumentState], list[DocumentState]]:
        """Split the folder of *source*; return the histories of the documents that stay, and of those that move."""
        source_folder, target_folder = scope_folder(self.home, source), scope_folder(self.home, target)
        old = source_folder / "memory"
        halves = version_merge.split_versions(states, ownership, account_name)
        if self._is_swapped(source_folder, move) or not old.is_dir():
            return halves
        plan = _SplitPlan(self, old, account_name, account_of)
        if not self._is_swapped(target_folder, move):
            new = self._create_new(target_folder)
            plan.fill(new, is_moving=True, ownership=ownership)
            self._complete(new, move)
            self._swap(target_folder)
        new = self._create_new(source_folder)
        plan.fill(new, is_moving=False, ownership=ownership)
        self._copy_mirror(old, new)
        self._complete(new, move)
        self._swap(source_folder)
        return halves

    def _copy_mirror(self, old: Path, new: Path) -> None:
        """Copy the files of the documents: they are written again behind the move, and edits in them are found."""
        for name in _MIRRORED:
            if (old / name).is_dir():
                shutil.copytree(old / name, new / name, dirs_exist_ok=True)
            elif (data := self.disk.load(old / name)) is not None:
                self.disk.replace(new / name, data)

    # -- folders -----------------------------------------------------------------------------------

    def _create_new(self, scope: Path) -> Path:
        new = scope / _NEW
        shutil.rmtree(new, ignore_errors=True)
        self.disk.make_folder(new)
        return new

    def _complete(self, new: Path, move: str) -> None:
        """Mark the folder as complete."""
        self.disk.replace(new / MOVE_FILE, move.encode())

    def _is_swapped(self, scope: Path, move: str) -> bool:
        """Return True if `memory/` is the folder that *move* built; completes a swap that a crash interrupted."""
        memory, new, old = scope / "memory", scope / _NEW, scope / _OLD
        if not memory.exists() and old.exists():
            (new if self.disk.load(new / MOVE_FILE) is not None else old).rename(memory)
            self.disk.sync_folder(scope)
        if self.disk.load(memory / MOVE_FILE) != move.encode():
            return False
        for folder in (old, new):
            shutil.rmtree(folder, ignore_errors=True)
        return True

    def _swap(self, scope: Path) -> None:
        memory, new, old = scope / "memory", scope / _NEW, scope / _OLD
        shutil.rmtree(old, ignore_errors=True)
        if memory.exists():
            self.disk.rename(memory, old)
        self.disk.rename(new, memory)
        shutil.rmtree(old, ignore_errors=True)

    def _text(self, path: Path) -> str:
        return (self.disk.load(path) or b"").decode("utf-8", "replace")

    def put(self, path: Path, text: str) -> None:
        """Write *text*, unless it is empty or equal to the file."""
        if text and text != self._text(path):
            self.disk.replace(path, text.encode())

    def file_owners(self, folder: Path) -> dict[str, str]:
        """Return the accounts of the files that have no session or author, by name."""
        owners = decode(self.disk.load(folder / _OWNERS_FILE) or b"{}")
        return {str(name): str(account) for name, account in (owners or {}).items()}


class _SplitPlan:
    """Selects a folder's files that move, or those that stay."""

    def __init__(self, merger: MemoryMerger, old: Path, account_name: str, account_of: Callable[[str], str]) -> None:
        self._disk = merger.disk
        self._put = merger.put
        self._old = old
        self._account_name = account_name
        self._account_of = account_of
        self._owners = merger.file_owners(old)

    def fill(self, new: Path, *, is_moving: bool, ownership: EntryOwnership) -> None:
        """Write one half of the files beside documents and history."""
        owners: dict[str, str] = {}
        for path in _files(self._old):
            name = str(path.relative_to(self._old))
            text = (self._disk.load(path) or b"").decode("utf-8", "replace")
            half = self._select_text(name, text, is_moving=is_moving, ownership=ownership)
            if half is not None:
                self._put(new / name, half)
                if name in self._owners:
                    owners[name] = self._owners[name]
        if owners and not is_moving:
            self._disk.replace(new / _OWNERS_FILE, json.dumps(owners).encode())

    def _select_text(self, name: str, text: str, *, is_moving: bool, ownership: EntryOwnership) -> str | None:
        """Return the part of a file that belongs to the half; None if it is empty."""
        document = f"{name.partition('.conflict-')[0]}.md"
        if document in TRACKED:
            kept, given = version_merge.split_document(document, text, ownership, self._account_name)
            return (given if is_moving else kept) or None
        if name.startswith(".pending/"):
            return text if self._pending_moves(name, text) is is_moving else None
        return text if (self._owners.get(name) == self._account_name) is is_moving else None

    def _pending_moves(self, name: str, text: str) -> bool:
        """Return True if unfinished work belongs to the account, by its chat."""
        session = str((decode(text.encode()) or {}).get("session") or "")
        account = self._account_of(session) if session else ""
        return (account or self._owners.get(name, "")) == self._account_name


def _is_newest(states: Sequence[DocumentState], number: int) -> bool:
    """Return True if *number* is that of the newest of *states*."""
    return not states or states[-1].change.number == number


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files to copy, in order."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        name = path.relative_to(folder)
        first = name.parts[0]
        # An interrupted Dream has read the old documents; it is started again.
        if str(name) == ".pending/dream.json":
            continue
        if path.is_file() and first not in _BUILT and not first.startswith(".git") and not is_history_file(str(name)):
            yield path


def _free_name(folder: Path, name: Path) -> Path:
    """Return *name* with the first number that no file in *folder* has."""
    stem, dot, ending = name.name.partition(".")
    n = 2
    while (folder / name.with_name(f"{stem}-{n}{dot}{ending}")).exists():
        n += 1
    return name.with_name(f"{stem}-{n}{dot}{ending}")
