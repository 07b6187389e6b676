"""Calls tools of MCP servers through a confined child process.

The child (`client_process.py`) runs the SDK: it parses all that servers send, and has neither network nor files. Its
requests are sent for it (`http_relay.py`). It is started by the first job, and ends after five minutes without one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from gateway.errors import ParlourError
from gateway.installation import package_version

if TYPE_CHECKING:
    from agent.mcp.http_relay import HttpRelay

log = structlog.get_logger(__name__)

IDLE = timedelta(minutes=5)  # that a child waits for a further job
_CHILD = str(Path(__file__).with_name("client_process.py"))
_LONGEST_LINE = 8 << 20  # bytes of a frame of the child's
_AT_ONCE = 4  # jobs of one server
_GRACE = 3.0  # seconds that the child has to end a job that was stopped; then it is killed


class McpFailed(ParlourError):
    """A job failed. With *is_sent* the server may have acted; *kind* is one of the child's kinds."""

    def __init__(self, text: str, kind: str, *, is_sent: bool = False) -> None:
        super().__init__(text)
        self.kind = kind
        self.is_sent = is_sent


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server is."""

    name: str
    url: str
    is_private: bool = False  # the operator says so: its address may be one that is not on the public internet


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    digest: str  # of name, description and schema as the server sent them


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The parts of a result: texts and pictures, in order."""

    texts: Sequence[str]
    pictures: Sequence[bytes]
    is_error: bool
    is_cut: bool


@dataclass(eq=False)
class _Job:
    done: asyncio.Future[Mapping[str, Any]]
    progress: Callable[[str, int, int], None] | None = None


