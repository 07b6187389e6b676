"""Child process that speaks MCP for the gateway; started by path with ``python -I``, never imported.

It has neither network nor files: the kernel confines it before it reads the first byte of a server. Its HTTP requests
are sent by the gateway (`http_relay.py`), which checks addresses and adds credentials. A line of JSON comes in for each
job, response and piece of a body; one goes out for each result, request and note of progress.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import itertools
import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import httpx2
import parlour  # noqa: F401 -- isolated, Python finds our packages by it
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    Implementation,
    RequestParamsMeta,
    TextResourceContents,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from agent.attachments.process_confinement import confine_process

MEMORY = 640 << 20  # bytes of address space
LONGEST_LINE = 8 << 20  # bytes of a frame in either direction
LONGEST_EVENT = 4 << 20  # bytes of one event of a stream
MOST_PAGES = 20
MOST_TOOLS = 64
LONGEST_LIST = 256 << 10  # bytes of all tools of a server
LONGEST_SCHEMA = 8 << 10
LONGEST_DESCRIPTION = 1_024  # characters
LONGEST_RESULT = 1 << 20  # bytes
MOST_PARTS = 20  # of a result
MOST_CONNECTIONS = 16  # of people
_LONGEST_SESSION = 600.0  # seconds, after which the tools are listed and compared again
_UNTRIED_AFTER = 30.0  # seconds after which a session of the old protocol is tried before a call that acts
_CLOSE_WITHIN = 2.0
_CALL_KEY = "parlour/call"  # the name of our idempotency key
_TERMINATED = "Session terminated"  # the SDK's text for a session that the server no longer knows

Frame = Mapping[str, Any]


class CallFailed(Exception):
    """A job failed: `kind` is down, changed, invalid, refused or broken. With `is_sent` the server may have acted."""

    def __init__(self, text: str, kind: str, *, is_sent: bool = False) -> None:
        super().__init__(text)
        self.kind = kind
        self.is_sent = is_sent


@dataclass(slots=True)
class _CallRequests:
    """The requests of one call."""

    is_sent: bool = False  # one was handed to the gateway, which has not said that it did not leave
    numbers: list[int] = field(default_factory=list)


_attempt: ContextVar[_CallRequests | None] = ContextVar("attempt", default=None)


class RelayTransport(httpx2.AsyncBaseTransport):
    """Sends requests through the gateway."""

    def __init__(self, relay: RequestRelay, person: str) -> None:
        self._relay = relay
        self._person = person

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response, whose body is read as it arrives. Raises httpx2.TransportError."""
        if request.method == "GET":  # a stream of the server's own messages, none of which is wanted
            return httpx2.Response(405, request=request)
        return await self._relay.send(request, await request.aread(), self._person)


