"""The API's routes: OpenAI's protocol for programs that know it, and messages with ids to poll for the others.

The key is checked before the body is read. A message is durable before the first byte of its answer. A client that
disconnects loses nothing, and the turn continues.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from channels.api.adapter import ANSWER_SECONDS, OPEN_OF_ONE_KEY, AcceptedRequest, ApiAnswer, ApiChannel
from channels.api.keys import ApiKey
from channels.api.parse import (
    MODEL,
    ApiError,
    ApiRequest,
    busy,
    read_chat,
    read_chat_name,
    read_id,
    read_json,
    read_message,
    read_response,
    unavailable,
    write_id,
)
from channels.api.render import (
    PAUSE,
    CompletionChunks,
    ResponseEvents,
    completion,
    error_body,
    function_call,
    growth,
    response_object,
)
from channels.kit.background import SlotsTaken, utc_now
from channels.kit.bodies import read_body
from gateway.channel import TurnUsage
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey

log = structlog.get_logger(__name__)

LARGEST_BODY = 12_000_000  # bytes
_BODY_SECONDS = 60.0
_LONG_BODY = 100_000  # bytes: read in a thread from there on
_PAUSE_EVERY = 10  # looks without news
_LONGEST_POLL = 60.0  # seconds
# Of clients that name conversations in a header of their own.
_CHAT_HEADERS = ("x-parlour-chat", "x-openwebui-chat-id")

T = TypeVar("T")
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_OFFERED = (
    "POST /v1/chat/completions, POST /v1/responses, GET /v1/responses/ID, GET /v1/models, POST /v1/messages and "
    "GET /v1/messages/ID"
)
_Handler: TypeAlias = Callable[[ApiChannel, ApiKey, Request], Awaitable[Response]]


def routes(channel: ApiChannel, *, prefix: str = "") -> list[BaseRoute]:
    """Return the routes of *channel*, all below *prefix*."""
    large = LARGEST_BODY + 1  # one more, so that the error is ours
    return [
        Route(f"{prefix}/v1/models", _KeyedEndpoint(_models, channel), methods=["GET"]),
        Route(f"{prefix}/v1/models/{{model}}", _KeyedEndpoint(_model, channel), methods=["GET"]),
        Route(
            f"{prefix}/v1/chat/completions", _KeyedEndpoint(_complete, channel), methods=["POST"], max_body_size=large
        ),
        Route(f"{prefix}/v1/responses", _KeyedEndpoint(_respond, channel), methods=["POST"], max_body_size=large),
        Route(f"{prefix}/v1/responses/{{id}}", _KeyedEndpoint(_read_response, channel), methods=["GET"]),
        Route(f"{prefix}/v1/messages", _KeyedEndpoint(_post_message, channel), methods=["POST"], max_body_size=large),
        Route(f"{prefix}/v1/messages/{{id}}", _KeyedEndpoint(_read_message, channel), methods=["GET"]),
        # Last: what no route above takes, also with another method. Clients show the message of an error in this form.
        Route(f"{prefix}/v1/{{path:path}}", _KeyedEndpoint(_refuse_route, channel), methods=_METHODS),
    ]


async def _refuse_route(channel: ApiChannel, key: ApiKey, request: Request) -> Response:
    del channel, key
    what = f"{request.method} {request.url.path[:100]}"
    raise ApiError(f"there is no {what}; the API has {_OFFERED}", status=404, code="not_found")


class _KeyedEndpoint:
    """An endpoint for requests with a key, which has so many at once; each ends with the last byte of its answer."""

    def __init__(self, handler: _Handler, channel: ApiChannel) -> None:
        self._handler, self._channel = handler, channel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        async with AsyncExitStack() as slot:
            response = await self._answer(Request(scope, receive), slot)
            await response(scope, receive, send)

    async def _answer(self, request: Request, slot: AsyncExitStack) -> Response:
        channel = self._channel
        try:
            key = await _key_of(channel, request)
            await slot.enter_async_context(channel.open_requests.hold(key.digest))
            return await self._handler(channel, key, request)
        except ApiError as error:
            return _refuse(error)
        except SlotsTaken:
            line = f"{OPEN_OF_ONE_KEY} requests of this key are under way; wait for one of them"
            return _refuse(busy(line, seconds=2))
        except StoreUnavailable:
            return _refuse(unavailable("the store does not answer; try again later"))
        except ClientDisconnect:
            raise
        except Exception:  # the channel boundary: a bug is told in the protocol's form
            log.exception("api.request_failed", channel=channel.name, path=request.url.path)
            return _refuse(
                ApiError("internal error of the gateway; its log has the details", status=500, code="internal_error")
            )


def _refuse(error: ApiError) -> Response:
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), error.status, headers)


async def _key_of(channel: ApiChannel, request: Request) -> ApiKey:
    """Return the key of a request. Raises ApiError, 429 for wrong ones that come too often from one network."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    secret = secret.strip() if kind.lower() == "bearer" else request.headers.get("api-key", "")
    key = await channel.keys.find(secret)
    if key is not None:
        return key
    address = str(getattr(request.state, "address", ""))
    log.info("api.key_refused", channel=channel.name, address=address)
    if delay := channel.keys.count_wrong(address):
        line = "too many wrong keys came from this address; correct the key and try again later"
        raise busy(line, seconds=int(delay) + 1)
    what = "this key is wrong or was revoked" if secret else "there is no key: send `Authorization: Bearer KEY`"
    raise ApiError(f"{what}; `parlour web key --as NAME` makes one", status=401, code="invalid_api_key")


