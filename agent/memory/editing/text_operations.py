"""Operations on a document's text: add, replace or remove lines by their exact old text.

This is the one grammar of edits: consolidation, Dream, approvals and tools name the lines that they change. A whole
text, as `save_memory` of [001] returns it, becomes operations too. It adds and rewords. It removes nothing: models
leave things out, and an entry that is missing stays (docs/adr/0050).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeAlias

from agent.llm.model_calls import UnusableAnswer, clean, read_call
from agent.memory.editing.memory_entries import (
    EntryKind,
    MemoryEntry,
    is_same,
    lost_entries,
    match_entries,
    parse,
    replaces,
    statements,
)
from agent.memory.storage.scope_documents import TRACKED, line_fingerprint

_PROSE = {EntryKind.ITEM, EntryKind.PARAGRAPH}
NOTHING_YET = "(empty)"  # shown in the prompt for an empty memory; a model may return it
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


# -- whole texts -----------------------------------------------------------------------------------


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


EDIT_MEMORY = "edit_memory"
MOST = 50  # operations in one answer; the rest can come in the next
LONGEST = 2_000  # characters of one operation's text
LONGEST_KEYS = 200  # characters
_DIGITS = 10

EDIT_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": EDIT_MEMORY,
        "description": "Change lines of the long-term memory. An empty list of operations changes nothing.",
        "parameters": {
            "type": "object",
            "properties": {
                "operations": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "document": {"type": "string", "enum": ["SOUL.md", "USER.md", "MEMORY.md"]},
                            "op": {"type": "string", "enum": ["add", "replace", "remove"]},
                            "old": {"type": "string", "description": "replace, remove: the exact line"},
                            "text": {"type": "string", "description": "add, replace: the new line"},
                            "under": {"type": "string", "description": "the heading of its section, if any"},
                            "after": {"type": "string", "description": "add: the exact line it comes after, if any"},
                            "source": {"type": "integer", "description": "the number of what it comes from"},
                            "reason": {"type": "string", "description": "remove: why, in a few words"},
                            "keys": {
                                "type": "string",
                                "description": "add, replace: words to find the new line by that it lacks, in its"
                                ' language: the class of each thing ("pho": food, dish, Vietnamese), other spellings'
                                " and short forms of names, and three to six things that somebody may plan or ask"
                                ' about when it matters ("eats no nuts": dinner, restaurant, baking, present)',
                            },
                        },
                        "required": ["document", "op"],
                    },
                },
                "done": {"type": "boolean", "description": "whether nothing is left to change"},
            },
            "required": ["operations", "done"],
        },
    },
}
EDIT_WITHOUT_TOOLS = (
    '\n\nAnswer with JSON and nothing else: {"operations": [{"document": "MEMORY.md", "op": "replace", "old": "…",'
    ' "text": "…", "under": "", "after": ""}], "done": true}'
)


def operations_schema() -> dict[str, Any]:
    """Return the JSON schema of a list of operations on one document, for a tool that takes more than these."""
    schema: dict[str, Any] = copy.deepcopy(EDIT_TOOL["function"]["parameters"]["properties"]["operations"])
    del schema["items"]["properties"]["document"]
    schema["items"]["required"] = ["op"]
    return schema


@dataclass(frozen=True, slots=True)
class DocumentEdit:
    """One operation on one document.

    *source* is the number of the message or the history entry that it comes from, or -1. An edit that
    changes what a line means needs approval unless it *has_evidence*: the person said so (`edit_review`). *keys* are
    words that the new line is found by, although it lacks them.
    """

    document: str
    operation: Operation
    source: int = -1
    has_evidence: bool = False
    reason: str = ""
    keys: str = ""

    def record(self) -> dict[str, Any]:
        """Return the edit as JSON fields; `read_edit` reverses it."""
        known = {"source": self.source + 1, "evidence": self.has_evidence, "reason": self.reason, "keys": self.keys}
        return {
            "document": self.document,
            **as_record(self.operation),
            **{name: value for name, value in known.items() if value},
        }


@dataclass(frozen=True, slots=True)
class ParsedEdits:
    """The edits in one answer. `wrong` lists the reasons why operations were rejected."""

    edits: tuple[DocumentEdit, ...] = ()
    wrong: tuple[str, ...] = ()
    is_done: bool = False  # the model says that nothing is left to do


def read_edit(record: object) -> DocumentEdit | None:
    """Return the edit in a record, or None if the record is invalid."""
    operation = read_record(record)
    if operation is None or not isinstance(record, Mapping) or record.get("document") not in TRACKED:
        return None
    source, reason, keys = record.get("source", 0), record.get("reason", ""), record.get("keys", "")
    return DocumentEdit(
        str(record["document"]),
        operation,
        source=source - 1 if isinstance(source, int) else -1,
        has_evidence=record.get("evidence") is True,
        reason=reason if isinstance(reason, str) else "",
        keys=keys if isinstance(keys, str) else "",
    )


def keys_of_lines(edits: Iterable[DocumentEdit], *, pending_operations: Iterable[Operation] = ()) -> dict[str, str]:
    """Return the keys of the new lines of MEMORY.md, by `line_fingerprint`.

    Lines of *pending_operations* have none: the question does not show keys.
    """
    held = {line.strip() for each in pending_operations for line in changed_texts(each)[1].splitlines()}
    return {
        line_fingerprint(line): edit.keys
        for edit in edits
        if edit.keys and edit.document == "MEMORY.md"
        for line in changed_texts(edit.operation)[1].splitlines()
        if line.strip() and line.strip() not in held
    }


def read_edits(content: object, tool_calls: object) -> ParsedEdits | UnusableAnswer:
    """Return the edits in a model's answer, or the reason why there are none. Never raises."""
    return read_call(content, tool_calls, EDIT_MEMORY, parse_operations)


