"""The folder `memory/` of two scopes as one, and of one as two: built beside the old one, then swapped in.

A crash leaves the old folder or the new one, and building again gives the same. Blocks; nobody else may be at work in
the scopes meanwhile.
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
from agent.memory.editing.staged_changes import STAGED
from agent.memory.history.history_log import CURSOR, DREAM_CURSOR, HISTORY_JSONL, LOCK, RAW_JSONL
from agent.memory.history.history_markdown import HISTORY_MD
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode
from gateway.ports import Line

MARK = ".move"  # names the move that made this folder
_OF = ".of.json"  # which account brought a file that does not say so itself
_NEW, _OLD = ".memory-new", ".memory-old"
_TOP = ("USER.md", "SOUL.md")
# What is made anew rather than carried over.
_MADE = frozenset(
    {"MEMORY.md", HISTORY_JSONL, RAW_JSONL, HISTORY_MD, CURSOR, DREAM_CURSOR, LOCK, EPOCH, MARK, _OF, ".git"}
)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\.md\Z")
_FLUSH = re.compile(r"(?=^## Flush at \d\d:\d\d \(session: .+\)$)", re.MULTILINE)
_SESSION = re.compile(r"^## Flush at \d\d:\d\d \(session: (.+)\)$|^- \*\*Session\*\*: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMerger:
    """Joins and separates. *account_of* says whose the chat of a session key is ("" = the one who stays)."""

    home: Path
    versions: VersionStore
    disk: Disk

    # -- joining -----------------------------------------------------------------------------------

    def join(self, move: str, source: str, target: str, *, source_is: str, target_is: str) -> None:
        """Make what *source* remembers part of *target*; `source_is` and `target_is` are their accounts, if one each.

        The source's folder is left as it was: who moves the rest takes it away.
        """
        theirs, mine = (scope_folder(self.home, scope) for scope in (source, target))
        if not (theirs / "memory").is_dir() and not any((theirs / name).exists() for name in _TOP):
            return
        if self._is_swapped(mine, move):
            return
        self._join_top(theirs, mine, is_root=not source)
        new = self._fresh(mine)
        write_history(
            new / ".git",
            history_merge.interleave_versions(
                self.versions.every(target), self.versions.every(source), first_is=target_is, second_is=source_is
            ),
        )
        texts = [self._text(folder / "memory" / "MEMORY.md") for folder in (mine, theirs)]
        self.put(new / "MEMORY.md", merge_texts(*texts))
        self._join_history(new, mine / "memory", theirs / "memory", target_is, source_is)
        self._carry(mine / "memory", new, target_is)
        self._carry(theirs / "memory", new, source_is)
        self._finish(new, move)
        self._swap(mine)

    def _join_top(self, theirs: Path, mine: Path, *, is_root: bool) -> None:
        text = merge_texts(self._text(mine / "USER.md"), self._text(theirs / "USER.md"))
        self.put(mine / "USER.md", text)
        if not is_root and not self._text(mine / "SOUL.md"):  # the home's own voice is everybody's
            self.put(mine / "SOUL.md", self._text(theirs / "SOUL.md"))

    def _join_history(self, new: Path, mine: Path, theirs: Path, target_is: str, source_is: str) -> None:
        ours, yours = history_merge.entries(mine, self.disk), history_merge.entries(theirs, self.disk)
        after = max(history_merge.last_cursor(mine, self.disk), history_merge.last_cursor(theirs, self.disk))
        dreamt, fresh = (
            [*history_merge.mark_owner(ours[n], target_is), *history_merge.mark_owner(yours[n], source_is)]
            for n in (0, 1)
        )
        history_merge.put_entries(new, self.disk, dreamt, fresh, after)
        history_merge.put_raw(
            new, self.disk, [*history_merge.raw_lines(mine, self.disk), *history_merge.raw_lines(theirs, self.disk)]
        )

    def _carry(self, old: Path, new: Path, identity: str) -> None:
        """Copy what is in no history: notes, what waits, what was set aside. No file takes another's place."""
        brought = self.brought(new) | self.brought(old)
        for path in _files(old):
            name = path.relative_to(old)
            data = self.disk.load(path) or b""
            there = self.disk.load(new / name)
            if there is not None and there != data:
                if _DAY.match(path.name):
                    self.disk.replace(new / name, there.rstrip(b"\n") + b"\n\n" + data)
                    continue
                name = _free(new, name)
            self.disk.replace(new / name, data)
            if identity:
                brought.setdefault(str(name), identity)
        if brought:
            self.disk.replace(new / _OF, json.dumps(brought).encode())

    # -- separating --------------------------------------------------------------------------------

    def separate(
        self, move: str, source: str, target: str, identity: str, account_of: Callable[[str], str], survivor: str
    ) -> None:
        """Take what is *identity*'s alone out of *source* and make it *target*'s; what is mixed stays."""
        mine, theirs = scope_folder(self.home, source), scope_folder(self.home, target)
        if self._is_swapped(mine, move) or not (mine / "memory").is_dir():
            return
        old = mine / "memory"
        split = _SplitPlan(self, old, identity, account_of)
        versions = self.versions.every(source)
        who = history_merge.entry_owners(versions, split.account_of_entry, survivor)
        stay, go = history_merge.split_versions(versions, who, identity)
        if not self._is_swapped(theirs, move):
            new = self._fresh(theirs)
            write_history(new / ".git", go)
            self.put(
                new / "MEMORY.md",
                history_merge.split_document("MEMORY.md", self._text(old / "MEMORY.md"), who, identity)[1],
            )
            split.fill(new, is_theirs=True, who=who)
            self._separate_top(mine, theirs, who, identity)
            self._finish(new, move)
            self._swap(theirs)
        self._separate_top(mine, None, who, identity)
        new = self._fresh(mine)
        write_history(new / ".git", stay)
        self.put(
            new / "MEMORY.md",
            history_merge.split_document("MEMORY.md", self._text(old / "MEMORY.md"), who, identity)[0],
        )
        split.fill(new, is_theirs=False, who=who)
        self._finish(new, move)
        self._swap(mine)

    def _separate_top(self, mine: Path, theirs: Path | None, who: EntryOwnership, identity: str) -> None:
        for name in _TOP:
            stays, goes = history_merge.split_document(name, self._text(mine / name), who, identity)
            if theirs is not None:
                self.put(theirs / name, goes)
            elif stays != self._text(mine / name):
                self.disk.replace(mine / name, stays.encode()) if stays else self.disk.remove(mine / name)

    # -- folders -----------------------------------------------------------------------------------

    def _fresh(self, scope: Path) -> Path:
        new = scope / _NEW
        shutil.rmtree(new, ignore_errors=True)
        self.disk.make_folder(new)
        return new

    def _finish(self, new: Path, move: str) -> None:
        """Say that the folder is complete: every conversation of its scope takes a new prompt, too."""
        self.disk.replace(new / EPOCH, f"{move}\n".encode())
        self.disk.replace(new / MARK, move.encode())

    def _is_swapped(self, scope: Path, move: str) -> bool:
        """Say whether the folder that *move* made stands in its place; ends a swap that was cut short."""
        memory, new, old = scope / "memory", scope / _NEW, scope / _OLD
        if not memory.exists() and old.exists():
            (new if self.disk.load(new / MARK) is not None else old).rename(memory)
            self.disk.sync_folder(scope)
        if self.disk.load(memory / MARK) != move.encode():
            return False
        for gone in (old, new):
            shutil.rmtree(gone, ignore_errors=True)
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
        """Write *text* unless it is empty or stands there."""
        if text and text != self._text(path):
            self.disk.replace(path, text.encode())

    def brought(self, folder: Path) -> dict[str, str]:
        """Return which account brought each file that does not say so itself."""
        found = decode(self.disk.load(folder / _OF) or b"{}")
        return {str(name): str(who) for name, who in (found or {}).items()}


