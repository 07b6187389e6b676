"""Those who serve models of others. Each error is written down from the reports and documents in `source`."""

from __future__ import annotations

from tests.fakes.model_zoo.openai_errors import (
    FILTER_CHUNK,
    OPENAI_IDS,
    OPENAI_KEY,
    OPENAI_NAMES,
    OPENAI_OVERFLOW,
    OPENAI_PAIRS,
    openai_error,
)
from tests.fakes.model_zoo.profile import (
    CallForm,
    ErrorForm,
    ModelProfile,
    ReasoningForm,
    Refusal,
    StreamForm,
    UsageForm,
)
from tests.fakes.strict_requests import RequestRule as R

_GROQ_LIMIT = openai_error(
    429,
    "Rate limit reached for model `llama-3.1-8b-instant` in organization `org_x` service tier `on_demand` on tokens "
    "per minute (TPM): Limit 6000, Used 5034, Requested 1443. Please try again in 1.2s. Need more tokens? Upgrade to "
    "Dev Tier today at https://console.groq.com/settings/billing",
    "tokens",
    "rate_limit_exceeded",
    headers={"retry-after": "2"},
    wait=1.2,
)
_GROQ_OVERFLOW = openai_error(
    413,
    "Request too large for model `llama-3.1-8b-instant` in organization `org_x` service tier `on_demand` on tokens per "
    "minute (TPM): Limit %window%, Requested %tokens%, please reduce your message size and try again.",
    "tokens",
    "rate_limit_exceeded",
)
_GROQ_REASONING = openai_error(
    400,
    "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property "
    "'reasoning_content' is unsupported)]",
)
_OPENROUTER_OVERFLOW = Refusal(
    status=400,
    body={
        "error": {
            "message": "This endpoint's maximum context length is %window% tokens. However, you requested about "
            "%tokens% tokens (%tokens% of text input). Please reduce the length of either one.",
            "code": 400,
        }
    },
)
_OPENROUTER_LIMIT = Refusal(
    status=429,
    body={
        "error": {
            "message": "Provider returned error",
            "code": 429,
            "metadata": {"raw": "the model is temporarily rate-limited upstream. Please retry shortly."},
        },
        "user_id": "user_x",
    },
)
_OPENROUTER_KEY = Refusal(status=401, body={"error": {"message": "User not found.", "code": 401}})


def _provider_error(raw: str) -> Refusal:
    """Return a refusal of the provider behind OpenRouter."""
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "provider_name": "p"}}
    return Refusal(status=400, body={"error": error})


def _workers_error(status: int, code: int, message: str) -> Refusal:
    """Return an error in Cloudflare's form."""
    body = {"result": None, "success": False, "errors": [{"code": code, "message": message}], "messages": []}
    return Refusal(status=status, body=body)


