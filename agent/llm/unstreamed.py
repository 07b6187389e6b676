"""The body of a server that answers with plain JSON although a stream was asked for."""

from __future__ import annotations

import json
from typing import Any

from agent.llm.chat_model import ANSWER_CHARS
from gateway.errors import InvalidModelReply

_MOST_BYTES = 16 * ANSWER_CHARS  # a character is at most 12 bytes of JSON; the rest holds tool calls and usage


async def read_unstreamed(stream: Any, model: str) -> dict[str, Any] | None:
    """Return the body behind litellm's *stream* when it is plain JSON; None when it is a stream.

    Raises InvalidModelReply if it is not a JSON object, or larger than an answer can be.
    """
    # Only the OpenAI SDK shows its response here; other providers' protocols know no such answer.
    response = getattr(getattr(stream, "completion_stream", None), "response", None)
    kind = str(getattr(response, "headers", {}).get("content-type") or "")
    if response is None or kind.partition(";")[0].strip().lower() != "application/json":
        return None
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > _MOST_BYTES:
            raise InvalidModelReply(f"{model}: an answer of more than {_MOST_BYTES:,} bytes")
    try:
        body = json.loads(data)
    except ValueError:
        raise InvalidModelReply(f"{model}: an answer that is no JSON") from None
    if not isinstance(body, dict):
        raise InvalidModelReply(f"{model}: an answer that is no JSON object")
    return body
