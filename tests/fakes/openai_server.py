"""A scripted chat-completions server: real HTTP, plain and streamed, with every fault a provider can have.

`python -m tests.fakes.openai_server --port 9001 --latency 0.5` runs it alone. Any model name works;
with litellm it is ``openai/test`` and ``api_base`` = `FakeOpenAI.base`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from aiohttp import web

from tests.fakes.embeddings import FakeEmbeddings
from tests.fakes.loopback import serve_app
from tests.fakes.media_server import FakeMedia

CUT = b'{"id": "x", "object": "chat.completion", "choices": [{"index": 0, "mess'
OVERFLOW = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."


class ModelFault(StrEnum):
    """What goes wrong with one call."""

    BUSY = "429"
    ERROR = "500"
    OVERLOADED = "503"
    BAD_REQUEST = "400"
    UNAUTHORISED = "401"
    NOT_FOUND = "404"
    BAD_GATEWAY = "502"  # a proxy's web page
    WEB_PAGE = "web_page"  # a page with status 200: the address of something else
    ERROR_BODY = "error_body"  # status 200 around an error
    FILTERED = "content_filter"
    QUOTA = "quota"  # 429 that never passes: the account is empty
    OVERFLOW = "context_length_exceeded"
    HANG = "hang"  # accepted, never answered
    DROP = "drop"  # the connection is closed without an answer
    EMPTY = "empty"  # content ""
    NULL = "null"  # content null
    NO_CHOICES = "no_choices"
    CUT_JSON = "cut_json"  # a whole HTTP response around half a JSON body
    CUT_BODY = "cut_body"  # content-length promises more than comes
    END_STREAM = "end_stream"  # half the stream, then a proper end, as some proxies do
    CUT_STREAM = "cut_stream"  # the connection breaks after half the stream
    ERROR_IN_STREAM = "error_in_stream"  # an error event after half the stream
    PAUSE = "pause"  # the stream falls silent after half of it, until the client leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedToolCall:
    """A tool call as the model sends it; `arguments` is raw text and need not be JSON."""

    name: str
    arguments: str = "{}"
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """One scripted reply. `pieces` is how many characters a stream sends at a time."""

    text: str | None = ""
    calls: tuple[ScriptedToolCall, ...] = ()
    fault: ModelFault | None = None
    retry_after: str = ""  # the header, verbatim
    latency: float = 0.0  # seconds, on top of the server's own
    gap: float = 0.0  # seconds between two chunks of a stream
    pieces: int = 8
    tokens: tuple[int, int, int] = (100, 20, 60)  # prompt, completion, cached
    finish: str = ""
    no_usage: bool = False
    is_unstreamed: bool = False  # plain JSON even where a stream was asked for
    reasoning: str = ""
    reasoning_key: str = "reasoning_content"
    refusal: tuple[int, str] | None = None  # status and JSON, as a server sent them


Script: TypeAlias = "Callable[[Mapping[str, Any], int], ScriptedAnswer | str] | Sequence[ScriptedAnswer | str]"


def chatter(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """The default script: another answer at each call, so that a repeated question shows."""
    last = next((m["content"] for m in reversed(body["messages"]) if m["role"] == "user"), "")
    return ScriptedAnswer(text=f"Answer {n} to {str(last)[-60:]!r}.")


def with_calls(
    script: Callable[[Mapping[str, Any], int], ScriptedAnswer | str],
) -> Callable[[Mapping[str, Any], int], ScriptedAnswer]:
    """Return *script* for a model that calls the first tool it is offered, and answers when it has the result."""

    def answer(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        found = script(body, n)
        found = ScriptedAnswer(text=found) if isinstance(found, str) else found
        has_failed = found.refusal is not None or found.fault is not None
        if has_failed or not body.get("tools") or body["messages"][-1]["role"] == "tool":
            return found
        return ScriptedAnswer(calls=(ScriptedToolCall(name=body["tools"][0]["function"]["name"], id="call_1"),))

    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribedSound:
    """What came to be listened to."""

    model: str
    name: str
    data: bytes


@dataclass(slots=True)
class FakeOpenAI:
    """The server's state: what it will say, and what it was asked.

    `bodies` holds each request's bytes in the order of arrival, whatever becomes of it.
    """

    script: Script = chatter
    latency: float = 0.0
    log: Path | None = None  # each body as one line, for servers in a process of their own
    base: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    transcript: ScriptedAnswer = field(
        default_factory=lambda: ScriptedAnswer(text="what was said")
    )  # of every sound; faults count
    models: list[str] = field(default_factory=list)  # what /v1/models lists
    sounds: list[TranscribedSound] = field(default_factory=list)
    media: FakeMedia = field(default_factory=FakeMedia)
    embeddings: FakeEmbeddings = field(default_factory=FakeEmbeddings)
    peers: set[tuple[str, int]] = field(default_factory=set)  # one per connection
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # set at each request; clear it to wait for the next
    left: asyncio.Event = field(default_factory=asyncio.Event)  # set when a client went away before its answer

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies as JSON."""
        return [json.loads(body) for body in self.bodies]

    def app(self) -> web.Application:
        """Return the ASGI-less application: four routes."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/audio/transcriptions", self._transcribe)
        app.router.add_post("/v1/audio/speech", self.media.speak)
        app.router.add_post("/v1/images/generations", self.media.draw)
        app.router.add_post("/v1/embeddings", self.embeddings.serve)
        app.router.add_get("/v1/models", self._list_models)
        return app

    async def _list_models(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _transcribe(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        file, answer = form["file"], self.transcript
        assert isinstance(file, web.FileField)
        self.headers.append(dict(request.headers))
        self.sounds.append(TranscribedSound(model=str(form["model"]), name=file.filename, data=file.file.read()))
        self.arrived.set()
        if file.filename.rpartition(".")[2] not in _SOUNDS:
            return _refusal(ScriptedAnswer(fault=ModelFault.BAD_REQUEST))
        if answer.fault in _STATUS:
            return _refusal(answer)
        if answer.fault is ModelFault.HANG:
            await asyncio.Event().wait()
        tokens_in, tokens_out, _ = answer.tokens
        usage = {
            "type": "tokens",
            "input_tokens": tokens_in,
            "input_token_details": {"text_tokens": 0, "audio_tokens": tokens_in},
            "output_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }
        return web.json_response({"text": answer.text, "usage": usage})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.bodies.append(raw)
        self.headers.append(dict(request.headers))
        if request.transport is not None:
            self.peers.add(request.transport.get_extra_info("peername")[:2])
        if self.log is not None:
            with self.log.open("ab") as file:
                file.write(raw + b"\n")
        self.arrived.set()
        body = json.loads(raw)
        answer = self._answer(body, len(self.bodies))
        try:
            return await self._serve(request, body, answer)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise

    def _answer(self, body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        answer = self.script(body, n) if callable(self.script) else self.script[min(n, len(self.script)) - 1]
        return ScriptedAnswer(text=answer) if isinstance(answer, str) else answer

    async def _serve(self, request: web.Request, body: Mapping[str, Any], answer: ScriptedAnswer) -> web.StreamResponse:
        if delay := self.latency + answer.latency:
            await asyncio.sleep(delay)
        if answer.refusal is not None:
            status, text = answer.refusal
            return web.Response(text=text, status=status, content_type="application/json")
        if answer.fault in _STATUS:
            return _refusal(answer)
        if not all(map(_is_readable, _pictures(body))):
            return _refusal(ScriptedAnswer(fault=ModelFault.BAD_REQUEST))
        if answer.fault is ModelFault.HANG:
            await asyncio.Event().wait()
        if answer.fault in _PAGES:
            return web.Response(text=_PAGE, content_type="text/html", status=_PAGES[answer.fault])
        if answer.fault is ModelFault.ERROR_BODY:
            error = {"message": "Provider returned error", "code": 429}
            return web.json_response({"error": error, "user_id": "u"})
        if answer.fault is ModelFault.DROP:
            _hang_up(request)
            return web.Response()
        if body.get("stream") and not answer.is_unstreamed:
            return await self._stream(request, body, answer)
        return await self._plain(request, body, answer)

    async def _plain(self, request: web.Request, body: Mapping[str, Any], answer: ScriptedAnswer) -> web.StreamResponse:
        data = json.dumps(_completion(body, answer)).encode()
        if answer.fault is ModelFault.CUT_JSON:
            return web.Response(body=CUT, content_type="application/json")
        if answer.fault is ModelFault.CUT_BODY:
            response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "9999"})
            await response.prepare(request)
            await response.write(CUT)
            _hang_up(request)
            return response
        return web.Response(body=data, content_type="application/json")

    async def _stream(
        self, request: web.Request, body: Mapping[str, Any], answer: ScriptedAnswer
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunks = list(_chunks(body, answer))
        half = len(chunks) // 2
        for n, chunk in enumerate(chunks):
            if n == half and answer.fault is ModelFault.PAUSE:
                await asyncio.Event().wait()
            if n == half and answer.fault is ModelFault.END_STREAM:
                await response.write_eof()
                return response
            if n == half and answer.fault is ModelFault.CUT_STREAM:
                await response.write(b'data: {"id": "x", "choi')
                _hang_up(request)
                return response
            if n == half and answer.fault is ModelFault.ERROR_IN_STREAM:
                await response.write(
                    b'data: {"error": {"message": "overloaded", "type": "server_error", "code": 500}}\n\n'
                )
                break
            if answer.gap:
                await asyncio.sleep(answer.gap)
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


_STATUS: dict[ModelFault | None, tuple[int, str, str]] = {
    ModelFault.BUSY: (429, "rate_limit_exceeded", "Rate limit reached"),
    ModelFault.QUOTA: (429, "insufficient_quota", "You exceeded your current quota"),
    ModelFault.ERROR: (500, "server_error", "The server had an error"),
    ModelFault.OVERLOADED: (503, "overloaded", "Overloaded"),
    ModelFault.BAD_REQUEST: (400, "invalid_request_error", "Unknown parameter"),
    ModelFault.UNAUTHORISED: (401, "invalid_api_key", "Incorrect API key provided: sk-SECRET"),
    ModelFault.NOT_FOUND: (404, "model_not_found", "The model does not exist"),
    ModelFault.OVERFLOW: (400, "context_length_exceeded", OVERFLOW),
    ModelFault.FILTERED: (400, "content_filter", "The prompt was filtered"),
}
_PAGES: dict[ModelFault | None, int] = {ModelFault.BAD_GATEWAY: 502, ModelFault.WEB_PAGE: 200}
_PAGE = "<html><head><title>nginx</title></head><body></body></html>"


_SOUNDS = frozenset({"flac", "mp3", "mp4", "mpeg", "mpga", "m4a", "ogg", "oga", "wav", "webm"})
_PICTURES = {"image/jpeg": b"\xff\xd8\xff", "image/png": b"\x89PNG", "image/webp": b"RIFF", "image/gif": b"GIF8"}


def _pictures(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses of all pictures in the messages."""
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image_url":
                yield part["image_url"]["url"]


