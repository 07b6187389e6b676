"""Read session files of older systems: a JSON document, or nanobot's JSONL file with the same content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, parse_time

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LegacySession:
    """The content of a session file of an older system."""

    messages: list[dict[str, Any]]
    last_consolidated: int
    created_at: datetime | None
    updated_at: datetime | None


def find_legacy(disk: Disk, folder: Path, key: str) -> LegacySession | None:
    """Return the older system's session of *key* in *folder*, None if there is no file of that key."""
    name = key.replace(":", "_")
    if "/" in name or "\0" in name or len(name.encode("utf-8", "surrogatepass")) > 200:
        return None
    for ending, read in ((".json", read_document), (".jsonl", read_jsonl)):
        data = disk.load(folder / f"{name}{ending}")
        session = read(data, key) if data is not None else None
        if session is not None:
            return session
    return None


def read_document(data: bytes, key: str) -> LegacySession | None:
    """Parse a JSON document; return None if it is not a session of *key*."""
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        log.warning("session.import_unreadable")
        return None
    if not isinstance(document, dict) or document.get("key", key) != key:
        return None
    messages = document.get("messages")
    return _legacy(document, messages if isinstance(messages, list) else [])


def read_jsonl(data: bytes, key: str) -> LegacySession | None:
    """Parse a metadata line and one message per line, skipping damaged lines; None if it is not a session of *key*."""
    lines = [line for raw in data.splitlines() if (line := decode(raw)) is not None]
    if not lines or lines[0].get("_type") != "metadata" or lines[0].get("key", key) != key:
        return None
    return _legacy(lines[0], lines[1:])


def _legacy(metadata: Mapping[str, Any], lines: list[Any]) -> LegacySession:
    messages = [dict(each) for each in lines if isinstance(each, Mapping) and isinstance(each.get("role"), str)]
    pointer = metadata.get("last_consolidated", 0)
    return LegacySession(
        messages,
        min(pointer, len(messages)) if isinstance(pointer, int) and pointer > 0 else 0,
        parse_time(metadata.get("created_at")),
        parse_time(metadata.get("updated_at")),
    )
