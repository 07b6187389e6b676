"""The table of refusals: each row by words that were seen, from the source that it names."""

# ruff: noqa: E501 - a row is what a provider sent

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest

from agent.llm.provider_errors import ProviderHttpError, map_provider_error
from agent.llm.provider_refusals import ABILITY_ROWS, REFUSAL_ROWS, missing_ability
from agent.llm.refusal_text import parse_duration, parse_refusal
from gateway.errors import (
    AbilityMissing,
    ContextOverflow,
    FailureCause,
    ModelAbility,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
)
from tests.fakes.llm_context import NOW


def openai(message: str, param: str | None = None, code: object = None, kind: str = "invalid_request_error") -> str:
    """Return the body of an error as OpenAI and most others have it."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def fastapi(kind: str, *loc: str | int, given: Any = None) -> str:
    """Return the body of a server whose requests pydantic validates."""
    return json.dumps({"detail": [{"type": kind, "loc": loc, "msg": "Extra inputs are not permitted", "input": given}]})


TOO_MANY_TOOLS = [
    (
        "openai",
        openai(
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 130 instead.",
            param="tools",
            code="array_above_max_length",
        ),
    ),
    ("azure", openai("[] is too long - 'tools'. Maximum number of items is 128.", param="tools")),
    ("groq", openai("'tools' : maximum number of items is 128")),
    ("xai", openai("Too many tools: 201 were given, the limit is 200")),
    (
        "pydantic",
        json.dumps(
            {
                "detail": [
                    {
                        "type": "too_long",
                        "loc": ["body", "tools"],
                        "msg": "List should have at most 64 items after validation, not 130",
                    }
                ]
            }
        ),
    ),
    ("gemini", openai("The number of function declarations must not exceed 512")),
    ("mistral", openai("At most 128 tools can be used")),
]
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
    ("siliconflow image", 400, json.dumps({"code": 20041, "message": "The model is not a VLM."}), ModelAbility.PICTURES),
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
        ModelAbility.FOREIGN_CALLS,
    ),
    ("pydantic's roles", 422, '{"detail":[{"type":"literal_error","loc":["body","messages",0,"role"],"msg":"Input should be \'user\' or \'assistant\'","input":"system"}]}', ModelAbility.SYSTEM),
    ("pydantic's text", 422, fastapi("string_type", "body", "messages", "1", "content", "str"), ModelAbility.PICTURES),
    ("groq's text", 400, openai("'messages.1' : for 'role:user' the following must be satisfied[('messages.1.content' : value must be a string)]"), ModelAbility.PICTURES),
    ("gemini always thinks", 400, openai("Budget 0 is invalid. This model only supports thinking mode."), ModelAbility.EFFORT),
    ("tool choice", 404, openai("No endpoints found that support the provided 'tool_choice' value"), None),
    ("tool choice field", 400, openai("Invalid value: 'required'", param="tool_choice"), None),
    ("a wrong schema", 400, openai("Invalid schema for function 'x'", param="tools[0].function.parameters"), None),
    ("too many", 400, openai("Too many tools: 201 were given"), ModelAbility.TOOLS),
    ("bad request", 400, openai("Invalid value"), None),
    ("words of the account", 429, openai("streaming is not supported on your plan"), None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), TOO_MANY_TOOLS, ids=[name for name, _ in TOO_MANY_TOOLS])
def test_a_limit_on_the_number_of_tools_says_nothing_about_the_model(name: str, text: str) -> None:
    """The request is made without tools, and nothing lasting is known of the model."""
    found = map_provider_error(ProviderHttpError(400, text, {}), name, NOW)
    assert isinstance(found, AbilityMissing)
    assert (found.ability, found.is_lasting) == (ModelAbility.TOOLS, False)


def test_a_model_without_tools_lastingly_has_none() -> None:
    """Every other refusal of tools is about the model or its server."""
    for name, status, text, ability in ABILITIES:
        if ability is ModelAbility.TOOLS and status is not None and name != "too many":
            found = map_provider_error(ProviderHttpError(status, text, {}), name, NOW)
            assert isinstance(found, AbilityMissing), name
            assert found.is_lasting, name


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


# An error in a stream without a code is HTTP 500 to us.
OVERFLOWS: list[tuple[str, int, str, int]] = [
    ("ds4", 400, openai("Prompt has 9,000 tokens, but the configured context size is 8,192 tokens"), 8_192),
    ("a limit alone", 400, openai("Input token limit exceeded"), 0),
    ("a model's limit", 400, openai("total tokens 9000 exceed model limit 8192"), 8_192),
    ("bedrock, titan", 400, '{"message":"Expected maxLength: 50000, actual: 60000, please reformat your input and try again."}', 0),
    ("longer than", 400, openai("Prompt length is longer than 8192. Please shorten it"), 8_192),
    ("tensorrt", 400, openai("The sum of prompt length (9000.0), query length (0) should not exceed max_num_tokens (8192)"), 0),
    ("total length", 400, '{"detail":"Request\'s total context length of 9000 exceeds 8192"}', 8_192),
    ("no slot", 500, '{"error":"llama runner: failed to decode batch: could not find a kv cache slot"}', 0),
    ("size limit", 400, '{"message":"too many tokens: size limit exceeded by 1200 tokens. The limit for this model is 128000 tokens."}', 128_000),
    ("openai", 400, openai("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", code="context_length_exceeded"), 8_192),
    ("openai completion", 400, openai("This model's maximum context length is 4097 tokens, however you requested 4130 tokens (130 in your prompt; 4000 for the completion). Please reduce your prompt."), 4_097),
    ("openai limit", 400, openai("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens."), 272_000),
    ("openai window", 400, openai("Your input exceeds the context window of this model. Please adjust your input and try again."), 0),
    ("openai rate", 429, openai("Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 60000. The input or output tokens must be reduced in order to run successfully.", code="rate_limit_exceeded"), 30_000),
    ("groq rate", 413, openai("Request too large for model `m` in organization `org_x` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Requested 9123, please reduce your message size and try again.", code="rate_limit_exceeded"), 6_000),
    ("groq", 400, openai("Please reduce the length of the messages or completion.", code="context_length_exceeded"), 0),
    ("anthropic", 400, '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 208310 tokens > 200000 maximum"}}', 200_000),
    ("anthropic sum", 400, openai("input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease input length"), 200_000),
    ("anthropic bytes", 413, '{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}', 0),
    ("gemini", 400, '[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]', 1_048_576),
    ("vertex", 400, openai("Unable to submit request because the input token count is 40000 but model only supports up to 32767. Reduce the input token count."), 32_767),
    ("mistral", 400, '{"object":"error","message":"Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_prompt"}', 32_768),
    ("openrouter", 400, openai("This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens (38000 of text input, 2000 in the output)."), 32_768),
    ("together", 422, openai("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 1000 `max_new_tokens`"), 8_193),
    ("tgi", 422, openai("Input validation error: `inputs` must have less than 4096 tokens. Given: 6000"), 4_096),
    ("fireworks", 400, openai("The prompt is too long: 20000, model maximum context length: 16383"), 16_383),
    ("deepinfra", 400, openai("Requested input length 40000 exceeds maximum input length 32768"), 32_768),
    ("cerebras", 400, '{"message":"Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192","code":"context_length_exceeded"}', 8_192),
    ("github", 413, openai("Request body too large for gpt-4o model. Max size: 8000 tokens.", code="tokens_limit_reached"), 8_000),
    ("copilot", 400, openai("prompt token count of 70000 exceeds the limit of 64000", code="model_max_prompt_tokens_exceeded"), 64_000),
    ("cohere", 400, '{"message":"too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a shorter prompt."}', 4_081),
    ("xai", 400, '{"code":"Client specified an invalid argument","error":"This model\'s maximum prompt length is 131072 but the request contains 140000 tokens."}', 131_072),
    ("moonshot", 400, openai("Invalid request: Your request exceeded model token limit: 8192 (requested: 12000)"), 8_192),
    ("glm", 400, '{"error":{"code":"1261","message":"Prompt exceeds max length"}}', 0),
    ("glm in chinese", 400, '{"error":{"code":"1261","message":"Prompt 超长"}}', 0),
    ("dashscope", 400, openai("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"), 30_720),
    ("minimax", 400, openai("invalid params, context window exceeds limit (2013)"), 0),
    ("siliconflow", 400, '{"code":20015,"message":"length of prompt_tokens (40000) must be less than max_seq_len (32768).","data":null}', 32_768),
    ("vllm", 400, openai("You passed 6000 input tokens and requested 100 output tokens. However, the model's context length is only 4096 tokens, resulting in a maximum input length of 3996 tokens."), 4_096),
    ("vllm decoder", 400, openai("The decoder prompt (length 21535) is longer than the maximum model length of 16384. Make sure that `max_model_len` is no smaller than the number of text tokens."), 16_384),
    ("vllm long", 400, openai("The prompt (total length 6000) is too long to fit into the model (context length 4096)."), 4_096),
    ("vllm engine", 400, openai("The engine prompt length 12345 exceeds the max_model_len 4096. Please reduce prompt."), 4_096),
    ("vllm answer", 400, openai("'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 4096 tokens and your request has 3000 input tokens"), 4_096),
    ("sglang", 400, openai("The input (6000 tokens) is longer than the model's context length (4096 tokens)."), 4_096),
    ("sglang input", 400, openai("Input length (6000 tokens) exceeds the maximum allowed length (4091 tokens). Use a shorter input or enable --allow-auto-truncate."), 4_091),
    ("sglang total", 400, openai("Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 6000 tokens: 5000 tokens from the input messages and 1000 tokens for the completion."), 4_096),
    ("llama.cpp", 400, openai("the request exceeds the available context size (4096 tokens), try increasing it"), 4_096),
    ("llama.cpp new", 400, openai("request (6000 tokens) exceeds the available context size (4096 tokens), try increasing it"), 4_096),
    ("llama.cpp fields", 500, '{"error":{"code":500,"message":"it does not fit","type":"exceed_context_size_error","n_prompt_tokens":6000,"n_ctx":4096}}', 4_096),
    ("llama.cpp size", 500, openai("Context size has been exceeded.", kind="server_error", code=500), 0),
    ("llama.cpp input", 500, openai("input is too large to process. increase the physical batch size", kind="server_error"), 0),
    ("llama.cpp old", 500, openai("Input prompt is too big compared to KV size"), 0),
    ("lm studio", 500, openai("The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 6000>= n_ctx: 4096). Try to load the model with a larger context length"), 4_096),
    ("lm studio without figures", 500, '{"message":"The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length, or provide a shorter input"}', 0),
    ("lm studio trying", 400, openai("Trying to keep the first 5394 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough."), 4_096),
    ("lm studio reached", 400, openai("Reached context length of 4096 tokens with this model"), 4_096),
    ("ollama", 500, openai("the input length exceeds the context length", kind="api_error"), 0),
    ("ollama prompt", 400, '{"error":"prompt too long; exceeded max context length by 123 tokens"}', 0),
    ("tabby", 400, '{"detail":"Context length 6000 is greater than max_seq_len 4096"}', 4_096),
    ("text-generation-webui", 400, openai("This model maximum context length is 2048 tokens. However, your messages resulted in over 3000 tokens."), 2_048),
    ("bedrock", 400, '{"message":"Input is too long for requested model."}', 0),
    ("bedrock tokens", 400, '{"message":"Too many input tokens"}', 0),
    ("watsonx", 400, openai("the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model"), 4_096),
    ("ark", 400, openai("Total tokens of image and text exceed max message tokens"), 0),
    ("ark input", 400, openai("Input length 40000 exceeds the maximum length 32768"), 32_768),
    ("qianfan", 400, openai("the max input characters is 20000", code="336007"), 0),
    ("yandex", 400, openai("number of input tokens must be no more than 8192, got 9000"), 8_192),
    ("litellm proxy", 400, openai("litellm.ContextWindowExceededError: ContextWindowExceededError: OpenAIException - maximum context length is 4,096 tokens"), 4_096),
    ("a list", 400, '[{"error":{"message":"This model\'s maximum context length is 8192 tokens."}}]', 8_192),
    ("long context", 429, openai("Extra usage is required for long context requests."), 0),
    ("text", 400, "prompt is too long", 0),
    ("chinese", 400, openai("输入长度超出限制"), 0),
    ("a proxy's page", 413, "", 0),
    ("unknown words of 413", 413, '{"oops": true}', 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "limit"), [each[1:] for each in OVERFLOWS], ids=[each[0] for each in OVERFLOWS]
)
def test_a_prompt_that_is_too_long_is_recognised(status: int, body: str, limit: int) -> None:
    """Whatever the status and the words: it is an overflow with the limit that was named, never with what was sent."""
    for text in (body, f"litellm.BadRequestError: OpenAIException - {body}"):
        failed = map_provider_error(ProviderHttpError(status, text, {}), "m", NOW)
        assert isinstance(failed, ContextOverflow), failed
        assert failed.window == limit


MEANINGS: list[tuple[str, int, str, type[ModelFailed], FailureCause | None]] = [
    ("siliconflow 403", 403, openai("RPM limit exceeded. Please complete identity verification"), ModelRateLimited, None),
    ("free tier", 403, '{"code":"AllocationQuota.FreeTierOnly","message":"The free tier of the model has been exhausted."}', ModelRefused, FailureCause.ACCOUNT),
    ("gemini's countries", 400, openai("User location is not supported for the API use."), ModelRefused, FailureCause.RIGHTS),
    ("quota", 429, openai("You exceeded your current quota, please check your plan and billing details.", code="insufficient_quota"), ModelRefused, FailureCause.ACCOUNT),
    ("quota without a code", 429, openai("You exceeded your current quota, please check your plan and billing details."), ModelRefused, FailureCause.ACCOUNT),
    ("gemini never", 429, '[{"error":{"code":429,"message":"You exceeded your current quota. \\n* Quota exceeded for metric: x/free_tier_requests, limit: 0, model: m\\nPlease retry in 1.5s.","status":"RESOURCE_EXHAUSTED"}}]', ModelRefused, FailureCause.ACCOUNT),
    ("anthropic credit", 400, openai("Your credit balance is too low to access the Anthropic API."), ModelRefused, FailureCause.ACCOUNT),
    ("deepseek", 402, openai("Insufficient Balance"), ModelRefused, FailureCause.ACCOUNT),
    ("openrouter", 402, openai("This request requires more credits, or fewer max_tokens. You requested up to 4096 tokens, but can only afford 100."), ModelRefused, FailureCause.ACCOUNT),
    ("moonshot", 429, openai("Your account is suspended, please check your plan and billing details", kind="exceeded_current_quota_error"), ModelRefused, FailureCause.ACCOUNT),
    ("glm", 429, '{"error":{"code":"1113","message":"余额不足或无可用资源包,请充值。"}}', ModelRefused, FailureCause.ACCOUNT),
    ("siliconflow", 403, '{"code":30001,"message":"Sorry, your account balance is insufficient"}', ModelRefused, FailureCause.ACCOUNT),
    ("xai", 429, openai("Your team x has either used all available credits or reached its monthly spending limit."), ModelRefused, FailureCause.ACCOUNT),
    ("litellm budget", 400, openai("Budget has been exceeded! Current cost: 1.0, Max budget: 1.0", kind="budget_exceeded"), ModelRefused, FailureCause.ACCOUNT),
    ("dashscope arrears", 400, openai("Access denied, please make sure your account is in good standing.", code="Arrearage"), ModelRefused, FailureCause.ACCOUNT),
    ("key", 401, openai("Incorrect API key provided: sk-SECRET.", code="invalid_api_key"), ModelRefused, FailureCause.KEY),
    ("gemini key", 400, '[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}]', ModelRefused, FailureCause.KEY),
    ("xai key", 400, '{"code":"Client specified an invalid argument","error":"Incorrect API key provided: xa***SECRET"}', ModelRefused, FailureCause.KEY),
    ("no words", 401, "", ModelRefused, FailureCause.KEY),
    ("rights", 403, openai("Project does not have access"), ModelRefused, FailureCause.RIGHTS),
    ("openai model", 404, openai("The model `gpt-9` does not exist or you do not have access to it.", code="model_not_found"), ModelRefused, FailureCause.MODEL),
    ("ollama model", 404, openai('model "llama9.1:8b" not found, try pulling it first'), ModelRefused, FailureCause.MODEL),
    ("openrouter model", 400, openai("foo/bar is not a valid model ID"), ModelRefused, FailureCause.MODEL),
    ("groq model", 400, openai("The model `m` has been decommissioned", code="model_decommissioned"), ModelRefused, FailureCause.MODEL),
    ("mistral model", 400, '{"object":"error","message":"Invalid model: m","code":"1500"}', ModelRefused, FailureCause.MODEL),
    ("litellm model", 400, openai("/chat/completions: Invalid model name passed in model=m. Call `/v1/models`"), ModelRefused, FailureCause.MODEL),
    ("glm model", 400, '{"error":{"code":"1211","message":"模型不存在，请检查模型代码。"}}', ModelRefused, FailureCause.MODEL),
    ("deepseek model", 400, openai("Model Not Exist"), ModelRefused, FailureCause.MODEL),
    ("no models", 400, openai("No models loaded. Please load a model in the developer page."), ModelRefused, FailureCause.MODEL),
    ("address", 404, "404 page not found", ModelRefused, FailureCause.ADDRESS),
    ("azure filter", 400, openai("The response was filtered due to the prompt triggering Azure OpenAI's content management policy.", code="content_filter"), ModelRefused, FailureCause.FILTERED),
    ("deepseek filter", 400, openai("Content Exists Risk"), ModelRefused, FailureCause.FILTERED),
    ("dashscope filter", 400, openai("Input data may contain inappropriate content.", code="data_inspection_failed"), ModelRefused, FailureCause.FILTERED),
    ("openrouter filter", 403, openai("m requires moderation. Your input was flagged"), ModelRefused, FailureCause.FILTERED),
    ("gemini filter", 400, openai("PROHIBITED_CONTENT"), ModelRefused, FailureCause.FILTERED),
    ("overloaded", 529, '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', ModelRateLimited, None),
    ("overloaded in a stream", 500, '{"type":"overloaded_error","message":"Overloaded"}', ModelRateLimited, None),
    ("loading", 503, openai("Loading model", kind="unavailable_error"), ModelRateLimited, None),
    ("capacity", 429, openai("Service tier capacity exceeded for this model."), ModelRateLimited, None),
    ("moonshot busy", 429, openai("The engine is currently overloaded, please try again later", kind="engine_overloaded_error"), ModelRateLimited, None),
    ("limit as 400", 400, '{"__type":"ThrottlingException","message":"Too many requests, please wait"}', ModelRateLimited, None),
    ("google's 403", 403, openai("Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'"), ModelRateLimited, None),
    ("glm busy", 429, '{"error":{"code":"1302","message":"您的账户已达到速率限制，请您控制请求频率"}}', ModelRateLimited, None),
    ("answer too long", 400, openai("max_tokens is too large: 100000. This model supports at most 16384 completion tokens", param="max_tokens"), ModelRefused, None),
    ("unknown", 400, openai("Invalid value"), ModelRefused, None),
    ("broken", 500, openai("internal error"), ModelServerFailed, None),
    ("gateway", 502, "", ModelServerFailed, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "error", "cause"), [each[1:] for each in MEANINGS], ids=[each[0] for each in MEANINGS]
)
def test_the_meaning_of_a_refusal(status: int, body: str, error: type[ModelFailed], cause: FailureCause | None) -> None:
    """What a person must mend is told from what passes by itself, and nothing of the text is in the error."""
    failed = map_provider_error(ProviderHttpError(status, body, {}), "m", NOW)
    assert (type(failed), failed.cause) == (error, cause)
    assert "SECRET" not in str(failed)


WAITS: list[tuple[str, dict[str, str], str, float | None]] = [
    ("a negative one before", {"retry-after-ms": "-5", "Retry-After": "3"}, "", 3),
    ("a date of ISO", {"Retry-After": (NOW + timedelta(seconds=30)).isoformat()}, "", 30),
    ("a time of Unix", {"Retry-After": str(int(NOW.timestamp()) + 30)}, "", 30),
    ("a time that is over", {"Retry-After": "1100000000"}, "", 0),
    ("no number", {"Retry-After": "NaN"}, "", None),
    ("words behind a header that is none", {"Retry-After": "soon"}, openai("Please try again in about 20 seconds."), 20),
    ("a time of day", {}, openai("Your limit resets in 00:05:00"), None),
    ("chinese", {}, openai("请在 30 秒后重试"), 30),
    ("header", {"Retry-After": "2"}, openai("try again in 7s"), 2),
    ("milliseconds", {"retry-after-ms": "1500", "retry-after": "2"}, "", 1.5),
    ("date", {"Retry-After": "Sat, 21 Nov 2026 21:01:00 GMT"}, "", 60),
    ("groq", {}, openai("Rate limit reached for model `m` on tokens per minute (TPM): Limit 6000, Used 5034, Requested 1443. Please try again in 4.77s. Need more tokens? Upgrade at https://console.groq.com/settings/billing"), 4.77),
    ("minutes", {}, openai("Rate limit reached. Please try again in 1m2.5s."), 62.5),
    ("short", {}, openai("Rate limit reached. Please try again in 250ms."), 0.25),
    ("azure", {}, openai("Requests have exceeded call rate limit. Please retry after 34 seconds."), 34),
    ("gemini", {}, '[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.\\n* Quota exceeded for metric: x, limit: 10, model: m\\nPlease retry in 1.5s.","status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"1.5s"}]}}]', 1.5),
    ("gemini field", {}, '{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"12s"}]}}', 12),
    ("field", {}, '{"error":{"message":"rate limit","retry_after":3.5}}', 3.5),
    ("github", {}, openai("Rate limit of 10 per 60s exceeded for UserByModelByMinute. Please wait 17 seconds before retrying."), 17),
    ("reset", {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m6s", "x-ratelimit-reset-tokens": "6ms", "x-ratelimit-remaining-tokens": "100"}, "", 66),
    ("openrouter", {"X-RateLimit-Reset": str(int((NOW.timestamp() + 9) * 1000)), "X-RateLimit-Remaining": "0"}, "", 9),
    ("anthropic", {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": (NOW + timedelta(seconds=30)).isoformat()}, "", 30),
    ("negative", {"Retry-After": "-3"}, "", None),
    ("infinite", {"Retry-After": "inf"}, "", None),
    ("endless", {"Retry-After": "1e300"}, "", 1e6),
    ("endless text", {}, openai("try again in 999999999999999999999h"), 1e6),
    ("nothing", {}, openai("Rate limit reached"), None),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "body", "seconds"), [each[1:] for each in WAITS], ids=[each[0] for each in WAITS])
def test_the_wait_that_a_provider_names(headers: dict[str, str], body: str, seconds: float | None) -> None:
    """It is read from a header, a date, a field or the text; it is never negative and never without end."""
    failed = map_provider_error(ProviderHttpError(429, body, headers), "m", NOW)
    assert isinstance(failed, ModelRateLimited), failed
    if seconds is None:
        assert failed.delay is None
    else:
        assert failed.delay is not None
        assert failed.delay.total_seconds() == pytest.approx(seconds, abs=0.01)


def test_each_row_of_a_meaning_was_seen() -> None:
    """No row is without words that it matches."""
    bodies = [*(each[2] for each in OVERFLOWS), *(each[2] for each in MEANINGS), *(each[2] for each in WAITS)]
    texts = [parse_refusal(body).words for body in bodies]
    for row in REFUSAL_ROWS:
        assert row.source
        assert any(re.search(row.pattern, text, re.IGNORECASE | re.DOTALL) for text in texts), row.pattern


@pytest.mark.parametrize("text", ["", "s", "1x", "4 s later", "-1s", "1h-2s"])
def test_a_duration_that_is_none(text: str) -> None:
    """What is no duration as a whole is not read in part."""
    assert parse_duration(text) is None
