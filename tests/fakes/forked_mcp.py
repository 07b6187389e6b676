"""The child that speaks MCP, forked from a process that has imported the SDK, whose import takes two seconds of CPU.

`python -m tests.fakes.forked_mcp` is that child in the forked process. What the kernel takes from it is tried with a
child that is started as the gateway starts it (tests/unit/tools/test_mcp_client.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from agent.mcp import client
from tests.fakes.forked_command import ForkedCommand, fork_command
from tests.faults.process_pool import ForkServer

_IMPORTS = ("jsonschema", "agent.mcp.client_process")


class ForkedChild:
    """The part of `asyncio.subprocess.Process` that the client uses."""

    def __init__(self, command: ForkedCommand, stdin: asyncio.StreamWriter) -> None:
        self._command = command
        self.stdin = stdin
        self.stdout = command.stdout
        self.pid = command.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, once `wait` has returned it."""
        return self._command.returncode

    async def wait(self) -> int:
        """Return the exit code."""
        code = await self._command.wait()
        self.stdin.close()
        return code


async def fork_child(zygote: ForkServer, limit: int) -> ForkedChild:
    """Start one; *limit* is the longest line that it may write."""
    command = await fork_command(zygote, ("-m", __name__), {}, typed=None, modules=_IMPORTS)
    assert command.stdout is not None
    command.stdout._limit = limit  # type: ignore[attr-defined]
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, command.stdin)
    return ForkedChild(command, asyncio.StreamWriter(transport, protocol, None, loop))


@pytest.fixture
def forked_children(zygote: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have gateways in this process fork their MCP children."""
    start = asyncio.create_subprocess_exec

    async def fork_or_start(*command: str, **options: Any) -> Any:
        if client._CHILD in command:
            return await fork_child(zygote, options["limit"])
        return await start(*command, **options)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", fork_or_start)
        yield


def main() -> None:
    """Be the child, in a session of its own."""
    from agent.mcp.client_process import main as serve

    os.setsid()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    serve()


if __name__ == "__main__":
    main()
