"""Doing a Dream's edits on copies of the documents: what fits, what does not, and what is too much to do unasked.

Nothing that was remembered vanishes without an operation that names it, removals have a limit, and a text does not
outgrow its budget. All of it is pure: the same edits on the same texts give the same again after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agent.memory.dream.dream_edits import DocumentEdit
from agent.memory.editing.memory_entries import MemoryEntry, parse
from agent.memory.editing.merge import BUDGET, MOST_REMOVED, MOST_REMOVED_SHARE, match_entries, statements
from agent.memory.editing.text_operations import AddLines, Operation, apply

_LONGEST_TITLE = 80


class EditOutcome(StrEnum):
    """What became of one edit."""

    DONE = "done"
    LOSES = "done, and something is gone"  # as it said
    NOTHING = "changed nothing"
    REFUSED = "refused"
    WAITS = "waits for a person"  # it would outgrow the budget


@dataclass(frozen=True, slots=True)
class EditResult:
    """One edit and what became of it."""

    edit: DocumentEdit
    fate: EditOutcome
    why: str = ""


class EditSimulation:
    """The documents as the edits so far leave them."""

    def __init__(self, base: Mapping[str, str], *, budget: int = BUDGET, may_lose: bool = True) -> None:
        """Begin with *base*; unless it *may_lose*, an edit that takes something away is left for a person."""
        self.base = dict(base)
        self.texts = dict(base)
        self.played: list[EditResult] = []
        self.budget = budget
        self._may_lose = may_lose

    def do(self, edits: Sequence[DocumentEdit]) -> Sequence[EditResult]:
        """Do the edits in order, each as far as it fits; return what became of them."""
        results = [self._one(edit) for edit in edits]
        self.played += results
        return results

    def _one(self, edit: DocumentEdit) -> EditResult:
        before = self.texts[edit.document]
        applied = apply([edit.operation], before)
        if applied.refused and (section := _new_section(edit.operation)) is not None:
            edit = DocumentEdit(edit.document, section)
            applied = apply([section], before)
        if applied.refused:
            return EditResult(edit, EditOutcome.REFUSED, applied.refused[0].why)
        if not applied.done:
            return EditResult(edit, EditOutcome.NOTHING)
        lost = _lost(before, applied.text)
        if hidden := [entry for entry in lost if not _is_named(entry, edit.operation)]:
            return EditResult(edit, EditOutcome.REFUSED, f"it would also take away: {hidden[0].raw[:80]}")
        if lost and not self._may_lose:
            return EditResult(edit, EditOutcome.WAITS)
        if len(applied.text) > max(self.budget, len(before)):
            return EditResult(edit, EditOutcome.WAITS, f"{edit.document} is full; make room first")
        self.texts[edit.document] = applied.text
        return EditResult(edit, EditOutcome.LOSES if lost else EditOutcome.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOutcome:
    """What becomes of one document: its new text, what made it, and which operations wait for a yes, by the reason."""

    text: str
    done: tuple[Operation, ...] = ()
    waiting: Mapping[str, tuple[Operation, ...]] = field(default_factory=dict)


MANY, EMPTY, FULL, UNTRUSTED, VOICE, BUSY = "many", "empty", "over budget", "untrusted", "soul", "busy"


def outcome(play: EditSimulation, document: str, *, only_propose: str = "") -> DocumentOutcome:
    """Return what becomes of *document*; with *only_propose* (a reason) every change of it waits.

    Removals beyond a quarter and three entries wait, and so do those that would leave nothing.
    """
    base, text = play.base[document], play.texts[document]
    mine = [each for each in play.played if each.edit.document == document]
    done = [each.edit.operation for each in mine if each.fate in (EditOutcome.DONE, EditOutcome.LOSES)]
    waiting = {FULL: tuple(each.edit.operation for each in mine if each.fate is EditOutcome.WAITS)}
    if only_propose:
        waiting[only_propose] = (*done, *waiting.pop(FULL))
        text, done = base, []
    elif why := _too_much(base, text):
        kept = EditSimulation({document: base}, budget=play.budget, may_lose=False)
        kept.do([each.edit for each in mine if each.fate is EditOutcome.DONE])
        stand = {id(each.edit) for each in kept.played if each.fate is EditOutcome.DONE}
        waiting[why] = tuple(
            each.edit.operation
            for each in mine
            if each.fate is EditOutcome.LOSES or (each.fate is EditOutcome.DONE and id(each.edit) not in stand)
        )
        text, done = kept.texts[document], [each.edit.operation for each in kept.played if id(each.edit) in stand]
    done = done if text != base else []  # what one did, another took back
    return DocumentOutcome(text=text, done=tuple(done), waiting={why: some for why, some in waiting.items() if some})


def _new_section(operation: Operation) -> AddLines | None:
    """Return the addition together with the heading that it was to stand under; None when it has no such.

    A model that is shown an empty document thinks of headings first, and would otherwise pay a step for each.
    """
    if not isinstance(operation, AddLines) or operation.after:
        return None
    title = operation.under.lstrip("# ").strip()
    if not title or "\n" in title or len(title) > _LONGEST_TITLE:
        return None
    return AddLines(f"## {title}\n\n{operation.text}")


def _too_much(base: str, text: str) -> str:
    """Return why the removals wait; "" when they may be done."""
    old = parse(base)
    stated, lost = len(statements(old)), len(_lost(base, text))
    if not lost:
        return ""
    if not statements(parse(text)):
        return EMPTY
    return MANY if lost > MOST_REMOVED and lost > stated * MOST_REMOVED_SHARE else ""


def _lost(before: str, after: str) -> list[MemoryEntry]:
    """Return the entries that live on nowhere."""
    old = parse(before)
    heirs = match_entries(old, parse(after))
    return [old[n] for n in statements(old) if n not in heirs]


def _is_named(entry: MemoryEntry, operation: Operation) -> bool:
    """Say whether the operation names a line of the entry."""
    if isinstance(operation, AddLines):
        return False
    named = {line.strip() for line in operation.old.splitlines() if line.strip()}
    return any(line.strip() in named for line in entry.raw.splitlines())