def _is_readable(address: str) -> bool:
    """Say whether a picture can be had: a data URL whose bytes are what it says; nothing is fetched from here."""
    kind, _, data = address.removeprefix("data:").partition(";base64,")
    try:
        start = base64.b64decode(data, validate=True)
    except ValueError:
        return False
    return kind in _PICTURES and start.startswith(_PICTURES[kind])


def _refusal(answer: ScriptedAnswer) -> web.Response:
    status, code, message = _STATUS[answer.fault]
    headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
    error = {"error": {"message": message, "type": code, "param": None, "code": code}}
    return web.json_response(error, status=status, headers=headers)


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


def _usage(answer: ScriptedAnswer) -> dict[str, Any]:
    prompt, completion, cached = answer.tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _finish(answer: ScriptedAnswer) -> str:
    return answer.finish or ("tool_calls" if answer.calls else "stop")


def _tool_calls(answer: ScriptedAnswer) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id or f"call_{n}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for n, call in enumerate(answer.calls)
    ]


def _content(answer: ScriptedAnswer) -> str | None:
    if answer.fault is ModelFault.NULL:
        return None
    return "" if answer.fault is ModelFault.EMPTY else answer.text


def _completion(body: Mapping[str, Any], answer: ScriptedAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _content(answer)}
    if answer.reasoning:
        message[answer.reasoning_key] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = _tool_calls(answer)
    choices = [{"index": 0, "message": message, "finish_reason": _finish(answer)}]
    completion: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": body["model"],
        "choices": [] if answer.fault is ModelFault.NO_CHOICES else choices,
    }
    if not answer.no_usage:
        completion["usage"] = _usage(answer)
    return completion


