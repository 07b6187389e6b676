"""Fields of each provider's request for the setting `effort`, by which a model thinks longer or less.

A provider that refuses its field is asked again without it (agent/llm/model_abilities.py). The fields are never part
of the messages, so the prompt's prefix does not depend on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

NONE = "none"  # as little as the provider allows
EFFORTS = (NONE, "low", "medium", "high")

_REASONING_EFFORT = "reasoning_effort"
_OLLAMA_PORT = 11434
# Hosts of providers' OpenAI-compatible addresses that have a field of another shape.
_OPENROUTER = re.compile(r"(?:.+\.)?openrouter\.ai\Z")
_QWEN_CLOUD = re.compile(r"(?:.+\.)?dashscope[\w-]*\.aliyuncs\.com\Z")
_SWITCHED = re.compile(r"(?:.+\.)?(?:deepseek\.com|moonshot\.(?:ai|cn)|z\.ai|bigmodel\.cn)\Z")
_PROVIDERS = re.compile(
    r"(?:.+\.)?(?:openai\.com|openai\.azure\.com|googleapis\.com|groq\.com|mistral\.ai|x\.ai|together\.(?:ai|xyz)"
    r"|fireworks\.ai|cerebras\.ai|deepinfra\.com|perplexity\.ai)\Z"
)
# Models of OpenAI that cannot be kept from thinking: the o series, and gpt-5 before 5.1.
_O_SERIES = re.compile(r"(?:.*/)?o\d")
_FIRST_GPT_5 = re.compile(r"(?:.*/)?gpt-5(?!\.\d)")
_GPT_OSS = re.compile(r"(?:.*/)?gpt-oss")


def fields_of_address(effort: str, api_base: str, model: str) -> Mapping[str, Any]:
    """Return the fields of *effort* for *model* at an OpenAI-compatible address; {} for ""."""
    if not effort:
        return {}
    parts = urlsplit(api_base)
    host, is_off = (parts.hostname or "api.openai.com").lower(), effort == NONE
    if _OPENROUTER.match(host):
        return {"reasoning": {"effort": effort}}
    if _QWEN_CLOUD.match(host):
        return {"enable_thinking": not is_off}
    if _SWITCHED.match(host):
        return {"thinking": {"type": "disabled" if is_off else "enabled"}}
    if _PROVIDERS.match(host) or parts.port == _OLLAMA_PORT or not is_off or _GPT_OSS.match(model):
        return {_REASONING_EFFORT: _level_of(effort, host, model)}
    # A server of the operator's (vLLM, SGLang, llama.cpp): older ones refuse the level "none", and the chat template
    # decides. Templates ignore what they do not know.
    return {"chat_template_kwargs": {"enable_thinking": False}}


def arguments_of_litellm(effort: str, model: str) -> Mapping[str, Any]:
    """Return the arguments of litellm's call for *effort*; {} for "".

    litellm maps `reasoning_effort` to Anthropic's and Gemini's thinking, DeepSeek's switch and Ollama's `think`, and
    drops it for models that do not think.
    """
    if not effort:
        return {}
    provider, _, name = model.partition("/")
    if provider == "openrouter":
        return {"extra_body": {"reasoning": {"effort": effort}}}
    if provider in ("hosted_vllm", "vllm") and effort == NONE and not _GPT_OSS.match(name):
        return {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    if provider == "dashscope":
        return {"extra_body": {"enable_thinking": effort != NONE}}
    if "magistral" in name:  # litellm would add a system text, and with it change the prompt's prefix
        return {}
    if provider in ("gemini", "vertex_ai") and "-pro" in name and effort == NONE:
        return {_REASONING_EFFORT: "minimal"}  # these always think: the budget 0 is refused
    host = "groq.com" if provider == "groq" else ""
    return {_REASONING_EFFORT: _level_of(effort, host, name)}


def _level_of(effort: str, host: str, model: str) -> str:
    """Return the provider's word for *effort*; for `none` the least that *model* has."""
    if host.endswith("groq.com") and "qwen" in model:
        return NONE if effort == NONE else "default"
    if effort != NONE:
        return effort
    if _FIRST_GPT_5.match(model):
        return "minimal"
    return "low" if _O_SERIES.match(model) or _GPT_OSS.match(model) else NONE
