"""Seed 002, phases 1 and 2: what is written at /new and before a compaction, by its own examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.memory.update.notes import MemoryFlusher, SessionMemoryWriter, slugify

KEY = "telegram:12345"
AT = datetime(2026, 3, 25, 14, 30, tzinfo=UTC)


@dataclass(frozen=True)
class SeedToolCall:
    """A tool call."""

    name: str
    arguments: Any


@dataclass(frozen=True)
class SeedResponse:
    """What a provider returns."""

    content: str = ""
    tool_calls: tuple[SeedToolCall, ...] = ()


class SeedProvider:
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self, answer: SeedResponse | Exception) -> None:
        self.answer = answer
        self.asked: list[Mapping[str, Any]] = []

    async def chat(self, **asked: Any) -> SeedResponse:
        """Answer."""
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def build_exchanges(turns: int) -> Sequence[Mapping[str, Any]]:
    """Return so many exchanges, with tools in between."""
    messages: list[Mapping[str, Any]] = []
    for n in range(turns):
        stamp = f"2026-03-25T14:{n:02}:00+00:00"
        messages += [
            {"role": "user", "content": f"question {n}", "timestamp": stamp},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "exec"}}], "timestamp": stamp},
            {"role": "tool", "content": "secret output", "timestamp": stamp},
            {"role": "assistant", "content": f"answer {n}", "timestamp": stamp},
        ]
    return messages


SUMMARY = SeedResponse(
    tool_calls=(
        SeedToolCall("create_session_memory", {"slug": "API Design Review!", "summary": "They chose **REST**."}),
    )
)


def writer(home: Path, provider: SeedProvider) -> SessionMemoryWriter:
    """Return a writer of a workspace."""
    return SessionMemoryWriter(home, provider, "m", now=lambda: AT)


def flusher(home: Path, provider: SeedProvider) -> MemoryFlusher:
    """Return a flusher of a workspace."""
    return MemoryFlusher(home, provider, "m", now=lambda: AT)


async def test_002_a_note_has_the_documents_layout(tmp_path: Path) -> None:
    """002, Phase 1: memory/YYYY-MM-DD-slug.md with session, date, summary and key messages."""
    provider = SeedProvider(SUMMARY)
    path = await writer(tmp_path, provider).write_session_memory(KEY, build_exchanges(3))
    assert path == tmp_path / "memory" / "2026-03-25-api-design-review.md"
    assert path.read_text().startswith(
        "# Session Memory: 2026-03-25 14:30\n\n- **Session**: telegram:12345\n- **Date**: 2026-03-25 14:30:00\n\n"
        "## Summary\n\nThey chose **REST**.\n\n## Key Messages\n\nuser: question 0\nassistant: answer 0\n"
    )
    assert path.stat().st_mode & 0o777 == 0o600
    asked = str(provider.asked[0])
    assert "You are a memory writer." in asked
    assert "secret output" not in asked


async def test_002_a_trivial_session_is_not_worth_a_note(tmp_path: Path) -> None:
    """002, Phase 1: fewer than three user messages are skipped, and no model is asked."""
    provider = SeedProvider(SUMMARY)
    assert await writer(tmp_path, provider).write_session_memory(KEY, build_exchanges(2)) is None
    assert provider.asked == []
    assert not (tmp_path / "memory").exists()


async def test_002_only_the_last_messages_are_shown(tmp_path: Path) -> None:
    """002, Phase 1: the last `max_messages` of users and assistant, twenty by default."""
    provider = SeedProvider(SUMMARY)
    await writer(tmp_path, provider).write_session_memory(KEY, build_exchanges(30))
    shown = provider.asked[0]["messages"][1]["content"]
    assert "question 20" in shown
    assert "question 19" not in shown


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("down"),
        SeedResponse("no tool call"),
        SeedResponse(tool_calls=(SeedToolCall("create_session_memory", "{cut"),)),
        SeedResponse(tool_calls=(SeedToolCall("create_session_memory", {"slug": "x", "summary": " "}),)),
    ],
)
async def test_002_a_failing_model_leaves_a_raw_excerpt(tmp_path: Path, answer: SeedResponse | Exception) -> None:
    """002, Risk Mitigation: a note is written all the same, with what was said."""
    path = await writer(tmp_path, SeedProvider(answer)).write_session_memory(KEY, build_exchanges(4))
    assert path == tmp_path / "memory" / "2026-03-25-session.md"
    assert "assistant: answer 3" in path.read_text()


async def test_a_second_note_of_the_day_gets_a_number(tmp_path: Path) -> None:
    """002, Risk Mitigation: unique names; and the same session again (a crash behind the first writing) is one note."""
    notes = writer(tmp_path, SeedProvider(SUMMARY))
    first = await notes.write_session_memory(KEY, build_exchanges(3))
    assert await notes.write_session_memory(KEY, build_exchanges(3)) == first
    second = await notes.write_session_memory(KEY, build_exchanges(4))
    assert second is not None
    assert second.name == "2026-03-25-api-design-review-2.md"


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("api-design-review", "api-design-review"),
        ("../../etc/passwd", "etc-passwd"),
        ("", "session"),
        ("Ümlaut!", "umlaut"),
    ],
)
def test_002_a_slug_is_a_file_name(text: str, slug: str) -> None:
    """002, Phase 1: short kebab-case, at most 40 characters, whatever the model says."""
    assert slugify(text) == slug
    assert len(slugify(text * 50)) <= 40


async def test_002_a_flush_appends_under_its_heading(tmp_path: Path) -> None:
    """002, Phase 2: `## Flush at 14:30 (session: telegram:12345)` and the bullets, appended to the day's file."""
    answer = SeedResponse("- User prefers REST over GraphQL for the new API\n- Decision: use PostgreSQL")
    day = tmp_path / "memory" / "2026-03-25.md"
    assert await flusher(tmp_path, SeedProvider(answer)).maybe_flush(KEY, build_exchanges(3), 97_000, 100_000)
    assert day.read_text() == (
        "## Flush at 14:30 (session: telegram:12345)\n\n"
        "- User prefers REST over GraphQL for the new API\n- Decision: use PostgreSQL\n"
    )
    again = SeedProvider(
        SeedResponse("- Decision: use PostgreSQL\n- Action item: review the vendor proposal by Friday")
    )
    assert await flusher(tmp_path, again).maybe_flush("slack:C1", build_exchanges(3), 97_000, 100_000)
    assert "Decision: use PostgreSQL" in str(again.asked[0])
    assert day.read_text().endswith(
        "## Flush at 14:30 (session: slack:C1)\n\n- Action item: review the vendor proposal by Friday\n"
    )


