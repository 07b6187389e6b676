"""OpenClaw's folder: `workspace/` with the memory files, `agents/<id>/` with the conversations.

A conversation is a tree of JSON lines, in a file of its own or (since 2026.7) in a SQLite database; we take the branch
that was spoken last. Which key it has stands in `sessions.json` or in that database.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.memory.importers.import_data import ImportData, ImportedSession, Message, SkippedItem
from agent.memory.importers.source_folder import SourceFolder, content_text
from agent.memory.importers.sqlite_source import open_read_only
from agent.memory.importers.workspace import read_workspace
from gateway.errors import UserError

MAIN = "main"
_DATABASE = "openclaw-agent.sqlite"
_ABOUT_THEM = re.compile(r"\A[^\n]{1,80}\(untrusted metadata\):\n```json\n(.*?)\n```\s*", re.DOTALL)
_NOBODYS = re.compile(r"(?:^|:)(?:cron|hook|subagent|acp|heartbeat|node|explicit)(?::|$)")
_PLACES = frozenset({"direct", "dm", "group", "channel", "room"})


def read_openclaw(path: Path, zone: str) -> ImportData:
    """Read `~/.openclaw`, or a workspace of it. Raises UserError when it is neither."""
    folder = SourceFolder(path, zone)
    workspace = path / "workspace" if (path / "workspace").is_dir() else path
    if workspace == path and (path / "agents").is_dir():
        raise UserError(f"{path} has no workspace/; name the workspace's own folder for its memory files")
    read_workspace(folder, workspace)
    for other in sorted(path.glob("workspace-*")):
        folder.skip(other, "another agent's; import that folder by itself, with --as for whose it is to be")
    agents = sorted(each for each in path.glob("agents/*") if each.is_dir())
    ours = next((each for each in agents if each.name == MAIN), agents[0] if len(agents) == 1 else None)
    for agent in agents:
        if agent == ours:
            _read_agent(folder, agent)
        else:
            folder.skip(agent, f"another agent's conversations; only those of {MAIN} are taken")
    if workspace != path:
        folder.leave_the_rest(path, frozenset({"workspace", "agents"}))
    return folder.found


def _read_agent(folder: SourceFolder, agent: Path) -> None:
    keys = _keys_in_index(folder, agent / "sessions" / "sessions.json")
    known: set[str] = set()
    database = folder.one(agent / "agent" / _DATABASE)
    for session, key, events in _in_database(folder, database) if database is not None else ():
        known.add(session)
        _take(folder, f"{folder.name(agent)}/agent/{_DATABASE}#{session}", key or keys.get(session, ""), events)
    for path in folder.files(agent / "sessions", "*.jsonl*"):
        session = path.name.partition(".")[0]
        if ".deleted." in path.name:
            folder.skip(path, "it was deleted there")
        elif path.name.endswith((".zst", ".lock")) or ".checkpoint." in path.name or ".trajectory." in path.name:
            folder.skip(path, "it is no conversation, or packed; what it holds stands in another file")
        elif session in known and path.suffix == ".jsonl":
            folder.skip(path, "the database has it")
        elif (data := folder.data(path)) is not None:
            events, bad = folder.lines(data)
            _take(folder, folder.name(path), keys.get(session, ""), events, bad)


def _keys_in_index(folder: SourceFolder, path: Path) -> dict[str, str]:
    """Return the keys by session id."""
    found = {}
    for key, entry in folder.json(path).items():
        if isinstance(entry, Mapping) and isinstance(entry.get("sessionId"), str):
            found[entry["sessionId"]] = key
    return found


# -- one conversation ------------------------------------------------------------------------------


def _take(
    folder: SourceFolder, source: str, key: str, events: Sequence[Mapping[str, Any]], bad: tuple[bytes, ...] = ()
) -> None:
    head = next((event for event in events if event.get("type") == "session"), {})
    if _NOBODYS.search(key):
        folder.found.left.append(SkippedItem(source, "nobody's conversation: a task ran in it"))
        return
    messages = tuple(message for event in _branch(events) if (message := _message(folder, event)) is not None)
    if not any(message["role"] == "user" for message in messages):
        folder.found.left.append(SkippedItem(source, "nobody said anything in it"))
        return
    folder.found.sessions.append(
        ImportedSession(
            source=source,
            key=key_of(key) or f"openclaw:{head.get('id', Path(source).name.partition('.')[0])}",
            messages=messages,
            created=folder.read_moment(head.get("timestamp")),
            bad=bad,
        )
    )


def key_of(theirs: str) -> str:
    """Return ``channel:chat`` for ``agent:main:telegram:direct:42``, with ``/thread`` where it is one; "" for none."""
    parts = theirs.split(":")
    place = next((n for n, part in enumerate(parts) if part in _PLACES), 0)
    if parts[0] != "agent" or place < 3 or place + 1 >= len(parts):
        return ""
    chat = parts[place + 1]
    thread = next((parts[n + 1] for n in range(place + 2, len(parts) - 1) if parts[n] in ("thread", "topic")), "")
    if parts[2] == "slack":
        chat = chat.upper()  # their keys are in small letters, Slack's ids are not
    return f"{parts[2]}:{chat}/{thread}" if thread else f"{parts[2]}:{chat}"


def _branch(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the branch that was spoken last: from the last entry up, parent by parent."""
    entries = [event for event in events if event.get("type") != "session"]
    by_id = {event["id"]: event for event in entries if isinstance(event.get("id"), str)}
    if len(by_id) != len(entries):  # of before there were trees
        return entries
    found: list[Mapping[str, Any]] = []
    at = entries[-1] if entries else None
    seen: set[str] = set()
    while at is not None and at["id"] not in seen:
        seen.add(at["id"])
        found.append(at)
        parent = at.get("parentId")
        at = by_id.get(parent) if isinstance(parent, str) else None
    return found[::-1]


