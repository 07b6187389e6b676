"""A server over stdin and stdout, offered by deploy/mcp/sidecar.py as a process on a port of this machine."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from agent.mcp.client import McpClient, McpFailed, ServerAddress

ROOT = Path(__file__).resolve().parents[3]


async def wait_listening(port: int, process: asyncio.subprocess.Process) -> None:
    """Return when the sidecar answers."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)  # it is a process of its own
            continue
        writer.close()
        return
    raise AssertionError("the sidecar has ended")


@pytest.mark.timeout(300)
async def test_its_tools_are_called_and_it_ends_with_its_server() -> None:
    """As the container does it: the environment is the server's, and a server that dies ends the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = (str(ROOT / "deploy/mcp/sidecar.py"), sys.executable, "-m", "tests.fakes.stdio_mcp")
    environment = {"PATH": os.environ["PATH"], "PORT": str(port), "CHECK_EVERY": "0.1", "TOKEN": "of the server"}
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment, cwd=ROOT)
    client = McpClient()
    try:
        await wait_listening(port, process)
        address = ServerAddress(name="notes", url=f"http://127.0.0.1:{port}/mcp", is_private=True)
        tools, left_out = await client.list_tools(address)
        assert ([each.name for each in tools], left_out) == (["environment", "end"], 0)
        digests = {each.name: each.digest for each in tools}
        for name, value in (("TOKEN", "of the server"), ("PORT", "(not set)")):
            found = await client.call(
                address, "environment", digests["environment"], {"name": name}, key="t.1", may_repeat=True
            )
            assert found.texts == [value]
        with pytest.raises(McpFailed) as failed:
            await client.call(address, "end", digests["end"], {}, key="t.2", may_repeat=False)
        assert failed.value.is_sent
        assert await process.wait() == 1
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await client.close()
