"""Read the memory files of a workspace, whose layout the supported bots share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from agent.importers.import_data import ImportedDocument, ImportedHistory
from agent.importers.source_folder import SourceFolder
from agent.memory.history.history_files import STAMP, parse_legacy_history
from agent.memory.update.notes import slugify

_DATED = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[-_ ](.*))?\.md\Z")
_LEAST_PIECE = 20  # characters of a text that is compared with parts of entries
_NOT_IMPORTED: Mapping[str, str] = {
    "AGENTS.md": "it instructs another program; copy what still applies into SOUL.md",
    "IDENTITY.md": "it describes the other bot; copy what you want into SOUL.md",
    "TOOLS.md": "it describes tools of the other program",
    "HEARTBEAT.md": "it is a task of the other program",
    "BOOT.md": "it is a task of the other program",
    "BOOTSTRAP.md": "it is a task of the other program",
    "DREAMS.md": "it is the other program's diary; MEMORY.md has what it learnt",
}


def read_workspace(folder: SourceFolder, workspace: Path) -> None:
    """Read everything in *workspace* except the sessions."""
    memory = workspace / "memory"
    for name in ("SOUL.md", "USER.md"):
        _read_document(folder, workspace / name)
    for path in (memory / "MEMORY.md", workspace / "MEMORY.md", workspace / "memory.md"):
        _read_document(folder, path, "MEMORY.md")
    for name, reason in _NOT_IMPORTED.items():
        if (unwanted := folder.one(workspace / name)) is not None:
            folder.skip(unwanted, reason)
    _read_history(folder, memory)
    for path in folder.files(memory, "**/*.md"):
        _read_note(folder, path)
    folder.skip_rest(workspace, frozenset({"memory", "sessions", "agents", "workspace"}))


def _read_document(folder: SourceFolder, path: Path, name: str = "") -> None:
    file = folder.one(path)
    text = folder.read_text(file) if file is not None else None
    if text is not None:
        folder.data.documents.append(ImportedDocument(source=folder.name(path), name=name or path.name, text=text))


def _read_note(folder: SourceFolder, path: Path) -> None:
    text = folder.read_text(path)
    if text is None:
        return
    dated = _DATED.match(path.name)
    if dated is not None and _is_date(dated[1]):
        day, title = dated[1], dated[2] or ""
    else:  # a file without a date gets the day of its last change
        day, title = f"{folder.modified_at(path):%Y-%m-%d}", path.stem
    name = f"{day}-{slugify(title)}.md" if title else f"{day}.md"
    folder.data.notes.append(ImportedDocument(source=folder.name(path), name=name, text=text))


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _read_history(folder: SourceFolder, memory: Path) -> None:
    record = folder.one(memory / "history.jsonl")
    data = folder.read_bytes(record) if record is not None else None
    markdown = folder.one(memory / "HISTORY.md")
    if record is not None and data is not None:
        lines, bad = folder.lines(data)
        lines = [line for line in lines if isinstance(line.get("content"), str) and str(line["content"]).strip()]
        cursors = [line["cursor"] if isinstance(line.get("cursor"), int) else 0 for line in lines]
        dream_cursor = _read_number(folder, memory / ".dream_cursor")
        dreamt = 0
        if dream_cursor:
            dreamt = next((n for n, cursor in enumerate(cursors) if cursor > dream_cursor), len(lines))
        entries = tuple((_format_minute(folder, line.get("timestamp")), str(line["content"])) for line in lines)
        folder.data.histories.append(
            ImportedHistory(source=folder.name(record), entries=entries, dreamt=dreamt, bad=bad)
        )
        if markdown is not None:
            _read_markdown_history(folder, markdown, [content for _, content in entries])
    elif markdown is not None:
        _read_markdown_history(folder, markdown, ())


def _read_markdown_history(folder: SourceFolder, path: Path, recorded: Sequence[str]) -> None:
    """Read the entries of HISTORY.md whose text is not one of *recorded*, those of history.jsonl."""
    data = folder.read_bytes(path)
    if not data:
        return
    left = Counter(map(_comparable, recorded))
    everything = "\0".join(left)
    entries: list[tuple[str, str]] = []
    for timestamp, content, _ in parse_legacy_history(data, folder.modified_at(path)):
        text = _comparable(content)
        if left[text] > 0:
            left[text] -= 1
        elif len(text) < _LEAST_PIECE or text not in everything:  # a line with a time splits an entry of the record
            entries.append((timestamp, content))
    if entries:
        folder.data.histories.append(ImportedHistory(source=folder.name(path), entries=tuple(entries)))
    else:
        folder.skip(path, "history.jsonl has the same entries")


def _comparable(content: str) -> str:
    """Return an entry's text without the time that it begins with, in single spaces."""
    text = " ".join(content.split())
    stamp = STAMP.match(text)
    return text[stamp.end() :].strip() if stamp else text


def _format_minute(folder: SourceFolder, value: object) -> str:
    """Return a time as `YYYY-MM-DD HH:MM`, without converting its zone."""
    if isinstance(value, str) and re.match(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}", value):
        return value[:16].replace("T", " ")
    at = folder.parse_time(value)
    return f"{at:%Y-%m-%d %H:%M}" if at is not None else "1970-01-01 00:00"


def _read_number(folder: SourceFolder, path: Path) -> int:
    text = (folder.read_bytes(path, 1024) or b"").strip() if path.is_file() else b""
    return int(text) if text.isdigit() and len(text) < 17 else 0