def _deltas(answer: ScriptedAnswer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if answer.fault is ModelFault.NULL else ""}
    for start in range(0, len(answer.reasoning), answer.pieces):
        yield {answer.reasoning_key: answer.reasoning[start : start + answer.pieces]}
    text = _content(answer) or ""
    for start in range(0, len(text), answer.pieces):
        yield {"content": text[start : start + answer.pieces]}
    for index, call in enumerate(_tool_calls(answer)):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]}
        for start in range(0, len(function["arguments"]), answer.pieces):
            piece = function["arguments"][start : start + answer.pieces]
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _chunks(body: Mapping[str, Any], answer: ScriptedAnswer) -> Iterator[dict[str, Any]]:
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": body["model"],
    }
    if answer.fault is not ModelFault.NO_CHOICES:
        for delta in _deltas(answer):
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]}
    if (body.get("stream_options") or {}).get("include_usage") and not answer.no_usage:
        yield {**head, "choices": [], "usage": _usage(answer)}


@asynccontextmanager
async def open_server(
    script: Script = chatter, *, latency: float = 0.0, port: int = 0, log: Path | None = None
) -> AsyncIterator[FakeOpenAI]:
    """Serve on loopback until the block ends; hanging requests are cut off then."""
    server = FakeOpenAI(script=script, latency=latency, log=log)
    async with serve_app(server.app(), port=port, handler_cancellation=True) as place:
        server.base = f"http://{place}/v1"
        yield server


