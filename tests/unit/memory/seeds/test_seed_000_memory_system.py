"""Seed 000, "Memory System": its examples and numbers, as our memory has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.memory import MemoryStore, Session, SessionManager
from agent.memory.storage.messages import DEFAULT_MEMORY_WINDOW, conversation, is_due, keep_count
from agent.memory.update.consolidator import messages
from tests.fakes.consolidator import ScriptedProvider, saving

TALK = [
    ("user", "2026-03-06T10:00:00", "What's my favorite color?"),
    ("assistant", "2026-03-06T10:01:00", "I don't have that information yet."),
    ("user", "2026-03-06T10:02:00", "It's blue. Remember that."),
    ("assistant", "2026-03-06T10:03:00", "Got it, I'll remember that your favorite color is blue."),
    ("user", "2026-03-06T10:05:00", "What programming languages do I know?"),
    ("assistant", "2026-03-06T10:06:00", "Could you tell me?"),
    ("user", "2026-03-06T10:07:00", "Python, JavaScript, and Go."),
    ("assistant", "2026-03-06T10:08:00", "Thanks, I've noted that you know Python, JavaScript, and Go."),
]
INPUT = """\
[2026-03-06 10:00] USER: What's my favorite color?
[2026-03-06 10:01] ASSISTANT: I don't have that information yet.
[2026-03-06 10:02] USER: It's blue. Remember that.
[2026-03-06 10:03] ASSISTANT: Got it, I'll remember that your favorite color is blue.
[2026-03-06 10:05] USER: What programming languages do I know?
[2026-03-06 10:06] ASSISTANT: Could you tell me?
[2026-03-06 10:07] USER: Python, JavaScript, and Go.
[2026-03-06 10:08] ASSISTANT: Thanks, I've noted that you know Python, JavaScript, and Go."""
MEMORY = """# User Preferences

- Favorite color: blue

# Skills

- Programming languages: Python, JavaScript, Go
"""
ENTRY = """[2026-03-06 10:00] User shared personal preferences and technical background.
Confirmed favorite color is blue. Discussed programming experience with Python,
JavaScript, and Go. No specific projects or tasks initiated during this session."""


def talk() -> list[dict[str, str]]:
    """Return the example's messages in the format of its "Message Structure"."""
    return [{"role": role, "content": content, "timestamp": at} for role, at, content in TALK]


async def test_consolidation_example(tmp_path: Path) -> None:
    """[000] "Consolidation Example": this input, and from that answer these two files, to the letter."""
    provider = ScriptedProvider(saving(MEMORY, ENTRY))
    session = Session("telegram:123456789", talk())
    assert await MemoryStore(tmp_path).consolidate(session, provider, "m", archive_all=True)
    assert provider.prompt.endswith(f"## Conversation to Process\n{INPUT}")
    assert (tmp_path / "memory" / "MEMORY.md").read_text() == MEMORY
    assert (tmp_path / "memory" / "HISTORY.md").read_text() == ENTRY + "\n\n"


def test_the_prompt_is_the_one_that_is_printed() -> None:
    """[000] "Build Consolidation Prompt": its words, with the memory or ``(empty)``."""
    expected = (
        "Process this conversation and call the save_memory tool with your consolidation.\n\n"
        "## Current Long-term Memory\n(empty)\n\n## Conversation to Process\n" + INPUT
    )
    assert messages("", conversation(talk()))[1] == {"role": "user", "content": expected}
    assert "## Current Long-term Memory\n- likes tea\n\n" in messages("- likes tea\n", [])[1]["content"]


def test_tools_used_stand_in_the_line_and_empty_messages_do_not() -> None:
    """[000] the loop over `old_messages`: `tools_used`, the first 16 characters of the time, `?` without one."""
    said: list[dict[str, Any]] = [
        {
            "role": "assistant",
            "content": "Done.",
            "tools_used": ["exec", "write_file"],
            "timestamp": "2026-03-06T10:30:59",
        },
        {"role": "assistant", "content": "", "timestamp": "2026-03-06T10:31:00"},
        {"role": "user", "content": "Thanks"},
    ]
    assert conversation(said) == ["[2026-03-06 10:30] ASSISTANT [tools: exec, write_file]: Done.", "[?] USER: Thanks"]


