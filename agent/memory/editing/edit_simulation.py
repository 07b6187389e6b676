"""Apply edits to copies of documents, and decide which of the changes need approval.

Nothing that was remembered disappears without an operation that names it, removals have a limit, and a text does not
outgrow its budget. Everything is pure: the same edits of the same texts give the same result after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agent.memory.editing.document_edits import DocumentEdit
from agent.memory.editing.entry_matching import lost_entries, statements
from agent.memory.editing.memory_entries import MemoryEntry, parse
from agent.memory.editing.merge import BUDGET, ReviewReason, StagedRemoval, exceeds_removal_limit, merge
from agent.memory.editing.text_operations import AddLines, MergeText, Operation, apply

_LONGEST_TITLE = 80


class EditOutcome(StrEnum):
    """Outcome of one edit; the model is shown these words."""

    DONE = "done"
    LOSES = "done, and something is gone"
    NOTHING = "changed nothing"
    REFUSED = "refused"
    WAITS = "waits for a person"  # it would exceed the budget


@dataclass(frozen=True, slots=True)
class EditResult:
    """An edit and its outcome. `staged` is what a merge left for approval."""

    edit: DocumentEdit
    fate: EditOutcome
    why: str = ""
    staged: StagedRemoval | None = None


class EditSimulation:
    """Copies of the documents with the edits so far applied."""

    def __init__(self, base: Mapping[str, str], *, budget: int = BUDGET, may_lose: bool = True) -> None:
        """Start with *base*; unless *may_lose*, an edit that removes something is left for approval."""
        self.base = dict(base)
        self.texts = dict(base)
        self.results: list[EditResult] = []
        self.budget = budget
        self._may_lose = may_lose

    def do(self, edits: Sequence[DocumentEdit]) -> Sequence[EditResult]:
        """Apply the edits in order and return the result of each."""
        results = [self._apply(edit) for edit in edits]
        self.results += results
        return results

    def _apply(self, edit: DocumentEdit) -> EditResult:
        before = self.texts[edit.document]
        if isinstance(edit.operation, MergeText):
            merged = merge(before, edit.operation.text, budget=self.budget)
            self.texts[edit.document] = merged.text
            fate = EditOutcome.NOTHING if merged.text == before else EditOutcome.DONE
            return EditResult(edit, fate, staged=merged.staged)
        applied = apply([edit.operation], before)
        if applied.refused and (section := _new_section(edit.operation)) is not None:
            edit = DocumentEdit(edit.document, section)
            applied = apply([section], before)
        if applied.refused:
            return EditResult(edit, EditOutcome.REFUSED, applied.refused[0].why)
        if not applied.done:
            return EditResult(edit, EditOutcome.NOTHING)
        lost = lost_entries(before, applied.text)
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
    """The new text of a document, the operations that made it, and what needs approval.

    `waiting` are operations by the reason of their review; `staged` is what a merge held back.
    """

    text: str
    done: tuple[Operation, ...] = ()
    waiting: Mapping[str, tuple[Operation, ...]] = field(default_factory=dict)
    staged: StagedRemoval | None = None


def outcome(simulation: EditSimulation, document: str, *, only_propose: str = "") -> DocumentOutcome:
    """Return the outcome for *document*; with *only_propose* (a reason) all of its changes need approval.

    Removals of more than a quarter of the entries and more than three, or of all entries, need approval too.
    """
    base, text = simulation.base[document], simulation.texts[document]
    mine = [each for each in simulation.results if each.edit.document == document]
    done = [each.edit.operation for each in mine if each.fate in (EditOutcome.DONE, EditOutcome.LOSES)]
    waiting: dict[str, tuple[Operation, ...]] = {
        ReviewReason.OVER_BUDGET: tuple(each.edit.operation for each in mine if each.fate is EditOutcome.WAITS)
    }
    if only_propose:
        held = [each.edit.operation for each in mine if each.staged is not None and each.fate is EditOutcome.NOTHING]
        proposed = (*done, *held, *waiting[ReviewReason.OVER_BUDGET])
        return DocumentOutcome(text=base, waiting={only_propose: proposed} if proposed else {})
    if why := _review_reason(base, text):
        kept = EditSimulation({document: base}, budget=simulation.budget, may_lose=False)
        kept.do([each.edit for each in mine if each.fate is EditOutcome.DONE])
        stand = {id(each.edit) for each in kept.results if each.fate is EditOutcome.DONE}
        waiting[why] = tuple(
            each.edit.operation
            for each in mine
            if each.fate is EditOutcome.LOSES or (each.fate is EditOutcome.DONE and id(each.edit) not in stand)
        )
        text, done = kept.texts[document], [each.edit.operation for each in kept.results if id(each.edit) in stand]
    return DocumentOutcome(
        text=text,
        done=tuple(done) if text != base else (),  # one edit may have reversed another
        waiting={why: operations for why, operations in waiting.items() if operations},
        staged=next((each.staged for each in mine if each.staged is not None), None),
    )


def _new_section(operation: Operation) -> AddLines | None:
    """Return an addition under a missing heading as one that adds the heading too, or None.

    A model that is shown an empty document thinks of headings first, and would otherwise need a round for each.
    """
    if not isinstance(operation, AddLines) or operation.after:
        return None
    title = operation.under.lstrip("# ").strip()
    if not title or "\n" in title or len(title) > _LONGEST_TITLE:
        return None
    return AddLines(f"## {title}\n\n{operation.text}")


def _review_reason(base: str, text: str) -> str:
    """Return why the removals from *base* to *text* need approval, or an empty string."""
    lost = len(lost_entries(base, text))
    if not lost:
        return ""
    if not statements(parse(text)):
        return ReviewReason.EMPTY
    return ReviewReason.MANY if exceeds_removal_limit(lost, len(statements(parse(base)))) else ""


def _is_named(entry: MemoryEntry, operation: Operation) -> bool:
    """Return True if the operation names a line of the entry."""
    if isinstance(operation, AddLines | MergeText):
        return False
    named = {line.strip() for line in operation.old.splitlines() if line.strip()}
    return any(line.strip() in named for line in entry.raw.splitlines())
