"""HISTORY.md: the history as text for people and grep, derived from history.jsonl; parsing of older systems' files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from agent.memory.messages.message_range import entry_id
from agent.memory.storage.disk import Disk, read_text
from gateway.ports import HISTORY_MD

LEGACY = f"{HISTORY_MD}.legacy"
STAMP = re.compile(
    r"\[?(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?\]?:?(?=\s|$)"
)
_BLANK = re.compile(r"\n\s*\n")

TimedText = tuple[str, str]  # timestamp and content


def format_entry(entry: TimedText) -> str:
    """Return an entry as a paragraph that begins with its time, followed by a blank line."""
    timestamp, content = entry
    flat = _BLANK.sub("\n", content.strip().replace("\r\n", "\n").replace("\r", "\n"))
    stamped = flat if STAMP.match(flat) and flat.startswith("[") else f"[{timestamp}] {flat}".rstrip()
    return f"{stamped}\n\n"


# -- files of older systems ([000], [001], [004]) ----------------------------------------------------


def parse_legacy_history(data: bytes, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield (timestamp, content, entry id) for each entry of an older system's HISTORY.md.

    An entry starts at a line that begins with a time, in brackets [001] or without [004]. Text before the first such
    line is an entry with the time *now*.
    """
    source = f"{HISTORY_MD} {hashlib.sha256(data).hexdigest()}"
    timestamp, lines, n = f"{now:%Y-%m-%d %H:%M}", list[str](), 0
    for line in [*read_text(data).split("\n"), None]:
        found = STAMP.match(line) if line is not None else None
        if found is None and line is not None:
            lines.append(line)
            continue
        content = "\n".join(lines).strip()
        if content:
            yield timestamp, content, entry_id(source, n, n + 1)
            n += 1
        if found is not None and line is not None:
            timestamp = f"{found.group(1)} {found.group(2)}"
            lines = [line[found.end() :].lstrip()]


def keep_original(folder: Path, disk: Disk, data: bytes) -> Path:
    """Copy the older system's file to `HISTORY.md.legacy`; return the copy's path. Idempotent."""
    path = folder / LEGACY
    known = disk.load(path)
    if known is not None and known != data:
        path = folder / f"{LEGACY}-{hashlib.sha256(data).hexdigest()[:8]}"
        known = disk.load(path)
    if known != data:
        disk.replace(path, data)
    return path