class RequestRelay:
    """Requests that the gateway sends for us."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Queue[Frame]] = {}

    async def send(self, request: httpx2.Request, body: bytes, person: str) -> httpx2.Response:
        """Send *request* with the login of *person*, if it is not empty. Raises httpx2.TransportError."""
        number, frames = next(self._numbers), asyncio.Queue[Frame]()
        self._open[number] = frames
        attempt = _attempt.get()
        if attempt is not None:
            attempt.is_sent = True
            attempt.numbers.append(number)
        try:
            write(
                {
                    "http": number,
                    "person": person,
                    "method": request.method,
                    "url": str(request.url),
                    "headers": [
                        [name.decode("latin-1"), value.decode("latin-1")] for name, value in request.headers.raw
                    ],
                    "body": base64.b64encode(body).decode(),
                }
            )
            head = await frames.get()
        except BaseException:
            self.end(number)
            raise
        if attempt is not None and not head.get("is_sent", True):
            attempt.is_sent = False
        if "failed" in head:
            self.end(number, is_known=True)
            raise httpx2.ConnectError(str(head["failed"]))
        stream = _RelayStream(self, number, frames)
        return httpx2.Response(int(head["status"]), headers=head["headers"], stream=stream, request=request)

    def receive(self, frame: Frame) -> None:
        """Take a response, a piece of its body or its end."""
        if (frames := self._open.get(frame["http"])) is not None:
            frames.put_nowait(frame)

    def abort(self, number: int) -> None:
        """End a request whose response has no reader any more."""
        if (frames := self._open.get(number)) is not None:
            frames.put_nowait({"failed": "it was stopped"})
            self.end(number)

    def end(self, number: int, *, is_known: bool = False) -> None:
        """End a request; the gateway stops reading its response, unless it *is_known* to have ended."""
        if self._open.pop(number, None) is not None and not is_known:
            write({"http": number, "end": True})


class _RelayStream(httpx2.AsyncByteStream):
    def __init__(self, relay: RequestRelay, number: int, frames: asyncio.Queue[Frame]) -> None:
        self._relay = relay
        self._number = number
        self._frames = frames

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            frame = await self._frames.get()
            if "data" in frame:
                yield base64.b64decode(frame["data"])
                continue
            self._relay.end(self._number, is_known=True)
            if "failed" in frame:
                raise httpx2.ReadError(str(frame["failed"]))
            return

    async def aclose(self) -> None:
        self._relay.end(self._number)


@dataclass(eq=False)
class McpConnection:
    """A connection to the server, held open by a separate task, as the SDK requires."""

    server: Frame
    person: str  # whose login its requests have; "" = nobody's
    relay: RequestRelay
    client: Client | None = None
    tools: Mapping[str, tuple[Tool, str]] = field(default_factory=dict)  # with their digests, by name
    left_out: int = 0  # tools beyond the limits, and those that run only as tasks
    is_stale: bool = False
    opened_at: float = 0.0
    used_at: float = 0.0
    calls: int = 0  # that run
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and read the list of tools. Raises CallFailed."""
        is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(is_open))
        try:
            await is_open
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        self.opened_at = self.used_at = time.monotonic()

    async def _run(self, is_open: asyncio.Future[None]) -> None:
        transport = RelayTransport(self.relay, self.person)
        try:
            async with httpx2.AsyncClient(transport=transport, timeout=None) as http:
                streams = streamable_http_client(self.server["url"], http_client=http, max_sse_event_size=LONGEST_EVENT)
                info = Implementation(name="Parlour", version=str(self.server["version"]))
                # No rounds: a server that asks for input instead of answering gets none.
                async with Client(streams, client_info=info, cache=None, input_required_max_rounds=0) as self.client:
                    self.tools, self.left_out = await _read_tools(self.client)
                    if not is_open.done():
                        is_open.set_result(None)
                    await self._closing.wait()
        except BaseException as error:
            if not is_open.done():
                is_open.set_exception(_failure(error, is_sent=False))
            if not isinstance(error, Exception):
                raise
        finally:
            self.is_stale = True

    async def retire(self) -> None:
        """End the connection; with calls that run, the last of them does so."""
        self.is_stale = True
        if self.calls:
            return
        self._closing.set()
        if self._task is not None:
            _, left = await asyncio.wait({self._task}, timeout=_CLOSE_WITHIN)
            for task in left:
                task.cancel()

    async def is_usable(self) -> bool:
        """Return True if a call may be made over it, as far as can be found out without one."""
        now = time.monotonic()
        if self.is_stale or self.client is None or now - self.opened_at > _LONGEST_SESSION:
            return False
        is_legacy = self.client.protocol_version not in MODERN_PROTOCOL_VERSIONS
        if is_legacy and not self.calls and now - self.used_at > _UNTRIED_AFTER:
            try:
                async with asyncio.timeout(5):
                    await self.client.send_ping()
            except Exception:  # noqa: BLE001 - whatever is wrong with it, a new one is opened
                return False
        return True


async def _read_tools(client: Client) -> tuple[Mapping[str, tuple[Tool, str]], int]:
    """Return the tools with their digests within the limits, and the number of those left out."""
    found: dict[str, tuple[Tool, str]] = {}
    size = left_out = 0
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            canonical = _canonical(tool)
            size += len(canonical)
            is_small = len(json.dumps(tool.input_schema)) <= LONGEST_SCHEMA and size <= LONGEST_LIST
            # A plain call of such a tool is an error, and must not be sent (specification 2025-11-25, tasks).
            is_task = tool.execution is not None and tool.execution.task_support == "required"
            if not is_small or is_task or len(found) >= MOST_TOOLS or tool.name in found:
                left_out += 1
                continue
            found[tool.name] = (tool, hashlib.sha256(canonical).hexdigest())
        cursor = page.next_cursor
        if not cursor or size > LONGEST_LIST:
            break
    return found, left_out


