"""The Bot API: requests over aiohttp, errors mapped to SendFailed, and retries for receiving.

The address of every call contains the token. Nothing is logged here, and only errors with a text that Telegram
wrote, or the kind of failure, leave this module.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Any, TypeVar
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies

import aiohttp
import structlog
from telegram import Bot, MessageEntity
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    EndPointNotFound,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
    TimedOut,
)
from telegram.request import BaseRequest, RequestData
from yarl import URL

from gateway.errors import (
    FormatRefused,
    LoginRefused,
    OutcomeUnknown,
    PlaceGone,
    RetryLater,
    SendFailed,
    SendRefused,
    SettingsError,
    exponential_delay,
)
from gateway.net import trusted_certificates

log = structlog.get_logger(__name__)

# -- http request ----------------------------------------------------------------------------------
# The library's requests over aiohttp, which take less CPU than its own over httpx. Methods, objects and errors stay
# the library's. aiohttp has no time limit for writing, so a file is handed over in pieces.

_READ_SECONDS = 20.0  # without a byte of an answer
_CONNECT_SECONDS = 10.0
_QUEUE_SECONDS = 30.0  # until a call has a connection, new or free
_FILE_SECONDS = 90.0  # without a byte taken, of a file on its way out
_PIECE = 64 * 1024
_FORM = "application/x-www-form-urlencoded"

# Errors of a request that never left: a retry cannot double anything.
NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)


class AiohttpRequest(BaseRequest):
    """Requests over at most *connections* connections, which stay open until `shutdown` and open again when used."""

    def __init__(self, connections: int, *, proxy: str = "") -> None:
        self._connections = connections
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    @property
    def read_timeout(self) -> float:
        """The default, in seconds."""
        return _READ_SECONDS

    async def initialize(self) -> None:
        """Do nothing: the first request connects."""

    async def shutdown(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        """Return the object of a response; raise TelegramError for any other body, without its words."""
        try:
            answer = json.loads(payload.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise TelegramError("the answer is no JSON") from None
        if not isinstance(answer, dict):
            raise TelegramError("the answer is no JSON object")
        if answer.get("ok") is True and "result" not in answer:
            raise TelegramError("the answer has no result")
        return answer

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: Any = BaseRequest.DEFAULT_NONE,
        write_timeout: Any = BaseRequest.DEFAULT_NONE,  # noqa: ARG002 - the library's signature
        connect_timeout: Any = BaseRequest.DEFAULT_NONE,  # noqa: ARG002 - the library's signature
        pool_timeout: Any = BaseRequest.DEFAULT_NONE,  # noqa: ARG002 - the library's signature
    ) -> tuple[int, bytes]:
        """Return status and body of the answer; only *read_timeout* differs from call to call. Raises NetworkError."""
        if request_data is not None and request_data.contains_files:
            kind, body = _multipart(request_data)
        else:
            fields = request_data.json_parameters if request_data is not None else {}
            kind, body = _FORM, [urlencode(fields, errors="replace").encode()]
        seconds = _READ_SECONDS if read_timeout is BaseRequest.DEFAULT_NONE else read_timeout
        try:
            async with (
                asyncio.timeout(None) as silence,
                self._open_session().request(
                    method,
                    url,
                    data=body[0] if kind is _FORM else _pieces(body, silence),
                    headers={"Content-Type": kind, "Content-Length": str(sum(map(len, body)))},
                    timeout=_limits(seconds),
                    allow_redirects=False,
                ) as response,
            ):
                return response.status, _readable(response.status, await response.read())
        except TimeoutError as error:
            raise TimedOut from error
        except aiohttp.ClientError as error:
            raise NetworkError(type(error).__name__) from error

    @asynccontextmanager
    async def download(self, address: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the file at *address*, which is encoded. Raises aiohttp.ClientError or TimeoutError."""
        url = URL(address, encoded=True)
        async with self._open_session().get(url, timeout=_limits(_READ_SECONDS), allow_redirects=False) as response:
            yield response

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            options: dict[str, Any] = {"limit": self._connections, "ssl": trusted_certificates()}
            if self._proxy:
                from gateway.net.connector import connector

                way = connector(self._proxy, **options)
            else:
                way = aiohttp.TCPConnector(**options)
            self._session = aiohttp.ClientSession(
                connector=way,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self.USER_AGENT},
                # aiohttp would look for proxies at each request, where there are none too.
                trust_env=not self._proxy and bool(getproxies()),
            )
        return self._session


