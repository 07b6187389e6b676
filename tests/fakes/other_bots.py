"""Folders as other bots leave them, with a little of everything in them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any


def jsonl(path: Path, lines: Sequence[Mapping[str, Any] | str]) -> Path:
    """Write lines: objects as JSON, text as it stands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def write(path: Path, text: str) -> Path:
    """Write a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def nanobot(root: Path) -> Path:
    """Make ~/.nanobot as its 0.3 leaves it: naive local times, a session with a summarised half and a bad line."""
    workspace = root / "workspace"
    write(root / "config.json", '{"providers": {"openai": {"apiKey": "sk-canary"}}}')
    write(workspace / "SOUL.md", "# Soul\n\nI am brief.\n")
    write(workspace / "USER.md", "# User\n\n- Name: Ann\n")
    write(workspace / "AGENTS.md", "Use the exec tool.\n")
    write(
        workspace / "memory" / "MEMORY.md",
        "# Preferences\n\n- Favorite color: blue\n- Tea:\n  - green\n\n# Work\n\n- Go\n",
    )
    jsonl(
        workspace / "memory" / "history.jsonl",
        [
            {"cursor": 7, "timestamp": "2026-04-03 00:02", "content": "- User prefers dark mode\n- PostgreSQL"},
            "{torn",
            {"cursor": 8, "timestamp": "2026-04-04 10:00", "content": "[2026-04-04 10:00] Talked about boats."},
        ],
    )
    write(workspace / "memory" / ".dream_cursor", "7")
    write(workspace / "memory" / "2026-03-25-api-design.md", "# Session Memory: 2026-03-25 14:30\n\nREST it is.\n")
    jsonl(
        workspace / "sessions" / "telegram_42.jsonl",
        [
            {
                "_type": "metadata",
                "key": "telegram:42",
                "created_at": "2026-03-06T10:00:00",
                "last_consolidated": 2,
                "metadata": {},
            },
            {"role": "user", "content": "My boat is Nessie", "timestamp": "2026-03-06T10:00:00"},
            {"role": "assistant", "content": "Noted.", "timestamp": "2026-03-06T10:00:05"},
            "not json",
            {"role": "user", "content": "What is it called?", "timestamp": "2026-03-06T10:01:00"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "grep", "arguments": "{}"}}],
                "timestamp": "2026-03-06T10:01:01",
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "name": "grep",
                "content": "Nessie",
                "timestamp": "2026-03-06T10:01:02",
            },
            {"role": "assistant", "content": "Nessie.", "timestamp": "2026-03-06T10:01:03"},
        ],
    )
    write(
        root / "sessions" / "cli_direct.json",
        json.dumps(
            {
                "key": "cli:direct",
                "messages": [{"role": "user", "content": "Hello", "timestamp": "2026-03-06T10:00:00"}],
                "last_consolidated": 0,
            }
        ),
    )
    return root


def nanobot_database(root: Path, *, workspace: str = "0" * 32) -> Path:
    """Make ~/.nanobot as 0.3.6 leaves it: the same conversation in a database, by the workspace's id."""
    nanobot(root)
    lines = (root / "workspace" / "sessions" / "telegram_42.jsonl").read_text().splitlines()
    records = [line for line in lines[1:] if line.startswith("{")]
    write(root / "workspace" / ".nanobot" / "workspace-id", f"{workspace}\n")
    path = root / "sessions" / workspace / "sessions.sqlite3"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE sessions (key TEXT PRIMARY KEY, created_at TEXT, last_archived INTEGER)")
        database.execute("CREATE TABLE messages (session_key TEXT, position INTEGER, record TEXT)")
        database.execute("INSERT INTO sessions VALUES ('telegram:42', '2026-03-06T10:00:00', 2)")
        rows = [("telegram:42", n, record) for n, record in enumerate(records)]
        database.executemany("INSERT INTO messages VALUES (?, ?, ?)", reversed(rows))
    (root / "workspace" / "sessions" / "telegram_42.jsonl").unlink()
    jsonl(root / "sessions" / ("f" * 32) / "eDp5.jsonl", [{"_type": "metadata"}, {"role": "user", "content": "other"}])
    return root


def autobot(root: Path) -> Path:
    """Make Autobot's workspace: keys in file names alone, UTC times, HISTORY.md of [004]."""
    write(root / "memory" / "MEMORY.md", "- CI: GitHub Actions\n")
    write(
        root / "memory" / "HISTORY.md",
        "2025-01-15 10:30: User asked about deployment.\n\n[2025-01-16 09:00] Docker.\n\n",
    )
    about = {"_type": "metadata", "created_at": "2025-01-15T10:30:00Z", "updated_at": "2025-01-15T10:31:00Z"}
    jsonl(
        root / "sessions" / "telegram_42.jsonl",
        [
            {**about, "metadata": {}},
            {"role": "user", "content": "how do I deploy this?", "timestamp": "2025-01-15T10:30:00Z"},
            {
                "role": "assistant",
                "content": "I'll help you...",
                "timestamp": "2025-01-15T10:31:00Z",
                "tools_used": ["exec", "read_file"],
            },
        ],
    )
    return root