def _canonical(tool: Tool) -> bytes:
    facts = {"name": tool.name, "description": tool.description or "", "inputSchema": tool.input_schema}
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


class McpJobs:
    """Runs the gateway's jobs with one server: to list its tools, and to call one."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._relay = RequestRelay()
        self._connections: dict[str, McpConnection] = {}  # by person, the longest unused first
        self._opening = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by person
        self._jobs: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Do jobs until standard input ends."""
        while line := await self._reader.readline():
            frame = json.loads(line)
            if "http" in frame:
                self._relay.receive(frame)
            elif "cancel" in frame:
                if (job := self._jobs.get(frame["cancel"])) is not None:
                    job.cancel()
            else:
                number = frame["job"]
                job = self._jobs[number] = asyncio.create_task(self._do(number, frame))
                job.add_done_callback(partial(self._end, number))

    def _end(self, number: int, _: asyncio.Task[None]) -> None:
        self._jobs.pop(number, None)

    async def _do(self, number: int, frame: Frame) -> None:
        try:
            done = await (self._call(number, frame) if "tool" in frame else self._list(frame))
        except asyncio.CancelledError:
            write({"job": number, "failed": "it was stopped", "kind": "broken", "is_sent": True})
            raise
        except Exception as error:  # noqa: BLE001 - the child's boundary: servers cause whatever they like
            failed = _failure(error, is_sent=True)
            write({"job": number, "failed": str(failed), "kind": failed.kind, "is_sent": failed.is_sent})
        else:
            write({"job": number, "done": done})

    async def _list(self, frame: Frame) -> Mapping[str, Any]:
        """Return the tools that the server offers now."""
        person = frame["person"]
        if (connection := self._connections.get(person)) is not None:
            connection.is_stale = True
        connection = await self._connect(frame["server"], person)
        tools = [
            {
                "name": tool.name,
                "description": (tool.description or "")[:LONGEST_DESCRIPTION],
                "schema": tool.input_schema,
                "digest": digest,
            }
            for tool, digest in connection.tools.values()
        ]
        return {"tools": tools, "left_out": connection.left_out}

    async def _call(self, number: int, frame: Frame) -> Mapping[str, Any]:
        """Call a tool; again over a new connection if the server has forgotten ours and the call may be repeated."""
        for is_last in (False, True):
            connection, attempt = await self._connect(frame["server"], frame["person"]), _CallRequests()
            tool, digest = connection.tools.get(frame["tool"], (None, ""))
            if tool is None or digest != frame["digest"]:
                raise CallFailed("the tool has changed since it was pinned", "changed")
            _check_arguments(tool, frame["arguments"])
            try:
                return await self._call_once(number, frame, connection, attempt)
            except MCPError as error:
                is_ended = error.message == _TERMINATED or error.code == CONNECTION_CLOSED
                if is_ended and not is_last and (frame["may_repeat"] or not attempt.is_sent):
                    connection.is_stale = True
                    continue
                raise CallFailed(error.message, "refused", is_sent=attempt.is_sent) from error
            except Exception as error:
                raise _failure(error, is_sent=attempt.is_sent) from error
        raise CallFailed("the server ended the session twice", "broken", is_sent=True)

    async def _call_once(
        self, number: int, frame: Frame, connection: McpConnection, attempt: _CallRequests
    ) -> Mapping[str, Any]:
        assert connection.client is not None  # noqa: S101 - it is open
        token = _attempt.set(attempt)
        connection.calls += 1
        try:
            result = await connection.client.call_tool(
                frame["tool"],
                frame["arguments"],
                progress_callback=_ProgressWriter(number),
                meta=cast("RequestParamsMeta", {_CALL_KEY: frame["key"]}),  # any further names are allowed
            )
            return _encode(result)
        finally:
            _attempt.reset(token)
            for each in attempt.numbers:
                self._relay.abort(each)
            connection.calls -= 1
            connection.used_at = time.monotonic()
            if connection is not self._connections.get(connection.person):
                await connection.retire()

    async def _connect(self, server: Frame, person: str) -> McpConnection:
        """Return the open connection of *person*; open another one if it is of no use.

        Calls over an earlier one go on. Each person has their own, since a server may have a session for each login.
        """
        async with self._opening[person]:
            connection = self._connections.pop(person, None)
            if connection is not None and connection.server == server and await connection.is_usable():
                self._connections[person] = connection
                return connection
            if connection is not None:
                await connection.retire()
            connection = McpConnection(server, person, self._relay)
            await connection.open()
            self._connections[person] = connection
            while len(self._connections) > MOST_CONNECTIONS:
                await self._connections.pop(next(iter(self._connections))).retire()
            return connection