HOSTS = (
    ModelProfile(
        name="groq",
        title="Groq",
        model="groq/llama-3.1-8b-instant",
        source="Groq API reference; elizaOS/eliza#4040; openinterpreter/openinterpreter#408; cases: groq-billing-429",
        stream=StreamForm(
            more={"service_tier": "on_demand"},
            calls=CallForm.TOGETHER,
            reasoning=ReasoningForm.FIELD,
            usage=UsageForm.FINISH,
            call_id="call_%n%",
        ),
        refuses={R.NO_REASONING: _GROQ_REASONING},
        overflow=_GROQ_OVERFLOW,
        limit=_GROQ_LIMIT,
        bad_key=OPENAI_KEY,
        is_seeing=False,
        note="Refuses reasoning in the history; its rate limit has a link to billing.",
    ),
    ModelProfile(
        name="groq-openai",
        title="Groq, without litellm",
        model="openai/qwen3-32b",
        path="/openai/v1",
        source="Groq API reference, reasoning; elizaOS/eliza#4040; agent0ai/agent-zero#347 (413)",
        stream=StreamForm(
            more={"service_tier": "on_demand"},
            calls=CallForm.TOGETHER,
            reasoning=ReasoningForm.FIELD,
            usage=UsageForm.FINISH,
            call_id="%n%qwertyuio",
        ),
        refuses={R.NO_REASONING: _GROQ_REASONING},
        overflow=_GROQ_OVERFLOW,
        limit=_GROQ_LIMIT,
        bad_key=OPENAI_KEY,
        is_seeing=False,
    ),
    ModelProfile(
        name="openrouter",
        title="OpenRouter",
        model="openrouter/anthropic/claude-sonnet-4.5",
        source="OpenRouter docs, reasoning tokens and errors; danny-avila/LibreChat#13366; "
        "GearUnclear/LibreChat (limits)",
        stream=StreamForm(reasoning=ReasoningForm.DETAILS, head=b": OPENROUTER PROCESSING\n\n", usage=UsageForm.LAST),
        refuses={
            R.DETAILS: _provider_error(
                "messages.2.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`"
            )
        },
        overflow=_OPENROUTER_OVERFLOW,
        limit=_OPENROUTER_LIMIT,
        bad_key=_OPENROUTER_KEY,
        note="Comments while it waits; details of the reasoning go back with the calls.",
    ),
    ModelProfile(
        name="openrouter-openai",
        title="OpenRouter, without litellm",
        model="openai/deepseek/deepseek-r1",
        path="/api/v1",
        source="OpenRouter docs, streaming (comments, errors in the stream) and reasoning tokens",
        stream=StreamForm(
            reasoning=ReasoningForm.DETAILS,
            keepalive=b": OPENROUTER PROCESSING\n\n",
            silence=3.6,
            call_id="tool_%n%_look_up",
        ),
        refuses={
            R.DETAILS: _provider_error("The `reasoning_content` in the thinking mode must be passed back to the API.")
        },
        overflow=_OPENROUTER_OVERFLOW,
        limit=Refusal(
            status=200,
            body={"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-min. "}, "user_id": "user_x"},
        ),
        bad_key=_OPENROUTER_KEY,
        note="A rate limit may come with status 200.",
    ),
    ModelProfile(
        name="openrouter-small",
        title="OpenRouter, a model without tools",
        model="openai/google/gemma-3-27b-it:free",
        path="/api/v1",
        source="OpenRouter docs, provider routing (no endpoints found)",
        stream=StreamForm(head=b": OPENROUTER PROCESSING\n\n"),
        refuses={
            R.TOOLS: Refusal(
                status=404,
                body={
                    "error": {
                        "message": "No endpoints found that support tool use. To learn more, visit the docs on "
                        "provider routing.",
                        "code": 404,
                    }
                },
            ),
            R.PICTURES: Refusal(
                status=404, body={"error": {"message": "No endpoints found that support image input", "code": 404}}
            ),
        },
        overflow=_OPENROUTER_OVERFLOW,
        limit=_OPENROUTER_LIMIT,
        bad_key=_OPENROUTER_KEY,
        note="Missing abilities are a 404.",
    ),
    ModelProfile(
        name="together",
        title="Together",
        model="openai/meta-llama/Llama-3.3-70B-Instruct-Turbo",
        source="Together docs, error codes; huggingface/llm-vscode#94 (the wording of the overflow)",
        stream=StreamForm(usage=UsageForm.FINISH, empty_calls=[]),
        overflow=openai_error(
            422,
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= %window%. Given: %tokens% `inputs` "
            "tokens and 512 `max_new_tokens`",
        ),
        limit=openai_error(
            429,
            "You have reached the rate limit specific to this model. The maximum rate limit for this model is 6.0 "
            "queries per minute.",
            "model_rate_limit",
            headers={"x-ratelimit-reset": "1", "retry-after": "1"},
            wait=1.0,
        ),
        bad_key=openai_error(
            401, "Invalid API key provided. You can find your API key in your settings.", code="invalid_api_key"
        ),
    ),
    ModelProfile(
        name="fireworks",
        title="Fireworks",
        model="openai/accounts/fireworks/models/kimi-k2",
        path="/inference/v1",
        source="GordeyZuev/LEAP#6 (limit); Fireworks docs, error codes",
        stream=StreamForm(usage=UsageForm.FINISH, calls=CallForm.EMPTY_AGAIN, call_id="functions.look_up:%i%"),
        overflow=Refusal(
            status=400,
            body={
                "error": {
                    "object": "error",
                    "type": "invalid_request_error",
                    "message": "The prompt is too long: %tokens%, model maximum context length: %window%",
                }
            },
        ),
        limit=Refusal(
            status=429,
            body={
                "error": "Too Many Requests",
                "message": "You have exceeded your usage limits. Please try again later.",
            },
        ),
        bad_key=Refusal(
            status=403,
            body={"error": {"object": "error", "type": "error", "code": "unauthorized", "message": "unauthorized"}},
        ),
        note="The same ids in each answer.",
    ),
    ModelProfile(
        name="deepinfra",
        title="DeepInfra",
        model="openai/Qwen/Qwen3-32B",
        path="/v1/openai",
        source="DeepInfra docs, rate limits; openclaw#69843 (tags in the answer)",
        stream=StreamForm(reasoning=ReasoningForm.TAGS, calls=CallForm.ID_PER_PIECE),
        overflow=Refusal(
            status=400,
            body={
                "detail": {
                    "error": "This model's maximum context length is %window% tokens. However, you requested "
                    "%tokens% tokens."
                }
            },
        ),
        limit=Refusal(status=429, body={"detail": {"error": "Model busy, retry later"}}),
        bad_key=Refusal(status=401, body={"detail": {"error": "User is not authenticated"}}),
        is_seeing=False,
        note="Errors are under `detail`; reasoning is in tags.",
    ),
    ModelProfile(
        name="cerebras",
        title="Cerebras",
        model="openai/zai-glm-4.7",
        source="continuedev/continue#9800, anomalyco/opencode#7463 (limit); badlogic/pi-mono overflow.ts (no body)",
        stream=StreamForm(
            calls=CallForm.WHOLE, call_id="%n%abcdef", reasoning=ReasoningForm.FIELD, usage=UsageForm.FINISH
        ),
        refuses={
            R.NO_REASONING: Refusal(
                status=400,
                body={
                    "message": "messages.2.assistant.reasoning_content: property "
                    "'messages.2.assistant.reasoning_content' is unsupported",
                    "type": "invalid_request_error",
                    "param": "validation_error",
                    "code": "wrong_api_format",
                },
            ),
            R.PICTURES: Refusal(
                status=400,
                body={
                    "message": "Content type 'image_url' is not supported by model zai-glm-4.7",
                    "type": "invalid_request_error",
                    "param": "prompt",
                    "code": "wrong_api_format",
                },
            ),
        },
        overflow=Refusal(status=413, body=None),
        limit=Refusal(
            status=429,
            body={
                "message": "Tokens per minute limit exceeded - too many tokens processed.",
                "type": "too_many_tokens_error",
                "param": "quota",
                "code": "token_quota_exceeded",
            },
        ),
        bad_key=Refusal(
            status=401,
            body={
                "message": "Wrong API Key",
                "type": "invalid_request_error",
                "param": "api_key",
                "code": "wrong_api_key",
            },
        ),
        note="A prompt that is too long is a 413 without a word.",
    ),
    ModelProfile(
        name="sambanova",
        title="SambaNova",
        model="openai/Meta-Llama-3.3-70B-Instruct",
        source="SambaNova docs, error codes and rate limits; poolsideai/pool#9, AstrBot#6661 (calls in pieces)",
        stream=StreamForm(calls=CallForm.NO_INDEX, usage=UsageForm.LAST, call_id="call_%n%abcdef"),
        overflow=openai_error(
            400,
            "The maximum context length of Meta-Llama-3.3-70B-Instruct is %window%. However, answering your request "
            "will take %tokens% tokens. Please reduce the length of the messages or the specified "
            "max_completion_tokens.",
            code="context_length_exceeded",
        ),
        limit=openai_error(429, "Rate limit exceeded", "rate_limit_exceeded", headers={"retry-after": "1"}, wait=1.0),
        bad_key=Refusal(status=401, body={"error": "Invalid API key"}),
    ),
    ModelProfile(
        name="siliconflow",
        title="SiliconFlow",
        model="openai/deepseek-ai/DeepSeek-V3.1",
        source="SiliconFlow docs, error codes (20015, 20041)",
        stream=StreamForm(calls=CallForm.INDEX_TEXT, usage=UsageForm.EVERY, call_id="%n%abcdefabcdefabcdef"),
        refuses={
            R.PICTURES: Refusal(
                status=400,
                body={
                    "code": 20041,
                    "message": "The model is not a VLM (Vision Language Model). Please use text-only prompts.",
                    "data": None,
                },
            )
        },
        overflow=Refusal(
            status=400,
            body={
                "code": 20015,
                "message": "length of prompt_tokens (%tokens%) must be less than max_seq_len (%window%).",
                "data": None,
            },
        ),
        limit=Refusal(
            status=429,
            body={"message": "Request was rejected due to rate limiting. Details: TPM limit reached.", "data": None},
        ),
        bad_key=Refusal(status=401, body='"Api key is invalid"'),
        note="Errors are not under `error`; a wrong key is answered with text.",
    ),
    ModelProfile(
        name="nvidia",
        title="NVIDIA NIM",
        model="openai/meta/llama-3.3-70b-instruct",
        source="Alishahryar1/free-claude-code#30 (limit); NIM docs (vLLM inside)",
        stream=StreamForm(call_id="chatcmpl-tool-%n%abcdef0123456789abcdef012345678"),
        overflow=Refusal(
            status=400,
            body={
                "object": "error",
                "message": "This model's maximum context length is %window% tokens. However, you requested "
                "%tokens% tokens in "
                "the messages, Please reduce the length of the messages.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
        ),
        limit=Refusal(status=429, body={"status": 429, "title": "Too Many Requests"}),
        bad_key=Refusal(status=403, body={"status": 403, "title": "Forbidden", "detail": "Authorization failed"}),
    ),
    ModelProfile(
        name="github",
        title="GitHub Models",
        model="openai/openai/gpt-4o",
        path="/inference",
        source="GitHub docs, rate limits of models; cases: overflow-github; BerriAI/litellm#17343 (ids)",
        stream=StreamForm(head=FILTER_CHUNK, call_id="call_%n%ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcd"),
        refuses={R.NAMES: OPENAI_NAMES, R.IDS: OPENAI_IDS, R.PAIRS: OPENAI_PAIRS},
        overflow=Refusal(
            status=413,
            body={
                "error": {
                    "code": "tokens_limit_reached",
                    "message": "Request body too large for gpt-4o model. Max size: %window% tokens.",
                    "details": "",
                }
            },
        ),
        limit=Refusal(
            status=429,
            body={
                "error": {
                    "code": "RateLimitReached",
                    "message": "Rate limit of 15 per 60s exceeded for UserByModelByMinute. Please wait 1 "
                    "seconds before retrying.",
                }
            },
            headers={"retry-after": "1"},
            wait=1.0,
        ),
        bad_key=Refusal(status=401, body={"error": {"code": "unauthorized", "message": "Bad credentials"}}),
        note="Ids may be longer than it takes back.",
    ),
    ModelProfile(
        name="huggingface",
        title="Hugging Face router",
        model="openai/meta-llama/Llama-3.1-8B-Instruct:cheapest",
        source="Hugging Face docs, inference providers; huggingface/text-generation-inference (errors)",
        stream=StreamForm(calls=CallForm.OBJECT, call_id="%i%", usage=UsageForm.NONE),
        overflow=Refusal(
            status=422,
            body={
                "error": {
                    "message": "Input validation error: `inputs` must have less than %window% tokens. Given: %tokens%",
                    "http_status_code": 422,
                }
            },
        ),
        limit=Refusal(status=429, body={"error": "Model is overloaded", "error_type": "overloaded"}),
        bad_key=Refusal(status=401, body={"error": "Invalid username or password."}),
        note="Arguments may be objects; ids are numbers, the same in each answer.",
    ),
    ModelProfile(
        name="workers-ai",
        title="Cloudflare Workers AI",
        model="openai/@cf/meta/llama-3.3-70b-instruct-fp8-fast",
        path="/client/v4/accounts/a/ai/v1",
        source="opencodeschool/opencode.school#174 (content as a list); can1357/oh-my-pi#12509; Workers AI "
        "docs, errors",
        stream=StreamForm(calls=CallForm.OBJECT, call_id="chatcmpl-tool-%n%abcdef0123456789", usage=UsageForm.FINISH),
        refuses={
            R.PICTURES: _workers_error(
                400,
                5006,
                "AiError: AiError: Bad input: Error: oneOf at '/' not met, 0 matches: required properties at '/' are "
                "'prompt', Type mismatch of '/messages/1/content', 'array' not in 'string'",
            )
        },
        overflow=_workers_error(
            413,
            5021,
            "AiError: AiError: The estimated number of input and maximum output tokens (%tokens%) exceeded this model "
            "context window limit (%window%).",
        ),
        limit=_workers_error(429, 3040, "AiError: AiError: Capacity temporarily exceeded, please try again."),
        bad_key=_workers_error(401, 10000, "Authentication error"),
        note="Errors are a list under `errors`.",
    ),
    ModelProfile(
        name="new-api",
        title="New API, One API",
        model="openai/gpt-4.1-mini",
        source="QuantumNous/new-api#991, popjane/free_chatgpt_api#65 (limit); songquanpeng/one-api#330",
        stream=StreamForm(
            keepalive=b": PING\n\n", silence=0.3, calls=CallForm.EMPTY_AGAIN, call_id="call_%n%abcdefghij"
        ),
        overflow=OPENAI_OVERFLOW,
        limit=openai_error(
            429, "当前分组上游负载已饱和，请稍后再试 (request id: 20250423020142736330894dLoIRrS6)", "new_api_error"
        ),
        bad_key=openai_error(401, "无效的令牌 (request id: 20250423020142736330894dLoIRrS6)", "new_api_error"),
        note="A relay of other providers; its own errors are Chinese.",
    ),
    ModelProfile(
        name="reseller",
        title="A reseller that answers errors in the stream",
        model="openai/glm-4.5-air",
        source="cases: id-per-chunk, call-null, empty-data (coddy-agent#106), no-done-no-finish (pi#7062, llmcord#84)",
        stream=StreamForm(
            empty_calls=[None], keepalive=b"data:\n\n", silence=0.3, usage=UsageForm.NONE, calls=CallForm.REPEATED
        ),
        overflow=Refusal(
            status=400,
            body={"error": {"message": "This model's maximum context length is %window% tokens.", "code": 400}},
            form=ErrorForm.DATA,
        ),
        limit=Refusal(status=429, body={"error": {"message": "Rate limit exceeded", "code": 429}}, form=ErrorForm.DATA),
        bad_key=Refusal(status=401, body={"error": {"message": "Invalid token", "code": 401}}, form=ErrorForm.DATA),
        note="Status 200, and the error in the stream.",
    ),
)
