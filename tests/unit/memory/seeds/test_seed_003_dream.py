"""Seed 003, "Memory in nanobot": what it says of Dream, its files, its commands and its configuration."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from agent.base.transcript_lines import utc_now
from agent.commands.command import CommandRouter
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.storage.scope_documents import change_diff
from agent.memory.update.dreamer import DreamSchedule
from gateway.app.context import ExtraPlugins
from gateway.app.models import ModelServices
from gateway.settings import Settings, load_settings
from tests.fakes.dream_scene import DreamScene, add, edits, swap
from tests.fakes.llm_context import FakeUsageRecorder
from tests.fakes.meter import FakeMeter


def configured(home: Path, text: str) -> Settings:
    """Return the settings of a configuration file."""
    (home / "parlour.json").write_text(text)
    return load_settings({"PARLOUR_HOME": str(home)})


async def test_dream_reads_the_new_entries_and_the_three_files(tmp_path: Path) -> None:
    """[003] "Stage 2": new entries from history.jsonl, the current SOUL.md, USER.md and MEMORY.md, in both phases."""
    world = DreamScene(tmp_path, "study", edits())
    for name in ("SOUL.md", "USER.md", "MEMORY.md"):
        world.write(name, f"- what {name} says\n")
    world.happened("old news")
    world.history.dream_cursor = 1
    world.happened("what is new")
    await world.dream()
    for prompt in world.model.prompts:
        assert all(f"- what {name} says" in prompt for name in ("SOUL.md", "USER.md", "MEMORY.md"))
        assert "what is new" in prompt
        assert "old news" not in prompt


async def test_it_studies_and_then_edits_surgically(tmp_path: Path) -> None:
    """[003] "two phases": "not by rewriting everything, but by making the smallest honest change"."""
    world = DreamScene(tmp_path, "MySQL is out of date.", edits(swap("- uses MySQL", "- uses PostgreSQL")))
    before = (
        "# Project\n\nSome *words* of their own.\n\n- uses MySQL\n   - which somebody else set up\n\n\n* odd list\n"
    )
    world.write("MEMORY.md", before)
    world.happened("They decided to use PostgreSQL.")
    await world.dream()
    assert world.text() == before.replace("MySQL", "PostgreSQL")
    study, edit = world.model.asked
    assert not study.tools
    assert "MySQL is out of date." in str(edit.messages[-1]["content"])
    assert edit.tool_choice


async def test_the_files_are_where_it_says(tmp_path: Path) -> None:
    """[003] "The Files": SOUL.md and USER.md beside memory/, which holds MEMORY.md, history.jsonl, cursors and .git."""
    texts = [add(f"- line of {name}", document=name) for name in ("SOUL.md", "USER.md", "MEMORY.md")]
    world = DreamScene(tmp_path, "study", edits(*texts))
    world.happened("Something.")
    await world.dream()
    await MemoryFileWriter(tmp_path, world.changes, world.records.history).settle(world.scope)
    folder = tmp_path / world.scope
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if ".git/" not in f"{path}"}
    assert {
        "SOUL.md",
        "USER.md",
        "memory/MEMORY.md",
        "memory/history.jsonl",
        "memory/.cursor",
        "memory/.dream_cursor",
        "memory/.git",
    } <= found
    assert (folder / "memory" / ".dream_cursor").read_text() == "1\n"
    assert set(world.commits()[0].names) == {"SOUL.md", "USER.md", "MEMORY.md"}


async def test_every_change_can_be_inspected_compared_and_restored(tmp_path: Path) -> None:
    """[003] "Versioned Memory": what changed, two versions side by side, and the state before."""
    world = DreamScene(tmp_path, "study", edits(swap("- old", "- new")))
    world.write("MEMORY.md", "- old\n")
    world.happened("Something.")
    await world.dream()
    [commit] = world.commits()
    assert (await change_diff(world.changes, world.scope, commit)).endswith("\n-- old\n+- new")
    assert await world.changes.texts(world.scope, commit.number - 1) == {"MEMORY.md": "- old\n"}
    assert await world.changes.texts(world.scope, commit.number) == {"MEMORY.md": "- new\n"}


def test_the_commands_of_its_table_are_there() -> None:
    """[003] "Commands": what each row does is played in tests/e2e/agent/test_dream_commands.py."""
    names = {command.name for command in CommandRouter.load().commands}
    assert {"dream", "dream-log", "dream-restore"} <= names


def test_its_fields_have_the_printed_names_and_values(tmp_path: Path) -> None:
    """[003] "Configuration": every field is what its row says; the block itself loads in test_seed_configuration.py."""
    given = json.dumps({"agents": {"defaults": {"dream": {"intervalH": 6, "maxBatchSize": 5, "maxIterations": 3}}}})
    dream = configured(tmp_path, given).agents.defaults.dream
    assert (dream.interval_h, dream.max_batch_size, dream.max_iterations) == (6, 5, 3)


async def test_interval_h_is_how_often(tmp_path: Path) -> None:
    """[003] `intervalH`: "runs as an every schedule": so many hours from one run to the next that has something."""
    world = DreamScene(tmp_path, "study", edits())
    world.happened("one", "two")
    dreamer = world.dreamer(schedule=DreamSchedule(interval=timedelta(hours=6)), max_batch_size=1)
    await dreamer.expect(world.scope)
    [first] = world.jobs.jobs.values()
    assert first.due_at == world.now + timedelta(hours=6)
    world.now += timedelta(hours=6)
    assert await dreamer.run(first) is None
    await world.jobs.finish(first)
    [second] = world.jobs.jobs.values()
    assert second.due_at == world.now + timedelta(hours=6)
    await dreamer.run(second)
    await world.jobs.finish(second)
    assert not world.jobs.jobs


async def test_max_batch_size_is_how_many_entries_a_run_consumes(tmp_path: Path) -> None:
    """[003] `maxBatchSize`: "how many new history.jsonl entries Dream consumes in one run"."""
    world = DreamScene(tmp_path, "study", edits())
    world.happened(*map(str, range(7)))
    job = await world.ask()
    await world.dreamer(max_batch_size=3).run(job)
    assert world.history.dream_cursor == 3


async def test_max_iterations_bounds_the_editing(tmp_path: Path) -> None:
    """[003] `maxIterations`: "a safety budget, not a quality score": what was done by then stands."""
    world = DreamScene(tmp_path, "study", *(edits(add(f"- fact {n}"), done=False) for n in range(9)))
    world.happened("Something.")
    await world.dream(max_iterations=3)
    assert world.text() == "- fact 0\n- fact 1\n- fact 2\n"
    assert len(world.model.asked) == 1 + 3
    assert world.history.dream_cursor == 1


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"modelOverride": None}, "scripted"),
        ({"modelOverride": "offline"}, "offline"),
        ({"model": "offline"}, "offline"),
    ],
)
async def test_the_model_is_the_main_agents_unless_overridden(
    tmp_path: Path, block: dict[str, str | None], expected: str
) -> None:
    """[003] `modelOverride`: null means the same model; the legacy `dream.model` is honoured."""
    given = {"llm": {"model": "scripted"}, "agents": {"defaults": {"dream": block}}}
    settings = configured(tmp_path, json.dumps(given))
    plugins = ExtraPlugins()
    models = ModelServices(settings, plugins, FakeUsageRecorder(), FakeMeter(), now=utc_now)
    assert models.dream.name == expected
    assert (models.dream is models.default) == (expected == "scripted")


async def test_users_can_always_inspect_understand_and_restore(tmp_path: Path) -> None:
    """[003] "auditable process": the version names the entries that it came of."""
    world = DreamScene(tmp_path, "study", edits(add("- a fact")))
    [entry] = world.happened("Something.")
    await world.dream()
    version = await world.changes.source(world.scope, "MEMORY.md", "- a fact")
    assert version is not None
    assert entry.entry in version.why.split()
