"""Merge the `memory/` folders of two scopes, and split one: a new folder is built, then renamed over the old one.

A crash leaves the old folder or the new one, and building is repeatable. Everything here blocks; the caller holds the
exclusive locks of both scopes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.memory.account_links import history_merge
from agent.memory.account_links.document_merge import EntryOwnership, merge_texts
from agent.memory.documents.file_documents import EPOCH
from agent.memory.documents.git_repository import TRACKED
from agent.memory.documents.version_store import VersionStore, write_history
from agent.memory.editing.memory_archive import USED
from agent.memory.history.history_log import (
    CURSOR,
    DREAM_CURSOR,
    HISTORY_JSONL,
    KEYS,
    LOCK,
    RAW_JSONL,
    load_keys,
    save_keys,
)
from agent.memory.history.history_markdown import HISTORY_MD
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode
from gateway.ports import Line

MOVE_FILE = ".move"  # the id of the move that built this folder
_OWNERS_FILE = ".of.json"  # accounts of the files that have no session or author
_NEW, _OLD = ".memory-new", ".memory-old"
_TOP = ("USER.md", "SOUL.md")
# Files that are built, not copied.
_BUILT = frozenset(
    {
        "MEMORY.md",
        HISTORY_JSONL,
        RAW_JSONL,
        HISTORY_MD,
        KEYS,
        CURSOR,
        DREAM_CURSOR,
        LOCK,
        EPOCH,
        MOVE_FILE,
        _OWNERS_FILE,
        USED,
    }
    | {".git"}
)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(\.archive)?\.md\Z")
_FLUSH = re.compile(r"(?=^## Flush at \d\d:\d\d \(session: .+\)$)", re.MULTILINE)
_SESSION = re.compile(r"^## Flush at \d\d:\d\d \(session: (.+)\)$|^- \*\*Session\*\*: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMerger:
    """Merges and splits memory folders."""

    home: Path
    versions: VersionStore
    disk: Disk

    def merge(self, move: str, source: str, target: str, *, source_account: str, target_account: str) -> None:
        """Merge the memory of *source* into *target*; the accounts are "" for scopes that have several.

        The source's folder is not changed; the caller removes it with the scope's other files.
        """
        source_folder, target_folder = (scope_folder(self.home, scope) for scope in (source, target))
        is_empty = not any((source_folder / name).exists() for name in _TOP)
        if not (source_folder / "memory").is_dir() and is_empty:
            return
        if self._is_swapped(target_folder, move):
            return
        self._merge_top(source_folder, target_folder, is_root=not source)
        new = self._create_new(target_folder)
        old, other = target_folder / "memory", source_folder / "memory"
        write_history(
            new / ".git",
            history_merge.interleave_versions(
                self.versions.every(target),
                self.versions.every(source),
                first_account=target_account,
                second_account=source_account,
            ),
        )
        self.put(new / "MEMORY.md", merge_texts(self._text(old / "MEMORY.md"), self._text(other / "MEMORY.md")))
        self._merge_history(new, old, other, target_account, source_account)
        self._copy_files(old, new, target_account)
        self._copy_files(other, new, source_account)
        save_keys(
            new, self.disk, load_keys(old, self.disk) | load_keys(other, self.disk), self._text(new / "MEMORY.md")
        )
        self._complete(new, move)
        self._swap(target_folder)

    def _merge_top(self, source: Path, target: Path, *, is_root: bool) -> None:
        self.put(target / "USER.md", merge_texts(self._text(target / "USER.md"), self._text(source / "USER.md")))
        if not is_root and not self._text(target / "SOUL.md"):  # every scope uses the home's own persona
            self.put(target / "SOUL.md", self._text(source / "SOUL.md"))

    def _merge_history(self, new: Path, old: Path, other: Path, target_account: str, source_account: str) -> None:
        first, second = history_merge.entries(old, self.disk), history_merge.entries(other, self.disk)
        after = max(history_merge.last_cursor(old, self.disk), history_merge.last_cursor(other, self.disk))
        dreamt, fresh = (
            [*history_merge.mark_owner(first[n], target_account), *history_merge.mark_owner(second[n], source_account)]
            for n in (0, 1)
        )
        history_merge.put_entries(new, self.disk, dreamt, fresh, after)
        if raw := b"".join(self.disk.load(folder / RAW_JSONL) or b"" for folder in (old, other)):
            self.disk.replace(new / RAW_JSONL, raw)

    def _copy_files(self, old: Path, new: Path, account_name: str) -> None:
        """Copy the files without a history: notes, pending work, corrupt lines. Never overwrites another file."""
        owners = self.file_owners(new) | self.file_owners(old)
        for path in _files(old):
            name = path.relative_to(old)
            data = self.disk.load(path) or b""
            existing = self.disk.load(new / name)
            if existing is not None and existing != data:
                if _DAY.match(path.name):
                    self.disk.replace(new / name, existing.rstrip(b"\n") + b"\n\n" + data)
                    continue
                name = _free_name(new, name)
            self.disk.replace(new / name, data)
            if account_name:
                owners.setdefault(str(name), account_name)
        if owners:
            self.disk.replace(new / _OWNERS_FILE, json.dumps(owners).encode())

    def split(
        self, move: str, source: str, target: str, account_name: str, account_of: Callable[[str], str], survivor: str
    ) -> None:
        """Move the entries that belong only to *account_name* from *source* to *target*; mixed entries stay.

        *account_of* returns the account of a session key, "" for the account that stays.
        """
        source_folder, target_folder = scope_folder(self.home, source), scope_folder(self.home, target)
        if self._is_swapped(source_folder, move) or not (source_folder / "memory").is_dir():
            return
        old = source_folder / "memory"
        plan = _SplitPlan(self, old, account_name, account_of)
        versions = self.versions.every(source)
        ownership = history_merge.entry_owners(versions, plan.account_of_entry, survivor)
        staying, moving = history_merge.split_versions(versions, ownership, account_name)
        kept, given = history_merge.split_document("MEMORY.md", self._text(old / "MEMORY.md"), ownership, account_name)
        if not self._is_swapped(target_folder, move):
            new = self._create_new(target_folder)
            write_history(new / ".git", moving)
            self.put(new / "MEMORY.md", given)
            plan.fill(new, is_moving=True, ownership=ownership)
            self._split_top(source_folder, target_folder, ownership, account_name)
            self._complete(new, move)
            self._swap(target_folder)
        self._split_top(source_folder, None, ownership, account_name)
        new = self._create_new(source_folder)
        write_history(new / ".git", staying)
        self.put(new / "MEMORY.md", kept)
        plan.fill(new, is_moving=False, ownership=ownership)
        self._complete(new, move)
        self._swap(source_folder)

    def _split_top(self, source: Path, target: Path | None, ownership: EntryOwnership, account_name: str) -> None:
        """Copy the account's entries in USER.md and SOUL.md to *target*; without one, remove them from *source*."""
        for name in _TOP:
            kept, given = history_merge.split_document(name, self._text(source / name), ownership, account_name)
            if target is not None:
                self.put(target / name, given)
            elif kept != self._text(source / name):
                self.disk.replace(source / name, kept.encode()) if kept else self.disk.remove(source / name)

    # -- folders -----------------------------------------------------------------------------------

    def _create_new(self, scope: Path) -> Path:
        new = scope / _NEW
        shutil.rmtree(new, ignore_errors=True)
        self.disk.make_folder(new)
        return new

    def _complete(self, new: Path, move: str) -> None:
        """Mark the folder as complete; the new epoch makes every conversation of the scope take a new snapshot."""
        self.disk.replace(new / EPOCH, f"{move}\n".encode())
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
    """Selects a folder's entries and files that move, or those that stay."""

    def __init__(self, merger: MemoryMerger, old: Path, account_name: str, account_of: Callable[[str], str]) -> None:
        self._disk = merger.disk
        self._put = merger.put
        self._old = old
        self._account_name = account_name
        self._account_of = account_of
        self._dreamt, self._new = history_merge.entries(old, self._disk)
        self._owners = merger.file_owners(old)
        self._sessions = {
            str(line.get("entry")): str(line.get("session") or "") for line in (*self._dreamt, *self._new)
        }

    def account_of_entry(self, entry: str) -> str:
        """Return the account whose chat a history entry summarises."""
        session = self._sessions.get(entry, "")
        return self._account_of(session) if session else ""

    def fill(self, new: Path, *, is_moving: bool, ownership: EntryOwnership) -> None:
        """Write one half: history entries, raw messages and notes."""
        dreamt, fresh = (
            [each for each in part if self._moves(each) is is_moving] for part in (self._dreamt, self._new)
        )
        history_merge.put_entries(new, self._disk, dreamt, fresh, history_merge.last_cursor(self._old, self._disk))
        raws = (self._disk.load(self._old / RAW_JSONL) or b"").splitlines(keepends=True)
        if mine := [raw for raw in raws if self._moves(decode(raw) or {}) is is_moving]:
            self._disk.replace(new / RAW_JSONL, b"".join(mine))
        owners: dict[str, str] = {}
        for path in _files(self._old):
            name = str(path.relative_to(self._old))
            text = (self._disk.load(path) or b"").decode("utf-8", "replace")
            half = self._select_text(name, text, is_moving=is_moving, ownership=ownership)
            if half is not None:
                self._put(new / name, half)
                if name in self._owners:
                    owners[name] = self._owners[name]
        memory = (self._disk.load(new / "MEMORY.md") or b"").decode("utf-8", "replace")
        save_keys(new, self._disk, load_keys(self._old, self._disk), memory)
        if owners and not is_moving:
            self._disk.replace(new / _OWNERS_FILE, json.dumps(owners).encode())

    def _moves(self, line: Line) -> bool:
        session = str(line.get("session") or "")
        if session:
            return self._account_of(session) == self._account_name
        return line.get(history_merge.OWNER_FIELD) == self._account_name

    def _select_text(self, name: str, text: str, *, is_moving: bool, ownership: EntryOwnership) -> str | None:
        """Return the part of a file that belongs to the half; None if it is empty."""
        document = f"{name.partition('.conflict-')[0]}.md"
        if document in TRACKED:
            kept, given = history_merge.split_document(document, text, ownership, self._account_name)
            return (given if is_moving else kept) or None
        day = _DAY.match(name)
        if day is not None and day.group(1):
            kept, given = history_merge.split_document("MEMORY.md", text, ownership, self._account_name)
            return (given if is_moving else kept) or None
        if day is not None:
            sections = _FLUSH.split(text)
            return (
                "".join(each for each in sections if self._section_moves(name, each) is is_moving and each.strip())
                or None
            )
        if name.startswith(".pending/"):
            return text if self._pending_moves(name, text) is is_moving else None
        return text if self._section_moves(name, text) is is_moving else None

    def _section_moves(self, name: str, text: str) -> bool:
        session = _SESSION.search(text)
        if session:
            return self._account_of(session.group(1) or session.group(2)) == self._account_name
        return self._owners.get(name) == self._account_name

    def _pending_moves(self, name: str, text: str) -> bool:
        """Return True if unfinished work belongs to the account, by its chat."""
        session = str((decode(text.encode()) or {}).get("session") or "")
        account = self._account_of(session) if session else ""
        return (account or self._owners.get(name, "")) == self._account_name


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files to copy, in order."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        name = path.relative_to(folder)
        first = name.parts[0]
        # An interrupted Dream has read the old documents; it is started again.
        if str(name) == ".pending/dream.json":
            continue
        if path.is_file() and first not in _BUILT and not first.startswith(".git"):
            yield path


def _free_name(folder: Path, name: Path) -> Path:
    """Return *name* with the first number that no file in *folder* has."""
    stem, dot, ending = name.name.partition(".")
    n = 2
    while (folder / name.with_name(f"{stem}-{n}{dot}{ending}")).exists():
        n += 1
    return name.with_name(f"{stem}-{n}{dot}{ending}")
