"""The memory files of a workspace, which these bots have in common: what becomes of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from agent.memory.history.legacy_history import parse_legacy_history
from agent.memory.importers.import_data import ImportedDocument, ImportedHistory, ImportedNote
from agent.memory.importers.source_folder import SourceFolder
from agent.memory.notes.session_note_writer import slugify

_DATED = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[-_ ](.*))?\.md\Z")
_NOT_OURS: Mapping[str, str] = {
    "AGENTS.md": "it instructs another program; what still holds belongs into SOUL.md",
    "IDENTITY.md": "it names the other bot; what you want of it belongs into SOUL.md",
    "TOOLS.md": "it is about tools of the other program",
    "HEARTBEAT.md": "it is a task of the other program",
    "BOOT.md": "it is a task of the other program",
    "BOOTSTRAP.md": "it is a task of the other program",
    "DREAMS.md": "it is the other program's diary; what it learnt stands in MEMORY.md",
}


def read_workspace(folder: SourceFolder, workspace: Path) -> None:
    """Read everything in *workspace* but the sessions."""
    memory = workspace / "memory"
    for name in ("SOUL.md", "USER.md"):
        _read_document(folder, workspace / name)
    for place in (memory / "MEMORY.md", workspace / "MEMORY.md", workspace / "memory.md"):
        _read_document(folder, place, "MEMORY.md")
    for name, why in _NOT_OURS.items():
        if (path := folder.one(workspace / name)) is not None:
            folder.skip(path, why)
    _read_history(folder, memory)
    for path in folder.files(memory, "**/*.md"):
        _read_note(folder, path)
    folder.leave_the_rest(workspace, frozenset({"memory", "sessions", "agents", "workspace"}))


def _read_document(folder: SourceFolder, path: Path, name: str = "") -> None:
    found = folder.one(path)
    text = folder.text(found) if found is not None else None
    if text is not None:
        folder.found.documents.append(ImportedDocument(source=folder.name(path), name=name or path.name, text=text))


def _read_note(folder: SourceFolder, path: Path) -> None:
    text = folder.text(path)
    if text is None:
        return
    dated = _DATED.match(path.name)
    if dated is not None and _is_date(dated[1]):
        day, title = dated[1], dated[2] or ""
    else:  # an undated one is of the day it was written last
        day, title = f"{folder.modified_at(path):%Y-%m-%d}", path.stem
    name = f"{day}-{slugify(title)}.md" if title else f"{day}.md"
    folder.found.notes.append(ImportedNote(source=folder.name(path), name=name, text=text))


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _read_history(folder: SourceFolder, memory: Path) -> None:
    record = folder.one(memory / "history.jsonl")
    data = folder.data(record) if record is not None else None
    readable = folder.one(memory / "HISTORY.md")
    if record is not None and data is not None:
        lines, bad = folder.lines(data)
        whole = [line for line in lines if isinstance(line.get("content"), str) and str(line["content"]).strip()]
        cursors = [line["cursor"] if isinstance(line.get("cursor"), int) else 0 for line in whole]
        upto = _number(folder, memory / ".dream_cursor")
        dreamt = next((n for n, cursor in enumerate(cursors) if cursor > upto), len(whole)) if upto else 0
        entries = tuple((_minute(folder, line.get("timestamp")), str(line["content"])) for line in whole)
        folder.found.histories.append(
            ImportedHistory(source=folder.name(record), entries=entries, dreamt=dreamt, bad=bad)
        )
        if readable is not None:
            folder.skip(readable, "history.jsonl says the same")
        return
    text = folder.data(readable) if readable is not None else None
    if readable is not None and text:
        old = tuple(
            (timestamp, content) for timestamp, content, _ in parse_legacy_history(text, folder.modified_at(readable))
        )
        folder.found.histories.append(ImportedHistory(source=folder.name(readable), entries=old))


def _minute(folder: SourceFolder, value: object) -> str:
    """Return their time to the minute, as it stands where it names one."""
    if isinstance(value, str) and re.match(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}", value):
        return value[:16].replace("T", " ")
    at = folder.read_moment(value)
    return f"{at:%Y-%m-%d %H:%M}" if at is not None else "1970-01-01 00:00"


def _number(folder: SourceFolder, path: Path) -> int:
    text = (folder.data(path, 1024) or b"").strip() if path.is_file() else b""
    return int(text) if text.isdigit() and len(text) < 17 else 0
