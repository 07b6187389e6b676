"""Seed 004, Autobot's "Memory Management": its constants and its prompt; its examples are played message by message."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

from agent.memory import MemoryStore, Session
from agent.memory.prompt.prompt_window import KEPT_WITHOUT_WINDOW
from agent.memory.storage import messages as rules
from agent.memory.storage.messages import KeepPolicy, is_due, keep_count, next_range
from agent.memory.update.consolidator import ConsolidationAnswer, messages_without_tools, parse_answer
from tests.fakes.consolidator import ScriptedProvider


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


def test_history_can_be_searched_by_keyword_and_date(tmp_path: Path) -> None:
    """[004] "Searching Memory": a grep for a word or a date finds the entry's line."""
    store = MemoryStore(tmp_path)
    store.append_history("[2025-01-15 10:30] User asked about deployment.")
    store.append_history("[2025-01-16 09:00] User discussed api changes.")
    lines = (tmp_path / "memory" / "HISTORY.md").read_text().splitlines()
    assert [line for line in lines if "deployment" in line] == ["[2025-01-15 10:30] User asked about deployment."]
    assert [line for line in lines if "2025-01-16" in line] == ["[2025-01-16 09:00] User discussed api changes."]
