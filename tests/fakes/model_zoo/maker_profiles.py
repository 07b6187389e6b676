"""Those who make models and serve them. Each error is written down from the reports and documents in `source`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fakes.model_zoo.openai_errors import (
    FILTER_CHUNK,
    OPENAI_KEY,
    OPENAI_OVERFLOW,
    OPENAI_RULES,
    openai_error,
)
from tests.fakes.model_zoo.profile import (
    CallForm,
    ModelProfile,
    Protocol,
    ReasoningForm,
    Refusal,
    StreamForm,
    UsageForm,
)
from tests.fakes.strict_requests import RequestRule as R


def google_error(status: int, message: str, kind: str, details: Any = (), *, wait: float = 0.0) -> Refusal:
    """Return an error in the form of Google's APIs."""
    error = {"code": status, "message": message, "status": kind, **({"details": details} if details else {})}
    return Refusal(status=status, body={"error": error}, wait=wait)


def in_list(refusal: Refusal) -> Refusal:
    """Return a Google error as its OpenAI-compatible address sends it."""
    return Refusal(status=refusal.status, body=[refusal.body], wait=refusal.wait)


_GEMINI_KEY = google_error(
    400,
    "API key not valid. Please pass a valid API key.",
    "INVALID_ARGUMENT",
    [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
)
_GEMINI_LIMIT = google_error(
    429,
    "You exceeded your current quota, please check your plan and billing details. For more information on this "
    "error, head to: https://ai.google.dev/gemini-api/docs/rate-limits.\n* Quota exceeded for metric: "
    "generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 10, model: gemini-2.5-flash\n"
    "Please retry in 1.5s.",
    "RESOURCE_EXHAUSTED",
    [
        {
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}],
        },
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"},
    ],
    wait=1.5,
)
_GEMINI_OVERFLOW = google_error(
    400,
    "The input token count (%tokens%) exceeds the maximum number of tokens allowed (%window%).",
    "INVALID_ARGUMENT",
)
_GEMINI_SIGNATURE = google_error(
    400,
    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
    "correctly. Additional data, function call `default_api:look_up` , position 2.",
    "INVALID_ARGUMENT",
)
_DEEPSEEK_KEY = openai_error(401, "Authentication Fails, Your api key: %key% is invalid", "authentication_error")
_DEEPSEEK_REASONING = openai_error(
    400, "The `reasoning_content` in the thinking mode must be passed back to the API.", code="invalid_request_error"
)
_DEEPSEEK_OVERFLOW = openai_error(
    400,
    "This model's maximum context length is %window% tokens. However, you requested %tokens% tokens (%tokens% in the "
    "messages, 0 in the completion). Please reduce the length of the messages or completion.",
)
_MISTRAL_ROLES = Refusal(
    status=400,
    body={
        "object": "error",
        "message": "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        "type": "invalid_request_message_order",
        "code": "3230",
    },
)
_MISTRAL_RULES: Mapping[R, Refusal] = {
    R.NINE: Refusal(
        status=400,
        body={
            "object": "error",
            "message": "Tool call id was call_0 but must be a-z, A-Z, 0-9, with a length of 9.",
            "type": "invalid_request_function_call",
            "code": "3280",
        },
    ),
    R.ROLES: _MISTRAL_ROLES,
    R.PAIRS: Refusal(
        status=400,
        body={
            "object": "error",
            "message": "Not the same number of function calls and responses",
            "type": "invalid_request_message_order",
            "code": "3230",
        },
    ),
}
_MISTRAL_OVERFLOW = Refusal(
    status=400,
    body={
        "object": "error",
        "message": "Prompt contains %tokens% tokens and 0 draft tokens, too large for model with %window% maximum "
        "context length",
        "type": "invalid_request_prompt",
        "code": "3051",
    },
)
_MISTRAL_LIMIT = Refusal(
    status=429,
    body={
        "object": "error",
        "message": "Service tier capacity exceeded for this model.",
        "type": "service_tier_capacity_exceeded",
        "code": "3505",
    },
)


def _unsupported(name: str, value: str) -> Refusal:
    """Return OpenAI's refusal of a value that a reasoning model does not take."""
    message = f"Unsupported value: '{name}' does not support {value} with this model."
    return openai_error(400, message, code="unsupported_value", param=name)


