"""Editing files without versions: the history, notes, and flushed days. Removing approved lines is idempotent."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from agent.memory.history.history_log import HISTORY_JSONL, LOCK, redact_history
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN

_NOTE = re.compile(r"\d{4}-\d\d-\d\d(?:-[a-z0-9-]{1,60}|\.archive)?\.md\Z")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n")


def is_plain_file(name: str) -> bool:
    """Return True if *name* is the history, a note, a flushed day or an archive of MEMORY.md."""
    return name == HISTORY_JSONL or _NOTE.match(name) is not None


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text."""
    return [piece.strip() for piece in _SENTENCE.split(text) if piece.strip()]


def remove_lines(folder: Path, disk: Disk, name: str, removed: Collection[str]) -> None:
    """Remove lines from *name* in a scope's `memory/`, or sentences from its history. Blocks; raises OSError."""
    if not is_plain_file(name):
        raise ValueError(f"nothing that was written down: {name!r}")
    targets = {each.strip() for each in removed}
    if name == HISTORY_JSONL:
        redact_history(folder, disk, lambda text: _remove_sentences(text, targets))
        return
    with disk.lock(folder / LOCK):
        before = disk.load(folder / name)
        lines = (before or b"").decode("utf-8", "replace").splitlines(keepends=True)
        after = "".join(line for line in lines if line.strip() not in targets).encode()
        if before is not None and after != before:
            disk.replace(folder / name, after)


def _remove_sentences(text: str, removed: Collection[str]) -> str:
    """Return *text* without the sentences *removed*; unchanged when it has none of them."""
    pieces, gaps = _SENTENCE.split(text), [*_SENTENCE.findall(text), ""]
    if not any(piece.strip() in removed for piece in pieces):
        return text
    left = "".join(piece + gap for piece, gap in zip(pieces, gaps, strict=True) if piece.strip() not in removed).strip()
    return left or FORGOTTEN
