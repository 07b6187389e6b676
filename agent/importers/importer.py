"""Import the data of another bot into a memory scope and report each item.

Each item is written first and recorded in the scope's ledger afterwards, under a name derived from its content.
A rerun after a crash therefore completes the import, and a second run has nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.disk import Disk, save_corrupt
from agent.base.scopes import scope_folder
from agent.base.transcript_lines import entry_id
from agent.importers.conversation_importer import ConversationImporter, ImportTarget
from agent.importers.import_data import (
    ImportData,
    ImportedDocument,
    ImportedHistory,
    ImportedSession,
    ImportLedger,
    ImportLedgers,
    ImportReportItem,
    ItemDigests,
)
from agent.memory.editing.edit_simulation import BUDGET
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse
from agent.memory.editing.text_operations import AddLines, apply
from agent.memory.storage.scope_documents import IMPORTED
from gateway.ports.memory import HISTORY_JSONL, DocumentStore, HistoryEntry, NoteChange

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory


SOUL = "SOUL.md"
_MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryImporter:
    """Imports the data of one system."""

    home: Path
    system: str  # nanobot, autobot, openclaw
    documents: DocumentStore
    history: SqlHistory
    ledgers: ImportLedgers
    conversations: ConversationImporter
    now: Callable[[], datetime]
    disk: Disk
    is_dry: bool = False

    async def run(self, data: ImportData, scope: str, targets: Mapping[str, ImportTarget]) -> list[ImportReportItem]:
        """Import *data* into *scope*; conversations whose key is in *targets* go there instead. Raises OSError."""
        items = [await self._document(scope, each) for each in data.documents]
        items += [await self._history(scope, each) for each in data.histories]
        items += [await self._note(scope, each) for each in data.notes]
        for each, is_newest in _with_newest(data.sessions):
            target = targets.get(each.key) or await self.conversations.earlier_target(each)
            target = target or ImportTarget(scope=scope)
            item = await self.conversations.import_session(target if is_newest else replace(target, key=None), each)
            is_elsewhere = each.key not in targets and target.scope != scope
            items.append(replace(item, why=f"imported into {target.scope} before") if is_elsewhere else item)
        items += [ImportReportItem(what="left", source=each.source, why=each.reason) for each in data.skipped]
        return items

    # -- memory ------------------------------------------------------------------------------------

    async def _document(self, scope: str, source: ImportedDocument) -> ImportReportItem:
        ledger = await self.ledgers.of(scope)
        target = self._name(scope, source.name if source.name != "MEMORY.md" else "memory/MEMORY.md")
        if source.name == SOUL:
            return await self._persona(scope, source, target, ledger)
        digests = ItemDigests(self.system, source.name)
        statements = {digests.of(each.headings, each.text): each for each in parse_statements(source.text)}
        for _ in range(_MAX_ATTEMPTS):
            document = await self.documents.read(scope, source.name)
            existing = set(parse_statements(document.text))
            new = [each for digest, each in statements.items() if digest not in ledger and each not in existing]
            text = source.text if not document.text.strip() and len(new) == len(statements) else ""
            text = text or add_statements(document.text, new)
            if self.is_dry or not new or await self._write(scope, source.name, text, document.rev):
                break
        else:
            raise OSError(f"{target} is being written to all the time")
        await ledger.add(statements)
        why = "longer than a prompt holds well: review and shorten it" if new and len(text) > BUDGET else ""
        known = len(statements) - len(new)
        return ImportReportItem(what="memory", source=source.source, target=target, new=len(new), known=known, why=why)

    async def _persona(
        self, scope: str, source: ImportedDocument, target: str, ledger: ImportLedger
    ) -> ImportReportItem:
        digest = ItemDigests(self.system, SOUL).of(source.text)
        if digest in ledger:
            return ImportReportItem(what="voice", source=source.source, target=target, known=1)
        document = await self.documents.read(scope, SOUL)
        if document.text.strip():
            why = "a SOUL.md exists already; copy what you want into it"
            return ImportReportItem(what="left", source=source.source, why=why)
        if not self.is_dry:
            await self._write(scope, SOUL, source.text, document.rev)
        await ledger.add([digest])
        return ImportReportItem(what="voice", source=source.source, target=target, new=1)

    async def _write(self, scope: str, name: str, text: str, was: str) -> bool:
        return await self.documents.write(scope, name, text, was=was, why=f"{IMPORTED}{self.system}") is not None

    async def _note(self, scope: str, source: ImportedDocument) -> ImportReportItem:
        ledger = await self.ledgers.of(scope)
        was = await self.history.note(scope, source.name)
        old = (was or b"").decode("utf-8", "replace")
        digests = {
            line: ItemDigests(self.system, source.source).of(line) for line in source.text.splitlines() if line.strip()
        }
        known = {line for line, digest in digests.items() if digest in ledger}
        existing = known | set(old.splitlines())
        text = select_lines(source.text, lambda line: line not in existing)
        if text and not old and not known:
            text = source.text  # unchanged, with its blank lines
        if text and not self.is_dry:
            gap = "" if not old else "\n" if old.endswith("\n") else "\n\n"
            change = NoteChange(was=was, body=f"{old}{gap}{text}".encode("utf-8", "replace"))
            if not await self.history.write(scope, notes={source.name: change}):
                raise OSError(f"{source.name} is being written to")
        await ledger.add(digests.values())
        new = _count_lines(text)
        target = self._name(scope, f"memory/{source.name}")
        return ImportReportItem(
            what="note", source=source.source, target=target, new=new, known=_count_lines(source.text) - new
        )

    async def _history(self, scope: str, source: ImportedHistory) -> ImportReportItem:
        digests = ItemDigests(self.system, "history")
        entries = [
            HistoryEntry(
                timestamp=timestamp,
                content=content.strip(),
                origin="owner",
                entry=entry_id(f"{self.system} {digests.of(timestamp, content)}", 0, 1),
            )
            for timestamp, content in source.entries
        ]
        existing = {each.entry for each in await self.history.after(scope)}
        new = [each for each in entries if each.entry not in existing]
        if not self.is_dry:
            await self.history.append(scope, *new)
            # Dream skips what the source's Dream has processed, unless unprocessed entries precede it.
            dreamt = {each.entry for each in entries[: source.dreamt]}
            after = await self.history.after(scope, await self.history.dream_cursor(scope))
            for each in takewhile(lambda each: each.entry in dreamt, after):
                await self.history.advance_dream(scope, each.cursor)
        if source.bad and not self.is_dry:
            await asyncio.to_thread(save_corrupt, self.disk, self._folder(scope) / HISTORY_JSONL, source.bad)
        target = self._name(scope, f"memory/{HISTORY_JSONL}")
        known = len(entries) - len(new)
        return ImportReportItem(
            what="history", source=source.source, target=target, new=len(new), known=known, bad=len(source.bad)
        )

    # -- files -------------------------------------------------------------------------------------

    def _folder(self, scope: str) -> Path:
        return scope_folder(self.home, scope) / "memory"

    def _name(self, scope: str, name: str) -> str:
        return f"{scope}/{name}" if scope else name


def _with_newest(sessions: Sequence[ImportedSession]) -> list[tuple[ImportedSession, bool]]:
    """Pair each conversation with True if it is the newest of its key: only that one can continue in a chat."""
    newest = {each.key: each for each in sorted(sessions, key=lambda each: str(each.messages[-1].get("timestamp", "")))}
    return [(each, newest[each.key] is each) for each in sessions]


def _count_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


@dataclass(frozen=True, slots=True)
class TextStatement:
    """A statement with its nested lines, and the headings above it as they are written."""

    text: str
    headings: tuple[str, ...] = ()


def parse_statements(text: str) -> list[TextStatement]:
    """Return the statements of *text* in order; a heading with nothing below it is not a statement."""
    found: list[TextStatement] = []
    headings: list[MemoryEntry] = []
    for entry in parse(text):
        if entry.kind is EntryKind.HEADING:
            headings = [*(each for each in headings if each.level < entry.level), entry]
        elif entry.kind is EntryKind.RULE or not entry.raw.strip():
            continue
        elif entry.parents and found:
            gap = "\n" * (entry.gap + 1)
            found[-1] = TextStatement(f"{found[-1].text}{gap}{entry.raw}", found[-1].headings)
        else:
            found.append(TextStatement(entry.raw, tuple(each.raw for each in headings)))
    return found


def add_statements(text: str, new: Sequence[TextStatement]) -> str:
    """Return *text* with the statements: under their heading if *text* has it, else at the end with their headings."""
    for statement in new:
        if not statement.headings:
            text = _add_before_headings(text, statement.text)
            continue
        heading = statement.headings[-1].split("\n", maxsplit=1)[0]
        added = apply([AddLines(statement.text, under=heading)], text)
        if added.refused:
            section = "\n".join([*statement.headings, "", statement.text])
            added = apply([AddLines(section)], text)
        text = added.text
    return text


def _add_before_headings(text: str, statement: str) -> str:
    lines = text.splitlines()
    first = next(
        (n for n, line in enumerate(lines) if parse(line) and parse(line)[0].kind is EntryKind.HEADING), len(lines)
    )
    above, below = "\n".join(lines[:first]), "\n".join(lines[first:])
    added = apply([AddLines(statement)], above).text
    return f"{added}\n{below}\n" if below else added


def select_lines(text: str, is_new: Callable[[str], bool]) -> str:
    """Return the lines of *text* that are new, with the blank lines between them."""
    kept: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            if kept and kept[-1]:
                kept.append("")
        elif is_new(line):
            kept.append(line)
    return "\n".join(kept).strip("\n") + "\n" if any(kept) else ""
