"""Find and blank the messages that a user deleted in a chat, line by line; indices do not change. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gateway.text.json_lines import decode_line, encode_line

FORGOTTEN = "[forgotten]"  # replaces a deleted content, so that indices do not change
_TEXT_FIELD = {"message": "content", "command": "content", "notice": "asked"}
_REMOVED_FIELDS = ("files", "quoted", "recall")  # quoted and recalled words stand beside the message's own
DIGEST = re.compile(r"[0-9a-f]{64}")


def deleted_ids(lines: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the platform ids of the messages that `forgotten` lines name."""
    return frozenset(str(line.get("mid", "")) for line in lines if line.get("kind") == "forgotten") - {""}


def find_message(raw: bytes, mids: Collection[str]) -> tuple[Mapping[str, Any], str] | None:
    """Return the line and its text if it is one of the messages *mids*."""
    line = decode_line(raw) if b'"mid"' in raw else None
    if line is None or line.get("mid") not in mids or (field := _text_field(line)) is None:
        return None
    text = line.get(field)
    return line, text if isinstance(text, str) and text != FORGOTTEN else ""


def blank_message(raw: bytes, mids: Collection[str], deletion_turn: str) -> tuple[bytes, frozenset[str]]:
    """Return a line without words and files, and the digests of its files, if it is one of the messages *mids*.

    Any other line is returned as it is, and so is one of *deletion_turn*, which records the deletion.
    """
    found = find_message(raw, mids)
    if found is None or found[0].get("turn") == deletion_turn:
        return raw, frozenset()
    line, _ = found
    blank = {name: value for name, value in line.items() if name not in _REMOVED_FIELDS}
    blank[str(_text_field(line))] = FORGOTTEN
    if blank == line:
        return raw, frozenset()
    return encode_line(blank), frozenset(_digests(line.get("files")))


def _text_field(line: Mapping[str, Any]) -> str | None:
    kind = line.get("kind", "message" if isinstance(line.get("role"), str) and isinstance(line.get("i"), int) else "")
    return _TEXT_FIELD.get(kind) if isinstance(kind, str) else None


def _digests(files: object) -> Iterable[str]:
    """Yield the digests of the bytes that facts of files name, whatever else is in them."""
    for each in files if isinstance(files, list) else ():
        if isinstance(each, dict):
            for fact in (each, each.get("seen")):
                blob = fact.get("blob") if isinstance(fact, dict) else None
                if isinstance(blob, str) and DIGEST.fullmatch(digest := blob.rpartition("/")[2]):
                    yield digest
