"""Calls tools of MCP servers through confined child processes, one for each server.

The child (`client_process.py`) runs the SDK: it parses all that its server sends, and has neither network nor files.
Its requests are sent for it (`http_relay.py`). It is started by the first job, and ends after five minutes without one.
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
from gateway.installation import HOW_TO_INSTALL, package_version

if TYPE_CHECKING:
    from agent.mcp.http_relay import HttpRelay

log = structlog.get_logger(__name__)

IDLE = timedelta(minutes=5)  # that a child waits for a further job
_CHILD = str(Path(__file__).with_name("client_process.py"))
_LONGEST_LINE = 8 << 20  # bytes of a frame of the child's
_AT_ONCE = 4  # jobs of one server
_MOST_CHILDREN = 4
_MOST_REQUESTS = 16  # of one server at once
_WAIT_FOR_SLOT = 20.0  # seconds
_GRACE = 3.0  # seconds that the child has to end a job that was stopped; then it is killed


class McpFailed(ParlourError):
    """A job failed. With *is_sent* the server may have acted; *kind* is `login` or one of the child's kinds."""

    def __init__(self, text: str, kind: str, *, is_sent: bool = False) -> None:
        super().__init__(text)
        self.kind = kind
        self.is_sent = is_sent


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The address of a server."""

    name: str
    url: str
    is_private: bool = False  # the operator says so: its address may be one that is not on the public internet


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLogin:
    """The login that a job uses; none by default."""

    person: str = ""  # the account, in a form that does not tell it
    token: str = field(default="", repr=False)


NOBODY = CallLogin()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    digest: str  # of name, description and schema as the server sent them


@dataclass(frozen=True, slots=True, kw_only=True)
class McpResult:
    """The parts of a result: texts and pictures, in order."""

    texts: Sequence[str]
    pictures: Sequence[bytes]
    is_error: bool
    is_cut: bool


@dataclass(eq=False)
class _PendingJob:
    done: asyncio.Future[Mapping[str, Any]]
    login: CallLogin
    progress: Callable[[str, int, int], None] | None = None
    is_refused: bool = False  # the server wants a login, or another one


class McpChild:
    """The child of one server."""

    def __init__(self, server: ServerAddress, relay: HttpRelay, idle: float) -> None:
        self.server = server
        self._relay = relay
        self._idle = idle
        self._numbers = itertools.count(1)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._jobs: dict[int, _PendingJob] = {}
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.users = 0  # jobs that run or wait

    @property
    def process_id(self) -> int:
        """The process id; 0 while none runs."""
        return self._process.pid if self._process is not None else 0

    async def run(
        self,
        fields: Mapping[str, Any],
        login: CallLogin,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Mapping[str, Any]:
        """Return the result of a job. Raises McpFailed."""
        self.users += 1
        try:
            try:
                async with asyncio.timeout(_WAIT_FOR_SLOT):
                    await self._slots.acquire()
            except TimeoutError:
                raise McpFailed("it is busy with other calls", "busy") from None
            try:
                return await self._run(fields, _PendingJob(asyncio.get_running_loop().create_future(), login, progress))
            finally:
                self._slots.release()
        finally:
            self.users -= 1
            self._wait_idle()

    async def _run(self, fields: Mapping[str, Any], job: _PendingJob) -> Mapping[str, Any]:
        await self._start()
        number = next(self._numbers)
        self._jobs[number] = job
        where = {"name": self.server.name, "url": self.server.url, "version": package_version()}
        self._write({"job": number, "server": where, "person": job.login.person, **fields})
        try:
            return await asyncio.shield(job.done)
        except McpFailed as error:
            if job.is_refused:
                raise McpFailed("the server wants a login", "login", is_sent=error.is_sent) from None
            raise
        except asyncio.CancelledError:
            self._write({"cancel": number})
            await asyncio.wait({job.done}, timeout=_GRACE)
            if not job.done.done():  # it is stuck in what the server sent
                self.kill()
            raise
        finally:
            self._jobs.pop(number, None)
            job.done.cancel()

    def kill(self) -> None:
        """End the process, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End the process and all that waits for it."""
        async with self._starting:
            if self._timer is not None:
                self._timer.cancel()
            self.kill()
        if self._reading is not None:
            await asyncio.wait({self._reading})

    def _wait_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.users and self._process is not None:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._end_idle)

    def _end_idle(self) -> None:
        if not self.users:
            self.kill()

    async def _start(self) -> None:
        async with self._starting:
            if self._process is not None:
                return
            if find_spec("mcp") is None:
                raise McpFailed(f"the package for it is not installed: {HOW_TO_INSTALL}", "down")
            try:
                self._process = await asyncio.create_subprocess_exec(
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
            self._reading = asyncio.create_task(self._read(self._process), name="mcp child")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Take the child's frames until it ends; the outcome of what it was doing then is unknown."""
        assert process.stdout is not None  # noqa: S101 - a pipe
        try:
            while line := await process.stdout.readline():
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:  # a line that is too long, or none of the protocol's
            log.warning("mcp.child_broken", server=self.server.name, error=type(error).__name__)
        finally:
            self.kill()
            # Nothing waits from here to the end of the jobs, so no further job is given to this process.
            self._process = None
            requests, self._requests = self._requests, {}
            for request in requests.values():
                request.cancel()
            for job in self._jobs.values():
                if not job.done.done():
                    job.done.set_exception(McpFailed("the connection to the server broke", "broken", is_sent=True))
                    job.done.exception()  # it may be that nobody waits any more
            await process.wait()

    def _take(self, frame: Mapping[str, Any]) -> None:
        if "http" in frame:
            number = frame["http"]
            if "end" in frame:
                if (request := self._requests.get(number)) is not None:
                    request.cancel()
                return
            if len(self._requests) >= _MOST_REQUESTS:
                self._write({"http": number, "failed": "too many requests are open", "is_sent": False})
                return
            sending = self._send(frame)
            task = self._requests[number] = asyncio.create_task(sending, name="mcp request")
            task.add_done_callback(lambda _: self._requests.pop(number, None))
        elif (job := self._jobs.get(frame["job"])) is not None and not job.done.done():
            if "progress" in frame:
                if job.progress is not None:
                    job.progress(str(frame["progress"]), int(frame["step"]), int(frame["of"]))
            elif "failed" in frame:
                is_sent = frame["is_sent"] is not False
                job.done.set_exception(McpFailed(str(frame["failed"])[:1_000], str(frame["kind"]), is_sent=is_sent))
            else:
                job.done.set_result(frame["done"])

    async def _send(self, frame: Mapping[str, Any]) -> None:
        """Send a request of the child, with the login of a job that runs: otherwise the child has none."""
        person = frame["person"]
        jobs = [each for each in self._jobs.values() if each.login.person == person]
        if person and not jobs:
            self._write({"http": frame["http"], "failed": "no call of this login runs", "is_sent": False})
            return
        token = jobs[-1].login.token if jobs else ""
        if await self._relay.send(frame, self.server, token, self._write, self._drain):
            for each in jobs:
                each.is_refused = True

    def _write(self, frame: Mapping[str, Any]) -> None:
        """Write a line to the child, unless it has ended."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    async def _drain(self) -> None:
        """Wait until the child has read most of what was written."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(ConnectionError):
                await self._process.stdin.drain()


