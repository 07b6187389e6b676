"""Maps exceptions of litellm, the providers' SDKs and aiohttp to our error tree.

Judged by class names, status and headers, so that nothing here imports these libraries. Provider texts may
quote the key or the prompt; none of them gets into our errors, only classes, statuses and codes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from agent.llm.provider_refusals import missing_ability, parse_refusal
from gateway.errors import (
    AbilityMissing,
    ContextOverflow,
    InvalidModelReply,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnreachable,
)

_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum (context|prompt)|context (length|window|size|limit)|prompt is too long"
    r"|too many (input )?tokens|input (token count|length|is too long)|exceeds the (available context|model's maximum)"
    r"|max_new_tokens`? must be <=",
    re.IGNORECASE,
)
_OVERFLOW_CODE = "context_length_exceeded"  # whatever the status: in a stream there is none
_OVERFLOW_STATUS = frozenset({400, 413, 422})
_ACCOUNT_STATUS = frozenset({401, 402, 403, 404})  # key, payment, rights, name of the model: true of every request
# The limit as providers name it; what was sent stands in other places of the same sentence.
_LIMIT = re.compile(
    r"(?:maximum (?:context|prompt) length (?:is|of)|available context size \(|n_ctx\W{1,4}|cannot exceed"
    r"|maximum number of tokens allowed \(|must be <=|tokens >|context limit: [\d,+ ]+>) ?(\d[\d,]{2,9})",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"insufficient_quota|exceeded your current quota|billing|credit balance", re.IGNORECASE)
_BUSY = re.compile(r"overloaded|at capacity", re.IGNORECASE)
_GARBLED = frozenset({"JSONDecodeError", "ValidationError", "APIResponseValidationError", "UnicodeDecodeError"})
_HTTP_ERROR = "HTTPStatusError"  # the provider did answer, with an error status
_NOT_REACHED = frozenset({"OSError", "HTTPError", "APIConnectionError", "ClientError"})


class ProviderHttpError(Exception):
    """An HTTP error of a provider. Its text is the provider's: it must get into no log and no message."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        super().__init__(text)
        self.status_code = status
        self.headers = headers

    @property
    def reason(self) -> str:
        """The standard's words for the status."""
        try:
            return HTTPStatus(self.status_code).phrase
        except ValueError:
            return "error"


def is_http_error(status: int) -> bool:
    """Return True if *status* is that of a refusal or a failure."""
    return 400 <= status < 600


def map_provider_error(error: Exception, model: str, now: datetime) -> ModelFailed:
    """Return our error for *error*; a Retry-After date is compared with *now*."""
    chain = list(_chain(error))
    names = {base.__name__ for link in chain for base in type(link).__mro__}
    status = _status(error)
    text = _text(error)
    kind = error.reason if isinstance(error, ProviderHttpError) else type(error).__name__
    said = f"{model}: {kind}{f', HTTP {status}' if status else ''}"
    is_named = "ContextWindowExceededError" in names or _OVERFLOW_CODE in text
    if is_named or (status in _OVERFLOW_STATUS and _OVERFLOW.search(text)):
        return ContextOverflow(said, context_limit(text))
    if _GARBLED & names and _HTTP_ERROR not in names:
        return InvalidModelReply(said)
    if (status is not None) and (ability := missing_ability(parse_refusal(text), status)) is not None:
        return AbilityMissing(f"{said}, no {ability}", ability)
    if status in {408, 504} or names & {"Timeout", "TimeoutException", "APITimeoutError"}:
        return ModelTimeout(said)
    if status == 429 and _QUOTA.search(text):
        return ModelRefused(f"{said}, the account's quota is used up", is_about_account=True)
    if status in {429, 503, 529} or _BUSY.search(text):
        return ModelRateLimited(said, retry_after(_headers(chain), now))
    if status is not None and 400 <= status < 500:
        return ModelRefused(said, is_about_account=status in _ACCOUNT_STATUS)
    if status is not None or names & _NOT_REACHED:
        return ModelUnreachable(said)
    return InvalidModelReply(said)


def context_limit(text: str) -> int:
    """Return the limit in tokens that a refusal names; 0 where it names none."""
    found = _LIMIT.search(text)
    return int(found.group(1).replace(",", "")) if found else 0


def retry_after(headers: Mapping[str, str], now: datetime) -> timedelta | None:
    """Read Retry-After (seconds or an HTTP date) or retry-after-ms; None when absent or unreadable."""
    known = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(known[name]) * unit
        except (KeyError, ValueError):
            continue
        return timedelta(seconds=min(seconds, 1e6)) if math.isfinite(seconds) and seconds >= 0 else None
    try:
        until = parsedate_to_datetime(known["retry-after"])
    except (KeyError, ValueError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(until - now, timedelta(0))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and what it was raised from; litellm hides some behind `original_exception`."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if not isinstance(link, BaseException) or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__context__, link.__cause__, getattr(link, "original_exception", None)]


def _status(error: BaseException) -> int | None:
    # A stream that broke in the middle says 503 or 500 itself; what broke it knows better.
    original = getattr(error, "original_exception", None)
    if isinstance(original, BaseException):
        error = original
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _text(error: BaseException) -> str:
    """Return the bounded text in which to search for known phrases."""
    body = getattr(error, "body", None)
    return f"{str(error)[:4000]} {str(body)[:1000] if body else ''}"


def _headers(chain: list[BaseException]) -> Mapping[str, str]:
    for link in chain:
        for source in (getattr(link, "litellm_response_headers", None), getattr(link, "response", None), link):
            headers = getattr(source, "headers", source)
            if isinstance(headers, Mapping) and any(str(name).lower().startswith("retry-after") for name in headers):
                return {str(name): str(value) for name, value in headers.items()}
    return {}
