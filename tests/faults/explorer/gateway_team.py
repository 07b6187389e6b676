"""The explorer's gateways: processes that are killed and started again, each with its own way to the database."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from tests.fakes.forked_command import ForkedCommand, fork_into
from tests.faults.explorer.rpc_line import LINE_BYTES, Handler, RpcLine
from tests.faults.process_pool import ForkServer

_SOCKET = ".s.PGSQL.5432"
_CHUNK = 1 << 16
_RESTART = 0.3  # seconds, as a service manager waits
_STARTED = 30.0
_STOPPED = 40.0  # seconds that an orderly stop may take
_TOLD = re.compile(r"level=error|\[error|Traceback|^ended:", re.IGNORECASE)


@dataclass(slots=True)
class DatabaseProxy:
    """A socket before the server that a test makes slow, silent, or breaks off."""

    folder: Path
    server: Mapping[str, str]  # conninfo
    delay: float = 0.0  # seconds before each piece
    _flows: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def address(self) -> str:
        """Return what `store.url` is to be."""
        return f"postgresql:///{self.server['dbname']}?host={self.folder}&user={self.server['user']}"

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen until the block ends."""
        self.folder.mkdir()
        self.heal()
        server = await asyncio.start_unix_server(self._pass, self.folder / _SOCKET)
        try:
            yield
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._open, return_exceptions=True)

    @asynccontextmanager
    async def serve_loopback(self) -> AsyncIterator[str]:
        """Listen on a port of this machine until the block ends; yield what `store.url` is to be."""
        self.heal()
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        plain = "sslmode=disable&gssencmode=disable"
        try:
            yield f"postgresql://{self.server['user']}@127.0.0.1:{port}/{self.server['dbname']}?{plain}"
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._open, return_exceptions=True)

    def stall(self) -> None:
        """Let nothing through until `heal`; connections stay."""
        self._flows.clear()

    def heal(self) -> None:
        """Let everything through at once."""
        self.delay = 0.0
        self._flows.set()

    def cut(self) -> None:
        """Break off every connection."""
        for task in self._open:
            task.cancel()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await self._connect()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, there))
                group.create_task(self._copy(back, writer))
        except* (OSError, asyncio.CancelledError):
            pass  # either end has gone, or the test has cut it
        finally:
            self._open.discard(task)
            for each in (writer, there):
                if each is not None:
                    each.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = self.server["host"]
        if host.startswith("/"):
            return await asyncio.open_unix_connection(Path(host) / _SOCKET)
        return await asyncio.open_connection(host, int(self.server.get("port", "5432")))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionError("the end of a connection")


@dataclass(slots=True)
class ExploredGateway:
    """One gateway: its home, its clock, its way to the database, and the process while there is one."""

    name: str
    home: Path
    log: Path
    seconds: float  # that its clock is ahead
    environment: Mapping[str, str]
    proxy: DatabaseProxy | None
    line: RpcLine | None = None  # while it serves
    process: ForkedCommand | None = None
    is_wanted: bool = True  # a process that ends is started again
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[int] = field(default_factory=list)  # exit codes that nobody asked for


