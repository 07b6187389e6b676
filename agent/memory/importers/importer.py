"""Taking over what was found: into whose scope, what of it is new, and a report that a dry run gives as well.

Each thing is written first and noted in the scope's ledger behind it; its name follows from what it is. So a rerun
after a crash completes what is missing, and a second run finds nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from agent.memory.editing.merge import BUDGET
from agent.memory.history.history_log import HISTORY_JSONL, HistoryEntry, HistoryLog
from agent.memory.importers.conversations import ConversationImporter, ImportTarget
from agent.memory.importers.import_data import (
    ImportData,
    ImportedDocument,
    ImportedHistory,
    ImportedNote,
    ImportedSession,
)
from agent.memory.importers.import_ledger import ImportLedger, ImportLedgers, ItemDigests
from agent.memory.importers.report import ImportReportItem
from agent.memory.importers.text_additions import new_lines, statements, with_statements
from agent.memory.messages.message_range import entry_id
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk, save_corrupt
from gateway.ports import DocumentStore

IMPORTED = "imported from "  # then the system: the cause of a version
SOUL = "SOUL.md"
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryImporter:
    """Takes over what one system left, for whoever owns the home."""

    home: Path
    system: str  # nanobot, autobot, openclaw
    documents: DocumentStore
    ledgers: ImportLedgers
    talks: ConversationImporter
    now: Callable[[], datetime]
    disk: Disk
    is_dry: bool = False

    async def run(self, found: ImportData, scope: str, mapped: Mapping[str, ImportTarget]) -> list[ImportReportItem]:
        """Take over everything into *scope*, but the conversations that are *mapped* by their keys. Raises OSError."""
        items = [await self._document(scope, each) for each in found.documents]
        items += [await asyncio.to_thread(self._history, scope, each) for each in found.histories]
        items += [await asyncio.to_thread(self._note, scope, each) for each in found.notes]
        for each, is_newest in _with_newest(found.sessions):
            goal = mapped.get(each.key) or await self.talks.earlier_target(each) or ImportTarget(scope=scope)
            item = await self.talks.import_session(goal if is_newest else replace(goal, key=None), each)
            is_elsewhere = each.key not in mapped and goal.scope != scope
            items.append(replace(item, why=f"it went into {goal.scope} before") if is_elsewhere else item)
        items += [ImportReportItem(what="left", source=each.source, why=each.why) for each in found.left]
        return items

    # -- memory ------------------------------------------------------------------------------------

    async def _document(self, scope: str, found: ImportedDocument) -> ImportReportItem:
        ledger = await asyncio.to_thread(self.ledgers.of, scope)
        target = self._name(scope, found.name if found.name != "MEMORY.md" else "memory/MEMORY.md")
        if found.name == SOUL:
            return await self._voice(scope, found, target, ledger)
        digests = ItemDigests(self.system, found.name)
        said = [(each, digests.of(each.headings, each.text)) for each in statements(found.text)]
        for _ in range(_TRIES):
            document = await self.documents.read(scope, found.name)
            there = {(each.headings, each.text) for each in statements(document.text)}
            new = [each for each, digest in said if digest not in ledger and (each.headings, each.text) not in there]
            text = found.text if not document.text.strip() and len(new) == len(said) else ""
            text = text or with_statements(document.text, new)
            if self.is_dry or not new or await self._write(scope, found.name, text, document.rev):
                break
        else:
            raise OSError(f"{target} is being written to all the time")
        await asyncio.to_thread(ledger.add, [digest for _, digest in said])
        why = "longer than a prompt holds well: look through it" if new and len(text) > BUDGET else ""
        known = len(said) - len(new)
        return ImportReportItem(what="memory", source=found.source, target=target, new=len(new), known=known, why=why)

    async def _voice(self, scope: str, found: ImportedDocument, target: str, ledger: ImportLedger) -> ImportReportItem:
        digest = ItemDigests(self.system, SOUL).of(found.text)
        item = ImportReportItem(what="voice", source=found.source, target=target, known=1)
        if digest in ledger:
            return item
        document = await self.documents.read(scope, SOUL)
        if document.text.strip():
            why = "there is a voice already; put into it what you want of this one"
            return ImportReportItem(what="left", source=found.source, why=why)
        if not self.is_dry:
            await self._write(scope, SOUL, found.text, document.rev)
        await asyncio.to_thread(ledger.add, [digest])
        return ImportReportItem(what="voice", source=found.source, target=target, new=1)

    async def _write(self, scope: str, name: str, text: str, was: str) -> bool:
        return await self.documents.write(scope, name, text, was=was, why=f"{IMPORTED}{self.system}") is not None

    def _note(self, scope: str, found: ImportedNote) -> ImportReportItem:
        ledger = self.ledgers.of(scope)
        path = self._folder(scope) / found.name
        there = (self.disk.load(path) or b"").decode("utf-8", "replace")
        said = {
            line: ItemDigests(self.system, found.source).of(line) for line in found.text.splitlines() if line.strip()
        }
        known = {line for line, digest in said.items() if digest in ledger}
        standing = set(there.splitlines())
        text = new_lines(found.text, lambda line: line not in known and line not in standing)
        if text and not there and not known:
            text = found.text  # as it stands, to the byte
        if text and not self.is_dry:
            gap = "" if not there else "\n" if there.endswith("\n") else "\n\n"
            with self.disk.lock(self._folder(scope) / ".lock"):
                self.disk.replace(path, f"{there}{gap}{text}".encode("utf-8", "replace"))
        ledger.add(said.values())
        new = _lines(text)
        target = self._name(scope, f"memory/{found.name}")
        return ImportReportItem(
            what="note", source=found.source, target=target, new=new, known=_lines(found.text) - new
        )

    def _history(self, scope: str, found: ImportedHistory) -> ImportReportItem:
        digests = ItemDigests(self.system, "history")
        entries = [
            HistoryEntry(
                timestamp=timestamp,
                content=content.strip(),
                origin="owner",
                entry=entry_id(f"{self.system} {digests.of(timestamp, content)}", 0, 1),
            )
            for timestamp, content in found.entries
        ]
        history = HistoryLog(self._folder(scope), self.disk, now=self.now)
        there = {each.entry for each in history.after(0)}
        new = [each for each in entries if each.entry not in there]
        if not self.is_dry:
            history.append(*new)
            # What their Dream has studied ours need not, unless something before it waits to be studied.
            dreamt = {each.entry for each in entries[: found.dreamt]}
            for each in takewhile(lambda each: each.entry in dreamt, history.after(history.dream_cursor)):
                history.dream_cursor = each.cursor
        if found.bad and not self.is_dry:
            save_corrupt(self.disk, self._folder(scope) / HISTORY_JSONL, found.bad)
        target = self._name(scope, f"memory/{HISTORY_JSONL}")
        known = len(entries) - len(new)
        return ImportReportItem(
            what="history", source=found.source, target=target, new=len(new), known=known, bad=len(found.bad)
        )

    # -- files -------------------------------------------------------------------------------------

    def _folder(self, scope: str) -> Path:
        return scope_folder(self.home, scope) / "memory"

    def _name(self, scope: str, name: str) -> str:
        return f"{scope}/{name}" if scope else name


def _with_newest(sessions: Sequence[ImportedSession]) -> list[tuple[ImportedSession, bool]]:
    """Return each conversation, and whether it is the last one under its key: only that can be gone on from."""
    newest = {each.key: each for each in sorted(sessions, key=lambda each: str(each.messages[-1].get("timestamp", "")))}
    return [(each, newest[each.key] is each) for each in sessions]


def _lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())