def _readable(status: int, payload: bytes) -> bytes:
    """Return *payload*, or an empty object for an error that is not the Bot API's: the library would quote it."""
    if status not in range(200, 300):
        try:
            AiohttpRequest.parse_json_payload(payload)
        except TelegramError:
            return b"{}"
    return payload


def _limits(read_seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(connect=_QUEUE_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=read_seconds)


def _multipart(request_data: RequestData) -> tuple[str, list[bytes]]:
    """Return the content type of a form with files, and its body with no file copied."""
    boundary = secrets.token_hex(16)
    body: list[bytes] = []
    for name, value in request_data.json_parameters.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        body += [head.encode(), value.encode("utf-8", "replace"), b"\r\n"]
    for name, (file_name, data, kind) in request_data.multipart_data.items():
        # As in browsers (HTML, "multipart form data"); names hold no line breaks.
        quoted = file_name.replace("\\", "\\\\").replace('"', "%22")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{quoted}"\r\n'
        body += [f"{head}Content-Type: {kind}\r\n\r\n".encode("utf-8", "replace"), _bytes(data), b"\r\n"]
    return f"multipart/form-data; boundary={boundary}", [*body, f"--{boundary}--\r\n".encode()]


def _bytes(data: bytes | IO[bytes]) -> bytes:
    return data if isinstance(data, bytes) else data.read()


async def _pieces(body: Sequence[bytes], silence: asyncio.Timeout) -> AsyncGenerator[memoryview, None]:
    """Yield *body* in pieces; *silence* ends the call if one of them is not taken in time."""
    loop = asyncio.get_running_loop()
    for part in body:
        for start in range(0, len(part), _PIECE):
            silence.reschedule(loop.time() + _FILE_SECONDS)
            yield memoryview(part)[start : start + _PIECE]
    silence.reschedule(None)  # the time of the answer has its own limit


# -- api -------------------------------------------------------------------------------------------
# Errors and retries.

# The library's switch for timedeltas, the default of its next release; without it, it warns at every 429.
os.environ.setdefault("PTB_TIMEDELTA", "true")

TELEGRAM = "https://api.telegram.org/bot"
_CONNECTIONS = 32
_UNREACHED = timedelta(seconds=2)
_TOKEN_REFUSED = timedelta(seconds=60)

# No list of these texts is published; they are as the Bot API and the MTProto errors behind it write them.
_PLACE_GONE = (
    *("thread not found", "topic_closed", "topic_deleted", "topic_id_invalid", "topic closed", "topic deleted"),
    *("chat not found", "chat was deactivated", "chat_write_forbidden", "chat_restricted", "channel_private"),
    *("not enough rights to send text", "have no rights to send", "need administrator rights", "chat_admin_required"),
    *("chat_send_plain_forbidden", "peer_id_invalid", "user_banned_in_channel", "channel_invalid"),
)
_FORMAT_WORDS = ("can't parse entities", "can't find end", "entity", "entities", "unsupported start tag")


def make_requests(proxy: str = "") -> tuple[AiohttpRequest, AiohttpRequest]:
    """Return the request objects of a bot: for calls and downloads, and with one connection for long polls."""
    return AiohttpRequest(_CONNECTIONS, proxy=proxy), AiohttpRequest(1, proxy=proxy)


def make_bot(token: str, base_url: str, file_url: str, calls: AiohttpRequest, polling: AiohttpRequest) -> Bot:
    """Return the library's bot, not connected."""
    return Bot(token, base_url=base_url, base_file_url=file_url, request=calls, get_updates_request=polling)


def entities_of(fields: tuple[dict[str, Any], ...]) -> list[MessageEntity] | None:
    """Return entities as the library's objects."""
    return [MessageEntity.de_json(dict(each)) for each in fields] or None


def retry_after(error: RetryAfter) -> timedelta:
    """Return the pause that Telegram asks for in that chat."""
    seconds = error.retry_after
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)