def _require_valid(channel: ApiChannel, key: ApiKey) -> None:
    """Raise ApiError if *key* was revoked since."""
    if not channel.keys.counts(key):
        raise ApiError("this key was revoked", status=401, code="invalid_api_key")


# -- models ----------------------------------------------------------------------------------------

_MODEL = {"id": MODEL, "object": "model", "created": 1_767_225_600, "owned_by": MODEL}


async def _models(_channel: ApiChannel, _key: ApiKey, _request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_MODEL]})


async def _model(_channel: ApiChannel, _key: ApiKey, request: Request) -> Response:
    if request.path_params["model"] != MODEL:
        raise ApiError(f"the only model here is {MODEL!r}", status=404, code="model_not_found", param="model")
    return JSONResponse(_MODEL)


# -- answers ---------------------------------------------------------------------------------------


async def _complete(channel: ApiChannel, key: ApiKey, request: Request) -> Response:
    asked = await _read(request, read_chat)
    return await _answer(_Exchange(channel, key, request, asked, "chatcmpl", utc_now()))


async def _respond(channel: ApiChannel, key: ApiKey, request: Request) -> Response:
    asked = await _read(request, read_response)
    return await _answer(_Exchange(channel, key, request, asked, "resp", utc_now()))


async def _read(request: Request, read: Callable[..., ApiRequest]) -> ApiRequest:
    try:
        body = await read_body(request, limit=LARGEST_BODY, timeout=_BODY_SECONDS)
    except TimeoutError:
        raise ApiError("the body did not arrive in time", status=408) from None
    if body is None:
        raise ApiError(
            f"the body is larger than {LARGEST_BODY // 1_000_000} MB; send fewer or smaller images", status=413
        )

    def parse() -> ApiRequest:
        return read(read_json(body))

    return await asyncio.to_thread(parse) if len(body) > _LONG_BODY else parse()


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request of OpenAI's protocol, and how it is answered."""

    channel: ApiChannel
    key: ApiKey
    request: Request
    asked: ApiRequest
    kind: str  # of the answer's id
    began: datetime

    @property
    def conversation(self) -> SessionKey:
        """The conversation that a header, the response that it follows or `user` names, else the key's own."""
        return self.channel.conversation(self.key, self._chat())

    def _chat(self) -> str:
        for header in _CHAT_HEADERS:
            if name := self.request.headers.get(header, ""):
                return read_chat_name(name, header)
        if self.asked.after:
            found = read_id(self.asked.after)
            if found is None or not self.asked.after.startswith("resp_"):
                raise ApiError(
                    "previous_response_id is not the id of a response from here",
                    status=404,
                    param="previous_response_id",
                )
            return found[0]
        return self.asked.user

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        ignored = {"X-Parlour-Ignored": ", ".join(self.asked.ignored)} if self.asked.ignored else {}
        return {"X-Parlour-Chat": self.conversation.thread, **ignored}

    def encode(self, ident: str, text: str, usage: TurnUsage) -> Response:
        """Return the response with a whole answer."""
        write = completion if self.kind == "chatcmpl" else response_object
        return JSONResponse(write(ident, self.began, text, usage), headers=self.headers)

    def events(self, ident: str) -> CompletionChunks | ResponseEvents:
        """Return the writer of a stream."""
        if self.kind == "chatcmpl":
            return CompletionChunks(ident, self.began, wants_usage=self.asked.wants_usage)
        return ResponseEvents(ident, self.began)

    @asynccontextmanager
    async def accepted(self) -> AsyncIterator[AcceptedRequest]:
        """Accept the message durably, see `ApiChannel.accepted`."""
        headers = self.request.headers
        retries = headers.get("x-stainless-retry-count", "")
        async with self.channel.accepted(
            self.conversation,
            self.key,
            self.asked,
            idempotency_key=headers.get("idempotency-key"),
            is_retry=_number(retries) not in (None, 0),
        ) as accepted:
            yield accepted


