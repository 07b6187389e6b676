"""The configuration blocks that seeds 002, 003 and 004 print, to the letter: each loads as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import Settings, check_settings, load_settings
from tests.fakes.settings import kinds

BLOCK_002 = """\
{
  "tools": {
    "vectorMemory": {
      "enabled": true,
      "embeddingModel": "openrouter/openai/text-embedding-3-small",
      "embeddingApiKey": "",
      "chunkTokens": 512,
      "chunkOverlap": 64,
      "syncIntervalSeconds": 60,
      "vectorWeight": 0.7,
      "textWeight": 0.3
    },
    "sessionMemory": {
      "enabled": true,
      "maxMessages": 20,
      "minUserMessages": 3
    },
    "memoryFlush": {
      "enabled": true,
      "thresholdTokens": 4000
    }
  }
}
"""
BLOCK_003 = """\
{
  "agents": {
    "defaults": {
      "dream": {
        "intervalH": 2,
        "modelOverride": null,
        "maxBatchSize": 20,
        "maxIterations": 10
      }
    }
  }
}
"""
BLOCKS_004 = {
    50: "agents:\n  defaults:\n    memory_window: 50  # Consolidate after 50 messages\n",
    0: "agents:\n  defaults:\n    memory_window: 0  # Disable consolidation\n",
    100: "agents:\n  defaults:\n    memory_window: 100  # Consolidate after 100 messages\n",
    20: "agents:\n  defaults:\n    memory_window: 20\n",
}


def load(home: Path) -> Settings:
    """Load what stands in a home, with nothing in the environment."""
    return load_settings({"PARLOUR_HOME": str(home)}, kinds())


def test_002_config_reference(tmp_path: Path) -> None:
    """[002] "Config Reference (Final)": every name and value; an empty key is none."""
    (tmp_path / "parlour.json").write_text(BLOCK_002)
    tools = load(tmp_path).tools
    vector = tools.vector_memory
    assert (vector.enabled, vector.embedding_model) == (True, "openrouter/openai/text-embedding-3-small")
    assert vector.embedding_api_key is None
    assert (vector.chunk_tokens, vector.chunk_overlap, vector.sync_interval_seconds) == (512, 64, 60)
    assert (vector.vector_weight, vector.text_weight) == (0.7, 0.3)
    notes, flush = tools.session_memory, tools.memory_flush
    assert (notes.enabled, notes.max_messages, notes.min_user_messages) == (True, 20, 3)
    assert (flush.enabled, flush.threshold_tokens) == (True, 4000)


def test_002_class_defaults(tmp_path: Path) -> None:
    """[002] `SessionMemoryConfig`, `MemoryFlushConfig`: without a block the same, and chunks and weights too."""
    (tmp_path / "printed").mkdir()
    (tmp_path / "printed" / "parlour.json").write_text(BLOCK_002)
    ours, printed = load(tmp_path).tools, load(tmp_path / "printed").tools
    assert (ours.session_memory, ours.memory_flush) == (printed.session_memory, printed.memory_flush)
    model = {"embedding_model": ""}  # no model is asked unless somebody names one
    assert ours.vector_memory == printed.vector_memory.model_copy(update=model)


def test_003_configuration(tmp_path: Path) -> None:
    """[003] "Configuration": the block loads, and says what holds without it."""
    (tmp_path / "printed").mkdir()
    (tmp_path / "printed" / "parlour.json").write_text(BLOCK_003)
    dream = load(tmp_path / "printed").agents.defaults.dream
    assert (dream.interval_h, dream.model_override, dream.max_batch_size, dream.max_iterations) == (2, None, 20, 10)
    assert load(tmp_path).agents.defaults.dream == dream


def test_003_legacy_names(tmp_path: Path) -> None:
    """[003] "Legacy note": `dream.cron` and `dream.model` still count; the latter is told its successor."""
    (tmp_path / "parlour.json").write_text(
        '{"agents": {"defaults": {"dream": {"cron": "0 */4 * * *", "model": "openai/small"}}}}'
    )
    report = check_settings({"PARLOUR_HOME": str(tmp_path)}, kinds())
    dream = report.require().agents.defaults.dream
    assert (dream.cron, dream.model_override) == ("0 */4 * * *", "openai/small")
    assert any("model_override" in warning for warning in report.warnings)


@pytest.mark.parametrize("window", BLOCKS_004)
def test_004_configuration(tmp_path: Path, window: int) -> None:
    """[004] "Configuration", "Examples": `memory_window` as each block sets it."""
    (tmp_path / "parlour.yaml").write_text(BLOCKS_004[window])
    assert load(tmp_path).agents.defaults.memory_window == window


def test_004_default_window(tmp_path: Path) -> None:
    """[004] has 50, [000] has 100: ours is that of [000]."""
    assert load(tmp_path).agents.defaults.memory_window == 100
