"""The Bot API over aiohttp: one try per call, errors mapped to SendFailed, and retries for receiving.

The address of every call contains the token, so only errors with a text that Telegram wrote leave this module.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import aiohttp
import structlog
from yarl import URL

from gateway.backoff import exponential_delay
from gateway.errors import (
    FormatRefused,
    LoginRefused,
    OutcomeUnknown,
    RetryLater,
    SendFailed,
    SendRefused,
    SettingsError,
)
from gateway.net.certificates import trusted_certificates
from gateway.ports.entry_points import package_version

log = structlog.get_logger(__name__)

T = TypeVar("T")

TELEGRAM = "https://api.telegram.org/bot"
NO_PREVIEW = {"is_disabled": True}  # of links
_CONNECTIONS = 100  # of a bot: its calls, a poll and downloads
_READ_SECONDS = 20.0  # without a byte of an answer
_CONNECT_SECONDS = 10.0
_QUEUE_SECONDS = 30.0  # until a call has a connection, new or free
_FILE_SECONDS = 90.0  # without a byte taken, of a file on its way out
_PIECE = 64 * 1024
_UNREACHED = timedelta(seconds=2)
_TOKEN_REFUSED = timedelta(seconds=60)

# Errors of a request that never left: a retry cannot double anything.
_NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)
_FORMAT_WORDS = ("can't parse entities", "can't find end", "entity", "entities", "unsupported start tag")


class TelegramError(Exception):
    """A call without a result: Telegram refused it, or did not answer in time or in JSON."""

    def __init__(self, message: str, *, is_answer: bool = True, is_sent: bool = True) -> None:
        """*message* is Telegram's text if the error *is_answer* of a Bot API, else the kind of failure."""
        super().__init__(message)
        self.message = message
        self.is_answer = is_answer
        self.is_sent = is_sent


class BadRequest(TelegramError):
    """The call is wrong, or its chat or message does not exist."""


class BotForbidden(TelegramError):
    """The bot was blocked, or is not in the chat."""


class InvalidToken(TelegramError):
    """401 or 404: the token is refused, the method unknown, or the server is not Telegram's."""


class PollConflict(TelegramError):
    """Another program polls, or a webhook is set."""


class RetryAfter(TelegramError):
    """Telegram asks to wait for *delay* in that chat."""

    def __init__(self, message: str, delay: timedelta) -> None:
        super().__init__(message)
        self.delay = delay


class UploadTooLarge(TelegramError):
    """The server takes no request of this size."""


class ChatMigrated(TelegramError):
    """The group has another id since it became a supergroup."""

    def __init__(self, message: str, new_chat_id: int) -> None:
        super().__init__(message)
        self.new_chat_id = new_chat_id


_STATUS_ERRORS = {
    400: BadRequest,
    401: InvalidToken,
    403: BotForbidden,
    404: InvalidToken,
    409: PollConflict,
    413: UploadTooLarge,
}


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A file as a field of a call."""

    name: str
    data: bytes


class TelegramApi:
    """The calls and downloads of one bot. Made in any thread, used on one event loop."""

    def __init__(self, token: str, base_url: str, file_url: str, *, proxy: str = "") -> None:
        self._base = f"{base_url}{token}"
        self._file_base = f"{file_url}{token}"
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections; they reopen when used."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, method: str, *, read_seconds: float = _READ_SECONDS, **fields: Any) -> Any:
        """Return the result of *method*; leave out fields that have no value. Raises TelegramError."""
        values = {name: value for name, value in fields.items() if value is not None}
        has_file = any(isinstance(value, UploadFile) for value in values.values())
        kind, body = _form(values) if has_file else ("application/json", [_json(values)])
        try:
            async with (
                asyncio.timeout(None) as silence,
                self._open_session().post(
                    f"{self._base}/{method}",
                    data=_pieces(body, silence) if has_file else body[0],
                    headers={"Content-Type": kind, "Content-Length": str(sum(map(len, body)))},
                    timeout=_limits(read_seconds),
                    allow_redirects=False,
                ) as response,
            ):
                status, payload = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            is_sent = not isinstance(error, _NEVER_SENT)
            raise TelegramError(type(error).__name__, is_answer=False, is_sent=is_sent) from None
        return _result(status, payload)

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the file at *path*, which is encoded. Raises aiohttp.ClientError or TimeoutError."""
        address = URL(f"{self._file_base}/{path}", encoded=True)
        async with self._open_session().get(address, timeout=_limits(), allow_redirects=False) as response:
            yield response

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            options: dict[str, Any] = {"limit": _CONNECTIONS}
            if "https:" in (self._base[:6], self._file_base[:6]):
                options["ssl"] = trusted_certificates()
            if self._proxy:
                from gateway.net.aiohttp_proxy import connector  # brings two more packages

                way = connector(self._proxy, **options)
            else:
                way = aiohttp.TCPConnector(**options)
            self._session = aiohttp.ClientSession(
                connector=way,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"Parlour/{package_version()}"},
                # aiohttp would look for proxies at each request, where there are none too.
                trust_env=not self._proxy and bool(getproxies()),
            )
        return self._session


