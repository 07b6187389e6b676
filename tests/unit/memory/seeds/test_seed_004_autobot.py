"""Seed 004, Autobot's "Memory Management": its constants, formats, and its three worked examples message by message.

The examples follow no single rule (51, then 102; 21, 41, 61; "the last 10" keeps eleven). Ours is one: a consolidation
is due when the unconsolidated messages are as many as the window, and it keeps ten of them (`keep: recent`).
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.memory import MemoryStore, Session
from agent.memory.consolidation.consolidation_request import ConsolidationAnswer, messages_without_tools, parse_answer
from agent.memory.messages import message_range as rules
from agent.memory.messages.message_range import KeepPolicy, conversation, is_due, keep_count, next_range
from agent.memory.prompt.prompt_window import KEPT_WITHOUT_WINDOW
from tests.fakes.consolidator import ScriptedProvider, saving


def course(window: int, upto: int) -> list[tuple[int, int, int]]:
    """Return (message at which it was due, first, last message summarised), counted from 1 as the seed counts."""
    rounds, pointer = [], 0
    for total in range(1, upto + 1):
        if is_due(total, pointer, window, KeepPolicy.RECENT):
            taken = next_range(total, pointer, window, KeepPolicy.RECENT)
            assert taken is not None
            rounds.append((total, taken.start + 1, taken.end))
            pointer = taken.end
    return rounds


def test_example_1_default_window() -> None:
    """[004] Example 1, window 50: at 50 (not 51), 1-40 are summarised and ten stay; then every 40 messages."""
    assert course(50, 140) == [(50, 1, 40), (90, 41, 80), (130, 81, 120)]


async def test_example_2_disabled(tmp_path: Path) -> None:
    """[004] Example 2, window 0: never a call, no MEMORY.md, no HISTORY.md; the last ten are the context."""
    assert course(0, 200) == []
    store, provider = MemoryStore(tmp_path), ScriptedProvider(saving("- x"))
    session = Session("a:1", [{"role": "user", "content": f"{n}"} for n in range(1, 13)])
    assert await store.consolidate(session, provider, "m", memory_window=rules.DISABLED_MEMORY_WINDOW)
    assert provider.asked == []
    assert list((tmp_path / "memory").iterdir()) == []
    assert [message["content"] for message in session.get_history(10)][:1] == ["3"]
    assert len(session.messages) == 12  # the transcript stays whole


def test_example_3_aggressive() -> None:
    """[004] Example 3, window 20: at 20, 30, 40 … (not 21, 41, 61), each keeping ten."""
    assert course(20, 60) == [(20, 1, 10), (30, 11, 20), (40, 21, 30), (50, 31, 40), (60, 41, 50)]


def test_the_same_examples_with_half_of_the_window() -> None:
    """[000]'s rule, which is the default, gives these numbers."""
    rounds, pointer = [], 0
    for total in range(1, 141):
        if is_due(total, pointer, 50):
            taken = next_range(total, pointer, 50)
            assert taken is not None
            rounds.append((total, taken.start + 1, taken.end))
            pointer = taken.end
    assert rounds == [(50, 1, 25), (75, 26, 50), (100, 51, 75), (125, 76, 100)]


