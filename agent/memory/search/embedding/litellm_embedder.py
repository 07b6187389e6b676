"""Compute embeddings with any provider through litellm's `aembedding`, one HTTP request per call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from agent.llm.litellm_model import address_for, load_litellm
from agent.llm.provider_errors import map_provider_error
from agent.memory.search.embedding.guarded_embedder import Matrix, OnTokens, no_account, normalize_rows
from gateway.errors import InvalidModelReply

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
