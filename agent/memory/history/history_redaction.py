"""Taking words out of a scope's history: entries keep their cursors and ranges, HISTORY.md follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent.memory.history.history_log import HISTORY_JSONL, LOCK, RAW_JSONL
from agent.memory.history.history_markdown import HISTORY_MD, HistoryMarkdown
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode

_OLD = f"{HISTORY_MD}.*"  # copies beside it: of an older system's, of what a person wrote into it


def redact_history(folder: Path, disk: Disk, change: Callable[[str], str]) -> int:
    """Put what every entry says through *change*; return how many entries changed. Blocks; raises OSError.

    Raw archives are lines of their own; a message that *change* would touch says nothing any more. Whole files are
    replaced, so that doing it twice is doing it once.
    """
    if not folder.is_dir():
        return 0
    with disk.lock(folder / LOCK):
        changed = _rewrite(folder / HISTORY_JSONL, disk, lambda line: _entry(line, change))
        _rewrite(folder / RAW_JSONL, disk, lambda line: _raw(line, change))
        for copy in sorted(folder.glob(_OLD)):
            text = (disk.load(copy) or b"").decode("utf-8", "replace")
            if change(text) != text:
                disk.replace(copy, change(text).encode())
        if changed:
            found = map(decode, (disk.load(folder / HISTORY_JSONL) or b"").splitlines())
            shown = [(str(each.get("timestamp", "")), str(each.get("content", ""))) for each in found if each]
            HistoryMarkdown(folder, disk).rebuild(shown)
    return changed


def blank_raw(folder: Path, disk: Disk, session: str, mid: str) -> int:
    """Let the raw archive say nothing of one message of *session*; return how many lines. Blocks; raises OSError."""
    if disk.size(folder / RAW_JSONL) is None:
        return 0

    def change(line: dict[str, object]) -> dict[str, object]:
        message = line.get("message")
        is_it = line.get("session") == session and isinstance(message, dict) and message.get("mid") == mid
        return _blank(line) if is_it else line

    with disk.lock(folder / LOCK):
        return _rewrite(folder / RAW_JSONL, disk, change)


def _rewrite(path: Path, disk: Disk, change: Callable[[dict[str, object]], dict[str, object]]) -> int:
    data = disk.load(path)
    if data is None:
        return 0
    before = data.splitlines(keepends=True)
    after = []
    for raw in before:
        line = decode(raw)
        new = change(dict(line)) if line is not None else None
        after.append(raw if new is None or new == line else encode(new))
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    if changed:
        disk.replace(path, b"".join(after))
    return changed


def _entry(line: dict[str, object], change: Callable[[str], str]) -> dict[str, object]:
    content = line.get("content")
    return {**line, "content": change(content)} if isinstance(content, str) else line


def _raw(line: dict[str, object], change: Callable[[str], str]) -> dict[str, object]:
    message = line.get("message")
    text = str(message)
    if not isinstance(message, dict) or change(text) == text:
        return line
    return _blank(line)


def _blank(line: dict[str, object]) -> dict[str, object]:
    message = line.get("message")
    names = ("role", "timestamp", "turn", "i")
    kept = {name: message[name] for name in names if name in message} if isinstance(message, dict) else {}
    return {**line, "message": {**kept, "content": FORGOTTEN}}
