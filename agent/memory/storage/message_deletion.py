"""Find and blank the messages that a user deleted in a chat, line by line; indices do not change. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from agent.attachments.file_facts import ASIDE, blobs_in, facts_in
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, kind_of, pad_line
from gateway.ports import Line

_TEXT_FIELD = {"message": "content", "command": "content", "notice": "asked"}
_REMOVED_FIELDS = ("files", *ASIDE)
DIGEST = re.compile(r"[0-9a-f]{64}")


def find_message(raw: bytes, mid: str) -> tuple[Line, str] | None:
    """Return the line and its text if it is the message *mid*."""
    line = _matching_line(raw, (mid,), "")
    if line is None:
        return None
    text = line.get(_TEXT_FIELD[kind_of(line)])
    return line, text if isinstance(text, str) and text != FORGOTTEN else ""


def files_of_messages(raw: bytes, mids: Collection[str], deletion_turn: str) -> set[str]:
    """Return the attachments of a line if it is one of the messages *mids*."""
    line = _matching_line(raw, mids, deletion_turn) if b'"files"' in raw else None
    names = blobs_in(facts_in(line)) if line is not None else []
    return {digest for name in names if DIGEST.fullmatch(digest := name.rpartition("/")[2])}


def refers_to(raw: bytes, digests: Collection[str], mids: Collection[str], deletion_turn: str) -> set[str]:
    """Return those of *digests* that a line refers to, unless it is one of the messages *mids*."""
    found = {digest for digest in digests if digest.encode() in raw}
    return found if found and _matching_line(raw, mids, deletion_turn) is None else set()


def _matching_line(raw: bytes, mids: Collection[str], deletion_turn: str) -> Line | None:
    """Return the line if it is one of the messages *mids*."""
    line = decode(raw) if b'"mid"' in raw else None
    if line is None or line.get("mid") not in mids or line.get("turn") == deletion_turn:
        return None
    return line if kind_of(line) in _TEXT_FIELD else None


def blank_line(raw: bytes, mids: Collection[str], deletion_turn: str) -> bytes:
    """Return a blank line of the same length for one of the messages *mids*, any other line unchanged."""
    line = _matching_line(raw, mids, deletion_turn)
    if line is None:
        return raw
    blank: dict[str, Any] = {name: value for name, value in line.items() if name not in _REMOVED_FIELDS}
    blank[_TEXT_FIELD[kind_of(line)]] = FORGOTTEN
    return pad_line(blank, blank | {_TEXT_FIELD[kind_of(line)]: ""}, len(raw))