def _limits(read_seconds: float = _READ_SECONDS) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(connect=_QUEUE_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=read_seconds)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _form(values: Mapping[str, Any]) -> tuple[str, list[bytes]]:
    """Return the content type and body of a form with files."""
    boundary = secrets.token_hex(16)
    body: list[bytes] = []
    for name, value in values.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'
        if isinstance(value, UploadFile):
            kind = mimetypes.guess_type(value.name)[0] or "application/octet-stream"
            # As in browsers (HTML, "multipart form data"): names hold no line breaks.
            file_name = value.name.replace("\\", "\\\\").replace('"', "%22")
            head, data = f'{head}; filename="{file_name}"\r\nContent-Type: {kind}', value.data
        else:
            data = value.encode("utf-8", "replace") if isinstance(value, str) else _json(value)
        body += [f"{head}\r\n\r\n".encode("utf-8", "replace"), data, b"\r\n"]
    return f"multipart/form-data; boundary={boundary}", [*body, f"--{boundary}--\r\n".encode()]


async def _pieces(body: Sequence[bytes], silence: asyncio.Timeout) -> AsyncGenerator[memoryview, None]:
    """Yield *body* in pieces; *silence* ends the call if one of them is not taken in time."""
    loop = asyncio.get_running_loop()
    for part in body:
        for start in range(0, len(part), _PIECE):
            silence.reschedule(loop.time() + _FILE_SECONDS)
            yield memoryview(part)[start : start + _PIECE]
    silence.reschedule(None)  # the time of the answer has its own limit


def _result(status: int, payload: bytes) -> Any:
    """Return the result that an answer contains; raise TelegramError if it contains none."""
    try:
        answer = json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        answer = None
    said: dict[str, Any] = answer if isinstance(answer, dict) else {}
    if 200 <= status < 300 and "result" in said:
        return said["result"]
    message = str(said.get("description", f"no answer of a Bot API ({status})"))
    parameters = said.get("parameters") or {}
    if moved := parameters.get("migrate_to_chat_id"):
        raise ChatMigrated(message, int(moved))
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        raise RetryAfter(message, timedelta(seconds=max(1, parameters.get("retry_after", 0))))
    raise _STATUS_ERRORS.get(status, TelegramError)(message, is_answer="description" in said)


def is_unchanged(error: TelegramError) -> bool:
    """Return True if an edit was refused because the message has that text already."""
    return isinstance(error, BadRequest) and "not modified" in error.message.lower()


def is_token_refused(error: TelegramError) -> bool:
    """Return True if a Bot API refused the token, and no other server that answers with 401 or 404."""
    return isinstance(error, InvalidToken) and error.is_answer


def copy_the_token(error: TelegramError, base_url: str) -> str:
    """Return the remedy for a refused token. At a self-hosted server a 404 can mean a wrong address."""
    mend = "copy it again from @BotFather (/mybots, the bot, API Token)"
    is_doubtful = base_url != TELEGRAM and "unauthorized" not in error.message.lower()
    return f"{mend}, or correct `base_url`, {_address(base_url)}" if is_doubtful else mend


def not_telegram(base_url: str) -> str:
    """Return the error text for another server at the configured address."""
    return f"the server at {_address(base_url)} is not Telegram's Bot API; correct `base_url`, or remove it"


