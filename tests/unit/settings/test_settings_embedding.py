"""Whose address and key the model for meaning gets: never those of another provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.memory.search.embedding import GuardedEmbedder
from agent.memory.search.embedding_models import LitellmEmbedder
from gateway.app.recall import _embedder
from gateway.settings import load_settings
from tests.fakes.llm_context import FakeUsageRecorder

LLM = {"MODEL": "openai/test", "API_BASE": "https://llm.example/v1", "API_KEY": "sk-of-the-llm"}
OURS = ("https://llm.example/v1", "sk-of-the-llm")
OWN = "https://own.example/v1"

CASES = {
    "same provider": ({"MODEL": "openai/embed"}, OURS),
    "another provider": ({"MODEL": "mistral/embed"}, ("", "")),
    "another provider, its key": ({"MODEL": "mistral/embed", "API_KEY": "sk-own"}, ("", "sk-own")),
    "an address of its own": ({"MODEL": "openai/embed", "API_BASE": OWN}, (OWN, "")),
    "a key of its own": ({"MODEL": "openai/embed", "API_KEY": "sk-own"}, ("https://llm.example/v1", "sk-own")),
    "both": ({"MODEL": "openai/embed", "API_BASE": OWN, "API_KEY": "sk-own"}, (OWN, "sk-own")),
}


@pytest.mark.parametrize("case", CASES)
def test_address_and_key_of_the_answering_model_are_for_its_own_provider(tmp_path: Path, case: str) -> None:
    """`embedding_api_base` and `embedding_api_key` win; without an address of its own the same provider shares both."""
    given, expected = CASES[case]
    settings = load_settings(
        {"PARLOUR_HOME": str(tmp_path)}
        | {f"PARLOUR_LLM__{name}": value for name, value in LLM.items()}
        | {f"PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_{name}": value for name, value in given.items()}
    )
    guarded = _embedder(settings.tools.vector_memory, settings.llm, FakeUsageRecorder())
    assert isinstance(guarded, GuardedEmbedder)
    inner = guarded._inner
    assert isinstance(inner, LitellmEmbedder)
    assert (inner._base, inner._key) == expected
    assert "sk-" not in repr(inner)
