"""The searched parts of a refusal, and the figures in it: the model's limit, and the time to wait."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
_WAITS = {"retryDelay": 1.0, "retry_after": 1.0, "retryAfter": 1.0, "retry_after_seconds": 1.0, "retry_after_ms": 0.001}
_LIMIT_FIELDS = ("n_ctx", "max_context_length", "context_length", "max_model_len", "max_tokens_allowed")
_KNOWN_KEYS = frozenset({*_WORDS, *_LABELS, *_NESTED, *_FIELDS, *_WAITS, *_LIMIT_FIELDS})


@dataclass(frozen=True, slots=True)
class RefusalText:
    """The searched parts of a refusal: its words, the fields of the request that it names, and its numbers."""

    words: str
    fields: tuple[str, ...] = ()
    limits: tuple[int, ...] = ()  # of the model, in tokens
    waits: tuple[float, ...] = ()  # seconds


def parse_refusal(text: str) -> RefusalText:
    """Return the searched parts of *text*: the body of a refusal, or an exception's words that quote one."""
    text = text[: 4 * MOST_CHARS]
    body = _find_json(text)
    if body is None:
        return RefusalText(text[:MOST_CHARS])
    words, fields, limits, waits = list[str](), list[str](), list[int](), list[float]()
    for n, (key, value) in enumerate(_walk(body)):
        if n >= _MOST_NODES:
            break
        if value is None:
            continue
        if key in _FIELDS:
            fields.append(".".join(map(str, value)) if isinstance(value, list) else str(value))
        elif key in _LIMIT_FIELDS and isinstance(value, int) and not isinstance(value, bool):
            limits.append(value)
        elif key in _WAITS:
            if (seconds := parse_duration(str(value))) is not None:
                waits.append(seconds * _WAITS[key])
        elif isinstance(value, str | int):
            words.append(str(value))
    before = text[: text.index("{")] if "{" in text else ""
    return RefusalText(
        f"{before[:1000]} {' | '.join(words)}"[:MOST_CHARS], tuple(fields[:20]), tuple(limits), tuple(waits)
    )


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
        if not key or key in _KNOWN_KEYS:
            yield key, body
        return
    if isinstance(body, list):
        for each in body:
            yield from _walk(each, key, depth + 1)
        return
    for name, value in body.items():
        is_quoted = name in ("input", "ctx", "messages", "headers")  # of our request
        if not is_quoted and (isinstance(value, Mapping | list) or name in _KNOWN_KEYS):
            yield from _walk(value, name, depth + 1)


_NUMBER = r"(\d{1,3}(?:,\d{3})+|\d{3,9})"
# Where a limit is named; what was sent is in other places of the same sentence. The first that is found decides.
_LIMITS = tuple(
    re.compile(pattern.replace("N", _NUMBER), re.IGNORECASE)
    for pattern in (
        r"n_ctx\W{1,4}N",
        r"(?:length|count|size) of [\d,]+ exceeds N",
        r"limit for this model is N",
        r"but the (?:configured )?(?:context size|maximum) is N",
        r"exceeds? (?:the )?model limit N",
        r"(?:max_seq_len|max_model_len|max_position_embeddings)[ (:=of]{1,6}N",
        r"(?<!maximum )context length (?:is|of) only N",
        r"(?:exceed context limit|context limit): [\d,+ ]+> ?N",
        r"tokens ?> ?N",
        r"input[_ ]tokens?[^.|]{0,20} limit of N",
        r"maximum (?:allowed )?(?:context|prompt|input|model|sequence)[ -]?(?:length|size|window)(?: is| of|:"
        r"|=)?(?: only)? ?\(?N",
        r"with N maximum context",
        r"model maximum context length:? ?(?:is )?N",
        r"(?:context|allowed|max(?:imum)?)[_ ](?:length|size|window|tokens)(?: is| of|:)?(?: only)? ?\(?N",
        r"available context size ?\(N",
        r"(?:longer|greater|larger|more) than (?:the )?[^.|\d]{0,50}?N",
        r"exceeds? (?:the )?(?:model[’']?s? )?(?:max(?:imum)?|limit|token limit|configured limit)[^.|(\d]{0,50}N",
        r"exceeded model token limit:? N",
        r"max(?:imum)? size:? N",
        r"(?:less than|cannot exceed|must be <=|up to|at most|no more than|exceeds? (?:the )?limit of|limit is)"
        r"(?: the total tokens limit)? ?\(?N",
        r"number of tokens allowed \(N",
        r"range of input length should be \[\d+, ?N",
        r"\blimit:? N",
        r"N (?:tokens? )?(?:maximum|limit|max)\b",
    )
)
_SENT = re.compile(
    r"(?:requested|given|received|got|resulted in(?: over)?|passed|contains|current length is|used|has"
    r"|in your prompt)"
    r"[: (]{1,3}(?:about |a total of |over )?" + _NUMBER,
    re.IGNORECASE,
)
_LEAST_LIMIT, _LARGEST_LIMIT = 256, 100_000_000


