"""Calls of the Bot API over real HTTP: what is sent, what an answer means, and when a call ends without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import BodyPartReader, web
from telegram import Bot, ReplyParameters
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
)

from channels.telegram import api
from channels.telegram.api import is_token_refused, make_bot, make_requests, send_failure
from gateway.errors import OutcomeUnknown, PlaceGone, RetryLater, SendFailed, SendRefused
from tests.fakes.clock import VirtualClock
from tests.fakes.gateway import free_port
from tests.fakes.loopback import serve_app
from tests.fakes.proxies import HostCertificate

TOKEN = "1:AA"  # as little as one needs here
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def open_bot(base: str) -> AsyncIterator[Bot]:
    """Give a bot whose server is at *base*."""
    calls, polling = make_requests()
    try:
        yield make_bot(TOKEN, f"{base}/bot", f"{base}/file/bot", calls, polling)
    finally:
        await calls.shutdown()


async def failure(call: Awaitable[object]) -> TelegramError:
    """Return the error of a call."""
    with pytest.raises(TelegramError) as caught:
        await call
    assert TOKEN not in f"{caught.value} {caught.value.__cause__}"
    return caught.value


FLOOD = '{"ok": false, "error_code": 429, "description": "Too Many Requests: retry after %s", "parameters": %s}'
MOVED = '{"ok": false, "description": "Bad Request: upgraded", "parameters": {"migrate_to_chat_id": -100}}'
PAGE = "<html>the words of a page</html>"
ANSWERS: dict[str, tuple[int, str, type[TelegramError], type[SendFailed]]] = {
    "wrong": (400, '{"ok": false, "description": "Bad Request: chat not found"}', BadRequest, PlaceGone),
    "moved": (400, MOVED, ChatMigrated, SendRefused),
    "blocked": (403, '{"ok": false, "description": "Forbidden: bot was blocked"}', Forbidden, PlaceGone),
    "token": (401, '{"ok": false, "description": "Unauthorized"}', InvalidToken, RetryLater),
    "another server": (404, PAGE, InvalidToken, RetryLater),
    "conflict": (409, '{"ok": false, "description": "Conflict: terminated"}', Conflict, OutcomeUnknown),
    "too large, by a proxy": (413, PAGE, NetworkError, SendRefused),
    "flood": (429, FLOOD % (7, '{"retry_after": 7}'), RetryAfter, RetryLater),
    "flood, no wait": (429, FLOOD % (0, '{"retry_after": 0}'), NetworkError, RetryLater),
    "flood, by a proxy": (429, PAGE, NetworkError, RetryLater),
    "server": (502, '{"ok": false, "description": "Bad Gateway"}', NetworkError, OutcomeUnknown),
    "proxy": (502, PAGE, NetworkError, OutcomeUnknown),
    "elsewhere": (302, "", NetworkError, OutcomeUnknown),
    "page": (200, PAGE, TelegramError, OutcomeUnknown),
    "list": (200, "[1]", TelegramError, OutcomeUnknown),
    "no result": (200, '{"ok": true}', TelegramError, OutcomeUnknown),
    "deep": (200, "[" * 100_000, TelegramError, OutcomeUnknown),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_what_an_answer_means(name: str) -> None:
    """Telegram's own text is kept, no other page's words are; only what surely was not done is sent again."""
    status, body, expected, outcome = ANSWERS[name]

    async def answer(request: web.Request) -> web.Response:
        assert request.path == f"/bot{TOKEN}/sendMessage"  # a redirection is not followed
        return web.Response(status=status, text=body, headers={"Location": "/elsewhere"} if status == 302 else {})

    async with serve_app(answer) as place, open_bot(f"http://{place}") as bot:
        error = await failure(bot.send_message(1, "hello"))
    assert type(error) is expected
    assert "words of a page" not in error.message
    assert is_token_refused(error) is (name == "token")
    sent = send_failure(error, is_formatted=False)
    assert type(sent) is outcome
    if isinstance(sent, RetryLater) and "flood" in name:
        assert sent.delay.total_seconds() == (7 if name == "flood" else 1)


async def test_a_server_that_cannot_be_reached_has_received_nothing() -> None:
    """Delivery may send again without a mark."""
    async with open_bot(f"http://127.0.0.1:{free_port()}") as bot:
        error = await failure(bot.send_message(1, "hello"))
    assert type(send_failure(error, is_formatted=False)) is RetryLater


async def test_an_answer_that_does_not_come_is_waited_for_as_long_as_the_call_says() -> None:
    """The request was sent: whether it was done is unknown."""

    async def answer(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serve_app(answer) as place, open_bot(f"http://{place}") as bot:
        error = await failure(bot.send_message(1, "hello", read_timeout=0.1))
    assert type(send_failure(error, is_formatted=False)) is OutcomeUnknown


async def test_a_certificate_has_to_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with an unknown certificate gets neither token nor text; SSL_CERT_FILE makes it known."""
    made = HostCertificate.of("127.0.0.1", tmp_path)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"ok": True, "result": True})

    async with serve_app(answer, ssl_context=made.shown()) as place:
        async with open_bot(f"https://{place}") as bot:
            assert type(send_failure(await failure(bot.log_out()), is_formatted=False)) is RetryLater
        monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
        async with open_bot(f"https://{place}") as bot:
            assert await bot.log_out() is True


