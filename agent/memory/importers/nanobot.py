"""nanobot's folder, and Autobot's, which has its shape: a workspace with `memory/` and `sessions/`.

A session is JSON lines, the first of them about it (`_type: metadata`), or the JSON document of seed 000. Since 0.3
they stand in `~/.nanobot/sessions/<id of the workspace>/`, since 0.3.6 in a SQLite database there.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.memory.importers.import_data import ImportData, ImportedSession, Message, SkippedItem
from agent.memory.importers.source_folder import SourceFolder, content_text
from agent.memory.importers.sqlite_source import open_read_only
from agent.memory.importers.workspace import read_workspace
from agent.memory.storage.transcript_lines import decode

_KEPT = ("role", "tool_call_id", "name", "tools_used")
_DATABASE = "sessions.sqlite3"
_WORKSPACE = re.compile(r"[0-9a-f]{32}\Z")
_NOBODYS = re.compile(r"(?:cron|heartbeat|system|subagent|dream)(?::|$)")
_ROLES = ("user", "assistant", "tool")


def read_nanobot(path: Path, zone: str) -> ImportData:
    """Read `~/.nanobot`, Autobot's folder, or the workspace in it. Raises UserError when it is none."""
    folder = SourceFolder(path, zone)
    workspace = path / "workspace" if (path / "workspace").is_dir() else path
    read_workspace(folder, workspace)
    for place in _places(folder, path, workspace):
        for file in folder.files(place, _DATABASE):
            _read_database(folder, file)
        for file in folder.files(place, "*.json*"):
            _read_session(folder, file)
    if workspace != path:
        folder.leave_the_rest(path, frozenset({"workspace", "sessions"}))
    return folder.found


def _places(folder: SourceFolder, path: Path, workspace: Path) -> list[Path]:
    """Return where the workspace's sessions stand; those of other workspaces are left."""
    mark = workspace / ".nanobot" / "workspace-id"
    mine = (folder.data(mark, 1024) or b"").decode("ascii", "replace").strip() if mark.is_file() else ""
    there = sorted(each for each in (path / "sessions").glob("*") if each.is_dir() and _WORKSPACE.match(each.name))
    if not mine and len(there) == 1:
        mine = there[0].name
    for other in there:
        if other.name != mine:
            folder.skip(other, "another workspace's conversations")
    if mine and not there:
        folder.skip(mark, f"its conversations stand in ~/.nanobot/sessions/{mine}: import ~/.nanobot for them")
    return list(
        dict.fromkeys((workspace / "sessions", *(each for each in there if each.name == mine), path / "sessions"))
    )


def _read_database(folder: SourceFolder, path: Path) -> None:
    try:
        if not folder.fits(path):
            return
        with open_read_only(path) as database:
            sessions = database.execute("SELECT key, created_at, last_archived FROM sessions ORDER BY key").fetchall()
            for key, created, archived in sessions:
                about = {"key": key, "created_at": created, "last_consolidated": archived}
                rows = database.execute("SELECT record FROM messages WHERE session_key = ? ORDER BY position", (key,))
                records = [decode(str(record).encode("utf-8", "surrogatepass")) for (record,) in rows]
                _take(folder, path, f"{folder.name(path)}#{key}", about, records, ())
    except (sqlite3.Error, OSError) as error:
        folder.skip(path, f"cannot be read: {error}")


def _read_session(folder: SourceFolder, path: Path) -> None:
    data = folder.data(path)
    if data is None:
        return
    about, rest, bad = _document(data) if path.suffix == ".json" else _lines(folder, data)
    if about is None:
        folder.skip(path, "it is no session")
    else:
        _take(folder, path, folder.name(path), about, rest, bad)


def _take(
    folder: SourceFolder,
    path: Path,
    source: str,
    about: Mapping[str, Any],
    rest: Sequence[object],
    bad: tuple[bytes, ...],
) -> None:
    messages: list[Message] = []
    pointer = about.get("last_archived", about.get("last_consolidated", 0))
    consolidated = 0
    for n, line in enumerate(rest):
        if (message := _message(folder, line)) is not None:
            messages.append(message)
            consolidated += isinstance(pointer, int) and n < pointer
    key = about.get("key")
    key = key if isinstance(key, str) and key else _key_of(path.stem)
    why = "nobody's conversation: a task ran in it" if _NOBODYS.match(key) else ""
    if why or not messages:
        folder.found.left.append(SkippedItem(source, why or "nobody said anything in it"))
        return
    folder.found.sessions.append(
        ImportedSession(
            source=source,
            key=_ours(key),
            messages=tuple(messages),
            consolidated=consolidated,
            created=folder.read_moment(about.get("created_at")),
            bad=bad,
        )
    )


def _lines(folder: SourceFolder, data: bytes) -> tuple[dict[str, Any] | None, list[Any], tuple[bytes, ...]]:
    lines, bad = folder.lines(data)
    about = next((line for line in lines if line.get("_type") == "metadata"), None)
    return about, [line for line in lines if "_type" not in line], bad


def _document(data: bytes) -> tuple[dict[str, Any] | None, list[Any], tuple[bytes, ...]]:
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None, [], ()
    messages = found.get("messages") if isinstance(found, dict) else None
    return (found, messages, ()) if isinstance(messages, list) else (None, [], ())


def _message(folder: SourceFolder, line: object) -> Message | None:
    if not isinstance(line, Mapping) or line.get("role") not in _ROLES:
        return None
    message = {name: line[name] for name in _KEPT if line.get(name)}
    calls = line.get("tool_calls")
    if isinstance(calls, list) and calls and all(isinstance(each, Mapping) for each in calls):
        message["tool_calls"] = calls
    content = content_text(line.get("content"))
    if not content and "tool_calls" not in message:
        return None
    at = folder.moment(line.get("timestamp"))
    return message | {"content": content} | ({"timestamp": at} if at else {})


def _ours(key: str) -> str:
    """Return their key as ours: with a channel, and a thread behind a slash."""
    channel, sign, chat = key.partition(":")
    if not sign or not channel or not chat:
        return f"nanobot:{key}"
    place, sign, thread = chat.partition(":")
    return f"{channel}:{place}/{thread.removeprefix('topic:')}" if sign and place and thread else key


def _key_of(stem: str) -> str:
    """Return the key that a file's name stands for: `telegram_42`, or the key in base64, with `k_` before it or not."""
    coded = stem.removeprefix("k_")
    with contextlib.suppress(binascii.Error, ValueError):
        key = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
        if ":" in key and key.isprintable():
            return key
    channel, sign, chat = stem.partition("_")
    return f"{channel}:{chat}" if sign else stem
