"""Read OpenClaw's folder: `workspace/` with the memory files, `agents/<id>/` with the conversations.

A conversation is a tree of JSON lines, in its own file or (since 2026.7) in a SQLite database. The branch of the last
message is imported. The session key is in `sessions.json` or in that database.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.base.transcript_lines import decode
from agent.importers.import_data import ImportData, ImportedSession, Message
from agent.importers.source_folder import SourceFolder, content_text, open_read_only, read_workspace
from gateway.errors import UserError
from gateway.ports.journal import Line

MAIN = "main"
_DATABASE = "openclaw-agent.sqlite"
_METADATA_BLOCK = re.compile(r"\A[^\n]{1,80}\(untrusted metadata\):\n```json\n(.*?)\n```\s*", re.DOTALL)
_TASK_KEY = re.compile(r"(?:^|:)(?:cron|hook|subagent|acp|heartbeat|node|explicit)(?::|$)")
_CHAT_KINDS = frozenset({"direct", "dm", "group", "channel", "room"})


def read_openclaw(path: Path, zone: str) -> ImportData:
    """Read `~/.openclaw`, or one of its workspaces. Raises UserError if *path* is neither."""
    folder = SourceFolder(path, zone)
    workspace = path / "workspace" if (path / "workspace").is_dir() else path
    if workspace == path and (path / "agents").is_dir():
        raise UserError(f"{path} has no workspace/; name the workspace's own folder for its memory files")
    if next(workspace.glob("sessions/*.json*"), None) is not None and not (path / "agents").is_dir():
        raise UserError(f"{path} is a folder of nanobot or Autobot; import it with `parlour import nanobot`")
    read_workspace(folder, workspace)
    for other in sorted(path.glob("workspace-*")):
        folder.skip(other, "another agent's; import that folder separately, with --as for the person it belongs to")
    agents = sorted(each for each in path.glob("agents/*") if each.is_dir())
    main = next((each for each in agents if each.name == MAIN), agents[0] if len(agents) == 1 else None)
    for agent in agents:
        if agent == main:
            _read_agent(folder, agent)
        else:
            folder.skip(agent, f"another agent's conversations; only those of {MAIN} are imported")
    if workspace != path:
        folder.skip_rest(path, frozenset({"workspace", "agents"}))
    folder.check_layout(workspace, ("memory", "MEMORY.md", "SOUL.md", "USER.md", "../agents"))
    return folder.data


def _read_agent(folder: SourceFolder, agent: Path) -> None:
    keys = _keys_in_index(folder, agent / "sessions" / "sessions.json")
    in_database: set[str] = set()
    database = folder.one(agent / "agent" / _DATABASE)
    for session, key, events in _read_database(folder, database) if database is not None else ():
        in_database.add(session)
        _add_session(folder, f"{folder.name(agent)}/agent/{_DATABASE}#{session}", key or keys.get(session, ""), events)
    for path in folder.files(agent / "sessions", "*.jsonl*"):
        session = path.name.partition(".")[0]
        if ".deleted." in path.name:
            folder.skip(path, "it was deleted there")
        elif path.name.endswith((".zst", ".lock")) or ".checkpoint." in path.name or ".trajectory." in path.name:
            folder.skip(path, "not a conversation, or a compressed copy of one in another file")
        elif session in in_database and path.suffix == ".jsonl":
            folder.skip(path, "the database has it")
        elif (data := folder.read_bytes(path)) is not None:
            events, bad = folder.lines(data)
            _add_session(folder, folder.name(path), keys.get(session, ""), events, bad)


def _keys_in_index(folder: SourceFolder, path: Path) -> dict[str, str]:
    """Return the session keys by session id."""
    return {
        entry["sessionId"]: key
        for key, entry in folder.read_json(path).items()
        if isinstance(entry, Mapping) and isinstance(entry.get("sessionId"), str)
    }


# -- one conversation ------------------------------------------------------------------------------


def _add_session(
    folder: SourceFolder, source: str, key: str, events: Sequence[Mapping[str, Any]], bad: tuple[bytes, ...] = ()
) -> None:
    head = next((event for event in events if event.get("type") == "session"), {})
    messages = tuple(message for event in _last_branch(events) if (message := _parse_event(folder, event)) is not None)
    session = ImportedSession(
        source=source,
        key=convert_key(key) or f"openclaw:{head.get('id', Path(source).name.partition('.')[0])}",
        messages=messages,
        created=folder.parse_time(head.get("timestamp")),
        bad=bad,
    )
    has_user = any(message["role"] == "user" for message in messages)
    folder.add_session(session, is_task=_TASK_KEY.search(key) is not None, is_empty=not has_user)


def convert_key(key: str) -> str:
    """Return ``channel:chat[/thread]`` for ``agent:main:telegram:direct:42[:thread:7]``; "" without a chat."""
    parts = key.split(":")
    kind = next((n for n, part in enumerate(parts) if part in _CHAT_KINDS), 0)
    if parts[0] != "agent" or kind < 3 or kind + 1 >= len(parts):
        return ""
    chat = parts[kind + 1]
    thread = next((parts[n + 1] for n in range(kind + 2, len(parts) - 1) if parts[n] in ("thread", "topic")), "")
    if parts[2] == "slack":
        chat = chat.upper()  # OpenClaw's keys are lower case, Slack's ids are not
    return f"{parts[2]}:{chat}/{thread}" if thread else f"{parts[2]}:{chat}"


def _last_branch(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the branch of the last entry, from its root on."""
    entries = [event for event in events if event.get("type") != "session"]
    by_id = {event["id"]: event for event in entries if isinstance(event.get("id"), str)}
    if len(by_id) != len(entries):  # written before OpenClaw had branches
        return entries
    branch: dict[str, Mapping[str, Any]] = {}
    entry = entries[-1] if entries else None
    while entry is not None and entry["id"] not in branch:
        branch[entry["id"]] = entry
        parent = entry.get("parentId")
        entry = by_id.get(parent) if isinstance(parent, str) else None
    return [*branch.values()][::-1]