def test_constants() -> None:
    """[004] "Constants": the four, and what they mean here."""
    assert rules.DISABLED_MEMORY_WINDOW == 0
    assert rules.MIN_KEEP_COUNT == 2
    assert rules.MAX_KEEP_COUNT == 10
    assert rules.MAX_MESSAGES_WITHOUT_CONSOLIDATION == 10 == KEPT_WITHOUT_WINDOW
    kept = [keep_count(window, KeepPolicy.RECENT) for window in range(1, 201)]
    assert (min(kept), max(kept)) == (rules.MIN_KEEP_COUNT, rules.MAX_KEEP_COUNT)
    assert all(keep_count(window, KeepPolicy.RECENT) == min(10, max(2, window // 2)) for window in range(1, 201))


def test_message_format() -> None:
    """[004] "Message Format": its three lines."""
    tools = [{"function": {"name": "exec"}}, {"function": {"name": "read_file"}}]
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "how do I deploy this?", "timestamp": "2025-01-15T10:30:00"},
        {"role": "assistant", "content": "I'll help you...", "timestamp": "2025-01-15T10:31:00", "tool_calls": tools},
        {"role": "user", "content": "what about Docker?", "timestamp": "2025-01-15T10:32:00"},
    ]
    assert conversation(said) == [
        "[2025-01-15 10:30] USER: how do I deploy this?",
        "[2025-01-15 10:31] ASSISTANT [tools: exec, read_file]: I'll help you...",
        "[2025-01-15 10:32] USER: what about Docker?",
    ]


ANSWER = {
    "history_entry": "2025-01-15 10:30: User asked about deployment. Discussed Docker setup and CI/CD pipeline. "
    "Decided on GitHub Actions.",
    "memory_update": "- CI: GitHub Actions",
}


async def test_consolidation_prompt_and_json_answer(tmp_path: Path) -> None:
    """[004] "Consolidation Prompt": asked for JSON where there are no tools, and its example answer is taken."""
    prompt = messages_without_tools("- old", ["[2025-01-15 10:30] USER: hi"])[1]["content"]
    assert re.match(
        r"Current Long-term Memory: - old\n\nConversation to Process: \[2025-01-15 10:30\] USER: hi\n", prompt
    )
    assert 'Return JSON:\n{\n  "history_entry": "' in prompt
    assert parse_answer(json.dumps(ANSWER), None) == ConsolidationAnswer(
        ANSWER["history_entry"], ANSWER["memory_update"]
    )
    session = Session("a:1", [{"role": "user", "content": "how do I deploy this?"}] * 60)
    response = SimpleNamespace(content=json.dumps(ANSWER), tool_calls=[])
    assert await MemoryStore(tmp_path).consolidate(session, ScriptedProvider(response), "m")
    assert "GitHub Actions" in (tmp_path / "memory" / "MEMORY.md").read_text()
    # Its time has no brackets; the readable history has one with brackets in front, so that grep finds both.
    assert "2025-01-15 10:30: User asked about deployment." in (tmp_path / "memory" / "HISTORY.md").read_text()


async def test_file_structure_and_permissions(tmp_path: Path) -> None:
    """[004] "Permissions": the folder 0700, both files 0600, from the first write and whatever the umask."""
    session = Session("a:1", [{"role": "user", "content": "hi"}] * 60)
    assert await MemoryStore(tmp_path).consolidate(session, ScriptedProvider(saving("- x")), "m")
    assert stat.S_IMODE((tmp_path / "memory").stat().st_mode) == 0o700
    for name in ("MEMORY.md", "HISTORY.md", "history.jsonl"):
        assert stat.S_IMODE((tmp_path / "memory" / name).stat().st_mode) == 0o600


async def test_nothing_is_trimmed(tmp_path: Path) -> None:
    """[004] "Session Trimming" cuts the file; here the pointer moves, and no message goes, before or after."""
    session = Session("a:1", [{"role": "user", "content": f"{n}"} for n in range(60)])
    store = MemoryStore(tmp_path, keep=KeepPolicy.RECENT)
    assert await store.consolidate(session, ScriptedProvider(saving("- x")), "m", memory_window=50)
    assert (len(session.messages), session.last_consolidated) == (60, 50)


def test_history_can_be_searched_by_keyword_and_date(tmp_path: Path) -> None:
    """[004] "Searching Memory": a grep for a word or a date finds the entry's line."""
    store = MemoryStore(tmp_path)
    store.append_history("[2025-01-15 10:30] User asked about deployment.")
    store.append_history("[2025-01-16 09:00] User discussed api changes.")
    lines = (tmp_path / "memory" / "HISTORY.md").read_text().splitlines()
    assert [line for line in lines if "deployment" in line] == ["[2025-01-15 10:30] User asked about deployment."]
    assert [line for line in lines if "2025-01-16" in line] == ["[2025-01-16 09:00] User discussed api changes."]