class McpClient:
    """Runs jobs in the children of servers. Safe to share between turns."""

    def __init__(self, *, proxy: str = "", idle: timedelta = IDLE) -> None:
        self._proxy = proxy
        self._idle = idle.total_seconds()
        self._relay: HttpRelay | None = None
        self._children: dict[str, McpChild] = {}  # by server, the longest unused first
        self._choosing = asyncio.Lock()
        self._is_closed = False

    async def list_tools(self, server: ServerAddress, login: CallLogin = NOBODY) -> tuple[Sequence[ListedTool], int]:
        """Return the tools that *server* offers now, and how many more it has than are taken. Raises McpFailed."""
        done = await (await self._child(server)).run({}, login)
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
        login: CallLogin = NOBODY,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> McpResult:
        """Call *tool*, if the server still describes it as *digest* says. Raises McpFailed.

        *key* is sent along, and the same when the call is made again. With *may_repeat*, a call that a forgotten
        session has swallowed is made once more.
        """
        fields = {"tool": tool, "digest": digest, "arguments": arguments, "key": key, "may_repeat": may_repeat}
        done = await (await self._child(server)).run(fields, login, progress)
        pictures = list[bytes]()
        for part in done["parts"]:
            with suppress(binascii.Error, ValueError):
                pictures += [base64.b64decode(part["picture"], validate=True)] if "picture" in part else []
        return McpResult(
            texts=[part["text"] for part in done["parts"] if "text" in part],
            pictures=pictures,
            is_error=done["is_error"] is not False,
            is_cut=done["is_cut"] is not False,
        )

    def process_id(self, server: str) -> int:
        """Return the process id of the child of *server*; 0 while none runs."""
        return self._children[server].process_id if server in self._children else 0

    async def close(self) -> None:
        """End all children and connections; later jobs fail."""
        self._is_closed = True
        async with self._choosing:
            for child in self._children.values():
                await child.close()
        if self._relay is not None:
            await self._relay.close()

    async def _child(self, server: ServerAddress) -> McpChild:
        """Return the child of *server*; that of another server ends if there are too many. Raises McpFailed."""
        if self._is_closed:
            raise McpFailed("the gateway is stopping", "down")
        async with self._choosing:
            child = self._children.pop(server.name, None)
            if child is not None and child.server != server:  # it was pinned again, somewhere else
                await child.close()
                child = None
            if child is None:
                idle = [each for each in self._children.values() if not each.users]
                if len(self._children) >= _MOST_CHILDREN:
                    if not idle:
                        raise McpFailed(f"{_MOST_CHILDREN} other services are busy", "busy")
                    await self._children.pop(idle[0].server.name).close()
                if self._relay is None:
                    from agent.mcp.http_relay import HttpRelay  # brings aiohttp, which a start does without

                    self._relay = HttpRelay(proxy=self._proxy)
                child = McpChild(server, self._relay, self._idle)
            self._children[server.name] = child
            return child