@pytest.mark.parametrize(("tokens", "flushed"), [(96_001, True), (96_000, False), (10, False)])
async def test_002_the_trigger_is_the_distance_from_the_limit(tmp_path: Path, tokens: int, flushed: bool) -> None:
    """002, Phase 2: `estimated_tokens > context_window - threshold_tokens`."""
    assert (
        await flusher(tmp_path, SeedProvider(SeedResponse("- x"))).maybe_flush(KEY, build_exchanges(3), tokens, 100_000)
        is flushed
    )


async def test_002_once_per_compaction_cycle(tmp_path: Path) -> None:
    """002, Phase 2: a session is flushed once until its first message changes; also after a restart."""
    provider = SeedProvider(SeedResponse("- x"))
    assert await flusher(tmp_path, provider).maybe_flush(KEY, build_exchanges(3), 97_000, 100_000)
    assert not await flusher(tmp_path, provider).maybe_flush(KEY, build_exchanges(9), 99_000, 100_000)
    assert await flusher(tmp_path, provider).maybe_flush(KEY, build_exchanges(9)[4:], 99_000, 100_000)
    assert len(provider.asked) == 2


async def test_002_silent_writes_nothing(tmp_path: Path) -> None:
    """002, Phase 2: `[silent]` leaves no file, and ends the cycle's flush."""
    provider = SeedProvider(SeedResponse("[silent]"))
    assert await flusher(tmp_path, provider).maybe_flush(KEY, build_exchanges(3), 97_000, 100_000)
    assert not (tmp_path / "memory" / "2026-03-25.md").exists()
    assert not await flusher(tmp_path, provider).maybe_flush(KEY, build_exchanges(3), 97_000, 100_000)


async def test_002_a_failing_model_costs_nothing_that_was_said(tmp_path: Path) -> None:
    """002, Risk Mitigation: the newest lines are kept as they are."""
    assert await flusher(tmp_path, SeedProvider(RuntimeError("down"))).maybe_flush(
        KEY, build_exchanges(3), 97_000, 100_000
    )
    text = (tmp_path / "memory" / "2026-03-25.md").read_text()
    assert "- [2026-03-25 14:02] USER: question 2" in text
    assert "secret output" not in text
