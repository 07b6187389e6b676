"""The table of refusals: each row by words that were seen, from the source that it names."""

# ruff: noqa: E501 - a row is what a provider sent

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agent.llm.provider_refusals import ABILITY_ROWS, missing_ability, parse_refusal
from gateway.errors import ModelAbility


def openai(message: str, param: str | None = None, code: object = None, kind: str = "invalid_request_error") -> str:
    """Return the body of an error as OpenAI and most others have it."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def fastapi(kind: str, *loc: str | int, given: Any = None) -> str:
    """Return the body of a server whose requests pydantic validates."""
    return json.dumps({"detail": [{"type": kind, "loc": loc, "msg": "Extra inputs are not permitted", "input": given}]})


ABILITIES: list[tuple[str, int | None, str, ModelAbility | None]] = [
    ("ollama", 400, openai("registry.ollama.ai/library/gemma3:4b does not support tools", kind="api_error"), ModelAbility.TOOLS),
    ("ollama native", 400, '{"error":"\\"phi:latest\\" does not support tools"}', ModelAbility.TOOLS),
    (
        "vllm",
        400,
        openai('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        ModelAbility.TOOLS,
    ),
    ("llama.cpp", 500, openai("tools param requires --jinja flag", kind="server_error", code=500), ModelAbility.TOOLS),
    ("llama.cpp stream", None, '{"code":500,"message":"tools param requires --jinja flag"}', ModelAbility.TOOLS),
    (
        "openrouter",
        404,
        '{"error":{"message":"No endpoints found that support tool use. To learn more, visit: x","code":404}}',
        ModelAbility.TOOLS,
    ),
    ("openai", 400, openai("tools is not supported in this model. For a list", param="tools"), ModelAbility.TOOLS),
    ("groq", 400, openai("`tool calling` is not supported with this model"), ModelAbility.TOOLS),
    ("deepinfra", 405, openai("deepinfra error: Tool calling is not supported for model: m", code="405"), ModelAbility.TOOLS),
    ("siliconflow", 400, '{"code":20037,"message":"Function call is not supported for this model.","data":null}', ModelAbility.TOOLS),
    ("gemini", 400, '[{"error":{"code":400,"message":"Tool use with function calling is unsupported","status":"INVALID_ARGUMENT"}}]', ModelAbility.TOOLS),
    ("gemini gemma", 400, openai("Function calling is not enabled for models/gemma-3-27b-it"), ModelAbility.TOOLS),
    ("bedrock", 400, '{"message":"This model doesn\'t support tool use."}', ModelAbility.TOOLS),
    ("field", 400, openai("Argument not supported on this model: tools"), ModelAbility.TOOLS),
    ("extra field", 422, fastapi("extra_forbidden", "body", "tools", given=[{"x": "does not support images"}]), ModelAbility.TOOLS),
    ("cerebras", 400, json.dumps({"message": "property 'tools' is unsupported", "code": "wrong_api_format"}), ModelAbility.TOOLS),
    ("chinese", 400, openai("该模型不支持工具调用"), ModelAbility.TOOLS),
    ("stream options", 422, fastapi("extra_forbidden", "body", "stream_options"), ModelAbility.STREAM_OPTIONS),
    ("new-api", 400, openai("Unknown parameter: 'stream_options'.", param="stream_options"), ModelAbility.STREAM_OPTIONS),
    (
        "azure",
        400,
        '{"detail":"Extra parameters [\'stream_options\'] are not allowed when extra-parameters is not set"}',
        ModelAbility.STREAM_OPTIONS,
    ),
    ("old openai", 400, openai("Unrecognized request argument supplied: stream_options"), ModelAbility.STREAM_OPTIONS),
    ("stream", 400, openai("Streaming is not supported for this model", param="stream"), ModelAbility.STREAM),
    ("no stream", 501, '{"message":"streaming not supported"}', ModelAbility.STREAM),
    (
        "unverified",
        400,
        openai("Your organization must be verified to stream this model.", param="stream", code="unsupported_value"),
        ModelAbility.STREAM,
    ),
    ("o1", 400, openai("Unsupported value: 'stream' does not support true with this model."), ModelAbility.STREAM),
    ("bedrock stream", 400, '{"message":"This model doesn\'t support tool use in streaming mode."}', ModelAbility.STREAM),
    ("old llama.cpp", 500, openai("Cannot use tools with stream"), ModelAbility.STREAM),
    ("gemma", 400, openai("System role not supported"), ModelAbility.SYSTEM),
    ("mistral template", 500, openai("Jinja Exception: Only user and assistant roles are supported!"), ModelAbility.SYSTEM),
    ("ministral", 400, openai("Only user, assistant and tool roles are supported, got system."), ModelAbility.SYSTEM),
    ("gemini gemma system", 400, openai("Developer instruction is not enabled for models/gemma-3-27b-it"), ModelAbility.SYSTEM),
    (
        "o1-mini",
        400,
        openai("Unsupported value: 'messages[0].role' does not support 'system' with this model.", param="messages[0].role"),
        ModelAbility.SYSTEM,
    ),
    ("alternate", 500, openai("Conversation roles must alternate user/assistant/user/assistant/..."), ModelAbility.SYSTEM),
    (
        "alternate after a system message",
        500,
        openai("After the optional system message, conversation roles must alternate user and assistant roles"),
        None,
    ),
    ("minimax", 400, openai("invalid message role: system (2013)"), ModelAbility.SYSTEM),
    ("anthropic behind a proxy", 400, openai('messages: Unexpected role "system". The Messages API'), ModelAbility.SYSTEM),
    ("qwen", 500, openai("Jinja Exception: System message must be at the beginning."), ModelAbility.SYSTEM),
    ("role", 400, openai("Role 'system' is not supported"), ModelAbility.SYSTEM),
    ("no mmproj", 500, openai("Failed to process image: missing mmproj"), ModelAbility.PICTURES),
    ("glm image", 400, openai("messages.content.type 参数非法，取值范围 ['text']", code="1210"), ModelAbility.PICTURES),
    ("chinese image", 400, openai("该模型不支持图片输入"), ModelAbility.PICTURES),
    ("sglang", 400, openai("Please set --tool-call-parser"), ModelAbility.TOOLS),
    ("extra think", 400, openai("Unexpected parameter think"), ModelAbility.EFFORT),
    ("ollama image", 400, openai("this model does not support image input (ref: b8bd)"), ModelAbility.PICTURES),
    ("ark", 400, openai("Model do not support image input."), ModelAbility.PICTURES),
    ("openrouter image", 404, openai("No endpoints found that support image input", code=404), ModelAbility.PICTURES),
    (
        "deepseek",
        400,
        openai("Failed to deserialize the JSON body: messages[3]: unknown variant `image_url`, expected `text` at line 1"),
        ModelAbility.PICTURES,
    ),
    ("llama.cpp image", 500, openai("image input is not supported - hint: provide the mmproj"), ModelAbility.PICTURES),
    ("vllm image", 400, openai("m is not a multimodal model"), ModelAbility.PICTURES),
    ("vllm none", 400, openai("At most 0 image(s) may be provided in one request."), ModelAbility.PICTURES),
    ("openai image", 400, openai("Invalid content type. image_url is only supported by certain models."), ModelAbility.PICTURES),
    ("groq image", 400, openai("'messages.1' : for 'role:user' ... 'messages.1.content' must be a string"), ModelAbility.PICTURES),
    ("lm studio image", 400, openai("Model does not support images. Please use a model that does."), ModelAbility.PICTURES),
    ("mistral image", 400, openai("Image input is not enabled for this model"), ModelAbility.PICTURES),
    ("effort", 400, openai("Unsupported parameter: 'reasoning_effort' is not supported with this model.", param="reasoning_effort"), ModelAbility.EFFORT),
    ("old effort", 400, openai("Unrecognized request argument supplied: reasoning_effort"), ModelAbility.EFFORT),
    ("xai", 400, '{"code":"Client specified an invalid argument","error":"Model m does not support parameter reasoningEffort."}', ModelAbility.EFFORT),
    ("effort with tools", 400, openai("Function tools with reasoning_effort are not supported for m in /v1/chat/completions"), ModelAbility.EFFORT),
    ("ollama thinking", 400, openai('"qwen2.5" does not support thinking'), ModelAbility.EFFORT),
    ("gemini thinking", 400, openai("Budget 0 is invalid. This model only works in thinking mode."), ModelAbility.EFFORT),
    ("gemini level", 400, openai("Thinking level is not supported for this model."), ModelAbility.EFFORT),
    ("openrouter effort", 400, openai("Reasoning is mandatory for this endpoint and cannot be disabled."), ModelAbility.EFFORT),
    ("extra reasoning", 422, fastapi("extra_forbidden", "body", "reasoning"), ModelAbility.EFFORT),
    (
        "bedrock thinking",
        400,
        '{"message":"Failed to deserialize the JSON body: thinking: unknown field `thinking`, expected one of `messages`,'
        ' `reasoning_effort`, `stream`, `stream_options`, `tools` at line 1"}',
        ModelAbility.EFFORT,
    ),
    (
        "groq reasoning",
        400,
        openai("'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning'"
               " is unsupported, did you mean 'role'?)]"),
        ModelAbility.REASONING,
    ),
    ("groq model", 400, openai("messages[3].reasoning: reasoning is not supported with this model"), ModelAbility.REASONING),
    ("cited", 400, openai("`reasoning` is not supported in messages"), ModelAbility.REASONING),
    (
        "cerebras reasoning",
        400,
        json.dumps({"message": "messages.2.assistant.reasoning_content: property 'messages.2.assistant.reasoning_content'"
                    " is unsupported", "param": "validation_error"}),
        ModelAbility.REASONING,
    ),
    ("mistral reasoning", 422, fastapi("extra_forbidden", "body", "messages", 2, "assistant", "reasoning_content"), ModelAbility.REASONING),
    (
        "reasoning that is wanted",
        400,
        openai("The `reasoning_content` in the thinking mode must be passed back to the API."),
        None,
    ),
    ("tool choice", 404, openai("No endpoints found that support the provided 'tool_choice' value"), None),
    ("tool choice field", 400, openai("Invalid value: 'required'", param="tool_choice"), None),
    ("a wrong schema", 400, openai("Invalid schema for function 'x'", param="tools[0].function.parameters"), None),
    ("bad request", 400, openai("Invalid value"), None),
    ("words of the account", 429, openai("streaming is not supported on your plan"), None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "ability"), [each[1:] for each in ABILITIES], ids=[each[0] for each in ABILITIES]
)
def test_a_missing_ability_is_read(status: int | None, body: str, ability: ModelAbility | None) -> None:
    """The field or the ability that a refusal names is found, however the provider words it, also inside litellm's text."""
    assert missing_ability(parse_refusal(body), status) is ability
    assert missing_ability(parse_refusal(f"litellm.BadRequestError: OpenAIException - {body}"), status) is ability