def _number(text: str) -> int | None:
    """Return the number that *text* is: at most nine digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


async def _answer(exchange: _Exchange) -> Response:
    if exchange.asked.is_stateless:
        return await _answer_stateless(exchange)
    if exchange.asked.is_stream:
        return await _open_stream(exchange)
    channel = exchange.channel
    async with exchange.accepted() as accepted:
        ident = write_id(exchange.kind, accepted.chat, accepted.subscription.message_id)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await _while_connected(exchange.request, _whole(channel, accepted))
        except TimeoutError:
            raise _too_late() from None
        _require_valid(channel, exchange.key)
        usage = await channel.usage(answer.turn, accepted.since)
        if not await exchange.request.is_disconnected():
            channel.record_served(accepted)
    return exchange.encode(ident, answer.text, usage)


async def _whole(channel: ApiChannel, accepted: AcceptedRequest) -> ApiAnswer:
    answer = ApiAnswer("")
    async with aclosing(channel.follow(accepted)) as texts:
        async for text in texts:
            answer = text or answer
    return answer


def _too_late() -> ApiError:
    line = f"no answer after {ANSWER_SECONDS:.0f} seconds; the message is stored, and the same request gets its answer"
    return ApiError(line, status=504, code="timeout")


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of *work*; raise ClientDisconnect, and cancel it, when the client leaves before."""
    tasks = asyncio.create_task(work, name="api answer"), asyncio.create_task(_wait_gone(request), name="api client")
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _open_stream(exchange: _Exchange) -> Response:
    """Return a stream after the message is durable, so that a refusal has a status."""
    async with AsyncExitStack() as contexts:
        accepted = await contexts.enter_async_context(exchange.accepted())
        return _EventStream(_stream(exchange, accepted), contexts.pop_all(), exchange.headers)