async def test_without_a_proxy_of_ours_the_environment_s_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY and its siblings, as every other program on the machine uses them."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(str(request.url))
        return web.json_response({"ok": True, "result": True})

    async with serve_app(answer) as place:
        monkeypatch.setenv("http_proxy", f"http://{place}")
        async with open_bot("http://telegram.invalid") as bot:
            assert await bot.log_out() is True
    assert asked == [f"http://telegram.invalid/bot{TOKEN}/logOut"]


NAMES = {"plain.txt": "plain.txt", 'a "b" \\ ü.txt': "a %22b%22 \\ ü.txt", "x; name=y.png": "x; name=y.png"}


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_arrives_whole_with_its_name_and_fields(name: str) -> None:
    """The body has a length, since the real server's proxies would buffer one without; a name ends no field."""
    data = bytes(range(256)) * 1_000
    found: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        found["length"] = request.content_length
        async for part in await request.multipart():
            assert isinstance(part, BodyPartReader)
            found[str(part.name)] = (part.filename, bytes(await part.read()))
        return web.json_response(
            {"ok": True, "result": {"message_id": 7, "date": 0, "chat": {"id": -1, "type": "group"}}}
        )

    async with serve_app(answer) as place, open_bot(f"http://{place}") as bot:
        reply = ReplyParameters(message_id=5)
        sent = await bot.send_document(-1, data, caption="Größe", reply_parameters=reply, filename=name)
    assert sent.message_id == 7
    assert found.pop("length") > len(data)
    assert found == {
        "chat_id": (None, b"-1"),
        "caption": (None, "Größe".encode()),
        "reply_parameters": (None, b'{"message_id": 5}'),
        "document": (NAMES[name], data),
    }


async def test_an_upload_ends_when_nobody_takes_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent of it may have been enough: whether it was done is unknown."""
    monkeypatch.setattr(api, "_FILE_SECONDS", 0.2)
    ended = asyncio.Event()

    async def receive(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()  # reads nothing
        writer.close()

    async with await asyncio.start_server(receive, "127.0.0.1", 0, limit=64 * 1024) as server:
        async with open_bot(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as bot:
            data = b"x" * 30_000_000  # more than the system's buffers hold
            error = await failure(bot.send_document(-1, data, filename="x"))
        ended.set()
    assert type(send_failure(error, is_formatted=False)) is OutcomeUnknown


async def test_a_line_that_takes_some_bytes_now_and_then_may_take_as_long_as_it_needs(clock: VirtualClock) -> None:
    """The limit begins anew with each piece, and ends with the last: the answer has a limit of its own."""
    async with asyncio.timeout(None) as silence:
        async for _ in api._pieces([b"x" * 200_000], silence):
            await asyncio.sleep(80)
        assert silence.when() is None
    assert clock.seconds == 4 * 80
