"""Changing a text by naming what changes: add, replace, remove a line with its exact old text (Dream, undo)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from agent.memory.editing.memory_entries import EntryKind, parse


@dataclass(frozen=True, slots=True)
class AddLines:
    """Put *text* behind the line *after*, or at the end of the section *under* (a heading's title), or of the text."""

    text: str
    under: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class ReplaceLines:
    """Put *new* in the place of the lines *old*, which must stand there exactly; *under* says which of several."""

    old: str
    new: str
    under: str = ""


@dataclass(frozen=True, slots=True)
class RemoveLines:
    """Take the lines *old* away, which must stand there exactly; *under* says which of several."""

    old: str
    under: str = ""


Operation: TypeAlias = AddLines | ReplaceLines | RemoveLines
_KINDS: Mapping[str, type[AddLines | ReplaceLines | RemoveLines]] = {
    "add": AddLines,
    "replace": ReplaceLines,
    "remove": RemoveLines,
}


def as_record(operation: Operation) -> dict[str, str]:
    """Return the operation as a file or a job holds it; `read_record` is the way back."""
    kind = next(name for name, each in _KINDS.items() if isinstance(operation, each))
    return {"op": kind, **{name: text for name, text in asdict(operation).items() if text}}


def read_record(record: object) -> Operation | None:
    """Return the operation of a record; None for what is none."""
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
    except TypeError:  # what must be there is missing
        return None


@dataclass(frozen=True, slots=True)
class RejectedOperation:
    """An operation that was not done, its place in the list, and why."""

    index: int
    operation: Operation
    why: str


@dataclass(frozen=True, slots=True)
class AppliedOperations:
    """The text after the operations that fitted, and those that did not."""

    text: str
    refused: tuple[RejectedOperation, ...] = ()
    done: int = 0  # how many changed something


class _TargetNotFound(Exception):
    """The text has no such place, or several."""


def apply(operations: Sequence[Operation], text: str) -> AppliedOperations:
    """Return *text* with the operations done in order; each sees the text as the ones before left it.

    Adding a line that stands there already changes nothing. Whoever wants all or nothing looks at `refused`.
    """
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n") if text.strip() else []
    refused: list[RejectedOperation] = []
    done = 0
    for n, operation in enumerate(operations):
        try:
            changed = _do(operation, lines)
        except _TargetNotFound as mismatch:
            refused.append(RejectedOperation(n, operation, str(mismatch)))
            continue
        done += changed != lines
        lines = changed
    if not done:
        return AppliedOperations(text, tuple(refused))
    return AppliedOperations("\n".join(lines).strip("\n") + "\n" if lines else "", tuple(refused), done)


def _do(operation: Operation, lines: list[str]) -> list[str]:
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
    """Say whether *new* would belong to another entry than its own right behind *before*."""
    if not before.strip():
        return False
    kinds = [entry.kind for entry in parse(f"{before}\n{new}")]
    return len(kinds) < 2 or (kinds[-1] is EntryKind.HEADING or kinds[0] is EntryKind.PARAGRAPH)


def _find(old: str, under: str, lines: list[str]) -> tuple[int, int]:
    """Return where the lines *old* stand; identical neighbours in one section are as good as one."""
    wanted = [line.rstrip() for line in _lines(old)]
    if not wanted:
        raise _TargetNotFound("no old text was given")
    start, stop = _section(under, lines) if under else (0, len(lines))
    found = [
        n
        for n in range(start, stop - len(wanted) + 1)
        if [line.rstrip() for line in lines[n : n + len(wanted)]] == wanted
    ]
    if not found:
        raise _TargetNotFound("no such line")
    if len({_heading_above(n, lines) for n in found}) > 1:
        raise _TargetNotFound("such a line stands under several headings")
    return found[-1], found[-1] + len(wanted)


def _section(title: str, lines: list[str]) -> tuple[int, int]:
    """Return the lines under a heading, up to the next heading of any level."""
    titles = [(n, line.lstrip("# ").strip()) for n, line in enumerate(lines) if _is_heading(line)]
    wanted = title.lstrip("# ").strip().casefold()
    for k, (n, each) in enumerate(titles):
        if each.casefold() == wanted:
            return n + 1, titles[k + 1][0] if k + 1 < len(titles) else len(lines)
    raise _TargetNotFound("no such heading")


def _heading_above(n: int, lines: list[str]) -> int:
    return next((m for m in range(n, -1, -1) if _is_heading(lines[m])), -1)


def _is_heading(line: str) -> bool:
    return line.startswith("#") and [entry.kind for entry in parse(line)] == [EntryKind.HEADING]


def _lines(text: str) -> list[str]:
    return text.strip("\n").split("\n") if text.strip() else []
