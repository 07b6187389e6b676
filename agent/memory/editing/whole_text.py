"""Turn a whole document, as `save_memory` of [001] returns it, into edits of the current one (docs/adr/0050).

A whole text adds and rewords. It removes nothing: models leave things out, and an entry that is missing stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.memory.editing.entry_matching import (
    is_same,
    lost_entries,
    match_entries,
    replaces,
    statements,
)
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse
from agent.memory.editing.text_operations import PATH, AddLines, Operation, RemoveLines, ReplaceLines, apply

_PROSE = {EntryKind.ITEM, EntryKind.PARAGRAPH}
NOTHING_YET = "(empty)"  # shown in the prompt for an empty memory; a model may return it


def edits_of_text(current: str, proposed: str) -> list[Operation]:
    """Return the operations that bring the additions and rewordings of *proposed* into *current*. Pure."""
    old = parse(current)
    new = parse("" if proposed.strip() == NOTHING_YET else proposed)
    if not statements(old):
        return [AddLines(proposed.strip("\n"))] if statements(new) else []
    conversion = _TextConversion(current)
    successors = match_entries(old, new)
    predecessors: dict[int, list[MemoryEntry]] = {}
    for n, m in sorted(successors.items()):
        if old[n].kind is new[m].kind or {old[n].kind, new[m].kind} <= _PROSE:
            predecessors.setdefault(m, []).append(old[n])
    missing = [old[n] for n in statements(old) if n not in successors]
    there = {(each.raw, each.context) for each in old}
    titles = {each.text for each in old if each.kind is EntryKind.HEADING}
    for m in statements(new):
        if m in predecessors:
            conversion.reword(predecessors[m], new[m])
        elif (new[m].raw, new[m].context) in there or _is_piece(new[m], missing):
            conversion.after = ""
        elif new[m].kind is not EntryKind.HEADING or new[m].text not in titles:
            conversion.add(new[m])
    return conversion.operations


def _is_piece(entry: MemoryEntry, missing: list[MemoryEntry]) -> bool:
    """Return True if *entry* is a missing one, cut off or shortened."""
    return any(each.text.startswith(entry.text) or replaces(each, entry) for each in missing)


class _TextConversion:
    """Collects operations; each is applied to a copy, so that all of them fit."""

    def __init__(self, text: str) -> None:
        self.operations: list[Operation] = []
        self.after = ""  # the lines of the entry before the next one, as the copy has them
        self._headings: tuple[str, ...] = ()
        self._text = text

    def reword(self, old: list[MemoryEntry], new: MemoryEntry) -> None:
        """Replace the first of the *old* entries by *new*, and remove the others, whose words it has."""
        first, self._headings = old[0], new.headings
        self.after = first.raw if first.kind in _PROSE else ""
        if is_same(first, new):
            return
        raw = "\n".join(" " * first.depth + line for line in _dedented(new))
        if self._try([ReplaceLines(first.raw, raw, under) for under in _places(first)]):
            self.after = raw if self.after else ""
            for each in old[1:]:
                self._try([RemoveLines(each.raw, under) for under in _places(each)])

    def add(self, new: MemoryEntry) -> None:
        """Add *new* after the entry before it, or in its section."""
        places, bare = _places(new), "\n".join(_dedented(new))
        is_behind = bool(self.after) and new.headings == self._headings
        behind = [AddLines(new.raw, under, self.after) for under in places] if is_behind else []
        self._headings = new.headings
        self.after = ""
        if self._try(behind):
            self.after = new.raw
        elif self._try([AddLines(bare, places[0])]):
            self.after = bare
        else:  # its section is created when it is applied
            self.operations.append(AddLines(bare, places[0]))

    def _try(self, candidates: Sequence[Operation]) -> bool:
        """Apply the first operation that fits; return False if none does."""
        for operation in candidates:
            applied = apply([operation], self._text)
            is_safe = not isinstance(operation, AddLines) or _is_item(operation.text)
            if not applied.refused and (is_safe or not lost_entries(self._text, applied.text)):
                self.operations.append(operation)
                self._text = applied.text
                return True
        return False


def _is_item(text: str) -> bool:
    """Return True for one list item, which changes nothing around it."""
    return "\n" not in text and text.lstrip().startswith(("- ", "* ")) and "```" not in text


def _places(entry: MemoryEntry) -> list[str]:
    """Return names of the section of *entry*, the most precise first."""
    return [PATH.join(entry.headings[-n:]) for n in range(len(entry.headings), 0, -1)] or [""]


def _dedented(entry: MemoryEntry) -> list[str]:
    lines = entry.raw.split("\n")
    return [line[min(len(line) - len(line.lstrip()), entry.depth) :] for line in lines]
