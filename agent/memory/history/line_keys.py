"""Words that remembered lines are found by although they lack them: in history entries, and of other lines as marks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gateway.ports.memory import HistoryStore, MarkKind

ARCHIVE_SUFFIX = ".archive.md"  # of notes that old lines of MEMORY.md were moved to


def line_fingerprint(line: str) -> str:
    """Return a short digest of a line of a document, without its list mark."""
    text = line.strip().lstrip("-*+ ")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


async def archive_names(history: HistoryStore, scope: str) -> list[str]:
    """Return the names of the archives of MEMORY.md, the oldest first."""
    return [name for name in await history.note_names(scope) if name.endswith(ARCHIVE_SUFFIX)]


async def remembered_lines(history: HistoryStore, scope: str, text: str) -> list[str]:
    """Return the lines of *text*, that of MEMORY.md, and of its archives."""
    archives = [await history.note(scope, name) or b"" for name in await archive_names(history, scope)]
    texts = [text, *(each.decode("utf-8", "replace") for each in archives)]
    return [line for each in texts for line in each.splitlines() if line.strip()]


async def add_keys(history: HistoryStore, scope: str, keys: Mapping[str, str], text: str) -> None:
    """Store the keys, by `line_fingerprint`, of lines that *text*, MEMORY.md, or an archive has. Idempotent."""
    if keys:
        present = {line_fingerprint(line) for line in await remembered_lines(history, scope, text)}
        added = {name: words for name, words in keys.items() if name in present}
        await history.write(scope, marks={MarkKind.KEYS: added})


async def drop_absent_lines(history: HistoryStore, scope: str, text: str) -> None:
    """Remove the keys and uses of lines that neither *text*, MEMORY.md, nor an archive has. Idempotent."""
    stored = {kind: await history.marks(scope, kind) for kind in (MarkKind.KEYS, MarkKind.USED)}
    if any(stored.values()):
        present = {line_fingerprint(line) for line in await remembered_lines(history, scope, text)}
        gone = {kind: {name: None for name in marks if name not in present} for kind, marks in stored.items()}
        if any(gone.values()):
            await history.write(scope, marks=gone)


async def keys_of_all_lines(history: HistoryStore, scope: str) -> dict[str, str]:
    """Return the keys of every line by `line_fingerprint`, those from summaries too."""
    summarized = [entry.keys for entry in await history.after(scope)]
    return {
        line: text for keys in (*summarized, await history.marks(scope, MarkKind.KEYS)) for line, text in keys.items()
    }