class _EventStream(StreamingResponse):
    """A stream that leaves its contexts when it has ended, also where its client has left before it began."""

    def __init__(self, pieces: AsyncGenerator[bytes], contexts: AsyncExitStack, headers: Mapping[str, str]) -> None:
        super().__init__(pieces, media_type="text/event-stream", headers={**headers, "X-Accel-Buffering": "no"})
        self._pieces, self._contexts = pieces, contexts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream."""
        async with self._contexts, aclosing(self._pieces):
            await super().__call__(scope, receive, send)


async def _stream(exchange: _Exchange, accepted: AcceptedRequest) -> AsyncGenerator[bytes]:
    channel = exchange.channel
    events = exchange.events(write_id(exchange.kind, accepted.chat, accepted.subscription.message_id))
    answer, pauses = ApiAnswer(""), 0
    for piece in events.begin():
        yield piece
    try:
        async with asyncio.timeout(ANSWER_SECONDS), aclosing(channel.follow(accepted)) as texts:
            async for text in texts:
                _require_valid(channel, exchange.key)
                pauses += text is None
                if text is None and pauses % _PAUSE_EVERY == 0:
                    yield PAUSE
                more = growth(answer.text, text.text) if text is not None else ""
                for piece in events.add(more) if more else ():
                    yield piece
                answer = text or answer
        usage = await channel.usage(answer.turn, accepted.since) if exchange.asked.wants_usage else None
        ending = events.end(usage)
    except TimeoutError:
        ending = events.fail(_too_late())
    except ApiError as error:
        ending = events.fail(error)
    for piece in ending:
        yield piece
    if answer.is_over:
        channel.record_served(accepted)


async def _answer_stateless(exchange: _Exchange) -> Response:
    answer = await exchange.channel.answer_stateless(exchange.conversation, exchange.key, exchange.asked)
    ident = write_id(exchange.kind, exchange.conversation.thread, "aside")
    function = exchange.asked.fields.function if exchange.asked.fields is not None else ""
    if not exchange.asked.is_stream:
        if function:
            whole = function_call(ident, exchange.began, function, answer.text, answer.usage)
            return JSONResponse(whole, headers=exchange.headers)
        return exchange.encode(ident, answer.text, answer.usage)
    events = exchange.events(ident)
    if function and isinstance(events, CompletionChunks):
        pieces = [*events.begin(), *events.call(function, answer.text), *events.end(answer.usage)]
    else:
        pieces = [*events.begin(), *events.add(answer.text), *events.end(answer.usage)]
    return Response(b"".join(pieces), media_type="text/event-stream", headers=exchange.headers)


# -- responses and messages by their ids -----------------------------------------------------------


async def _read_response(channel: ApiChannel, key: ApiKey, request: Request) -> Response:
    answer, _, ident = await _find(channel, key, request, "resp")
    at = answer.at or utc_now()
    if not answer.is_over:
        return JSONResponse(response_object(ident, at, None, None))
    return JSONResponse(response_object(ident, at, answer.text, await channel.usage(answer.turn, at)))


async def _post_message(channel: ApiChannel, key: ApiKey, request: Request) -> Response:
    asked = await _read(request, read_message)
    exchange = _Exchange(channel, key, request, asked, "msg", utc_now())
    given = request.headers.get("idempotency-key")
    ident_key = given if given is not None else secrets.token_hex(16)  # each post is a message of its own
    async with channel.accepted(
        exchange.conversation, key, asked, idempotency_key=ident_key, is_retry=False
    ) as accepted:
        ident = write_id("msg", accepted.chat, accepted.subscription.message_id)
    body = {"id": ident, "object": "message", "chat": accepted.chat, "status": "accepted"}
    return JSONResponse(body, 202, {"Location": f"{request.url.path}/{ident}"})


async def _read_message(channel: ApiChannel, key: ApiKey, request: Request) -> Response:
    answer, chat, ident = await _find(channel, key, request, "msg")
    status = "answered" if answer.is_over else "waiting"
    body = {"id": ident, "object": "message", "chat": chat, "status": status}
    return JSONResponse({**body, "answer": answer.text, "kind": answer.kind} if answer.is_over else body)


async def _find(channel: ApiChannel, key: ApiKey, request: Request, kind: str) -> tuple[ApiAnswer, str, str]:
    """Return the answer to a message of the key's person, its conversation and id; wait for it as long as is asked."""
    ident = request.path_params["id"]
    found = read_id(ident) if ident.startswith(f"{kind}_") else None
    if found is None:
        raise ApiError(
            "you have nothing with this id; use the one that your POST returned", status=404, code="not_found"
        )
    chat, message_id = found
    seconds = _number(request.query_params.get("wait", "0"))
    if seconds is None or seconds > _LONGEST_POLL:
        raise ApiError(f"wait must be a number of seconds, at most {_LONGEST_POLL:.0f}", param="wait")
    conversation = channel.conversation(key, chat)
    answer = await _while_connected(request, channel.wait_answer(conversation, message_id, seconds=seconds))
    _require_valid(channel, key)
    if answer is None:
        raise ApiError(
            "there is no such message; it may have been forgotten, or be too old", status=404, code="not_found"
        )
    return answer, chat, ident
