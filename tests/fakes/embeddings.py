"""Embeddings as a provider makes them: texts with the same meaning are near, whatever words they use."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web

# Words that mean the same; no two of one row share a beginning, so that no stemming finds one by the other.
MEANINGS = (
    {"physician", "doctor", "medic"},
    {"automobile", "car", "vehicle"},
    {"purchased", "bought", "acquired"},
    {"canine", "dog", "hound"},
    {"residence", "home", "dwelling"},
)
_MEANING = {word: f"meaning {n}" for n, words in enumerate(MEANINGS) for word in words}
_WORD = re.compile(r"\w+")
_EMPTY = frozenset({"a", "an", "the", "is", "my", "i", "what", "who", "which", "did", "do", "ann", "and", "of", "to"})


class EmbeddingFault(StrEnum):
    """What goes wrong with every call while it is set."""

    ERROR = "500"
    UNAUTHORISED = "401"
    HANG = "hang"  # accepted, never answered
    WRONG_COUNT = "wrong_count"  # a vector too few
    GARBLED = "garbled"  # a whole answer that is none


@dataclass(slots=True)
class FakeEmbeddings:
    """The endpoint's state: how it behaves, and what it was asked."""

    dimensions: int = 64
    trouble: EmbeddingFault | None = None
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # (model, texts) of every call
    billed: int = 0  # tokens of the calls that were answered
    keys: set[str] = field(default_factory=set)  # that calls came with
    came: asyncio.Event = field(default_factory=asyncio.Event)  # set at each call; clear it to wait for the next

    def texts(self, model: str = "") -> list[str]:
        """Return every text that was to be embedded, by *model* when one is named."""
        return [text for name, texts in self.asked if not model or name == model for text in texts]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one call."""
        body = await request.json()
        given = body["input"]
        texts = [given] if isinstance(given, str) else list(given)
        self.asked.append((body["model"], tuple(texts)))
        self.keys.add(request.headers.get("Authorization", "").removeprefix("Bearer "))
        self.came.set()
        if self.trouble is EmbeddingFault.HANG:
            await asyncio.Event().wait()
        if self.trouble in (EmbeddingFault.ERROR, EmbeddingFault.UNAUTHORISED):
            said = {"message": "Incorrect API key provided: sk-SECRET", "type": "error", "code": "x", "param": None}
            return web.json_response({"error": said}, status=int(self.trouble))
        if self.trouble is EmbeddingFault.GARBLED:
            return web.json_response({"object": "list", "data": [{"embedding": "?"}], "model": body["model"]})
        tokens = sum(len(_WORD.findall(text)) for text in texts)
        self.billed += tokens
        return web.json_response(
            self._answer(body, texts[1:] if self.trouble is EmbeddingFault.WRONG_COUNT else texts, tokens)
        )

    def _answer(self, body: Mapping[str, Any], texts: Sequence[str], tokens: int) -> Mapping[str, Any]:
        vectors = [vector(text, self.dimensions) for text in texts]
        packed = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": n, "embedding": _packed(each) if packed else each}
            for n, each in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def vector(text: str, dimensions: int) -> list[float]:
    """Return the vector of *text*: a sum over its words, those of one meaning being one; always the same."""
    found = [_MEANING.get(word, word) for word in _WORD.findall(text.lower()) if word not in _EMPTY]
    total = [0.0] * dimensions
    for word in found or ["nothing"]:
        digest = hashlib.shake_256(word.encode()).digest(dimensions)
        total = [have + byte / 127.5 - 1 for have, byte in zip(total, digest, strict=True)]
    length = math.sqrt(sum(each * each for each in total)) or 1.0
    return [each / length for each in total]


def _packed(numbers: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
