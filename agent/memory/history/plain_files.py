"""Lines of the history and of notes that a person has approved for removal."""

from __future__ import annotations

import re
from collections.abc import Collection

from agent.memory.history.line_keys import ARCHIVE_SUFFIX
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode
from gateway.ports import HISTORY_JSONL, HistoryRowStore

NOTE_NAME = re.compile(
    rf"\d{{4}}-\d\d-\d\d(?:-[a-z0-9-]{{1,60}}|{re.escape(ARCHIVE_SUFFIX.removesuffix('.md'))})?\.md\Z"
)
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n")


def is_plain_file(name: str) -> bool:
    """Return True if *name* is the history, a note, a flushed day or an archive of MEMORY.md."""
    return name == HISTORY_JSONL or NOTE_NAME.match(name) is not None


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text."""
    return [piece.strip() for piece in _SENTENCE.split(text) if piece.strip()]


async def remove_lines(history: HistoryRowStore, scope: str, name: str, removed: Collection[str]) -> None:
    """Remove lines from the note *name*, or sentences from the history. Idempotent."""
    if not is_plain_file(name):
        raise ValueError(f"nothing that was written down: {name!r}")
    targets = {each.strip() for each in removed}

    def change(place: str, body: bytes) -> bytes:
        if place != name:
            return body
        if name == HISTORY_JSONL:
            line = dict(decode(body) or {})
            content = str(line.get("content", ""))
            left = _remove_sentences(content, targets)
            return body if left == content else encode({**line, "content": left})
        lines = body.decode("utf-8", "replace").splitlines(keepends=True)
        kept = "".join(line for line in lines if line.strip() not in targets)
        return body if len(kept) == sum(map(len, lines)) else kept.encode()

    await history.rewrite(scope, change)


def _remove_sentences(text: str, removed: Collection[str]) -> str:
    """Return *text* without the sentences *removed*; unchanged when it has none of them."""
    pieces, gaps = _SENTENCE.split(text), [*_SENTENCE.findall(text), ""]
    if not any(piece.strip() in removed for piece in pieces):
        return text
    left = "".join(piece + gap for piece, gap in zip(pieces, gaps, strict=True) if piece.strip() not in removed).strip()
    return left or FORGOTTEN
