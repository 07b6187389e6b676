"""Errors in OpenAI's own form and words, which many servers have taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fakes.model_zoo.profile import Refusal
from tests.fakes.strict_requests import RequestRule as R


def openai_error(
    status: int, message: str, kind: str = "invalid_request_error", code: Any = None, **more: Any
) -> Refusal:
    """Return an error in OpenAI's form."""
    body = {"error": {"message": message, "type": kind, "param": more.pop("param", None), "code": code}}
    return Refusal(status=status, body=body, **more)


OPENAI_NAMES = openai_error(400, "Invalid 'messages[2].tool_calls[0].function.name': string does not match pattern.")
OPENAI_IDS = openai_error(
    400,
    "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a "
    "string with length 46 instead.",
    code="string_above_max_length",
)
OPENAI_PAIRS = openai_error(
    400,
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
)
OPENAI_RULES: Mapping[R, Refusal] = {R.NAMES: OPENAI_NAMES, R.IDS: OPENAI_IDS, R.PAIRS: OPENAI_PAIRS}
OPENAI_OVERFLOW = openai_error(
    400,
    "This model's maximum context length is %window% tokens. However, your messages resulted in %tokens% tokens. "
    "Please reduce the length of the messages.",
    code="context_length_exceeded",
    param="messages",
)
OPENAI_KEY = openai_error(401, "Incorrect API key provided: %key%.", code="invalid_api_key")
FILTER_CHUNK = (
    b'data: {"choices":[],"created":0,"id":"","model":"","object":"",'
    b'"prompt_filter_results":[{"prompt_index":0,"content_filter_results":{}}]}\n\n'
)
