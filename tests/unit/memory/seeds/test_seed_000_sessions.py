"""Seed 000, its sessions and what of memory reaches the model: the parts that "Memory System" has beside the store."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

from agent.base.scopes import scope_folder
from agent.memory import Session, SessionManager
from gateway.ports.memory import HistoryEntry
from tests.fakes.history_log import HistoryLog
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.memory import CountingDisk
from tests.fakes.other_bots import write
from tests.fakes.recording_model import RecordingModel

KEY = "telegram:123456789"
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "message text", "timestamp": "2026-03-06T10:30:00"},
    {
        "role": "assistant",
        "content": "message text",
        "timestamp": "2026-03-06T10:30:00",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "tool_name", "arguments": "{}"}}],
    },
    {
        "role": "tool",
        "content": "message text",
        "timestamp": "2026-03-06T10:30:00",
        "tool_call_id": "c1",
        "name": "tool_name",
    },
]


def test_a_session_has_the_fields_of_the_class() -> None:
    """[000] "Session Manager": key, messages, last_consolidated, created_at, updated_at; get_history of 50."""
    names = [field.name for field in dataclasses.fields(Session)]
    assert names == ["key", "messages", "last_consolidated", "created_at", "updated_at"]
    assert Session(KEY).last_consolidated == 0
    assert inspect.signature(Session.get_history).parameters["max_messages"].default == 50


def test_sessions_are_loaded_lazily_and_cached(tmp_path: Path) -> None:
    """[000] "Session Persistence": a manager reads a file when it is asked for it, and once."""
    first = SessionManager(tmp_path)
    session = first.get_or_create(KEY)
    session.messages += MESSAGES
    first.save(session)
    disk = CountingDisk()
    second = SessionManager(tmp_path, disk=disk)
    assert disk.bytes_read == 0
    loaded = second.get_or_create(KEY)
    read = disk.bytes_read
    assert read > 0
    assert second.get_or_create(KEY) is loaded
    assert disk.bytes_read == read


async def test_memory_is_in_every_prompt_and_history_in_none(tmp_path: Path) -> None:
    """[000] "Context Integration": MEMORY.md is loaded for every message, HISTORY.md is there to be searched."""
    scope = scope_folder(tmp_path, "people/pocket%3aann")
    write(scope / "memory" / "MEMORY.md", "- Favorite color: blue\n")
    HistoryLog(scope / "memory").append(
        HistoryEntry(timestamp="2026-03-06 10:00", content="They confirmed a colour.", entry="e1")
    )
    model = RecordingModel()
    async with gateway(home=tmp_path, model=model) as parlour:
        for text in ("one", "two"):
            await parlour.channel.ask("ann", text)
    for prompt in model.prompts:
        assert "- Favorite color: blue" in prompt[0]["content"]
        assert "They confirmed a colour." not in str(prompt)
    assert len(model.prompts) == 2
