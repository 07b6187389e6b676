"""Maps exceptions of litellm, the providers' SDKs and aiohttp to our error tree.

Judged by class names, status, headers and the table of refusals, so that nothing here imports these libraries.
Provider texts may quote the key or the prompt; none of them gets into our errors, only classes, statuses and codes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from agent.llm.provider_refusals import RefusalMeaning, is_about_number, missing_ability, refusal_meaning
from agent.llm.refusal_text import RefusalText, named_wait, parse_duration, parse_refusal, token_limit
from gateway.errors import (
    AbilityMissing,
    ContextOverflow,
    FailureCause,
    InvalidModelReply,
    ModelAbility,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
    ModelTimeout,
    ModelUnreachable,
)

_CAUSES = {
    RefusalMeaning.ACCOUNT: FailureCause.ACCOUNT,
    RefusalMeaning.KEY: FailureCause.KEY,
    RefusalMeaning.MODEL: FailureCause.MODEL,
    RefusalMeaning.FILTERED: FailureCause.FILTERED,
    RefusalMeaning.RIGHTS: FailureCause.RIGHTS,
}
# True of every request: the key, its rights, payment, and an address or a model that is not there.
_STATUS_CAUSES = {
    401: FailureCause.KEY,
    402: FailureCause.ACCOUNT,
    403: FailureCause.RIGHTS,
    404: FailureCause.ADDRESS,
    405: FailureCause.ADDRESS,
    410: FailureCause.MODEL,
}
_NO_WORDS = frozenset({401, 402, 403})  # the words do not change what the status says, except for the content
_UNEXPLAINED_STATUS = frozenset({400, 422, 500})
_BUSY_STATUS = frozenset({429, 503, 529})
_GARBLED = frozenset({"JSONDecodeError", "ValidationError", "APIResponseValidationError", "UnicodeDecodeError"})
_HTTP_ERROR = "HTTPStatusError"  # the provider did answer, with an error status
_NOT_REACHED = frozenset({"OSError", "HTTPError", "APIConnectionError", "ClientError"})
# The connection broke after the request was sent: aiohttp's and httpx's names for it.
_BROKEN_OFF = frozenset({"ClientPayloadError", "ServerDisconnectedError", "RemoteProtocolError", "ReadError"})
_LONGEST_WAIT = 1e6  # seconds: whoever asks for more is not asked again
_CERTIFICATE = re.compile(r"certificate[ _]verify[ _]failed|certificateerror|hostname mismatch", re.IGNORECASE)
# OpenSSL's codes and words; the first that is found decides.
_CERTIFICATE_FAULTS = (
    (FailureCause.CERTIFICATE_EXPIRED, frozenset({9, 10}), re.compile(r"expired|not yet valid", re.IGNORECASE)),
    (FailureCause.CERTIFICATE_NAME, frozenset({62, 64}), re.compile(r"mismatch|not valid for|match", re.IGNORECASE)),
    (FailureCause.CERTIFICATE_SELF_SIGNED, frozenset({18, 19}), re.compile(r"self[- ]signed", re.IGNORECASE)),
)
_NO_HOST = re.compile(
    r"name or service not known|nodename nor servname|name resolution|no address associated|getaddrinfo"
    r"|name does not resolve|dns server returned|domain name not found",
    re.IGNORECASE,
)
_NO_TLS = re.compile(r"wrong[ _]version[ _]number|unexpected[ _]eof|record layer failure|\[SSL", re.IGNORECASE)


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
    refusal = parse_refusal(_text(error))
    kind = error.reason if isinstance(error, ProviderHttpError) else type(error).__name__
    said = f"{model}: {kind}{f', HTTP {status}' if status else ''}"
    # An error without a status is one of a library or of the network; only the code of a prompt that is too long is
    # looked for in its words.
    meaning = refusal_meaning(refusal, status)
    is_code = status is None and "context_length_exceeded" in refusal.words
    if "ContextWindowExceededError" in names or is_code or (status and meaning is RefusalMeaning.OVERFLOW):
        return ContextOverflow(said, token_limit(refusal))
    if _GARBLED & names and _HTTP_ERROR not in names:
        return InvalidModelReply(said)
    cause = connection_fault(chain)
    if cause is not None:
        return ModelUnreachable(said, cause)
    if status is not None and (ability := missing_ability(refusal, status)) is not None:
        is_lasting = not (ability is ModelAbility.TOOLS and is_about_number(refusal))
        return AbilityMissing(f"{said}, no {ability}", ability, is_lasting=is_lasting)
    if status in {408, 504} or names & {"Timeout", "TimeoutException", "APITimeoutError"}:
        return ModelTimeout(said)
    if status is None:
        if names & _BROKEN_OFF:
            return ModelServerFailed(said)
        return ModelUnreachable(said) if names & _NOT_REACHED else InvalidModelReply(said)
    failed = _status_error(said, status, meaning, _wait(chain, refusal, now))
    failed.is_unexplained = meaning is None and status in _UNEXPLAINED_STATUS
    return failed


def _status_error(message: str, status: int, meaning: RefusalMeaning | None, wait: timedelta | None) -> ModelFailed:
    """Return the error of a provider that answered with *status*, whose words mean *meaning*."""
    if status == 413:
        return ContextOverflow(message)  # the page of a proxy before the model, or words that nobody has seen
    if meaning is RefusalMeaning.ACCOUNT:
        return ModelRefused(f"{message}, the account's quota is used up", FailureCause.ACCOUNT)
    if status in _NO_WORDS and meaning is not RefusalMeaning.FILTERED and meaning is not RefusalMeaning.RATE_LIMIT:
        return ModelRefused(message, _STATUS_CAUSES[status])
    if status in _BUSY_STATUS or meaning in (RefusalMeaning.RATE_LIMIT, RefusalMeaning.OVERLOADED):
        return ModelRateLimited(message, wait)
    if meaning is RefusalMeaning.FILTERED:
        return ModelRefused(message, FailureCause.FILTERED)
    if 400 <= status < 500:
        return ModelRefused(message, _CAUSES[meaning] if meaning in _CAUSES else _STATUS_CAUSES.get(status))
    return ModelServerFailed(message)


def connection_fault(chain: Sequence[BaseException]) -> FailureCause | None:
    """Return why no connection was made; None if one was, or if nothing more is known of it."""
    names = {base.__name__ for link in chain for base in type(link).__mro__}
    words = " ".join(str(link)[:500] for link in chain if not isinstance(link, ProviderHttpError))
    if names & {"ProxyError", "ClientProxyConnectionError", "ClientHttpProxyError", "ProxyConnectionError"}:
        return FailureCause.PROXY
    is_network = bool(names & (_NOT_REACHED | {"SSLError", "InternalServerError"}))
    if names & {"SSLCertVerificationError", "ClientConnectorCertificateError"} or (
        is_network and _CERTIFICATE.search(words)
    ):
        codes = {getattr(link, "verify_code", None) for link in chain}
        for cause, known, pattern in _CERTIFICATE_FAULTS:
            if codes & known or pattern.search(words):
                return cause
        return FailureCause.CERTIFICATE_ISSUER
    if names & {"gaierror", "ClientConnectorDNSError"} or (is_network and _NO_HOST.search(words)):
        return FailureCause.HOST
    if "ConnectionRefusedError" in names or (
        is_network and re.search(r"connection refused|errno 111|connect call failed", words, re.IGNORECASE)
    ):
        return FailureCause.CONNECTION
    if names & {"SSLError", "ClientConnectorSSLError"} or (is_network and _NO_TLS.search(words)):
        return FailureCause.TLS
    return None


def retry_after(headers: Mapping[str, str], now: datetime) -> timedelta | None:
    """Read Retry-After (seconds or an HTTP date), retry-after-ms, or when a rate limit is reset.

    Return None where none of them is present and readable.
    """
    known = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if name in known and (span := _reset(known[name], now, unit)) is not None:
            return span
    resets = [_reset(value, now) for name, value in known.items() if _is_spent(name, known)]
    return max((each for each in resets if each is not None), default=None)


_RESET = re.compile(r"(?:x-|anthropic-)?ratelimit-(?:reset(-\w+)?|(\w+(?:-\w+)?)-reset)")


def _is_spent(name: str, headers: Mapping[str, str]) -> bool:
    """Return True if *name* is the time at which a limit is reset of which nothing remains."""
    if not (found := _RESET.fullmatch(name)):
        return False
    rest = name.replace("reset", "remaining")
    only = sum(_RESET.fullmatch(each) is not None for each in headers) == 1
    return headers[rest] in ("0", "0.0") if rest in headers else only or found[1] is None


def _reset(value: str, now: datetime, unit: float = 1.0) -> timedelta | None:
    """Return the time until *value*: a span, seconds times *unit*, a Unix time in seconds or ms, or a date."""
    if (seconds := _seconds(value)) is not None:
        if not 1e9 < seconds < 1e14:
            return _span(seconds * unit)
        return _span(max((seconds / 1000 if seconds > 1e11 else seconds) - now.timestamp(), 0.0))
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError):
            return _until(read(value), now)
    return None


def _seconds(value: str) -> float | None:
    if (seconds := parse_duration(value)) is not None:
        return seconds
    try:
        return float(value)
    except ValueError:
        return None


def _span(seconds: float) -> timedelta | None:
    return timedelta(seconds=min(seconds, _LONGEST_WAIT)) if math.isfinite(seconds) and seconds >= 0 else None


def _until(at: datetime, now: datetime) -> timedelta:
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return min(max(at - now, timedelta(0)), timedelta(seconds=_LONGEST_WAIT))


def _wait(chain: list[BaseException], refusal: RefusalText, now: datetime) -> timedelta | None:
    """Return the wait that the headers name, else that of the body or its text."""
    headers = _headers(chain)
    found = retry_after({name: each for name, each in headers.items() if "retry-after" in name.lower()}, now)
    if found is None and (seconds := named_wait(refusal)) is not None:
        found = _span(seconds)
    return retry_after(headers, now) if found is None else found


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
        hidden = [getattr(link, name, None) for name in ("original_exception", "os_error", "certificate_error")]
        waiting += [link.__context__, link.__cause__, *hidden]


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
    return f"{str(error)[:20_000]} {str(body)[:1000] if body else ''}"


def _headers(chain: list[BaseException]) -> Mapping[str, str]:
    for link in chain:
        for source in (getattr(link, "litellm_response_headers", None), getattr(link, "response", None), link):
            headers = getattr(source, "headers", source)
            if isinstance(headers, Mapping) and any(_is_wait(str(name).lower()) for name in headers):
                return {str(name): str(value) for name, value in headers.items()}
    return {}


def _is_wait(header: str) -> bool:
    return header.startswith("retry-after") or _RESET.fullmatch(header) is not None
