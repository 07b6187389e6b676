"""Seed 001, "MemoryStore": every method as its examples call it, every sentence about behaviour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog

from agent.llm.model_calls import force_tool
from agent.memory import MemoryStore, Session, SessionManager
from agent.memory.update.consolidator import SYSTEM
from agent.memory.update.consolidator import TOOL as SAVE_MEMORY_TOOL
from tests.fakes.consolidator import ScriptedProvider, saving

TOOL = """
{
"type": "function",
"function": {
"name": "save_memory",
"description": "Save the memory consolidation result to persistent storage.",
"parameters": {
"type": "object",
"properties": {
"history_entry": {
"type": "string",
"description": "A paragraph (2-5 sentences) summarizing key events/decisions/topics. Start with [YYYY-MM-DD HH:MM]. \
Include detail useful for grep search."
},
"memory_update": {
"type": "string",
"description": "Full updated long-term memory as markdown. Include all existing facts plus new ones. Return \
unchanged if nothing new."
}
},
"required": ["history_entry", "memory_update"]
}
}
}
"""
ANSWER = """
{
"history_entry": "[2026-03-06 14:20] Created FastAPI server with basic routes. Added JWT authentication middleware. \
User prefers async handlers.",
"memory_update": "# User Preferences\\n- Prefers FastAPI over Flask\\n- Uses JWT for auth\\n..."
}
"""


def grown(count: int) -> Session:
    """Return the session of the example, with so many messages."""
    session = Session("cli:user123")
    for n in range(count):
        session.add_message("assistant" if n % 2 else "user", f"message {n}")
    return session


def test_write_long_term(tmp_path: Path) -> None:
    """[001] write_long_term: the read, update, write pattern; it overwrites what is there, in UTF-8."""
    memory = MemoryStore(tmp_path)
    current = memory.read_long_term()
    updated = current + "\n\n## New Facts\n- User prefers Python 3.11 é\n"
    memory.write_long_term(updated)
    assert (tmp_path / "memory" / "MEMORY.md").read_bytes().decode("utf-8") == updated
    memory.write_long_term("x")
    assert memory.read_long_term() == "x"


def test_append_history(tmp_path: Path) -> None:
    """[001] append_history: the entry as it is, separated by a blank line; a program without a time gets one."""
    memory = MemoryStore(tmp_path)
    entry = (
        "[2026-03-06 14:30] User requested to create a FastAPI project. "
        "Generated project structure with main.py, requirements.txt, and Docker config."
    )
    memory.append_history(entry)
    memory.append_history("Something else.")
    first, second, rest = (tmp_path / "memory" / "HISTORY.md").read_text().split("\n\n")
    assert first == entry
    assert second.endswith("] Something else.")
    assert rest == ""
    memory.append_history(entry)
    assert (tmp_path / "memory" / "HISTORY.md").read_text().count(entry) == 2


async def test_the_consolidate_example(tmp_path: Path) -> None:
    """[001] consolidate: its example, line by line. With a window of 50 the newest 25 stay, as in [000]."""
    sessions = SessionManager(tmp_path)
    memory = MemoryStore(tmp_path)
    provider = ScriptedProvider(saving("- x"))
    session = sessions.get_or_create("cli:user123")
    session.messages += grown(120).messages
    if len(session.messages) > 100:
        success = await memory.consolidate(session, provider, model="claude-3-5-sonnet-20241022", memory_window=50)
        assert success
        sessions.save(session)
    assert provider.asked[0]["model"] == "claude-3-5-sonnet-20241022"
    assert SessionManager(tmp_path).get_or_create("cli:user123").last_consolidated == 95


def test_system_prompt_and_tool() -> None:
    """[001] "Memory Consolidation Flow": the words and the definition, exactly."""
    assert SYSTEM == (
        "You are a memory consolidation agent. Call the save_memory tool with your consolidation of the conversation."
    )
    assert json.loads(TOOL) == SAVE_MEMORY_TOOL
    assert force_tool(SAVE_MEMORY_TOOL) == {"type": "function", "function": {"name": "save_memory"}}


async def test_the_example_answer(tmp_path: Path) -> None:
    """[001] "The LLM must call save_memory with": both texts reach their files."""
    answer = json.loads(ANSWER)
    provider = ScriptedProvider(saving(answer["memory_update"], answer["history_entry"]))
    memory = MemoryStore(tmp_path)
    assert await memory.consolidate(grown(60), provider, "m")
    assert memory.read_long_term() == answer["memory_update"] + "\n"
    assert (tmp_path / "memory" / "HISTORY.md").read_text() == answer["history_entry"] + "\n\n"


@pytest.mark.parametrize(
    "failure",
    [
        ScriptedProvider(type("Response", (), {"content": "Sure, I remember.", "tool_calls": []})()),
        ScriptedProvider(saving("", "")),
        ScriptedProvider(ConnectionError("reset")),
        ScriptedProvider(KeyError("x")),
    ],
    ids=["no call", "malformed arguments", "network error", "any error"],
)
async def test_error_handling(tmp_path: Path, failure: ScriptedProvider) -> None:
    """[001] "Error Handling": False, a line in the log, the session unchanged, and it can be retried safely."""
    memory, session = MemoryStore(tmp_path), grown(60)
    memory.write_long_term("- old\n")
    before = list(session.messages)
    with structlog.testing.capture_logs() as logs:
        assert await memory.consolidate(session, failure, "m") is False
    assert "consolidation.failed" in [line["event"] for line in logs]
    assert "message" not in "".join(str(line) for line in logs)
    assert (session.messages, session.last_consolidated) == (before, 0)
    assert memory.read_long_term() == "- old\n"
    assert not (tmp_path / "memory" / "HISTORY.md").exists()
    assert await memory.consolidate(session, ScriptedProvider(saving("- old\n- new\n")), "m") is True


def test_architecture_notes(tmp_path: Path) -> None:
    """[001] "Architecture Notes": the folder is made; files a person edited are read as they are, in UTF-8."""
    memory = MemoryStore(tmp_path / "deep" / "workspace")
    memory.append_history("[2026-03-06 14:30] x")
    memory.memory_file.write_text("- edited by hand: é\n", encoding="utf-8")
    assert memory.read_long_term() == "- edited by hand: é\n"