def _message(folder: SourceFolder, event: Mapping[str, Any]) -> Message | None:
    said = event.get("message")
    if event.get("type") != "message" or not isinstance(said, Mapping):
        return None
    content = content_text(said.get("content"))
    at = folder.moment(event.get("timestamp")) or folder.moment(said.get("timestamp"))
    message: dict[str, Any] = {"timestamp": at} if at else {}
    role = said.get("role")
    if role == "user" and content and content.strip():
        text, by = _without_metadata(content)
        return message | {"role": "user", "content": text} | ({"by": by} if by else {}) if text.strip() else None
    if role == "assistant":
        calls = [_call(part) for part in said.get("content") or () if _is_call(part)]
        if not calls and not (content or "").strip():
            return None
        return message | {"role": "assistant", "content": content or ""} | ({"tool_calls": calls} if calls else {})
    if role == "toolResult":
        names = {"tool_call_id": str(said.get("toolCallId", "")), "name": str(said.get("toolName", ""))}
        return message | {"role": "tool", "content": content or ""} | names
    return None


def _is_call(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "toolCall" and isinstance(part.get("name"), str)


def _call(part: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(part.get("arguments") or {}, ensure_ascii=False)
    function = {"name": part["name"], "arguments": arguments}
    return {"id": str(part.get("id", "")), "type": "function", "function": function}


def _without_metadata(text: str) -> tuple[str, dict[str, str]]:
    """Return what a person wrote, without the blocks about them that were put before it, and who they say it was."""
    by: dict[str, str] = {}
    while (found := _ABOUT_THEM.match(text)) is not None:
        text = text[found.end() :]
        try:
            about = json.loads(found[1])
        except (ValueError, RecursionError):
            continue
        if isinstance(about, dict) and about.get("sender_id"):
            by = {"id": str(about["sender_id"]), "name": str(about.get("sender") or about.get("sender_name") or "")}
    return text, by


# -- the database ----------------------------------------------------------------------------------


def _in_database(folder: SourceFolder, path: Path) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Yield id, key and events of every conversation in the database."""
    try:
        if not folder.fits(path):
            return
        with open_read_only(path) as database:
            yield from _conversations(database)
    except (sqlite3.Error, OSError) as error:
        folder.skip(path, f"cannot be read: {error}")


def _conversations(database: sqlite3.Connection) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
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
        events = [_read_event(row[0]) for row in rows]
        yield str(session), keys.get(session, ""), [event for event in events if event]


def _read_event(text: object) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
