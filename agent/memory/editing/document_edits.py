"""Edits of documents as a model gives them: the tool `edit_memory`, and the parser of its arguments."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.llm.model_calls import UnusableAnswer, clean, read_call
from agent.memory.documents.scope_documents import TRACKED, line_fingerprint
from agent.memory.editing.text_operations import (
    AddLines,
    Operation,
    RemoveLines,
    ReplaceLines,
    as_record,
    changed_texts,
    read_record,
)

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
