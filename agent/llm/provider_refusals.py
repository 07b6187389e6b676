"""The table of refusals of providers: wordings, statuses and their meanings.

Providers share neither codes nor statuses: the same fault is a 400 here, a 413, 429 or 500 there, and an event of a
stream elsewhere. A row is a wording that was seen, with its source. The first row that matches decides, so narrower
rows come first. Nothing of a text leaves this module except a meaning and numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.errors import ModelAbility

MOST_CHARS = 8_000  # of a refusal; what follows is a quoted prompt or a page
_MOST_NODES = 400  # values of a body that are looked at
# Keys whose strings are the provider's own words. A validator's `input` is what we had sent.
_WORDS = (
    "message",
    "msg",
    "detail",
    "details",
    "error",
    "errors",
    "error_message",
    "status_msg",
    "description",
    "title",
)
_LABELS = ("code", "type", "status", "reason", "error_code", "error_type", "quotaId", "innererror")
_NESTED = ("metadata", "raw", "base_resp", "violations", "body")
_FIELDS = ("param", "loc", "field", "property")
_LARGE_NUMBERS = ("n_ctx", "max_context_length", "context_length", "max_model_len", "max_tokens_allowed")
Meaning = TypeVar("Meaning")


@dataclass(frozen=True, slots=True)
class RefusalText:
    """The searched parts of a refusal: its words, the fields of the request that it names, and its numbers."""

    words: str
    fields: tuple[str, ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RefusalRow(Generic[Meaning]):
    """One wording: *meaning*, a pattern that is searched in any case, and where it was seen."""

    meaning: Meaning
    pattern: str
    source: str


def parse_refusal(text: str) -> RefusalText:
    """Return the searched parts of *text*: the body of a refusal, or an exception's words that quote one."""
    text = text[: 4 * MOST_CHARS]
    body = _find_json(text)
    if body is None:
        return RefusalText(text[:MOST_CHARS])
    words, fields, numbers = list[str](), list[str](), list[tuple[str, int]]()
    for n, (key, value) in enumerate(_walk(body)):
        if n >= _MOST_NODES:
            break
        if value is None:
            continue
        if key in _FIELDS:
            fields.append(".".join(map(str, value)) if isinstance(value, list) else str(value))
        elif key in _LARGE_NUMBERS and isinstance(value, int) and not isinstance(value, bool):
            numbers.append((key, value))
        elif isinstance(value, str | int):
            words.append(str(value))
    before = text[: text.index("{")] if "{" in text else ""
    return RefusalText(f"{before[:1000]} {' | '.join(words)}"[:MOST_CHARS], tuple(fields[:20]), tuple(numbers))


def _find_json(text: str) -> Any:
    for start in sorted(start for start in (text.find("["), text.find("{")) if start >= 0):
        try:
            found, _ = json.JSONDecoder(strict=False).raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) or (isinstance(found, list) and any(isinstance(each, dict) for each in found)):
            return found
    return None


def _walk(body: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a body that are the provider's own words, outermost first."""
    if depth > 8:
        return
    if key == "loc" or not isinstance(body, Mapping | list):
        if key == "" or key in _WORDS + _LABELS + _NESTED + _FIELDS + _LARGE_NUMBERS:
            yield key, body
        return
    if isinstance(body, list):
        for each in body:
            yield from _walk(each, key, depth + 1)
        return
    for name, value in body.items():
        if isinstance(value, Mapping | list) or name in _WORDS + _LABELS + _NESTED + _FIELDS + _LARGE_NUMBERS:
            if name in ("input", "ctx", "messages", "headers"):
                continue
            yield from _walk(value, name, depth + 1)


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
        r"reasoning is mandatory|only works in thinking mode|think value .{0,20}not supported",
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
        rf"content{_QUOTE}? must be a string|content\.type .{{0,30}}\[?['\"]text['\"]\]?",
        "Groq; Cerebras; GLM 1210",
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
        r"(?:body\.)?(?:reasoning|thinking|think|effort|enable_thinking|output_config)\b.*|(?:.*\.)?reasoning_?effort",
    ),
    (ModelAbility.TOOLS, r"(?:body\.)?(?:tools|functions|parallel_tool_calls)"),
    (ModelAbility.PICTURES, r"messages?\b.*\bimage(?:_url)?\b.*"),
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
    r"|(?:reasoning|thinking|thought)\w*[`'\"]? is (?:missing|required)",
    re.IGNORECASE,
)
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
        return None
    for field in refusal.fields:
        if (ability := _ability_of_field(field)) is not None:
            return ability
    if _UNKNOWN_FIELD.search(words) and not any(pattern.search(words) for pattern in _HISTORY_PATTERNS):
        for named in _QUOTED_FIELD.finditer(words):
            if (ability := _ability_of_field(named.group(1))) is not None:
                return ability
    return next((row.meaning for row, pattern in _ABILITY_PATTERNS if pattern.search(words)), None)


def _ability_of_field(field: str) -> ModelAbility | None:
    for ability, pattern in _FIELD_PATTERNS:
        if pattern.fullmatch(field):
            return ability
    return None
