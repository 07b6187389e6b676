"""Operations on a document's text: add, replace or remove lines by their exact old text, or merge in a whole text.

This is the one grammar of edits. Dream, undo and approvals name the lines they change; a consolidation that returns
the whole document is one `MergeText`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from agent.memory.editing.memory_entries import EntryKind, parse
from agent.memory.editing.merge import BUDGET, merge


@dataclass(frozen=True, slots=True)
class AddLines:
    """Insert *text* after the line *after*, or at the end of the section titled *under*, or at the end of the text."""

    text: str
    under: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class ReplaceLines:
    """Replace the lines *old*, which must match exactly, by *new*; *under* names the section if several match."""

    old: str
    new: str
    under: str = ""


@dataclass(frozen=True, slots=True)
class RemoveLines:
    """Remove the lines *old*, which must match exactly; *under* names the section if several match."""

    old: str
    under: str = ""


@dataclass(frozen=True, slots=True)
class MergeText:
    """Add and reword entries to match *text*; entries that *text* omits stay."""

    text: str


Operation: TypeAlias = AddLines | ReplaceLines | RemoveLines | MergeText
_KINDS: Mapping[str, type[Operation]] = {
    "add": AddLines,
    "replace": ReplaceLines,
    "remove": RemoveLines,
    "merge": MergeText,
}


def as_record(operation: Operation) -> dict[str, str]:
    """Return the operation as JSON fields for a file or a job; `read_record` reverses it."""
    kind = next(name for name, each in _KINDS.items() if isinstance(operation, each))
    return {"op": kind, **{name: text for name, text in asdict(operation).items() if text}}


def read_record(record: object) -> Operation | None:
    """Return the operation in *record*, or None if the record is invalid."""
    if not isinstance(record, Mapping):
        return None
    kind = _KINDS.get(str(record.get("op")))
    texts: dict[str, Any] = (
        {each.name: record[each.name] for each in fields(kind) if each.name in record} if kind else {}
    )
    if kind is None or not all(isinstance(text, str) for text in texts.values()):
        return None
    try:
        return kind(**texts)
    except TypeError:  # a required field is missing
        return None


@dataclass(frozen=True, slots=True)
class RejectedOperation:
    """An operation that could not be applied, its index, and the reason."""

    index: int
    operation: Operation
    why: str


@dataclass(frozen=True, slots=True)
class AppliedOperations:
    """The resulting text, the operations that could not be applied, and how many changed something."""

    text: str
    refused: tuple[RejectedOperation, ...] = ()
    done: int = 0


class _TargetNotFound(Exception):
    """The text does not contain the target, or contains it more than once."""


def apply(operations: Sequence[Operation], text: str) -> AppliedOperations:
    """Apply the operations to *text* in order, each to the result of the previous one.

    An operation that cannot be applied is skipped and listed in `refused`. Adding a line that exists already changes
    nothing.
    """
    refused: list[RejectedOperation] = []
    done = 0
    for n, operation in enumerate(operations):
        try:
            changed = _apply_one(operation, text)
        except _TargetNotFound as mismatch:
            refused.append(RejectedOperation(n, operation, str(mismatch)))
            continue
        done += changed != text
        text = changed
    return AppliedOperations(text, tuple(refused), done)


def _apply_one(operation: Operation, text: str) -> str:
    if isinstance(operation, MergeText):
        return merge(text, operation.text, budget=BUDGET).text
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n") if text.strip() else []
    changed = _edit_lines(operation, lines)
    if changed == lines:
        return text
    return "\n".join(changed).strip("\n") + "\n" if changed else ""


def _edit_lines(operation: AddLines | ReplaceLines | RemoveLines, lines: list[str]) -> list[str]:
    if isinstance(operation, AddLines):
        return _add(operation, lines)
    low, high = _find(operation.old, operation.under, lines)
    new = _lines(operation.new) if isinstance(operation, ReplaceLines) else []
    if isinstance(operation, ReplaceLines) and not new:
        raise _TargetNotFound("the new text is empty")
    return [*lines[:low], *new, *lines[high:]]


def _add(operation: AddLines, lines: list[str]) -> list[str]:
    new = _lines(operation.text)
    if not new:
        raise _TargetNotFound("there is nothing to add")
    if operation.after:
        _, position = _find(operation.after, operation.under, lines)
    elif operation.under:
        start, position = _section(operation.under, lines)
        while position > start and not lines[position - 1].strip():
            position -= 1
    else:
        start, position = 0, len(lines)
    around = lines if operation.after or not operation.under else lines[start:position]
    if len(new) == 1 and new[0].rstrip() in (line.rstrip() for line in around):
        return lines
    gap = [""] if position and _runs_on(lines[position - 1], new[0]) else []
    return [*lines[:position], *gap, *new, *lines[position:]]


def _runs_on(before: str, new: str) -> bool:
    """Return True if *new*, right after *before*, would be parsed as part of another entry."""
    if not before.strip():
        return False
    kinds = [entry.kind for entry in parse(f"{before}\n{new}")]
    return len(kinds) < 2 or (kinds[-1] is EntryKind.HEADING or kinds[0] is EntryKind.PARAGRAPH)


def _find(old: str, under: str, lines: list[str]) -> tuple[int, int]:
    """Return the range of the lines *old*; of identical ranges in one section, the last."""
    target = [line.rstrip() for line in _lines(old)]
    if not target:
        raise _TargetNotFound("no old text was given")
    start, stop = _section(under, lines) if under else (0, len(lines))
    matches = [
        n
        for n in range(start, stop - len(target) + 1)
        if [line.rstrip() for line in lines[n : n + len(target)]] == target
    ]
    if not matches:
        raise _TargetNotFound("no such line")
    if len({_heading_above(n, lines) for n in matches}) > 1:
        raise _TargetNotFound("such a line stands under several headings")
    return matches[-1], matches[-1] + len(target)


def _section(title: str, lines: list[str]) -> tuple[int, int]:
    """Return the range of lines under a heading, up to the next heading of any level."""
    titles = [(n, line.lstrip("# ").strip()) for n, line in enumerate(lines) if _is_heading(line)]
    folded_title = title.lstrip("# ").strip().casefold()
    for k, (n, each) in enumerate(titles):
        if each.casefold() == folded_title:
            return n + 1, titles[k + 1][0] if k + 1 < len(titles) else len(lines)
    raise _TargetNotFound("no such heading")


def _heading_above(n: int, lines: list[str]) -> int:
    return next((m for m in range(n, -1, -1) if _is_heading(lines[m])), -1)


def _is_heading(line: str) -> bool:
    return line.startswith("#") and [entry.kind for entry in parse(line)] == [EntryKind.HEADING]


def _lines(text: str) -> list[str]:
    return text.strip("\n").split("\n") if text.strip() else []