def _parse_event(folder: SourceFolder, event: Mapping[str, Any]) -> Message | None:
    payload = event.get("message")
    if event.get("type") != "message" or not isinstance(payload, Mapping):
        return None
    content = content_text(payload.get("content"))
    at = folder.format_time(event.get("timestamp")) or folder.format_time(payload.get("timestamp"))
    message: dict[str, Any] = {"timestamp": at} if at else {}
    role = payload.get("role")
    if role == "user" and content and content.strip():
        text, by = _split_metadata(content)
        return message | {"role": "user", "content": text} | ({"by": by} if by else {}) if text.strip() else None
    if role == "assistant":
        calls = [_convert_tool_call(part) for part in payload.get("content") or () if _is_tool_call(part)]
        if not calls and not (content or "").strip():
            return None
        return message | {"role": "assistant", "content": content or ""} | ({"tool_calls": calls} if calls else {})
    if role == "toolResult":
        names = {"tool_call_id": str(payload.get("toolCallId", "")), "name": str(payload.get("toolName", ""))}
        return message | {"role": "tool", "content": content or ""} | names
    return None


def _is_tool_call(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "toolCall" and isinstance(part.get("name"), str)


def _convert_tool_call(part: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(part.get("arguments") or {}, ensure_ascii=False)
    function = {"name": part["name"], "arguments": arguments}
    return {"id": str(part.get("id", "")), "type": "function", "function": function}


def _split_metadata(text: str) -> tuple[str, dict[str, str]]:
    """Split the metadata blocks off a user's message; return the message and the sender that the blocks name."""
    by: dict[str, str] = {}
    while (block := _METADATA_BLOCK.match(text)) is not None:
        text = text[block.end() :]
        metadata = decode(block[1]) or {}
        if metadata.get("sender_id"):
            name = metadata.get("sender") or metadata.get("sender_name") or ""
            by = {"id": str(metadata["sender_id"]), "name": str(name)}
    return text, by


# -- the database ----------------------------------------------------------------------------------


def _read_database(folder: SourceFolder, path: Path) -> Iterator[tuple[str, str, list[Line]]]:
    """Yield the id, key and events of every conversation in the database."""
    try:
        if not folder.fits(path):
            return
        with open_read_only(path) as database:
            yield from _conversations(database)
    except (sqlite3.Error, OSError) as error:
        folder.skip(path, f"cannot be read: {error}")


def _conversations(database: sqlite3.Connection) -> Iterator[tuple[str, str, list[Line]]]:
    keys: dict[str, str] = {}
    for table in ("session_entries", "sessions", "session_windows"):
        columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        if {"session_id", "session_key"} <= columns:
            keys |= dict(database.execute(f"SELECT session_id, session_key FROM {table}"))  # noqa: S608 - our names
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'transcript_events'").fetchone():
        return
    for (session,) in database.execute("SELECT DISTINCT session_id FROM transcript_events").fetchall():
        rows = database.execute(
            "SELECT event_json FROM transcript_events WHERE session_id = ? ORDER BY seq", (session,)
        )
        events = [decode(text) for (text,) in rows if isinstance(text, str)]
        yield str(session), keys.get(session, ""), [event for event in events if event]