def entry(id_: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return a line of an OpenClaw conversation."""
    message = {"role": role, "content": content, "timestamp": 1_772_791_200_000, **more}
    at = f"2026-03-06T10:00:0{len(id_)}.000Z"
    return {"type": "message", "id": id_, "parentId": parent, "timestamp": at, "message": message}


def build_conversation(session: str) -> list[dict[str, Any]]:
    """Return a conversation of OpenClaw: a branch that was given up, a tool, words about the sender."""
    about = '{"message_id": "3583", "sender_id": "42", "sender": "Ann"}'
    call = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "x"}}
    return [
        {"type": "session", "version": 3, "id": session, "timestamp": "2026-03-06T10:00:00.000Z", "cwd": "/w"},
        {"type": "model_change", "id": "a", "parentId": None, "timestamp": "2026-03-06T10:00:00.000Z"},
        entry(
            "bb", "a", "user", f"Conversation info (untrusted metadata):\n```json\n{about}\n```\n\nMy boat is Nessie"
        ),
        entry(
            "ccc",
            "bb",
            "assistant",
            [{"type": "thinking", "thinking": "canary"}, {"type": "text", "text": "Abandoned."}],
        ),
        entry("dddd", "bb", "assistant", [{"type": "text", "text": "Let me look."}, call]),
        entry("eeeee", "dddd", "toolResult", [{"type": "text", "text": "contents"}], toolCallId="c1", toolName="read"),
        entry("ffffff", "eeeee", "assistant", [{"type": "text", "text": "Noted."}]),
    ]


def openclaw(root: Path, *, in_database: bool = False) -> Path:
    """Make ~/.openclaw with its main agent's conversations in files, or in the database of 2026.7."""
    workspace = root / "workspace"
    write(workspace / "MEMORY.md", "# MEMORY.md\n\n## Preferences\n\n- Short answers\n")
    write(workspace / "SOUL.md", "Be genuinely helpful.\n")
    write(workspace / "IDENTITY.md", "- **Name:** Molty\n")
    write(workspace / "memory" / "2026-03-18.md", "- Ann moved to Bonn\n")
    write(workspace / "memory" / "projects.md", "# Projects\n\n- Boat\n")
    write(root / "workspace-ops" / "MEMORY.md", "- another agent's\n")
    write(root / "openclaw.json", "{ // json5\n}")
    sessions = root / "agents" / "main" / "sessions"
    index = {
        "agent:main:telegram:direct:42": {"sessionId": "s-one", "updatedAt": 1},
        "agent:main:cron:daily": {"sessionId": "s-cron", "updatedAt": 1},
    }
    write(sessions / "sessions.json", json.dumps(index))
    if in_database:
        database_of(root / "agents" / "main" / "agent" / "openclaw-agent.sqlite", build_conversation("s-one"))
    else:
        jsonl(sessions / "s-one.jsonl", build_conversation("s-one"))
        jsonl(sessions / "s-cron.jsonl", build_conversation("s-cron"))
        jsonl(
            sessions / "s-old.jsonl.reset.2026-03-05T04-00-00.000Z",
            [{"type": "session", "id": "s-old"}, entry("x", None, "user", "Earlier")],
        )
        jsonl(sessions / "s-gone.jsonl.deleted.2026-03-05T04-00-00.000Z", build_conversation("s-gone"))
    jsonl(root / "agents" / "ops" / "sessions" / "s-two.jsonl", build_conversation("s-two"))
    return root


def database_of(path: Path, events: Sequence[Mapping[str, Any]]) -> None:
    """Write a conversation as OpenClaw's database holds it, out of order."""
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE session_windows (session_id TEXT PRIMARY KEY, session_key TEXT NOT NULL)")
        database.execute(
            "CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, created_at INTEGER)"
        )
        session = str(events[0]["id"])
        database.execute("INSERT INTO session_windows VALUES (?, ?)", (session, "agent:main:telegram:direct:42"))
        rows = [(session, n, json.dumps(event), 0) for n, event in enumerate(events)]
        database.executemany("INSERT INTO transcript_events VALUES (?, ?, ?, ?)", reversed(rows))


def fingerprint(root: Path) -> dict[str, str]:
    """Return every file under *root* with a hash of its bytes."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