def parse_operations(value: Mapping[str, Any]) -> ParsedEdits | UnusableAnswer:
    """Return the edits in the arguments of a tool, or the reason why these are unusable."""
    operations = value.get("operations")
    if not isinstance(operations, list):
        return UnusableAnswer("operations missing")
    read = list(_each(operations[:MOST]))
    wrong = [each for each in read if isinstance(each, str)]
    if len(operations) > MOST:
        wrong.append(f"only the first {MOST} operations were read")
    edits = tuple(each for each in read if isinstance(each, DocumentEdit))
    return ParsedEdits(edits, tuple(wrong), is_done=value.get("done") is True)


def _each(operations: Sequence[object]) -> Iterator[DocumentEdit | str]:
    for n, each in enumerate(operations, 1):
        if not isinstance(each, Mapping):
            yield f"operation {n} is no object"
            continue
        texts = {name: each.get(name) for name in ("document", "op", "old", "text", "under", "after", "reason")}
        if not all(text is None or isinstance(text, str) for text in texts.values()):
            yield f"operation {n} holds something else than text"
            continue
        fields_ = {name: clean(text) if name != "old" else _exact(text) for name, text in texts.items() if text}
        operation = _operation(n, fields_)
        if isinstance(operation, DocumentEdit):
            # Keys only help the search: what is no text is left out, and the operation stays valid.
            keys = clean(each["keys"])[:LONGEST_KEYS] if isinstance(each.get("keys"), str) else ""
            operation = replace(
                operation, source=_number(each.get("source")), reason=fields_.get("reason", ""), keys=keys
            )
        yield operation


def _number(value: object) -> int:
    """Return a number that a model gave as one or as text, such as `#12`; else -1."""
    text = str(value).strip().removeprefix("#") if isinstance(value, int | str) else ""
    return int(text) if text.isdecimal() and len(text) < _DIGITS else -1


def _operation(n: int, fields_: Mapping[str, str]) -> DocumentEdit | str:
    document = fields_.get("document", "")
    if document not in TRACKED:
        return f"operation {n}: there is no such document; they are {', '.join(TRACKED)}"
    if any(len(text) > LONGEST for text in fields_.values()):
        return f"operation {n} is longer than {LONGEST} characters"
    under = fields_.get("under", "")
    match fields_.get("op"):
        case "add" if fields_.get("text"):
            return DocumentEdit(document, AddLines(fields_["text"], under, fields_.get("after", "")))
        case "replace" if fields_.get("old") and fields_.get("text"):
            return DocumentEdit(document, ReplaceLines(fields_["old"], fields_["text"], under))
        case "remove" if fields_.get("old"):
            return DocumentEdit(document, RemoveLines(fields_["old"], under))
    return f"operation {n} is no add with text, no replace with old and text, and no remove with old"


def _exact(text: str) -> str:
    """Return an old text as the document may contain it: with its own blanks, valid characters."""
    return text.replace("\r\n", "\n").strip("\n").encode("utf-8", "replace").decode("utf-8")