def test_each_ability_row_was_seen() -> None:
    """No row is without words that it alone matches at its place in the table."""
    texts = [parse_refusal(body).words for _, _, body, _ in ABILITIES]
    for row in ABILITY_ROWS:
        assert row.source
        assert any(re.search(row.pattern, text, re.IGNORECASE | re.DOTALL) for text in texts), row.pattern


def test_the_request_that_a_refusal_quotes_decides_nothing() -> None:
    """A validator repeats what it was sent; words of a prompt there are no words of the provider."""
    quoted = [{"role": "user", "content": "it says: does not support tools, maximum context length is 10 tokens"}]
    refusal = parse_refusal(fastapi("missing", "body", "seed", given=quoted))
    assert "tools" not in refusal.words
    assert missing_ability(refusal, 422) is None


def test_a_huge_refusal_is_read_in_part() -> None:
    """A megabyte of text, or a body that is nested a thousand times, costs little and means nothing."""
    assert len(parse_refusal("x" * 1_000_000).words) <= 10_000
    deep = "[" * 100_000 + "{}" + "]" * 100_000
    assert missing_ability(parse_refusal(deep), 400) is None
    wide = json.dumps({"error": [{"message": "y" * 50}] * 500})
    assert len(parse_refusal(wide).words) <= 10_000
