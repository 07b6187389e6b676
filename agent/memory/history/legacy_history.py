"""HISTORY.md of older systems ([000], [001], [004]) as entries: nothing of it is lost, and its file is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from agent.memory.history.history_markdown import HISTORY_MD, STAMP
from agent.memory.messages.message_range import entry_id
from agent.memory.storage.disk import Disk, read_text

LEGACY = f"{HISTORY_MD}.legacy"


def parse_legacy_history(data: bytes, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield (timestamp, content, entry id) of what an HISTORY.md holds.

    A line that begins with a time, in brackets [001] or not [004], begins an entry; what follows belongs to it.
    What stands before the first one is an entry too, of the moment *now*.
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
    """Keep the old file's bytes beside the new one; doing it twice is doing it once."""
    path = folder / LEGACY
    known = disk.load(path)
    if known is not None and known != data:
        path = folder / f"{LEGACY}-{hashlib.sha256(data).hexdigest()[:8]}"
        known = disk.load(path)
    if known != data:
        disk.replace(path, data)
    return path
