"""Operations on a document's text: add, replace or remove lines by their exact old text.

This is the one grammar of edits: consolidation, Dream, approvals and tools name the lines that they change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from agent.memory.editing.memory_entries import EntryKind, parse

PATH = " > "  # between the titles of nested headings


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


Operation: TypeAlias = AddLines | ReplaceLines | RemoveLines
_KINDS: Mapping[str, type[Operation]] = {
    "add": AddLines,
    "replace": ReplaceLines,
    "remove": RemoveLines,
}


def changed_texts(operation: Operation) -> tuple[str, str]:
    """Return the old text of an operation and the new one; "" where it has none."""
    match operation:
        case AddLines(text):
            return "", text
        case ReplaceLines(old, new):
            return old, new
        case RemoveLines(old):
            return old, ""


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
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n") if text.strip() else []
    changed = _edit_lines(operation, lines)
    if changed == lines:
        return text
    return "\n".join(changed).strip("\n") + "\n" if changed else ""


def _edit_lines(operation: Operation, lines: list[str]) -> list[str]:
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
        while position < len(lines) and _indent(lines[position]) > _indent(new[0]):
            position += 1  # what is nested in the line stays with it
    elif operation.under:
        start, position = _section(operation.under, lines)
        while position > start and not lines[position - 1].strip():
            position -= 1
    else:
        start, position = 0, len(lines)
    around = lines if operation.after or not operation.under else lines[start:position]
    if len(new) == 1 and new[0].rstrip() in map(str.rstrip, around) and new[0].rstrip() in _prose(around):
        return lines
    gap = [""] if position and _runs_on(lines[position - 1], new[0]) else []
    return [*lines[:position], *gap, *new, *lines[position:]]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _prose(lines: list[str]) -> set[str]:
    """Return the lines that are not code."""
    entries = (entry for entry in parse("\n".join(lines)) if entry.kind is not EntryKind.FENCE)
    return {line.rstrip() for entry in entries for line in entry.raw.split("\n")}


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
    """Return the range of lines under a heading, up to the next heading of any level.

    Of headings with equal titles, `above > title` names the one below *above*.
    """
    names = [_title(each) for each in title.split(PATH)]
    found: list[int] = []
    path: list[tuple[int, str]] = []  # levels and titles down to the current heading
    for n, line in enumerate(lines):
        if _is_heading(line):
            level = len(line) - len(line.lstrip("#"))
            path = [each for each in path if each[0] < level] + [(level, _title(line))]
            if path[-1][1] == _title(title) or [each for _, each in path[-len(names) :]] == names:
                found.append(n)
    if len(found) != 1:
        raise _TargetNotFound("several headings have this title" if found else "no such heading")
    start = found[0] + 1
    return start, next((n for n in range(start, len(lines)) if _is_heading(lines[n])), len(lines))


def _title(text: str) -> str:
    return text.lstrip("# ").strip().casefold()


def _heading_above(n: int, lines: list[str]) -> int:
    return next((m for m in range(n, -1, -1) if _is_heading(lines[m])), -1)


def _is_heading(line: str) -> bool:
    return line.startswith("#") and [entry.kind for entry in parse(line)] == [EntryKind.HEADING]


def _lines(text: str) -> list[str]:
    return text.strip("\n").split("\n") if text.strip() else []
