"""nanobot's folder, and Autobot's, which has its shape: a workspace with `memory/` and `sessions/`.

A session is JSON lines, the first of them about it (`_type: metadata`), or the JSON document of seed 000.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.memory.importing.folder import Folder, in_words
from agent.memory.importing.found import Found, FoundSession, Message
from agent.memory.importing.workspace import read_workspace

_KEPT = ("role", "tool_call_id", "name", "tools_used")
_NOBODYS = re.compile(r"(?:cron|heartbeat|system|subagent|dream)(?::|$)")
_ROLES = ("user", "assistant", "tool")


def read_nanobot(path: Path, zone: str) -> Found:
    """Read `~/.nanobot`, Autobot's folder, or the workspace in it. Raises UserMistake when it is none."""
    folder = Folder(path, zone)
    workspace = path / "workspace" if (path / "workspace").is_dir() else path
    read_workspace(folder, workspace)
    for place in dict.fromkeys((workspace / "sessions", path / "sessions")):
        for file in folder.files(place, "*.json*"):
            _read_session(folder, file)
    if workspace != path:
        folder.leave_the_rest(path, frozenset({"workspace", "sessions"}))
    return folder.found


def _read_session(folder: Folder, path: Path) -> None:
    data = folder.data(path)
    if data is None:
        return
    about, rest, bad = _document(data) if path.suffix == ".json" else _lines(folder, data)
    if about is None:
        folder.leave(path, "it is no session")
        return
    messages: list[Message] = []
    pointer = about.get("last_consolidated", 0)
    consolidated = 0
    for n, line in enumerate(rest):
        if (message := _message(folder, line)) is not None:
            messages.append(message)
            consolidated += isinstance(pointer, int) and n < pointer
    if not messages:
        folder.leave(path, "nobody said anything in it")
        return
    key = about.get("key")
    key = key if isinstance(key, str) and key else _key_of(path.stem)
    if _NOBODYS.match(key):
        folder.leave(path, "nobody's conversation: a task ran in it")
        return
    folder.found.sessions.append(
        FoundSession(
            source=folder.name(path),
            key=_ours(key),
            messages=tuple(messages),
            consolidated=consolidated,
            created=folder.read_moment(about.get("created_at")),
            bad=bad,
        )
    )


def _lines(folder: Folder, data: bytes) -> tuple[dict[str, Any] | None, list[Any], tuple[bytes, ...]]:
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


def _message(folder: Folder, line: object) -> Message | None:
    if not isinstance(line, Mapping) or line.get("role") not in _ROLES:
        return None
    message = {name: line[name] for name in _KEPT if line.get(name)}
    calls = line.get("tool_calls")
    if isinstance(calls, list) and calls and all(isinstance(each, Mapping) for each in calls):
        message["tool_calls"] = calls
    content = in_words(line.get("content"))
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
    """Return the key that a file's name stands for: `telegram_42`, or `k_` and the key in base64."""
    if stem.startswith("k_"):
        coded = stem[2:]
        try:
            return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
        except (binascii.Error, ValueError):
            pass
    channel, sign, chat = stem.partition("_")
    return f"{channel}:{chat}" if sign else stem