@dataclass(eq=False)
class _Child:
    process: asyncio.subprocess.Process
    jobs: dict[int, _Job] = field(default_factory=dict)
    requests: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    servers: dict[str, ServerAddress] = field(default_factory=dict)
    reading: asyncio.Task[None] | None = None

    def write(self, frame: Mapping[str, Any]) -> None:
        """Write a line to the child, unless it has ended."""
        if self.process.stdin is not None and not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps(frame).encode() + b"\n")

    async def drain(self) -> None:
        """Wait until the child has read most of what was written."""
        if self.process.stdin is not None:
            with suppress(ConnectionError):
                await self.process.stdin.drain()

    def kill(self) -> None:
        """End the child."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class McpClient:
    """Runs jobs in the child. Safe to share between turns."""

    def __init__(self, *, proxy: str = "", idle: timedelta = IDLE) -> None:
        self._proxy = proxy
        self._relay: HttpRelay | None = None
        self._idle = idle.total_seconds()
        self._numbers = itertools.count(1)
        self._starting = asyncio.Lock()
        self._child: _Child | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def list_tools(self, server: ServerAddress) -> tuple[Sequence[ListedTool], int]:
        """Return the tools that *server* offers now, and how many more it has than are taken. Raises McpFailed."""
        done = await self._run(server, {})
        tools = [
            ListedTool(name=each["name"], description=each["description"], schema=each["schema"], digest=each["digest"])
            for each in done["tools"]
        ]
        return tools, int(done["left_out"])

    async def call(
        self,
        server: ServerAddress,
        tool: str,
        digest: str,
        arguments: Mapping[str, Any],
        *,
        key: str,
        may_repeat: bool,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> CallResult:
        """Call *tool*, if the server still describes it as *digest* says. Raises McpFailed.

        *key* is sent along, and the same when the call is made again. With *may_repeat*, a call that a forgotten
        session has swallowed is made once more.
        """
        fields = {"tool": tool, "digest": digest, "arguments": arguments, "key": key, "may_repeat": may_repeat}
        done = await self._run(server, fields, progress)
        pictures = list[bytes]()
        for part in done["parts"]:
            with suppress(binascii.Error, ValueError):
                pictures += [base64.b64decode(part["picture"], validate=True)] if "picture" in part else []
        return CallResult(
            texts=[part["text"] for part in done["parts"] if "text" in part],
            pictures=pictures,
            is_error=done["is_error"] is not False,
            is_cut=done["is_cut"] is not False,
        )

    @property
    def process_id(self) -> int:
        """The child's process id; 0 while none runs."""
        return self._child.process.pid if self._child is not None else 0

    async def close(self) -> None:
        """End the child and all connections."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._end_child()
        if self._relay is not None:
            await self._relay.close()

    # -- jobs ----------------------------------------------------------------------------------

    async def _run(
        self,
        server: ServerAddress,
        fields: Mapping[str, Any],
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Mapping[str, Any]:
        async with self._slots.setdefault(server.name, asyncio.Semaphore(_AT_ONCE)):
            child = await self._running_child()
            number, job = next(self._numbers), _Job(asyncio.get_running_loop().create_future(), progress)
            child.jobs[number] = job
            child.servers[server.name] = server
            where = {"name": server.name, "url": server.url, "version": package_version()}
            child.write({"job": number, "server": where, **fields})
            try:
                return await asyncio.shield(job.done)
            except asyncio.CancelledError:
                child.write({"cancel": number})
                await asyncio.wait({job.done}, timeout=_GRACE)
                if not job.done.done():  # it is stuck in what a server sent, with all other jobs
                    child.kill()
                raise
            finally:
                child.jobs.pop(number, None)
                job.done.cancel()
                self._wait_idle(child)

    def _wait_idle(self, child: _Child) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not child.jobs:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._idle, lambda: child.kill() if not child.jobs else None)

    async def _running_child(self) -> _Child:
        async with self._starting:
            if self._child is not None:
                return self._child
            if find_spec("mcp") is None:
                raise McpFailed("the package for it is not installed: pip install 'parlour[mcp]'", "down")
            if self._relay is None:
                from agent.mcp.http_relay import HttpRelay  # brings aiohttp, which a start does without

                self._relay = HttpRelay(proxy=self._proxy)
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-B", _CHILD),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    env={},  # no key, no path, no setting
                    cwd="/",
                    start_new_session=True,
                    limit=_LONGEST_LINE,
                )
            except OSError as error:
                raise McpFailed(f"the process for it cannot be started: {error.strerror}", "down") from None
            self._child = child = _Child(process)
            child.reading = asyncio.create_task(self._read(child), name="mcp child")
            return child

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.reading is not None:
            child.kill()
            await asyncio.wait({child.reading})

    async def _read(self, child: _Child) -> None:
        """Take the child's frames until it ends; whatever it was doing then is unknown."""
        assert child.process.stdout is not None  # noqa: S101 - a pipe
        try:
            while line := await child.process.stdout.readline():
                self._take(child, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:  # a line that is too long, or none of the protocol's
            log.warning("mcp.child_broken", error=type(error).__name__)
        finally:
            # Nothing waits from here to the end of the jobs, so no further job is given to this child.
            self._child = None if self._child is child else self._child
            child.kill()
            for request in child.requests.values():
                request.cancel()
            for job in child.jobs.values():
                if not job.done.done():
                    failed = McpFailed("the connection to the server broke", "broken", is_sent=True)
                    job.done.set_exception(failed)
                    job.done.exception()  # it may be that nobody waits any more
            await child.process.wait()

    def _take(self, child: _Child, frame: Mapping[str, Any]) -> None:
        if "http" in frame:
            number = frame["http"]
            if "end" in frame:
                if (request := child.requests.get(number)) is not None:
                    request.cancel()
                return
            relay, server = self._relay, child.servers.get(frame["server"])
            assert relay is not None  # noqa: S101 - it is made before the child
            sending = relay.send(frame, server, child.write, child.drain)
            task = child.requests[number] = asyncio.create_task(sending, name="mcp request")
            task.add_done_callback(lambda _: child.requests.pop(number, None))
        elif (job := child.jobs.get(frame["job"])) is not None and not job.done.done():
            if "progress" in frame:
                if job.progress is not None:
                    job.progress(str(frame["progress"]), int(frame["step"]), int(frame["of"]))
            elif "failed" in frame:
                job.done.set_exception(
                    McpFailed(str(frame["failed"])[:1_000], str(frame["kind"]), is_sent=frame["is_sent"] is not False)
                )
            else:
                job.done.set_result(frame["done"])
