"""The real gateway as its own process: started, killed and started again on the same home."""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fakes.forked_command import ForkedCommand, fork_command
from tests.faults.process_pool import ForkServer

COMMAND = str(Path(sys.executable).with_name("parlour"))  # as it is installed beside the tests' own Python


class GatewayProcess:
    """`parlour run` on one home and one port; its log is kept in memory.

    With a *zygote* its processes are forked from one that has imported everything, which takes a fifth of the time.
    """

    def __init__(self, home: Path, port: int, zygote: ForkServer | None = None, /, **settings: str) -> None:
        self._zygote = zygote
        self.home = home
        self.port = port
        self.log: list[str] = []
        self.program: tuple[str, ...] = (COMMAND,)
        self.open_files: tuple[int, int] | None = None  # soft and hard limit it starts with; None = the tests' own
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")} | {
            "PARLOUR_HOME": str(home),
            "PARLOUR_WEB__PORT": str(port),
            "PARLOUR_AGENT__MERGE": "split",  # each message has an answer of its own
            "PYTHONUNBUFFERED": "1",
            **settings,
        }
        self._process: asyncio.subprocess.Process | ForkedCommand | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._line = asyncio.Condition()

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Return True once its log is closed: it ended, or was killed."""
        return self._reading is None or self._reading.done()

    async def start(self) -> None:
        """Start it and return when it says that it is ready; an early end fails with its log."""
        self._ready.clear()
        self._process = await self._run("run", preexec_fn=self._limit_open_files if self.open_files else None)
        self._reading = asyncio.create_task(self._read(self._process), name="gateway log")
        ready = asyncio.create_task(self._ready.wait(), name="gateway ready")
        await asyncio.wait({ready, self._reading}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not self._ready.is_set():
            raise AssertionError("the gateway ended before it was ready:\n" + "\n".join(self.log[-40:]))

    async def kill(self) -> int:
        """End it as a power cut would; return the exit code."""
        return await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Ask it to stop; return the exit code."""
        return await self._end(signal.SIGTERM)

    async def _run(self, *words: str, typed: str = "", **more: Any) -> asyncio.subprocess.Process | ForkedCommand:
        if self._zygote is not None:
            return await fork_command(self._zygote, words, self.environment, typed)
        assert not typed, "only a forked command is typed to"
        pipe, also = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        return await asyncio.create_subprocess_exec(
            *self.program, *words, env=self.environment, stdout=pipe, stderr=also, **more
        )

    async def run_to_its_end(self, *words: str, typed: str = "") -> tuple[int, str]:
        """Run another `parlour` command, with *typed* as its input; return its exit code and all that it printed."""
        process = await self._run(*words, typed=typed)
        assert process.stdout is not None
        printed = await process.stdout.read()
        return await process.wait(), printed.decode()

    async def command(self, *words: str) -> str:
        """Run another `parlour` command on the same home; return what it printed."""
        if self._zygote is not None:
            code, printed = await self.run_to_its_end(*words)
            assert code == 0, printed
            return printed
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            *words,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    def _limit_open_files(self) -> None:
        if self.open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self.open_files)

    async def _read(self, process: asyncio.subprocess.Process | ForkedCommand) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.log.append(line.decode(errors="replace").rstrip())
            if re.search(r"\bapp\.ready\b", self.log[-1]):
                self._ready.set()
            async with self._line:
                self._line.notify_all()

    async def wait_logged(self, event: str, *, times: int = 1) -> None:
        """Return once *event* stands in as many lines of the log."""
        async with self._line:
            await self._line.wait_for(lambda: sum(event in line for line in self.log) >= times)

    async def wait_ended(self) -> int:
        """Return the exit code when it has ended by itself."""
        return await self._end(None)

    async def _end(self, number: signal.Signals | None) -> int:
        assert self._process is not None
        assert self._reading is not None
        if number is not None and self._process.returncode is None:
            self._process.send_signal(number)
        code = await self._process.wait()
        await self._reading
        self._process = None
        return code

    async def close(self) -> None:
        """Kill it if it still runs."""
        if self._process is not None:
            await self.kill()


def free_port() -> int:
    """Return a port that nothing listens on now, and that a restart can have again.

    Below those that the system gives to connections: one of these could be in use by the time the gateway listens.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@asynccontextmanager
async def gateway(home: Path, zygote: ForkServer | None = None, /, **settings: str) -> AsyncIterator[GatewayProcess]:
    """Run the gateway on *home*; it is killed at the end of the block, if nobody stopped it."""
    process = GatewayProcess(home, free_port(), zygote, **settings)
    try:
        await process.start()
        yield process
    finally:
        await process.close()