def test_default_window_and_trigger() -> None:
    """[000] "Rolling Window": 100; "Automatic Triggering": when the unconsolidated messages are that many."""
    assert DEFAULT_MEMORY_WINDOW == 100
    assert next(total for total in range(1, 201) if is_due(total, 0, 100)) == 100
    assert keep_count(100) == 50
    # The next one is due when the 50 that were kept have become 100 again.
    assert next(total for total in range(100, 300) if is_due(total, 50, 100)) == 150


def test_memory_store_files_and_context(tmp_path: Path) -> None:
    """[000] "Implementation": both files, their folder made, the context under its heading."""
    store = MemoryStore(tmp_path)
    assert store.memory_dir == tmp_path / "memory"
    assert store.memory_dir.is_dir()
    assert (store.memory_file.name, store.history_file.name) == ("MEMORY.md", "HISTORY.md")
    assert store.read_long_term() == ""
    assert store.get_memory_context() == ""
    store.write_long_term("- Favorite color: blue")
    assert store.get_memory_context() == "## Long-term Memory\n- Favorite color: blue"
    store.append_history("[2026-03-06 14:30] One.\n\n")
    store.append_history("[2026-03-06 14:31] Two.")
    assert store.history_file.read_text() == "[2026-03-06 14:30] One.\n\n[2026-03-06 14:31] Two.\n\n"


async def test_new_command_as_the_seed_does_it(tmp_path: Path) -> None:
    """[000] "/new Command": a temporary session is archived whole; only then is the real one cleared."""
    sessions, store = SessionManager(tmp_path), MemoryStore(tmp_path)
    session = sessions.get_or_create("telegram:123456789")
    session.messages += talk()
    session.last_consolidated = 4
    sessions.save(session)
    for provider, expected in ((ScriptedProvider(OSError("down")), False), (ScriptedProvider(saving("- x")), True)):
        temp = Session(key=session.key)
        temp.messages = list(session.messages[session.last_consolidated :])
        assert await store.consolidate(temp, provider, "m", archive_all=True) is expected
    assert "It's blue" not in provider.prompt
    assert "Python, JavaScript" in provider.prompt
    session.clear()
    sessions.save(session)
    sessions.invalidate(session.key)
    assert sessions.get_or_create("telegram:123456789").messages == []


async def test_the_session_document_of_the_seed_is_consolidated(tmp_path: Path) -> None:
    """[000] "Session Persistence": the JSON it prints is loaded, consolidated, and goes on as ours."""
    (tmp_path / "sessions").mkdir(mode=0o700)
    (tmp_path / "sessions" / "telegram_123456789.json").write_text(
        '{"key": "telegram:123456789", "messages": ['
        '{"role": "user", "content": "Hello", "timestamp": "2026-03-06T10:00:00"},'
        '{"role": "assistant", "content": "Hi! How can I help?", "timestamp": "2026-03-06T10:00:01"}],'
        '"last_consolidated": 0, "created_at": "2026-03-06T10:00:00", "updated_at": "2026-03-06T10:00:01"}'
    )
    sessions = SessionManager(tmp_path)
    session = sessions.get_or_create("telegram:123456789")
    provider = ScriptedProvider(saving("- x"))
    assert await MemoryStore(tmp_path).consolidate(session, provider, "m", archive_all=True)
    assert "[2026-03-06 10:00] ASSISTANT: Hi! How can I help?" in provider.prompt
    sessions.save(session)
    assert SessionManager(tmp_path).get_or_create("telegram:123456789").last_consolidated == 2


async def test_archive_all_points_behind_the_last_message(tmp_path: Path) -> None:
    """[000] sets the pointer to 0, so that a crash before `clear` pays for everything again; here it is the end."""
    session = Session("a:1", talk())
    provider = ScriptedProvider(saving("- x"))
    store = MemoryStore(tmp_path)
    assert await store.consolidate(session, provider, "m", archive_all=True)
    assert session.last_consolidated == 8
    assert await store.consolidate(session, provider, "m", archive_all=True)
    assert len(provider.asked) == 1
    session.clear()
    assert session.last_consolidated == 0
