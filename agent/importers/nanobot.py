"""Read nanobot's folder, or Autobot's, which has the same layout: a workspace with `memory/` and `sessions/`.

A session is a JSON Lines file with a metadata line (`_type: metadata`), which Autobot's lack, or one JSON document in
the first versions.
Since 0.3 sessions are in `~/.nanobot/sessions/<workspace id>/`, since 0.3.6 in a SQLite database there.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.base.transcript_lines import decode
from agent.importers.import_data import ImportData, ImportedSession, Message
from agent.importers.source_folder import SourceFolder, content_text, open_read_only, read_workspace
from gateway.errors import UserError
from gateway.ports.journal import Line

_FIELDS = ("role", "tool_call_id", "name", "tools_used")
_DATABASE = "sessions.sqlite3"
_WORKSPACE = re.compile(r"[0-9a-f]{32}\Z")
_TASK_KEY = re.compile(r"(?:cron|heartbeat|system|subagent|dream)(?::|$)")
_ROLES = ("user", "assistant", "tool")


def read_nanobot(path: Path, zone: str) -> ImportData:
    """Read `~/.nanobot`, Autobot's folder, or the workspace in it. Raises UserError if *path* is none of these."""
    folder = SourceFolder(path, zone)
    if next(path.glob("agents/*/sessions"), None) is not None and not (path / "sessions").is_dir():
        raise UserError(f"{path} is a folder of OpenClaw; import it with `parlour import openclaw`")
    workspace = path / "workspace" if (path / "workspace").is_dir() else path
    read_workspace(folder, workspace)
    for sessions in _session_folders(folder, path, workspace):
        for file in folder.files(sessions, _DATABASE):
            _read_database(folder, file)
        for file in folder.files(sessions, "*.json*"):
            _read_session(folder, file)
    if workspace != path:
        folder.skip_rest(path, frozenset({"workspace", "sessions"}))
    folder.check_layout(workspace, ("memory", "sessions", "MEMORY.md", "SOUL.md", "USER.md"))
    return folder.data


def _session_folders(folder: SourceFolder, path: Path, workspace: Path) -> list[Path]:
    """Return the folders with the workspace's sessions; skip those of other workspaces."""
    id_file = workspace / ".nanobot" / "workspace-id"
    id_ = (folder.read_bytes(id_file, 1024) or b"").decode("ascii", "replace").strip() if id_file.is_file() else ""
    candidates = sorted(each for each in (path / "sessions").glob("*") if each.is_dir() and _WORKSPACE.match(each.name))
    if not id_ and len(candidates) == 1:
        id_ = candidates[0].name
    for other in candidates:
        if other.name != id_:
            folder.skip(other, "another workspace's conversations")
    if id_ and not candidates:
        folder.skip(id_file, f"its conversations are in ~/.nanobot/sessions/{id_}: import ~/.nanobot for them")
    own = [each for each in candidates if each.name == id_]
    return list(dict.fromkeys((workspace / "sessions", *own, path / "sessions")))


def _read_database(folder: SourceFolder, path: Path) -> None:
    try:
        if not folder.fits(path):
            return
        with open_read_only(path) as database:
            sessions = database.execute("SELECT key, created_at, last_archived FROM sessions ORDER BY key").fetchall()
            for key, created, archived in sessions:
                metadata = {"key": key, "created_at": created, "last_consolidated": archived}
                rows = database.execute("SELECT record FROM messages WHERE session_key = ? ORDER BY position", (key,))
                records = [decode(str(record).encode("utf-8", "surrogatepass")) for (record,) in rows]
                _add_session(folder, path, f"{folder.name(path)}#{key}", metadata, records, ())
    except (sqlite3.Error, OSError) as error:
        folder.skip(path, f"cannot be read: {error}")


def _read_session(folder: SourceFolder, path: Path) -> None:
    data = folder.read_bytes(path)
    if data is None:
        return
    metadata, rest, bad = _parse_document(data) if path.suffix == ".json" else _parse_lines(folder, data)
    if metadata is None:
        folder.skip(path, "it is not a session")
    else:
        _add_session(folder, path, folder.name(path), metadata, rest, bad)


def _add_session(
    folder: SourceFolder,
    path: Path,
    source: str,
    metadata: Mapping[str, Any],
    rest: Sequence[object],
    bad: tuple[bytes, ...],
) -> None:
    messages: list[Message] = []
    pointer = metadata.get("last_archived", metadata.get("last_consolidated", 0))
    consolidated = 0
    for n, line in enumerate(rest):
        if (message := _parse_message(folder, line)) is not None:
            messages.append(message)
            consolidated += isinstance(pointer, int) and n < pointer
    key = metadata.get("key")
    key = key if isinstance(key, str) and key else _key_of_file(path.stem)
    session = ImportedSession(
        source=source,
        key=_convert_key(key),
        messages=tuple(messages),
        consolidated=consolidated,
        created=folder.parse_time(metadata.get("created_at")),
        bad=bad,
    )
    folder.add_session(session, is_task=_TASK_KEY.match(key) is not None, is_empty=not messages)


def _parse_lines(folder: SourceFolder, data: bytes) -> tuple[Line | None, list[Any], tuple[bytes, ...]]:
    lines, bad = folder.lines(data)
    metadata: Line | None = next((line for line in lines if line.get("_type") == "metadata"), None)
    if metadata is None and lines and all(line.get("role") in _ROLES for line in lines):
        metadata = {}  # Autobot's files have no such line
    return metadata, [line for line in lines if "_type" not in line], bad


def _parse_document(data: bytes) -> tuple[Line | None, list[Any], tuple[bytes, ...]]:
    document = decode(data) or {}
    messages = document.get("messages")
    return (document, messages, ()) if isinstance(messages, list) else (None, [], ())


def _parse_message(folder: SourceFolder, line: object) -> Message | None:
    if not isinstance(line, Mapping) or line.get("role") not in _ROLES:
        return None
    message = {name: line[name] for name in _FIELDS if line.get(name)}
    calls = line.get("tool_calls")
    if isinstance(calls, list) and calls and all(isinstance(each, Mapping) for each in calls):
        message["tool_calls"] = calls
    content = content_text(line.get("content"))
    if not content and "tool_calls" not in message:
        return None
    at = folder.format_time(line.get("timestamp"))
    return message | {"content": content} | ({"timestamp": at} if at else {})


def _convert_key(key: str) -> str:
    """Return nanobot's session key as `channel:chat`, or `channel:chat/thread`."""
    channel, colon, chat = key.partition(":")
    if not colon or not channel or not chat:
        return f"nanobot:{key}"
    parent, colon, thread = chat.partition(":")
    return f"{channel}:{parent}/{thread.removeprefix('topic:')}" if colon and parent and thread else key


def _key_of_file(stem: str) -> str:
    """Return the session key in a file name: `telegram_42`, or base64 with or without the prefix `k_`."""
    coded = stem.removeprefix("k_")
    with contextlib.suppress(binascii.Error, ValueError):
        key = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
        if ":" in key and key.isprintable():
            return key
    channel, separator, chat = stem.partition("_")
    return f"{channel}:{chat}" if separator else stem