def _address(base_url: str) -> str:
    """Return an address without its path, which may contain a secret."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.hostname}"


@contextmanager
def map_send_errors(*, is_formatted: bool = False) -> Iterator[None]:
    """Raise TelegramError as SendFailed; *is_formatted* says that the call carries formatting that can be refused."""
    try:
        yield
    except TelegramError as error:
        raise send_failure(error, is_formatted=is_formatted) from None


def send_failure(error: TelegramError, *, is_formatted: bool) -> SendFailed:
    """Return *error* of a call as delivery expects it."""
    if isinstance(error, RetryAfter):
        return RetryLater(error.delay)
    if isinstance(error, BotForbidden):
        return SendRefused(describe_error(error))
    if isinstance(error, ChatMigrated):
        return SendRefused("the group became a supergroup twice in a row")
    if isinstance(error, BadRequest):
        text = error.message.lower()
        if is_formatted and any(word in text for word in _FORMAT_WORDS):
            return FormatRefused(describe_error(error))
        return SendRefused(describe_error(error))
    if isinstance(error, InvalidToken):
        # The token may be corrected; the poller logs how.
        return RetryLater(_TOKEN_REFUSED, "Telegram rejects the token")
    if isinstance(error, UploadTooLarge):
        return SendRefused("larger than Telegram allows")
    if not error.is_sent:
        return RetryLater(_UNREACHED, f"Telegram cannot be reached: {error.message}")
    return OutcomeUnknown(describe_error(error))


def describe_error(error: TelegramError) -> str:
    """Return a loggable description of *error*: Telegram's own text or the type of failure."""
    return type(error).__name__ if isinstance(error, InvalidToken) else error.message[:200]


WEBHOOK_SET = (
    "Telegram delivers this bot's messages to a webhook, so that they cannot be fetched; open"
    " https://api.telegram.org/bot<token>/deleteWebhook in a browser, or set `mode` to webhook"
)
OTHER_POLLER = (
    "another program polls the messages of this bot; stop it, or give this bot a token of its own with @BotFather"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDelays:
    """Seconds between one attempt and the next."""

    store: float = 1.0  # the journal cannot write
    first: float = 1.0  # Telegram is unreachable; doubled each time
    longest: float = 30.0
    conflict: float = 60.0  # another program polls: one of the two has to stop
    watch: float = 30.0  # between two looks at the webhook's status
    press: float = 3.0  # until a press is answered without the turn's own answer


class ApiRetrier:
    """Repeats calls and remembers when Telegram last answered."""

    def __init__(self, name: str, waits: RetryDelays, *, base_url: str) -> None:
        self._name = name
        self._base_url = base_url
        self._waits = waits
        self._failures = 0
        self._is_conflict_logged = False
        self.contact_at: float | None = None  # the last answer that proves that updates are received

    def had_contact_within(self, seconds: float) -> bool:
        """Return True if the last contact is not older than *seconds*."""
        return self.contact_at is not None and time.monotonic() - self.contact_at < seconds

    def record_contact(self) -> None:
        """Record that updates are received now."""
        self.contact_at = time.monotonic()

    async def call_with_retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat *call* until Telegram answers it.

        Raises LoginRefused for a refused token, SettingsError if another server answers at base_url.
        """
        while True:
            try:
                answer = await call()
            except InvalidToken as error:
                if not is_token_refused(error) and self._base_url == TELEGRAM:
                    pause = self._note_unreachable(error)  # a proxy's page, say: not Telegram's answer
                else:
                    self.contact_at = None
                    raise self._refusal(error) from None
            except PollConflict as error:
                pause = self._note_conflict(error)
            except RetryAfter as error:
                pause = error.delay.total_seconds()
                log.info("telegram.asked_to_wait", channel=self._name, seconds=pause)
            except TelegramError as error:
                pause = self._note_unreachable(error)
            else:
                self._note_reached()
                return answer
            await asyncio.sleep(pause)

    def _refusal(self, error: TelegramError) -> SettingsError:
        if not is_token_refused(error):
            return SettingsError(f"channels.{self._name}: {not_telegram(self._base_url)}")
        return LoginRefused(
            f"Telegram rejects the token of channels.{self._name}; {copy_the_token(error, self._base_url)}, or set"
            " `enabled` to false"
        )

    def _note_conflict(self, error: PollConflict) -> float:
        """Return the pause after a conflict with another poller or a webhook; log it once."""
        self.contact_at = None
        if not self._is_conflict_logged:
            self._is_conflict_logged = True
            mend = WEBHOOK_SET if "webhook" in error.message.lower() else OTHER_POLLER
            log.error("telegram.conflict", channel=self._name, mend=mend, seconds=self._waits.conflict)
        return self._waits.conflict

    def _note_unreachable(self, error: TelegramError) -> float:
        self._failures += 1
        if self._failures > 1:  # one broken poll is common
            self.contact_at = None
        pause = exponential_delay(self._failures, self._waits.first, self._waits.longest)
        log.warning("telegram.unreachable", channel=self._name, reason=describe_error(error), seconds=pause)
        return pause

    def _note_reached(self) -> None:
        if self._failures or self._is_conflict_logged:
            log.info("telegram.reached", channel=self._name)
        self._failures, self._is_conflict_logged = 0, False
