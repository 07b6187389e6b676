"""Every name that a program, a person or an operator uses after reading the seeds: imported and used as documented."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

import agent.memory
from agent.memory import (
    MemoryFlusher,
    MemoryStore,
    Session,
    SessionManager,
    SessionMemoryWriter,
    VectorMemoryManager,
)
from tests.fakes.consolidation_scene import begin
from tests.fakes.consolidator import ScriptedProvider
from tests.unit.memory.seeds.test_seed_002_flush_and_notes import SeedProvider, SeedResponse, SeedToolCall
from tests.unit.memory.seeds.test_seed_configuration import load

SIGNATURES: dict[Callable[..., Any], str] = {
    MemoryStore: "workspace",
    MemoryStore.read_long_term: "self",
    MemoryStore.write_long_term: "self content",
    MemoryStore.append_history: "self entry",
    MemoryStore.get_memory_context: "self",
    MemoryStore.consolidate: "self session provider model archive_all memory_window",
    Session.get_history: "self max_messages",
    Session.clear: "self",
    SessionManager: "workspace",
    SessionManager.get_or_create: "self key",
    SessionManager.save: "self session",
    SessionManager.invalidate: "self key",
    SessionMemoryWriter: "workspace provider model",
    SessionMemoryWriter.write_session_memory: "self session_key messages max_messages",
    MemoryFlusher: "workspace provider model",
    MemoryFlusher.maybe_flush: "self session_key messages estimated_tokens context_window threshold_tokens",
    VectorMemoryManager: "workspace config",
    VectorMemoryManager.search: "self query project max_results",
    VectorMemoryManager.search_memory: "self query max_results",
}
DEFAULTS = {"archive_all": False, "memory_window": 50, "threshold_tokens": 4_000, "max_results": 10}


@dataclass(frozen=True)
class VectorMemoryConfig:
    """[002] "Config Reference", as an object."""

    enabled: bool = True
    chunk_tokens: int = 512
    chunk_overlap: int = 64
    vector_weight: float = 0.7
    text_weight: float = 0.3


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda each: each.__qualname__)
def test_signatures_are_the_documented_ones(function: Callable[..., Any]) -> None:
    """The documented parameters, in their order, with their defaults; ours come behind them and are optional."""
    parameters = list(inspect.signature(function).parameters.values())
    count = len(SIGNATURES[function].split())
    assert [each.name for each in parameters][:count] == SIGNATURES[function].split()
    assert all(each.default is not each.empty or each.kind is each.VAR_KEYWORD for each in parameters[count:])
    for each in parameters[:count]:
        assert each.default == DEFAULTS.get(each.name, each.default)


def test_names_are_imported_from_one_module() -> None:
    """[002] "add to existing file": both writers beside MemoryStore; a name that is none is an AttributeError."""
    assert {each.__name__ for each in (MemoryFlusher, SessionMemoryWriter)} <= set(vars(agent.memory))
    with pytest.raises(AttributeError, match="MemoryConsolidator"):
        _ = agent.memory.MemoryConsolidator


async def test_both_writers_beside_the_store_are_used_as_documented(tmp_path: Path) -> None:
    """[002] phases 1 and 2: a workspace, a provider and a model make two files in `memory/`."""
    at = datetime(2026, 3, 25, 14, 30, tzinfo=UTC)
    said = [{"role": "user", "content": f"question {n}"} for n in range(3)]
    note = SeedToolCall("create_session_memory", {"slug": "api-design", "summary": "REST it is."})
    writer = SessionMemoryWriter(tmp_path, SeedProvider(SeedResponse(tool_calls=(note,))), "m", now=lambda: at)
    path = await writer.write_session_memory("telegram:12345", said)
    assert path == tmp_path / "memory" / "2026-03-25-api-design.md"
    flusher = MemoryFlusher(tmp_path, SeedProvider(SeedResponse("- REST over GraphQL")), "m", now=lambda: at)
    assert await flusher.maybe_flush("telegram:12345", said, 97_000, 100_000)
    assert "- REST over GraphQL" in (tmp_path / "memory" / "2026-03-25.md").read_text()


async def test_vector_memory_manager_searches_memory_and_documents(tmp_path: Path) -> None:
    """[002] phase 3: `search_memory` is `search` in `_memory`; the results format as `MemorySearchTool` has them."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "docs" / "app").mkdir(parents=True)
    (tmp_path / "memory" / "MEMORY.md").write_text("# Facts\n\n- Ann likes green tea\n")
    (tmp_path / "memory" / "2026-03-25-api-design.md").write_text("# Session\n\nPostgreSQL was chosen\n")
    (tmp_path / "docs" / "app" / "deploy.md").write_text("Deploy PostgreSQL with Docker\n")
    manager = VectorMemoryManager(tmp_path, VectorMemoryConfig())
    assert (manager.memory_dir, manager.docs_dir) == (tmp_path / "memory", tmp_path / "docs")
    [result] = await manager.search_memory("postgresql")
    assert [result] == await manager.search("postgresql", "_memory")
    assert (result["path"], result["start_line"], result["end_line"]) == ("memory/2026-03-25-api-design.md", 1, 3)
    assert "PostgreSQL was chosen" in result["snippet"]
    assert f"{result['score']:.2f}" == "0.30"
    [document] = await manager.search("docker", "app")
    assert document["path"].endswith("app/deploy.md")
    (tmp_path / "docs" / "app" / "more.md").write_text("Docker again\n")
    assert len(await manager.search("docker", "app")) == 2
    assert await manager.search_memory("docker") == []
    await manager.close()


async def test_failures_are_found_in_the_log_by_the_documented_words(tmp_path: Path) -> None:
    """[000] "Troubleshooting": `grep "Memory consolidation"` finds them, of the library and of the gateway."""
    store, session = MemoryStore(tmp_path / "w"), Session(key="telegram:42")
    session.messages = [{"role": "user", "content": f"thing {n}"} for n in range(60)]
    with structlog.testing.capture_logs() as logs:
        assert not await store.consolidate(session, ScriptedProvider(OSError("down")), "m")
        world = await begin(tmp_path / "h")
        world.model.bad_answers = 1
        await world.run(world.consolidator())
    found = [line for line in logs if "Memory consolidation" in str(line)]
    assert [line["event"] for line in found] == ["consolidation.failed"] * 2


def test_a_faster_model_for_consolidation_is_a_setting(tmp_path: Path) -> None:
    """[004] "Consolidation too slow": use a faster model for consolidation, `memory.model`."""
    assert load(tmp_path).memory.model is None
    (tmp_path / "parlour.yaml").write_text("memory:\n  model: openai/small\n")
    assert load(tmp_path).memory.model == "openai/small"
