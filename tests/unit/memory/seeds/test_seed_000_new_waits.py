"""Seed 000, "/new Command": with `memory.new_waits` the answer comes when memory is safe, or says that it is not."""

from __future__ import annotations

from pathlib import Path

from agent.base.scopes import scope_folder
from tests.fakes.histories import stored_entries
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.recording_model import RecordingModel

SCOPE = "people/pocket%3aann"
WAITS = {"PARLOUR_MEMORY__NEW_WAITS": "true"}


async def test_new_waits_for_its_archive(tmp_path: Path) -> None:
    """When `New session started.` is there, MEMORY.md and the history hold what was said, once."""
    model = RecordingModel()
    async with gateway(home=tmp_path, model=model, environment=WAITS) as parlour:
        await parlour.channel.ask("ann", "one")
        assert await parlour.channel.ask("ann", "/new") == "New session started."
        assert await parlour.document(SCOPE) == "- they talked\n"
        assert len(stored_entries(tmp_path, SCOPE)) == 1
        assert await parlour.channel.ask("ann", "/new") == "New session started."
        await parlour.channel.ask("ann", "two")
    assert "- they talked" in model.prompts[-1][0]["content"]
    assert "one" not in str(model.prompts[-1][1:])
    assert model.purposes.count("consolidation") == 1


async def test_a_failed_archive_clears_nothing(tmp_path: Path) -> None:
    """`Memory archival failed, session not cleared. Please try again.`: the conversation goes on, and a retry works."""
    model = RecordingModel()
    async with gateway(home=tmp_path, model=model, environment=WAITS) as parlour:
        await parlour.channel.ask("ann", "one")
        model.fails = True
        failed = "Memory archival failed, session not cleared. Please try again."
        for _ in range(4):
            assert await parlour.channel.ask("ann", "/new") == failed
        await parlour.channel.ask("ann", "two")
        assert "one" in str(model.prompts[-1][1:])
        memory = scope_folder(tmp_path, SCOPE) / "memory"
        assert not (memory / "HISTORY.md").exists()
        assert list(memory.glob("20*.md")) == []
        model.fails = False
        assert await parlour.channel.ask("ann", "/new") == "New session started."
        assert len(stored_entries(tmp_path, SCOPE)) == 1