MAKERS = (
    ModelProfile(
        name="openai",
        title="OpenAI",
        model="openai/gpt-4o",
        source="openai-openapi; BerriAI/litellm#17343 (ids of 46 characters); mindcraft-bots/mindcraft#188 (limits)",
        refuses=OPENAI_RULES,
        overflow=OPENAI_OVERFLOW,
        limit=openai_error(
            429,
            "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, "
            "Requested 1500. Please try again in 400ms.",
            "tokens",
            "rate_limit_exceeded",
            headers={"retry-after-ms": "400", "retry-after": "1"},
            wait=0.4,
        ),
        bad_key=OPENAI_KEY,
        note="Says a rate limit's end in milliseconds.",
    ),
    ModelProfile(
        name="openai-small",
        title="OpenAI, lowest tier",
        model="openai/gpt-4o-mini",
        source="openai-openapi; cases: overflow-openai-tpm429, args-repeat; elizaOS/eliza#4040 (too large by tokens)",
        refuses=OPENAI_RULES,
        overflow=openai_error(
            429,
            "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit %window%, Requested "
            "%tokens%. The input or output tokens must be reduced in order to run successfully.",
            "tokens",
            "rate_limit_exceeded",
        ),
        limit=openai_error(
            429,
            "Rate limit reached for gpt-4o-mini in organization org-x on requests per min (RPM): Limit 3, Used 3, "
            "Requested 1. Please try again in 1s.",
            "requests",
            "rate_limit_exceeded",
            wait=1.0,
        ),
        bad_key=OPENAI_KEY,
        note="A prompt above the tokens per minute is a 429 that no wait cures.",
    ),
    ModelProfile(
        name="o1-preview",
        title="OpenAI o1-preview",
        model="openai/o1-preview",
        source="BerriAI/litellm docs, page on o1; openai/openai-python (unsupported_value)",
        refuses={
            R.TOOLS: openai_error(
                400, "Unsupported parameter: 'tools' is not supported with this model.", param="tools"
            ),
            R.STREAM: _unsupported("stream", "true"),
            R.SYSTEM: _unsupported("messages[0].role", "'system'"),
            R.PICTURES: openai_error(
                400, "Invalid content type. image_url is only supported by certain models.", param="messages"
            ),
            **OPENAI_RULES,
        },
        overflow=OPENAI_OVERFLOW,
        limit=openai_error(
            429, "Rate limit reached", "requests", "rate_limit_exceeded", headers={"retry-after": "1"}, wait=1.0
        ),
        bad_key=OPENAI_KEY,
        note="No tools, no stream, no system message, no pictures.",
    ),
    ModelProfile(
        name="azure",
        title="Azure OpenAI",
        model="azure/gpt-4o",
        path="",
        source="Azure OpenAI reference (content filter in the first chunk); BerriAI/litellm docs, page on Azure",
        stream=StreamForm(head=FILTER_CHUNK),
        refuses=OPENAI_RULES,
        overflow=OPENAI_OVERFLOW,
        limit=Refusal(
            status=429,
            body={
                "error": {
                    "code": "429",
                    "message": "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version "
                    "2024-10-21 have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry "
                    "after 1 second. Please go here: https://aka.ms/oai/quotaincrease",
                }
            },
            headers={"retry-after": "1"},
            wait=1.0,
        ),
        bad_key=Refusal(
            status=401,
            body={
                "error": {
                    "code": "401",
                    "message": "Access denied due to invalid subscription key or wrong API endpoint.",
                }
            },
        ),
        note="The first chunk has no choices.",
    ),
    ModelProfile(
        name="anthropic",
        title="Anthropic",
        model="anthropic/claude-sonnet-4-5",
        path="",
        protocol=Protocol.ANTHROPIC,
        source="Anthropic API reference, streaming and errors; continuedev/continue#6080; badlogic/pi-mono overflow.ts",
        stream=StreamForm(
            call_id="toolu_01%n%abcdefghijklmnopqr", reasoning=ReasoningForm.CONTENT, call_finish="tool_use"
        ),
        refuses={
            R.PAIRS: Refusal(
                status=400,
                body={
                    "type": "error",
                    "error": {
                        "type": "invalid_request_error",
                        "message": "messages.2: `tool_use` ids were found without `tool_result` blocks "
                        "immediately after",
                    },
                },
            ),
        },
        overflow=Refusal(
            status=400,
            body={
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: %tokens% tokens > %window% maximum",
                },
            },
        ),
        limit=Refusal(
            status=429,
            body={
                "type": "error",
                "error": {
                    "type": "rate_limit_error",
                    "message": "This request would exceed your organization's rate limit of 30,000 input tokens "
                    "per minute.",
                },
            },
            headers={"retry-after": "1"},
            wait=1.0,
        ),
        bad_key=Refusal(
            status=401,
            body={"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}},
        ),
        note="Its own API; thinking comes with a signature and goes back with it.",
    ),
    ModelProfile(
        name="gemini",
        title="Gemini",
        model="gemini/gemini-3-flash-preview",
        path="/v1beta",
        protocol=Protocol.GEMINI,
        source="Gemini API reference, streamGenerateContent and thought signatures; voideditor/void#557 (429); "
        "google-gemini/gemini-cli#4692 (overflow)",
        refuses={
            R.SIGNATURE: _GEMINI_SIGNATURE,
            R.PAIRS: google_error(
                400,
                "Please ensure that the number of function response parts is equal to the "
                "number of function call parts of the function call turn.",
                "INVALID_ARGUMENT",
            ),
        },
        overflow=_GEMINI_OVERFLOW,
        limit=_GEMINI_LIMIT,
        bad_key=_GEMINI_KEY,
        note="Its own API; calls need their signature back; a limit of a minute reads like an empty account.",
    ),
    ModelProfile(
        name="gemini-openai",
        title="Gemini, OpenAI-compatible",
        model="openai/gemini-3-flash",
        path="/v1beta/openai",
        source="Gemini API reference, OpenAI compatibility; securo-finance/securo#884, "
        "TokenRhythm/opensquilla#225 (signature)",
        stream=StreamForm(
            calls=CallForm.INDEX_ZERO,
            call_id="function-call-%n%17351234567890123456789012345678",
            usage=UsageForm.EVERY,
        ),
        refuses={R.SIGNATURE: in_list(_GEMINI_SIGNATURE)},
        overflow=in_list(_GEMINI_OVERFLOW),
        limit=in_list(_GEMINI_LIMIT),
        bad_key=in_list(_GEMINI_KEY),
        note="Errors are lists; calls need their signature back; all calls have the index 0.",
    ),
    ModelProfile(
        name="vertex",
        title="Vertex AI, OpenAI-compatible",
        model="openai/google/gemini-2.5-flash",
        path="/v1/projects/p/locations/l/endpoints/openapi",
        source="Vertex AI reference, chat completions; anomalyco/opencode#50871 (keep-alives as data)",
        stream=StreamForm(
            calls=CallForm.TOGETHER,
            call_id="function-call-%n%",
            usage=UsageForm.FINISH,
            keepalive=b"data: : keepalive\n\n",
            silence=0.3,
        ),
        overflow=in_list(
            google_error(
                400,
                "Unable to submit request because the input token count is %tokens% but model only supports up to "
                "%window%. Reduce the input token count and try again.",
                "INVALID_ARGUMENT",
            )
        ),
        limit=in_list(google_error(429, "Resource exhausted. Please try again later.", "RESOURCE_EXHAUSTED")),
        bad_key=in_list(google_error(401, "Request had invalid authentication credentials.", "UNAUTHENTICATED")),
        note="Keep-alives may be data other than JSON.",
    ),
    ModelProfile(
        name="mistral",
        title="Mistral",
        model="mistral/mistral-small-latest",
        source="Mistral API reference; karthink/gptel#1203, anomalyco/opencode#1680 (ids); badlogic/pi-mono "
        "overflow.ts",
        stream=StreamForm(calls=CallForm.TOGETHER, call_id="%n%AbCdEfG", usage=UsageForm.FINISH),
        refuses=_MISTRAL_RULES,
        overflow=_MISTRAL_OVERFLOW,
        limit=_MISTRAL_LIMIT,
        bad_key=Refusal(status=401, body={"detail": "Unauthorized"}),
        note="Ids of nine letters and digits; roles alternate.",
    ),
    ModelProfile(
        name="magistral",
        title="Mistral Magistral",
        model="openai/magistral-small",
        source="Mistral API reference, reasoning (content in parts); ml-explore/mlx-lm#1375 (ids in templates)",
        stream=StreamForm(
            calls=CallForm.TOGETHER, call_id="%n%AbCdEfG", usage=UsageForm.FINISH, reasoning=ReasoningForm.PARTS
        ),
        refuses=_MISTRAL_RULES,
        overflow=_MISTRAL_OVERFLOW,
        limit=Refusal(status=429, body={"message": "Requests rate limit exceeded"}),
        bad_key=Refusal(status=401, body={"message": "Unauthorized", "request_id": "x"}),
        note="Content is a list; reasoning is a part of it.",
    ),
    ModelProfile(
        name="deepseek",
        title="DeepSeek",
        model="deepseek/deepseek-reasoner",
        source="DeepSeek API guide, thinking mode; abhigyanpatwari/GitNexus#43, qwersyk/Newelle#404",
        stream=StreamForm(
            reasoning=ReasoningForm.CONTENT, head=b": keep-alive\n\n", call_id="call_00_%n%abcdefghijklmnop"
        ),
        refuses={R.REASONING: _DEEPSEEK_REASONING},
        overflow=_DEEPSEEK_OVERFLOW,
        limit=openai_error(429, "Rate limit reached. Please pace your requests reasonably.", "rate_limit_error"),
        bad_key=_DEEPSEEK_KEY,
        is_seeing=False,
        note="Reasoning goes back with the calls it led to.",
    ),
    ModelProfile(
        name="deepseek-openai",
        title="DeepSeek, without litellm",
        model="openai/deepseek-v4-flash",
        source="DeepSeek API guide, thinking mode and keep-alive; earendil-works/pi#3636; "
        "syt2/paper-chat-for-zotero#16",
        stream=StreamForm(reasoning=ReasoningForm.CONTENT, keepalive=b": keep-alive\n\n", silence=3.6),
        refuses={R.REASONING: _DEEPSEEK_REASONING},
        overflow=_DEEPSEEK_OVERFLOW,
        limit=Refusal(
            status=503, body={"error": {"message": "Service is too busy.", "type": "service_unavailable_error"}}
        ),
        bad_key=_DEEPSEEK_KEY,
        is_seeing=False,
        note="Comments keep the connection alive while it thinks.",
    ),
    ModelProfile(
        name="xai",
        title="xAI",
        model="openai/grok-4",
        source="xAI API reference; cline/cline#3120 (overflow), cline/cline#4826 (limit)",
        stream=StreamForm(
            calls=CallForm.WHOLE, call_id="call_%n%123456", reasoning=ReasoningForm.CONTENT, usage=UsageForm.EVERY
        ),
        overflow=Refusal(
            status=400,
            body={
                "code": "Client specified an invalid argument",
                "error": "This model's maximum prompt length is %window% but the request contains %tokens% tokens.",
            },
        ),
        limit=Refusal(
            status=429,
            body={
                "code": "Some resource has been exhausted",
                "error": "Too many tokens for team x and model grok-4. Your team's rate limit is - Tokens per Minute "
                "(actual/limit): 65605/16000.",
            },
        ),
        bad_key=Refusal(
            status=400,
            body={"code": "Client specified an invalid argument", "error": "Incorrect API key provided: %key%."},
        ),
        note="The error is text, not an object; a wrong key is a 400.",
    ),
    ModelProfile(
        name="perplexity",
        title="Perplexity",
        model="openai/sonar",
        path="",
        source="perplexityai/api-discussion#265, anomalyco/opencode#9416 (roles); Perplexity API reference",
        stream=StreamForm(usage=UsageForm.EVERY, line_end=b"\r\n", call_finish="stop"),
        refuses={
            R.TOOLS: Refusal(
                status=400,
                body={
                    "error": {
                        "message": "Tool calling is not supported for this model",
                        "type": "tool_calling_not_supported",
                        "code": 400,
                    }
                },
            ),
            R.ROLES: Refusal(
                status=400,
                body={
                    "error": {
                        "message": "After the (optional) system message(s), user or tool message(s) should "
                        "alternate with "
                        "assistant message(s).",
                        "type": "invalid_message",
                        "code": 400,
                    }
                },
            ),
        },
        overflow=Refusal(
            status=400,
            body={
                "error": {
                    "message": "Total prompt length of %tokens% tokens exceeds the model's maximum context "
                    "length of %window%.",
                    "type": "bad_request",
                    "code": 400,
                }
            },
        ),
        limit=Refusal(
            status=429,
            body={
                "error": {
                    "message": "Request rate limit exceeded, please try again later.",
                    "type": "request_rate_limit_exceeded",
                    "code": 429,
                }
            },
        ),
        bad_key=Refusal(
            status=401,
            body="<html><head><title>401 Authorization Required</title></head></html>",
            content_type="text/html",
        ),
        note="Refuses tools; roles alternate.",
    ),
    ModelProfile(
        name="moonshot",
        title="Moonshot (Kimi)",
        model="openai/kimi-k2-thinking",
        source="Moonshot API reference; badlogic/pi-mono overflow.ts; cases: overflow-moonshot",
        stream=StreamForm(reasoning=ReasoningForm.CONTENT, call_id="look_up:%i%", usage=UsageForm.CHOICE),
        refuses={
            R.REASONING: openai_error(
                400, "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"
            ),
            R.CONTENT: openai_error(
                400, "Invalid request: message at position 3 with role 'assistant' must not be empty"
            ),
        },
        overflow=openai_error(
            400, "Invalid request: Your request exceeded model token limit: %window% (requested: %tokens%)"
        ),
        limit=openai_error(
            429,
            "Your account org-x request reached max request: 1, please try again after 1 seconds",
            "rate_limit_reached_error",
            wait=1.0,
        ),
        bad_key=openai_error(401, "Invalid Authentication", "invalid_authentication_error"),
        note="Ids with a colon, the same in each answer; token counts are inside the choice.",
    ),
    ModelProfile(
        name="glm",
        title="Zhipu GLM",
        model="openai/glm-4.6",
        path="/api/paas/v4",
        source="yilewang/llm-for-zotero#17 (limit); tashfeenahmed/freellmapi#873 (overflow); Zhipu docs, error codes",
        stream=StreamForm(
            calls=CallForm.WHOLE, call_id="call_-%n%123456789", reasoning=ReasoningForm.CONTENT, usage=UsageForm.FINISH
        ),
        overflow=Refusal(status=400, body={"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
        limit=Refusal(
            status=429, body={"error": {"code": "1302", "message": "您的账户已达到速率限制，请您控制请求频率"}}
        ),
        bad_key=Refusal(status=401, body={"error": {"code": "1000", "message": "身份验证失败。"}}),
        is_seeing=False,
        note="Errors have numbers and may be Chinese.",
    ),
    ModelProfile(
        name="qwen",
        title="Qwen (DashScope)",
        model="openai/qwen-plus",
        path="/compatible-mode/v1",
        source="QwenLM/qwen-code#98 (overflow); infiniflow/ragflow#589; DashScope docs, error codes",
        stream=StreamForm(
            calls=CallForm.EMPTY_AGAIN, reasoning=ReasoningForm.CONTENT, call_id="call_%n%abcdef0123456789ab"
        ),
        refuses={
            R.ARGUMENTS: openai_error(
                400,
                '<400> InternalError.Algo.InvalidParameter: The "function.arguments" parameter of the code model '
                "must be in JSON format.",
                code="invalid_parameter_error",
            )
        },
        overflow=openai_error(
            400,
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, %window%]",
            code="invalid_parameter_error",
        ),
        limit=openai_error(
            429, "Requests rate limit exceeded, please try again later.", "limit_requests", "limit_requests"
        ),
        bad_key=openai_error(401, "Incorrect API key provided.", code="invalid_api_key"),
        note="Later pieces of a call repeat its id and name as empty text.",
    ),
    ModelProfile(
        name="minimax",
        title="MiniMax",
        model="openai/MiniMax-M2",
        source="MiniMax-AI/MiniMax-M2#119 (overflow); MiniMax docs, error codes",
        stream=StreamForm(
            reasoning=ReasoningForm.TAGS, calls=CallForm.WHOLE, call_id="call_function_%n%_1", usage=UsageForm.FINISH
        ),
        overflow=Refusal(
            status=400,
            body={
                "type": "error",
                "error": {
                    "type": "bad_request_error",
                    "message": "invalid params, context window exceeds limit (2013)",
                    "http_code": "400",
                },
            },
        ),
        limit=Refusal(
            status=429,
            body={
                "type": "error",
                "error": {"type": "rate_limit_error", "message": "rate limit exceeded(RPM) (1002)", "http_code": "429"},
            },
        ),
        bad_key=Refusal(
            status=401,
            body={
                "type": "error",
                "error": {"type": "authorized_error", "message": "login fail (1004)", "http_code": "401"},
            },
        ),
        is_seeing=False,
        note="Reasoning is in tags.",
    ),
    ModelProfile(
        name="cohere",
        title="Cohere, OpenAI-compatible",
        model="openai/command-a-03-2025",
        path="/compatibility/v1",
        source="Cohere docs, compatibility API and errors",
        stream=StreamForm(call_id="look_up_%n%abcdefgh", usage=UsageForm.FINISH),
        overflow=Refusal(
            status=400,
            body={
                "id": "x",
                "message": "too many tokens: total number of tokens in the prompt cannot exceed %window% - "
                "received %tokens%. "
                "Try using a shorter prompt.",
            },
        ),
        limit=Refusal(
            status=429,
            body={"id": "x", "message": "You are using a Trial key, which is limited to 20 API calls / minute."},
        ),
        bad_key=Refusal(status=401, body={"id": "x", "message": "invalid api token"}),
    ),
)
