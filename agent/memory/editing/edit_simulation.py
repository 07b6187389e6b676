"""Apply edits to copies of documents, and decide which of the changes need approval.

Nothing that was remembered disappears without an operation that names it, removals have a limit, and a fact that is
known is not added again. Everything is pure: the same edits of the same texts give the same result after a crash.

A denial of a line needs a message of the person that says the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from agent.memory.editing.memory_entries import (
    AnalyzedEntry,
    EntryKind,
    EntryWords,
    MemoryEntry,
    analyze,
    analyzed_replaces,
    begins_alike,
    denies,
    extract_words,
    is_bare,
    is_inflection,
    is_same,
    lost_entries,
    parse,
    statements,
)
from agent.memory.editing.staged_changes import MEMORY, MOST_ASKED, ReviewReason
from agent.memory.editing.text_operations import (
    PATH,
    AddLines,
    DocumentEdit,
    Operation,
    ReplaceLines,
    apply,
    changed_texts,
)

BUDGET = 32_000  # characters of a document, about 8,000 tokens
MOST_REMOVED_SHARE = 0.25
MOST_REMOVED = 3
_LONGEST_TITLE = 80
_SHORTEST_CUT = 8  # characters of a line that may be another one, cut off


class EditOutcome(StrEnum):
    """Outcome of one edit; the model is shown these words."""

    DONE = "done"
    LOSES = "done, and something is gone"
    NOTHING = "changed nothing"
    REFUSED = "refused"
    WAITS = "waits for a person"


@dataclass(frozen=True, slots=True)
class EditResult:
    """An edit, its outcome, and for an edit that waits the reason of the review."""

    edit: DocumentEdit
    fate: EditOutcome
    why: str = ""
    review: str = ""


class EditSimulation:
    """Copies of the documents with the edits so far applied."""

    def __init__(self, base: Mapping[str, str], *, budget: int = BUDGET, may_lose: bool = True) -> None:
        """Start with *base*; unless *may_lose*, an edit that removes something is left for approval.

        *budget* is that of each document but MEMORY.md, whose oldest lines move to the archive.
        """
        self.base = dict(base)
        self.texts = dict(base)
        self.results: list[EditResult] = []
        self.budget = budget
        self._may_lose = may_lose
        self._corrected: set[str] = set()  # entries that the person corrected: these are not lost

    def do(self, edits: Sequence[DocumentEdit], *, is_final: bool = False) -> Sequence[EditResult]:
        """Apply the edits in order and return the result of each.

        If the model *is_final*, not asked again, what it adds goes elsewhere when the place it names does not exist.
        """
        results = [self._apply_final(edit) if is_final else self._apply(edit) for edit in edits]
        self.results += results
        return results

    def _apply_final(self, edit: DocumentEdit) -> EditResult:
        """Apply an edit, or the nearest one that fits: the line without its list mark, the end of the document."""
        result = self._apply(edit)
        for operation in _nearest(edit.operation, self.texts[edit.document]):
            if result.fate is not EditOutcome.REFUSED:
                break
            result = self._apply(replace(edit, operation=operation))
        return result

    def _apply(self, edit: DocumentEdit) -> EditResult:
        before = self.texts[edit.document]
        if isinstance(edit.operation, AddLines):
            resolved = _resolve_addition(edit.operation, before)
            if resolved is None:
                return EditResult(edit, EditOutcome.NOTHING)
            edit = replace(edit, operation=resolved)
        operation = edit.operation
        applied = apply([operation], before)
        if applied.refused and (section := _new_section(operation)) is not None:
            operation, edit = section, replace(edit, operation=section)
            applied = apply([section], before)
        if applied.refused:
            return EditResult(edit, EditOutcome.REFUSED, applied.refused[0].why)
        if not applied.done:
            return EditResult(edit, EditOutcome.NOTHING)
        lost = lost_entries(before, applied.text)
        if hidden := [entry for entry in lost if not _is_named(entry, operation)]:
            return EditResult(edit, EditOutcome.REFUSED, f"it would also take away: {hidden[0].raw[:80]}")
        if is_correction(edit) and len(lost) == 1:
            self._corrected.add(lost.pop().raw)
        if self._is_wipe(edit.document, applied.text, len(lost)):
            return EditResult(edit, EditOutcome.REFUSED, f"more than {MOST_ASKED} lines would be gone; remove fewer")
        if review := self._review(edit, applied.text, is_loss=bool(lost)):
            why = f"{edit.document} is full; make room first" if review is ReviewReason.OVER_BUDGET else ""
            return EditResult(edit, EditOutcome.WAITS, why, review)
        self.texts[edit.document] = applied.text
        return EditResult(edit, EditOutcome.LOSES if lost else EditOutcome.DONE)

    def _is_wipe(self, document: str, after: str, removed: int) -> bool:
        """Return True if a question about the removals so far would offer to remove more than five lines."""
        if removed <= MOST_ASKED:
            total = len(self.lost_entries(document, after)) if removed else 0
            return total > MOST_ASKED and bool(self.review_reason(document, after))
        return True

    def lost_entries(self, document: str, after: str) -> list[MemoryEntry]:
        """Return the entries of the base that *after* lacks, but those that the person corrected."""
        return [each for each in lost_entries(self.base[document], after) if each.raw not in self._corrected]

    def review_reason(self, document: str, after: str) -> ReviewReason | None:
        """Return why the removals from the base to *after* need approval, or None."""
        lost = len(self.lost_entries(document, after))
        if not lost:
            return None
        if not statements(parse(after)):
            return ReviewReason.EMPTY
        entries = len(statements(parse(self.base[document])))
        return ReviewReason.MANY if lost > MOST_REMOVED and lost > entries * MOST_REMOVED_SHARE else None

    def _review(self, edit: DocumentEdit, after: str, *, is_loss: bool) -> ReviewReason | None:
        before = self.texts[edit.document]
        if _is_denial(edit, before):
            return ReviewReason.MEANING
        if is_loss and not self._may_lose:
            return ReviewReason.MANY
        is_over = edit.document != MEMORY and len(after) > max(self.budget, len(before))
        return ReviewReason.OVER_BUDGET if is_over else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOutcome:
    """The new text of a document, the operations that made it, and those that wait, by the reason of their review."""

    text: str
    done: tuple[Operation, ...] = ()
    waiting: Mapping[str, tuple[Operation, ...]] = field(default_factory=dict)

    @property
    def waiting_operations(self) -> tuple[Operation, ...]:
        """The operations that wait, whatever the reason."""
        return tuple(operation for held in self.waiting.values() for operation in held)


def outcome(simulation: EditSimulation, document: str, *, only_propose: str = "") -> DocumentOutcome:
    """Return the outcome for *document*; with *only_propose* (a reason) all of its changes need approval.

    Removals of more than a quarter of the entries and more than three, or of all entries, need approval too.
    """
    base, text = simulation.base[document], simulation.texts[document]
    mine = [each for each in simulation.results if each.edit.document == document]
    done = [each.edit.operation for each in mine if each.fate in (EditOutcome.DONE, EditOutcome.LOSES)]
    waiting: dict[str, list[Operation]] = {}
    for each in mine:
        if each.fate is EditOutcome.WAITS:
            waiting.setdefault(each.review, []).append(each.edit.operation)
    if only_propose:
        proposed = (*done, *(operation for held in waiting.values() for operation in held))
        return DocumentOutcome(text=base, waiting={only_propose: proposed} if proposed else {})
    if why := simulation.review_reason(document, text):
        kept = EditSimulation({document: base}, budget=simulation.budget, may_lose=False)
        kept.do([each.edit for each in mine if each.fate is EditOutcome.DONE])
        stand = {id(each.edit.operation) for each in kept.results if each.fate is EditOutcome.DONE}
        waiting[why] = [
            each.edit.operation
            for each in mine
            if each.fate is EditOutcome.LOSES
            or (each.fate is EditOutcome.DONE and id(each.edit.operation) not in stand)
        ]
        text = kept.texts[document]
        done = [each.edit.operation for each in kept.results if id(each.edit.operation) in stand]
    return DocumentOutcome(
        text=text,
        done=tuple(done) if text != base else (),  # one edit may have reversed another
        waiting={why: tuple(operations) for why, operations in waiting.items() if operations},
    )


# -- additions ---------------------------------------------------------------------------------------


def _resolve_addition(addition: AddLines, text: str) -> Operation | None:
    """Return the operation that an addition amounts to, or None if all of it is known.

    A line that says all of a known one and more replaces it, and so does its bare denial.
    """
    added = [analyze(each) for each in _added_entries(addition)]
    known = [analyze(each) for each in parse(text) if each.kind is not EntryKind.HEADING]
    if added and all(any(_contains(each, new) for each in known) for new in added):
        return None
    if len(added) != 1 or added[0].entry.kind is EntryKind.FENCE or addition.text.startswith((" ", "\t")):
        return addition
    lines = [line.rstrip() for line in text.split("\n")]
    for each in known:
        raw = each.entry.raw
        if not each.entry.parents and lines.count(raw) == 1 and _supersedes(added[0], each):
            return ReplaceLines(raw, addition.text if added[0].entry.kind is each.entry.kind else f"- {added[0].text}")
    return addition


def _added_entries(addition: AddLines) -> list[MemoryEntry]:
    """Return the entries of an addition but headings, under the headings that it names."""
    titles = addition.under.split(PATH) if addition.under else []
    above = "".join(f"{'#' * level} {title.lstrip('# ')}\n\n" for level, title in enumerate(titles, 1))
    return [each for each in parse(above + addition.text) if each.kind is not EntryKind.HEADING and each.text]


def _contains(entry: AnalyzedEntry, new: AnalyzedEntry) -> bool:
    """Return True if *entry* says all that *new* says, about the same subject; *new* may be cut off."""
    if is_same(entry.entry, new.entry):
        return all(map(entry.says, new.needed()))
    is_cut = len(new.text) >= _SHORTEST_CUT and entry.text.startswith(new.text)
    return begins_alike(entry, new) and (is_cut or analyzed_replaces(entry, new))


def _supersedes(new: AnalyzedEntry, entry: AnalyzedEntry) -> bool:
    is_there = not new.entry.headings or new.entry.headings[-1:] == entry.entry.headings[-1:]
    says_more = analyzed_replaces(new, entry) or (denies(new, entry) and is_bare(new, entry))
    return is_there and begins_alike(new, entry) and says_more


def _is_denial(edit: DocumentEdit, text: str) -> bool:
    """Return True if the edit denies what is known, and the person did not say so."""
    if edit.has_evidence:
        return False
    old, new = changed_texts(edit.operation)
    if old and new:
        return extract_words(old).is_negated is not extract_words(new).is_negated
    known = [analyze(each) for each in parse(text)] if not old else []
    return any(denies(analyze(each), one) for each in parse(new) for one in known)


def _new_section(operation: Operation) -> AddLines | None:
    """Return an addition under a missing heading as one that adds the heading too, or None.

    A model that is shown an empty document thinks of headings first, and would otherwise need a round for each.
    """
    if not isinstance(operation, AddLines) or operation.after:
        return None
    title = operation.under.rpartition(PATH)[2].lstrip("# ").strip()
    if not title or "\n" in title or len(title) > _LONGEST_TITLE:
        return None
    return AddLines(f"## {title}\n\n{operation.text}")


def _nearest(operation: Operation, text: str) -> Iterator[Operation]:
    """Yield operations to try in place of one that does not fit the text."""
    if isinstance(operation, AddLines):
        yield AddLines(operation.text, operation.under)
        yield AddLines(operation.text)
        return
    plain = _unmarked(operation.old)
    lines = [line for line in text.splitlines() if _unmarked(line) == plain]
    if len(lines) == 1:
        yield replace(operation, old=lines[0], under="")
    elif not lines and isinstance(operation, ReplaceLines):
        yield AddLines(operation.new, operation.under)
        yield AddLines(operation.new)


def _unmarked(line: str) -> str:
    return " ".join(line.strip().lstrip("-*+•").split()).rstrip(".").casefold()


# -- removals ----------------------------------------------------------------------------------------


def _is_named(entry: MemoryEntry, operation: Operation) -> bool:
    """Return True if the operation names a line of the entry."""
    if isinstance(operation, AddLines):
        return False
    named = {line.strip() for line in operation.old.splitlines() if line.strip()}
    return any(line.strip() in named for line in entry.raw.splitlines())


# -- evidence --------------------------------------------------------------------------------------


def with_evidence(edit: DocumentEdit, messages: Sequence[tuple[int, str]], numbers: Collection[int]) -> DocumentEdit:
    """Return the edit with the number of a message that supports it, the named one first, if there is one.

    *messages* are the person's own, with their numbers; *numbers* are those of all messages that were shown.
    """
    old, new = changed_texts(edit.operation)
    for number, text in sorted(messages, key=lambda each: each[0] != edit.source):
        if _supports(extract_words(text), old, new):
            return replace(edit, source=number, has_evidence=True)
    return edit if edit.source in numbers else replace(edit, source=-1)


def is_correction(edit: DocumentEdit) -> bool:
    """Return True if the edit replaces a statement by another one of the same subject, as the person said."""
    old, new = changed_texts(edit.operation)
    is_related = bool(old and new) and _shares(extract_words(new), _topics(extract_words(old)))
    return is_related and edit.has_evidence


def _supports(message: EntryWords, old: str, new: str) -> bool:
    before, after = extract_words(old), extract_words(new)
    if old and (not new or before.is_negated is not after.is_negated):
        # What is denied or taken back must be named; a denial needs one in the message too.
        is_denied = message.is_negated or before.is_negated or not new
        return is_denied and _shares(message, _topics(before))
    if not old and after.is_negated and not message.is_negated:
        return False
    return _shares(message, _added(before, after) or _topics(after))


def _topics(words: EntryWords) -> Collection[str]:
    """Return the words that carry a statement, without its negations."""
    return [word for word in words.carrying if word not in words.negations]


def _added(before: EntryWords, after: EntryWords) -> Collection[str]:
    return [word for word in _topics(after) if not _says(before, word)]


def _shares(message: EntryWords, words: Collection[str]) -> bool:
    return any(_says(message, word) for word in words)


def _says(words: EntryWords, word: str) -> bool:
    return any(is_inflection(word, other) for other in words.carrying)
