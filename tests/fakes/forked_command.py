"""A `parlour` command in a forked process, whose modules are imported already (tests/faults/fork_server.py)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO

from tests.faults.process_pool import ForkServer


class ForkedCommand:
    """The part of `asyncio.subprocess.Process` that tests use, over the connection to the forking process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int, stdin: BinaryIO) -> None:
        self.stdout: asyncio.StreamReader | None = None
        self.stdin = stdin  # closed where all that the process reads was given at its start
        self.pid = pid
        self.returncode: int | None = None
        self._reader = reader
        self._writer = writer  # open as long as the process runs

    def send_signal(self, number: signal.Signals) -> None:
        """Send *number*; a process that has ended ignores it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Return the exit code, or the negative number of the signal that ended it."""
        if self.returncode is None:
            line = await self._reader.readline()
            assert line, "the forking process is gone"
            self.returncode = json.loads(line)["exit"]
            self._writer.close()
            self.stdin.close()
        return self.returncode


async def fork_command(
    zygote: ForkServer,
    words: tuple[str, ...],
    environment: Mapping[str, str],
    typed: str | None = "",
    modules: Sequence[str] = (),
) -> ForkedCommand:
    """Run ``parlour *words*``, or ``python *words*`` where they begin with ``-m``, under *environment*.

    *typed* is its standard input; None = what the caller writes to `stdin`. Standard output and standard error are one
    stream. The forking process has *modules* imported from then on.
    """
    reading, writing = os.pipe()
    try:
        command = await fork_into(zygote, words, environment, writing, typed, modules)
    finally:
        os.close(writing)
    command.stdout = out = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(out), os.fdopen(reading, "rb"))
    return command


async def fork_into(
    zygote: ForkServer,
    words: tuple[str, ...],
    environment: Mapping[str, str],
    output: int,
    typed: str | None = "",
    modules: Sequence[str] = (),
) -> ForkedCommand:
    """Do as `fork_command`; what is printed goes to the file descriptor *output*."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(zygote.socket)
    order = json.dumps({"words": words, "environment": dict(environment), "modules": modules}).encode() + b"\n"
    answers, typing = os.pipe()
    stdin = os.fdopen(typing, "wb", buffering=0)
    with os.fdopen(answers, "rb"):
        if typed is not None:
            stdin.write(typed.encode())  # less than a pipe takes
            stdin.close()
        socket.send_fds(connection, [order], [output, answers])
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    made = json.loads(await reader.readline())
    return ForkedCommand(reader, writer, made["pid"], stdin)
