"""The table of refusals of providers: wordings, statuses and their meanings.

Providers share neither codes nor statuses: the same fault is a 400 here, a 413, 429 or 500 there, and an event of a
stream elsewhere. A row is a wording that was seen, with its source. The first row that matches decides, so narrower
rows come first. Nothing of a text leaves this module except a meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from agent.llm.refusal_text import RefusalText
from gateway.errors import ModelAbility

Meaning = TypeVar("Meaning")


@dataclass(frozen=True, slots=True)
class RefusalRow(Generic[Meaning]):
    """One wording: *meaning*, a pattern that is searched in any case, and where it was seen."""

    meaning: Meaning
    pattern: str
    source: str


# -- abilities -------------------------------------------------------------------------------------

_NO_ABILITY_STATUS = frozenset({401, 402, 403, 407, 408, 429, 503, 529})  # about the account, or about this moment
_HAS_NOT = r"(?:(?:does|do|did|is|are|has|have)(?: not|n[’']t)|cannot|can[’']t|not|no) (?:yet |currently |been )?"
_IS_NOT = (
    r"(?:(?:is|are|was|has been|have been|being)?[ :]{0,2}(?:not|n[’']t) (?:yet |currently |been )?"
    r"(?:supported|enabled|available|allowed|permitted|implemented)"
    r"|(?:is|are) (?:currently )?(?:unsupported|disabled|unavailable))"
)
_TOOLS = r"(?:tool|function)s?[ _-]?(?:use|usage|call(?:ing|s)?)?s?"
_PICTURES = r"(?:image|picture|vision|visual|multi-?modal)s?(?:[ _-]?(?:url|input|content|data|part|block)s?)?"
_REASONING = r"(?:reasoning(?:_content|_details)?|thinking(?:_blocks)?|extra_content|provider_specific_fields)"
_QUOTE = r"[`'\"]"

_HISTORY_ROWS = (
    RefusalRow(
        ModelAbility.REASONING,
        rf"(?:property|field|key) {_QUOTE}(?:messages\.\d+\.(?:assistant\.)?)?{_REASONING}{_QUOTE}"
        r" is (?:un|not )supported",
        "Groq: gptel#774, jan#8136; Cerebras: cherry-studio#16790",
    ),
    RefusalRow(
        ModelAbility.REASONING,
        rf"messages?[\[.]\w+\]?[^ ]{{0,20}}\breasoning\w*{_QUOTE}?:? .{{0,40}}"
        r"(?:unsupported|not (?:supported|permitted|allowed))",
        "Groq: vercel/ai#8056",
    ),
    RefusalRow(
        ModelAbility.REASONING,
        rf"{_REASONING}{_QUOTE}? (?:is|are) not (?:supported|allowed|permitted) in"
        r" (?:the )?(?:input )?(?:message|history|input)",
        "Groq; DeepSeek's first deepseek-reasoner",
    ),
)
ABILITY_ROWS = (
    *_HISTORY_ROWS,
    RefusalRow(
        ModelAbility.STREAM_OPTIONS, r"\bstream[_ ]?options\b", "new-api#418, cherry-studio#9214, opencode#4698"
    ),
    RefusalRow(
        ModelAbility.STREAM,
        rf"stream(?:ing)?(?: mode| responses?| requests?)? {_IS_NOT}|{_HAS_NOT}support(?:ed)? streaming"
        r"|verified to stream",
        "OpenAI: chatbox#2263, just-every/code#331",
    ),
    RefusalRow(
        ModelAbility.STREAM,
        rf"{_QUOTE}stream{_QUOTE} does not support|stream(?:ing)? (?:must be|only supports?) false",
        "OpenAI: o1-preview",
    ),
    RefusalRow(
        ModelAbility.STREAM,
        r"(?:tools?|function)[ \w]{0,20} (?:in|with) stream(?:ing)?(?: mode)?",
        "Bedrock: ConverseStream; llama.cpp before its parsers of calls",
    ),
    RefusalRow(
        ModelAbility.EFFORT,
        r"\breasoning[_ .]?effort\b|\bthinking[_ ]?(?:budget|level|config)\b|\benable_thinking\b"
        r"|effort parameter|output_config",
        "OpenAI: ProxyAI#1203; xAI: pi#8381; Gemini: pi#3460; DashScope",
    ),
    RefusalRow(
        ModelAbility.EFFORT,
        rf"{_HAS_NOT}support (?:the )?{_QUOTE}?(?:thinking|reasoning)|\b(?:thinking|reasoning)(?: mode)? {_IS_NOT}",
        "Ollama; Anthropic",
    ),
    RefusalRow(
        ModelAbility.EFFORT,
        r"reasoning is mandatory|only (?:works in|supports) thinking mode|think value .{0,20}not supported",
        "OpenRouter; Gemini 2.5 Pro; Ollama's gpt-oss",
    ),
    RefusalRow(
        ModelAbility.EFFORT,
        rf"(?:unknown|unrecognized|unsupported|extra|unexpected) [\w ]{{0,24}}(?:: ?)?{_QUOTE}?"
        r"(?:reasoning|thinking|think|effort)\b",
        "Bedrock: litellm#14225",
    ),
    RefusalRow(
        ModelAbility.SYSTEM,
        rf"(?:system|developer) (?:role|message|prompt|instruction|content)s? {_IS_NOT}",
        "Gemma's template: fastmlx#22; Gemini's Gemma",
    ),
    RefusalRow(
        ModelAbility.SYSTEM,
        rf"only {_QUOTE}?user{_QUOTE}?(?:,| and) {_QUOTE}?assistant{_QUOTE}?(?:,? and {_QUOTE}?tool{_QUOTE}?)?"
        r" roles are supported",
        "Mistral's templates: opencode#5034",
    ),
    RefusalRow(
        ModelAbility.SYSTEM,
        rf"does not support (?:the )?{_QUOTE}?(?:system|developer)\b|role {_QUOTE}?system{_QUOTE}? {_IS_NOT}",
        "OpenAI: o1-mini",
    ),
    RefusalRow(
        ModelAbility.SYSTEM,
        r"(?:unexpected|invalid|unknown|unsupported|illegal)(?: message)? role:? ?[`'\"(]?(?:system|developer)\b",
        "Anthropic; MiniMax 2013",
    ),
    RefusalRow(ModelAbility.SYSTEM, r"input should be 'user' or 'assistant'", "servers whose requests pydantic checks"),
    RefusalRow(ModelAbility.SYSTEM, r"system message must be (?:at the beginning|first)", "Qwen's templates"),
    RefusalRow(
        ModelAbility.SYSTEM,
        # A template that names an optional system message takes one: something else is wrong there.
        r"^(?!.*optional system).*roles must alternate",
        "Mistral's first template: localGPT#720, mistral.rs#45",
    ),
    RefusalRow(
        ModelAbility.PICTURES,
        rf"{_HAS_NOT}(?:support|accept|allow|process|read|handle) (?:the |any |for )?{_QUOTE}?{_PICTURES}"
        rf"|{_PICTURES} {_IS_NOT}|support {_PICTURES}",
        "Ollama: ollama#17301; OpenRouter: nexu#875; LM Studio: lmstudio-bug-tracker#473; Ark: zai-org/feedback#570",
    ),
    RefusalRow(ModelAbility.PICTURES, r"unknown variant [`'\"]?image", "DeepSeek: next-ai-draw-io#55"),
    RefusalRow(ModelAbility.PICTURES, r"not a multi-?modal model|at most 0 image", "vLLM"),
    RefusalRow(ModelAbility.PICTURES, rf"{_PICTURES} (?:is|are) only supported", "OpenAI: gpt-3.5-turbo"),
    RefusalRow(ModelAbility.PICTURES, r"missing data required for image|\bmmproj\b", "Ollama; llama.cpp"),
    RefusalRow(
        ModelAbility.PICTURES,
        rf"content{_QUOTE}?(?: : value)? must be a string|content\.type .{{0,30}}\[?['\"]text['\"]\]?"
        rf"|/content{_QUOTE}?, {_QUOTE}array{_QUOTE} not in {_QUOTE}string",
        "Groq; Cerebras; GLM 1210; Workers AI 5006: opencode.school#174",
    ),
    RefusalRow(
        ModelAbility.PICTURES,
        r"image_url[`'\"]? is not supported|not a (?:vlm|vision)|text-only prompts",
        "Cerebras; SiliconFlow 20041",
    ),
    RefusalRow(ModelAbility.PICTURES, r"不支持(?:图|视觉|多模态)", "GLM; SiliconFlow"),
    RefusalRow(
        ModelAbility.TOOLS,
        rf"{_HAS_NOT}support (?:the |any |for )?{_QUOTE}?{_TOOLS}\b|support tool use",
        "Ollama: openhuman#2787; OpenRouter: opencode#1675; Bedrock",
    ),
    RefusalRow(
        ModelAbility.TOOLS,
        rf"\b{_TOOLS}{_QUOTE}? (?:with function calling )?{_IS_NOT}",
        "OpenAI: flexeval#242; Gemini: adk-python#134; DeepInfra: truefoundry/models#944; SiliconFlow 20037",
    ),
    RefusalRow(
        ModelAbility.TOOLS,
        rf"too many {_TOOLS}|(?:at most|maximum (?:number )?of|limit of|up to|more than) \d+ {_TOOLS}"
        rf"|{_QUOTE}tools{_QUOTE} ?: (?:max|at most)"
        rf"|number of {_TOOLS}\w*(?: declarations)? [^|]{{0,40}}(?:exceed|limit|at most|must|cannot)",
        "xAI; Groq; Gemini; Mistral",
    ),
    RefusalRow(ModelAbility.TOOLS, r"--enable-auto-tool-choice|--tool-call-parser", "vLLM; SGLang"),
    RefusalRow(ModelAbility.TOOLS, r"--jinja", "llama.cpp"),
    RefusalRow(ModelAbility.TOOLS, r"不支持(?:工具|函数|function|tool)", "GLM; SiliconFlow"),
)

# Fields of a request, as refusals name them; the first that matches a named field decides.
_ABILITY_FIELDS = (
    (
        ModelAbility.REASONING,
        r"(?:body\.)?messages?\b.*\b(?:reasoning\w*|thinking\w*|extra_content|provider_specific_fields)"
        r"|reasoning_(?:content|details)|thinking_blocks",
    ),
    (ModelAbility.STREAM_OPTIONS, r"(?:.*\.)?stream_options\b.*"),
    (ModelAbility.STREAM, r"(?:body\.)?stream"),
    (
        ModelAbility.EFFORT,
        r"(?:body\.)?(?:reasoning|thinking|think|effort|enable_thinking|output_config)\b.*"
        r"|(?:.*\.)?reasoning_?effort",
    ),
    (ModelAbility.TOOLS, r"(?:body\.)?(?:tools|functions|parallel_tool_calls)"),
    (ModelAbility.PICTURES, r"messages?\b.*\bimage(?:_url)?\b.*|body\.messages\.\d+\.content(?:\.str)?"),
)
# A name in the text counts as a field where it is quoted, or follows the word for one.
_QUOTED_FIELD = re.compile(
    r"(?:[`'\"\[]|\b(?:parameter|argument|field|property|key|input)s?(?: supplied| not supported)?(?: on this model)?"
    r":? {0,2}[`'\"\[]{0,2})((?:body\.|messages?[\[.][\w.\[\]]{1,60}\.)?(?:stream_options|stream|reasoning_?effort"
    r"|reasoning(?:_content|_details)?|thinking|think|tools|functions))(?=$|[`'\"\]\s.,:)])",
    re.IGNORECASE,
)
_UNKNOWN_FIELD = re.compile(
    r"unsupported|not supported|unknown|unrecogni[sz]ed|unexpected|extra|not permitted|not allowed|forbidden"
    r"|not available|unavailable|does(?: not|n[’']t) (?:support|accept|exist)|not implemented|disabled"
    r"|no such|invalid parameter",
    re.IGNORECASE,
)
# What follows lists what would have been right, and names every field there is.
_ALTERNATIVES = re.compile(
    r",? (?:expected one of|did you mean|supported (?:fields|parameters)|allowed (?:fields|values))\b.*",
    re.IGNORECASE | re.DOTALL,
)
# The opposite of a field that is not taken.
_WANTED_FIELD = re.compile(
    r"must be (?:passed|provided|sent|included)"
    r"|missing (?:a |the |required )?[`'\"]?(?:reasoning|thinking|thought|extra)"
    r"|(?:reasoning|thinking|thought)\w{0,40}[`'\"]? is (?:missing|required)"
    r"|expected [`'\"]?thinking",
    re.IGNORECASE,
)
# DeepSeek's and Moonshot's reasoning, Anthropic's thinking, Gemini's signature: calls of other models lack them.
_WANTED_DATA = re.compile(r"reasoning|expected [`'\"]?thinking|thought_?signature|extra_content", re.IGNORECASE)
_ABILITY_PATTERNS = tuple((row, re.compile(row.pattern, re.IGNORECASE | re.DOTALL)) for row in ABILITY_ROWS)
# "reasoning" there is no field of the request, though it is named like one.
_HISTORY_PATTERNS = tuple(pattern for _, pattern in _ABILITY_PATTERNS[: len(_HISTORY_ROWS)])
_FIELD_PATTERNS = tuple((ability, re.compile(pattern, re.IGNORECASE)) for ability, pattern in _ABILITY_FIELDS)


def missing_ability(refusal: RefusalText, status: int | None) -> ModelAbility | None:
    """Return the ability that the provider says it lacks, or None.

    A named field decides before the words do. A refused `tool_choice` does not count: the same tools work where the
    model may choose. In a stream there may be no *status*.
    """
    if status in _NO_ABILITY_STATUS:
        return None
    words = _ALTERNATIVES.sub("", refusal.words)
    if _WANTED_FIELD.search(words) and not _UNKNOWN_FIELD.search(words):
        return ModelAbility.FOREIGN_CALLS if _WANTED_DATA.search(words) else None
    for field in refusal.fields:
        if (ability := _ability_of_field(field)) is not None:
            return ability
    if _UNKNOWN_FIELD.search(words) and not any(pattern.search(words) for pattern in _HISTORY_PATTERNS):
        for named in _QUOTED_FIELD.finditer(words):
            if (ability := _ability_of_field(named.group(1))) is not None:
                return ability
    return next((row.meaning for row, pattern in _ABILITY_PATTERNS if pattern.search(words)), None)


# OpenAI: array_above_max_length; Groq, Azure and pydantic in words of their own.
_NUMBER = re.compile(
    r"array too long|array_above_max_length|too_long|too many|at most \d|no more than \d|more than \d|up to \d"
    r"|limit of \d|max(?:imum)?[ _](?:number|length|items|of)\b|number of (?:tool|function)|\bexceeds?\b",
    re.IGNORECASE,
)


def is_about_number(refusal: RefusalText) -> bool:
    """Return True if *refusal* is about how many of something a request has: fewer would be taken."""
    return _NUMBER.search(refusal.words) is not None


def _ability_of_field(field: str) -> ModelAbility | None:
    for ability, pattern in _FIELD_PATTERNS:
        if pattern.fullmatch(field):
            return ability
    return None


# -- meanings --------------------------------------------------------------------------------------


class RefusalMeaning(StrEnum):
    """The meanings of refusals that are about the prompt, the account, the model or the moment."""

    OVERFLOW = "overflow"
    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    ACCOUNT = "account"  # its money or its quota is used up
    KEY = "key"
    MODEL = "model"  # there is none of this name
    FILTERED = "filtered"  # the content is refused
    RIGHTS = "rights"  # the account must not use it, or not from here


_NOT_FOUND = (
    r"(?:not[ _]found|(?:does|did) not exist|not exist|doesn[’']t exist|is unknown|unknown|not available|不存在)"
)

REFUSAL_ROWS = (
    RefusalRow(
        RefusalMeaning.ACCOUNT,
        r"insufficient_(?:quota|balance|credits?|funds)|billing_hard_limit|billing_not_active|budget_exceeded"
        r"|\barrearage\b",
        "codes of OpenAI, DeepSeek, LiteLLM and DashScope",
    ),
    RefusalRow(
        RefusalMeaning.ACCOUNT,
        r"credit balance is too low|insufficient (?:account )?(?:balance|credits?|funds)|(?:balance"
        r"|credits?) (?:is |are )?"
        r"(?:insufficient|exhausted|depleted|not enough)|credit limit exceeded|requires more credits"
        r"|out of credits|no credits?\b",
        "Anthropic; DeepSeek; OpenRouter; MiniMax 1008; SiliconFlow 30001; Together",
    ),
    RefusalRow(
        RefusalMeaning.ACCOUNT,
        r"used all available credits|allocationquota|free tier of the model has been exhausted"
        r"|monthly (?:spending limit|included credits)|exceeded_current_quota_error"
        r"|please recharge"
        r"|account is suspended|account is in good standing|budget has been exceeded|free allocated quota exceeded",
        "xAI; Hugging Face; Moonshot; GLM 1113; DashScope; LiteLLM",
    ),
    RefusalRow(RefusalMeaning.ACCOUNT, r"账户已欠费|余额不足|欠费", "GLM 1113; SiliconFlow; MiniMax"),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"context_length_exceeded|exceed_context_size|tokens_limit_reached|model_max_prompt_tokens_exceeded"
        r"|request_too_large"
        r"|contextwindowexceeded|string_above_max_length|context_window_exceeded",
        "codes of OpenAI, llama.cpp, GitHub Models, Copilot, Anthropic and LiteLLM",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"maximum (?:context|prompt|model|input|sequence)[ -]?(?:length|size|window)|model maximum context",
        "OpenAI; xAI; DeepSeek; OpenRouter; vLLM; text-generation-webui",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"(?:exceed(?:s|ed|ing)?|larger than|longer than|greater than|over|beyond|fit into|overflows?|larger"
        r"|reached) [^.|]{0,60}"
        r"(?:context(?: \w+)?(?: length| size| window| limit)|context the|max_seq_len|max_model_len|n_ctx|kv size"
        r"|token limit|limit of \d+|maximum (?:allowed )?(?:length|number of tokens)"
        r"|max(?:imum)? (?:message )?tokens)",
        "llama.cpp#16026; LM Studio; Ollama; OpenAI; Moonshot; SGLang; TabbyAPI#426; SiliconFlow; Copilot",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"context (?:length|size|window|limit)[^.|]{0,20}(?:exceed|overflow|reached|too small)"
        r"|context[ _]overflow|when context the overflows",
        "llama.cpp: Context size has been exceeded; MiniMax 2013; LM Studio",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"(?:prompt|input|request|messages?|query|content)s?\b[^.|]{0,60}\b(?:is |are |was )?too (?:long|large"
        r"|big|many tokens)|prompt 超长"
        r"|too many (?:input |prompt )?tokens|too large for model",
        "Anthropic; Fireworks; Bedrock; Mistral: too large for model with; GLM 1261; llama.cpp; Cohere",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"reduce (?:the length of )?(?:your |the )?(?:messages?|prompt|input)(?: (?:size|length))?|shorten your"
        r"|use a shorter (?:input|prompt)",
        "Groq; Cerebras; OpenAI; SGLang",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"(?:inputs?|prompt|tokens?)[`'\" ]{0,3}[^.|]{0,60}(?:must have less than \d|must be <= ?\d"
        r"|must be less than|cannot exceed"
        r"|no more than \d|only supports? up to \d)",
        "TGI; Together; Cohere; SiliconFlow; Vertex; Yandex; watsonx",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"(?:input|prompt)(?: token)?(?: (?:count|length|size))?s?\b[^.|]{0,40} exceeds?|input tokens? exceed"
        r"|prompt exceeds max"
        r"|exceeds? (?:the |max(?:imum)? )?(?:prompt|input) ?(?:length|size|token)|range of input length"
        r"|max input characters",
        "Gemini; OpenAI: Input tokens exceed the configured limit; GLM; DashScope; DeepInfra; Qianfan",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"expected maxlength: \d+, actual|(?:prompt|input)(?: length)? is longer than|should not exceed max_num_tokens"
        r"|kv cache (?:is full|slot)|but the (?:configured )?(?:context size|maximum) is \d"
        r"|(?:input|prompt|context|maximum) token limit exceeded|tokens? \d+ exceeds? (?:the )?model limit"
        r"|context exhausted",
        "Bedrock: Claude 2, Titan; NVIDIA's TensorRT-LLM; llama.cpp; Ollama; DS4: earendil-works/pi",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"long context requests|body (?:is )?too large|payload too large|entity too large",
        "Anthropic; proxies",
    ),
    RefusalRow(
        RefusalMeaning.OVERFLOW,
        r"(?:输入|上下文|提示词?|token)[^。|]{0,16}(?:超出|超过|超长|过长)",
        "GLM; Qianfan; DashScope",
    ),
    RefusalRow(
        RefusalMeaning.FILTERED,
        r"content[ _]?filter|content_policy|responsibleaipolicy|content management policy"
        r"|data_?inspection_?failed|content exists risk",
        "Azure; OpenAI; DashScope; DeepSeek; Anthropic",
    ),
    RefusalRow(
        RefusalMeaning.FILTERED,
        r"prohibited_content|inappropriate content|violat\w+ (?:our|the) (?:usage )?polic|was flagged"
        r"|considered high risk|new_sensitive"
        r"|不安全或敏感|sensitive content|blocked by (?:safety|moderation)",
        "Gemini; DashScope; OpenAI; OpenRouter; Moonshot; MiniMax 1026; GLM 1301",
    ),
    RefusalRow(
        RefusalMeaning.KEY,
        r"invalid[_ ]api[_ ]?key|api[_ ]key[_ ]invalid|incorrect api key|api key (?:is )?(?:not valid|expired"
        r"|missing|invalid|not found)"
        r"|authentication_error|invalid x-api-key|invalid (?:bearer )?token\b|身份验证失败|api key 无效"
        r"|no auth credentials",
        "OpenAI; Gemini (HTTP 400); xAI (HTTP 400); Anthropic; OpenRouter; GLM 1000; MiniMax 1004",
    ),
    RefusalRow(
        RefusalMeaning.RIGHTS,
        r"(?:user )?location is not supported|unsupported_country_region_territory",
        "Gemini (HTTP 400); OpenAI",
    ),
    RefusalRow(
        RefusalMeaning.MODEL,
        r"model_not_found|model_decommissioned|model_not_available|unknown_model|deploymentnotfound"
        r"|model_not_supported|modelnotfound"
        r"|model[_ ]?not[_ ]?exist",
        "codes of OpenAI, Groq, GitHub Models, Azure, DeepSeek and DashScope",
    ),
    RefusalRow(
        RefusalMeaning.MODEL,
        rf"\bmodels?\b[:/ ]?[^|\n]{{0,120}}?{_NOT_FOUND}|(?:unknown|invalid) model\b|not a valid model|模型不存在"
        rf"|not found the model",
        "OpenAI; vLLM; Ollama; OpenRouter; Mistral 1500; Together; Fireworks; Moonshot; GLM 1211; Perplexity; Cohere",
    ),
    RefusalRow(
        RefusalMeaning.MODEL,
        r"\bmodels?\b[^.|]{0,80}(?:decommissioned|deprecated|retired|been shut ?down|discontinued"
        r"|not supported by any provider)"
        r"|invalid model name|provided model identifier is invalid|unable to access model|no models? (?:is "
        r"|are )?loaded",
        "Groq; Hugging Face; LiteLLM; Bedrock; Together; LM Studio",
    ),
    RefusalRow(
        RefusalMeaning.OVERLOADED,
        r"overloaded|at capacity|capacity exceeded|loading model|currently loading|is being loaded"
        r"|server (?:is )?busy|maximum pending requests"
        r"|no available (?:server|channel)|no healthy upstream|try again later|temporarily unavailable"
        r"|\bunavailable\b",
        "Anthropic; Mistral; llama.cpp; Hugging Face; Ollama; GLM 1305; Gemini; Moonshot",
    ),
    RefusalRow(
        RefusalMeaning.RATE_LIMIT,
        r"rate[_ -]?limit|\b[rt]pm limit"
        r"|too many requests|resource_exhausted|throttl|requests? per (?:minute|day|second)"
        r"|tokens per|quota exceeded"
        r"|并发|速率限制|请求过于频繁|访问量过大",
        "OpenAI; Groq; Gemini; Bedrock; DashScope; GLM 1302; GitHub Models; MiniMax 1002",
    ),
    # Gemini says so of a minute's limit as well; `refusal_meaning` tells them apart.
    RefusalRow(RefusalMeaning.ACCOUNT, r"exceeded (?:your|the) current quota", "OpenAI"),
)
_PERMANENT_QUOTA = re.compile(r"exceeded (?:your|the) current quota", re.IGNORECASE)
_OF_A_WHILE = re.compile(
    r"retry in|try again in|retrydelay|quota exceeded for metric|resource_exhausted|per[_ ]?(?:minute|day)",
    re.IGNORECASE,
)
# Gemini: the account's plan does not have the model.
_NEVER_ALLOWED = re.compile(r"quota exceeded for metric[^\n|]*\blimit: 0\b", re.IGNORECASE)
# Too long as well, and no prompt: what a model called is repaired before it is sent, but not by a shorter prompt.
_LONG_CALL = re.compile(r"tool_calls?\b[^|]{0,60}string too long", re.IGNORECASE)
_REFUSAL_PATTERNS = tuple((row, re.compile(row.pattern, re.IGNORECASE | re.DOTALL)) for row in REFUSAL_ROWS)
# Statuses whose plain meaning is not overruled by words for a prompt that is too long.
_ACCOUNT_STATUS = frozenset({401, 402, 403})
_ONLY_RATE = re.compile(r"^(?!.*request too large).*(?:rate[_ ]limit|per min|tpm|rpm)", re.IGNORECASE | re.DOTALL)
_RATE_FIGURES = re.compile(r"limit:? ([\d,]+)(?:,? used:? ([\d,]+))?,? requested:? ([\d,]+)", re.IGNORECASE)


def refusal_meaning(refusal: RefusalText, status: int | None) -> RefusalMeaning | None:
    """Return the meaning of *refusal* by its words alone; None if no row knows them.

    A rate limit that is smaller than the request is an overflow. In a stream there may be no *status*.
    """
    words = refusal.words
    if figures := _RATE_FIGURES.search(words):
        limit, requested = (int(figures[n].replace(",", "") or 0) for n in (1, 3))
        return RefusalMeaning.OVERFLOW if 0 < limit < requested else RefusalMeaning.RATE_LIMIT
    if _NEVER_ALLOWED.search(words):
        return RefusalMeaning.ACCOUNT
    if _PERMANENT_QUOTA.search(words) and not _OF_A_WHILE.search(words):
        return RefusalMeaning.ACCOUNT
    for row, pattern in _REFUSAL_PATTERNS:
        is_overflow = row.meaning is RefusalMeaning.OVERFLOW
        if is_overflow and (status in _ACCOUNT_STATUS or (status == 429 and _ONLY_RATE.search(words))):
            continue
        if is_overflow and _LONG_CALL.search(words):
            continue
        if pattern.search(words):
            return row.meaning
    return RefusalMeaning.OVERFLOW if refusal.limits else None