class _ProgressWriter:
    def __init__(self, number: int) -> None:
        self._number = number
        self._at = 0.0

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        if now - self._at >= 1.0:
            self._at = now
            write(
                {"job": self._number, "progress": (message or "")[:200], "step": int(progress), "of": int(total or 0)}
            )


def _check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raise CallFailed for arguments that do not fit the tool's schema, or a schema that cannot be used."""
    import jsonschema

    try:
        validator = jsonschema.Draft202012Validator(tool.input_schema)
        error = jsonschema.exceptions.best_match(validator.iter_errors(arguments))
    except Exception as wrong:
        raise CallFailed(f"the tool's schema cannot be used ({type(wrong).__name__})", "invalid") from wrong
    if error is not None:
        where = ".".join(map(str, error.absolute_path)) or "all"
        raise CallFailed(f"wrong arguments: {where}: {error.message[:300]}", "invalid")


def _encode(result: CallToolResult) -> Mapping[str, Any]:
    """Return the parts of a result within the limits."""
    parts: list[Mapping[str, str]] = []
    left, is_cut = LONGEST_RESULT, len(result.content) > MOST_PARTS
    for each in result.content[:MOST_PARTS]:
        match each.type:
            case "text":
                part = {"text": each.text}
            case "image":
                part = {"picture": each.data, "media_type": each.mime_type}
            case "resource_link":
                part = {"text": f"(a link that is not opened: {each.name}, {each.uri})"}
            case "resource" if isinstance(each.resource, TextResourceContents):
                part = {"text": each.resource.text}
            case kind:
                part = {"text": f"(a part of the kind {kind}, which cannot be shown)"}
        size = sum(len(value.encode("utf-8", "replace")) for value in part.values())
        if size > left:
            is_cut = True
            beginning = part.get("text", "").encode("utf-8", "replace")[:left].decode("utf-8", "ignore")
            part = {"text": beginning} if "text" in part else {"text": "(a picture that is too large)"}
        left -= min(size, left)
        parts.append(part)
    if result.structured_content is not None and not any("text" in part for part in parts):
        parts.append({"text": json.dumps(result.structured_content, ensure_ascii=False)[:left]})
    return {"parts": parts, "is_error": bool(result.is_error), "is_cut": is_cut}


def _failure(error: BaseException, *, is_sent: bool) -> CallFailed:
    """Return *error* as a failed job; of a group, the innermost error."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, CallFailed):
        return error
    if isinstance(error, MCPError):
        return CallFailed(error.message, "refused", is_sent=is_sent)
    if isinstance(error, httpx2.TransportError):
        return CallFailed(str(error), "down", is_sent=is_sent)
    return CallFailed(f"the server breaks the protocol ({type(error).__name__})", "broken", is_sent=is_sent)


def write(frame: Frame) -> None:
    """Write a line to the gateway, which reads at any time."""
    sys.stdout.buffer.write(json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()


def drop_privileges() -> None:
    """Take away files, network and programs; nothing of this can be undone in this process."""
    for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(limit, (most, most))
        except (OSError, ValueError):
            if sys.platform == "linux":
                raise
    with suppress(OSError):
        os.nice(5)
    confine_process()


async def _serve() -> None:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    await McpJobs(reader).run()


def main() -> None:
    """Do the gateway's jobs until standard input ends."""
    # Where this package is installed, jsonschema builds a grammar of IRIs with it as it is imported: five seconds of
    # CPU for a check of formats, which nothing here makes.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # its import fails, as if it were not there
    importlib.import_module("jsonschema")  # now, before the kernel refuses the files
    with asyncio.Runner() as runner:
        runner.get_loop()  # its sockets are made before the kernel refuses them
        drop_privileges()
        runner.run(_serve())
    os._exit(0)


if __name__ == "__main__":
    main()
