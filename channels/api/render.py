"""Answers and errors as OpenAI's protocol has them: objects, chunks of a stream, and the Markdown in them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from channels.api.parse import MODEL, ApiError
from gateway.channel import TurnUsage
from gateway.events import MessagePart, OutboundKind, OutboundMessage
from gateway.i18n import translate
from gateway.text import (
    Links,
    break_addresses,
    comparable_address,
    find_addresses,
    render_plain,
    sanitize,
    split_bounded,
)

DONE = b"data: [DONE]\n\n"
PAUSE = b": waiting\n\n"  # a comment: keeps proxies and clients from giving up

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def render(message: OutboundMessage, limit: int, most: int, language: str) -> list[MessagePart]:
    """Return *message* cut into parts whose payload is JSON: the Markdown, and whether it is the last part.

    Clients render Markdown, pictures included: an address that may not be a link is one in no part.
    """
    whole = sanitize(message.text)
    text = restrict_markdown(whole, message.links)
    if message.kind is OutboundKind.PREVIEW and message.links is not None:
        # What a stream has shown stays. An address is complete with the word behind it, and from the first one that is
        # broken on the text waits for its end. An empty preview changes nothing.
        text = text[: max(text.rfind(" "), text.rfind("\n")) + 1].rstrip() if text == whole else ""
    pieces = split_bounded(text, limit=limit, max_parts=most, note=translate("delivery.cut", language))
    last = len(pieces) - (0 if message.attachments else 1)
    return [
        message.part(n + 1, json.dumps({"text": piece, "last": n == last}), render_plain(piece))
        for n, piece in enumerate(pieces)
    ]


def restrict_markdown(text: str, links: Links | None) -> str:
    """Return Markdown in which only *links* are links and pictures; None = all may be.

    It stays Markdown where breaking the other addresses is enough, and becomes plain text where an address is
    hidden in its syntax.
    """
    if links is None or _has_only(text, links):
        return text
    broken = break_addresses(text, links)
    return broken if _has_only(broken, links) else render_plain(text, links)


def _has_only(text: str, links: Links) -> bool:
    found = find_addresses(text)
    # A text that is too heavy to read has none.
    return (bool(found) or "://" not in text) and all(comparable_address(each) in links for each in found)


# -- /v1/chat/completions --------------------------------------------------------------------------


def completion(ident: str, at: datetime, text: str, usage: TurnUsage) -> dict[str, Any]:
    """Return the object of a whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    return {
        "id": ident,
        "object": "chat.completion",
        "created": int(at.timestamp()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": chat_usage(usage),
    }


def function_call(ident: str, at: datetime, function: str, arguments: str, usage: TurnUsage) -> dict[str, Any]:
    """Return the object of a whole answer that calls the *function* which its request forces."""
    whole = completion(ident, at, "", usage)
    whole["choices"][0]["message"] |= {"content": None, "tool_calls": [_call(function, arguments)]}
    return whole


def _call(function: str, arguments: str) -> dict[str, Any]:
    return {"id": "call_0", "type": "function", "function": {"name": function, "arguments": arguments}}


def chat_usage(usage: TurnUsage) -> dict[str, Any]:
    """Return the tokens as /v1/chat/completions has them."""
    return {
        "prompt_tokens": usage.tokens_in,
        "completion_tokens": usage.tokens_out,
        "total_tokens": usage.tokens_in + usage.tokens_out,
        "prompt_tokens_details": {"cached_tokens": usage.tokens_cached},
    }


class CompletionChunks:
    """The events of one streamed completion."""

    def __init__(self, ident: str, at: datetime, *, wants_usage: bool) -> None:
        self._head = {"id": ident, "object": "chat.completion.chunk", "created": int(at.timestamp()), "model": MODEL}
        self._wants_usage = wants_usage

    def begin(self) -> Iterator[bytes]:
        """Yield the role."""
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def add(self, text: str) -> Iterator[bytes]:
        """Yield more of the text."""
        yield self._chunk({"content": text})

    def call(self, function: str, arguments: str) -> Iterator[bytes]:
        """Yield the call of the function that the request forces."""
        yield self._chunk({"tool_calls": [{"index": 0, **_call(function, arguments)}]})

    def end(self, usage: TurnUsage | None) -> Iterator[bytes]:
        """Yield the end, with *usage* if it was asked for."""
        yield self._chunk({}, "stop")
        if self._wants_usage and usage is not None:
            yield event({**self._head, "choices": [], "usage": chat_usage(usage)})
        yield DONE

    def fail(self, error: ApiError) -> Iterator[bytes]:
        """Yield an error, which ends the stream."""
        yield event(error_body(error))

    def _chunk(self, delta: Mapping[str, Any], ending: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": ending}
        return event({**self._head, "choices": [choice], **({"usage": None} if self._wants_usage else {})})


# -- /v1/responses ---------------------------------------------------------------------------------


def response_object(ident: str, at: datetime, text: str | None, usage: TurnUsage | None) -> dict[str, Any]:
    """Return a response; without *text* it is in progress."""
    return {
        "id": ident,
        "object": "response",
        "created_at": int(at.timestamp()),
        "status": "in_progress" if text is None else "completed",
        "model": MODEL,
        "output": [] if text is None else [_item(ident, text)],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": False,
        "temperature": None,
        "top_p": None,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if usage is None else response_usage(usage),
    }


def response_usage(usage: TurnUsage) -> dict[str, Any]:
    """Return the tokens as /v1/responses has them."""
    return {
        "input_tokens": usage.tokens_in,
        "input_tokens_details": {"cached_tokens": usage.tokens_cached},
        "output_tokens": usage.tokens_out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.tokens_in + usage.tokens_out,
    }


def _item(ident: str, text: str | None) -> dict[str, Any]:
    content = [] if text is None else [_text_part(text)]
    status = "in_progress" if text is None else "completed"
    return {"id": f"msg_{ident}", "type": "message", "role": "assistant", "status": status, "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseEvents:
    """The events of one streamed response."""

    def __init__(self, ident: str, at: datetime) -> None:
        self._ident, self._at = ident, at
        self._number = 0
        self._text = ""
        self._place = {"item_id": f"msg_{ident}", "output_index": 0, "content_index": 0}

    def begin(self) -> Iterator[bytes]:
        """Yield that a response with one message begins."""
        yield self._event("response.created", response=response_object(self._ident, self._at, None, None))
        yield self._event("response.in_progress", response=response_object(self._ident, self._at, None, None))
        yield self._event("response.output_item.added", output_index=0, item=_item(self._ident, None))
        yield self._event("response.content_part.added", **self._place, part=_text_part(""))

    def add(self, text: str) -> Iterator[bytes]:
        """Yield more of the text."""
        self._text += text
        yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def end(self, usage: TurnUsage | None) -> Iterator[bytes]:
        """Yield the end."""
        yield self._event("response.output_text.done", **self._place, text=self._text, logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=_text_part(self._text))
        yield self._event("response.output_item.done", output_index=0, item=_item(self._ident, self._text))
        yield self._event(
            "response.completed", response=response_object(self._ident, self._at, self._text, usage or TurnUsage())
        )

    def fail(self, error: ApiError) -> Iterator[bytes]:
        """Yield an error, which ends the stream."""
        yield self._event("error", code=error.code or None, message=str(error), param=error.param or None)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\n" + event(body)


# -- both ------------------------------------------------------------------------------------------


def event(body: Mapping[str, Any]) -> bytes:
    """Return *body* as an event of a stream."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of a refusal."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    fields = {"message": str(error), "type": kind, "param": error.param or None, "code": error.code or None}
    return {"error": fields}


def growth(before: str, text: str) -> str:
    """Return the text to append to a stream that ends in *before*, so that it ends in *text*.

    A stream cannot be corrected: a text that does not continue the last one becomes another paragraph.
    """
    return text.removeprefix(before) if text.startswith(before) else f"\n\n{text}"
