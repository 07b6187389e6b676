"""Where children come from: the forking process, and the line to each child."""

from __future__ import annotations

import asyncio
import fcntl
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

SOCKET = "zygote.sock"
_INPUT = "stdin"
_ROOT = Path(__file__).parents[2]
_ROOM_BYTES = 1 << 28  # containers often have 64 MB there
_LINE_BYTES = 1 << 26  # the list of points of fifty turns comes as one line


class ForkServer:
    """The forking process of a session, and the folder its scenarios live in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def socket(self) -> str:
        """Where orders go."""
        return str(self.folder / SOCKET)

    def new_folder(self) -> Path:
        """Return a new folder for one scenario."""
        folder = Path(tempfile.mkdtemp(prefix="s", dir=self.folder))
        (folder / "root").mkdir()
        return folder


@contextmanager
def open_zygote(*, keep: bool = False) -> Iterator[ForkServer]:
    """Start the forking process; raises NoCompiler. Everything under its folder is gone afterwards, unless *keep*."""
    folder = _make_folder()
    try:
        process = _start(folder, subprocess.PIPE)
        yield ForkServer(folder)
        process.communicate(timeout=20)
    finally:
        if not keep:
            shutil.rmtree(folder)


@contextmanager
def share_zygote(run: Path) -> Iterator[ForkServer]:
    """Share one forking process among the workers whose common folder is *run*; raises NoCompiler.

    The first worker starts it. Its standard input is a FIFO that each of them holds open: it ends after the last one.
    """
    pointer = run / "zygote"
    with (run / "zygote.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            folder = pointer.readlink()
            held = os.open(folder / _INPUT, os.O_WRONLY | os.O_NONBLOCK)  # fails when nothing reads there
        except OSError:
            folder = _make_folder()
            held = _start_shared(folder)
            pointer.unlink(missing_ok=True)
            pointer.symlink_to(folder)
    try:
        yield ForkServer(folder)
    finally:
        os.close(held)


def _make_folder() -> Path:
    # A short path, since a socket's may have 107 bytes; in memory, since nothing here survives a power cut anyway.
    memory = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a folder of our own in it
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _ROOM_BYTES
    return Path(tempfile.mkdtemp(prefix="faults-", dir=memory if has_room else None))


def _start_shared(folder: Path) -> int:
    """Start a process that outlives its starter, and removes *folder*; return the FIFO that keeps it alive."""
    os.mkfifo(folder / _INPUT)
    reading = os.open(folder / _INPUT, os.O_RDONLY | os.O_NONBLOCK)
    held = os.open(folder / _INPUT, os.O_WRONLY)
    try:
        process = _start(folder, reading, "--shared")
    except BaseException:
        os.close(held)
        shutil.rmtree(folder)
        raise
    finally:
        os.close(reading)
    assert process.wait(timeout=20) == 0
    return held


def _start(folder: Path, source: int, *options: str) -> subprocess.Popen[bytes]:
    library = build(folder)
    command = [sys.executable, "-m", "tests.faults.fork_server", str(folder / SOCKET), *options]
    environment = {**_environment(), "LD_PRELOAD": str(library)}
    process = subprocess.Popen(command, cwd=_ROOT, stdin=source, stdout=subprocess.PIPE, env=environment)  # noqa: S603 - ours
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == b"ready\n", f"the zygote did not start (exit {process.poll()})"
    process.stdout.close()
    return process


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