def is_unchanged(error: TelegramError) -> bool:
    """Return True if an edit was refused because the message has that text already."""
    return isinstance(error, BadRequest) and "not modified" in error.message.lower()


def is_token_refused(error: TelegramError) -> bool:
    """Return True if a Bot API refused the token; the library reports every 401 and 404 like that."""
    is_refusal = isinstance(error, InvalidToken | EndPointNotFound) and error.__cause__ is None  # the body is JSON
    # Where the body has no description, the library writes the status in its place.
    return is_refusal and not error.message.endswith(("(401)", "(404)"))


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
        return RetryLater(retry_after(error))
    if isinstance(error, Forbidden):
        return PlaceGone(describe_error(error))
    if isinstance(error, ChatMigrated):
        return SendRefused("the group became a supergroup twice in a row")
    if isinstance(error, BadRequest):
        return _bad_request(error, is_formatted=is_formatted)
    if isinstance(error, InvalidToken | EndPointNotFound):
        # The token may be corrected; the poller logs how.
        return RetryLater(_TOKEN_REFUSED, "Telegram rejects the token")
    if "too large" in error.message.lower():  # Telegram, or a proxy: "Request Entity" or "Content Too Large (413)"
        return SendRefused("larger than Telegram allows")
    if "too many requests" in error.message.lower():  # asked to wait for 0 seconds: the library drops the number
        return RetryLater(timedelta(seconds=1))
    if isinstance(error.__cause__, NEVER_SENT):
        return RetryLater(_UNREACHED, f"Telegram cannot be reached: {type(error.__cause__).__name__}")
    return OutcomeUnknown(describe_error(error))


def _bad_request(error: BadRequest, *, is_formatted: bool) -> SendFailed:
    text, reason = error.message.lower(), describe_error(error)
    if is_formatted and any(word in text for word in _FORMAT_WORDS):
        return FormatRefused(reason)
    return PlaceGone(reason) if any(words in text for words in _PLACE_GONE) else SendRefused(reason)


def describe_error(error: TelegramError) -> str:
    """Return a loggable description of *error*: Telegram's own text or the type of failure."""
    cause = error.__cause__
    if isinstance(error, InvalidToken | EndPointNotFound) or cause is not None:
        return type(cause or error).__name__
    return error.message[:200]


T = TypeVar("T")

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
            except (InvalidToken, EndPointNotFound) as error:
                if not is_token_refused(error) and self._base_url == TELEGRAM:
                    pause = self._note_unreachable(error)  # a proxy's page, say: not Telegram's answer
                else:
                    self.contact_at = None
                    raise self._refusal(error) from None
            except Conflict as error:
                pause = self._note_conflict(error)
            except RetryAfter as error:
                pause = retry_after(error).total_seconds()
                log.info("telegram.asked_to_wait", channel=self._name, seconds=pause)
            except TelegramError as error:
                pause = self._note_unreachable(error)
            else:
                if self._failures or self._is_conflict_logged:
                    log.info("telegram.reached", channel=self._name)
                self._failures, self._is_conflict_logged = 0, False
                return answer
            await asyncio.sleep(pause)

    def _refusal(self, error: TelegramError) -> SettingsError:
        if not is_token_refused(error):
            return SettingsError(f"channels.{self._name}: {not_telegram(self._base_url)}")
        return LoginRefused(
            f"Telegram rejects the token of channels.{self._name}; {copy_the_token(error, self._base_url)}, or set"
            " `enabled` to false"
        )

    def _note_conflict(self, error: Conflict) -> float:
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
