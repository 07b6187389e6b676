"""Where children come from: the forking process, and the line to each child."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.faults.process_order import ProcessOrder
from tests.faults.shim import build

_ROOT = Path(__file__).parents[2]
_ROOM_BYTES = 1 << 28  # containers often have 64 MB there
_LINE_BYTES = 1 << 26  # the list of points of fifty turns comes as one line


class ForkServer:
    """The forking process of this session, and the folder its scenarios live in."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self._process = process
        self._count = 0

    @property
    def socket(self) -> str:
        """Where orders go."""
        return str(self.folder / "zygote.sock")

    def new_folder(self) -> Path:
        """Return a new folder for one scenario."""
        self._count += 1
        room = self.folder / f"s{self._count}"
        (room / "root").mkdir(parents=True)
        return room


@contextmanager
def open_zygote(*, keep: bool = False) -> Iterator[ForkServer]:
    """Start the forking process; raises NoCompiler. Everything under its folder is gone afterwards, unless *keep*."""
    # A short path, since a socket's may have 107 bytes; in memory, since nothing here survives a power cut anyway.
    memory = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a folder of our own in it
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _ROOM_BYTES
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=memory if has_room else None))
    try:
        library = build(folder)
        with _process(folder, library) as process:
            yield ForkServer(folder, process)
    finally:
        if not keep:
            shutil.rmtree(folder)


@contextmanager
def _process(folder: Path, library: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.faults.fork_server", str(folder / "zygote.sock")]
    environment = {**_environment(), "LD_PRELOAD": str(library)}
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603 - ours
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line == b"ready\n", f"the zygote did not start (exit {process.poll()})"
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=20)
        process.stdout.close()


def _environment() -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARLOUR_", "OPENAI_"))}
    return {**kept, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


class ChildConnection:
    """The connection to one child."""

    def __init__(self, reader: asyncio.StreamReader, out: socket.socket, pid: int) -> None:
        self._reader = reader
        self._out = out
        self.pid = pid

    async def read(self) -> Mapping[str, Any] | None:
        """Return the next news; None when the zygote is gone."""
        line = await self._reader.readline()
        return json.loads(line) if line else None

    async def wait(self, name: str) -> Mapping[str, Any]:
        """Return the news that has *name*; empty when the process ended before it came."""
        while (news := await self.read()) is not None:
            if name in news:
                return news
            if "exit" in news:
                return {}
        return {}

    def tell(self, order: str) -> None:
        """Send an order; one that is gone by now hears nothing, and its last news are not lost over it."""
        with suppress(ConnectionError):
            self._out.sendall(json.dumps(order).encode() + b"\n")

    def kill(self) -> None:
        """End a child that hangs."""
        os.kill(self.pid, signal.SIGKILL)


@asynccontextmanager
async def open_line(zygote: ForkServer, order: ProcessOrder) -> AsyncIterator[ChildConnection]:
    """Have a child made; it lives on until it is told to finish, or is killed."""
    reader, writer = await asyncio.open_unix_connection(zygote.socket, limit=_LINE_BYTES)
    try:
        writer.write(order.to_json().encode() + b"\n")
        made = json.loads(await reader.readline())
        with writer.get_extra_info("socket").dup() as out:
            yield ChildConnection(reader, out, made["pid"])
    finally:
        writer.close()