def token_limit(refusal: RefusalText) -> int:
    """Return the limit in tokens that *refusal* names; 0 where it names none. It is never the size of what was sent."""
    for number in refusal.limits:
        if _LEAST_LIMIT <= number <= _LARGEST_LIMIT:
            return number
    sent = {_to_int(found[1]) for found in _SENT.finditer(refusal.words)}
    for pattern in _LIMITS:
        for found in pattern.finditer(refusal.words):
            number = _to_int(found[1])
            if number not in sent and _LEAST_LIMIT <= number <= _LARGEST_LIMIT:
                return number
    return 0


def _to_int(text: str) -> int:
    return int(text.replace(",", ""))


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST_DURATION = 40  # characters
_DURATION = re.compile(
    r"(?<![\d.])(\d+(?:\.\d+)?) ?(ms|milliseconds?|s(?:ec(?:onds?)?)?|m(?:in(?:utes?)?)?|h(?:ours?)?"
    r"|d(?:ays?)?)(?![a-z]) ?",
    re.IGNORECASE,
)
_WAIT_AFTERWARDS = re.compile(r"(?<!\d)(\d+) ?秒(?:钟)?后")
_WAIT = re.compile(
    r"(?:(?:try again|retry|retry after|available|reset|resets|wait)(?: (?:in|after|for))?"
    r"(?: (?:about|approximately|another))?"
    r"|retrydelay[\"':]*"
    r"|retry_after[\"':]*"
    r"|estimated_time[\"':]*)[: ]{0,3}(?=\d)((?:\d+(?:\.\d+)?(?: ?(?:ms|milliseconds?|seconds?|secs?|s|minutes?"
    r"|mins?|m|hours?|h|days?|d)(?![a-z]))? ?)+)(?![:\d])",
    re.IGNORECASE,
)


def parse_duration(text: str) -> float | None:
    """Return the seconds of "4.2s", "1m2.5s", "250ms", "2 minutes" or "7"; None for anything else."""
    text = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    end = seconds = 0.0
    if len(text) > _LONGEST_DURATION:
        return None
    for found in _DURATION.finditer(text):
        if found.start() != end:
            return None
        end = found.end()
        unit = found[2].lower()
        seconds += float(found[1]) * _UNITS["ms" if unit.startswith(("ms", "milli")) else unit[0]]
    return seconds if end and end == len(text) else None


def named_wait(refusal: RefusalText) -> float | None:
    """Return the seconds after which *refusal* says to try again; None where it does not."""
    waits = [parse_duration(found[1]) for each in (_WAIT, _WAIT_AFTERWARDS) for found in each.finditer(refusal.words)]
    known = [each for each in (*waits, *refusal.waits) if each is not None]
    return max(known, default=None)
