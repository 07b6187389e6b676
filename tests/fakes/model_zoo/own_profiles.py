"""Servers that people run themselves. Each error is written down from the reports and documents in `source`."""

from __future__ import annotations

from tests.fakes.model_zoo.openai_errors import openai_error
from tests.fakes.model_zoo.profile import (
    CallForm,
    EndForm,
    ErrorForm,
    ModelProfile,
    Protocol,
    ReasoningForm,
    Refusal,
    StreamForm,
    UsageForm,
)
from tests.fakes.strict_requests import STRICTEST
from tests.fakes.strict_requests import RequestRule as R

_VLLM_ID = "chatcmpl-tool-%n%abcdef0123456789abcdef012345678"


def _vllm_error(message: str) -> Refusal:
    """Return an error in vLLM's form."""
    return Refusal(
        status=400, body={"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    )


def _template_error(message: str, status: int = 500) -> Refusal:
    """Return an error of a chat template, as llama.cpp reports it."""
    return Refusal(status=status, body={"error": {"code": status, "message": message, "type": "server_error"}})


_VLLM_OVERFLOW = _vllm_error(
    "This model's maximum context length is %window% tokens. However, your request has %tokens% input tokens. Please "
    "reduce the length of the input messages."
)
_VLLM_KEY = Refusal(status=401, body={"error": "Unauthorized"})
_LLAMACPP_OVERFLOW = {
    "code": 400,
    "message": "the request exceeds the available context size. try increasing the context size or enable "
    "context shift",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 6000,
    "n_ctx": 4096,
}
_LLAMACPP_KEY = Refusal(
    status=401, body={"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}
)
_LOADING = Refusal(status=503, body={"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})
_ALTERNATE = _template_error("Conversation roles must alternate user/assistant/user/assistant/...")
_OLLAMA_BUSY = openai_error(503, "server busy, please try again. maximum pending requests exceeded", "api_error")
_OLLAMA_OVERFLOW = openai_error(500, "the input length exceeds the context length", "api_error")
_OLLAMA_KEY = openai_error(401, "unauthorized", "api_error")

OWN = (
    ModelProfile(
        name="vllm",
        title="vLLM",
        model="openai/Qwen/Qwen3-8B",
        source="vllm-project/vllm, protocol of the OpenAI server; vllm#18412 (indexes); continuedev/continue "
        "(ids of 45 characters)",
        stream=StreamForm(call_id=_VLLM_ID, reasoning=ReasoningForm.CONTENT),
        overflow=_VLLM_OVERFLOW,
        bad_key=_VLLM_KEY,
        note="Ids of 45 characters.",
    ),
    ModelProfile(
        name="vllm-plain",
        title="vLLM without a tool parser",
        model="openai/mistral-7b",
        source="vllm-project/vllm (--enable-auto-tool-choice); cases: vllm-notools, think-open",
        stream=StreamForm(reasoning=ReasoningForm.OPEN_TAG),
        refuses={
            R.TOOLS: openai_error(
                400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            ),
            R.ROLES: _vllm_error("Conversation roles must alternate user/assistant/user/assistant/..."),
        },
        overflow=_VLLM_OVERFLOW,
        bad_key=_VLLM_KEY,
        is_seeing=False,
        note="Start it with a tool parser for tools.",
    ),
    ModelProfile(
        name="vllm-gemma",
        title="vLLM with Gemma's template",
        model="openai/google/gemma-2-9b-it",
        source="vllm-project/vllm, Gemma's chat template (no system role, roles alternate)",
        refuses={
            R.SYSTEM: _vllm_error("System role not supported"),
            R.TOOLS: openai_error(
                400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            ),
            R.PICTURES: _vllm_error("google/gemma-2-9b-it is not a multimodal model"),
            R.ROLES: _vllm_error("Conversation roles must alternate user/assistant/user/assistant/..."),
        },
        overflow=_VLLM_OVERFLOW,
        bad_key=_VLLM_KEY,
        note="No system role, no tools, no pictures.",
    ),
    ModelProfile(
        name="sglang",
        title="SGLang without a tool parser",
        model="openai/qwen2.5-7b",
        source="sgl-project/sglang#4048 (overflow); hermes-agent#59291 (calls as text)",
        stream=StreamForm(calls=CallForm.TEXT),
        overflow=_vllm_error(
            "Requested token count exceeds the model's maximum context length of %window% tokens. You requested "
            "a total of "
            "%tokens% tokens: %tokens% tokens from the input messages."
        ),
        bad_key=_VLLM_KEY,
        is_seeing=False,
        note="Calls come as text and are not run.",
    ),
    ModelProfile(
        name="llamacpp",
        title="llama.cpp",
        model="openai/qwen3-4b",
        source="ggml-org/llama.cpp, server README and templates; cases: overflow-llamacpp-sse-error; unsloth#10059",
        stream=StreamForm(call_id="", calls=CallForm.PIECES, reasoning=ReasoningForm.CONTENT),
        refuses={
            R.ARGUMENTS: _template_error(
                "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101]"
            ),
            R.ROLES: _ALTERNATE,
        },
        overflow=Refusal(status=400, body=_LLAMACPP_OVERFLOW, form=ErrorForm.FIELD),
        limit=_LOADING,
        bad_key=_LLAMACPP_KEY,
        counts_new_tokens=True,
        note="An error in a stream is a line `error:`; counts only new tokens.",
    ),
    ModelProfile(
        name="llamacpp-plain",
        title="llama.cpp without --jinja",
        model="openai/gemma-2-2b",
        source="ggml-org/llama.cpp, server README (--jinja, --mmproj); cases: llamacpp-nojinja, overflow-llamacpp500",
        refuses={
            R.TOOLS: _template_error("tools param requires --jinja flag"),
            R.PICTURES: _template_error(
                "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
            ),
        },
        overflow=Refusal(
            status=500,
            body={"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}},
        ),
        limit=_LOADING,
        bad_key=_LLAMACPP_KEY,
        note="Start it with --jinja for tools.",
    ),
    ModelProfile(
        name="lmstudio",
        title="LM Studio",
        model="lm_studio/qwen3-8b",
        source="lmstudio-ai/lmstudio-bug-tracker; acon96/home-llm#257; cases: overflow-lmstudio-sse",
        stream=StreamForm(call_id="%n%", reasoning=ReasoningForm.CONTENT),
        overflow=Refusal(
            status=400,
            body={
                "error": {
                    "message": "The number of tokens to keep from the initial prompt is greater than the "
                    "context length. Try "
                    "to load the model with a larger context length, or provide a shorter input"
                }
            },
            form=ErrorForm.EVENT,
        ),
        bad_key=openai_error(401, "Invalid API token"),
        note="A prompt that is too long ends the stream with an event `error`.",
    ),
    ModelProfile(
        name="ollama",
        title="Ollama, OpenAI-compatible",
        model="openai/qwen3:4b",
        source="ollama/ollama docs, OpenAI compatibility; cases: overflow-ollama-500",
        stream=StreamForm(calls=CallForm.WHOLE, call_id="call_%n%abcde", reasoning=ReasoningForm.FIELD),
        overflow=_OLLAMA_OVERFLOW,
        limit=_OLLAMA_BUSY,
        bad_key=_OLLAMA_KEY,
    ),
    ModelProfile(
        name="ollama-gemma",
        title="Ollama, a model without tools",
        model="openai/gemma3:4b",
        source="openhuman#2787, picobot#6 (no tools); ollama/ollama (no pictures for text models); cases: notools",
        refuses={
            R.TOOLS: openai_error(400, "registry.ollama.ai/library/gemma3:4b does not support tools", "api_error"),
            R.PICTURES: openai_error(500, "this model is missing data required for image input", "api_error"),
        },
        overflow=_OLLAMA_OVERFLOW,
        limit=_OLLAMA_BUSY,
        bad_key=_OLLAMA_KEY,
        note="Choose a model with the label `tools` for tools.",
    ),
    ModelProfile(
        name="ollama-native",
        title="Ollama, its own API",
        model="ollama_chat/qwen3:4b",
        path="",
        protocol=Protocol.OLLAMA,
        source="ollama/ollama docs, API (chat, show); BerriAI/litellm docs, page on Ollama",
        stream=StreamForm(content_type="application/x-ndjson", reasoning=ReasoningForm.FIELD),
        overflow=Refusal(status=500, body={"error": "the input length exceeds the context length"}),
        limit=Refusal(status=503, body={"error": "server busy, please try again.  maximum pending requests exceeded"}),
        bad_key=Refusal(status=401, body={"error": "unauthorized"}),
        note="The address with /v1 and `openai/` is lighter.",
    ),
    ModelProfile(
        name="tabbyapi",
        title="TabbyAPI",
        model="openai/qwen3-32b-exl3",
        source="theroyallab/tabbyAPI#262, #401 (max_seq_len); letta-ai/letta#2761 (calls without ids)",
        stream=StreamForm(call_id="", calls=CallForm.INDEX_ZERO, end=EndForm.DONE, usage=UsageForm.FINISH),
        overflow=Refusal(
            status=400,
            body={"error": {"message": "Prompt length %tokens% is greater than max_seq_len %window%", "trace": ""}},
            form=ErrorForm.DATA,
        ),
        bad_key=Refusal(status=401, body={"detail": "Invalid API key"}),
        note="Calls may have no ids.",
    ),
    ModelProfile(
        name="koboldcpp",
        title="KoboldCpp",
        model="openai/koboldcpp/tiefighter",
        source="LostRuins/koboldcpp, OpenAI-compatible endpoint and wiki (busy, silent cut)",
        stream=StreamForm(calls=CallForm.IGNORED, usage=UsageForm.NONE, end=EndForm.NO_DONE),
        overflow=None,
        limit=Refusal(
            status=503,
            body={"detail": {"msg": "Server is busy; please try again later.", "type": "service_unavailable"}},
        ),
        bad_key=Refusal(
            status=401,
            body={
                "detail": {
                    "error": "Unauthorized",
                    "msg": "Authentication key is missing or invalid.",
                    "type": "unauthorized",
                }
            },
        ),
        is_seeing=False,
        note="Tools are accepted and not used; a long prompt is cut silently.",
    ),
    ModelProfile(
        name="localai",
        title="LocalAI",
        model="openai/hermes-3",
        source="mudler/LocalAI, API errors (rpc error); PromtEngineer/localGPT#708",
        stream=StreamForm(calls=CallForm.NAME_IN_TWO, end=EndForm.NOTHING, usage=UsageForm.NONE),
        overflow=Refusal(
            status=500,
            body={
                "error": {
                    "code": 500,
                    "message": "rpc error: code = Internal desc = the request exceeds the available context size",
                    "type": "",
                }
            },
        ),
        bad_key=Refusal(
            status=401, body={"error": {"code": 401, "message": "An authentication key is required", "type": ""}}
        ),
        note="The stream has no end mark.",
    ),
    ModelProfile(
        name="tgi",
        title="Text Generation Inference",
        model="openai/tgi",
        source="huggingface/text-generation-inference (messages API); huggingface/llm-vscode#94; cases: overflow-tgi",
        stream=StreamForm(
            calls=CallForm.OBJECT, call_id="%i%", is_message=False, end=EndForm.DONE, usage=UsageForm.FINISH
        ),
        refuses={
            R.STREAM_OPTIONS: Refusal(
                status=422,
                body="Failed to deserialize the JSON body into the target type: stream_options: unknown field",
                content_type="text/plain",
            ),
            R.SYSTEM: Refusal(
                status=422, body={"error": "Template error: System role not supported", "error_type": "template_error"}
            ),
        },
        overflow=Refusal(
            status=422,
            body={
                "error": "Input validation error: `inputs` must have less than %window% tokens. Given: %tokens%",
                "error_type": "validation",
            },
        ),
        limit=Refusal(status=429, body={"error": "Model is overloaded", "error_type": "overloaded"}),
        note="No stream options; with Gemma's template, no system role.",
    ),
    ModelProfile(
        name="fastapi",
        title="A FastAPI server with strict fields",
        model="openai/local-model",
        source="llxprt-code#114, opencode#4698; cases: nostreamopt, nostream, message-form",
        stream=StreamForm(is_message=True),
        refuses={
            R.STREAM_OPTIONS: Refusal(
                status=422,
                body={
                    "detail": [
                        {
                            "type": "extra_forbidden",
                            "loc": ["body", "stream_options"],
                            "msg": "Extra inputs are not permitted",
                            "input": {"include_usage": True},
                        }
                    ]
                },
            ),
            R.STREAM: openai_error(400, "Streaming is not supported for this model", param="stream"),
        },
        overflow=Refusal(status=422, body={"detail": "Context length exceeded: %tokens% > %window%"}),
        limit=Refusal(
            status=429, body={"detail": "Rate limit exceeded: 1 per 1 second"}, headers={"retry-after": "1"}, wait=1.0
        ),
        bad_key=Refusal(status=401, body={"detail": "Invalid or missing API key"}),
        note="No stream.",
    ),
    ModelProfile(
        name="litellm-proxy",
        title="LiteLLM proxy",
        model="litellm_proxy/claude",
        path="",
        source="BerriAI/litellm docs, proxy errors; BerriAI/litellm (UnsupportedParamsError without tools)",
        stream=StreamForm(call_id="toolu_01%n%abcdefghijklmnopqr"),
        refuses={
            R.UNDECLARED: openai_error(
                400,
                "litellm.UnsupportedParamsError: Anthropic expects the `tools=` param to be passed in. Received "
                "Model Group=claude",
                code="400",
            ),
            R.PAIRS: openai_error(
                400,
                "litellm.BadRequestError: AnthropicException - `tool_use` ids were found without `tool_result` blocks",
                code="400",
            ),
        },
        overflow=openai_error(
            400,
            "litellm.ContextWindowExceededError: litellm.BadRequestError: AnthropicException - prompt is too "
            "long: %tokens% "
            "tokens > %window% maximum. Received Model Group=claude",
            code="400",
        ),
        limit=openai_error(
            429,
            "litellm.RateLimitError: No deployments available for selected model, Try again in 1 seconds. "
            "Passed model=claude.",
            "throttling_error",
            "429",
            wait=1.0,
        ),
        bad_key=openai_error(
            401,
            "Authentication Error, Invalid proxy server token passed. Received API Key = %key%",
            "auth_error",
            "401",
        ),
    ),
    ModelProfile(
        name="nginx",
        title="A proxy with small limits",
        model="openai/behind-nginx",
        source="nginx docs (client_max_body_size); aiohttp#2304 (large header); vllm-ascend#5033, metapi#177 (labels)",
        stream=StreamForm(content_type="application/json", header_bytes=9_000),
        overflow=Refusal(
            status=413,
            body="<html><head><title>413 Request Entity Too Large</title></head></html>",
            content_type="text/html",
        ),
        limit=Refusal(
            status=429,
            body="<html><head><title>429 Too Many Requests</title></head></html>",
            content_type="text/html",
            headers={"retry-after": "1"},
            wait=1.0,
        ),
        bad_key=Refusal(
            status=403, body="<html><head><title>403 Forbidden</title></head></html>", content_type="text/html"
        ),
        note="Errors are web pages; streams have the wrong label.",
    ),
    ModelProfile(
        name="strict",
        title="A proxy with all history rules",
        model="openai/strict",
        source="cases: README.md, table of strict servers",
        refuses={rule: openai_error(400, "messages: the history is not valid") for rule in sorted(STRICTEST)},
        overflow=openai_error(400, "maximum context length is %window% tokens", code="context_length_exceeded"),
        limit=openai_error(429, "Slow down", "rate_limit", headers={"retry-after": "1"}, wait=1.0),
        note="Refuses whatever any other server refuses in a history.",
    ),
)