class _SplitPlan:
    """Which of a folder's entries and files go, and which stay."""

    def __init__(self, memories: MemoryMerger, old: Path, identity: str, account_of: Callable[[str], str]) -> None:
        self._disk = memories.disk
        self._put = memories.put
        self._old = old
        self._identity = identity
        self._account_of = account_of
        self._dreamt, self._new = history_merge.entries(old, self._disk)
        self._brought = memories.brought(old)
        self._sessions = {
            str(line.get("entry")): str(line.get("session") or "") for line in (*self._dreamt, *self._new)
        }

    def account_of_entry(self, entry: str) -> str:
        """Return whose chat an entry of the history sums up."""
        session = self._sessions.get(entry, "")
        return self._account_of(session) if session else ""

    def fill(self, new: Path, *, is_theirs: bool, who: EntryOwnership) -> None:
        """Write one half: entries, raw messages, notes, and what waits."""
        dreamt, fresh = ([each for each in part if self._goes(each) is is_theirs] for part in (self._dreamt, self._new))
        history_merge.put_entries(new, self._disk, dreamt, fresh, history_merge.last_cursor(self._old, self._disk))
        raws = history_merge.raw_lines(self._old, self._disk)
        history_merge.put_raw(new, self._disk, [raw for raw in raws if self._goes(decode(raw) or {}) is is_theirs])
        brought: dict[str, str] = {}
        for path in _files(self._old):
            name = str(path.relative_to(self._old))
            text = (self._disk.load(path) or b"").decode("utf-8", "replace")
            kept = self._half(name, text, is_theirs=is_theirs, who=who)
            if kept is not None:
                self._put(new / name, kept)
                if name in self._brought:
                    brought[name] = self._brought[name]
        if brought and not is_theirs:
            self._disk.replace(new / _OF, json.dumps(brought).encode())

    def _goes(self, line: Line) -> bool:
        session = str(line.get("session") or "")
        if session:
            return self._account_of(session) == self._identity
        return line.get(history_merge.WHOSE) == self._identity

    def _half(self, name: str, text: str, *, is_theirs: bool, who: EntryOwnership) -> str | None:
        """Return what of a file belongs to the half; None for nothing."""
        document = f"{name.partition('.conflict-')[0]}.md"
        if document in TRACKED:
            stays, goes = history_merge.split_document(document, text, who, self._identity)
            return (goes if is_theirs else stays) or None
        if _DAY.match(name):
            sections = _FLUSH.split(text)
            kept = [each for each in sections if self._section_goes(name, each) is is_theirs and each.strip()]
            return "".join(kept) or None
        if name.startswith((f"{STAGED}/", ".pending/")):
            return text if self._waiting_goes(name, text) is is_theirs else None
        return text if self._section_goes(name, text) is is_theirs else None

    def _section_goes(self, name: str, text: str) -> bool:
        found = _SESSION.search(text)
        if found:
            return self._account_of(found.group(1) or found.group(2)) == self._identity
        return self._brought.get(name) == self._identity

    def _waiting_goes(self, name: str, text: str) -> bool:
        """Say whose something that waits is: its chat's, else that of the entry it arose with."""
        found = decode(text.encode()) or {}
        session = str(found.get("session") or found.get("key") or "")
        account = self._account_of(session) if session else self.account_of_entry(str(found.get("entry") or ""))
        by = str(found.get("by") or found.get("person") or "")
        return (account or by or self._brought.get(name, "")) == self._identity


def _files(folder: Path) -> Iterator[Path]:
    """Yield what is carried over, in order: files, and those of folders, the repository excepted."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        name = path.relative_to(folder)
        first = name.parts[0]
        # A Dream that was begun was shown the documents as they stood before; it begins anew.
        if str(name) == ".pending/dream.json":
            continue
        if path.is_file() and first not in _MADE and not first.startswith(".git"):
            yield path


def _free(folder: Path, name: Path) -> Path:
    """Return a name like *name* that is not taken."""
    stem, dot, ending = name.name.partition(".")
    n = 2
    while (folder / name.with_name(f"{stem}-{n}{dot}{ending}")).exists():
        n += 1
    return name.with_name(f"{stem}-{n}{dot}{ending}")