class GatewayTeam:
    """Starts every gateway, and again whichever ends, until the block ends."""

    def __init__(self, folder: Path, zygote: ForkServer, handlers: Mapping[str, Handler]) -> None:
        self._socket = folder / "line"
        self._folder = folder
        self._zygote = zygote
        self._handlers = handlers
        self.gateways: list[ExploredGateway] = []

    @asynccontextmanager
    async def open(
        self, ahead: list[float], environment: Mapping[str, str], database: str
    ) -> AsyncIterator[list[ExploredGateway]]:
        """Run a gateway for each clock, which is so many seconds *ahead*; on SQLite where *database* is empty."""
        server = await asyncio.start_unix_server(self._hear, self._socket, limit=LINE_BYTES)
        proxies = [self._proxy(number, database) if database else None for number in range(len(ahead))]
        self.gateways = [
            self._gateway(f"g{number}", seconds, environment, proxy)
            for number, (seconds, proxy) in enumerate(zip(ahead, proxies, strict=True))
        ]
        keeping = [asyncio.create_task(self._keep(each), name=f"keep {each.name}") for each in self.gateways]
        try:
            async with _all_serving([each for each in proxies if each is not None]):
                try:
                    async with asyncio.timeout(_STARTED):
                        await asyncio.gather(*(each.ready.wait() for each in self.gateways))
                    yield self.gateways
                finally:
                    for task in keeping:
                        task.cancel()
                    await asyncio.gather(*keeping, return_exceptions=True)
                    for process in [each.process for each in self.gateways if each.process is not None]:
                        process.send_signal(signal.SIGKILL)
                        await process.wait()
        finally:
            server.close()

    def _proxy(self, number: int, database: str) -> DatabaseProxy:
        found = {name: str(value) for name, value in conninfo_to_dict(database).items()}
        return DatabaseProxy(self._folder / f"d{number}", found)

    def _gateway(
        self, name: str, seconds: float, environment: Mapping[str, str], proxy: DatabaseProxy | None
    ) -> ExploredGateway:
        home = self._folder / name
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PARLOUR_")}
        shared = {"PARLOUR_STORE__URL": proxy.address, "PARLOUR_STORE__SHARED": "true"} if proxy is not None else {}
        settings = {**kept, **environment, **shared, "PARLOUR_HOME": str(home)}
        return ExploredGateway(name, home, self._folder / f"{name}.log", seconds, settings, proxy)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = RpcLine(reader, writer, {**self._handlers, "ready": lambda name: self._ready(name, line)})
        await line.serve()
        for each in self.gateways:
            if each.line is line:
                each.line = None

    async def _ready(self, name: str, line: RpcLine) -> None:
        each = next(each for each in self.gateways if each.name == name)
        each.line = line
        each.ready.set()

    async def _keep(self, each: ExploredGateway) -> None:
        """Start it whenever it does not run and is wanted."""
        while True:
            if not each.is_wanted:
                await asyncio.sleep(0.02)
                continue
            words = ("-m", "tests.faults.explorer.child_gateway", str(self._socket), each.name, str(each.seconds))
            with each.log.open("ab") as log:
                each.process = process = await fork_into(self._zygote, words, each.environment, log.fileno())
            code = await process.wait()
            each.process = None
            each.line = None
            each.ready.clear()
            if each.is_wanted:
                each.ends.append(code)
            await asyncio.sleep(_RESTART)

    async def kill(self, each: ExploredGateway, seconds: float) -> None:
        """Kill it as a power cut does; it is started again after *seconds*."""
        await self._end(each, signal.SIGKILL)
        await asyncio.sleep(seconds)
        each.is_wanted = True

    async def stop(self, each: ExploredGateway) -> bool:
        """Stop it in order; return False if it had to be killed. It stays down until `is_wanted` again."""
        each.is_wanted = False
        try:
            async with asyncio.timeout(_STOPPED):
                if each.line is not None:
                    with suppress(ConnectionError):
                        await each.line.call("stop")
                while each.process is not None:  # noqa: ASYNC110 - another task waits for the process
                    await asyncio.sleep(0.02)
        except TimeoutError:
            await self._end(each, signal.SIGKILL)
            return False
        return True

    async def _end(self, each: ExploredGateway, number: signal.Signals) -> None:
        each.is_wanted = False
        while (process := each.process) is not None:
            process.send_signal(number)
            await asyncio.sleep(0.02)

    def errors(self) -> list[str]:
        """Return the lines of the logs that tell of errors."""
        return [
            f"{each.name}: {line[:300]}"
            for each in self.gateways
            if each.log.exists()
            for line in each.log.read_text("utf-8", "replace").splitlines()
            if _TOLD.search(line)
        ]


@asynccontextmanager
async def _all_serving(proxies: list[DatabaseProxy]) -> AsyncIterator[None]:
    if not proxies:
        yield
        return
    async with proxies[0].serve(), _all_serving(proxies[1:]):
        yield


async def eventually(is_so: Callable[[], Awaitable[Any]], seconds: float) -> bool:
    """Return True as soon as *is_so*, which looks at other processes; False after *seconds*."""
    until = asyncio.get_running_loop().time() + seconds
    while not await is_so():
        if asyncio.get_running_loop().time() > until:
            return False
        await asyncio.sleep(0.1)
    return True
