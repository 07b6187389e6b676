"""Compute embedding vectors with a local model, with a provider through litellm, or not at all (`build_embedder`)."""

from __future__ import annotations

from pathlib import Path

from agent.llm.litellm_model import require_litellm
from agent.memory.search.embedding.embedder import Embedder as Embedder
from agent.memory.search.embedding.embedder import Matrix as Matrix
from agent.memory.search.embedding.guarded_embedder import GuardedEmbedder as GuardedEmbedder
from agent.memory.search.embedding.litellm_embedder import LitellmEmbedder, OnTokens, no_account
from agent.memory.search.embedding.local_embedder import LocalEmbedder

_LOCAL = "local:"


def build_embedder(
    model: str,
    *,
    api_key: str = "",
    api_base: str = "",
    on_usage: OnTokens = no_account,
    proxy: str = "",
) -> GuardedEmbedder | None:
    """Return the embedder of *model*: ``local:<folder>``, or a litellm model name; None for "" (text search only).

    Models are loaded at the first use. Raises SettingsError if litellm is not installed.
    """
    if not model:
        return None
    inner: Embedder
    if model.startswith(_LOCAL):
        inner = LocalEmbedder(Path(model.removeprefix(_LOCAL)).expanduser())
    else:
        require_litellm(model)
        inner = LitellmEmbedder(model, api_key=api_key, api_base=api_base, on_usage=on_usage, proxy=proxy)
    return GuardedEmbedder(inner)
