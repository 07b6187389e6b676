"""Seed 002, what its phases ask a model, how they are called, and a session's life through the whole gateway."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.base.scopes import scope_folder
from agent.memory.update.notes import MemoryFlusher, SessionMemoryWriter
from tests.fakes.consolidator import ScriptedProvider
from tests.fakes.histories import stored_entries
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.recording_model import RecordingModel

SCOPE = "people/pocket%3aann"
AT = datetime(2026, 3, 25, 14, 30, tzinfo=UTC)
SYSTEM = """\
You are a memory extraction agent. Review the conversation below and extract
important facts, decisions, preferences, and action items worth remembering.

Write them as bullet points. If there's nothing important to remember, respond
with exactly "[silent]".

Target file: memory/2026-03-25.md (append only, never overwrite existing content)"""


def build_messages(count: int) -> list[dict[str, Any]]:
    """Return so many messages of a user."""
    return [{"role": "user", "content": f"message {n}", "timestamp": f"2026-03-25T14:{n:02}:00"} for n in range(count)]


async def test_the_tool_of_a_note_is_forced_and_has_both_parameters(tmp_path: Path) -> None:
    """[002] Phase 1, Logic 3: the system prompt's words, `create_session_memory` with slug and summary, forced."""
    provider = ScriptedProvider(SimpleNamespace(content="", tool_calls=[]))
    await SessionMemoryWriter(tmp_path, provider, "m", now=lambda: AT).write_session_memory(
        "telegram:1", build_messages(3)
    )
    asked = provider.asked[0]
    words = "You are a memory writer. Generate a concise summary of this conversation."
    assert asked["messages"][0] == {"role": "system", "content": words}
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "create_session_memory"}}
    (tool,) = asked["tools"]
    parameters = tool["function"]["parameters"]
    assert parameters["required"] == ["slug", "summary"]
    assert "max 40 chars" in parameters["properties"]["slug"]["description"]


async def test_the_prompt_of_a_flush_is_the_one_that_is_printed(tmp_path: Path) -> None:
    """[002] Phase 2, Logic 4: the system prompt, to the letter, with the day's file."""
    provider = ScriptedProvider(SimpleNamespace(content="[silent]", tool_calls=[]))
    await MemoryFlusher(tmp_path, provider, "m", now=lambda: AT).maybe_flush(
        "telegram:1", build_messages(3), 97_000, 100_000
    )
    assert provider.asked[0]["messages"][0]["content"].startswith(SYSTEM)


async def run_short_session(parlour: InProcessGateway) -> None:
    """Say enough for a note, end the session, and wait for what follows from that."""
    for text in ("one", "two", "three"):
        await parlour.channel.ask("ann", text)
    assert await parlour.channel.ask("ann", "/new") == "New session started."
    while True:
        if all(job.kind == "dream" for job in await parlour.app.store.jobs.pending_in(SCOPE)):  # due in two hours
            break
        await asyncio.sleep(0)
    await parlour.idle()


async def test_the_life_of_a_session(tmp_path: Path) -> None:
    """[002] "Data flow": /new leaves a dated note and a summary; the next session begins empty and knows MEMORY.md."""
    model = RecordingModel()
    without_vectors = {"PARLOUR_TOOLS__VECTOR_MEMORY__ENABLED": "false"}  # which notes do not need
    async with gateway(home=tmp_path, model=model, environment=without_vectors) as parlour:
        await run_short_session(parlour)
        memory = scope_folder(tmp_path, SCOPE) / "memory"
        (note,) = memory.glob("20*-a-talk.md")
        assert "They talked." in note.read_text()
        assert [each.content for each in stored_entries(tmp_path, SCOPE)] == ["[2026-11-22 10:00] They talked."]
        await parlour.channel.ask("ann", "a fresh start")
    system, *rest = model.prompts[-1]
    assert "- they talked" in system["content"]
    assert "three" not in str(rest)


async def test_notes_can_be_switched_off(tmp_path: Path) -> None:
    """[002] `session_memory.enabled: false`: the summary is made, the note is not."""
    model = RecordingModel()
    async with gateway(
        home=tmp_path, model=model, environment={"PARLOUR_TOOLS__SESSION_MEMORY__ENABLED": "false"}
    ) as parlour:
        await run_short_session(parlour)
    memory = scope_folder(tmp_path, SCOPE) / "memory"
    assert list(memory.glob("20*.md")) == []
    assert len(stored_entries(tmp_path, SCOPE)) == 1