def read_script(path: Path) -> tuple[ScriptedAnswer, ...]:
    """Read a JSON list of answers: strings, or objects with the fields of `ScriptedAnswer` (the last one repeats)."""
    return tuple(
        ScriptedAnswer(text=entry) if isinstance(entry, str) else _read_answer(entry)
        for entry in json.loads(path.read_text())
    )


def _read_answer(entry: Mapping[str, Any]) -> ScriptedAnswer:
    known = dict(entry)
    if "calls" in known:
        known["calls"] = tuple(ScriptedToolCall(**call) for call in known["calls"])
    if "fault" in known:
        known["fault"] = ModelFault(known["fault"])
    if "tokens" in known:
        known["tokens"] = tuple(known["tokens"])
    return ScriptedAnswer(**known)


async def _serve_forever(port: int, latency: float, script: Path | None, log: Path | None) -> None:
    answers: Script = chatter if script is None else read_script(script)
    async with open_server(answers, latency=latency, port=port, log=log) as server:
        print(server.base, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Run until interrupted; the first line printed is the api_base."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--script", type=Path, help="JSON list of answers; default: another answer at each call")
    parser.add_argument("--log", type=Path, help="append each request body as one line")
    options = parser.parse_args()
    try:
        asyncio.run(_serve_forever(options.port, options.latency, options.script, options.log))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
